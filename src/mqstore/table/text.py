"""Message rows as text, a whole Arrow batch at a time: JSON objects and CSV cells.

For speed no row becomes a dictionary: each column becomes a list of JSON fragments, and a row is one `%` operation over its fragments.
Times are integers of milliseconds, bytes are base64 or text as requested, properties an object, lists arrays. The properties of a
RabbitMQ message arrive as JSON text and are passed through.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mqstore.table.columns import RABBITMQ_COLUMNS, ROCKETMQ_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

# columns with few distinct values, each of which is quoted once per batch
_REPETITIVE = frozenset({"topic", "tags", "born_host", "store_host", "store_file", "verdict", "vhost", "queue", "location", "exchange"})
_WORDS = {None: "null", True: "true", False: "false"}

# implemented in C if the json module has it
quote: Callable[[str], str] = json.encoder.encode_basestring


def columns_for(body: str) -> tuple[str, ...]:
    """Return the columns of a row, in order: the message table with the body as `--body` requests."""
    body_columns = {"none": ("body_len",), "sha256": ("body_len", "body_sha256")}.get(body, ("body_len", "body_sha256", "body"))
    names: list[str] = []
    for name in ROCKETMQ_COLUMNS:
        names.extend(body_columns if name == "body" else (name,))
    return tuple(names)


def rabbitmq_columns_for(body: str) -> tuple[str, ...]:
    """Return the columns of a RabbitMQ row, the payload as `--body` requests; for batches that go through `rename_properties_json`."""
    payload_columns = {
        "none": ("payload_len",),
        "sha256": ("payload_len", "payload_sha256"),
        "base64": ("payload_len", "payload_sha256", "payload_b64"),
    }.get(body, ("payload_len", "payload_sha256", "payload"))
    names: list[str] = []
    for name in RABBITMQ_COLUMNS:
        names.extend(payload_columns if name == "payload" else ("properties_json",) if name == "properties" else (name,))
    return (*names, "delivered_marker")


def rename_properties_json(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with its column properties_json renamed to `properties`, the name it has in a row."""
    return batch.rename_columns(["properties" if name == "properties_json" else name for name in batch.schema.names])


def body_text(body: bytes | None) -> str | None:
    """Decode a body, with U+FFFD for bytes that are not UTF-8."""
    return None if body is None else body.decode("utf-8", "replace")


def body_base64(body: bytes | None) -> str | None:
    """Encode a body as base64."""
    return None if body is None else base64.b64encode(body).decode("ascii")


def _quoted(values: Iterable[str | None]) -> list[str]:
    return ["null" if value is None else quote(value) for value in values]


def _json_objects(column: Any) -> list[str]:
    """Return the JSON objects of a map column; names and values are quoted once for the whole column."""
    offsets = column.offsets.to_pylist()
    names = _quoted(column.keys.to_pylist())
    values = _quoted(column.items.to_pylist())
    pairs = [f"{name}:{value}" for name, value in zip(names, values, strict=True)]
    valid = column.is_valid().to_pylist()
    return [
        "{" + ",".join(pairs[low:high]) + "}" if present else "null"
        for low, high, present in zip(offsets[:-1], offsets[1:], valid, strict=True)
    ]


def _fragments(column: Any, name: str, body: str) -> Sequence[object]:
    """Return an object per value whose `%s` is the value's JSON."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_map(kind):
        return _json_objects(column)
    values: list[Any] = column.to_pylist()
    if pa.types.is_binary(kind):
        shown = body_text if body == "text" else body_base64
        return _quoted(map(shown, values))
    if pa.types.is_list(kind) or pa.types.is_struct(kind):
        return [json.dumps(value, ensure_ascii=False) for value in values]
    if pa.types.is_string(kind):
        if name == "properties":
            return ["null" if value is None else value for value in values]
        if name not in _REPETITIVE:
            return _quoted(values)
        quoted = {value: "null" if value is None else quote(value) for value in set(values)}
        return [quoted[value] for value in values]
    if pa.types.is_boolean(kind):
        return [_WORDS[value] for value in values]
    return values if not column.null_count else ["null" if value is None else value for value in values]


def json_rows(batch: pa.RecordBatch, body: str) -> list[str]:
    """Return one JSON object per row, without line ends."""
    names = batch.schema.names
    template = "{" + ",".join(f"{quote(name)}:%s" for name in names) + "}"
    fragments = [_fragments(batch.column(k), name, body) for k, name in enumerate(names)]
    return [template % row for row in zip(*fragments, strict=True)]


def python_rows(batch: pa.RecordBatch, body: str) -> Iterator[dict[str, Any]]:
    """Yield the rows as dictionaries of JSON values, for a few rows within a larger document."""
    for row in json_rows(batch, body):
        yield json.loads(row)


def csv_rows(batch: pa.RecordBatch, body: str) -> Sequence[tuple[Any, ...]]:
    """Return the cells of each row: empty for null, true and false, properties as a JSON object."""
    import pyarrow as pa

    cells: list[Sequence[Any]] = []
    for k, name in enumerate(batch.schema.names):
        column = batch.column(k)
        if pa.types.is_map(column.type):
            cells.append(_json_objects(column))
        elif pa.types.is_binary(column.type):
            shown = body_text if body == "text" else body_base64
            cells.append([shown(value) for value in column.to_pylist()])
        elif pa.types.is_list(column.type) or pa.types.is_struct(column.type):
            cells.append([None if value is None else json.dumps(value, ensure_ascii=False) for value in column.to_pylist()])
        elif pa.types.is_boolean(column.type):
            cells.append(_fragments(column, name, body))
        else:
            cells.append(column.to_pylist())
    return list(zip(*cells, strict=True))
