"""How far a table has the log of a store, kept in the table itself and changed by the commit that adds the messages.

    Iceberg   table property mqstore.position: {"off": 184320, "gen": "184100:9f3c11aa"}
    Delta     application transactions mqstore.position.offset, .record, .identity and .lost, whose versions are these numbers

The record and its identity distinguish the log of the table from every other (`rocketmq/scan/log_tail.py`). Both kinds of table keep these
values when their history is cleaned up, and when other programs change the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mqstore.errors import TargetError, UsageError
from mqstore.files.durable import DurableDirectory
from mqstore.files.state_file import parse
from mqstore.jobs.lakehouse import TABLE, quiet_pyiceberg
from mqstore.rocketmq.scan.log_tail import LogPosition

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties
    from deltalake.transaction import RemoveAction

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
            self._sync(0)
        self._table = DeltaTable(self._root)
        self._names = tuple(self._table.metadata().partition_columns)
        back = {name: column for column, name in PARTITIONS.items()}
        self.partition_by = _known(directory.root, {name: back.get(name) for name in self._names})
        self.columns = tuple(field.name for field in self._table.schema().fields if field.name != "store_day")

    def position(self) -> LogPosition | None:
        self._table.update_incremental()
        found = [self._table.transaction_version(f"{_PROPERTY}.{part}") for part in _PARTS]
        if found[0] is None:
            return None
        offset, record, identity, lost = (int(value or 0) for value in found)
        return LogPosition(offset, f"{record}:{identity:08x}" if found[1] is not None and record >= 0 else "", lost)

    def add(self, schema: pa.Schema, files: list[NewFile], before: LogPosition | None, after: LogPosition) -> None:
        import pyarrow.parquet as pq
        from deltalake import Schema
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction

        from mqstore.pipeline.tail.delta import bounds

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
        actions: list[AddAction | RemoveAction] = []
        for each in files:
            path = self._directory.path(each.name)
            changed = path.stat().st_mtime_ns // 1_000_000
            values = {name: each.values[name] for name in self._names}
            actions.append(AddAction(each.name, each.bytes, values, changed, True, json.dumps(bounds(pq.read_metadata(path)))))
        try:
            self._table.create_write_transaction(
                actions, "append", self._table.schema(), partition_by=list(self._names) or None, commit_properties=_commit(after)
            )
        except CommitFailedError:
            if self.position() != before:
                raise _changed(self._directory.root) from None
            raise
        self._table.update_incremental()
        self._sync(self._table.version())

    def _sync(self, version: int) -> None:
        """Return when a commit has reached the disk; deltalake leaves that to the operating system."""
        self._directory.sync(f"_delta_log/{version:020d}.json")
        self._directory.sync_directory("_delta_log")
        self._directory.sync_directory()

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
        found = self._table.properties.get(_PROPERTY)
        if found is None:
            return None
        try:
            return LogPosition.from_json(parse(found.encode()))
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
