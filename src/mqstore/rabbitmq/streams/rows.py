r"""Messages of a stream as rows of the message table, with what a consumer of AMQP 0-9-1 receives.

The columns are those of every RabbitMQ queue, and

    queue_type         `stream`
    stream_offset      of the record
    chunk_timestamp    of its chunk, in milliseconds since 1970
    entry_b64          on request: the record as it is stored

`pos` counts the messages that a node keeps at its start, from the first one on, and those of a damaged chunk, which it keeps as it is.
`location` is `segment`, `position` that of the entry, for the records of a sub-batch one and the same. A record that is not AMQP 1.0 is
intact, for clients of the stream protocol may send any bytes; its payload is all of it, and it has no properties.

Segments are read independently: the indexes show how many messages are before each (`MessagesBefore`).

Format: docs/formats/rabbitmq-streams.md, sections 3 and 7.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.findings import Damage, Verdict
from mqstore.kernels.rabbitmq.stream_chunks import BAD_DATA
from mqstore.rabbitmq.message import stored_columns
from mqstore.rabbitmq.message.message_term import MessageTerm
from mqstore.rabbitmq.message.properties import Properties, PropertiesError, json_or_none
from mqstore.rabbitmq.message.stored_columns import TERM_COLUMNS, DecodedMessage, StoredTerms, encodable
from mqstore.rabbitmq.streams.bloom_filter import chunks_that_may_hold
from mqstore.rabbitmq.streams.delivered_entry import RULES, NotAMessageError, Rules, StreamMessage, read_entry
from mqstore.rabbitmq.streams.entries import Records, joined, walk_records
from mqstore.rabbitmq.streams.examination import KeptEnds
from mqstore.rabbitmq.streams.segment import HEADER, MESSAGES, Chunks, Longs
from mqstore.rabbitmq.streams.stream import SMALL, NamedStream, Stream
from mqstore.table.arrow_spans import pieces
from mqstore.table.columns import RABBITMQ_COLUMNS, STREAM, QueueSelection

if TYPE_CHECKING:
    import pyarrow as pa

_OF_MESSAGE = TERM_COLUMNS | {"verdict", "persistent", "size"}
NOT_AMQP = "not a message of AMQP 1.0, which a consumer of AMQP 0-9-1 cannot receive either"
BLOCK = 4096
BLOCK_BYTES = 32 << 20  # of records that are handed on together, or one record
JOINED = 1 << 10  # records of small segments, and segments, that are handed on together
JOINED_BYTES = 1 << 20  # bytes of small segments whose records are handed on together
_HEAD = struct.Struct(">BBHIqQQ")  # of a chunk, as far as its id


def _selected_chunks(selection: QueueSelection, data: Bytes, chunks: Chunks) -> NDArray[np.bool_]:
    """Return which chunks may hold selected records. A chunk without a value may be one of a client that gives none."""
    selected = chunks.kind == MESSAGES
    if selection.from_offset is not None:
        selected &= chunks.id + chunks.records > selection.from_offset
    if selection.to_offset is not None:
        selected &= chunks.id < selection.to_offset
    if selection.filter_values is not None:
        selected &= chunks_that_may_hold(data, chunks, [value.encode("utf-8", "surrogateescape") for value in selection.filter_values])
    return np.asarray(selected)


@dataclass(frozen=True, slots=True)
class StreamRows:
    """Some records of a stream. pos: -1 for those that a node does not keep. state, timestamp: of the chunk of each.

    files: the segments that they are in; file: which one. rules: of the version that delivers them. vhost, queue: as of a
    `NamedStream`; the queue is empty if it is not known.
    """

    vhost: str | None
    queue: str
    rules: Rules
    files: tuple[str, ...]
    file: NDArray[np.int32]
    records: Records
    pos: Longs
    timestamp: Longs
    state: Longs

    def __len__(self) -> int:
        return len(self.records)

    def take(self, rows: NDArray[np.intp]) -> StreamRows:
        """Return the rows with these numbers."""
        return replace(
            self,
            file=self.file[rows],
            records=self.records.take(rows),
            pos=self.pos[rows],
            timestamp=self.timestamp[rows],
            state=self.state[rows],
        )

    def batch(self, columns: Sequence[str], selection: QueueSelection) -> pa.RecordBatch | None:
        """Return the rows as a batch, filtered by the conditions on message contents; None if no row is left."""
        rows = self
        if selection.grep is not None or selection.verdicts is not None or selection.filter_values is not None:
            decoded = self.decoded()
            verdicts = self.verdicts(decoded)
            keep = [
                selection.has_message(None if message is None else message[0].body, verdict)
                and (selection.filter_values is None or _may_have(message, selection.filter_values))
                for message, verdict in zip(decoded, verdicts, strict=True)
            ]
            rows = self.take(np.flatnonzero(keep))
        return build_batch(rows, columns) if len(rows) else None

    def decoded(self) -> list[DecodedMessage | None]:
        """Return what a consumer of AMQP 0-9-1 receives of each: the message and its properties, None for what cannot be read."""
        return [_message(self, row) for row in range(len(self))]

    def stored(self) -> Iterator[tuple[str, MessageTerm | None, Properties | None]]:
        """Yield for each its verdict, or NOT_AMQP, what is stored, and the properties to send it with, or None for what cannot be read."""
        for row, verdict in enumerate(self.verdicts(self.decoded())):
            octets = self.records.content(row)
            try:
                read = None if octets is None else read_entry(octets)
                properties = None if read is None else read.delivered(self.rules, int(self.records.offset[row]))
            except NotAMessageError:
                yield NOT_AMQP, None, None
                continue
            except PropertiesError:
                properties = None
            if properties is not None:
                left = [header for header in properties.get("headers") or () if header[0] != b"x-stream-offset"]
                properties = {**properties, "headers": left or None}
            yield verdict, None if read is None else _term(read, self.queue), properties

    def verdicts(self, decoded: Sequence[DecodedMessage | None]) -> list[str]:
        """Return the verdict of each."""
        damaged = [message is None or message[1] is None for message in decoded]
        bad = (self.state == BAD_DATA) | np.array(damaged, np.bool_)
        return [str(Verdict.DAMAGED if each else Verdict.INTACT) for each in bad.tolist()]


def _may_have(message: DecodedMessage | None, values: frozenset[str]) -> bool:
    """Return whether a message may have been sent with one of these filter values: clients of the stream protocol do not store theirs."""
    headers = {} if message is None or message[1] is None else {name: value for name, _, value in message[1].get("headers") or ()}
    own = headers.get(b"x-stream-filter-value")
    return own is None or (type(own) is bytes and own.decode("utf-8", "surrogateescape") in values)


class MessagesBefore:
    """How many messages of a stream are before each of its segments, as far as a node keeps them.

    Offsets count records; each tracking chunk takes one of them. The index says which chunks those are. Where an index does
    not reach the end of its segment, the segment is walked.
    """

    def __init__(self, stream: Stream, ends: KeptEnds | None = None) -> None:
        self._stream = stream
        self._ends = ends or KeptEnds(stream)
        self._counted = 0  # segments
        self._sum = 0

    def segment(self, number: int) -> int:
        """Return the number before a segment; ask in ascending order."""
        while self._counted < number:
            self._sum += self._count(self._counted)
            self._counted += 1
        return self._sum

    def _count(self, number: int) -> int:
        stream, first = self._stream, int(self._stream.first[number])
        if not self._ends.keeps(number):
            return 0
        index, _ = stream.index(number)
        records, after = index.records, stream.after(number)
        begins = len(records) > 0 and int(records["id"][0]) == first
        if after is not None and begins and self._end(number, int(records["position"][-1])) == after:
            return after - first - int((records["kind"] != MESSAGES).sum())
        data, _ = stream.open(number)
        following, others = first, 0
        for chunks, _ in stream.walk(number, data):
            kept = chunks.take(chunks.at < self._ends.of(number))
            if len(kept):
                following = int(kept.id[-1] + kept.records[-1])
                others += int((kept.kind != MESSAGES).sum())
        return max(0, following - first - others)  # those of chunks that are not there have their places too

    def _end(self, number: int, position: int) -> int | None:
        """Return the offset after the chunk at a position of a segment; None if there is none."""
        data, _ = self._stream.open(number)
        head = data[position : position + _HEAD.size].tobytes()
        if position < len(HEADER) or len(head) < _HEAD.size:
            return None
        mark, _, _, records, _, _, first = _HEAD.unpack(head)
        return int(first + records) if mark == 0x50 else None


def walk_rows(
    named: NamedStream,
    selection: QueueSelection = QueueSelection(),
    *,
    rules: Rules = RULES["4.3"],
    segments: range | None = None,
) -> Iterator[tuple[StreamRows, list[Damage]]]:
    """Yield the selected records of a stream in order, with what is damaged in its segments: BLOCK of a segment at a time at most.

    segments: numbers of those to read, by default all; segments and chunks without a selected offset or filter value are passed over.
    Those of small segments come together, but no segment is read after as many as the selection's limit before they are handed on.
    """
    left = selection.limit
    parts: list[StreamRows] = []
    findings: list[Damage] = []
    count = held = 0
    for rows, damage in _rows_by_segment(named, selection, rules, segments):
        size = sum(map(len, rows.records.buffers))
        parts.append(rows)
        findings += damage
        count, held = count + len(rows), held + size
        if size > SMALL or held >= JOINED_BYTES or len(parts) >= JOINED or count >= (JOINED if left is None else min(JOINED, left)):
            yield _joined(parts), findings
            left = None if left is None else left - count
            parts, findings, count, held = [], [], 0, 0
    if parts:
        yield _joined(parts), findings


def _joined(parts: Sequence[StreamRows]) -> StreamRows:
    """Return rows of segments that follow each other as one."""
    if len(parts) == 1:
        return parts[0]
    before = np.cumsum([0, *(len(part.files) for part in parts[:-1])])
    return replace(
        parts[0],
        files=tuple(chain.from_iterable(part.files for part in parts)),
        file=np.concatenate([part.file + start for part, start in zip(parts, before.tolist(), strict=True)]),
        records=joined([part.records for part in parts]),
        pos=np.concatenate([part.pos for part in parts]),
        timestamp=np.concatenate([part.timestamp for part in parts]),
        state=np.concatenate([part.state for part in parts]),
    )


def _rows_by_segment(
    named: NamedStream, selection: QueueSelection, rules: Rules, segments: range | None
) -> Iterator[tuple[StreamRows, list[Damage]]]:
    stream = named.stream
    ends = KeptEnds(stream)
    before = MessagesBefore(stream, ends)
    for number in stream.segments_between(selection.from_offset, selection.to_offset) if segments is None else segments:
        first = int(stream.first[number])
        name = stream.segment_file(number)
        pos_of_first = before.segment(number)
        data, unreadable = stream.open(number)
        findings = list(unreadable)
        others = 0  # tracking chunks so far
        for chunks, damage in stream.walk(number, data):
            findings += damage
            tracking = np.cumsum(chunks.kind != MESSAGES)
            pos_less_offset = pos_of_first - first - others - tracking
            others += int(tracking[-1]) if len(tracking) else 0
            selected = np.flatnonzero(_selected_chunks(selection, data, chunks))
            if not len(selected):
                continue
            chosen = chunks.take(selected)
            kept = (chosen.at < ends.of(number)) & chosen.readable
            for records, wrong in walk_records(data, chosen, file=name):
                findings += wrong
                for part in _parts(records, selection):
                    row = part.chunk
                    pos = np.where(kept[row], pos_less_offset[selected[row]] + part.offset, -1)
                    file = np.zeros(len(part), np.int32)
                    rows = StreamRows(named.vhost, named.queue, rules, (name,), file, part, pos, chosen.timestamp[row], chosen.state[row])
                    if selection.recovered is not None:
                        rows = rows.take(np.flatnonzero((pos >= 0) == selection.recovered))
                    yield rows, findings
                    findings = []
        if findings:
            nothing = np.empty(0, np.int64)
            yield StreamRows(named.vhost, named.queue, rules, (), nothing.astype(np.int32), _no_records(), *([nothing] * 3)), findings


def _parts(records: Records, selection: QueueSelection) -> Iterator[Records]:
    selected = np.ones(len(records), np.bool_)
    if selection.from_offset is not None:
        selected &= records.offset >= selection.from_offset
    if selection.to_offset is not None:
        selected &= records.offset < selection.to_offset
    rows = np.flatnonzero(selected)
    for start, stop in pieces(records.length[rows], BLOCK_BYTES, BLOCK):
        yield records.take(rows[start:stop])


def _no_records() -> Records:
    nothing = np.empty(0, np.int64)
    return Records((), nothing.astype(np.int32), *([nothing] * 6))


def build_batch(rows: StreamRows, columns: Sequence[str] = RABBITMQ_COLUMNS) -> pa.RecordBatch:
    """Return rows as one batch. Bodies are read if a column needs them."""
    messages = rows.decoded() if not _OF_MESSAGE.isdisjoint(columns) else []
    terms = StoredTerms.decoded(messages) if messages else None
    return stored_columns.build_batch(columns, terms, lambda name: _values(rows, name, messages))


def _message(rows: StreamRows, row: int) -> DecodedMessage | None:
    octets = rows.records.content(row)
    if octets is None:
        return None
    key = rows.queue.encode("utf-8", "surrogateescape")
    try:
        read = read_entry(octets)
    except NotAMessageError:
        return MessageTerm(b"", None, b"", (key,), True, (octets,), None), {}
    return _term(read, rows.queue), json_or_none(partial(read.delivered, rows.rules, int(rows.records.offset[row])))


def _term(read: StreamMessage, queue: str) -> MessageTerm:
    keys = read.routing_keys(queue.encode("utf-8", "surrogateescape"))
    return MessageTerm(b"", None, read.exchange, keys, read.durable, (read.body,), None)


def _values(rows: StreamRows, name: str, messages: list[DecodedMessage | None]) -> Any:
    count, records = len(rows), rows.records
    match name:
        case "vhost":
            return [rows.vhost] * count
        case "queue":
            return [encodable(rows.queue)] * count
        case "queue_type":
            return [STREAM] * count
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
            names = [encodable(file) for file in rows.files]
            return [names[number] for number in rows.file.tolist()]
        case "position":
            return records.position
        case "verdict":
            return rows.verdicts(messages)
        case "entry_b64":
            contents = [records.content(row) for row in range(count)]
            return [None if content is None else base64.b64encode(content).decode("ascii") for content in contents]
    return [None] * count
