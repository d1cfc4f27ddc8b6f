"""Usage of a commit log: bytes and messages by file, topic, queue, day and key, from the fixed fields of records alone.

Every byte of the log's files is one of these, so their sum is the size of the log:

    record       a valid record: its body as stored, its properties, and the rest (overhead)
    filler       the end-of-file record of a log file
    damaged      bytes that are not a valid record
    unwritten    zeros after the last record

Each split is counted separately, and the tallies are added up. Bodies are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

__all__ = ["Group", "SplitUsage", "Tally", "UsageTask", "add", "usage_of_split"]

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
    for rows in _groups((codes, queues, days)):
        k = rows[0]
        group = (start, names[codes[k]], int(queues[k]), int(days[k]))
        found.groups.setdefault(group, Tally()).add(_tally(columns, rows, header))
    if prefix is not None:
        keys = [None if stored is None else next(iter(split_keys(stored)), "")[:prefix] for stored in columns.stored_keys.to_pylist()]
        numbers: dict[str | None, int] = {}
        labels = np.array([numbers.setdefault(key or None, len(numbers)) for key in keys], np.int64)
        names_of_keys = list(numbers)
        for rows in _groups((labels,)):
            found.by_key.setdefault(names_of_keys[labels[rows[0]]], Tally()).add(_tally(columns, rows, header))


def _groups(parts: Iterable[np.ndarray]) -> list[np.ndarray]:
    """Group the row numbers that agree in all parts."""
    label: np.ndarray | None = None
    for part in parts:
        _, number = np.unique(part, return_inverse=True)
        label = number if label is None else np.unique(label * (int(number.max(initial=0)) + 1) + number, return_inverse=True)[1]
    assert label is not None
    order = np.argsort(label, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(label[order])) + 1) if len(order) else []


def _tally(columns: RecordColumns, rows: np.ndarray, header: int) -> Tally:
    times = columns.row(frames.STORE_TIMESTAMP)[rows]
    offsets = columns.row(frames.QUEUE_OFFSET)[rows]
    return Tally(
        len(rows),
        int(columns.row(frames.SIZE)[rows].sum()) + header * len(rows),
        int(columns.row(frames.BODY_LENGTH)[rows].sum()),
        int(columns.row(frames.PROPERTIES_LENGTH)[rows].sum()),
        int(times.min()),
        int(times.max()),
        int(offsets.min()),
        int(offsets.max()),
    )
