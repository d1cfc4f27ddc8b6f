"""Reading the message table split by split: what a task of the Spark source or of an export does.

A split is read without its neighbours: the walk starts some way before it (`splits.LEAD`), so that it has joined the
chain of true records when it arrives. Columns are made as they are asked for; without `body` no body is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mqstore.files.location import Url
from mqstore.findings import Damage
from mqstore.rocketmq.config.broker_config import BrokerConfig
from mqstore.rocketmq.format.commit_log import CommitLog, Records
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.rocketmq.scan.splits import LEAD, Split, SplitWalk
from mqstore.rocketmq.store.disk_view import DiskView
from mqstore.rocketmq.store.message_table import MAX_BATCH_BYTES, batch_of, select
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.table.columns import Selection

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ReadTask", "opened_view", "overlapping", "read_split", "token_of"]

_views: dict[tuple[str | Url, BrokerConfig, str], DiskView] = {}


@dataclass(frozen=True, slots=True)
class ReadTask:
    """One split of a store, the columns and the messages wanted of it. token: changes when the log's files do."""

    store: str | Url
    config: BrokerConfig
    token: str
    split: Split
    columns: tuple[str, ...]
    selection: Selection


def token_of(log: CommitLog) -> str:
    """What tells this state of the log's files from another: a process may keep them mapped between jobs."""
    snapshot = log.snapshot()
    return snapshot or repr([(file.name, file.size, mapped.identity) for file in log.files for mapped in (log.mapped(file),)])


def overlapping(splits: Sequence[Split], selection: Selection) -> list[Split]:
    """The splits that can hold selected messages, cut to the selected physical offsets."""
    found = []
    for split in splits:
        start = split.start if selection.from_offset is None else max(split.start, selection.from_offset)
        stop = split.stop if selection.to_offset is None else min(split.stop, selection.to_offset)
        if start < stop:
            found.append(replace(split, start=start, stop=stop))
    return found


def opened_view(path: str | Url, config: BrokerConfig, token: str) -> DiskView:
    """The disk view of a store, kept by this process for the tasks that follow. token: see `token_of`."""
    key = (path, config, token)
    found = _views.get(key)
    if found is None:
        if len(_views) > 3:
            _views.clear()
        found = _views[key] = DiskView(RocketMQStore(path, config=config, snapshot=token))
    return found


def read_split(task: ReadTask, *, milliseconds: bool = False, report: Callable[[Damage], None] | None = None) -> Iterator[pa.RecordBatch]:
    """Batches of the selected messages of a split, in physical order, a few thousand rows or 16 MiB of records each.

    milliseconds: the JSON form, times as int64 and keys as stored text. report: told of bytes that could not be believed.
    """
    view = opened_view(task.store, task.config, task.token)
    try:
        for event in SplitWalk(view.log, task.split, lead=LEAD):
            if isinstance(event, Records):
                columns = RecordColumns(event)
                columns = columns.take(select(columns, task.selection))
                for piece in columns.pieces(MAX_BATCH_BYTES):
                    yield batch_of(piece, task.columns, view.log, view.queue_or_none, milliseconds=milliseconds)
            elif isinstance(event, Damage) and report is not None:
                report(event)
    finally:
        view.log.drop_queues()
