"""Comparing consume queues with what the commit log requires.

Runs of entries from the dispatch of the log are compared with the files as bytes. What is equal is proved; only what is left over
on either side is checked entry by entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mqstore.findings import STAND_IN, Damage, Kind
from mqstore.rocketmq.dispatch.dispatcher import LMQ_PREFIX, QueueRun
from mqstore.rocketmq.format.batch_consume_queue import UNIT, UNIT_SIZE, BatchQueueReader, valid_units
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.format.consume_queue import BLANK_SIZE, ENTRY, ConsumeQueueReader
from mqstore.rocketmq.format.java_text import java_hash
from mqstore.rocketmq.format.record import MIN_RECORD_SIZE, Record
from mqstore.rocketmq.format.system_topics import SCHEDULE_TOPIC
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.table.formatting import agreeing

ENTRIES_AT_ONCE = 1 << 16
LARGEST_LOG = 1 << 42  # no entry leads further past the end of the log than a log can be large
MAX_FINDINGS = 200  # findings per queue that are listed
SAMPLED = 64  # entries of a queue file, to see whose they are


def leads_to(log: CommitLog, physical: int, position: tuple[str, int, int]) -> bool:
    """Return whether a record of the log is the one with this topic, queue id and queue offset."""
    record = log.record(physical) if physical >= 0 and log.queue_offset_at(physical) == position[2] else None
    return record is not None and (record.topic, record.queue_id, record.queue_offset) == position


@dataclass(slots=True)
class QueueProof:
    """A queue that is being proved. proved: half-open ranges of queue offsets whose entries equal the log's."""

    queue: ConsumeQueueReader
    tags_code_of: Callable[[int], int]  # resolves addresses of the extended queue
    unclean: bool = False  # the broker did not exit cleanly: its queues may end before the log
    proved: list[tuple[int, int]] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)  # (queue offset, physical offset) of records without an entry
    missing_count: int = 0
    pending_count: int = 0  # records after the end of the queue, which the broker dispatches when it loads the directory
    fresh: list[NDArray[np.int64]] = field(default_factory=list)  # physical offsets of missing records, of the last range compared
    damage: list[Damage] = field(default_factory=list)
    dangling: list[int] = field(default_factory=list)  # physical offsets of entries without a valid record
    claimed: list[NDArray[np.int64]] = field(default_factory=list)  # queue offsets of records whose entry on disk differs

    def compare(self, run: QueueRun) -> None:
        """Compare the entries that a range of log yields for this queue with those on disk."""
        expected = run.entries.view(ENTRY)
        if run.consecutive:
            self._compare_range(run.first, expected)
            return
        breaks = np.flatnonzero(np.diff(run.offsets) != 1) + 1
        for low, high in zip([0, *breaks.tolist()], [*breaks.tolist(), len(run)], strict=True):
            self._compare_range(int(run.offsets[low]), expected[low:high])

    def _compare_range(self, first: int, expected: NDArray[np.void]) -> None:
        stop = first + len(expected)
        low, high = max(first, self.queue.min_offset), min(stop, self.queue.max_offset)
        if low >= high:
            self._lost(first, expected)
            return
        self._lost(first, expected[: low - first])
        self._lost(high, expected[high - first :])
        expected = expected[low - first : high - first]
        entries = self.queue.entries(low, high)
        if entries.tobytes() == expected.tobytes():
            self._prove(low, high)
            return
        same = (entries["physical_offset"] == expected["physical_offset"]) & (entries["size"] == expected["size"])
        tags_differ = same & (entries["tags_code"] != expected["tags_code"])
        for k in np.flatnonzero(tags_differ).tolist():
            same[k] = self.tags_code_of(int(entries["tags_code"][k])) == int(expected["tags_code"][k])
        edges = np.flatnonzero(np.diff(np.r_[False, same, False].astype(np.int8)))
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            self._prove(low + begin, low + end)
        differing = np.flatnonzero(~same)
        if len(differing):
            self.claimed.append(low + differing)
        for k in differing.tolist():
            if int(entries["physical_offset"][k]) != int(expected["physical_offset"][k]):
                self._lost(low + k, expected[k : k + 1])

    def _prove(self, low: int, high: int) -> None:
        if self.proved and self.proved[-1][1] == low:
            low = self.proved.pop()[0]
        self.proved.append((low, high))

    def _lost(self, first: int, expected: NDArray[np.void]) -> None:
        if self.unclean and first >= self.queue.max_offset:
            self.pending_count += len(expected)
            return
        if len(expected):
            self.fresh.append(expected["physical_offset"].astype(np.int64))
        self.missing_count += len(expected)
        room = MAX_FINDINGS - len(self.missing)
        self.missing.extend((first + k, int(expected["physical_offset"][k])) for k in range(min(room, len(expected))))

    def unproved(self) -> Iterator[tuple[int, int]]:
        """Yield half-open ranges of entries on disk that no range of log has proved."""
        at = self.queue.min_offset
        for low, high in sorted(self.proved):
            if low > at:
                yield at, low
            at = max(at, high)
        if at < self.queue.max_offset:
            yield at, self.queue.max_offset

    def is_place_of(self, log: CommitLog, entry: np.void, queue_offset: int) -> bool:
        """Return whether an entry leads to a record of this queue that has the entry's queue offset."""
        return int(entry["size"]) > 0 and leads_to(
            log, int(entry["physical_offset"]), (self.queue.topic, self.queue.queue_id, queue_offset)
        )

    def _is_foreign(self, record: Record) -> bool:
        """Return whether a record cannot be one that the queue lists."""
        own = (self.queue.topic, self.queue.queue_id)
        return (record.topic, record.queue_id) != own and not self.queue.topic.startswith(LMQ_PREFIX)

    def end_of_messages(self, log: CommitLog, log_end: int, misplaced: Sequence[tuple[int, int]] = ()) -> int:
        """Return the queue offset after the last message that the queue ever had, as far as its entries can be trusted.

        misplaced: half-open ranges of entries that are not to be trusted.

        An entry is trusted if it could be that of a record of the log after the record of the entry before it, and does not lead to another
        one, as in a misplaced file. One that is the entry before it once more is what `repair` writes in the place of a message that is
        gone, if a record of the queue is there; else neither is that of a message, since a broker writes none twice.
        """
        file_size = log.file_size or LARGEST_LOG
        known = max((high for _, high in self.proved), default=self.queue.min_offset)
        known = max([known, *(int(offsets.max()) + 1 for offsets in self.claimed)])
        for low, high in reversed(list(self.unproved())):
            for start in reversed(range(max(low, known), high, ENTRIES_AT_ONCE)):
                first = max(self.queue.min_offset, start - 1)
                entries = self.queue.entries(first, min(high, start + ENTRIES_AT_ONCE + 1))
                physical, size = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
                ends = physical + size
                trusted = (physical >= log.start) & (physical < log_end + LARGEST_LOG) & (size >= MIN_RECORD_SIZE) & (size != BLANK_SIZE)
                trusted &= physical % file_size + size <= file_size
                follows = (size[:-1] > 0) & (ends[:-1] <= physical[1:])
                twice = entries[1:] == entries[:-1]
                trusted[1:] &= follows | (size[:-1] == BLANK_SIZE) | twice
                trusted[: start - first] = trusted[start + ENTRIES_AT_ONCE - first :] = False
                for begin, stop in misplaced:
                    trusted[max(0, begin - first) : max(0, stop - first)] = False
                for k in np.flatnonzero(trusted)[::-1].tolist():
                    again, record = k > 0 and bool(twice[k - 1]), log.record(int(physical[k]))
                    there = record is not None
                    if record is not None and again and self._is_foreign(record):
                        continue
                    if again == there and not (twice[k : k + 1].any() and not there):
                        return int(first + k + 1)
        return known

    def finish(self, log: CommitLog, log_end: int) -> None:
        """Check every entry that was not proved, and report its faults."""
        left = list(self.unproved())
        unwritten = []
        for low, high in left:
            for start in range(low, high, ENTRIES_AT_ONCE):
                entries = self.queue.entries(start, min(high, start + ENTRIES_AT_ONCE))
                physical, size = entries["physical_offset"], entries["size"]
                empty = (physical == 0) & (size == 0)
                unwritten.append(start + np.flatnonzero(empty))
                blank = (physical == 0) & (size == BLANK_SIZE) & (entries["tags_code"] == 0)
                expired = (physical >= 0) & (physical < log.start) & (size > 0)
                for k in np.flatnonzero(~(empty | blank | expired)).tolist():
                    self._judge(start + k, entries[k], log, log_end)
        if left:
            self._report_unwritten(np.concatenate(unwritten))
            self._check_order()  # proved entries are in log order

    def _report(self, queue_offset: int, kind: Kind, sentence: str, messages: int = 0) -> None:
        file, position = self.queue.place(queue_offset)
        self.damage.append(Damage(file, position, ENTRY.itemsize, kind, f"{sentence} ({self._who(queue_offset)})", messages))

    def _report_unwritten(self, offsets: NDArray[np.int64]) -> None:
        """Report these entries, each run of them in a file as one finding: a hole may have millions."""
        starts = np.array([file.start // ENTRY.itemsize for file in self.queue.files], np.int64)
        breaks = np.flatnonzero((np.diff(offsets) != 1) | np.isin(offsets[1:], starts)) + 1
        for run in np.split(offsets, breaks) if len(offsets) else ():
            first, count = int(run[0]), len(run)
            file, position = self.queue.place(first)
            what = "an unwritten entry" if count == 1 else f"{count} unwritten entries"
            sentence = f"{what} between written ones ({self._who(first)})"
            self.damage.append(Damage(file, position, count * ENTRY.itemsize, Kind.QUEUE_GAP, sentence))

    def _who(self, queue_offset: int) -> str:
        return f"topic {self.queue.topic!r}, queue {self.queue.queue_id}, queue offset {queue_offset}"

    def _judge(self, queue_offset: int, entry: np.void, log: CommitLog, log_end: int) -> None:
        physical, size, tags = int(entry["physical_offset"]), int(entry["size"]), int(entry["tags_code"])
        if size <= 0 or physical < 0:
            self._report(queue_offset, Kind.BAD_QUEUE_ENTRY, f"physical offset {physical}, size {size} cannot be a place in a log")
            return
        if physical >= log_end:
            self.dangling.append(physical)
            self._report(queue_offset, Kind.BAD_QUEUE_ENTRY, f"points at {physical}, after the end of the log at {log_end}", 1)
            return
        message = log.record(physical)
        if message is None:
            self.dangling.append(physical)
            self._report(queue_offset, Kind.BAD_QUEUE_ENTRY, f"no valid record starts at physical offset {physical}")
            return
        listed = (self.queue.topic, self.queue.queue_id)
        also = message.property_map().get("INNER_MULTI_DISPATCH", "").split(",")
        if (message.topic, message.queue_id) != listed and self.queue.topic not in also:
            self._report(
                queue_offset, Kind.QUEUE_ENTRY_MISMATCH, f"points at a record of topic {message.topic!r}, queue {message.queue_id}"
            )
            return
        raw = log.raw(physical)
        if raw is None or len(raw) != size:
            self._report(
                queue_offset, Kind.QUEUE_ENTRY_MISMATCH, f"has {size} bytes, the record at {physical} has {0 if raw is None else len(raw)}"
            )
        elif self.queue.topic not in also and message.queue_offset != queue_offset:
            beside = (*self.queue.entries(queue_offset - 1, queue_offset), *self.queue.entries(queue_offset + 1, queue_offset + 2))
            repeats = f", {STAND_IN}" if any(other == entry for other in beside) else ""
            sentence = f"points at the record with queue offset {message.queue_offset}{repeats}"
            self._report(queue_offset, Kind.QUEUE_ENTRY_MISMATCH, sentence)
        else:
            self._judge_tags(queue_offset, self.tags_code_of(tags), message)

    def _judge_tags(self, queue_offset: int, tags_code: int, message: Record) -> None:
        tags = message.property_map().get("TAGS")
        expected = java_hash(tags) if tags else 0
        # the entry of a delayed message holds its delivery time, which depends on settings; recovery of 4.9 writes the hash of its tags
        delivery = message.topic == SCHEDULE_TOPIC and tags_code > message.store_timestamp
        if tags_code != expected and not delivery:
            self._report(queue_offset, Kind.QUEUE_ENTRY_MISMATCH, f"tags code {tags_code} differs from that of the record, {expected}")

    def _check_order(self) -> None:
        previous = -1
        for start in range(self.queue.min_offset, self.queue.max_offset, ENTRIES_AT_ONCE):
            entries = self.queue.entries(start, min(self.queue.max_offset, start + ENTRIES_AT_ONCE))
            written = np.flatnonzero((entries["size"] > 0) & (entries["size"] != BLANK_SIZE))
            physical = entries["physical_offset"][written].astype(np.int64)
            if not len(physical):
                continue
            steps = np.diff(np.r_[previous, physical])
            for k in np.flatnonzero(steps <= 0).tolist()[:MAX_FINDINGS]:
                self._report(start + int(written[k]), Kind.QUEUE_ORDER, "has a physical offset below that of the entry before it")
            previous = int(physical[-1])


class MisplacedFiles:
    """The queue files that have the place of another one: most of their entries lead to records that do not belong there.

    ranges: by queue, half-open ranges of entries in such files. listed: by queue, what such files have of it: queue offsets, entries.
    """

    def __init__(self, queues: Mapping[tuple[str, int], QueueProof], log: CommitLog, log_end: int) -> None:
        self.ranges: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self.listed: dict[tuple[str, int], list[tuple[NDArray[np.int64], NDArray[np.void]]]] = {}
        self._queues, self._log, self._log_end = queues, log, log_end
        self._files_end = max((file.start + file.size for file in log.files), default=log.start)
        for key, proof in queues.items():
            for low, high in proof.unproved():
                for start, stop in proof.queue.file_ranges(low, high):
                    self._look_at(key, start, proof.queue.entries(start, stop))

    def _look_at(self, key: tuple[str, int], start: int, entries: NDArray[np.void]) -> None:
        physical = entries["physical_offset"].astype(np.int64)
        usable = (entries["size"] >= MIN_RECORD_SIZE) & (physical >= self._log.start) & (physical < self._files_end)
        owners: Counter[tuple[str, int, int]] = Counter()
        for k in np.flatnonzero(usable).tolist():
            record = self._log.record(int(physical[k]))
            if record is not None:
                owners[record.topic, record.queue_id, record.queue_offset - start - k] += 1
            if owners.total() == SAMPLED:
                break
        for (topic, queue_id, shift), number in owners.most_common(1):
            if number > 1 and 2 * number > owners.total() and (topic, queue_id, shift) != (*key, 0):
                self.ranges.setdefault(key, []).append((start, start + len(entries)))
                self.listed.setdefault((topic, queue_id), []).append((start + np.arange(len(entries)) + shift, entries))

    def end_of_messages(self, key: tuple[str, int]) -> int:
        """Return the queue offset after the last message that a queue ever had: by its own entries, and by those in other places."""
        end = self._queues[key].end_of_messages(self._log, self._log_end, self.ranges.get(key, ()))
        for places, entries in self.listed.get(key, ()):
            written = places[(entries["size"] >= MIN_RECORD_SIZE) & (entries["size"] != BLANK_SIZE)]
            end = max([end, *(written[-1:] + 1).tolist()])
        return end


@dataclass(slots=True)
class BatchQueueProof:
    """A batch queue that is being proved: its units by physical offset, and which of them the log has yielded.

    Its units are those between the lowest and the highest that begin or end a file, also where files have each other's names.
    """

    queue: BatchQueueReader
    units: NDArray[np.void] = field(init=False)
    proved: NDArray[np.bool_] = field(init=False)
    missing: list[int] = field(default_factory=list)  # physical offsets of records without a unit
    fresh: list[NDArray[np.int64]] = field(default_factory=list)  # the same, of the last range compared

    def __post_init__(self) -> None:
        parts = [part["base_offset"][valid_units(part)] for _, part in self.queue.written]
        bases = [base for part in parts if len(part) for base in (int(part[0]), int(part[-1]))]
        units = self.queue.entries(min(bases, default=0), max(bases, default=-1) + 1)
        self.units = units[np.argsort(units["physical_offset"], kind="stable")]
        self.proved = np.zeros(len(self.units), np.bool_)

    def compare(self, run: QueueRun) -> None:
        """Compare the units that a range of log yields with those on disk."""
        stored = self.units["physical_offset"].astype(np.int64)
        for unit in run.entries.view(UNIT):
            # a repair may have led the unit of a lost record to this one
            low, high = (int(np.searchsorted(stored, int(unit["physical_offset"]), side=side)) for side in ("left", "right"))
            number = next((k for k in range(low, high) if self.units[k].tobytes() == unit.tobytes()), None)
            if number is not None:
                self.proved[number] = True
            else:
                self.missing.append(int(unit["physical_offset"]))
                self.fresh.append(np.array([unit["physical_offset"]], np.int64))

    def dangling(self, log: CommitLog) -> list[int]:
        """Return the physical offsets of units without a valid record, once the whole log was compared."""
        places: list[int] = self.units["physical_offset"][~self.proved].tolist()
        return [physical for physical in places if physical >= log.start and log.record(physical) is None]

    def damage(self, log: CommitLog) -> list[Damage]:
        """Return what is wrong with the queue, once the whole log was compared."""
        who = f"batch queue of topic {self.queue.topic!r}, queue {self.queue.queue_id}"
        damage = []
        for unit in self.units[~self.proved & (self.units["physical_offset"] >= log.start)]:
            base, physical = int(unit["base_offset"]), int(unit["physical_offset"])
            sentence = f"the unit for queue offset {base} points at physical offset {physical}, whose record differs"
            damage.append(Damage(self.queue.relative, 0, UNIT_SIZE, Kind.QUEUE_ENTRY_MISMATCH, f"{sentence} ({who})"))
        if self.missing:
            lacking = agreeing(len(self.missing), "record", "has", "have")
            sentence = f"{lacking} no unit in the {who}, the first at physical offset {self.missing[0]}"
            damage.append(Damage(self.queue.relative, 0, 0, Kind.MISSING_QUEUE_ENTRY, sentence, len(self.missing)))
        return damage


# Comparing the second consume queues of a store with its log: files beside a RocksDB database, or the other way round.
#
# A broker that keeps both fills them from one dispatch; one whose `storeType` was changed leaves the old kind where it was. So a second
# queue may end early, which is a note; entries that contradict the log are damage.


class SecondQueues:
    """The proofs of the queues that a store has twice."""

    def __init__(self, store: RocketMQStore) -> None:
        self._proofs = {
            (queue.topic, queue.queue_id): QueueProof(queue, store.tags_code_resolver(queue.topic, queue.queue_id), unclean=True)
            for queue in store.stored_queues.second
        }

    def compare(self, run: QueueRun) -> None:
        """Compare the entries that a range of log yields with those of a second queue."""
        proof = self._proofs.get((run.topic, run.queue_id))
        if proof is not None and not run.batch:
            proof.compare(run)
            proof.fresh.clear()

    def damage(self, log: CommitLog, log_end: int) -> Iterator[Damage]:
        """Yield what is wrong with the second queues, once the whole log was compared."""
        for proof in self._proofs.values():
            yield from proof.queue.findings
            proof.finish(log, log_end)
            proof.queue.drop()
            yield from proof.damage

    def notes(self) -> Iterator[str]:
        """Yield what the second queues lack."""
        lacking = sum(proof.pending_count + proof.missing_count for proof in self._proofs.values())
        if lacking:
            kind = {proof.queue.place(0)[0].split("/")[0] for proof in self._proofs.values()}
            where = " and ".join(sorted(kind))
            twice = agreeing(len(self._proofs), "queue", "is", "are")
            yield f"{twice} there twice, as files and in RocksDB; in {where} {agreeing(lacking, 'entry', 'is', 'are')} missing"
