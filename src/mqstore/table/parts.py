"""Part files of an export: the rows that one task writes, as Parquet, JSON lines or CSV.

A task writes to the staging directory under names that no other attempt uses, and returns what it wrote. The driver decides which
attempt counts, and moves its files to their final names. A Parquet row group holds 64 MiB of Arrow data.

    part-00003.parquet               the rows of the fourth task
    topic=orders/part-00003.parquet  the same with `partition_by=("topic",)`; the partition column is in the path only

A time used for partitioning becomes a day: `store_timestamp` yields `store_day=2022-01-31`.
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

FORMATS = ("parquet", "jsonl", "csv")

GROUP_BYTES = 64 << 20  # Arrow data per row group
GROUP_ROWS = 1 << 17
MAX_PARTITIONS = 1000  # open files per task
MAX_NAME = 255  # bytes of a file name on most file systems
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"

# columns with few distinct values get a dictionary, columns that readers filter by get bounds; for the others both only cost time
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
class PartFile:
    """One file. staged: its name in the staging directory; name: its final path below the target; bytes: its size."""

    staged: str
    name: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """What one task wrote, and the damage it met. damage_untold: number of findings beyond those in `damage`."""

    parts: tuple[PartFile, ...]
    rows: int
    damage: tuple[Damage, ...]
    damage_untold: int


class RowFile(Protocol):
    """An open part file."""

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
class _OpenPart:
    """A part file with the batches not yet written to it."""

    staged: str
    name: str
    file: RowFile
    waiting: list[pa.RecordBatch]
    waiting_bytes: int = 0
    waiting_rows: int = 0
    rows: int = 0


class PartFiles:
    """The part files of one task: one, or one per value of the partition columns.

    number: of the task, part of the file names. metadata: key-value pairs for each Parquet file. keep: partition columns stay in the files.
    """

    def __init__(
        self,
        stage: DurableDirectory,
        number: int,
        format: str,  # noqa: A002
        partition_by: tuple[str, ...] = (),
        metadata: tuple[tuple[str, str], ...] = (),
        *,
        keep: bool = False,
    ) -> None:
        self._keep = keep
        self._stage = stage
        self._number = number
        self._format = format
        self._partition_by = partition_by
        self._metadata = metadata
        self._files: dict[str, _OpenPart] = {}
        self._token = secrets.token_hex(6)
        self._waiting_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows. Raises UsageError if they have too many distinct partition values."""
        if not self._partition_by:
            self._put("", batch)
            return
        for directory, part in split_by_partition(batch, self._partition_by, keep=self._keep):
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
            # many small partitions: write the fullest
            self._flush(max(self._files.values(), key=lambda each: each.waiting_bytes))

    def _open(self, directory: str, batch: pa.RecordBatch) -> _OpenPart:
        if len(self._files) >= MAX_PARTITIONS:
            raise UsageError(
                f"the columns {', '.join(self._partition_by)} have more than {MAX_PARTITIONS} distinct values; "
                "choose other columns for --partition-by"
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
        return _OpenPart(staged, f"{directory}/{name}" if directory else name, file, [])

    def _flush(self, under: _OpenPart) -> None:
        if under.waiting:
            under.file.write(under.waiting)
            under.rows += under.waiting_rows
            self._waiting_bytes -= under.waiting_bytes
            under.waiting, under.waiting_bytes, under.waiting_rows = [], 0, 0

    def finish(self) -> tuple[PartFile, ...]:
        """Write the remaining rows, close the files and return them."""
        parts = []
        for under in self._files.values():
            self._flush(under)
            under.file.close()
            with self._stage.open(under.staged) as written:
                parts.append(PartFile(under.staged, under.name, under.rows, written.size))
        return tuple(parts)


def split_by_partition(batch: pa.RecordBatch, columns: Sequence[str], *, keep: bool = False) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Split a batch by the values of the columns: yield (directory, rows). Columns that are in the path are dropped unless `keep`."""
    import pyarrow as pa

    labels = [_path_values(batch.column(name), name) for name in columns]
    codes = np.zeros(batch.num_rows, np.int64)
    for label in labels:
        encoded = label.dictionary_encode()
        codes = codes * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy(zero_copy_only=False)
    kept = batch.select([name for name in batch.schema.names if keep or name not in columns or name in TIME_COLUMNS])
    for code in dict.fromkeys(codes.tolist()):
        rows = np.flatnonzero(codes == code)
        values = [label[int(rows[0])].as_py() for label in labels]
        directory = "/".join(_partition_directory(name, value) for name, value in zip(columns, values, strict=True))
        yield directory, kept if len(rows) == batch.num_rows else kept.take(pa.array(rows))


def _partition_directory(column: str, value: str) -> str:
    name = column.removesuffix("_timestamp") + "_day" if column in TIME_COLUMNS else column
    directory = f"{name}={quote(value, safe=' ', errors='replace')}"
    if len(directory) > MAX_NAME:
        raise UsageError(f"the {column} {value[:40]!r}… is too long for a directory name; choose other columns for --partition-by")
    return directory


def _path_values(values: pa.Array, column: str) -> pa.Array:
    """Return the text that represents each value in a path."""
    import pyarrow as pa

    if column in TIME_COLUMNS:
        unit = "ms" if pa.types.is_integer(values.type) else "us"
        stamps = values.to_numpy(zero_copy_only=False).astype(f"datetime64[{unit}]")
        days = stamps.astype("datetime64[D]").astype(str)
        return pa.array(np.where(np.isnat(stamps), NULL_PARTITION, days).tolist(), pa.string())
    known = [value if value is None or isinstance(value, str) else str(value).lower() for value in values.to_pylist()]
    return pa.array([NULL_PARTITION if text is None else text for text in known], pa.string())
