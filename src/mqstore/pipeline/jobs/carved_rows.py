"""Rows of carved RocketMQ records as one file: fragments written by tasks, then put together in order.

    rows-000000   rows-000001   …        in the stage: some 64 MiB of records each
    rows-000000.json                     the counts of a fragment; created when it is on disk

The file has the same bytes whatever ran the tasks, and whichever fragments an earlier run had left. With a stage that is kept, fragments
stay until the file is complete; otherwise each is removed when it has been copied.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory, NewFile
from mqstore.files.image import Image
from mqstore.pipeline.spark.runner import Runner
from mqstore.rocketmq.salvage.assembly import PlacedStretch
from mqstore.rocketmq.salvage.carving import Piece, Stretch
from mqstore.rocketmq.salvage.salvaging import rows_of
from mqstore.table.columns import ROCKETMQ_COLUMNS, rocketmq_schema
from mqstore.table.file import Complete, RowCounts, filter_by_verdict
from mqstore.table.text import columns_for, json_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.pipeline.jobs.carve import Progress

__all__ = ["write_carved_rows"]

FRAGMENT_BYTES = 64 << 20
FRAGMENT_RECORDS = 1 << 17
COPIED = 8 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """Records of one stretch, without their image. duplicate: which of them are copies."""

    path: str
    name: str
    base: int
    positions: NDArray[np.int64]
    end: int
    log: int
    duplicate: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FragmentTask:
    """Records whose rows are written into one fragment of the stage."""

    number: int
    stage: str
    format: str
    verdicts: frozenset[str]
    parts: tuple[Part, ...]
    keep: bool

    @property
    def name(self) -> str:
        return f"rows-{self.number:06d}"


def write_carved_rows(
    placed: Sequence[PlacedStretch],
    to: Path,
    format: str,  # noqa: A002
    verdicts: frozenset[str],
    runner: Runner,
    stage: Path,
    *,
    keep: bool,
    progress: Progress | None = None,
    complete: Complete | None = None,
) -> RowCounts:
    """Write the rows with these verdicts to a new file, `jsonl` or `parquet`. stage: directory for fragments.

    keep: fragments stay for another run. progress: called with (records written, records). complete: called before the file is published.
    Raises TargetError, CannotOpenError.
    """
    counts = RowCounts()
    total = sum(len(each.stretch.positions) for each in placed)
    with NewFile(to) as new:
        tasks = list(_tasks(placed, str(stage), format, verdicts, keep))
        sizes = np.cumsum([0] + [sum(len(part.positions) for part in task.parts) for task in tasks])

        def done(finished: int) -> None:
            if progress is not None:
                progress(int(sizes[finished]), total)

        raws = _fragments(tasks, runner, stage, counts, done, keep)
        if format == "jsonl":
            for path in raws:
                with open_fragment(path) as source:
                    while piece := source.read(COPIED):
                        new.file.write(piece)
        else:
            _join_parquet(raws, new)
        counts.bytes = new.file.size
        if complete is not None:
            complete(new, counts)
        new.publish()
    return counts


def open_fragment(path: Path) -> IO[bytes]:
    """Open a finished fragment."""
    from mqstore.files.regular_file import open_regular_file

    return open_regular_file(path)


def _fragments(
    tasks: list[FragmentTask], runner: Runner, stage: Path, counts: RowCounts, done: Callable[[int], None] | None, keep: bool
) -> Iterator[Path]:
    """Yield the fragments in order; each is removed after its turn unless they are kept."""
    for task, (rows, verdicts) in zip(tasks, runner.each(tasks, write_fragment, done), strict=True):
        counts.rows += rows
        for word, number in verdicts.items():
            counts.verdicts[word] = counts.verdicts.get(word, 0) + number
        yield stage / task.name
        if not keep:
            with DurableDirectory(stage) as directory:
                directory.discard(task.name)


def _join_parquet(fragments: Iterator[Path], new: NewFile) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(new.file, rocketmq_schema(ROCKETMQ_COLUMNS), compression="zstd") as writer:
        for path in fragments:
            with open_fragment(path) as source:
                stored = pq.ParquetFile(source)
                for group in range(stored.num_row_groups):
                    writer.write_table(stored.read_row_group(group))


def write_fragment(task: FragmentTask) -> tuple[int, dict[str, int]]:
    """Write the rows of a task, unless an earlier run did; return how many, and the verdicts of all its records."""
    with DurableDirectory(task.stage) as stage:
        kept = ReadOnlyDirectory(task.stage).read(f"{task.name}.json") if task.keep else None
        if kept is not None:
            with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
                record = json.loads(kept)
                if (Path(task.stage) / task.name).stat().st_size == record["bytes"]:
                    return record["rows"], record["verdicts"]
        stage.discard(task.name)
        counts = RowCounts()
        with stage.open_new(task.name) as sink:
            if task.format == "jsonl":
                batches = filter_by_verdict(rows_of(_placed(task), columns_for("base64"), milliseconds=True), task.verdicts, counts)
                for batch in batches:
                    sink.write("".join(f"{row}\n" for row in json_rows(batch, "base64")).encode("utf-8", "backslashreplace"))
            else:
                _write_parquet(filter_by_verdict(rows_of(_placed(task), ROCKETMQ_COLUMNS), task.verdicts, counts), sink)
            size = sink.size
        if task.keep:
            stage.sync(task.name)
            record = {"rows": counts.rows, "verdicts": counts.verdicts, "bytes": size}
            stage.write_small(f"{task.name}.json", json.dumps(record).encode())
    return counts.rows, counts.verdicts


def _write_parquet(batches: Iterator[pa.RecordBatch], sink: object) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = rocketmq_schema(ROCKETMQ_COLUMNS)
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        table = pa.Table.from_batches(batches, schema)
        if table.num_rows:
            writer.write_table(table, row_group_size=table.num_rows)


def _placed(task: FragmentTask) -> Iterator[PlacedStretch]:
    for part in task.parts:
        piece = Piece(part.name, Image(part.path))
        yield PlacedStretch(Stretch(piece, part.base, part.positions, part.end), part.log, part.duplicate)


def _tasks(placed: Sequence[PlacedStretch], stage: str, format: str, verdicts: frozenset[str], keep: bool) -> Iterator[FragmentTask]:  # noqa: A002
    """Group records into fragments, in order; a long stretch is divided."""
    parts: list[Part] = []
    number = size = records = 0
    for each in placed:
        stretch = each.stretch
        first = 0
        while first < len(stretch.positions):
            room = max(1, FRAGMENT_BYTES - size)
            last = int(np.searchsorted(stretch.positions, stretch.positions[first] + room, side="right"))
            last = max(first + 1, min(last, first + max(1, FRAGMENT_RECORDS - records)))
            end = stretch.end_of(last - 1)
            positions = stretch.positions[first:last]
            parts.append(
                Part(stretch.piece.image.path, stretch.piece.name, stretch.base, positions, end, each.log, each.duplicate[first:last])
            )
            size += end - int(positions[0])
            records += len(positions)
            first = last
            if size >= FRAGMENT_BYTES or records >= FRAGMENT_RECORDS:
                yield FragmentTask(number, stage, format, verdicts, tuple(parts), keep)
                parts, number, size, records = [], number + 1, 0, 0
    if parts:
        yield FragmentTask(number, stage, format, verdicts, tuple(parts), keep)
