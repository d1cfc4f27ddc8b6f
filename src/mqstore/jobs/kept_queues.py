"""Queues whose messages are all gone from the log: what a rebuild keeps of them, so that their numbering continues.

Retention never removes the last file of a queue, so a broker numbers the next message of an idle queue where it left off. A queue that
began at 0 again would have numbers that consumer groups have already passed, and these would skip new messages. What is kept is what the
broker keeps: the last file with its entries, all of which refer to places before the log. Entries that refer into the log, where no
such record is, do not count: a broker would read other bytes there.

Format: docs/formats/rocketmq.md, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mqstore.files import Bytes
from mqstore.rocketmq.format.batch_consume_queue import UNIT_SIZE, BatchQueueReader
from mqstore.rocketmq.format.consume_queue import BLANK_SIZE, ENTRY, ENTRY_SIZE, ConsumeQueueReader
from mqstore.rocketmq.format.record import MIN_RECORD_SIZE
from mqstore.rocketmq.format.rocksdb_queue import RocksQueueReader
from mqstore.rocketmq.format.topic_name import usable_topic
from mqstore.rocketmq.store.store import RocketMQStore


@dataclass(frozen=True, slots=True)
class KeptQueue:
    """A queue without a message in the log. end: the next queue offset. rows: of its last file, to be at a byte position of the
    queue; None if it cannot be kept."""

    topic: str
    queue_id: int
    batch: bool
    end: int
    position: int
    rows: Bytes | None


def queues_without_messages(store: RocketMQStore, queues: set[tuple[str, int]], batch_queues: set[tuple[str, int]]) -> Iterator[KeptQueue]:
    """Yield the queues on disk that have entries, but no message in the log. queues, batch_queues: those that have one."""
    log_min = store.log.files[0].start if store.log.files else 0
    for queue in store.consume_queues():
        if (queue.topic, queue.queue_id) not in queues and queue.max_offset > 0:
            yield _plain(queue, log_min)
    for batch in store.batch_queues():
        if (batch.topic, batch.queue_id) not in batch_queues and batch.max_offset > 0:
            yield _batch(batch, log_min)


def _plain(queue: ConsumeQueueReader, log_min: int) -> KeptQueue:
    end = queue.max_offset
    if isinstance(queue, RocksQueueReader):
        return _from_database(queue, end, log_min)
    file = next((file for file in reversed(queue.files) if file.start < end * ENTRY_SIZE), None)
    first = end if file is None else max(file.start // ENTRY_SIZE, queue.min_offset)
    rows = queue.entries(first, end)
    size, start = rows["size"].astype(np.int64), rows["physical_offset"].astype(np.int64)
    before = bool(len(rows)) and bool(((size > 0) & (size < BLANK_SIZE) & (start >= 0) & (start + size <= log_min)).all())
    kept = rows.view(np.uint8) if before and _is_named(queue) else None
    return KeptQueue(queue.topic, queue.queue_id, False, end, first * ENTRY_SIZE, kept)


def _from_database(queue: RocksQueueReader, end: int, log_min: int) -> KeptQueue:
    """Keep the last entry. Its record is gone, and so is its size, for which the smallest that a record can have is written."""
    last = queue.stored_last
    kept = None
    if last is not None and last[1] == end - 1 and 0 <= last[0] <= log_min - MIN_RECORD_SIZE and usable_topic(queue.topic):
        kept = np.array([(last[0], MIN_RECORD_SIZE, 0)], ENTRY).view(np.uint8)
    return KeptQueue(queue.topic, queue.queue_id, False, end, (end - 1) * ENTRY_SIZE, kept)


def _batch(queue: BatchQueueReader, log_min: int) -> KeptQueue:
    file, units = next(((file, units) for file, units in reversed(queue.written) if len(units)), (None, None))
    if file is None or units is None:
        return KeptQueue(queue.topic, queue.queue_id, True, queue.max_offset, 0, None)
    start = units["physical_offset"].astype(np.int64)
    before = bool(((start >= 0) & (start < log_min) & (units["size"] > 0)).all())
    kept = np.ascontiguousarray(units).view(np.uint8) if before and _is_named(queue) and file.start % UNIT_SIZE == 0 else None
    return KeptQueue(queue.topic, queue.queue_id, True, queue.max_offset, file.start, kept)


def _is_named(queue: ConsumeQueueReader | BatchQueueReader) -> bool:
    """Return whether the topic is the name of its directory: one that is not UTF-8 is shown in another form."""
    return queue.relative.endswith(f"/{queue.topic}/{queue.queue_id}")
