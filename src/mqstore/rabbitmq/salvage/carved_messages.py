"""Carved messages, which were found in an image: their rows, and a store of them.

The rows are the message table of what was found, read from the image itself:

    found     |message message|message message message|message|      in the order of files and positions
    batches   |               |                       |       |      BATCH_ROWS or about BATCH_BYTES, the same in any division into tasks

The messages are in no queue: only the index of a queue knows which messages were in it. What a message holds itself, its exchange and
routing keys, is in its row. A row names the file and position where the message was found. The row of a further copy of an id is a
`duplicate`; the one that is not is the copy that a store of these messages (`CarvedStore`) would deliver.

In the store every message is written into message files that the rest of the package reads:

    image    |...|id term ff|.....|size flags crc term|....|term|        a record, an entry of a queue's own store, a message alone
    0.rdq    |size id term ff|size id term ff|size id term ff|

It lives beside the target while that is written, and has no queues: only the index of a queue knows which messages were in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.files import Bytes
from mqstore.files.durable import DurableDirectory
from mqstore.files.image import Image
from mqstore.kernels.rabbitmq import message_store, message_terms
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.format.index_v1 import ENTRY
from mqstore.rabbitmq.format.message_file import OVERHEAD, record
from mqstore.rabbitmq.message.message_term import read_message
from mqstore.rabbitmq.store import message_table
from mqstore.rabbitmq.store.fate import UNLISTED
from mqstore.rabbitmq.store.message_table import MessageRows
from mqstore.rabbitmq.store.queue import DAMAGED, DUPLICATE, PERSISTENT_STORE, UNINDEXED, EntryTable

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.rabbitmq.store.store import RabbitMQStore

FILE_BYTES = 64 << 20  # a message file of a carved store is ended by the first message after this many bytes
BATCH_ROWS = 2048
BATCH_BYTES = 32 << 20
BLOCK = 1 << 14  # rows; a batch does not span two blocks
READ_BYTES = 16 << 20  # read at once, or one message
READ_MESSAGES = 1 << 14
NEAR = 16 << 10  # bytes between two messages that are read along with them
ID_SIZE = 16
VERSION = 131  # first byte of a term
# rows of the array of messages of `mqstore.carving.findings`
FROM, TERM, TERM_END, KIND = 0, 2, 3, 4

Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """Messages found in a file. name: its path relative to the source; messages: the array of `mqstore.carving.findings`.

    hi, lo, duplicate: of each message its id, as two big-endian halves, and whether it is a further copy; None until they are known.
    """

    name: str
    image: Image
    messages: Longs
    hi: Longs | None = None
    lo: Longs | None = None
    duplicate: Mask | None = None

    @property
    def lengths(self) -> Longs:
        """Bytes of the terms."""
        return np.asarray(self.messages[TERM_END] - self.messages[TERM])


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms in a buffer, some messages of a file in order. hi, lo: their ids; persistent: as the messages say."""

    first: int
    buffer: Bytes
    at: Longs
    length: Longs
    hi: Longs
    lo: Longs
    persistent: Mask


def terms_of(found: FoundMessages) -> Iterator[Terms]:
    """Yield the terms of messages, read from the image in pieces, with their ids. Raises CannotOpenError if the image has changed."""
    for first, buffer, at, length in _read(found):
        fields = np.zeros((len(at), message_terms.FIELD_COUNT), np.int64)
        message_terms.fields(buffer, at, length, fields)
        known = fields[:, message_terms.STATUS] == message_terms.FAST
        persistent = fields[:, message_terms.PERSISTENT] != 0
        hi, lo = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
        rows = np.flatnonzero(known)
        high, low = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        # the kernel reads the id of a store record, which is 8 bytes after its start
        message_store.record_ids(buffer, fields[rows, message_terms.ID_START] - 8, high, low)
        hi[rows], lo[rows] = high, low
        for row in np.flatnonzero(~known).tolist():
            own, persistent[row] = _decoded(buffer[at[row] : at[row] + length[row]].tobytes())
            hi[row], lo[row] = int.from_bytes(own[:8], "big", signed=True), int.from_bytes(own[8:], "big", signed=True)
        yield Terms(first, buffer, at, length, hi, lo, persistent)


def _read(found: FoundMessages) -> Iterator[tuple[int, Bytes, Longs, Longs]]:
    """Yield pieces of the image: number of the first message, bytes, and where in them the terms are."""
    rows = found.messages
    far = np.flatnonzero(rows[TERM, 1:] - rows[TERM_END, :-1] > NEAR) + 1  # the first messages after a distance
    first, count = 0, rows.shape[1]
    while first < count:
        start = int(rows[TERM, first])
        last = max(first + 1, int(np.searchsorted(rows[TERM_END], start + READ_BYTES, side="right")))
        last = min(last, first + READ_MESSAGES)
        after = int(np.searchsorted(far, first, side="right"))
        last = min(last, int(far[after])) if after < len(far) else last
        end = int(rows[TERM_END, last - 1])
        data = found.image.read(start, end)
        if len(data) < end - start:
            raise _changed(found, start + len(data))
        at = np.ascontiguousarray(rows[TERM, first:last] - start)
        other = np.flatnonzero(data[at] != VERSION)
        if len(other):
            raise _changed(found, start + int(at[other[0]]))
        yield first, data, at, np.ascontiguousarray(rows[TERM_END, first:last] - rows[TERM, first:last])
        first = last


def _changed(found: FoundMessages, at: int) -> CannotOpenError:
    return CannotOpenError(
        f"{found.image.path} has changed since it was searched, or cannot be read any more at byte {at}; salvage a copy of it"
    )


def _decoded(term: bytes) -> tuple[bytes, bool]:
    """Return the id that a message holds, or one made of its bytes if it has none, and whether it is persistent."""
    try:
        message = read_message(term)
    except EtfError:
        return hashlib.sha256(term).digest()[:ID_SIZE], True
    return message.id if len(message.id) == ID_SIZE else hashlib.sha256(term).digest()[:ID_SIZE], message.persistent


def duplicates(hi: Longs, lo: Longs, length: Longs) -> Mask:
    """Return which messages, in the order of finding, are further copies. length: of their terms in bytes.

    Of copies in one message file of a carved store, the last one is not a duplicate; of copies in several files, one in the first of them.
    """
    count = len(hi)
    number = np.zeros(count, np.int32)
    ends = np.cumsum(length + OVERHEAD)
    base, file = 0, 0
    while True:
        start = int(np.searchsorted(ends, base + FILE_BYTES)) + 1
        if start >= count:
            break
        file += 1
        number[start:] = file
        base = int(ends[start - 1])
    order = np.lexsort((-np.arange(count), number, lo, hi))
    copy = np.zeros(count, np.bool_)
    copy[order[1:]] = (hi[order[1:]] == hi[order[:-1]]) & (lo[order[1:]] == lo[order[:-1]])
    return copy


def batch_ends(length: Longs) -> Longs:
    """Return after which messages, in the order of finding, a batch of rows ends. length: of all their terms in bytes."""
    found = []
    for start in range(0, len(length), BLOCK):
        ends = np.cumsum(length[start : start + BLOCK])
        first = 0
        while first < len(ends):
            taken = int(ends[first - 1]) if first else 0
            last = int(np.searchsorted(ends, taken + BATCH_BYTES, "right"))
            first = min(max(last, first + 1), first + BATCH_ROWS, len(ends))
            found.append(start + first)
    return np.array(found, np.int64)


def rows_of(found: Sequence[FoundMessages], columns: tuple[str, ...], ends: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the message table, a batch up to each of these numbers of messages. found: with ids and copies."""
    first = 0
    starts = np.cumsum([0] + [each.messages.shape[1] for each in found])
    for end in ends:
        parts = []
        low = int(np.searchsorted(starts, first, side="right")) - 1
        while low < len(found) and starts[low] < end:
            each, start = found[low], int(starts[low])
            chosen = slice(max(0, first - start), end - start)
            assert each.hi is not None
            assert each.lo is not None
            assert each.duplicate is not None
            if each.messages[:, chosen].shape[1]:
                parts.append(
                    FoundMessages(each.name, each.image, each.messages[:, chosen], each.hi[chosen], each.lo[chosen], each.duplicate[chosen])
                )
            low += 1
        rows = _rows(parts)
        yield message_table.build_batch(rows, columns, message_table.decode_terms(rows, lambda name: None))
        first = end


def _rows(parts: Sequence[FoundMessages]) -> MessageRows:
    """Return the rows of a batch, with their terms."""
    sources: list[tuple[str, Bytes]] = []
    source, at, length = [], [], []
    for each in parts:
        for _, data, places, sizes in _read(each):
            source.append(np.full(len(places), len(sources), np.int32))
            sources.append((each.name, data))
            at.append(places)
            length.append(sizes)
        each.image.close()
    number = np.concatenate(source)
    count = len(number)
    entries = np.zeros(count, ENTRY)
    entries["hi"] = np.concatenate([each.hi for each in parts])
    entries["lo"] = np.concatenate([each.lo for each in parts])
    known = np.full(count, UNINDEXED, np.uint8)
    known[np.concatenate([each.duplicate for each in parts])] = DUPLICATE
    known[np.concatenate([each.messages[KIND] for each in parts]) == message_store.DAMAGED_ENTRY] = DAMAGED
    nothing = np.zeros(count, np.bool_)
    table = EntryTable(
        0,
        entries,
        tuple(sources),
        number,
        np.concatenate(at),
        np.concatenate(length),
        np.concatenate([each.messages[FROM] for each in parts]),
        number,
        nothing,
        nothing,
        known,
        np.full(count, PERSISTENT_STORE, np.uint8),
        np.full(count, UNLISTED, np.uint8),
    )
    return MessageRows(None, None, None, table, np.full(count, -1, np.int64), None, indexed=False)


@dataclass(slots=True)
class CarvedStore:
    """The store that was written. damaged, transient: messages that were left out."""

    path: Path
    count: int = 0
    damaged: int = 0
    transient: int = 0

    def open(self) -> RabbitMQStore:
        """Open the store as what is left of one."""
        from mqstore.rabbitmq.salvage.salvaging import open_wreck

        return open_wreck(self.path)


def write_carved(found: Iterable[FoundMessages], to: DurableDirectory, *, damaged: bool = True, transient: bool = True) -> CarvedStore:
    """Write messages into message files below a directory.

    damaged: also those whose checksum does not fit. transient: also those that are not persistent, which a broker drops at its start.
    Raises CannotOpenError if a message cannot be read any more, TargetError if there is no room.
    """
    store = CarvedStore(to.path(""))
    number = size = 0
    sink = to.open_new("0.rdq")
    try:
        for source in found:
            for terms in terms_of(source):
                raw = terms.buffer.data
                ids = np.stack([terms.hi, terms.lo], axis=1).astype(">i8").tobytes()
                bad = source.messages[KIND, terms.first : terms.first + len(terms.at)] == message_store.DAMAGED_ENTRY
                for k, (start, length) in enumerate(zip(terms.at.tolist(), terms.length.tolist(), strict=True)):
                    if bad[k] and not damaged:
                        store.damaged += 1
                        continue
                    if not terms.persistent[k] and not transient:
                        store.transient += 1
                        continue
                    if size >= FILE_BYTES:
                        sink.close()
                        number, size = number + 1, 0
                        sink = to.open_new(f"{number}.rdq")
                    size += sink.write(record(ids[16 * k : 16 * k + 16], bytes(raw[start : start + length])))
                    store.count += 1
            source.image.close()
    finally:
        sink.close()
    return store
