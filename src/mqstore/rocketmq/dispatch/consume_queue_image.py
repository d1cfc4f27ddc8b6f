"""A consume queue as a broker holds it in memory: recovered, cut, appended to, its minimum corrected.

An entry is appended like this (q: the queue offset in the record; p, s: its physical offset and size):

    p + s <= max_physical_offset      a duplicate: nothing is written
    no file yet                       the first file starts at the multiple of the file size at or below 20 q;
                                      the entries before q are written as blanks (0, 2^31 - 1, 0), the minimum becomes q
    20 q < end of the queue           a duplicate: nothing is written (q = 0 is never one)
    20 q > end of the queue           appended at the end anyway: later entries are shifted
    otherwise                         appended at its position

    >>> import numpy as np
    >>> from mqstore.rocketmq.dispatch.dispatcher import QueueRun
    >>> rows = np.array([(123456, 200, 7), (123656, 201, 8)], ENTRY)
    >>> queue = QueueImage("T", 0, 200)
    >>> queue.append(QueueRun("T", 0, np.array([13, 14]), rows.view(np.uint8), True))
    >>> queue.min_offset, queue.max_offset, queue.max_physical_offset, queue.files[0].start
    (13, 15, 123857, 200)
    >>> queue.correct_min(0, "4.9.3")  # a blank's physical offset is 0: the minimum moves back
    >>> queue.min_offset
    10

Format: docs/formats/rocketmq.md, sections 4.1 to 4.9, 8.2 to 8.4 and 4.10.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from mqstore.kernels.rocketmq import queue_rows
from mqstore.rocketmq.dispatch.base_queue_image import SCAN_ROWS, BaseQueueImage, Rows, Source, java_divide, java_long
from mqstore.rocketmq.dispatch.dispatcher import QueueRun
from mqstore.rocketmq.format.batch_consume_queue import UNIT, valid_units
from mqstore.rocketmq.format.consume_queue import BLANK_SIZE, ENTRY
from mqstore.rocketmq.format.profile import DEFAULT_VERSION, version_rules

BLANK = np.array((0, BLANK_SIZE, 0), ENTRY)

PLAIN_LIMIT = 1 << 58  # smaller queue offsets cannot overflow as byte offsets


class QueueImage(BaseQueueImage):
    """A consume queue of 20-byte entries. min_logic_offset: the minimum as a byte offset. Satisfies `store.view.QueueView`."""

    row = ENTRY
    batch = False

    def __init__(self, topic: str, queue_id: int, file_size: int, files: Iterable[tuple[int, Source]] = ()) -> None:
        super().__init__(topic, queue_id, file_size, files)
        self.min_logic_offset = 0

    def _valid(self, rows: Rows) -> NDArray[np.bool_]:
        good: NDArray[np.bool_] = (rows["physical_offset"] >= 0) & (rows["size"] > 0)
        return good

    def _first_invalid(self, rows: Rows, start: int, below: int | None) -> int:
        if below is not None and below < 0:
            return super()._first_invalid(rows, start, below)
        return queue_rows.plausible_until(rows.view(np.uint8), start, -1 if below is None else below)

    def _max_physical_offset_after(self, row: np.void) -> int:
        return java_long(int(row["physical_offset"]) + int(row["size"]))

    def destroy(self) -> None:
        super().destroy()
        self.min_logic_offset = 0

    @property
    def min_offset(self) -> int:
        return java_divide(self.min_logic_offset, ENTRY.itemsize)

    @property
    def max_offset(self) -> int:
        return java_divide(self.end, ENTRY.itemsize)

    def entries(self, start: int, stop: int) -> Rows:
        """Return entries start..stop-1, within minimum and maximum; zeros where a file is missing."""
        low, high = max(start, self.min_offset), min(stop, self.max_offset)
        if low >= high:
            return np.empty(0, ENTRY)
        rows: Rows | None = None
        for file in self.files:
            first = java_divide(file.start, ENTRY.itemsize)
            begin, end = max(low, first), min(high, first + file.written // ENTRY.itemsize)
            if begin >= end:
                continue
            part = file.part(begin - first, end - first)
            if (begin, end) == (low, high):
                return part
            if rows is None:
                rows = np.zeros(high - low, ENTRY)
            rows[begin - low : end - low] = part
        return np.zeros(high - low, ENTRY) if rows is None else rows

    def append(self, run: QueueRun) -> None:
        """Append a run of entries, in log order."""
        raw = np.ascontiguousarray(run.entries)
        rows = raw.view(ENTRY)
        first, offsets = run.first, run.offsets
        at = queue_rows.count_stored(raw, self.max_physical_offset) if run.consecutive and 0 <= first < PLAIN_LIMIT else -1
        if at >= 0:
            while at < len(rows):
                gap = first + at - self.end // ENTRY.itemsize
                if not self.files or (first + at == 0 and gap < 0):
                    self._append_one(rows, at, int(offsets[at]))
                    at += 1
                elif gap < 0:
                    self._writable_file(0)
                    at -= gap
                else:
                    self._append_rows(rows[at:])
                    return
            return
        for number, offset in enumerate(offsets.tolist()):
            self._append_one(rows, number, offset)

    def _append_one(self, rows: Rows, number: int, offset: int) -> None:
        end = self._max_physical_offset_after(rows[number])
        if end <= self.max_physical_offset:
            return
        expected = java_long(offset * ENTRY.itemsize)
        start = java_divide(expected, self.file_size) * self.file_size
        file = self._writable_file(start)
        if file.first_created and offset != 0 and file.written == 0:
            self.min_logic_offset = expected
            blanks = max(0, expected - start) // ENTRY.itemsize
            if blanks:
                file.put(np.repeat(BLANK, blanks))
        if offset != 0 and expected < file.end:
            return
        file.put(rows[number : number + 1])
        self.max_physical_offset = end

    def correct_min(self, log_min: int, version: str) -> None:
        """Move the minimum to the first entry whose record is still in the log, by the rules of a version."""
        if version_rules(version).bisects_minimum:
            self._bisect_min(log_min)
        else:
            self._scan_min(log_min)

    def _scan_min(self, log_min: int) -> None:
        if not self.files:
            return
        rows = self.files[0].written_rows()
        for at in range(0, len(rows), SCAN_ROWS):
            valid = rows["physical_offset"][at : at + SCAN_ROWS] >= log_min
            if valid.any():
                number = at + int(np.argmax(valid))
                self._set_first_entry(self.files[0].start + number * ENTRY.itemsize, int(rows["tags_code"][number]))
                return

    def _bisect_min(self, log_min: int) -> None:
        if self.min_logic_offset >= self.end:
            return
        last = self.files[-1]
        count = last.written // ENTRY.itemsize
        if count and int(last.part(count - 1, count)["physical_offset"][0]) < log_min:
            self.min_logic_offset = last.end
            return
        first = self.files[0]
        start = self.min_logic_offset - first.start
        usable = start >= 0
        start = max(0, start)
        if start >= first.written:
            return
        written = first.written_rows()[start // ENTRY.itemsize :]
        rows = written["physical_offset"]
        if usable and int(rows[0]) >= log_min:
            return
        low, high = 0, len(rows) - 1
        while high - low > 1:
            middle = (low + high) // 2
            physical = int(rows[middle])
            if physical == log_min:
                low = high = middle
            elif physical > log_min:
                high = middle
            else:
                low = middle
        for number in (low, high):
            if int(rows[number]) >= log_min:
                self._set_first_entry(first.start + start + number * ENTRY.itemsize, int(written["tags_code"][number]))
                return

    def _set_first_entry(self, position: int, tags_code: int) -> None:
        """Set the minimum. position: byte of the first entry whose record is still in the log. tags_code: of that entry."""
        self.min_logic_offset = position


# A batch consume queue (5.3.3) as a broker holds it in memory: recovered, cut, appended to, its minimum corrected.


class BatchQueueImage(BaseQueueImage):
    """A batch queue of 46-byte units, each standing for several messages. Satisfies `store.view.QueueView`.

    max_physical_offset is the *start* of the last unit's record, as the broker keeps it for this kind of queue.
    """

    row = UNIT
    batch = True

    def __init__(self, topic: str, queue_id: int, file_size: int, files: Iterable[tuple[int, Source]] = ()) -> None:
        super().__init__(topic, queue_id, file_size, files)
        self.min_offset = -1
        self.max_offset = 0

    def _valid(self, rows: Rows) -> NDArray[np.bool_]:
        return valid_units(rows)

    def _max_physical_offset_after(self, row: np.void) -> int:
        return int(row["physical_offset"])

    def _refresh_bounds(self) -> None:
        self._refresh_min()
        self.max_offset = 0
        for file in reversed(self.files[-2:]):
            if file.written:
                unit = file.part(file.written // UNIT.itemsize - 1, file.written // UNIT.itemsize)[0]
                self.max_offset = int(unit["base_offset"]) + int(unit["count"])
                break

    def _refresh_min(self) -> None:
        self.min_offset = int(self.files[0].part(0, 1)["base_offset"][0]) if self.files and self.files[0].written else -1
        if not self.files:
            self.max_offset = 0

    def truncate(self, physical: int) -> None:
        super().truncate(physical)
        if not self.files:
            self.max_physical_offset = physical - 1
        self._refresh_bounds()

    def destroy(self) -> None:
        super().destroy()
        self._refresh_bounds()

    def entries(self, start: int, stop: int) -> Rows:
        """Return the units that hold queue offsets start..stop-1."""
        low, high = max(start, self.min_offset), min(stop, self.max_offset)
        parts = []
        for file in self.files if low < high else ():
            rows = file.written_rows()
            base = rows["base_offset"].astype(np.int64)
            holds = (base < high) & (base + rows["count"] > low)
            parts.append(rows[holds])
        return np.concatenate(parts) if parts else np.empty(0, UNIT)

    def append(self, run: QueueRun) -> None:
        """Append a run of units, in log order. A record at or before that of the last unit is a duplicate."""
        rows = np.ascontiguousarray(run.entries).view(UNIT)
        rows = rows[(rows["base_offset"] >= 0) & (rows["count"] >= 0)]
        physical = rows["physical_offset"].astype(np.int64)
        before = np.maximum.accumulate(np.concatenate([[self.max_physical_offset], physical[:-1]]))[: len(rows)]
        rows = rows[physical > before]
        if not len(rows):
            return
        self._append_rows(rows)
        self.max_offset = int(rows["base_offset"][-1]) + int(rows["count"][-1])
        if self.files[0].first_created and self.min_offset == -1:
            self._refresh_min()

    def correct_min(self, log_min: int, version: str = DEFAULT_VERSION) -> None:
        """Move the minimum past the leading units of the first file whose records have left the log."""
        self._refresh_min()
        if not self.files:
            return
        rows = self.files[0].written_rows()
        valid = rows["physical_offset"] >= log_min
        gone = int(np.argmax(valid)) if valid.any() else len(rows)
        if gone:
            self.min_offset = int(rows["base_offset"][gone - 1]) + int(rows["count"][gone - 1])
