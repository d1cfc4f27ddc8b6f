"""The disk view, the files of a store as they are, and what both views have: queues by name, consumer offsets compared with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from mqstore.errors import NotFoundError, UnsupportedError
from mqstore.findings import Damage
from mqstore.rocketmq.dispatch.index_image import IndexImage
from mqstore.rocketmq.format.index_file import IndexFile
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.store.log_site import LogElsewhere, log_elsewhere
from mqstore.rocketmq.store.message_table import table
from mqstore.rocketmq.store.pop import Pops, read_pops
from mqstore.rocketmq.store.store_files import StoreFiles
from mqstore.rocketmq.store.unread_parts import has_tier
from mqstore.rocketmq.store.view import ConsumerOffset, QueueLookup, QueueView, first_entry
from mqstore.shown import Shown
from mqstore.table.columns import ROCKETMQ_COLUMNS, Selection, check_columns
from mqstore.table.formatting import count, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa


class BaseView(ABC, Shown):
    """A view over the files of a store. Subclasses know which queues it has."""

    name: str

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self.log = files.log

    def _title(self) -> str:
        of = ("log file" if self._files.one_file else "log files") if self._files.log_only else "store"
        return f"{self.name} view of RocketMQ {of} {str(self._files.path)!r}"

    def _facts(self) -> Iterator[tuple[str, object]]:
        if self.name == "disk" and self._files.unread_queues is not None:
            yield "queues", "not known" if self._files.log_only else "not read"
            return
        queues = self.queues()
        yield "queues", f"{len(queues):,} of {count(len({queue.topic for queue in queues}), 'topic')}"
        yield "messages", f"{sum(queue.max_offset - queue.min_offset for queue in queues):,}"

    @abstractmethod
    def log_range(self) -> tuple[int, int]:
        """Return the minimum and maximum physical offset: first byte of the log, first byte after its last record."""

    @abstractmethod
    def record(self, physical_offset: int) -> Record | None:
        """Return the valid record at a physical offset, or None."""

    @property
    @abstractmethod
    def _all_queues(self) -> Sequence[QueueView]:
        """The queues of the view, in any order."""

    @cached_property
    def _queues(self) -> dict[tuple[str, int], QueueView]:
        queues = sorted(self._all_queues, key=lambda queue: (queue.topic, queue.queue_id))
        return {(queue.topic, queue.queue_id): queue for queue in queues}

    @property
    def store(self) -> StoreFiles:
        """The files that are viewed."""
        return self._files

    def queues(self) -> Sequence[QueueView]:
        """Return all consume queues, by topic and queue id."""
        return list(self._queues.values())

    def queue_or_none(self, topic: str, queue_id: int) -> QueueView | None:
        """Return one consume queue, or None if the view does not have it."""
        return self._queues.get((topic, queue_id))

    def queue(self, topic: str, queue_id: int) -> QueueView:
        """Return one consume queue. Raises NotFoundError."""
        view = self.queue_or_none(topic, queue_id)
        if view is None:
            self.require_queues()
            raise NotFoundError(no_queue(topic, queue_id, self.queues()))
        return view

    def min_offset(self, queue: QueueView) -> int:
        """Return the minimum offset of a queue of the view as a broker answers it: of the first entry whose record may be in the log."""
        return queue.min_offset

    def require_queues(self) -> None:
        """Raise UnsupportedError if the queues of the view are not read. Only those on disk can be in a database."""
        if self.name == "disk" and (unread := self._files.unread_queues) is not None:
            sentence = self._files.unread_sentence("consume queues", unread)
            advice = "give the directory of the store" if self._files.log_only else "--view recovered derives them from the log"
            raise UnsupportedError(f"{sentence}; {advice}")

    @property
    def queue_lookup(self) -> QueueLookup | None:
        """How a verdict finds the queue of a message; None if the queues of the view are not read."""
        return None if self.name == "disk" and self._files.unread_queues is not None else self.queue_or_none

    def consumer_offsets(self, now: int | None = None) -> Sequence[ConsumerOffset]:
        """Return the offset table compared with the queues of the view, by group, topic and queue id. now: ms, for what is in hand."""
        files = self._files
        listed: list[QueueView] = [*files.all_queues()]
        topics = {queue.topic for queue in listed} | set(files.topics.names)
        rows = []
        for (group, topic), by_queue in sorted(files.offset_table.offsets.items()):
            for queue_id, offset in sorted(by_queue.items()):
                queue = self.queue_or_none(topic, queue_id)
                if queue is None:
                    state = "no-queue" if topic in topics else "no-topic"
                    rows.append(ConsumerOffset(group, topic, queue_id, offset, None, None, None, state, None))
                    continue
                whole = self.log_elsewhere is None
                low, high = self.min_offset(queue) if whole else queue.min_offset, queue.max_offset
                state = "below-min" if offset < low else "above-max" if offset > high else "ok"
                expired = None if not whole or (offset < low and self._tiered) else max(0, low - max(offset, 0))
                left = high - (low if state == "below-min" else offset)
                held = self.pops.counts((group, topic, queue_id), low, now)
                rows.append(ConsumerOffset(group, topic, queue_id, offset, low, high, left, state, expired, *held))
        return rows

    @cached_property
    def pops(self) -> Pops:
        """What pop consumers have in hand."""
        return read_pops(self._files, self.queues(), self.record, self.log_range()[0])

    @cached_property
    def _tiered(self) -> bool:
        """Whether messages before the minimum may be in tiered storage, from where a broker serves them."""
        return self._files.paths_config.tiered_store_file_path is not None or has_tier(self._files.directory)

    @cached_property
    def log_elsewhere(self) -> LogElsewhere | None:
        """What is known of a log that is not, or not all, in the directory; None if nothing points to that."""
        return log_elsewhere(self._files)

    @property
    def findings(self) -> Sequence[Damage]:
        """What opening the files brought to light."""
        return self._files.findings


def no_queue(topic: str, queue_id: int, queues: Sequence[QueueView]) -> str:
    """Return the sentence for a queue that does not exist. queues: those that do."""
    of_topic = [queue for queue in queues if queue.topic == topic]
    if not of_topic:
        meant = did_you_mean(topic, {queue.topic for queue in queues})
        return f"there is no consume queue of topic {topic!r}{meant or '; `mqstore topics` lists those that exist'}"
    known = ", ".join(str(queue.queue_id) for queue in of_topic)
    return f"topic {topic!r} has no queue {queue_id}; it has {known}"


class DiskView(BaseView):
    """The files as they are: valid records wherever they are, derived files as found."""

    name = "disk"

    @property
    def files(self) -> StoreFiles:
        """The files of the store."""
        return self._files

    @property
    def _all_queues(self) -> Sequence[QueueView]:
        return self._files.all_queues()

    @cached_property
    def _range(self) -> tuple[int, int]:
        return self.log.start, self.log.end()

    def log_range(self) -> tuple[int, int]:
        """Return the minimum and maximum physical offset."""
        return self._range

    def min_offset(self, queue: QueueView) -> int:
        """Return the minimum offset of a queue: the files begin with entries of records that have expired."""
        return first_entry(queue, self._range[0])

    def batches(
        self,
        columns: Sequence[str] = ROCKETMQ_COLUMNS,
        selection: Selection = Selection(),
        *,
        milliseconds: bool = False,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the message table in physical order. Arguments as in `View.batches`."""
        high = self.log.files[-1].start + self.log.files[-1].size if self.log.files else 0
        return table(
            self.log,
            self.log.start,
            high,
            check_columns(columns),
            selection,
            self.queue_lookup,
            milliseconds=milliseconds,
            on_damage=on_damage,
        )

    def index_files(self) -> Sequence[IndexFile] | Sequence[IndexImage]:
        """Return the index files, oldest first; an index made from the log if the geometry of one is not known, or they were not given."""
        return self._files.scanned_index if self._files.unread_index or self._files.log_only else self._files.index_files()

    def record(self, physical_offset: int) -> Record | None:
        """Return the valid record at a physical offset, or None."""
        return self.log.record(physical_offset)
