"""Usage: what fills a store's log, and what keeps its files from being deleted.

    pipeline.usage("/backup/broker-a/store", threads=4).rows("topic")

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

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from mqstore.errors import MqstoreError, UsageError
from mqstore.findings import Damage, merge_adjacent
from mqstore.jobs.report import Progress
from mqstore.jobs.runner import Runner, choose_runner, open_for
from mqstore.rocketmq.scan.splits import bytes_to_read, check_seams, plan
from mqstore.rocketmq.scan.usage import Group, Tally, UsageTask, add, usage_of_split
from mqstore.rocketmq.store.split_reader import token_of
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.table.formatting import count, size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BY = ("topic", "queue", "day", "key-prefix:N", "retained")
COUNTS = ("messages", "bytes", "body_bytes", "properties_bytes", "overhead_bytes", "share")
_FIRST_DAY = date(1970, 1, 1)

Row = dict[str, Any]


def key_prefix(by: str) -> int | None:
    """Return the number of key characters that `by` counts by; None for another way to count. Raises UsageError if it is unknown."""
    if by in BY:
        if by.endswith(":N"):
            raise UsageError("key-prefix:N needs a number for N, such as key-prefix:4")
        return None
    found = re.fullmatch(r"key-prefix:([1-9]\d{0,3})", by)
    if found is None:
        raise UsageError(f"usage cannot be counted by {by!r}; choose one of {', '.join(BY)}")
    return int(found[1])


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
        """Whether the whole log is intact."""
        return not self.damage

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
        found: dict[Any, Tally] = {}
        for group, tally in self.groups.items():
            add(found, {label(group): tally})
        return found

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


def usage(
    store: str | os.PathLike[str] | RocketMQStore,
    *,
    prefix: int | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    threads: int | None = None,
    splits: int | None = None,
    config: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> UsageReport:
    """Count the messages and bytes of a store's log.

    prefix: count also by this many characters of the first key. spark: a session to run on. master: start one there. threads: run in
    threads of this process. Without any of them the size of the log decides (`mqstore.jobs.runner`).
    progress: called with (bytes of log counted, bytes of log to count).
    Raises CannotOpenError, NotAStoreError, UsageError, and PipelineError if Spark cannot run.
    """
    if prefix is not None and prefix < 1:
        raise UsageError(f"the key prefix must have at least 1 character (got {prefix})")
    store = open_for(store, config, spark=spark, master=master)
    choice = choose_runner(store.path, partial(bytes_to_read, store.log), spark=spark, master=master, threads=threads)
    with choice.runner(spark) as runner:
        return replace(_run(store, runner, prefix, splits, progress), runs_on=runner.name, why=choice.why)


def _run(store: RocketMQStore, runner: Runner, prefix: int | None, count: int | None, progress: Progress | None) -> UsageReport:
    pieces = plan(store.log, count=count, tasks=4 * runner.width)
    read = sum(split.stop - split.start for split in pieces)
    token = token_of(store.log)
    tasks = [UsageTask(store.place, store.config.commit_log_file_size, token, split, prefix) for split in pieces]

    def done(finished: int) -> None:
        if progress is not None:
            progress(read * finished // max(1, len(tasks)), read)

    groups: dict[Group, Tally] = {}
    by_key: dict[str | None, Tally] = {}
    filler: dict[int, int] = {}
    damaged: dict[int, int] = {}
    damage: list[Damage] = list(store.log.findings)
    unreported = 0
    outcomes = runner.each(tasks, usage_of_split, done)
    again = {split.number: task for split, task in zip(pieces, tasks, strict=True)}
    for outcome, _ in check_seams(store.log, outcomes, lambda split, first: usage_of_split(_from_first(again[split.number], first))):
        add(groups, outcome.groups)
        add(by_key, outcome.by_key)
        for into, part in ((filler, outcome.filler), (damaged, outcome.damaged)):
            for start, length in part.items():
                into[start] = into.get(start, 0) + length
        damage.extend(outcome.damage)
        unreported += outcome.unreported
    total = Tally()
    for tally in groups.values():
        total.add(tally)
    changed = {entry.name: entry.mtime_ms for entry in store.directory.entries("commitlog")}
    files = tuple(
        LogFileUsage(file.name, file.start, file.size, filler.get(file.start, 0), damaged.get(file.start, 0), changed.get(file.name, 0))
        for file in store.log.files
    )
    return UsageReport(
        str(store.path),
        store.log.size_on_paper,
        total,
        sum(filler.values()),
        sum(damaged.values()),
        files,
        groups,
        by_key,
        _waiting(store),
        {
            place: _tree_size(store, place)
            for place in ("commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "config")
        },
        prefix,
        tuple(merge_adjacent(damage)),
        (f"{unreported} further findings are not listed individually",) if unreported else (),
    )


def _from_first(task: UsageTask, first: int) -> UsageTask:
    return UsageTask(task.store, task.file_size, task.token, task.split, task.prefix, first)


def _waiting(store: RocketMQStore) -> dict[tuple[str, int], dict[str, int]]:
    """Return for each queue the groups that consume it, with the next offset of each."""
    found: dict[tuple[str, int], dict[str, int]] = {}
    for item in store.view().consumer_offsets():
        found.setdefault((item.topic, item.queue_id), {})[item.group] = item.offset
    return found


def _tree_size(store: RocketMQStore, place: str) -> int:
    """Return the size of all files below a directory."""
    try:
        entries = store.directory.entries(place) if store.directory.is_directory(place) else []
    except MqstoreError:
        return 0
    return sum(_tree_size(store, f"{place}/{entry.name}") if entry.is_directory else entry.size for entry in entries)
