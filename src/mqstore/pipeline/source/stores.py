"""The stores that a DataFrame source reads: one path, several, or a glob; and the column `store` that identifies the store of a row.

    .load("/backup/broker-a/store")                       one
    .load(["/backup/a/store", "/backup/b/store"])         several
    .load("/backup/a/store,/backup/b/store")              several
    .load("/backup/*/store")                              all matches, in the order of their names
    .load("s3://backups/broker-*/store")                  URLs, alone or in a list (`mqstore.files.location`), with options `fs.NAME`

The column holds the path as it was given, or as it matched. Of several paths, those that cannot be opened as a store are skipped and
reported (`mqstore.pipeline.source.planning`); a stream needs all of them.
"""

from __future__ import annotations

import glob
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from mqstore.errors import PipelineError, UsageError
from mqstore.files.archive import refuse_packed
from mqstore.files.location import Url, is_url, without_file
from mqstore.files.remote import matching
from mqstore.jobs.runner import MODES
from mqstore.pipeline.source.planning import PartGroup, Planned, combined, plan_stores, report_skipped
from mqstore.pipeline.spark.runner import freeze_gc_once, require_version
from mqstore.pipeline.spark.session import show_warning
from mqstore.pipeline.spark.source_api import DataSource, DataSourceReader, Filter, InputPartition
from mqstore.places import open_rocketmq
from mqstore.rocketmq.store.log_site import notes_on_rows
from mqstore.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from mqstore.rocketmq.store.store import RocketMQStore
    from mqstore.table.columns import QueueBounds

STORE = "store"


class TableFormat(DataSource):
    """A format of this package."""

    def returned_fields(self) -> list[pa.Field]:
        """Return the columns that the options request, or the default ones. Raises UsageError."""
        raise NotImplementedError

    @classmethod
    def all_fields(cls, options: Mapping[str, str]) -> list[pa.Field]:
        """Return all columns that a read with these options can return, those that are returned on request only included."""
        raise NotImplementedError

    def fields_of(self, names: Sequence[str]) -> list[pa.Field]:
        """Return the columns with these names, in any case. Raises UsageError."""
        raise NotImplementedError

    def reader_of(self, names: Sequence[str]) -> DataSourceReader:
        """Return what reads the columns with these names. Raises UsageError."""
        raise NotImplementedError

    def reader(self, schema: StructType) -> DataSourceReader:
        check_types(schema, self.fields_of(schema.names))
        return self.reader_of(schema.names)

    @classmethod
    def check_store(cls, path: str, options: Mapping[str, str]) -> Sequence[str]:
        """Open the store at a path as planning does; return what is to be known of its rows. Raises CannotOpenError, UnsupportedError."""
        open_for_tasks(path, options.get("config"), parse_fs_options(options))
        return ()

    def schema(self) -> str:
        """Return the schema of a read. Raises UsageError for CREATE TABLE, which asks for it, too: such a table could not be read."""
        if "provider" in self.options and "owner" in self.options:
            name = self.name()
            raise UsageError(
                f"Spark does not pass the path of a table in its catalog to {name}: use CREATE TEMPORARY VIEW … USING {name} OPTIONS "
                "(path '…'), or CREATE TABLE with columns, and SELECT … FROM … WITH (path = '…')"
            )
        return ddl_schema(self.returned_fields())


class StoreReader(DataSourceReader):
    """Reads the parts of stores. Small and picklable: it is sent to every task. A subclass plans the parts of one store, and reads one.

    columns: that are returned, and names: how the schema spells them. fail_fast: see `plan_stores`; reported: see `reported`.
    """

    def __init__(
        self, paths: tuple[str, ...], columns: tuple[str, ...], names: tuple[str, ...] | None, *, fail_fast: bool, reported: int | None
    ) -> None:
        self.paths = paths
        self.columns = columns
        self.names = names
        self.fail_fast = fail_fast
        self.reported = reported
        self.planned_by = __version__

    def sized_parts(self, path: str) -> Iterator[tuple[InputPartition, int]]:
        """Open the store at a path, and yield its parts, each with the bytes that reading it takes."""
        raise NotImplementedError

    def read_part(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part in a task."""
        raise NotImplementedError

    def confine(self, filters: Sequence[Filter]) -> None:
        """Plan less, as far as the filters allow: no row that they accept may be missing."""
        raise NotImplementedError

    def planned(self) -> Planned[InputPartition]:
        """Plan all stores, and warn of those that are skipped."""
        planned = plan_stores(self.paths, self.sized_parts, fail_fast=self.fail_fast)
        report_skipped(planned.skipped, len(self.paths), self.reported or 0, stacklevel=4)
        return planned

    def own_columns(self, default: str) -> tuple[str, ...]:
        """Return the columns that are read from a store: without `store`, and at least one, for the number of rows."""
        return tuple(name for name in self.columns if name != STORE) or (default,)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        require_version(self.planned_by)
        freeze_gc_once()
        if isinstance(partition, PartGroup):
            return combined(chain.from_iterable(map(self.read_part, partition.parts)))
        return self.read_part(partition)


class ReceivesFilters(StoreReader):
    """The part of a reader that receives the filters of the query it belongs to. Spark calls such a method wherever there is one."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Plan less; return all filters, so that Spark checks them again."""
        self.confine(filters)
        return filters


def store_paths(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths in the options `path` or `paths` (which `load` sets for a list). Raises UsageError."""
    if "paths" in options:
        given = [str(path) for path in json.loads(options["paths"])]
    else:
        path = options.get("path") or ""
        # a comma may be part of a name: an existing path is taken as it is
        given = [path] if os.path.lexists(without_file(path)) else [part.strip() for part in path.split(",")]
    fs_options = parse_fs_options(options)
    paths = [match for path in given if path for match in _matches(without_file(path), fs_options)]
    if not paths:
        raise UsageError(
            "no store is given: load a path, the directory that holds commitlog/; "
            "Spark passes none for a table of its catalog, so give it in the query: SELECT … FROM … WITH (path = '…')"
        )
    return tuple(dict.fromkeys(paths))


def parse_fs_options(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the options `fs.NAME`, which say how URLs are reached, as (NAME, value)."""
    return tuple(sorted((name[3:].lower(), value) for name, value in options.items() if name.lower().startswith("fs.")))


def _matches(path: str, fs_options: tuple[tuple[str, str], ...]) -> list[str]:
    if is_url(path):
        url = Url(path, fs_options)
        matches = [str(each) for each in matching(url)] if glob.has_magic(path) else [str(url)]
        if not matches:
            raise UsageError(f"nothing matches {url}: give a pattern of store directories, those that hold commitlog/")
        return matches
    if os.path.lexists(path) or not glob.has_magic(path):
        return [path]
    matches = sorted(glob.glob(path))
    if not matches:
        raise UsageError(f"nothing matches {path}: give a pattern of store directories, those that hold commitlog/")
    return matches


def open_for_tasks(path: str, config: str | None, fs_options: tuple[tuple[str, str], ...] = ()) -> RocketMQStore:
    """Open a store at a path or URL that every task can open again. fs_options: see `parse_fs_options`.

    Raises CannotOpenError for an archive.
    """
    refuse_packed(path)
    return open_rocketmq(path, config=config, fs_options=dict(fs_options))


def warn_of_rows(store: RocketMQStore) -> None:
    """Warn of rows that are not all or not what a broker returns: once in a process, which plans a query each time that it runs."""
    for sentence in notes_on_rows(store, str(store.path)):
        warnings.warn(sentence, UserWarning, stacklevel=2)
        show_warning(sentence)


def require_offsets(store: RocketMQStore, bounds: Sequence[QueueBounds]) -> None:
    """Raise PipelineError if a queue no longer has the offset at which it was to begin."""
    begins = {(each.topic, each.queue_id): each.from_offset for each in bounds if each.from_offset is not None}
    for queue in store.consume_queues() if begins else ():
        first = begins.get((queue.topic, queue.queue_id), queue.min_offset)
        if first < queue.min_offset:
            raise PipelineError(
                f"{store.path}: offsets {first} to {queue.min_offset - 1} of queue {queue.queue_id} of {queue.topic} were requested, "
                "but are no longer in the log; failOnDataLoss=false reads the rest"
            )


def canonical(names: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Return column names as the table spells them, as their case does not matter to Spark; an unknown name unchanged."""
    spelt = {name.lower(): name for name in known}
    return tuple(spelt.get(name.lower(), name) for name in names)


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    """Return an option that is true or false. Raises UsageError."""
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise UsageError(f"option {name} is {text!r}: give true or false")
    return text.lower() == "true"


def fails_fast(options: Mapping[str, str]) -> bool:
    """Return whether the option `mode` is FAILFAST. Raises UsageError."""
    mode = options.get("mode", "PERMISSIVE").upper()
    if mode not in MODES:
        raise UsageError(f"option mode is {options['mode']!r}: give {' or '.join(MODES)}")
    return mode == "FAILFAST"


def reported(options: Mapping[str, str]) -> int | None:
    """Return the number of skipped stores that `pipeline.read` has reported before Spark plans the read; None if it has not looked."""
    text = options.get("reported", "")
    return int(text) if text.isdecimal() else None


def ddl_type(kind: pa.DataType) -> str:
    """Return the name of an Arrow type in Spark's DDL."""
    import pyarrow as pa

    if pa.types.is_list(kind):
        return f"array<{ddl_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{part.name}:{ddl_type(part.type)}' for part in kind)}>"
    if pa.types.is_map(kind):
        return f"map<{ddl_type(kind.key_type)},{ddl_type(kind.item_type)}>"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    return {"string": "string", "binary": "binary", "int32": "int", "int64": "bigint", "bool": "boolean"}[str(kind)]


def ddl_schema(fields: Sequence[pa.Field]) -> str:
    """Return a schema as Spark's DDL; every column is nullable."""
    return ", ".join(f"{field.name} {ddl_type(field.type)}" for field in fields)


def check_types(schema: StructType, fields: Sequence[pa.Field]) -> None:
    """Refuse a schema that declares a column with another type than it has, or as never null. Raises UsageError."""
    check_nullable(schema)
    for field, kind in zip(schema.fields, fields, strict=True):
        if field.dataType.simpleString() != ddl_type(kind.type):
            raise UsageError(f"column {field.name} is of type {ddl_type(kind.type)}, the schema says {field.dataType.simpleString()}")


def check_nullable(schema: StructType) -> None:
    """Refuse a schema that declares a column as never null. Raises UsageError.

    Any column is null where a record is damaged; Spark drops the rows of a query for nulls if a schema says that there are none.
    """
    for field in schema.fields:
        if _never_null(field.jsonValue()):
            raise UsageError(f"column {field.name} can be null, the schema says that it, or a part of it, is not: omit NOT NULL")


def _never_null(kind: Any) -> bool:
    """Return whether a type, in Spark's JSON, says of a column or of a part of it that it is never null."""
    if isinstance(kind, dict):
        declared = any(kind.get(name) is False for name in ("nullable", "containsNull", "valueContainsNull"))
        return declared or any(_never_null(part) for part in kind.values())
    return isinstance(kind, list) and any(map(_never_null, kind))


def as_utf8(path: str) -> str:
    """Return a path as a column can hold it: bytes that are not UTF-8 as U+FFFD."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def with_store(
    batches: Iterator[pa.RecordBatch], columns: Sequence[str], path: str, names: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the batches with the requested columns in order, `store` included if it is requested.

    names: of the columns, as the schema spells them.
    """
    import pyarrow as pa

    shown = as_utf8(path)
    for batch in batches:
        arrays = [pa.repeat(pa.scalar(shown, pa.string()), batch.num_rows) if name == STORE else batch.column(name) for name in columns]
        yield pa.RecordBatch.from_arrays(arrays, names=list(columns if names is None else names))
