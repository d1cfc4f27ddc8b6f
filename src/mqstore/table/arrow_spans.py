"""Arrow columns of any width and encoding as the plain arrays that kernels take: byte spans, integers, distinct values.

>>> import pyarrow as pa
>>> spans = spans_of("tags", pa.array(["TagA", None, "", "B"]))
>>> spans.starts.tolist(), spans.lengths.tolist(), spans.data.tobytes()[:5]
([0, 4, 4, 4], [4, -1, 0, 1], b'TagAB')
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]

_NOTHING = np.zeros(0, np.uint8)


class Spans(NamedTuple):
    """The bytes of each row within `data`: start and length; a length of -1 means null."""

    data: Bytes
    starts: Longs
    lengths: Longs

    @classmethod
    def absent(cls, n: int) -> Spans:
        """Return n null rows."""
        return cls(_NOTHING, np.zeros(n, np.int64), np.full(n, -1, np.int64))

    def value(self, row: int) -> bytes:
        """Return the bytes of one row; empty if it is null."""
        start = int(self.starts[row])
        return self.data[start : start + max(0, int(self.lengths[row]))].tobytes()

    def equal(self, value: bytes) -> NDArray[np.bool_]:
        """Return a mask of the rows whose value equals `value`."""
        mask: NDArray[np.bool_] = self.lengths == len(value)
        rows = np.flatnonzero(mask)
        if len(rows) and value:
            text = self.data[self.starts[rows, None] + np.arange(len(value))]
            mask[rows] = (text == np.frombuffer(value, np.uint8)).all(axis=1)
        return mask

    def holding(self, part: bytes) -> NDArray[np.bool_]:
        """Return a mask of the rows whose value contains `part`. One pass over the data if it occurs nowhere."""
        mask = np.zeros(len(self.lengths), np.bool_)
        used = np.flatnonzero(self.lengths >= len(part))
        if not len(used):
            return mask
        starts = self.starts[used]
        last = starts + self.lengths[used] - len(part)
        low = int(starts.min())
        text = self.data[low : int(last.max()) + len(part)].tobytes()
        places = []
        at = text.find(part)
        while at >= 0:
            places.append(low + at)
            at = text.find(part, at + 1)
        if not places:
            return mask
        mask[used] = np.searchsorted(places, last, "right") > np.searchsorted(places, starts)
        return mask


class BadRowError(UsageError):
    """A row that cannot be stored. row: its number in the batch; column, why: what is wrong."""

    def __init__(self, column: str, row: int, first_row: int, why: str) -> None:
        super().__init__(f"column {column}, row {first_row + row}: {why}")
        self.column, self.row, self.why = column, row, why


def bad_row(column: str, row: int, first_row: int, why: str) -> BadRowError:
    """Return the error for a row that cannot be stored."""
    return BadRowError(column, row, first_row, why)


def _wrong_type(column: str, array: pa.Array, expected: str) -> UsageError:
    return UsageError(f"column {column} is of type {array.type}, it must be {expected}")


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether a type holds text or bytes, of any width, plain or dictionary-encoded."""
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    plain = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view())
    return kind in plain or bool(pa.types.is_fixed_size_binary(kind))


def _is_null(array: pa.Array) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return mask


def spans_of(column: str, array: pa.Array) -> Spans:
    """Return the values of a text or binary column, plain or dictionary-encoded, without copying the bytes. Raises UsageError."""
    import pyarrow as pa

    kind = array.type
    n = len(array)
    if pa.types.is_null(kind):
        return Spans.absent(n)
    if pa.types.is_dictionary(kind):
        values = spans_of(column, array.dictionary)
        codes = array.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        if not len(values.starts):
            return Spans.absent(n)
        return Spans(values.data, values.starts[codes], np.where(_is_null(array), -1, values.lengths[codes]))
    if not is_bytes(kind):
        raise _wrong_type(column, array, "text or bytes")
    if kind in (pa.string_view(), pa.binary_view()) or pa.types.is_fixed_size_binary(kind):
        array = array.cast(pa.large_binary())
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    _, raw, data = array.buffers()
    if n == 0 or raw is None:
        return Spans.absent(n)
    offsets = np.frombuffer(raw, np.int64 if wide else np.int32, n + 1, array.offset * (8 if wide else 4)).astype(np.int64)
    lengths = np.diff(offsets)
    if array.null_count:
        lengths[_is_null(array)] = -1
    return Spans(_NOTHING if data is None or data.size == 0 else np.frombuffer(data, np.uint8), offsets[:-1], lengths)


def distinct_values(column: str, array: pa.Array) -> tuple[Longs, list[str | None]]:
    """Return each row's index into the distinct values (-1 for null), and those values (None for an unused one). Raises UsageError."""
    import pyarrow as pa

    if pa.types.is_null(array.type):
        return np.full(len(array), -1, np.int64), []
    if not is_bytes(array.type):
        raise _wrong_type(column, array, "text")
    try:
        if not pa.types.is_dictionary(array.type):
            array = array.cast(pa.string()).dictionary_encode()
        elif len(array.dictionary.unique()) < len(array.dictionary) or array.dictionary.null_count:
            array = array.cast(array.type.value_type).cast(pa.string()).dictionary_encode()
        codes = array.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        used = np.bincount(codes + 1, minlength=len(array.dictionary) + 1)[1:] > 0
        values = array.dictionary.cast(pa.string()).take(pa.array(np.flatnonzero(used))).to_pylist()
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise UsageError(f"column {column} is not UTF-8 text: {error}") from None
    values_by_code: list[str | None] = [None] * len(used)
    for k, value in zip(np.flatnonzero(used).tolist(), values, strict=True):
        values_by_code[k] = value
    return codes, values_by_code


def integer_values(column: str, array: pa.Array, default: int, bits: int, first_row: int) -> Longs:
    """Return an integer column, `default` for null. bits: allowed width without the sign. Raises UsageError."""
    import pyarrow as pa

    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise _wrong_type(column, array, "whole numbers")
    try:
        integers: Longs = array.cast(pa.int64()).fill_null(default).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise UsageError(f"column {column} has a value that is not a 64-bit integer: {error}") from None
    outside = (integers >= 1 << bits) | (integers < -(1 << bits)) if bits < 63 else np.zeros(0, np.bool_)
    if outside.any():
        row = int(np.argmax(outside))
        raise bad_row(column, row, first_row, f"{integers[row]} does not fit {bits + 1} bits")
    return integers


def millisecond_values(column: str, array: pa.Array, default: int, first_row: int) -> Longs:
    """Return a column of times in milliseconds, from timestamps of any unit or from integers; `default` for null. Raises UsageError."""
    import pyarrow as pa

    if not pa.types.is_timestamp(array.type):
        return integer_values(column, array, default, 63, first_row)
    milliseconds: Longs = (
        array.cast(pa.timestamp("ms", array.type.tz), safe=False).cast(pa.int64()).fill_null(default).to_numpy(zero_copy_only=False)
    )
    return milliseconds


# ---- the distinct values of an array of integers, and cuts of an ascending one that keep equal values together
#
# `numpy.unique` of NumPy 2.3 and later collects them in a hash table, which takes some twenty times as long as sorting for millions of
# different values, and more memory.

I = TypeVar("I", bound=np.integer)  # noqa: E741


def distinct(values: NDArray[I]) -> NDArray[I]:
    """Return the values in ascending order, each once. Runs that ascend are merged faster than others are sorted.

    >>> distinct(np.array([5, 3, 5, 4])).tolist()
    [3, 4, 5]
    """
    return distinct_of_sorted(np.sort(values, axis=None, kind="stable"))


def distinct_of_sorted(values: NDArray[I]) -> NDArray[I]:
    """Return the values, which ascend, each once."""
    if not len(values):
        return values
    first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values if first.all() else values[first]


def whole_runs(values: NDArray[I], least: int) -> Iterator[tuple[int, int]]:
    """Yield half-open ranges of ascending values, in order: `least` values, and those that equal the last of them.

    What belongs together because its values are equal is therefore never cut apart. Only the last range may be shorter.

    >>> list(whole_runs(np.array([3, 3, 3, 7, 8, 8]), 2))
    [(0, 3), (3, 6)]
    """
    low = 0
    while low < len(values):
        last = min(low + least, len(values)) - 1
        high = int(np.searchsorted(values, values[last], "right"))
        yield low, high
        low = high


def pieces(lengths: NDArray[np.int64], most_bytes: int, most_rows: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield (from, to) of consecutive rows with at most this many bytes together, or of one row. lengths: of each row.

    >>> list(pieces(np.array([3, 3, 9, 1, 1, 1]), 6, 2))
    [(0, 2), (2, 3), (3, 5), (5, 6)]
    """
    ends = np.cumsum(lengths)
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + most_bytes, "right")))
        stop = stop if most_rows is None else min(stop, start + most_rows)
        yield start, stop
        start = stop
