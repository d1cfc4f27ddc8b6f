"""A queue in RocksDB in memory: what dispatch adds to it, and queue offsets that no broker gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mqstore.rocketmq.dispatch.dispatcher import QueueRun
from mqstore.rocketmq.dispatch.rocksdb_queue_image import RocksQueueImage
from mqstore.rocketmq.format.consume_queue import ENTRY
from mqstore.rocketmq.format.rocksdb_queue import MAX_GAP

FAR = 1 << 62


def run(offsets: Sequence[int], first: int = 1000) -> QueueRun:
    """Entries with these queue offsets, of records of 100 bytes one after the other."""
    rows = np.array([(first + 100 * number, 100, number) for number in range(len(offsets))], ENTRY)
    return QueueRun("T", 0, np.array(offsets, np.int64), rows.view(np.uint8), False)


def places(queue: RocksQueueImage) -> list[int]:
    found: list[int] = queue.entries(queue.min_offset, queue.max_offset)["physical_offset"].tolist()
    return found


def test_entries_are_where_their_records_say_and_an_older_one_is_replaced() -> None:
    queue = RocksQueueImage("T", 0)
    queue.append(run([5, 6, 8]))
    queue.append(run([6], 5000))
    assert (queue.min_offset, queue.max_offset, places(queue)) == (5, 9, [1000, 5000, 0, 1200])


@pytest.mark.parametrize("offsets", [[5, 6, FAR], [5, FAR, 6, FAR + 1], [5, 6, 7 + 2 * MAX_GAP]])
def test_offsets_that_no_broker_gives_are_set_apart_and_cost_neither_time_nor_memory(offsets: list[int]) -> None:
    queue = RocksQueueImage("T", 0)
    queue.append(run(offsets))
    assert (queue.min_offset, queue.max_offset, queue.apart) == (5, 7, len(offsets) - 2)
    queue.append(run([FAR - 1], 5000))
    assert queue.apart == len(offsets) - 1
    queue.truncate(1100)
    assert (queue.max_offset, places(queue)) == (6, [1000])
    queue.correct_min(2000, "5.5.0")
    assert queue.min_offset == queue.max_offset


def test_a_queue_begins_at_its_first_entry_in_the_log() -> None:
    queue = RocksQueueImage("T", 0)
    queue.append(run([FAR, FAR + 1, 3]))
    assert (queue.min_offset, queue.max_offset, queue.apart) == (FAR, FAR + 2, 1)


def test_a_gap_that_a_broker_may_leave_is_zeros() -> None:
    queue = RocksQueueImage("T", 0)
    queue.append(run([0, MAX_GAP, 2 * MAX_GAP]))
    assert (queue.max_offset, queue.apart) == (2 * MAX_GAP + 1, 0)
    queue.truncate(1100)
    assert queue.max_offset == 1
