"""Property texts written column by column, against joined strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqstore.kernels.rocketmq import property_text

NAMES = (b"KEYS", b"T", b"A_LONGER_NAME")
VALUES = st.none() | st.binary(max_size=12)
ROWS = st.lists(st.tuples(VALUES, VALUES, VALUES, st.lists(st.tuples(st.binary(max_size=5), VALUES), max_size=3)), max_size=8)


def spans(values: list[bytes | None]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (bytes, starts, lengths) of values, -1 for None."""
    ends = np.cumsum([0, *(len(value or b"") for value in values)])
    lengths = np.array([-1 if value is None else len(value) for value in values], np.int64)
    return np.frombuffer(b"".join(value or b"" for value in values), np.uint8), ends[:-1].copy(), lengths


def texts(rows: list[Any]) -> list[bytes]:
    kernel, room = property_text, np.zeros(len(rows), np.int64)
    columns = [spans([row[k] for row in rows]) for k in range(3)]
    for name, (_, _, lengths) in zip(NAMES, columns, strict=True):
        kernel.add_lengths(len(name), lengths, room)
    listed = [(k, name, value) for k, row in enumerate(rows) for name, value in row[3]]
    for k, name, value in listed:
        room[k] += 0 if value is None else len(name) + len(value) + 2
    ends = np.cumsum(room)
    cursors, out = ends - room, np.full(int(room.sum()), 0xAA, np.uint8)
    for name, column in zip(NAMES, columns, strict=True):
        kernel.put_pairs(np.frombuffer(name, np.uint8), *column, cursors, out)
    numbers = np.array([k for k, _, _ in listed], np.int64)
    kernel.put_listed_pairs(numbers, *spans([name for _, name, _ in listed]), *spans([value for _, _, value in listed]), cursors, out)
    assert cursors.tolist() == ends.tolist()
    return [out[end - length : end].tobytes() for end, length in zip(ends.tolist(), room.tolist(), strict=True)]


@given(ROWS)
@settings(deadline=None, max_examples=100)
def test_texts_are_the_pairs_that_are_there_in_order(rows: list[Any]) -> None:
    expected = [
        b"".join(name + b"\x01" + value + b"\x02" for name, value in [*zip(NAMES, row[:3], strict=True), *row[3]] if value is not None)
        for row in rows
    ]
    assert texts(rows) == expected


@pytest.mark.parametrize(
    ("start", "length", "cursor"), [(-1, 2, 0), (0, 6, 0), (6, 0, 0), (2**62, 2**62, 0), (0, 2, -1), (0, 2, 93), (0, 2, 2**62)]
)
def test_spans_outside_their_buffers_are_refused(start: int, length: int, cursor: int) -> None:
    out, name, values = np.zeros(100, np.uint8), np.frombuffer(b"KEYS", np.uint8), np.zeros(5, np.uint8)
    starts, lengths = np.array([start]), np.array([length])
    with pytest.raises(ValueError, match="outside its buffer"):
        property_text.put_pairs(name, values, starts, lengths, np.array([cursor]), out)
    zero, four = np.array([0]), np.array([4])
    with pytest.raises(ValueError, match="outside its buffer"):
        property_text.put_listed_pairs(zero, name, zero, four, values, starts, lengths, np.array([cursor]), out)
    assert not out.any()


@pytest.mark.parametrize(("row", "start", "length"), [(-1, 0, 4), (1, 0, 4), (0, -1, 4), (0, 0, 5), (0, 0, -1)])
def test_names_and_rows_outside_their_buffers_are_refused(row: int, start: int, length: int) -> None:
    out, name = np.zeros(100, np.uint8), np.frombuffer(b"KEYS", np.uint8)
    zero = np.array([0])
    with pytest.raises(ValueError, match="outside its buffer"):
        property_text.put_listed_pairs(
            np.array([row]), name, np.array([start]), np.array([length]), name, zero, np.array([4]), np.array([0]), out
        )


def test_arrays_that_are_too_small_are_refused() -> None:
    two, one, text = np.zeros(2, np.int64), np.zeros(1, np.int64), np.zeros(9, np.uint8)
    with pytest.raises(ValueError, match="too small"):
        property_text.add_lengths(1, two, one)
    for lengths, cursors in ((one, two), (two, one)):
        with pytest.raises(ValueError, match="too small"):
            property_text.put_pairs(text, text, two, lengths, cursors, text)
    for arrays in ((one, two, two, two), (two, one, two, two), (two, two, one, two), (two, two, two, one)):
        name_starts, name_lengths, starts, lengths = arrays
        with pytest.raises(ValueError, match="too small"):
            property_text.put_listed_pairs(two, text, name_starts, name_lengths, text, starts, lengths, two, text)
