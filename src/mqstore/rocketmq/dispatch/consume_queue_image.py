"""Consume queues as a broker holds them in memory: recovered, cut, appended to, their minimum corrected.

A queue is a row of files of equal size. Nothing says how far a file is written: at load every file counts as full, and
recovery reads the entries of the last three until one is not plausible. An entry is appended like this (q: the queue
offset in the record, p, s: its physical offset and size):

    p + s <= max_physical_offset      already listed: nothing is written
    no file yet                       the first file starts at the multiple of the file size below 20 q;
                                      the entries before q are written as blanks (0, 2^31 - 1, 0), the minimum becomes q
    20 q < end of the queue           a duplicate: nothing is written (q = 0 is never one)
    20 q > end of the queue           appended at the end all the same: the entries behind are shifted
    otherwise                         appended where it belongs

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

Files that exist are read through maps, and what is appended stays in memory. The same images, started empty, build queue
files from scratch.

Format: docs/formats/rocketmq.md, sections 4.1 to 4.10 and 8.2 to 8.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes, MappedFile
from mqstore.kernels.rocketmq import queue_rows
from mqstore.rocketmq.dispatch.dispatcher import QueueRun
from mqstore.rocketmq.format.batch_consume_queue import UNIT
from mqstore.rocketmq.format.consume_queue import BLANK_SIZE, ENTRY

__all__ = ["ENTRY", "UNIT", "BatchQueueImage", "FileImage", "QueueImage", "Source"]

Longs = NDArray[np.int64]
Rows = NDArray[np.void]
Source = Callable[[], MappedFile]

BLANK = np.array((0, BLANK_SIZE, 0), ENTRY)

_SCAN = 8192  # rows looked at in one stroke
_PLAIN_LIMIT = 1 << 58  # queue offsets below it cannot overflow as byte offsets


def wrapped(number: int) -> int:
    """The number as a Java long holds it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _quotient(number: int, divisor: int) -> int:
    """Division as Java does it, toward zero."""
    return number // divisor if number >= 0 else -(-number // divisor)


class FileImage:
    """One file of a queue. written: bytes that count. Rows behind them may hold what an earlier life of the queue left there.

    first_created: the broker made this file when the queue had none, which it remembers until it is restarted.
    Rows that were appended lie in memory over those of the file, which is mapped only while it is read: a store may have
    more queue files than a process may have open.
    """

    __slots__ = ("_own", "_own_count", "_own_from", "_row", "_source", "first_created", "size", "start", "written")

    def __init__(self, start: int, size: int, row: np.dtype[np.void], source: Source | None = None, *, first_created: bool = False) -> None:
        self.start = start
        self.size = size
        self.first_created = first_created
        self.written = 0 if source is None else size
        self._row = row
        self._source = source
        self._own = np.empty(0, row)
        self._own_from = self._own_count = 0

    @property
    def end(self) -> int:
        """Logical byte offset behind the written rows."""
        return self.start + self.written

    @property
    def full(self) -> bool:
        return self.written + self._row.itemsize > self.size

    @property
    def rows(self) -> Rows:
        """The rows of the file, written or not. A file that is not on disk shows only those that were appended."""
        return self.part(0, self.size // self._row.itemsize)

    def live(self) -> Rows:
        """The written rows."""
        return self.part(0, self.written // self._row.itemsize)

    def part(self, start: int, stop: int) -> Rows:
        """Rows start..stop-1, as far as there are any."""
        low, high = self._own_from, self._own_from + self._own_count
        if self._source is None or (low <= start and stop <= high):
            return self._own[max(0, start - low) : min(stop, high) - low]
        data = self._source().data[: self.size // self._row.itemsize * self._row.itemsize]
        base: Rows = data[: len(data) // self._row.itemsize * self._row.itemsize].view(self._row)[start:stop]
        if stop <= low or high <= start or low == high:
            return base
        found = base.copy()
        begin, end = max(start, low), min(stop, high)
        found[begin - start : end - start] = self._own[begin - low : end - low]
        return found

    def put(self, rows: Rows) -> None:
        """Append rows that fit into the file."""
        first = self.written // self._row.itemsize
        if not self._own_count:
            self._own_from = first
        elif not self._own_from <= first <= self._own_from + self._own_count:
            low, high = min(first, self._own_from), max(first, self._own_from + self._own_count)
            self._own, self._own_from, self._own_count = self.part(low, high).copy(), low, high - low
        at = first - self._own_from
        if at + len(rows) > len(self._own):
            grown = np.empty(min(max(at + len(rows), 2 * len(self._own), 16), self.size // self._row.itemsize), self._row)
            grown[: self._own_count] = self._own[: self._own_count]
            self._own = grown
        self._own[at : at + len(rows)] = rows
        self._own_count = max(self._own_count, at + len(rows))
        self.written += len(rows) * self._row.itemsize

    def bytes(self) -> Bytes:
        """The written bytes."""
        return self.live().view(np.uint8)


class _Image:
    """What both kinds of queue have in common: files of rows, recovery and truncation."""

    row: ClassVar[np.dtype[np.void]]
    batch: ClassVar[bool]

    def __init__(self, topic: str, queue_id: int, file_size: int, files: Iterable[tuple[int, Source]] = ()) -> None:
        """files: start and map of each file, ascending. file_size: bytes, a multiple of the row."""
        if file_size < self.row.itemsize:
            raise ValueError(f"a queue file of {file_size} bytes has no room for an entry of {self.row.itemsize}")
        self.topic = topic
        self.queue_id = queue_id
        self.file_size = file_size
        self.files = [FileImage(start, file_size, self.row, source) for start, source in files]
        self.max_physical_offset = -1

    # what differs

    def _valid(self, rows: Rows) -> NDArray[np.bool_]:
        raise NotImplementedError

    def _listed(self, row: np.void) -> int:
        """What max_physical_offset becomes when this row is the last one."""
        raise NotImplementedError

    def _settle(self) -> None:
        """After the files were cut: set what is derived from them."""

    # load

    def recover(self) -> None:
        """Find the end of the queue in its last three files, as a broker does at load."""
        if not self.files:
            return
        number = max(0, len(self.files) - 3)
        while True:
            file = self.files[number]
            count = self._plausible(file.rows, 0, None)
            if count:
                self.max_physical_offset = self._listed(file.rows[count - 1])
            if count < self.file_size // self.row.itemsize or number + 1 == len(self.files):
                break
            number += 1
        self._cut(file.start + count * self.row.itemsize)
        self._settle()

    def _plausible(self, rows: Rows, start: int, below: int | None) -> int:
        """Number of the first row at or behind start that is not valid, or lists a record at or behind `below`."""
        for at in range(start, len(rows), _SCAN):
            part = rows[at : at + _SCAN]
            good = self._valid(part)
            if below is not None:
                good &= part["physical_offset"] < below
            if not good.all():
                return at + int(np.argmin(good))
        return len(rows)

    def _cut(self, end: int) -> None:
        """Cut the files at a logical byte offset: those wholly behind it go, the one that holds it is written up to there."""
        kept, gone = [], []
        for file in self.files:
            if file.start + file.size > end:
                if file.start > end:
                    gone.append(file)
                    continue
                file.written = end - file.start
            kept.append(file)
        self.files = kept
        self._removed(gone)

    def truncate(self, physical: int) -> None:
        """Drop the entries of records at or behind a physical offset, file by file from the last.

        The first row of a file is never checked for being an entry at all: a file without entries counts one afterwards.
        """
        self.max_physical_offset = physical
        while self.files:
            file = self.files[-1]
            rows = file.rows
            if not len(rows):
                file.put(np.zeros(1, self.row))
                rows = file.rows
            if int(rows["physical_offset"][0]) >= physical:
                self._removed([self.files.pop()])
                continue
            count = self._plausible(rows, 1, physical)
            file.written = count * self.row.itemsize
            self.max_physical_offset = self._listed(rows[count - 1])
            break

    def destroy(self) -> None:
        """What a broker does to every queue when it finds no commit log."""
        gone, self.files = self.files, []
        self.max_physical_offset = -1
        self._removed(gone)

    # append

    def _tail(self, start: int) -> FileImage:
        """The file to append to; made where there is none or the last one is full. start: of a first file."""
        if not self.files:
            self.files.append(self._new_file(start, first_created=True))
        elif self.files[-1].full:
            self.files.append(self._new_file(self.files[-1].start + self.file_size, first_created=False))
        return self.files[-1]

    def expire(self, log_min: int) -> int:
        """Remove the leading files whose last entry lists a record below the log's minimum; the last file stays. Returns how many."""
        gone = 0
        while len(self.files) > 1:
            first = self.files[0]
            last = first.size // self.row.itemsize
            if int(first.part(last - 1, last)["physical_offset"][0]) >= log_min:
                break
            self._removed([first])
            self.files = self.files[1:]
            gone += 1
        return gone

    # where files are: in memory here, on disk in `queuewriting`

    def _new_file(self, start: int, *, first_created: bool) -> FileImage:
        return FileImage(start, self.file_size, self.row, first_created=first_created)

    def _removed(self, files: Sequence[FileImage]) -> None:
        """Files that are no longer part of the queue."""

    def _put(self, rows: Rows) -> None:
        """Append rows at the end, into as many files as it takes."""
        at = 0
        while at < len(rows):
            file = self._tail(0)
            part = rows[at : at + (file.size - file.written) // self.row.itemsize]
            file.put(part)
            # after each file: where a later one cannot be written, these rows are known when they come again
            self.max_physical_offset = self._listed(part[-1])
            at += len(part)

    # what is there

    @property
    def end(self) -> int:
        """Logical byte offset behind the last row; 0 without files."""
        return self.files[-1].end if self.files else 0


class QueueImage(_Image):
    """A consume queue of 20-byte entries. min_logic_offset: the minimum as a byte offset. Satisfies `view.QueueView`."""

    row = ENTRY
    batch = False

    def __init__(self, topic: str, queue_id: int, file_size: int, files: Iterable[tuple[int, Source]] = ()) -> None:
        super().__init__(topic, queue_id, file_size, files)
        self.min_logic_offset = 0

    def _valid(self, rows: Rows) -> NDArray[np.bool_]:
        good: NDArray[np.bool_] = (rows["physical_offset"] >= 0) & (rows["size"] > 0)
        return good

    def _plausible(self, rows: Rows, start: int, below: int | None) -> int:
        if below is not None and below < 0:
            return super()._plausible(rows, start, below)
        return queue_rows.plausible(rows.view(np.uint8), start, -1 if below is None else below)

    def _listed(self, row: np.void) -> int:
        return wrapped(int(row["physical_offset"]) + int(row["size"]))

    def destroy(self) -> None:
        super().destroy()
        self.min_logic_offset = 0

    @property
    def min_offset(self) -> int:
        return _quotient(self.min_logic_offset, ENTRY.itemsize)

    @property
    def max_offset(self) -> int:
        return _quotient(self.end, ENTRY.itemsize)

    def entries(self, start: int, stop: int) -> Rows:
        """The entries of queue offsets start..stop-1, cut to minimum and maximum; zeros where a file is missing."""
        low, high = max(start, self.min_offset), min(stop, self.max_offset)
        if low >= high:
            return np.empty(0, ENTRY)
        found: Rows | None = None
        for file in self.files:
            first = _quotient(file.start, ENTRY.itemsize)
            begin, end = max(low, first), min(high, first + file.written // ENTRY.itemsize)
            if begin >= end:
                continue
            part = file.part(begin - first, end - first)
            if (begin, end) == (low, high):
                return part
            if found is None:
                found = np.zeros(high - low, ENTRY)
            found[begin - low : end - low] = part
        return np.zeros(high - low, ENTRY) if found is None else found

    def append(self, run: QueueRun) -> None:
        """Append a run of entries, in log order."""
        rows = np.ascontiguousarray(run.entries).view(ENTRY)
        ends = rows["physical_offset"].astype(np.int64) + rows["size"]
        offsets = run.offsets
        at = 0
        if run.plain and 0 <= run.first < _PLAIN_LIMIT and int(ends[0]) >= 0 and bool((np.diff(ends) > 0).all()):
            at = int(np.searchsorted(ends, self.max_physical_offset, side="right"))
            while at < len(rows):
                behind = run.first + at - self.end // ENTRY.itemsize
                if not self.files or (run.first + at == 0 and behind < 0):
                    self._append_one(rows, at, int(offsets[at]))
                    at += 1
                elif behind < 0:
                    self._tail(0)
                    at -= behind
                else:
                    self._put(rows[at:])
                    return
            return
        for number, offset in enumerate(offsets.tolist()):
            self._append_one(rows, number, offset)

    def _append_one(self, rows: Rows, number: int, offset: int) -> None:
        end = self._listed(rows[number])
        if end <= self.max_physical_offset:
            return
        expected = wrapped(offset * ENTRY.itemsize)
        start = _quotient(expected, self.file_size) * self.file_size
        file = self._tail(start)
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
        if version == "4.9.3":
            self._correct_min_4(log_min)
        else:
            self._correct_min_5(log_min)

    def _correct_min_4(self, log_min: int) -> None:
        if not self.files:
            return
        rows = self.files[0].live()
        for at in range(0, len(rows), _SCAN):
            kept = rows["physical_offset"][at : at + _SCAN] >= log_min
            if kept.any():
                number = at + int(np.argmax(kept))
                self._begin_at(self.files[0].start + number * ENTRY.itemsize, int(rows["tags_code"][number]))
                return

    def _correct_min_5(self, log_min: int) -> None:
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
        kept = first.live()[start // ENTRY.itemsize :]
        rows = kept["physical_offset"]
        if usable and int(rows[0]) >= log_min:
            return
        low, high = 0, len(rows) - 1
        while high - low > 1:
            middle = (low + high) // 2
            found = int(rows[middle])
            if found == log_min:
                low = high = middle
            elif found > log_min:
                high = middle
            else:
                low = middle
        for number in (low, high):
            if int(rows[number]) >= log_min:
                self._begin_at(first.start + start + number * ENTRY.itemsize, int(kept["tags_code"][number]))
                return

    def _begin_at(self, position: int, tags_code: int) -> None:
        """The first entry whose record is still in the log stands at that byte of the queue, with that tags code."""
        self.min_logic_offset = position


class BatchQueueImage(_Image):
    """A batch queue of 46-byte units, each standing for several messages. Satisfies `view.QueueView`.

    max_physical_offset is the *start* of the record listed last, as the broker keeps it for this kind of queue.
    """

    row = UNIT
    batch = True

    def __init__(self, topic: str, queue_id: int, file_size: int, files: Iterable[tuple[int, Source]] = ()) -> None:
        super().__init__(topic, queue_id, file_size, files)
        self.min_offset = -1
        self.max_offset = 0

    def _valid(self, rows: Rows) -> NDArray[np.bool_]:
        good: NDArray[np.bool_] = (rows["physical_offset"] >= 0) & (rows["size"] > 0) & (rows["base_offset"] >= 0) & (rows["count"] > 0)
        return good

    def _listed(self, row: np.void) -> int:
        return int(row["physical_offset"])

    def _settle(self) -> None:
        self._settle_min()
        self.max_offset = 0
        for file in reversed(self.files[-2:]):
            if file.written:
                unit = file.part(file.written // UNIT.itemsize - 1, file.written // UNIT.itemsize)[0]
                self.max_offset = int(unit["base_offset"]) + int(unit["count"])
                break

    def _settle_min(self) -> None:
        self.min_offset = int(self.files[0].part(0, 1)["base_offset"][0]) if self.files and self.files[0].written else -1
        if not self.files:
            self.max_offset = 0

    def truncate(self, physical: int) -> None:
        super().truncate(physical)
        if not self.files:
            self.max_physical_offset = physical - 1
        self._settle()

    def destroy(self) -> None:
        super().destroy()
        self._settle()

    def entries(self, start: int, stop: int) -> Rows:
        """The units that hold queue offsets start..stop-1."""
        low, high = max(start, self.min_offset), min(stop, self.max_offset)
        parts = []
        for file in self.files if low < high else ():
            rows = file.live()
            base = rows["base_offset"].astype(np.int64)
            holds = (base < high) & (base + rows["count"] > low)
            parts.append(rows[holds])
        return np.concatenate(parts) if parts else np.empty(0, UNIT)

    def append(self, run: QueueRun) -> None:
        """Append a run of units, in log order. A record at or before the last listed one is a duplicate."""
        rows = np.ascontiguousarray(run.entries).view(UNIT)
        rows = rows[(rows["base_offset"] >= 0) & (rows["count"] >= 0)]
        physical = rows["physical_offset"].astype(np.int64)
        before = np.maximum.accumulate(np.concatenate([[self.max_physical_offset], physical[:-1]]))[: len(rows)]
        rows = rows[physical > before]
        if not len(rows):
            return
        self._put(rows)
        self.max_offset = int(rows["base_offset"][-1]) + int(rows["count"][-1])
        if self.files[0].first_created and self.min_offset == -1:
            self._settle_min()

    def correct_min(self, log_min: int, version: str = "5.3.3") -> None:
        """Move the minimum behind the leading units of the first file whose records have left the log."""
        self._settle_min()
        if not self.files:
            return
        rows = self.files[0].live()
        kept = rows["physical_offset"] >= log_min
        gone = int(np.argmax(kept)) if kept.any() else len(rows)
        if gone:
            self.min_offset = int(rows["base_offset"][gone - 1]) + int(rows["count"][gone - 1])
