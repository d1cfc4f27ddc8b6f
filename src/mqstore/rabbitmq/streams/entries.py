r"""Entries of a stream's chunks, and the records in them: what a publisher sent, one record each.

    u32 length (bit 31 is 0), bytes                                       one record

    offset  size  sub-batch
         0     1  0x80 + 16 * codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd
         1     2  number of records
         3     4  bytes of the content, uncompressed
         7     4  L
        11     L  content: compressed as a whole; uncompressed, a u32 length and bytes for each record

Record k of a chunk has the offset chunk id + k. The node does not look into sub-batches; clients compress and expand them.

    >>> import gzip
    >>> from mqstore.rabbitmq.streams.segment import HEADER, batch, chunk, entry, walk_segment
    >>> content = entry(b"one") + entry(b"two")
    >>> packed = batch(1, gzip.compress(content), 2, len(content))
    >>> data = np.frombuffer(HEADER + chunk(7, [entry(b"zero"), packed], records=3), np.uint8)
    >>> [(chunks, _)] = walk_segment(data, 7)
    >>> [(found, findings)] = walk_records(data, chunks)
    >>> found.offset.tolist(), [found.content(k) for k in range(3)], findings
    ([7, 8, 9], [b'zero', b'one', b'two'], [])

Records are columns: where each one is in which buffer. The buffers are the segment itself, and sub-batches that were expanded: one of
MAX_BATCH bytes at most, and not more together than BUFFERED before they are handed on.

Format: docs/formats/rabbitmq-streams.md, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from mqstore.codecs import ExpandError, expand
from mqstore.files import Bytes
from mqstore.findings import Damage, Kind
from mqstore.kernels.rabbitmq import stream_chunks
from mqstore.kernels.rabbitmq.stream_chunks import INTACT
from mqstore.rabbitmq.streams.segment import MESSAGES, Chunks, Longs

CODECS = {0: None, 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
MAX_BATCH = 256 << 20  # bytes of a sub-batch, uncompressed
BUFFERED = 16 << 20  # bytes of sub-batches, uncompressed, that are held before their records are handed on
MOST_ENTRIES = (1 << 16) - 1  # of a chunk
_RECORDS = 1 << 16  # records at once
_RECORD, _BATCH = 4, 11  # bytes before the content


@dataclass(frozen=True, slots=True)
class Records:
    """Records in the order of their offsets.

    buffers: what they are in, the segment first; buffer: which one, -1 for a record whose bytes cannot be read; at, length: where in it.
    chunk: row of its chunk; position: of its entry in the segment; codec: -1 for an entry that is one record, else that of its sub-batch.
    """

    buffers: tuple[Bytes, ...]
    buffer: NDArray[np.int32]
    at: Longs
    length: Longs
    offset: Longs
    chunk: Longs
    position: Longs
    codec: Longs

    def __len__(self) -> int:
        return len(self.at)

    def content(self, row: int) -> bytes | None:
        """Return the bytes of a record."""
        if self.buffer[row] < 0:
            return None
        start = int(self.at[row])
        octets: bytes = self.buffers[self.buffer[row]][start : start + int(self.length[row])].tobytes()
        return octets

    def take(self, rows: NDArray[np.intp] | slice) -> Records:
        """Return some of them."""
        return Records(
            self.buffers,
            self.buffer[rows],
            self.at[rows],
            self.length[rows],
            self.offset[rows],
            self.chunk[rows],
            self.position[rows],
            self.codec[rows],
        )


def joined(parts: Sequence[Records]) -> Records:
    """Return the records of some parts as one. The row of a chunk is that in its part."""
    before = np.cumsum([0, *(len(part.buffers) for part in parts[:-1])])
    buffer = [np.where(part.buffer < 0, -1, part.buffer + start) for part, start in zip(parts, before.tolist(), strict=True)]
    return Records(
        tuple(chain.from_iterable(part.buffers for part in parts)),
        np.concatenate(buffer).astype(np.int32),
        np.concatenate([part.at for part in parts]),
        np.concatenate([part.length for part in parts]),
        np.concatenate([part.offset for part in parts]),
        np.concatenate([part.chunk for part in parts]),
        np.concatenate([part.position for part in parts]),
        np.concatenate([part.codec for part in parts]),
    )


class _Collected:
    """Columns of records that are to be handed on together."""

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self.buffers = [data]
        self.columns: list[tuple[Longs | NDArray[np.int32], ...]] = []
        self.rows = 0
        self.held = 0

    def add(self, buffer: NDArray[np.int32], at: Longs, length: Longs, offset: Longs, chunk: Longs, position: Longs, codec: Longs) -> None:
        self.columns.append((buffer, at, length, offset, chunk, position, codec))
        self.rows += len(at)

    def hold(self, buffer: Bytes) -> int:
        """Keep a buffer; return its number."""
        self.buffers.append(buffer)
        self.held += len(buffer)
        return len(self.buffers) - 1

    def records(self) -> Records:
        columns = [np.concatenate(column) for column in zip(*self.columns, strict=True)]
        return Records(tuple(self.buffers), columns[0].astype(np.int32), *columns[1:])


def walk_records(data: Bytes, chunks: Chunks, *, file: str = "") -> Iterator[tuple[Records, list[Damage]]]:
    """Yield the records of the chunks of messages among these, some at a time, with sub-batches that cannot be read.

    Those of a chunk whose checksum does not fit are as far as lengths lead from one to the next, not more than its header counts.
    """
    messages = np.flatnonzero(chunks.kind == MESSAGES)
    room = _most_entries(chunks, messages)
    held = np.cumsum(room)
    begin = 0
    while begin < len(messages):
        before = int(held[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(held, before + _RECORDS, "right")))
        yield from _records_of(data, chunks, messages[begin:end], room[begin:end], file)
        begin = end


def _records_of(data: Bytes, chunks: Chunks, rows: NDArray[np.intp], room: Longs, file: str) -> Iterator[tuple[Records, list[Damage]]]:
    out = np.empty((stream_chunks.ENTRY_COLUMNS, int(room.sum())), np.int64)
    count = 0
    if (chunks.state[rows] == INTACT).all():
        count = _split(data, chunks, rows, out)
        out[stream_chunks.CHUNK, :count] = rows[out[stream_chunks.CHUNK, :count]]
    else:  # one by one, for each may hold more entries than its header can count
        for row, most in zip(rows.tolist(), room.tolist(), strict=True):
            part = np.empty((stream_chunks.ENTRY_COLUMNS, most), np.int64)
            own = min(most, _split(data, chunks, np.array([row]), part))
            part[stream_chunks.CHUNK] = row
            out[:, count : count + own] = part[:, :own]
            count += own
    chunk, content, length, codec, records, plain_size, first = out[:, :count]
    # a damaged chunk has no more records than its header counts: the offsets after them are those of the next chunk
    fits = first + records <= chunks.records[chunk]
    if not fits.all():
        chunk, content, length, codec, records, plain_size, first = out[:, :count][:, fits]
    offset = chunks.id[chunk] + first
    position = content - np.where(codec < 0, _RECORD, _BATCH)
    if (codec < 0).all():  # no sub-batch
        if len(chunk):
            yield Records((data,), np.zeros(len(chunk), np.int32), content, length, offset, chunk, position, codec), []
        return
    collected, findings = _Collected(data), list[Damage]()
    done = 0
    for row in [*np.flatnonzero(codec >= 0).tolist(), len(chunk)]:
        run = slice(done, row)
        if row > done:
            collected.add(np.zeros(row - done, np.int32), content[run], length[run], offset[run], chunk[run], position[run], codec[run])
        if row < len(chunk):
            findings += _add_batch(collected, file, *(int(column[row]) for column in (
                chunk, content, length, codec, records, plain_size, offset, position
            )))  # fmt: skip
        done = row + 1
        if collected.rows and (row == len(chunk) or collected.rows >= _RECORDS or collected.held >= BUFFERED):
            yield collected.records(), findings
            collected, findings = _Collected(data), []
    if findings:
        yield _none(data), findings


def _most_entries(chunks: Chunks, rows: NDArray[np.intp]) -> Longs:
    """Return how many entries chunks can have: as many as the header counts, if that is proved."""
    most = np.minimum(chunks.data_size[rows] // _RECORD, MOST_ENTRIES)
    return np.where(chunks.state[rows] == INTACT, chunks.entries[rows], most)


def _split(data: Bytes, chunks: Chunks, rows: NDArray[np.intp], out: Longs) -> int:
    return stream_chunks.entries(data, np.ascontiguousarray(chunks.data_at[rows]), np.ascontiguousarray(chunks.data_size[rows]), out)


def _none(data: Bytes) -> Records:
    nothing = np.empty(0, np.int64)
    return Records((data,), nothing.astype(np.int32), *([nothing] * 6))


def _add_batch(
    collected: _Collected,
    file: str,
    chunk: int,
    content: int,
    length: int,
    codec: int,
    records: int,
    plain_size: int,
    offset: int,
    position: int,
) -> list[Damage]:
    """Add the records of a sub-batch; those that cannot be read have no bytes."""
    at, lengths = np.zeros(records, np.int64), np.zeros(records, np.int64)
    count, number, fault = 0, -1, ""
    try:
        buffer, start, stop, number = _content(collected, content, length, codec, plain_size)
        count, end = stream_chunks.records(buffer, start, stop, at, lengths)
        if count < records or end != stop:
            fault = f"its content is not {records} records"
    except ExpandError as error:
        fault = str(error)
    at[count:] = lengths[count:] = 0
    collected.add(
        np.where(np.arange(records) < count, number, -1).astype(np.int32),
        at,
        lengths,
        np.arange(offset, offset + records),
        np.full(records, chunk),
        np.full(records, position),
        np.full(records, codec),
    )
    if not fault:
        return []
    span = f"offsets {offset} to {offset + records - 1}"
    detail = f"a sub-batch ({CODECS.get(codec) or 'uncompressed'}, {span}) cannot be read: {fault}"
    return [Damage(file, position, _BATCH + length, Kind.BAD_BATCH, detail, records - count)]


def _content(collected: _Collected, content: int, length: int, codec: int, plain_size: int) -> tuple[Bytes, int, int, int]:
    """Return the uncompressed content of a sub-batch: buffer, from, to, and the buffer's number. Raises ExpandError."""
    if codec not in CODECS:
        raise ExpandError(f"compression {codec} is not known")
    name = CODECS[codec]
    if name is None:
        return collected.data, content, content + length, 0
    if plain_size > MAX_BATCH:
        raise ExpandError(f"it would expand to {plain_size} bytes; up to {MAX_BATCH} are read")
    text = expand(name, collected.data[content : content + length].tobytes(), plain_size)
    if len(text) != plain_size:
        raise ExpandError(f"it expands to {len(text)} bytes, and not to {plain_size}")
    buffer = np.frombuffer(text, np.uint8)
    return buffer, 0, len(buffer), collected.hold(buffer)
