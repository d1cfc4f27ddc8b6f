"""One file of message rows, JSON lines or Parquet, which appears under its name only when complete.

Rows are filtered by verdict; those left out are counted as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.errors import UsageError
from mqstore.files.durable import NewFile
from mqstore.table.text import json_rows

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("jsonl", "parquet")


@dataclass(slots=True)
class RowCounts:
    """What a file holds. rows, bytes: of the file; verdicts: rows read, by verdict, including those left out."""

    rows: int = 0
    bytes: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)


Complete = Callable[[NewFile, RowCounts], None]  # called with a file that is written, and not yet under its name


def format_of(to: Path, asked: str | None) -> str:
    """Return the requested format, or the one implied by the file name. Raises UsageError."""
    found = asked or {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".pq": "parquet"}.get(
        to.suffix.lower()
    )
    if found not in FORMATS:
        raise UsageError(f"the format of {to} is not known from its name; name it .jsonl or .parquet, or give --format")
    return found


def filter_by_verdict(batches: Iterable[pa.RecordBatch], verdicts: frozenset[str], counts: RowCounts) -> Iterator[pa.RecordBatch]:
    """Yield the rows with these verdicts; count all rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array(sorted(verdicts), pa.string())
    for batch in batches:
        column = batch.column("verdict")
        for item in pc.value_counts(column).to_pylist():
            counts.verdicts[item["values"]] = counts.verdicts.get(item["values"], 0) + item["counts"]
        kept = batch.filter(pc.is_in(column, wanted))
        if kept.num_rows:
            counts.rows += kept.num_rows
            yield kept


def write_rows(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    to: Path,
    format: str,  # noqa: A002
    verdicts: frozenset[str],
    complete: Complete | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RowCounts:
    """Write the rows with these verdicts to a new file. schema: of the batches. complete: called before the file is published.

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
        if complete is not None:
            complete(new, counts)
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
