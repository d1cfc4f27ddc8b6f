"""Carved messages as a store: every message that was found in an image, written into message files that the rest of the package reads.

    image    |...|id term ff|.....|size flags crc term|....|term|        a record, an entry of a queue's own store, a message alone
    0.rdq    |size id term ff|size id term ff|size id term ff|

The store lives beside the target while that is written, and has no queues: only the index of a queue knows which messages were in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mqstore.files.durable import DurableDirectory
from mqstore.kernels.rabbitmq import message_store
from mqstore.rabbitmq.format.message_file import record
from mqstore.rabbitmq.salvage import carved_rows
from mqstore.rabbitmq.salvage.carved_rows import KIND, FoundMessages, terms_of
from mqstore.rabbitmq.salvage.salvaging import open_wreck
from mqstore.rabbitmq.store.store import RabbitMQStore

__all__ = ["CarvedStore", "write_carved"]


@dataclass(slots=True)
class CarvedStore:
    """The store that was written. damaged, transient: messages that were left out."""

    path: Path
    count: int = 0
    damaged: int = 0
    transient: int = 0

    def open(self) -> RabbitMQStore:
        """Open the store as what is left of one."""
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
                    if size >= carved_rows.FILE_BYTES:
                        sink.close()
                        number, size = number + 1, 0
                        sink = to.open_new(f"{number}.rdq")
                    size += sink.write(record(ids[16 * k : 16 * k + 16], bytes(raw[start : start + length])))
                    store.count += 1
            source.image.close()
    finally:
        sink.close()
    return store
