"""`spark.readStream.format("rocketmq")`: a growing commit log as a stream of messages; each once, in the order of the log.

    live = spark.readStream.format("rocketmq").option("startingOffsets", "earliest").load("/data/store")
    live.writeStream.trigger(availableNow=True).option("checkpointLocation", place).toTable("messages")

Columns, `topic`, `subscribePattern`, `queueId`, `keys` and `config` are those of the batch source; several stores are one stream.
Further options:

    option                   meaning
    startingOffsets          latest (the default, as with Kafka), earliest, a physical offset, or {"/data/a": 4096, "/data/b": "latest"}
    startingOffsets          also as Kafka's: queue offsets by topic and queue, {"orders": {"0": 23, "1": -2}}; a queue that is not named
                             is read whole. -1, the end of a queue, cannot be given: the position of a stream is one of the log
    startingOffsetsByTimestamp    store times in milliseconds by topic and queue
    startingTimestamp        begin at the first message stored at or after that time in milliseconds
    failOnDataLoss           true: stop with the lost range when retention was faster; false: continue after it, and count it in the offset
    maxRowsPerTrigger        messages of the log in a batch, before filters; also maxOffsetsPerTrigger
    maxBytesPerTrigger       bytes of the log in a batch; at least one message
    minOffsetsPerTrigger     messages of the log that a batch waits for, before filters; trigger(availableNow=True) does not wait
    maxTriggerDelay          longest time that it waits: 15m (the default), 30s, 500ms
    minPartitions            minimum number of tasks of a batch, if it has enough messages
    mode                     PERMISSIVE: skip damage, as the batch source does; FAILFAST: stop at it

The offset of a stream is `{"/data/store": {"off": physical offset, "gen": identity}}` (`rocketmq/scan/log_tail.py`). A batch is a range of
the log, and a range holds the same messages whenever it is read: with a sink that writes a batch once, each message arrives once.
Its key `lost` counts the bytes that retention removed unread. A batch that Spark has already written to its checkpoint cannot change
its end: what is missing when its parts are planned is counted by the next offset, by one without messages if need be; a part whose
file has vanished since is an error, and is counted when the query plans the batch again.
Of a log that is not all here, and of topics of which consumers get other messages, a warning says so when the query starts.
A message is `unindexed` until the store has added it to its queue, which may not have happened yet for the newest ones.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from mqstore.errors import FileLostError, PipelineError, UsageError
from mqstore.files.location import as_location, local_store
from mqstore.pipeline.source.options import STREAM, ReadOptions, checked, count_option
from mqstore.pipeline.source.stores import STORE, open_for_tasks, require_offsets, warn_of_rows, with_store
from mqstore.pipeline.spark.runner import freeze_gc_once
from mqstore.pipeline.spark.source_api import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from mqstore.rocketmq.config.broker_config import BrokerConfig
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.rocketmq.scan.log_tail import LogLag, LogPosition, LogTail, Piece
from mqstore.rocketmq.scan.splits import Split, SplitWalk
from mqstore.rocketmq.store.disk_view import DiskView
from mqstore.rocketmq.store.message_table import MAX_BATCH_BYTES, batch_of, select
from mqstore.rocketmq.store.split_reader import opened_view
from mqstore.table.columns import Selection

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_START_OPTIONS = ("startingoffsets", "startingtimestamp")  # not conditions on messages, except for offsets by queue
RANGES = "rocketmq-ranges"
RANGES_SCHEMA = "start bigint, stop bigint, files array<bigint>, token string, tolerate_loss boolean"


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The options of a stream. starting: by store path, or "" for all: earliest, latest or a physical offset."""

    starting: Mapping[str, str | int]
    timestamp: int | None
    read: ReadOptions
    rows: int | None
    size: int | None
    pieces: int
    least: int
    delay: float

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StreamSettings:
        """Parse the options. Raises UsageError."""
        options = checked(options, STREAM, "a stream")
        start = options.get("startingOffsets", "latest")
        by_queue = "startingOffsetsByTimestamp" in options or _names_queues(start)
        conditions = {name: text for name, text in options.items() if name.lower() not in _START_OPTIONS}
        if _names_queues(start):
            conditions["startingOffsets"] = start
        rows, least = count_option(options, "maxRowsPerTrigger", 1), count_option(options, "minOffsetsPerTrigger", 1) or 0
        if rows is not None and least > rows:
            raise UsageError(f"option minOffsetsPerTrigger is {least}, more than maxRowsPerTrigger, {rows}")
        return cls(
            starting={"": "earliest"} if by_queue else _starting(start),
            timestamp=count_option(options, "startingTimestamp", 0),
            read=ReadOptions.of(conditions, STREAM, "a stream"),
            rows=rows,
            size=count_option(options, "maxBytesPerTrigger", 1),
            pieces=count_option(options, "minPartitions", 1) or 0,
            least=least,
            delay=_seconds(options.get("maxTriggerDelay", "15m")),
        )


def _seconds(text: str) -> float:
    """Parse a duration as Kafka's reader does. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,12})\s*(us|ms|s|m|min|h|d)?", text.strip().lower())
    if match is None:
        raise UsageError(f"option maxTriggerDelay is {text!r}: give a time such as 30s, 15m or 2h")
    return int(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}[match[2] or "ms"]


def _names_queues(text: str) -> bool:
    """Return whether offsets are given by topic and queue, and not by store path."""
    try:
        given = json.loads(text) if text.lstrip().startswith("{") else None
    except ValueError:
        return False
    return isinstance(given, dict) and any(isinstance(value, dict) for value in given.values())


def _starting(text: str) -> dict[str, str | int]:
    try:
        given = json.loads(text) if text.lstrip().startswith("{") else {"": text}
        starts = {path and os.path.abspath(path): _offset(str(value)) for path, value in given.items()}
    except ValueError:
        raise UsageError(
            f"option startingOffsets is {text!r}: give earliest, latest, a physical offset, or an object of them by store path"
        ) from None
    return starts


def _offset(text: str) -> str | int:
    """Parse a position. Raises ValueError."""
    word = {"-1": "latest", "-2": "earliest"}.get(text, text.lower())  # as Kafka numbers them
    if word in ("earliest", "latest"):
        return word
    if (offset := int(text)) < 0:
        raise ValueError
    return offset


@dataclass(frozen=True, slots=True)
class LogRange(InputPartition):
    """One task's part of a batch. token: distinguishes the state of the files at this batch from other states."""

    path: str
    config: BrokerConfig
    token: str
    piece: Piece
    tolerate_loss: bool


def view_of(part: LogRange) -> DiskView:
    """Return the current state of the store, with all log files of the range open, so that it is read whole, or not at all.

    Raises PipelineError if a log file is missing that was there when the batch was planned: its messages would be missing without
    being counted. The batch is planned again when the query starts again, and then the loss is counted.
    """
    view = opened_view(part.path, part.config, part.token)
    for start in part.piece.files:
        file = view.log.file_at(start)
        try:
            if file is None:
                raise FileLostError("")
            view.log.mapped(file)
        except FileLostError:
            after = "start the query again: it counts the loss and continues" if part.tolerate_loss else "failOnDataLoss=false continues"
            raise PipelineError(
                f"the log file {start:020d} of {part.path} was removed before it was read: retention is faster than this stream; {after}"
            ) from None
    return view


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in one process and reads their parts in tasks. columns: of the message table, and `store`."""

    def __init__(self, options: Mapping[str, str], columns: Sequence[str], names: Sequence[str] | None = None) -> None:
        self._settings = StreamSettings.of(options)
        self._columns = tuple(columns)
        self._names = None if names is None else tuple(names)
        self._read = self._settings.read
        for path in self._read.paths:
            local_store(as_location(path), "a stream")
        self._paths = {os.path.abspath(path): path for path in self._read.paths}
        unknown = [path for path in self._settings.starting if path and path not in self._paths]
        if unknown:
            raise UsageError(f"startingOffsets names {unknown[0]}, which is not among the stores: {', '.join(self._paths)}")
        self._tails: dict[str, tuple[LogTail, BrokerConfig]] = {}
        self._target: dict[str, int] | None = None
        self._late: dict[tuple[str, LogPosition], int] = {}
        self._turn = 0
        self._began: float | None = None  # the last batch
        self._reached: dict[str, LogPosition] = {}
        self._lags: dict[str, LogLag] = {}

    def _tail(self, path: str) -> LogTail:
        return self._open_tail(path)[0]

    def _open_tail(self, path: str) -> tuple[LogTail, BrokerConfig]:
        opened = self._tails.get(path)
        if opened is None:
            store = open_for_tasks(path, self._read.config)
            warn_of_rows(store)
            config = store.config
            tail = LogTail(
                store.place if isinstance(store.place, str) else path,
                config.commit_log_file_size,
                tolerate_loss=not self._read.fail_on_data_loss,
                fail_fast=self._read.fail_fast,
            )
            if self._settings.pieces:
                tail.spacing = 1
            opened = self._tails[path] = tail, config
        return opened

    # positions and offsets

    def _positions(self, offset: Mapping[str, Any]) -> dict[str, LogPosition]:
        """Return the position of each store. A new store begins with its first message; a single store may have been moved."""
        try:
            known = {path: LogPosition.from_json(document) for path, document in offset.items()}
        except ValueError as error:
            raise PipelineError(f"the checkpoint of the stream has a position that cannot be read: {error}; begin with a new one") from None
        if len(known) == len(self._paths) == 1:
            known = dict(zip(self._paths, known.values(), strict=True))
        gone = [path for path in known if path not in self._paths]
        if gone and self._read.fail_on_data_loss:
            raise PipelineError(
                f"the checkpoint of this stream contains the store {gone[0]}, which is not among the given ones: {', '.join(self._paths)}; "
                "add it again, or continue without it by failOnDataLoss=false"
            )
        return {path: known[path] if path in known else self._tail(path).earliest() for path in self._paths}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {path: self._start_position(path).as_json() for path in self._paths}

    def _start_position(self, path: str) -> LogPosition:
        settings, tail = self._settings, self._tail(path)
        if self._read.selection.by_queue and self._read.fail_on_data_loss:
            require_offsets(open_for_tasks(path, self._read.config), self._read.selection.by_queue)
        if settings.timestamp is not None:
            return tail.since(settings.timestamp)
        where = settings.starting.get(path, settings.starting.get("", "earliest"))
        if isinstance(where, int):
            return tail.at(where)
        return tail.latest() if where == "latest" else tail.earliest()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._settings.rows is not None:
            return ReadMaxRows(self._settings.rows)
        return ReadAllAvailable() if self._settings.size is None else ReadMaxBytes(self._settings.size)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = {path: self._tail(path).latest().offset for path in self._paths}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = None if isinstance(limit, ReadAllAvailable) else self._settings.size
        before = self._positions(start)
        after = dict(before)
        # stores take turns at being the first to get their share of a limit
        order = list(self._paths)
        self._turn = (self._turn + 1) % len(order)
        order = order[self._turn :] + order[: self._turn]
        records, loses = 0, False
        for number, path in enumerate(order):
            left = len(order) - number
            late = self._late.get((path, before[path]), 0)
            if late:
                # lost after the last batch was planned: counted by a separate step
                after[path] = replace(before[path], lost=before[path].lost + late)
                loses = True
                continue
            if rows == 0 or size == 0:
                continue
            stop = None if self._target is None else self._target[path]
            step = self._tail(path).advance(before[path], rows=_share(rows, left), size=_share(size, left), stop=stop)
            after[path] = step.end
            records += step.records
            rows = None if rows is None else rows - step.records
            size = None if size is None else max(0, size - (step.end.offset - before[path].offset))
        if not loses and self._waits(records):
            after = before
        self._reached = after
        if after == before and set(start) == set(after):
            return start
        return {path: position.as_json() for path, position in after.items()}

    def _waits(self, records: int) -> bool:
        """Return whether a batch of this many messages waits for more; as with Kafka, the first one of a query does not."""
        now = monotonic()
        early = self._began is not None and now - self._began < self._settings.delay
        if early and records < self._settings.least and self._target is None:
            return True
        if records:
            self._began = now
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return, for the progress of the query, the end of each log and the lag that remains after the batch that was just planned."""
        lags = {}
        for path, position in self._reached.items():
            if path not in self._lags:
                self._lags[path] = LogLag(self._open_tail(path)[0].path, self._open_tail(path)[1].commit_log_file_size)
            lags[path] = self._lags[path].of(position)
        return {path: lag for path, lag in lags.items() if lag is not None} or None

    def _ranges(self, start: dict[str, Any], end: dict[str, Any]) -> list[LogRange]:
        begins, ends = self._positions(start), self._positions(end)
        least = -(-self._settings.pieces // len(self._paths)) if self._settings.pieces else 0
        ranges: list[LogRange] = []
        self._late = {}
        for path, after in ends.items():
            tail, config = self._open_tail(path)
            token = f"stream {after.generation} {after.offset}"
            pieces = tail.pieces(begins[path], after, least=least)
            # after the pieces: a file that vanishes between the two is named in a piece, and its task fails
            self._late[path, after] = self._lost_since_planned(path, begins[path], after)
            ranges.extend(LogRange(path, config, token, piece, not self._read.fail_on_data_loss) for piece in pieces)
        return ranges

    def _lost_since_planned(self, path: str, begin: LogPosition, end: LogPosition) -> int:
        """Return the bytes of a batch that are in no log file and not counted in its end. Raises PipelineError if loss is an error."""
        if begin.offset >= end.offset:
            return 0
        late = max(0, self._tail(path).missing(begin.offset, end.offset) - (end.lost - begin.lost))
        if late and self._read.fail_on_data_loss:
            raise PipelineError(
                f"the log of {path} has lost {late} bytes of the batch from physical offset {begin.offset} to {end.offset - 1} before they "
                "were read: retention has removed the files; failOnDataLoss=false continues, and counts them as lost"
            )
        return late

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._ranges(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        for path, position in self._positions(end).items():
            self._tail(path).forget(position.offset)

    # in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogRange)
        freeze_gc_once()
        names = [name for name in self._columns if name != STORE] or ["physical_offset"]
        batches = read_range(partition, names, self._read.selection)
        return with_store(batches, self._columns, self._paths[partition.path], self._names)


def _share(amount: int | None, among: int) -> int | None:
    return None if amount is None else -(-amount // among)


def read_range(part: LogRange, names: Sequence[str], selection: Selection) -> Iterator[pa.RecordBatch]:
    """Yield the selected messages of a range; its first record is known, so nothing before it is read."""
    view = view_of(part)
    for event in SplitWalk(view.log, Split(0, part.piece.start, part.piece.stop), first=part.piece.start):
        if isinstance(event, Records):
            columns = RecordColumns(event)
            columns = columns.take(select(columns, selection))
            for piece in columns.pieces(MAX_BATCH_BYTES):
                yield batch_of(piece, names, view.log, view.queue_lookup)


class LogRanges(DataSource):
    """The ranges of a stream's batches instead of their messages, for jobs whose tasks read the log themselves."""

    @classmethod
    def name(cls) -> str:
        return RANGES

    def schema(self) -> str:
        return RANGES_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _RangesReader(self.options, ())


@dataclass(frozen=True, slots=True)
class _Batch(InputPartition):
    ranges: tuple[LogRange, ...]


class _RangesReader(RocketMQStreamReader):
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [_Batch(tuple(self._ranges(start, end)))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, _Batch)
        for each in partition.ranges:
            yield each.piece.start, each.piece.stop, list(each.piece.files), each.token, each.tolerate_loss
