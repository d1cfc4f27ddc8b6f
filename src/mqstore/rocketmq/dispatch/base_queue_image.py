"""What both kinds of consume queue have in common when they are held in memory: files of rows, recovery, truncation.

A queue is a row of files of equal size. Nothing records how far a file is written: at load every file counts as full, and
recovery reads the last three files up to the first invalid row.

Files that exist are read through maps, and appended rows stay in memory. Started empty, the same images build queue files
from scratch; `live.queue_files` keeps them on disk.

Format: docs/formats/rocketmq.md, sections 8.2 to 8.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes, MappedFile

Rows = NDArray[np.void]
Source = Callable[[], MappedFile]

SCAN_ROWS = 8192  # rows checked in one vectorised step


def java_long(number: int) -> int:
    """Return the number wrapped to a signed 64-bit integer, as Java arithmetic does."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def java_divide(number: int, divisor: int) -> int:
    """Divide as Java does, rounding toward zero."""
    return number // divisor if number >= 0 else -(-number // divisor)


class FileImage:
    """One file of a queue. written: bytes that count. Rows past them may be left over from an earlier use of the file.

    first_created: the broker created this file when the queue had none, which it remembers until it restarts.
    Appended rows are in memory and take precedence over those of the file, which is mapped only while it is read: a store may
    have more queue files than a process may have open.
    """

    __slots__ = ("_appended", "_appended_count", "_appended_from", "_row", "_source", "first_created", "size", "start", "written")

    def __init__(self, start: int, size: int, row: np.dtype[np.void], source: Source | None = None, *, first_created: bool = False) -> None:
        self.start = start
        self.size = size
        self.first_created = first_created
        self.written = 0 if source is None else size
        self._row = row
        self._source = source
        self._appended = np.empty(0, row)
        self._appended_from = self._appended_count = 0

    @property
    def end(self) -> int:
        """Logical byte offset after the written rows."""
        return self.start + self.written

    @property
    def full(self) -> bool:
        return self.written + self._row.itemsize > self.size

    @property
    def rows(self) -> Rows:
        """The rows of the file, written or not. A file that is not on disk has only the appended ones."""
        return self.part(0, self.size // self._row.itemsize)

    def written_rows(self) -> Rows:
        """Return the written rows."""
        return self.part(0, self.written // self._row.itemsize)

    def part(self, start: int, stop: int) -> Rows:
        """Return rows start..stop-1, as far as they exist."""
        low, high = self._appended_from, self._appended_from + self._appended_count
        if self._source is None or (low <= start and stop <= high):
            return self._appended[max(0, start - low) : min(stop, high) - low]
        data = self._source().data[: self.size // self._row.itemsize * self._row.itemsize]
        base: Rows = data[: len(data) // self._row.itemsize * self._row.itemsize].view(self._row)[start:stop]
        if stop <= low or high <= start or low == high:
            return base
        rows = base.copy()
        begin, end = max(start, low), min(stop, high)
        rows[begin - start : end - start] = self._appended[begin - low : end - low]
        return rows

    def put(self, rows: Rows) -> None:
        """Append rows; they must fit into the file."""
        first = self.written // self._row.itemsize
        if not self._appended_count:
            self._appended_from = first
        elif not self._appended_from <= first <= self._appended_from + self._appended_count:
            low, high = min(first, self._appended_from), max(first, self._appended_from + self._appended_count)
            self._appended, self._appended_from, self._appended_count = self.part(low, high).copy(), low, high - low
        at = first - self._appended_from
        if at + len(rows) > len(self._appended):
            grown = np.empty(min(max(at + len(rows), 2 * len(self._appended), 16), self.size // self._row.itemsize), self._row)
            grown[: self._appended_count] = self._appended[: self._appended_count]
            self._appended = grown
        self._appended[at : at + len(rows)] = rows
        self._appended_count = max(self._appended_count, at + len(rows))
        self.written += len(rows) * self._row.itemsize

    def bytes(self) -> Bytes:
        """Return the written bytes."""
        return self.written_rows().view(np.uint8)


class BaseQueueImage:
    """A queue as files of rows, with recovery and truncation. The subclasses define what a row is."""

    row: ClassVar[np.dtype[np.void]]
    batch: ClassVar[bool]

    def __init__(self, topic: str, queue_id: int, file_size: int, files: Iterable[tuple[int, Source]] = ()) -> None:
        """files: start and map of each file, ascending. file_size: bytes, a multiple of the row."""
        if file_size < self.row.itemsize:
            raise ValueError(f"a queue file of {file_size} bytes is too small for an entry of {self.row.itemsize}")
        self.topic = topic
        self.queue_id = queue_id
        self.file_size = file_size
        self.files = [FileImage(start, file_size, self.row, source) for start, source in files]
        self.max_physical_offset = -1

    # per kind of queue

    def _valid(self, rows: Rows) -> NDArray[np.bool_]:
        raise NotImplementedError

    def _max_physical_offset_after(self, row: np.void) -> int:
        """Return max_physical_offset if this row is the last one."""
        raise NotImplementedError

    def _refresh_bounds(self) -> None:
        """Recompute what is derived from the files, after they were cut."""

    # load

    def recover(self) -> None:
        """Find the end of the queue in its last three files, as a broker does at load."""
        if not self.files:
            return
        number = max(0, len(self.files) - 3)
        while True:
            file = self.files[number]
            count = self._first_invalid(file.rows, 0, None)
            if count:
                self.max_physical_offset = self._max_physical_offset_after(file.rows[count - 1])
            if count < self.file_size // self.row.itemsize or number + 1 == len(self.files):
                break
            number += 1
        self._truncate(file.start + count * self.row.itemsize)
        self._refresh_bounds()

    def _first_invalid(self, rows: Rows, start: int, below: int | None) -> int:
        """Return the number of the first row from `start` on that is invalid or refers to a record at or after `below`."""
        for at in range(start, len(rows), SCAN_ROWS):
            part = rows[at : at + SCAN_ROWS]
            good = self._valid(part)
            if below is not None:
                good &= part["physical_offset"] < below
            if not good.all():
                return at + int(np.argmin(good))
        return len(rows)

    def _truncate(self, end: int) -> None:
        """Cut the files at a logical byte offset: files past it are discarded, the file that holds it is written up to there."""
        remaining, gone = [], []
        for file in self.files:
            if file.start + file.size > end:
                if file.start > end:
                    gone.append(file)
                    continue
                file.written = end - file.start
            remaining.append(file)
        self.files = remaining
        self._discard(gone)

    def truncate(self, physical: int) -> None:
        """Drop the entries of records at or after a physical offset, file by file from the last.

        The first row of a file is never checked for validity: a file without entries counts one afterwards.
        """
        self.max_physical_offset = physical
        while self.files:
            file = self.files[-1]
            rows = file.rows
            if not len(rows):
                file.put(np.zeros(1, self.row))
                rows = file.rows
            if int(rows["physical_offset"][0]) >= physical:
                self._discard([self.files.pop()])
                continue
            count = self._first_invalid(rows, 1, physical)
            file.written = count * self.row.itemsize
            self.max_physical_offset = self._max_physical_offset_after(rows[count - 1])
            break

    def destroy(self) -> None:
        """Discard all files, as a broker does with every queue when it finds no commit log."""
        gone, self.files = self.files, []
        self.max_physical_offset = -1
        self._discard(gone)

    # append

    def _writable_file(self, start: int) -> FileImage:
        """Return the file to append to, created if there is none or the last one is full. start: of a first file."""
        if not self.files:
            self.files.append(self._new_file(start, first_created=True))
        elif self.files[-1].full:
            self.files.append(self._new_file(self.files[-1].start + self.file_size, first_created=False))
        return self.files[-1]

    def expire(self, log_min: int) -> int:
        """Remove the leading files whose last entry refers to a record below the log's minimum. Keeps the last file; returns the count."""
        gone = 0
        while len(self.files) > 1:
            first = self.files[0]
            last = first.size // self.row.itemsize
            if int(first.part(last - 1, last)["physical_offset"][0]) >= log_min:
                break
            self._discard([first])
            self.files = self.files[1:]
            gone += 1
        return gone

    # file storage: in memory here, on disk in `live.queue_files`

    def _new_file(self, start: int, *, first_created: bool) -> FileImage:
        return FileImage(start, self.file_size, self.row, first_created=first_created)

    def _discard(self, files: Sequence[FileImage]) -> None:
        """Called with files that are no longer part of the queue."""

    def _append_rows(self, rows: Rows) -> None:
        """Append rows at the end, into as many files as needed."""
        at = 0
        while at < len(rows):
            file = self._writable_file(0)
            part = rows[at : at + (file.size - file.written) // self.row.itemsize]
            file.put(part)
            # set after each file: if a later one cannot be written, these rows are recognised as duplicates next time
            self.max_physical_offset = self._max_physical_offset_after(part[-1])
            at += len(part)

    # content

    @property
    def exists(self) -> bool:
        """Whether anything of the queue is stored."""
        return bool(self.files)

    @property
    def end(self) -> int:
        """Logical byte offset after the last row; 0 without files."""
        return self.files[-1].end if self.files else 0
