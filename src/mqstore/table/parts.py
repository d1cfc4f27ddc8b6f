"""Rows of a message table written to files by a task: Parquet with pyarrow, JSON lines and CSV as the commands print them.

A task writes files of its own into a staged directory, under names that no other attempt has, and tells what it wrote;
which of them count is decided by who hears of it. A Parquet row group is what comes together in 64 MiB.

    part-00003.parquet               the rows of the fourth task
    topic=orders/part-00003.parquet  the same with `partition_by=("topic",)`; such a column stands in the path only

A time to partition by becomes a day: `store_timestamp` makes `store_day=2022-01-31`.
"""

from __future__ import annotations

import csv
import io
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import numpy as np

from mqstore.errors import UsageError
from mqstore.files.durable import DurableDirectory, DurableFile
from mqstore.findings import Damage
from mqstore.table.columns import TIME_COLUMNS
from mqstore.table.text import csv_rows, json_rows

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FORMATS", "REPETITIVE", "SEARCHED", "Exported", "Part", "PartFiles", "partitioned"]

FORMATS = ("parquet", "jsonl", "csv")

GROUP_BYTES = 64 << 20  # of Arrow data that becomes one row group
GROUP_ROWS = 1 << 17
MAX_PARTITIONS = 1000  # files that one task keeps open
MAX_NAME = 255  # bytes of a file name on most file systems
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"

# columns of few different values, and columns that readers search by: a dictionary or bounds of the others only cost time
REPETITIVE = (
    "topic",
    "queue_id",
    "size",
    "tags",
    "flag",
    "sys_flag",
    "reconsume_times",
    "prepared_transaction_offset",
    "born_host",
    "store_host",
    "store_file",
    "verdict",
    "vhost",
    "queue",
    "priority_level",
    "queue_version",
    "location",
    "exchange",
)
SEARCHED = (
    "topic",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "size",
    "tags",
    "born_timestamp",
    "store_timestamp",
    "verdict",
    "vhost",
    "queue",
    "seq_id",
    "pos",
    "msg_id",
)


@dataclass(frozen=True, slots=True)
class Part:
    """One file. staged: its path in the stage; name: what it is to be called; bytes: its size."""

    staged: str
    name: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Exported:
    """What one task wrote, and what it could not believe."""

    parts: tuple[Part, ...]
    rows: int
    damage: tuple[Damage, ...]
    damage_untold: int


class RowFile(Protocol):
    """One file under way."""

    def write(self, batches: Sequence[pa.RecordBatch]) -> None: ...
    def close(self) -> None: ...


class _Parquet:
    def __init__(self, sink: DurableFile, schema: pa.Schema, metadata: tuple[tuple[str, str], ...]) -> None:
        import pyarrow.parquet as pq

        self._schema = schema.with_metadata(dict(metadata))
        self._sink = sink
        self._writer = pq.ParquetWriter(
            sink,
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in schema.names if name in REPETITIVE],
            write_statistics=[name for name in schema.names if name in SEARCHED],
        )

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches(batches).replace_schema_metadata(self._schema.metadata)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> None:
        self._writer.close()
        self._sink.close()


class _JsonLines:
    def __init__(self, sink: DurableFile) -> None:
        self._sink = sink

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        for batch in batches:
            self._sink.write("".join(f"{row}\n" for row in json_rows(batch, "base64")).encode("utf-8", "replace"))

    def close(self) -> None:
        self._sink.close()


class _Csv:
    def __init__(self, sink: DurableFile, names: Sequence[str]) -> None:
        self._sink = sink
        self._put([names])

    def _put(self, rows: Sequence[Sequence[Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._sink.write(text.getvalue().encode("utf-8", "replace"))

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        for batch in batches:
            self._put(csv_rows(batch, "base64"))

    def close(self) -> None:
        self._sink.close()


@dataclass(slots=True)
class _Under:
    """A file and what waits to be written to it."""

    staged: str
    name: str
    file: RowFile
    waiting: list[pa.RecordBatch]
    waiting_bytes: int = 0
    waiting_rows: int = 0
    rows: int = 0


class PartFiles:
    """The files of one task: one, or one per value of the partition columns. number: of the task, from which the names come.

    metadata: goes into each Parquet file.
    """

    def __init__(
        self,
        stage: DurableDirectory,
        number: int,
        format: str,  # noqa: A002
        partition_by: tuple[str, ...] = (),
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._stage = stage
        self._number = number
        self._format = format
        self._partition_by = partition_by
        self._metadata = metadata
        self._files: dict[str, _Under] = {}
        self._token = secrets.token_hex(6)
        self._waiting_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not self._partition_by:
            self._put("", batch)
            return
        for directory, part in partitioned(batch, self._partition_by):
            self._put(directory, part)

    def _put(self, directory: str, batch: pa.RecordBatch) -> None:
        under = self._files.get(directory)
        if under is None:
            under = self._files[directory] = self._open(directory, batch)
        under.waiting.append(batch)
        under.waiting_bytes += batch.nbytes
        under.waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if under.waiting_bytes >= GROUP_BYTES or under.waiting_rows >= GROUP_ROWS:
            self._flush(under)
        elif self._waiting_bytes >= 2 * GROUP_BYTES:
            # many small partitions: the fullest makes room
            self._flush(max(self._files.values(), key=lambda each: each.waiting_bytes))

    def _open(self, directory: str, batch: pa.RecordBatch) -> _Under:
        if len(self._files) >= MAX_PARTITIONS:
            raise UsageError(
                f"the columns {', '.join(self._partition_by)} have more than {MAX_PARTITIONS} different values; "
                "choose others for --partition-by"
            )
        number = len(self._files)
        staged = f"{self._number:06d}.{self._token}.{number}"
        name = f"part-{self._number:05d}.{self._format}"
        sink = self._stage.open_new(staged)
        file: RowFile
        if self._format == "parquet":
            file = _Parquet(sink, batch.schema, self._metadata)
        elif self._format == "jsonl":
            file = _JsonLines(sink)
        else:
            file = _Csv(sink, batch.schema.names)
        return _Under(staged, f"{directory}/{name}" if directory else name, file, [])

    def _flush(self, under: _Under) -> None:
        if under.waiting:
            under.file.write(under.waiting)
            under.rows += under.waiting_rows
            self._waiting_bytes -= under.waiting_bytes
            under.waiting, under.waiting_bytes, under.waiting_rows = [], 0, 0

    def finish(self) -> tuple[Part, ...]:
        """Write what waits; the files."""
        parts = []
        for under in self._files.values():
            self._flush(under)
            under.file.close()
            with self._stage.open(under.staged) as written:
                parts.append(Part(under.staged, under.name, under.rows, written.size))
        return tuple(parts)


def partitioned(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The batch cut by the values of the columns: (directory, rows) in the order of the batch. Columns that a path tells are left out."""
    import pyarrow as pa

    labels = [_labels(batch.column(name), name) for name in columns]
    codes = np.zeros(batch.num_rows, np.int64)
    for label in labels:
        encoded = label.dictionary_encode()
        codes = codes * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy(zero_copy_only=False)
    kept = batch.select([name for name in batch.schema.names if name not in columns or name in TIME_COLUMNS])
    for code in dict.fromkeys(codes.tolist()):
        rows = np.flatnonzero(codes == code)
        values = [label[int(rows[0])].as_py() for label in labels]
        directory = "/".join(_directory(name, value) for name, value in zip(columns, values, strict=True))
        yield directory, kept if len(rows) == batch.num_rows else kept.take(pa.array(rows))


def _directory(column: str, value: str) -> str:
    name = column.removesuffix("_timestamp") + "_day" if column in TIME_COLUMNS else column
    directory = f"{name}={quote(value, safe=' ', errors='replace')}"
    if len(directory) > MAX_NAME:
        raise UsageError(f"the {column} {value[:40]!r}… is too long for the name of a directory; choose other columns for --partition-by")
    return directory


def _labels(values: pa.Array, column: str) -> pa.Array:
    """What a path says of each value."""
    import pyarrow as pa

    if column in TIME_COLUMNS:
        unit = "ms" if pa.types.is_integer(values.type) else "us"
        stamps = values.to_numpy(zero_copy_only=False).astype(f"datetime64[{unit}]")
        days = stamps.astype("datetime64[D]").astype(str)
        return pa.array(np.where(np.isnat(stamps), NULL_PARTITION, days).tolist(), pa.string())
    known = [value if value is None or isinstance(value, str) else str(value).lower() for value in values.to_pylist()]
    return pa.array([NULL_PARTITION if text is None else text for text in known], pa.string())
