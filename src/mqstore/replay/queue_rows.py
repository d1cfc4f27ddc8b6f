"""Rows of a RabbitMQ store: JSON lines, as `messages -o jsonl --body base64` prints them, which may be edited, or Parquet.

    {"queue": "orders", "payload": "paid"}                               to this queue
    {"exchange": "shop", "routing_keys": ["orders.eu"], "payload": "…"}  without a queue: through the exchange, with the first key

`properties` are AMQP's, headers as printed or as an object. `payload_b64` is base64, `payload` text; a row that is printed has both the
length and the digest, which decide whether an edited payload is meant. The other columns are not needed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mqstore.errors import CannotOpenError, UsageError
from mqstore.files.regular_file import open_regular_file
from mqstore.jobs.load_rows import LONGEST_LINE, BadLineError, open_parquet, parquet_batches
from mqstore.rabbitmq.message.properties import PropertiesError, properties_from_json
from mqstore.replay.outgoing import ReplayMessage, born_of
from mqstore.table.columns import RABBITMQ_COLUMNS, RABBITMQ_EXTRA_COLUMNS

PARQUET = ".parquet"
_KNOWN = frozenset(RABBITMQ_COLUMNS) | frozenset(RABBITMQ_EXTRA_COLUMNS)
_TEXTS = ("vhost", "queue", "exchange", "payload", "payload_b64", "payload_sha256")
_OWN = ("queue", "exchange", "routing_keys", "payload", "payload_b64", "payload_len")


def holds_queue_rows(file: Path) -> bool:
    """Return whether the first row of a file is one of RabbitMQ. Raises CannotOpenError."""
    if file.suffix == PARQUET:
        names = column_names(file)
        return "topic" not in names and any(name in names for name in _OWN)
    try:
        with open_regular_file(file) as lines:
            while line := lines.readline(LONGEST_LINE + 1):
                if line.strip():
                    row = json.loads(line.decode("utf-8-sig"))
                    return isinstance(row, dict) and "topic" not in row and any(name in row for name in _OWN)
    except OSError as error:
        raise CannotOpenError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        return False
    return False


def queue_rows(file: Path, skip: int = 0) -> Iterator[ReplayMessage]:
    """Yield the messages of a file. skip: lines or rows to skip. Raises BadLineError, UsageError, CannotOpenError."""
    if file.suffix == PARQUET:
        for number, row in parquet_rows(file, skip):
            try:
                yield _message(_checked(json_form(row)), number, f"{file.name}#{number}")
            except UsageError as error:
                raise BadLineError(number, str(error)) from None
        return
    try:
        with open_regular_file(file) as lines:
            number = 0
            while line := lines.readline(LONGEST_LINE + 1):
                number += 1
                if number <= skip or not line.strip():
                    continue
                if len(line) > LONGEST_LINE:
                    raise BadLineError(number, f"it has more than {LONGEST_LINE} bytes")
                try:
                    yield _message(_row(line), number, f"{file.name}#{number}")
                except UsageError as error:
                    raise BadLineError(number, str(error)) from None
    except OSError as error:
        raise CannotOpenError(f"{file} cannot be read: {error.strerror}") from None


def _row(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UsageError(f"it is not UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"it is not a JSON object: {error}") from None
    if not isinstance(row, dict):
        raise UsageError("it is not a JSON object; JSON lines are wanted (-o jsonl)")
    for name in row:
        if name not in _KNOWN:
            raise UsageError(f"there is no column {name[:40]!r}; the columns are {', '.join(RABBITMQ_COLUMNS)}")
    if not isinstance(row.get("payload"), str | None):
        raise UsageError(f"column payload must be text, not {json.dumps(row['payload'])[:40]}")
    return _checked(row)


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    for name in _TEXTS:
        value = row.get(name)
        if name == "payload" and isinstance(value, bytes):
            continue
        if value is not None and not isinstance(value, str):
            raise UsageError(f"column {name} must be text, not {str(value)[:40]}")
        try:
            (value or "").encode()
        except UnicodeEncodeError:
            raise UsageError(f"column {name} holds half a character, which UTF-8 cannot encode") from None
    keys = row.get("routing_keys")
    if keys is not None and not (isinstance(keys, list) and all(isinstance(key, str) for key in keys)):
        raise UsageError("column routing_keys must be a list of texts")
    return row


def _message(row: dict[str, Any], number: int, mark: str) -> ReplayMessage:
    keys = row.get("routing_keys") or []
    queue, exchange = row.get("queue"), row.get("exchange") or ""
    if not queue and not keys:
        raise UsageError("it names neither a queue nor routing_keys")
    try:
        properties = properties_from_json(row.get("properties") or {})
    except PropertiesError as error:
        raise UsageError(str(error)) from None
    key = keys[0] if keys else ""
    return ReplayMessage(
        f"{row.get('vhost') or '?'}/{queue or f'{exchange} {key}'}",
        number,
        mark,
        queue or key,
        _payload(row),
        amqp=properties,
        born_timestamp=born_of(properties),
        exchange=exchange,
        routing_key=key,
        routed=not queue,
    )


def _payload(row: dict[str, Any]) -> bytes:
    if isinstance(row.get("payload"), bytes):
        stored: bytes = row["payload"]
        return stored
    text, encoded, digest = row.get("payload"), row.get("payload_b64"), row.get("payload_sha256")
    if encoded is not None:
        if text is not None:
            raise UsageError("it has both payload and payload_b64; keep one")
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise UsageError("column payload_b64 is not base64") from None
    if text is None:
        if digest is not None or row.get("payload_len"):
            raise UsageError("it comes from a store, but without its payload; print it with --body base64")
        return b""
    payload: bytes = text.encode()
    if "\ufffd" in text and digest is not None and hashlib.sha256(payload).hexdigest() != digest:
        raise UsageError("its payload was printed as text, which has lost bytes that are not UTF-8; print it with --body base64")
    return payload


# ---- rows of a RabbitMQ store in Parquet, as `export` and `salvage` write them, in the form of rows of JSON
#
# Properties as JSON, in the column `properties_json` or in `properties` itself, are as they were. As columns they are text: bytes that
# are not UTF-8 are lost in it, and such a row is refused. The value of a header is JSON.

LOST = "\ufffd"
_NEEDED = ("vhost", "queue", "exchange", "routing_keys", "properties", "properties_json", "payload", "payload_b64", "verdict")


def column_names(file: Path) -> list[str]:
    """Return the names of the columns of a file. Raises CannotOpenError."""
    with open_parquet(file) as opened:
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
    selected = [name for name in names if name in _NEEDED]
    number = 0
    with open_parquet(file) as opened:
        try:
            for last, batch in parquet_batches(opened, skip, selected):
                for number, row in enumerate(batch.to_pylist(), last - batch.num_rows + 1):
                    yield number, row
        except (OSError, pa.ArrowException) as error:
            raise CannotOpenError(f"{file} cannot be read after row {number}: {error}") from None


def json_form(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row in the form of JSON, but for a payload of bytes. Raises UsageError."""
    columns = {name: value for name, value in row.items() if name not in ("properties", "properties_json", "verdict")}
    if row.get("payload") is None and row.get("payload_b64") is None and row.get("verdict") not in (None, "intact"):
        raise UsageError(f"it has no payload, as its verdict is {row['verdict']!r}; leave such rows out")
    for name in ("properties_json", "properties"):
        text = row.get(name)
        if isinstance(text, str):
            try:
                return {**columns, "properties": json.loads(text)}
            except (ValueError, RecursionError) as error:
                raise UsageError(f"column {name} is not JSON: {error}") from None
    return {**columns, "properties": _json_properties(row.get("properties"))}


def _json_properties(stored: Any) -> Any:
    if not isinstance(stored, dict):
        return stored
    properties = {name: value for name, value in stored.items() if value is not None}
    for name, value in properties.items():
        if isinstance(value, str) and LOST in value:
            raise UsageError(f"its {name} has lost bytes that are not UTF-8; export the column properties_json, or print it with -o jsonl")
    if "headers" in properties:
        properties["headers"] = [_header(each) for each in properties["headers"]]
    return properties


def _header(stored: Any) -> Any:
    if not (isinstance(stored, dict) and isinstance(stored.get("name"), str) and isinstance(stored.get("value"), str)):
        raise UsageError("a header has a name, a type and a value, which is JSON")
    if LOST in stored["name"]:
        raise UsageError("the name of a header has lost bytes that are not UTF-8; export the column properties_json")
    try:
        return [stored["name"], stored.get("type"), json.loads(stored["value"])]
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the value of header {stored['name']!r} is not JSON: {error}") from None
