"""Export of RabbitMQ stores: the message table as files with lineage in a new directory, one task per group of queues.

    OUT/part-00000.parquet …       one file per group of whole queues (and per partition), rows in the order of the table
    OUT/_mqstore_export.json       run id, columns, selection, every file with its rows and bytes: the mark of a complete export

As for RocketMQ (`mqstore.jobs.export`), tasks write the files, the columns `store_file`, `position` and `verdict` are always
included, OUT appears when it is complete, and a killed run can be resumed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.errors import UsageError
from mqstore.files.durable import DurableDirectory, NewDirectory
from mqstore.files.location import check_outside, local_target
from mqstore.findings import Coverage, Kind, SkippedRange
from mqstore.jobs.export import MANIFEST
from mqstore.jobs.lakehouse import TABLE_FORMATS, check_table_format, make_table
from mqstore.jobs.report import ExportReport, Progress
from mqstore.jobs.resume import ExportWork, export_and_record, work_directory
from mqstore.jobs.runner import Runner, choose_runner
from mqstore.rabbitmq.store import task_groups
from mqstore.rabbitmq.store.task_groups import QueueGroup
from mqstore.table.columns import RABBITMQ_COLUMNS, QueueSelection, check_rabbitmq_columns, rabbitmq_schema
from mqstore.table.row_files import FORMATS, PartFile, PartFiles, TaskOutput
from mqstore.table.text import rabbitmq_columns_for, rename_properties_json
from mqstore.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from mqstore.rabbitmq.store.store import RabbitMQStore

LINEAGE = ("store_file", "position", "verdict")
_NOT_FOR_PATHS = frozenset({"payload", "payload_b64", "properties", "properties_json", "routing_keys"})


@dataclass(frozen=True, slots=True)
class ExportTask:
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


def export_group(task: ExportTask) -> TaskOutput:
    """Write the selected messages of one group. The same rows in the same order on every attempt."""
    rows = 0
    with DurableDirectory(task.stage) as stage:
        files = PartFiles(stage, task.number, task.format, task.partition_by, task.metadata)
        for batch in _batches(task):
            rows += batch.num_rows
            files.add(batch if task.format == "parquet" else rename_properties_json(batch))
        return TaskOutput(files.finish(), rows, (), 0)


def _batches(task: ExportTask) -> Iterator[pa.RecordBatch]:
    store = task_groups.open_cached(task.root, task.token, task.now, task.names)
    if task.since is None and task.until is None:
        return task_groups.read_group(store, task.group, task.columns, task.selection)
    asked = tuple(dict.fromkeys((*task.columns, "properties")))
    found = task_groups.read_group(store, task.group, asked, replace(task.selection, limit=None))
    within = task_groups.filter_by_time(found, task.since, task.until, task.selection.limit)
    return (batch.select(list(task.columns)) for batch in within)


def export(
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
    """Write the selected messages of a store to files in the new directory `to`; arguments as for `mqstore.jobs.export.export`.

    progress: called with (parts of the store written, parts).
    Raises TargetError when `to` exists or cannot be written, UsageError, PipelineError when Spark cannot run.
    """
    if format not in (*FORMATS, *TABLE_FORMATS):
        raise UsageError(f"there is no export format {format!r}; the formats are {', '.join((*FORMATS, *TABLE_FORMATS))}")
    if splits is not None and splits < 1:
        raise UsageError(f"the number of splits must be at least 1 (got {splits})")
    by = check_rabbitmq_columns(partition_by)
    refused = [name for name in by if name in _NOT_FOR_PATHS]
    if refused:
        raise UsageError(f"the values of {refused[0]} cannot name directories; choose other columns to partition by")
    if format in TABLE_FORMATS:
        check_table_format(format, Path(os.path.abspath(to)), by)
    choice = choose_runner(store.path, partial(task_groups.stored_bytes, store), spark=spark, master=master, threads=threads)
    default = rabbitmq_columns_for("base64") if format in ("jsonl", "csv") else RABBITMQ_COLUMNS
    chosen = check_rabbitmq_columns(dict.fromkeys((*(default if columns is None else columns), *LINEAGE, *by)))
    told = {name: _as_json(value) for name, value in asdict(selection).items() if value is not None}
    told |= {name: value for name, value in (("since", since), ("until", until), ("at", store.now)) if value is not None}
    token = task_groups.files_token(store)
    wanted = {
        "store": str(store.path), "format": format, "columns": list(chosen), "partition_by": list(by), "selection": told, "log": token,
    }  # fmt: skip
    local_target(to)
    check_outside(to, store.path)
    new = NewDirectory(to)
    with work_directory(new.target, resume=resume, wanted=wanted) as work, new as target:
        run_id = secrets.token_hex(8) if work.resumed_plan is None else str(work.resumed_plan["run_id"])
        metadata = (("mqstore.run_id", run_id), ("mqstore.store", str(store.path)), ("mqstore.version", __version__))
        file_format = "parquet" if format in TABLE_FORMATS else format
        task = ExportTask(
            str(store.directory.root), token, QueueGroup(0, (), (), 0), chosen, selection, since, until, str(work.path), file_format, by,
            metadata, store.names, store.now,
        )  # fmt: skip
        run = _ExportRun(store, target, work, wanted, run_id, task, splits, progress)
        with choice.runner(spark) as runner:
            return run.on(runner, choice.why)


@dataclass(slots=True)
class _ExportRun:
    """One run. task: the fields common to all tasks."""

    store: RabbitMQStore
    target: NewDirectory
    work: ExportWork
    wanted: dict[str, Any]
    run_id: str
    task: ExportTask
    splits: int | None
    progress: Progress | None

    def on(self, runner: Runner, why: str) -> ExportReport:
        started = time.perf_counter()
        tasks = self._tasks(runner)
        outcomes = self._each(runner, tasks) if self.task.selection.limit is None else list(self._limited(tasks))
        parts = [part for outcome in outcomes for part in outcome.parts]
        if not parts:
            parts = [self._empty_part()]
        report = self._report(sum(outcome.rows for outcome in outcomes), parts, time.perf_counter() - started)
        new = self.target.directory
        with DurableDirectory(self.target.target.parent) as parent:
            for part in parts:
                new.make_directory(part.name.rpartition("/")[0])
                parent.rename(f"{self.work.path.name}/{part.staged}", f"{new.root.name}/{part.name}")
        if self.wanted["format"] in TABLE_FORMATS:
            make_table(self.wanted["format"], new.root, self.target.target, report.files)
        if self.progress is not None:
            self.progress(len(tasks), len(tasks))
        new.write_small(MANIFEST, self._manifest(report, parts))
        self.target.publish()
        return replace(report, seconds=time.perf_counter() - started, runs_on=runner.name, why=why)

    def _tasks(self, runner: Runner) -> list[ExportTask]:
        """Return the tasks: with the splits of the work to resume, else some for each worker."""
        found = self.work.resumed_plan
        if found is not None and self.splits not in (None, found["asked_splits"]):
            raise UsageError(f"the work to resume has other splits; omit --splits, or omit --resume to start over at {self.target.target}")
        count = (self.splits or 4 * runner.width) if found is None else int(found["splits"])
        if found is None:
            self.work.write_plan({**self.wanted, "run_id": self.run_id, "asked_splits": self.splits, "splits": count})
        return [replace(self.task, group=group) for group in task_groups.plan_queues(self.store, count, self.task.selection)]

    def _each(self, runner: Runner, tasks: Sequence[ExportTask]) -> list[TaskOutput]:
        """Return the outcomes of all groups; writes only those that are not done yet."""
        known = {task.number: done for task in tasks if (done := self.work.done(task.number)) is not None}
        missing = [task for task in tasks if task.number not in known]

        def finish(number: int) -> None:
            if self.progress is not None:
                self.progress(len(known) + number, len(tasks))

        fresh = runner.each(missing, partial(export_and_record, export_group), finish)
        written = {task.number: outcome for task, outcome in zip(missing, fresh, strict=True)}
        return [(written | known)[task.number] for task in tasks]

    def _limited(self, tasks: Sequence[ExportTask]) -> Iterator[TaskOutput]:
        """Write group after group until the limit is reached, and yield the outcomes."""
        left = self.task.selection.limit or 0
        for task in tasks:
            if left <= 0:
                return
            outcome = export_group(replace(task, selection=replace(task.selection, limit=left)))
            left -= outcome.rows
            yield outcome

    def _empty_part(self) -> PartFile:
        """Return a file without rows, with the columns of the others."""
        import pyarrow as pa

        batch = pa.RecordBatch.from_pylist([], rabbitmq_schema(self.task.columns))
        with DurableDirectory(self.task.stage) as stage:
            files = PartFiles(stage, 0, self.task.format, metadata=self.task.metadata)
            files.add(batch if self.task.format == "parquet" else rename_properties_json(batch))
            return files.finish()[0]

    def _report(self, rows: int, parts: Sequence[PartFile], seconds: float) -> ExportReport:
        damage = self.store.findings
        return ExportReport(
            store=str(self.store.path),
            to=str(self.target.target),
            format=self.wanted["format"],
            run_id=self.run_id,
            log_bytes=sum(entry.size for vhost in self.store.vhosts for _, entry in self.store.directory.walk(vhost.place.place)),
            messages=rows,
            files=tuple(part.name for part in parts),
            bytes=sum(part.bytes for part in parts),
            seconds=seconds,
            damage=damage,
            coverage=Coverage(
                tuple(SkippedRange(item.file, item.offset, item.length, str(item.kind)) for item in damage if item.kind is Kind.UNREADABLE)
            ),
        )

    def _manifest(self, report: ExportReport, parts: Sequence[PartFile]) -> bytes:
        document: dict[str, Any] = {
            "run_id": self.run_id,
            "mqstore": __version__,
            "store": report.store,
            "family": "rabbitmq",
            "format": report.format,
            "columns": self.wanted["columns"],
            "partition_by": self.wanted["partition_by"],
            "selection": self.wanted["selection"],
            "messages": report.messages,
            "files": [{"name": part.name, "rows": part.rows, "bytes": part.bytes} for part in parts],
            "coverage": report.coverage.as_dict(),
        }
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _as_json(value: Any) -> Any:
    """Return a condition of a selection as a JSON value."""
    if isinstance(value, frozenset):
        return sorted(value)
    return value.pattern.decode("utf-8", "backslashreplace") if isinstance(value, re.Pattern) else value
