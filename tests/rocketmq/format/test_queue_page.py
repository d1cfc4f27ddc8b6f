"""Where a broker's search in a batch queue ends."""

from __future__ import annotations

import numpy as np
import pytest
from support.golden import case_named, opened

import mqstore
from mqstore.rocketmq.dispatch.consume_queue_image import BatchQueueImage
from mqstore.rocketmq.format.queue_page import _found_by_halves, page_from
from mqstore.rocketmq.store.recovered_view import recover


@pytest.mark.parametrize(
    ("bases", "offset", "found"),
    [([0, 5, 9], 5, 1), ([0, 5, 9], 8, 1), ([0, 5, 9], 9, 2), ([0, 5, 9], 100, 2), ([3, 5], 2, -1), ([], 2, -1)],
)
def test_the_last_unit_that_begins_at_or_before_an_offset_is_found(bases: list[int], offset: int, found: int) -> None:
    assert _found_by_halves(np.array(bases, np.int64), offset) == found


def test_nothing_is_read_before_the_first_unit_of_a_batch_queue() -> None:
    case = case_named("5.3.3/o-batch-queue")
    view = recover(mqstore.open(opened(case), config=case.config))
    queue = next(queue for (_, _, batch), queue in view._recovery.queues.items() if batch and queue.files)
    assert isinstance(queue, BatchQueueImage)
    assert page_from(queue, queue.max_offset - 1) is not None
    assert page_from(queue, -1) is None
    assert page_from(queue, queue.max_offset) is None
