"""Carved messages as a store: every message that was found in an image, written into message files that the rest of the package reads.

    image    |...|id term ff|.....|size flags crc term|....|term|        a record, an entry of a queue's own store, a message alone
    0.rdq    |size id term ff|size id term ff|size id term ff|

The store lives beside the target while that is written, and has no queues: only the index of a queue knows which messages were in it. What
a message holds itself, its exchange and routing keys, is in its row. Rows name the file and position where a message was found.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.files.durable import DurableDirectory
from mqstore.files.image import Image
from mqstore.findings import Verdict
from mqstore.kernels.rabbitmq import message_store, message_terms
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.message.message_term import read_message
from mqstore.rabbitmq.salvage.salvaging import messages_of, open_wreck
from mqstore.rabbitmq.store.store import RabbitMQStore

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CarvedStore", "FoundMessages", "write_carved"]

FILE_BYTES = 64 << 20  # a message file is ended by the first message after this many bytes
RECORD_BYTES = 25  # of a record, besides its term
ID_SIZE = 16
READ_BYTES = 16 << 20  # read at once, or one message
READ_MESSAGES = 1 << 14
VERSION = 131  # first byte of a term
# rows of the array of messages of `mqstore.carving.findings`
FROM, TERM, TERM_END, KIND = 0, 2, 3, 4

Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """Messages found in a file. name: its path relative to the source; messages: the array of `mqstore.carving.findings`."""

    name: str
    image: Image
    messages: Longs


@dataclass(slots=True)
class CarvedStore:
    """The store that was written. starts: of the records of each message file; places: where each was found, by file.

    damaged, transient: messages that were left out.
    """

    path: Path
    count: int = 0
    damaged: int = 0
    transient: int = 0
    starts: dict[str, list[int]] = field(default_factory=dict)
    places: dict[str, list[tuple[str, int, bool]]] = field(default_factory=dict)

    def open(self) -> RabbitMQStore:
        """Open the store as what is left of one."""
        return open_wreck(self.path)

    def rows(self, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Yield the message table. columns: with store_file, position and verdict."""
        import pyarrow as pa

        for batch in messages_of(self.open(), columns):
            names = batch.schema.names
            files, positions, verdicts = (batch.column(names.index(name)).to_pylist() for name in ("store_file", "position", "verdict"))
            for row, (file, position) in enumerate(zip(files, positions, strict=True)):
                own = str(file).rpartition("/")[2]
                place = self.places[own][bisect_right(self.starts[own], position) - 1]
                files[row], positions[row] = place[0], place[1]
                if place[2]:
                    verdicts[row] = str(Verdict.DAMAGED)
            for name, values in (("store_file", files), ("position", positions), ("verdict", verdicts)):
                at = names.index(name)
                batch = batch.set_column(at, batch.schema.field(at), pa.array(values, batch.schema.field(at).type))
            yield batch


def write_carved(found: Iterable[FoundMessages], to: DurableDirectory, *, damaged: bool = True, transient: bool = True) -> CarvedStore:
    """Write messages into message files below a directory.

    damaged: also those whose checksum does not fit. transient: also those that are not persistent, which a broker drops at its start.
    Raises CannotOpenError if a message cannot be read any more, TargetError if there is no room.
    """
    store = CarvedStore(to.path(""))
    number = size = 0
    name = "0.rdq"
    sink = to.open_new(name)
    store.starts[name], store.places[name] = [], []
    try:
        for source in found:
            for start, bad, persistent, message_id, body in _messages(source):
                if bad and not damaged:
                    store.damaged += 1
                    continue
                if not persistent and not transient:
                    store.transient += 1
                    continue
                if size >= FILE_BYTES:
                    sink.close()
                    number, size = number + 1, 0
                    name = f"{number}.rdq"
                    sink = to.open_new(name)
                    store.starts[name], store.places[name] = [], []
                sink.write(b"".join(((len(body) + ID_SIZE).to_bytes(8, "big"), message_id, body, b"\xff")))
                store.starts[name].append(size)
                store.places[name].append((source.name, start, bad))
                size += len(body) + RECORD_BYTES
                store.count += 1
            source.image.close()
    finally:
        sink.close()
    return store


def _messages(source: FoundMessages) -> Iterator[tuple[int, bool, bool, bytes, memoryview]]:
    """Yield the messages of a file: where each was found, whether its checksum does not fit, whether it is persistent, id, term."""
    rows = source.messages
    first = 0
    while first < rows.shape[1]:
        start = int(rows[FROM, first])
        last = max(first + 1, int(np.searchsorted(rows[TERM_END], start + READ_BYTES, side="right")))
        last = min(last, first + READ_MESSAGES)
        end = int(rows[TERM_END, last - 1])
        data = source.image.read(start, end)
        if len(data) < end - start:
            raise _changed(source, start + len(data))
        at = np.ascontiguousarray(rows[TERM, first:last] - start)
        length = np.ascontiguousarray(rows[TERM_END, first:last] - rows[TERM, first:last])
        fields = np.zeros((last - first, message_terms.FIELD_COUNT), np.int64)
        message_terms.fields(data, at, length, fields)
        known = fields[:, message_terms.STATUS] == message_terms.FAST
        raw = data.data
        for k in range(last - first):
            term = raw[at[k] : at[k] + length[k]]
            if term[0] != VERSION:
                raise _changed(source, start + int(at[k]))
            bad = rows[KIND, first + k] == message_store.DAMAGED_ENTRY
            if known[k]:
                place = fields[k, message_terms.ID_START]
                message_id, persistent = bytes(raw[place : place + ID_SIZE]), bool(fields[k, message_terms.PERSISTENT])
            else:
                message_id, persistent = _decoded(bytes(term))
            yield int(rows[FROM, first + k]), bad, persistent, message_id, term
        first = last


def _changed(source: FoundMessages, at: int) -> CannotOpenError:
    return CannotOpenError(
        f"{source.image.path} has changed since it was searched, or cannot be read any more at byte {at}; salvage a copy of it"
    )


def _decoded(term: bytes) -> tuple[bytes, bool]:
    """Return the id that a message holds, or one made of its bytes if it has none, and whether it is persistent."""
    try:
        message = read_message(term)
    except EtfError:
        return hashlib.sha256(term).digest()[:ID_SIZE], True
    return message.id if len(message.id) == ID_SIZE else hashlib.sha256(term).digest()[:ID_SIZE], message.persistent
