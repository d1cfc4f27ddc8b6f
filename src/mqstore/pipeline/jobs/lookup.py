"""Lookup: many keys at once, each with its messages or the reason why it has none.

    keys file --> asked keys by hash, one file in the stage that all tasks map
    index     --> probe or sweep --> candidates --> records compared         for the log that sound index files cover
    log       --> scan --> records compared                                  for the rest, which may be all of it
              --> parts in log order, then a row per miss --> renamed into place

The plan is the one with the least work (`mqstore.rocketmq.lookup.lookup_plan`); the report says which was taken, and the figures it was
chosen by. All plans give the same rows in the same order, for any number of splits: hits in log order, the keys of one record in
the order of the file; then the misses in that order.

An index file that leads an asked key to a record without it is not believed any more, and its stretch of log is read instead.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import PipelineError, UsageError
from mqstore.files import MappedFile
from mqstore.files.durable import DurableDirectory, NewDirectory, NewFile
from mqstore.files.location import check_outside, local_target
from mqstore.findings import Coverage, Kind, Skipped, merge_adjacent
from mqstore.opening import open_rocketmq
from mqstore.pipeline.jobs.lookup_answer import MANIFEST, Answer, LookupReport
from mqstore.pipeline.jobs.report import Progress
from mqstore.pipeline.spark.runner import Runner, SparkRunner, ThreadRunner
from mqstore.rocketmq.lookup import lookup_plan
from mqstore.rocketmq.lookup.key_set import Asked, read_keys
from mqstore.rocketmq.lookup.lookup_plan import CANDIDATE, Costs, Interval, Plan
from mqstore.rocketmq.lookup.lookup_tasks import (
    DAMAGED,
    HIT,
    NEAR,
    TOLD,
    FetchTask,
    Look,
    LookedUp,
    ScanTask,
    SearchResult,
    SearchTask,
    damage_sentence,
    fetch_range,
    scan_range,
    search_index,
)
from mqstore.rocketmq.lookup.reason import Reason
from mqstore.rocketmq.scan.splits import Split, log_bytes, plan
from mqstore.rocketmq.store.split_reader import token_of
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.table.columns import ROCKETMQ_COLUMNS, check_columns
from mqstore.table.parts import Part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MANIFEST", "LookupReport", "lookup"]

MODES = ("PERMISSIVE", "FAILFAST")
_UNUSABLE = frozenset({Kind.WRONG_SIZE, Kind.UNREADABLE})  # of an index file
IN_DRIVER = 64 << 20  # bytes of log that are read sooner than a Spark task has started
FETCHED = 20_000  # candidates of one task at the most

Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]


def lookup(
    store_path: str | os.PathLike[str],
    keys: str | os.PathLike[str] | Sequence[tuple[str, str]],
    to: str | os.PathLike[str],
    *,
    by: str = "auto",
    columns: Sequence[str] | None = None,
    max_per_key: int | None = None,
    mode: str = "PERMISSIVE",
    spark: SparkSession | None = None,
    master: str | None = None,
    in_process_threads: int | None = None,
    splits: int | None = None,
    config: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> LookupReport:
    """Write the messages that have the asked keys, and the reason for each key without one, to `to`.

    keys: a file of topics and keys (`rocketmq.askedkeys`), or the pairs.
    to: a new directory of Parquet files, or a new `.parquet` or `.jsonl` file.
    by: auto, probe, sweep or scan. columns: of the message table, by default all. max_per_key: the newest so many messages of each key.
    mode: PERMISSIVE skips damage and tells it, FAILFAST ends the job at it.
    spark, master: run on Spark; without them in threads of this process, `in_process_threads` or one a core.
    A session is never started for probing alone.
    progress: told (bytes of log read, bytes of log to read).
    Raises TargetError when `to` exists or cannot be written, UsageError, CannotOpenError, PipelineError.
    """
    if mode.upper() not in MODES:
        raise UsageError(f"there is no mode {mode!r}; the modes are {' and '.join(MODES)}")
    if max_per_key is not None and max_per_key < 1:
        raise UsageError(f"at most {max_per_key} messages of a key are none; ask for one or more")
    lookup_plan.choose(by, Costs(0, 0, 0, 0, 0), ())
    chosen = tuple(name for name in check_columns(ROCKETMQ_COLUMNS if columns is None else columns) if name != "topic")  # it is as asked
    local_target(to)
    target = _target(to)
    begun = time.perf_counter()
    asked = read_keys(keys) if isinstance(keys, str | os.PathLike) else Asked.of(keys)
    store = open_rocketmq(store_path, config=config)
    check_outside(to, store.path)
    with target, NewDirectory(target.target.with_name(f"{target.target.name[:80]}.mqstore-work")) as scratch:
        run = _Lookup(store, asked, target, scratch.directory, by, chosen, max_per_key, mode.upper() == "FAILFAST", splits, progress)
        run.started = begun
        run.survey()
        local = in_process_threads is not None or (spark is None and master is None)
        if local or (run.plan is Plan.PROBE and run.costs.uncovered_bytes <= IN_DRIVER):
            return run.on(ThreadRunner(in_process_threads or len(os.sched_getaffinity(0))))
        from mqstore.pipeline.spark.session import running

        waiting = time.perf_counter()
        with running(master or "local[*]", spark=spark) as started:
            run.started += time.perf_counter() - waiting
            return run.on(SparkRunner(started))


def _target(to: str | os.PathLike[str]) -> NewDirectory | NewFile:
    suffix = Path(to).suffix.lower()
    if suffix in (".json", ".csv", ".tsv", ".txt"):
        raise UsageError(f"{to}: answers are written as Parquet (a directory, or a .parquet file) or as a .jsonl file; choose such a name")
    return NewFile(to) if suffix in (".parquet", ".jsonl") else NewDirectory(to)


class _Lookup:
    """One run: `survey` chooses the plan, `on` carries it out."""

    def __init__(
        self,
        store: RocketMQStore,
        asked: Asked,
        target: NewDirectory | NewFile,
        stage: DurableDirectory,
        by: str,
        columns: tuple[str, ...],
        max_per_key: int | None,
        failfast: bool,
        splits: int | None,
        progress: Progress | None,
    ) -> None:
        self.store = store
        self.asked = asked
        self.target = target
        self.stage = stage
        self.by = by
        self.splits = splits
        self.progress = progress
        self.started = 0.0
        name = f"{secrets.token_hex(6)}.asked"
        self.look = Look(
            store=store.place,
            config=store.config,
            token=token_of(store.log),
            stage=str(stage.root),
            asked=str(stage.path(name)),
            columns=columns,
            lines=target.target.suffix.lower() == ".jsonl",
            max_per_key=max_per_key,
            failfast=failfast,
        )
        stage.create(name)
        stage.pwrite(name, 0, asked.to_bytes())
        self.index_bytes = 0
        self.removed = np.zeros(0, np.int64)
        self.notes: list[str] = []

    # which way

    def survey(self) -> None:
        """Look at the index headers and choose."""
        log = self.store.log
        self.whole = plan(log, count=self.splits)
        self.end = self.whole[-1].stop if self.whole else log.start
        files = self.store.index_files() if self.by != Plan.SCAN else ()
        self.files = dict(enumerate(files))
        odd = {item.file: str(item.kind) for item in self.store.findings if item.file.startswith("index/") and item.kind in _UNUSABLE}
        whys = {} if self.by == Plan.SCAN else odd
        for number, file in enumerate(files):
            why = odd.get(file.relative) or lookup_plan.distrust(file)
            if why:
                del self.files[number]
                whys[file.relative] = why
        distrusted = [f"{relative}: {why}" for relative, why in whys.items()]
        rest = self._rest()
        self.costs = Costs(
            keys=len(self.asked),
            files=len(self.files),
            entries=sum(file.index_count - 1 for file in self.files.values()),
            log_bytes=log_bytes(log, self.whole),
            uncovered_bytes=sum(each.stop - each.start for each in rest),
        )
        self.plan, self.why = lookup_plan.choose(self.by, self.costs, distrusted)
        if self.files:
            self.notes.extend(f"{each}; the log is read instead" for each in distrusted if not each.endswith(lookup_plan.EMPTY))
        if self.plan is Plan.SCAN:
            self.files = {}

    def _rest(self) -> list[Interval]:
        return lookup_plan.uncovered(self._covered(), self.store.log.start, self.end)

    def _covered(self) -> list[Interval]:
        return lookup_plan.intervals(list(self.files.values()), self.store.log, self.end)

    # the work

    def on(self, runner: Runner) -> LookupReport:
        if self.look.failfast:
            for item in self.store.log.findings:
                raise PipelineError(damage_sentence(item))
        outcomes = self._by_index(runner)
        outcomes += self._by_scan(runner)
        outcomes.sort(key=lambda each: each.start)
        return self._assemble(outcomes, runner)

    def _by_index(self, runner: Runner) -> list[LookedUp]:
        """Hits that index files lead to. A file that led astray is left out, and the others asked again."""
        if not self.files:
            return []
        candidates = self._candidates(runner)
        while self.files:
            outcomes = list(runner.each(self._fetch_tasks(candidates), fetch_range))
            unsound = frozenset[int]().union(*(each.unsound for each in outcomes))
            if not unsound:
                return outcomes
            # what led to damaged bytes is kept as the reason for a miss
            self.damaged = np.concatenate([self.damaged, *(self._told_of(each, DAMAGED) for each in outcomes)])
            for number in unsound:
                self._leave_out(number, "an entry leads to no record with such a key")
            candidates = candidates[~np.isin(candidates["file"], list(unsound))]
        return []

    damaged: Longs = np.zeros(0, np.int64)

    def _leave_out(self, number: int, why: str) -> None:
        file = self.files.pop(number)
        self.notes.append(f"{file.relative}: {why}; the log is read instead")

    def _candidates(self, runner: Runner) -> NDArray[np.void]:
        """What probing or sweeping yields, those outside the log set apart."""
        tasks = [SearchTask(self.look, number, self.plan) for number in self.files]
        here = runner if runner.shares_memory or self.plan is Plan.SWEEP else ThreadRunner(1)
        found: list[NDArray[np.void]] = [np.empty(0, CANDIDATE)]
        for task, searched in zip(tasks, here.each(tasks, search_index), strict=True):
            self.index_bytes += self._index_bytes(task.number, searched)
            if searched.wrong:
                self._leave_out(task.number, searched.wrong)
            elif searched.staged is not None:
                found.append(MappedFile(self.stage.path(searched.staged)).data.view(CANDIDATE))
        every = np.concatenate(found)
        below = every["physical_offset"] < self.store.log.start
        self.removed = np.unique(self.asked.places(np.unique(every["hash"][below]).astype(np.int32))[1])
        return every[~below]

    def _index_bytes(self, number: int, searched: SearchResult) -> int:
        file = self.files[number]
        return 40 + 4 * file.slot_count + 20 * searched.entries

    def _fetch_tasks(self, candidates: NDArray[np.void]) -> list[FetchTask]:
        """Candidates in log order, cut where covered stretches end and into tasks."""
        order = np.lexsort((candidates["hash"], candidates["physical_offset"]))
        rows = candidates[order]
        name = f"{secrets.token_hex(6)}.candidates"
        self.stage.create(name)
        self.stage.pwrite(name, 0, np.ascontiguousarray(rows).view(np.uint8))
        offsets = rows["physical_offset"].astype(np.int64)
        tasks = []
        for each in self._covered():
            low, high = np.searchsorted(offsets, [each.start, each.stop]).tolist()
            start = each.start
            while low < high:
                cut = min(low + FETCHED, high)
                # the entries of one record stay together
                cut = high if cut == high else int(np.searchsorted(offsets, offsets[cut - 1], "right"))
                tasks.append(FetchTask(self.look, str(self.stage.path(name)), low, cut, start))
                low, start = cut, int(offsets[cut - 1]) + 1
        return tasks

    def _by_scan(self, runner: Runner) -> list[LookedUp]:
        """Hits in what no index file covers."""
        rest = self._rest()
        pieces = [
            replace(split, start=max(split.start, each.start), stop=min(split.stop, each.stop))
            for split in (plan(self.store.log, count=self.splits, tasks=4 * runner.width))
            for each in rest
            if max(split.start, each.start) < min(split.stop, each.stop)
        ]
        self.complete = self.plan is Plan.SCAN or not self._covered()
        total = sum(piece.stop - piece.start for piece in pieces)
        here = ThreadRunner(1) if not runner.shares_memory and total <= IN_DRIVER and self.plan is not Plan.SCAN else runner
        tasks = [ScanTask(self.look, replace(piece, number=number)) for number, piece in enumerate(pieces)]
        done = None if self.progress is None else self._progress_of(self.progress, pieces, total)
        return list(here.each(tasks, scan_range, done))

    def _progress_of(self, progress: Progress, pieces: Sequence[Split], total: int) -> Callable[[int], None]:
        def done(finished: int) -> None:
            progress(total * finished // max(1, len(pieces)), total)

        return done

    # the answer

    def _rows_of(self, outcome: LookedUp) -> NDArray[np.void]:
        if outcome.told is None:
            return np.empty(0, TOLD)
        return MappedFile(self.stage.path(outcome.told)).data.view(TOLD)

    def _told_of(self, outcome: LookedUp, kind: int) -> Longs:
        rows = self._rows_of(outcome)
        places: Longs = rows["place"][rows["outcome"] == kind].astype(np.int64)
        return places

    def _assemble(self, outcomes: Sequence[LookedUp], runner: Runner) -> LookupReport:
        by_part = [self._told_of(each, HIT) for each in outcomes]
        places = np.concatenate([np.zeros(0, np.int64), *by_part])
        kept = np.ones(len(places), np.bool_) if self.look.max_per_key is None else lookup_plan.newest(places, self.look.max_per_key)
        found = np.zeros(len(self.asked), np.bool_)
        found[places] = True
        damage = merge_adjacent([*self.store.log.findings, *(item for each in outcomes for item in each.damage)])
        reasons = self._reasons(outcomes, found, bool(damage))
        parts: list[tuple[Part, Mask | None]] = []
        at = 0
        for outcome, own in zip(outcomes, by_part, strict=True):
            mask = kept[at : at + len(own)]
            at += len(own)
            if outcome.part is not None and mask.any():
                parts.append((outcome.part, None if mask.all() else mask))
        untold = sum(each.damage_untold for each in outcomes)
        if untold:
            self.notes.append(f"{untold} further findings are not told one by one")
        report = LookupReport(
            store=str(self.store.path),
            to=str(self.target.target),
            plan=str(self.plan),
            why=self.why,
            runs_on=runner.name,
            keys=len(self.asked),
            repeated=self.asked.repeated,
            found=int(found.sum()),
            hits=int(kept.sum()),
            cut=int((~kept).sum()),
            misses={str(reason): count for reason in Reason if (count := sum(len(rows) for why, rows in reasons if why is reason))},
            log_bytes=sum(each.bytes for each in outcomes),
            index_bytes=self.index_bytes,
            files=(),
            seconds=0.0,
            damage=tuple(damage),
            coverage=Coverage(tuple(Skipped(item.file, item.offset, item.length, str(item.kind)) for item in damage)),
            notes=tuple(self.notes),
        )
        answer = Answer(self.asked, self.look.columns, self.look.lines, parts, reasons)
        report = replace(report, seconds=time.perf_counter() - self.started)
        files = answer.write(self.target, self.stage, report)
        return replace(report, files=files, seconds=time.perf_counter() - self.started)

    def _reasons(self, outcomes: Sequence[LookedUp], found: Mask, damage: bool) -> list[tuple[Reason, Longs]]:
        """Keys without a message, by rank in the file, cut by reason. The first reason that applies counts."""
        size = len(self.asked)
        reason = np.full(size, -1, np.int8)
        order = list(Reason)
        nothing = Reason.NO_INDEX_ENTRY if not self.complete else Reason.KEY_NEVER_SEEN if damage else Reason.NOT_IN_STORE
        reason[:] = order.index(nothing)
        if self.complete:
            reason[self._of_unknown_topics(outcomes)] = order.index(Reason.TOPIC_NEVER_SEEN)
        for outcome in outcomes:
            reason[self._told_of(outcome, NEAR)] = order.index(Reason.HASH_COLLISIONS_ONLY)
        reason[self.removed] = order.index(Reason.REMOVED_BY_RETENTION)
        for places in (self.damaged, *(self._told_of(outcome, DAMAGED) for outcome in outcomes)):
            reason[places] = order.index(Reason.RECORD_DAMAGED)
        missed = self.asked.in_order[~found[self.asked.in_order]]
        return [(order[code], missed[reason[missed] == code]) for code in np.unique(reason[missed]).tolist()]

    def _of_unknown_topics(self, outcomes: Sequence[LookedUp]) -> Mask:
        import pyarrow as pa
        import pyarrow.compute as pc

        known = {topic for each in outcomes for topic in each.topics}
        known.update(queue.topic for queue in self.store.view().queues())
        known.update(self.store.topics.names)
        mask: Mask = ~pc.is_in(self.asked.topic, pa.array(sorted(known & self.asked.topics), pa.large_string())).to_numpy(
            zero_copy_only=False
        )
        return mask
