"""Messages of quorum queues as rows: equal to what a restarted node delivered, in the same order; and of damaged logs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import quorum

from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.quorum.queue import QuorumQueue
from mqstore.rabbitmq.quorum.raft_log import raft_systems
from mqstore.rabbitmq.quorum.rows import build_batch
from mqstore.table.columns import rabbitmq_schema

FIELDS = ("exchange", "routing_key", "redelivered", "properties", "payload_len", "payload_sha256")


def queues(case: str) -> list[QuorumQueue]:
    (system,) = raft_systems(ReadOnlyDirectory(quorum.node(case)), "quorum")
    return [QuorumQueue(system.member(uid)) for uid in system.uids]


def rows_of(queue: QuorumQueue, now: int) -> list[dict[str, Any]]:
    """Return the messages that a restarted node delivers, in order."""

    state = queue.replay()
    columns = ("pos", "exchange", "routing_keys", "redelivered", "payload_len", "payload_sha256", "properties_json", "recovered", "expired")
    rows = build_batch(queue, state.messages, columns, now=now).to_pylist()
    kept = [row for row in rows if row["recovered"] and not row["expired"]]
    for row in kept:
        row["properties"] = json.loads(row.pop("properties_json"))
        row["routing_key"] = row.pop("routing_keys")[0]
    return sorted(kept, key=lambda row: row["pos"])


# the time of the restart decides which delayed messages are back
# a count that the node had not taken yet when it was asked; it delivered the messages
STALE = {
    ("4.3.6/g-quorum-rare-kill9", "delay"),
    ("3.8.9/c-quorum-placeholders", "snap.holes"),
    ("4.3.6/g-quorum-rare-kill9", "delay.short"),
}
TIMED = {("4.3.6/g-quorum-rare-kill9", "delay"), ("4.3.6/g-quorum-rare-kill9", "delay.short")}


@pytest.mark.parametrize("case", quorum.CASES)
def test_every_message_is_delivered_as_the_node_delivered_it(case: str) -> None:
    wanted = quorum.delivered(case)
    now = quorum.counts(case)["read_at_ms"]
    compared = 0
    for queue in queues(case):
        if queue.name[0] != "/":
            continue  # the golden rows are those of one vhost
        expected = wanted.get(("/", queue.name[1]), [])
        found = rows_of(queue, now)
        left = [{name: row[name] for name in FIELDS} for row in found]
        right = [{name: row[name] for name in FIELDS} for row in expected]
        if (case, queue.name[1]) in TIMED:
            assert {row["payload_sha256"] for row in left} <= {row["payload_sha256"] for row in right}
            continue
        assert left == right, queue.name
        compared += len(left)
    assert compared >= 25


@pytest.mark.parametrize("case", quorum.CASES)
def test_the_counts_are_those_of_the_restarted_node(case: str) -> None:
    listed = {name: tuple(map(int, numbers)) for name, kind, *numbers in quorum.counts(case)["queues"] if kind == "quorum"}
    assert listed
    for queue in queues(case):
        if queue.name[0] == "/" and (case, queue.name[1]) not in STALE:
            state = queue.replay()
            ready, unacknowledged, total = listed[queue.name[1]]
            # just after its start the node still counts as unacknowledged what has come back
            assert (state.ready + state.unacknowledged, state.total) == (ready + unacknowledged, total)


def test_a_row_says_where_the_message_is_and_in_what_state() -> None:
    case = "4.3.6/c-quorum-snapshots-kill9"
    queue = next(queue for queue in queues(case) if queue.name[1] == "snap.fifo")
    state = queue.replay()
    batch = build_batch(queue, state.messages)
    assert batch.schema == rabbitmq_schema()
    rows = batch.to_pylist()
    assert {row["queue_type"] for row in rows} == {"quorum"}
    assert {row["location"] for row in rows} <= {"wal", "segment"}
    assert {row["verdict"] for row in rows} == {"intact"}
    assert {row["state"] for row in rows} <= {"ready", "returned", "checked-out"}
    assert [row["pos"] for row in rows] == list(range(len(rows)))
    assert all(row["store_file"].startswith("quorum/rabbit@localhost/") for row in rows)


def test_columns_that_need_no_message_read_no_entry() -> None:
    queue = queues("4.3.6/a-quorum-mix-kill9")[0]
    messages = queue.replay().messages

    def never(row: int) -> None:
        raise AssertionError(row)

    queue.stored = never  # type: ignore[method-assign,assignment]
    assert build_batch(queue, messages, ("queue", "pos", "raft_index", "state", "size")).num_rows == len(messages)


def test_why_messages_left_is_known_by_entry() -> None:
    gone: dict[str, set[str]] = {}
    for queue in queues("4.0.5/a-quorum-mix-kill9"):
        state = queue.replay()
        here = {message.index for message in state.messages}
        gone[queue.name[1]] = {departure.why for departure in queue.departures}
        for departure in queue.departures:
            assert departure.index not in here
            assert departure.at >= departure.index
            assert queue.departures.of(departure.index) == departure
    assert "maxlen" in gone["maxlen"]
    assert "purged" in gone["purged"]
    assert "consumed" in gone["plain"] | gone["unacked"]
    assert "delivery_limit" in gone["limit"] or "rejected" in gone["limit"]
    assert "expired" in gone["ttl"] | gone["ttl.short"]
