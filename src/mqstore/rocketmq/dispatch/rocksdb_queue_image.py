"""A consume queue in RocksDB as a broker holds it: entries by queue offset, written where the record says, and an end that is cut.

No entry is shifted, and none is refused as a duplicate: an entry that is dispatched again is written over itself. Entries of the database
stay where they are and are read when they are asked for; those that dispatch adds are held in memory.

    >>> import numpy as np
    >>> rows = np.array([(123456, 200, 7), (123656, 201, 8)], ENTRY)
    >>> queue = RocksQueueImage("T", 0)
    >>> queue.append(QueueRun("T", 0, np.array([13, 15]), rows.view(np.uint8), False))
    >>> queue.min_offset, queue.max_offset, queue.entries(13, 16)["size"].tolist()
    (13, 16, [200, 0, 201])
    >>> queue.truncate(123656)
    >>> queue.min_offset, queue.max_offset
    (13, 14)

Format: docs/formats/rocketmq.md, section 4.11.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mqstore.rocketmq.dispatch.base_queue_image import Rows
from mqstore.rocketmq.dispatch.consume_queue_image import QueueImage
from mqstore.rocketmq.dispatch.dispatcher import QueueRun
from mqstore.rocketmq.format.consume_queue import DEFAULT_FILE_SIZE, ENTRY
from mqstore.rocketmq.format.rocksdb_queue import MAX_GAP, RocksQueueReader

PART = 65536  # entries that are looked at at once


class RocksQueueImage(QueueImage):
    """A queue in a database. reader: its entries on disk; None for a queue that dispatch creates.

    apart: how many entries were left out, because their queue offsets are further from the others than a broker leaves a gap.
    """

    def __init__(self, topic: str, queue_id: int, reader: RocksQueueReader | None = None) -> None:
        super().__init__(topic, queue_id, DEFAULT_FILE_SIZE)
        self._reader = reader
        self._low, self._high = (0, 0) if reader is None else (reader.min_offset, reader.max_offset)
        self._empty = self._low == self._high
        self._added: list[tuple[NDArray[np.int64], Rows]] = []
        self.max_physical_offset = -1 if reader is None else reader.max_physical_offset
        self.apart = 0

    @property
    def exists(self) -> bool:
        return not self._empty

    @property
    def min_offset(self) -> int:
        return self._low

    @property
    def max_offset(self) -> int:
        return self._high

    def recover(self) -> None:
        """Do nothing: a database knows its end."""

    def destroy(self) -> None:
        self._reader, self._added, self._empty = None, [], True
        self._low = self._high = 0
        self.max_physical_offset = -1

    def append(self, run: QueueRun) -> None:
        """Write a run of entries at the queue offsets of their records."""
        rows = np.ascontiguousarray(run.entries).view(ENTRY)
        fits = run.offsets >= 0
        offsets, rows = np.ascontiguousarray(run.offsets[fits]).astype(np.int64), rows[fits]
        near = self._near(offsets)
        if not near.all():
            self.apart += int((~near).sum())
            offsets, rows = offsets[near], rows[near]
        if not len(offsets):
            return
        self._added.append((offsets, rows.copy()))
        first, end = int(offsets.min()), int(offsets.max()) + 1
        self._low = first if self._empty else min(self._low, first)
        self._high = end if self._empty else max(self._high, end)
        self._empty = False
        self.max_physical_offset = max(self.max_physical_offset, int((rows["physical_offset"].astype(np.int64) + rows["size"]).max()))

    def _near(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which queue offsets are at most MAX_GAP from the queue, or from others that are; of a new queue, from the first."""
        if not len(offsets):
            return np.empty(0, np.bool_)
        order = np.argsort(offsets, kind="stable")
        ordered = offsets[order]
        # differences of offsets at or above 0 do not overflow
        group = np.concatenate([[0], np.cumsum(np.diff(ordered) > MAX_GAP)])
        if self._empty:
            chosen = group == group[np.flatnonzero(order == 0)[0]]
        else:
            touches = (ordered >= self._low - MAX_GAP) & (ordered - MAX_GAP <= self._high)
            chosen = np.isin(group, group[touches])
        near = np.empty(len(offsets), np.bool_)
        near[order] = chosen
        return near

    def entries(self, start: int, stop: int) -> Rows:
        """Return entries start..stop-1, within minimum and maximum; zeros where there is none."""
        low, high = max(start, self._low), min(stop, self._high)
        if low >= high:
            return np.empty(0, ENTRY)
        result = np.zeros(high - low, ENTRY)
        if self._reader is not None:
            begin, end = max(low, self._reader.min_offset), min(high, self._reader.max_offset)
            if begin < end:
                result[begin - low : end - low] = self._reader.entries(begin, end)
        for offsets, rows in self._added:
            inside = (offsets >= low) & (offsets < high)
            result[offsets[inside] - low] = rows[inside]
        return result

    def truncate(self, physical: int) -> None:
        """Drop the entries of records at or after a physical offset, which are at the end."""
        while self._high > self._low:
            begin = max(self._low, self._high - PART)
            places = self.entries(begin, self._high)["physical_offset"].astype(np.int64)
            sizes = self.entries(begin, self._high)["size"]
            valid = np.flatnonzero((places < physical) & (sizes > 0))
            if len(valid):
                self._high = begin + int(valid[-1]) + 1
                self.max_physical_offset = min(self.max_physical_offset, physical)
                return
            self._high = begin
        self.max_physical_offset = -1

    def correct_min(self, log_min: int, version: str) -> None:
        """Move the minimum to the first entry whose record is still in the log."""
        for begin in range(self._low, self._high, PART):
            rows = self.entries(begin, min(self._high, begin + PART))
            valid = np.flatnonzero((rows["physical_offset"].astype(np.int64) >= log_min) & (rows["size"] > 0))
            if len(valid):
                self._low = begin + int(valid[0])
                return
        self._low = self._high
