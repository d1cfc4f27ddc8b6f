"""Index files that are written: the images of `dispatch.index_image` with their bytes on disk.

Keys are written into the map of the last file: entry, slot, then the header, from which readers in other processes know how many
entries count. A file is synced when it is full; then the checkpoint may name its last store time. Before that, a broker deletes the file
after an unclean exit, so a partially written file never answers.

A file is named by the local time of its creation, `yyyyMMddHHmmssSSS`, and its name is always greater than that of the file before it.

Format: docs/formats/rocketmq.md, sections 5.3 to 5.6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.files.writable_map import WritableMap
from mqstore.kernels.rocketmq import index_chains
from mqstore.kernels.rocketmq.pull import MappedBytes
from mqstore.rocketmq.dispatch.index_builder import index_name
from mqstore.rocketmq.dispatch.index_image import IndexImage, IndexService
from mqstore.rocketmq.format.index_file import IndexEntry, IndexFile
from mqstore.rocketmq.format.index_geometry import ENTRY_SIZE, HEADER, HEADER_SIZE, SLOT_SIZE

Rows = NDArray[np.void]

_RELEASED_KEYS = 50_000  # keys after which pages are released: 1 MB of entries, and slots all over the file
_NO_SLOTS = np.empty(0, np.int64)
_LATEST = 253_370_764_799_999  # the last millisecond of 9998: names of later files come from the year 9999


def local_name(now: int, previous: str | None) -> str:
    """Return the name of a file created now (ms), greater than the previous one."""
    moment = min(max(now, 0), _LATEST)
    shift = datetime.fromtimestamp(moment / 1000).astimezone().utcoffset()
    return index_name(moment + (int(shift.total_seconds()) * 1000 if shift else 0), previous)


class StoredIndexFile(IndexImage):
    """One index file on disk. synced: whether all its contents have reached the disk."""

    def __init__(self, files: IndexFiles, base: IndexFile, before: IndexImage | None = None) -> None:
        """base: the file, mapped for reading. before: the full file that a new one follows."""
        super().__init__(base.name, base.slot_count, base.positions, base)
        self.file = base
        self.octets = base.octets
        self.mapped_bytes = None if base.octets is None else MappedBytes(base.octets)  # for the fast path of queries
        self.relative = base.relative
        self.synced = before is None
        self._count = self.index_count  # as the header has it: entries whose slots lead to them
        self._released = self._count
        self._files = files
        self._map: WritableMap | None = None
        if before is not None and (before.end_physical_offset > 0 or before.end_timestamp > 0):
            self.begin_physical_offset = self.end_physical_offset = max(0, before.end_physical_offset)
            self.begin_timestamp = self.end_timestamp = max(0, before.end_timestamp)
            # the broker sets the four fields but not the count, which is therefore zero on disk until the first key
            self._write_header(0)

    def slot(self, number: int) -> int:
        return self.file.slot(number)

    def entry(self, number: int) -> IndexEntry:
        return self.file.entry(number)

    def put(self, keys: Rows) -> int:
        count = max(0, min(len(keys), self.positions - self._count))
        at = 0
        if count and self._count <= 1:
            # the time of the first key is relative to the time that the file inherits
            self._append(keys[:1])
            at = 1
        if at < count:
            self._append(keys[at:count])
        return count

    def _append(self, keys: Rows) -> None:
        file = self._writable()
        start = HEADER_SIZE + SLOT_SIZE * self.slot_count + ENTRY_SIZE * self._count
        stop = start + ENTRY_SIZE * len(keys)
        file.reserve(stop)
        recorded = self._files.writing.recorded
        file.about_to_write()
        touched = np.empty(len(keys), np.int64) if recorded else _NO_SLOTS
        # raised before the slots are set: a query that runs meanwhile takes a slot above the count for an empty one
        self.index_count = self._count + len(keys)
        raw = np.ascontiguousarray(keys).view(np.uint8)
        self.synced = False
        taken = index_chains.put(raw, self.begin_timestamp, self._count, file.data, self.slot_count, touched)
        file.wrote(start, stop)
        for slot in np.unique(touched).tolist():
            file.wrote(HEADER_SIZE + SLOT_SIZE * slot, HEADER_SIZE + SLOT_SIZE * slot + SLOT_SIZE)
        if self._count <= 1:
            self.begin_physical_offset = int(keys["physical_offset"][0])
            self.begin_timestamp = int(keys["store_timestamp"][0])
        self.hash_slot_count += taken
        self.end_physical_offset = int(keys["physical_offset"][-1])
        self.end_timestamp = int(keys["store_timestamp"][-1])
        self._count = self.index_count
        self._write_header(self._count)

    def _write_header(self, count: int) -> None:
        file = self._writable()
        file.reserve(HEADER_SIZE + SLOT_SIZE * self.slot_count)
        file.write(0, self._header(count))

    def _header(self, count: int) -> bytes:
        header = (self.begin_timestamp, self.end_timestamp, self.begin_physical_offset, self.end_physical_offset)
        return HEADER.pack(*header, self.hash_slot_count, count)

    def _writable(self) -> WritableMap:
        if self._map is None:
            self._map = WritableMap(self._files.writing, self.relative)
            used = HEADER_SIZE + SLOT_SIZE * self.slot_count + ENTRY_SIZE * self._count
            self._map.reserve(used)
        return self._map

    def sync(self, *, header: bool = True) -> None:
        """Sync the file. header: rewrite it first, if it changes, so that a file without keys shows its count."""
        if header and (self.octets is None or self._header(self._count) != self.octets[: HEADER.size]):
            self._write_header(self._count)
            self.synced = False
        if not self.synced:
            self._writable().sync()
            self._files.writing.sync_directory("index")
            self.synced = True

    def release_pages(self) -> None:
        """Release the pages written since the last call from this process's memory; they stay in the page cache."""
        mapped = self._map
        if mapped is not None and self._count - self._released >= _RELEASED_KEYS:
            self._released = self._count
            mapped.drop(0, mapped.size)

    def close(self) -> None:
        """Close the map for writing."""
        if self._map is not None:
            self._map.close()
            self._map = None


class IndexFiles:
    """The index directory of a store. clock: ms, for names. on_full: called with a file that took its last key."""

    def __init__(
        self, reading: ReadOnlyDirectory, writing: DurableDirectory, clock: Callable[[], int], on_full: Callable[[StoredIndexFile], None]
    ) -> None:
        self.reading = reading
        self.writing = writing
        self.clock = clock
        self.on_full = on_full

    def remove(self, relative: str) -> None:
        self.writing.remove(relative)


class StoredIndex(IndexService):
    """All index files of a store, on disk."""

    def __init__(self, files: IndexFiles, recovered: Sequence[IndexFile], *, slots: int, positions: int) -> None:
        """slots, positions: of new files."""
        self._files = files
        super().__init__(recovered, slots=slots, positions=positions)

    def _kept_file(self, file: IndexFile) -> IndexImage:
        return StoredIndexFile(self._files, file)

    def _new_file(self, last: IndexImage | None) -> IndexImage:
        if isinstance(last, StoredIndexFile):
            self._files.on_full(last)
            last.close()
        name = local_name(self._files.clock(), None if last is None else last.name)
        while self._files.writing.exists(f"index/{name}") and (later := index_name(0, name)) > name:
            name = later  # the name is taken by something that is not an index file
        relative = f"index/{name}"
        size = HEADER_SIZE + SLOT_SIZE * self._slots + ENTRY_SIZE * self._positions
        self._files.writing.create(relative, size)
        try:
            base = IndexFile(name, relative, self._files.reading.map(relative), self._slots, self._positions, "configured")
            made = StoredIndexFile(self._files, base, last)
        except BaseException:
            self._files.remove(relative)
            raise
        made.synced = False
        return made

    def expire(self, log_min: int) -> int:
        """Remove leading files without a key at or after the log's minimum, never the newest. Returns the number removed."""
        removed = 0
        while len(self.files) > 1 and self.files[0].end_physical_offset < log_min:
            first = self.files[0]
            assert isinstance(first, StoredIndexFile)
            first.close()
            self._files.remove(first.relative)
            self.files = self.files[1:]
            removed += 1
        return removed

    def sync(self, *, headers: bool) -> None:
        """Sync every changed file. headers: rewrite all headers first, as 5.3 does at shutdown."""
        for file in self.files:
            if isinstance(file, StoredIndexFile) and (headers or not file.synced):
                file.sync(header=headers)

    def release_pages(self) -> None:
        """Release the pages of the file that is written to from this process's memory. Any thread may call this."""
        newest = self.files[-1] if self.files else None
        if isinstance(newest, StoredIndexFile):
            newest.release_pages()

    def close(self) -> None:
        """Close all files."""
        files, self.files = self.files, []
        for file in files:
            if isinstance(file, StoredIndexFile):
                file.close()
