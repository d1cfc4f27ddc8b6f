"""Reading records one by one, at places known from a queue or the index: the task of a pruned source.

The bytes between the records are not read. A place without a valid record is reported as damage.
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


@dataclass(frozen=True, slots=True)
class PointTask:
    """Records of a store, with the requested columns and messages. token: changes when the files of the log do.

    places: a range of a queue whose entries point into one log file, or physical offsets, ascending.
    """

    store: str | Url
    config: BrokerConfig
    token: str
    places: QueueRange | tuple[int, ...]
    columns: tuple[str, ...]
    selection: Selection


def files_of(store: RocketMQStore, places: QueueRange | tuple[int, ...]) -> tuple[str, ...]:
    """Return the log files that hold the records, relative to the store."""
    view = DiskView(store)
    # all entries of a range point into one file
    some = _offsets(view, places if isinstance(places, tuple) else replace(places, high=places.low + 1)).tolist()
    return tuple(dict.fromkeys(file.relative for physical in some if (file := view.log.file_at(physical)) is not None))


def read_points(task: PointTask, *, report: Callable[[Damage], None] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the selected records in physical order, in batches. report: called with places that do not hold a valid record."""
    view = opened_view(task.store, task.config, task.token)
    try:
        for records in grouped_records(view.log, _offsets(view, task.places), report):
            columns = RecordColumns(records)
            columns = columns.take(select(columns, task.selection))
            for piece in columns.pieces(MAX_BATCH_BYTES):
                yield batch_of(piece, task.columns, view.log, view.queue_lookup)
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


def grouped_records(log: CommitLog, offsets: NDArray[np.int64], report: Callable[[Damage], None] | None) -> Iterator[Records]:
    """Yield the valid records at physical offsets, file by file. report: called with offsets at which none starts."""
    for file, group in groupby(offsets.tolist(), key=log.file_at):
        if file is None:
            continue
        places = np.array([physical - file.start for physical in group], np.int64)
        for data, positions in group_ranges(log.mapped(file), file.start, places):
            valid = np.array([frames.status_at(data, at, file.start, True) == frames.STOP for at in positions.tolist()], np.bool_)
            if report is not None:
                for at in positions[~valid].tolist():
                    sentence = "a queue or the index points here, where no valid record starts"
                    report(Damage(file.relative, at, 0, Kind.BAD_FRAME, sentence, 1))
            positions = np.ascontiguousarray(positions[valid])
            for start in range(0, len(positions), CHUNK):
                yield Records(file, data, positions[start : start + CHUNK])
