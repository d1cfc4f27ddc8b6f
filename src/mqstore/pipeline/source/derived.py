"""The derived files of stores as DataFrames, and the findings of `verify`.

    format             a row is                                columns
    rocketmq-queue     an entry of a consume queue, as stored  topic, queue_id, queue_offset, physical_offset, size, tags_code, file
    rocketmq-index     an entry of an index file, as stored    file, number, key_hash, physical_offset, seconds, store_timestamp, previous
    rocketmq-offsets   a queue a consumer group has read       group, topic, queue_id, offset, min_offset, max_offset, lag, state,
                                                               expired_unread, in_hand, waiting
    rocketmq-timer     a message with an arbitrary delay       due_time, topic, queue_id, physical_offset, size, uniq_key, state
    rocketmq-findings  a finding of `verify`                   section, file, offset, length, kind, detail, messages
    rocketmq-damage    one of section `damage`                 the same without section

Paths are those of `rocketmq` (`mqstore.pipeline.source.stores`). The column `store` exists if it is requested, or if several
stores are read. Options: `columns`, `config`, and `mode`: if one of several paths cannot be opened as a store, PERMISSIVE skips and reports
it, FAILFAST fails the read. It is a row of the findings and of the damage, of kind `unreadable`, for the store itself (file `.`). With
`pipeline.read(..., where=...)`, conditions on store, topic and queue_id exclude queues.
States of `rocketmq-timer` are those of `mqstore.rocketmq.store.timers`; it is empty for a store without a timer wheel.
A queue's rows go from its minimum to its maximum offset, unwritten entries included; for a batch queue each unit is a row.
`store_timestamp` of an index entry is the time computed from its seconds, as the broker computes it.
Sections of the findings: `damage`; `coverage`, a range of the log that was not read as records; `note`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from mqstore.errors import UnsupportedError, UsageError
from mqstore.files.location import is_url
from mqstore.findings import Damage, Kind
from mqstore.pipeline.source.options import TABLE, checked
from mqstore.pipeline.source.pushdown import filters_from, values_of
from mqstore.pipeline.source.stores import (
    STORE,
    StoreReader,
    TableFormat,
    as_utf8,
    canonical,
    fails_fast,
    open_for_tasks,
    parse_fs_options,
    reported,
    split_names,
    store_paths,
    with_store,
)
from mqstore.pipeline.spark.source_api import Filter, InputPartition
from mqstore.places import open_rocketmq
from mqstore.rocketmq.format.consume_queue import ConsumeQueueReader
from mqstore.rocketmq.scan.columns import MAX_MS
from mqstore.rocketmq.scan.splits import written
from mqstore.rocketmq.store.timers import TIMER_NAMES, Timers
from mqstore.rocketmq.store.view import ConsumerOffset
from mqstore.rocketmq.verify.verification import verify

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.findings import Report
    from mqstore.rocketmq.format.batch_consume_queue import BatchQueueReader
    from mqstore.rocketmq.format.index_file import IndexFile
    from mqstore.rocketmq.store.store import RocketMQStore

ENTRIES = 1 << 20  # entries per task
BATCH = 1 << 16  # entries per batch
ENTRY = 20  # bytes of one, in a queue or an index file

QUEUE = {
    "topic": "string",
    "queue_id": "int32",
    "queue_offset": "int64",
    "physical_offset": "int64",
    "size": "int32",
    "tags_code": "int64",
    "file": "string",
}
INDEX = {
    "file": "string",
    "number": "int32",
    "key_hash": "int32",
    "physical_offset": "int64",
    "seconds": "int32",
    "store_timestamp": "timestamp",
    "previous": "int32",
}
OFFSETS = {
    "group": "string",
    "topic": "string",
    "queue_id": "int32",
    "offset": "int64",
    "min_offset": "int64",
    "max_offset": "int64",
    "lag": "int64",
    "state": "string",
    "expired_unread": "int64",
    "in_hand": "int64",
    "waiting": "int64",
}
TIMERS = {
    "due_time": "timestamp",
    "topic": "string",
    "queue_id": "int32",
    "physical_offset": "int64",
    "size": "int32",
    "uniq_key": "string",
    "state": "string",
}
FINDINGS = {
    "section": "string",
    "file": "string",
    "offset": "int64",
    "length": "int64",
    "kind": "string",
    "detail": "string",
    "messages": "int64",
}
DAMAGE = {name: kind for name, kind in FINDINGS.items() if name != "section"}


@dataclass(frozen=True, slots=True)
class TablePart(InputPartition):
    """Entries low..high-1 of the files in `places`: queues as (topic, queue id, batch), index files by number.

    bytes: that are read. why: for a path that cannot be opened as a store, the reason, which is a finding.
    """

    path: str
    config: str | None
    places: tuple[Any, ...] = ()
    low: int = 0
    high: int | None = None
    bytes: int = 0
    why: str | None = None


def _arrow_fields(table: Mapping[str, str], names: Iterable[str]) -> list[pa.Field]:
    import pyarrow as pa

    kinds = {"string": pa.string(), "int32": pa.int32(), "int64": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
    return [pa.field(name, kinds["string" if name == STORE else table[name]]) for name in names]


class TableSource(TableFormat):
    """A derived table. A subclass defines its columns, and how a store is cut into parts and read."""

    format = ""
    table: Mapping[str, str] = {}
    shows_skipped = False  # whether a path that cannot be opened is a row
    parts: Callable[[str, str | None, RocketMQStore, QueueFilter], Iterator[TablePart]]
    rows: Callable[[RocketMQStore, TablePart], Iterator[Mapping[str, Any]]]

    @classmethod
    def name(cls) -> str:
        return cls.format

    @classmethod
    def all_fields(cls, options: Mapping[str, str]) -> list[pa.Field]:
        return _arrow_fields(cls.table, (*cls.table, STORE))

    def returned_fields(self) -> list[pa.Field]:
        named = self.options.get("columns")
        several = (STORE,) if len(store_paths(self.options)) > 1 else ()
        return _arrow_fields(self.table, self._checked_columns((*self.table, *several) if named is None else split_names(named)))

    def fields_of(self, names: Sequence[str]) -> list[pa.Field]:
        return _arrow_fields(self.table, self._checked_columns(names))

    def reader_of(self, names: Sequence[str]) -> TableReader:
        options = checked(self.options, TABLE, f"a read of {self.format}")
        columns = self._checked_columns(names)
        reader = TableReader(
            type(self), store_paths(options), options.get("config"), columns, parse_fs_options(options), tuple(names),
            fail_fast=fails_fast(options), reported=reported(options),
        )  # fmt: skip
        reader.confine(filters_from(self.options.get("filters")))
        return reader

    def _checked_columns(self, names: Iterable[str]) -> tuple[str, ...]:
        chosen = canonical(names, (*self.table, STORE))
        unknown = [name for name in chosen if name not in self.table and name != STORE]
        if unknown or not chosen:
            problem = f"there is no column {unknown[0]!r}" if unknown else "no column is given"
            raise UsageError(f"{problem}; the columns of {self.format} are {', '.join(self.table)} and {STORE}")
        return chosen


@dataclass(frozen=True, slots=True)
class QueueFilter:
    """Values that filters restrict columns to; None for any."""

    topics: frozenset[Any] | None = None
    queue_ids: frozenset[Any] | None = None

    def matches(self, topic: str, queue_id: int) -> bool:
        return (self.topics is None or topic in self.topics) and (self.queue_ids is None or queue_id in self.queue_ids)


class TableReader(StoreReader):
    """Reads one kind of table."""

    def __init__(
        self,
        source: type[TableSource],
        paths: tuple[str, ...],
        config: str | None,
        columns: tuple[str, ...],
        fs_options: tuple[tuple[str, str], ...] = (),
        names: tuple[str, ...] | None = None,
        *,
        fail_fast: bool = False,
        reported: int | None = None,
    ) -> None:
        super().__init__(paths, columns, names, fail_fast=fail_fast, reported=reported)
        self.fs_options = fs_options
        self.source = source
        self.config = config
        self.queue_filter = QueueFilter()
        self.base = os.getcwd()

    def confine(self, filters: Sequence[Filter]) -> None:
        """Exclude stores and queues that the filters reject."""
        stores = values_of(STORE, filters)
        if stores is not None:
            self.paths = tuple(path for path in self.paths if path in stores)
        self.queue_filter = QueueFilter(values_of("topic", filters), values_of("queue_id", filters))

    def partitions(self) -> Sequence[InputPartition]:
        planned = self.planned()
        if self.source.shows_skipped and planned.skipped:
            rows = tuple(TablePart(each.path, None, why=each.why) for each in planned.skipped)
            planned = replace(planned, parts=(*planned.parts, *rows), costs=(*(planned.costs or ()), *([0] * len(rows))))
        return planned.partitions() or [TablePart("", None)]

    def sized_parts(self, path: str) -> Iterator[tuple[InputPartition, int]]:
        store = open_for_tasks(path, self.config, self.fs_options)
        for part in self.source.parts(path, self.config, store, self.queue_filter):
            yield part, part.bytes

    def read_part(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(part, TablePart)
        if not part.path:
            return iter(())
        rows = self.source.rows(self._opened(part), part) if part.why is None else iter((_columns_of([_unreadable(part.why)]),))
        return with_store(self._batches(rows), self.columns, part.path, self.names)

    def _opened(self, part: TablePart) -> RocketMQStore:
        # paths are as given by the user, and a task may run in another directory
        path = part.path if is_url(part.path) else os.path.join(self.base, part.path)
        config = None if part.config is None else os.path.join(self.base, part.config)
        return open_rocketmq(path, config=config, fs_options=dict(self.fs_options))

    def _batches(self, rows: Iterator[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        kinds = _arrow_fields(self.source.table, self.own_columns(next(iter(self.source.table))))
        for row in rows:
            arrays = [_array(row[field.name], field.type, row) for field in kinds]
            if len(arrays[0]):
                yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(kinds))


def _array(values: Any, kind: pa.DataType, row: Mapping[str, Any]) -> pa.Array:
    """Return one column from one value for all rows, or from one value per row."""
    import pyarrow as pa

    if isinstance(values, str | int):
        length = max(len(other) for other in row.values() if not isinstance(other, str | int))
        return pa.repeat(pa.scalar(values, kind), length)
    if isinstance(values, np.ndarray):
        values = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
        return pa.array(values).cast(kind) if not pa.types.is_timestamp(kind) else pa.array(values).cast(pa.int64()).cast(kind)
    return pa.array(values, kind)


# consume queues


def _queue_parts(path: str, config: str | None, store: RocketMQStore, queue_filter: QueueFilter) -> Iterator[TablePart]:
    room: list[tuple[str, int, bool]] = []
    held = 0
    for queue in store.all_queues():
        if not queue_filter.matches(queue.topic, queue.queue_id):
            continue
        key = (queue.topic, queue.queue_id, queue.batch)
        low, high = max(0, queue.min_offset), queue.max_offset
        if high - low >= ENTRIES and not queue.batch:
            for start in range(low, high, ENTRIES):
                stop = min(high, start + ENTRIES)
                yield TablePart(path, config, (key,), start, stop, bytes=ENTRY * (stop - start))
            continue
        room.append(key)
        held += max(0, high - low)
        if held >= ENTRIES:
            yield TablePart(path, config, tuple(room), bytes=ENTRY * held)
            room, held = [], 0
    if room:
        yield TablePart(path, config, tuple(room), bytes=ENTRY * held)


def _queue_rows(store: RocketMQStore, part: TablePart) -> Iterator[Mapping[str, Any]]:
    queues = {(queue.topic, queue.queue_id, queue.batch): queue for queue in store.all_queues()}
    for key in part.places:
        queue = queues.get(key)
        if queue is None:
            continue
        low, high = (part.low, part.high) if part.high is not None else (queue.min_offset, queue.max_offset)
        if isinstance(queue, ConsumeQueueReader):
            yield from _entry_rows(queue, low, high)
        else:
            yield from _units(queue, low, high)


def _entry_rows(queue: ConsumeQueueReader, low: int, high: int) -> Iterator[Mapping[str, Any]]:
    per_file = max(1, queue.file_size // 20)
    at = low
    while at < high:
        # a batch ends with its file, so that all rows have the same file name
        stop = min(high, at + BATCH, (at // per_file + 1) * per_file)
        entries = queue.entries(at, stop)
        yield {
            "topic": queue.topic,
            "queue_id": queue.queue_id,
            "queue_offset": np.arange(at, at + len(entries)),
            "physical_offset": entries["physical_offset"],
            "size": entries["size"],
            "tags_code": entries["tags_code"],
            "file": queue.place(at)[0],
        }
        at = stop


def _units(queue: BatchQueueReader, low: int, high: int) -> Iterator[Mapping[str, Any]]:
    units = queue.entries(low, high)
    if len(units):
        yield {
            "topic": queue.topic,
            "queue_id": queue.queue_id,
            "queue_offset": units["base_offset"],
            "physical_offset": units["physical_offset"],
            "size": units["size"],
            "tags_code": units["tags_code"],
            "file": queue.relative,
        }


class QueueSource(TableSource):
    """`rocketmq-queue`."""

    format = "rocketmq-queue"
    table = QUEUE
    parts = staticmethod(_queue_parts)
    rows = staticmethod(_queue_rows)


# index files


def _index_parts(path: str, config: str | None, store: RocketMQStore, queue_filter: QueueFilter) -> Iterator[TablePart]:
    for unread in store.unread_index:
        raise UnsupportedError(f"{unread.relative}: {unread.sentence}")
    for number, file in enumerate(store.index_files()):
        stop = min(file.index_count, file.positions)
        for low in range(1, stop, ENTRIES):
            high = min(stop, low + ENTRIES)
            yield TablePart(path, config, (number,), low, high, bytes=ENTRY * (high - low))


def _index_rows(store: RocketMQStore, part: TablePart) -> Iterator[Mapping[str, Any]]:
    file = store.index_files()[part.places[0]]
    for low in range(part.low, part.high or 0, BATCH):
        yield _index_row(file, low, min(part.high or 0, low + BATCH))


def _index_row(file: IndexFile, low: int, high: int) -> Mapping[str, Any]:
    entries = file.entries(low, high)
    times = file.begin_timestamp + entries["seconds"].astype(np.int64) * 1000
    return {
        "file": file.relative,
        "number": np.arange(low, low + len(entries)),
        "key_hash": entries["key_hash"],
        "physical_offset": entries["physical_offset"],
        "seconds": entries["seconds"],
        "store_timestamp": np.clip(times, -MAX_MS, MAX_MS) * 1000,
        "previous": entries["previous"],
    }


class IndexSource(TableSource):
    """`rocketmq-index`."""

    format = "rocketmq-index"
    table = INDEX
    parts = staticmethod(_index_parts)
    rows = staticmethod(_index_rows)


# consumer offsets, timers and findings: one task per store


def _one_part(path: str, config: str | None, store: RocketMQStore, queue_filter: QueueFilter) -> Iterator[TablePart]:
    yield TablePart(path, config)


def _whole_store(path: str, config: str | None, store: RocketMQStore, queue_filter: QueueFilter) -> Iterator[TablePart]:
    yield TablePart(path, config, bytes=sum(size for _, size in written(store.log)))


def _offset_rows(store: RocketMQStore, part: TablePart) -> Iterator[Mapping[str, Any]]:
    offsets = store.view().consumer_offsets()
    yield {field.name: [getattr(item, field.name) for item in offsets] for field in fields(ConsumerOffset)}


class OffsetsSource(TableSource):
    """`rocketmq-offsets`."""

    format = "rocketmq-offsets"
    table = OFFSETS
    parts = staticmethod(_one_part)
    rows = staticmethod(_offset_rows)


def _timer_rows(store: RocketMQStore, part: TablePart) -> Iterator[Mapping[str, Any]]:
    timers = Timers(store).rows()
    while chunk := list(islice(timers, BATCH)):
        row: dict[str, Any] = {name: [getattr(item, name) for item in chunk] for name in TIMER_NAMES}
        yield row | {"due_time": np.clip(np.array(row["due_time"], np.int64), -MAX_MS, MAX_MS) * 1000}


class TimerSource(TableSource):
    """`rocketmq-timer`."""

    format = "rocketmq-timer"
    table = TIMERS
    parts = staticmethod(_one_part)
    rows = staticmethod(_timer_rows)


def finding_rows(report: Report) -> list[dict[str, Any]]:
    """Return the rows of `rocketmq-findings` for a report."""
    none = dict.fromkeys(FINDINGS)
    return [
        *(none | {"section": "damage"} | item.as_dict() for item in report.damage),
        *(
            none | {"section": "coverage", "file": skip.file, "offset": skip.offset, "length": skip.length, "detail": skip.why}
            for skip in report.coverage.skipped
        ),
        *(none | {"section": "note", "detail": note} for note in report.notes),
    ]


def _finding_rows(store: RocketMQStore, part: TablePart) -> Iterator[Mapping[str, Any]]:
    yield _columns_of(finding_rows(verify(store, threads=1)))


def _columns_of(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return {name: [row[name] for row in rows] for name in FINDINGS}


def _unreadable(why: str) -> Mapping[str, Any]:
    """Return the finding for a path that cannot be opened as a store."""
    return {"section": "damage"} | Damage(".", 0, 0, Kind.UNREADABLE, as_utf8(why)).as_dict()


class FindingsSource(TableSource):
    """`rocketmq-findings`: one task verifies a whole store; `pipeline.verify` distributes one store over many tasks."""

    format = "rocketmq-findings"
    table = FINDINGS
    shows_skipped = True
    parts = staticmethod(_whole_store)
    rows = staticmethod(_finding_rows)


def _damage_rows(store: RocketMQStore, part: TablePart) -> Iterator[Mapping[str, Any]]:
    yield _columns_of([row for row in finding_rows(verify(store, threads=1)) if row["section"] == "damage"])


class DamageSource(FindingsSource):
    """`rocketmq-damage`: the findings that are damage."""

    format = "rocketmq-damage"
    table = DAMAGE
    rows = staticmethod(_damage_rows)


SOURCES: tuple[type[TableSource], ...] = (QueueSource, IndexSource, OffsetsSource, TimerSource, FindingsSource, DamageSource)
