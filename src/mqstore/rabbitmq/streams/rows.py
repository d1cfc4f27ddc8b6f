r"""Messages of a stream as rows of the message table, with what a consumer of AMQP 0-9-1 receives.

The columns are those of every RabbitMQ queue, and

    queue_type         `stream`
    stream_offset      of the record
    chunk_timestamp    of its chunk, in milliseconds since 1970
    entry_b64          on request: the record as it is stored

`pos` counts the messages that a node keeps at its start, from the first one on. `location` is `segment`, `position` that of the entry, for
the records of a sub-batch one and the same. A record that is not AMQP 1.0 is intact, for clients of the stream protocol may send any
bytes; its payload is all of it, and it has no properties.

Format: docs/formats/rabbitmq-streams.md, sections 3 and 7.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.findings import Damage, Verdict
from mqstore.rabbitmq.message.message_term import MessageTerm
from mqstore.rabbitmq.message.properties import PropertiesError, json_properties
from mqstore.rabbitmq.message.stored_columns import StoredTerms
from mqstore.rabbitmq.streams.bloom_filter import chunks_that_may_hold
from mqstore.rabbitmq.streams.delivered_entry import RULES, NotAMessageError, Rules, read_entry
from mqstore.rabbitmq.streams.entries import Records, walk_records
from mqstore.rabbitmq.streams.examination import kept_ends
from mqstore.rabbitmq.streams.segment import BAD_DATA, MESSAGES, Chunks, Longs
from mqstore.rabbitmq.streams.stream import Stream
from mqstore.table.columns import RABBITMQ_COLUMNS, rabbitmq_schema

if TYPE_CHECKING:
    import pyarrow as pa

STREAM_COLUMNS = ("queue_type", "stream_offset", "chunk_timestamp")
EXTRA_COLUMNS = ("entry_b64",)
COLUMNS = RABBITMQ_COLUMNS + STREAM_COLUMNS
_IN_MESSAGE = frozenset(
    ("exchange", "routing_keys", "properties", "payload", "payload_len", "payload_sha256", "payload_b64", "properties_json")
)
_OF_MESSAGE = _IN_MESSAGE | {"verdict", "persistent", "size"}
BLOCK = 4096
_ALL_OFFSETS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class StreamSelection:
    """Which records: half-open ranges of offsets and of chunk timestamps in ms; None: no limit.

    filter_values: only chunks whose filters may hold one of these, None among them for messages without a value. Chunks may hold other
    messages too, as they do for clients of the stream protocol.
    """

    from_offset: int = 0
    to_offset: int = _ALL_OFFSETS
    since: int | None = None
    until: int | None = None
    filter_values: frozenset[bytes | None] | None = None

    def chunks(self, data: Bytes, chunks: Chunks) -> NDArray[np.bool_]:
        """Return which chunks may hold such records."""
        wanted = (chunks.kind == MESSAGES) & (chunks.id < self.to_offset) & (chunks.id + chunks.records > self.from_offset)
        if self.since is not None:
            wanted &= chunks.timestamp >= self.since
        if self.until is not None:
            wanted &= chunks.timestamp < self.until
        if self.filter_values is not None:
            wanted &= chunks_that_may_hold(data, chunks, self.filter_values)
        return np.asarray(wanted)


EVERYTHING = StreamSelection()


@dataclass(frozen=True, slots=True)
class StreamRows:
    """Some records of one segment. pos: -1 for those that a node does not keep. state, timestamp: of the chunk of each."""

    file: str
    records: Records
    pos: Longs
    timestamp: Longs
    state: Longs

    def __len__(self) -> int:
        return len(self.records)


def walk_rows(stream: Stream, selection: StreamSelection = EVERYTHING) -> Iterator[tuple[StreamRows, list[Damage]]]:
    """Yield the selected records of a stream, not more than BLOCK at a time, with what is damaged in its segments.

    Every segment is walked, for `pos` counts what is before; bodies are read of what is selected alone.
    """
    ends = kept_ends(stream)
    before = 0
    for number in range(len(stream)):
        name = stream.segment_file(number)
        data, unreadable = stream.open(number)
        found = list(unreadable)
        for chunks, damage in stream.walk(number, data):
            found += damage
            kept = (chunks.at < ends[number]) & (chunks.kind == MESSAGES) & chunks.readable
            counts = np.where(kept, chunks.records, 0)
            first = before + np.cumsum(counts) - counts
            before += int(counts.sum())
            wanted = np.flatnonzero(selection.chunks(data, chunks))
            if not len(wanted):
                continue
            chosen = chunks.take(wanted)
            for records, wrong in walk_records(data, chosen, file=name):
                found += wrong
                for part in _parts(records, selection):
                    row = part.chunk
                    pos = np.where(kept[wanted[row]], first[wanted[row]] + part.offset - chosen.id[row], -1)
                    yield StreamRows(name, part, pos, chosen.timestamp[row], chosen.state[row]), found
                    found = []
        if found:
            yield StreamRows(name, _no_records(), *([np.empty(0, np.int64)] * 3)), found


def _parts(records: Records, selection: StreamSelection) -> Iterator[Records]:
    rows = np.flatnonzero((records.offset >= selection.from_offset) & (records.offset < selection.to_offset))
    for start in range(0, len(rows), BLOCK):
        yield records.take(rows[start : start + BLOCK])


def _no_records() -> Records:
    nothing = np.empty(0, np.int64)
    return Records((), nothing.astype(np.int32), *([nothing] * 6))


def stream_schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Return the Arrow schema of the named columns, in that order. Raises UsageError for an unknown one."""
    import pyarrow as pa

    own = {"queue_type": pa.string(), "stream_offset": pa.int64(), "chunk_timestamp": pa.int64(), "entry_b64": pa.string()}
    return pa.schema([pa.field(name, own[name]) if name in own else rabbitmq_schema((name,)).field(name) for name in columns])


def build_batch(
    rows: StreamRows, columns: Sequence[str] = COLUMNS, *, vhost: str | None, queue: str, rules: Rules = RULES["4.3"]
) -> pa.RecordBatch:
    """Return rows as one batch. queue: its name, the routing key of messages that have none. Bodies are read if a column needs them."""
    import pyarrow as pa

    schema = stream_schema(columns)
    messages = [_message(rows, row, queue, rules) for row in range(len(rows))] if not _OF_MESSAGE.isdisjoint(columns) else []
    terms = StoredTerms.decoded(messages) if messages else None
    arrays = []
    for name in columns:
        if terms is not None and name in _IN_MESSAGE:
            arrays.append(terms.column(name))
        else:
            arrays.append(pa.array(_values(rows, name, messages, vhost, queue), schema.field(name).type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_Message = tuple[MessageTerm, dict[str, Any] | None]


def _message(rows: StreamRows, row: int, queue: str, rules: Rules) -> _Message | None:
    octets = rows.records.content(row)
    if octets is None:
        return None
    key = queue.encode("utf-8", "surrogateescape")
    try:
        read = read_entry(octets)
    except NotAMessageError:
        return MessageTerm(b"", None, b"", (key,), True, (octets,), None), {}
    message = MessageTerm(b"", None, read.exchange, read.routing_keys(key), read.durable, (read.body,), None)
    try:
        return message, json_properties(read.delivered(rules, int(rows.records.offset[row])))
    except PropertiesError:
        return message, None


def _values(rows: StreamRows, name: str, messages: list[_Message | None], vhost: str | None, queue: str) -> Any:
    count, records = len(rows), rows.records
    match name:
        case "vhost":
            return [vhost] * count
        case "queue":
            return [queue] * count
        case "queue_type":
            return ["stream"] * count
        case "stream_offset":
            return records.offset
        case "chunk_timestamp":
            return rows.timestamp
        case "pos":
            return [None if pos < 0 else pos for pos in rows.pos.tolist()]
        case "recovered":
            return rows.pos >= 0
        case "redelivered":
            return [None if pos < 0 else False for pos in rows.pos.tolist()]
        case "persistent":
            return [None if message is None else message[0].persistent for message in messages]
        case "size":
            return [None if message is None else len(message[0].body) for message in messages]
        case "location":
            return ["segment"] * count
        case "store_file":
            return [rows.file] * count
        case "position":
            return records.position
        case "verdict":
            damaged = [message is None or message[1] is None for message in messages]
            bad = (rows.state == BAD_DATA) | np.array(damaged, np.bool_)
            return [str(Verdict.DAMAGED if each else Verdict.INTACT) for each in bad.tolist()]
        case "entry_b64":
            contents = [records.content(row) for row in range(count)]
            return [None if content is None else base64.b64encode(content).decode("ascii") for content in contents]
    return [None] * count
