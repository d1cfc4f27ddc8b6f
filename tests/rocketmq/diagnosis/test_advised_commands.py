"""Every command that a diagnosis of a RocketMQ store advises is run as a shell would split it, until the advice is to start a broker."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support.golden import CASES, GoldenCase, case_id, case_named, run_cli, tree_checksum, unpack
from support.rocketmq_states import STATES, record_starts

from mqstore.diagnosis import Diagnosis
from mqstore.places import open_rocketmq
from mqstore.rocketmq.diagnosis.diagnosis import FOR_GOOD, START, WITHOUT_KEYS, diagnose

FOUR, FIVE = case_named("4.9.3/f-broker-offsets"), case_named("5.3.3/j-broker-offsets")
MOST = 4  # commands until a broker is to be started


def follow(case: GoldenCase, store: Path) -> list[Diagnosis]:
    """Diagnose a store, run what is advised, and diagnose what that made, until a broker is to be started; return the diagnoses."""
    found = [diagnose(open_rocketmq(store, config=case.config), case.version)]
    while found[-1].next != START:
        assert len(found) <= MOST, [item.next for item in found]
        words = shlex.split(found[-1].next)
        assert (words[0], words[2]) == ("mqstore", str(store)), found[-1].next
        config = ("--config", str(case.config)) if case.config.exists() else ()
        done = run_cli(*words[1:], *config)
        match words[1]:
            case "repair":
                assert done.status == 1, (done.stdout, done.stderr)  # there is something to repair
                applied = run_cli("repair", store, "--apply", *config)
                assert applied.status == 0, (applied.stdout, applied.stderr)
            case "rebuild":
                assert done.status in (0, 1), (done.stdout, done.stderr)  # 1: a part of the log is damaged
                store = Path(words[words.index("--to") + 1])
            case _:
                raise AssertionError(found[-1].next)
        found.append(diagnose(open_rocketmq(store, config=case.config), case.version))
    return found


def check(case: GoldenCase, store: Path) -> None:
    """Follow the advice. What is lost in the end is what only a place in a queue is left of."""
    last = follow(case, store)[-1]
    assert (last.starts, last.redelivers, last.unknown) == (True, 0, ())
    assert last.loses == sum(item.messages for item in last.evidence if item.finding == "gone")
    assert last.status == 0 or last.loses or last.why in (FOR_GOOD, WITHOUT_KEYS)


@pytest.mark.parametrize("case", [FOUR, FIVE], ids=case_id)
@pytest.mark.parametrize("state", sorted(STATES.keys() - {"no_log"}))  # without its log nothing is advised but to look
def test_what_is_advised_for_a_damaged_store_ends_with_a_store_on_which_a_broker_starts(
    state: str, case: GoldenCase, tmp_path: Path
) -> None:
    store = tmp_path / "a broker's store"
    unpack(case, store)
    STATES[state](store)
    check(case, store)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_what_is_advised_for_a_golden_store_ends_with_a_store_on_which_a_broker_starts(case: GoldenCase, tmp_path: Path) -> None:
    store = tmp_path / "a broker's store"
    unpack(case, store)
    check(case, store)


@pytest.mark.parametrize("verb", ["repair", "rebuild"])
@pytest.mark.parametrize("case", [FOUR, FIVE], ids=case_id)
def test_one_command_restores_a_record_and_an_index_that_is_gone(case: GoldenCase, verb: str, tmp_path: Path) -> None:
    """Seed 1514 of `scripts/prove --kind advice-rocketmq`: after the names of the log, repair and rebuild were one command too many.

    A repair makes index files whose size the configuration states; else a rebuild restores the record itself.
    """
    if verb == "rebuild":
        lines = [line for line in case.config.read_text().splitlines() if not line.startswith("max")]
        case = replace(case, path=tmp_path)
        case.config.write_text("\n".join(lines))
    store = unpack(case_named(case.id), tmp_path / "store")
    log = sorted((store / "commitlog").iterdir())[0]
    raw = bytearray(log.read_bytes())
    at = record_starts(raw)[3]
    raw[at : at + 8] = bytes(8)
    log.write_bytes(raw)
    shutil.rmtree(store / "index")
    first, last = follow(case, store)
    assert first.next.startswith(f"mqstore {verb} ")
    assert (last.loses, last.evidence) == (0, ())


@pytest.mark.parametrize("number", [2, 3])
def test_log_files_with_the_names_of_each_other_are_renamed_before_anything_is_changed(number: int, tmp_path: Path) -> None:
    store = tmp_path / "a broker's store"
    unpack(case_named("4.9.3/d-rolled"), store)
    before = tree_checksum(store, times=False)
    files = sorted((store / "commitlog").iterdir())[:number]
    for file in files:
        file.rename(f"{file}.away")
    for file, other in zip(files, (*files[1:], files[0]), strict=True):
        Path(f"{file}.away").rename(other)
    answer = run_cli("diagnose", store, "-o", "json").document
    assert answer["next"].startswith("mv ")
    assert answer["why"].startswith("give each of these files the name of its records before anything else: ")
    steps = run_cli("repair", store, "-o", "json").document
    assert [(step["step"], step["possible"]) for step in steps] == [("rename", False)] * number
    subprocess.run(answer["next"], shell=True, check=True)
    assert tree_checksum(store, times=False) == before
