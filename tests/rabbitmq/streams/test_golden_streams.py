"""Streams that real nodes of three versions wrote, read from their files as those nodes delivered them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import streams
from support.streams import CASES, Row

from mqstore.kernels.rabbitmq.stream_chunks import INTACT
from mqstore.rabbitmq.message.properties import json_properties
from mqstore.rabbitmq.streams import bloom_filter, index
from mqstore.rabbitmq.streams.delivered_entry import RULES, read_entry
from mqstore.rabbitmq.streams.entries import walk_records
from mqstore.rabbitmq.streams.segment import Chunks, walk_segment
from mqstore.rabbitmq.streams.tracking import Tracking, track

STREAMS = [(case, queue) for case in CASES for queue in streams.directories(case)]


def chunks_of(directory: Path) -> Iterator[tuple[Path, Chunks]]:
    for first, path in streams.segments(directory):
        for chunks, findings in walk_segment(streams.read(path), first, file=path.name):
            assert findings == []
            yield path, chunks


def records_of(directory: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield offset, timestamp of the chunk, and bytes of each record."""
    for path, chunks in chunks_of(directory):
        for records, findings in walk_records(streams.read(path), chunks, file=path.name):
            assert findings == []
            for row in range(len(records)):
                content = records.content(row)
                assert content is not None
                yield int(records.offset[row]), int(chunks.timestamp[records.chunk[row]]), content


@pytest.mark.parametrize(("case", "queue"), STREAMS)
def test_the_records_are_those_that_a_client_of_the_stream_protocol_got(case: str, queue: str) -> None:
    found = [(offset, stamp, hashlib.sha256(raw).hexdigest()) for offset, stamp, raw in records_of(streams.directories(case)[queue])]
    rows = streams.delivered(case, "stream").get(queue, [])
    assert found == [(row["offset"], row["chunk_timestamp"], row["sha256"]) for row in rows]
    assert (found == []) == (queue == "s.empty")


@pytest.mark.parametrize(("case", "queue"), STREAMS)
def test_the_messages_are_those_that_a_consumer_of_amqp_0_9_1_got(case: str, queue: str) -> None:
    """Of 4.0.5 and 4.3.6, without those of compressed sub-batches, which they do not deliver; 3.10.8 fails on any sub-batch."""
    rows = {streams.offset_of(row): row for row in streams.delivered(case, "amqp091").get(queue, [])}
    seen = set()
    for offset, _, raw in records_of(streams.directories(case)[queue]):
        if offset not in rows:
            assert queue == "s.sub"
            continue
        message = read_entry(raw)
        found: Row = {
            "exchange": message.exchange.decode(),
            "routing_key": message.routing_keys(queue.encode())[0].decode(),
            "properties": json_properties(message.delivered(RULES[CASES[case]], offset)),
            "payload_len": len(message.body),
            "payload_sha256": hashlib.sha256(message.body).hexdigest(),
        }
        assert found == {name: rows[offset][name] for name in found}
        seen.add(offset)
    assert seen == set(rows)


@pytest.mark.parametrize(("case", "queue"), STREAMS)
def test_the_tracking_is_what_the_writer_knew(case: str, queue: str) -> None:
    first, path = streams.segments(streams.directories(case)[queue])[-1]  # the last segment has the whole state
    state, data = Tracking(), streams.read(path)
    for chunks, _ in walk_segment(data, first):
        assert track(state, data, chunks) == []
    known = streams.tracking(case)[queue]
    assert {"sequences": state.sequences, "offsets": state.offsets, "timestamps": state.timestamps} == known


@pytest.mark.parametrize(("case", "queue"), STREAMS)
def test_an_index_made_of_the_chunks_is_the_one_that_the_node_wrote(case: str, queue: str) -> None:
    for path, chunks in chunks_of(streams.directories(case)[queue]):
        written = streams.read(path.with_suffix(".index"))
        assert index.build_index(chunks) == written.tobytes()
        comparison = index.IndexComparison(index.read_index(written), path.name)
        assert comparison.add(chunks) + comparison.finish() == []


@pytest.mark.parametrize("case", ["4.0.5-killed", "4.3.6-killed"])
def test_a_filter_holds_the_values_of_its_messages_and_passes_over_the_other_chunks(case: str) -> None:
    directory = streams.directories(case)["s.filter"]
    sent = {row["offset"]: None for row in streams.delivered(case, "stream")["s.filter"]}
    for row in streams.delivered(case, "amqp091")["s.filter"]:
        value = next((value for name, _, value in row["properties"]["headers"] if name == "x-stream-filter-value"), None)
        sent[streams.offset_of(row)] = value
    for path, chunks in chunks_of(directory):
        data = streams.read(path)
        for value in ("red", "green", "blue"):
            may = bloom_filter.chunks_that_may_hold(data, chunks, [value.encode()])
            holding = {int(chunks.id[row]) for row in np.flatnonzero(may)}
            assert {offset for offset, own in sent.items() if own == value} <= holding
            assert 0 < len(holding) < len(chunks) // 2
        assert not bloom_filter.chunks_that_may_hold(data, chunks, [b"violet"]).any()


def test_every_chunk_of_every_segment_is_proved() -> None:
    states = [chunks.state for case in CASES for path in streams.directories(case).values() for _, chunks in chunks_of(path)]
    assert np.unique(np.concatenate(states)).tolist() == [INTACT]
