"""The stored messages of one batch, decoded into columns.

Their terms are copied into one buffer. The kernel `message_terms` splits terms that brokers up to 3.12 store for messages as clients sent
them into spans of the buffer, from which Arrow arrays are built without an object per message. Other terms (`slow`: created inside a
broker, of 3.13 and newer, damaged) are decoded one by one with `read_message` and merged in at their rows. `LoggedTerms` does the same for
the messages in logs of quorum queues, of all versions.

Headers, and properties that annotations of a message decide, are built one by one; so is `properties_json`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.kernels.common.spans import copy_spans
from mqstore.kernels.rabbitmq import message_store, message_terms
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.erlang.terms import text_of
from mqstore.rabbitmq.message.message_term import MessageTerm, read_message
from mqstore.rabbitmq.message.properties import json_or_none, properties_from_bin
from mqstore.table.columns import RABBITMQ_PROPERTIES, rabbitmq_schema

if TYPE_CHECKING:
    import pyarrow as pa

Longs = NDArray[np.int64]
# columns that need the stored message
TERM_COLUMNS = frozenset(
    ("exchange", "routing_keys", "properties", "payload", "payload_len", "payload_sha256", "payload_b64", "properties_json")
)
_HEADERS = RABBITMQ_PROPERTIES.index("headers")
# columns of the kernel: the lengths of some properties, -1 for one that is not set. The column before has the place or the number
_HEADERS_LENGTH, _MODE_LENGTH, _TIMESTAMP_LENGTH = (
    message_terms.PROPERTY_LENGTH + 2 * RABBITMQ_PROPERTIES.index(name) for name in ("headers", "delivery_mode", "timestamp")
)
_NUMBERS = {"delivery_mode": 1 << 31, "priority": 1 << 31, "timestamp": 1 << 63}  # with the first number that the column does not hold


@dataclass(frozen=True, slots=True)
class SlowMessage:
    """A message of another shape. message: None if the bytes are not a message. properties: in JSON form, None if unreadable."""

    message: MessageTerm | None
    properties: dict[str, Any] | None


# a message, and the properties that are delivered with it in JSON form; None if they are unreadable
DecodedMessage = tuple[MessageTerm, dict[str, Any] | None]


class StoredTerms:
    """The terms of a batch. buffer: their bytes; start, length: of each row's term; length 0: the row has none.

    queue_addresses: as in `MessageTerm.delivered`.
    """

    _split = staticmethod(message_terms.fields)

    def __init__(self, buffer: Bytes, start: Longs, length: Longs, *, queue_addresses: bool = False) -> None:
        self.buffer = buffer
        self.queue_addresses = queue_addresses
        self.start = start
        self.present: NDArray[np.bool_] = length > 0
        self._length = length
        self._fields = np.zeros((len(start), message_terms.FIELD_COUNT), np.int64)
        self._split(buffer, start, length, self._fields)
        self._fast: NDArray[np.bool_] = self.present & (self._fields[:, message_terms.STATUS] == message_terms.FAST)

    @classmethod
    def collect(
        cls, sources: Sequence[Bytes | None], source: NDArray[np.int32], at: Longs, length: Longs, *, queue_addresses: bool = False
    ) -> Self:
        """Copy `length` bytes at `at` of each row's source. A row whose bytes are missing has no term."""
        sizes = np.array([0 if data is None else len(data) for data in sources] or [0], np.int64)
        # offsets of an Arrow array are 31 bits; no broker takes a message that large
        there = (source >= 0) & (at >= 0) & (length > 0) & (length < 1 << 31)
        there[there] &= at[there] <= sizes[source[there]] - length[there]
        length = np.where(there, length, 0)
        start = np.cumsum(length) - length
        buffer = np.empty(int(length.sum()), np.uint8)
        for number in np.unique(source[there]).tolist():
            data = sources[number]
            rows = np.flatnonzero(there & (source == number))
            # consecutive rows of one source are one range of the buffer
            for run in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
                low, high = int(start[run[0]]), int(start[run[-1]] + length[run[-1]])
                offsets = np.empty(len(run) + 1, np.int32)
                copy_spans(data, np.ascontiguousarray(at[run]), np.ascontiguousarray(length[run]), offsets, buffer[low:high])
        return cls(buffer, start, length, queue_addresses=queue_addresses)

    @classmethod
    def decoded(cls, rows: Sequence[DecodedMessage | None]) -> StoredTerms:
        """Return messages that are decoded already. A row may have none."""
        none = np.zeros(len(rows), np.int64)
        terms = cls(np.zeros(0, np.uint8), none, none)
        terms.present = np.array([row is not None for row in rows], np.bool_)
        terms.slow = {number: SlowMessage(*row) for number, row in enumerate(rows) if row is not None}
        return terms

    def __len__(self) -> int:
        return len(self.start)

    # one by one

    @cached_property
    def slow(self) -> dict[int, SlowMessage]:
        """The rows that the kernel could not split, decoded."""
        return {row: self._decode(row) for row in np.flatnonzero(self.present & ~self._fast).tolist()}

    def _decode(self, row: int) -> SlowMessage:
        try:
            message = read_message(self._bytes(self.start[row], self._length[row]))
        except EtfError:
            return SlowMessage(None, None)
        return SlowMessage(message, json_or_none(partial(message.delivered, self.queue_addresses)))

    @cached_property
    def _parsed(self) -> dict[int, dict[str, Any] | None]:
        """The properties of fast rows whose block has headers or does not say all that is delivered; None if they cannot be read."""
        headers = self._blocks[:, _HEADERS_LENGTH] >= 0
        return {row: self._read_block(row) for row in np.flatnonzero(self._fast & (~self._plain | headers)).tolist()}

    def _read_block(self, row: int) -> dict[str, Any] | None:
        return json_or_none(partial(properties_from_bin, self._block(row)))

    def _block(self, row: int) -> bytes:
        """Return the property block of a fast row."""
        return self._bytes(*self._fields[row, message_terms.PROPERTIES_START : message_terms.PROPERTIES_START + 2])

    def _bytes(self, at: int, length: int) -> bytes:
        return self.buffer[at : at + length].tobytes()

    # columns

    @cached_property
    def _blocks(self) -> Longs:
        out = np.zeros((len(self), message_terms.PROPERTY_COLUMNS), np.int64)
        message_terms.properties(
            self.buffer, self._field(message_terms.PROPERTIES_START), self._field(message_terms.PROPERTIES_LENGTH), out
        )
        # of a container, the annotations state the time; it is durable if neither they nor its block say otherwise
        container = self._fields[:, message_terms.ANNOTATIONS_START] > 0
        out[container, _TIMESTAMP_LENGTH] = -1
        durable = container & (self._fields[:, message_terms.PERSISTENT] != 0) & (out[:, _MODE_LENGTH] < 0)
        out[durable, _MODE_LENGTH - 1], out[durable, _MODE_LENGTH] = 2, 1
        return out

    @cached_property
    def _plain(self) -> NDArray[np.bool_]:
        """For each row, whether `_blocks` has what is delivered."""
        decided = self._fields[:, message_terms.NOTED] == 0
        return np.asarray(self._fast & decided & (self._blocks[:, message_terms.STATUS] == message_terms.FAST))

    def _field(self, field: int) -> Longs:
        return np.ascontiguousarray(self._fields[:, field])

    @cached_property
    def ids(self) -> tuple[Longs, Longs]:
        """The id in each message, as two big-endian halves; zeros if there is none."""
        hi, lo = np.zeros(len(self), np.int64), np.zeros(len(self), np.int64)
        rows = np.flatnonzero(self._fast)
        high, low = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        # the kernel reads the id of a store record, which is 8 bytes after its start
        message_store.record_ids(self.buffer, self._fields[rows, message_terms.ID_START] - 8, high, low)
        hi[rows], lo[rows] = high, low
        for row, slow in self.slow.items():
            if slow.message is not None:
                hi[row] = int.from_bytes(slow.message.id[:8], "big", signed=True)
                lo[row] = int.from_bytes(slow.message.id[8:], "big", signed=True)
        return hi, lo

    @cached_property
    def sizes(self) -> Longs:
        """Bytes of each body; -1 if there is none."""
        sizes = np.where(self._fast, self._fields[:, message_terms.BODY_LENGTH], -1)
        for row, slow in self.slow.items():
            if slow.message is not None:
                sizes[row] = sum(map(len, slow.message.fragments))
        return sizes

    @cached_property
    def persistent(self) -> list[bool | None]:
        """For each row, whether the message is persistent; None if there is none."""
        persistent: list[bool | None] = (self._fields[:, message_terms.PERSISTENT] != 0).tolist()
        for row in np.flatnonzero(~self._fast).tolist():
            slow = self.slow.get(row)
            persistent[row] = None if slow is None or slow.message is None else slow.message.persistent
        return persistent

    @cached_property
    def readable(self) -> NDArray[np.bool_]:
        """For each row, whether message and properties can be read."""
        tables = np.zeros(len(self), np.uint8)
        message_terms.tables(self.buffer, self._blocks[:, _HEADERS_LENGTH - 1], self._blocks[:, _HEADERS_LENGTH], tables)
        proved = (self._fields[:, message_terms.NOTED] < message_terms.UNPROVED) & (tables != 0)
        readable: NDArray[np.bool_] = self._fast & proved & (self._blocks[:, message_terms.STATUS] == message_terms.FAST)
        for row in np.flatnonzero(self._fast & ~readable).tolist():
            readable[row] = self._read_block(row) is not None
        for row, slow in self.slow.items():
            readable[row] = slow.properties is not None
        return readable

    def valid(self, hi: Longs, lo: Longs, size: Longs | None) -> NDArray[np.bool_]:
        """Return for each row whether it is readable, with this id (zeros: any) and this size, as an index entry states it (None: any)."""
        own = self.ids
        same = ((own[0] == hi) & (own[1] == lo)) | ((hi == 0) & (lo == 0))
        if size is None:
            return np.asarray(self.readable & same)
        sizes = self.sizes
        for row, slow in self.slow.items():
            if slow.message is not None and slow.message.form == "mc_amqp":
                sizes = sizes.copy() if sizes is self.sizes else sizes
                stated = slow.message.stated_size
                sizes[row] = size[row] if stated is None else stated
        return np.asarray(self.readable & same & (sizes == size))

    @cached_property
    def payload(self) -> pa.Array:
        """The bodies."""
        import pyarrow as pa

        rows = np.flatnonzero(self._fast)
        counts = self._fields[rows, message_terms.PAYLOAD_COUNT]
        starts, lengths = self._listed(rows, message_terms.PAYLOAD_START, counts, backwards=True)
        values = self._copy_spans(starts, lengths)[1]
        ends = np.cumsum(self._fields[rows, message_terms.BODY_LENGTH])
        offsets = np.concatenate([np.zeros(1, np.int64), ends]).astype(np.int32)
        fast = pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(values)])
        return self._interleave(fast, lambda slow: None if slow.message is None else slow.message.body)

    def column(self, name: str) -> pa.Array:
        """Return a column of the message table that is in the stored message."""
        import pyarrow as pa

        kind = rabbitmq_schema((name,)).field(name).type
        match name:
            case "exchange":
                rows = np.flatnonzero(self._fast)
                fast = self._strings(self._fields[rows, message_terms.EXCHANGE_START], self._fields[rows, message_terms.EXCHANGE_LENGTH])
                return self._interleave(fast, lambda slow: None if slow.message is None else text_of(slow.message.exchange))
            case "routing_keys":
                return self._routing_keys()
            case "payload":
                return self.payload
            case "payload_len":
                return pa.array(self.sizes, kind, mask=self.sizes < 0)
            case "payload_sha256":
                return pa.array([None if body is None else hashlib.sha256(body).hexdigest() for body in self.payloads()], kind)
            case "payload_b64":
                return pa.array([None if body is None else base64.b64encode(body).decode("ascii") for body in self.payloads()], kind)
            case "properties":
                return self._properties()
            case _:
                return pa.array(self._json_properties(), kind)

    def payloads(self) -> list[bytes | None]:
        """Return the bodies as bytes."""
        bodies: list[bytes | None] = self.payload.to_pylist()
        return bodies

    def _listed(self, rows: NDArray[np.intp], start: int, counts: Longs, *, backwards: bool) -> tuple[Longs, Longs]:
        total = int(counts.sum())
        starts, lengths = np.empty(total, np.int64), np.empty(total, np.int64)
        message_terms.listed(
            self.buffer, np.ascontiguousarray(self._fields[rows, start]), np.ascontiguousarray(counts), backwards, starts, lengths
        )
        return starts, lengths

    def _copy_spans(self, starts: Longs, lengths: Longs) -> tuple[NDArray[np.int32], NDArray[np.uint8], bool]:
        present = np.ascontiguousarray(np.maximum(lengths, 0))
        offsets, text = np.empty(len(starts) + 1, np.int32), np.empty(int(present.sum()), np.uint8)
        high = copy_spans(self.buffer, np.ascontiguousarray(starts), present, offsets, text)
        return offsets, text, bool(high)

    def _strings(self, starts: Longs, lengths: Longs) -> pa.Array:
        """Return spans as text; length -1 is null."""
        import pyarrow as pa

        offsets, text, high = self._copy_spans(starts, lengths)
        validity = pa.py_buffer(np.packbits(lengths >= 0, bitorder="little").tobytes())
        array = pa.Array.from_buffers(pa.string(), len(starts), [validity, pa.py_buffer(offsets), pa.py_buffer(text)])
        if high:
            try:
                array.validate(full=True)
            except pa.ArrowInvalid:
                raw = pa.Array.from_buffers(pa.binary(), len(starts), [validity, pa.py_buffer(offsets), pa.py_buffer(text)])
                return pa.array([None if value is None else text_of(value) for value in raw.to_pylist()], pa.string())
        return array

    def _routing_keys(self) -> pa.Array:
        import pyarrow as pa

        rows = np.flatnonzero(self._fast)
        counts = self._fields[rows, message_terms.KEYS_COUNT]
        keys = self._strings(*self._listed(rows, message_terms.KEYS_START, counts, backwards=False))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int32)
        fast = pa.ListArray.from_arrays(pa.array(offsets), keys)
        return self._interleave(fast, lambda slow: None if slow.message is None else [text_of(key) for key in slow.message.routing_keys])

    def _json_properties(self) -> list[str | None]:
        """Return the properties of each row in their JSON form, as text. Those that only a block states are read once if it repeats."""
        rows: list[str | None] = [None] * len(self)
        stated = (self._fields[:, [message_terms.ANNOTATIONS_START, message_terms.PERSISTENT]] > 0).tolist()
        known: dict[tuple[bytes, ...], str | None] = {}
        for row in np.flatnonzero(self._fast).tolist():
            if row in self._parsed:
                rows[row] = _text(self._parsed[row])
                continue
            alike = (self._block(row), bytes(stated[row]))
            if alike not in known:
                known[alike] = _text(self._read_block(row))
            rows[row] = known[alike]
        for row, slow in self.slow.items():
            rows[row] = _text(slow.properties)
        return rows

    def _properties(self) -> pa.Array:
        import pyarrow as pa

        kind = rabbitmq_schema(("properties",)).field("properties").type
        # unreadable rows have no properties, whatever the kernel found
        plain = self._plain & self.readable
        rows = np.flatnonzero(plain)
        parts = []
        for k, name in enumerate(RABBITMQ_PROPERTIES):
            values = self._blocks[rows, message_terms.PROPERTY_START + 2 * k]
            lengths = self._blocks[rows, message_terms.PROPERTY_LENGTH + 2 * k]
            if name == "headers":
                headers = [
                    None if length < 0 else _headers(self._parsed[row]) for row, length in zip(rows.tolist(), lengths.tolist(), strict=True)
                ]
                parts.append(pa.array(headers, kind.field(k).type))
            elif name in _NUMBERS:
                parts.append(pa.array(values, kind.field(k).type, mask=lengths < 0))
            else:
                parts.append(self._strings(values, lengths))
        fast = pa.StructArray.from_arrays(parts, fields=[kind.field(k) for k in range(len(parts))])
        others = np.flatnonzero(~plain)
        rest = [self._parsed.get(row) if self._fast[row] else _properties_of(self.slow.get(row)) for row in others.tolist()]
        return _interleave_arrays(fast, rows, pa.array([_struct(each) for each in rest], kind), others, len(self))

    def _interleave(self, fast: pa.Array, value: Callable[[SlowMessage], Any]) -> pa.Array:
        """Return a column of all rows, from the array of the fast ones and the values of the others."""
        import pyarrow as pa

        others = np.flatnonzero(~self._fast)
        values = [None if row not in self.slow else value(self.slow[row]) for row in others.tolist()]
        return _interleave_arrays(fast, np.flatnonzero(self._fast), pa.array(values, fast.type), others, len(self))


def build_batch(columns: Sequence[str], terms: StoredTerms | None, values: Callable[[str], Any]) -> pa.RecordBatch:
    """Return a batch of the message table. values: of each column that is not in the stored message, or that no terms were read for."""
    import pyarrow as pa

    schema = rabbitmq_schema(columns)
    arrays = [
        terms.column(name) if terms is not None and name in TERM_COLUMNS else pa.array(values(name), schema.field(name).type)
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _interleave_arrays(first: pa.Array, rows: NDArray[np.intp], second: pa.Array, others: NDArray[np.intp], count: int) -> pa.Array:
    import pyarrow as pa

    if not len(others):
        return first
    order = np.empty(count, np.int64)
    order[rows] = np.arange(len(rows))
    order[others] = len(rows) + np.arange(len(others))
    return pa.concat_arrays([first, second]).take(pa.array(order))


def _properties_of(slow: SlowMessage | None) -> dict[str, Any] | None:
    return None if slow is None else slow.properties


def encodable(text: str | None) -> str | None:
    """Return text that UTF-8 can encode: bytes of a file's name that are not UTF-8 are escaped, as in other output."""
    return text if text is None else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _text(properties: dict[str, Any] | None) -> str | None:
    return None if properties is None else json.dumps(properties, ensure_ascii=False)


def _arrow_value(value: Any) -> Any:
    """Return a property for Arrow; bytes that are not UTF-8 become U+FFFD."""
    if isinstance(value, dict) and set(value) == {"b64"}:
        return text_of(base64.b64decode(value["b64"]))
    return value


def _headers(properties: dict[str, Any] | None) -> list[dict[str, Any]] | None:
    if properties is None or properties.get("headers") is None:
        return None
    return [
        {"name": _arrow_value(name), "type": kind, "value": json.dumps(value, ensure_ascii=False)}
        for name, kind, value in properties["headers"]
    ]


def _struct(properties: dict[str, Any] | None) -> dict[str, Any] | None:
    if properties is None:
        return None
    values = {name: _arrow_value(properties.get(name)) for name in RABBITMQ_PROPERTIES}
    for name, end in _NUMBERS.items():
        if values[name] is not None and not -end <= values[name] < end:
            values[name] = None
    values["headers"] = _headers(properties)
    return values
