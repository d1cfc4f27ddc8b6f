"""From index entries to the message table: stored terms decoded, columns as Arrow arrays.

Only the messages of one batch are in memory. A message is `damaged` if its bytes are not a message, if its id or the size of its body
differs from the index entry, or if its properties cannot be read.

`orphan_rows` are the messages without an index entry: in the message stores, and in the `.qs` files of version 2 queues.

They are acknowledged messages that are not yet reclaimed, or messages whose index is lost; the files do not distinguish the two. Their
terms name exchange, routing keys and id. The order of file and position approximates the publish order.

Format: docs/formats/rabbitmq.md, section 14, 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.findings import Verdict
from mqstore.rabbitmq.format.index_v1 import DELIVERED, ENTRY, IN_STORE, PERSISTENT, SPDA
from mqstore.rabbitmq.format.index_v2 import ENTRY_HEADER
from mqstore.rabbitmq.message import stored_columns
from mqstore.rabbitmq.message.stored_columns import TERM_COLUMNS, StoredTerms, encodable
from mqstore.rabbitmq.store.fate import UNLISTED
from mqstore.rabbitmq.store.queue import (
    CONSUMED,
    DAMAGED,
    DUPLICATE,
    LOCATIONS,
    PERSISTENT_STORE,
    PLAIN,
    QUEUE_STORE,
    TRANSIENT_STORE,
    UNINDEXED,
    UNREACHABLE,
    EntryTable,
    Queue,
)
from mqstore.table.columns import CLASSIC

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.rabbitmq.store.message_store import MessageStore
    from mqstore.rabbitmq.store.vhost import Vhost

# columns of index entries
_OF_ENTRIES = frozenset({"queue_version", "seq_id", "persistent", "expiry_us", "size", "redelivered", "expired", "delivered_marker"})

_VERDICTS: Final = {
    PLAIN: str(Verdict.INTACT),
    CONSUMED: str(Verdict.CONSUMED),
    UNREACHABLE: str(Verdict.UNREACHABLE),
    DAMAGED: str(Verdict.DAMAGED),
    DUPLICATE: str(Verdict.DUPLICATE),
    UNINDEXED: str(Verdict.UNINDEXED),
}
_BLOCK = 1 << 14


@dataclass(frozen=True, slots=True)
class MessageRows:
    """Rows for one batch, of one queue or of no queue (queue None). pos: -1 if there is none. indexed: they are index entries."""

    vhost: str | None
    queue: str | None
    priority_level: int | None
    table: EntryTable
    pos: NDArray[np.int64]
    now: int | None = None
    indexed: bool = True

    def __len__(self) -> int:
        return len(self.pos)

    def take(self, rows: NDArray[np.intp]) -> MessageRows:
        return MessageRows(self.vhost, self.queue, self.priority_level, self.table.take(rows), self.pos[rows], self.now, self.indexed)


def decode_terms(rows: MessageRows, data_of: Callable[[str], Bytes | None]) -> StoredTerms:
    """Return the stored messages of these rows. data_of: bytes of a file by name."""
    table = rows.table
    used = set(np.unique(table.source).tolist())
    sources = [
        None if number not in used else data if data is not None else data_of(name) for number, (name, data) in enumerate(table.sources)
    ]
    return StoredTerms.collect(sources, table.source, table.at, table.length, queue_addresses=table.queue_addresses)


def _ids(rows: MessageRows, messages: StoredTerms | None) -> list[str | None]:
    entries = rows.table.entries
    hi, lo = entries["hi"].copy(), entries["lo"].copy()
    unknown = (hi == 0) & (lo == 0)
    if messages is not None and unknown.any():
        hi[unknown], lo[unknown] = messages.ids[0][unknown], messages.ids[1][unknown]
    return hex_ids(hi, lo)


def hex_ids(hi: NDArray[np.int64], lo: NDArray[np.int64]) -> list[str | None]:
    """Return message ids in hexadecimal; None for an entry without one. hi, lo: their halves."""
    pairs = np.empty((len(hi), 2), ">i8")
    pairs[:, 0], pairs[:, 1] = hi, lo
    raw = pairs.tobytes().hex()
    ids: list[str | None] = [raw[k : k + 32] for k in range(0, len(raw), 32)]
    for row in np.flatnonzero((hi == 0) & (lo == 0)).tolist():
        ids[row] = None
    return ids


def verdicts(rows: MessageRows, messages: StoredTerms) -> list[str]:
    """Return the verdict of each row. messages: from `decode_terms`."""
    known = rows.table.known.copy()
    entries = rows.table.entries
    undecided = (known == PLAIN) | (known == UNINDEXED)
    valid = messages.valid(entries["hi"], entries["lo"], entries["size"] if rows.indexed else None)
    known[undecided & ~valid] = DAMAGED
    known[(undecided | (known == DAMAGED)) & ~messages.present] = UNREACHABLE
    return [_VERDICTS[value] for value in known.tolist()]


def needs_terms(rows: MessageRows, columns: Sequence[str]) -> bool:
    """Return whether these columns of these rows need the stored messages."""
    if "verdict" in columns or not TERM_COLUMNS.isdisjoint(columns):
        return True
    # in version 2 the id of a message in the queue store is only in the message
    return "msg_id" in columns and bool(((rows.table.entries["hi"] == 0) & (rows.table.entries["lo"] == 0)).any())


def build_batch(rows: MessageRows, columns: Sequence[str], messages: StoredTerms | None) -> pa.RecordBatch:
    """Return the rows as a batch. messages: from `decode_terms`, required if `needs_terms` returns True."""
    return stored_columns.build_batch(columns, messages, lambda name: _values(rows, name, messages))


def _values(rows: MessageRows, name: str, messages: StoredTerms | None) -> Any:
    table, count = rows.table, len(rows)
    entries = table.entries
    if name in ("vhost", "queue", "priority_level"):
        value = getattr(rows, name)
        return [encodable(value) if isinstance(value, str) else value] * count
    if not rows.indexed and name in _OF_ENTRIES:
        return [None] * count
    match name:
        case "queue_version":
            return [table.version] * count
        case "queue_type":
            return [CLASSIC] * count
        case "pos":
            return [None if pos < 0 else pos for pos in rows.pos.tolist()]
        case "seq_id":
            return entries["seq"]
        case "persistent":
            return (entries["flags"] & PERSISTENT) != 0
        case "expiry_us":
            # beyond 2^63: shown as the latest possible time
            return [None if value == 0 else value if value > 0 else (1 << 63) - 1 for value in entries["expiry"].tolist()]
        case "size":
            return entries["size"]
        case "msg_id":
            return _ids(rows, messages)
        case "redelivered":
            return [
                bool(mark) if is_recovered else None
                for mark, is_recovered in zip(table.redelivered.tolist(), table.recovered.tolist(), strict=True)
            ]
        case "location":
            return [LOCATIONS[number] for number in table.location.tolist()]
        case "recovered":
            return table.recovered
        case "store_file":
            names = [encodable(file) for file, _ in table.sources]
            return [names[k] for k in np.where(table.source < 0, table.index_file, table.source).tolist()]
        case "position":
            return table.record
        case "verdict":
            return [None] * count if messages is None else verdicts(rows, messages)
        case "expired":
            now = rows.now
            return [None] * count if now is None else [0 < value <= now for value in entries["expiry"].tolist()]
        case "delivered_marker":
            return (entries["state"] & DELIVERED) != 0
    return [None] * count


def orphan_rows(vhost: Vhost) -> Iterator[MessageRows]:
    """Yield the rows of messages in no queue, store by store; further copies of a message are separate rows."""
    for queue in vhost.queues:
        for number in sorted({*queue.index_v2.numbers, *queue.index_v2.orphan_stores}):
            at, size = queue.index_v2.orphans(number)
            if len(at):
                name, data = queue.index_v2.store_file(number), queue.index_v2.store_data(number)
                table = _entry_table(((name, data),), np.zeros(len(at), np.int32), at + ENTRY_HEADER, size, at, QUEUE_STORE)
                yield _rows(vhost, table, queue)
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
            table = _entry_table(sources, source, at, length, at - 24, location)
            table.known[store.copies[part]] = DUPLICATE
            table.entries["hi"], table.entries["lo"] = store.halves(part)
            yield _rows(vhost, table)


def _referenced(vhost: Vhost, store: MessageStore, other: MessageStore) -> NDArray[np.bool_]:
    """Return for each row of a store whether any entry, acknowledged or not, names its message.

    A message to a durable and to another queue is in both stores: an entry that is read from one of them names its copy in the other, but
    not a different message with the same id.
    """
    result, elsewhere = np.zeros((2, len(store)), np.bool_)
    files = {file.name for file in store.files}
    for queue in vhost.queues:
        for table in queue.entry_tables():
            shared = np.flatnonzero(table.entries["place"] == IN_STORE)
            rows = store.find(table.entries["hi"][shared], table.entries["lo"][shared])
            shared, rows = shared[rows >= 0], rows[rows >= 0]
            own = np.array([name in files for name, _ in table.sources], np.bool_)[table.source[shared]]
            result[rows[own]] = True
            elsewhere[rows[~own]] = True
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
