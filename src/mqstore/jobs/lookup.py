"""Lookup: many keys at once, each with its messages or the reason why it has none.

    keys file --> keys by hash, in one file of the stage that all tasks map
    index     --> probe or sweep --> candidates --> records compared         for the log that usable index files cover
    log       --> scan --> records compared                                  for the rest, which may be all of it
              --> parts in log order, then a row per key without a message --> renamed into place

The plan with the least work is chosen (`mqstore.rocketmq.lookup.plan`); the report names it with the figures. All plans give the same
rows in the same order, for any number of splits: hits in log order, the keys of one record in the order of the file, then the keys without
a message in that order.

An index file that points a wanted key at a record without it is not used any more; its range of log is scanned instead.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import PipelineError, UsageError
from mqstore.files import MappedFile
from mqstore.files.durable import DurableDirectory, NewDirectory, NewFile
from mqstore.files.location import check_outside, local_target
from mqstore.findings import Coverage, Damage, SkippedRange, merge_adjacent
from mqstore.jobs.report import Progress
from mqstore.jobs.runner import MODES, Runner, RunnerChoice, ThreadRunner, choose_runner, open_for
from mqstore.rocketmq.format.index_geometry import ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE
from mqstore.rocketmq.lookup.answer import Answer, LookupReport
from mqstore.rocketmq.lookup.explain import Reason
from mqstore.rocketmq.lookup.index_probe import CANDIDATE
from mqstore.rocketmq.lookup.key_file import read_keys
from mqstore.rocketmq.lookup.key_set import KeySet, last_per_key_mask
from mqstore.rocketmq.lookup.plan import Interval, Plan, Survey, check_plan, covered_intervals, survey, uncovered_intervals
from mqstore.rocketmq.lookup.tasks import (
    COLLISION,
    DAMAGED,
    HIT,
    OUTCOME,
    FetchTask,
    IndexSearch,
    LookupContext,
    LookupResult,
    ScanTask,
    SearchTask,
    damage_sentence,
    fetch_range,
    keys_of,
    scan_range,
    search_index,
)
from mqstore.rocketmq.scan.planned_files import files_seen, token_of
from mqstore.rocketmq.scan.splits import bytes_to_read, plan
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.table.arrow_spans import distinct, whole_runs
from mqstore.table.columns import ROCKETMQ_COLUMNS, check_columns
from mqstore.table.row_files import PartFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN_DRIVER = 64 << 20  # bytes of log that are read before a Spark task would have started
LEAST_PER_TASK = 20_000  # candidates
MOST_PER_TASK = 200_000
OFFSETS_AT_ONCE = 1 << 20  # compared with their neighbours

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]


def lookup(
    store: str | os.PathLike[str] | RocketMQStore,
    keys: str | os.PathLike[str] | Sequence[tuple[str, str]],
    to: str | os.PathLike[str],
    *,
    by: str = "auto",
    columns: Sequence[str] | None = None,
    max_per_key: int | None = None,
    mode: str = "PERMISSIVE",
    spark: SparkSession | None = None,
    master: str | None = None,
    threads: int | None = None,
    splits: int | None = None,
    config: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> LookupReport:
    """Write the messages of many keys, and the reason for each key without one, to `to`.

    keys: a file of topics and keys (`mqstore.rocketmq.lookup.key_file`), or the pairs.
    to: a new directory of Parquet files, or a new `.parquet` or `.jsonl` file.
    by: auto, probe, sweep or scan. columns: of the message table, by default all. max_per_key: keep that many newest messages of a key.
    mode: PERMISSIVE skips damage and reports it, FAILFAST ends the job at it.
    spark: a session to run on. master: start one there. threads: run in threads of this process. Without any of them the size of the log
    decides (`mqstore.jobs.runner`). A session is never started for probing alone.
    progress: called with (bytes of log answered for, by the index or by reading, bytes of log).
    Raises TargetError when `to` exists or cannot be written, UsageError, CannotOpenError, PipelineError.
    """
    if mode.upper() not in MODES:
        raise UsageError(f"there is no mode {mode!r}; the modes are {' and '.join(MODES)}")
    if max_per_key is not None and max_per_key < 1:
        raise UsageError(f"max_per_key must be at least 1 (got {max_per_key})")
    check_plan(by)
    chosen = tuple(name for name in check_columns(ROCKETMQ_COLUMNS if columns is None else columns) if name != "topic")  # the key has it
    local_target(to)
    target = _answer_target(to)
    begun = time.perf_counter()
    asked_keys = read_keys(keys) if isinstance(keys, str | os.PathLike) else KeySet.of(keys)
    store = open_for(store, config, spark=spark, master=master)
    check_outside(to, store.path)
    choice = choose_runner(store.path, partial(bytes_to_read, store.log), spark=spark, master=master, threads=threads)
    with target, NewDirectory(target.target.with_name(f"{target.target.name[:80]}.mqstore-work")) as scratch:
        stage = scratch.directory
        context = _stage_keys(store, asked_keys, target, stage, chosen, max_per_key, failfast=mode.upper() == "FAILFAST")
        # from here on this process, too, reads the file: the keys are in memory once
        key_set = keys_of(context)
        del asked_keys
        _release_unused()
        chosen_plan = survey(store, len(key_set), by, splits)
        job = _Lookup(store, key_set, context, chosen_plan, stage, splits, progress)
        if choice.threads is None and chosen_plan.plan is Plan.PROBE and chosen_plan.costs.uncovered_bytes <= IN_DRIVER:
            choice = RunnerChoice(len(os.sched_getaffinity(0)), "", "following index chains does not justify starting Spark")
        waiting = time.perf_counter()
        with choice.runner(spark) as runner:
            begun += time.perf_counter() - waiting
            return job.write(target, runner, choice.why, begun)


def _release_unused() -> None:
    """Return the memory that Arrow keeps for later to the system."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


def _answer_target(to: str | os.PathLike[str]) -> NewDirectory | NewFile:
    suffix = Path(to).suffix.lower()
    if suffix in (".json", ".csv", ".tsv", ".txt"):
        raise UsageError(f"{to}: answers are written as Parquet (a directory, or a .parquet file) or as a .jsonl file; choose such a name")
    return NewFile(to) if suffix in (".parquet", ".jsonl") else NewDirectory(to)


def _stage_keys(
    store: RocketMQStore,
    keys: KeySet,
    target: NewDirectory | NewFile,
    stage: DurableDirectory,
    columns: tuple[str, ...],
    max_per_key: int | None,
    *,
    failfast: bool,
) -> LookupContext:
    """Write the keys into the stage, and return what all tasks share."""
    name = f"{secrets.token_hex(6)}.keys"
    with stage.open_new(name) as sink:
        keys.write_to(sink)
    return LookupContext(
        store=store.place,
        config=store.config,
        token=token_of(store.log),
        stage=str(stage.root),
        keys=str(stage.path(name)),
        columns=columns,
        lines=target.target.suffix.lower() == ".jsonl",
        max_per_key=max_per_key,
        failfast=failfast,
    )


@dataclass(slots=True)
class _TaskResults:
    """What the tasks of a lookup found. results: in log order. scanned_all: whether the whole log was scanned.

    removed, damaged: places of pairs for which the index points before the log, or at bytes that are not a valid record.
    """

    results: list[LookupResult]
    scanned_all: bool
    removed: Longs
    damaged: Longs
    index_bytes: int
    notes: list[str]


class _IndexReading:
    """The part of a lookup that goes by the index. files: usable index files by number; those that prove invalid are dropped.

    removed, damaged: as in `_TaskResults`. index_bytes: bytes of index files read. notes: why files were dropped.
    """

    def __init__(self, store: RocketMQStore, keys: KeySet, context: LookupContext, survey: Survey, stage: DurableDirectory) -> None:
        self.files = dict(survey.files)
        self.removed: Longs = np.zeros(0, np.int64)
        self.damaged: Longs = np.zeros(0, np.int64)
        self.index_bytes = 0
        self.notes = list(survey.notes)
        self._store = store
        self._keys = keys
        self._context = context
        self._plan = survey.plan
        self._end = survey.end
        self._stage = stage

    def covered(self) -> list[Interval]:
        """Return the ranges of log that the usable files answer for."""
        return covered_intervals(list(self.files.values()), self._store.log, self._end)

    def run(self, runner: Runner, advance: _Advance) -> list[LookupResult]:
        """Return the hits that index files point at. If a file proves invalid it is dropped, and the others are read again."""
        if not self.files:
            return []
        candidates = self._candidates(runner)
        while self.files:
            tasks = self._fetch_tasks(candidates, runner.width)
            done = advance.part(0, sum(each.stop - each.start for each in self.covered()), len(tasks))
            results = list(runner.each(tasks, fetch_range, done))
            invalid = frozenset[int]().union(*(each.invalid for each in results))
            if not invalid:
                return results
            # a candidate with damaged bytes remains the reason why its key has no message
            self.damaged = np.concatenate([self.damaged, *(_places(self._stage, each, DAMAGED) for each in results)])
            for number in invalid:
                self._drop(number, "an entry points at a record without such a key")
            candidates = candidates[~np.isin(candidates["file"], list(invalid))]
        return []

    def _drop(self, number: int, fault: str) -> None:
        file = self.files.pop(number)
        self.notes.append(f"{file.relative}: {fault}; the log is read instead")

    def _candidates(self, runner: Runner) -> NDArray[np.void]:
        """Return what probing or sweeping finds inside the log; what points before it goes to `removed`."""
        tasks = [SearchTask(self._context, number, self._plan) for number in self.files]
        candidate_runner = runner if runner.shares_memory or self._plan is Plan.SWEEP else ThreadRunner(1)
        candidates: list[NDArray[np.void]] = []
        for task, searched in zip(tasks, candidate_runner.each(tasks, search_index), strict=True):
            self.index_bytes += self._bytes_read(task.number, searched)
            if searched.fault:
                self._drop(task.number, searched.fault)
            elif searched.staged is not None:
                candidates.append(MappedFile(self._stage.path(searched.staged)).data.view(CANDIDATE))
        every = candidates[0] if len(candidates) == 1 else np.concatenate([np.empty(0, CANDIDATE), *candidates])
        before_log = every["physical_offset"] < self._store.log.start
        if not before_log.any():
            return every
        self.removed = distinct(self._keys.places(distinct(every["hash"][before_log]).astype(np.int32))[1])
        return every[~before_log]

    def _bytes_read(self, number: int, searched: IndexSearch) -> int:
        return HEADER_SIZE + SLOT_SIZE * self.files[number].slot_count + ENTRY_SIZE * searched.entries

    def _fetch_tasks(self, candidates: NDArray[np.void], width: int) -> list[FetchTask]:
        """Sort candidates by physical offset, and cut them into tasks at the ends of covered ranges and at a maximum size."""
        rows = candidates
        if _descends(candidates["physical_offset"]):
            rows = candidates[np.argsort(candidates["physical_offset"], kind="stable")]
        most = max(LEAST_PER_TASK, min(MOST_PER_TASK, len(rows) // (8 * width)))
        name = f"{secrets.token_hex(6)}.candidates"
        self._stage.create(name)
        self._stage.pwrite(name, 0, np.ascontiguousarray(rows).view(np.uint8))
        offsets = rows["physical_offset"]
        tasks = []
        for each in self.covered():
            low, high = np.searchsorted(offsets, [each.start, each.stop]).tolist()
            start = each.start
            for begin, end in whole_runs(offsets[low:high], most):
                stop = int(offsets[low + end - 1]) + 1
                seen = files_seen(self._store.log, int(offsets[low + begin]), stop)
                tasks.append(FetchTask(self._context, str(self._stage.path(name)), low + begin, low + end, start, seen))
                start = stop
        return tasks


class _Advance:
    """Reports how many bytes of log are done, of all of them; never fewer than before."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._reported = 0

    def part(self, before: int, size: int, tasks: int) -> Callable[[int], None] | None:
        """Return a function to call with the number of finished tasks, which share `size` bytes after the first `before`."""
        progress = self._progress
        if progress is None:
            return None

        def done(finished: int) -> None:
            self._reported = max(self._reported, min(self._total, before + size * finished // max(1, tasks)))
            progress(self._reported, self._total)

        return done


class _Lookup:
    """One lookup, planned: `write` carries it out."""

    def __init__(
        self,
        store: RocketMQStore,
        keys: KeySet,
        context: LookupContext,
        survey: Survey,
        stage: DurableDirectory,
        splits: int | None,
        progress: Progress | None,
    ) -> None:
        self._store = store
        self._keys = keys
        self._context = context
        self._survey = survey
        self._stage = stage
        self._splits = splits
        self._advance = _Advance(progress, survey.end - store.log.start)

    def write(self, target: NewDirectory | NewFile, runner: Runner, because: str, begun: float) -> LookupReport:
        """Find everything and publish the answer. because: why it runs there. begun: `time.perf_counter()` at the start."""
        findings = self._find(runner)
        by_part = [_places(self._stage, each, HIT) for each in findings.results]
        counts = [len(each) for each in by_part]
        key_numbers = np.concatenate([np.zeros(0, np.int32), *by_part])
        del by_part
        limit = self._context.max_per_key
        selected = np.ones(len(key_numbers), np.bool_) if limit is None else last_per_key_mask(key_numbers, limit)
        hits = np.zeros(len(self._keys), np.bool_)
        hits[key_numbers] = True
        damage = merge_adjacent([*self._store.log.findings, *(item for each in findings.results for item in each.damage)])
        misses = self._misses(findings, hits, bool(damage))
        report = self._report(findings, target, runner, hits, selected, misses, damage)
        parts = _kept_parts(findings.results, counts, selected)
        answer = Answer(self._keys, self._context.columns, self._context.lines, parts, misses)
        report = replace(report, because=because, seconds=time.perf_counter() - begun)
        files = answer.write(target, self._stage, report)
        return replace(report, files=files, seconds=time.perf_counter() - begun)

    def _find(self, runner: Runner) -> _TaskResults:
        if self._context.failfast:
            for item in self._store.log.findings:
                raise PipelineError(damage_sentence(item))
        index = _IndexReading(self._store, self._keys, self._context, self._survey, self._stage)
        results = index.run(runner, self._advance)
        covered = index.covered()
        results += self._scan(runner, covered)
        results.sort(key=lambda each: each.start)
        omitted = sum(each.damage_omitted for each in results)
        notes = [*index.notes, *([f"{omitted} further findings are not listed"] if omitted else [])]
        return _TaskResults(results, not covered, index.removed, index.damaged, index.index_bytes, notes)

    def _scan(self, runner: Runner, covered: Sequence[Interval]) -> list[LookupResult]:
        """Return the hits in what no index file covers."""
        log = self._store.log
        pieces = [
            replace(split, start=max(split.start, each.start), stop=min(split.stop, each.stop))
            for split in plan(log, count=self._splits, tasks=4 * runner.width)
            for each in uncovered_intervals(covered, log.start, self._survey.end)
            if max(split.start, each.start) < min(split.stop, each.stop)
        ]
        total = sum(piece.stop - piece.start for piece in pieces)
        small = total <= IN_DRIVER and self._survey.plan is not Plan.SCAN
        scan_runner = ThreadRunner(1) if not runner.shares_memory and small else runner
        tasks = [
            ScanTask(self._context, replace(piece, number=number), files_seen(log, piece.start, piece.stop))
            for number, piece in enumerate(pieces)
        ]
        done = self._advance.part(sum(each.stop - each.start for each in covered), total, len(pieces))
        return list(scan_runner.each(tasks, scan_range, done))

    def _report(
        self,
        findings: _TaskResults,
        target: NewDirectory | NewFile,
        runner: Runner,
        hits: Mask,
        selected: Mask,
        misses: Sequence[tuple[Reason, Longs]],
        damage: Sequence[Damage],
    ) -> LookupReport:
        return LookupReport(
            store=str(self._store.path),
            to=str(target.target),
            plan=str(self._survey.plan),
            why=self._survey.why,
            runs_on=runner.name,
            keys=len(self._keys),
            repeated=self._keys.repeated,
            found=int(hits.sum()),
            hits=int(selected.sum()),
            cut=int((~selected).sum()),
            misses={str(reason): count for reason in Reason if (count := sum(len(rows) for why, rows in misses if why is reason))},
            log_bytes=sum(each.bytes for each in findings.results),
            index_bytes=findings.index_bytes,
            files=(),
            seconds=0.0,
            damage=tuple(damage),
            coverage=Coverage(tuple(SkippedRange(item.file, item.offset, item.length, str(item.kind)) for item in damage)),
            notes=tuple(findings.notes),
        )

    def _misses(self, findings: _TaskResults, hits: Mask, damage: bool) -> list[tuple[Reason, Longs]]:
        """Return the pairs without a message by reason, in the order of the file. The last reason assigned here counts."""
        reason = np.full(len(self._keys), -1, np.int8)
        order = list(Reason)
        if not findings.scanned_all:
            reason[:] = order.index(Reason.NO_INDEX_ENTRY)
        else:
            reason[:] = order.index(Reason.KEY_NEVER_SEEN if damage else Reason.NOT_IN_STORE)
            known = {topic for each in findings.results for topic in each.topics}
            known.update(queue.topic for queue in self._store.view().queues())
            known.update(self._store.topics.names)
            reason[~self._keys.of_topics(known & self._keys.topics)] = order.index(Reason.TOPIC_NEVER_SEEN)
        for result in findings.results:
            reason[_places(self._stage, result, COLLISION)] = order.index(Reason.HASH_COLLISIONS_ONLY)
        reason[findings.removed] = order.index(Reason.REMOVED_BY_RETENTION)
        reason[findings.damaged] = order.index(Reason.RECORD_DAMAGED)
        for result in findings.results:
            reason[_places(self._stage, result, DAMAGED)] = order.index(Reason.RECORD_DAMAGED)
        missed = self._keys.in_order[~hits[self._keys.in_order]]
        return [(order[code], missed[reason[missed] == code]) for code in np.unique(reason[missed]).tolist()]


def _places(stage: DurableDirectory, result: LookupResult, outcome: int) -> Ints:
    """Return the places of the pairs with an outcome: HIT, COLLISION or DAMAGED. Hits are in the order of the part's rows."""
    if result.outcomes is None:
        return np.zeros(0, np.int32)
    rows = MappedFile(stage.path(result.outcomes)).data.view(OUTCOME)
    numbers: Ints = rows["place"][rows["outcome"] == outcome].astype(np.int32)
    return numbers


def _descends(offsets: Longs) -> bool:
    """Return whether an offset is less than the one before it."""
    return any((np.diff(offsets[low : low + OFFSETS_AT_ONCE + 1]) < 0).any() for low in range(0, len(offsets), OFFSETS_AT_ONCE))


def _kept_parts(results: Sequence[LookupResult], counts: Sequence[int], selected: Mask) -> list[tuple[PartFile, Mask | None]]:
    """Return the parts that have rows to keep, each with the mask of these rows, or None for all.

    counts: of the rows of each part; selected: over the rows of all parts.
    """
    parts: list[tuple[PartFile, Mask | None]] = []
    at = 0
    for result, count in zip(results, counts, strict=True):
        mask = selected[at : at + count]
        at += count
        if result.part is not None and mask.any():
            parts.append((result.part, None if mask.all() else mask))
    return parts
