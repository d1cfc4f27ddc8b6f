"""Export: the message table of a store as files, with lineage, in a new directory.

    OUT/part-00000.parquet …       one file per split (and per partition), messages in physical order
    OUT/_mqstore_export.json       run id, columns, selection, every file with its rows and bytes; it marks a complete export

Formats iceberg and delta are Parquet files with table metadata beside them (`mqstore.jobs.lakehouse`).

Tasks write the files themselves: two to four times as fast as Spark's writer, since no body passes through the JVM.
The columns `physical_offset`, `store_file` and `verdict` are always included, and Parquet files carry the run id and the
store's path in their metadata, so that a row can be traced to its bytes. OUT appears under its name when it is complete. The
finished work of a killed run can be resumed (`mqstore.jobs.resume`).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.errors import PipelineError, UsageError
from mqstore.files.durable import DurableDirectory, NewDirectory
from mqstore.files.location import check_outside, local_target
from mqstore.findings import Coverage, Damage, SkippedRange, merge_adjacent
from mqstore.jobs.lakehouse import TABLE_FORMATS, check_table_format, make_table
from mqstore.jobs.report import ExportReport, Progress
from mqstore.jobs.resume import ExportWork, export_and_record, work_directory
from mqstore.jobs.runner import Runner, choose_runner, open_for
from mqstore.rocketmq.scan.splits import Split, bytes_to_read, plan
from mqstore.rocketmq.store.export import LINEAGE, ExportTask, empty_part, export_split
from mqstore.rocketmq.store.split_reader import ReadTask, overlapping, token_of
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.table.columns import ROCKETMQ_COLUMNS, Selection, check_columns
from mqstore.table.row_files import FORMATS, PartFile, TaskOutput
from mqstore.table.text import columns_for
from mqstore.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANIFEST = "_mqstore_export.json"
ALL_FORMATS = (*FORMATS, *TABLE_FORMATS)
MODES = ("PERMISSIVE", "FAILFAST")
_NOT_FOR_PATHS = frozenset({"body", "keys", "properties"})


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
    if format not in ALL_FORMATS:
        raise UsageError(f"there is no export format {format!r}; the formats are {', '.join(ALL_FORMATS)}")
    if mode not in MODES:
        raise UsageError(f"there is no mode {mode!r}; give {' or '.join(MODES)}")
    by = check_columns(partition_by)
    refused = [name for name in by if name in _NOT_FOR_PATHS]
    if refused:
        raise UsageError(f"the values of {refused[0]} cannot name directories; choose other columns to partition by")
    if format in TABLE_FORMATS:
        check_table_format(format, Path(os.path.abspath(to)), by)
    default = columns_for("base64") if format in ("jsonl", "csv") else ROCKETMQ_COLUMNS
    chosen = check_columns(dict.fromkeys((*(default if columns is None else columns), *LINEAGE, *by)))
    store = open_for(store, config, spark=spark, master=master)
    choice = choose_runner(store.path, partial(bytes_to_read, store.log), spark=spark, master=master, threads=threads)
    wanted = _export_identity(store, format, chosen, by, selection)
    local_target(to)
    check_outside(to, store.path)
    new = NewDirectory(to)
    with work_directory(new.target, resume=resume, wanted=wanted) as work, new as target:
        run = _ExportRun(store, target, work, wanted, selection, splits, mode == "FAILFAST", progress)
        with choice.runner(spark) as runner:
            return run.on(runner, choice.why)


class _ExportRun:
    """One run."""

    def __init__(
        self,
        store: RocketMQStore,
        target: NewDirectory,
        work: ExportWork,
        wanted: dict[str, Any],
        selection: Selection,
        splits: int | None,
        fail_fast: bool,
        progress: Progress | None,
    ) -> None:
        self.store = store
        self.target = target
        self.work = work
        self.wanted = wanted
        self.format: str = wanted["format"]
        self.columns: tuple[str, ...] = tuple(wanted["columns"])
        self.partition_by: tuple[str, ...] = tuple(wanted["partition_by"])
        self.selection = selection
        self.splits = splits
        self.fail_fast = fail_fast
        self.progress = progress
        self.run_id = secrets.token_hex(8) if work.resumed_plan is None else str(work.resumed_plan["run_id"])
        self.metadata = (("mqstore.run_id", self.run_id), ("mqstore.store", str(store.path)), ("mqstore.version", __version__))

    def on(self, runner: Runner, why: str) -> ExportReport:
        started = time.perf_counter()
        pieces = self._pieces(runner)
        total = sum(split.stop - split.start for split in pieces)
        tasks = self._tasks(pieces)
        if self.selection.limit is None:
            outcomes = self._each(runner, tasks, total)
        else:
            outcomes = self._limited(tasks)
        parts = [part for outcome in outcomes for part in outcome.parts]
        if not parts:
            # a reader of the directory finds the columns even if there are no rows
            parts = [empty_part(self._tasks([Split(0, 0, 0)])[0])]
        report = self._report(outcomes, parts, total, time.perf_counter() - started)
        if self.fail_fast and report.damage:
            first = report.damage[0]
            raise PipelineError(
                f"{len(report.damage)} ranges of the log are damaged, the first at {first.offset} of {first.file}: {first.detail}; "
                "export without mode FAILFAST to get the rest"
            )
        self._move_parts(parts)
        if self.format in TABLE_FORMATS:
            make_table(self.format, self.target.directory.root, self.target.target, report.files)
        if self.progress is not None:
            self.progress(total, total)
        self.target.directory.write_small(MANIFEST, self._manifest(report, parts))
        self.target.publish()
        return replace(report, seconds=time.perf_counter() - started, runs_on=runner.name, why=why)

    def _pieces(self, runner: Runner) -> list[Split]:
        """Return the splits: those of the resumed plan, else as many as suit the runner."""
        found = self.work.resumed_plan
        if found is not None:
            if self.splits is not None and self.splits != found["asked_splits"]:
                raise UsageError(
                    f"the work to resume has other splits; omit --splits, or omit --resume to start over at {self.target.target}"
                )
            return [Split(*split) for split in found["splits"]]
        pieces = overlapping(plan(self.store.log, count=self.splits, tasks=4 * runner.width), self.selection)
        splits = [[split.number, split.start, split.stop] for split in pieces]
        self.work.write_plan({**self.wanted, "run_id": self.run_id, "asked_splits": self.splits, "splits": splits})
        return pieces

    def _each(self, runner: Runner, tasks: Sequence[ExportTask], total: int) -> list[TaskOutput]:
        """Return the outcomes of all splits; only unfinished ones are written."""
        known = {task.read.split.number: done for task in tasks if (done := self.work.done(task.read.split.number)) is not None}
        missing = [task for task in tasks if task.read.split.number not in known]

        def finish(number: int) -> None:
            if self.progress is not None:
                self.progress(total * (len(known) + number) // max(1, len(tasks)), total)

        fresh = runner.each(missing, partial(export_and_record, export_split), finish)
        written = {task.read.split.number: outcome for task, outcome in zip(missing, fresh, strict=True)}
        return [(written | known)[task.read.split.number] for task in tasks]

    def _tasks(self, pieces: Sequence[Split]) -> list[ExportTask]:
        token = token_of(self.store.log)
        selection = replace(self.selection, limit=None)
        return [
            ExportTask(
                ReadTask(self.store.place, self.store.config, token, split, self.columns, selection),
                str(self.work.path),
                "parquet" if self.format in TABLE_FORMATS else self.format,
                self.partition_by,
                self.metadata,
            )
            for split in pieces
        ]

    def _limited(self, tasks: Sequence[ExportTask]) -> list[TaskOutput]:
        """Export one split after the other until the limit is reached: the first messages in physical order."""
        outcomes = []
        left = self.selection.limit or 0
        for task in tasks:
            if left <= 0:
                break
            outcomes.append(export_split(replace(task, limit=left)))
            left -= outcomes[-1].rows
        return outcomes

    def _move_parts(self, parts: Sequence[PartFile]) -> None:
        """Move the parts that count to their names. Leftovers of lost attempts stay in the work directory and are removed with it."""
        new = self.target.directory
        with DurableDirectory(self.target.target.parent) as parent:
            for part in parts:
                new.make_directory(part.name.rpartition("/")[0])
                parent.rename(f"{self.work.path.name}/{part.staged}", f"{new.root.name}/{part.name}")

    def _report(self, outcomes: Sequence[TaskOutput], parts: Sequence[PartFile], log_bytes: int, seconds: float) -> ExportReport:
        damage: list[Damage] = [item for outcome in outcomes for item in outcome.damage]
        damage.extend(self.store.log.findings)
        untold = sum(outcome.damage_untold for outcome in outcomes)
        merged = merge_adjacent(damage)
        return ExportReport(
            store=str(self.store.path),
            to=str(self.target.target),
            format=self.format,
            run_id=self.run_id,
            log_bytes=log_bytes,
            messages=sum(outcome.rows for outcome in outcomes),
            files=tuple(part.name for part in parts),
            bytes=sum(part.bytes for part in parts),
            seconds=seconds,
            damage=tuple(merged),
            coverage=Coverage(tuple(SkippedRange(item.file, item.offset, item.length, str(item.kind)) for item in merged)),
            notes=(f"{untold} further findings are not listed individually",) if untold else (),
        )

    def _manifest(self, report: ExportReport, parts: Sequence[PartFile]) -> bytes:
        document: dict[str, Any] = {
            "run_id": self.run_id,
            "mqstore": __version__,
            "store": report.store,
            "format": self.format,
            "columns": list(self.columns),
            "partition_by": list(self.partition_by),
            "selection": self.wanted["selection"],
            "messages": report.messages,
            "log_bytes": report.log_bytes,
            "files": [{"name": part.name, "rows": part.rows, "bytes": part.bytes} for part in parts],
            "coverage": report.coverage.as_dict(),
        }
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _export_identity(
    store: RocketMQStore, file_format: str, columns: Sequence[str], partition_by: Sequence[str], selection: Selection
) -> dict[str, Any]:
    """Return what identifies an export: everything that decides which bytes are written."""
    chosen = {name: _as_json(value) for name, value in asdict(selection).items() if value is not None}
    return {
        "store": str(store.path),
        "format": file_format,
        "columns": list(columns),
        "partition_by": list(partition_by),
        "selection": chosen,
        "log": token_of(store.log),
    }


def _as_json(value: Any) -> Any:
    """Return a condition of a selection as a JSON value."""
    if isinstance(value, frozenset):
        return sorted(value)
    return value.pattern.decode("utf-8", "backslashreplace") if isinstance(value, re.Pattern) else value
