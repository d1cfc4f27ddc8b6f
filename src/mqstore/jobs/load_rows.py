"""Rows that `load` accepts, as Arrow batches: JSON lines as `messages -o jsonl` prints them, and Parquet as `export` writes it.

A batch holds at most ROWS rows, or about BYTES if rows are long. Either all of its rows come from a store (they have a physical offset) or
none. An error in a line or row is raised with its number, after all rows before it have been yielded.

    {"topic": "orders", "body": "paid"}        is enough for a message; the other columns of the message table are optional
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote

from mqstore.errors import CannotOpenError, UsageError
from mqstore.table.columns import EXTRA_COLUMNS, ROCKETMQ_COLUMNS, rocketmq_schema
from mqstore.table.formatting import shorten
from mqstore.table.row_files import NULL_PARTITION

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 8192
BYTES = 8 << 20
LONGEST_LINE = 64 << 20

_KNOWN = frozenset(ROCKETMQ_COLUMNS) | frozenset(EXTRA_COLUMNS)
_TEXTS = ("topic", "tags", "uniq_key", "born_host", "store_host")
_NUMBERS = ("queue_id", "flag", "sys_flag", "reconsume_times", "prepared_transaction_offset", "born_timestamp")
_TAKEN = (*_TEXTS, "keys", "body", *_NUMBERS, "properties")
_MARKS = ("physical_offset", "verdict")


class BodyForm(StrEnum):
    """The encoding of bodies in JSON rows."""

    AUTO = "auto"
    TEXT = "text"
    BASE64 = "base64"


class BadLineError(UsageError):
    """A line or row that is not a message. number: from 1."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Some messages. numbers: of the line or row of each. stored: they come from a store. doubtful: number of damaged or duplicate ones.

    done: bytes of the source read so far.
    """

    batch: pa.RecordBatch
    numbers: Sequence[int]
    stored: bool
    doubtful: int
    done: int


@dataclass(frozen=True, slots=True)
class Source:
    """A source of messages. noun: line, or row. size: in bytes, 0 if unknown. rows: can be iterated once."""

    name: str
    noun: str
    size: int
    rows: Iterator[SourceRows]


def open_source(name: str, skip: int, form: BodyForm) -> Source:
    """Open a file, a directory of Parquet files, or `-` for standard input. skip: lines or rows to skip. Raises MqstoreError."""
    if name == "-":
        return Source("standard input", "line", 0, _json_rows(sys.stdin.buffer, skip, form))
    path = Path(name)
    if path.is_dir():
        from mqstore.files.readonly import walk_tree  # imports NumPy, which a help page does not need

        below = (Path(above, each) for above, _, names in walk_tree(path) for each in names if each.endswith(".parquet"))
        files = sorted(below, key=lambda path: (path.name, path))
        if not files:
            raise UsageError(f"{path} contains no Parquet files; load accepts JSON lines and Parquet")
        return _parquet(name, files, path, skip)
    try:
        stream = path.open("rb")
    except OSError as error:
        raise CannotOpenError(f"{path} cannot be read: {error.strerror}") from None
    if stream.peek(4)[:4] == b"PAR1":
        stream.close()
        return _parquet(name, [path], path.parent, skip)
    return Source(name, "line", os.fstat(stream.fileno()).st_size, _json_rows(stream, skip, form))


# JSON lines


class _Columns:
    """Rows of one batch, column by column."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.stored = False
        self.doubtful = 0
        self.bytes = 0
        self._values: dict[str, list[Any]] = {name: [] for name in _TAKEN}

    def add(self, row: dict[str, Any], number: int, length: int) -> None:
        for name, values in self._values.items():
            values.append(row.get(name))
        self.numbers.append(number)
        self.doubtful += row.get("verdict") in ("damaged", "duplicate")
        self.bytes += length

    def rows(self, done: int) -> SourceRows:
        import pyarrow as pa

        kinds = dict.fromkeys(_NUMBERS, pa.int64()) | {"body": pa.binary(), "properties": pa.map_(pa.string(), pa.string())}
        arrays = {
            name: pa.array(values, kinds.get(name, pa.string()))
            for name, values in self._values.items()
            if name == "topic" or any(value is not None for value in values)
        }
        return SourceRows(pa.RecordBatch.from_pydict(arrays), self.numbers, self.stored, self.doubtful, done)


def _json_rows(stream: IO[bytes], skip: int, form: BodyForm) -> Iterator[SourceRows]:
    done = number = 0
    columns = _Columns()
    bad: BadLineError | None = None
    while line := stream.readline(LONGEST_LINE + 1):
        done += len(line)
        number += 1
        if number <= skip or not line.strip():
            continue
        try:
            if len(line) > LONGEST_LINE:
                raise UsageError(f"it has more than {LONGEST_LINE} bytes")
            row = _row(line, form)
        except UsageError as error:
            bad = BadLineError(number, str(error))
            break
        stored = row.pop("physical_offset", None) is not None
        if columns.numbers and (stored != columns.stored or len(columns.numbers) >= ROWS or columns.bytes >= BYTES):
            yield columns.rows(done)
            columns = _Columns()
        columns.stored = stored
        columns.add(row, number, len(line))
    if columns.numbers:
        yield columns.rows(done)
    if bad is not None:
        raise bad


def _row(line: bytes, form: BodyForm) -> dict[str, Any]:
    """A line as values that Arrow takes. Raises UsageError."""
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UsageError(f"it is not UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        hint = "; JSON lines are wanted (-o jsonl), not one array" if line.lstrip().startswith(b"[") else ""
        raise UsageError(f"it is not a JSON object: {error}{hint}") from None
    if not isinstance(row, dict):
        raise UsageError(f"it is not a JSON object{'; JSON lines are wanted (-o jsonl), not one array' if isinstance(row, list) else ''}")
    for name in row:
        if name not in _KNOWN:
            raise UsageError(f"there is no column {shorten(name, 40)!r}; the columns are {', '.join(_TAKEN)}")
    for name in _TEXTS:
        if row.get(name) is not None:
            _check_text(name, row[name])
    if row.get("topic") is None:
        raise UsageError("it names no topic")
    for name in _NUMBERS:
        value = row.get(name)
        if value is not None and (type(value) is not int or not -(1 << 63) <= value < 1 << 63):
            raise UsageError(f"column {name} must be a whole number of 64 bits, not {shorten(json.dumps(value), 40)}")
    row["keys"] = _keys_text(row.get("keys"))
    row["properties"] = _properties(row.get("properties"))
    row["body"] = _decode_body(row, form)
    return row


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise UsageError(f"column {name} must be text, not {shorten(json.dumps(value), 40)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UsageError(f"column {name} holds half a character, which UTF-8 cannot encode") from None


def _keys_text(value: Any) -> str | None:
    """Keys as the text of KEYS: given so, or as a list."""
    if isinstance(value, list):
        for key in value:
            _check_text("keys", key)
        return " ".join(value) or None
    if value is None:
        return None
    _check_text("keys", value)
    return str(value)


def _properties(value: Any) -> list[tuple[str, str]] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise UsageError(f"column properties must be an object of texts, not {shorten(json.dumps(value), 40)}")
    for name, text in value.items():
        _check_text("properties", name)
        _check_text("properties", text)
    return list(value.items())


def _decode_body(row: dict[str, Any], form: BodyForm) -> bytes:
    """Decode the body; with AUTO the digest that `messages` prints decides, and without a digest it is text."""
    body = row.get("body")
    digest = row.get("body_sha256")
    if body is None:
        if digest is not None or row.get("body_len") or row.get("physical_offset") is not None:
            raise UsageError("it comes from a store, but without its body; print it with --body base64 (null: verify reports why)")
        return b""
    _check_text("body", body)
    if form is BodyForm.TEXT:
        return bytes(body.encode())
    if form is BodyForm.AUTO and digest is None:
        return bytes(body.encode())
    try:
        decoded = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        decoded = None
    if form is BodyForm.BASE64:
        if decoded is None:
            raise UsageError("column body is not base64")
        return decoded
    for each in (decoded, body.encode()):
        if each is not None and hashlib.sha256(each).hexdigest() == digest:
            return bytes(each)
    raise UsageError(
        "its body fits body_sha256 neither as base64 nor as text: print it with --body base64, or state with --body what it is"
    )


# Parquet


def _parquet(name: str, files: Sequence[Path], root: Path, skip: int) -> Source:
    """Check all files before anything is loaded. Raises UsageError, CannotOpenError."""
    size = sum(path.stat().st_size for path in files)
    for path in files:
        with open_parquet(path) as file:
            columns = [*file.schema_arrow.names, *_of_path(path, root)]
        unknown = next((column for column in columns if column not in _KNOWN), None)
        if unknown is not None:
            raise UsageError(f"{path}: there is no column {unknown!r}; the columns are {', '.join(_TAKEN)}")
        if "topic" not in columns:
            raise UsageError(f"{path}: there is no column topic, without which no message can be stored")
        if "physical_offset" in columns and "body" not in columns:
            raise UsageError(f"{path} holds messages of a store without their bodies; export it with the column body")
    return Source(name, "row", size, _parquet_rows(files, root, skip))


def open_parquet(path: Path) -> Any:
    """Open a file to read a group of rows at a time. Raises CannotOpenError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise CannotOpenError(f"{path} cannot be read as Parquet: {error}") from None


def _of_path(path: Path, root: Path) -> dict[str, str | None]:
    """Return the columns in the path of a partitioned file; days are left out, because they are not times."""
    columns: dict[str, str | None] = {}
    for part in path.relative_to(root).parts[:-1]:
        column, equals, value = part.partition("=")
        if equals and not column.endswith("_day"):
            columns[column] = None if value == NULL_PARTITION else unquote(value)
    return columns


def _parquet_rows(files: Sequence[Path], root: Path, skip: int) -> Iterator[SourceRows]:
    import pyarrow as pa

    number = done = 0
    for path in files:
        size = path.stat().st_size
        of_path = _of_path(path, root)
        with open_parquet(path) as file:
            total = file.metadata.num_rows
            selected = [column for column in file.schema_arrow.names if column in (*_TAKEN, *_MARKS)]
            before = number
            try:
                for read, batch in parquet_batches(file, skip - before, selected):
                    number = before + read
                    rows = _with_path(batch, of_path)
                    yield from _rows_with_bodies(rows, number, done + size * read // max(1, total))
            except (OSError, pa.ArrowException) as error:
                raise BadLineError(number + 1, f"{path} cannot be read further: {error}") from None
        number = before + total
        done += size


def parquet_batches(file: Any, skip: int, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of a file after the first `skip`, in batches with the number of rows up to their end. columns: to read."""
    number = 0
    for group in range(file.metadata.num_row_groups):
        known = file.metadata.row_group(group)
        if number + known.num_rows <= skip:
            number += known.num_rows
            continue
        at_once = max(1, min(ROWS, BYTES * known.num_rows // max(1, known.total_byte_size)))
        for batch in file.iter_batches(at_once, [group], columns):
            left_out = min(batch.num_rows, max(0, skip - number))
            number += batch.num_rows
            if left_out < batch.num_rows:
                yield number, batch.slice(left_out)


def _with_path(batch: pa.RecordBatch, of_path: dict[str, str | None]) -> pa.RecordBatch:
    import pyarrow as pa

    for name, text in of_path.items():
        if name in _TAKEN and name not in batch.schema.names:
            value = pa.array([text]).cast(rocketmq_schema([name]).field(0).type)
            batch = batch.append_column(name, pa.repeat(value[0], batch.num_rows))
    return batch


def _rows_with_bodies(batch: pa.RecordBatch, end: int, done: int) -> Iterator[SourceRows]:
    """Yield the rows before one whose body the source store could not read, then raise the error for it."""
    import pyarrow.compute as pc

    stored = "physical_offset" in batch.schema.names
    first = end - batch.num_rows + 1
    doubtful = 0
    if "verdict" in batch.schema.names:
        doubtful = pc.sum(pc.is_in(batch.column("verdict"), value_set=_doubtful())).as_py() or 0
    lost = -1
    if stored and batch.column("body").null_count:
        lost = pc.index(batch.column("body").is_null(), True).as_py()
    good = batch.slice(0, lost) if lost >= 0 else batch
    good = good.select([name for name in good.schema.names if name in _TAKEN])
    if good.num_rows:
        yield SourceRows(good, range(first, first + good.num_rows), stored, doubtful, done)
    if lost >= 0:
        raise BadLineError(first + lost, "the store it comes from could not read its body: it is null")


def _doubtful() -> pa.Array:
    import pyarrow as pa

    return pa.array(["damaged", "duplicate"])
