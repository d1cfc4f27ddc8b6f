"""Messages that are in the log of a damaged store, and that none of its consume queues leads to.

Serving the files of such a store as they are would leave them out: a crash came before their dispatch, or their queue is damaged or
gone. The log is dispatched again in memory, and what it yields is put where the queue has no entry, or one that leads to no record.
An entry takes 28 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mqstore.rocketmq.dispatch.dispatcher import QueueRun
from mqstore.rocketmq.format.consume_queue import BLANK_SIZE, ENTRY
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.store.view import QueueView
from mqstore.rocketmq.verify.log_proof import check_split, plan

CHECKED = 1 << 23  # 160 MB of entries, some tenths of a second

Place = tuple[str, int]


class CompletedQueue:
    """A consume queue with further entries. queue: as on disk, None if it has no files; offsets: queue offsets of the entries."""

    batch = False

    def __init__(self, place: Place, queue: QueueView | None, offsets: NDArray[np.int64], entries: NDArray[np.void]) -> None:
        self.topic, self.queue_id = place
        self._queue = queue
        order = np.argsort(offsets, kind="stable")
        # of several records with one queue offset, the last one in the log
        last = np.append(np.diff(offsets[order]) != 0, True)
        self._offsets, self._entries = offsets[order][last], entries[order][last]
        low, high = int(self._offsets[0]), int(self._offsets[-1]) + 1
        empty = queue is None or queue.max_offset == queue.min_offset
        self.min_offset = low if queue is None or empty else min(low, queue.min_offset)
        self.max_offset = high if queue is None or empty else max(high, queue.max_offset)

    def __len__(self) -> int:
        """Return how many entries the queue on disk does not have."""
        return len(self._offsets)

    @cached_property
    def max_physical_offset(self) -> int:
        """Physical offset of the newest record with an entry."""
        newest = int(self._entries["physical_offset"].max())
        return newest if self._queue is None else max(newest, self._queue.max_physical_offset)

    def entries(self, start: int, stop: int) -> NDArray[np.void]:
        """Return entries start..stop-1; zeros where there is no message."""
        found = np.zeros(max(0, stop - start), ENTRY)
        if self._queue is not None:
            low, high = max(start, self._queue.min_offset), min(stop, self._queue.max_offset)
            if low < high:
                found[low - start : high - start] = self._queue.entries(low, high)
        first, last = np.searchsorted(self._offsets, [start, stop])
        found[self._offsets[first:last] - start] = self._entries[first:last]
        return found


def completed(store: RocketMQStore, queues: dict[Place, QueueView], readable: Callable[[int], bool]) -> dict[Place, CompletedQueue]:
    """Return the queues that lack messages of the log, with these messages. Reads the whole log.

    queues: as on disk; readable: whether a valid record is at a physical offset.
    """
    found: dict[Place, list[tuple[NDArray[np.int64], NDArray[np.void]]]] = {}
    log, rules = store.log, store.rules()
    file, end = -1, 0
    for split in plan(log):
        known = end if split.file.start == file and end > split.start else None
        check = check_split(log, split, rules, known)
        file, end = split.file.start, max(check.end, end if split.file.start == file else 0)
        for run in () if check.dispatched is None else check.dispatched.runs:
            place = (run.topic, run.queue_id)
            if not run.batch and not (place in queues and queues[place].batch):
                offsets, entries = _lacking(queues.get(place), run, readable)
                if len(offsets):
                    found.setdefault(place, []).append((offsets, entries))
    return {
        place: CompletedQueue(
            place, queues.get(place), np.concatenate([each for each, _ in parts]), np.concatenate([each for _, each in parts])
        )
        for place, parts in found.items()
    }


def looks_sound(queues: Iterable[QueueView], log_end: int) -> bool:
    """Return whether the entries of queues ascend, and lead into the log. Queues of more than CHECKED entries in all are not read."""
    listed = [queue for queue in queues if not queue.batch]
    if sum(queue.max_offset - queue.min_offset for queue in listed) > CHECKED:
        return True
    for queue in listed:
        entries = queue.entries(queue.min_offset, queue.max_offset)
        size, physical = entries["size"].astype(np.int64), entries["physical_offset"].astype(np.int64)
        filled = (size != BLANK_SIZE) | (physical != 0)
        ends = physical[filled] + size[filled]
        if (size[filled] <= 0).any() or (ends > log_end).any() or (physical[filled][1:] < ends[:-1]).any():
            return False
    return True


def _lacking(queue: QueueView | None, run: QueueRun, readable: Callable[[int], bool]) -> tuple[NDArray[np.int64], NDArray[np.void]]:
    """Return the offsets and entries of a run that a queue lacks."""
    expected = run.entries.view(ENTRY)
    lacking = np.ones(len(expected), np.bool_)
    if queue is not None and queue.max_offset > queue.min_offset:
        inside = np.flatnonzero((run.offsets >= queue.min_offset) & (run.offsets < queue.max_offset))
        if len(inside):
            low, high = int(run.offsets[inside].min()), int(run.offsets[inside].max()) + 1
            there = queue.entries(low, high)[run.offsets[inside] - low]
            same = there["physical_offset"] == expected["physical_offset"][inside]
            lacking[inside] = ~same | (there["size"] != expected["size"][inside])
            for k in np.flatnonzero(~same).tolist():
                lacking[inside[k]] = int(there["size"][k]) <= 0 or not readable(int(there["physical_offset"][k]))
    return run.offsets[lacking].astype(np.int64), expected[lacking].copy()
