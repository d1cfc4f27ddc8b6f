"""A Delta table that grows by batches: one commit each, with the batch number as the version of an application transaction.

The files stay as the tasks wrote them. Their bounds, which let readers skip files, are taken from the Parquet footers.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction

from mqstore.jobs.lakehouse import TABLE

if TYPE_CHECKING:
    from deltalake.transaction import RemoveAction

    from mqstore.files.durable import DurableDirectory
    from mqstore.jobs.lakehouse import AddedBatch

APPLICATION = "mqstore-follow"
COMPACTED_BYTES = 256 << 20


class DeltaBatches:
    """The table in a directory, created if necessary. Raises the exceptions of deltalake."""

    def __init__(self, directory: DurableDirectory, schema: pa.Schema) -> None:
        self._directory = directory
        self._schema = schema
        root = str(directory.root)
        if not DeltaTable.is_deltatable(root):
            directory.make_directory("_delta_log")
            DeltaTable.create(root, schema, name=TABLE.rpartition(".")[2])
            sync_commit(directory, 0)
        self._table = DeltaTable(root)

    def last(self) -> int:
        self._table.update_incremental()
        version = self._table.transaction_version(APPLICATION)
        return -1 if version is None else version

    def add(self, batch: AddedBatch) -> None:
        if self.last() >= batch.number:
            return
        actions: list[AddAction | RemoveAction] = [added(self._directory, name, size, {}) for name, size in batch.files]
        commit = CommitProperties(custom_metadata=dict(batch.properties), app_transactions=[Transaction(APPLICATION, batch.number)])
        self._table.create_write_transaction(actions, "append", self._schema, commit_properties=commit)
        self._table.update_incremental()
        sync_commit(self._directory, self._table.version())

    def compact(self) -> int:
        """Rewrite the small files of the table as few large ones, in one commit that changes no row. Return how many were replaced.

        The old files stay for readers of earlier versions, and as the batches of the follow.
        """
        self._table.update_incremental()
        version = self._table.version()
        before = set(self._files())
        self._table.optimize.compact(target_size=COMPACTED_BYTES)
        self._table.update_incremental()
        after = set(self._files())
        if after == before:
            return 0
        for name in sorted(after - before):
            self._directory.sync(name)
        for number in range(version + 1, self._table.version() + 1):
            sync_commit(self._directory, number)
        return len(before - after)

    def _files(self) -> list[str]:
        return [unquote(name) for name in pa.table(self._table.get_add_actions()).column("path").to_pylist()]

    def close(self) -> None:
        """Do nothing: no resource is kept open."""


def sync_commit(directory: DurableDirectory, version: int) -> None:
    """Return when a commit has reached the disk; deltalake leaves that to the operating system."""
    directory.sync(f"_delta_log/{version:020d}.json")
    directory.sync_directory("_delta_log")
    directory.sync_directory()


def added(directory: DurableDirectory, name: str, size: int, values: dict[str, Any]) -> AddAction:
    """Return the action that adds a Parquet file to a table. values: of the columns that it is partitioned by."""
    path = directory.path(name)
    changed = path.stat().st_mtime_ns // 1_000_000
    return AddAction(name, size, values, changed, True, json.dumps(bounds(pq.read_metadata(path))))


def bounds(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Return the number of rows of a Parquet file, and minimum, maximum and null count of each column that has them in all row groups."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for index in range(metadata.num_columns):
        column = metadata.schema.column(index)
        known = [group.column(index).statistics for group in groups]
        if "." in column.path or not known or not all(each is not None and each.has_null_count for each in known):
            continue
        nulls[column.name] = sum(each.null_count for each in known)
        with_values = [each for each, group in zip(known, groups, strict=True) if each.null_count < group.num_rows]
        if with_values and all(each.has_min_max for each in with_values):
            low[column.name] = _plain(min(each.min for each in with_values))
            high[column.name] = _plain(max(each.max for each in with_values))
    return {"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _plain(value: Any) -> Any:
    """Return a value in the format of Delta's statistics; times in a store are whole milliseconds."""
    return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z" if isinstance(value, datetime) else value
