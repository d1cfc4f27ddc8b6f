"""Property texts from columns: `keys`, `tags`, `uniq_key` and `properties` of a message table.

The order of the pairs is KEYS, TAGS, UNIQ_KEY, then those of the map, in its order. If the map of a row has one of these names,
the map decides its value and position: so the table of a store, which has these columns and the whole map, reproduces each
property text. A property text (a column of bytes) is stored unchanged, and cannot be combined with the other columns.

    >>> import pyarrow as pa
    >>> columns = {"keys": pa.array([["a", "b"], []]), "tags": pa.array(["x", "y"])}
    >>> columns["properties"] = pa.array([[("n", "1")], [("n", "2"), ("TAGS", "z")]], pa.map_(pa.string(), pa.string()))
    >>> texts = property_texts(columns, 2, trailing=False)
    >>> texts.value(0), texts.value(1)
    (b'KEYS\\x01a b\\x02TAGS\\x01x\\x02n\\x011', b'n\\x012\\x02TAGS\\x01z')

Format: docs/formats/rocketmq.md, section 2.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mqstore.errors import UsageError
from mqstore.kernels.rocketmq import property_text
from mqstore.rocketmq.format.record import CRC_NAME, without_property
from mqstore.table.arrow_spans import Bytes, Longs, Spans, bad_row, is_bytes, spans_of

if TYPE_CHECKING:
    import pyarrow as pa

NAMES = {"keys": b"KEYS", "tags": b"TAGS", "uniq_key": b"UNIQ_KEY"}
_NAMES_END = "a byte 01 would end the name of the property; leave it out"
_SEPARATES = "a byte 02 would end the property; leave it out"


class _Pairs(NamedTuple):
    """The pairs of all maps, concatenated. row: the row of each pair; bounds: where the pairs of each row begin, and the end."""

    row: Longs
    names: Spans
    values: Spans
    bounds: Longs


def property_texts(columns: Mapping[str, pa.Array], n: int, *, trailing: bool, drop_crc: bool = False, first_row: int = 0) -> Spans:
    """Return the property text of each of n rows. trailing: with a final 02, as 5.3 writes it. Raises UsageError.

    drop_crc: leave out a `__CRC32#` property, because the store writes a new one.
    """
    import pyarrow as pa

    named = {column: _strings(column, columns[column], first_row) for column in NAMES if column in columns}
    given = columns.get("properties")
    pairs = None
    if given is not None and pa.types.is_map(given.type):
        pairs = _property_pairs(given, drop_crc, first_row)
        for column, spans in named.items():
            spans.lengths[pairs.row[pairs.names.equal(NAMES[column]) & (pairs.values.lengths >= 0)]] = -1
    elif given is not None and not pa.types.is_null(given.type):
        return _as_given(spans_of("properties", given), named, drop_crc, first_row)
    for column, spans in named.items():
        holding = spans.holding(b"\x02")
        if holding.any():
            raise bad_row(column, int(np.argmax(holding)), first_row, _SEPARATES)
    room = np.zeros(n, np.int64)
    for column, spans in named.items():
        property_text.add_lengths(len(NAMES[column]), spans.lengths, room)
    if pairs is not None:
        taken = np.where(pairs.values.lengths < 0, 0, pairs.names.lengths + pairs.values.lengths + 2)
        before = np.concatenate(([0], np.cumsum(taken)))
        room += before[pairs.bounds[1:]] - before[pairs.bounds[:-1]]
    ends = np.cumsum(room)
    cursors = ends - room
    starts = cursors.copy()
    text = np.empty(int(ends[-1]) if n else 0, np.uint8)
    for column, spans in named.items():
        property_text.put_pairs(_bytes(NAMES[column]), spans.data, spans.starts, spans.lengths, cursors, text)
    if pairs is not None:
        names, values = pairs.names, pairs.values
        property_text.put_listed_pairs(
            pairs.row, names.data, names.starts, names.lengths, values.data, values.starts, values.lengths, cursors, text
        )
    return Spans(text, starts, room if trailing else np.maximum(room - 1, 0))


def _bytes(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8)


def _strings(column: str, array: pa.Array, first_row: int) -> Spans:
    """Return a column of text; lists of keys are joined with spaces, an empty list gives no property. The lengths are a copy."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column != "keys" or not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        spans = spans_of(column, array)
        return spans._replace(lengths=spans.lengths.copy())
    if not is_bytes(array.type.value_type) and not pa.types.is_null(array.type.value_type):
        raise UsageError(f"column keys is of type {array.type}, it must be text or lists of text")
    try:
        joined = pc.binary_join(array.cast(pa.list_(pa.string())), " ")
    except pa.ArrowInvalid as error:
        raise UsageError(f"column keys is not UTF-8 text: {error}") from None
    holed = np.flatnonzero(joined.is_null().to_numpy(zero_copy_only=False) & array.is_valid().to_numpy(zero_copy_only=False))
    if len(holed):
        raise bad_row(column, int(holed[0]), first_row, "one of the keys is null; leave it out")
    spans = spans_of(column, joined)
    spans.lengths[pc.equal(pc.list_value_length(array), 0).fill_null(False).to_numpy(zero_copy_only=False)] = -1
    return spans


def _property_pairs(given: pa.Array, drop_crc: bool, first_row: int) -> _Pairs:
    """Return the pairs of a map column; a pair without a value has length -1."""
    bounds = given.offsets.to_numpy().astype(np.int64)
    low, count = int(bounds[0]), int(bounds[-1] - bounds[0])
    bounds -= low
    row = np.repeat(np.arange(len(given)), np.diff(bounds))
    names = spans_of("properties", given.keys.slice(low, count))
    values = spans_of("properties", given.items.slice(low, count))
    values = values._replace(lengths=values.lengths.copy())
    values.lengths[given.is_null().to_numpy(zero_copy_only=False)[row]] = -1
    if drop_crc:
        values.lengths[names.equal(CRC_NAME)] = -1
    for spans, separator, why in ((names, b"\x01", _NAMES_END), (names, b"\x02", _SEPARATES), (values, b"\x02", _SEPARATES)):
        holding = spans.holding(separator)
        if holding.any():
            raise bad_row("properties", int(row[np.argmax(holding)]), first_row, why)
    return _Pairs(row, names, values, bounds)


def _as_given(texts: Spans, named: Mapping[str, Spans], drop_crc: bool, first_row: int) -> Spans:
    """Return property texts as given. Raises UsageError if other columns would have to be added."""
    for column, spans in named.items():
        both = np.flatnonzero((texts.lengths >= 0) & (spans.lengths >= 0))
        if len(both):
            raise bad_row(column, int(both[0]), first_row, "it cannot be added to a property text; put it into the text")
    if any((spans.lengths >= 0).any() for spans in named.values()):
        raise UsageError("properties are given as text in some rows and as keys, tags or uniq_key in others; give all as text")
    texts = texts._replace(lengths=np.maximum(texts.lengths, 0))
    if not drop_crc:
        return texts
    kept = [without_property(texts.value(k), CRC_NAME) for k in range(len(texts.lengths))]
    ends = np.cumsum([0, *map(len, kept)])
    return Spans(_bytes(b"".join(kept)), ends[:-1], np.diff(ends))
