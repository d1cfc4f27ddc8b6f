"""Pruning: the records of a log that a selection can need, as far as queues and index prove it.

A derived file may lack what the log holds: a message of a topic that was deleted and created again, a damaged entry, keys that recovery
did not index again. So derived files are used only as far as they are proved, log file by log file:

*fully indexed*: the entries of all queues ascend, and those that point into the log file follow each other without a gap, from its
start up to its end-of-file record (or the unwritten rest of the last file). Then every record of the file has a queue entry.

*keys known*: the chains of an index file are intact, its offsets ascend and are all offsets of records with queue entries. Between its
first and last record, such a record that it mentions is found by its hashes.

Fully indexed files are read record by record; a record whose keys no index file knows is read, too; all other files are
scanned. The proof reads 20 bytes a message and 20 a key, a few hundredths of the log. For a range of a queue in a large store the
tasks prove it, each for its own log files (`FileTask`): planning does not read the entries.

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
from mqstore.rocketmq.store.split_reader import ReadTask, opened_view, read_split
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.store.store_files import StoreFiles
from mqstore.rocketmq.verify.index_proof import check_chains
from mqstore.table.arrow_spans import distinct, distinct_of_sorted
from mqstore.table.columns import Selection
from mqstore.table.formatting import count

if TYPE_CHECKING:
    import pyarrow as pa

Longs = NDArray[np.int64]

BLOCK = 1 << 20  # entries read at once
MAX_ENTRIES = 32_000_000  # queue entries that a key search holds in memory: 256 MB
MAX_PLANNED_KEYS = 8_000_000  # of them, those that planning reads before the first task: some six seconds
MAX_POINTS = 1_000_000  # offsets that are passed to tasks one by one
MAX_PLANNED = 4_000_000  # queue entries that planning reads for a range of a queue: some two seconds
SEARCH = 500  # entries that could be read while a queue is searched for those of one log file
SEARCH_COST = 256 << 10  # bytes of a log that could be scanned meanwhile
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
class Offsets:
    """Ascending physical offsets, 4 bytes each: the first, and the steps to the others; 8 bytes if a step is 4 GiB or more."""

    first: int
    count: int
    steps: bytes

    @classmethod
    def of(cls, values: Longs) -> Offsets:
        steps = np.diff(values)
        narrow = not len(steps) or int(steps.max()) < 1 << 32
        return cls(int(values[0]), len(values), steps.astype("<u4" if narrow else "<u8").tobytes())

    def values(self) -> Longs:
        narrow = len(self.steps) == 4 * (self.count - 1)
        steps = np.frombuffer(self.steps, "<u4" if narrow else "<u8").astype(np.int64)
        return np.cumsum(np.concatenate([[self.first], steps])).astype(np.int64)

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True, slots=True)
class PrunedScan:
    """What has to be read. files: log files that must be scanned. how: `scan`, `queue` or `index`; why: a sentence for a person.

    ranges, points: records of the other files, by queue or by physical offset (ascending). unproved: files that tasks are to prove.
    """

    how: str
    why: str
    files: tuple[QueueFile, ...]
    ranges: tuple[QueueRange, ...] = ()
    points: tuple[int, ...] = ()
    unproved: tuple[QueueFile, ...] = ()

    @property
    def records(self) -> int:
        """Number of records that are read one by one."""
        return len(self.points) + sum(each.high - each.low for each in self.ranges)


def prune(store: RocketMQStore, selection: Selection, *, most_entries: int = MAX_ENTRIES) -> PrunedScan:
    """Return the smallest reading of a selection that cannot miss a message. most_entries: of queues, read here for a search by keys."""
    by_queue = bool(selection.topics and selection.queue_ids) and (
        selection.from_queue_offset is not None or selection.to_queue_offset is not None
    )
    if not by_queue and not selection.keys:
        return _scan(store, "no condition on a queue's offsets or on keys")
    requested = {(topic, queue_id) for topic in selection.topics or () for queue_id in selection.queue_ids or ()}
    if by_queue and requested & {(queue.topic, queue.queue_id) for queue in store.batch_queues()}:
        return _scan(store, "the offsets of a batch queue are not those of its messages")
    entries = sum(queue.max_offset - queue.min_offset for queue in store.consume_queues())
    if by_queue and entries + SEARCH * len(requested) * len(store.log.files) > MAX_PLANNED:
        return _by_tasks(store, entries)
    if not by_queue and not store.index_files():
        return _scan(store, "there is no index file")
    if not by_queue and entries > most_entries:
        return _scan(store, "the queues are too long to be compared with the index; `mqstore lookup` searches them by the key")
    sure = fully_indexed(store, _written_files(store.log))
    if not sure:
        return _scan(store, "the consume queues do not account for all records of any log file")
    return _by_queue(store, selection, sure) if by_queue else _by_index(store, selection, sure)


def _scan(store: RocketMQStore, why: str) -> PrunedScan:
    return PrunedScan("scan", f"the log is scanned: {why}", _written_files(store.log))


def _written_files(log: CommitLog) -> tuple[QueueFile, ...]:
    return log.files[: log.last_written() + 1]


# what is proved


def fully_indexed(store: StoreFiles, files: Sequence[QueueFile]) -> tuple[QueueFile, ...]:
    """Return the log files all of whose records have queue entries; none if the entries of a queue do not ascend.

    files: all of the log, or some that follow each other; of these, only the entries that point to them are read.
    """
    if not files:
        return ()
    offsets, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    for physical, sizes in _entry_blocks(store, files):
        if (np.diff(physical) <= 0).any():
            return ()
        offsets.append(physical)
        lengths.append(sizes.astype(np.int32))
    physical = np.concatenate(offsets)
    order = np.argsort(physical, kind="stable")
    physical, ends = physical[order], (physical + np.concatenate(lengths))[order]
    borders = np.searchsorted(physical, [*(file.start for file in files), np.iinfo(np.int64).max]).tolist()
    log, final = store.log, _written_files(store.log)[-1]

    def is_covered(file: QueueFile, low: int, high: int) -> bool:
        joined = np.array_equal(physical[low:high], np.r_[file.start, ends[low : high - 1]]) if low < high else True
        return joined and _ends_at(log, file, int(ends[high - 1]) - file.start if low < high else 0, last=file == final)

    return tuple(file for file, low, high in zip(files, borders, borders[1:], strict=False) if is_covered(file, low, high))


def _entry_blocks(store: StoreFiles, files: Sequence[QueueFile]) -> Iterator[tuple[Longs, Longs]]:
    """Yield (physical offsets, sizes) of all entries that point into these files, block by block and queue by queue.

    A descent between two blocks of a queue is yielded as a block of two descending offsets.
    """
    every = _written_files(store.log)
    low = files[0].start
    high = files[-1].start + files[-1].size if files[-1] != every[-1] else np.iinfo(np.int64).max
    for queue in store.all_queues():
        if queue.topic.startswith(LMQ_PREFIX):
            continue  # its records have an entry in another queue as well
        first, end = queue.min_offset, queue.max_offset
        if len(files) < len(every) and isinstance(queue, ConsumeQueueReader):
            first = _first_at(queue, first, low)
            end = _first_at(queue, first, high)
        previous = -1
        for start in range(first, end, BLOCK):
            entries = queue.entries(start, min(start + BLOCK, end))
            sizes, physical = entries["size"].astype(np.int64), entries["physical_offset"].astype(np.int64)
            valid = (sizes > 0) & (sizes != BLANK_SIZE) & (physical >= low) & (physical < high)
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
    ranges_of = {file: _ranges_in(store, file, selection) for file in sure}
    rest = tuple(file for file in _written_files(store.log) if ranges_of.get(file) is None)
    scan = PrunedScan("queue", "", rest, tuple(each for ranges in ranges_of.values() for each in ranges or ()))
    return _with_reason(store, scan, f"{scan.records} records by their entries in the consume queue")


def _by_tasks(store: RocketMQStore, entries: int) -> PrunedScan:
    """Return the reading of a range of a queue of which the tasks prove what it may leave out."""
    queues, files = len(store.consume_queues()), _written_files(store.log)
    if queues * SEARCH_COST > store.log.file_size:
        return _scan(store, f"that is faster than to search {queues} queues for the entries of each log file")
    why = f"at most: each task proves its log files by the consume queues, which planning does not read ({entries} entries), or scans them"
    return PrunedScan("queue", why, (), unproved=files)


def proved_ranges(store: StoreFiles, file: QueueFile, selection: Selection) -> tuple[QueueRange, ...] | None:
    """Return the entries of the selected queues that lead to all selected records of a log file; None if it has to be scanned."""
    return _ranges_in(store, file, selection) if fully_indexed(store, (file,)) else None


def _ranges_in(store: StoreFiles, file: QueueFile, selection: Selection) -> tuple[QueueRange, ...] | None:
    """Return the selected entries that point into a fully indexed log file; None if an entry leads to another message than its own."""
    ranges = []
    for queue in store.consume_queues():
        if not (queue.topic in (selection.topics or ()) and queue.queue_id in (selection.queue_ids or ())):
            continue
        low = _first_at(queue, queue.min_offset, file.start)
        high = _first_at(queue, low, file.start + file.size)
        if low == high:
            continue
        if not all(_points_back(store.log, queue, number) for number in (low, high - 1)):
            return None
        low, high = (
            max(low, selection.from_queue_offset or 0),
            high if selection.to_queue_offset is None else min(high, selection.to_queue_offset),
        )
        if low < high:
            ranges.append(QueueRange(queue.topic, queue.queue_id, low, high))
    return tuple(ranges)


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
    blocks = _entry_blocks(store, _written_files(store.log))
    listed = np.sort(np.concatenate([_inside(physical, sure) for physical, _ in blocks]), kind="stable")
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
        return _scan(store, f"the index leaves {len(points)} of {count(len(listed), 'record')} to be read")
    rest = tuple(file for file in _written_files(store.log) if file not in sure)
    scan = PrunedScan("index", "", rest, points=tuple(points.tolist()))
    return _with_reason(store, scan, f"{count(len(points), 'record')} by {valid} of {count(len(files), 'index file')}")


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

    places: a range of a queue whose entries point into one log file, or physical offsets.
    """

    store: str | Url
    config: BrokerConfig
    token: str
    places: QueueRange | Offsets
    columns: tuple[str, ...]
    selection: Selection
    seen: FilesSeen | None = None


@dataclass(frozen=True, slots=True)
class FileTask(ReadTask):
    """Log files of which the task proves, one by one, that the entries of the selected queues lead to all selected records."""


def read_files(task: FileTask, *, report: Callable[[Damage], None] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the selected records: of each log file those of the proved entries, or those that a scan finds. report: as for these."""
    view = opened_view(task.store, task.config, task.token)
    require_seen(view.log, task.seen)
    for file in view.log.files:
        start, stop = max(file.start, task.split.start), min(file.start + file.size, task.split.stop)
        if start >= stop:
            continue
        ranges = proved_ranges(view.files, file, task.selection)
        if ranges is None:
            split = replace(task.split, start=start, stop=stop)
            scan = ReadTask(task.store, task.config, task.token, split, task.columns, task.selection, task.seen)
            yield from read_split(scan, report=report)
        for each in ranges or ():
            points = PointTask(task.store, task.config, task.token, each, task.columns, task.selection, task.seen)
            yield from read_points(points, report=report)


def seen_at(store: RocketMQStore, places: QueueRange | Offsets) -> FilesSeen | None:
    """Return the log files that hold the records."""
    if isinstance(places, Offsets):
        first, last = places.first, int(places.values()[-1])
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


def _offsets(view: DiskView, places: QueueRange | Offsets) -> NDArray[np.int64]:
    if isinstance(places, Offsets):
        return places.values()
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
