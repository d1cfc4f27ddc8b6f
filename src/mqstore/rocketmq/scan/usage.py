"""Usage of a commit log: bytes and messages by file, topic, queue, day and key, from the fixed fields of records alone.

Every byte of the log's files is one of these, so their sum is the size of the log:

    record       a valid record: its body as stored, its properties, and the rest (overhead)
    filler       the end-of-file record of a log file
    damaged      bytes that are not a valid record
    unwritten    zeros after the last record

Each split is counted separately, and the tallies are added up. Bodies are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from mqstore.files.location import Url
from mqstore.findings import Damage, Kind
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.commit_log import CommitLog, EndOfFile, Records
from mqstore.rocketmq.format.dledger_log import open_log
from mqstore.rocketmq.format.log_file import open_place
from mqstore.rocketmq.format.record import split_keys
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.rocketmq.scan.splits import LEAD, Split, SplitWalk

DAY = 86_400_000
MAX_REPORTED = 1000


@dataclass(frozen=True, slots=True)
class UsageTask:
    """Count one split. prefix: leading characters of the first key to count by; None: none. first: see SplitWalk."""

    store: str | Url
    file_size: int | None
    token: str
    split: Split
    prefix: int | None = None
    first: int | None = None


@dataclass(slots=True)
class Tally:
    """Counts of some messages. body: bytes as stored. oldest, newest: store times, ms. first, last: queue offsets."""

    messages: int = 0
    bytes: int = 0
    body: int = 0
    properties: int = 0
    oldest: int = 1 << 62
    newest: int = -(1 << 62)
    first: int = 1 << 62
    last: int = -(1 << 62)

    @property
    def overhead(self) -> int:
        """Bytes of records that are neither body nor properties."""
        return self.bytes - self.body - self.properties

    def add(self, other: Tally) -> None:
        """Add the messages of another tally."""
        self.messages += other.messages
        self.bytes += other.bytes
        self.body += other.body
        self.properties += other.properties
        self.oldest, self.newest = min(self.oldest, other.oldest), max(self.newest, other.newest)
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)


# start of the log file, topic, queue id, day since 1970 (UTC)
Group = tuple[int, str, int, int]


@dataclass(slots=True)
class SplitUsage:
    """The usage of one split. filler, damaged: bytes, by the start of the log file. by_key: None means messages without a key."""

    split: Split
    begin: int | None
    reach: int
    groups: dict[Group, Tally] = field(default_factory=dict)
    by_key: dict[str | None, Tally] = field(default_factory=dict)
    filler: dict[int, int] = field(default_factory=dict)
    damaged: dict[int, int] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    unreported: int = 0


def add(into: dict[Any, Tally], tallies: Mapping[Any, Tally]) -> None:
    """Add tallies to those of the same groups."""
    for key, tally in tallies.items():
        into.setdefault(key, Tally()).add(tally)


@lru_cache(4)
def _log(store: str | Url, file_size: int | None, token: str) -> CommitLog:
    return open_log(open_place(store, token), file_size)


def usage_of_split(task: UsageTask) -> SplitUsage:
    """Count the records that start in a split."""
    log = _log(task.store, task.file_size, task.token)
    starts = {file.relative: file.start for file in log.files}
    walk = SplitWalk(log, task.split, first=task.first, lead=LEAD)
    found = SplitUsage(task.split, None, 0)
    for event in walk:
        if isinstance(event, Records):
            _add_counts(found, RecordColumns(event), event.file.start, task.prefix, log.header_size)
        elif isinstance(event, EndOfFile):
            found.filler[event.file.start] = found.filler.get(event.file.start, 0) + event.length
        elif event.messages or event.kind != Kind.TORN_RECORD:  # a file that is merely too short holds no damaged bytes
            start = starts[event.file]
            found.damaged[start] = found.damaged.get(start, 0) + event.length
            if len(found.damage) < MAX_REPORTED:
                found.damage.append(event)
            else:
                found.unreported += 1
    found.begin, found.reach = walk.begin, walk.reach
    return found


def _add_counts(found: SplitUsage, columns: RecordColumns, start: int, prefix: int | None, header: int) -> None:
    topics = columns.topic.dictionary_encode()
    names = topics.dictionary.to_pylist()
    codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    queues = columns.row(frames.QUEUE_ID)
    days = columns.row(frames.STORE_TIMESTAMP) // DAY
    for k, tally in _tallies((codes, queues, days), columns, header):
        found.groups.setdefault((start, names[codes[k]], int(queues[k]), int(days[k])), Tally()).add(tally)
    if prefix is not None:
        keys = [None if stored is None else next(iter(split_keys(stored)), "")[:prefix] for stored in columns.stored_keys.to_pylist()]
        numbers: dict[str | None, int] = {}
        labels = np.array([numbers.setdefault(key or None, len(numbers)) for key in keys], np.int64)
        names_of_keys = list(numbers)
        for k, tally in _tallies((labels,), columns, header):
            found.by_key.setdefault(names_of_keys[labels[k]], Tally()).add(tally)


def _tallies(labels: Sequence[np.ndarray], columns: RecordColumns, header: int) -> Iterator[tuple[int, Tally]]:
    """Yield a tally for each group of records that agree in all labels, with a record of the group."""
    if not len(columns):
        return
    order = np.lexsort(labels)
    changes = np.zeros(len(order) - 1, np.bool_)
    for label in labels:
        ordered = label[order]
        changes |= ordered[1:] != ordered[:-1]
    first = np.append(0, np.flatnonzero(changes) + 1)
    counts = np.diff(np.append(first, len(order)))
    times = columns.row(frames.STORE_TIMESTAMP)[order]
    offsets = columns.row(frames.QUEUE_OFFSET)[order]
    sizes, bodies, properties = (
        np.add.reduceat(columns.row(field)[order], first) for field in (frames.SIZE, frames.BODY_LENGTH, frames.PROPERTIES_LENGTH)
    )
    rows = (
        order[first],
        counts,
        sizes + header * counts,
        bodies,
        properties,
        np.minimum.reduceat(times, first),
        np.maximum.reduceat(times, first),
        np.minimum.reduceat(offsets, first),
        np.maximum.reduceat(offsets, first),
    )
    for k, *figures in zip(*(row.tolist() for row in rows), strict=True):
        yield k, Tally(*figures)
