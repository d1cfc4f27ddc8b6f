"""Messages without an index entry: in the message stores, and in the `.qs` files of version 2 queues.

They are acknowledged messages that are not yet reclaimed, or messages whose index is lost; the files do not distinguish the two. Their
terms name exchange, routing keys and id. The order of file and position approximates the publish order.

Format: docs/formats/rabbitmq.md, section 14, 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.rabbitmq.format.index_v1 import ENTRY, IN_STORE, SPDA
from mqstore.rabbitmq.format.queue_store import ENTRY_HEADER
from mqstore.rabbitmq.store.fate import UNLISTED
from mqstore.rabbitmq.store.message_table import MessageRows
from mqstore.rabbitmq.store.queue import DUPLICATE, PERSISTENT_STORE, QUEUE_STORE, TRANSIENT_STORE, UNINDEXED, EntryTable, Queue

if TYPE_CHECKING:
    from mqstore.rabbitmq.store.message_store import MessageStore
    from mqstore.rabbitmq.store.vhost import Vhost

__all__ = ["orphan_rows"]

_BLOCK = 1 << 14


def orphan_rows(vhost: Vhost, now: int | None = None) -> Iterator[MessageRows]:
    """Yield the rows of messages in no queue, store by store; further copies of a message are separate rows."""
    for queue in vhost.queues:
        for number in sorted({*queue.index_v2.numbers, *queue.index_v2.orphan_stores}):
            at, size = queue.index_v2.orphans(number)
            if len(at):
                name, data = queue.index_v2.store_file(number), queue.index_v2.store_data(number)
                found = _entry_table(((name, data),), np.zeros(len(at), np.int32), at + ENTRY_HEADER, size, at, QUEUE_STORE)
                yield _rows(vhost, found, queue)
    for store, other, location in (
        (vhost.persistent, vhost.transient, PERSISTENT_STORE),
        (vhost.transient, vhost.persistent, TRANSIENT_STORE),
    ):
        rows = store.by_place()
        left = rows[~_referenced(vhost, store, other)[rows] | store.copies[rows]]
        sources: tuple[tuple[str, Bytes | None], ...] = tuple((file.name, None) for file in store.files)
        for start in range(0, len(left), _BLOCK):
            part = left[start : start + _BLOCK]
            source, at, length = store.locations(part)
            found = _entry_table(sources, source, at, length, at - 24, location)
            found.known[store.copies[part]] = DUPLICATE
            found.entries["hi"], found.entries["lo"] = store.halves(part)
            yield _rows(vhost, found)


def _referenced(vhost: Vhost, store: MessageStore, other: MessageStore) -> NDArray[np.bool_]:
    """Return for each row of a store whether any entry, acknowledged or not, names its message.

    A message to a durable and to another queue is in both stores: an entry that is read from one of them names its copy in the other, but
    not a different message with the same id.
    """
    result, elsewhere = np.zeros((2, len(store)), np.bool_)
    files = {file.name for file in store.files}
    for queue in vhost.queues:
        for found in queue.entry_tables():
            shared = np.flatnonzero(found.entries["place"] == IN_STORE)
            rows = store.find(found.entries["hi"][shared], found.entries["lo"][shared])
            shared, rows = shared[rows >= 0], rows[rows >= 0]
            here = np.array([name in files for name, _ in found.sources], np.bool_)[found.source[shared]]
            result[rows[here]] = True
            elsewhere[rows[~here]] = True
    for row in np.flatnonzero(elsewhere & ~result).tolist():
        result[row] = store.message(row) == other.message(int(other.find(*store.halves(np.array([row])))[0]))
    return store.spread(result)


def _entry_table(
    sources: tuple[tuple[str, Bytes | None], ...],
    source: NDArray[np.int32],
    at: NDArray[np.int64],
    length: NDArray[np.int64],
    record: NDArray[np.int64],
    location: int,
) -> EntryTable:
    count = len(at)
    entries = np.zeros(count, ENTRY)
    entries["state"] = SPDA
    nothing = np.zeros(count, np.bool_)
    known, where = np.full(count, UNINDEXED, np.uint8), np.full(count, location, np.uint8)
    fates = np.full(count, UNLISTED, np.uint8)
    return EntryTable(0, entries, sources, source, at, length, record, source, nothing, nothing, known, where, fates)


def _rows(vhost: Vhost, table: EntryTable, queue: Queue | None = None) -> MessageRows:
    nowhere = np.full(len(table.entries), -1, np.int64)
    name, level = (None, None) if queue is None else (queue.name, queue.priority_level)
    table = replace(table, queue_addresses=vhost.queue_addresses)
    return MessageRows(vhost.name, name, level, table, nowhere, None, indexed=False)
