"""An index made in memory from the log, in place of index files that cannot be read.

It answers as the broker's own files would if they were complete: the same chains, in one file without an end.
"""

from __future__ import annotations

import numpy as np

from mqstore.rocketmq.dispatch.dispatcher import DispatchRules, dispatch_positions
from mqstore.rocketmq.dispatch.index_image import IndexImage
from mqstore.rocketmq.format.commit_log import CommitLog, Records

NAME = "made-from-the-log"
SLOTS = 1 << 20
POSITIONS = 2**31 - 1


def scanned_index(log: CommitLog, low: int, high: int, rules: DispatchRules) -> list[IndexImage]:
    """Return an index file with the keys of all valid records in [low, high). It takes 20 bytes of memory for each key."""
    image = IndexImage(NAME, SLOTS, POSITIONS)
    for event in log.scan(low, high):
        if isinstance(event, Records):
            image.put(np.ascontiguousarray(dispatch_positions(event.data, event.positions, rules).keys))
    return [image]
