"""The commit log while it is written: the last file is mapped for writing, the next one is created in advance.

Records are appended one after the other; if one does not fit (its length and 8 more bytes), the file ends with a BLANK record and
the next file begins. `flushed` is how far the log is known to be on disk. One thread at a time appends (the caller holds the append
lock); other threads may call `sync`, `prepare_next` and `slice` meanwhile.

Format: docs/formats/rocketmq.md, sections 1.2, 2.8, 7.2 and 9.3.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from mqstore.errors import CannotOpenError, MqstoreError, TargetError
from mqstore.files import MappedFile, ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.files.writable_map import WritableMap
from mqstore.kernels.rocketmq.pull import MappedBytes
from mqstore.kernels.rocketmq.put import LogEnd
from mqstore.rocketmq.format import record
from mqstore.rocketmq.recovery.broker_recovery import LogFile

END_OF_FILE = 8  # bytes of a BLANK record: every record leaves at least this much room after it
_POPULATE_FROM = 64 << 10  # bytes that came since the last call
_POPULATE_ROUNDS = 4  # calls for which pages are provided
_POPULATE_AT_MOST = 16 << 20  # bytes ahead
_DROP = 64 << 20  # bytes written after which synced pages leave this process's memory


class LiveFile(LogEnd):
    """One file of the log. written: bytes that count. last_stored: store time of the last record appended by this process, ms."""

    def __init__(self, relative: str, start: int, size: int, written: int, mapped: WritableMap | None = None) -> None:
        super().__init__(start, size, written)
        self.relative = relative
        self.map = mapped
        self.mapped_bytes: MappedBytes | None = None  # the bytes of a file that is read often
        self.kept: MappedFile | None = None  # of a removed file, for readers that still have it
        self.dropped = written


_start = attrgetter("start")


class LiveLog:
    """The log of a store that is open for writing.

    min_offset: physical offset of its first byte, -1 without files. max_offset: after its last record, 0 without files.
    populated: physical offset up to which `populate` has provided pages.
    """

    def __init__(
        self, reading: ReadOnlyDirectory, writing: DurableDirectory, syncing: DurableDirectory, file_size: int, files: Sequence[LogFile]
    ) -> None:
        """found: the files that recovery kept. writing, syncing: the same directory, for the appending and the syncing thread."""
        self.file_size = file_size
        self.reading = reading
        self._writing = writing
        self._syncing = syncing
        self._lock = threading.Lock()  # of `files` and the file created in advance
        self._making = threading.Lock()  # one thread at a time creates files
        self._sync_lock = threading.Lock()
        self.files = [LiveFile(each.file.relative, each.start, each.file.size, each.written) for each in files]
        self._unsynced: list[LiveFile] = []
        self._next: LiveFile | None = None
        self.flushed = self.max_offset
        self.recorded = writing.recorded
        self.closed = False
        self.populated = self._populated_at = self.max_offset
        self._populates = True
        self.stored_at = 0  # store time of the last flushed record, if this process knows it

    @property
    def max_offset(self) -> int:
        """Physical offset after the last record, 0 without files."""
        files = self.files
        return files[-1].start + files[-1].written if files else 0

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte, -1 without files."""
        return self.files[0].start if self.files else -1

    # appending

    def current(self) -> LiveFile:
        """Return the file to append to, created if there is none or the last one is full. Raises TargetError."""
        if self.closed:
            raise TargetError("the store is closed")
        last = self.files[-1] if self.files else None
        if last is None or last.written >= last.size:
            return self._begin(last.start + last.size if last is not None else 0)
        if last.map is None:
            last.map = WritableMap(self._writing, last.relative)
            last.map.reserve(last.written + 1, last.written)
            last.map.reserved = 0
            if last not in self._unsynced:
                self._unsynced.append(last)
        return last

    def _begin(self, start: int) -> LiveFile:
        """Take the file created in advance, or create one now."""
        with self._making:
            with self._lock:
                file, self._next = self._next, None
            if file is None or file.start != start:
                if file is not None:
                    self._discard(file)
                file = self._make(self._writing, start)
            self._unsynced.append(file)
            with self._lock:
                self.files = [*self.files, file]
        return file

    def _make(self, directory: DurableDirectory, start: int) -> LiveFile:
        """Create a file, durable with its length and name. After an error nothing is left of it."""
        relative = f"commitlog/{start:020d}"
        directory.create(relative, self.file_size)
        made = None
        try:
            made = WritableMap(directory, relative)
            made.sync()
            directory.sync_directory("commitlog")
        except BaseException:
            if made is not None:
                made.close()
            directory.remove(relative)
            raise
        return LiveFile(relative, start, self.file_size, 0, made)

    def _discard(self, file: LiveFile) -> None:
        if file.map is not None:
            file.map.close()
        self._writing.remove(file.relative)

    def end_file(self, file: LiveFile) -> None:
        """Write the BLANK record that fills the rest of a file."""
        assert file.map is not None
        room = file.size - file.written
        file.map.reserve(file.written + END_OF_FILE)
        file.map.write(file.written, record.blank(room))
        self.appended(file, room, file.last_stored)

    def append(self, file: LiveFile, raw: bytes | memoryview, stored_at: int) -> int:
        """Write bytes that fit into the current file. Returns their physical offset."""
        assert file.map is not None
        offset = file.start + file.written
        file.map.reserve(file.written + len(raw) + END_OF_FILE)
        file.map.write(file.written, raw)
        self.appended(file, len(raw), stored_at)
        return offset

    def appended(self, file: LiveFile, size: int, stored_at: int) -> None:
        """Count bytes that were written into the map of the current file."""
        file.written += size
        file.last_stored = stored_at

    def populate(self) -> bool:
        """Provide pages for the records to come, in proportion to those that came since the last call. Returns whether there were many.

        One thread calls this again and again. The first access to a page costs more than a small put, and memory that the machine has
        not used lately several times as much.
        """
        files = self.files
        file = files[-1] if files else None
        mapped = file.map if file is not None else None
        if file is None or mapped is None or not self._populates:
            return False
        end = file.start + file.written
        came, self._populated_at = end - self._populated_at, end
        if came < _POPULATE_FROM:
            return False
        low = max(file.written, self.populated - file.start)
        high = min(file.written + min(_POPULATE_ROUNDS * came, _POPULATE_AT_MOST), file.size)
        if high > low:
            if not self.recorded:  # a recorder expects one thread to change a file
                with contextlib.suppress(MqstoreError):  # the put that needs the room reports it
                    mapped.reserve(high)
            self._populates = mapped.populate(low, high)
            self.populated = file.start + high
        return True

    # files

    def distrust(self, physical_offset: int) -> None:
        """Make the next `sync` bring everything after an offset to disk: a killed process wrote it."""
        self.flushed = min(self.flushed, physical_offset)
        self._unsynced = [file for file in self.files if file.start + file.size > physical_offset]

    def prepare_next(self) -> None:
        """Create the file after the last one, unless it exists, so that no put has to wait for it."""
        with self._making:
            if not self.files or self._next is not None or self.closed:
                return
            last = self.files[-1]
            made = self._make(self._syncing, last.start + last.size)
            with self._lock:
                self._next = made

    def sync(self) -> int:
        """Sync everything appended so far. Returns the physical offset up to which the log is on disk. Raises TargetError."""
        with self._sync_lock:
            target = self.max_offset
            for file in list(self._unsynced):
                written, stored_at = file.written, file.last_stored
                if file.map is None:
                    if file.kept is None:
                        self._syncing.sync(file.relative)
                else:
                    file.map.sync()
                    self.stored_at = stored_at or self.stored_at
                    if written - file.dropped > _DROP:
                        file.map.drop(file.dropped, written)
                        file.dropped = written
                if written >= file.size:
                    self._unsynced.remove(file)
                    if file.map is not None:
                        file.map.drop(0, file.size)
                        file.map.close()
                        file.map = None
            self.flushed = max(self.flushed, target)
            return self.flushed

    def remove_first(self) -> None:
        """Remove the oldest file, which is not the last one. If it cannot be removed, it stays part of the log."""
        file = self.files[0]
        file.kept = self.reading.mapped(file.relative)
        self._syncing.remove(file.relative)
        self.reading.forget(file.relative)
        with self._lock:
            self.files = self.files[1:]
        if file.mapped_bytes is not None:
            file.mapped_bytes.release()
        with self._sync_lock, contextlib.suppress(ValueError):
            self._unsynced.remove(file)

    def close(self, *, keep_next: bool = False) -> None:
        """Close all maps for writing. keep_next: leave the file created in advance, as a killed broker does."""
        self.closed = True
        with self._making, self._lock:
            ahead, self._next = self._next, None
        if ahead is not None and not keep_next:
            self._discard(ahead)
        with self._sync_lock:
            for file in [*self.files, *self._unsynced, *([ahead] if ahead is not None else [])]:
                if file.map is not None:
                    file.map.close()
                    file.map = None
        self._writing.close()
        self._syncing.close()

    # reading

    def file_at(self, physical_offset: int) -> LiveFile | None:
        """Return the file that holds a physical offset, or None."""
        files = self.files
        if files and files[-1].start <= physical_offset:
            return files[-1] if physical_offset < files[-1].start + files[-1].size else None
        number = bisect_right(files, physical_offset, key=_start) - 1
        if number >= 0 and physical_offset < files[number].start + files[number].size:
            return files[number]
        return None

    def view(self, file: LiveFile) -> memoryview:
        """Return the bytes of a file, read-only, including those that are not written yet."""
        held = file.mapped_bytes
        view = held.view if held is not None else None
        if view is not None:
            return view
        mapped = file.map
        if mapped is not None:
            return mapped.data.data.toreadonly()
        try:
            return self.reading.mapped(file.relative).data.data
        except CannotOpenError:
            if file.kept is None:
                raise
            return file.kept.data.data

    def readable(self, physical: int) -> tuple[int, memoryview] | None:
        """Return (start, written bytes) of the file that holds an offset; for offset 0, if no file holds it, of the first file."""
        file = self.file_at(physical)
        if file is not None:
            return file.start, self.view(file)[: file.written]
        return (0, self.view(self.files[0])[: self.files[0].written]) if physical == 0 and self.files else None

    def slice(self, physical_offset: int, size: int) -> memoryview | None:
        """Return bytes of the log without a copy; None if no single file holds all of them (any more, or yet).

        Offset 0 falls back to the first file, as in the broker.
        """
        file = self.file_at(physical_offset)
        if file is None:
            if physical_offset != 0 or not self.files:
                return None
            file = self.files[0]
            physical_offset = file.start
        position = physical_offset - file.start
        if size < 0 or position + size > file.written:
            return None
        return self.view(file)[position : position + size]
