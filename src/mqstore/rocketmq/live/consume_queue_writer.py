"""Consume queues that are written: the images of `dispatch.consume_queue_image` with their files on disk.

Rows are read through maps and written by positioned writes, so that a full disk is an error and not the end of the process.
A file is made at its full size, all zeros. How far a file is written is known to the living queue only; recovery finds
it by scanning, so behind the last row there must be nothing that looks like one: `clear_tails` sees to that once a store
was loaded.

Format: docs/formats/rocketmq.md, sections 4.2 and 7.2.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.files import MappedFile, ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.kernels.rocketmq.pull import Held
from mqstore.rocketmq.dispatch.base_queue_image import FileImage
from mqstore.rocketmq.dispatch.batch_consume_queue_image import BatchQueueImage
from mqstore.rocketmq.dispatch.consume_queue_image import QueueImage
from mqstore.rocketmq.dispatch.dispatcher import QueueRun
from mqstore.rocketmq.format.consume_queue import BLANK_SIZE, ENTRY
from mqstore.rocketmq.format.mapped_file_queue import FileQueue, QueueFile

__all__ = ["QueueFiles", "StoredBatchQueue", "StoredFile", "StoredQueue"]

Rows = NDArray[np.void]

PAGE = 4096


class StoredFile(FileImage):
    """One file of a queue on disk. synced: bytes of it that have reached the disk for certain. held: its map while it is much read."""

    __slots__ = ("_shelf", "held", "kept", "relative", "synced")

    def __init__(
        self, shelf: QueueFiles, relative: str, start: int, size: int, row: np.dtype[np.void], written: int, *, first_created: bool = False
    ) -> None:
        super().__init__(start, size, row, first_created=first_created)
        self.relative = relative
        self.written = written
        self.synced = written
        self.held: Held | None = None
        self.kept: MappedFile | None = None  # of a file that was removed: who has it in hand goes on reading
        self._shelf = shelf

    def mapped(self) -> MappedFile:
        """The file mapped for reading; it shows what is written as soon as it is."""
        try:
            return self._shelf.reading.mapped(self.relative)
        except CannotOpenError:
            if self.kept is None:
                raise
            return self.kept

    def part(self, start: int, stop: int) -> Rows:
        data = self.mapped().data
        rows: Rows = data[: min(self.size, len(data)) // self._row.itemsize * self._row.itemsize].view(self._row)
        return rows[start:stop]

    def put(self, rows: Rows) -> None:
        self._shelf.write(self, self.written, rows)
        self.written += len(rows) * self._row.itemsize


class QueueFiles:
    """Where the files of all queues of a store are. One thread writes; any may read; another one may call `sync`."""

    def __init__(self, reading: ReadOnlyDirectory, writing: DurableDirectory, syncing: DurableDirectory) -> None:
        """writing, syncing: the same directory, opened for each of the two threads."""
        self.reading = reading
        self._writing = writing
        self._syncing = syncing
        self._lock = threading.Lock()
        self._dirty: dict[str, StoredFile] = {}
        self._named: set[str] = set()

    def create(self, relative: str, size: int, before: FileImage | None) -> None:
        """A new file of zeros; its name lasts from the next `sync` on.

        before: the full file that it follows, which is brought to disk first: recovery looks at the newest files only, and takes
        the first one there is for the beginning of the queue.
        """
        if isinstance(before, StoredFile):
            self._writing.sync(before.relative)
            self._writing.sync_directory(before.relative.rpartition("/")[0])
        if self._writing.exists(relative):
            self._writing.remove(relative)
        self.reading.forget(relative)
        self._writing.create(relative, size)
        self._name(relative)

    def _name(self, relative: str) -> None:
        """The directories above a file hold names that are not on disk for certain."""
        with self._lock:
            while relative:
                relative = relative.rpartition("/")[0]
                self._named.add(relative)

    def distrust(self, files: Sequence[FileImage]) -> None:
        """The files of a queue that somebody else wrote before he was killed: the next `sync` brings the newest two to disk."""
        for file in files[-2:]:
            if isinstance(file, StoredFile):
                self._name(file.relative)
                with self._lock:
                    self._dirty[file.relative] = file

    def write(self, file: StoredFile, position: int, rows: Rows) -> None:
        """Write rows at a position of a file."""
        self._writing.pwrite(file.relative, position, np.ascontiguousarray(rows))
        with self._lock:
            self._dirty[file.relative] = file

    def remove(self, file: StoredFile) -> None:
        """Remove a file that is no longer part of its queue."""
        if self._writing.exists(file.relative):
            file.kept = self.reading.mapped(file.relative)
        if file.held is not None:
            file.held.release()
        with self._lock:
            self._dirty.pop(file.relative, None)
        self.reading.forget(file.relative)
        if self._writing.exists(file.relative):
            self._writing.remove(file.relative)

    def clear_tail(self, file: StoredFile) -> None:
        """Overwrite what an earlier life of the queue left behind the last row of a file."""
        mapped = file.mapped()
        last = mapped.last_nonzero(file.written, min(file.size, mapped.size))
        if last >= 0:
            self._writing.pwrite(file.relative, file.written, bytes(last + 1 - file.written))
            with self._lock:
                self._dirty[file.relative] = file
            file.synced = -1

    def sync(self, least_pages: int = 0) -> bool:
        """Bring the files to disk that have so many new pages (0: all that have anything new). Whether nothing is left unsynced."""
        with self._lock:
            dirty, named = list(self._dirty.values()), sorted(self._named, reverse=True)
            if least_pages == 0:
                self._named = set()
        for file in dirty:
            written = file.written
            if least_pages and written < file.size and written // PAGE - max(0, file.synced) // PAGE < least_pages:
                continue
            with self._lock:
                self._dirty.pop(file.relative, None)
            if self._syncing.exists(file.relative):
                self._sync_file(file)
                file.synced = written
        if least_pages == 0:
            for relative in named:
                if self._syncing.exists(relative):
                    self._syncing.sync_directory(relative)
        with self._lock:
            return not self._dirty and not self._named

    def _sync_file(self, file: StoredFile) -> None:
        try:
            self._syncing.sync(file.relative)
        except BaseException:
            with self._lock:
                self._dirty[file.relative] = file
            raise

    def close(self) -> None:
        self._writing.close()
        self._syncing.close()


class StoredQueue(QueueImage):
    """A consume queue on disk. relative: its directory. on_minimum: is told the tags code of an entry that becomes the first."""

    def __init__(self, shelf: QueueFiles, topic: str, queue_id: int, file_size: int, loaded: FileQueue | None) -> None:
        super().__init__(topic, queue_id, file_size)
        self.relative = loaded.relative if loaded is not None else f"consumequeue/{topic}/{queue_id}"
        self.on_minimum: Callable[[int], object] | None = None
        self._shelf = shelf
        self.files = _loaded(shelf, loaded, file_size, self.row)

    def _new_file(self, start: int, *, first_created: bool) -> FileImage:
        return _new_file(self._shelf, self, start, first_created=first_created)

    def _discard(self, files: Sequence[FileImage]) -> None:
        _removed(self._shelf, files)

    def _set_first_entry(self, position: int, tags_code: int) -> None:
        super()._set_first_entry(position, tags_code)
        if self.on_minimum is not None:
            self.on_minimum(tags_code)

    def amend(self, run: QueueRun, may_stay: Callable[[Rows], NDArray[np.bool_]]) -> None:
        """Write entries of the run that are listed already, but otherwise, where they belong.

        may_stay: which of some entries that differ in the tags code alone are right as they are. Blank entries stay.
        """
        wanted = np.ascontiguousarray(run.entries).view(ENTRY)
        for file in self.files:
            assert isinstance(file, StoredFile)
            first = file.start // ENTRY.itemsize
            inside = np.flatnonzero((run.offsets >= first) & (run.offsets < first + file.written // ENTRY.itemsize))
            if not len(inside):
                continue
            rows = file.written_rows()[run.offsets[inside] - first]
            new = wanted[inside]
            same = (rows["physical_offset"] == new["physical_offset"]) & (rows["size"] == new["size"])
            other = ~same | (rows["tags_code"] != new["tags_code"])
            other &= rows["size"] != BLANK_SIZE
            if (rows["physical_offset"] > new["physical_offset"])[other].any():
                return  # parts of an entry are smaller than all of it: the queue is not torn but shifted, by a hole that is older
            suspect = np.flatnonzero(other & same)
            other[suspect] = ~may_stay(rows[suspect])
            for number in inside[other].tolist():
                self._shelf.write(file, (int(run.offsets[number]) - first) * ENTRY.itemsize, wanted[number : number + 1])
            last = int(inside[-1])
            if other.any() and int(run.offsets[last]) == self.max_offset - 1:
                self.max_physical_offset = max(self.max_physical_offset, self._max_physical_offset_after(wanted[last]))


class StoredBatchQueue(BatchQueueImage):
    """A batch queue on disk. relative: its directory."""

    def __init__(self, shelf: QueueFiles, topic: str, queue_id: int, file_size: int, loaded: FileQueue | None) -> None:
        super().__init__(topic, queue_id, file_size)
        self.relative = loaded.relative if loaded is not None else f"batchconsumequeue/{topic}/{queue_id}"
        self._shelf = shelf
        self.files = _loaded(shelf, loaded, file_size, self.row)

    def _new_file(self, start: int, *, first_created: bool) -> FileImage:
        return _new_file(self._shelf, self, start, first_created=first_created)

    def _discard(self, files: Sequence[FileImage]) -> None:
        _removed(self._shelf, files)


def _loaded(shelf: QueueFiles, loaded: FileQueue | None, file_size: int, row: np.dtype[np.void]) -> list[FileImage]:
    """The files found on disk: each counts as full until recovery has looked at it."""
    files: tuple[QueueFile, ...] = () if loaded is None else loaded.files
    return [StoredFile(shelf, file.relative, file.start, file_size, row, file_size) for file in files if file.size == file_size]


def _new_file(shelf: QueueFiles, queue: StoredQueue | StoredBatchQueue, start: int, *, first_created: bool) -> StoredFile:
    relative = f"{queue.relative}/{start:020d}"
    shelf.create(relative, queue.file_size, queue.files[-1] if queue.files else None)
    return StoredFile(shelf, relative, start, queue.file_size, queue.row, 0, first_created=first_created)


def _removed(shelf: QueueFiles, files: Sequence[FileImage]) -> None:
    for file in files:
        if isinstance(file, StoredFile):
            shelf.remove(file)
