"""The recovered view: what a broker would answer after loading a directory, with nothing written.

`recovery.broker_recovery` simulates the load and start; this is the `View` of the result: records up to the truncation
point, queues and index files as they are in the broker's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from mqstore.errors import NotFoundError
from mqstore.findings import Damage
from mqstore.rocketmq.dispatch.index_image import IndexImage
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.recovery.broker_recovery import LogFile, Recovery
from mqstore.rocketmq.store.message_table import table
from mqstore.rocketmq.store.store import RocketMQStore, consumer_offsets, no_queue
from mqstore.rocketmq.store.view import ConsumerOffset, QueueView
from mqstore.table.columns import ROCKETMQ_COLUMNS, Selection, check_columns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RecoveredView", "recover"]


def recover(store: RocketMQStore, version: str, *, unclean: bool | None = None) -> RecoveredView:
    """What a broker of this version would have after load and start. unclean: its last exit; by default, whether `abort` is there.

    Raises RefusedError where the broker would not come up.
    """
    recovery = Recovery(
        store.directory,
        store.log,
        store.index_files(),
        store.checkpoint,
        store.config,
        store.rules(version),
        version,
        unclean=store.unclean if unclean is None else unclean,
    )
    recovery.load()
    recovery.start()
    return RecoveredView(store, recovery)


class RecoveredView:
    """A broker's memory after load and start. notes: what it gave up or skipped, a sentence each."""

    name = "recovered"

    def __init__(self, store: RocketMQStore, recovery: Recovery) -> None:
        self._store = store
        self._recovery = recovery
        self.version = recovery.version
        self.log = store.log
        self.notes: tuple[str, ...] = tuple(recovery.notes)

    @cached_property
    def _queues(self) -> dict[tuple[str, int], QueueView]:
        found = [queue for queue in self._recovery.queues.values() if queue.files]
        return {(queue.topic, queue.queue_id): queue for queue in sorted(found, key=lambda queue: (queue.topic, queue.queue_id))}

    def log_range(self) -> tuple[int, int]:
        return max(0, self._recovery.log_min), self._recovery.log_max

    @property
    def files(self) -> Sequence[LogFile]:
        """The log files that are left, each as far as it counts."""
        return self._recovery.log_files

    def log_files(self) -> Sequence[str]:
        """Names of the log files that are left."""
        return [file.file.name for file in self._recovery.log_files]

    def batches(
        self,
        columns: Sequence[str] = ROCKETMQ_COLUMNS,
        selection: Selection = Selection(),
        *,
        milliseconds: bool = False,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        low, high = self.log_range()
        return table(
            self.log, low, high, check_columns(columns), selection, self.queue_or_none, milliseconds=milliseconds, on_damage=on_damage
        )

    def queues(self) -> Sequence[QueueView]:
        return list(self._queues.values())

    def queue_or_none(self, topic: str, queue_id: int) -> QueueView | None:
        """The queue, or None where the broker has no file of it."""
        return self._queues.get((topic, queue_id))

    def queue(self, topic: str, queue_id: int) -> QueueView:
        found = self.queue_or_none(topic, queue_id)
        if found is None:
            raise NotFoundError(no_queue(topic, queue_id, [queue for queue in self.queues() if queue.topic == topic]))
        return found

    def index_files(self) -> Sequence[IndexImage]:
        return [] if self._recovery.index is None else self._recovery.index.files

    def record(self, physical_offset: int) -> Record | None:
        low, high = self.log_range()
        return self.log.record(physical_offset) if low <= physical_offset < high else None

    def consumer_offsets(self) -> Sequence[ConsumerOffset]:
        return consumer_offsets(self._store, self.queue_or_none)

    @property
    def findings(self) -> Sequence[Damage]:
        return self._store.findings
