"""Indexes that contradict their segments, and filters against Erlang's hash."""

from __future__ import annotations

import numpy as np
import pytest

from mqstore.findings import Damage, Kind
from mqstore.rabbitmq.streams import index
from mqstore.rabbitmq.streams.bloom_filter import _bits, chunks_that_may_hold, hash_pair
from mqstore.rabbitmq.streams.segment import HEADER as SEGMENT_HEADER
from mqstore.rabbitmq.streams.segment import Chunks, chunk, entry, walk_segment
from mqstore.rabbitmq.streams.tracking import OFFSET, SEQUENCE, TIMESTAMP, Tracking, block

SIZE = index.RECORD.itemsize


def chunks_of(raw: bytes) -> Chunks:
    [(chunks, [])] = walk_segment(np.frombuffer(raw, np.uint8), 0)
    return chunks


CHUNKS = chunks_of(SEGMENT_HEADER + b"".join(chunk(2 * k, [entry(b"a"), entry(b"b")], timestamp=1000 + k) for k in range(10)))
WHOLE = index.build_index(CHUNKS)


def compared(raw: bytes) -> list[Damage]:
    found = index.read_index(np.frombuffer(raw, np.uint8))
    comparison = index.IndexComparison(found, "i")
    halves = CHUNKS.take(np.arange(10) < 5), CHUNKS.take(np.arange(10) >= 5)
    differences = [damage for half in halves for damage in comparison.add(half)] + comparison.finish()
    whole = index.IndexComparison(found, "i")
    assert {damage.offset for damage in whole.add(CHUNKS) + whole.finish()} <= {damage.offset for damage in differences}
    return index.header_damage(found, "i", len(raw)) + differences


def record_at(number: int) -> int:
    return len(index.HEADER) + number * SIZE


def test_an_index_that_fits_has_no_findings() -> None:
    assert compared(WHOLE) == []


def test_an_index_that_is_too_short_says_which_offsets_a_node_would_drop() -> None:
    torn, damage = compared(WHOLE[: record_at(8) - 7])
    assert torn.kind == Kind.TORN_RECORD
    assert (damage.kind, damage.messages) == (Kind.BAD_STREAM_INDEX, 6)
    assert "offsets 14 to 19" in damage.detail


def test_an_empty_index_lacks_every_chunk() -> None:
    assert sum(damage.messages for damage in compared(index.HEADER)) == 20


def test_zeros_at_the_end_are_not_records() -> None:
    assert compared(WHOLE + bytes(SIZE * 1000)) == []
    assert len(index.read_index(np.frombuffer(WHOLE + bytes(SIZE * 1000), np.uint8))) == 10
    assert len(index.read_index(np.frombuffer(index.HEADER + bytes(SIZE * 1000), np.uint8))) == 0


@pytest.mark.parametrize("field", [0, 7, 8, 15, 23, 28])
def test_a_record_that_contradicts_its_chunk_is_a_finding(field: int) -> None:
    raw = bytearray(WHOLE)
    raw[record_at(4) + field] ^= 0x41
    [damage] = compared(bytes(raw))
    assert (damage.offset, damage.length) == (record_at(4), SIZE)
    assert "contradict" in damage.detail


def test_a_record_that_leads_to_no_chunk_is_a_finding_and_so_is_the_chunk_without_one() -> None:
    raw = bytearray(WHOLE)
    raw[record_at(4) + 27] += 1
    lacking, stray = compared(bytes(raw))
    assert lacking.messages == 2
    assert "lead to no valid chunk" in stray.detail
    assert stray.offset == record_at(4)


def test_records_that_lead_past_the_segment_are_findings() -> None:
    [stray] = compared(WHOLE + index.record(20, timestamp=0, position=100_000))
    assert stray.offset == record_at(10)


def test_positions_that_do_not_ascend_are_one_finding() -> None:
    [damage] = compared(index.HEADER + WHOLE[record_at(5) :] + WHOLE[record_at(0) : record_at(5)])
    assert "do not ascend" in damage.detail


def test_a_header_of_something_else_is_a_finding() -> None:
    assert [damage.offset for damage in compared(b"OSIL" + WHOLE[4:])] == [0]
    assert compared(b"")[0].length == 0


# filters


@pytest.mark.parametrize(
    ("value", "own", "listed"),
    [
        (b"", 13708901, 38220213),
        (b"x", 125354872, 50193253),
        (b"red", 114102602, 79772180),
        (b"x" * 11, 119611183, 124605637),
        (b"x" * 12, 103795137, 29995415),
        (b"x" * 13, 41286916, 87017435),
        (b"x" * 100, 131552894, 122365941),
        (b"a longer value of 24 bytes!", 7536803, 102071383),
    ],
)
def test_the_hash_is_that_of_erlang(value: bytes, own: int, listed: int) -> None:
    """erlang:phash2(Value) and erlang:phash2([Value]) of OTP 25."""
    assert [number % (1 << 27) for number in hash_pair(value)] == [own, listed]


def filter_of(values: list[bytes | None], size: int) -> bytes:
    """Return the filter of a chunk whose messages have these values; None: none. Empty if no message has one."""
    if set(values) <= {None}:
        return b""
    bits = np.zeros(8 * size, np.bool_)
    for value in values:
        bits[list(_bits(value, size))] = True
    return np.packbits(bits).tobytes()


def test_chunks_are_passed_over_by_their_filters_unless_they_are_damaged() -> None:
    parts: list[list[bytes | None]] = [[b"red"], [b"blue", None], [None], [b"red", b"green"]]
    raw = bytearray(
        SEGMENT_HEADER
        + b"".join(
            chunk(2 * k, [entry(b"a"), entry(b"b")], filter_bytes=filter_of(values, 16 if k else 64)) for k, values in enumerate(parts)
        )
    )
    chunks = chunks_of(bytes(raw))

    def may(*values: bytes | None) -> list[bool]:
        return chunks_that_may_hold(np.frombuffer(bytes(raw), np.uint8), chunks, values).tolist()

    assert may(b"red") == [True, False, False, True]
    assert may(None) == [False, True, True, False]
    assert may(b"blue", b"green") == [False, True, False, True]
    raw[int(chunks.data_at[2]) + 4] ^= 1
    [(chunks, _)] = walk_segment(np.frombuffer(bytes(raw), np.uint8), 0)
    assert may(b"red") == [True, False, True, True]


# tracking


def test_a_snapshot_replaces_what_was_before() -> None:
    state = Tracking()
    assert state.add(block(SEQUENCE, b"p", 1) + block(OFFSET, b"c", 2) + block(TIMESTAMP, b"c", -3), 0)
    assert (state.sequences, state.offsets, state.timestamps) == ({b"p": (0, 1)}, {b"c": 2}, {b"c": -3})
    assert state.add(block(SEQUENCE, b"q", 7, 8), 9, snapshot=True)
    assert (state.sequences, state.offsets, state.timestamps) == ({b"q": (7, 8)}, {}, {})


@pytest.mark.parametrize("rest", [b"\x00", b"\x03\x00" + bytes(8), b"\x00\xffshort", b"\x01\x00" + bytes(7)])
def test_blocks_that_cannot_be_read_end_what_is_known(rest: bytes) -> None:
    state = Tracking()
    assert not state.add(block(SEQUENCE, b"p", 1) + rest, 0)
    assert state.sequences == {b"p": (0, 1)}
