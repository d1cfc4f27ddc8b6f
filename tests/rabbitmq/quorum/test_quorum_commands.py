"""Quorum queues in the commands that list, find and write messages, against what the restarted node delivered and counted."""

from __future__ import annotations

import base64
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from support import quorum
from support.golden import run_cli

import mqstore
from mqstore.stores.rabbitmq import RabbitMQ
from mqstore.table.columns import RABBITMQ_COLUMNS, QueueSelection

MIX, CLEAN, OLD = "4.3.6/a-quorum-mix-kill9", "4.3.6/b-quorum-mix-clean", "3.10.8/a-quorum-mix-kill9"
SNAPSHOTS = "4.3.6/c-quorum-snapshots-kill9"
FIELDS = ("exchange", "redelivered", "properties", "payload_len", "payload_sha256")
# the time of the restart decides what is back, or the count was taken too early
TIMED = {"4.3.6/g-quorum-rare-kill9"}
EARLY = {("3.8.9/c-quorum-placeholders", "snap.holes")}


def listed(node: Path, *options: str) -> list[dict[str, Any]]:
    return run_cli("messages", node, "--queue-type", "quorum", "-o", "jsonl", *options).rows


@pytest.mark.parametrize("case", [case for case in quorum.CASES if case not in TIMED])
def test_messages_are_those_that_the_node_delivered_in_its_order(case: str) -> None:
    at = datetime.fromtimestamp(quorum.counts(case)["read_at_ms"] / 1000, UTC).isoformat()
    found: dict[str, list[dict[str, Any]]] = {}
    for row in listed(quorum.node(case), "--at", at):
        if row["vhost"] == "/" and row["recovered"] and not row["expired"]:
            found.setdefault(row["queue"], []).append(row)
    mine = {name for name, kind, *_ in quorum.counts(case)["queues"] if kind == "quorum"}
    expected = {queue: rows for (vhost, queue), rows in quorum.delivered(case).items() if vhost == "/" and queue in mine}
    assert {name: len(rows) for name, rows in found.items()} == {name: len(rows) for name, rows in expected.items()}
    for name, rows in expected.items():
        positions = [row["pos"] for row in found[name]]
        assert positions == sorted(positions)
        assert [[row[field] for field in FIELDS] for row in found[name]] == [[row[field] for field in FIELDS] for row in rows], name


@pytest.mark.parametrize("case", [case for case in quorum.CASES if case not in TIMED])
def test_topics_has_the_counts_of_the_restarted_node(case: str) -> None:
    rows = {
        row["queue"]: row
        for row in run_cli("topics", quorum.node(case), "-o", "jsonl").rows
        if (row["type"], row["vhost"]) == ("quorum", "/")
    }
    for name, kind, *numbers in quorum.counts(case)["queues"]:
        if kind == "quorum" and (case, name) not in EARLY:
            ready, unacknowledged, total = map(int, numbers)
            row = rows[name]
            assert (row["ready"] + row["unacknowledged"], row["total"]) == (ready + unacknowledged, total), name


def test_inspect_counts_quorum_queues_apart() -> None:
    document = run_cli("inspect", quorum.node(MIX), "-o", "json").document
    assert document["quorum"]["queues"] == 20
    assert document["quorum"]["messages"] == 213
    assert document["suggested_version"] == "4.3"
    assert not document["unsupported"]


def test_a_type_of_queue_that_there_is_not_is_refused() -> None:
    done = run_cli("messages", quorum.node(MIX), "--queue-type", "mirrored", "-o", "jsonl")
    assert done.status == 2
    assert "the types are classic, quorum, stream" in done.stderr
    assert run_cli("messages", quorum.node(MIX), "--queue-type", "classic", "-o", "jsonl").rows == []


def test_a_directory_with_quorum_queues_alone_is_a_node(tmp_path: Path) -> None:
    shutil.copytree(quorum.node(OLD) / "quorum", tmp_path / "quorum")
    rows, expected = listed(tmp_path), listed(quorum.node(OLD))
    assert rows == expected
    assert run_cli("inspect", tmp_path, "-o", "json").document["quorum"]["queues"] == 19
    assert run_cli("verify", tmp_path, "-o", "json").document["ok"]


def test_find_says_where_a_message_is_and_with_which_entry_it_left() -> None:
    """Of every message that left a queue, `find` names the reason and the entry."""
    store = mqstore.open(quorum.node(MIX))
    assert isinstance(store, RabbitMQ)
    table = store.to_arrow(RABBITMQ_COLUMNS, QueueSelection(everything=True, queue_types=frozenset({"quorum"}))).to_pylist()
    gone = [row for row in table if row["verdict"] == "consumed"]
    assert len(gone) > 50
    assert not any(row["recovered"] for row in gone)
    states = {row["state"].partition(" at index ")[0] for row in gone}
    assert {"acknowledged", "rejected"} <= states
    one = next(row for row in gone if row["state"].startswith("acknowledged") and row["properties"]["message_id"])
    report = run_cli("find", quorum.node(MIX), one["properties"]["message_id"], "-o", "json").document
    [hit] = [row for row in report["messages"] if row["queue"] == one["queue"] and row["raft_index"] == one["raft_index"]]
    assert hit["state"] == one["state"]
    ready = next(row for row in table if row["recovered"] and row["properties"]["message_id"])
    report = run_cli("find", quorum.node(MIX), ready["properties"]["message_id"], "-o", "json").document
    assert {ready["state"]} <= {row["state"] for row in report["messages"]}


def test_messages_of_a_node_that_does_not_start_are_not_recovered(tmp_path: Path) -> None:
    node = quorum.unpack(MIX, tmp_path)
    (path,) = (node / "quorum" / "rabbit@localhost").glob("*.wal")
    data = bytearray(path.read_bytes())
    data[len(data.rstrip(b"\0")) // 2] ^= 1
    path.write_bytes(bytes(data))
    rows = listed(node)
    assert len(rows) > 200
    assert not any(row["recovered"] for row in rows)
    assert sum(row["verdict"] == "intact" for row in rows) >= len(rows) - 1
    topics = [row for row in run_cli("topics", node, "-o", "jsonl").rows if row["type"] == "quorum"]
    assert all(row["refused"] for row in topics)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_export_and_salvage_have_the_messages_of_quorum_queues(kind: str, tmp_path: Path) -> None:
    node = quorum.node(SNAPSHOTS)
    expected = sorted((row["queue"], row["raft_index"], row["payload_sha256"]) for row in listed(node))
    assert run_cli("export", node, "--to", tmp_path / "out", "--format", kind).status == 0
    files = sorted((tmp_path / "out").rglob(f"*.{kind}"))
    if kind == "jsonl":
        rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        assert sorted((row["queue"], row["raft_index"], row["payload_sha256"]) for row in rows) == expected
    else:
        rows = [row for path in files for row in parquet.ParquetFile(path).read(["queue", "raft_index"]).to_pylist()]
        assert sorted((row["queue"], row["raft_index"]) for row in rows) == [each[:2] for each in expected]
    out = tmp_path / f"saved.{kind}"
    run_cli("salvage", node, "--to", out)
    if kind == "jsonl":
        saved = [json.loads(line) for line in out.read_text().splitlines()]
        assert {each[:2] for each in expected} <= {(row["queue"], row["raft_index"]) for row in saved if row["queue_type"] == "quorum"}


def test_sql_sees_quorum_queues() -> None:
    store = mqstore.open(quorum.node(MIX))
    assert isinstance(store, RabbitMQ)
    [row] = store.sql("select count(*) as n from messages where queue_type = 'quorum' and recovered").to_arrow().to_pylist()
    assert row["n"] == 210 or row["n"] == 213


def test_get_shows_the_message_at_a_position() -> None:
    node = quorum.node(MIX)
    rows = [row for row in listed(node) if row["queue"] == "plain"]
    for at in (0, len(rows) - 1):
        document = run_cli("get", node, "--vhost", "/", "--queue", "plain", "--at", at, "-o", "json").document
        assert {name: document[name] for name in ("raft_index", "payload_sha256", "state")} == {
            name: rows[at][name] for name in ("raft_index", "payload_sha256", "state")
        }
    done = run_cli("get", node, "--queue", "plain", "--at", len(rows))
    assert done.status == 1
    assert f"no message with position {len(rows)}" in done.stderr


def test_what_a_replay_sends_is_what_the_node_would_deliver(tmp_path: Path) -> None:
    """Dead letters that their queue holds are not among it, and are counted."""
    from collections import Counter

    from mqstore.replay.sources import RABBITMQ_VERDICTS, rabbitmq_messages

    store = mqstore.open(quorum.node(MIX))
    assert isinstance(store, RabbitMQ)
    skipped: Counter[str] = Counter()
    sent = list(rabbitmq_messages(store, QueueSelection(), RABBITMQ_VERDICTS, skipped))
    rows = listed(quorum.node(MIX))
    assert [message.body for message in sent if message.topic == "plain"] == [
        base64.b64decode(row["payload_b64"]) for row in rows if row["queue"] == "plain"
    ]
    assert len(sent) == sum(row["state"] != "dead-letter-held" for row in rows)
    assert skipped == {"dead letters that their queue holds": 3}
    for source in {message.source for message in sent}:
        positions = [message.position for message in sent if message.source == source]
        assert positions == sorted(set(positions))
    assert not any(name == "x-delivery-count" for message in sent for name, *_ in (message.amqp or {}).get("headers") or ())
