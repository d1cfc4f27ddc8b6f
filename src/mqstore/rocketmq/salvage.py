"""Salvage of RocketMQ logs: every whole record out of single files, nameless pieces and disk images, in order.

A record states its own position in the log. So a run of records that follow each other is a *stretch*: the difference between its position
in the log and its position in the file is the same for all of them. `mqstore.wreck.carving` finds them.

    image    |....|rec|rec|rec|.......|rec|rec|....|rec|..
    log           4096              0               812        where each stretch belongs

Two stretches that claim the same positions hold the same records, or they are of different logs: of two brokers, or of a log that was
deleted and began again. The first stretch that claims a position belongs to log 0; a stretch that contradicts log 0 belongs to log 1,
and so on. A record that is at the same position in the same log, byte for byte, is a duplicate.

    verdict     meaning
    intact      all checks within the record pass: lengths, checksum, compression, text
    unproved    the same, but nothing shows that its properties, which have no checksum, are its own: no record of its log follows it
    damaged     its frame is whole, some of its bytes are not valid
    duplicate   a further copy, byte for byte, of a record at the same position of the same log

Rows come log by log, in the order of the log. `store_file` is the file that a record was found in. A fresh store has the intact messages;
topics, queues, keys, properties and times of birth are kept, offsets and store times are those of the new log.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError, TargetError
from mqstore.files import Bytes
from mqstore.files.durable import NewDirectory
from mqstore.files.image import Image
from mqstore.findings import SalvageReport, Verdict
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.config.topic_table import TopicConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.commit_log import Records, size_at
from mqstore.rocketmq.format.mapped_file_queue import QueueFile
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.table.columns import ROCKETMQ_COLUMNS, rocketmq_schema
from mqstore.table.row_files import format_of, write_rows
from mqstore.table.text import columns_for

if TYPE_CHECKING:
    import pyarrow as pa

Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """A file to carve. name: its path relative to the source."""

    name: str
    image: Image


@dataclass(frozen=True, slots=True)
class Stretch:
    """Records that follow each other in a piece. base: position in the log of the first byte of the piece; end: after the last record.

    unproved: nothing shows that the properties of the last record are its own.
    """

    piece: Piece
    base: int
    positions: Longs
    end: int
    unproved: bool = False

    @property
    def start(self) -> int:
        return int(self.positions[0])

    @property
    def low(self) -> int:
        """Physical offset of the first record."""
        return self.base + self.start

    @property
    def high(self) -> int:
        """Physical offset after the last record."""
        return self.base + self.end

    def end_of(self, number: int) -> int:
        """Return the position after a record, or after what else may follow it before the next one."""
        return int(self.positions[number + 1]) if number + 1 < len(self.positions) else self.end

    def is_unproved(self, number: int) -> bool:
        """Return whether nothing shows that the properties of a record are its own."""
        return self.unproved and number + 1 == len(self.positions)

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes of the piece. Raises CannotOpenError if they could be read while carving and cannot be read any more."""
        data = self.piece.image.read(start, stop)
        if len(data) < stop - start:
            raise self._changed(start + len(data))
        return data

    def records(self, first: int, last: int) -> Records:
        """Return the records from number first up to last, read into memory. Raises CannotOpenError if they changed meanwhile."""
        start = int(self.positions[first])
        data = self.read(start, self.end_of(last - 1))
        positions = np.ascontiguousarray(self.positions[first:last]) - start
        base = self.base + start
        walked = np.empty(last - first, np.int64)
        count, _, _ = frames.walk(data, 0, len(data), base, True, walked)
        if count < len(positions):  # entries of DLedger, or not the bytes that were there
            for position in positions[count:].tolist():
                if frames.status_at(data, position, base, True) != frames.VALID:
                    raise self._changed(start + position)
        file = QueueFile(self.piece.name, base, len(data), self.piece.name)
        return Records(file, data, positions)

    def _changed(self, at: int) -> CannotOpenError:
        return CannotOpenError(
            f"{self.piece.image.path} has changed since it was searched, or cannot be read any more at byte {at}; salvage a copy of it"
        )


Mask = NDArray[np.bool_]

MOST_COMPARED = 64  # stretches that one is compared with, in each log, and logs that it is compared with
IDENTITY = 48  # size, magic, checksum, queue, offsets, flags and time of birth: equal in two copies of one record


@dataclass(frozen=True, slots=True)
class PlacedStretch:
    """A stretch in its place. log: number of the log; duplicate: which of its records are further copies."""

    stretch: Stretch
    log: int
    duplicate: Mask


@dataclass(slots=True)
class _Log:
    """The stretches of one log so far, in order. reach: the highest physical offset that they claim; longest: bytes of the longest."""

    placed: list[PlacedStretch] = field(default_factory=list)
    reach: int = 0
    longest: int = 0

    def add(self, placed: PlacedStretch) -> None:
        self.placed.append(placed)
        self.reach = max(self.reach, placed.stretch.high)
        self.longest = max(self.longest, placed.stretch.high - placed.stretch.low)


def assemble(stretches: Sequence[Stretch]) -> Iterator[PlacedStretch]:
    """Yield the stretches log by log, each in the order of the log."""
    logs: list[_Log] = []
    for stretch in sorted(stretches, key=lambda each: (each.low, -len(each.positions))):
        _place(stretch, logs)
    for log in logs:
        yield from log.placed


def _place(stretch: Stretch, logs: list[_Log]) -> None:
    for number, log in enumerate(logs[:MOST_COMPARED]):
        copies = _copies(stretch, log)
        stretch.piece.image.close()
        if copies is not None:
            log.add(PlacedStretch(stretch, number, copies))
            return
    logs.append(_Log())
    logs[-1].add(PlacedStretch(stretch, len(logs) - 1, np.zeros(len(stretch.positions), np.bool_)))


def _copies(stretch: Stretch, log: _Log) -> Mask | None:
    """Return which records the log has already, byte for byte; None if the stretch contradicts it."""
    copies = np.zeros(len(stretch.positions), np.bool_)
    if stretch.low >= log.reach:
        return copies
    physical = stretch.positions + stretch.base
    compared = 0
    for placed in reversed(log.placed):
        other = placed.stretch
        if other.low + log.longest <= stretch.low:
            break
        if other.high <= stretch.low:
            continue
        compared += 1
        if compared > MOST_COMPARED:
            break
        theirs = other.positions + other.base
        inside = np.flatnonzero(physical < other.high)
        where = np.searchsorted(theirs, physical[inside])
        for k, at in zip(inside.tolist(), where.tolist(), strict=True):
            if at >= len(theirs) or theirs[at] != physical[k]:
                return None
            same = _compare(stretch, int(stretch.positions[k]), other, int(other.positions[at]))
            if same is None:
                return None
            copies[k] |= same and (not other.is_unproved(int(at)) or stretch.is_unproved(k))
        other.piece.image.close()
        if copies.all():  # equal to what agrees with the log: it agrees, too
            break
    return copies


def _compare(one: Stretch, at: int, other: Stretch, offset: int) -> bool | None:
    """Return whether two records are equal; False if only one of them is damaged; None if they are different messages."""
    first, second = one.read(at, at + IDENTITY), other.read(offset, offset + IDENTITY)
    if not np.array_equal(first, second):
        return None
    size = size_at(first, 0)
    return bool(np.array_equal(one.read(at, at + size), other.read(offset, offset + size)))


RECORDS_AT_ONCE = 4096
MAX_BATCH_BYTES = 16 << 20
PERMISSIONS = 6


def salvage(
    store: RocketMQStore,
    to: Path,
    *,
    format: str | None = None,  # noqa: A002
    verdicts: frozenset[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SalvageReport:
    """Write every message of a log in its place, with these verdicts, to a new file. format: `jsonl` or `parquet`; None: by the suffix.

    verdicts: None for all. progress: called with (messages read, 0). Raises TargetError, UsageError.
    """
    started = time.monotonic()
    chosen = format_of(to, format)
    as_text = chosen == "jsonl"
    batches = store.to_batches(columns_for("base64"), milliseconds=True) if as_text else store.to_batches(ROCKETMQ_COLUMNS)
    written = write_rows(batches, rocketmq_schema(ROCKETMQ_COLUMNS), to, chosen, verdicts or frozenset(Verdict), progress=progress)
    seconds = time.monotonic() - started
    return SalvageReport(str(store.path), str(to), chosen, written.rows, written.bytes, written.verdicts, None, seconds)


def rows_of(placed: Iterable[PlacedStretch], names: Sequence[str], *, milliseconds: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the message table, with verdicts, stretch by stretch; short stretches share a batch."""
    together: list[tuple[Records, Mask, bool]] = []
    count = size = 0
    for each in placed:
        for first, last in _groups(each):
            records = each.stretch.records(first, last)
            if together and (count + len(records) > RECORDS_AT_ONCE or size + len(records.data) > MAX_BATCH_BYTES):
                yield from _batches(together, names, milliseconds)
                together, count, size = [], 0, 0
            together.append((records, each.duplicate[first:last], each.stretch.is_unproved(last - 1)))
            count, size = count + len(records), size + len(records.data)
        each.stretch.piece.image.close()
    if together:
        yield from _batches(together, names, milliseconds)


def _batches(together: list[tuple[Records, Mask, bool]], names: Sequence[str], milliseconds: bool) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    words = pa.array([str(Verdict.INTACT), str(Verdict.DAMAGED), str(Verdict.DUPLICATE), str(Verdict.UNPROVED)])
    records, copies, _ = together[0]
    files = [each.file.relative for each, _, _ in together]
    unproved = np.zeros(sum(len(each) for each, _, _ in together), np.bool_)
    unproved[np.cumsum([len(each) for each, _, _ in together]) - 1] = [last for _, _, last in together]
    if len(together) > 1:
        starts = np.cumsum([0] + [len(each.data) for each, _, _ in together])
        positions = np.concatenate([each.positions + start for (each, _, _), start in zip(together, starts[:-1], strict=True)])
        records = Records(records.file, np.concatenate([each.data for each, _, _ in together]), positions)
        copies = np.concatenate([duplicate for _, duplicate, _ in together])
    found_in = np.repeat(np.arange(len(together)), [len(each) for each, _, _ in together])
    at = 0
    for piece in RecordColumns(records).pieces(MAX_BATCH_BYTES):
        codes = np.where(piece.valid, np.where(unproved[at : at + len(piece)], 3, 0), 1)
        codes[copies[at : at + len(piece)]] = 2
        batch = piece.batch(names, words.take(pa.array(codes)), milliseconds=milliseconds)
        if "store_file" in names and len(set(files)) > 1:
            column = batch.schema.get_field_index("store_file")
            shown = pa.array([files[number] for number in found_in[at : at + len(piece)].tolist()], batch.schema.field(column).type)
            batch = batch.set_column(column, batch.schema.field(column), shown)
        at += len(piece)
        yield batch


def _groups(placed: PlacedStretch) -> Iterator[tuple[int, int]]:
    """Yield ranges of records that are read at once: few enough, and at most MAX_BATCH_BYTES, or one record."""
    positions = placed.stretch.positions
    first = 0
    while first < len(positions):
        last = int(np.searchsorted(positions, positions[first] + MAX_BATCH_BYTES, side="right")) - 1
        last = max(first + 1, min(last, first + RECORDS_AT_ONCE))
        if last == len(positions) - 1 and placed.stretch.end - int(positions[first]) <= MAX_BATCH_BYTES:
            last += 1
        yield first, last
        first = last


def salvage_into_store(
    placed: Sequence[PlacedStretch], to: Path, version: str | None, progress: Callable[[int, int], None] | None = None
) -> Counter[str]:
    """Write the intact messages into a new store; return the verdicts of all. version: of the broker that is to start on it.

    progress: called with (messages written, records). The store appears under its name when it is complete. Raises TargetError.
    """
    verdicts: Counter[str] = Counter()
    queues: dict[str, int] = {}
    done = 0
    total = sum(len(each.stretch.positions) for each in placed)
    with NewDirectory(to) as new:
        path = new.directory.path("")
        config = StoreConfig(services=False) if version is None else StoreConfig(services=False, version=version)
        with MessageStore.open(path, config) as store:
            for batch in rows_of(placed, ROCKETMQ_COLUMNS):
                words = batch.column("verdict").to_pylist()
                verdicts.update(words)
                selected = batch.filter(_mask(words))
                if not selected.num_rows:
                    continue
                for topic, queue_id in zip(selected.column("topic").to_pylist(), selected.column("queue_id").to_pylist(), strict=True):
                    queues[topic] = max(queues.get(topic, 1), queue_id + 1)
                result = store.put_batch(selected, stored=True)
                if result.count < selected.num_rows:
                    raise TargetError(f"{to}: a message cannot be stored: {result.detail}")
                done += result.count
                if progress is not None:
                    progress(done, total)
                store.dispatch_now()
            for topic, number in queues.items():
                if store.topics.get(topic) is None:
                    store.topics.put(TopicConfig(topic, perm=PERMISSIONS, read_queues=number, write_queues=number))
        new.publish()
    return verdicts


def _mask(words: list[str]) -> Any:
    import pyarrow as pa

    return pa.array([word == Verdict.INTACT for word in words])
