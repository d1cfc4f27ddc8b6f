"""Export: the message table of a store as files, with lineage, in a new directory.

    OUT/part-00000.parquet …       one file per split (and per partition), messages in physical order
    OUT/_mqstore_export.json       run id, columns, selection, every file with its rows and bytes: the mark of a whole export

Tasks write the files themselves: two to four times as fast as Spark's own writer, since no body passes through the JVM.
The columns `physical_offset`, `store_file` and `verdict` are always there, and Parquet files carry the run id and the
store's path in their metadata, so that a row can be traced to its bytes. OUT appears under its name when it is whole.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import mqstore
from mqstore.errors import UsageError
from mqstore.files.durable import DurableDirectory, NewDirectory
from mqstore.findings import Coverage, Damage, Skipped, merge_adjacent
from mqstore.messages import ROCKETMQ_COLUMNS, Selection, check_columns
from mqstore.pipeline.plan import Runner, SparkRunner, ThreadRunner, new_directory
from mqstore.pipeline.report import ExportReport, Progress
from mqstore.rocketmq.export import FORMATS, LINEAGE, Exported, ExportTask, Part, empty_part, export_split
from mqstore.rocketmq.reader import RocketMQStore
from mqstore.rocketmq.reading import ReadTask, overlapping, token_of
from mqstore.rocketmq.splits import Split, plan
from mqstore.rows import columns_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MANIFEST", "export"]

MANIFEST = "_mqstore_export.json"
_NO_PATH = frozenset({"body", "keys", "properties"})


def export(
    store_path: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    format: str = "parquet",  # noqa: A002
    columns: Sequence[str] | None = None,
    selection: Selection = Selection(),
    partition_by: Sequence[str] = (),
    spark: SparkSession | None = None,
    master: str = "local[*]",
    in_process_threads: int | None = None,
    splits: int | None = None,
    config: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write the selected messages of a store to files in the new directory `to`.

    format: parquet, jsonl or csv; the last two hold rows as the command `messages` prints them, bodies in base64.
    columns: of the message table, by default all; the lineage columns are added. partition_by: a directory per value.
    spark: a session to run on; else one is started on `master`. in_process_threads: run in threads of this process instead.
    progress: told (bytes of log read, bytes of log to read).
    Raises TargetError when `to` exists or cannot be written, UsageError, PipelineError when Spark cannot run.
    """
    if format not in FORMATS:
        raise UsageError(f"there is no export format {format!r}; the formats are {', '.join(FORMATS)}")
    by = check_columns(partition_by)
    refused = [name for name in by if name in _NO_PATH]
    if refused:
        raise UsageError(f"the values of {refused[0]} cannot name directories; choose other columns to partition by")
    default = ROCKETMQ_COLUMNS if format == "parquet" else columns_for("base64")
    chosen = check_columns(dict.fromkeys((*(default if columns is None else columns), *LINEAGE, *by)))
    store = mqstore.open(store_path, config=config)
    with new_directory(to, store.path) as target:
        run = _Export(store, target, format, chosen, selection, by, splits, progress)
        if in_process_threads is not None:
            return run.on(ThreadRunner(in_process_threads))
        from mqstore.pipeline.session import running

        with running(master, spark=spark) as started:
            return run.on(SparkRunner(started))


class _Export:
    """One run."""

    def __init__(
        self,
        store: RocketMQStore,
        target: NewDirectory,
        file_format: str,
        columns: tuple[str, ...],
        selection: Selection,
        partition_by: tuple[str, ...],
        splits: int | None,
        progress: Progress | None,
    ) -> None:
        self.store = store
        self.target = target
        self.format = file_format
        self.columns = columns
        self.selection = selection
        self.partition_by = partition_by
        self.splits = splits
        self.progress = progress
        self.run_id = secrets.token_hex(8)
        self.metadata = (("mqstore.run_id", self.run_id), ("mqstore.store", str(store.path)), ("mqstore.version", mqstore.__version__))

    def on(self, runner: Runner) -> ExportReport:
        started = time.perf_counter()
        pieces = overlapping(plan(self.store.log, count=self.splits, tasks=4 * runner.width), self.selection)
        total = sum(split.stop - split.start for split in pieces)
        name = self.target.target.name
        with NewDirectory(self.target.target.with_name(f"{name[:80]}.mqstore-work")) as scratch:
            tasks = self._tasks(pieces, str(scratch.directory.root))
            if self.selection.limit is None:
                done = None if self.progress is None else self._progress_of(self.progress, pieces, total)
                outcomes = list(runner.each(tasks, export_split, done))
            else:
                outcomes = self._limited(tasks)
            parts = [part for outcome in outcomes for part in outcome.parts]
            if not parts:
                # a reader of the directory finds the columns also when there is nothing in them
                parts = [empty_part(self._tasks([Split(0, 0, 0)], str(scratch.directory.root))[0])]
            self._gather(scratch.directory, parts)
        if self.progress is not None:
            self.progress(total, total)
        report = self._report(outcomes, parts, total, time.perf_counter() - started)
        self.target.directory.write_small(MANIFEST, self._manifest(report, parts))
        self.target.publish()
        return replace(report, seconds=time.perf_counter() - started)

    def _tasks(self, pieces: Sequence[Split], stage: str) -> list[ExportTask]:
        token = token_of(self.store.log)
        selection = replace(self.selection, limit=None)
        return [
            ExportTask(
                ReadTask(str(self.store.path), self.store.config, token, split, self.columns, selection),
                stage,
                self.format,
                self.partition_by,
                self.metadata,
            )
            for split in pieces
        ]

    def _limited(self, tasks: Sequence[ExportTask]) -> list[Exported]:
        """One split after the other until there are enough messages: the first ones in physical order."""
        outcomes = []
        left = self.selection.limit or 0
        for task in tasks:
            if left <= 0:
                break
            outcomes.append(export_split(replace(task, limit=left)))
            left -= outcomes[-1].rows
        return outcomes

    def _progress_of(self, progress: Progress, pieces: Sequence[Split], total: int) -> Callable[[int], None]:
        def done(finished: int) -> None:
            progress(total * finished // max(1, len(pieces)), total)

        return done

    def _gather(self, scratch: DurableDirectory, parts: Sequence[Part]) -> None:
        """Give the files that count their names. What lost attempts have left stays behind and is removed."""
        new = self.target.directory
        with DurableDirectory(self.target.target.parent) as parent:
            for part in parts:
                new.make_directory(part.name.rpartition("/")[0])
                parent.rename(f"{scratch.root.name}/{part.staged}", f"{new.root.name}/{part.name}")

    def _report(self, outcomes: Sequence[Exported], parts: Sequence[Part], log_bytes: int, seconds: float) -> ExportReport:
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
            coverage=Coverage(tuple(Skipped(item.file, item.offset, item.length, str(item.kind)) for item in merged)),
            notes=(f"{untold} further findings are not told one by one",) if untold else (),
        )

    def _manifest(self, report: ExportReport, parts: Sequence[Part]) -> bytes:
        chosen = {name: value for name, value in asdict(self.selection).items() if value is not None}
        document: dict[str, Any] = {
            "run_id": self.run_id,
            "mqstore": mqstore.__version__,
            "store": report.store,
            "format": self.format,
            "columns": list(self.columns),
            "partition_by": list(self.partition_by),
            "selection": {name: _plain(value) for name, value in chosen.items()},
            "messages": report.messages,
            "log_bytes": report.log_bytes,
            "files": [{"name": part.name, "rows": part.rows, "bytes": part.bytes} for part in parts],
            "coverage": report.coverage.as_dict(),
        }
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _plain(value: Any) -> Any:
    """A condition of a selection as JSON can hold it."""
    if isinstance(value, frozenset):
        return sorted(value)
    return value.pattern.decode("utf-8", "backslashreplace") if isinstance(value, re.Pattern) else value
