"""Reading records one by one, where a queue or the index tells their places: what a task of a narrowed source does.

The bytes between the records are not touched. A place where no believable record stands is told as damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.files.location import Url
from mqstore.findings import Damage, Kind
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.config.broker_config import BrokerConfig
from mqstore.rocketmq.format.commit_log import CHUNK, CommitLog, Records, group_ranges
from mqstore.rocketmq.lookup.pruning import QueueRange
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.rocketmq.store.disk_view import DiskView
from mqstore.rocketmq.store.message_table import MAX_BATCH_BYTES, batch_of, select
from mqstore.rocketmq.store.split_reader import opened_view
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.table.columns import Selection

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PointTask", "files_of", "read_points"]


@dataclass(frozen=True, slots=True)
class PointTask:
    """Records of a store, the columns and the messages wanted of them. token: changes when the log's files do.

    places: a range of a queue whose entries lead into one log file, or physical offsets, ascending.
    """

    store: str | Url
    config: BrokerConfig
    token: str
    places: QueueRange | tuple[int, ...]
    columns: tuple[str, ...]
    selection: Selection


def files_of(store: RocketMQStore, places: QueueRange | tuple[int, ...]) -> tuple[str, ...]:
    """The log files in which the records lie, relative to the store."""
    view = DiskView(store)
    # a range of a queue leads into one file
    some = _offsets(view, places if isinstance(places, tuple) else replace(places, high=places.low + 1)).tolist()
    return tuple(dict.fromkeys(file.relative for physical in some if (file := view.log.file_at(physical)) is not None))


def read_points(task: PointTask, *, report: Callable[[Damage], None] | None = None) -> Iterator[pa.RecordBatch]:
    """Batches of the selected records, in physical order. report: told of places where no record can be believed."""
    view = opened_view(task.store, task.config, task.token)
    try:
        for records in _records(view.log, _offsets(view, task.places), report):
            columns = RecordColumns(records)
            columns = columns.take(select(columns, task.selection))
            for piece in columns.pieces(MAX_BATCH_BYTES):
                yield batch_of(piece, task.columns, view.log, view.queue_or_none)
            view.log.drop_records(records)
    finally:
        view.log.drop_queues()


def _offsets(view: DiskView, places: QueueRange | tuple[int, ...]) -> NDArray[np.int64]:
    if isinstance(places, tuple):
        return np.array(places, np.int64)
    found: NDArray[np.int64] = (
        view.queue(places.topic, places.queue_id).entries(places.low, places.high)["physical_offset"].astype(np.int64)
    )
    return found


def _records(log: CommitLog, offsets: NDArray[np.int64], report: Callable[[Damage], None] | None) -> Iterator[Records]:
    for file, group in groupby(offsets.tolist(), key=log.file_at):
        if file is None:
            continue
        places = np.array([physical - file.start for physical in group], np.int64)
        for data, positions in group_ranges(log.mapped(file), file.start, places):
            believed = np.array([frames.status_at(data, at, file.start, True) == frames.STOP for at in positions.tolist()], np.bool_)
            if report is not None:
                for at in positions[~believed].tolist():
                    sentence = "a queue or the index leads here, where no believable record starts"
                    report(Damage(file.relative, at, 0, Kind.BAD_FRAME, sentence, 1))
            positions = np.ascontiguousarray(positions[believed])
            for start in range(0, len(positions), CHUNK):
                yield Records(file, data, positions[start : start + CHUNK])
