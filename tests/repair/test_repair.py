"""The object that a repair is in Python: where its journal is, and what it refuses."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.golden import case_named, unpack
from support.rocketmq_states import made

import mqstore
from mqstore.errors import TargetError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.repair.change import Change, Step, chosen, renames
from mqstore.repair.changed_directory import ChangedDirectory
from mqstore.repair.journal import UNDOING
from mqstore.repair.repair import Repair
from mqstore.rocketmq.repair.plan import LOCKING

CASE = case_named("4.9.3/f-broker-offsets")


def test_a_further_repair_keeps_its_journal_beside_the_one_before(tmp_path: Path) -> None:
    store = made("stray_file", CASE, tmp_path / "store")
    repair = mqstore.open(store).repair()
    assert repair.free_journal is None
    repair.apply()
    assert repair.free_journal == tmp_path / "store.undo2"
    (tmp_path / "store.undo2").mkdir()
    assert repair.free_journal == tmp_path / "store.undo3"


def test_an_undo_that_was_interrupted_is_finished_before_anything_else(tmp_path: Path) -> None:
    repair = mqstore.open(made("stray_file", CASE, tmp_path / "store")).repair()
    repair.apply()
    (repair.journal / "state").write_text(UNDOING)
    with pytest.raises(TargetError, match="was interrupted; run it again"):
        repair.apply()
    repair.undo()
    assert not repair.journal.exists()


def test_what_rests_on_a_default_is_changed_only_if_that_is_accepted(tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    shutil.rmtree(store / "consumequeue")
    repair = mqstore.open(store).repair()
    assert any(step.assumes for step in repair.steps)
    with pytest.raises(UsageError, match="or accept the default with --assume-defaults"):
        repair.apply(assume_defaults=False)
    assert not (store / "consumequeue").exists()


def test_a_file_that_is_a_link_can_be_repaired_in_a_copy(tmp_path: Path) -> None:
    store = made("short_queue_file", CASE, tmp_path / "store")
    assert not mqstore.open(store).repair().needs_copy
    (name,) = {change.file for step in mqstore.open(store).repair().steps for change in step.changes if change.op == "resize"}
    os.link(store / name, tmp_path / "other")
    repair = mqstore.open(store).repair()
    assert repair.needs_copy
    assert "has a second hard link" in repair.refusal


def test_what_is_not_possible_is_left_with_the_number_that_the_plan_gives_it(tmp_path: Path) -> None:
    store = made("stray_file", CASE, tmp_path / "store")
    os.mkfifo(store / "commitlog" / "pipe")
    repair = mqstore.open(store).repair()
    (number,) = (number for number, step in enumerate(repair.steps) if step.file == "commitlog/pipe")
    report = repair.apply()
    assert report.not_repaired == ((number + 1, repair.steps[number]),)
    assert report.repaired == len(repair.steps) - 1


def test_the_root_of_a_disk_needs_a_journal_to_be_named() -> None:
    with pytest.raises(UsageError, match="give the directory of the undo journal with --journal"):
        Repair(Path("/"), Path("/"), "RocketMQ", LOCKING, list, list)


def test_a_step_of_what_others_leave_is_not_chosen_without_them() -> None:
    first = Step("test", "file", 0, 0, "", "", "", (Change("put", "file", content=b"x"),))
    steps = [first, replace(first, after=1)]
    assert chosen(steps, {1, 2}) == steps
    with pytest.raises(UsageError, match="--only 2: that step is of what the first 1 steps leave; add them"):
        chosen(steps, {2})


def test_files_with_the_names_of_each_other_get_their_own_in_every_circle(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    has = {"a": "b", "b": "c", "c": "a", "d": "e", "e": "d"}  # each name: whose file has it
    for name, own in has.items():
        (store / name).write_text(own)
    named = {own: name for name, own in has.items()}
    changes = tuple(renames(named))
    seen = ChangedDirectory(ReadOnlyDirectory(store), changes)
    assert {name: seen.read(name) for name in has} == {name: name.encode() for name in has}
    assert [entry.name for entry in seen.entries()] == sorted(has)
