"""Rows of carved RabbitMQ messages as one file: tasks read ids, which show the copies, and write the rows as fragments (`fragments`).

ids-000000        ids-000001        …    the ids of the messages of a fragment, 16 bytes each, if the stage is kept
messages-000000   messages-000001   …    their rows
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.files.image import Image
from mqstore.jobs.fragments import Fragment, FragmentCounts, write_fragment, write_fragments
from mqstore.jobs.runner import Runner
from mqstore.rabbitmq.salvage.carved_messages import FoundMessages, batch_ends, duplicates, rows_of, terms_of
from mqstore.table.columns import RABBITMQ_COLUMNS, rabbitmq_schema
from mqstore.table.row_files import Complete, RowCounts
from mqstore.table.text import rabbitmq_columns_for, rename_properties_json

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.jobs.carve import Progress

FRAGMENT_BYTES = 64 << 20
FRAGMENT_RECORDS = 1 << 17
ID_SIZE = 16

Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """Messages of one file, without their image. duplicate: which of them are further copies; the ids and these: None at first."""

    path: str
    name: str
    messages: Longs
    hi: Longs | None = None
    lo: Longs | None = None
    duplicate: NDArray[np.bool_] | None = None

    def found(self) -> FoundMessages:
        return FoundMessages(self.name, Image(self.path), self.messages, self.hi, self.lo, self.duplicate)


@dataclass(frozen=True, slots=True)
class MessagesTask:
    """Messages whose rows are written into one fragment. ends: after which of them a batch ends."""

    fragment: Fragment
    parts: tuple[Part, ...]
    ends: tuple[int, ...]

    @property
    def records(self) -> int:
        return self.ends[-1]


def write_carved_rabbitmq_rows(
    found: Sequence[FoundMessages],
    to: Path,
    format: str,  # noqa: A002
    verdicts: frozenset[str],
    runner: Runner,
    stage: Path,
    *,
    keep: bool,
    take: Callable[[FragmentCounts], None] | None = None,
    progress: Progress | None = None,
    complete: Complete | None = None,
) -> RowCounts:
    """Write the rows with these verdicts to a new file, `jsonl` or `parquet`. stage: directory for fragments.

    keep: ids and fragments stay for another run. take: called with the counts of each fragment, which has the messages by exchange and
    routing key. progress: called with (messages done, twice the number of messages): for their ids, and for their rows. complete: called
    before the file is published. Raises TargetError, CannotOpenError.
    """
    tasks = [
        MessagesTask(Fragment("messages", number, str(stage), format, verdicts, keep), parts, ends)
        for number, (parts, ends) in enumerate(_fragments(found))
    ]
    records = [0, *np.cumsum([task.records for task in tasks]).tolist()]
    total = records[-1]

    def done(finished: int) -> None:
        if progress is not None:
            progress(records[finished], 2 * total)

    ids = np.concatenate([np.empty((0, 2), np.int64), *(_halves(raw) for raw in runner.each(tasks, read_ids, done))])
    copies = duplicates(ids[:, 0], ids[:, 1], np.concatenate([np.empty(0, np.int64), *(each.lengths for each in found)]))
    return write_fragments(
        [_with_ids(task, ids[low:], copies[low:]) for task, low in zip(tasks, records, strict=False)],
        write_messages,
        to,
        rabbitmq_schema(RABBITMQ_COLUMNS),
        runner,
        take=take,
        progress=None if progress is None else lambda written, _: progress(total + written, 2 * total),
        complete=complete,
    )


def _fragments(found: Sequence[FoundMessages]) -> Iterator[tuple[tuple[Part, ...], tuple[int, ...]]]:
    """Group messages into fragments, in order; a fragment ends where a batch ends."""
    lengths = np.concatenate([np.empty(0, np.int64), *(each.lengths for each in found)])
    bytes_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    starts = np.cumsum([0] + [each.messages.shape[1] for each in found])
    first = 0
    inside: list[int] = []
    ends = batch_ends(lengths).tolist()
    for end in ends:
        inside.append(end - first)
        if end == ends[-1] or end - first >= FRAGMENT_RECORDS or bytes_before[end] - bytes_before[first] >= FRAGMENT_BYTES:
            low = int(np.searchsorted(starts, first, side="right")) - 1
            high = int(np.searchsorted(starts, end, side="left"))
            parts = (
                Part(each.image.path, each.name, each.messages[:, max(0, first - start) : end - start])
                for each, start in zip(found[low:high], starts[low:high].tolist(), strict=True)
            )
            yield tuple(part for part in parts if part.messages.shape[1]), tuple(inside)
            first, inside = end, []


def read_ids(task: MessagesTask) -> bytes:
    """Return the ids of the messages of a task, unless an earlier run read them, then those."""
    name = f"ids-{task.fragment.number:06d}"
    kept = ReadOnlyDirectory(task.fragment.stage).read(name) if task.fragment.keep else None
    if kept is not None and len(kept) == ID_SIZE * task.records:
        return kept
    halves = []
    for part in task.parts:
        found = part.found()
        halves += [np.stack([terms.hi, terms.lo], axis=1) for terms in terms_of(found)]
        found.image.close()
    raw = np.concatenate(halves).astype(">i8").tobytes()
    if task.fragment.keep:
        with DurableDirectory(task.fragment.stage) as stage:
            stage.write_small(name, raw)
    return raw


def _halves(raw: bytes) -> Longs:
    return np.frombuffer(raw, ">i8").astype(np.int64).reshape(-1, 2)


def _with_ids(task: MessagesTask, ids: Longs, copies: NDArray[np.bool_]) -> MessagesTask:
    parts, first = [], 0
    for part in task.parts:
        last = first + part.messages.shape[1]
        parts.append(Part(part.path, part.name, part.messages, ids[first:last, 0], ids[first:last, 1], copies[first:last]))
        first = last
    return MessagesTask(task.fragment, tuple(parts), task.ends)


def write_messages(task: MessagesTask) -> FragmentCounts:
    """Write the rows of a task into its fragment; its groups are the messages by exchange and routing key."""
    groups: Counter[tuple[str, str]] = Counter()
    columns = rabbitmq_columns_for("base64") if task.fragment.format == "jsonl" else RABBITMQ_COLUMNS
    batches = _counted(rows_of([part.found() for part in task.parts], columns, task.ends), groups)
    if task.fragment.format == "jsonl":
        batches = map(rename_properties_json, batches)
    return write_fragment(task.fragment, batches, rabbitmq_schema(RABBITMQ_COLUMNS), groups=groups)


def _counted(batches: Iterator[pa.RecordBatch], groups: Counter[tuple[str, str]]) -> Iterator[pa.RecordBatch]:
    """Count the messages by exchange and routing key, which they hold themselves."""
    for batch in batches:
        exchanges, keys = batch.column("exchange").to_pylist(), batch.column("routing_keys").to_pylist()
        groups.update((str(exchange), str(key[0]) if key else "") for exchange, key in zip(exchanges, keys, strict=True))
        yield batch
