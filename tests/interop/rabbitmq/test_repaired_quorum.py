"""Repaired quorum queues and real nodes: a damaged log stops the node, after the repair it delivers what we read."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from interop.rabbitmq.other_node import OtherNode, missing, other_node
from support import quorum
from support.golden import run_cli

from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.quorum.wal import read_wal

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

NODES = (("sid", "4.3.6/a-quorum-mix-kill9"), ("trixie", "4.0.5/a-quorum-mix-kill9"), ("bullseye", "3.8.9/a-quorum-mix-kill9"))


def shared(node: Path) -> Path:
    return node / "quorum" / "rabbit@localhost"


def log_of(node: Path) -> tuple[Path, Any]:
    """Return the largest write-ahead log and its records."""
    path = max(shared(node).glob("*.wal"), key=lambda each: each.stat().st_size)
    return path, read_wal(ReadOnlyDirectory(shared(node)).mapped(path.name).load(0, path.stat().st_size), path.name).records


def flip(path: Path, *records: Any) -> None:
    """Change a bit of each of these entries."""
    data = bytearray(path.read_bytes())
    for record in records:
        data[int(record["position"]) + int(record["length"]) // 2] ^= 1
    path.write_bytes(bytes(data))


def flip_settle(node: Path) -> None:
    """Change a bit of an entry in the middle of the write-ahead log."""
    path, records = log_of(node)
    flip(path, records[len(records) // 2])


def flip_last_two(node: Path) -> None:
    """Change a bit in each of the last two entries of the write-ahead log: neither is the last record for a node."""
    path, records = log_of(node)
    flip(path, *records[-2:])


def lengthen(node: Path) -> None:
    """Let an entry towards the end of the write-ahead log state more bytes than the file has."""
    path, records = log_of(node)
    data = bytearray(path.read_bytes())
    data[int(records[-40]["position"]) - 20] ^= 0x40
    path.write_bytes(bytes(data))


def empty_log(node: Path) -> None:
    digits = len(next(shared(node).glob("*.wal")).stem)
    (shared(node) / f"{99:0{digits}}.wal").touch()


def short_log(node: Path) -> None:
    digits = len(next(shared(node).glob("*.wal")).stem)
    (shared(node) / f"{99:0{digits}}.wal").write_bytes(b"RAW")


def other_beginning(node: Path) -> None:
    path = max(shared(node).glob("*.wal"), key=lambda each: each.stat().st_size)
    data = bytearray(path.read_bytes())
    data[2] ^= 1
    path.write_bytes(bytes(data))


def no_names(node: Path) -> None:
    (shared(node) / "names.dets").unlink()


def delivered(node: OtherNode, store: Path) -> int:
    """Compare what a node delivers from its quorum queues with our rows; return how many messages that were."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    now = time.time_ns() // 1000
    for row in run_cli("messages", store, "--queue-type", "quorum", "-o", "jsonl").rows:
        if row["recovered"] and (row["expiry_us"] is None or row["expiry_us"] > now):
            rows.setdefault((row["vhost"], row["queue"]), []).append(row)
    for (vhost, queue), mine in rows.items():
        got = node.consume_all(queue, len(mine), vhost)
        assert [hashlib.sha256(body).hexdigest() for body, _ in got] == [row["payload_sha256"] for row in mine], queue
    return sum(map(len, rows.values()))


@pytest.mark.parametrize("damage", [flip_settle, flip_last_two, lengthen, empty_log, short_log, other_beginning, no_names])
@pytest.mark.parametrize(("suite", "case"), NODES)
def test_a_node_starts_after_the_repair_and_delivers_what_is_read(
    damage: Callable[[Path], None], suite: str, case: str, tmp_path: Path
) -> None:
    if reason := missing(suite):
        pytest.skip(reason)
    store = quorum.unpack(case, tmp_path)
    damage(store)
    found = run_cli("diagnose", store, "-o", "json").document
    with other_node(suite) as node:
        if suite == "sid" and not found["starts"]:
            shutil.copytree(store, node.data, symlinks=True)
            with pytest.raises(AssertionError):
                node.start()
            node.close()
    assert run_cli("repair", store, "--apply", "--journal", tmp_path / "undo").status == 0
    with other_node(suite) as node:
        shutil.copytree(store, node.data, symlinks=True)
        node.start()
        assert delivered(node, store) > 100


def test_3_8_does_not_start_with_a_wrong_last_record_and_does_when_a_repair_has_cut_it_off(tmp_path: Path) -> None:
    if reason := missing("bullseye"):
        pytest.skip(reason)
    store = quorum.unpack("3.8.9/a-quorum-mix-kill9", tmp_path)
    path, record = log_of(store)[0], log_of(store)[1][-1]
    flip(path, record)
    damaged = path.read_bytes()
    found = run_cli("diagnose", store, "-o", "json").document
    assert (found["starts"], found["next"]) == (False, f"mqstore repair {store}")
    with other_node("bullseye") as node:
        shutil.copytree(store, node.data, symlinks=True)
        with pytest.raises(AssertionError):
            node.start()
    assert run_cli("repair", store, "--apply").status == 0
    assert path.stat().st_size == record["start"]
    with other_node("bullseye") as node:
        shutil.copytree(store, node.data, symlinks=True)
        node.start()
        assert delivered(node, store) > 100
    assert run_cli("repair", store, "--undo").status == 0
    assert path.read_bytes() == damaged


def test_an_entry_that_seems_longer_than_the_file_ends_it_for_a_node(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    store = quorum.unpack(NODES[0][1], tmp_path)
    lengthen(store)
    found = run_cli("diagnose", store, "-o", "json").document
    assert (found["starts"], found["loses"]) == (True, 16)
    said = {row["queue"]: row["messages"] for row in run_cli("topics", store, "-o", "jsonl").rows}
    assert (said["alo.target"], said["amqp10"]) == (0, 0)
    with other_node() as node:
        shutil.copytree(store, node.data, symlinks=True)
        node.start()
        channel = node.connect("/").channel()
        for queue in ("plain", "alo.target", "amqp10", "prio", "fan.b"):
            assert channel.queue_declare(queue, passive=True).method.message_count == said[queue], queue
