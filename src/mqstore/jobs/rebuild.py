"""Rebuild: consume queues, index and checkpoint rebuilt from the commit log, in a new store beside the old one.

    splits --scan-----> entries in place, keys staged        one task per split
           --check_seams----> every split began where the previous one ended, or is scanned again
           --complete-> plain queues move into place; others are built entry by entry; or all go into a RocksDB database
           --index----> one task per index file
           --commit---> log files linked, configuration copied, all synced, one rename

The target appears under its name only when it is complete. Queue entries never pass through the JVM: tasks write them
into a scratch directory beside the target, and return a few dozen bytes per queue to the driver.

The outcome is what a broker builds when it dispatches the whole log from the start, byte for byte, for any number of splits;
only the names of index files differ, which a broker takes from its clock.

Queues whose messages are all gone from the log are kept so far that their numbering continues. Retention never removes the last file of a
queue, so a broker numbers the next message of an idle queue where it left off. A queue that began at 0 again would have numbers that
consumer groups have already passed, and these would skip new messages. What is kept is what the broker keeps: the last file with its
entries, all of which refer to places before the log. Entries that refer into the log, where no such record is, do not count: a broker
would read other bytes there.

The last log file is copied while the log is being read. A broker continues to write the last file of a log, so a rebuilt store gets a copy
of it, which ends after the last valid record. Where that is becomes known at the end of the reading. The copy begins before, with the
bytes that are written now; `finish` cuts it, or adds what is missing.

Format: docs/formats/rocketmq.md, section 4.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from mqstore.files import Bytes, MappedFile, ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory, NewDirectory
from mqstore.files.durable_file import BLOCK, DurableFile
from mqstore.files.location import check_outside, local_store, local_target
from mqstore.findings import Coverage, Damage, SkippedRange, merge_adjacent
from mqstore.jobs.rebuild_database import (
    DATABASE,
    NEEDED_OPTION,
    QueueDatabase,
    check_request,
    configuration_notes,
    refuse_batch_queues,
)
from mqstore.jobs.report import Progress, RebuildReport, by_share
from mqstore.jobs.runner import Runner, choose_runner, open_for
from mqstore.repair.journal import apply, unshare
from mqstore.rocketmq import rebuild_steps
from mqstore.rocketmq.diagnosis.diagnosis import worthwhile_steps
from mqstore.rocketmq.dispatch.index_builder import IndexEnd, IndexSequence, build_index, plan_index
from mqstore.rocketmq.format.batch_consume_queue import UNIT_SIZE, BatchQueueReader
from mqstore.rocketmq.format.checkpoint import Checkpoint, encode
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.format.consume_queue import BLANK_SIZE, ENTRY, ENTRY_SIZE, ConsumeQueueReader, usable_topic
from mqstore.rocketmq.format.mapped_file_queue import QueueFile
from mqstore.rocketmq.format.profile import profile, version_rules
from mqstore.rocketmq.format.record import MIN_RECORD_SIZE
from mqstore.rocketmq.format.rocksdb_queue import RocksQueueReader
from mqstore.rocketmq.rebuild_steps import (
    EXACT,
    PLAIN,
    DispatchResult,
    DispatchTask,
    QueueBuildTask,
    QueuePart,
    StagedRows,
    build_queue,
    scan_split,
)
from mqstore.rocketmq.repair.config_steps import config_steps
from mqstore.rocketmq.repair.plan import LOCKING
from mqstore.rocketmq.scan.splits import Split, bytes_to_read, check_seams, log_bytes, plan
from mqstore.rocketmq.store.known_ranges import KnownRanges
from mqstore.rocketmq.store.log_site import require_whole_log
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.threads import TaskThreads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# kept by a broker beside the log, not derived from it
_CARRIED = ("config", "timerwheel", "timerlog", "compaction", "brokerIdentity", "epochFileCheckpoint")

MAX_NOTED = 20
IN_DRIVER = 2_000_000  # up to this many keys, indexing here is faster than starting a Spark task


Queue = tuple[str, int]


def rebuild(
    store: str | os.PathLike[str] | RocketMQStore,
    to: str | os.PathLike[str],
    *,
    spark: SparkSession | None = None,
    master: str | None = None,
    copy: bool = False,
    splits: int | None = None,
    check_crc: bool = False,
    threads: int | None = None,
    config: str | os.PathLike[str] | None = None,
    queues: str = "files",
    version: str | None = None,
    mend: bool = False,
    progress: Progress | None = None,
) -> RebuildReport:
    """Build an intact store in `to` from the commit log of a store. The source store is not changed.

    spark: a session to run on. master: start one there. threads: run in threads of this process.
    Without any of them the size of the log decides (`mqstore.jobs.runner`), and the report gives the choice.
    copy: copy all log files; by default they are hard links except the last one, which a broker continues to write.
    splits: number of splits to read the log in. check_crc: check bodies too.
    config: the broker's own `name=value` lines. queues: how the new store keeps its consume queues, `files` or `rocksdb`.
    version: of the broker that will open it, 4.3.0 to 5.5.0; by default as the files of the store suggest.
    mend: also repair what is taken over, the configuration and a log in which damage is noticed, and the places of lost messages.
    progress: called with (bytes of log read, bytes of log in total).
    Raises TargetError if `to` exists or cannot be written, PipelineError if Spark cannot run, and UsageError or UnsupportedError for
    queues that cannot be kept in this way.
    """
    store = open_for(store, config, spark=spark, master=master)
    local_store(store.path, "rebuild links or copies the log files, and")
    store.require_commit_log("a rebuild")
    require_whole_log(store, f"what belongs into the queues of {store.path}")
    version = check_request(queues, version, store.evidence.profile)
    choice = choose_runner(store.path, partial(bytes_to_read, store.log), spark=spark, master=master, threads=threads)
    local_target(to)
    check_outside(to, store.path)
    with NewDirectory(to) as target, choice.runner(spark, while_starting=True) as runner:
        return _RebuildRun(store, target, runner, splits, check_crc, copy, queues, version, mend, progress).run(choice.why)


@dataclass(slots=True)
class _QueueState:
    """The entries of one queue in the splits so far. next: the queue offset at which a plain queue continues."""

    first: int
    next: int
    plain: bool
    segments: list[StagedRows] = field(default_factory=list)

    def take(self, part: QueuePart) -> None:
        self.plain = self.plain and part.plain and part.first == self.next
        self.next = part.first + part.count
        self.segments.extend(part.segments)


class _RebuildRun:
    """One run."""

    def __init__(
        self,
        store: RocketMQStore,
        target: NewDirectory,
        runner: Runner,
        splits: int | None,
        check_crc: bool,
        copy: bool,
        kind: str,
        version: str | None,
        mend: bool,
        progress: Progress | None,
    ) -> None:
        self.store = store
        self.target = target
        self.runner = runner
        self.check_crc = check_crc
        self.copy = copy
        self.mend = mend
        self.progress = progress
        self.run_id = secrets.token_hex(8)
        self.settings = rebuild_steps.settings_of(store, version)
        self.profile = store.evidence.profile if version is None else profile(version)
        self.in_database = kind == "rocksdb"
        self.database: QueueDatabase | None = None
        self.splits = plan(store.log, count=splits, tasks=4 * runner.width)
        self.total = log_bytes(store.log, self.splits)
        self.queues: dict[Queue, _QueueState] = {}
        self.batch_queues: dict[Queue, _QueueState] = {}
        self.tainted: set[Queue] = set()
        self.begins: dict[int, int | None] = {}
        self.keys: list[tuple[str, int]] = []
        self.messages = self.entries = self.rewalked = 0
        self.last_offset, self.last_store_timestamp, self.end = -1, 0, -1
        self.damage: list[Damage] = list(store.log.findings)
        self.intact = mend and not self.damage
        self.known: KnownRanges | None = None
        self.notes: list[str] = []
        self.skipped: list[SkippedRange] = []
        self.stages: list[tuple[str, float]] = []

    def run(self, why: str) -> RebuildReport:
        started = self._clock = time.perf_counter()
        scratch_name = self.target.target.with_name(f"{self.target.target.name[:80]}.mqstore-work")
        with NewDirectory(scratch_name) as scratch:
            self.stage = str(scratch.directory.root)
            for name in (PLAIN, EXACT, rebuild_steps.PARTS, "index"):
                scratch.directory.make_directory(name)
            with self._last_file_copy() as copy:
                self._note_stage("plan")
                sequence = self._index_sequence(scratch.directory)
                self._scan(sequence)
                self._note_stage("scan")
                exact = self._complete_in_database(scratch.directory) if self.in_database else self._complete_queues(scratch.directory)
                self._note_stage("queues")
                ends = self._build_index(sequence)
                if self.settings.assumed_queue_size and self.queues and not self.in_database:
                    self.notes.append(self.settings.assumed_queue_size)
                if self.settings.assumed_geometry and any(end.keys for end in ends):
                    self.notes.append(self.settings.assumed_geometry)
                self._note_stage("index")
                linked = self._carry_over()
                if copy is not None:
                    copy.finish(self.end)
            self._move(scratch.directory)
            self._write_checkpoint(ends)
            whole = self._mend(scratch.directory.root, exact) if self.mend else None
            self._note_stage("gather")
            self.runner.require_started()
            self._note_stage("session")
            self.target.publish()
            self._note_stage("sync")
        return RebuildReport(
            store=str(self.store.path),
            to=str(self.target.target),
            log_bytes=self.total,
            messages=self.messages,
            queues=len(self.queues) + len(self.batch_queues),
            queue_entries=self.entries,
            exact_queues=exact,
            index_files=len(ends) if whole is None else whole.index_files,
            index_keys=sum(end.keys for end in ends) if whole is None else whole.index_keys,
            splits=len(self.splits),
            rewalked=self.rewalked,
            seconds=time.perf_counter() - started,
            runs_on=self.runner.name,
            why=why,
            stages=tuple(self.stages),
            linked=linked,
            damage=tuple(merge_adjacent(self.damage)),
            coverage=self._coverage(),
            notes=tuple(self.notes),
            queues_in="RocksDB" if self.in_database else "files",
            intact=self.intact and not exact and not self.in_database,
            known=self.known,
        )

    def _note_stage(self, name: str) -> None:
        now = time.perf_counter()
        self.stages.append((name, now - self._clock))
        self._clock = now

    # reading the log

    def _task(self, split: Split, first: int | None = None, only: frozenset[Queue] | None = None) -> DispatchTask:
        return DispatchTask(
            store=self.store.place,
            log_file_size=self.store.config.commit_log_file_size,
            stage=self.stage,
            run=self.run_id,
            split=split,
            settings=self.settings,
            first=first,
            check_crc=self.check_crc and only is None,
            prove=self.mend and only is None,
            keys_in_memory=self.runner.shares_memory,
            only=only,
        )

    def _index_sequence(self, scratch: DurableDirectory) -> IndexSequence | None:
        """Return the sequence of index files that keys go to directly, if tasks run in this process; else None."""
        if not self.settings.index or not self.runner.shares_memory:
            return None
        return IndexSequence(scratch, "index", self.settings.index_slots, self.settings.index_positions)

    def _scan(self, sequence: IndexSequence | None) -> None:
        tasks = [self._task(split) for split in self.splits]
        outcomes = self.runner.each(tasks, scan_split, by_share(self.progress, self.total, len(self.splits)))
        for outcome, wrong in check_seams(self.store.log, outcomes, lambda split, first: scan_split(self._task(split, first))):
            if wrong is not None:
                self.rewalked += 1
                # a split that began inside a body has written wrong entries in place: build those queues elsewhere
                if wrong.begin is not None:
                    self.tainted.update((part.topic, part.queue_id) for part in wrong.parts if not part.batch)
            self._take(outcome, sequence)

    def _take(self, outcome: DispatchResult, sequence: IndexSequence | None) -> None:
        self.begins[outcome.split.number] = outcome.begin
        self.messages += outcome.records
        self.damage.extend(outcome.damage)
        self.intact &= outcome.intact
        if outcome.damage_omitted:
            self.notes.append(
                f"{outcome.damage_omitted} further findings between {outcome.split.start} and {outcome.split.stop} "
                "are not listed individually"
            )
        self.skipped.extend(
            SkippedRange(
                "commitlog",
                outcome.split.start,
                outcome.split.stop - outcome.split.start,
                f"topic {topic!r} is not a possible directory name: its messages are not in any queue",
            )
            for topic in outcome.unqueued
        )
        self.end = max(self.end, outcome.end)
        if outcome.records:
            self.last_offset, self.last_store_timestamp = outcome.last_offset, outcome.last_store_timestamp
        for part in outcome.parts:
            states = self.batch_queues if part.batch else self.queues
            state = states.get((part.topic, part.queue_id))
            if state is None:
                state = states[part.topic, part.queue_id] = _QueueState(part.first, part.first, True)
            state.take(part)
        if sequence is not None:
            for keys in outcome.arrays:
                sequence.put(keys)
        elif outcome.keys is not None:
            self.keys.append((outcome.keys.path, outcome.keys.count))

    # queues

    def _complete_queues(self, scratch: DurableDirectory) -> int:
        """Fill plain queues that begin after offset 0, and build all others. Return the number of the latter."""
        exact = frozenset(queue for queue, state in self.queues.items() if not state.plain or queue in self.tainted)
        for (topic, queue_id), state in self.queues.items():
            if (topic, queue_id) in exact:
                continue
            self.entries += state.next - state.first
            if state.first:
                directory = f"{PLAIN}/consumequeue/{topic}/{queue_id}"
                rebuild_steps.write_blanks(scratch, directory, self.settings.queue_file_size, state.first)
        tasks = [self._queue_task(queue, True, state.segments) for queue, state in self.batch_queues.items()]
        if exact:
            segments = self._segments_of(exact)
            tasks.extend(self._queue_task(queue, False, segments[queue]) for queue in sorted(exact))
        for result in self.runner.each(tasks, build_queue):
            self.entries += result.entries
            if not result.entries:
                self._note_unusable((self.batch_queues if result.batch else self.queues), (result.topic, result.queue_id))
        self._keep_numbering(scratch)
        return len(exact)

    def _note_unusable(self, states: dict[Queue, _QueueState], queue: Queue) -> None:
        states.pop(queue)
        self.notes.append(f"no message of topic {queue[0]!r}, queue {queue[1]} has a queue offset that a broker could store")

    def _complete_in_database(self, scratch: DurableDirectory) -> int:
        """Put all queues into a database. Return the number of those that are not plain."""
        refuse_batch_queues(self.batch_queues)
        exact = frozenset(queue for queue, state in self.queues.items() if not state.plain or queue in self.tainted)
        segments = self._segments_of(exact) if exact else {}
        self.database = QueueDatabase(scratch.root, self.store.log)
        try:
            for queue in sorted(self.queues):
                if queue in exact:
                    put, replaced = self.database.put_staged(queue, segments[queue])
                    self.entries += put - replaced
                    if not put:
                        self._note_unusable(self.queues, queue)
                    if replaced:
                        self.notes.append(
                            f"{replaced} messages of topic {queue[0]!r}, queue {queue[1]} are not in their queue: later ones have the same "
                            "queue offset, and a database keeps one of them; --queues files lists them as brokers do that keep files"
                        )
                else:
                    state = self.queues[queue]
                    self.entries += self.database.put_plain(queue, state.first, state.next, self.settings.queue_file_size)
            self._keep_numbering(scratch)
            self.database.close(self.end)
        finally:
            self.database.abandon()
        self.notes.append(f"the consume queues are in RocksDB: a broker opens this store with {NEEDED_OPTION} in its configuration")
        return len(exact)

    def _keep_numbering(self, scratch: DurableDirectory) -> None:
        """Keep the last file of queues without messages in the log, as retention does, so that their numbering continues."""
        empty = list(queues_without_messages(self.store, set(self.queues), set(self.batch_queues)))
        if self.in_database:
            refuse_batch_queues((queue.topic, queue.queue_id) for queue in empty if queue.batch)
        for queue in empty:
            if queue.rows is None:
                continue
            if self.database is not None:
                last = queue.rows.view(ENTRY)[-1]
                self.database.keep_numbering((queue.topic, queue.queue_id), queue.end, int(last["physical_offset"]))
                self.queues[queue.topic, queue.queue_id] = _QueueState(queue.end, queue.end, False)
                continue
            path = f"{'batchconsumequeue' if queue.batch else 'consumequeue'}/{queue.topic}/{queue.queue_id}"
            size = self.settings.batch_file_size if queue.batch else self.settings.queue_file_size
            rebuild_steps.write_entries(scratch, f"{EXACT}/{path}", size, queue.position, queue.rows)
            if not queue.batch:
                rebuild_steps.write_blanks(scratch, f"{EXACT}/{path}", size, queue.position // ENTRY_SIZE)
            (self.batch_queues if queue.batch else self.queues)[queue.topic, queue.queue_id] = _QueueState(queue.end, queue.end, False)
        for queue in empty[:MAX_NOTED]:
            gone = f"the log no longer holds any message of topic {queue.topic!r}, queue {queue.queue_id}: "
            if queue.rows is not None:
                self.notes.append(
                    f"{gone}{'its end is' if self.in_database else 'its last file is'} kept, so that its offsets continue at {queue.end}"
                )
            else:
                self.notes.append(f"{gone}the new store has no such queue, and its offsets, which had reached {queue.end}, will start at 0")
        if len(empty) > MAX_NOTED:
            continued = sum(queue.rows is not None for queue in empty[MAX_NOTED:])
            self.notes.append(f"nor of {len(empty) - MAX_NOTED} further queues, of which {continued} continue their offsets")
        if self.store.directory.is_directory("consumequeue_ext"):
            self.notes.append("the extended consume queue is not rebuilt: entries hold the tags code itself, which brokers accept")

    def _queue_task(self, queue: Queue, batch: bool, segments: Sequence[StagedRows]) -> QueueBuildTask:
        size = self.settings.batch_file_size if batch else self.settings.queue_file_size
        return QueueBuildTask(self.stage, *queue, batch, size, tuple(segments))

    def _segments_of(self, exact: frozenset[Queue]) -> dict[Queue, list[StagedRows]]:
        """Scan the log again for the queues that are not plain: their entries in log order."""
        segments: dict[Queue, list[StagedRows]] = {queue: [] for queue in exact}
        tasks = [self._task(split, self.begins[split.number], exact) for split in self.splits]
        for outcome in self.runner.each(tasks, scan_split):
            for part in outcome.parts:
                if not part.batch:
                    segments[part.topic, part.queue_id].extend(part.segments)
        return segments

    # index

    def _build_index(self, sequence: IndexSequence | None) -> list[IndexEnd]:
        if sequence is not None:
            return sequence.finish(self.last_offset, self.last_store_timestamp)
        if not self.settings.index:
            return []
        tasks = plan_index(
            self.stage,
            "index",
            self.settings.index_slots,
            self.settings.index_positions,
            self.keys,
            self.last_offset,
            self.last_store_timestamp,
        )
        if len(tasks) == 1 or sum(count for _, count in self.keys) < IN_DRIVER:
            return [build_index(task) for task in tasks]
        return list(self.runner.each(tasks, build_index))

    # the new store

    def _written_files(self) -> list[QueueFile]:
        return [file for file in self.store.log.files[: self.store.log.last_written() + 1] if file.size]

    def _last_file_copy(self) -> contextlib.AbstractContextManager[LastFileCopy | None]:
        """Return the copy of the last log file: a link would let a broker change the old store."""
        written = self._written_files()
        return LastFileCopy(self.store.log, written[-1], self.target.directory) if written else contextlib.nullcontext()

    def _carry_over(self) -> bool:
        """Link or copy the log files except the last, and copy whatever else is not derived. Return whether those files are links."""
        log, new = self.store.log, self.target.directory
        new.make_directory("commitlog")
        linked = True
        written = self._written_files()
        for file in written[:-1]:
            # a broker refuses a log file of another size, so such a one is copied, and padded with zeros or cut: the next file begins there
            other = file.size != log.file_size
            linked &= new.link_or_copy(log.mapped(file).path, f"commitlog/{file.name}", copy=self.copy or other)
            if other:
                new.truncate(f"commitlog/{file.name}", log.file_size)
        self.notes.extend(
            f"commitlog/{file.name} had {file.size} bytes and was {'padded' if file.size < log.file_size else 'cut'} to {log.file_size}"
            for file in written
            if file.size != log.file_size
        )
        if not self.in_database:
            self.notes.extend(configuration_notes(self.store))
        for name in _CARRIED:
            for relative, entry in self._carried_files(name):
                if entry:
                    new.link_or_copy(self.store.directory.path(relative), relative, copy=True)
        return linked

    def _carried_files(self, name: str) -> Iterator[tuple[str, bool]]:
        directory = self.store.directory
        if directory.is_directory(name):
            yield from ((relative, entry.is_file) for relative, entry in directory.walk(name))
            directory.require_listed(name)
        elif directory.exists(name):
            yield name, True

    def _move(self, scratch: DurableDirectory) -> None:
        """Move everything that was built to its place in the new store."""
        new = self.target.directory
        with DurableDirectory(self.target.target.parent) as parent:
            if self.in_database:
                parent.rename(f"{scratch.root.name}/{DATABASE}", f"{new.root.name}/consumequeue")
            else:
                self._move_queues(scratch, parent)
            if self.settings.index:
                parent.rename(f"{scratch.root.name}/index", f"{new.root.name}/index")

    def _move_queues(self, scratch: DurableDirectory, parent: DurableDirectory) -> None:
        new = self.target.directory
        new.make_directory("consumequeue")
        for states, name in ((self.queues, "consumequeue"), (self.batch_queues, "batchconsumequeue")):
            for topic, queue_id in states:
                new.make_directory(f"{name}/{topic}")
                path = f"{name}/{topic}/{queue_id}"
                built = EXACT if scratch.exists(f"{EXACT}/{path}") else PLAIN
                parent.rename(f"{scratch.root.name}/{built}/{path}", f"{new.root.name}/{path}")

    def _write_checkpoint(self, ends: Sequence[IndexEnd]) -> None:
        point = Checkpoint(
            physic=self.last_store_timestamp,
            logics=self.last_store_timestamp,
            index=ends[-1].end_timestamp if ends else 0,
            confirm_physical_offset=max(0, self.last_offset) if version_rules(self.profile.version).confirms_offset else 0,
        )
        self.target.directory.write_small("checkpoint", encode(point))

    def _mend(self, scratch: Path, exact: int) -> RebuildReport | None:
        """Repair what is taken over as it is, the configuration and a damaged log, as it would be advised for the new store.

        exact: the number of queues that are not plain. One that skips a queue offset lists what comes after it at other places.
        Returns the report of the second run that made the index, if records were restored: their keys have places among the others.
        """
        new = self.store.seen_in(ReadOnlyDirectory(self.target.directory.root))
        if (self.damage or exact) and not self.in_database:
            new = new.remembering()
            steps = worthwhile_steps(new, threads=self.runner.width)
        else:
            ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in new.all_queues()}
            steps = [step for step in config_steps(new, new.version_hint, self.last_store_timestamp, ends) if step.possible]
        if steps:
            for name in {change.file for step in steps for change in step.changes if change.op in ("write", "resize")}:
                unshare(self.target.directory, name)
            journal = scratch / "undo"
            apply(new.directory.root, journal, steps, LOCKING)
            self.target.directory.remove(LOCKING.file)
            self.notes.extend(f"{step.kind}, {step.file}: {step.why}" for step in steps[:MAX_NOTED])
            if len(steps) > MAX_NOTED:
                self.notes.append(f"{len(steps) - MAX_NOTED} further steps of such a repair")
        if new.known is not None:
            self.known = new.known.after([change for step in steps for change in step.changes], new.log.queue.relative)
        if not self.settings.index or all(step.kind != "frame" for step in steps):
            return None
        mended = self.store.seen_in(ReadOnlyDirectory(self.target.directory.root))
        whole = rebuild(mended, scratch / "whole", threads=self.runner.width, version=self.profile.version)
        with DurableDirectory(self.target.target.parent) as parent:
            for name in ("index", "checkpoint"):
                self.target.directory.remove_tree(name)
                parent.rename(f"{scratch.name}/whole/{name}", f"{self.target.directory.root.name}/{name}")
        return whole

    def _coverage(self) -> Coverage:
        unread = [
            SkippedRange(item.file, item.offset, item.length, str(item.kind)) for item in merge_adjacent(self.damage) if item.kind.unread
        ]
        return Coverage((*unread, *self.skipped))


# queues without messages


@dataclass(frozen=True, slots=True)
class KeptQueue:
    """A queue without a message in the log. end: the next queue offset. rows: of its last file, to be at a byte position of the
    queue; None if it cannot be kept."""

    topic: str
    queue_id: int
    batch: bool
    end: int
    position: int
    rows: Bytes | None


def queues_without_messages(store: RocketMQStore, queues: set[tuple[str, int]], batch_queues: set[tuple[str, int]]) -> Iterator[KeptQueue]:
    """Yield the queues on disk that have entries, but no message in the log. queues, batch_queues: those that have one."""
    log_min = store.log.files[0].start if store.log.files else 0
    for queue in store.consume_queues():
        if (queue.topic, queue.queue_id) not in queues and queue.max_offset > 0:
            yield _plain(queue, log_min)
    for batch in store.batch_queues():
        if (batch.topic, batch.queue_id) not in batch_queues and batch.max_offset > 0:
            yield _batch(batch, log_min)


def _plain(queue: ConsumeQueueReader, log_min: int) -> KeptQueue:
    end = queue.max_offset
    if isinstance(queue, RocksQueueReader):
        return _from_database(queue, end, log_min)
    file = next((file for file in reversed(queue.files) if file.start < end * ENTRY_SIZE), None)
    first = end if file is None else max(file.start // ENTRY_SIZE, queue.min_offset)
    rows = queue.entries(first, end)
    size, start = rows["size"].astype(np.int64), rows["physical_offset"].astype(np.int64)
    before = bool(len(rows)) and bool(((size > 0) & (size < BLANK_SIZE) & (start >= 0) & (start + size <= log_min)).all())
    last_rows = rows.view(np.uint8) if before and _is_named(queue) else None
    return KeptQueue(queue.topic, queue.queue_id, False, end, first * ENTRY_SIZE, last_rows)


def _from_database(queue: RocksQueueReader, end: int, log_min: int) -> KeptQueue:
    """Keep the last entry. Its record is gone, and so is its size, for which the smallest that a record can have is written."""
    last = queue.stored_last
    last_rows = None
    if last is not None and last[1] == end - 1 and 0 <= last[0] <= log_min - MIN_RECORD_SIZE and usable_topic(queue.topic):
        last_rows = np.array([(last[0], MIN_RECORD_SIZE, 0)], ENTRY).view(np.uint8)
    return KeptQueue(queue.topic, queue.queue_id, False, end, (end - 1) * ENTRY_SIZE, last_rows)


def _batch(queue: BatchQueueReader, log_min: int) -> KeptQueue:
    file, units = next(((file, units) for file, units in reversed(queue.written) if len(units)), (None, None))
    if file is None or units is None:
        return KeptQueue(queue.topic, queue.queue_id, True, queue.max_offset, 0, None)
    start = units["physical_offset"].astype(np.int64)
    before = bool(((start >= 0) & (start < log_min) & (units["size"] > 0)).all())
    last_rows = np.ascontiguousarray(units).view(np.uint8) if before and _is_named(queue) and file.start % UNIT_SIZE == 0 else None
    return KeptQueue(queue.topic, queue.queue_id, True, queue.max_offset, file.start, last_rows)


def _is_named(queue: ConsumeQueueReader | BatchQueueReader) -> bool:
    """Return whether the topic is the name of its directory: one that is not UTF-8 is shown in another form."""
    return queue.relative.endswith(f"/{queue.topic}/{queue.queue_id}")


# the copy of the last file


COPIED_AT_ONCE = 32 << 20  # bytes


class LastFileCopy:
    """A context in which the copy is being made; nothing is written any more when it has been left."""

    def __init__(self, log: CommitLog, file: QueueFile, directory: DurableDirectory) -> None:
        self._file = file
        # a separate map: pages that are released after they are copied would be taken from the walk over the log
        self._source = MappedFile(log.mapped(file).path)
        self._directory = directory
        self._size = log.file_size
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
        size = max(0, end - self._file.start)
        copied = self._copied.result()
        if copied > size:
            self._target.truncate(size)
            self._target.truncate(self._size)
        elif copied < size:
            self._target.pwrite(copied, self._source.data[copied:size])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopped.set()
        try:
            self._pool.__exit__(kind, error, trace)
        finally:
            self._target.close()
