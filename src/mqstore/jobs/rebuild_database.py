"""Rebuilt consume queues as a RocksDB database: what tasks wrote as queue files or staged rows, put into it queue by queue.

The database is written by this process alone; Spark's tasks have scanned the log before. Differences from files: queues that are not
plain need no rules for appending, and of a queue whose messages are all gone its bounds are enough to continue its numbering.

Format: docs/formats/rocketmq.md, section 4.11.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import UnsupportedError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.rocksdb import NewDatabase, is_installed
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.format.consume_queue import ENTRY, ConsumeQueueReader
from mqstore.rocketmq.format.profile import NEWEST, OLDEST_WITH_DATABASES, Profile, profile
from mqstore.rocketmq.format.rocksdb_queue import BOUNDS, CHECKPOINT_TOPIC, bound_key, queue_prefix
from mqstore.rocketmq.rebuild_steps import PLAIN, StagedRows, read_rows
from mqstore.rocketmq.store.store import RocketMQStore

DATABASE = "database"  # of the scratch directory
NEEDED_OPTION = "storeType=defaultRocksDB"
ENTRIES_AT_ONCE = 1 << 16
_KINDS = ("files", "rocksdb")
_CONFIGURATION = ("config/topics", "config/subscriptionGroups", "config/consumerOffsets", "config/rdb")

Queue = tuple[str, int]
AT_ONCE = 1 << 15  # entries written together
_BOUND = struct.Struct(">qq")
_INT64 = struct.Struct(">q")
_VALUE = np.dtype([("entry", ENTRY), ("store_timestamp", ">i8")])


def check_request(queues: str, version: str | None, suggested: Profile) -> str | None:
    """Return the version whose rules a rebuild follows; None: those of the store. Raises UsageError for what cannot be.

    queues: `files` or `rocksdb`. version: as asked for. suggested: by the files of the store.
    """
    if queues not in _KINDS:
        raise UsageError(f"there are no consume queues of kind {queues!r}; they are kept in {' or '.join(_KINDS)}")
    asked = None if version is None else profile(version)
    if queues == "files":
        return version
    if asked is not None and not asked.has_databases:
        raise UsageError(
            f"consume queues in RocksDB are written for {OLDEST_WITH_DATABASES} and later, not for {version}: use --queues files, "
            "or --for with the version of the broker that will open the new store"
        )
    if not is_installed():
        raise UsageError("consume queues cannot be written into RocksDB: `pip install 'mqstore[rocksdb]'` installs what writes it")
    if version is None and not suggested.has_databases:
        return NEWEST
    return version


def refuse_batch_queues(queues: Iterable[Queue]) -> None:
    """Raise UnsupportedError if there are batch queues."""
    topic = next((topic for topic, _ in queues), None)
    if topic is not None:
        raise UnsupportedError(
            f"topic {topic!r} has batch queues (queue.type=BatchCQ), which brokers keep in files only: use --queues files"
        )


def configuration_notes(store: RocketMQStore) -> Iterator[str]:
    """Yield what a broker that keeps its queues in files misses in the configuration: it reads none of its databases."""
    databases = [path for path in _CONFIGURATION if store.databases.exists(path)]
    if databases:
        yield (
            f"the configuration in RocksDB ({', '.join(databases)}) is carried over as it is: a broker that keeps its consume queues in "
            "files does not read it; --queues rocksdb makes a store whose broker does"
        )


class QueueDatabase:
    """The database of a rebuild. scratch: the directory of staged files, in which it is made."""

    def __init__(self, scratch: Path, log: CommitLog) -> None:
        self._scratch = scratch
        self._writer = QueueDatabaseWriter(scratch / DATABASE, log)

    def put_plain(self, queue: Queue, first: int, stop: int, file_size: int) -> int:
        """Put the entries first..stop-1 of a queue whose files are staged; return how many."""
        reader = ConsumeQueueReader(ReadOnlyDirectory(self._scratch / PLAIN), *queue, file_size=file_size)
        ends: list[np.void] = []
        for start in range(first, stop, ENTRIES_AT_ONCE):
            entries = reader.entries(start, min(stop, start + ENTRIES_AT_ONCE))
            self._writer.put(*queue, np.arange(start, start + len(entries), dtype=np.int64), entries)
            ends += [entries[0], entries[-1]]
        reader.drop()
        self._bound(queue, (first, ends[0]), (stop - 1, ends[-1]))
        return stop - first

    def put_staged(self, queue: Queue, segments: Sequence[StagedRows]) -> tuple[int, int]:
        """Put rows in log order: of those with the same queue offset the last one counts. Return how many were put, and replaced.

        The queue ends after its highest offset, also if it started again at 0 later: nothing that is kept is out of reach.
        """
        first = last = None
        known: list[NDArray[np.int64]] = []
        put = 0
        for segment in segments:
            offsets, rows = read_rows(self._scratch, segment, ENTRY.itemsize)
            entries = rows.view(ENTRY)
            usable = offsets >= 0
            offsets, entries = offsets[usable], entries[usable]
            if not len(offsets):
                continue
            put += self._writer.put(*queue, offsets, entries)
            known.append(np.unique(offsets))
            lowest, highest = (int(np.flatnonzero(offsets == end)[-1]) for end in (offsets.min(), offsets.max()))
            if first is None or offsets[lowest] <= first[0]:
                first = int(offsets[lowest]), entries[lowest]
            if last is None or offsets[highest] >= last[0]:
                last = int(offsets[highest]), entries[highest]
        if first is None or last is None:
            return 0, 0
        self._bound(queue, first, last)
        return put, put - len(np.unique(np.concatenate(known)))

    def keep_numbering(self, queue: Queue, end: int, last_physical: int) -> None:
        """Store the maximum of a queue without messages."""
        self._writer.bound(*queue, b"max", last_physical, end - 1)

    def _bound(self, queue: Queue, first: tuple[int, np.void], last: tuple[int, np.void]) -> None:
        for name, (offset, entry) in ((b"min", first), (b"max", last)):
            self._writer.bound(*queue, name, int(entry["physical_offset"]), offset)

    def close(self, log_end: int) -> None:
        """Complete the database. log_end: the end of the log."""
        self._writer.close(log_end)

    def abandon(self) -> None:
        """Release the files of a database that is not completed."""
        self._writer.abandon()


# Writes consume queues into a new RocksDB database, pair for pair as a broker with `storeType=defaultRocksDB` does.
#
# An entry is stored under its queue offset. So there are no blanks before the first entry and no gaps, and an entry with a queue offset
# that was used before takes the place of the older one. The value has the store time as well, which is read from the record in the log.
# Of each queue the bounds are stored, and under CHECKPOINT_TOPIC where the log ends.


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
        times = np.zeros(len(physical), np.int64)
        starts = np.array([file.start for file in self._log.files], np.int64)
        numbers = np.searchsorted(starts, physical, side="right") - 1
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            file = self._log.files[number]
            positions = np.ascontiguousarray(physical[rows] - file.start)
            fields = np.empty((frames.FIELD_COUNT, len(rows)), np.int64)
            frames.fields(self._log.mapped(file).data, positions, fields)
            times[rows] = fields[frames.STORE_TIMESTAMP]
        return times
