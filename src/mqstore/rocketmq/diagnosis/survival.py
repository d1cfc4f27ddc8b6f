"""Survival: which messages of a log a broker still delivers after it has loaded the store, in one pass of `verify`.

The log is read as `verify` reads it, so that intact records count wherever they are. Each message that a queue should list is looked
up in the queues that the simulated recovery ends with:

    kept      its entry is at its queue offset, and the log is not cut before its end
    moved     its entry is in its queue, at another queue offset; also one that leads to 0, where a log whose beginning has been deleted
              gives its first record
    skipped   as kept, but a pull passes over it: after an entry that leads to no bytes of the log, such as one past its end, it
              goes on with the first entry that leads to the next log file or later; also what follows a gap between the units of a batch
              queue, or what a search among units that are out of order does not find, or what a pull fails at in a database
    lost      none of these; the bytes of an entry that is shorter than its record are not a message
    missing   its queue has or had an entry for it, and no record of the log has that queue offset; where a queue has no file, the
              records before and after it are there
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mqstore.findings import Damage, Kind, Report
from mqstore.rocketmq.dispatch.consume_queue_image import BatchQueueImage, QueueImage
from mqstore.rocketmq.dispatch.dispatcher import LMQ_PREFIX, QueueRun, dispatch_request
from mqstore.rocketmq.dispatch.rocksdb_queue_image import RocksQueueImage
from mqstore.rocketmq.dispatch.targets import AnyQueueImage
from mqstore.rocketmq.format.batch_consume_queue import UNIT, BatchQueueReader
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.format.consume_queue import BLANK_SIZE, ENTRY, ConsumeQueueReader, usable_topic
from mqstore.rocketmq.format.log_slices import LogFiles
from mqstore.rocketmq.format.record import MIN_RECORD_SIZE
from mqstore.rocketmq.loaded_config import Reached
from mqstore.rocketmq.query.pull import PullRules, get_message
from mqstore.rocketmq.recovery.broker_recovery import Recovery
from mqstore.rocketmq.scan.splits import written
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.log_proof import SplitCheck
from mqstore.rocketmq.verify.queue_proof import LARGEST_LOG, BatchQueueProof, MisplacedFiles, QueueProof, leads_to
from mqstore.rocketmq.verify.verification import Verification
from mqstore.table.arrow_spans import distinct

Longs = NDArray[np.int64]

SLOTS = 65536  # queue entries that are looked at at once
PULL = 32  # messages that a client asks for at once, unless it is configured
SHORTLY = 1024  # queue offsets before an entry without bytes from which pulls are played
LARGEST_BATCH = 32767  # messages: a unit counts them in 16 bits
FAR = 1024  # queue offsets that may be missing in a queue of a few records


@dataclass(slots=True)
class QueueLoss:
    """Messages of one queue that are lost or moved. first: physical offset of the first.

    before_end: lost ones that the cut spares. skipped: those of them that only pulls pass over.
    """

    lost: int = 0
    moved: int = 0
    first: int = -1
    before_end: int = 0
    skipped: int = 0


def _in_sorted(offsets: Longs, physical: Longs) -> NDArray[np.bool_]:
    """Return which physical offsets are among sorted ones."""
    at = np.searchsorted(offsets, physical)
    listed = np.zeros(len(physical), np.bool_)
    inside = at < len(offsets)
    listed[inside] = offsets[at[inside]] == physical[inside]
    return listed


def skipped_by_pulls(image: QueueImage | BatchQueueImage, recovery: Recovery, log: CommitLog) -> Longs:
    """Return the physical offsets of messages that a consumer does not get that pulls from the minimum of a queue on, sorted.

    Only pulls that meet an entry without bytes are played, with those shortly before them, so that they begin where they would.
    """
    files = recovery.log_files
    starts, ends = np.array([file.start for file in files], np.int64), np.array([file.end for file in files], np.int64)
    rules = PullRules(version=recovery.version, in_memory_bytes=1 << 62)
    if isinstance(image, BatchQueueImage):
        return _not_handed(image, recovery, log, starts, ends)
    if isinstance(image, RocksQueueImage):
        return _after_hole(image, rules)
    skipped: list[Longs] = []
    slices: LogFiles | None = None
    at = image.min_offset
    for start in range(image.min_offset, image.max_offset, SLOTS):
        rows = image.entries(start, min(image.max_offset, start + SLOTS))
        for offset in (start + np.flatnonzero(~_readable(rows, starts, ends))).tolist():
            if slices is None:
                slices = _slices(recovery, log)
            at += max(0, (offset - at - SHORTLY) // PULL * PULL)
            while at <= offset:
                result = get_message(slices, image, at, PULL, None, rules)
                examined = np.arange(at, result.next_begin_offset)
                if not len(examined):
                    return np.sort(np.concatenate(skipped)) if skipped else np.empty(0, np.int64)
                entries = image.entries(at, result.next_begin_offset)
                passed, physical = ~np.isin(examined, np.array(result.queue_offsets, np.int64)), entries["physical_offset"].astype(np.int64)
                for row in np.flatnonzero(passed & ~_readable(entries, starts, ends)).tolist():
                    # its entry has a wrong size only if the record at the physical offset is that of the queue offset
                    passed[row] = leads_to(log, int(physical[row]), (image.topic, image.queue_id, int(examined[row])))
                skipped.append(physical[passed])
                at = result.next_begin_offset
    return np.sort(np.concatenate(skipped)) if skipped else np.empty(0, np.int64)


def _after_hole(image: RocksQueueImage, rules: PullRules) -> Longs:
    """Return what pulls from the minimum of a queue in a database on do not hand out: one that meets a place without an entry fails.

    A pull also looks at the entry after those that it takes. Seen with a real 5.5.0, whose clients then ask for the same place for ever.
    """
    holes = (start + np.flatnonzero(rows["size"] == 0) for start, rows in _pieces(image, image.min_offset, image.max_offset))
    hole = next((int(found[0]) for found in holes if len(found)), None)
    if hole is None:
        return np.empty(0, np.int64)
    at = image.min_offset
    at += max(0, (hole - at - SHORTLY) // PULL * PULL)
    while True:
        sizes = image.entries(at, at + PULL)["size"].astype(np.int64)
        taken = max(1, int(np.searchsorted(np.cumsum(sizes), rules.max_bytes_in_memory, side="right")))
        if hole <= at + taken:
            rows = image.entries(at, image.max_offset)
            return np.sort(rows["physical_offset"][rows["size"] > 0].astype(np.int64))
        at += taken


def _slices(recovery: Recovery, log: CommitLog) -> LogFiles:
    return LogFiles([(file.start, log.mapped(file.file).data.data[: file.written]) for file in recovery.log_files], log.file_size)


def _not_handed(image: BatchQueueImage, recovery: Recovery, log: CommitLog, starts: Longs, ends: Longs) -> Longs:
    """Return what pulls from the minimum of a batch queue on do not hand out; played if a unit leads nowhere or is not where one ends."""
    rows = np.concatenate([np.empty(0, UNIT), *(file.written_rows() for file in image.files)])
    if _readable(rows, starts, ends).all() and (rows["base_offset"][1:] == (rows["base_offset"] + rows["count"])[:-1]).all():
        return np.empty(0, np.int64)
    slices, rules = _slices(recovery, log), PullRules(version=recovery.version, in_memory_bytes=1 << 62)
    handed, at, after = set[int](), -1, image.min_offset
    while at < after < image.max_offset:
        at = after
        result = get_message(slices, image, at, PULL, None, rules)
        handed.update(result.physical_offsets)
        after = result.next_begin_offset
    return np.setdiff1d(rows["physical_offset"].astype(np.int64), np.array(sorted(handed), np.int64))


def _pieces(image: QueueImage, low: int, high: int) -> Iterator[tuple[int, NDArray[np.void]]]:
    """Yield the entries of a queue from low to before high, with the queue offset of the first, some at once."""
    low, high = max(low, image.min_offset), min(high, image.max_offset)
    for start in range(low, high, SLOTS):
        yield start, image.entries(start, min(high, start + SLOTS))


def _messages_in(image: QueueImage | BatchQueueImage, low: int, high: int) -> Iterator[tuple[int, Longs]]:
    """Yield the physical offsets that a queue lists from low to before high, with the queue offset of the first, some at once.

    A message of a batch counts as at the physical offset of the batch plus its number in that.
    """
    if isinstance(image, BatchQueueImage):
        for unit in image.entries(low, high):
            base = int(unit["base_offset"])
            start, stop = max(low, base), min(high, base + int(unit["count"]))
            yield start, int(unit["physical_offset"]) + np.arange(start - base, stop - base)
    else:
        for start, rows in _pieces(image, low, high):
            yield start, rows["physical_offset"].astype(np.int64)


def _readable(rows: NDArray[np.void], starts: Longs, ends: Longs) -> NDArray[np.bool_]:
    """Return which entries lead to bytes of one log file. starts, ends: of the files."""
    physical, size = rows["physical_offset"].astype(np.int64), rows["size"].astype(np.int64)
    number = np.searchsorted(starts, physical, side="right") - 1
    return np.asarray((number >= 0) & (size >= 0) & (physical + size <= ends[np.maximum(number, 0)]), np.bool_)


@dataclass(frozen=True, slots=True)
class _Others:
    """Places of a queue that lead to records of other places.

    at, offset: queue offsets of place and message; queue: index in `queues`; physical: offset of the record in the log, of the messages of
    a batch as in `_messages_in`.
    """

    queues: list[tuple[str, int]]
    at: Longs
    queue: Longs
    offset: Longs
    physical: Longs

    def within(self, low: int, high: int) -> NDArray[np.bool_]:
        """Return which of the places are from low to before high."""
        return (self.at >= low) & (self.at < high)

    def had(self, reached: Reached) -> NDArray[np.bool_]:
        """Return which of these messages a group had, by its offsets in their own queues."""
        limits = np.array([reached.get(queue, 0) for queue in self.queues], np.int64)
        return np.asarray(self.offset < limits[self.queue], np.bool_)


@dataclass(slots=True)
class _Listed:
    """What one recovered queue lists, sorted; made for a queue in which something is not where it should be. log_min: of the log."""

    image: AnyQueueImage
    log_min: int
    offsets: Longs = field(init=False)
    sizes: Longs = field(init=False)

    def __post_init__(self) -> None:
        rows = self.image.entries(self.image.min_offset, self.image.max_offset)
        rows = rows[(rows["physical_offset"] != 0) | (rows["size"] != BLANK_SIZE)]  # no record is that long
        offsets, sizes = rows["physical_offset"].astype(np.int64), rows["size"].astype(np.int64)
        offsets[offsets == 0] = max(0, self.log_min)
        order = np.lexsort((sizes, offsets))
        self.offsets, self.sizes = offsets[order], sizes[order]

    def has(self, physical: Longs, sizes: Longs) -> NDArray[np.bool_]:
        """Return which records have an entry that is long enough."""
        last = np.searchsorted(self.offsets, physical, side="right") - 1
        there = last >= 0
        there[there] = (self.offsets[last[there]] == physical[there]) & (self.sizes[last[there]] >= sizes[there])
        return np.asarray(there, np.bool_)


class SurvivalCheck(Verification):
    """A verification that also counts what a recovery keeps. recovery: None if the broker does not start; then nothing is counted."""

    def __init__(self, store: RocketMQStore, recovery: Recovery | None) -> None:
        super().__init__(store)
        self.recovery = recovery
        self.by_queue: dict[tuple[str, int], QueueLoss] = {}
        self.listed = 0  # messages that are of any queue
        self.unbuilt = 0  # those of them that new queues would not list: `dispatch.consume_queue_image`
        self._ends: dict[tuple[str, int], int] = {}  # of these queues
        self.lost = 0
        self.moved = 0
        self.shifted: dict[tuple[str, int], list[tuple[Longs, Longs]]] = {}  # moved messages: queue offsets of records, physical offsets
        self._listed: _Listed | None = None  # of the queue that was looked at last
        self._skipped: dict[tuple[str, int, bool], Longs] = {}
        self.uncounted: list[tuple[str, int]] = []  # queues without files, of which `count_missing` cannot know how many are missing
        # records without a place in the files of their queue: lowest and highest queue offset, number
        self._unlisted: dict[tuple[str, int], tuple[int, int, int]] = {}
        self.after_damage: list[tuple[str, int]] = []  # queues; before their first message may have been others
        self.expired = 0  # places between the end of the files of a queue and the begin of a whole log: they expired, if none is away
        self._begins: dict[tuple[str, int], int] = {}  # queues of which the log has messages: `_begin_of`
        self._whole_to: int | None = None  # physical offset of the first bytes of the log that cannot be read so far
        self._note_unread(self.damage)
        self._unlike: dict[tuple[str, int], tuple[Longs, _Others]] = {}
        self._places: list[Longs] = []  # physical offsets of missing messages: one can be in several queues, or a queue have a copy

    def trust(self, listed: int | None) -> Report | None:
        """Report on what is beside log, queues and index, which a rebuild has just made of intact records, `listed` of them in queues.

        None if it is not known that a start keeps the log to its end: not after a clean exit, or a message may be in several queues.
        """
        recovery = self.recovery
        if listed is None or recovery is None or self.store.unclean or self.rules.multi_dispatch:
            return None
        if any(file.start + size > recovery.log_max for file, size in written(self.log)[-1:]):
            return None
        self.queues, self.batch_queues, self.indexes = {}, {}, []
        self.listed, self.last_timestamp, self.log_end = listed, self.store.checkpoint.physic, recovery.log_max
        return self.report([])

    def count_missing(self) -> int:
        """Count the messages of which only a place in a queue is left. To be called once the report is made."""
        total = 0
        for key, (low, high, records) in self._unlisted.items():
            if high - low > 4 * records + FAR:  # the queue offset of a damaged record may be any number
                self.uncounted.append(key)
            else:
                total += max(0, high - low + 1 - records)
        files = MisplacedFiles(self.queues, self.log, self.log_end)
        total += sum(self._missing_of(key, proof, files) for key, proof in self.queues.items())
        total += sum(self._missing_units(proof) for proof in self.batch_queues.values())
        places = np.concatenate([np.empty(0, np.int64), *self._places])
        return total - (len(places) - len(distinct(places)))

    def _missing_of(self, key: tuple[str, int], proof: QueueProof, files: MisplacedFiles) -> int:
        """Count the queue offsets below the end of a queue that no record has. Offsets are given out one after the other.

        The entries of a misplaced file are looked at in their own place, and what was in its place is taken for lost only after `oldest`,
        the first message that is left: before it messages have expired.
        """
        claimed = np.concatenate(proof.claimed) if proof.claimed else np.empty(0, np.int64)
        misplaced, elsewhere, end = files.ranges.get(key, ()), files.listed.get(key, ()), files.end_of_messages(key)
        oldest = min([*(low for low, _ in proof.proved), *claimed[:1].tolist()], default=end) if self.log.start else 0
        known = any(low == oldest for low, _ in proof.proved)
        if known:
            limit = int(proof.queue.entries(oldest, oldest + 1)["physical_offset"][0])
        else:  # where no message of the queue is left, its entries alone show what was there, also after the end of the log
            limit = self.log_end if len(claimed) else self.log_end + LARGEST_LOG
        total, listed = 0, [np.empty(0, np.int64)]
        for low, high in proof.unproved():
            for start in range(low, min(high, end), SLOTS):
                stop = min(high, end, start + SLOTS)
                rows = proof.queue.entries(start, stop)
                physical, size, offsets = rows["physical_offset"].astype(np.int64), rows["size"].astype(np.int64), np.arange(start, stop)
                for first, last in misplaced:
                    physical[max(0, first - start) : max(0, last - start)] = size[max(0, first - start) : max(0, last - start)] = 0
                for places, entries in elsewhere:
                    inside = (places >= start) & (places < stop)
                    physical[places[inside] - start] = entries["physical_offset"][inside].astype(np.int64)
                    size[places[inside] - start] = entries["size"][inside]
                blank = (physical == 0) & (size == BLANK_SIZE)
                # the message of an unwritten entry below those that the log begins with has expired, too
                expired = (physical < self.log.start) & ((size > 0) | (offsets < oldest))
                gone = np.setdiff1d(start + np.flatnonzero(~blank & ~expired), claimed)
                lost = [offset for offset in gone.tolist() if not self._is_there(key, int(physical[offset - start]), offset)]
                lost = [offset for offset in lost if offset >= oldest or self._may_be_gone(int(physical[offset - start]), limit)]
                total += len(lost)
                at = np.array(lost, np.int64) - start
                listed.append(physical[at[size[at] > 0]])
        self._places.append(distinct(np.concatenate(listed)))  # a repair gives several lost messages of a queue the same place
        return total

    def _missing_units(self, proof: BatchQueueProof) -> int:
        """Count the units of a batch queue whose record is gone: none without a unit has their queue offset, and they lead to none."""
        claimed = {record.queue_offset for record in map(self.log.record, proof.missing) if record is not None}
        unproved = proof.units[~proof.proved]
        places = zip(unproved["physical_offset"].tolist(), unproved["base_offset"].tolist(), strict=True)
        records = [(self.log.record(at), at, base) for at, base in places if at >= self.log.start and base not in claimed]
        return sum(at not in proof.missing and (record is None or record.queue_offset != base) for record, at, base in records)

    def had_before(self, key: tuple[str, int], low: int, high: int, reached: Reached) -> int:
        """Count the messages that a group had and gets from the places from low to before high of a queue after the start.

        reached: how far the group had come. A message of another place counts if the group was past that.
        """
        unlike, others = self._unlike_places(key)
        high = max(low, high)
        inside = others.within(low, high)
        own = high - low - int(np.diff(np.searchsorted(unlike, (low, high)))[0])
        return own + len(self._without_own(key, low, high, others.physical[inside & others.had(reached)]))

    def had_elsewhere(self, key: tuple[str, int], since: int, low: int, reached: Reached) -> int:
        """Count the messages of other places, also of other queues, that a queue lists from low on after the start and that a group had.

        since: what the group gets from there to before low does not count.
        """
        others = self._unlike_places(key)[1]
        had = others.had(reached)
        again = np.setdiff1d(others.physical[had & (others.at >= low)], others.physical[had & others.within(since, low)])
        return len(self._without_own(key, since, low, again))

    def _without_own(self, key: tuple[str, int], low: int, high: int, messages: Longs) -> Longs:
        """Return which messages, by physical offset, are not at their place in the queue, from low to before high, each once."""
        if not len(messages):
            return messages
        unlike, _ = self._unlike_places(key)
        assert self.recovery is not None
        image = self.recovery.queues.get((*key, False)) or self.recovery.queues[*key, True]
        for start, physical in _messages_in(image, low, high):
            messages = np.setdiff1d(messages, physical[~_in_sorted(unlike, np.arange(start, start + len(physical)))])
        return distinct(messages)

    def _unlike_places(self, key: tuple[str, int]) -> tuple[Longs, _Others]:
        """Return the queue offsets, sorted, that do not lead to their own message, or that pulls pass over; and to which others."""
        if key not in self._unlike:
            self._unlike[key] = self._find_unlike_places(key)
        return self._unlike[key]

    def _find_unlike_places(self, key: tuple[str, int]) -> tuple[Longs, _Others]:
        assert self.recovery is not None
        image, proof = self.recovery.queues.get((*key, False)), self.queues.get(key)
        if image is None and isinstance(batch := self.recovery.queues.get((*key, True)), BatchQueueImage):
            return self._find_unlike_units(key, batch)
        bare, queues, met = [np.empty(0, np.int64)], {key: 0}, [np.empty((4, 0), np.int64)]  # met: as the columns of `_Others`
        if not isinstance(image, QueueImage):
            return bare[0], _Others([key], *met[0])
        skipped = self._skipped_in(image)
        offsets, physical = (np.concatenate([*bare, *(part[k] for part in self.shifted.get(key, ()))]) for k in (0, 1))
        order = np.argsort(physical)
        offsets, physical = offsets[order], physical[order]
        if len(skipped) or len(physical) or proof is None:
            for start, rows in _pieces(image, image.min_offset, image.max_offset):
                listed = rows["physical_offset"].astype(np.int64)
                # what a queue without files lists was made from the log, after blanks
                bare.append(start + np.flatnonzero(_in_sorted(skipped, listed) | ((proof is None) & (rows["size"] == BLANK_SIZE))))
                at = np.flatnonzero(_in_sorted(physical, listed))
                met.append(np.stack((start + at, np.zeros(len(at), np.int64), offsets[np.searchsorted(physical, listed[at])], listed[at])))
        # 4.x lists records by their own physical offset, also where they are not at it
        misplaced = proof is None and any(item.kind is Kind.BAD_OFFSET for item in self.damage)
        for low, high in [(image.min_offset, image.max_offset)] if misplaced else () if proof is None else proof.unproved():
            for start, rows in _pieces(image, low, high):
                columns = np.empty((4, len(rows)), np.int64)
                for k, (place, size) in enumerate(zip(rows["physical_offset"].tolist(), rows["size"].tolist(), strict=True)):
                    record = None if size in (0, BLANK_SIZE) else self.log.record(place)
                    columns[:, k] = start + k, -1 if record is None else 0, start + k, place
                    if record is not None and not key[0].startswith(LMQ_PREFIX):
                        columns[1:3, k] = queues.setdefault((record.topic, record.queue_id), len(queues)), record.queue_offset
                bare.append(columns[0, columns[1] < 0])
                met.append(columns)
        without, every = distinct(np.concatenate(bare)), np.concatenate(met, axis=1)
        every = every[:, every.shape[1] - 1 - np.unique(every[0, ::-1], return_index=True)[1]]  # the last of each place
        other = ~np.isin(every[0], without) & ((every[1] > 0) | (every[2] != every[0]))
        return distinct(np.concatenate((without, every[0, other]))), _Others(list(queues), *every[:, other])

    def _find_unlike_units(self, key: tuple[str, int], image: BatchQueueImage) -> tuple[Longs, _Others]:
        """Return the same of a batch queue. The messages of a batch come with the last place of a unit that leads to it."""
        skipped, proof = self._skipped_in(image), self.batch_queues.get(key)
        proved = set() if proof is None else {unit.tobytes() for unit in proof.units[proof.proved]}
        unlike, queues, met = [np.empty(0, np.int64)], {key: 0}, [np.empty((4, 0), np.int64)]
        for unit in image.entries(image.min_offset, image.max_offset):
            physical, base, count = (int(unit[name]) for name in ("physical_offset", "base_offset", "count"))
            passed = len(skipped) > 0 and bool(_in_sorted(skipped, np.array([physical])).any())
            if unit.tobytes() in proved and not passed:
                continue
            record = None if passed else self.log.record(physical)
            batch = None if record is None else dispatch_request(record, self.rules)
            if record is not None and batch is not None and 0 <= batch.base < LARGEST_LOG:  # properties may have any numbers
                if (record.topic, record.queue_id, batch.base) == (*key, base):
                    continue
                many = max(0, min(batch.count, LARGEST_BATCH))
                at = np.full((2, many), [[base + count - 1], [queues.setdefault((record.topic, record.queue_id), len(queues))]])
                met.append(np.concatenate((at, np.array([[batch.base], [physical]]) + np.arange(many))))
            unlike.append(base + np.arange(count))
        return distinct(np.concatenate(unlike)), _Others(list(queues), *np.concatenate(met, axis=1))

    def _is_there(self, key: tuple[str, int], physical: int, queue_offset: int) -> bool:
        """Return whether an entry leads to its message, although the record gives another place: one that has another message.

        Its topic or queue id is another, or its queue offset is out of order: nothing protects these bytes.
        """
        record = self.log.record(physical)
        if record is None:
            return False
        if record.queue_offset != queue_offset:
            is_own = (record.topic, record.queue_id, record.physical_offset) == (*key, physical)
            return is_own and self._is_out_of_order(key, physical, queue_offset, record.queue_offset)
        own = self.queues.get((record.topic, record.queue_id))
        entries = () if own is None else own.queue.entries(queue_offset, min(queue_offset + 1, own.queue.max_offset))
        return not any(int(entry["physical_offset"]) == physical for entry in entries)

    def _is_out_of_order(self, key: tuple[str, int], physical: int, place: int, given: int) -> bool:
        """Return whether a record gives a place on the other side of a message next to it, but is on this side of that in the log."""
        step = 1 if given > place else -1
        for row in self.queues[key].queue.entries(place + step, place + step + 1):
            at = int(row["physical_offset"])
            return (at - physical) * step > 0 and leads_to(self.log, at, (*key, place + step))
        return False

    def _may_be_gone(self, physical: int, limit: int) -> bool:
        """Return whether an entry of before the first message that is left can have led to a message between it and the log's begin.

        limit: where that message is. An entry that leads to it as well is one that a repair has left.
        """
        return physical == limit or (self.log.start <= physical < limit and self.log.record(physical) is None)

    def _take_run(self, run: QueueRun) -> None:
        super()._take_run(run)
        key = (run.topic, run.queue_id)
        if run.batch:
            self._note_expired_batches(key, run)
            return
        offsets, proof = run.offsets, self.queues.get(key)
        if key not in self._begins:
            self._begins[key] = self._begin_of(key, int(offsets.min()), int(run.entries.view(ENTRY)["physical_offset"].min()))
        if proof is not None:
            offsets = offsets[offsets >= proof.queue.max_offset]
        if len(offsets):
            low, high = min(self._begins[key], int(offsets.min())), int(offsets.max())
            before = self._unlisted.get(key, (low, high, 0))
            self._unlisted[key] = (min(low, before[0]), max(high, before[1]), before[2] + len(offsets))

    def _begin_of(self, key: tuple[str, int], first: int, physical: int) -> int:
        """Return the queue offset from which on messages of a queue that neither its files nor the log have are lost.

        first: of its first message in the log, which is at `physical`. What is between the end of the files and that message had expired if
        the log before it is whole, and was in the log if the last entry of the files leads into it. Else it is not known.
        """
        queue = None if (proof := self.queues.get(key)) is None else proof.queue
        end, begin = 0 if queue is None else queue.max_offset, self.log.start
        if self.elsewhere is None and (self._whole_to is None or physical <= self._whole_to):
            self.expired += 0 if queue is None else self._expired_after(queue, first)
            return end if queue is not None and begin == 0 else max(first, end)
        if queue is not None and end >= first > queue.min_offset:
            size = int(queue.entries(first - 1, first)["size"][0])
            known = size != BLANK_SIZE and (size > 0 or begin == 0)  # if it is unwritten, its message may have expired
        elif queue is not None and first > end > queue.min_offset:
            known = begin == 0 or begin <= int(queue.entries(end - 1, end)["physical_offset"][0]) < physical
        else:
            known = first == 0 or (queue is not None and begin == 0 and first > end)
        if not known:
            self.after_damage.append(key)
        return end if known else max(first, end)

    def _note_expired_batches(self, key: tuple[str, int], run: QueueRun) -> None:
        """Count the places between the units of a batch queue and its first batch in a whole log: they expired."""
        proof = self.batch_queues.get(key)
        if key in self._begins or proof is None:
            return
        unit = run.entries.view(UNIT)[0]
        self._begins[key] = int(unit["base_offset"])
        if self._whole_to is None or int(unit["physical_offset"]) <= self._whole_to:
            self.expired += self._expired_after(proof.queue, self._begins[key])

    def _expired_after(self, queue: ConsumeQueueReader | BatchQueueReader, first: int) -> int:
        """Count the places between the end of the files of a queue and its first message in a whole log.

        A queue that leads into the log was made again, as that of a topic that was deleted: its places begin at 0. More messages than the
        bytes before the log can hold have never been there: nothing protects the queue offset of a record.
        """
        end, begin = queue.max_offset, self.log.start
        before = queue.max_physical_offset <= begin and 0 < end < first <= end + begin // MIN_RECORD_SIZE
        return first - end if before else 0

    def _note_unread(self, damage: Iterable[Damage]) -> None:
        """Note where the first bytes of the log are that cannot be read."""
        for item in damage:
            directory, _, name = item.file.rpartition("/")
            if item.kind.unread and directory == self.log.queue.relative and name.isdecimal():
                at = int(name) + item.offset
                self._whole_to = at if self._whole_to is None else min(self._whole_to, at)

    def take(self, check: SplitCheck) -> None:
        """Check a split, and count the messages in it that the recovery does not keep."""
        self._note_unread(check.damage)
        super().take(check)
        if check.dispatched is None:
            return
        runs = check.dispatched.runs
        if self.rules.multi_dispatch and runs:
            places = [run.entries.view(UNIT if run.batch else ENTRY)["physical_offset"].astype(np.int64) for run in runs]
            self.listed += len(distinct(np.concatenate(places)))
        else:
            self.listed += sum(map(len, runs))
        self.unbuilt += len(distinct(np.concatenate([self._take_built(run) for run in runs]))) if runs else 0
        if self.recovery is None:
            return
        lost: list[Longs] = []
        moved: list[Longs] = []
        for run in check.dispatched.runs:
            self._take_survivors(run, lost, moved)
        # a message that several queues list counts once
        gone = distinct(np.concatenate(lost)) if lost else np.empty(0, np.int64)
        self.lost += len(gone)
        if moved:
            self.moved += len(np.setdiff1d(np.concatenate(moved), gone))

    def _take_survivors(self, run: QueueRun, lost: list[Longs], moved: list[Longs]) -> None:
        assert self.recovery is not None
        rows = run.entries.view(UNIT if run.batch else ENTRY)
        physical = rows["physical_offset"].astype(np.int64)
        ends = physical + rows["size"]
        image = self._image(run)
        whole = ends <= self.recovery.log_max
        if image is None:
            self._count(run, physical, np.zeros(len(run), np.bool_), whole, lost, moved)
            return
        skipped = _in_sorted(self._skipped_in(image), physical)
        placed = whole & ~skipped & (self._at_their_place(image, run) == physical)
        if placed.all():
            return
        if self._listed is None or self._listed.image is not image:
            self._listed = _Listed(image, self.recovery.log_min)
        rest = ~placed
        there = self._listed.has(physical[rest], ends[rest] - physical[rest]) & whole[rest] & ~skipped[rest]
        self._count(run, physical[rest], there, whole[rest], lost, moved)
        if there.any() and not run.batch:
            self.shifted.setdefault((run.topic, run.queue_id), []).append((run.offsets[rest][there], physical[rest][there]))
        self.by_queue[run.topic, run.queue_id].skipped += int((skipped & whole).sum())

    def _take_built(self, run: QueueRun) -> Longs:
        """Append a run to its queue as a rebuild does. Returns the physical offsets of the messages that it does not list."""
        physical = run.entries.view(UNIT if run.batch else ENTRY)["physical_offset"].astype(np.int64)
        if not usable_topic(run.topic):
            return physical
        end = self._ends.get((run.topic, run.queue_id), run.first)
        left_out = np.zeros(len(run), np.bool_)
        if run.batch or (run.first >= end and (run.consecutive or bool((np.diff(run.offsets) > 0).all()))):
            end += len(run)
        else:
            for number, offset in enumerate(run.offsets.tolist()):
                left_out[number] = 0 != offset < end
                end += not left_out[number]
        self._ends[run.topic, run.queue_id] = end
        return physical[left_out]

    def _skipped_in(self, image: AnyQueueImage) -> Longs:
        """Return the physical offsets of the messages that pulls from a queue skip, sorted."""
        assert self.recovery is not None
        key = (image.topic, image.queue_id, image.batch)
        if key not in self._skipped:
            self._skipped[key] = skipped_by_pulls(image, self.recovery, self.log)
        return self._skipped[key]

    def _image(self, run: QueueRun) -> AnyQueueImage | None:
        assert self.recovery is not None
        queues = self.recovery.queues
        return queues.get((run.topic, run.queue_id, run.batch)) or queues.get((run.topic, run.queue_id, False))

    def _at_their_place(self, image: AnyQueueImage, run: QueueRun) -> Longs:
        """Return the physical offsets that the recovered queue has at the queue offsets of a run; -1 where it has none of that length."""
        physical_offsets = np.full(len(run), -1, np.int64)
        if image.batch or run.batch:
            return physical_offsets  # units are looked up by physical offset
        offsets = run.offsets
        low, high = int(offsets.min()), int(offsets.max()) + 1
        if high - low > 4 * len(run) + 1024:  # queue offsets of damaged records may be anywhere
            return physical_offsets
        begin = max(low, image.min_offset)
        rows = image.entries(begin, min(high, image.max_offset))
        inside = (offsets >= begin) & (offsets < begin + len(rows))
        there = rows[offsets[inside] - begin]
        whole = there["size"] >= run.entries.view(ENTRY)["size"][inside]
        physical_offsets[inside] = np.where(whole, there["physical_offset"].astype(np.int64), -1)
        return physical_offsets

    def _count(
        self, run: QueueRun, physical: Longs, there: NDArray[np.bool_], whole: NDArray[np.bool_], lost: list[Longs], moved: list[Longs]
    ) -> None:
        if not run.batch:
            moved.append(physical[there])
        lost.append(physical[~there])
        loss = self.by_queue.setdefault((run.topic, run.queue_id), QueueLoss())
        if not run.batch:
            loss.moved += int(there.sum())
        loss.lost += int((~there).sum())
        loss.before_end += int((~there & whole).sum())
        if loss.first < 0 and len(physical[~there]):
            loss.first = int(physical[~there][0])
