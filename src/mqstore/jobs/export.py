"""Export: the message table of a store as files, with lineage, in a new directory.

    OUT/part-00000.parquet …       one file per split (and per partition), messages in physical order; of RabbitMQ one per group of
                                   queues or part of a large one, in the order of the table
    OUT/_mqstore_export.json       run id, columns, selection, every file with its rows and bytes; it marks a complete export

Formats iceberg and delta are Parquet files with table metadata beside them (`mqstore.jobs.lakehouse`).

Tasks write the files themselves: two to four times as fast as Spark's writer, since no body passes through the JVM.
The columns of `LINEAGE` or `QUEUE_LINEAGE` are always included, and Parquet files carry the run id and the
store's path in their metadata, so that a row can be traced to its bytes. OUT appears under its name when it is complete. The
finished work of a killed run can be resumed (`mqstore.jobs.resume`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mqstore.errors import PipelineError, UsageError
from mqstore.files.durable import DurableDirectory, NewDirectory
from mqstore.files.location import Url, check_outside, local_target
from mqstore.findings import Coverage, Damage, Kind, SkippedRange, merge_adjacent
from mqstore.jobs.lakehouse import TABLE_FORMATS, check_table_format, make_table
from mqstore.jobs.report import ExportReport, Progress
from mqstore.jobs.resume import ExportWork, StagedTask, export_and_record, work_directory
from mqstore.jobs.runner import MODES, Runner, choose_runner, open_for
from mqstore.rabbitmq.store import task_groups
from mqstore.rabbitmq.store.task_groups import QueueGroup
from mqstore.rocketmq.scan.planned_files import files_seen, token_of
from mqstore.rocketmq.scan.splits import Split, bytes_to_read, check_count, plan
from mqstore.rocketmq.store.log_site import notes_on_rows
from mqstore.rocketmq.store.split_reader import LINEAGE, ExportTask, ReadTask, empty_part, export_split, overlapping
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.table.columns import (
    RABBITMQ_COLUMNS,
    ROCKETMQ_COLUMNS,
    QueueSelection,
    Selection,
    check_columns,
    check_rabbitmq_columns,
    rabbitmq_schema,
)
from mqstore.table.formatting import count
from mqstore.table.row_files import FORMATS, PartFile, PartFiles, TaskOutput
from mqstore.table.text import columns_for, rabbitmq_columns_for, rename_properties_json
from mqstore.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from mqstore.rabbitmq.store.store import RabbitMQStore

MANIFEST = "_mqstore_export.json"
ALL_FORMATS = (*FORMATS, *TABLE_FORMATS)
QUEUE_LINEAGE = ("store_file", "position", "verdict")
_NOT_FOR_PATHS = frozenset({"body", "keys", "properties"})
_QUEUE_NOT_FOR_PATHS = frozenset({"payload", "payload_b64", "properties", "properties_json", "routing_keys"})

T = TypeVar("T", bound=StagedTask)


def export(
    store: str | os.PathLike[str] | RocketMQStore,
    to: str | os.PathLike[str],
    *,
    format: str = "parquet",  # noqa: A002
    columns: Sequence[str] | None = None,
    selection: Selection = Selection(),
    partition_by: Sequence[str] = (),
    spark: SparkSession | None = None,
    master: str | None = None,
    threads: int | None = None,
    splits: int | None = None,
    mode: str = "PERMISSIVE",
    resume: bool = False,
    config: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write the selected messages of a store to files in the new directory `to`.

    format: parquet, jsonl or csv; or iceberg or delta, which are Parquet with table metadata. jsonl and csv hold rows as the command
    `messages` prints them, with bodies in base64.
    columns: of the message table, all by default; the lineage columns are added. partition_by: one directory per value.
    spark: a session to run on. master: start one there. threads: run in threads of this process. Without any of them the size of the log
    decides (`mqstore.jobs.runner`).
    mode: FAILFAST: damage in the log fails the job; PERMISSIVE: it is skipped and reported.
    resume: continue the work of a killed run of the same export, and keep finished work if this run ends early.
    progress: called with (bytes of log read, bytes of log to read).
    Raises TargetError if `to` exists or cannot be written, UsageError, and PipelineError if Spark cannot run.
    """
    if mode not in MODES:
        raise UsageError(f"there is no mode {mode!r}; give {' or '.join(MODES)}")
    by = check_columns(partition_by)
    _check_request(format, to, by, _NOT_FOR_PATHS)
    default = columns_for("base64") if format in ("jsonl", "csv") else ROCKETMQ_COLUMNS
    chosen = check_columns(dict.fromkeys((*(default if columns is None else columns), *LINEAGE, *by)))
    store = open_for(store, config, spark=spark, master=master)
    choice = choose_runner(store.path, partial(bytes_to_read, store.log), spark=spark, master=master, threads=threads)
    identity = _identity(store.path, format, chosen, by, _conditions(selection), token_of(store.log))
    with _new_export(store.path, to, resume, identity) as (target, work):
        run = _LogExport(store, target, work, identity, selection, splits, mode == "FAILFAST", progress)
        with choice.runner(spark) as runner:
            return run.on(runner, choice.why)


# runs


@contextlib.contextmanager
def _new_export(
    path: Path | Url, to: str | os.PathLike[str], resume: bool, identity: Mapping[str, Any]
) -> Iterator[tuple[NewDirectory, ExportWork]]:
    """Yield the target, and the directory to work in. Raises TargetError and UsageError."""
    local_target(to)
    check_outside(to, path)
    new = NewDirectory(to)
    with work_directory(new.target, resume=resume, identity=identity) as work, new as target:
        yield target, work


class _ExportRun(Generic[T]):
    """One run. A subclass knows how the store of its family is split, read and reported. limit: maximum number of messages."""

    family = ""

    def __init__(
        self,
        target: NewDirectory,
        work: ExportWork,
        identity: dict[str, Any],
        limit: int | None,
        splits: int | None,
        progress: Progress | None,
    ) -> None:
        self.target = target
        self.work = work
        self.identity = identity
        self.limit = limit
        self.splits = splits
        self.progress = progress
        self.format: str = identity["format"]
        self.columns: tuple[str, ...] = tuple(identity["columns"])
        self.partition_by: tuple[str, ...] = tuple(identity["partition_by"])
        self.file_format = "parquet" if self.format in TABLE_FORMATS else self.format
        self.run_id = secrets.token_hex(8) if work.resumed_plan is None else str(work.resumed_plan["run_id"])
        self.metadata = (("mqstore.run_id", self.run_id), ("mqstore.store", str(identity["store"])), ("mqstore.version", __version__))

    def tasks(self, runner: Runner) -> tuple[list[T], int]:
        """Return the tasks, those of the resumed plan or as many as suit the runner, and what there is to do, as progress counts it."""
        raise NotImplementedError

    def writer(self) -> Callable[[T], TaskOutput]:
        """Return the function of the tasks."""
        raise NotImplementedError

    def limited(self, task: T, limit: int) -> T:
        """Return a task that writes at most `limit` messages."""
        raise NotImplementedError

    def empty_part(self) -> PartFile:
        """Write a file without rows, with the columns of the others."""
        raise NotImplementedError

    def report(self, report: ExportReport, outcomes: Sequence[TaskOutput], total: int) -> ExportReport:
        """Return the report with what was read and what is damaged. Raises PipelineError if damage is not to be exported."""
        raise NotImplementedError

    def on(self, runner: Runner, why: str) -> ExportReport:
        started = time.perf_counter()
        tasks, total = self.tasks(runner)
        outcomes = self._each(runner, tasks, total) if self.limit is None else list(self._limited(tasks, self.limit))
        # a reader of the directory finds the columns even if there are no rows
        parts = [part for outcome in outcomes for part in outcome.parts] or [self.empty_part()]
        report = ExportReport(
            store=str(self.identity["store"]),
            to=str(self.target.target),
            format=self.format,
            run_id=self.run_id,
            log_bytes=0,
            messages=sum(outcome.rows for outcome in outcomes),
            files=tuple(part.name for part in parts),
            bytes=sum(part.bytes for part in parts),
            seconds=0.0,
            runs_on=runner.name,
            why=why,
        )
        report = self.report(report, outcomes, total)
        self._move_parts(parts)
        if self.format in TABLE_FORMATS:
            make_table(self.format, self.target.directory.root, self.target.target, report.files)
        if self.progress is not None:
            self.progress(total, total)
        self.target.directory.write_small(MANIFEST, self._manifest(report, parts))
        self.target.publish()
        return replace(report, seconds=time.perf_counter() - started)

    def resumed_splits(self) -> Any:
        """Return the splits of the plan that is resumed; None for a new one. Raises UsageError if others are asked for."""
        known = self.work.resumed_plan
        if known is None:
            return None
        if self.splits is not None and self.splits != known["asked_splits"]:
            raise UsageError(f"the work to resume has other splits; omit --splits, or omit --resume to start over at {self.target.target}")
        return known["splits"]

    def write_plan(self, splits: Any) -> None:
        """Record what is exported, before the first part is written."""
        self.work.write_plan({**self.identity, "run_id": self.run_id, "asked_splits": self.splits, "splits": splits})

    def _each(self, runner: Runner, tasks: Sequence[T], total: int) -> list[TaskOutput]:
        """Return the outcomes of all tasks; only those are run that are not done yet."""
        known = {task.number: done for task in tasks if (done := self.work.done(task.number)) is not None}
        missing = [task for task in tasks if task.number not in known]

        def finish(number: int) -> None:
            if self.progress is not None:
                self.progress(total * (len(known) + number) // max(1, len(tasks)), total)

        fresh = runner.each(missing, partial(export_and_record, self.writer()), finish)
        written = {task.number: outcome for task, outcome in zip(missing, fresh, strict=True)}
        return [(written | known)[task.number] for task in tasks]

    def _limited(self, tasks: Sequence[T], left: int) -> Iterator[TaskOutput]:
        """Run one task after the other until the limit is reached: the first messages in the order of the table."""
        write = self.writer()
        for task in tasks:
            if left <= 0:
                return
            outcome = write(self.limited(task, left))
            left -= outcome.rows
            yield outcome

    def _move_parts(self, parts: Sequence[PartFile]) -> None:
        """Move the parts that count to their names. Leftovers of lost attempts stay in the work directory and are removed with it."""
        new = self.target.directory
        with DurableDirectory(self.target.target.parent) as parent:
            for part in parts:
                new.make_directory(part.name.rpartition("/")[0])
                parent.rename(f"{self.work.path.name}/{part.staged}", f"{new.root.name}/{part.name}")

    def _manifest(self, report: ExportReport, parts: Sequence[PartFile]) -> bytes:
        is_log = self.family == "rocketmq"
        document: dict[str, Any] = {
            "run_id": self.run_id,
            "mqstore": __version__,
            "store": report.store,
            **({} if is_log else {"family": self.family}),
            "format": self.format,
            "columns": list(self.columns),
            "partition_by": list(self.partition_by),
            "selection": self.identity["selection"],
            "messages": report.messages,
            **({"log_bytes": report.log_bytes} if is_log else {}),
            "files": [{"name": part.name, "rows": part.rows, "bytes": part.bytes} for part in parts],
            "coverage": report.coverage.as_dict(),
        }
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _check_request(file_format: str, to: str | os.PathLike[str], partition_by: Sequence[str], refused: frozenset[str]) -> None:
    """Check what is asked for. refused: columns whose values cannot name directories. Raises UsageError."""
    if file_format not in ALL_FORMATS:
        raise UsageError(f"there is no export format {file_format!r}; the formats are {', '.join(ALL_FORMATS)}")
    for name in partition_by:
        if name in refused:
            raise UsageError(f"the values of {name} cannot name directories; choose other columns to partition by")
    if file_format in TABLE_FORMATS:
        check_table_format(file_format, Path(os.path.abspath(to)), partition_by)


def _identity(
    path: Path | Url, file_format: str, columns: Sequence[str], partition_by: Sequence[str], selection: Mapping[str, Any], token: str
) -> dict[str, Any]:
    """Return what identifies an export: everything that decides which bytes are written. token: of the files that are read."""
    return {
        "store": str(path),
        "format": file_format,
        "columns": list(columns),
        "partition_by": list(partition_by),
        "selection": selection,
        "log": token,
    }


def _conditions(selection: Selection | QueueSelection) -> dict[str, Any]:
    """Return the conditions of a selection as JSON."""
    return {name: _as_json(value) for name, value in asdict(selection).items() if value not in (None, ())}


def _as_json(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    return value.pattern.decode("utf-8", "backslashreplace") if isinstance(value, re.Pattern) else value


def _without(damage: Iterable[Damage]) -> Coverage:
    """Return the coverage of a read that skipped these ranges."""
    return Coverage(tuple(SkippedRange(item.file, item.offset, item.length, str(item.kind)) for item in damage))


# RocketMQ


class _LogExport(_ExportRun[ExportTask]):
    """An export of a RocketMQ store, split by split."""

    family = "rocketmq"

    def __init__(
        self,
        store: RocketMQStore,
        target: NewDirectory,
        work: ExportWork,
        identity: dict[str, Any],
        selection: Selection,
        splits: int | None,
        fail_fast: bool,
        progress: Progress | None,
    ) -> None:
        super().__init__(target, work, identity, selection.limit, splits, progress)
        self.store = store
        self.selection = selection
        self.fail_fast = fail_fast

    def tasks(self, runner: Runner) -> tuple[list[ExportTask], int]:
        known = self.resumed_splits()
        if known is None:
            pieces = overlapping(plan(self.store.log, count=self.splits, tasks=4 * runner.width), self.selection)
            self.write_plan([[split.number, split.start, split.stop] for split in pieces])
        else:
            pieces = [Split(*split) for split in known]
        return [self._task(split) for split in pieces], sum(split.stop - split.start for split in pieces)

    def _task(self, split: Split) -> ExportTask:
        selection = replace(self.selection, limit=None)
        seen = files_seen(self.store.log, split.start, split.stop)
        return ExportTask(
            ReadTask(self.store.place, self.store.config, self.identity["log"], split, self.columns, selection, seen),
            str(self.work.path),
            self.file_format,
            self.partition_by,
            self.metadata,
        )

    def writer(self) -> Callable[[ExportTask], TaskOutput]:
        return export_split

    def limited(self, task: ExportTask, limit: int) -> ExportTask:
        return replace(task, limit=limit)

    def empty_part(self) -> PartFile:
        return empty_part(self._task(Split(0, 0, 0)))

    def report(self, report: ExportReport, outcomes: Sequence[TaskOutput], total: int) -> ExportReport:
        damage = merge_adjacent([*(item for outcome in outcomes for item in outcome.damage), *self.store.log.findings])
        if self.fail_fast and damage:
            first = damage[0]
            damaged = f"{count(len(damage), 'range')} of the log {'is' if len(damage) == 1 else 'are'} damaged"
            raise PipelineError(
                f"{damaged}, the first at {first.offset} of {first.file}: {first.detail}; export without mode FAILFAST to get the rest"
            )
        untold = sum(outcome.damage_untold for outcome in outcomes)
        notes = [f"{untold} further findings are not listed individually"] if untold else []
        notes += notes_on_rows(self.store)
        return replace(report, log_bytes=total, damage=tuple(damage), coverage=_without(damage), notes=tuple(notes))


# RabbitMQ


@dataclass(frozen=True, slots=True)
class QueueExportTask:
    """Write the selected messages of one group of queues. since, until: bounds of the AMQP timestamp, in milliseconds."""

    root: str
    token: str
    group: QueueGroup
    columns: tuple[str, ...]
    selection: QueueSelection
    since: int | None
    until: int | None
    stage: str
    format: str
    partition_by: tuple[str, ...]
    metadata: tuple[tuple[str, str], ...]
    names: tuple[tuple[str, str], ...] = ()
    now: int | None = None

    @property
    def number(self) -> int:
        return self.group.number


def export_group(task: QueueExportTask) -> TaskOutput:
    """Write the selected messages of one group. The same rows in the same order on every attempt."""
    rows = 0
    with DurableDirectory(task.stage) as stage:
        files = PartFiles(stage, task.number, task.format, task.partition_by, task.metadata)
        for batch in _batches(task):
            rows += batch.num_rows
            files.add(batch if task.format == "parquet" else rename_properties_json(batch))
        return TaskOutput(files.finish(), rows, (), 0)


def _batches(task: QueueExportTask) -> Iterator[pa.RecordBatch]:
    store = task_groups.open_cached(task.root, task.token, task.now, task.names)
    if task.since is None and task.until is None:
        return task_groups.read_group(store, task.group, task.columns, task.selection)
    asked = tuple(dict.fromkeys((*task.columns, "properties")))
    batches = task_groups.read_group(store, task.group, asked, replace(task.selection, limit=None))
    within = task_groups.filter_by_time(batches, task.since, task.until, task.selection.limit)
    return (batch.select(list(task.columns)) for batch in within)


def export_queues(
    store: RabbitMQStore,
    to: str | os.PathLike[str],
    *,
    format: str = "parquet",  # noqa: A002
    columns: Sequence[str] | None = None,
    selection: QueueSelection = QueueSelection(),
    since: int | None = None,
    until: int | None = None,
    partition_by: Sequence[str] = (),
    spark: SparkSession | None = None,
    master: str | None = None,
    threads: int | None = None,
    splits: int | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Write the selected messages of a store to files in the new directory `to`; arguments as for `export`.

    progress: called with (parts of the store written, parts).
    Raises TargetError when `to` exists or cannot be written, UsageError, PipelineError when Spark cannot run.
    """
    check_count(splits)
    by = check_rabbitmq_columns(partition_by)
    _check_request(format, to, by, _QUEUE_NOT_FOR_PATHS)
    choice = choose_runner(store.path, partial(task_groups.stored_bytes, store), spark=spark, master=master, threads=threads)
    default = rabbitmq_columns_for("base64") if format in ("jsonl", "csv") else RABBITMQ_COLUMNS
    chosen = check_rabbitmq_columns(dict.fromkeys((*(default if columns is None else columns), *QUEUE_LINEAGE, *by)))
    bounds = {name: value for name, value in (("since", since), ("until", until), ("at", store.now)) if value is not None}
    token = task_groups.files_token(store)
    identity = _identity(store.path, format, chosen, by, _conditions(selection) | bounds, token)
    with _new_export(store.path, to, resume, identity) as (target, work):
        run = _QueueExport(store, target, work, identity, selection, (since, until), splits, progress)
        with choice.runner(spark) as runner:
            return run.on(runner, choice.why)


class _QueueExport(_ExportRun[QueueExportTask]):
    """An export of a RabbitMQ store, one task per group of queues."""

    family = "rabbitmq"

    def __init__(
        self,
        store: RabbitMQStore,
        target: NewDirectory,
        work: ExportWork,
        identity: dict[str, Any],
        selection: QueueSelection,
        times: tuple[int | None, int | None],
        splits: int | None,
        progress: Progress | None,
    ) -> None:
        super().__init__(target, work, identity, selection.limit, splits, progress)
        self.store = store
        self.selection = selection
        self.task = QueueExportTask(
            str(store.directory.root), identity["log"], QueueGroup(0, (), (), 0), self.columns, selection, *times, str(work.path),
            self.file_format, self.partition_by, self.metadata, store.names, store.now,
        )  # fmt: skip

    def tasks(self, runner: Runner) -> tuple[list[QueueExportTask], int]:
        known = self.resumed_splits()
        count = (self.splits or 4 * runner.width) if known is None else int(known)
        if known is None:
            self.write_plan(count)
        tasks = [replace(self.task, group=group) for group in task_groups.plan_queues(self.store, count, self.selection)]
        return tasks, len(tasks)

    def writer(self) -> Callable[[QueueExportTask], TaskOutput]:
        return export_group

    def limited(self, task: QueueExportTask, limit: int) -> QueueExportTask:
        return replace(task, selection=replace(task.selection, limit=limit))

    def empty_part(self) -> PartFile:
        import pyarrow as pa

        batch = pa.RecordBatch.from_pylist([], rabbitmq_schema(self.columns))
        with DurableDirectory(self.task.stage) as stage:
            files = PartFiles(stage, 0, self.file_format, metadata=self.metadata)
            files.add(batch if self.file_format == "parquet" else rename_properties_json(batch))
            return files.finish()[0]

    def report(self, report: ExportReport, outcomes: Sequence[TaskOutput], total: int) -> ExportReport:
        damage = self.store.findings
        logs = (place for place in ("quorum", "stream") if self.store.directory.is_directory(place))
        places = (*(vhost.place.place for vhost in self.store.vhosts), *logs)
        size = sum(entry.size for place in places for _, entry in self.store.directory.walk(place))
        return replace(report, log_bytes=size, damage=damage, coverage=_without(item for item in damage if item.kind is Kind.UNREADABLE))
