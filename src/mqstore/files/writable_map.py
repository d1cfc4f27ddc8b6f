"""A file of fixed size, mapped for writing: lets a log and an index be written without a system call per record.

Bytes written through a map survive the death of the process at once, and a power failure after `sync`. A full disk would end
the process in the middle of a store instruction; therefore blocks are reserved before they are written, and it is the
reservation that fails:

    >>> from tempfile import TemporaryDirectory
    >>> from mqstore.files.durable import DurableDirectory
    >>> with TemporaryDirectory() as place, DurableDirectory(place) as directory:
    ...     directory.create("log", size=8192)
    ...     log = WritableMap(directory, "log")
    ...     log.reserve(5)
    ...     log.write(0, b"hello")
    ...     log.sync()
    ...     log.close()
    ...     open(f"{place}/log", "rb").read(6)
    b'hello\\x00'

Raises TargetError if the operating system refuses an operation.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from typing import Any

import numpy as np

from mqstore.files.durable import DurableDirectory
from mqstore.files.durable_file import open_for_writing, writing
from mqstore.files.readonly import Bytes
from mqstore.files.recorder import Sync

_MADV_POPULATE_WRITE = 23
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

RESERVED_AT_LEAST, RESERVED_AT_MOST = 1 << 18, 1 << 24


class WritableMap:
    """An existing file mapped for reading and writing. data: a writable uint8 array over the whole file."""

    def __init__(self, directory: DurableDirectory, relative: str) -> None:
        self.relative = relative
        self.path = directory.path(relative)
        self._directory = directory
        self._recorded = directory.recorded
        with writing(self.path):
            self._descriptor = open_for_writing(self.path)
            try:
                self.size = os.fstat(self._descriptor).st_size
                self._map = mmap.mmap(self._descriptor, self.size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            except BaseException:
                os.close(self._descriptor)
                raise
        self.data: Bytes = np.frombuffer(self._map, np.uint8)
        self.reserved = 0
        self._reserving = threading.Lock()  # held also while the descriptor is closed, so that no other file gets what is reserved

    def reserve(self, stop: int, start: int = 0) -> None:
        """Reserve disk space for bytes start..stop-1, and for some more after them in advance.

        Bytes below `reserved` already have disk space, unless start is given.
        """
        if stop <= (start or self.reserved):
            return
        with self._reserving, writing(self.path):
            low = start or self.reserved
            if stop <= low:
                return  # another thread has reserved them meanwhile
            step = min(max(self.reserved, RESERVED_AT_LEAST), RESERVED_AT_MOST)  # small files reserve little, large ones reserve seldom
            high = min(self.size, -(-stop // step) * step)
            self._directory.attempt("reserve", self.relative)
            try:
                os.posix_fallocate(self._descriptor, low, high - low)
            except OSError as error:
                if error.errno == errno.ENOSPC and high > stop:
                    os.posix_fallocate(self._descriptor, low, stop - low)  # the disk is nearly full: reserve only what is needed
                    high = stop
                elif error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise
            if not start:
                self.reserved = high

    def populate(self, start: int, stop: int) -> bool:
        """Let the kernel provide the pages of reserved bytes start..stop-1, so that writing them causes no page faults.

        Their content does not change. Other threads run meanwhile. Returns False where the kernel cannot do that (Linux before 5.14).
        """
        low, high = start - start % mmap.PAGESIZE, min(stop, self.reserved)
        return high <= low or _madvise(self.data.ctypes.data + low, high - low, _MADV_POPULATE_WRITE) == 0

    def write(self, position: int, buffer: bytes | memoryview) -> None:
        """Write into the map; the bytes must have been reserved."""
        self.about_to_write()
        self.data[position : position + len(buffer)] = np.frombuffer(buffer, np.uint8)
        self.wrote(position, position + len(buffer))

    def about_to_write(self) -> None:
        """Ask the recorder before bytes are written into `data`."""
        if self._recorded:
            with writing(self.path):
                self._directory.attempt("write", self.relative)

    def wrote(self, start: int, stop: int) -> None:
        """Report bytes written into `data` to the recorder."""
        if self._recorded and stop > start:
            self._directory.note_write(self.relative, start, self.data.data[start:stop])

    def sync(self) -> None:
        """Return when everything written so far has reached the disk."""
        with writing(self.path):
            self._directory.attempt("sync", self.relative)
            os.fdatasync(self._descriptor)
        self._directory.note(Sync(self._directory.named(self.relative)))

    def drop(self, start: int, stop: int) -> None:
        """Release whole pages of [start, stop) from this process's memory; they stay in the page cache, changes included."""
        low, high = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop - stop % mmap.PAGESIZE
        if high > low:
            self._map.madvise(mmap.MADV_DONTNEED, low, high - low)

    def close(self) -> None:
        """Close the descriptor. The map itself is freed with the last array or view over it."""
        with self._reserving:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def __enter__(self) -> WritableMap:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
