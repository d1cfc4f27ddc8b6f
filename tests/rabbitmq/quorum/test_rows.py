"""Messages of quorum queues as rows: equal to what a restarted node delivered, in the same order; and of damaged logs."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import quorum
from support.logged_messages import changed, entries, member, shortest

from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.erlang.terms import Atom, Term, encode
from mqstore.rabbitmq.message.properties import json_or_none
from mqstore.rabbitmq.message.stored_columns import TERM_COLUMNS, StoredTerms
from mqstore.rabbitmq.quorum import raft_log
from mqstore.rabbitmq.quorum.queue import QuorumMessage, QuorumQueue
from mqstore.rabbitmq.quorum.raft_log import RaftDirectory, raft_systems
from mqstore.rabbitmq.quorum.rows import NOT_KNOWN, build_batch, count_unread, delivered, read_stored
from mqstore.rabbitmq.quorum.rows import rows_of as selected_rows
from mqstore.table.columns import QueueSelection, rabbitmq_schema

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


def test_of_a_damaged_log_every_message_is_listed_that_can_be_read(tmp_path: Path) -> None:
    """A message whose first entry was damaged, and which was requeued with its content, was in no state and in no row."""
    whole, place = "3.10.8/c-quorum-cursors-kill9", "quorum/rabbit@localhost/2F_SNAH3LF8KTEUSPJ"
    shutil.copytree(quorum.node(whole) / place, tmp_path / place)
    wanted = _listed(quorum.node(whole), place, QueueSelection(recovered=True))
    with open(tmp_path / place / "00000003.segment", "r+b") as file:
        file.truncate(15677)
    found = _listed(tmp_path, place, QueueSelection(everything=True))
    lost = {digest for digest, row in wanted.items() if not row["store_file"].endswith("/00000003.segment")} - {
        digest for digest, row in found.items() if row["verdict"] != "damaged"
    }
    assert len(wanted) > 100
    assert not lost
    unknown = [row for row in found.values() if row["state"] == "not known"]
    assert len(unknown) >= 7
    assert {(row["recovered"], row["verdict"]) for row in unknown} == {(None, "unindexed")}


def test_rows_are_chosen_by_what_is_in_the_messages(tmp_path: Path) -> None:
    whole, place = "3.10.8/c-quorum-cursors-kill9", "quorum/rabbit@localhost/2F_SNAH3LF8KTEUSPJ"
    shutil.copytree(quorum.node(whole) / place, tmp_path / place)
    with open(tmp_path / place / "00000003.segment", "r+b") as file:
        file.truncate(15677)
    found = _listed(tmp_path, place, QueueSelection(everything=True))
    unindexed = {digest: row for digest, row in found.items() if row["verdict"] == "unindexed"}
    assert 0 < len(unindexed) < len(found)
    assert _listed(tmp_path, place, QueueSelection(everything=True, verdicts=frozenset({"unindexed"}))) == unindexed


def test_a_directory_of_a_member_may_have_any_bytes_as_its_name(tmp_path: Path) -> None:
    system = tmp_path / "quorum" / "rabbit@localhost"
    name = b"\xe9t\xe9".decode("utf-8", "surrogateescape")
    shutil.copytree(quorum.node("4.3.6/f-quorum-snapshots-clean") / "quorum/rabbit@localhost/2F_SNA12IOU4W5JLFZ", system / name)
    found = _listed(tmp_path, f"quorum/rabbit@localhost/{name}", QueueSelection(everything=True))
    assert found
    assert {row["store_file"].split("/")[2] for row in found.values() if row["store_file"]} == {"\\udce9t\\udce9"}


def _listed(root: Path, place: str, selection: QueueSelection) -> dict[str, dict[str, Any]]:
    """Return the messages of one member by the hash of their content, without the write-ahead logs."""
    system, uid = place.rsplit("/", 1)
    queue = QuorumQueue(RaftDirectory(ReadOnlyDirectory(root), system).member(uid, wal=False))
    columns = ("raft_index", "state", "recovered", "verdict", "payload_sha256", "store_file")
    batches = [rows.batch(columns, selection) for rows in selected_rows(queue, selection, None)]
    return {row["payload_sha256"]: row for batch in batches if batch is not None for row in batch.to_pylist()}


@pytest.mark.parametrize("apart", [0, raft_log._APART])
@pytest.mark.parametrize("case", quorum.CASES)
def test_as_many_messages_are_unread_as_have_another_verdict(case: str, apart: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that are readable, too, and after what makes a message unreadable or its fate unknown."""
    monkeypatch.setattr(raft_log, "_BLOCK", 7)
    monkeypatch.setattr(raft_log, "_APART", apart)
    for queue in queues(case):
        kept = queue.replay().messages[:300]
        others = [
            replace(message, **change)
            for message in kept[:20]
            for change in (
                {"row": -1},
                {"left": True},
                {"state": NOT_KNOWN},
                {"annotations": {b"x-own": 1}},
                {"annotations": {b"deaths": 1}},
            )
        ]
        for damaged in (False, True):
            if damaged:
                queue.log.valid[::3] = False
            for messages in ([], kept, kept[::-3], others):
                verdicts = build_batch(queue, messages, ("verdict",)).column(0).to_pylist()
                assert count_unread(queue, messages) == sum(verdict != "intact" for verdict in verdicts)


COUNTED = (
    {},
    {"delivery_count": 2},
    {"acquired_count": 3, "annotations": {b"x-own": True, b"x-none": None}},
    {"annotations": {b"deaths": 1}},
)
OF_MESSAGES = (*sorted(TERM_COLUMNS), "persistent", "verdict")


@pytest.mark.parametrize("case", quorum.CASES)
def test_what_is_built_in_columns_is_what_the_decoder_reads(case: str, tmp_path: Path) -> None:
    """Of each form of message of a store and of what it becomes when bytes change, for every version of the machine and what it counts."""
    rng = random.Random(case)
    texts = [text for entry in shortest(entries(case)) for text in [entry] * 9 + rng.sample(changed(entry, rng), 150)]
    queue = QuorumQueue(member(tmp_path, [text for text in texts if text]))
    versions = (0, 2, 5, 8)
    plain = QuorumMessage(0, 0, "returned", 5, None, None, None, True, None, None, 0, True)
    messages = [replace(plain, row=row, version=rng.choice(versions), **rng.choice(COUNTED)) for row in range(len(queue.log))]  # type: ignore[arg-type]
    stored = [read_stored(queue, message) for message in messages]
    rows = [
        None if each is None else (each, json_or_none(partial(delivered, message, each)))
        for message, each in zip(messages, stored, strict=True)
    ]
    wanted = StoredTerms.decoded(rows)
    found = build_batch(queue, messages, OF_MESSAGES)
    for name in sorted(TERM_COLUMNS):
        assert found.column(name).equals(wanted.column(name)), name
    assert found.column("persistent").to_pylist() == [None if each is None else each.persistent for each in stored]
    assert found.column("verdict").to_pylist() == ["damaged" if row is None or row[1] is None else "intact" for row in rows]
    assert 0.2 < np.mean([row is not None for row in rows]) < 1


@pytest.mark.parametrize(
    ("noted", "sizes", "column", "value"),
    [
        ({"p": 1 << 40}, (1, 1), "properties", {"delivery_mode": 2}),
        ({"ts": -(1 << 90)}, (1, 1), "properties", {"delivery_mode": 2}),
        ({"ttl": 1 << 60}, (1, 1), "expiry_us", (1 << 63) - 1),
        ({}, (1 << 70, 1), "size", (1 << 63) - 1),
    ],
)
def test_numbers_that_no_column_holds_do_not_end_the_listing(
    noted: dict[str, int], sizes: tuple[int, int], column: str, value: object, tmp_path: Path
) -> None:
    content = (Atom("content"), 60, Atom("none"), bytes(2), Atom("rabbit_framing_amqp_0_9_1"), [b"body"])
    annotations: dict[Term, Term] = {Atom("x"): b"", Atom("rk"): [b"q"], **{Atom(name): number for name, number in noted.items()}}
    command = (Atom("e"), 1, (Atom("mc"), Atom("mc_amqpl"), content, annotations), sizes)
    texts = [(Atom("noop"), {Atom("ts"): 1}, 8), (Atom("$usr"), {Atom("ts"): 1}, command, Atom("noreply"))]
    queue = QuorumQueue(member(tmp_path, [encode(text, "utf8") for text in texts]))
    (row,) = build_batch(queue, queue.replay().messages).to_pylist()
    found = row[column]
    assert value == ({name: each for name, each in found.items() if each is not None} if column == "properties" else found)
    assert (row["verdict"], row["payload"]) == ("intact", b"body")
