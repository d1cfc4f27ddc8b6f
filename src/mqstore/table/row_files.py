"""Files of message rows: the part files that one task of an export writes, as Parquet, JSON lines or CSV, and one new file.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import numpy as np

from mqstore.errors import UsageError
from mqstore.files.durable import DurableDirectory, NewFile
from mqstore.files.durable_file import DurableFile
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
    columns_left = batch.select([name for name in batch.schema.names if keep or name not in columns or name in TIME_COLUMNS])
    for code in dict.fromkeys(codes.tolist()):
        rows = np.flatnonzero(codes == code)
        values = [label[int(rows[0])].as_py() for label in labels]
        directory = "/".join(_partition_directory(name, value) for name, value in zip(columns, values, strict=True))
        yield directory, columns_left if len(rows) == batch.num_rows else columns_left.take(pa.array(rows))


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


# ---- one file of message rows, JSON lines or Parquet, which appears under its name only when complete
#
# Rows are filtered by verdict; those left out are counted as well.

ROW_FORMATS = ("jsonl", "parquet")


@dataclass(slots=True)
class RowCounts:
    """What a file holds. rows, bytes: of the file; verdicts: rows read, by verdict, including those left out."""

    rows: int = 0
    bytes: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)


Complete = Callable[[NewFile, RowCounts], None]  # called with a file that is written, and not yet under its name


def format_of(to: Path, asked: str | None) -> str:
    """Return the requested format, or the one implied by the file name. Raises UsageError."""
    chosen = asked or {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".pq": "parquet"}.get(
        to.suffix.lower()
    )
    if chosen not in ROW_FORMATS:
        raise UsageError(f"the format of {to} is not known from its name; name it .jsonl or .parquet, or give --format")
    return chosen


def filter_by_verdict(batches: Iterable[pa.RecordBatch], verdicts: frozenset[str], counts: RowCounts) -> Iterator[pa.RecordBatch]:
    """Yield the rows with these verdicts; count all rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    selected = pa.array(sorted(verdicts), pa.string())
    for batch in batches:
        column = batch.column("verdict")
        for item in pc.value_counts(column).to_pylist():
            counts.verdicts[item["values"]] = counts.verdicts.get(item["values"], 0) + item["counts"]
        rows = batch.filter(pc.is_in(column, selected))
        if rows.num_rows:
            counts.rows += rows.num_rows
            yield rows


def write_rows(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    to: Path,
    format: str,  # noqa: A002
    verdicts: frozenset[str],
    progress: Callable[[int, int], None] | None = None,
) -> RowCounts:
    """Write the rows with these verdicts to a new file. schema: of the batches.

    progress: takes the number of messages read so far, and 0 for their total. Raises TargetError.
    """
    counts = RowCounts()
    with NewFile(to) as new:
        rows = filter_by_verdict(batches if progress is None else _counted(batches, progress), verdicts, counts)
        if format == "jsonl":
            for batch in rows:
                new.file.write("".join(f"{row}\n" for row in json_rows(batch, "base64")).encode("utf-8", "backslashreplace"))
        else:
            _write_parquet(rows, schema, new.file)
        counts.bytes = new.file.size
        new.publish()
    return counts


def _counted(batches: Iterable[pa.RecordBatch], progress: Callable[[int, int], None]) -> Iterator[pa.RecordBatch]:
    read = 0
    for batch in batches:
        yield batch
        read += batch.num_rows
        progress(read, 0)


def _write_parquet(rows: Iterable[pa.RecordBatch], schema: pa.Schema, sink: Any) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for batch in rows:
            writer.write_batch(batch)
