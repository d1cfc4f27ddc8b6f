"""The interface of the two views of a RocketMQ store.

*disk*: the files as they are; valid records wherever they are, derived files as found.
*recovered*: what a broker would answer after loading this directory: its truncation, its dropped index files, its re-dispatch, its
minimum offsets. Nothing is written for it; what the broker would write is held in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from mqstore.findings import Damage
from mqstore.rocketmq.format.consume_queue import BLANK_SIZE
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.query.index_search import IndexFileLike
from mqstore.table.columns import ROCKETMQ_COLUMNS, Selection

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.rocketmq.store.log_site import LogElsewhere
    from mqstore.rocketmq.store.pop import Pops

CHUNK = 1 << 20  # entries read at once
COUNTED = 1 << 23  # entries of a store that `messages_of` reads; of larger stores it looks at the first ones of each queue only
TOGETHER = 200  # queue entries, a memory page of them, that are read at once where bisection ends


class QueueView(Protocol):
    """A consume queue from its minimum to its maximum offset."""

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def batch(self) -> bool:
        """Whether it is a batch queue, whose units hold several messages each."""
        ...

    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int:
        """The queue offset that the next message will get."""
        ...

    @property
    def max_physical_offset(self) -> int:
        """Physical offset after the newest record with an entry; -1 for an empty queue."""
        ...

    def entries(self, start: int, stop: int) -> NDArray[np.void]:
        """Return entries start..stop-1 as rows (physical_offset, size, tags_code); of a batch queue, the units that hold those offsets."""
        ...


@dataclass(frozen=True, slots=True)
class ConsumerOffset:
    """The progress of a consumer group. offset: the next message to consume. lag: the messages that are left for it, None without a queue;
    negative if the offset is past the end of the queue, as mqadmin shows it. min_offset: of the first message that the log still has.

    expired_unread: the messages before the minimum that the group has not read: they have expired, and the group continues at the minimum.
    None without a queue, or if not all of the log is there, or messages were moved to tiered storage, so that it cannot be told.

    in_hand, waiting: messages that the group popped and has not acknowledged, for which its time runs, and those that wait for
    redelivery because it is over; None for a group of which no pop shows.

    state: `ok`, `below-min`, `above-max`, `no-queue` (the store has no such queue), `no-topic`.
    """

    group: str
    topic: str
    queue_id: int
    offset: int
    min_offset: int | None
    max_offset: int | None
    lag: int | None
    state: str
    expired_unread: int | None
    in_hand: int | None = None
    waiting: int | None = None


QueueLookup = Callable[[str, int], "QueueView | None"]


class View(Protocol):
    """One view of a store. Nothing here raises for damaged bytes."""

    @property
    def name(self) -> str:
        """`disk` or `recovered`."""
        ...

    def log_range(self) -> tuple[int, int]:
        """Return the minimum and maximum physical offset: first byte of the log, first byte after its last record."""
        ...

    def batches(
        self,
        columns: Sequence[str] = ROCKETMQ_COLUMNS,
        selection: Selection = Selection(),
        *,
        milliseconds: bool = False,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the message table in physical order.

        milliseconds: times as int64 and keys as stored text (the JSON form). on_damage: called with ranges of log that are not records.
        """
        ...

    @property
    def log_elsewhere(self) -> LogElsewhere | None:
        """What is known of a log that is not, or not all, in the directory; None if nothing points to that."""
        ...

    def queues(self) -> Sequence[QueueView]:
        """Return all consume queues, by topic and queue id."""
        ...

    def queue(self, topic: str, queue_id: int) -> QueueView:
        """Return one consume queue. Raises NotFoundError."""
        ...

    def min_offset(self, queue: QueueView) -> int:
        """Return the minimum offset of a queue of the view as a broker answers it: of the first entry whose record may be in the log."""
        ...

    def queue_or_none(self, topic: str, queue_id: int) -> QueueView | None:
        """Return one consume queue, or None if there is none."""
        ...

    @property
    def queue_lookup(self) -> QueueLookup | None:
        """How a verdict finds the queue of a message; None if the queues of the view are not read."""
        ...

    def require_queues(self) -> None:
        """Raise UnsupportedError if the queues of the view are not read."""
        ...

    def index_files(self) -> Sequence[IndexFileLike]:
        """Return the index files, oldest first."""
        ...

    def record(self, physical_offset: int) -> Record | None:
        """Return the valid record at a physical offset, or None."""
        ...

    def consumer_offsets(self, now: int | None = None) -> Sequence[ConsumerOffset]:
        """Return the consumer groups with their offsets, by group, topic and queue id. now: ms, for what is in hand."""
        ...

    @property
    def pops(self) -> Pops:
        """What pop consumers have in hand."""
        ...

    @property
    def findings(self) -> Sequence[Damage]:
        """Damage found while opening the files: stray and wrong-size files, unreadable configuration."""
        ...


# How many messages a consume queue holds, and how far groups lag: the one count that the commands and the console show.
#
# An entry counts if its record may be in the log. Entries of records that retention has removed from the log are *expired*: they stay in
# the last queue file for a while, and a broker's minimum offset passes them. Entries after the end of the log point at bytes that are gone.


def first_entry(queue: QueueView, physical_offset: int, low: int | None = None, high: int | None = None) -> int:
    """Return the queue offset of the first entry that points at or after a position. low, high: where it must be."""
    low, high = queue.min_offset if low is None else low, queue.max_offset if high is None else high
    while high - low > (0 if queue.batch else TOGETHER):
        middle = (low + high) // 2
        entries = queue.entries(middle, middle + 1)
        if len(entries) and int(entries["physical_offset"][0]) < physical_offset:
            low = middle + 1
        else:
            high = middle
    if low == high:
        return low
    return low + int(np.searchsorted(queue.entries(low, high)["physical_offset"].astype(np.int64), physical_offset))


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
    """A consumer group with its offsets. in_hand, waiting, expired_unread: of its queues; odd: how many offsets are outside queues."""

    name: str
    offsets: tuple[ConsumerOffset, ...]

    @property
    def lag(self) -> int | None:
        """The messages left in its queues, but for queues that end before its offset or are not there; None if none is left."""
        known = [each.lag for each in self.offsets if each.lag is not None and each.lag >= 0]
        return sum(known) if known else None

    @property
    def expired_unread(self) -> int:
        return sum(each.expired_unread or 0 for each in self.offsets)

    @property
    def in_hand(self) -> int:
        return sum(each.in_hand or 0 for each in self.offsets)

    @property
    def waiting(self) -> int:
        return sum(each.waiting or 0 for each in self.offsets)

    @property
    def odd(self) -> int:
        return sum(each.state != "ok" for each in self.offsets)


def groups_of(offsets: Iterable[ConsumerOffset]) -> list[ConsumerGroup]:
    """Return the groups of offsets, the largest lag first."""
    by_group: dict[str, list[ConsumerOffset]] = {}
    for each in offsets:
        by_group.setdefault(each.group, []).append(each)
    groups = [ConsumerGroup(name, tuple(mine)) for name, mine in by_group.items()]
    return sorted(groups, key=lambda group: (group.lag is None, -(group.lag or 0), group.name))
