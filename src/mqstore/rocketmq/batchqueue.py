"""Batch consume queue (5.x, topics of queue.type BatchCQ): one 46-byte unit per record that may hold several messages.

    offset  size  field                          offset  size  field
         0     8  physical offset                    28     8  queue offset of the first message
         8     4  size of the record                 36     2  number of messages
        12     8  tags code                          38     4  compacted offset, -1
        20     8  store time, ms                     42     4  0

Files start at byte 0 of the run and are named by byte offsets, not by message numbers.

Format: docs/formats/rocketmq.md, section 4.10.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mqstore.files import MappedFile, ReadOnlyDirectory
from mqstore.findings import Damage
from mqstore.rocketmq import filequeue
from mqstore.rocketmq.filequeue import QueueFile

__all__ = ["DEFAULT_FILE_SIZE", "UNIT", "UNIT_SIZE", "BatchQueueReader"]

UNIT = np.dtype(
    [
        ("physical_offset", ">i8"),
        ("size", ">i4"),
        ("tags_code", ">i8"),
        ("store_timestamp", ">i8"),
        ("base_offset", ">i8"),
        ("count", ">i2"),
        ("compacted_offset", ">i4"),
        ("reserved", ">i4"),
    ]
)
UNIT_SIZE = 46
DEFAULT_FILE_SIZE = 13_800_000


class BatchQueueReader:
    """Units of one batch queue, by the queue offsets of their messages."""

    batch = True

    def __init__(self, directory: ReadOnlyDirectory, topic: str, queue_id: int, *, file_size: int | None = None) -> None:
        self.directory_name = topic
        self.topic = topic.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        self.queue_id = queue_id
        self.relative = f"batchconsumequeue/{topic}/{queue_id}"
        self._directory = directory
        self._file_size = file_size

    @cached_property
    def _queue(self) -> filequeue.FileQueue:
        return filequeue.load(self._directory, self.relative, size=self._file_size)

    @property
    def files(self) -> tuple[QueueFile, ...]:
        return self._queue.files

    @property
    def file_size(self) -> int:
        return self._queue.file_size

    @property
    def findings(self) -> tuple[Damage, ...]:
        return self._queue.findings

    def _mapped(self, file: QueueFile) -> MappedFile:
        return self._directory.map(file.relative)

    @cached_property
    def units(self) -> NDArray[np.void]:
        """All valid units in order: a copy of 46 bytes a record."""
        parts = []
        for file in self.files:
            mapped = self._mapped(file)
            end = min(mapped.size, mapped.data_end(0))
            rows = mapped.data[: end - end % UNIT_SIZE].view(UNIT)
            valid = (rows["physical_offset"] >= 0) & (rows["size"] > 0) & (rows["base_offset"] >= 0) & (rows["count"] > 0)
            stop = len(rows) if valid.all() else int(np.argmin(valid))
            parts.append(rows[:stop].copy())
            if stop < len(rows):
                break
        return np.concatenate(parts) if parts else np.empty(0, UNIT)

    @property
    def unit_count(self) -> int:
        return len(self.units)

    @property
    def min_offset(self) -> int:
        """Queue offset of the first message; -1 while the queue is empty, as the broker says it."""
        return int(self.units["base_offset"][0]) if len(self.units) else -1

    @property
    def max_offset(self) -> int:
        """Queue offset behind the last message."""
        return int(self.units["base_offset"][-1]) + int(self.units["count"][-1]) if len(self.units) else 0

    @property
    def max_physical_offset(self) -> int:
        """Physical offset at which the newest record starts (the broker keeps the start here, not the end); -1 if empty."""
        return int(self.units["physical_offset"][-1]) if len(self.units) else -1

    def entries(self, start: int, stop: int) -> NDArray[np.void]:
        """The units that hold any of the messages start..stop-1."""
        bases = self.units["base_offset"].astype(np.int64)
        ends = bases + self.units["count"]
        return self.units[(bases < stop) & (ends > start)]

    def place(self, position: int) -> tuple[str, int]:
        """(file relative to the store, byte in it) of a byte of the run."""
        for file in self.files:
            if file.start <= position < file.start + file.size:
                return file.relative, position - file.start
        return self.relative, position
