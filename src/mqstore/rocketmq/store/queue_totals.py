"""How many messages a consume queue holds, and how far groups are behind: the one count that the commands and the console show.

An entry counts if its record may be in the log. Entries of records that retention has removed from the log are *expired*: they stay in
the last queue file for a while, and a broker's minimum offset passes them. Entries after the end of the log point at bytes that are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mqstore.rocketmq.format.consume_queue import BLANK_SIZE
from mqstore.rocketmq.query.message_pages import first_entry
from mqstore.rocketmq.store.view import ConsumerOffset, QueueView, View

CHUNK = 1 << 20  # entries read at once
COUNTED = 1 << 23  # entries of a store that `messages_of` reads; of larger stores it looks at the first ones of each queue only


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """Counts of one queue. messages: a unit of a batch queue holds several; bytes: of their records; newest: physical offset, or None.

    expired: entries before the start of the log; beyond: entries after its end.
    """

    messages: int
    bytes: int
    expired: int
    beyond: int
    newest: int | None


def totals(queue: QueueView, log_range: tuple[int, int]) -> QueueTotals:
    """Count the entries of a queue. log_range: of the view."""
    low, high = queue.min_offset, queue.max_offset
    first, end = log_range
    messages = size = expired = beyond = 0
    newest: int | None = None
    step = high - low if queue.batch else CHUNK
    for begin in range(low, high, max(1, step)):
        entries = queue.entries(begin, min(high, begin + step))
        length, physical = entries["size"].astype(np.int64), entries["physical_offset"].astype(np.int64)
        real = (length > 0) & (length != BLANK_SIZE)
        number = entries["count"].astype(np.int64) if queue.batch else np.ones(len(entries), np.int64)
        held = real & (physical >= first) & (physical < end)
        messages += int(number[held].sum())
        expired += int(number[real & (physical < first)].sum())
        beyond += int(number[real & (physical >= end)].sum())
        size += int(length[held].sum())
        if held.any():
            newest = int(physical[np.flatnonzero(held)[-1]])
    return QueueTotals(messages, size, expired, beyond, newest)


def messages_of(view: View, queues: Sequence[QueueView]) -> int:
    """Return how many messages queues of a view hold."""
    log_range = view.log_range()
    if sum(queue.max_offset - queue.min_offset for queue in queues) <= COUNTED:
        return sum(totals(queue, log_range).messages for queue in queues)
    return sum(queue.max_offset - first_entry(queue, log_range[0]) for queue in queues)


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A consumer group with its offsets. lag: over the queues that exist; odd: the number of offsets outside their queues."""

    name: str
    offsets: tuple[ConsumerOffset, ...]

    @property
    def lag(self) -> int:
        return sum(each.lag or 0 for each in self.offsets)

    @property
    def odd(self) -> int:
        return sum(each.state != "ok" for each in self.offsets)


def groups_of(offsets: Iterable[ConsumerOffset]) -> list[ConsumerGroup]:
    """Return the groups of offsets, the largest lag first."""
    by_group: dict[str, list[ConsumerOffset]] = {}
    for each in offsets:
        by_group.setdefault(each.group, []).append(each)
    groups = [ConsumerGroup(name, tuple(mine)) for name, mine in by_group.items()]
    return sorted(groups, key=lambda group: (-group.lag, group.name))
