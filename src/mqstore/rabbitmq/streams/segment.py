r"""Segment of a stream, `<first offset in 20 digits>.segment`: chunks, one after the other.

    offset  size  field
         0     4  OSIL
         4     4  version, 1
         8     -  chunks

    offset  size  chunk
         0     1  0x50: magic 5, version 0
         1     1  kind: 0 messages, 1 tracking delta, 2 tracking snapshot
         2     2  number of entries
         4     4  number of records: a sub-batch is one entry with several
         8     8  timestamp in milliseconds
        16     8  epoch of the leader that wrote it
        24     8  chunk id: the offset of its first record
        32     4  CRC-32 of the data; nothing else has a checksum
        36     4  D, bytes of data
        40     4  T, bytes of the trailer
        44     1  F, bytes of the filter: 0, or 16 and more
        45     3  0
        48     F  filter, then D bytes of data, then T of trailer

    >>> raw = HEADER + chunk(0, [entry(b"first"), entry(b"second")], timestamp=1000) + chunk(2, [entry(b"third")], timestamp=1001)
    >>> [(chunks, findings)] = walk_segment(np.frombuffer(raw, np.uint8), 0)
    >>> chunks.id.tolist(), chunks.records.tolist(), chunks.at.tolist(), findings
    ([0, 2], [2, 1], [8, 75], [])

The next chunk has the id of this one and its records together; tracking chunks count as one record. So ids show how many records are
lost with a chunk, and whether an id itself is damaged. A chunk whose checksum does not fit is passed over, or, if the next one is where
it should be, kept as damaged. After bytes that are not a chunk the walk goes on at the next one that is proved by its checksum, its counts
and its id.

Format: docs/formats/rabbitmq-streams.md, section 2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.findings import Damage, Kind
from mqstore.kernels.common.crc32 import crc32  # with it, the kernel has the library that computes checksums fast
from mqstore.kernels.rabbitmq import stream_chunks
from mqstore.kernels.rabbitmq.stream_chunks import BAD_DATA, BAD_HEADER

Longs = NDArray[np.int64]

HEADER = struct.Struct(">4sI").pack(b"OSIL", 1)
MESSAGES, TRACKING_DELTA, TRACKING_SNAPSHOT = 0, 1, 2
NO_END = (1 << 63) - 1  # of offsets: the last segment
MOST_FINDINGS = 1000  # of one segment; one more counts the rest
_CHUNK = struct.Struct(">BBHIqQQIIIB3s")
_BATCH = struct.Struct(">BHII")
_BLOCK = 1 << 14  # chunks at once


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks of one segment, in order. columns: as the kernel `stream_chunks.walk` returns them; id: put right where it was damaged.

    state: INTACT, BAD_DATA (the checksum does not fit) or BAD_HEADER (the data are intact, the header is not).
    """

    columns: Longs

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    def _column(self, number: int) -> Longs:
        column: Longs = self.columns[number]
        return column

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Chunks:
        """Return some of them."""
        return Chunks(np.ascontiguousarray(self.columns[:, rows]))

    @property
    def at(self) -> Longs:
        """Positions in the segment."""
        return self._column(stream_chunks.AT)

    @property
    def kind(self) -> Longs:
        return self._column(stream_chunks.KIND)

    @property
    def entries(self) -> Longs:
        return self._column(stream_chunks.ENTRIES)

    @property
    def records(self) -> Longs:
        return self._column(stream_chunks.RECORDS)

    @property
    def timestamp(self) -> Longs:
        return self._column(stream_chunks.TIMESTAMP)

    @property
    def epoch(self) -> Longs:
        return self._column(stream_chunks.EPOCH)

    @property
    def id(self) -> Longs:
        return self._column(stream_chunks.ID)

    @property
    def filter_size(self) -> Longs:
        return self._column(stream_chunks.FILTER_SIZE)

    @property
    def data_at(self) -> Longs:
        """Positions of the data in the segment."""
        return self.at + _CHUNK.size + self.filter_size

    @property
    def data_size(self) -> Longs:
        return self._column(stream_chunks.DATA_SIZE)

    @property
    def trailer_size(self) -> Longs:
        return self._column(stream_chunks.TRAILER_SIZE)

    @property
    def end(self) -> Longs:
        """Where they end, with their trailers; of the last one perhaps after the end of the segment."""
        return self.data_at + self.data_size + self.trailer_size

    @property
    def state(self) -> Longs:
        return self._column(stream_chunks.STATE)

    @property
    def readable(self) -> NDArray[np.bool_]:
        """Whether the data are what was written."""
        return np.asarray(self.state != BAD_DATA)


class _Findings:
    """The findings of one segment, not more than MOST_FINDINGS."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.count = 0
        self.new: list[Damage] = []

    def add(self, offset: int, length: int, kind: Kind, detail: str, messages: int = 0) -> None:
        self.count += 1
        if self.count <= MOST_FINDINGS:
            self.new.append(Damage(self.file, offset, length, kind, detail, messages))

    def take(self, size: int | None = None) -> list[Damage]:
        """Return those that are new. size: of the segment, whose walk is over."""
        if size is not None and self.count > MOST_FINDINGS:
            detail = f"{self.count - MOST_FINDINGS} more places of this segment are damaged"
            self.new.append(Damage(self.file, 0, size, Kind.BAD_CHUNK, detail))
        taken, self.new = self.new, []
        return taken


def walk_segment(
    data: Bytes, first: int, after: int | None = None, *, file: str = "", start: int = len(HEADER)
) -> Iterator[tuple[Chunks, list[Damage]]]:
    """Yield the chunks of a segment, block by block, with what is damaged there.

    first: the first offset, as in the segment's name; after: that of the next segment, None for the last one. start: position of the
    first chunk to read. Every chunk is proved by its checksum and counts. Memory is that of a block.
    """
    findings = _Findings(file)
    if start <= len(HEADER) and data[: len(HEADER)].tobytes() != HEADER[: len(data)]:
        findings.add(0, min(len(data), len(HEADER)), Kind.BAD_CHUNK, "the segment does not begin with OSIL and version 1")
    elif len(data) < len(HEADER):
        findings.add(0, len(data), Kind.TORN_RECORD, "the segment ends inside its header")
    position, expected = start, first
    limit = NO_END if after is None else after
    effort = stream_chunks.effort_for(len(data))
    out = np.empty((stream_chunks.CHUNK_COLUMNS, min(_BLOCK, len(data) // _CHUNK.size + 1)), np.int64)
    known = start <= len(HEADER)  # whether `expected` is the id of the chunk at position
    while position < len(data):
        count, stopped, why = stream_chunks.walk(data, position, len(data), out)
        position = trailer = stopped
        if count:
            chunks = Chunks(out[:, :count].copy())
            expected = _put_ids_right(data, chunks, expected if known else int(chunks.id[0]), findings)
            known = True
            if (chunks.state >= BAD_DATA).any():
                _report(chunks, findings)
            yield chunks, findings.take()
            trailer = int(chunks.data_at[-1] + chunks.data_size[-1])
        if why in (stream_chunks.DONE, stream_chunks.FULL):
            continue
        # the size of a trailer has no checksum: the next chunk may be anywhere after the data of the last one
        begin = trailer if count else position + 1
        following, effort = stream_chunks.resume(data, begin, first, limit, effort)
        if following < 0 and limit < NO_END:  # segments overlap if one was copied here from a replica or under another name
            following, effort = stream_chunks.resume(data, begin, limit, NO_END, effort)
            if following >= 0 and not _reaches_end(data, following, out):
                following = -1
        if following < 0:
            _report_end(data, position, why, expected, after, effort, findings)
            break
        lost = max(0, min(_id_at(data, following), limit) - expected)
        if following < position or why == stream_chunks.CUT_TRAILER:
            position, detail = trailer, "the size of a chunk's trailer is damaged"
        elif _leads_to(data, position, following):
            detail = "the header of a chunk is damaged"
        else:
            detail = "there is no valid chunk here"
        findings.add(position, following - position, Kind.BAD_CHUNK, f"{detail}: {_offsets(expected, lost)}", lost)
        position, expected = following, _id_at(data, following)
    left = findings.take(len(data))
    if left:
        yield Chunks(np.empty((stream_chunks.CHUNK_COLUMNS, 0), np.int64)), left


def _reaches_end(data: Bytes, position: int, out: Longs) -> bool:
    """Return whether valid chunks follow each other from a position to the end, as those inside of a message hardly do."""
    why = stream_chunks.FULL
    while why == stream_chunks.FULL:
        count, position, why = stream_chunks.walk(data, position, len(data), out)
        if not (out[stream_chunks.STATE, :count] == stream_chunks.INTACT).all():
            return False
    return bool(why == stream_chunks.DONE and position == len(data))


def _leads_to(data: Bytes, position: int, following: int) -> bool:
    """Return whether the sizes in the header at a position lead to the chunk that follows it."""
    if following - position < _CHUNK.size:
        return False
    fields = _CHUNK.unpack(data[position : position + _CHUNK.size].tobytes())
    return bool(position + _CHUNK.size + fields[8] + fields[9] + fields[10] == following)


def _id_at(data: Bytes, position: int) -> int:
    return int.from_bytes(data[position + 24 : position + 32].tobytes(), "big")


def _offsets(start: int, count: int) -> str:
    if not count:
        return "no offset is lost with it"
    return f"offset {start} is lost" if count == 1 else f"offsets {start} to {start + count - 1} are lost"


def _put_ids_right(data: Bytes, chunks: Chunks, expected: int, findings: _Findings) -> int:
    """Correct kinds, ids and counts that contradict the data or the neighbours, in place. Return the id of the chunk after these."""
    for row in np.flatnonzero(chunks.state == BAD_HEADER).tolist():
        chunks.records[row] = _records_of(data, int(chunks.data_at[row]), int(chunks.data_size[row]))
        chunks.kind[row] = stream_chunks.kind_of(data, int(chunks.at[row]))
    ends = np.cumsum(chunks.records)
    if (chunks.id == expected + ends - chunks.records).all():
        return expected + int(ends[-1])
    ids, counts = chunks.id.tolist(), chunks.records.tolist()
    for row, (own, count) in enumerate(zip(ids, counts, strict=True)):
        if own != expected:
            if row + 1 < len(ids) and ids[row + 1] == own + count:  # the next one confirms it
                lost = max(0, own - expected)
                detail = _offsets(expected, lost) if lost else f"ids go back from {expected} to {own}"
                findings.add(int(chunks.at[row]), 0, Kind.BAD_CHUNK, f"the ids of chunks have a gap here: {detail}", lost)
                expected = own
            else:
                chunks.id[row] = expected
                if chunks.state[row] != BAD_DATA:
                    chunks.state[row] = BAD_HEADER
        expected += count
    return expected


def _records_of(data: Bytes, at: int, size: int) -> int:
    out = np.empty((stream_chunks.ENTRY_COLUMNS, size // 4 + 1), np.int64)
    count = stream_chunks.entries(data, np.array([at]), np.array([size]), out)
    return int(out[stream_chunks.RECORD_COUNT, :count].sum())


def _report(chunks: Chunks, findings: _Findings) -> None:
    for row in np.flatnonzero(chunks.state >= BAD_DATA).tolist():
        start, length = int(chunks.at[row]), int(chunks.end[row] - chunks.at[row])
        records = int(chunks.records[row]) if chunks.kind[row] == MESSAGES else 0
        first = int(chunks.id[row])
        if chunks.state[row] == BAD_DATA:
            why = f"the data of the chunk do not match its CRC (offsets {first} to {first + int(chunks.records[row]) - 1})"
        else:
            why = f"the header of the chunk contradicts its data or its neighbours; it should begin at offset {first}"
        findings.add(start, length, Kind.BAD_CHUNK, why, records)


def _report_end(data: Bytes, position: int, why: int, expected: int, after: int | None, effort: int, findings: _Findings) -> None:
    """Report what follows the last chunk of a segment."""
    left = len(data) - position
    if effort <= 0:
        detail = "the segment has too many false beginnings of chunks: what follows is not read"
        findings.add(position, left, Kind.BAD_CHUNK, detail)
        return
    lost = 0 if after is None else max(0, after - expected)
    if why == stream_chunks.CUT_TRAILER and not lost:
        findings.add(position, left, Kind.TORN_RECORD, "the trailer of the last chunk is cut: only its tracking is lost")
    elif why == stream_chunks.TORN and after is None:
        if left >= _CHUNK.size:
            lost = _CHUNK.unpack(data[position : position + _CHUNK.size].tobytes())[3]
        findings.add(position, left, Kind.TORN_RECORD, f"the segment ends inside a chunk: {_offsets(expected, lost)}", lost)
    else:
        findings.add(position, left, Kind.BAD_CHUNK, f"there is no valid chunk here: {_offsets(expected, lost)}", lost)


# writing


def entry(record: bytes) -> bytes:
    """Return the entry of one record."""
    return len(record).to_bytes(4, "big") + record


def batch(codec: int, content: bytes, records: int, plain_size: int) -> bytes:
    """Return the entry of a sub-batch. content: compressed as the codec says."""
    return _BATCH.pack(0x80 | codec << 4, records, plain_size, len(content)) + content


def chunk(
    first: int,
    entries: Sequence[bytes],
    *,
    records: int | None = None,
    kind: int = MESSAGES,
    timestamp: int = 0,
    epoch: int = 1,
    filter_bytes: bytes = b"",
    trailer: bytes = b"",
) -> bytes:
    """Return a chunk. first: its id; records: in all entries, if there are sub-batches."""
    data = b"".join(entries)
    count = len(entries) if records is None else records
    head = _CHUNK.pack(
        0x50, kind, len(entries), count, timestamp, epoch, first, crc32(data), len(data), len(trailer), len(filter_bytes), bytes(3)
    )
    return head + filter_bytes + data + trailer
