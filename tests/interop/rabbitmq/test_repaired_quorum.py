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


def flip_settle(node: Path) -> None:
    """Change a bit of an entry in the middle of the write-ahead log."""
    path = max(shared(node).glob("*.wal"), key=lambda each: each.stat().st_size)
    records = read_wal(ReadOnlyDirectory(shared(node)).mapped(path.name).load(0, path.stat().st_size), path.name).records
    record = records[len(records) // 2]
    data = bytearray(path.read_bytes())
    data[int(record["position"]) + int(record["length"]) // 2] ^= 1
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


@pytest.mark.parametrize("damage", [flip_settle, empty_log, short_log, other_beginning, no_names])
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
