"""Writes consume queues into a new RocksDB database, pair for pair as a broker with `storeType=defaultRocksDB` does.

An entry is stored under its queue offset. So there are no blanks before the first entry and no gaps, and an entry with a queue offset
that was used before takes the place of the older one. The value has the store time as well, which is read from the record in the log.
Of each queue the bounds are stored, and under CHECKPOINT_TOPIC where the log ends.

Format: docs/formats/rocketmq.md, section 4.11.
"""

from __future__ import annotations

import os
import struct

import numpy as np
from numpy.typing import NDArray

from mqstore.files.rocksdb import NewDatabase
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.format.consume_queue import ENTRY
from mqstore.rocketmq.format.rocksdb_queue import BOUNDS, CHECKPOINT_TOPIC, bound_key, queue_prefix

AT_ONCE = 1 << 15  # entries written together
_BOUND = struct.Struct(">qq")
_INT64 = struct.Struct(">q")
_VALUE = np.dtype([("entry", ENTRY), ("store_timestamp", ">i8")])


class QueueDatabaseWriter:
    """The database of one store. Entries are given in log order, queue by queue."""

    def __init__(self, path: str | os.PathLike[str], log: CommitLog) -> None:
        self._log = log
        self._database = NewDatabase(path, (BOUNDS,))

    def put(self, topic: str, queue_id: int, offsets: NDArray[np.int64], entries: NDArray[np.void]) -> int:
        """Write entries of a queue under their queue offsets; return how many. One below 0 cannot be stored."""
        usable = offsets >= 0
        if not usable.all():
            offsets, entries = offsets[usable], entries[usable]
        prefix = queue_prefix(topic.encode(), queue_id)
        for start in range(0, len(offsets), AT_ONCE):
            part = entries[start : start + AT_ONCE]
            values = np.empty(len(part), _VALUE)
            values["entry"] = part
            values["store_timestamp"] = self._store_times(part["physical_offset"].astype(np.int64))
            keys = offsets[start : start + AT_ONCE].astype(">i8").tobytes()
            raw, width = values.tobytes(), _VALUE.itemsize
            self._database.put((prefix + keys[8 * k : 8 * k + 8], raw[width * k : width * k + width]) for k in range(len(part)))
        return len(offsets)

    def bound(self, topic: str, queue_id: int, name: bytes, physical_offset: int, queue_offset: int) -> None:
        """Write a bound of a queue: `min` or `max`, the place of its first or last entry."""
        key = bound_key(topic.encode(), queue_id, name)
        self._database.put([(key, _BOUND.pack(physical_offset, queue_offset))], BOUNDS)

    def close(self, log_end: int) -> None:
        """Complete the database. log_end: the physical offset after the last record that was dispatched."""
        self._database.put([(bound_key(CHECKPOINT_TOPIC, 0, b"max"), _INT64.pack(log_end))], BOUNDS)
        self._database.close()

    def abandon(self) -> None:
        """Release the files of a database that is not completed. Does nothing after `close`."""
        self._database.abandon()

    def _store_times(self, physical: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the store times of records."""
        found = np.zeros(len(physical), np.int64)
        starts = np.array([file.start for file in self._log.files], np.int64)
        numbers = np.searchsorted(starts, physical, side="right") - 1
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            file = self._log.files[number]
            positions = np.ascontiguousarray(physical[here] - file.start)
            fields = np.empty((frames.FIELD_COUNT, len(here)), np.int64)
            frames.fields(self._log.mapped(file).data, positions, fields)
            found[here] = fields[frames.STORE_TIMESTAMP]
        return found
