r"""Index of a stream's segment, `<first offset in 20 digits>.index`: one record of 29 bytes for each chunk.

    offset  size  field
         0     4  OSII
         4     4  version, 1
         8     -  records

    offset  size  record
         0     8  chunk id
         8     8  timestamp in milliseconds
        16     8  epoch
        24     4  position of the chunk in the segment
        28     1  kind of the chunk

    >>> raw = HEADER + record(0, timestamp=1000, position=8) + record(2, timestamp=1001, position=75) + bytes(29) + b"cut"
    >>> found = read_index(np.frombuffer(raw, np.uint8))
    >>> found.records["id"].tolist(), found.records["position"].tolist(), found.rest
    ([0, 2], [8, 75], 32)

A record is written after its chunk. Zeros at the end, and a last record that is cut, are not records. A reader needs no index: the
chunks suffice. A node does: it cuts the last segment after the last chunk that the index knows, and deletes a segment without an index.

Format: docs/formats/rabbitmq-streams.md, section 5.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.findings import Damage, Kind
from mqstore.rabbitmq.streams.segment import MESSAGES, Chunks
from mqstore.table.formatting import count

HEADER = struct.Struct(">4sI").pack(b"OSII", 1)
RECORD = np.dtype([("id", ">i8"), ("timestamp", ">i8"), ("epoch", ">i8"), ("position", ">u4"), ("kind", "u1")])
_RECORD = struct.Struct(">QqQIB")
_COMPARED = ("id", "timestamp", "epoch", "kind")


@dataclass(frozen=True, slots=True)
class Index:
    """Records of an index file, a view of its bytes. rest: bytes at the end that are not records. valid_header: OSII and version 1."""

    records: NDArray[np.void]
    rest: int
    valid_header: bool

    def __len__(self) -> int:
        return len(self.records)


def read_index(data: Bytes) -> Index:
    """Return the records of an index file."""
    valid = data[: len(HEADER)].tobytes() == HEADER
    body = data[len(HEADER) :]
    records = body[: len(body) - len(body) % RECORD.itemsize].view(RECORD)
    number = len(records)
    # a node looks at the position alone: no chunk is inside the header
    while number and not records["position"][number - 1]:
        step = max(1, number >> 4)
        written = np.flatnonzero(records["position"][number - step : number])
        number = number - step + (int(written[-1]) + 1 if len(written) else 0)
    return Index(records[:number], len(body) - number * RECORD.itemsize, valid)


def record(chunk_id: int, *, timestamp: int, position: int, epoch: int = 1, kind: int = 0) -> bytes:
    """Return the record of a chunk."""
    return _RECORD.pack(chunk_id, timestamp, epoch, position, kind)


def build_index(chunks: Chunks) -> bytes:
    """Return the index file of a segment with these chunks."""
    records = np.empty(len(chunks), RECORD)
    records["position"] = chunks.at
    for name in _COMPARED:
        records[name] = getattr(chunks, name)
    return HEADER + records.tobytes()


def header_damage(index: Index, file: str, size: int) -> list[Damage]:
    """Return what is wrong with an index by itself. size: of the file."""
    damage: list[Damage] = []
    if not index.valid_header:
        length = min(size, len(HEADER))
        damage.append(Damage(file, 0, length, Kind.BAD_STREAM_INDEX, "the index does not begin with OSII and version 1"))
    if index.rest % RECORD.itemsize:
        at = size - index.rest
        damage.append(Damage(file, at, index.rest, Kind.TORN_RECORD, "the last record of the index is cut"))
    return damage


class IndexComparison:
    """An index beside the chunks of its segment, which are given block by block. Records are matched by position.

    One finding for each run of chunks that are not in the index, of records that contradict their chunks, or that lead to none.
    """

    def __init__(self, index: Index, file: str) -> None:
        self.file = file
        self._records = index.records
        self._position = index.records["position"].astype(np.int64)
        self._ordered = bool((self._position[1:] > self._position[:-1]).all())
        self._next = 0  # the first record that no chunk was compared with

    def add(self, chunks: Chunks) -> list[Damage]:
        """Compare the next chunks."""
        if not self._ordered or not len(chunks):
            return []
        end = self._next + len(chunks)
        if self._records[self._next : end].tobytes() == build_index(chunks)[len(HEADER) :]:
            self._next = end
            return []
        row = np.searchsorted(self._position, chunks.at)
        there = np.zeros(len(chunks), np.bool_)
        inside = row < len(self._position)
        there[inside] = self._position[row[inside]] == chunks.at[inside]
        damage = []
        for begin, end in _runs(~there):
            records = int(chunks.records[begin:end].sum())
            first = int(chunks.id[begin])
            where = f"from position {int(chunks.at[begin])} on, offsets {first} to {first + records - 1}"
            messages = int(chunks.records[begin:end][chunks.kind[begin:end] == MESSAGES].sum())
            damage.append(self._finding(int(row[begin]), 0, f"the index lacks {count(end - begin, 'chunk')} {where}", messages))
        known, rows = row[there], np.flatnonzero(there)
        wrong = np.zeros(len(rows), np.bool_)
        for name in _COMPARED:
            wrong |= self._records[name][known].astype(np.int64) != getattr(chunks, name)[rows]
        for begin, end in _runs(wrong):
            number = int(known[begin])
            detail = f"{count(end - begin, 'record')} from number {number} on contradict the headers of their chunks"
            damage.append(self._finding(number, end - begin, detail))
        until = int(np.searchsorted(self._position, int(chunks.at[-1]), "right"))
        return damage + self._strays(until, known)

    def finish(self) -> list[Damage]:
        """Return what is left to say after the last chunk."""
        if not self._ordered:
            return [self._finding(0, len(self._records), "the positions in the index do not ascend")]
        return self._strays(len(self._position), np.empty(0, np.intp))

    def listed_until(self) -> tuple[int, bool]:
        """Return the offset after the messages that the last records list, which lead to no chunk, and whether those are all of them.

        A record has no count: of a last chunk with messages, one is listed. 0: there are no such records.
        """
        left = self._records[self._next :] if self._ordered else self._records[:0]
        if not len(left) or (np.diff(left["id"].astype(np.int64)) < 0).any():
            return 0, True
        counted = bool(left["kind"][-1] != MESSAGES)
        return int(left["id"][-1]) + (not counted), counted

    def _strays(self, until: int, known: NDArray[np.intp]) -> list[Damage]:
        if until == self._next:
            return []
        stray = np.ones(until - self._next, np.bool_)
        stray[known - self._next] = False
        damage = []
        for begin, end in _runs(stray):
            number = self._next + begin
            detail = f"{count(end - begin, 'record')} from number {number} on lead to no valid chunk"
            damage.append(self._finding(number, end - begin, detail))
        self._next = until
        return damage

    def _finding(self, number: int, records: int, detail: str, messages: int = 0) -> Damage:
        at = len(HEADER) + number * RECORD.itemsize
        return Damage(self.file, at, records * RECORD.itemsize, Kind.BAD_STREAM_INDEX, detail, messages)


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the runs of True, as (from, to)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
