"""The read side of a broker: single records, key queries, and the bounds and times of queues, over a log, queues and index files.

`MessageStore` (a store open for writing) and the read-only store of the broker share these answers. A broker's answer for "nothing there"
is kept: -1 for times, 0 for offsets, None for records.

Format: docs/formats/rocketmq.md, sections 4.7, 5 and 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.query import point_lookup, time_lookup
from mqstore.rocketmq.query.index_search import END_OF_TIME, MAX_RESULTS, IndexFileLike

if TYPE_CHECKING:
    from mqstore.rocketmq.format.log_slices import LogSlices
    from mqstore.rocketmq.format.queue_page import PagedQueue


class ReadSide:
    """Mix-in with the queries of a store. Subclasses provide the log, `queue_or_none` and `index_files`."""

    version: str
    config: StoreConfig

    if TYPE_CHECKING:

        @property
        def log(self) -> LogSlices: ...
        def queue_or_none(self, topic: str, queue_id: int) -> PagedQueue | None: ...
        def index_files(self) -> Sequence[IndexFileLike]: ...

    def requested_queue(self, topic: str, queue_id: int) -> PagedQueue | None:
        """Return the queue that a client asks for, or None. A store that creates queues on request overrides this."""
        return self.queue_or_none(topic, queue_id)

    # records

    def slice(self, physical: int, size: int) -> memoryview | None:
        """Return bytes of the log without copying them, or None if no single file holds all of them."""
        return self.log.slice(physical, size)

    def record_at(self, physical: int) -> Record | None:
        """Return the record at a physical offset, its body as stored, or None if no record can be decoded there."""
        return point_lookup.record_at(self.log, physical)

    def raw_record_at(self, physical: int) -> memoryview | None:
        """Return the bytes of the record at a physical offset, or None if no record can be decoded there."""
        return None if self.record_at(physical) is None else point_lookup.raw_record_at(self.log, physical)

    def record_by_id(self, msg_id: str) -> Record | None:
        """Return the record of an offset message id, or None. Raises UsageError for text that is not a message id."""
        return point_lookup.record_by_id(self.log, msg_id)

    def query(self, topic: str, key: str, max_num: int = MAX_RESULTS, begin: int = 0, end: int = END_OF_TIME) -> point_lookup.QueryResult:
        """Return the newest messages with a key, in log order. begin, end: store times in ms, both included."""
        cap = self.config.max_msgs_num_batch
        return point_lookup.query_message(self.index_files(), self.log, topic, key, max_num, begin, end, cap=cap)

    # bounds and times of queues

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the first message; 0 for an unknown queue, -1 for an unknown batch queue."""
        queue = self.requested_queue(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the next message; 0 for an unknown queue."""
        queue = self.queue_or_none(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, boundary: time_lookup.Boundary = "lower") -> int:
        """Return the queue offset for a time (ms), by the rules of the version; 0 for an unknown queue, -1 for an unknown batch queue."""
        queue = self.requested_queue(topic, queue_id)
        return 0 if queue is None else time_lookup.offset_by_time(queue, self.log, timestamp, self.version, boundary)

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Return the store time (ms) of the first message of a queue, or of the log if no topic is given; -1 if there is none."""
        if topic is None:
            return point_lookup.earliest_time_of_log(self.log, self.version, self.config.max_message_size)
        queue = self.queue_or_none(topic, queue_id)
        return -1 if queue is None else point_lookup.earliest_time(queue, self.log, self.version)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time (ms) of the message at a queue offset; -1 if there is none."""
        queue = self.queue_or_none(topic, queue_id)
        return -1 if queue is None else point_lookup.store_timestamp_of(queue, self.log, offset, self.version)
