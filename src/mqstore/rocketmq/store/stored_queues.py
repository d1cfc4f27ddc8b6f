"""The consume queues of a store: files, entries in a RocksDB database, or both side by side.

With both (`CombineConsumeQueueStore`, or a change of `storeType`), the kind that reaches further into the log is the store's; of two that
reach equally far, the files. A queue that only the other kind has belongs to the store, too. `second` are the queues of the other kind
that the store has twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage
from mqstore.rocketmq.format import consume_queue
from mqstore.rocketmq.format.consume_queue import ConsumeQueueReader
from mqstore.rocketmq.format.rocksdb_queue import RocksQueueReader, readers
from mqstore.rocketmq.store.databases import QUEUE_PLACES, Databases


@dataclass(frozen=True, slots=True)
class StoredQueues:
    """queues, second: by topic and queue id. unread: the database that holds the queues and is not read; None if they are read.

    unread_beside: a database that is not read, of queues that the store also has as files.
    """

    queues: tuple[ConsumeQueueReader, ...]
    second: tuple[ConsumeQueueReader, ...] = ()
    findings: tuple[Damage, ...] = ()
    unread: str | None = None
    unread_beside: str | None = None


def stored_queues(directory: ReadOnlyDirectory, databases: Databases, file_size: int | None, log_start: int) -> StoredQueues:
    """List the queues of a store. file_size: bytes of a queue file, if configured. log_start: physical offset of the log's start."""
    # a truncated file in a queue of one file is recognised by the file size of the other queues
    size = file_size or consume_queue.common_file_size(directory)
    files = tuple(ConsumeQueueReader(directory, topic, queue_id, file_size=size) for topic, queue_id in consume_queue.queues(directory))
    found: list[RocksQueueReader] = []
    findings: list[Damage] = []
    unread: str | None = None
    for place in QUEUE_PLACES:
        database = databases.open(place)
        if database is not None:
            queues, odd = readers(directory, database, log_start)
            found += queues
            findings += odd
        elif databases.why_unread(place) is not None:
            unread = place
    if not found:
        beside = bool(files) and unread == "consumequeue_rocksdb"
        return StoredQueues(files, (), tuple(findings), None if beside else unread, unread if beside else None)
    first, second = (found, files) if _reach(found) > _reach(files) else (files, found)
    known = {(queue.topic, queue.queue_id) for queue in first}
    further = [queue for queue in second if (queue.topic, queue.queue_id) not in known]
    again = [queue for queue in second if (queue.topic, queue.queue_id) in known]
    return StoredQueues(_sorted([*first, *further]), _sorted(again), tuple(findings))


def _reach(queues: Sequence[ConsumeQueueReader]) -> int:
    """Return how far into the log queues reach."""
    return max((queue.max_physical_offset for queue in queues), default=-1)


def _sorted(queues: Iterable[ConsumeQueueReader]) -> tuple[ConsumeQueueReader, ...]:
    return tuple(sorted(queues, key=lambda queue: (queue.topic, queue.queue_id)))
