"""One file of message rows, JSON lines or Parquet, which appears when it is whole; rows counted by their verdict on the way.

Rows of verdicts that were not asked for are counted and left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.errors import UsageError
from mqstore.files.durable import NewFile
from mqstore.table.text import json_rows

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FORMATS", "Written", "format_of", "picked", "write_rows"]

FORMATS = ("jsonl", "parquet")


@dataclass(slots=True)
class Written:
    """rows: in the file; bytes: of it; verdicts: rows met, by verdict, those left out included."""

    rows: int = 0
    bytes: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)


def format_of(to: Path, asked: str | None) -> str:
    """The format that was asked for, or that the name tells. Raises UsageError."""
    found = asked or {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".pq": "parquet"}.get(
        to.suffix.lower()
    )
    if found not in FORMATS:
        raise UsageError(f"{to} does not tell a format; name it .jsonl or .parquet, or give --format")
    return found


def picked(batches: Iterable[pa.RecordBatch], verdicts: frozenset[str], written: Written) -> Iterator[pa.RecordBatch]:
    """The rows of these verdicts; all are counted."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array(sorted(verdicts), pa.string())
    for batch in batches:
        column = batch.column("verdict")
        for item in pc.value_counts(column).to_pylist():
            written.verdicts[item["values"]] = written.verdicts.get(item["values"], 0) + item["counts"]
        kept = batch.filter(pc.is_in(column, wanted))
        if kept.num_rows:
            written.rows += kept.num_rows
            yield kept


def write_rows(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    to: Path,
    format: str,  # noqa: A002
    verdicts: frozenset[str],
) -> Written:
    """Write the rows of these verdicts to a new file. schema: of the batches. Raises TargetError."""
    written = Written()
    with NewFile(to) as new:
        rows = picked(batches, verdicts, written)
        if format == "jsonl":
            for batch in rows:
                new.file.write("".join(f"{row}\n" for row in json_rows(batch, "base64")).encode("utf-8", "backslashreplace"))
        else:
            _parquet(rows, schema, new.file)
        written.bytes = new.file.size
        new.publish()
    return written


def _parquet(rows: Iterable[pa.RecordBatch], schema: pa.Schema, sink: Any) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for batch in rows:
            writer.write_batch(batch)
