"""Rows of what was found in an image, as one file: written as fragments by tasks, then put together in order.

    rows-000000       rows-000001       …    of RocketMQ records, in the stage: some 64 MiB of records each
    messages-000000   messages-000001   …    of RabbitMQ messages
    ids-000000        ids-000001        …    the ids of the messages of a fragment, 16 bytes each, if the stage is kept
    rows-000000.json                         the counts of a fragment; created when it is on disk

The file has the same bytes whatever ran the tasks, and whichever fragments an earlier run had left. With a stage that is kept, fragments
stay until the file is complete; otherwise each is removed when it has been copied. Tasks read the ids of RabbitMQ messages before they
write any row: all of them together show the copies.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory, NewFile
from mqstore.files.image import Image
from mqstore.files.state_file import fields_of, parse, read_state, rows, seal, whole
from mqstore.findings import Verdict
from mqstore.jobs.runner import Runner
from mqstore.rabbitmq import salvage as rabbitmq
from mqstore.rabbitmq.carved_logs import END, MESSAGES, START, FoundLogs, log_rows_of
from mqstore.rabbitmq.message.message_term import ID_SIZE
from mqstore.rocketmq import salvage as rocketmq
from mqstore.table.columns import RABBITMQ_COLUMNS, ROCKETMQ_COLUMNS, rabbitmq_schema, rocketmq_schema
from mqstore.table.row_files import Complete, RowCounts, filter_by_verdict
from mqstore.table.text import columns_for, json_rows, rabbitmq_columns_for, rename_properties_json

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.store import Progress


COPIED = 8 << 20
FRAGMENT_BYTES = 64 << 20
FRAGMENT_RECORDS = 1 << 17

Longs = NDArray[np.int64]

Groups = Counter[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Fragment:
    """Where the rows of a task go, and which of them. kind: first part of its name; keep: it stays for another run."""

    kind: str
    number: int
    stage: str
    format: str
    verdicts: frozenset[str]
    keep: bool

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number:06d}"


@dataclass(frozen=True, slots=True)
class FragmentCounts:
    """What was written into a fragment. verdicts, groups: of all rows, those left out included; groups in the order of the rows."""

    rows: int
    verdicts: dict[str, int]
    groups: Groups = field(default_factory=Counter)


class FragmentTask(Protocol):
    """A task whose rows go into a fragment. records: how many it has."""

    @property
    def fragment(self) -> Fragment: ...

    @property
    def records(self) -> int: ...


Task = TypeVar("Task", bound=FragmentTask)


def write_fragments(
    tasks: Sequence[Task],
    write: Callable[[Task], FragmentCounts],
    to: Path,
    schema: pa.Schema,
    runner: Runner,
    *,
    take: Callable[[FragmentCounts], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    complete: Complete | None = None,
) -> RowCounts:
    """Write the rows of tasks to a new file, in their order. write: runs a task and calls `write_fragment`.

    take: called with the counts of each fragment in order. progress: called with (records written, records). complete: called before the
    file is published. Raises TargetError, CannotOpenError.
    """
    counts = RowCounts()
    finished_records = [0]
    for task in tasks:
        finished_records.append(finished_records[-1] + task.records)

    def done(finished: int) -> None:
        if progress is not None:
            progress(finished_records[finished], finished_records[-1])

    def written() -> Iterator[Path]:
        """Yield the fragments in order; each is removed after its turn unless they are kept."""
        for task, outcome in zip(tasks, runner.each(tasks, write, done), strict=True):
            fragment = task.fragment
            counts.rows += outcome.rows
            for word, number in outcome.verdicts.items():
                counts.verdicts[word] = counts.verdicts.get(word, 0) + number
            if take is not None:
                take(outcome)
            yield Path(fragment.stage) / fragment.name
            if not fragment.keep:
                with DurableDirectory(fragment.stage) as directory:
                    directory.discard(fragment.name)

    with NewFile(to) as new:
        if not tasks or tasks[0].fragment.format == "parquet":
            _join_parquet(written(), schema, new)
        else:
            for path in written():
                with _open_fragment(path) as source:
                    while piece := source.read(COPIED):
                        new.file.write(piece)
        counts.bytes = new.file.size
        if complete is not None:
            complete(new, counts)
        new.publish()
    return counts


def _open_fragment(path: Path) -> IO[bytes]:
    from mqstore.files.regular_file import open_regular_file

    return open_regular_file(path)


def _join_parquet(fragments: Iterator[Path], schema: pa.Schema, new: NewFile) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(new.file, schema, compression="zstd") as writer:
        for path in fragments:
            with _open_fragment(path) as source:
                stored = pq.ParquetFile(source)
                for group in range(stored.num_row_groups):
                    writer.write_table(stored.read_row_group(group))


def write_fragment(
    fragment: Fragment, batches: Iterator[pa.RecordBatch], schema: pa.Schema, *, groups: Groups | None = None, as_one: bool = False
) -> FragmentCounts:
    """Write batches with the verdicts of a fragment, unless an earlier run did; return their counts.

    groups: filled by `batches` as they are read. as_one: in Parquet the rows are one row group, not one for each batch.
    """
    with DurableDirectory(fragment.stage) as stage:
        before = _kept(fragment)
        if before is not None:
            return before
        stage.discard(fragment.name)
        counts = RowCounts()
        with stage.open_new(fragment.name) as sink:
            chosen = filter_by_verdict(batches, fragment.verdicts, counts)
            if fragment.format == "jsonl":
                for batch in chosen:
                    sink.write("".join(f"{row}\n" for row in json_rows(batch, "base64")).encode("utf-8", "backslashreplace"))
            else:
                _write_parquet(chosen, schema, sink, as_one)
            size = sink.size
        outcome = FragmentCounts(counts.rows, counts.verdicts, Counter() if groups is None else groups)
        if fragment.keep:
            stage.sync(fragment.name)
            table = [[*group, number] for group, number in outcome.groups.items()]
            record = {"rows": outcome.rows, "verdicts": outcome.verdicts, "groups": table, "bytes": size}
            stage.write_small(f"{fragment.name}.json", seal(record))
    return outcome


def _kept(fragment: Fragment) -> FragmentCounts | None:
    """Return the counts of a fragment that an earlier run finished; None if it is to be written."""
    stage = Path(fragment.stage)
    raw = read_state(stage / f"{fragment.name}.json") if fragment.keep else None
    if raw is not None:
        with contextlib.suppress(ValueError, TypeError, OSError):
            record = parse(raw, fields=("rows", "verdicts", "groups", "bytes"))
            verdicts = fields_of(record.get("verdicts"), map(str, Verdict))
            groups = Counter({(exchange, key): whole({"number": number}, "number") for exchange, key, number in rows(record, "groups")})
            if (stage / fragment.name).lstat().st_size == whole(record, "bytes") and not (stage / fragment.name).is_symlink():
                return FragmentCounts(whole(record, "rows"), {name: whole(verdicts, name) for name in verdicts}, groups)
    return None


def _write_parquet(batches: Iterator[pa.RecordBatch], schema: pa.Schema, sink: Any, as_one: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        if as_one:
            table = pa.Table.from_batches(batches, schema)
            if table.num_rows:
                writer.write_table(table, row_group_size=table.num_rows)
        else:
            for batch in batches:
                writer.write_batch(batch)


@dataclass(frozen=True, slots=True)
class StretchPart:
    """Records of one stretch, without their image. duplicate: which of them are copies."""

    path: str
    name: str
    base: int
    positions: NDArray[np.int64]
    end: int
    log: int
    duplicate: NDArray[np.bool_]
    unproved: bool


@dataclass(frozen=True, slots=True)
class RecordsTask:
    """Records whose rows are written into one fragment."""

    fragment: Fragment
    parts: tuple[StretchPart, ...]

    @property
    def records(self) -> int:
        return sum(len(part.positions) for part in self.parts)


def write_carved_rows(
    placed: Sequence[rocketmq.PlacedStretch],
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
        RecordsTask(Fragment("rows", number, str(stage), format, verdicts, keep), parts)
        for number, parts in enumerate(_record_fragments(placed))
    ]
    return write_fragments(tasks, write_records, to, rocketmq_schema(ROCKETMQ_COLUMNS), runner, progress=progress, complete=complete)


def write_records(task: RecordsTask) -> FragmentCounts:
    """Write the rows of a task into its fragment."""
    as_json = task.fragment.format == "jsonl"
    batches = rocketmq.rows_of(_placed(task), columns_for("base64") if as_json else ROCKETMQ_COLUMNS, milliseconds=as_json)
    return write_fragment(task.fragment, batches, rocketmq_schema(ROCKETMQ_COLUMNS), as_one=True)


def _placed(task: RecordsTask) -> Iterator[rocketmq.PlacedStretch]:
    for part in task.parts:
        piece = rocketmq.Piece(part.name, Image(part.path))
        yield rocketmq.PlacedStretch(rocketmq.Stretch(piece, part.base, part.positions, part.end, part.unproved), part.log, part.duplicate)


def _record_fragments(placed: Sequence[rocketmq.PlacedStretch]) -> Iterator[tuple[StretchPart, ...]]:
    """Group records into fragments, in order; a long stretch is divided."""
    parts: list[StretchPart] = []
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
            unproved = stretch.unproved and last == len(stretch.positions)
            piece, copies = stretch.piece, each.duplicate[first:last]
            parts.append(StretchPart(piece.image.path, piece.name, stretch.base, positions, end, each.log, copies, unproved))
            size += end - int(positions[0])
            records += len(positions)
            first = last
            if size >= FRAGMENT_BYTES or records >= FRAGMENT_RECORDS:
                yield tuple(parts)
                parts, size, records = [], 0, 0
    if parts:
        yield tuple(parts)


@dataclass(frozen=True, slots=True)
class MessagePart:
    """Messages of one file, without their image. duplicate: which of them are further copies; the ids and these: None at first."""

    path: str
    name: str
    messages: Longs
    hi: Longs | None = None
    lo: Longs | None = None
    duplicate: NDArray[np.bool_] | None = None

    def opened(self) -> rabbitmq.FoundMessages:
        return rabbitmq.FoundMessages(self.name, Image(self.path), self.messages, self.hi, self.lo, self.duplicate)


@dataclass(frozen=True, slots=True)
class LogsTask:
    """Units of logs of quorum queues and streams whose rows are written into one fragment."""

    fragment: Fragment
    path: str
    name: str
    units: Longs
    uids: tuple[str, ...]
    duplicate: NDArray[np.bool_]

    @property
    def records(self) -> int:
        return int(self.units[MESSAGES].sum())


@dataclass(frozen=True, slots=True)
class MessagesTask:
    """Messages whose rows are written into one fragment. ends: after which of them a batch ends."""

    fragment: Fragment
    parts: tuple[MessagePart, ...]
    ends: tuple[int, ...]

    @property
    def records(self) -> int:
        return self.ends[-1]


def write_carved_rabbitmq_rows(
    sources: Sequence[rabbitmq.FoundMessages],
    to: Path,
    format: str,  # noqa: A002
    verdicts: frozenset[str],
    runner: Runner,
    stage: Path,
    *,
    keep: bool,
    logs: Sequence[FoundLogs] = (),
    take: Callable[[FragmentCounts], None] | None = None,
    progress: Progress | None = None,
    complete: Complete | None = None,
) -> RowCounts:
    """Write the rows with these verdicts to a new file, `jsonl` or `parquet`. stage: directory for fragments.

    logs: messages of quorum queues and streams, after the others. keep: ids and fragments stay for another run. take: called with the
    counts of each fragment, which has the messages by exchange and routing key. progress: called with (messages done, of how many): for
    their ids, and for their rows. complete: called before the file is published. Raises TargetError, CannotOpenError.
    """
    tasks = [
        MessagesTask(Fragment("messages", number, str(stage), format, verdicts, keep), parts, ends)
        for number, (parts, ends) in enumerate(_message_fragments(sources))
    ]
    records = [0, *np.cumsum([task.records for task in tasks]).tolist()]
    total = records[-1]

    def done(finished: int) -> None:
        if progress is not None:
            progress(records[finished], 2 * total + sum(each.messages for each in logs))

    ids = np.concatenate([np.empty((0, 2), np.int64), *(_halves(raw) for raw in runner.each(tasks, read_ids, done))])
    copies = rabbitmq.duplicates(ids[:, 0], ids[:, 1], np.concatenate([np.empty(0, np.int64), *(each.lengths for each in sources)]))
    every: list[MessagesTask | LogsTask] = [
        *(_with_ids(task, ids[low:], copies[low:]) for task, low in zip(tasks, records, strict=False)),
        *_log_fragments(logs, len(tasks), str(stage), format, verdicts, keep),
    ]
    return write_fragments(
        every,
        write_messages,
        to,
        rabbitmq_schema(RABBITMQ_COLUMNS),
        runner,
        take=take,
        progress=None if progress is None else lambda written, of: progress(total + written, total + of),
        complete=complete,
    )


def _message_fragments(sources: Sequence[rabbitmq.FoundMessages]) -> Iterator[tuple[tuple[MessagePart, ...], tuple[int, ...]]]:
    """Group messages into fragments, in order; a fragment ends where a batch ends."""
    lengths = np.concatenate([np.empty(0, np.int64), *(each.lengths for each in sources)])
    bytes_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    starts = np.cumsum([0] + [each.messages.shape[1] for each in sources])
    first = 0
    inside: list[int] = []
    ends = rabbitmq.batch_ends(lengths).tolist()
    for end in ends:
        inside.append(end - first)
        if end == ends[-1] or end - first >= FRAGMENT_RECORDS or bytes_before[end] - bytes_before[first] >= FRAGMENT_BYTES:
            low = int(np.searchsorted(starts, first, side="right")) - 1
            high = int(np.searchsorted(starts, end, side="left"))
            parts = (
                MessagePart(each.image.path, each.name, each.messages[:, max(0, first - start) : end - start])
                for each, start in zip(sources[low:high], starts[low:high].tolist(), strict=True)
            )
            yield tuple(part for part in parts if part.messages.shape[1]), tuple(inside)
            first, inside = end, []


def read_ids(task: MessagesTask) -> bytes:
    """Return the ids of the messages of a task, unless an earlier run read them, then those."""
    name = f"ids-{task.fragment.number:06d}"
    before = ReadOnlyDirectory(task.fragment.stage).read(name) if task.fragment.keep else None
    if before is not None and len(before) == ID_SIZE * task.records:
        return before
    halves = []
    for part in task.parts:
        messages = part.opened()
        halves += [np.stack([terms.hi, terms.lo], axis=1) for terms in rabbitmq.terms_of(messages)]
        messages.image.close()
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
        parts.append(MessagePart(part.path, part.name, part.messages, ids[first:last, 0], ids[first:last, 1], copies[first:last]))
        first = last
    return MessagesTask(task.fragment, tuple(parts), task.ends)


def _log_fragments(
    logs: Sequence[FoundLogs],
    first: int,
    stage: str,
    format: str,  # noqa: A002
    verdicts: frozenset[str],
    keep: bool,
) -> Iterator[LogsTask]:
    """Group the units of each file into fragments, in order. first: number of the first fragment."""
    number = first
    for each in logs:
        taken = np.cumsum(each.units[END] - each.units[START]) // FRAGMENT_BYTES + np.cumsum(each.units[MESSAGES]) // FRAGMENT_RECORDS
        for chosen in np.split(np.arange(len(taken)), np.flatnonzero(np.diff(taken)) + 1):
            part = each.take(chosen)
            if part.messages:
                yield LogsTask(
                    Fragment("messages", number, stage, format, verdicts, keep), part.image.path, part.name, part.units, part.uids,
                    part.duplicate,
                )  # fmt: skip
                number += 1


def write_messages(task: MessagesTask | LogsTask) -> FragmentCounts:
    """Write the rows of a task into its fragment; its groups are the messages by exchange and routing key."""
    groups: Counter[tuple[str, str]] = Counter()
    columns = rabbitmq_columns_for("base64") if task.fragment.format == "jsonl" else RABBITMQ_COLUMNS
    if isinstance(task, LogsTask):
        read = log_rows_of(FoundLogs(task.name, Image(task.path), task.units, task.uids, task.duplicate), columns)
    else:
        read = rabbitmq.rows_of([part.opened() for part in task.parts], columns, task.ends)
    batches = _counted(read, groups)
    if task.fragment.format == "jsonl":
        batches = map(rename_properties_json, batches)
    return write_fragment(task.fragment, batches, rabbitmq_schema(RABBITMQ_COLUMNS), groups=groups)


def _counted(batches: Iterator[pa.RecordBatch], groups: Counter[tuple[str, str]]) -> Iterator[pa.RecordBatch]:
    """Count the messages by exchange and routing key, which they hold themselves."""
    for batch in batches:
        exchanges, keys = batch.column("exchange").to_pylist(), batch.column("routing_keys").to_pylist()
        groups.update((str(exchange), str(key[0]) if key else "") for exchange, key in zip(exchanges, keys, strict=True))
        yield batch
