"""Hash chains of index files, against a Python dictionary."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqstore.kernels.rocketmq import index_chains

Row = tuple[int, int, int]  # hash, physical offset, store time

ROWS = st.lists(
    st.tuples(st.integers(-5, 30) | st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(-(2**40), 2**45)),
    max_size=40,
)


def packed(rows: list[Row]) -> np.ndarray:
    return np.frombuffer(b"".join(struct.pack(">iqq", *row) for row in rows), np.uint8)


def seconds_after(time: int, begin: int) -> int:
    return min(max(0, time - begin) // 1000, 2**31 - 1) if begin > 0 else 0


def model(rows: list[Row], begin: int, slots: int) -> tuple[bytes, dict[int, int]]:
    """Build entries and slots as a broker does, one key after the other."""
    newest: dict[int, int] = {}
    entries = b""
    for number, (key_hash, physical, time) in enumerate(rows, 1):
        key_hash = max(0, key_hash)
        entries += struct.pack(">iqii", key_hash, physical, seconds_after(time, begin), newest.get(key_hash % slots, 0))
        newest[key_hash % slots] = number
    return entries, newest


def built(rows: list[Row], begin: int, slots: int, pieces: list[int]) -> tuple[bytes, np.ndarray, int]:
    """Build in calls of the given lengths: (entries, slots, slots taken)."""
    table = np.zeros(slots, np.int32)
    entries, taken, at = b"", 0, 0
    for length in [*pieces, len(rows)]:
        part = rows[at : at + length]
        out = np.zeros(20 * len(part), np.uint8)
        taken += index_chains.build(packed(part), begin, at + 1, table, out)
        entries += out.tobytes()
        at += len(part)
    return entries, table, taken


def check_build(rows: list[Row], begin: int, slots: int, pieces: list[int]) -> None:
    entries, newest = model(rows, begin, slots)
    found, table, taken = built(rows, begin, slots, pieces)
    assert found == entries
    assert {slot: number for slot, number in enumerate(table.tolist()) if number} == newest
    assert taken == len(newest)
    raw = np.frombuffer(entries, np.uint8)
    again = np.zeros(slots, np.int32)
    assert index_chains.check(raw, 1, again, np.empty(5, np.int64)) == 0
    assert (again == table).all()
    settled = [(max(0, key_hash), physical, time) for key_hash, physical, time in rows]
    assert index_chains.match(packed(settled), raw, begin) == len(rows)


@given(ROWS, st.integers(-1, 2**44), st.integers(1, 20), st.lists(st.integers(0, 9), max_size=3))
@settings(deadline=None, max_examples=150)
def test_chains_are_those_of_a_dictionary(rows: list[Row], begin: int, slots: int, pieces: list[int]) -> None:
    check_build(rows, begin, slots, pieces)


def test_keys_of_one_slot_make_one_chain_from_newer_to_older() -> None:
    entries, table, taken = built([(7 + 10 * k, k, 0) for k in range(5)], 0, 10, [])
    assert [struct.unpack_from(">i", entries, 20 * k + 16)[0] for k in range(5)] == [0, 1, 2, 3, 4]
    assert (table[7], taken) == (5, 1)


def test_a_slot_that_points_past_the_new_entry_counts_as_empty() -> None:
    for wrong in (-3, 99):
        table = np.full(4, wrong, np.int32)
        out = np.zeros(20, np.uint8)
        assert index_chains.build(packed([(1, 0, 0)]), 0, 1, table, out) == 1
        assert struct.unpack(">i", out[16:].tobytes()) == (0,)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, 0), (999, 0), (1000, 1), (-1, 0), (-(10**9), 0), (2_147_483_647_999, 2**31 - 1), (2_147_483_648_000, 2**31 - 1)],
)
def test_times_are_whole_seconds_from_the_first_entry_within_an_int(seconds: int, expected: int) -> None:
    begin = 1_640_995_200_000
    entries, _, _ = built([(1, 0, begin + seconds)], begin, 3, [])
    assert struct.unpack_from(">i", entries, 12) == (expected,)
    assert index_chains.match(packed([(1, 0, begin + seconds)]), np.frombuffer(entries, np.uint8), begin) == 1


@pytest.mark.parametrize(
    ("at", "raw"),
    [(16, (9).to_bytes(4, "big")), (16, (-1).to_bytes(4, "big", signed=True)), (0, b"\x80\0\0\1"), (16, (5).to_bytes(4, "big"))],
)
def test_a_wrong_link_or_a_negative_hash_is_reported(at: int, raw: bytes) -> None:
    entries = bytearray(built([(3 * k, k, 0) for k in range(8)], 0, 3, [])[0])
    entries[20 * 4 + at : 20 * 4 + at + 4] = raw
    bad = np.zeros(3, np.int64)
    found = index_chains.check(np.frombuffer(bytes(entries), np.uint8), 1, np.zeros(3, np.int32), bad)
    assert found >= 1
    assert bad[0] == 5


def test_more_bad_links_than_fit_are_counted() -> None:
    entries = np.frombuffer(struct.pack(">iqii", -1, 0, 0, 0) * 9, np.uint8)
    bad = np.zeros(2, np.int64)
    assert index_chains.check(entries, 1, np.zeros(3, np.int32), bad) == 9
    assert bad.tolist() == [1, 2]


@pytest.mark.parametrize("at", [0, 3, 4, 11, 12, 15])
def test_a_match_ends_at_the_first_entry_that_differs(at: int) -> None:
    rows = [(k, 10 * k, 1_000_000 + 1000 * k) for k in range(6)]
    entries = bytearray(built(rows, 1_000_000, 3, [])[0])
    entries[20 * 3 + at] ^= 1
    assert index_chains.match(packed(rows), np.frombuffer(bytes(entries), np.uint8), 1_000_000) == 3
    assert index_chains.match(packed(rows), np.frombuffer(bytes(entries[:40]), np.uint8), 1_000_000) == 2


@given(st.binary(max_size=200), st.integers(1, 9))
@settings(deadline=None, max_examples=100)
def test_on_any_bytes_chains_are_replayed_as_by_a_list(entries: bytes, slots: int) -> None:
    expected, newest = [], [0] * slots
    for number, (key_hash, _, _, previous) in enumerate(struct.iter_unpack(">iqii", entries[: len(entries) // 20 * 20]), 1):
        slot = max(key_hash, 0) % slots
        if key_hash < 0 or previous != newest[slot]:
            expected.append(number)
        if key_hash >= 0:
            newest[slot] = number
    table, bad = np.zeros(slots, np.int32), np.zeros(10, np.int64)
    told = index_chains.check(np.frombuffer(entries, np.uint8), 1, table, bad)
    assert (bad[:told].tolist(), table.tolist()) == (expected, newest)


def test_arrays_that_are_too_small_are_refused() -> None:
    with pytest.raises(ValueError, match="too small"):
        index_chains.build(packed([(1, 2, 3)]), 0, 1, np.zeros(3, np.int32), np.zeros(19, np.uint8))
    with pytest.raises(ValueError, match="too small"):
        index_chains.check(np.zeros(20, np.uint8), 1, np.zeros(0, np.int32), np.zeros(1, np.int64))
