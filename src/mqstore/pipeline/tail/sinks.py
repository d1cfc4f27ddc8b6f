"""Where a follow writes: its target directory, and the three ways to put a batch there.

    ParquetSink   tasks write the range's files into a stage; one rename gives them the name batch=N, with their manifest
    StoreSink     the range's bytes are written at the same physical offsets of a copy of the log, and dispatched there
    TableSink     files as those of ParquetSink, added to an Iceberg or Delta table in one commit

All determine from what is on disk whether a batch was already written, so a repeated batch adds nothing.

A table consists of the directories of its batches:

    OUT/batch=0000000000/part-00000.parquet …            as `ParquetSink` writes them
    OUT/metadata/…, catalog.db   or   OUT/_delta_log/…   the table over them; a reader never sees part of a batch

The commit that adds the files of a batch records its number in the same step: as property `mqstore.batch` of an Iceberg table and of
the snapshot, as application transaction `mqstore-follow` of a Delta table. So the table itself records its last batch, and a repeated
batch is not added again. A batch that was written but not added, because a process died in between, is added when the next follow
begins. A table without its metadata is rebuilt from the batches.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from mqstore.errors import TargetError, UsageError
from mqstore.files.durable import DurableDirectory, make_root
from mqstore.files.location import check_outside, check_parent
from mqstore.files.locking import LockedFile, LockHeldError
from mqstore.files.state_file import fields_of, flag, one_of, parse, plain_name, read_state, rows, seal, whole
from mqstore.findings import Damage
from mqstore.jobs.lakehouse import AddedBatch, table_errors
from mqstore.pipeline.source.stream import LogRange, view_of
from mqstore.pipeline.spark.runner import SparkRunner
from mqstore.rocketmq.engine.log_copy import Geometry, LogCopy
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.format.profile import VERSIONS
from mqstore.rocketmq.scan.splits import Split
from mqstore.rocketmq.store.split_reader import ExportTask, ReadTask, export_split
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.table.columns import Selection
from mqstore.table.row_files import TaskOutput
from mqstore.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from mqstore.pipeline.source.stream import LogRange

FORMS = ("store", "parquet", "iceberg", "delta")
STATE = "_mqstore_follow"
MANIFEST = "_manifest.json"


def locked_target(path: Path, state: str, held: str) -> tuple[DurableDirectory, LockedFile]:
    """Return a directory, made if necessary, and the lock of its writer in the directory `state` below it.

    held: what is said of a path that another process has locked. Raises TargetError.
    """
    check_parent(path)
    make_root(path)
    directory = DurableDirectory(path)
    directory.make_directory(state)
    try:
        return directory, LockedFile(directory, f"{state}/lock")
    except LockHeldError:
        directory.close()
        raise TargetError(f"{path} {held}") from None


def discard_stages(directory: DurableDirectory, state: str) -> None:
    """Remove what attempts that died have left below the directory `state`."""
    for stage in directory.path(state).glob("stage-*"):
        directory.discard(f"{state}/{stage.name}")


def read_batch(path: Path) -> dict[str, Any]:
    """Return what a batch directory says that it holds: batch, start, stop, messages, files. Raises TargetError."""
    try:
        manifest = parse(read_state(path) or b"", fields=("batch", "start", "stop", "messages", "files"))
        for name in ("batch", "start", "stop", "messages"):
            whole(manifest, name)
        for each in rows(manifest, "files"):
            file = fields_of(each, ("name", "rows", "bytes"))
            plain_name(file, "name")
            whole(file, "rows")
            whole(file, "bytes")
    except ValueError as error:
        raise TargetError(f"{path} cannot be read ({error}); restore it, or follow into a new target") from None
    return manifest


class FollowOutput:
    """OUT and the state of the follow in it: created or taken over, and locked against another follow."""

    def __init__(self, store: RocketMQStore, path: Path, form: str, columns: Sequence[str]) -> None:
        check_outside(path, store.path)
        self.path = path
        self.state = path / STATE
        asked: dict[str, Any] = {"as": form, "columns": list(columns)} if form != "store" else {"as": form}
        recorded = self._recorded()
        if recorded is None and form == "store":
            asked["geometry"] = Geometry.of(store).as_json()
        held = "is being written by another follow; stop that one, or choose another target"
        self.directory, self._lock = locked_target(path, STATE, held)
        try:
            if recorded is None:
                self.directory.write_small(f"{STATE}/follow.json", seal(asked, indent=2))
            self._compare(recorded or asked, asked)
            discard_stages(self.directory, STATE)
        except BaseException:
            self.close()
            raise
        self._geometry = (recorded or asked).get("geometry")

    @property
    def geometry(self) -> Geometry:
        """Geometry of the copy, as it was when it was begun."""
        assert self._geometry is not None
        return Geometry.from_json(self._geometry)

    def _recorded(self) -> dict[str, Any] | None:
        """Return what an earlier follow recorded; None for a new target. Raises TargetError if OUT is something else."""
        try:
            raw = read_state(self.state / "follow.json")
            if raw is not None:
                return self._validated(parse(raw, fields=("as", "columns", "geometry")))
        except ValueError as error:
            raise TargetError(f"{self.state / 'follow.json'} cannot be read ({error}); choose another target") from None
        if os.path.lexists(self.path) and (not self.path.is_dir() or {entry.name for entry in self.path.iterdir()} - {STATE}):
            raise TargetError(f"{self.path} already exists, and was not created by follow; choose another name")
        return None

    def _validated(self, recorded: dict[str, Any]) -> dict[str, Any]:
        """Check what an earlier follow recorded. Raises ValueError."""
        if one_of(recorded, "as", FORMS) == "store":
            geometry = fields_of(recorded.get("geometry"), [each.name for each in fields(Geometry)])
            for each in fields(Geometry):
                if each.type == "int":
                    whole(geometry, each.name)
                elif each.type == "bool":
                    flag(geometry, each.name)
            one_of(geometry, "version", VERSIONS)
            if not all(isinstance(topic, str) for topic in rows(geometry, "batch_topics")):
                raise ValueError("its batch_topics are not texts")
        elif not all(isinstance(name, str) for name in rows(recorded, "columns")):
            raise ValueError("its columns are not texts")
        return recorded

    def _compare(self, recorded: dict[str, Any], asked: dict[str, Any]) -> None:
        if recorded["as"] != asked["as"]:
            raise UsageError(f"{self.path} is kept as {recorded['as']}; continue with that, or choose another target")
        if recorded.get("columns") != asked.get("columns"):
            raise UsageError(
                f"{self.path} was begun with the columns {','.join(recorded['columns'])}; continue with them, or choose another target"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._lock.close()
        self.directory.close()


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The outcome of a batch. repeated: it was already written."""

    messages: int
    repeated: bool = False
    damage: tuple[Damage, ...] = ()


class FollowSink(Protocol):
    """Writes batches."""

    notes: tuple[str, ...]

    def take(self, number: int, ranges: Sequence[LogRange]) -> BatchOutcome: ...


class StoreSink:
    """Appends to a copy of the log, in this process."""

    def __init__(self, copy: LogCopy, store: RocketMQStore) -> None:
        self._copy = copy
        self._store = store
        self.notes = copy.notes

    def take(self, number: int, ranges: Sequence[LogRange]) -> BatchOutcome:
        stop = ranges[-1].piece.stop
        if self._copy.end >= stop:
            return BatchOutcome(0, repeated=True)
        log = CommitLog(self._store.directory, file_size=self._store.config.commit_log_file_size)
        return BatchOutcome(self._copy.append(log, stop))


@dataclass(frozen=True, slots=True)
class RangeTask:
    """Export one part of a range."""

    part: LogRange
    export: ExportTask


def export_range(task: RangeTask) -> TaskOutput:
    """Write the files of one part of a range, in a task."""
    view_of(task.part)
    return export_split(task.export)


class ParquetSink:
    """Lets tasks write the files of a batch, and moves them to their place with one rename."""

    notes: tuple[str, ...] = ()

    def __init__(self, spark: SparkSession, target: FollowOutput, store: RocketMQStore, columns: tuple[str, ...]) -> None:
        self._runner = SparkRunner(spark)
        self._target = target
        self._store = store
        self._columns = columns

    def take(self, number: int, ranges: Sequence[LogRange]) -> BatchOutcome:
        name = f"batch={number:010d}"
        whole = {"batch": number, "start": ranges[0].piece.start, "stop": ranges[-1].piece.stop}
        directory = self._target.directory
        if directory.exists(name):
            there = read_batch(directory.path(f"{name}/{MANIFEST}"))
            if {key: there[key] for key in whole} != whole:
                raise TargetError(
                    f"{directory.path(name)} holds the log from {there['start']} to {there['stop']}, but the batch of that number extends "
                    f"from {whole['start']} to {whole['stop']}: its checkpoint was removed or belongs to another target; use a new target"
                )
            return BatchOutcome(int(there["messages"]), repeated=True)
        stage = f"{STATE}/stage-{number}-{secrets.token_hex(4)}"
        directory.make_directory(f"{stage}/parts")
        try:
            return self._write(number, ranges, name, stage, whole)
        finally:
            directory.discard(stage)

    def _write(self, number: int, ranges: Sequence[LogRange], name: str, stage: str, manifest: dict[str, Any]) -> BatchOutcome:
        directory = self._target.directory
        metadata = (("mqstore.store", str(self._store.path)), ("mqstore.version", __version__), ("mqstore.batch", str(number)))
        tasks = [
            RangeTask(
                part,
                ExportTask(
                    ReadTask(part.path, part.config, part.token, Split(k, part.piece.start, part.piece.stop), self._columns, Selection()),
                    str(directory.path(f"{stage}/parts")),
                    "parquet",
                    (),
                    metadata,
                ),
            )
            for k, part in enumerate(ranges)
        ]
        outcomes = list(self._runner.each(tasks, export_range))
        damage = tuple(item for outcome in outcomes for item in outcome.damage)
        parts = [part for outcome in outcomes for part in outcome.parts]
        messages = sum(part.rows for part in parts)
        if parts:
            ready = f"{stage}/{name}"
            directory.make_directory(ready)
            for part in parts:
                directory.rename(f"{stage}/parts/{part.staged}", f"{ready}/{part.name}")
            files = [{"name": part.name, "rows": part.rows, "bytes": part.bytes} for part in parts]
            document = manifest | {"messages": messages, "files": files}
            directory.write_small(f"{ready}/{MANIFEST}", seal(document, indent=2))
            directory.sync_tree(ready)
            directory.rename(ready, name)
            directory.sync_directory()
        return BatchOutcome(messages, damage=damage)


# tables


_METADATA = {"iceberg": "metadata and catalog.db", "delta": "_delta_log"}


class BatchTable(Protocol):
    """A table that records the last batch added to it."""

    def last(self) -> int:
        """Return the number of that batch as the table currently records it; -1 if there is none."""
        ...

    def add(self, batch: AddedBatch) -> None:
        """Add the files of a batch, and its number, in one commit that is on disk when this returns."""
        ...

    def close(self) -> None: ...


def open_table(form: str, target: FollowOutput, schema: pa.Schema) -> BatchTable:
    """Open the table of a target, or create it. Raises TargetError."""
    with table_errors(form, target.path, "open the table", _mending(form)):
        if form == "iceberg":
            from mqstore.pipeline.tail.iceberg import IcebergBatches

            return IcebergBatches(target.directory, schema)
        from mqstore.pipeline.tail.delta import DeltaBatches

        return DeltaBatches(target.directory, schema)


class TableSink:
    """Writes batches as Parquet files and adds them to the table."""

    def __init__(self, form: str, target: FollowOutput, files: ParquetSink, table: BatchTable, compact_every: int = 0) -> None:
        self._compact_every = compact_every
        self._form = form
        self._target = target
        self._files = files
        self._table = table
        with self._table_errors():
            self._last = table.last()
        missing = [number for number in self._batches_on_disk() if number > self._last]
        for number in missing:
            self._add(number)
        self.notes: tuple[str, ...] = tuple(f"batch {number} was on disk but not in the table; it was added" for number in missing)

    def take(self, number: int, ranges: Sequence[LogRange]) -> BatchOutcome:
        if number <= self._last and not self._target.directory.exists(_name(number)):
            raise TargetError(
                f"{self._target.path} already has batch {self._last}, but its checkpoint continues with batch {number}: the checkpoint was "
                "removed or belongs to another target; use a new target"
            )
        taken = self._files.take(number, ranges)
        if number > self._last and self._target.directory.exists(_name(number)):
            self._add(number)
        return taken

    def _batches_on_disk(self) -> list[int]:
        """Return the numbers of the batches on disk, in order."""
        names = (path.name.removeprefix("batch=") for path in self._target.path.glob(f"batch=*/{MANIFEST}") for path in (path.parent,))
        return sorted(int(name) for name in names if name.isdigit())

    def _add(self, number: int) -> None:
        name = _name(number)
        manifest = read_batch(self._target.directory.path(f"{name}/{MANIFEST}"))
        files = tuple((f"{name}/{file['name']}", int(file["bytes"])) for file in manifest["files"])
        with self._table_errors():
            self._table.add(AddedBatch(number, int(manifest["start"]), int(manifest["stop"]), files))
            if self._compact_every and (number + 1) % self._compact_every == 0:
                self._compact()
        self._last = number

    def _compact(self) -> None:
        from mqstore.pipeline.tail.delta import DeltaBatches

        if isinstance(self._table, DeltaBatches):
            self._table.compact()

    def _table_errors(self) -> contextlib.AbstractContextManager[None]:
        return table_errors(self._form, self._target.path, "add to the table", _mending(self._form))


def _mending(form: str) -> str:
    return f"the batches are intact: follow again once that is fixed, or remove {_METADATA[form]} there to rebuild the table"


def _name(number: int) -> str:
    return f"batch={number:010d}"
