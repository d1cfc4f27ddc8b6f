"""Verify: every record, every queue entry, every index entry, and whether they agree.

The log is checked split by split, in threads or (`mqstore.jobs.verify`) on many hosts; each split is dispatched as a
broker would, and the result compared with the consume queues and index files as bytes. So derived files are proved by
rebuilding them, and verifying a valid store costs little more than reading it.

Not every difference is damage. After an unclean exit the queues and the index may end before the log: the broker's own recovery
catches up with that, and it is reported as a note.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.findings import CheckCounts, Coverage, Damage, Kind, Report, SkippedRange, Subject, merge_adjacent
from mqstore.rocketmq.dispatch.dispatcher import DispatchRules, QueueRun, TagKeys, dispatch_positions, tags_hash
from mqstore.rocketmq.format.batch_consume_queue import UNIT
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.format.consume_queue import ENTRY, ConsumeQueueReader
from mqstore.rocketmq.format.dledger_log import second_log
from mqstore.rocketmq.format.index_file import IndexFile
from mqstore.rocketmq.format.index_geometry import HEADER_SIZE
from mqstore.rocketmq.format.mapped_file_queue import QueueFile
from mqstore.rocketmq.format.rocksdb_queue import RocksQueueReader
from mqstore.rocketmq.store.compacted import COMPACTED_LOG, check_compacted
from mqstore.rocketmq.store.databases import INDEX_PLACE
from mqstore.rocketmq.store.log_site import log_elsewhere, misnamed_log
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.store.unread_parts import below
from mqstore.rocketmq.verify.index_proof import (
    DatabaseIndexProof,
    IndexProof,
    check_chains,
    keys_without_entry,
    out_of_order,
    unfinished_put,
)
from mqstore.rocketmq.verify.log_proof import LogSplit, SplitCheck, SplitsAhead, check_split, plan
from mqstore.rocketmq.verify.queue_proof import BatchQueueProof, QueueProof, SecondQueues
from mqstore.rocketmq.verify.timer_proof import TimelineProof, TimerProof
from mqstore.table.arrow_spans import distinct
from mqstore.table.formatting import agreeing, count
from mqstore.threads import TaskThreads

REMEDY = "`mqstore rebuild` makes queues and index from the log"
DROP_EVERY = 32  # splits, half a gigabyte of log

Progress = Callable[[int, int], None]


def verify(store: RocketMQStore, *, threads: int = 2, progress: Progress | None = None) -> Report:
    """Check a whole store. progress: called with (bytes of log done, bytes of log in total). Memory does not grow with the store."""
    return Verification(store).run(threads, progress)


class Verification:
    """The state of one run: the proofs in progress and the findings so far."""

    def __init__(self, store: RocketMQStore) -> None:
        self.store = store
        self.log = store.log
        self.rules = replace(store.rules(), index_tags=False)
        self._tags = TagKeys(store.log, store.index_files())
        self.elsewhere = log_elsewhere(store) or misnamed_log(store)
        self.bare_log = store.bare_log
        self.checked = CheckCounts()
        self.damage: list[Damage] = list(store.findings)
        self.notes: list[str] = []
        self.cautions: list[str] = []
        self.queues: dict[tuple[str, int], QueueProof] = {}
        self.batch_queues = {(queue.topic, queue.queue_id): BatchQueueProof(queue) for queue in store.batch_queues()}
        self.unqueued: dict[tuple[str, int], int] = {}  # records of queues without any files
        self.indexes = [IndexProof(file, number > 0 or self.log.start > 0) for number, file in enumerate(store.index_files())]
        # records with a key without entry, of a range whose index file a recovery may have deleted: by the begin of the file after it, the
        # number of records, that of their keys, and the physical offset of the first
        self.forgotten: dict[int, tuple[int, int, int]] = {}
        self.unindexed = 0  # records with a key without entry, after the end of the index
        self.first_after_index: int | None = None  # physical offset of the first of these
        self.unindexed_inside = 0  # and before it
        self.first_unindexed: int | None = None  # physical offset of the first of these
        self._first_keys: dict[int, int | None] = {}
        self.affected = 0  # messages that a finding is about, each counted once
        self.gone = 0  # messages of which only a queue entry is left
        self.listed_after_end = 0  # places after the end of the log that queues list
        self._of_split: list[NDArray[np.int64]] = []  # physical offsets of such messages in the split that is being taken
        self.log_end = self.log.start
        self.last_timestamp = 0

        for queue in store.consume_queues():
            resolver = store.tags_code_resolver(queue.topic, queue.queue_id)
            self.queues[queue.topic, queue.queue_id] = QueueProof(queue, resolver, store.unclean)
            self.damage.extend(queue.findings)
        self.second = SecondQueues(store)

    def run(self, threads: int, progress: Progress | None) -> Report:
        """Check everything in threads of this process."""
        total = self.log.size_on_paper
        for number, check in enumerate(self._splits(max(1, threads))):
            self.take(check)
            if number % DROP_EVERY == 0:
                self.drop()
            if progress is not None:
                progress(check.split.file.start - self.log.start + check.split.stop, total)
        return self.report([settle_index(self, number) for number in range(len(self.indexes))])

    def report(self, index_damage: Sequence[Sequence[Damage]]) -> Report:
        """Return the report once every split was taken. index_damage: findings of `settle_index`, file by file."""
        self.checked.files = len(self.log.files) + sum(len(proof.queue.files) for proof in self.queues.values()) + len(self.indexes)
        self._finish_queues()
        self._count_gone()
        self._finish_batch_queues()
        self._finish_second_queues()
        self._finish_index(index_damage)
        self._finish_database_index()
        self._finish_offsets()
        self._finish_checkpoint()
        if self.store.unclean:
            self.notes.append(
                "the broker did not exit cleanly (the file `abort` is there): it will recover the log when it loads this directory"
            )
        self._finish_timers()
        self._finish_compacted()
        self._finish_databases()
        # Drop what was found to be missing in directories that could not be listed: whether it is missing is not known.
        unread = [item.file for item in self.store.unread_directories]
        if unread:
            self.damage = [item for item in self.damage if item.kind is Kind.UNREADABLE or not below(item.file, unread)]
        self._settle_elsewhere()
        skipped = (
            *(
                SkippedRange(item.file, item.offset, item.length, str(item.kind))
                for item in self.damage
                if item.kind.unread and item.file.startswith(f"{self.log.queue.relative}/")
            ),
            *self._unread(),
        )
        return Report(
            str(self.store.path),
            "rocketmq",
            self.checked,
            Coverage(skipped),
            tuple(merge_adjacent(self.damage)),
            tuple(self.notes),
            self.affected + self.gone,
            self.gone,
            tuple(self.cautions),
            "" if self.elsewhere is None or self.elsewhere.state == "absent" else self.elsewhere.without,
        )

    def _settle_elsewhere(self) -> None:
        """Drop what is said of places that are in no file of the log, where a part of the log is elsewhere or absent."""
        if self.elsewhere is None:
            return
        self.damage = [item for item in self.damage if not self._is_about_elsewhere(item)]
        absent = self.elsewhere.damage
        self.gone = self.elsewhere.messages
        if absent is not None:
            self.damage.append(absent)
        else:
            self.notes.append(f"what is in the rest of the log {self.elsewhere.sentence}")

    def _is_about_elsewhere(self, item: Damage) -> bool:
        """Return whether a finding is that a file of the log is missing, or what an entry leads to that is in no file of it."""
        if item.kind is Kind.MISSING_FILE:
            return item.file.startswith(f"{self.log.queue.relative}/")
        at = {Kind.BAD_QUEUE_ENTRY: 0, Kind.BAD_INDEX_ENTRY: 4}.get(item.kind)  # of the physical offset in an entry
        if at is None or item.length != ENTRY.itemsize or self.store.directory.is_directory(item.file):  # a database
            return False
        start = item.offset + at
        offset = int.from_bytes(self.store.directory.map(item.file).bytes(start, start + 8), "big", signed=True)
        return offset >= 0 and self.log.file_at(offset) is None

    def _unread(self) -> Iterator[SkippedRange]:
        """Yield the parts of the store that are not read, and note what is not checked without them."""
        if self.elsewhere is not None:
            yield SkippedRange(self.log.queue.relative, 0, 0, self.elsewhere.sentence)
        for item in self.store.unread_directories:
            yield SkippedRange(item.file, 0, 0, item.detail)
        queues = self.store.unread_queues
        for file in self.store.unread_index:
            if not file.damaged:
                self.notes.append(f"{file.relative} was not checked: {file.sentence}")
            yield SkippedRange(file.relative, 0, self.store.directory.map(file.relative).size, "the geometry is not known")
        ledger = second_log(self.store.directory)
        if ledger is not None:
            self.cautions.append(f"messages in the DLedger log {ledger} were not checked, only those of the commit log")
            self.notes.append(f"the DLedger log {ledger} beside the commit log is not read")
            yield SkippedRange(ledger, 0, 0, "a DLedger log beside a commit log is not read")
        if self.store.log_only:
            self.notes.append(f"only {self.store.path} was checked: queues, index and the other files of the log are not known")
            yield SkippedRange(queues or "", 0, 0, "only files of the log were given")
        elif queues is not None:
            sentence = "whether they list every message is not known"
            self.cautions.append(f"the consume queues are in a RocksDB database, which is not read: {sentence}")
            self.notes.append(f"{self.store.unread_sentence('consume queues', queues)}; {sentence}")
            yield SkippedRange(queues, 0, 0, "a RocksDB database is not read")
        beside = self.store.stored_queues.unread_beside
        if beside is not None:
            self.notes.append(self.store.unread_sentence("second consume queues, beside the files,", beside))
            yield SkippedRange(beside, 0, 0, "a RocksDB database is not read")

    def drop(self) -> None:
        """Drop the mapped pages of queues and index: compared entries are not needed again soon."""
        for proof in self.queues.values():
            proof.queue.drop()
        for index in self.indexes:
            index.file.drop()

    # the log

    @cached_property
    def _has_tags(self) -> bool:
        return self._tags.anywhere()

    def rules_for(self, split: LogSplit) -> DispatchRules:
        """Return the rules for a split: in the store of an upgraded broker, tags may be indexed in one part and not in another."""
        start = split.file.start
        return replace(self.rules, index_tags=self._has_tags and self._tags.between(start + split.start, start + split.stop))

    def _splits(self, threads: int) -> Iterator[SplitCheck]:
        """Yield checked splits in log order; one that did not begin where the split before it ended is checked again from there."""
        waiting: deque[Future[SplitCheck]] = deque()
        met: tuple[int, int] = (-1, 0)  # (start of the file, end of the last split in it)
        with SplitsAhead(self.log) as ahead, TaskThreads(threads, "verify") as pool:
            splits = plan(self.log)
            try:
                while True:
                    while len(waiting) < threads + 1 and (split := next(splits, None)) is not None:
                        waiting.append(pool.submit(self._read(split, ahead)))
                    if not waiting:
                        return
                    check = waiting.popleft().result()
                    file = check.split.file
                    if met[0] == file.start and met[1] > check.split.start and check.begin != met[1]:
                        check = self._read(check.split, begin=met[1])()
                    met = (file.start, max(check.end, met[1] if met[0] == file.start else 0))
                    yield check
            finally:
                for future in waiting:
                    future.cancel()

    def _read(
        self, split: LogSplit, ahead: SplitsAhead | None = None, begin: int | None = None, rules: DispatchRules | None = None
    ) -> Callable[[], SplitCheck]:
        """Return what reads a split, or takes what is known of it. ahead: what reads the log ahead; begin, rules: as for `check_split`."""
        known, rules = self.store.known, self.rules_for(split) if rules is None else rules
        key = (split, begin, rules, split.file.start == self.log.files[self.log.last_written()].start)
        if known is not None and key in known:
            return partial(known.get, key)
        window = None if ahead is None else ahead.of(split)

        def read() -> SplitCheck:
            check = check_split(self.log, split, rules, begin, window)
            if known is not None and all(item.kind.subject is Subject.RECORD for item in check.damage):
                known.keep(key, check, split.file.relative, split.start, max(split.stop, check.end))
            return check

        return read

    def take(self, check: SplitCheck) -> None:
        """Count a split, and compare what it dispatches with queues and index."""
        self.checked.bytes += max(0, check.end - check.begin) if check.begin is not None else 0
        self.checked.records += check.records
        self.checked.messages += check.messages
        self.damage.extend(check.damage)
        start = check.split.file.start
        self._of_split = [np.array([start + item.offset for item in check.damage if item.kind.subject is Subject.RECORD], np.int64)]
        dispatched = check.dispatched
        if dispatched is not None and dispatched.records:
            self.log_end = start + check.end
            self.last_timestamp = dispatched.last_store_timestamp
            for run in dispatched.runs:
                self._take_run(run)
            if len(dispatched.keys):
                self._take_keys(dispatched.keys)
        self.affected += len(distinct(np.concatenate(self._of_split)))

    def _take_run(self, run: QueueRun) -> None:
        proof = (self.batch_queues if run.batch else self.queues).get((run.topic, run.queue_id))
        if proof is None:
            key = (run.topic, run.queue_id)
            self.unqueued[key] = self.unqueued.get(key, 0) + len(run)
            if not (self.store.unclean or self.bare_log) and self.store.unread_queues is None:
                self._of_split.append(run.entries.view(UNIT if run.batch else ENTRY)["physical_offset"].astype(np.int64))
        else:
            proof.compare(run)
            self._of_split += proof.fresh
            proof.fresh.clear()
            self.second.compare(run)

    def _take_keys(self, keys: np.ndarray) -> None:
        held = np.zeros(len(keys), np.bool_)
        first, last = int(keys["physical_offset"][0]), int(keys["physical_offset"][-1])
        for proof in self.indexes:
            header = proof.file.header
            if header.index_count > 1 and header.begin_physical_offset <= last and header.end_physical_offset >= first:
                held |= proof.compare(keys)
        if held.all():
            return
        headers = [proof.file.header for proof in self.indexes] + [file.header for file in self.store.unread_index]
        newest = max((header.end_physical_offset for header in headers if header.index_count > 1), default=-1)
        offsets = keys["physical_offset"].astype(np.int64)
        for file in self.store.unread_index:  # it may hold them
            held |= (offsets >= file.header.begin_physical_offset) & (offsets <= file.header.end_physical_offset)
        # a recovery indexes again what is at the end of the index or after it
        inside = (offsets < newest) if self.store.unclean else (offsets <= newest)
        beyond = distinct(offsets[~held & ~inside])
        self.unindexed += len(beyond)
        if self.first_after_index is None and len(beyond):
            self.first_after_index = int(beyond[0])
        lost = self._without_tags_of_older_brokers(keys, keys_without_entry(self.indexes, keys, held | ~inside))
        known = []
        for offset in lost:
            begin = self._begin_after_recovery(offset)
            if begin is None:
                known.append(offset)
            else:
                low, high = np.searchsorted(offsets, (offset, offset + 1)).tolist()
                self.note_forgotten(begin, 1, high - low, offset)
        self.note_unindexed(len(known), known[0] if known else None)
        if self.indexes or self.store.unread_index:
            self._of_split.append(np.array(known, np.int64))
            if not self.store.unclean:
                self._of_split.append(beyond)

    def _begin_after_recovery(self, offset: int) -> int | None:
        """Return where the index file after a record begins, if the record is between two of them, and that begin is one of a log file.

        After an unclean exit a broker deletes the newest index file, and makes a new one from where it dispatches again: from the
        beginning of a log file.
        """
        headers = [file.file.header for file in self.indexes if file.file.header.index_count > 1]
        if any(header.begin_physical_offset <= offset <= header.end_physical_offset for header in headers):
            return None
        begin = min((header.begin_physical_offset for header in headers if header.begin_physical_offset > offset), default=None)
        file = None if begin is None else self.log.file_at(begin)
        if begin is None or file is None or offset >= file.start:
            return None
        if begin not in self._first_keys:
            self._first_keys[begin] = self._first_key(file)
        return begin if self._first_keys[begin] == begin else None

    def _first_key(self, file: QueueFile) -> int | None:
        """Return the physical offset of the first record of a log file that has a key."""
        for event in self.log.scan_file(file, 0, file.size):
            if isinstance(event, Records):
                keys = dispatch_positions(event.data, event.positions, self.rules).keys
                if len(keys):
                    return int(keys["physical_offset"][0])
        return None

    def keys_of(self, split: LogSplit, tags: bool | None = None) -> np.ndarray | None:
        """Return the keys of the records of a split, in log order; None if it has no record.

        tags: whether tags are among them; by default as the index has them there.
        """
        rules = None if tags is None else replace(self.rules, index_tags=tags)
        dispatched = self._read(split, rules=rules)().dispatched
        return None if dispatched is None else dispatched.keys

    def note_forgotten(self, begin: int, records: int, keys: int, first: int) -> None:
        """Count records of which a recovery may have deleted the entries."""
        before = self.forgotten.get(begin, (0, 0, first))
        self.forgotten[begin] = (before[0] + records, before[1] + keys, before[2])

    def _forgotten_by_recovery(self) -> int:
        """Return the number of these records. If they fill whole files, these are gone: a recovery deletes the newest, wherever it ends."""
        total, rooms = 0, {proof.file.header.begin_physical_offset: proof.file.positions - 1 for proof in self.indexes}
        for begin, (records, keys, first) in self.forgotten.items():
            if keys % max(1, rooms[begin]):
                total += records
            else:
                self.affected += records
                self.note_unindexed(records, first)
        return total

    def note_unindexed(self, count: int, first: int | None) -> None:
        """Count records before the end of the index of which a key has no entry. first: physical offset of the first."""
        self.unindexed_inside += count
        if self.first_unindexed is None or (first is not None and first < self.first_unindexed):
            self.first_unindexed = first

    def _without_tags_of_older_brokers(self, keys: np.ndarray, lacking: Sequence[tuple[int, set[int]]]) -> list[int]:
        """Return the physical offsets of the records that lack an entry of a key, or one for tags where such entries are before and after.

        A broker that does not index tags may have written the entries of a range of log.
        """
        single = [(offset, hashes) for offset, hashes in lacking if len(hashes) == 1] if self._has_tags else []
        untagged = {offset for offset, hashes in single if hashes == {self._hash_of_tags(offset)}}
        lost = [offset for offset, _ in lacking if offset not in untagged]
        if untagged:
            offsets = np.unique(keys["physical_offset"].astype(np.int64)).tolist()
            others = [offset for offset in offsets if offset not in untagged]
            first = next((offset for offset in others if self._hash_of_tags(offset) is not None), None)
            last = next((offset for offset in reversed(others) if self._hash_of_tags(offset) is not None), None)
            if first is not None and last is not None:
                lost = sorted([*lost, *(offset for offset in untagged if first < offset < last)])
        return lost

    def _hash_of_tags(self, offset: int) -> int | None:
        message = self.log.record(offset)
        return None if message is None else tags_hash(message)

    # differences between the log and its derived files

    def _finish_queues(self) -> None:
        pending = 0
        for _, proof in sorted(self.queues.items(), key=lambda item: item[0]):
            number = proof.queue.max_offset - proof.queue.min_offset
            self.checked.queue_entries += number
            self.checked.bytes += number * ENTRY.itemsize
            proof.finish(self.log, self.log_end)
            proof.queue.drop()
            self.damage.extend(proof.damage)
            pending += proof.pending_count
            if proof.missing:
                self._missing_entries(proof.queue, proof.missing[0], proof.missing_count)
        if self.bare_log and self.unqueued:
            many = f"{count(sum(self.unqueued.values()), 'message')} of {count(len(self.unqueued), 'queue')}"
            self.cautions.append(f"there is only a log: {many} cannot be found by queue")
            self.notes.append(f"there is only a log, with {many}; {REMEDY}")
        for (topic, queue_id), number in sorted(self.unqueued.items()):
            if self.bare_log or self.store.unread_queues is not None:
                continue
            if self.store.unclean:
                pending += number
            else:
                lacks = "is not in the database" if self._database_of_queues is not None else "has no files"
                are = "1 message" if number == 1 else f"{number} messages"
                of = f"of topic {topic!r}, queue {queue_id} {'is' if number == 1 else 'are'} in the log"
                sentence = f"{are} {of}, but the queue {lacks}; {REMEDY}"
                self.damage.append(Damage(self._queue_place(topic, queue_id), 0, 0, Kind.MISSING_QUEUE_ENTRY, sentence, number))
        if pending:
            self.notes.append(
                f"{agreeing(pending, 'message', 'is', 'are')} in the log but not yet in their queues: "
                "the broker died before it dispatched them"
            )

    def _count_gone(self) -> None:
        """Count, for bad bytes of the log and missing files, the queue entries that point into them; for a torn record at least itself.

        Entries that point after the end of the log have separate findings.
        """
        dangling = [offset for proof in self.queues.values() for offset in proof.dangling]
        dangling += [offset for proof in self.batch_queues.values() for offset in proof.dangling(self.log)]
        lost = np.unique(np.array(dangling, np.int64))
        end = int(np.searchsorted(lost, self.log_end))
        self.gone = self.listed_after_end = len(lost) - end
        starts = {file.relative: file.start for file in self.log.files}
        for number, item in enumerate(self.damage):
            if item.kind.subject is Subject.BYTES and item.file in starts:
                start, length = starts[item.file] + item.offset, item.length
            elif item.kind == Kind.MISSING_FILE and item.file.startswith(f"{self.log.queue.relative}/"):
                start, length = int(item.file.rpartition("/")[2]), item.length
            else:
                continue
            low, high = (int(at) for at in np.searchsorted(lost, [start, start + length]))
            inside = max(0, min(high, end) - low)
            gone = inside if high > end else max(item.messages, inside)
            self.gone += gone
            self.damage[number] = replace(item, messages=gone)

    def _missing_entries(self, queue: ConsumeQueueReader, first: tuple[int, int], count: int) -> None:
        where = f"the first at queue offset {first[0]}, physical offset {first[1]}"
        lacking = f"{count:,} messages of the log have no entry" if count > 1 else "1 message of the log has no entry"
        if isinstance(queue, RocksQueueReader):
            sentence = f"{lacking} in queue {queue.queue_id} of topic {queue.topic!r}, {where}"
            self.damage.append(Damage(queue.place(0)[0], 0, 0, Kind.MISSING_QUEUE_ENTRY, f"{sentence}; {REMEDY}", count))
            return
        sentence = f"{lacking} in this queue, {where}"
        self.damage.append(Damage(queue.relative, first[0] * 20, 20 * count, Kind.MISSING_QUEUE_ENTRY, f"{sentence}; {REMEDY}", count))

    @cached_property
    def _database_of_queues(self) -> str | None:
        """The database that holds the consume queues; None if they are files."""
        return next((queue.place(0)[0] for queue in self.store.consume_queues() if isinstance(queue, RocksQueueReader)), None)

    def _queue_place(self, topic: str, queue_id: int) -> str:
        return self._database_of_queues or f"consumequeue/{topic}/{queue_id}"

    def _finish_second_queues(self) -> None:
        self.damage.extend(self.second.damage(self.log, self.log_end))
        self.notes.extend(self.second.notes())

    def _finish_timers(self) -> None:
        for proof in (TimerProof(self.store), TimelineProof(self.store)):
            self.damage.extend(proof.damage())
            self.notes.extend(proof.notes())

    def _finish_compacted(self) -> None:
        if self.store.log_only:
            return
        try:
            checked, damage = check_compacted(self.store.directory)
        except CannotOpenError as error:
            self.cautions.append(f"{COMPACTED_LOG}, from which consumers get the messages of compaction topics, was not checked: {error}")
            return
        self.damage += damage
        self.affected += len(damage)
        if checked:
            self.notes.append(
                f"{count(checked, 'message')} that consumers get from {COMPACTED_LOG}, in place of the log, were checked, too"
            )

    def _finish_databases(self) -> None:
        known = set(self.damage)
        self.damage.extend(item for item in self.store.databases.findings() if item not in known)
        for path, what in self.store.databases.torn():
            sentence = f"the write-ahead log of {path} ends in an incomplete record ({what}), as a killed broker leaves it"
            if self.store.unclean:
                self.notes.append(f"{sentence}; what precedes it is read")
            else:
                self.damage.append(Damage(path, 0, 0, Kind.BAD_DATABASE, f"{sentence}, but this one exited cleanly"))

    def _finish_database_index(self) -> None:
        if self.store.unread_index_sentence is not None and not self.store.log_only:
            self.notes.append(f"{self.store.unread_index_sentence}; whether it has the keys of every message is not known")
        index = self.store.database_index
        database = self.store.databases.open(INDEX_PLACE)
        if index is None and database is not None and database.faults:
            self.notes.append(f"whether the database {INDEX_PLACE} has an index, and of which messages, is not known")
        if index is not None:
            proof = DatabaseIndexProof(self.store, index)
            self.damage.extend(proof.damage())
            self.notes.extend(proof.notes())
            self.checked.index_entries += proof.entries

    def _finish_index(self, damage: Sequence[Sequence[Damage]]) -> None:
        for proof, of_file in zip(self.indexes, damage, strict=True):
            self.checked.index_entries += max(0, proof.stop - 1)
            self.checked.bytes += proof.file.entry_position(max(0, proof.stop))
            self.damage.extend(self._without_unfinished_put(proof.file, of_file) if proof is self.indexes[-1] else of_file)
        if not self.indexes and not self.store.unread_index:
            if self.store.database_index is not None or self.store.unread_index_sentence is not None:
                return
            if self.unindexed:
                sentence = (
                    f"key queries find nothing: {agreeing(self.unindexed, 'message', 'has', 'have')} keys, and there is no index file"
                )
                self.cautions.append(sentence)
                self.notes.append(f"{sentence}; {REMEDY}")
            return
        if forgotten := self._forgotten_by_recovery():
            self.notes.append(
                f"keys of {count(forgotten, 'message')} are in no index file: as brokers do, a recovery deleted the newest index "
                f"file and made a new one from a later log file on; key queries miss them, {REMEDY}"
            )
        pending, inside = self.unindexed, self.unindexed_inside
        if inside:
            sentence = (
                f"keys of {count(inside, 'message')} before the end of the index are in no index file, "
                f"the first at physical offset {self.first_unindexed}; key queries miss them; {REMEDY}"
            )
            self.damage.append(Damage("index", 0, 0, Kind.MISSING_INDEX_ENTRY, sentence, inside))
        if pending and self.store.unclean:
            self.notes.append(
                f"keys of {count(pending, 'message')} at the end of the log are not yet in the index: "
                "the broker died before it dispatched them"
            )
        elif pending:
            sentence = f"keys of {count(pending, 'message')} after the end of the index are in no index file"
            self.damage.append(Damage("index", 0, 0, Kind.MISSING_INDEX_ENTRY, f"{sentence}; {REMEDY}", pending))

    def _without_unfinished_put(self, file: IndexFile, damage: Sequence[Damage]) -> list[Damage]:
        """Return the findings about the newest index file without those of an entry that a killed broker was adding: a note instead."""
        places = unfinished_put(file) if damage and self.store.unclean else frozenset()
        others = [item for item in damage if item.kind.subject is not Subject.INDEX or item.offset not in places]
        if len(others) != len(damage):
            self.notes.append(f"{file.relative}: the broker was killed while it added an entry; its recovery adds the entry again")
        return others

    def _finish_batch_queues(self) -> None:
        for proof in self.batch_queues.values():
            self.checked.queue_entries += proof.queue.unit_count
            self.checked.bytes += proof.queue.unit_count * UNIT.itemsize
            self.checked.files += len(proof.queue.files)
            self.damage.extend((*proof.queue.findings, *proof.damage(self.log)))

    def _finish_offsets(self) -> None:
        """Report offsets outside their queue as notes: they are not damage, because a client may commit any offset."""
        for item in self.store.view().consumer_offsets():
            if item.state in ("below-min", "above-max"):
                expired = item.expired_unread
                lost = ""
                if expired:
                    gone = f"{count(expired, 'message')} that the group has not read {'is' if expired == 1 else 'are'} gone"
                    lost = f": {gone}, expired or with log files that are not here"
                self.notes.append(
                    f"group {item.group!r} is at {item.offset} of topic {item.topic!r}, queue {item.queue_id}, "
                    f"which holds {item.min_offset} to {item.max_offset}{lost}"
                )

    def _finish_checkpoint(self) -> None:
        point = self.store.checkpoint
        for name, stamp in (("physicMsgTimestamp", point.physic), ("logicsMsgTimestamp", point.logics)):
            if self.last_timestamp and stamp > self.last_timestamp:
                self.notes.append(
                    f"the checkpoint's {name} {stamp} is later than the last message of the log, stored at {self.last_timestamp}"
                )


def settle_index(work: Verification, number: int) -> list[Damage]:
    """Return what is wrong with an index file: its chains, and the entries that no range of log has proved."""
    proof = work.indexes[number]
    damage = check_chains(proof.file, work.indexes[number - 1].file if number else None)
    own = out_of_order([index.file for index in work.indexes]).get(proof.file.relative)
    if own is not None:
        sentence = f"its entries are those of {own}, in whose place are others: key queries for a time may stop before they find a message"
        damage.append(Damage(proof.file.relative, 0, HEADER_SIZE, Kind.BAD_INDEX_HEADER, sentence))
    headless = any(item.kind == Kind.BAD_INDEX_HEADER and item.offset == 36 for item in damage)
    if not headless:
        proof.finish(work.log, work.log_end, work.rules)
    proof.file.drop()
    return [*damage, *proof.damage]
