"""Usage: what fills a store's log, and what keeps its files from being deleted.

Every byte of the log's files is one of these, so their sum is the size of the log:

    record       a valid record: its body as stored, its properties, and the rest (overhead)
    filler       the end-of-file record of a log file
    damaged      bytes that are not a valid record
    unwritten    zeros after the last record

Each split is counted separately, from the fixed fields of records alone, and the tallies are added up. Bodies are not read.

    by              one row for each
    topic, queue    topic, or topic and queue id
    day             day of the store time, in UTC
    key-prefix:N    first N characters of a message's first key; null: without a key
    retained        log file, and queue with messages in it: the oldest of them, and the groups that have not consumed them all

share: fraction of the bytes of all records.

A broker deletes whole log files, oldest first, once fileReservedTime has passed since their last change; it never checks who has
consumed what. So `retained` shows what would be lost with a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from mqstore.errors import UsageError
from mqstore.files.location import Url
from mqstore.findings import Damage, Kind
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.commit_log import CommitLog, EndOfFile, Records
from mqstore.rocketmq.format.dledger_log import open_log
from mqstore.rocketmq.format.log_file import open_place
from mqstore.rocketmq.format.record import split_keys
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.rocketmq.scan.planned_files import FilesSeen, require_seen
from mqstore.rocketmq.scan.splits import LEAD, Split, SplitWalk
from mqstore.table.formatting import count, size

BY = ("topic", "queue", "day", "key-prefix:N", "retained")
COUNTS = ("messages", "bytes", "body_bytes", "properties_bytes", "overhead_bytes", "share")
_FIRST_DAY = date(1970, 1, 1)
DAY = 86_400_000
MAX_REPORTED = 1000

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class UsageTask:
    """Count one split. prefix: leading characters of the first key to count by; None: none. first: see SplitWalk.

    token, seen: see `planned_files`.
    """

    store: str | Url
    file_size: int | None
    token: str
    split: Split
    seen: FilesSeen | None
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
    return open_log(open_place(store), file_size)


def usage_of_split(task: UsageTask) -> SplitUsage:
    """Count the records that start in a split."""
    log = _log(task.store, task.file_size, task.token)
    require_seen(log, task.seen)
    starts = {file.relative: file.start for file in log.files}
    walk = SplitWalk(log, task.split, first=task.first, lead=LEAD)
    result = SplitUsage(task.split, None, 0)
    for event in walk:
        if isinstance(event, Records):
            _add_counts(result, RecordColumns(event), event.file.start, task.prefix, log.header_size)
        elif isinstance(event, EndOfFile):
            result.filler[event.file.start] = result.filler.get(event.file.start, 0) + event.length
        elif event.messages or event.kind != Kind.TORN_RECORD:  # a file that is merely too short holds no damaged bytes
            start = starts[event.file]
            result.damaged[start] = result.damaged.get(start, 0) + event.length
            if len(result.damage) < MAX_REPORTED:
                result.damage.append(event)
            else:
                result.unreported += 1
    result.begin, result.reach = walk.begin, walk.reach
    return result


def _add_counts(result: SplitUsage, columns: RecordColumns, start: int, prefix: int | None, header: int) -> None:
    topics = columns.topic.dictionary_encode()
    names = topics.dictionary.to_pylist()
    codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    queues = columns.row(frames.QUEUE_ID)
    days = columns.row(frames.STORE_TIMESTAMP) // DAY
    for k, tally in _tallies((codes, queues, days), columns, header):
        result.groups.setdefault((start, names[codes[k]], int(queues[k]), int(days[k])), Tally()).add(tally)
    if prefix is not None:
        keys = [None if stored is None else next(iter(split_keys(stored)), "")[:prefix] for stored in columns.stored_keys.to_pylist()]
        numbers: dict[str | None, int] = {}
        labels = np.array([numbers.setdefault(key or None, len(numbers)) for key in keys], np.int64)
        names_of_keys = list(numbers)
        for k, tally in _tallies((labels,), columns, header):
            result.by_key.setdefault(names_of_keys[labels[k]], Tally()).add(tally)


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


# the report


def key_prefix(by: str) -> int | None:
    """Return the number of key characters that `by` counts by; None for another way to count. Raises UsageError if it is unknown."""
    if by in BY:
        if by.endswith(":N"):
            raise UsageError("key-prefix:N needs a number for N, such as key-prefix:4")
        return None
    match = re.fullmatch(r"key-prefix:([1-9]\d{0,3})", by)
    if match is None:
        raise UsageError(f"usage cannot be counted by {by!r}; choose one of {', '.join(BY)}")
    return int(match[1])


@dataclass(frozen=True, slots=True)
class LogFileUsage:
    """One log file. changed_at: time of its last change, ms, from which a broker computes its age."""

    name: str
    start: int
    bytes: int
    filler: int
    damaged: int
    changed_at: int

    def as_dict(self) -> Row:
        """Return a row of `files`."""
        return {
            "file": self.name,
            "bytes": self.bytes,
            "filler_bytes": self.filler,
            "damaged_bytes": self.damaged,
            "changed_at": self.changed_at,
        }


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Outcome of `usage`. log_bytes: of all log files; it is the sum of record_bytes, filler_bytes, damaged_bytes, unwritten_bytes.

    places: file sizes of the log and of the files derived from it. prefix: number of key characters counted by, None if not.
    runs_on, why: where it ran, and why there. shown_by: the groups that are shown unasked;
    least_names: of the columns, if there are no rows.
    """

    family: ClassVar[str] = "rocketmq"
    shown_by: ClassVar[tuple[str, ...]] = ("topic", "day")
    least_names: ClassVar[tuple[str, ...]] = ("messages", "bytes")

    store: str
    log_bytes: int
    total: Tally
    filler_bytes: int
    damaged_bytes: int
    files: tuple[LogFileUsage, ...]
    groups: dict[Group, Tally]
    by_key: dict[str | None, Tally]
    waiting: dict[tuple[str, int], dict[str, int]]
    places: dict[str, int]
    prefix: int | None
    damage: tuple[Damage, ...] = ()
    notes: tuple[str, ...] = field(default=())
    runs_on: str = field(default="", compare=False)
    why: str = field(default="", compare=False)

    @property
    def ok(self) -> bool:
        """Whether the whole log was read, and is intact."""
        return not (self.damage or self.notes)

    @property
    def record_bytes(self) -> int:
        """Bytes of valid records."""
        return self.total.bytes

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of log files not written yet."""
        return self.log_bytes - self.record_bytes - self.filler_bytes - self.damaged_bytes

    @property
    def headline(self) -> str:
        """What there is, in one sentence."""
        return f"{count(self.total.messages, 'message')} in {size(self.log_bytes)} of log."

    @property
    def total_bytes(self) -> int:
        """Bytes of all log files."""
        return self.log_bytes

    @property
    def read_bytes(self) -> int:
        """Bytes of the log that were read."""
        return self.log_bytes - self.unwritten_bytes

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """What the log consists of, in bytes, by name."""
        return (
            ("bodies", self.total.body),
            ("properties", self.total.properties),
            ("overhead of records", self.total.overhead),
            ("fillers at file ends", self.filler_bytes),
            ("damaged", self.damaged_bytes),
            ("unwritten", self.unwritten_bytes),
        )

    @property
    def elsewhere(self) -> tuple[tuple[str, int], ...]:
        """Sizes of the directories besides the log."""
        return tuple((place, amount) for place, amount in self.places.items() if place != "commitlog")

    def rows(self, by: str) -> list[Row]:
        """Return the counts by one item of `BY`; largest first, days and files in order. Raises UsageError."""
        prefix = key_prefix(by)
        if prefix is not None:
            if prefix != self.prefix:
                raise UsageError(f"the keys were not counted by {by}; run usage with that prefix")
            return [{"key_prefix": key, **self._counts(tally)} for key, tally in _largest(self.by_key, lambda key: key or "")]
        if by == "retained":
            return list(self._retained())
        if by == "day":
            days = self._sum_by(lambda group: group[3])
            return [{"day": _day(number), **self._counts(tally)} for number, tally in sorted(days.items())]
        if by == "topic":
            return [{"topic": topic, **self._timed(tally)} for topic, tally in _largest(self._sum_by(lambda group: group[1]))]
        queues = self._sum_by(lambda group: (group[1], group[2]))
        return [{"topic": topic, "queue_id": queue_id, **self._timed(tally)} for (topic, queue_id), tally in _largest(queues)]

    def _sum_by(self, label: Callable[[Group], Any]) -> dict[Any, Tally]:
        sums: dict[Any, Tally] = {}
        for group, tally in self.groups.items():
            add(sums, {label(group): tally})
        return sums

    def _counts(self, tally: Tally) -> Row:
        share = round(tally.bytes / self.record_bytes, 6) if self.record_bytes else 0.0
        values = (tally.messages, tally.bytes, tally.body, tally.properties, tally.overhead, share)
        return dict(zip(COUNTS, values, strict=True))

    def _timed(self, tally: Tally) -> Row:
        return {**self._counts(tally), "oldest_store_timestamp": tally.oldest, "newest_store_timestamp": tally.newest}

    def _retained(self) -> Iterator[Row]:
        queues = self._sum_by(lambda group: group[:3])
        for file in self.files:
            inside = {(topic, queue_id): tally for (start, topic, queue_id), tally in queues.items() if start == file.start}
            for (topic, queue_id), tally in sorted(inside.items(), key=lambda each: (each[1].oldest, each[0])):
                groups = {
                    group: tally.last + 1 - max(offset, tally.first)
                    for group, offset in sorted(self.waiting.get((topic, queue_id), {}).items())
                    if offset <= tally.last
                }
                yield {
                    "file": file.name,
                    "changed_at": file.changed_at,
                    "topic": topic,
                    "queue_id": queue_id,
                    **self._timed(tally),
                    "first_queue_offset": tally.first,
                    "last_queue_offset": tally.last,
                    "waiting_groups": groups,
                }

    def as_dict(self, by: tuple[str, ...] = ("topic", "queue", "day", "retained")) -> Row:
        """Return the document that `usage -o json` prints."""
        return {
            "store": self.store,
            "ok": self.ok,
            "log_bytes": self.log_bytes,
            "messages": self.total.messages,
            "record_bytes": self.record_bytes,
            "body_bytes": self.total.body,
            "properties_bytes": self.total.properties,
            "overhead_bytes": self.total.overhead,
            "filler_bytes": self.filler_bytes,
            "damaged_bytes": self.damaged_bytes,
            "unwritten_bytes": self.unwritten_bytes,
            "places": self.places,
            "files": [file.as_dict() for file in self.files],
            "by": {name: self.rows(name) for name in by},
            "damage": [item.as_dict() for item in self.damage],
            "notes": list(self.notes),
        }


def _largest(tallies: dict[Any, Tally], order: Callable[[Any], Any] = lambda key: key) -> list[tuple[Any, Tally]]:
    return sorted(tallies.items(), key=lambda each: (-each[1].bytes, order(each[0])))


def _day(number: int) -> str:
    """Return the calendar day; the bare number of days since 1970 if the calendar does not reach that far."""
    try:
        return (_FIRST_DAY + timedelta(days=number)).isoformat()
    except OverflowError:
        return str(number)
