"""Messages rewritten for versions up to 3.13, which do not read the message containers of 4.x.

Each container becomes a `basic_message` with the properties and the body that a consumer of AMQP 0-9-1 receives; a message that already is
one keeps its bytes. Of AMQP 1.0 the index states the size of all sections, of a `basic_message` that of the body.

A message cannot be rewritten if its properties do not fit into those of AMQP 0-9-1, or if the name of its vhost, which a `basic_message`
contains, is not known. Nothing is dropped for that: the conversion is refused, with the names of the queues.

Format: docs/formats/rabbitmq.md, section 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.files import Bytes
from mqstore.files.durable import DurableDirectory
from mqstore.rabbitmq.convert.convert_messages import CopiedFiles
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.format.index_v1 import IN_SEGMENT, IN_STORE
from mqstore.rabbitmq.format.message_file import HEADER, record
from mqstore.rabbitmq.message.message_term import MessageTerm, PropertiesError, as_basic_message, read_message, write_message
from mqstore.rabbitmq.store.message_store import MessageStore
from mqstore.rabbitmq.store.queue import EntryTable
from mqstore.rabbitmq.store.vhost import Vhost

__all__ = ["Refusal", "RewrittenEntries", "rewrite_entries", "rewrite_store"]

_BASIC = b"\x83h\x06"  # how a basic_message begins: a tuple of six
PIECE = 8 << 20


class Refusal(NamedTuple):
    """A message that cannot be a `basic_message`."""

    seq: int
    why: str


@dataclass(frozen=True, slots=True)
class RewrittenEntries:
    """Entries of a queue whose messages are `basic_message` terms. data: the bytes of those in the index; count: that were containers."""

    entries: NDArray[np.void]
    data: Bytes
    count: int
    refused: tuple[Refusal, ...]


def _is_basic(stored: Bytes) -> bool:
    return stored[:3].tobytes() == _BASIC


def _rewritten(stored: bytes, vhost: str | None, queue_addresses: bool) -> tuple[MessageTerm, bytes]:
    """Return a message as `basic_message`, and its term. Raises EtfError, PropertiesError."""
    message = read_message(stored)
    if vhost is None and message.vhost is None:
        raise PropertiesError("the name of its vhost is not known")
    basic = as_basic_message(message, (vhost or "").encode("utf-8", "surrogateescape"), queue_addresses=queue_addresses)
    return basic, write_message(basic)


def rewrite_entries(
    found: EntryTable, rows: NDArray[np.intp], entries: NDArray[np.void], vhost: Vhost, name: str | None
) -> RewrittenEntries:
    """Return the entries of these rows with rewritten messages; those in a message store only get the size of their new form."""
    entries = entries.copy()
    buffer = bytearray()
    count, refused = 0, []
    for k, row in enumerate(rows.tolist()):
        file, data = found.sources[int(found.source[row])]
        data = vhost.root.mapped(file).data if data is None else data
        at, length = int(entries["at"][k]), int(entries["length"][k])
        stored = data[at : at + length]
        embedded = entries["place"][k] != IN_STORE
        term = b""
        if _is_basic(stored):
            term = stored.tobytes() if embedded else b""
        else:
            try:
                message, term = _rewritten(stored.tobytes(), name, found.queue_addresses)
            except (EtfError, PropertiesError) as error:
                refused.append(Refusal(int(entries["seq"][k]), str(error)))
                if embedded:
                    entries["at"][k], entries["length"][k], entries["place"][k] = 0, 0, IN_SEGMENT
                continue
            entries["size"][k] = len(message.body)
            count += 1
        if embedded:
            entries["at"][k], entries["length"][k], entries["place"][k] = len(buffer), len(term), IN_SEGMENT
            buffer += term
    return RewrittenEntries(entries, np.frombuffer(bytes(buffer), np.uint8), count, tuple(refused))


def rewrite_store(vhost: Vhost, needed: NDArray[np.int64], stage: DurableDirectory, place: str) -> CopiedFiles:
    """Write the needed rows of the persistent store to a directory of the stage, in files of the same numbers."""
    store = vhost.persistent
    stage.make_directory(place)
    files, at, length = store.locations(needed)
    order = np.lexsort((at, files))
    written: dict[int, int] = {}
    buffer = bytearray()
    number = -1

    def flush() -> None:
        if buffer:
            stage.append(f"{place}/{number}.rdq", np.frombuffer(bytes(buffer), np.uint8))
            written[number] = written.get(number, 0) + len(buffer)
            buffer.clear()

    for k in order.tolist():
        file = store.files[int(files[k])]
        if file.number != number or len(buffer) > PIECE:
            flush()
            number = file.number
        stored = _stored(store, file.name, int(at[k]), int(length[k]))
        if _is_basic(stored):
            buffer += record(store.id(int(needed[k])), stored.tobytes())
        else:
            buffer += record(store.id(int(needed[k])), _rewritten(stored.tobytes(), vhost.name, vhost.queue_addresses)[1])
    flush()
    total = sum(written.values())
    size = sum(file.size for file in store.files)
    return CopiedFiles(len(written), 0, len(written), total, max(0, size - total))


def _stored(store: MessageStore, file: str, at: int, length: int) -> Bytes:
    data = store.directory.map(file).data
    if at < HEADER or at + length > len(data):
        raise CannotOpenError(f"{file} has changed while it was read; stop the node and convert again")
    return data[at : at + length]
