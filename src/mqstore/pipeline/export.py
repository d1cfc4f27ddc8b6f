"""Export: the message table of a store as Parquet, JSON lines or CSV files, with lineage.

    splits --write_split--> files under a name of the attempt's own      tasks, one per split
           --collect------> part-00000.parquet, part-00001.parquet, …    renamed by the driver, only those of counted attempts
           --publish------> _mqstore_export.json last, all synced, one rename of the whole directory

Tasks write their files themselves: rows never pass through the JVM. Every file holds the lineage columns `store_file`,
`physical_offset` and `verdict`; the run id stands in the metadata of a Parquet file and in the manifest.
"""

from __future__ import annotations

import csv
import io
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import mqstore
from mqstore.errors import UsageError
from mqstore.files.durable import DurableDirectory, DurableFile, NewDirectory
from mqstore.findings import Coverage, Damage, Kind, Skipped, merge_adjacent
from mqstore.messages import ROCKETMQ_COLUMNS, Selection, check_columns, rocketmq_schema
from mqstore.pipeline.plan import Runner, SparkRunner, ThreadRunner
from mqstore.pipeline.report import ExportReport, Progress
from mqstore.rocketmq.columns import RecordColumns
from mqstore.rocketmq.commitlog import EndOfFile, Records
from mqstore.rocketmq.reader import RocketMQStore
from mqstore.rocketmq.splits import LEAD, Split, SplitWalk, log_bytes, plan
from mqstore.rocketmq.table import batch_of, select
from mqstore.rows import columns_for, csv_rows, json_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["FORMATS", "LINEAGE", "export"]

FORMATS = ("parquet", "jsonl", "csv")
LINEAGE = ("physical_offset", "store_file", "verdict")
MANIFEST = "_mqstore_export.json"

BUFFER = 64 << 20  # bytes of rows gathered before they are written
ROWS_PER_GROUP = 100_000
OPEN_PARTS = 128  # files a task of a partitioned export keeps open
_ATTEMPTS = ".attempts"
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_DAY_MS = 86_400_000

_UNREAD = frozenset({Kind.BAD_FRAME, Kind.BAD_LENGTHS, Kind.BAD_OFFSET, Kind.TORN_RECORD, Kind.ZEROED, Kind.MISSING_FILE, Kind.UNREADABLE})


@dataclass(frozen=True, slots=True)
class ExportTask:
    """Write the messages of one split. stage: the directory of the run, which a task never makes."""

    store: str
    config: str | None
    stage: str
    run: str
    split: Split
    format: str
    columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    selection: Selection


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """path: below the stage; place: directory in the target, empty or of partition values; rows, bytes: of the file."""

    path: str
    place: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Outcome of one task."""

    split: Split
    rows: int
    files: tuple[WrittenFile, ...]
    damage: tuple[Damage, ...]


def export(
    store_path: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    format: str = "parquet",  # noqa: A002
    columns: Sequence[str] | None = None,
    partition_by: Sequence[str] = (),
    selection: Selection = Selection(),
    spark: SparkSession | None = None,
    master: str = "local[*]",
    splits: int | None = None,
    in_process_threads: int | None = None,
    config: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write the selected messages of a store into the new directory `to`. The store itself is not changed.

    columns: of the message table, all by default; the lineage columns are always there. JSON lines and CSV hold rows in the form
    of `mqstore messages`, bodies as base64. partition_by: a directory per value; store_timestamp gives one per day (UTC).
    spark: a session to run on; else one is started on `master`. in_process_threads: run in threads of this process instead.
    progress: told (bytes of log read, bytes of log in all). Raises TargetError, UsageError, PipelineError.
    """
    if format not in FORMATS:
        raise UsageError(f"there is no export format {format!r}; the formats are {', '.join(FORMATS)}")
    for name in check_columns(partition_by):
        if name in ("body", "keys", "properties"):
            raise UsageError(f"column {name!r} cannot be partitioned by: its values make no directory names")
    store = mqstore.open(store_path, config=config)
    names = _columns(format, columns)
    with NewDirectory(to) as target:
        if in_process_threads is not None:
            return _Export(store, config, target, format, names, partition_by, selection).run(
                ThreadRunner(in_process_threads), splits, progress
            )
        from mqstore.pipeline.session import running

        with running(master, spark=spark) as started:
            return _Export(store, config, target, format, names, partition_by, selection).run(SparkRunner(started), splits, progress)


def _columns(format: str, columns: Sequence[str] | None) -> tuple[str, ...]:  # noqa: A002
    """The columns to write: those asked for with the lineage behind them, in the JSON form for text formats."""
    if columns is None:
        return ROCKETMQ_COLUMNS if format == "parquet" else columns_for("base64")
    names = check_columns(dict.fromkeys(columns))
    return (*names, *(name for name in LINEAGE if name not in names))


class _Export:
    """One run."""

    def __init__(
        self,
        store: RocketMQStore,
        config: str | os.PathLike[str] | None,
        target: NewDirectory,
        format: str,  # noqa: A002
        columns: tuple[str, ...],
        partition_by: Sequence[str],
        selection: Selection,
    ) -> None:
        self.store = store
        self.config = None if config is None else os.path.abspath(config)
        self.target = target
        self.format = format
        self.columns = columns
        self.partition_by = tuple(partition_by)
        self.selection = selection
        self.run_id = secrets.token_hex(8)
        self.files: list[WrittenFile] = []
        self.names: list[str] = []
        self.damage: list[Damage] = list(store.log.findings)
        self.rows = 0

    def run(self, runner: Runner, count: int | None, progress: Progress | None) -> ExportReport:
        started = time.perf_counter()
        splits = self._splits(runner, count)
        total = sum(split.stop - split.start for split in splits) if splits else 0
        read = min(total, log_bytes(self.store.log))
        done = None if progress is None else _progress_of(progress, splits, total)
        self.target.directory.make_directory(_ATTEMPTS)
        task = ExportTask(
            str(self.store.directory.root),
            self.config,
            str(self.target.directory.root),
            self.run_id,
            Split(0, 0, 0),
            self.format,
            self.columns,
            self.partition_by,
            self.selection,
        )
        for result in runner.each([replace(task, split=split) for split in splits], write_split, done):
            self._take(result)
        self.target.directory.remove_tree(_ATTEMPTS)
        if not self.files:
            self._write_empty()
        report = self._report(read, time.perf_counter() - started)
        self.target.directory.write_small(MANIFEST, json.dumps(report.as_dict(), indent=1).encode())
        self.target.publish()
        return replace(report, seconds=time.perf_counter() - started)

    def _splits(self, runner: Runner, count: int | None) -> list[Split]:
        """The splits that can hold selected messages; a single one where only so many rows are wanted, in order."""
        chosen = self.selection
        if chosen.limit is not None:
            count = 1
        return [
            split
            for split in plan(self.store.log, count=count, tasks=2 * runner.width)
            if (chosen.to_offset is None or split.start < chosen.to_offset)
            and (chosen.from_offset is None or split.stop > chosen.from_offset)
        ]

    def _take(self, result: ExportResult) -> None:
        """Give the files of a counted attempt their names."""
        self.rows += result.rows
        self.damage.extend(result.damage)
        again: Counter[str] = Counter()
        for file in result.files:
            number = again[file.place]  # a place that was closed to make room and opened again
            again[file.place] += 1
            name = f"{file.place}part-{result.split.number:05d}{f'-{number}' if number else ''}.{self.format}"
            self.target.directory.make_directory(file.place.rstrip("/"))
            self.target.directory.rename(file.path, name)
            self.files.append(file)
            self.names.append(name)

    def _write_empty(self) -> None:
        """One file without rows, so that what reads the directory finds its columns."""
        name = f"part-00000.{self.format}"
        with self.target.directory.open_new(name) as file:
            _SINKS[self.format](file, self.columns, self.run_id).close()
            self.names.append(name)
            self.files.append(WrittenFile(name, "", 0, file.size))

    def _report(self, read: int, seconds: float) -> ExportReport:
        damage = tuple(merge_adjacent(self.damage))
        return ExportReport(
            store=str(self.store.path),
            to=str(self.target.target),
            format=self.format,
            run_id=self.run_id,
            log_bytes=read,
            messages=self.rows,
            files=tuple(self.names),
            bytes=sum(file.bytes for file in self.files),
            seconds=seconds,
            damage=damage,
            coverage=Coverage(
                tuple(Skipped(item.file, item.offset, item.length, str(item.kind)) for item in damage if item.kind in _UNREAD)
            ),
        )


def _progress_of(progress: Progress, splits: Sequence[Split], total: int) -> Callable[[int], None]:
    def done(finished: int) -> None:
        progress(total * finished // max(1, len(splits)), total)

    return done


# what a task does

_opened: dict[str, RocketMQStore] = {}


def _store_of(task: ExportTask) -> RocketMQStore:
    """The store of a run, opened once per process: workers are used again."""
    found = _opened.get(task.run)
    if found is None:
        _opened.clear()
        found = _opened[task.run] = mqstore.open(task.store, config=task.config)
    return found


def write_split(task: ExportTask) -> ExportResult:
    """Write the selected messages of one split into files of this attempt's own."""
    store = _store_of(task)
    damage: list[Damage] = []
    rows = 0
    with DurableDirectory(task.stage) as stage, _Parts(stage, task) as parts:
        for columns in _selected(store, task, damage):
            rows += len(columns)
            parts.write(store, columns)
        files = parts.finish()
    return ExportResult(task.split, rows, files, tuple(damage))


def _selected(store: RocketMQStore, task: ExportTask, damage: list[Damage]) -> Iterator[RecordColumns]:
    """The selected records of a split, run by run. Damage goes to the list, as far as it lies in the range that was asked for."""
    import numpy as np

    chosen = task.selection
    left = chosen.limit
    for event in SplitWalk(store.log, task.split, lead=LEAD):
        if isinstance(event, EndOfFile):
            continue
        if not isinstance(event, Records):
            damage.append(event)
            continue
        columns = RecordColumns(event)
        mask = select(columns, chosen)
        if left is not None:
            mask[np.flatnonzero(mask)[left:]] = False
            left -= int(mask.sum())
        if mask.any():
            yield columns.take(mask)
        if left == 0:
            return


class Sink(Protocol):
    """Writes batches of rows into one file."""

    milliseconds: bool

    def write(self, batches: Sequence[pa.RecordBatch]) -> None: ...
    def close(self) -> None: ...


class ParquetSink:
    """Zstandard level 1; no dictionary and no statistics for bodies, which repeat nothing."""

    milliseconds = False

    def __init__(self, file: DurableFile, columns: Sequence[str], run: str) -> None:
        import pyarrow.parquet as pq

        self._schema = rocketmq_schema(columns).with_metadata({"mqstore.run_id": run, "mqstore.version": mqstore.__version__})
        plain = [name for name in columns if name not in ("body", "uniq_key", "msg_id", "body_sha256")]
        self._writer = pq.ParquetWriter(
            file, self._schema, compression="zstd", compression_level=1, use_dictionary=plain, write_statistics=plain
        )

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_batches(batches).cast(self._schema), row_group_size=ROWS_PER_GROUP)

    def close(self) -> None:
        self._writer.close()


class JsonSink:
    """One JSON object a line, as `mqstore messages -o jsonl --body base64` prints it."""

    milliseconds = True

    def __init__(self, file: DurableFile, columns: Sequence[str], run: str) -> None:
        self._file = file

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        for batch in batches:
            self._file.write(("\n".join(json_rows(batch, "base64")) + "\n").encode("utf-8", "replace"))

    def close(self) -> None:
        """Nothing is held back."""


class CsvSink:
    """A header, then a line a row; empty cells for null."""

    milliseconds = True

    def __init__(self, file: DurableFile, columns: Sequence[str], run: str) -> None:
        self._file = file
        self._write_lines([tuple(columns)])

    def _write_lines(self, rows: Sequence[tuple[Any, ...]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._file.write(text.getvalue().encode("utf-8", "replace"))

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        for batch in batches:
            self._write_lines(list(csv_rows(batch, "base64")))

    def close(self) -> None:
        """Nothing is held back."""


_SINKS: dict[str, Callable[[DurableFile, Sequence[str], str], Sink]] = {"parquet": ParquetSink, "jsonl": JsonSink, "csv": CsvSink}


@dataclass(slots=True)
class _Part:
    """One file under way, and the rows gathered for it."""

    path: str
    place: str
    file: DurableFile
    sink: Sink
    batches: list[pa.RecordBatch]
    gathered: int = 0
    rows: int = 0


class _Parts:
    """The files of one attempt: one, or one per combination of partition values."""

    def __init__(self, stage: DurableDirectory, task: ExportTask) -> None:
        self._stage = stage
        self._task = task
        self._attempt = f"{_ATTEMPTS}/{secrets.token_hex(8)}"
        self._open: dict[str, _Part] = {}
        self._written: list[WrittenFile] = []
        # a partition's values stand in the directory's name, not in the file
        inside = tuple(name for name in task.columns if name not in task.partition_by or name == "store_timestamp")
        self._columns = inside

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *problem: object) -> None:
        for part in self._open.values():
            part.file.close()

    def write(self, store: RocketMQStore, columns: RecordColumns) -> None:
        """Add the rows of a run of records to their files."""
        for place, rows in self._by_place(store, columns):
            part = self._open.get(place)
            if part is None:
                if len(self._open) >= OPEN_PARTS:
                    self._finish(next(iter(self._open)))
                part = self._begin(place)
            view = store.view()
            batch = batch_of(rows, self._columns, store.log, view.queue_or_none, milliseconds=part.sink.milliseconds)
            part.batches.append(batch)
            part.gathered += batch.nbytes
            part.rows += batch.num_rows
            if part.gathered >= BUFFER // max(1, len(self._open) // 4):
                self._flush(part)

    def _by_place(self, store: RocketMQStore, columns: RecordColumns) -> Iterator[tuple[str, RecordColumns]]:
        import numpy as np

        if not self._task.partition_by:
            yield "", columns
            return
        view = store.view()
        values = batch_of(columns, self._task.partition_by, store.log, view.queue_or_none, milliseconds=True).to_pylist()
        places = np.array([_place(row) for row in values], dtype=object)
        for place in dict.fromkeys(places.tolist()):
            yield place, columns.take(places == place)

    def _begin(self, place: str) -> _Part:
        path = f"{self._attempt}/{len(self._written) + len(self._open):06d}"
        file = self._stage.open_new(path)
        part = self._open[place] = _Part(path, place, file, _SINKS[self._task.format](file, self._columns, self._task.run), [])
        return part

    def _flush(self, part: _Part) -> None:
        if part.batches:
            part.sink.write(part.batches)
            part.batches = []
            part.gathered = 0

    def _finish(self, place: str) -> None:
        part = self._open.pop(place)
        self._flush(part)
        part.sink.close()
        part.file.sync()
        self._written.append(WrittenFile(part.path, place, part.rows, part.file.size))
        part.file.close()

    def finish(self) -> tuple[WrittenFile, ...]:
        """Close all files; which there are."""
        for place in list(self._open):
            self._finish(place)
        return tuple(self._written)


def _place(row: dict[str, Any]) -> str:
    """The directory of a row's partition values, as Hive and Spark name it: `topic=orders/queue_id=0/`."""
    parts = []
    for name, value in row.items():
        if name == "store_timestamp":
            day = value // _DAY_MS * _DAY_MS
            name, value = "store_day", time.strftime("%Y-%m-%d", time.gmtime(day // 1000)) if 0 <= day < 253402300800000 else None
        text = _NO_VALUE if value is None else quote(str(value).lower() if isinstance(value, bool) else str(value), safe=" ,;@!()[]+")
        parts.append(f"{name}={text}/")
    return "".join(parts)
