"""Pruning: the records of a log that a selection can need, as far as queues and index prove it.

A derived file may lack what the log holds: a message of a topic that was deleted and created again, a damaged entry, keys that recovery
did not index again. So derived files are used only as far as they are proved, log file by log file:

*fully indexed*: the entries of all queues ascend, and the sizes of those that point into the log file add up to all of it, up to its
end-of-file record (or the unwritten rest of the last file). Then every record of the file has a queue entry.

*keys known*: the chains of an index file are intact, its offsets ascend and are all offsets of records with queue entries. Between its
first and last record, such a record that it mentions is found by its hashes.

Fully indexed files are read record by record; a record whose keys no index file knows is read, too; all other files are
scanned. The proof reads 20 bytes a message and 20 a key, a few hundredths of the log.

Format: docs/formats/rocketmq.md, sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.files.location import Url
from mqstore.findings import Damage, Kind
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.config.broker_config import BrokerConfig
from mqstore.rocketmq.dispatch.dispatcher import LMQ_PREFIX
from mqstore.rocketmq.format.commit_log import CHUNK, CommitLog, Records, group_ranges, status_at
from mqstore.rocketmq.format.consume_queue import BLANK_SIZE, ConsumeQueueReader
from mqstore.rocketmq.format.index_file import IndexFile
from mqstore.rocketmq.format.java_text import index_hash
from mqstore.rocketmq.format.mapped_file_queue import QueueFile
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.rocketmq.scan.planned_files import FilesSeen, files_seen, require_seen
from mqstore.rocketmq.store.disk_view import DiskView
from mqstore.rocketmq.store.message_table import MAX_BATCH_BYTES, batch_of, select
from mqstore.rocketmq.store.split_reader import opened_view
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.index_proof import check_chains
from mqstore.table.arrow_spans import distinct, distinct_of_sorted
from mqstore.table.columns import Selection

if TYPE_CHECKING:
    import pyarrow as pa

Longs = NDArray[np.int64]

BLOCK = 1 << 20  # entries read at once
MAX_ENTRIES = 32_000_000  # queue entries that a key search holds in memory: 256 MB
MAX_POINTS = 1_000_000  # offsets that are passed to tasks one by one
MAX_SHARE = 4  # at most one record in this many is read separately; beyond that a scan is faster


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Entries low..high-1 of one consume queue, all of which point into one log file."""

    topic: str
    queue_id: int
    low: int
    high: int

    def pieces(self, entries: int) -> Iterator[QueueRange]:
        """Yield the range cut into ranges of at most `entries` entries."""
        for low in range(self.low, self.high, entries):
            yield QueueRange(self.topic, self.queue_id, low, min(self.high, low + entries))


@dataclass(frozen=True, slots=True)
class PrunedScan:
    """What has to be read. files: log files that must be scanned. how: `scan`, `queue` or `index`; why: a sentence for a person.

    ranges, points: records of the other files, by queue or by physical offset (ascending).
    """

    how: str
    why: str
    files: tuple[QueueFile, ...]
    ranges: tuple[QueueRange, ...] = ()
    points: tuple[int, ...] = ()

    @property
    def records(self) -> int:
        """Number of records that are read one by one."""
        return len(self.points) + sum(each.high - each.low for each in self.ranges)


def prune(store: RocketMQStore, selection: Selection) -> PrunedScan:
    """Return the smallest reading of a selection that cannot miss a message."""
    by_queue = bool(selection.topics and selection.queue_ids) and (
        selection.from_queue_offset is not None or selection.to_queue_offset is not None
    )
    if not by_queue and not selection.keys:
        return _scan(store, "no condition on a queue's offsets or on keys")
    sure = fully_indexed(store)
    if not sure:
        return _scan(store, "the consume queues do not account for all records of any log file")
    return _by_queue(store, selection, sure) if by_queue else _by_index(store, selection, sure)


def _scan(store: RocketMQStore, why: str) -> PrunedScan:
    return PrunedScan("scan", f"the log is scanned: {why}", _written_files(store.log))


def _written_files(log: CommitLog) -> tuple[QueueFile, ...]:
    return log.files[: log.last_written() + 1]


# what is proved


def fully_indexed(store: RocketMQStore) -> tuple[QueueFile, ...]:
    """Return the log files all of whose records have queue entries; none if the entries of a queue do not ascend."""
    log = store.log
    files = _written_files(log)
    starts = np.array([file.start for file in files], np.int64)
    listed = np.zeros(len(files), np.float64)
    ends = starts.copy()
    if not files:
        return ()
    for physical, sizes in _entry_blocks(store):
        if len(physical) and (np.diff(physical) <= 0).any():
            return ()
        number = np.searchsorted(starts, physical, "right") - 1
        listed += np.bincount(number, weights=sizes, minlength=len(files))
        last = np.flatnonzero(np.diff(np.r_[number, -1]))
        ends[number[last]] = np.maximum(ends[number[last]], (physical + sizes)[last])
    return tuple(
        file
        for k, file in enumerate(files)
        if int(listed[k]) == int(ends[k]) - file.start and _ends_at(log, file, int(ends[k]) - file.start, last=k == len(files) - 1)
    )


def _entry_blocks(store: RocketMQStore) -> Iterator[tuple[Longs, Longs]]:
    """Yield (physical offsets, sizes) of all entries that point into the log, block by block and queue by queue.

    A descent between two blocks of a queue is yielded as a block of two descending offsets.
    """
    low = store.log.start
    for queue in store.all_queues():
        if queue.topic.startswith(LMQ_PREFIX):
            continue  # its records have an entry in another queue as well
        previous = -1
        for start in range(queue.min_offset, queue.max_offset, BLOCK):
            entries = queue.entries(start, min(start + BLOCK, queue.max_offset))
            sizes, physical = entries["size"].astype(np.int64), entries["physical_offset"].astype(np.int64)
            valid = (sizes > 0) & (sizes != BLANK_SIZE) & (physical >= low)
            physical, sizes = physical[valid], sizes[valid]
            if len(physical) and physical[0] <= previous:
                yield np.array([previous, int(physical[0])], np.int64), np.zeros(2, np.int64)
            yield physical, sizes
            previous = int(physical[-1]) if len(physical) else previous
        if isinstance(queue, ConsumeQueueReader):
            queue.drop()


def _ends_at(log: CommitLog, file: QueueFile, at: int, *, last: bool) -> bool:
    """Return whether the records of a file end at a position: the file's end, its end-of-file record, or the unwritten rest of the log."""
    mapped = log.mapped(file)
    if at >= mapped.size:
        return at == mapped.size == log.file_size
    size = int.from_bytes(mapped.bytes(at, min(at + 4, mapped.size)), "big", signed=True)
    if status_at(mapped, at, file.start) == frames.BLANK and size == mapped.size - at:
        return True
    return last and mapped.size == log.file_size and mapped.last_nonzero(at, mapped.size) < 0


# by queue


def _by_queue(store: RocketMQStore, selection: Selection, sure: Sequence[QueueFile]) -> PrunedScan:
    batch = {(queue.topic, queue.queue_id) for queue in store.batch_queues()}
    trusted = set(sure)
    ranges: list[tuple[QueueFile, QueueRange]] = []
    for queue in store.consume_queues():
        if not (queue.topic in (selection.topics or ()) and queue.queue_id in (selection.queue_ids or ())):
            continue
        for file, low, high in _by_file(store.log, queue):
            if file not in trusted:
                continue
            if not all(_points_back(store.log, queue, number) for number in (low, high - 1)):
                trusted.discard(file)
                continue
            low, high = max(low, selection.from_queue_offset or 0), min(high, selection.to_queue_offset or high)
            ranges.append((file, QueueRange(queue.topic, queue.queue_id, low, max(low, high))))
    requested = {(topic, queue_id) for topic in selection.topics or () for queue_id in selection.queue_ids or ()}
    if requested & batch:
        return _scan(store, "the offsets of a batch queue are not those of its messages")
    rest = tuple(file for file in _written_files(store.log) if file not in trusted)
    selected = tuple(each for file, each in ranges if file in trusted and each.low < each.high)
    scan = PrunedScan("queue", "", rest, selected)
    return _with_reason(store, scan, f"{scan.records} records by their entries in the consume queue")


def _by_file(log: CommitLog, queue: ConsumeQueueReader) -> Iterator[tuple[QueueFile, int, int]]:
    """Yield (log file, low, high): entries low..high-1 point into the file. Correct only if entries ascend."""
    low = queue.min_offset
    for file in log.files:
        low = _first_at(queue, low, file.start)
        high = _first_at(queue, low, file.start + file.size)
        if low < high:
            yield file, low, high
        low = high


def _first_at(queue: ConsumeQueueReader, low: int, physical_offset: int) -> int:
    """Return the number of the first entry from low on whose record is at or after a physical offset."""
    high = queue.max_offset
    while low < high:
        middle = (low + high) // 2
        if int(queue.entries(middle, middle + 1)["physical_offset"][0]) < physical_offset:
            low = middle + 1
        else:
            high = middle
    return low


def _points_back(log: CommitLog, queue: ConsumeQueueReader, number: int) -> bool:
    """Return whether an entry points at a record that names this queue and this queue offset."""
    message = log.record(int(queue.entries(number, number + 1)["physical_offset"][0]))
    return message is not None and (message.topic, message.queue_id, message.queue_offset) == (queue.topic, queue.queue_id, number)


# by index


def _by_index(store: RocketMQStore, selection: Selection, sure: Sequence[QueueFile]) -> PrunedScan:
    files = store.index_files()
    if not files:
        return _scan(store, "there is no index file")
    if sum(queue.max_offset - queue.min_offset for queue in store.consume_queues()) > MAX_ENTRIES:
        return _scan(store, "the queues are too long to be compared with the index; `mqstore lookup` searches them by the key")
    listed = np.sort(np.concatenate([_inside(physical, sure) for physical, _ in _entry_blocks(store)]), kind="stable")
    if not len(listed):
        return _scan(store, "no record has a queue entry")
    topics = selection.topics or {queue.topic for queue in store.all_queues()}
    selected = np.unique(np.array([index_hash(topic, key) for topic in topics for key in selection.keys or ()], np.int64))
    known = np.zeros(len(listed), np.bool_)  # records whose keys the index knows
    hits: list[Longs] = []
    valid = 0
    for file in files:
        proved = _proved_by(file, listed, sure, selected)
        if proved is not None:
            valid += 1
            known[proved[0]] = True
            hits.append(proved[1])
    if not valid:
        return _scan(store, f"none of the {len(files)} index files is valid")
    points = distinct(np.concatenate([listed[~known], *hits]))
    if len(points) > MAX_POINTS or len(points) * MAX_SHARE > len(listed) + 64 * MAX_SHARE:
        return _scan(store, f"the index leaves {len(points)} of {len(listed)} records to be read")
    rest = tuple(file for file in _written_files(store.log) if file not in sure)
    scan = PrunedScan("index", "", rest, points=tuple(points.tolist()))
    return _with_reason(store, scan, f"{len(points)} records by {valid} of {len(files)} index files")


def _proved_by(file: IndexFile, listed: Longs, sure: Sequence[QueueFile], selected: Longs) -> tuple[Longs, Longs] | None:
    """Return (numbers of the records whose keys the file knows, physical offsets with a wanted hash); None for an invalid file."""
    if file.index_count <= 1 or check_chains(file):
        return None
    entries = file.entries(1, min(file.index_count, file.positions))
    physical = entries["physical_offset"].astype(np.int64)
    if (np.diff(physical) < 0).any():
        return None
    hits = _inside(physical[np.isin(entries["key_hash"], selected)], sure)
    mentioned = distinct_of_sorted(_inside(physical, sure))
    # the first and the last record may have keys in the file before or after this one
    mentioned = mentioned[(mentioned > physical[0]) & (mentioned < physical[-1])]
    numbers = np.searchsorted(listed, mentioned)
    if len(numbers) and (numbers[-1] >= len(listed) or (listed[numbers] != mentioned).any()):
        return None
    return numbers.astype(np.int64), hits


def _inside(physical: Longs, files: Sequence[QueueFile]) -> Longs:
    """Return the offsets that are inside one of the files."""
    starts = np.array([file.start for file in files], np.int64)
    ends = np.array([file.start + file.size for file in files], np.int64)
    number = np.searchsorted(starts, physical, "right") - 1
    return physical[(number >= 0) & (physical < ends[number])]


def _with_reason(store: RocketMQStore, scan: PrunedScan, what: str) -> PrunedScan:
    files = len(_written_files(store.log))
    scanned = f"{len(scan.files)} of {files} log files are scanned, because the queues do not account for all of their records"
    why = f"{what}; {scanned if scan.files else 'nothing is scanned'}"
    return PrunedScan(scan.how, why, scan.files, scan.ranges, scan.points)


# Reading records one by one, at places known from a queue or the index: the task of a pruned source.
#
# The bytes between the records are not read. A place without a valid record is reported as damage.


@dataclass(frozen=True, slots=True)
class PointTask:
    """Records of a store, with the requested columns and messages. token, seen: see `planned_files`.

    places: a range of a queue whose entries point into one log file, or physical offsets, ascending.
    """

    store: str | Url
    config: BrokerConfig
    token: str
    places: QueueRange | tuple[int, ...]
    columns: tuple[str, ...]
    selection: Selection
    seen: FilesSeen | None = None


def seen_at(store: RocketMQStore, places: QueueRange | tuple[int, ...]) -> FilesSeen | None:
    """Return the log files that hold the records."""
    if isinstance(places, tuple):
        first, last = places[0], places[-1]
    else:  # ascending, and all in one file
        view = DiskView(store)
        first, last = (int(_offsets(view, replace(places, low=at, high=at + 1))[0]) for at in (places.low, places.high - 1))
    return files_seen(store.log, first, last + 1)


def read_points(task: PointTask, *, report: Callable[[Damage], None] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the selected records in physical order, in batches. report: called with places that do not hold a valid record."""
    view = opened_view(task.store, task.config, task.token)
    require_seen(view.log, task.seen)
    try:
        for records in grouped_records(view.log, _offsets(view, task.places), report):
            columns = RecordColumns(records)
            columns = columns.take(select(columns, task.selection))
            for piece in columns.pieces(MAX_BATCH_BYTES):
                yield batch_of(piece, task.columns, view.log, view.queue_lookup)
            view.log.drop_records(records)
    finally:
        view.log.drop_queues()


def _offsets(view: DiskView, places: QueueRange | tuple[int, ...]) -> NDArray[np.int64]:
    if isinstance(places, tuple):
        return np.array(places, np.int64)
    offsets: NDArray[np.int64] = (
        view.queue(places.topic, places.queue_id).entries(places.low, places.high)["physical_offset"].astype(np.int64)
    )
    return offsets


def grouped_records(log: CommitLog, offsets: NDArray[np.int64], report: Callable[[Damage], None] | None) -> Iterator[Records]:
    """Yield the valid records at physical offsets, file by file. report: called with offsets at which none starts."""
    for file, group in groupby(offsets.tolist(), key=log.file_at):
        if file is None:
            continue
        places = np.array([physical - file.start for physical in group], np.int64)
        for data, positions in group_ranges(log.mapped(file), file.start, places):
            valid = np.array([frames.status_at(data, at, file.start, True) == frames.STOP for at in positions.tolist()], np.bool_)
            if report is not None:
                for at in positions[~valid].tolist():
                    sentence = "a queue or the index points here, where no valid record starts"
                    report(Damage(file.relative, at, 0, Kind.BAD_FRAME, sentence, 1))
            positions = np.ascontiguousarray(positions[valid])
            for start in range(0, len(positions), CHUNK):
                yield Records(file, data, positions[start : start + CHUNK])
