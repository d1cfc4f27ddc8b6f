"""Rows of a RabbitMQ store in Parquet, as `export` and `salvage` write them, in the form of rows of JSON.

Properties as JSON, in the column `properties_json` or in `properties` itself, are as they were. As columns they are text: bytes that are
not UTF-8 are lost in it, and such a row is refused. The value of a header is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mqstore.errors import CannotOpenError, UsageError
from mqstore.table.columns import RABBITMQ_COLUMNS, RABBITMQ_EXTRA_COLUMNS

ROWS = 4096
BYTES = 8 << 20
LOST = "\ufffd"
_KNOWN = (*RABBITMQ_COLUMNS, *RABBITMQ_EXTRA_COLUMNS)
_TAKEN = ("vhost", "queue", "exchange", "routing_keys", "properties", "properties_json", "payload", "payload_b64", "verdict")


def column_names(file: Path) -> list[str]:
    """Return the names of the columns of a file. Raises CannotOpenError."""
    with _open(file) as opened:
        return list(opened.schema_arrow.names)


def parquet_rows(file: Path, skip: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number from 1, columns) of the rows after the first `skip`. Raises UsageError for unknown columns, CannotOpenError."""
    import pyarrow as pa

    names = column_names(file)
    unknown = next((name for name in names if name not in _KNOWN), None)
    if unknown is not None:
        raise UsageError(f"{file}: there is no column {unknown!r}; the columns are {', '.join(RABBITMQ_COLUMNS)}")
    if "verdict" in names and "payload" not in names and "payload_b64" not in names:
        raise UsageError(f"{file} holds messages of a store without their payloads; export it with the column payload")
    wanted = [name for name in names if name in _TAKEN]
    place = 0
    with _open(file) as opened:
        try:
            for group in range(opened.metadata.num_row_groups):
                known = opened.metadata.row_group(group)
                if place + known.num_rows <= skip:
                    place += known.num_rows
                    continue
                at_once = max(1, min(ROWS, BYTES * known.num_rows // max(1, known.total_byte_size)))
                for batch in opened.iter_batches(at_once, [group], wanted):
                    for row in batch.to_pylist():
                        place += 1
                        if place > skip:
                            yield place, row
        except (OSError, pa.ArrowException) as error:
            raise CannotOpenError(f"{file} cannot be read after row {place}: {error}") from None


def json_form(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row in the form of JSON, but for a payload of bytes. Raises UsageError."""
    found = {name: value for name, value in row.items() if name not in ("properties", "properties_json", "verdict")}
    if row.get("payload") is None and row.get("payload_b64") is None and row.get("verdict") not in (None, "intact"):
        raise UsageError(f"it has no payload, as its verdict is {row['verdict']!r}; leave such rows out")
    for name in ("properties_json", "properties"):
        text = row.get(name)
        if isinstance(text, str):
            try:
                return {**found, "properties": json.loads(text)}
            except (ValueError, RecursionError) as error:
                raise UsageError(f"column {name} is not JSON: {error}") from None
    return {**found, "properties": _properties(row.get("properties"))}


def _properties(stored: Any) -> Any:
    if not isinstance(stored, dict):
        return stored
    found = {name: value for name, value in stored.items() if value is not None}
    for name, value in found.items():
        if isinstance(value, str) and LOST in value:
            raise UsageError(f"its {name} has lost bytes that are not UTF-8; export the column properties_json, or print it with -o jsonl")
    if "headers" in found:
        found["headers"] = [_header(each) for each in found["headers"]]
    return found


def _header(stored: Any) -> Any:
    if not (isinstance(stored, dict) and isinstance(stored.get("name"), str) and isinstance(stored.get("value"), str)):
        raise UsageError("a header has a name, a type and a value, which is JSON")
    if LOST in stored["name"]:
        raise UsageError("the name of a header has lost bytes that are not UTF-8; export the column properties_json")
    try:
        return [stored["name"], stored.get("type"), json.loads(stored["value"])]
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the value of header {stored['name']!r} is not JSON: {error}") from None


def _open(file: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise CannotOpenError(f"{file} cannot be read as Parquet: {error}") from None
