"""What can be asked of a RocketMQ store, whichever way one looks at it.

*disk*: the files as they lie; intact records wherever they stand, derived files as found.
*recovered*: what a broker would answer after loading this very directory: its truncation, its dropped index files, its
re-dispatch, its minimum offsets. Nothing is written for it; what the broker would write is held in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from mqstore.findings import Damage
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.query.index_search import IndexFileLike
from mqstore.table.columns import ROCKETMQ_COLUMNS, Selection

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ConsumerOffset", "QueueView", "View"]


class QueueView(Protocol):
    """A consume queue from its minimum to its maximum offset."""

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def batch(self) -> bool:
        """Whether it is a batch queue, whose units stand for several messages."""
        ...

    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int:
        """The queue offset that the next message will get."""
        ...

    @property
    def max_physical_offset(self) -> int:
        """Physical offset behind the newest listed record; -1 for an empty queue."""
        ...

    def entries(self, start: int, stop: int) -> NDArray[np.void]:
        """Entries start..stop-1 as rows (physical_offset, size, tags_code); of a batch queue the units that hold those offsets."""
        ...


@dataclass(frozen=True, slots=True)
class ConsumerOffset:
    """How far a consumer group is. offset: the next message to consume. lag: max_offset - offset, None without a queue;
    negative where the group stands behind the queue's end, as mqadmin shows it.

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


class View(Protocol):
    """One way to look at a store. Nothing here raises for damaged bytes."""

    @property
    def name(self) -> str:
        """`disk` or `recovered`."""
        ...

    def log_range(self) -> tuple[int, int]:
        """Minimum and maximum physical offset: first byte of the log, first byte behind its last record."""
        ...

    def batches(
        self,
        columns: Sequence[str] = ROCKETMQ_COLUMNS,
        selection: Selection = Selection(),
        *,
        milliseconds: bool = False,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The message table in physical order.

        milliseconds: times as int64 and keys as stored text (the JSON form). on_damage: told of stretches of log that are no records.
        """
        ...

    def queues(self) -> Sequence[QueueView]:
        """All consume queues, by topic and queue id."""
        ...

    def queue(self, topic: str, queue_id: int) -> QueueView:
        """One consume queue. Raises NotFoundError."""
        ...

    def queue_or_none(self, topic: str, queue_id: int) -> QueueView | None:
        """One consume queue, or None where there is none."""
        ...

    def index_files(self) -> Sequence[IndexFileLike]:
        """The index files, oldest first."""
        ...

    def record(self, physical_offset: int) -> Record | None:
        """The believable record at a physical offset."""
        ...

    def consumer_offsets(self) -> Sequence[ConsumerOffset]:
        """Consumer groups with their offsets, by group, topic, queue id."""
        ...

    @property
    def findings(self) -> Sequence[Damage]:
        """What opening the files brought to light: stray and wrong-size files, unreadable configuration."""
        ...
