"""Append the new range of a log to an Iceberg or Delta table: each message once, however often it is repeated or killed.

    OUT/append-00000000000000184320-00000000000000368640-1f2e/part-00000.parquet …    the files of one run, in the table by one commit
    OUT/_mqstore_append/lock, pending.json                                            of the run that is at work

The table itself records how far it has the log, and the commit that adds the files moves that position, if it is
still where the run began. A run that dies before its commit has added nothing: the next one removes its files and starts at the same
position. Nothing has to be kept beside the table.

The position is kept so:

    Iceberg   table property mqstore.position: {"off": 184320, "gen": "184100:9f3c11aa"}
    Delta     application transactions mqstore.position.offset, .record, .identity and .lost, whose versions are these numbers

Its record and identity distinguish the log of the table from every other (`rocketmq/scan/log_tail.py`). Both kinds of table keep these
values when their history is cleaned up, and when other programs change the table.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from mqstore.errors import MqstoreError, TargetError, UsageError
from mqstore.files.durable import DurableDirectory
from mqstore.files.location import as_location, check_outside, local_store, local_target
from mqstore.files.state_file import parse, plain_name, read_state, seal, whole
from mqstore.findings import Damage
from mqstore.jobs.lakehouse import TABLE, TABLE_FORMATS, check_table_format, quiet_pyiceberg, table_errors
from mqstore.jobs.runner import Runner, choose_runner
from mqstore.pipeline.source.stores import open_for_tasks
from mqstore.pipeline.source.stream import LogRange
from mqstore.pipeline.tail.sinks import RangeTask, discard_stages, export_range, locked_target
from mqstore.rocketmq.scan.log_tail import LogPosition, LogTail, Piece
from mqstore.rocketmq.scan.splits import Split, bytes_to_read
from mqstore.rocketmq.store.split_reader import LINEAGE, ExportTask, ReadTask
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.table.columns import ROCKETMQ_COLUMNS, Selection, check_columns, rocketmq_schema
from mqstore.table.row_files import NULL_PARTITION, PartFile
from mqstore.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties
    from deltalake.transaction import AddAction, RemoveAction
    from pyspark.sql import SparkSession

FILE_BYTES = 256 << 20
STATE = "_mqstore_append"
_PENDING = f"{STATE}/pending.json"
NOTHING_ADDED = "nothing was added"


@dataclass(frozen=True, slots=True)
class AppendReport:
    """Outcome of `append`. start, stop: physical offsets of the range that was added; equal if there was nothing new.

    lost: bytes that retention removed before they were appended, in this run and the earlier ones of the table.
    """

    store: str
    to: str
    format: str
    start: int
    stop: int
    messages: int
    lost: int
    files: tuple[str, ...]
    bytes: int
    seconds: float
    damage: tuple[Damage, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all of the range is intact."""
        return not self.damage

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `export --append -o json` prints."""
        return {
            "store": self.store,
            "to": self.to,
            "format": self.format,
            "ok": self.ok,
            "start": self.start,
            "stop": self.stop,
            "messages": self.messages,
            "lost": self.lost,
            "files": len(self.files),
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "damage": [item.as_dict() for item in self.damage],
            "notes": list(self.notes),
        }


def append(
    store_path: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    format: str,  # noqa: A002
    columns: Sequence[str] | None = None,
    partition_by: Sequence[str] | None = None,
    start: int | str | None = None,
    skip_lost: bool = False,
    file_bytes: int = FILE_BYTES,
    spark: SparkSession | None = None,
    master: str | None = None,
    threads: int | None = None,
    config: str | os.PathLike[str] | None = None,
) -> AppendReport:
    """Add the messages of a log that a table does not have yet, in one commit.

    to: a table that this function created, which continues after its last message, or any other table with its catalog in OUT
    (iceberg) or a Delta table; or a new directory. start: for a table without a position: earliest, or a physical offset.
    columns: of the message table; by default those of the table. Columns that the table does not have are added to it.
    partition_by: of a new table: topic, store_timestamp (by day). skip_lost: go on after what retention removed, instead of an error.
    file_bytes: bytes of log for one file. Raises TargetError, UsageError, CannotOpenError, and PipelineError.
    """
    if format not in TABLE_FORMATS:
        raise UsageError(f"only a table can be appended to: choose the format {' or '.join(TABLE_FORMATS)}")
    if file_bytes < 1:
        raise UsageError("a file takes at least 1 byte of log")
    if isinstance(start, str) and start != "earliest" and not (start.isascii() and start.isdigit()):
        raise UsageError(f"{start!r} is not a start: give earliest or a physical offset")
    path = Path(os.path.abspath(to))
    check_table_format(format, path)
    by = None if partition_by is None else check_columns(partition_by)
    refused = next((name for name in by or () if name not in PARTITIONS), None)
    if refused is not None:
        raise UsageError(f"a table is partitioned by {' and '.join(PARTITIONS)}, a time by its day; omit {refused}")
    asked = None if columns is None else check_columns(dict.fromkeys((*columns, *LINEAGE, *(by or ()))))
    local_store(as_location(store_path), "append")
    local_target(to)
    store = open_for_tasks(os.path.abspath(store_path), None if config is None else os.fspath(config))
    store.require_commit_log("appending the new range of a log")
    check_outside(path, store.path)
    choice = choose_runner(store.path, partial(bytes_to_read, store.log), spark=spark, master=master, threads=threads)
    with _Target(path, format) as target:
        schema = rocketmq_schema(ROCKETMQ_COLUMNS if asked is None else asked)
        tail = _tail(store, skip_lost)
        created: list[LogPosition] = []

        def begin_new() -> LogPosition:
            created.append(tail.earliest() if start is None or start == "earliest" else tail.at(int(start)))
            return created[-1]

        with table_errors(format, path, "append to the table", NOTHING_ADDED):
            table = open_position_table(format, target.directory, NewTable(schema, by or (), begin_new))
        with contextlib.closing(table):
            run = _AppendRun(store, tail, target, format, table, asked, file_bytes, skip_lost)
            if by is not None and set(by) != set(table.partition_by):
                raise UsageError(f"{path} is partitioned by {','.join(table.partition_by) or 'nothing'}; omit --partition-by")
            begin = run.begin(None if created else start)
            with choice.runner(spark) as runner:
                return run.on(runner, begin)


def _tail(store: RocketMQStore, skip_lost: bool) -> LogTail:
    assert isinstance(store.place, str)  # URLs are refused
    return LogTail(
        store.place,
        store.config.commit_log_file_size,
        tolerate_loss=skip_lost,
        advice="append to the table of that log, or to a new one",
        loss_advice="--skip-lost goes on after them",
    )


class _Target:
    """The directory of the table, locked against another append."""

    def __init__(self, path: Path, table_format: str) -> None:
        names = {entry.name for entry in path.iterdir()} if path.is_dir() else None
        expected = {"delta": "_delta_log", "iceberg": "catalog.db"}[table_format]
        if os.path.lexists(path) and (names is None or (names - {STATE, "metadata"} and expected not in names)):
            raise TargetError(f"{path} exists and is not a table of format {table_format}; choose another name or format")
        if names is not None and "_mqstore_follow" in names:
            raise TargetError(f"{path} is kept by follow; go on with that, or choose another name")
        self.path = path
        self.directory, self._lock = locked_target(path, STATE, "is being appended to by another process; wait until it ends")
        discard_stages(self.directory, STATE)

    def __enter__(self) -> _Target:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()
        self.directory.close()


class _AppendRun:
    """One run."""

    def __init__(
        self,
        store: RocketMQStore,
        tail: LogTail,
        target: _Target,
        table_format: str,
        table: PositionTable,
        asked: tuple[str, ...] | None,
        file_bytes: int,
        skip_lost: bool,
    ) -> None:
        self._store = store
        self._target = target
        self._directory = target.directory
        self._format = table_format
        self._table = table
        known = [name for name in table.columns if name in ROCKETMQ_COLUMNS or name in LINEAGE]
        self._columns = asked or check_columns(dict.fromkeys((*known, *LINEAGE)))
        self._columns = tuple(dict.fromkeys((*self._columns, *table.partition_by)))
        self._file_bytes = file_bytes
        self._skip_lost = skip_lost
        self._tail = tail
        self._notes: list[str] = []

    def begin(self, start: int | str | None) -> LogPosition:
        """Return where to continue, after the remains of a run that died are removed. Raises UsageError."""
        with table_errors(self._format, self._target.path, "append to the table", NOTHING_ADDED):
            self._before = self._table.position()
        self._remove_pending()
        if self._before is not None:
            if start is not None:
                raise UsageError(f"{self._target.path} has the log up to {self._before.offset} and continues there; omit the start")
            return self._before
        if start is None:
            raise UsageError(
                f"{self._target.path} does not record how far it has this log; give --append-from earliest, or the physical offset of the "
                "first message to add"
            )
        return self._tail.earliest() if start == "earliest" else self._tail.at(int(start))

    def _remove_pending(self) -> None:
        """Remove the files of a run that died before its commit; keep them if it died after."""
        if not self._directory.exists(_PENDING):
            return
        name, stop = _pending(self._directory.path(_PENDING))
        if self._before is None or self._before.offset < stop:
            self._directory.discard(name)
            self._notes.append("the files of a run that ended before its commit were removed")
        self._directory.discard(_PENDING)

    def on(self, runner: Runner, begin: LogPosition) -> AppendReport:
        started = time.perf_counter()
        end = self._tail.advance(begin).end
        pieces = _merged(self._tail.pieces(begin, end), self._file_bytes)
        files: list[NewFile] = []
        messages = 0
        damage: tuple[Damage, ...] = ()
        if end != begin or self._before is None:
            files, messages, damage = self._write(runner, pieces, begin, end)
            try:
                with table_errors(self._format, self._target.path, "append to the table", NOTHING_ADDED):
                    self._table.add(rocketmq_schema(self._columns), files, self._before, end)
            except MqstoreError:
                # if even that fails, the next run does it
                with contextlib.suppress(Exception):
                    self._before = self._table.position()
                    self._remove_pending()
                raise
            self._directory.discard(_PENDING)
        if end.lost > begin.lost:
            self._notes.append(f"{end.lost - begin.lost} bytes of log were removed by retention before they were appended")
        return AppendReport(
            str(self._store.path),
            str(self._target.path),
            self._format,
            begin.offset,
            end.offset,
            messages,
            end.lost,
            tuple(each.name for each in files),
            sum(each.bytes for each in files),
            time.perf_counter() - started,
            damage,
            tuple(self._notes),
        )

    def _write(
        self, runner: Runner, pieces: Sequence[Piece], begin: LogPosition, end: LogPosition
    ) -> tuple[list[NewFile], int, tuple[Damage, ...]]:
        """Write the files of a range and give them their names with one rename, which `pending.json` announces."""
        token = f"append {end.generation} {end.offset}"
        stage = f"{STATE}/stage-{secrets.token_hex(4)}"
        name = f"append-{begin.offset:020d}-{end.offset:020d}-{secrets.token_hex(2)}"
        ready = f"{stage}/{name}"
        self._directory.make_directory(f"{stage}/parts")
        self._directory.make_directory(ready)
        path, config = str(self._store.path), self._store.config
        metadata = (("mqstore.store", path), ("mqstore.version", __version__))
        tasks = [
            RangeTask(
                LogRange(path, config, token, piece, self._skip_lost),
                ExportTask(
                    ReadTask(path, config, token, Split(number, piece.start, piece.stop), self._columns, Selection()),
                    str(self._directory.path(f"{stage}/parts")),
                    "parquet",
                    self._table.partition_by,
                    metadata,
                    keep_partition_columns=self._format == "iceberg",
                ),
            )
            for number, piece in enumerate(pieces)
        ]
        try:
            outcomes = list(runner.each(tasks, export_range))
            files = []
            for number, part in enumerate(part for outcome in outcomes for part in outcome.parts):
                final = f"part-{number:05d}.parquet"
                self._directory.rename(f"{stage}/parts/{part.staged}", f"{ready}/{final}")
                files.append(NewFile(f"{name}/{final}", part.bytes, _values(part)))
            if files:
                self._directory.sync_tree(ready)
                self._directory.write_small(_PENDING, seal({"directory": name, "stop": end.offset}))
                self._directory.rename(ready, name)
                self._directory.sync_directory()
        finally:
            self._directory.discard(stage)
        damage = tuple(item for outcome in outcomes for item in outcome.damage)
        return files, sum(outcome.rows for outcome in outcomes), damage


def _pending(path: Path) -> tuple[str, int]:
    """Return what a run that died was about to add: the directory of its files, and where they end. Raises TargetError."""
    try:
        pending = parse(read_state(path, 1 << 16) or b"", fields=("directory", "stop"))
        name, stop = plain_name(pending, "directory"), whole(pending, "stop")
        if not re.fullmatch(rf"append-\d{{20}}-{stop:020d}-[0-9a-f]{{4}}", name):
            raise ValueError(f"its directory {name!r} is not one that an append makes")
    except ValueError as error:
        raise TargetError(
            f"{path} does not say what an interrupted append left: {error}; nothing was changed. Remove it, and any directory append-… "
            "that the table does not use"
        ) from None
    return name, stop


def _merged(pieces: Sequence[Piece], size: int) -> list[Piece]:
    """Join neighbours as long as they do not exceed a size together."""
    merged: list[Piece] = []
    for piece in pieces:
        if merged and piece.stop - merged[-1].start <= size and merged[-1].stop == piece.start:
            last = merged.pop()
            piece = Piece(last.start, piece.stop, tuple(dict.fromkeys((*last.files, *piece.files))))
        merged.append(piece)
    return merged


def _values(part: PartFile) -> dict[str, str | None]:
    """Return the values of the partitions that a file belongs to, from the directories in its name."""
    values = dict(step.split("=", 1) for step in part.name.split("/")[:-1])
    return {name: None if value == NULL_PARTITION else unquote(value) for name, value in values.items()}


# the position of a table


# column of the message table: what a partition of a table is called. A time is a day
PARTITIONS = {"topic": "topic", "store_timestamp": "store_day"}
_PROPERTY = "mqstore.position"
_PARTS = ("offset", "record", "identity", "lost")


@dataclass(frozen=True, slots=True)
class NewFile:
    """A Parquet file to add. name: below the table; values: of the partitions, by their names in the table, None for null."""

    name: str
    bytes: int
    values: dict[str, str | None]


class PositionTable(Protocol):
    """A table with the position of a log in it. columns: of its rows. partition_by: columns of the message table."""

    columns: tuple[str, ...]
    partition_by: tuple[str, ...]

    def position(self) -> LogPosition | None:
        """Return the position as the table has it now; None if it has none."""
        ...

    def add(self, schema: pa.Schema, files: list[NewFile], before: LogPosition | None, after: LogPosition) -> None:
        """Add files, the columns they need, and the position, unless the table no longer has the position `before`."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class NewTable:
    """What a table is created with. begin: its position, in the commit that creates it."""

    schema: pa.Schema
    partition_by: tuple[str, ...]
    begin: Callable[[], LogPosition]


def open_position_table(table_format: str, directory: DurableDirectory, new: NewTable) -> PositionTable:
    """Open the table in a directory, or create it. Raises errors of the libraries, too."""
    table: PositionTable = (_IcebergTable if table_format == "iceberg" else _DeltaTable)(directory, new)
    return table


def _changed(root: Path) -> TargetError:
    return TargetError(f"{root} was appended to by another process meanwhile; append again, which continues after what that one added")


def _known(root: Path, names: dict[str, str | None]) -> tuple[str, ...]:
    """Return the columns of the message table for the partitions of a table. names: by the name in the table, column or None."""
    unknown = [name for name, column in names.items() if column is None]
    if unknown:
        raise UsageError(f"{root} is partitioned by {unknown[0]}; a table is appended to if that is topic, or the day of store_timestamp")
    return tuple(column for column in names.values() if column is not None)


# ---- Delta


class _DeltaTable:
    def __init__(self, directory: DurableDirectory, new: NewTable) -> None:
        import pyarrow as pa
        from deltalake import DeltaTable

        from mqstore.pipeline.tail.delta import sync_commit

        self._directory = directory
        self._root = str(directory.root)
        if not DeltaTable.is_deltatable(self._root):
            begin, schema = new.begin(), new.schema
            directory.make_directory("_delta_log")
            names = [PARTITIONS[column] for column in new.partition_by]
            if "store_day" in names:
                schema = schema.append(pa.field("store_day", pa.date32()))
            DeltaTable.create(
                self._root, schema, name=TABLE.rpartition(".")[2], partition_by=names or None, commit_properties=_commit(begin)
            )
            sync_commit(directory, 0)
        self._table = DeltaTable(self._root)
        self._names = tuple(self._table.metadata().partition_columns)
        back = {name: column for column, name in PARTITIONS.items()}
        self.partition_by = _known(directory.root, {name: back.get(name) for name in self._names})
        self.columns = tuple(field.name for field in self._table.schema().fields if field.name != "store_day")

    def position(self) -> LogPosition | None:
        self._table.update_incremental()
        numbers = [self._table.transaction_version(f"{_PROPERTY}.{part}") for part in _PARTS]
        if numbers[0] is None:
            return None
        offset, record, identity, lost = (int(value or 0) for value in numbers)
        return LogPosition(offset, f"{record}:{identity:08x}" if numbers[1] is not None and record >= 0 else "", lost)

    def add(self, schema: pa.Schema, files: list[NewFile], before: LogPosition | None, after: LogPosition) -> None:
        from deltalake import Schema
        from deltalake.exceptions import CommitFailedError

        from mqstore.pipeline.tail.delta import added, sync_commit

        if self.position() != before:
            raise _changed(self._directory.root)
        there = {field.name: field for field in self._table.schema().fields}
        ours = {field.name: field for field in Schema.from_arrow(schema).fields}
        for name, field in ours.items():
            if name in there and there[name].type != field.type:
                raise UsageError(
                    f"{self._root} has a column {name} of another type, {there[name].type}; choose other columns or another OUT"
                )
        missing = next((name for name, field in there.items() if not field.nullable and name not in ours), None)
        if missing is not None:
            raise UsageError(f"{self._root} has a column {missing} that must not be null and is not written; choose it with --columns")
        new = [field for name, field in ours.items() if name not in there]
        if new:
            # a separate commit: repeated after a kill, it finds nothing to add
            self._table.alter.add_columns(new)
            self._table.update_incremental()
        actions: list[AddAction | RemoveAction] = [
            added(self._directory, each.name, each.bytes, {name: each.values[name] for name in self._names}) for each in files
        ]
        try:
            self._table.create_write_transaction(
                actions, "append", self._table.schema(), partition_by=list(self._names) or None, commit_properties=_commit(after)
            )
        except CommitFailedError:
            if self.position() != before:
                raise _changed(self._directory.root) from None
            raise
        self._table.update_incremental()
        sync_commit(self._directory, self._table.version())

    def close(self) -> None:
        """Do nothing: no resource is kept open."""


def _commit(position: LogPosition) -> CommitProperties:
    """Return what a commit records of a position."""
    from deltalake import CommitProperties, Transaction

    record, _, identity = position.generation.partition(":")
    numbers = (position.offset, int(record or -1), int(identity or "0", 16), position.lost)
    return CommitProperties(
        custom_metadata={_PROPERTY: json.dumps(position.as_json())},
        app_transactions=[Transaction(f"{_PROPERTY}.{part}", number) for part, number in zip(_PARTS, numbers, strict=True)],
    )


# ---- Iceberg


class _IcebergTable:
    def __init__(self, directory: DurableDirectory, new: NewTable) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        from mqstore.pipeline.tail.iceberg import sql_catalog

        self._root = directory.root
        self._catalog = sql_catalog(directory)
        try:
            self._catalog.create_namespace_if_not_exists(TABLE.partition(".")[0])
            try:
                self._table = self._catalog.load_table(TABLE)
            except NoSuchTableError:
                self._create(new)
            if self._table.location() != str(self._root):
                raise TargetError(f"{self._root} was created as {self._table.location()}, and Iceberg stores absolute paths; move it back")
            self._read()
        except BaseException:
            self.close()
            raise

    def _create(self, new: NewTable) -> None:
        from pyiceberg.transforms import DayTransform, IdentityTransform

        said = {_PROPERTY: json.dumps(new.begin().as_json())}
        with quiet_pyiceberg():
            step = self._catalog.create_table_transaction(TABLE, new.schema, location=str(self._root), properties=said)
            with step.update_spec() as spec:
                for column in new.partition_by:
                    day = PARTITIONS[column] != column
                    spec.add_field(column, DayTransform() if day else IdentityTransform(), PARTITIONS[column] if day else None)
            step.commit_transaction()
        self._table = self._catalog.load_table(TABLE)

    def _read(self) -> None:
        self.columns = tuple(field.name for field in self._table.schema().fields)
        names = {}
        for field in self._table.spec().fields:
            column = self._table.schema().find_column_name(field.source_id) or ""
            expected = {"topic": "identity", "store_timestamp": "day"}.get(column)
            names[field.name] = column if str(field.transform) == expected else None
        self.partition_by = _known(self._root, names)

    def position(self) -> LogPosition | None:
        self._table.refresh()
        text = self._table.properties.get(_PROPERTY)
        if text is None:
            return None
        try:
            return LogPosition.from_json(parse(text.encode()))
        except ValueError as error:
            raise TargetError(f"the table's property {_PROPERTY} does not say how far it has the log: {error}; correct it") from None

    def add(self, schema: pa.Schema, files: list[NewFile], before: LogPosition | None, after: LogPosition) -> None:
        from pyiceberg.exceptions import CommitFailedException

        paths = [str(self._root / each.name) for each in files]
        said = json.dumps(after.as_json())
        tries = 5
        while True:
            if self.position() != before:
                raise _changed(self._root)
            tries -= 1
            try:
                with quiet_pyiceberg(), self._table.transaction() as step:
                    with step.update_schema() as columns:
                        columns.union_by_name(schema)
                    if paths:
                        step.add_files(paths, snapshot_properties={_PROPERTY: said}, check_duplicate_files=False)
                    step.set_properties({_PROPERTY: said})
            except CommitFailedException:
                if not tries:
                    raise
            else:
                return

    def close(self) -> None:
        self._catalog.engine.dispose()
