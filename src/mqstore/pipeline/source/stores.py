"""The stores that a DataFrame source reads: one path, several, or a glob; and the column `store` that identifies the store of a row.

    .load("/backup/broker-a/store")                       one
    .load(["/backup/a/store", "/backup/b/store"])         several
    .load("/backup/a/store,/backup/b/store")              several
    .load("/backup/*/store")                              all matches, in the order of their names; each must be a store

    .load("s3://backups/broker-*/store")                  URLs, alone or in a list (`mqstore.files.location`), with options `fs.NAME`

The column holds the path as it was given, or as it matched.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mqstore.errors import CannotOpenError, UsageError
from mqstore.files.location import Url, is_url, without_file
from mqstore.files.remote import matching
from mqstore.opening import open_rocketmq

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from mqstore.rocketmq.store.store import RocketMQStore

__all__ = [
    "STORE",
    "boolean",
    "check_types",
    "ddl_schema",
    "ddl_type",
    "open_for_tasks",
    "parse_fs_options",
    "split_names",
    "store_paths",
    "with_store",
]

STORE = "store"


def store_paths(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths in the options `path` or `paths` (which `load` sets for a list). Raises UsageError."""
    if "paths" in options:
        given = [str(path) for path in json.loads(options["paths"])]
    else:
        path = options.get("path") or ""
        # a comma may be part of a name: an existing path is taken as it is
        given = [path] if os.path.lexists(without_file(path)) else [part.strip() for part in path.split(",")]
    fs_options = parse_fs_options(options)
    found = [match for path in given if path for match in _matches(without_file(path), fs_options)]
    if not found:
        raise UsageError("no store is given: load a path, the directory that holds commitlog/")
    return tuple(dict.fromkeys(found))


def parse_fs_options(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the options `fs.NAME`, which say how URLs are reached, as (NAME, value)."""
    return tuple(sorted((name[3:].lower(), value) for name, value in options.items() if name.lower().startswith("fs.")))


def _matches(path: str, fs_options: tuple[tuple[str, str], ...]) -> list[str]:
    if is_url(path):
        url = Url(path, fs_options)
        found = [str(each) for each in matching(url)] if glob.has_magic(path) else [str(url)]
        if not found:
            raise UsageError(f"nothing matches {url}: give a pattern of store directories, those that hold commitlog/")
        return found
    if os.path.lexists(path) or not glob.has_magic(path):
        return [path]
    found = sorted(glob.glob(path))
    if not found:
        raise UsageError(f"nothing matches {path}: give a pattern of store directories, those that hold commitlog/")
    return found


def open_for_tasks(path: str, config: str | None, fs_options: tuple[tuple[str, str], ...] = ()) -> RocketMQStore:
    """Open a store at a path or URL that every task can open again. fs_options: see `parse_fs_options`.

    Raises CannotOpenError for an archive.
    """
    if os.path.isfile(path):
        raise CannotOpenError(f"{path} is a file: unpack the archive first, tasks cannot share an unpacked copy")
    return open_rocketmq(path, config=config, fs_options=dict(fs_options))


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
    """Refuse a schema that declares a column with another type than it has. Raises UsageError."""
    for field, kind in zip(schema.fields, fields, strict=True):
        if field.dataType.simpleString() != ddl_type(kind.type):
            raise UsageError(f"column {field.name} is of type {ddl_type(kind.type)}, the schema says {field.dataType.simpleString()}")


def with_store(batches: Iterator[pa.RecordBatch], columns: Sequence[str], path: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches with the requested columns in order, `store` included if it is requested."""
    import pyarrow as pa

    for batch in batches:
        arrays = [pa.repeat(pa.scalar(path, pa.string()), batch.num_rows) if name == STORE else batch.column(name) for name in columns]
        yield pa.RecordBatch.from_arrays(arrays, names=list(columns))
