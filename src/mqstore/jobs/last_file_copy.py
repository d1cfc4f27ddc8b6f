"""The copy of the last log file, made while the log is being read.

A broker continues to write the last file of a log, so a rebuilt store gets a copy of it, which ends after the last valid record.
Where that is becomes known at the end of the reading. The copy begins before, with the bytes that are written now; `finish` cuts it, or
adds what is missing.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from mqstore.files import MappedFile
from mqstore.files.durable import DurableDirectory, DurableFile
from mqstore.files.durable_file import BLOCK
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.format.mapped_file_queue import QueueFile
from mqstore.threads import TaskThreads

COPIED_AT_ONCE = 32 << 20  # bytes


class LastFileCopy:
    """A context in which the copy is being made; nothing is written any more when it has been left."""

    def __init__(self, log: CommitLog, file: QueueFile, directory: DurableDirectory) -> None:
        self._file = file
        # a separate map: pages that are released after they are copied would be taken from the walk over the log
        self._source = MappedFile(log.mapped(file).path)
        self._directory = directory
        self._size = max(file.size, log.file_size)
        self._stopped = threading.Event()
        self._pool = TaskThreads(1, "mqstore-copy")

    def __enter__(self) -> Self:
        relative = f"commitlog/{self._file.name}"
        self._directory.create(relative, self._size)
        self._target: DurableFile = self._directory.open(relative)
        self._copied: Future[int] = self._pool.submit(self._copy)
        return self

    def _copy(self) -> int:
        """Copy the blocks that are full now. Returns the bytes copied."""
        end = self._source.last_nonzero(0, self._source.size) + 1
        end -= end % BLOCK
        for at in range(0, end, COPIED_AT_ONCE):
            if self._stopped.is_set():
                return at
            stop = min(at + COPIED_AT_ONCE, end)
            self._source.will_need(stop, min(COPIED_AT_ONCE, end - stop))
            self._target.pwrite_past_cache(at, self._source.data[at:stop])
            self._source.drop(at, stop - at)
        return end

    def finish(self, end: int) -> None:
        """Wait for the copy, and let it end there. end: physical offset after the last record."""
        wanted = max(0, end - self._file.start)
        copied = self._copied.result()
        if copied > wanted:
            self._target.truncate(wanted)
            self._target.truncate(self._size)
        elif copied < wanted:
            self._target.pwrite(copied, self._source.data[copied:wanted])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopped.set()
        try:
            self._pool.__exit__(kind, error, trace)
        finally:
            self._target.close()
