"""The store of a broker: a writable one, or a view of a read-only one, under the same interface.

`ServedStore` is the interface that handlers need for reading. `writable` is the store to put into, or None if it is read-only; then
`refusal` gives the reason, as a sentence for clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from mqstore.rocketmq.config.consumer_offsets import ConsumerOffsets
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.config.topic_table import SubscriptionGroups, Topics
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.queue_page import PagedQueue
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.format.tag_filter import TagFilter
from mqstore.rocketmq.query import point_lookup
from mqstore.rocketmq.query.pull import GetResult

Boundary = Literal["lower", "upper"]


class NamedQueue(PagedQueue, Protocol):
    """A consume queue that knows its name."""

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...


class ServedStore(Protocol):
    """A store as the broker reads it, with the members of `MessageStore`."""

    version: str
    config: StoreConfig
    notes: tuple[str, ...]
    offsets: ConsumerOffsets
    topics: Topics
    groups: SubscriptionGroups

    @property
    def writable(self) -> MessageStore | None: ...
    @property
    def refusal(self) -> str: ...
    @property
    def log_min(self) -> int: ...
    @property
    def log_max(self) -> int: ...

    def get(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        filter: TagFilter | str | None = None,  # noqa: A002 - as in MessageStore
    ) -> GetResult: ...
    def query(self, topic: str, key: str, max_num: int = 64, begin: int = 0, end: int = (1 << 63) - 1) -> point_lookup.QueryResult: ...
    def record_at(self, physical: int) -> Record | None: ...
    def raw_record_at(self, physical: int) -> memoryview | None:
        """Return the bytes of the record at a physical offset, or None if none can be decoded."""
        ...

    def slice(self, physical: int, size: int) -> memoryview | None: ...
    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = "lower") -> int: ...
    def min_offset(self, topic: str, queue_id: int) -> int: ...
    def max_offset(self, topic: str, queue_id: int) -> int: ...
    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int: ...
    def queues(self) -> Sequence[NamedQueue]: ...
    def queue_or_none(self, topic: str, queue_id: int) -> NamedQueue | None: ...
    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of the message at a queue offset, ms; -1 if there is none."""
        ...

    def close(self) -> None: ...


class LiveStore(MessageStore):
    """A writable store."""

    refusal = ""

    @property
    def writable(self) -> MessageStore | None:
        return self
