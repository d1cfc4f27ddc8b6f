"""Streams of a node's data directory: their names by its definitions, and what `verify` and `diagnose` say of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import streams
from support.golden import run_cli, unchanged

import mqstore
from mqstore.findings import Kind
from mqstore.rabbitmq.streams.index import record
from mqstore.rabbitmq.streams.rows import build_batch, walk_rows
from mqstore.rabbitmq.streams.segment import chunk, entry
from mqstore.stores.rabbitmq import RabbitMQ

CASE = "4.3.6-killed"


def opened(path: Path) -> RabbitMQ:
    store = mqstore.open(path)
    assert isinstance(store, RabbitMQ)
    return store


@pytest.mark.parametrize("case", [*streams.CASES, streams.NAMES_CASE])
def test_the_definitions_name_the_directories_of_streams(case: str) -> None:
    """In `names` of 4.3.6: blanks, quotes, Cyrillic, Chinese and an emoji, of which directories have `_` only."""
    found = opened(streams.node(case)).streams
    assert {(named.vhost, named.queue) for named in found} == {
        ("/", queue) for queue, kind, *_ in streams.counts(case)["queues"] if kind == "stream"
    }
    for named in found:
        rows = [row for part, _ in walk_rows(named) for row in build_batch(part).to_pylist()]
        keys = [row["routing_keys"][0] for row in rows]
        offsets = [row["stream_offset"] for row in rows]
        delivered = streams.delivered(case, "amqp091").get(named.queue, [])
        assert {row["routing_key"] for row in delivered} <= set(keys)
        assert {streams.offset_of(row) for row in delivered} <= set(offsets)


def test_a_directory_that_no_definition_names_is_a_stream_all_the_same(tmp_path: Path) -> None:
    node = streams.unpack(CASE, tmp_path)
    (node / "stream" / "__s_small_1795605075816685959").rename(node / "stream" / "unknown_1")
    [named] = [named for named in opened(node).streams if named.vhost is None]
    assert (named.queue, len(named.stream)) == ("unknown_1", 5)


@pytest.mark.parametrize("case", streams.CASES)
def test_an_intact_node_is_intact_and_keeps_all(case: str) -> None:
    with unchanged(streams.node(case)):
        report = opened(streams.node(case)).verify()
        diagnosis = opened(streams.node(case)).diagnose()
    rows = sum(len(rows) for rows in streams.delivered(case, "stream").values())
    assert (report.ok, report.checked.messages, report.affected) == (True, rows, 0)
    assert (diagnosis.starts, diagnosis.loses, diagnosis.unknown) == (True, 0, ())


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A node whose stream `s.small` has lost its first index, and has a bit changed in its third segment."""
    node = streams.unpack(CASE, tmp_path)
    directory = node / "stream" / "__s_small_1795605075816685959"
    (directory / f"{0:020}.index").unlink()
    third = directory / f"{139:020}.segment"
    raw = bytearray(third.read_bytes())
    raw[-100] ^= 1
    third.write_bytes(bytes(raw))
    return node


def test_verify_finds_the_damage_of_a_stream(damaged: Path) -> None:
    report = opened(damaged).verify()
    prefix = "stream/__s_small_1795605075816685959/"
    found = {(item.file.removeprefix(prefix), item.kind) for item in report.damage}
    assert found == {(f"{0:020}.segment", Kind.BAD_STREAM_INDEX), (f"{139:020}.segment", Kind.BAD_CHUNK)}
    assert "stream 's.small' of vhost '/': a node would not keep 70 messages that are here and intact" in report.notes
    [chunk] = [item for item in report.damage if item.kind is Kind.BAD_CHUNK]
    assert report.affected == 70 + chunk.messages


def test_diagnose_says_what_a_node_deletes_and_where_readers_stop(damaged: Path) -> None:
    done = run_cli("diagnose", damaged, "-o", "json")
    assert done.status == 1
    assert done.document["loses"] == 70 + 18  # those of the damaged chunk
    assert done.document["next"].startswith("mqstore repair ")
    evidence = {each["finding"]: each["detail"] for each in done.document["evidence"]}
    assert "deletes the segment stream/__s_small" in evidence["deletes-segment"]
    assert "70 messages from offset 0 on" in evidence["deletes-segment"]
    assert "stops at offset" in evidence["reader-stops"]
    assert run_cli("repair", damaged, "--apply").status == 0
    after = run_cli("diagnose", damaged, "-o", "json").document
    assert after["loses"] == 18
    assert after["next"].startswith("mqstore salvage ")  # a reader does not get past the damaged chunk


def test_diagnose_says_what_the_limit_of_a_stream_deletes_for_the_first_client(tmp_path: Path) -> None:
    """Seen on 3.10.8: the node starts with all segments, and a consumer from the first offset on gets none of the first one."""
    node = streams.unpack("3.10.8-clean", tmp_path)
    stream = next(named.stream for named in opened(node).streams if named.queue == "s.retained")
    assert stream.size.tolist() == [8049, 8180, 12299, 5023]  # the limit is 30,000, a segment is full from 8,000 bytes on
    assert not any("limit" in each["detail"] for each in run_cli("diagnose", node, "-o", "json").document["evidence"])
    with open(node / stream.segment_file(3), "ab") as segment, open(node / stream.index_file(3), "ab") as index:
        at = stream.end()
        index.write(record(at, timestamp=1, position=5023))
        segment.write(chunk(at, [entry(bytes(4000))], timestamp=1))
    assert run_cli("verify", node, "-o", "json").document["damage"] == []
    # offsets 192 to 215, of which one is that of a tracking snapshot
    told = run_cli("diagnose", node, "-o", "json")
    assert (told.status, told.document["why"]) == (
        1,
        "start the node: it keeps every persistent message until the limit of a stream deletes 23 messages",
    )
    [note] = [each for each in told.document["evidence"] if "limit" in each["detail"]]
    assert (note["finding"], note["file"], note["messages"]) == ("note", stream.place, 23)
    assert note["detail"].endswith(
        "its last segment is full, and for the first client the node begins another one; "
        "then its limit of 30,000 bytes deletes 1 segment with 23 messages"
    )


def test_files_that_are_not_a_streams_are_named_up_to_a_hundred(tmp_path: Path) -> None:
    node = streams.unpack(CASE, tmp_path)
    for number in range(300):
        (node / "stream" / "__s_small_1795605075816685959" / f"garbage {number}").touch()
    report = opened(node).verify()
    assert {item.kind for item in report.damage} == {Kind.STRAY_FILE}
    assert len(report.damage) == 100
