"""Reading the message table split by split: the task of the Spark source and of an export.

A split is read without its neighbours: the walk starts some way before it (`scan.splits.LEAD`), so that it follows the chain of real
records when it arrives. Columns are made on request; without `body` no body is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mqstore.files.durable import DurableDirectory
from mqstore.files.location import Url
from mqstore.findings import Damage
from mqstore.rocketmq.config.broker_config import BrokerConfig
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.rocketmq.scan.planned_files import FilesSeen, require_seen
from mqstore.rocketmq.scan.splits import LEAD, Split, SplitWalk
from mqstore.rocketmq.store.disk_view import DiskView
from mqstore.rocketmq.store.message_table import MAX_BATCH_BYTES, batch_of, select
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.table.columns import Selection, rocketmq_schema
from mqstore.table.row_files import PartFile, PartFiles, TaskOutput

if TYPE_CHECKING:
    import pyarrow as pa

_views: dict[tuple[str | Url, BrokerConfig, str], DiskView] = {}
LINEAGE = ("physical_offset", "store_file", "verdict")

MAX_FINDINGS = 1000


@dataclass(frozen=True, slots=True)
class ReadTask:
    """One split of a store, with the requested columns and messages. token, seen: see `planned_files`; seen=None: whatever is there."""

    store: str | Url
    config: BrokerConfig
    token: str
    split: Split
    columns: tuple[str, ...]
    selection: Selection
    seen: FilesSeen | None = None


def overlapping(splits: Sequence[Split], selection: Selection) -> list[Split]:
    """Return the splits that can hold selected messages, cut to the selected physical offsets."""
    result = []
    for split in splits:
        start = split.start if selection.from_offset is None else max(split.start, selection.from_offset)
        stop = split.stop if selection.to_offset is None else min(split.stop, selection.to_offset)
        if start < stop:
            result.append(replace(split, start=start, stop=stop))
    return result


def opened_view(path: str | Url, config: BrokerConfig, token: str) -> DiskView:
    """Return the disk view of a store, kept by this process for the tasks that follow. token: see `token_of`."""
    key = (path, config, token)
    view = _views.get(key)
    if view is None:
        if len(_views) > 3:
            _views.clear()
        view = _views[key] = DiskView(RocketMQStore(path, config=config))
    return view


def read_split(task: ReadTask, *, milliseconds: bool = False, report: Callable[[Damage], None] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the selected messages of a split in physical order, in batches of a few thousand rows or 16 MiB of records.

    milliseconds: the JSON form, times as int64 and keys as stored text. report: called with damage. Raises FileLostError.
    """
    view = opened_view(task.store, task.config, task.token)
    require_seen(view.log, task.seen)
    try:
        for event in SplitWalk(view.log, task.split, lead=LEAD):
            if isinstance(event, Records):
                columns = RecordColumns(event)
                columns = columns.take(select(columns, task.selection))
                for piece in columns.pieces(MAX_BATCH_BYTES):
                    yield batch_of(piece, task.columns, view.log, view.queue_lookup, milliseconds=milliseconds)
            elif isinstance(event, Damage) and report is not None:
                report(event)
    finally:
        view.log.drop_queues()


# Writing the message table to files, split by split: each task reads one split and writes its files (`mqstore.table.row_files`).


@dataclass(frozen=True, slots=True)
class ExportTask:
    """Write the selected messages of one split. read.columns: as in the files, including partition columns.

    metadata: added to each Parquet file. limit: maximum number of messages. keep_partition_columns: in the files, not only in their paths.
    """

    read: ReadTask
    stage: str
    format: str
    partition_by: tuple[str, ...]
    metadata: tuple[tuple[str, str], ...]
    limit: int | None = None
    keep_partition_columns: bool = False

    @property
    def number(self) -> int:
        """Number of the split."""
        return self.read.split.number


def export_split(task: ExportTask) -> TaskOutput:
    """Write the selected messages of one split. Every attempt writes the same messages in the same order."""
    damage: list[Damage] = []
    rows = 0
    with DurableDirectory(task.stage) as stage:
        writers = PartFiles(stage, task.number, task.format, task.partition_by, task.metadata, keep=task.keep_partition_columns)
        for batch in read_split(task.read, milliseconds=task.format != "parquet", report=damage.append):
            if task.limit is not None:
                batch = batch.slice(0, task.limit - rows)
            rows += batch.num_rows
            writers.add(batch)
            if rows == task.limit:
                break
        parts = writers.finish()
    return TaskOutput(parts, rows, tuple(damage[:MAX_FINDINGS]), max(0, len(damage) - MAX_FINDINGS))


def empty_part(task: ExportTask) -> PartFile:
    """Write a file without rows that has the columns of the others."""
    import pyarrow as pa

    schema = rocketmq_schema(task.read.columns)
    with DurableDirectory(task.stage) as stage:
        writers = PartFiles(stage, task.number, task.format, metadata=task.metadata)
        writers.add(pa.RecordBatch.from_pylist([], schema))
        return writers.finish()[0]
