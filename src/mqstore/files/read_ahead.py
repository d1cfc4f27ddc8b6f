"""Reading ahead of a walk over a mapped file, so that it does not wait at page faults for the disk.

A thread keeps a bounded window in front of the walk in the page cache. It sends the file to the null device with `sendfile`: the system
reads as for any sequential reader, in large folios, copies nothing, and does not hold the interpreter's lock meanwhile. (Advice such as
MADV_WILLNEED fills the cache in single pages instead, which costs more than the reading, is cut to the device's readahead, and blocks.)

    read already          window             |
    |---------------------|==================|- - - - - - - -|
    start            the walk            the thread        stop

The thread is started by the first range that is not in the page cache; a walk over a warm file costs a system call or two for each
megabyte, which read one byte if that needs no disk. Where the system lacks these calls the file is only advised.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType

WINDOW = 32 << 20
PIECE = 2 << 20  # bytes that the thread reads before it looks where the walk is
PROBE = 1 << 20  # bytes between two samples of what the page cache holds
QUICK = 40e-6  # seconds: a byte that comes from the disk takes longer, one in the page cache rarely
LEAST = 4 << 20  # a shorter range is left to the system's own readahead

_SUPPORTED = all(hasattr(os, name) for name in ("sendfile", "preadv", "RWF_NOWAIT", "posix_fadvise", "SEEK_DATA"))


class ReadAhead:
    """Reads start..stop-1 of a file ahead of the walks that report by `reach` where they are. Close it after the walk.

    Never fails: what cannot be read ahead is left to the walk. Several threads may share it, as long as they walk close to each other.
    reopen: returns a descriptor of the file, or None. advise: hints at a range where reading ahead is not supported.
    """

    def __init__(self, reopen: Callable[[], int | None], start: int, stop: int, advise: Callable[[int, int], None]) -> None:
        self._reopen = reopen
        self._advise = advise
        self._stop = stop
        self._next = start  # up to where the window was filled
        self._limit = start  # up to where it is to be filled
        self._descriptor: int | None = None
        self._reader: threading.Thread | None = None
        self._closed = stop - start < LEAST
        self._changed = threading.Condition()  # reentrant: an abandoned walk may be closed by the garbage collector, on any thread

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def reach(self, at: int, *, hop: bool = False) -> None:
        """Note that a walk goes on from a position, and let the window follow it. hop: it may have skipped what is far behind it."""
        with self._changed:
            if self._closed:
                return
            if hop and at > self._next + WINDOW:
                self._next = at
            self._limit = max(self._limit, min(at + WINDOW, self._stop))
            room = self._limit - self._next
            if room <= 0 or (room < PIECE and self._limit < self._stop):
                return
            if self._reader is not None:
                self._changed.notify()
            elif not _SUPPORTED:
                self._advise(self._next, room)
                self._next = self._limit
            elif not self._cached():
                reader = threading.Thread(target=self._read, name="mqstore-read-ahead", daemon=True)
                with contextlib.suppress(RuntimeError):  # no further thread can be started
                    reader.start()
                    self._reader = reader

    def _cached(self) -> bool:
        """Return whether the window is in the page cache, going by samples; if not, move on to the last of them that is.

        A sample that is not there is refused, but not always: some systems start to read its page, and return it if the disk was quick.
        Two such samples in a row count as refused.
        """
        if self._descriptor is None:
            self._descriptor = self._reopen()
            if self._descriptor is None:
                self._closed = True
                return True
        byte = bytearray(1)
        there, slow = self._next, False
        while self._next < self._limit:
            begun = time.perf_counter()
            try:
                os.preadv(self._descriptor, [byte], self._next, os.RWF_NOWAIT)
                took = time.perf_counter() - begun
            except OSError:  # it would block, or the file system cannot say
                took = math.inf
            if took == math.inf or (slow and took > QUICK):
                self._next = self._stored(there)
                return self._next >= self._limit
            slow = took > QUICK
            if not slow:
                there = self._next
            self._next += PROBE
        return True

    def _stored(self, at: int) -> int:
        """Return the first position from `at` on that is not in a hole; the end if only a hole follows."""
        assert self._descriptor is not None
        try:
            return os.lseek(self._descriptor, at, os.SEEK_DATA)
        except OSError as error:
            return self._stop if error.errno == errno.ENXIO else at

    def _read(self) -> None:
        descriptor = self._descriptor
        assert descriptor is not None
        with contextlib.suppress(OSError), open(os.devnull, "wb", buffering=0) as null:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while (piece := self._next_piece()) is not None:
                at = self._stored(piece[0])
                if at < piece[1] and not os.sendfile(null.fileno(), descriptor, at, piece[1] - at):
                    break
        self.close(ended=True)

    def _next_piece(self) -> tuple[int, int] | None:
        """Wait until the walk has made room in the window. Returns what to read next, or None at the end."""
        with self._changed:
            while self._limit <= self._next < self._stop and not self._closed:
                self._changed.wait()
            if self._closed or self._next >= self._stop:
                return None
            at, self._next = self._next, min(self._next + PIECE, self._limit)
            return at, self._next

    def close(self, *, ended: bool = False) -> None:
        """Stop reading, without waiting for what is being read. ended: called by the thread at its end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            if self._descriptor is not None and (ended or self._reader is None):
                os.close(self._descriptor)
                self._descriptor = None
