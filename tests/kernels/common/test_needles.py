"""The search for several strings, against `in`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqstore.kernels.common import needles

letters = st.text("ab", max_size=30).map(str.encode)


@given(st.lists(letters, min_size=1, max_size=5), st.lists(st.text("ab", min_size=2, max_size=6).map(str.encode), min_size=1, max_size=4))
@settings(deadline=None, max_examples=200)
def test_a_span_is_marked_if_and_only_if_it_holds_a_needle(parts: list[bytes], wanted: list[bytes]) -> None:
    data = np.frombuffer(b"".join(parts) + b"-", np.uint8)
    stops = np.cumsum([len(part) for part in parts]).astype(np.int64)
    starts = stops - np.array([len(part) for part in parts])
    joined, ends = np.frombuffer(b"".join(wanted), np.uint8), np.cumsum([len(each) for each in wanted]).astype(np.int64)
    expected = [int(any(each in part for each in wanted)) for part in parts]
    shifts, marks = np.empty(65536, np.uint8), np.empty(len(parts), np.uint8)
    window = needles.shift_table(joined, ends, shifts)
    assert window == min(map(len, wanted))
    assert needles.mark_spans(data, starts, stops, joined, ends, shifts, window, marks) == sum(expected)
    assert marks.tolist() == expected


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 9)])
def test_a_span_outside_the_buffer_is_refused(start: int, stop: int) -> None:
    shifts, needle, ends = np.empty(65536, np.uint8), np.frombuffer(b"ab", np.uint8), np.array([2])
    window = needles.shift_table(needle, ends, shifts)
    with pytest.raises(ValueError, match="outside its buffer"):
        needles.mark_spans(
            np.frombuffer(b"abababab", np.uint8), np.array([start]), np.array([stop]), needle, ends, shifts, window, np.empty(1, np.uint8)
        )


def test_a_needle_of_one_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two bytes"):
        needles.shift_table(np.frombuffer(b"a", np.uint8), np.array([1]), np.empty(65536, np.uint8))
