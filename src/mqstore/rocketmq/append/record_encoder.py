"""From a message table to commit log records: the columns of a batch in the layout that the kernel writes.

A batch has the columns of the message table (docs/guide/message-table.md); only `topic` is required. Columns that the store fills
(offsets, sizes, CRCs, store times, ids, verdicts) are ignored.

    column                           taken as
    topic                            text; plain or dictionary-encoded, as every column
    body                             bytes or text; empty where null
    queue_id, flag, sys_flag, reconsume_times, prepared_transaction_offset    numbers; 0 where null
    born_timestamp                   a timestamp, or ms as a number; the time of the call where null
    born_host, store_host            `ip:port` or `[ip]:port`; the store's host where null
    keys                             text, or a list of keys; like tags and uniq_key, put before the properties
    properties                       a map; or the property text as bytes, stored unchanged

Bodies of a message table are expanded, so SYSFLAG's compression bits are cleared; `expanded=False` is for bodies as stored.

    >>> import numpy as np, pyarrow as pa
    >>> batch = pa.RecordBatch.from_pydict({"topic": ["a", "b", "a"], "body": [b"1", b"2", b"3"], "tags": ["x", None, "y"]})
    >>> columns = BatchColumns.from_arrow(batch, version="4.9.3", now=1640995200000)
    >>> columns.groups, columns.group.tolist(), columns.sizes.tolist()
    ([('a', 0), ('b', 0)], [0, 1, 0], [99, 93, 99])
    >>> columns.assign_offsets(np.array([7, 0]))
    >>> page = np.zeros(300, np.uint8)
    >>> columns.write(LogFileWriter(page), 0, 300, 0)
    (3, 291)
    >>> from mqstore.rocketmq.format.record import decode
    >>> decode(page[192:].tobytes()).property_map(), int(columns.fields[frames.QUEUE_OFFSET, 2])
    ({'TAGS': 'y'}, 8)

Property texts from columns: `keys`, `tags`, `uniq_key` and `properties` of a message table.

The order of the pairs is KEYS, TAGS, UNIQ_KEY, then those of the map, in its order. If the map of a row has one of these names,
the map decides its value and position: so the table of a store, which has these columns and the whole map, reproduces each
property text. A property text (a column of bytes) is stored unchanged, and cannot be combined with the other columns.

    >>> import pyarrow as pa
    >>> columns = {"keys": pa.array([["a", "b"], []]), "tags": pa.array(["x", "y"])}
    >>> columns["properties"] = pa.array([[("n", "1")], [("n", "2"), ("TAGS", "z")]], pa.map_(pa.string(), pa.string()))
    >>> texts = property_texts(columns, 2, trailing=False)
    >>> texts.value(0), texts.value(1)
    (b'KEYS\\x01a b\\x02TAGS\\x01x\\x02n\\x011', b'n\\x012\\x02TAGS\\x01z')

Format: docs/formats/rocketmq.md, sections 2.1, 2.6 and 2.7.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import UsageError
from mqstore.kernels.common.crc32 import LONG_SPAN, crc_of_spans
from mqstore.kernels.rocketmq import encode, frames, property_text
from mqstore.kernels.rocketmq.encode import LogFileWriter
from mqstore.rocketmq.config.store_config import now_ms
from mqstore.rocketmq.format.consume_queue import usable_topic
from mqstore.rocketmq.format.message import DEFAULT_HOST
from mqstore.rocketmq.format.profile import DEFAULT_VERSION, version_rules
from mqstore.rocketmq.format.record import BORN_HOST_IPV6, CRC_NAME, STORE_HOST_IPV6, parse_host, without_property
from mqstore.table.arrow_spans import Bytes, Longs, Spans, bad_row, distinct_values, integer_values, is_bytes, millisecond_values, spans_of
from mqstore.table.columns import EXTRA_COLUMNS, ROCKETMQ_COLUMNS
from mqstore.table.needle import Parts

if TYPE_CHECKING:
    import pyarrow as pa

COMPRESSION_BITS = 0x701
# bytes of a body from which a library's CRC before writing is faster than the kernel's CRC while writing
_LONG_BODY = LONG_SPAN and max(LONG_SPAN, 2048)
_DENSE = 1 << 22  # size limit of the look-up table of (topic, queue id) pairs
_INT = (frames.QUEUE_ID, frames.FLAG, frames.SYS_FLAG, frames.RECONSUME_TIMES)
_NUMBERS = {
    "queue_id": frames.QUEUE_ID,
    "flag": frames.FLAG,
    "sys_flag": frames.SYS_FLAG,
    "reconsume_times": frames.RECONSUME_TIMES,
    "prepared_transaction_offset": frames.PREPARED_TRANSACTION_OFFSET,
}
COLUMN_PROPERTIES = {"keys": b"KEYS", "tags": b"TAGS", "uniq_key": b"UNIQ_KEY"}
_NAMES_END = "a byte 01 would end the name of the property; leave it out"
_SEPARATES = "a byte 02 would end the property; leave it out"


@dataclass(slots=True)
class BatchColumns:
    """Messages ready to be written. `fields` has the rows of `kernels.rocketmq.frames`, one column for each message.

    group: for each message the number of its topic and queue in `groups`. The store fills in STORE_TIMESTAMP and QUEUE_OFFSET
    (`stamp`, `assign_offsets`) before `write`.
    """

    fields: Longs
    hosts: Bytes
    bodies: Bytes
    topics: Bytes
    texts: Bytes
    group: NDArray[np.int32]
    groups: list[tuple[str, int]]
    property_crc: int

    def __len__(self) -> int:
        return len(self.group)

    @property
    def sizes(self) -> Longs:
        """Bytes of each record."""
        sizes: Longs = self.fields[frames.SIZE]
        return sizes

    def holding(self, parts: Parts) -> NDArray[np.bool_]:
        """Return which property texts contain one of these parts."""
        starts = self.fields[frames.PROPERTIES_START]
        return parts.marks(self.texts, starts, starts + self.fields[frames.PROPERTIES_LENGTH])

    def stamp(self, store_timestamp: int | Longs, first: int = 0) -> None:
        """Set the store time (ms) of the messages from first on: one for all, or one for each."""
        self.fields[frames.STORE_TIMESTAMP, first:] = store_timestamp

    def assign_offsets(self, following: Longs, first: int = 0, stop: int | None = None) -> None:
        """Number messages first … stop-1 in their queues. following[g]: next queue offset of groups[g], advanced in place."""
        encode.assign_queue_offsets(self.fields, first, len(self) if stop is None else stop, self.group, following)

    def write(self, file: LogFileWriter, position: int, limit: int, physical_offset: int, first: int = 0) -> tuple[int, int]:
        """Write messages from `first` on, as many as fit before limit. Returns the first not written and the position after the last."""
        return file.append_batch(
            position,
            limit,
            physical_offset,
            first,
            len(self),
            self.fields,
            self.hosts,
            self.bodies,
            self.topics,
            self.texts,
            self.property_crc,
        )

    @classmethod
    def from_arrow(
        cls,
        messages: pa.RecordBatch | pa.Table,
        *,
        version: str = DEFAULT_VERSION,
        born_host: str | None = None,
        store_host: str = DEFAULT_HOST,
        now: int | None = None,
        max_message_size: int = 4 << 20,
        property_crc: bool = False,
        expanded: bool = True,
        stored: bool = False,
        first_row: int = 0,
    ) -> BatchColumns:
        """Return the columns of a batch. Raises UsageError with the column and row that no store of this version accepts.

        The chunks of a table are joined, which copies them; pass `table.to_batches()` one by one to avoid that.

        born_host, store_host, now: for messages without them (born_host None: store_host). property_crc: add a `__CRC32#` property
        (5.3). stored: the rows come from a store; a `__CRC32#` among their properties belongs to the record there, and is dropped.
        first_row: number of the first row in errors.
        """
        import pyarrow as pa

        if isinstance(messages, pa.Table):
            messages = _as_one_batch(messages)
        by_name = _by_name(messages)
        n = messages.num_rows
        fields = np.zeros((frames.FIELD_COUNT, n), np.int64)
        fields[frames.BODY_CRC] = -1
        for name, row in _NUMBERS.items():
            if name in by_name:
                fields[row] = integer_values(name, by_name[name], 0, 31 if row in _INT else 63, first_row)
        if (fields[frames.QUEUE_ID] < 0).any():
            raise bad_row("queue_id", int(np.argmax(fields[frames.QUEUE_ID] < 0)), first_row, "a queue id is not negative")
        now = now_ms() if now is None else now
        fields[frames.BORN_TIMESTAMP] = (
            millisecond_values("born_timestamp", by_name["born_timestamp"], now, first_row) if "born_timestamp" in by_name else now
        )
        fields[frames.SYS_FLAG] &= ~(BORN_HOST_IPV6 | STORE_HOST_IPV6 | (COMPRESSION_BITS if expanded else 0))
        hosts = _hosts(fields, by_name, born_host or store_host, store_host, first_row)
        topics, group, groups = _topics(fields, by_name["topic"], version, first_row)
        bodies = spans_of("body", by_name["body"]) if "body" in by_name else Spans.absent(n)
        fields[frames.BODY_START], fields[frames.BODY_LENGTH] = bodies.starts, np.maximum(bodies.lengths, 0)
        trailing = version_rules(version).ends_with_separator
        texts = property_texts(by_name, n, trailing=trailing, drop_crc=property_crc or stored, first_row=first_row)
        fields[frames.PROPERTIES_START], fields[frames.PROPERTIES_LENGTH] = texts.starts, texts.lengths
        columns = cls(fields, hosts, bodies.data, topics, texts.data, group, groups, encode.PROPERTY_CRC if property_crc else 0)
        columns._check(version, max_message_size, first_row)
        if 2 * np.count_nonzero(fields[frames.BODY_LENGTH] >= _LONG_BODY) > n:
            fields[frames.BODY_CRC] = crc_of_spans(columns.bodies, fields[frames.BODY_START], fields[frames.BODY_LENGTH])
        return columns

    def _check(self, version: str, max_message_size: int, first_row: int) -> None:
        lengths = self.fields[frames.PROPERTIES_LENGTH]
        bad = encode.measure(self.fields, self.hosts, self.bodies, self.topics, self.texts, self.property_crc)
        if bad >= 0:
            with_crc = " with the checksum property" if self.property_crc else ""
            raise bad_row("properties", bad, first_row, f"a text of {lengths[bad]} bytes{with_crc} is longer than the 32767 that fit")
        whole = version_rules(version).limits_record
        limited, named = (self.sizes, "its record") if whole else (self.fields[frames.BODY_LENGTH], "it")
        for measured, what, limit in ((limited, named, max_message_size), (self.sizes, "its record", max_message_size + 65536)):
            if len(measured) and measured.max() > limit:
                row = int(np.argmax(measured > limit))
                raise bad_row("body", row, first_row, f"{what} takes {measured[row]} bytes, the store accepts {limit}")


def _as_one_batch(table: pa.Table) -> pa.RecordBatch:
    import pyarrow as pa

    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise UsageError("a column of the table holds more than 2 GiB; put it in parts")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


def _by_name(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    names = batch.schema.names
    unknown = [name for name in names if name not in ROCKETMQ_COLUMNS and name not in EXTRA_COLUMNS]
    if unknown:
        raise UsageError(f"there is no column {unknown[0]!r}; the columns are {', '.join(ROCKETMQ_COLUMNS)}")
    if len(set(names)) < len(names):
        raise UsageError("two columns have the same name; leave one out")
    if "topic" not in names:
        raise UsageError("there is no column 'topic'; without it no message can be stored")
    return dict(zip(names, batch.columns, strict=True))


def _hosts(fields: Longs, by_name: Mapping[str, pa.Array], born: str, store: str, first_row: int) -> Bytes:
    """Return the bytes of all hosts, concatenated; set each row's position and the IPv6 bits of SYSFLAG."""
    raw = bytearray()
    for name, default, row, bit in (
        ("born_host", born, frames.BORN_HOST, BORN_HOST_IPV6),
        ("store_host", store, frames.STORE_HOST, STORE_HOST_IPV6),
    ):
        codes, texts = distinct_values(name, by_name[name]) if name in by_name else (np.full(fields.shape[1], -1, np.int64), [])
        places = np.zeros(len(texts) + 1, np.int64)
        bits = np.zeros(len(texts) + 1, np.int64)
        for k, text in enumerate([*texts, default]):
            if text is None:
                continue
            try:
                packed = parse_host(text)
            except (ValueError, struct.error):
                if k == len(texts):
                    raise UsageError(f"{name} {text!r} is not ip:port or [ip]:port") from None
                raise bad_row(name, int(np.argmax(codes == k)), first_row, f"{text!r} is not ip:port or [ip]:port") from None
            places[k] = len(raw)
            bits[k] = bit if len(packed) == 20 else 0
            raw += packed
        # a row without a host has number -1: the default, which is the last
        fields[row] = places[codes]
        fields[frames.SYS_FLAG] |= bits[codes]
    return np.frombuffer(bytes(raw), np.uint8)


def _topics(fields: Longs, array: pa.Array, version: str, first_row: int) -> tuple[Bytes, NDArray[np.int32], list[tuple[str, int]]]:
    """Return (topic bytes, group of each row, groups); set each row's topic position and length."""
    codes, topics = distinct_values("topic", array)
    if (codes < 0).any():
        raise bad_row("topic", int(np.argmax(codes < 0)), first_row, "it is null; each message needs a topic")
    raw = bytearray()
    places, lengths = np.zeros(len(topics), np.int64), np.zeros(len(topics), np.int64)
    for k, topic in enumerate(topics):
        if topic is None:
            continue
        why = topic_fault(topic, version)
        if why is not None:
            raise bad_row("topic", int(np.argmax(codes == k)), first_row, why)
        packed = topic.encode()
        places[k], lengths[k] = len(raw), len(packed)
        raw += packed
    fields[frames.TOPIC_START], fields[frames.TOPIC_LENGTH] = places[codes], lengths[codes]
    queues = fields[frames.QUEUE_ID]
    width = int(queues.max(initial=0)) + 1
    key = codes * width + queues
    if len(topics) * width <= _DENSE:
        taken = np.zeros(len(topics) * width, np.bool_)
        taken[key] = True
        distinct = np.flatnonzero(taken)
        number = np.zeros(len(taken), np.int32)
        number[distinct] = np.arange(len(distinct))
        group = number[key]
    else:
        distinct, inverse = np.unique(key, return_inverse=True)
        group = inverse.astype(np.int32)
    groups = [(str(topics[each // width]), each % width) for each in distinct.tolist()]
    return np.frombuffer(bytes(raw), np.uint8), group, groups


def topic_fault(topic: str, version: str) -> str | None:
    """Return why a store of this version accepts no message of the topic; None if it does.

    >>> topic_fault("orders/eu", "5.3.3")
    "'orders/eu' cannot be the name of a directory, in which its queues are stored"
    """
    raw = topic.encode("utf-8", "surrogatepass")
    most = 127 if not version_rules(version).has_version_2 or len(topic.encode("utf-16-le", "surrogatepass")) <= 2 * 127 else 255
    if not topic:
        return "it is empty; each message needs a topic"
    if len(raw) > most:
        return f"a topic of {len(raw)} bytes is longer than the {most} that fit"
    if not usable_topic(topic):
        return f"{topic!r} cannot be the name of a directory, in which its queues are stored"
    return None


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

    named = {column: _strings(column, columns[column], first_row) for column in COLUMN_PROPERTIES if column in columns}
    given = columns.get("properties")
    pairs = None
    if given is not None and pa.types.is_map(given.type):
        pairs = _property_pairs(given, drop_crc, first_row)
        for column, spans in named.items():
            spans.lengths[pairs.row[pairs.names.equal(COLUMN_PROPERTIES[column]) & (pairs.values.lengths >= 0)]] = -1
    elif given is not None and not pa.types.is_null(given.type):
        return _as_given(spans_of("properties", given), named, drop_crc, first_row)
    for column, spans in named.items():
        holding = spans.holding(b"\x02")
        if holding.any():
            raise bad_row(column, int(np.argmax(holding)), first_row, _SEPARATES)
    room = np.zeros(n, np.int64)
    for column, spans in named.items():
        property_text.add_lengths(len(COLUMN_PROPERTIES[column]), spans.lengths, room)
    if pairs is not None:
        taken = np.where(pairs.values.lengths < 0, 0, pairs.names.lengths + pairs.values.lengths + 2)
        before = np.concatenate(([0], np.cumsum(taken)))
        room += before[pairs.bounds[1:]] - before[pairs.bounds[:-1]]
    ends = np.cumsum(room)
    cursors = ends - room
    starts = cursors.copy()
    text = np.empty(int(ends[-1]) if n else 0, np.uint8)
    for column, spans in named.items():
        property_text.put_pairs(_bytes(COLUMN_PROPERTIES[column]), spans.data, spans.starts, spans.lengths, cursors, text)
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
    values = [without_property(texts.value(k), CRC_NAME) for k in range(len(texts.lengths))]
    ends = np.cumsum([0, *map(len, values)])
    return Spans(_bytes(b"".join(values)), ends[:-1], np.diff(ends))
