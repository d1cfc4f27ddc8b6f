"""Whether a node starts a stream at all, by the files at its ends.

A node first asks for the offsets of a stream, and then mends its end: it deletes last segments of 48 bytes or less with their indexes,
and indexes at the end that have no segment; of a single segment it writes new headers. 4.0 and later mend before anything that
fails; 3.10 does not, and wants a valid chunk of every segment that has an index. Then it goes over the headers of the last segment. A
stream that fails there stays down, whatever its other segments have.

Format: docs/formats/rabbitmq-streams.md, section 8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from mqstore.files import Bytes
from mqstore.kernels.common.crc32 import crc32
from mqstore.rabbitmq.streams.index import HEADER as INDEX_HEADER
from mqstore.rabbitmq.streams.index import RECORD
from mqstore.rabbitmq.streams.segment import HEADER
from mqstore.rabbitmq.streams.stream import Stream

NO_CHUNK = 48  # bytes of a last segment that a node deletes
_HEAD = struct.Struct(">B31xIIIB3x")  # of a chunk: mark, CRC-32, bytes of the data, of the trailer, of the filter
_MARK = 0x50


def refusal(stream: Stream, *, mends_first: bool) -> tuple[str, str] | None:
    """Return the file because of which a node does not start a stream, and why; None if it starts it.

    mends_first: whether the node is a 4.0 or later; if not, it is a 3.10.
    """
    files = _Files(stream)
    why = None if mends_first else files.unread_offsets()
    return why or files.unopened(mends_first)


class _Files:
    """The indexes of a stream in their order, with the numbers of their segments, -1 for one that has none."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        indexed = [(int(stream.first[number]), number) for number in range(len(stream)) if stream.index_size[number] >= 0]
        self._all = sorted([*indexed, *((first, -1) for first in stream.lone.tolist())])

    def unread_offsets(self) -> tuple[str, str] | None:
        """Return what keeps a 3.10 from reading the offsets of the stream as it is."""
        last = len(self._all)
        while last > 1 and self._all[last - 1][1] >= 0 and self._stream.index_size[self._all[last - 1][1]] <= len(INDEX_HEADER):
            last -= 1
        for place, (first, number) in enumerate(self._all[:last]):
            if number < 0:
                return self._stream.lone_index_file(first), "the index has no segment"
            data, _ = self._stream.open(number)
            if self._ends_with_a_head(number, data):
                return self._stream.segment_file(number), "it ends with the header of a chunk that has data"
            if not self._known_end(number, data):
                if len(self._all) > 1:
                    return self._stream.segment_file(number), "its index knows no valid chunk in it"
            elif place in (0, last - 1) and not _begins_with_a_chunk(data):
                return self._stream.segment_file(number), "it does not begin with a chunk"
        return None

    def unopened(self, mends_first: bool) -> tuple[str, str] | None:
        """Return what keeps a node from opening the stream after it has mended its end."""
        count = len(self._all)
        while count > 1 and (self._all[count - 1][1] < 0 or self._stream.size[self._all[count - 1][1]] <= NO_CHUNK):
            count -= 1
        left = self._all[:count]
        if not left or left[0][1] < 0:
            return (self._stream.lone_index_file(left[0][0]), "the index has no segment") if len(left) > 1 else None
        if len(left) == 1:
            return self._unopened_alone(left[0][1], mends_first)
        first = left[0][1]
        if self._stream.index_size[first] < len(INDEX_HEADER) + RECORD.itemsize:
            return self._stream.index_file(first), "the first index has no record"
        if not self._known_end(first, self._stream.open(first)[0]):
            return self._stream.segment_file(first), "the index of the first segment knows no valid chunk in it"
        return self._without_a_mark([first]) or self._unwalked(left)

    def _unopened_alone(self, number: int, mends_first: bool) -> tuple[str, str] | None:
        data, _ = self._stream.open(number)
        if self._known_end(number, data):
            return self._without_a_mark([number]) or self._unwalked([(0, number)])
        if not mends_first and _walked(data, len(data)) != max(len(data), len(HEADER)):  # it does not cut it then
            return self._stream.segment_file(number), "its index knows no valid chunk, and its headers lead nowhere"
        return None

    def _unwalked(self, left: Sequence[tuple[int, int]]) -> tuple[str, str] | None:
        """Return the last segment of which the index knows a valid chunk, if its headers do not lead from chunk to chunk."""
        for _, number in reversed(left):
            if number < 0:
                continue
            data, _ = self._stream.open(number)
            if end := self._known_end(number, data):
                leads = _walked(data, end) >= end
                return None if leads else (self._stream.segment_file(number), "its headers do not lead from chunk to chunk")
        return None

    def _without_a_mark(self, numbers: Sequence[int]) -> tuple[str, str] | None:
        for number in numbers:
            if not _begins_with_a_chunk(self._stream.open(number)[0]):
                return self._stream.segment_file(number), "it does not begin with a chunk"
        return None

    def _positions(self, number: int) -> Iterator[int]:
        """Yield the positions that the index of a segment has, from the last one back."""
        positions = self._stream.index(number)[0].records["position"]
        yield from (int(position) for position in positions[::-1])

    def _known_end(self, number: int, data: Bytes) -> int:
        """Return where the header of the last valid chunk that the index of a segment knows says that it ends; 0: it knows none."""
        return next((_end(data, position) for position in self._positions(number) if _is_valid(data, position)), 0)

    def _ends_with_a_head(self, number: int, data: Bytes) -> bool:
        """Return whether a 3.10 ends where it looks for the last valid chunk: of one that is there, its data are at the end of the file."""
        for position in self._positions(number):
            if position + _HEAD.size == len(data) and data[position] == _MARK and _HEAD.unpack(data[position:].tobytes())[2]:
                return True
            if _is_valid(data, position):
                return False
        return False


def _is_valid(data: Bytes, position: int) -> bool:
    """Return whether a node takes what is at a position for a chunk: by its mark and the checksum of its data."""
    head = data[position : position + _HEAD.size].tobytes()
    if len(head) < _HEAD.size:
        return False
    mark, checksum, size, _, filter_size = _HEAD.unpack(head)
    start = position + _HEAD.size + filter_size
    return bool(mark == _MARK and start + size <= len(data) and crc32(data[start : start + size]) == checksum)


def _begins_with_a_chunk(data: Bytes) -> bool:
    return len(data) >= len(HEADER) + _HEAD.size and bool(data[len(HEADER)] == _MARK)


def _end(data: Bytes, position: int) -> int:
    _, _, size, trailer, filter_size = _HEAD.unpack(data[position : position + _HEAD.size].tobytes())
    return int(position + _HEAD.size + filter_size + size + trailer)


def _walked(data: Bytes, end: int) -> int:
    """Return where the headers of a segment lead from its first place, up to an end; -1 if there is no header on the way."""
    at = len(HEADER)
    while at < min(end, len(data)):
        if at + _HEAD.size > len(data) or data[at] != _MARK:
            return -1
        at = _end(data, at)
    return at
