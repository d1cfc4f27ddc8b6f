"""Stores whose files have a second name, as backups of hard links leave them, or are symbolic links: repair does not write to these.

The advice ends as for the same store without links: it makes a real copy, and goes on with that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import quorum, streams
from support.golden import case_named, run_cli, tree_checksum, unpack
from support.rabbitmq_states import STATES, made

from mqstore.diagnosis import Diagnosis
from mqstore.rabbitmq.diagnosis import START, diagnose
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.table.formatting import real_copy

QUORUM, STREAM = "4.3.6/a-quorum-mix-kill9", "4.3.6-killed"
STORED = (".idx", ".jif", ".qi", ".qs", ".rdq")


def _files(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("*") if path.is_file() and not path.is_symlink())


def _give_second_names(store: Path, backup: Path) -> None:
    backup.mkdir()
    for number, path in enumerate(_files(store)):
        (backup / str(number)).hardlink_to(path)


def _replace_by_links(store: Path, real: Path) -> None:
    real.mkdir()
    for number, path in enumerate(path for path in _files(store) if path.suffix in STORED):
        path.rename(real / str(number))
        path.symlink_to(os.path.relpath(real / str(number), path.parent))


def _said(found: Diagnosis) -> tuple[object, ...]:
    """Return what does not depend on the files being links."""
    kept = {way.keeps for way in found.ways}
    evidence = [item for item in found.evidence if "has a second name" not in item.detail]
    return found.starts, found.loses, found.redelivers, found.unknown, evidence, kept


def _copied(command: str, store: Path, verb: str) -> Path:
    """Run what makes the copy, and then what repairs it, and return it."""
    *shell, last = command.split(" && ")
    subprocess.run(" && ".join(shell), shell=True, check=True)
    copy = store.with_name(f"{store.name}.copy") / store.name
    assert last == f"mqstore {verb} {copy}" + " --apply" * (verb == "repair")
    if verb == "repair":
        run_cli("repair", copy, "--apply")
    return copy


@pytest.mark.parametrize("name", sorted(STATES))
def test_a_store_of_hard_links_is_repaired_as_a_copy_and_nothing_else_is_said_of_it(name: str, tmp_path: Path) -> None:
    store = made(name, tmp_path / "store")
    before = diagnose(RabbitMQStore(store), "3.10.8")
    _give_second_names(store, tmp_path / "backup")
    backup = tree_checksum(tmp_path / "backup", times=False)
    found = diagnose(RabbitMQStore(store), "3.10.8")
    assert _said(found) == _said(before)
    if not before.next.startswith("mqstore repair ") or found.next == before.next:
        assert (found.next, found.why) == (before.next, before.why)
        return
    copy = _copied(found.next, store, "repair")
    run_cli("repair", store, "--apply")  # makes what it can without a change of the other names
    assert tree_checksum(tmp_path / "backup", times=False) == backup
    own = made(name, tmp_path / "own")
    run_cli("repair", own, "--apply")
    assert tree_checksum(copy, times=False) == tree_checksum(own, times=False)


@pytest.mark.parametrize("verb", ["verify", "repair"])
def test_the_other_commands_lead_to_the_copy(verb: str, tmp_path: Path) -> None:
    store = made("frame_of_qs", tmp_path / "store")
    _give_second_names(store, tmp_path / "backup")
    shown = run_cli(verb, store).stdout
    assert f"cp -rLp {store} {store}.copy" in shown
    assert f"mqstore repair {store}.copy/store" in shown


@pytest.mark.parametrize("name", ["frame_of_qs", "journal_hole", "headless", "term_of_record_after_a_clean_stop"])
def test_a_repair_is_of_a_copy_where_files_are_links_to_others_in_the_store(name: str, tmp_path: Path) -> None:
    store = made(name, tmp_path / "store")
    before = diagnose(RabbitMQStore(store), "3.10.8")
    _replace_by_links(store, store / "real")
    found = diagnose(RabbitMQStore(store), "3.10.8")
    assert _said(found) == _said(before)
    assert before.next == f"mqstore repair {store}"
    copy = _copied(found.next, store, "repair")
    after = diagnose(RabbitMQStore(copy), "3.10.8")
    assert after.next == START or after.loses < before.loses


@pytest.mark.parametrize("name", ["frame_of_qs", "journal_hole"])
def test_links_out_of_the_store_are_not_read_and_the_advice_is_a_copy_with_what_they_lead_to(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made(name, tmp_path / "store")
    before = diagnose(RabbitMQStore(store), "3.10.8")
    _replace_by_links(store, tmp_path / "real")
    found = diagnose(RabbitMQStore(store), "3.10.8")
    assert "cannot be told without" in found.headline
    copy = _copied(found.next, store, "diagnose")
    after = diagnose(RabbitMQStore(copy), "3.10.8")
    assert _said(after) == _said(before)
    assert after.next == f"mqstore repair {copy} --apply"  # what it was made of stays as it is
    monkeypatch.chdir(copy.parent)
    assert diagnose(RabbitMQStore(copy.name), "3.10.8").next == f"mqstore repair {copy.name} --apply"
    other = copy.rename(tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    assert diagnose(RabbitMQStore(other.name), "3.10.8").next == f"mqstore repair {other.name}"


def test_one_that_leads_nowhere_is_not_copied(tmp_path: Path) -> None:
    store = made("frame_of_qs", tmp_path / "store")
    _replace_by_links(store, tmp_path / "real")
    shutil.rmtree(tmp_path / "real")
    assert " cp " not in diagnose(RabbitMQStore(store), "3.10.8").next


def test_the_copy_of_a_node_has_its_name(tmp_path: Path) -> None:
    store = made("frame_of_qs", tmp_path / "rabbit@hare")
    (store / "cluster_nodes.config").write_text("{['rabbit@hare'],['rabbit@hare']}.\n")
    _give_second_names(store, tmp_path / "backup")
    copy = _copied(diagnose(RabbitMQStore(store), "3.10.8").next, store, "repair")
    assert copy.name == "rabbit@hare"
    assert "other-node" not in {item.finding for item in diagnose(RabbitMQStore(copy), "3.10.8").evidence}


def _wal(node: Path) -> None:
    path = max(node.glob("quorum/*/*.wal"), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 8] ^= 4
    path.write_bytes(data)


def _stream(node: Path) -> None:
    next(node.glob("stream/__s_small_*/*.index")).unlink()


@pytest.mark.parametrize(("case", "unpacked", "damage"), [(QUORUM, quorum, _wal), (STREAM, streams, _stream)], ids=["quorum", "stream"])
def test_a_node_of_hard_links_is_repaired_as_a_copy(case: str, unpacked: Any, damage: Callable[[Path], None], tmp_path: Path) -> None:
    node = unpacked.unpack(case, tmp_path)
    damage(node)
    before = diagnose(RabbitMQStore(node), case[:5])
    assert before.next == f"mqstore repair {node}"
    _give_second_names(node, tmp_path / "backup")
    found = diagnose(RabbitMQStore(node), case[:5])
    assert _said(found) == _said(before)
    steps = run_cli("repair", node, "-o", "json").document
    if all(step["possible"] for step in steps):  # new files only
        assert found.next == before.next
        return
    copy = _copied(found.next, node, "repair")
    after = diagnose(RabbitMQStore(copy), case[:5])
    assert after.starts
    assert after.loses <= before.loses


@pytest.mark.parametrize("target", ["nowhere", ".."])
def test_no_copy_is_advised_that_cp_cannot_make(target: str, tmp_path: Path) -> None:
    store = made("journal_hole", tmp_path / "store")
    _give_second_names(store, tmp_path / "backup")
    (store / "note").symlink_to(target)
    found = diagnose(RabbitMQStore(store), "3.10.8")
    assert found.next == f"mqstore salvage {store} --to {store}.jsonl"
    assert [way.next for way in found.ways if " cp " in way.next] == []


def test_a_node_that_would_write_into_a_backup_is_warned_of(tmp_path: Path) -> None:
    store = unpack(case_named("3.10.8/a-small-clean"), tmp_path / "store")
    assert not [item for item in diagnose(RabbitMQStore(store)).evidence if "second name" in item.detail]
    _give_second_names(store, tmp_path / "backup")
    found = diagnose(RabbitMQStore(store))
    assert found.next == START
    (note,) = [item.detail for item in found.evidence if "second name" in item.detail]
    assert note.endswith(f"a node that starts here changes both; start it on a real copy: {real_copy(store)[0]}")


def test_repair_advises_no_copy_that_cp_cannot_make(tmp_path: Path) -> None:
    store = made("frame_of_qs", tmp_path / "store")
    _give_second_names(store, tmp_path / "backup")
    assert " cp " in f" {run_cli('repair', store).stdout}"
    (store / "note").symlink_to("..")
    assert "cp -rLp" not in run_cli("repair", store).stdout


@pytest.mark.parametrize(("name", "read"), [(".config.bak", False), (".config", True)])
def test_only_a_link_in_the_place_of_what_a_node_reads_leads_to_a_copy(name: str, read: bool, tmp_path: Path) -> None:
    store = made("journal_hole", tmp_path / "store")
    (tmp_path / "elsewhere").write_text("{segment_entry_count, 2048}.")
    (vhost,) = store.glob("msg_stores/vhosts/*")
    (vhost / name).unlink(missing_ok=True)
    (vhost / name).symlink_to(tmp_path / "elsewhere")
    found = diagnose(RabbitMQStore(store), "3.10.8")
    assert ("cp -rLp" in found.next) == read
    assert ("cannot be told without" in found.headline) == read
