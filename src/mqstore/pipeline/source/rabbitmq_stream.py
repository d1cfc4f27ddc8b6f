"""`spark.readStream.format("rabbitmq")`: streams of a node's data directory as a stream of messages; each once, by stream offset.

    live = spark.readStream.format("rabbitmq").option("queue", "events").option("startingOffsets", "earliest").load("/data/node")
    live.writeStream.trigger(availableNow=True).option("checkpointLocation", place).toTable("events")

Columns, `vhost`, `queue`, `filterValue`, `verdict` and `names` are those of the batch source; several data directories are one stream.
Messages of classic and quorum queues are not in it: they leave their queues, and a directory does not show in which order. Further options:

    option                   meaning
    startingOffsets          latest (the default), earliest, or a stream offset
    failOnDataLoss           true: stop with the lost offsets when retention was faster; false: continue after them, and count them
    maxRowsPerTrigger        offsets in a batch, before filters; also maxOffsetsPerTrigger

The offset of the query is `{"/data/node": {"<directory of the stream>": {"off": next stream offset}}}`; the directory's name contains the
time at which the stream was declared, so a stream that is declared again is another one. `lost` counts offsets that retention removed
unread. A batch ends with a whole chunk that is valid: one that a node is writing, or whose data are damaged with nothing after it, waits.
On one of several replicas the last chunks may not be committed; where a node has cut off what was read already, the query stops.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mqstore.errors import PipelineError, UsageError
from mqstore.pipeline.source.options import RABBITMQ_STREAM, checked, count_option
from mqstore.pipeline.source.rabbitmq_options import RabbitMQOptions, open_rabbitmq
from mqstore.pipeline.source.stores import STORE, boolean, with_store
from mqstore.pipeline.spark.runner import freeze_gc_once
from mqstore.pipeline.spark.source_api import (
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from mqstore.rabbitmq.store import task_groups
from mqstore.rabbitmq.streams.stream import NamedStream
from mqstore.table.columns import STREAM

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StreamRange(InputPartition):
    """One task's part of a batch: offsets start to stop of one segment. place: directory of the stream; first: offset in its name.

    token: distinguishes the state of the files at this batch from other states.
    """

    path: str
    root: str
    token: str
    place: str
    first: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Position:
    """How far a stream was read. offset: the next one. lost: offsets that retention removed unread."""

    offset: int
    lost: int = 0

    def as_json(self) -> dict[str, int]:
        return {"off": self.offset, **({"lost": self.lost} if self.lost else {})}


Positions = dict[str, dict[str, _Position]]  # by path, then by the name of the stream's directory


class RabbitMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in one process and reads their parts in tasks. columns: of the message table, and `store`."""

    def __init__(self, options: Mapping[str, str], columns: Sequence[str], names: Sequence[str] | None = None) -> None:
        given = checked(options, RABBITMQ_STREAM, "a stream of rabbitmq")
        self._starting = _starting(given.get("startingOffsets", "latest"))
        self._rows = count_option(given, "maxRowsPerTrigger", 1)
        self._fail = boolean(given, "failOnDataLoss", True)
        self._options = RabbitMQOptions.of_stream(given)
        if self._options.selection.queue_types not in (None, {STREAM}):
            raise UsageError("a stream of rabbitmq reads streams: omit the option queueType, and read queues as a batch")
        self._selection = replace(self._options.selection, queue_types=frozenset((STREAM,)))
        self._columns = tuple(columns)
        self._names = None if names is None else tuple(names)
        self._paths = {os.path.abspath(path): path for path in self._options.paths}
        self._target: dict[str, dict[str, int]] | None = None
        self._late: dict[tuple[str, str, _Position], int] = {}  # offsets that were lost after the batch up to there was planned

    def _streams(self, path: str) -> dict[str, NamedStream]:
        store = open_rabbitmq(path, self._options.names)
        return {named.stream.name: named for named in store.selected_streams(self._selection)}

    def _ends(self) -> dict[str, dict[str, int]]:
        return {path: {name: named.stream.end() for name, named in self._streams(path).items()} for path in self._paths}

    def _positions(self, offset: Mapping[str, Any]) -> Positions:
        try:
            return {
                path: {name: _Position(int(value["off"]), int(value.get("lost", 0))) for name, value in streams.items()}
                for path, streams in offset.items()
            }
        except (AttributeError, KeyError, TypeError, ValueError):
            raise PipelineError("the checkpoint of the stream has a position that cannot be read; begin with a new one") from None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {
            path: {name: _Position(self._start_of(named)).as_json() for name, named in self._streams(path).items()} for path in self._paths
        }

    def _start_of(self, named: NamedStream) -> int:
        first, end = named.stream.first_offset, named.stream.end()
        if self._starting == "earliest":
            return first
        if isinstance(self._starting, int) and self._starting > end:
            raise UsageError(f"option startingOffsets is {self._starting}, and {named} ends at offset {end}")
        return end if self._starting == "latest" else max(first, int(self._starting))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._rows is None else ReadMaxRows(self._rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        before = self._positions(start)
        left = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        after: Positions = {}
        for path in self._paths:
            streams = self._streams(path)
            for name in before.get(path, {}).keys() - streams.keys():
                self._refuse_loss(f"the stream in directory {name!r} of {path} is not there any more")
            after[path] = {}
            for name, named in streams.items():
                known, end = before.get(path, {}).get(name), named.stream.end()
                position = self._present(path, named, known, end)
                if known is not None and (path, name, known) in self._late:
                    after[path][name] = position  # the loss of the last batch is counted by a separate step
                    continue
                if self._target is not None:
                    end = min(end, self._target.get(path, {}).get(name, position.offset))
                if left is not None:
                    end = min(end, position.offset + left)
                    left -= max(0, end - position.offset)
                after[path][name] = replace(position, offset=max(end, position.offset))
        return {path: {name: position.as_json() for name, position in streams.items()} for path, streams in after.items()}

    def _present(self, path: str, named: NamedStream, known: _Position | None, end: int) -> _Position:
        """Return the position from which a stream can be read. A new stream begins with its first message. Raises PipelineError."""
        first = named.stream.first_offset
        if known is None:
            return _Position(first)
        if known.offset > end:
            raise PipelineError(
                f"{named} of {path} ends at offset {end}, and this query has read up to {known.offset}: "
                "the directory is an older one, or a node has cut off chunks that were not committed; begin with a new checkpoint"
            )
        late = self._late.get((path, named.stream.name, known), 0)
        if late:
            return replace(known, lost=known.lost + late)
        lost = max(0, first - known.offset)
        if lost:
            self._refuse_loss(f"retention has removed offsets {known.offset} to {first - 1} of {named} of {path} unread")
        return _Position(known.offset + lost, known.lost + lost)

    def _refuse_loss(self, sentence: str) -> None:
        if self._fail:
            raise PipelineError(f"{sentence}; failOnDataLoss=false continues without them")

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begins, ranges = self._positions(start), list[InputPartition]()
        for path, streams in self._positions(end).items():
            store = open_rabbitmq(path, self._options.names)
            there = {named.stream.name: named for named in store.selected_streams(self._selection)}
            for name, after in streams.items():
                named = there.get(name)
                if named is None:
                    self._refuse_loss(f"the stream in directory {name!r} of {path} is not there any more")
                    continue
                known = begins.get(path, {}).get(name)
                begin = named.stream.first_offset if known is None else known.offset + after.lost - known.lost
                late = max(0, min(named.stream.first_offset, after.offset) - begin)
                if late:
                    self._refuse_loss(f"retention has removed offsets {begin} to {begin + late - 1} of {named} of {path} unread")
                    self._late[path, name, after] = late
                ranges += _ranges(path, str(store.directory.root), named, begin + late, after.offset)
        return ranges

    def commit(self, end: dict[str, Any]) -> None:
        pass

    # in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamRange)
        freeze_gc_once()
        names = tuple(name for name in self._columns if name != STORE) or ("stream_offset",)
        return with_store(self._batches(partition, names), self._columns, self._paths[partition.path], self._names)

    def _batches(self, part: StreamRange, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        store = task_groups.open_cached(part.root, part.token, self._options.now, self._options.names)
        for named in store.streams:
            number = named.stream.segment_of(part.first)
            if named.stream.place != part.place or number < 0 or int(named.stream.first[number]) != part.first:
                continue
            if named.stream.open(number)[1]:
                break
            selection = replace(self._selection, from_offset=part.start, to_offset=part.stop, limit=None)
            batches = (store.batch(rows, columns, selection) for rows in store.stream_rows(named, selection, range(number, number + 1)))
            yield from (batch for batch in batches if batch is not None)
            return
        raise PipelineError(
            f"the segment {part.first:020d} of {part.place} in {part.path} was removed before it was read: retention is faster than this "
            "stream; start the query again"
        )


def _starting(text: str) -> str | int:
    word = {"-1": "latest", "-2": "earliest"}.get(text, text.lower())
    if word in ("latest", "earliest"):
        return word
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"option startingOffsets is {text!r}: give earliest, latest, or a stream offset")
    return int(text)


def _ranges(path: str, root: str, named: NamedStream, start: int, stop: int) -> Iterator[StreamRange]:
    stream = named.stream
    token = f"stream {start} {stop}"
    for number in stream.segments_between(start, stop) if start < stop else ():
        first, after = int(stream.first[number]), stream.after(number)
        yield StreamRange(path, root, token, stream.place, first, max(start, first), stop if after is None else min(stop, after))
