"""Consume queue: where the messages of one topic queue are in the commit log.

A queue is a run of equally sized files of 20-byte entries, big-endian:

    offset  size  field
         0     8  physical offset of the record in the commit log
         8     4  size of the record in bytes
        12     8  tags code: the tag's Java string hash, sign-extended (or a delivery time, or an address in the extended queue)

Entry n of the queue is at byte 20*n of the whole run; a file is named by its first byte. An entry of all zeros has
not been written; (0, 0x7fffffff, 0) is a blank that fills the places before the first entry of a queue that does not
begin at the start of a file. The queue is derived: after damage it is rebuilt from the log.

    >>> unpack(bytes.fromhex("00000000000003e8000000b80000000000017862"))
    QueueEntry(physical_offset=1000, size=184, tags_code=96354)

Format: docs/formats/rocketmq.md, section 4.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage
from mqstore.rocketmq.format.mapped_file_queue import QueueFile, QueueReader

ENTRY = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
ENTRY_SIZE = ENTRY.itemsize
DEFAULT_FILE_SIZE = 6_000_000
BLANK_SIZE = 0x7FFFFFFF

ENTRIES_AT_ONCE = 4096  # looked at for the first one that is written
MAX_SAMPLED = 256  # queues whose files are looked at for the common length
MAX_GAP = 1000  # files that may be missing in one place before the files after it count as stray

PACKED_ENTRY = struct.Struct(">qiq")
_QUEUE_ID = re.compile(r"0|[1-9][0-9]{0,9}")


class QueueEntry(NamedTuple):
    """One entry, as stored."""

    physical_offset: int
    size: int
    tags_code: int


def unpack(raw: bytes) -> QueueEntry:
    """Unpack an entry from 20 bytes."""
    return QueueEntry(*PACKED_ENTRY.unpack(raw))


def queues(directory: ReadOnlyDirectory, place: str = "consumequeue") -> list[tuple[str, int]]:
    """List (topic, queue id) of every queue directory, sorted. Other entries are left out, as the broker does."""
    names: list[tuple[str, int]] = []
    for topic in directory.entries(place):
        if not topic.is_directory:
            continue
        names.extend(
            (topic.name, int(queue.name))
            for queue in directory.entries(f"{place}/{topic.name}")
            if queue.is_directory and _QUEUE_ID.fullmatch(queue.name) and int(queue.name) < 1 << 31
        )
    return sorted(names)


def common_file_size(directory: ReadOnlyDirectory, place: str = "consumequeue") -> int | None:
    """Return the most frequent length of queue files if more than one file has it, else None. A broker makes all files equal.

    A single file does not show whether it was cut; the files of other queues do.
    """
    votes = Counter(
        file.size
        for topic, queue_id in queues(directory, place)[:MAX_SAMPLED]
        for file in directory.entries(f"{place}/{topic}/{queue_id}")
        if file.is_file and file.size > 0
    )
    size, count = max(votes.items(), key=lambda vote: (vote[1], vote[0]), default=(0, 0))
    return size if count > 1 else None


class ConsumeQueueReader(QueueReader):
    """Entries of one queue, by queue offset, as stored on disk. Satisfies `store.view.QueueView`."""

    root = "consumequeue"
    batch = False
    max_gap = MAX_GAP

    @property
    def findings(self) -> tuple[Damage, ...]:
        return tuple(self._queue.findings)

    def rows(self, file: QueueFile) -> NDArray[np.void]:
        """Return all whole entries of a file, written or not, as a view of the map."""
        size = min(file.size, self.file_size)
        size -= size % ENTRY_SIZE
        return self._directory.mapped(file.relative).load(0, size)[:size].view(ENTRY)

    @cached_property
    def _bounds(self) -> tuple[int, int]:
        high = 0
        for file in reversed(self.files):
            last = self._directory.mapped(file.relative).last_nonzero(0, file.size - file.size % ENTRY_SIZE)
            if last >= 0:
                high = (file.start + last) // ENTRY_SIZE + 1
                break
        for file in self.files:
            rows = self.rows(file)
            for start in range(0, len(rows), ENTRIES_AT_ONCE):
                part = rows[start : start + ENTRIES_AT_ONCE]
                real = np.flatnonzero((part["size"] != 0) & (part["size"] != BLANK_SIZE) | (part["physical_offset"] != 0))
                if len(real):
                    return file.start // ENTRY_SIZE + start + int(real[0]), high
                if file.start // ENTRY_SIZE + start >= high:
                    return high, high
        return high, high

    def file_ranges(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield the half-open ranges of entries of each file that lies within a range, up to the end of the queue or from its begin."""
        for file in self.files:
            start, stop = file.start // ENTRY_SIZE, (file.start + file.size) // ENTRY_SIZE
            start, stop = max(start, self.min_offset), min(stop, self.max_offset)
            if low <= start < stop <= high:
                yield start, stop

    @property
    def min_offset(self) -> int:
        """Queue offset of the first written entry that is not a blank."""
        return self._bounds[0]

    @property
    def max_offset(self) -> int:
        """Queue offset after the last written entry."""
        return self._bounds[1]

    @property
    def max_physical_offset(self) -> int:
        """Physical offset after the record of the last entry; -1 for an empty queue."""
        if self.min_offset == self.max_offset:
            return -1
        last = self.entries(self.max_offset - 1, self.max_offset)[0]
        return int(last["physical_offset"]) + int(last["size"])

    @cached_property
    def listed(self) -> int:
        """The number of messages that the files list. Of the last written file entries are counted, of the others there is room for it."""
        low, high = (offset * ENTRY_SIZE for offset in self._bounds)
        ends = [(max(file.start, low), min(file.start + file.size, high)) for file in self.files]
        written = [(start, end) for start, end in ends if start < end]
        if not written:
            return 0
        start, end = written.pop()
        last = self.entries(start // ENTRY_SIZE, end // ENTRY_SIZE)
        real = int(np.count_nonzero((last["size"] > 0) & (last["physical_offset"] >= 0)))
        return real + sum((end - start) // ENTRY_SIZE for start, end in written)

    def entries(self, start: int, stop: int) -> NDArray[np.void]:
        """Return entries start..stop-1, within the queue's bounds; zeros where a file is missing. Copies only across files."""
        start, stop = max(start, self.min_offset), min(stop, self.max_offset)
        if start >= stop:
            return np.empty(0, ENTRY)
        parts = []
        at = start
        first_file = max(0, bisect_right(self.files, start * ENTRY_SIZE, key=lambda file: file.start) - 1)
        for file in self.files[first_file:]:
            first = file.start // ENTRY_SIZE
            if first >= stop:
                break
            rows = self.rows(file)
            if first + len(rows) <= at:
                continue
            if first > at:
                parts.append(np.zeros(first - at, ENTRY))
                at = first
            upto = min(stop, first + len(rows))
            parts.append(rows[at - first : upto - first])
            at = upto
        if at < stop:
            parts.append(np.zeros(stop - at, ENTRY))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, dtype=ENTRY)

    def place(self, queue_offset: int) -> tuple[str, int]:
        """Return (file relative to the store, byte in it) of an entry; (directory, byte of the run) if no file holds it."""
        position = queue_offset * ENTRY_SIZE
        file = self._queue.file_at(position)
        return (self.relative, position) if file is None else (file.relative, position - file.start)

    def drop(self) -> None:
        """Release the resident pages of this queue's maps."""
        for file in self.files:
            mapped = self._directory.kept(file.relative)
            if mapped is not None:
                mapped.drop(0, mapped.size)


def usable_topic(topic: str) -> bool:
    """Return whether a topic can name a directory, as its queues require."""
    try:
        raw = topic.encode()
    except UnicodeEncodeError:
        return False
    return 0 < len(raw) <= 255 and topic not in (".", "..") and "/" not in topic and "\0" not in topic
