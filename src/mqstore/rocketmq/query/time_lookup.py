"""Lookup by time: the queue offset of the message stored at a time, or nearest to it.

Ten messages, stored at 0, 20, 40 … 180 ms:

    query time      -10    0   10   11   60   500
    4.9.3             0    0    0    1    3     9      the nearest, the earlier one in a tie
    5.3.3 lower       0    0    1    1    3    10      the first not earlier
    5.3.3 upper       0    0    0    0    3     9      the last not later

Both versions bisect one queue file. 4.9.3 chooses the first file that was modified at or after the time, by the file
system's clock. Such times are unreliable for mapped files and are lost when a store is copied; if the caller does not
give them, a file counts as modified when its last message was stored. 5.3.3 uses the store times of messages.

Records that have left the log count as earlier than any time; any other entry without a record ends the search with 0.

Batch queues (5.3.3 only) compare the times in their units: `lower` is the first unit that is not earlier, except at or
after the end of a file, where it is the last unit. `upper` is defective: its bisection compares the wrong way round, so a
time between two units mostly finds nothing (and the answer is the minimum), sometimes the next later unit.

Format: docs/formats/rocketmq.md, sections 4.7 and 4.10.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.rocketmq.format.batch_consume_queue import UNIT_SIZE
from mqstore.rocketmq.format.consume_queue import ENTRY_SIZE
from mqstore.rocketmq.format.log_slices import LogSlices, store_timestamp_at
from mqstore.rocketmq.format.profile import VERSIONS, version_rules
from mqstore.rocketmq.format.queue_page import PagedFile, PagedQueue, Rows

Boundary = Literal["lower", "upper"]


def offset_by_time(
    queue: PagedQueue,
    log: LogSlices,
    timestamp: int,
    version: str,
    boundary: Boundary = "lower",
    modified: Sequence[int] | None = None,
) -> int:
    """Return the queue offset for a time in ms, by the rules of a version.

    boundary: for 5.3.3. modified: for 4.9.3, the modification time of each queue file, ms, in the order of the files.
    """
    if not version_rules(version).bisects_times:
        return _nearest(queue, log, timestamp, modified)
    offset = _batch_by_time(queue, timestamp, boundary) if queue.batch else _bound(queue, log, timestamp, boundary)
    return min(max(offset, queue.min_offset), queue.max_offset)


_NEAREST, _BOUND = VERSIONS  # by the rules of which the searches below read store times


class _Times:
    """Store times of the entries of one queue file, by row."""

    def __init__(self, log: LogSlices, file: PagedFile, version: str) -> None:
        self._log = log
        self._version = version
        self.count = file.written // ENTRY_SIZE
        self._rows: Rows = file.part(0, self.count)

    def physical(self, row: int) -> int:
        return int(self._rows[row]["physical_offset"])

    def __getitem__(self, row: int) -> int:
        entry = self._rows[row]
        return store_timestamp_at(self._log, int(entry["physical_offset"]), int(entry["size"]), self._version)


class _Bisection(NamedTuple):
    """Where a bisection by time ended. row: an entry stored exactly then, -1 if there is none.

    left, right: the rows before and after the time, -1 if there is none. left_time, right_time: their store times, -1 if unknown.
    """

    row: int
    left: int
    right: int
    left_time: int
    right_time: int


def _bisect(times: _Times, timestamp: int, floor: int, log_min: int) -> _Bisection | None:
    """Bisect the rows of one queue file from `floor` on. Returns None if an entry points at no record.

    A record that has left the log counts as earlier than any time, and its time stays unknown.
    """
    low, high = floor, times.count - 1
    left = right = left_time = right_time = -1
    while high >= low:
        middle = (low + high) // 2
        if times.physical(middle) < log_min:
            low, left = middle + 1, middle
            continue
        time = times[middle]
        if time < 0:
            return None
        if time == timestamp:
            return _Bisection(middle, left, right, left_time, right_time)
        if time > timestamp:
            high, right, right_time = middle - 1, middle, time
        else:
            low, left, left_time = middle + 1, middle, time
    return _Bisection(-1, left, right, left_time, right_time)


def _floor(queue: PagedQueue, file: PagedFile) -> int:
    """Return the first row of a file that is not below the queue's minimum."""
    return max(0, queue.min_offset - file.start // ENTRY_SIZE)


def _queue_offset(file: PagedFile, row: int) -> int:
    """Return the queue offset of a row. Row -1, nothing found, is the *byte* before the file, divided toward zero."""
    return file.start // ENTRY_SIZE + row if row >= 0 else max(0, file.start - 1) // ENTRY_SIZE


# 4.9.3


def _nearest(queue: PagedQueue, log: LogSlices, timestamp: int, modified: Sequence[int] | None) -> int:
    if not queue.files:
        return 0
    if modified is None:
        file = next((file for file in queue.files if _last_time(log, file) >= timestamp), queue.files[-1])
    else:
        file = next((file for file, at in zip(queue.files, modified, strict=True) if at >= timestamp), queue.files[-1])
    times = _Times(log, file, _NEAREST)
    if not times.count:
        return 0
    bisection = _bisect(times, timestamp, _floor(queue, file), log.min_offset)
    if bisection is None:
        return 0
    row, left, right, left_time, right_time = bisection
    if row >= 0:
        return file.start // ENTRY_SIZE + row
    if left_time == -1:
        row = right
    elif right_time == -1:
        row = left
    else:
        row = right if abs(timestamp - left_time) > abs(timestamp - right_time) else left
    return _queue_offset(file, row)


def _last_time(log: LogSlices, file: PagedFile) -> int:
    times = _Times(log, file, _NEAREST)
    return times[times.count - 1] if times.count else -1


# 5.3.3


def _bound(queue: PagedQueue, log: LogSlices, timestamp: int, boundary: Boundary) -> int:
    file = _file_by_time(queue, log, timestamp, boundary)
    if file is None:
        return 0
    times = _Times(log, file, _BOUND)
    if not times.count:
        return 0
    first = file.start // ENTRY_SIZE
    floor, ceiling = _floor(queue, file), times.count - 1
    if times[ceiling] < timestamp:
        return first + ceiling + (boundary == "lower")
    if floor <= ceiling and times[floor] > timestamp:
        return first if boundary == "lower" else 0
    bisection = _bisect(times, timestamp, floor, log.min_offset)
    if bisection is None:
        return 0
    row = bisection.row
    if row >= 0:
        step, end = (-1, floor) if boundary == "lower" else (1, ceiling)
        while row != end and times[row + step] == timestamp:
            row += step
        return first + row
    return _queue_offset(file, bisection.right if boundary == "lower" else bisection.left)


def _file_by_time(queue: PagedQueue, log: LogSlices, timestamp: int, boundary: Boundary) -> PagedFile | None:
    """Choose the file. lower: the first whose last message is not earlier, else the last. upper: the last that does not begin later."""

    def time_at(file: PagedFile, row: int) -> int:
        times = _Times(log, file, _BOUND)
        time = times[row] if row < times.count else -1
        return time if time > 0 else -1

    if boundary == "lower":
        last_row = queue.file_size // ENTRY_SIZE - 1
        earlier = queue.files[:-1]
        return next((file for file in earlier if time_at(file, last_row) >= timestamp), queue.files[-1] if queue.files else None)
    return next((file for file in reversed(queue.files) if time_at(file, 0) <= timestamp), None)


def _batch_by_time(queue: PagedQueue, timestamp: int, boundary: Boundary) -> int:
    """Return the base of a unit, -1 if nothing is found."""
    begun = [(int(file.part(0, 1)["store_timestamp"][0]), file) for file in queue.files if file.written]
    if not begun:
        return -1
    if begun[-1][0] <= timestamp:
        file = begun[-1][1]
    else:
        fitting = [pair for pair in begun if pair[0] <= timestamp]
        file = max(fitting, key=lambda pair: pair[0])[1] if fitting else begun[0][1]
    rows = file.part(0, file.written // UNIT_SIZE)
    times, bases = rows["store_timestamp"], rows["base_offset"]
    row = len(rows) - 1 if timestamp >= times[-1] else _bisect_units(times, timestamp, boundary)
    return int(bases[row]) if row >= 0 else -1


def _bisect_units(times: NDArray[np.int64], timestamp: int, boundary: Boundary) -> int:
    """Bisect a batch queue file as the broker does. At its ends it requires a time that is not earlier, for either boundary."""
    left, right = 0, len(times) - 1
    while left <= right:
        middle = (left + right) // 2
        time = int(times[middle])
        if middle == right:
            return middle if time >= timestamp else -1
        if middle == left:
            if time >= timestamp:
                return middle
            left = middle + 1
        elif boundary == "lower":
            left, right = (middle + 1, right) if time < timestamp else (left, middle)
        else:
            left, right = (middle, right) if time <= timestamp else (left, middle - 1)
    return -1
