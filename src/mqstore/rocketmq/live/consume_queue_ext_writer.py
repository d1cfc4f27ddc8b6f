"""Extended consume queue, written: units appended one after the other, in files of one size, each ended by a mark.

    position     0            28     56       file size
                 unit 28      unit 28  ff ff  (never written)
                                       -1 if the next unit and 4 more bytes do not fit

`append` returns the address that the consume queue entry holds instead of the tags code. The unit is written before the entry, so a
record that is dispatched again leaves a unit that no entry points at. The end of the queue is known only in memory: `recover` finds it
by walking the units, and `truncate_by_max` drops what is after the last address that the consume queue holds. Bytes after the end
stay; the next units overwrite them, as in the broker.

Format: docs/formats/rocketmq.md, section 4.8.
"""

from __future__ import annotations

from bisect import insort

from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.rocketmq.format import mapped_file_queue
from mqstore.rocketmq.format.consume_queue_ext import (
    DEFAULT_FILE_SIZE,
    MIN_UNIT_SIZE,
    UNIT,
    ConsumeQueueExt,
    ExtUnit,
    address_of,
    is_address,
    position_of,
)

MAX_UNIT_SIZE = 32_767
END_ROOM = 4
MAX_POSITION = -(1 << 31) - 1 + (1 << 63)

_END_MARK = b"\xff\xff"


def pack(tags_code: int, store_timestamp: int, bitmap: bytes = b"") -> bytes:
    """Return the bytes of a unit.

    >>> pack(2598919, 1640995200123, bytes(range(1, 9))).hex()
    '001c000000000027a8070000017e12ef9c7b00080102030405060708'
    """
    return UNIT.pack(MIN_UNIT_SIZE + len(bitmap), tags_code, store_timestamp, len(bitmap)) + bitmap


class ExtQueueWriter:
    """The extended queue of one topic queue. One thread at a time.

    directory: written to. reading: the same directory, for `recover`. file_size: bytes of each file, equal to that of existing files.
    end: position after the last unit.
    """

    def __init__(
        self,
        directory: DurableDirectory,
        reading: ReadOnlyDirectory,
        topic: str,
        queue_id: int,
        *,
        file_size: int = DEFAULT_FILE_SIZE,
    ) -> None:
        self.file_size = file_size
        self.end = 0
        self._directory = directory
        self._reading = reading
        self._name = (topic, queue_id)
        self.relative = self._image().relative
        self._starts: list[int] = []
        self._dirty: set[int] = set()
        self._named = False

    @property
    def files(self) -> tuple[str, ...]:
        """The files, oldest first."""
        return tuple(self._file(start) for start in self._starts)

    def append(self, tags_code: int, store_timestamp: int, bitmap: bytes = b"") -> int | None:
        """Write a unit. Returns its address; None if it cannot be stored, and the entry must hold the plain tags code.

        A unit cannot be stored if it is larger than 32,767 bytes or than a file, or if its address would look like a hash.
        """
        size = MIN_UNIT_SIZE + len(bitmap)
        if size > min(MAX_UNIT_SIZE, self.file_size - END_ROOM) or self.end + size > MAX_POSITION:
            return None
        start = self._starts[-1] if self._starts else None
        if start is not None and self.end - start < self.file_size and size > self.file_size - (self.end - start) - END_ROOM:
            if self.file_size - (self.end - start) >= len(_END_MARK):
                self._write(start, self.end, _END_MARK)
            self.end = start + self.file_size
        if start is None or self.end == start + self.file_size:
            start = self.end
            if start not in self._starts:
                self._reading.forget(self._file(start))
                self._directory.create(self._file(start), self.file_size)
                self._named = True
                insort(self._starts, start)
        position = self.end
        self._write(start, position, pack(tags_code, store_timestamp, bitmap))
        self.end = position + size
        return address_of(position)

    def recover(self) -> None:
        """Find the files and the end of the last unit."""
        self._starts = [file.start for file in mapped_file_queue.load(self._reading, self.relative, size=self.file_size).files]
        self._dirty.clear()
        self.end = 0
        if self._starts:
            self.end = self._starts[-1]
            for unit in self._image().scan():
                if isinstance(unit, ExtUnit):
                    self.end = max(self.end, position_of(unit.address) + unit.size)

    def truncate_by_max(self, address: int) -> None:
        """Drop all units after the one at this address. A tags code that is not the address of a unit changes nothing."""
        if not is_address(address):
            return
        unit = self._image().unit(address)
        if unit is None:
            return
        self._truncate(position_of(address) + unit.size)

    def truncate_by_min(self, address: int) -> int:
        """Remove files that end before the file of this address. Returns the number removed.

        A file that ends exactly at the address is kept, as in the broker.
        """
        if not is_address(address):
            return 0
        position = position_of(address)
        gone = [start for start in self._starts if start + self.file_size < position]
        for start in gone:
            self._remove(start)
        return len(gone)

    def destroy(self) -> None:
        """Remove all files."""
        for start in list(self._starts):
            self._remove(start)
        self.end = 0

    def flush(self) -> None:
        """Bring all units, and the names of their files, to disk."""
        for start in sorted(self._dirty):
            self._directory.sync(self._file(start))
        self._dirty.clear()
        if self._named:
            names = self.relative.split("/")
            for depth in range(len(names), -1, -1):
                self._directory.sync_directory("/".join(names[:depth]))
            self._named = False

    def _image(self) -> ConsumeQueueExt:
        return ConsumeQueueExt(self._reading, *self._name, file_size=self.file_size)

    def _file(self, start: int) -> str:
        return f"{self.relative}/{start:020d}"

    def _write(self, start: int, position: int, content: bytes) -> None:
        self._directory.pwrite(self._file(start), position - start, content)
        self._dirty.add(start)

    def _truncate(self, end: int) -> None:
        for start in [start for start in self._starts if start >= end]:
            self._remove(start)
        self.end = end

    def _remove(self, start: int) -> None:
        self._directory.remove(self._file(start))
        self._reading.forget(self._file(start))
        self._starts.remove(start)
        self._dirty.discard(start)
