"""The interface of the two views of a RocketMQ store.

*disk*: the files as they are; valid records wherever they are, derived files as found.
*recovered*: what a broker would answer after loading this directory: its truncation, its dropped index files, its re-dispatch, its
minimum offsets. Nothing is written for it; what the broker would write is held in memory.
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
    """The progress of a consumer group. offset: the next message to consume. lag: max_offset - offset, None without a queue;
    negative if the offset is past the end of the queue, as mqadmin shows it.

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

    def queues(self) -> Sequence[QueueView]:
        """Return all consume queues, by topic and queue id."""
        ...

    def queue(self, topic: str, queue_id: int) -> QueueView:
        """Return one consume queue. Raises NotFoundError."""
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

    def consumer_offsets(self) -> Sequence[ConsumerOffset]:
        """Return the consumer groups with their offsets, by group, topic and queue id."""
        ...

    @property
    def findings(self) -> Sequence[Damage]:
        """Damage found while opening the files: stray and wrong-size files, unreadable configuration."""
        ...
