"""Where a broker's search in a batch queue ends."""

from __future__ import annotations

import numpy as np
import pytest

from mqstore.rocketmq.format.queue_page import _found_by_halves


@pytest.mark.parametrize(
    ("bases", "offset", "found"),
    [([0, 5, 9], 5, 1), ([0, 5, 9], 8, 1), ([0, 5, 9], 9, 2), ([0, 5, 9], 100, 2), ([3, 5], 2, -1), ([], 2, -1)],
)
def test_the_last_unit_that_begins_at_or_before_an_offset_is_found(bases: list[int], offset: int, found: int) -> None:
    assert _found_by_halves(np.array(bases, np.int64), offset) == found
