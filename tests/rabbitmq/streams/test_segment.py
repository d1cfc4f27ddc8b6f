"""Segments of streams that are damaged or made to mislead: which chunks are read, and what is said of the others."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from mqstore.files import Bytes
from mqstore.findings import Damage, Kind
from mqstore.kernels.rabbitmq import stream_chunks
from mqstore.kernels.rabbitmq.stream_chunks import BAD_DATA, BAD_HEADER, INTACT
from mqstore.rabbitmq.streams.segment import (
    HEADER,
    MESSAGES,
    MOST_FINDINGS,
    TRACKING_DELTA,
    TRACKING_SNAPSHOT,
    chunk,
    entry,
    walk_segment,
)
from mqstore.rabbitmq.streams.tracking import OFFSET, SEQUENCE, block

TIMES = 1_700_000_000_000


def parts(count: int = 6, records: int = 5, start: int = 0) -> list[bytes]:
    """Return chunks of some records each."""
    return [
        chunk(
            start + number * records,
            [entry(b"record %d.%d" % (number, k)) for k in range(records)],
            timestamp=TIMES + number,
        )
        for number in range(count)
    ]


def read(raw: bytes, first: int = 0, after: int | None = None) -> tuple[list[int], list[int], list[Damage]]:
    """Return ids and states of the chunks, and the findings."""
    ids, states, findings = [], [], []
    for chunks, damage in walk_segment(np.frombuffer(raw, np.uint8), first, after, file="s"):
        ids += chunks.id.tolist()
        states += chunks.state.tolist()
        findings += damage
    return ids, states, findings


def changed(raw: bytes, at: int, value: bytes) -> bytes:
    return raw[:at] + value + raw[at + len(value) :]


def at_of(chunks: list[bytes], number: int) -> int:
    return len(HEADER) + sum(map(len, chunks[:number]))


def test_a_chunk_whose_data_are_damaged_stays_with_its_bounds_and_the_others_are_proved() -> None:
    chunks = parts()
    raw = changed(HEADER + b"".join(chunks), at_of(chunks, 2) + 60, b"\xff")
    ids, states, [damage] = read(raw)
    assert ids == [0, 5, 10, 15, 20, 25]
    assert states == [INTACT, INTACT, BAD_DATA, INTACT, INTACT, INTACT]
    assert (damage.kind, damage.offset, damage.length, damage.messages) == (Kind.BAD_CHUNK, at_of(chunks, 2), len(chunks[2]), 5)
    assert "offsets 10 to 14" in damage.detail


@pytest.mark.parametrize("field", [0, 1, 36, 37, 39, 44])
def test_after_a_header_that_leads_nowhere_the_walk_goes_on_at_the_next_chunk(field: int) -> None:
    chunks = parts()
    raw = changed(HEADER + b"".join(chunks), at_of(chunks, 2) + field, b"\x7f")
    ids, states, [damage] = read(raw)
    assert ids == [0, 5, 15, 20, 25]
    assert states == [INTACT] * 5
    assert (damage.kind, damage.offset, damage.messages) == (Kind.BAD_CHUNK, at_of(chunks, 2), 5)
    what = "the header of a chunk is damaged" if field < 2 else "there is no valid chunk here"
    assert damage.detail == f"{what}: offsets 10 to 14 are lost"


@pytest.mark.parametrize("value", [b"\x7f\0\0\0", b"\0\0\0\x01", b"\0\0\1\0"])
def test_the_size_of_a_trailer_that_is_damaged_hides_no_chunk(value: bytes) -> None:
    chunks = parts()
    ids, states, [damage] = read(changed(HEADER + b"".join(chunks), at_of(chunks, 2) + 40, value))
    assert (ids, states) == ([0, 5, 10, 15, 20, 25], [INTACT] * 6)
    assert (damage.kind, damage.messages) == (Kind.BAD_CHUNK, 0)


@pytest.mark.parametrize(("field", "value"), [(24, b"\x00\x01"), (2, b"\x00\x09"), (4, b"\x00\x00\x00\x02")])
def test_an_id_or_a_count_that_the_neighbours_contradict_is_put_right(field: int, value: bytes) -> None:
    chunks = parts()
    ids, states, [damage] = read(changed(HEADER + b"".join(chunks), at_of(chunks, 2) + field, value))
    assert ids == [0, 5, 10, 15, 20, 25]
    assert states == [INTACT, INTACT, BAD_HEADER, INTACT, INTACT, INTACT]
    assert damage.offset == at_of(chunks, 2)


@pytest.mark.parametrize("left", [1, 20, 47, 48, 60])
def test_a_torn_last_chunk_is_not_read_and_says_how_many_records_it_had(left: int) -> None:
    chunks = parts()
    raw = HEADER + b"".join(chunks[:5]) + chunks[5][:left]
    ids, _, [damage] = read(raw)
    assert ids == [0, 5, 10, 15, 20]
    assert (damage.kind, damage.offset, damage.length) == (Kind.TORN_RECORD, at_of(chunks, 5), left)
    assert damage.messages == (5 if left >= 48 else 0)


def test_a_last_chunk_without_its_whole_trailer_is_read() -> None:
    whole = chunk(0, [entry(b"a")], trailer=b"\x00\x01p" + bytes(8))
    ids, states, [damage] = read(HEADER + whole[:-3])
    assert (ids, states, damage.kind, damage.messages) == ([0], [INTACT], Kind.TORN_RECORD, 0)


def test_missing_chunks_are_seen_by_the_ids_of_the_next_ones() -> None:
    chunks = parts()
    ids, states, [damage] = read(HEADER + b"".join(chunks[:2] + chunks[4:]))
    assert (ids, states) == ([0, 5, 20, 25], [INTACT] * 4)
    assert damage.messages == 10
    assert "offsets 10 to 19 are lost" in damage.detail


def test_a_copy_of_a_segment_inside_a_message_is_not_read_as_chunks() -> None:
    """Its chunk is damaged, so that the search for the next one goes through the copy: its ids are those of another segment."""
    inner = HEADER + b"".join(parts(3, start=1000))
    outer = [chunk(0, [entry(b"before")]), chunk(1, [entry(inner), entry(b"x")]), chunk(3, [entry(b"after")])]
    raw = changed(HEADER + b"".join(outer), at_of(outer, 1) + 36, b"\x7f")
    ids, _, [damage] = read(raw, 0, after=4)
    assert ids == [0, 3]
    assert damage.messages == 2


def test_a_copy_inside_the_last_message_of_a_segment_before_another_is_not_read_either() -> None:
    inner = HEADER + b"".join(parts(3, start=1000))
    outer = [chunk(0, [entry(b"before")]), chunk(1, [entry(inner), entry(b"x")])]
    raw = changed(HEADER + b"".join(outer), at_of(outer, 1) + 36, b"\x7f")
    ids, _, [damage] = read(raw, 0, after=3)
    assert ids == [0]
    assert damage.messages == 2


def test_the_end_of_a_segment_before_another_says_which_offsets_are_lost() -> None:
    chunks = parts()
    ids, _, [damage] = read(HEADER + b"".join(chunks[:5]) + bytes(100), after=30)
    assert ids == [0, 5, 10, 15, 20]
    assert (damage.kind, damage.messages) == (Kind.BAD_CHUNK, 5)


def test_chunks_past_the_name_of_the_next_segment_are_read_after_damage_too() -> None:
    """Where a segment was copied under the name of a later offset, and the copy is damaged elsewhere."""
    chunks = [chunk(k, [entry(b"x" * 20)]) for k in range(10)]
    damaged = bytearray(HEADER + b"".join(chunks))
    damaged[len(HEADER) + 36] ^= 0xFF  # the size of the data of the first one
    ids, _, [damage] = read(bytes(damaged), after=1)
    assert ids == list(range(1, 10))
    assert (damage.offset, damage.length, damage.messages) == (len(HEADER), len(chunks[0]), 1)


def test_a_wrong_header_of_the_file_does_not_hide_its_chunks() -> None:
    ids, _, [damage] = read(changed(HEADER + b"".join(parts()), 1, b"?"))
    assert len(ids) == 6
    assert (damage.kind, damage.offset, damage.length) == (Kind.BAD_CHUNK, 0, 8)


@pytest.mark.parametrize("size", [0, 3, 8])
def test_a_segment_that_ends_at_its_header_has_no_chunks(size: int) -> None:
    ids, _, findings = read(HEADER[:size])
    assert ids == []
    assert [damage.kind for damage in findings] == ([] if size == 8 else [Kind.TORN_RECORD])


def test_a_segment_of_false_beginnings_is_given_up_with_a_finding() -> None:
    """Each of 20,000 headers announces the rest of the file: to compute their checksums would take 12 GB of reading."""
    size = 20_000 * 64
    head = struct.pack(">BBHIqQQIIIB3s", 0x50, 1, 1, 1, 0, 1, 5, 1, 0, 0, 0, bytes(3))
    raw = bytearray(head.ljust(64, b"\0") * 20_000)
    for at in range(0, size, 64):
        length = size - at - 49
        raw[at + 36 : at + 40] = length.to_bytes(4, "big")
        raw[at + 48 : at + 52] = (length - 4).to_bytes(4, "big")
    _, _, findings = read(HEADER + bytes(raw))
    assert [damage.kind for damage in findings] == [Kind.BAD_CHUNK]
    assert "too many false beginnings" in findings[0].detail


def test_findings_of_one_segment_are_counted_after_a_thousand() -> None:
    damaged = [bytearray(part) for part in parts(3000)]
    for part in damaged[:-1]:
        part[-1] ^= 1
    _, states, findings = read(HEADER + b"".join(damaged))
    assert states.count(BAD_DATA) == 2999
    assert len(findings) == MOST_FINDINGS + 1
    assert "1999 more places" in findings[-1].detail


def test_blocks_of_a_long_segment_follow_each_other_without_a_seam() -> None:
    chunks = parts(40_000, records=1)
    ids, _, findings = read(HEADER + b"".join(chunks))
    assert (ids, findings) == (list(range(40_000)), [])


def test_chunks_with_wrong_ids_throughout_are_read_in_time_that_grows_with_their_number() -> None:
    ids, states, findings = read(HEADER + b"".join(chunk(7, [entry(b"x")]) for _ in range(30_000)))
    assert len(ids) == len(states) == 30_000
    assert len(findings) == MOST_FINDINGS + 1


def test_the_kernel_computes_the_checksum_of_zlib() -> None:
    raw = HEADER + b"".join(parts())
    out = np.empty((stream_chunks.CHUNK_COLUMNS, 10), np.int64)
    count, end, why = stream_chunks.walk(np.frombuffer(raw, np.uint8), 8, len(raw), out)
    assert (count, end, why) == (6, len(raw), stream_chunks.DONE)
    for row in range(count):
        start = int(out[stream_chunks.AT, row]) + 48
        data = raw[start : start + int(out[stream_chunks.DATA_SIZE, row])]
        assert int.from_bytes(raw[start - 16 : start - 12], "big") == zlib.crc32(data)


@pytest.mark.parametrize(("start", "stop"), [(-1, 10), (0, 10_000)])
def test_the_kernel_refuses_a_range_outside_its_buffer(start: int, stop: int) -> None:
    data: Bytes = np.zeros(100, np.uint8)
    with pytest.raises(ValueError, match="outside"):
        stream_chunks.walk(data, start, stop, np.empty((stream_chunks.CHUNK_COLUMNS, 1), np.int64))


SECTION = b"\0\x53\x75\xa0\x04body"  # a body of AMQP 1.0


@pytest.mark.parametrize(
    ("data", "kind", "stated"),
    [
        (block(OFFSET, b"reader", 7), TRACKING_DELTA, MESSAGES),
        (block(SEQUENCE, b"writer", 3, 9) + block(OFFSET, b"reader", 7), TRACKING_SNAPSHOT, MESSAGES),
        (block(SEQUENCE, b"writer", 3, 9), TRACKING_SNAPSHOT, TRACKING_DELTA),
        (SECTION, MESSAGES, TRACKING_DELTA),
        (SECTION, MESSAGES, TRACKING_SNAPSHOT),
    ],
)
def test_the_kind_of_a_chunk_is_that_of_its_data(data: bytes, kind: int, stated: int) -> None:
    """No checksum covers the kind: tracking would come out as a message, and a message would be taken for tracking."""
    chunks = [chunk(0, [entry(b"a"), entry(b"b")]), chunk(2, [entry(data)], kind=kind), chunk(3, [entry(b"c")])]
    raw = HEADER + b"".join(chunks)
    assert read(raw) == ([0, 2, 3], [INTACT] * 3, [])
    damaged = np.frombuffer(changed(raw, at_of(chunks, 1) + 1, bytes([stated])), np.uint8)
    [(found, [damage])] = walk_segment(damaged, 0, file="s")
    assert found.kind.tolist() == [MESSAGES, kind, MESSAGES]
    assert found.state.tolist() == [INTACT, BAD_HEADER, INTACT]
    assert (damage.kind, damage.offset, damage.messages) == (Kind.BAD_CHUNK, at_of(chunks, 1), int(kind == MESSAGES))


@pytest.mark.parametrize(
    "data", [b"", b"plain", b"\0\3abc", b"\1\1r" + bytes(7), b"\3\1r" + bytes(8), bytes(10), bytes(18), bytes(2) + b"\1\2\3\4" * 2]
)
def test_a_message_that_is_no_tracking_is_intact(data: bytes) -> None:
    assert read(HEADER + chunk(0, [entry(data)])) == ([0], [INTACT], [])


@pytest.mark.parametrize("before", range(4))
def test_bytes_that_begin_as_a_chunk_does_hide_none_right_after_them(before: int) -> None:
    whole = parts()[0]
    octets = np.frombuffer(whole[:1] * before + whole, np.uint8)
    assert stream_chunks.resume(octets, 0, 0, 1, 10**6) == (before, 10**6)
