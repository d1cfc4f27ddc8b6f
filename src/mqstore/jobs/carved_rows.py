"""Rows of carved RocketMQ records as one file, written as fragments by tasks (`fragments`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.files.image import Image
from mqstore.jobs.fragments import Fragment, FragmentCounts, write_fragment, write_fragments
from mqstore.jobs.runner import Runner
from mqstore.rocketmq.salvage.assembly import PlacedStretch
from mqstore.rocketmq.salvage.carving import Piece, Stretch
from mqstore.rocketmq.salvage.salvaging import rows_of
from mqstore.table.columns import ROCKETMQ_COLUMNS, rocketmq_schema
from mqstore.table.row_files import Complete, RowCounts
from mqstore.table.text import columns_for

if TYPE_CHECKING:
    from mqstore.jobs.carve import Progress

FRAGMENT_BYTES = 64 << 20
FRAGMENT_RECORDS = 1 << 17


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
class RecordsTask:
    """Records whose rows are written into one fragment."""

    fragment: Fragment
    parts: tuple[Part, ...]

    @property
    def records(self) -> int:
        return sum(len(part.positions) for part in self.parts)


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
    tasks = [
        RecordsTask(Fragment("rows", number, str(stage), format, verdicts, keep), parts) for number, parts in enumerate(_fragments(placed))
    ]
    return write_fragments(tasks, write_records, to, rocketmq_schema(ROCKETMQ_COLUMNS), runner, progress=progress, complete=complete)


def write_records(task: RecordsTask) -> FragmentCounts:
    """Write the rows of a task into its fragment."""
    as_json = task.fragment.format == "jsonl"
    batches = rows_of(_placed(task), columns_for("base64") if as_json else ROCKETMQ_COLUMNS, milliseconds=as_json)
    return write_fragment(task.fragment, batches, rocketmq_schema(ROCKETMQ_COLUMNS), as_one=True)


def _placed(task: RecordsTask) -> Iterator[PlacedStretch]:
    for part in task.parts:
        piece = Piece(part.name, Image(part.path))
        yield PlacedStretch(Stretch(piece, part.base, part.positions, part.end), part.log, part.duplicate)


def _fragments(placed: Sequence[PlacedStretch]) -> Iterator[tuple[Part, ...]]:
    """Group records into fragments, in order; a long stretch is divided."""
    parts: list[Part] = []
    size = records = 0
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
                yield tuple(parts)
                parts, size, records = [], 0, 0
    if parts:
        yield tuple(parts)
