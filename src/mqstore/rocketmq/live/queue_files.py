"""The files of consume queues on disk: made, written, synced, removed.

Rows are read through maps and written by positioned writes, so that a full disk is an error and does not end the process.
A file is created at its full size, all zeros. How far a file is written is known only in memory; recovery finds it by scanning, so
nothing after the last row may look like a row: `clear_tail` sees to that once a store is loaded.

Format: docs/formats/rocketmq.md, sections 4.2, 4.10 and 7.2.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError, TargetError
from mqstore.files import Bytes, MappedFile, ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.kernels.common.positioned_writes import write_all
from mqstore.kernels.rocketmq import queue_rows
from mqstore.kernels.rocketmq.pull import MappedBytes
from mqstore.rocketmq.dispatch.base_queue_image import BaseQueueImage, FileImage
from mqstore.rocketmq.dispatch.consume_queue_image import PLAIN_LIMIT, BatchQueueImage, QueueImage
from mqstore.rocketmq.dispatch.dispatcher import QueueRun
from mqstore.rocketmq.format.consume_queue import BLANK_SIZE, ENTRY
from mqstore.rocketmq.format.mapped_file_queue import FileQueue

Rows = NDArray[np.void]

PAGE = 4096
LEAST_OPEN_FILES, MOST_OPEN_FILES = 64, 4096


def open_files_at_once() -> int:
    """Return how many queue files may stay open for writing: an eighth of what the process may have open."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = MOST_OPEN_FILES if most == resource.RLIM_INFINITY else most // 8
    return min(max(share, LEAST_OPEN_FILES), MOST_OPEN_FILES)


class StoredFile(FileImage):
    """One file of a queue on disk. synced: bytes known to have reached the disk. held: its map while it is read often."""

    __slots__ = ("_queue_files", "kept", "mapped_bytes", "relative", "synced")

    def __init__(
        self,
        queue_files: QueueFiles,
        relative: str,
        start: int,
        size: int,
        row: np.dtype[np.void],
        written: int,
        *,
        first_created: bool = False,
    ) -> None:
        super().__init__(start, size, row, first_created=first_created)
        self.relative = relative
        self.written = written
        self.synced = written
        self.mapped_bytes: MappedBytes | None = None
        self.kept: MappedFile | None = None  # of a removed file, for readers that still have it
        self._queue_files = queue_files

    def mapped(self) -> MappedFile:
        """Return the file mapped for reading; writes are visible at once."""
        try:
            return self._queue_files.reading.mapped(self.relative)
        except CannotOpenError:
            if self.kept is None:
                raise
            return self.kept

    def part(self, start: int, stop: int) -> Rows:
        data = self.mapped().data
        rows: Rows = data[: min(self.size, len(data)) // self._row.itemsize * self._row.itemsize].view(self._row)
        return rows[start:stop]

    def put(self, rows: Rows) -> None:
        self._queue_files.write(self, self.written, rows)
        self.written += len(rows) * self._row.itemsize


class QueueFiles:
    """The files of all queues of a store. One thread writes; any may read; another may call `sync`."""

    def __init__(self, reading: ReadOnlyDirectory, writing: DurableDirectory, syncing: DurableDirectory) -> None:
        """writing, syncing: the same directory, opened for each of the two threads."""
        self.reading = reading
        self._writing = writing
        self._syncing = syncing
        self._lock = threading.Lock()
        self._dirty: dict[str, StoredFile] = {}
        self._named: set[str] = set()

    def create(self, relative: str, size: int, before: FileImage | None) -> None:
        """Create a file of zeros; its name is durable from the next `sync` on.

        before: the full file that it follows, which is synced first: recovery looks only at the newest files, and takes the first existing
        one for the beginning of the queue.
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
        """Note that the directories above a file hold names that may not be on disk."""
        with self._lock:
            while relative:
                relative = relative.rpartition("/")[0]
                self._named.add(relative)

    def distrust(self, files: Sequence[FileImage]) -> None:
        """Make the next `sync` bring the newest two files of a queue to disk: a killed process wrote them."""
        for file in files[-2:]:
            if isinstance(file, StoredFile):
                self._name(file.relative)
                with self._lock:
                    self._dirty[file.relative] = file

    def write(self, file: StoredFile, position: int, rows: Rows) -> None:
        """Write rows at a position of a file."""
        self._writing.pwrite(file.relative, position, np.ascontiguousarray(rows).view(np.uint8))
        with self._lock:
            self._dirty[file.relative] = file

    def write_all(self, writes: Sequence[tuple[StoredFile, int, Bytes]]) -> tuple[int, TargetError | None]:
        """Write rows (file, position, bytes) with one call. Returns how many are written, and the error of the one after them."""
        done, error = self._writing.pwrite_all([(file.relative, position, rows) for file, position, rows in writes], write_all)
        with self._lock:
            self._dirty.update((file.relative, file) for file, _, _ in writes[: done + 1])
        return done, error

    def remove(self, file: StoredFile) -> None:
        """Remove a file that no longer belongs to its queue."""
        if self._writing.exists(file.relative):
            file.kept = self.reading.mapped(file.relative)
        if file.mapped_bytes is not None:
            file.mapped_bytes.release()
        with self._lock:
            self._dirty.pop(file.relative, None)
        self.reading.forget(file.relative)
        if self._writing.exists(file.relative):
            self._writing.remove(file.relative)

    def remove_directories(self, queue: str) -> None:
        """Remove the directory of a queue and, after its last queue, that of its topic; what holds anything else stays."""
        for relative in (queue, queue.rpartition("/")[0]):
            if not self._writing.remove_empty(relative):
                return
            with self._lock:
                self._named.discard(relative)

    def clear_tail(self, file: StoredFile) -> None:
        """Overwrite what an earlier process left after the last row of a file."""
        mapped = file.mapped()
        last = mapped.last_nonzero(file.written, min(file.size, mapped.size))
        if last >= 0:
            self._writing.pwrite(file.relative, file.written, bytes(last + 1 - file.written))
            with self._lock:
                self._dirty[file.relative] = file
            file.synced = -1

    def sync(self, least_pages: int = 0) -> bool:
        """Sync files with at least this many new pages (0: all changed files). Returns whether nothing is left unsynced."""
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
            self._sync_directories(named)
        with self._lock:
            return not self._dirty and not self._named

    def _sync_directories(self, named: Sequence[str]) -> None:
        """Sync directories, those of queues before those of topics; what could not be synced waits for the next time."""
        for number, relative in enumerate(named):
            try:
                if self._syncing.exists(relative):
                    self._syncing.sync_directory(relative)
            except BaseException as error:
                if isinstance(error, TargetError) and not self._syncing.exists(relative):
                    continue  # it was removed meanwhile
                with self._lock:
                    self._named.update(named[number:])
                raise

    def _sync_file(self, file: StoredFile) -> None:
        try:
            self._syncing.sync(file.relative)
        except BaseException:
            with self._lock:
                self._dirty[file.relative] = file
            raise

    def close(self) -> None:
        """Close the directories."""
        self._writing.close()
        self._syncing.close()


# Queues that are written: the images of `dispatch.consume_queue_image` with their files on disk.


class StoredImage(BaseQueueImage):
    """A queue on disk. relative: its directory, in `home` unless it was loaded from another."""

    home: ClassVar[str]

    def __init__(self, queue_files: QueueFiles, topic: str, queue_id: int, file_size: int, loaded: FileQueue | None) -> None:
        super().__init__(topic, queue_id, file_size)
        self.relative = loaded.relative if loaded is not None else f"{self.home}/{topic}/{queue_id}"
        self._queue_files = queue_files
        files = [file for file in loaded.files if file.size == file_size] if loaded is not None else ()
        # each counts as full until recovery has read it
        self.files = [StoredFile(queue_files, file.relative, file.start, file_size, self.row, file_size) for file in files]

    def _new_file(self, start: int, *, first_created: bool) -> FileImage:
        relative = f"{self.relative}/{start:020d}"
        self._queue_files.create(relative, self.file_size, self.files[-1] if self.files else None)
        return StoredFile(self._queue_files, relative, start, self.file_size, self.row, 0, first_created=first_created)

    def _discard(self, files: Sequence[FileImage]) -> None:
        for file in files:
            if isinstance(file, StoredFile):
                self._queue_files.remove(file)

    def destroy(self) -> None:
        super().destroy()
        self._queue_files.remove_directories(self.relative)


class StoredQueue(StoredImage, QueueImage):
    """A consume queue on disk. on_minimum: called with the tags code of an entry that becomes the first."""

    home = "consumequeue"
    on_minimum: Callable[[int], object] | None = None

    def _set_first_entry(self, position: int, tags_code: int) -> None:
        super()._set_first_entry(position, tags_code)
        if self.on_minimum is not None:
            self.on_minimum(tags_code)

    def takes_at_once(self, run: QueueRun) -> bool:
        """Return whether `append` would write the whole run at the end of the last file, so that `waiting_write` may do that instead."""
        files = self.files
        return (
            bool(files)
            and run.consecutive
            and 0 <= run.first < PLAIN_LIMIT
            and run.first * ENTRY.itemsize >= files[-1].end
            and len(run.entries) <= files[-1].size - files[-1].written
            and queue_rows.count_stored(run.entries, self.max_physical_offset) == 0
        )

    def waiting_write(self, run: QueueRun) -> tuple[StoredFile, int, Bytes]:
        """Return the write that stores a run which is taken at once: file, position, bytes. It counts after `written`."""
        file = self.files[-1]
        assert isinstance(file, StoredFile)
        return file, file.written, run.entries

    def written(self, run: QueueRun) -> None:
        """Count a run whose `waiting_write` is done."""
        self.files[-1].written += len(run.entries)
        self.max_physical_offset = self._max_physical_offset_after(run.entries[-ENTRY.itemsize :].view(ENTRY)[0])

    def amend(self, run: QueueRun, may_stay: Callable[[Rows], NDArray[np.bool_]]) -> None:
        """Correct entries that exist already but differ from the run.

        may_stay: returns which entries that differ only in the tags code are correct. Blank entries are not changed.
        """
        entries = np.ascontiguousarray(run.entries).view(ENTRY)
        for file in self.files:
            assert isinstance(file, StoredFile)
            first = file.start // ENTRY.itemsize
            inside = np.flatnonzero((run.offsets >= first) & (run.offsets < first + file.written // ENTRY.itemsize))
            if not len(inside):
                continue
            rows = file.written_rows()[run.offsets[inside] - first]
            new = entries[inside]
            same = (rows["physical_offset"] == new["physical_offset"]) & (rows["size"] == new["size"])
            differs = ~same | (rows["tags_code"] != new["tags_code"])
            differs &= rows["size"] != BLANK_SIZE
            if (rows["physical_offset"] > new["physical_offset"])[differs].any():
                return  # a torn entry has a smaller offset than the complete one: this queue is not torn but shifted, by an older hole
            suspect = np.flatnonzero(differs & same)
            differs[suspect] = ~may_stay(rows[suspect])
            for number in inside[differs].tolist():
                self._queue_files.write(file, (int(run.offsets[number]) - first) * ENTRY.itemsize, entries[number : number + 1])
            last = int(inside[-1])
            if differs.any() and int(run.offsets[last]) == self.max_offset - 1:
                self.max_physical_offset = max(self.max_physical_offset, self._max_physical_offset_after(entries[last]))


class StoredBatchQueue(StoredImage, BatchQueueImage):
    """A batch queue on disk."""

    home = "batchconsumequeue"
