"""The side files of a clean stop: `recovery.dets`, and what is there besides it after a stop of a broker.

For each queue the terms (`recoveryterms`) say which sequence id comes next, from which on nothing was ever delivered, and how many messages
there are, in all and in each segment. `clean.dot` and the `.ets` files are not written: without them a broker scans the message
store and checks every entry, but takes numbers and redelivered marks from the terms (section 15.2). Nothing would check what they say.

Format: docs/formats/rabbitmq.md, sections 8 and 15.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.rabbitmq.dets import read_objects
from mqstore.rabbitmq.livequeue import LiveQueue
from mqstore.rabbitmq.recoveryterms import QueueTerms, read_terms, write_terms

if TYPE_CHECKING:
    from mqstore.rabbitmq.vhoststart import Started

__all__ = ["RECOVERY", "SIDE_FILES", "take_terms", "write_side_files"]

RECOVERY = "recovery.dets"
SIDE_FILES = ("clean.dot", "file_summary.ets", "msg_store_index.ets")


def take_terms(directory: DurableDirectory, reading: ReadOnlyDirectory, place: str) -> dict[str, QueueTerms]:
    """The terms by queue directory; the side files are gone for good when this returns."""
    content = reading.read(f"{place}/{RECOVERY}")
    found = {} if content is None else read_terms(read_objects(content))
    removed = False
    for name in (RECOVERY, *(f"msg_store_persistent/{each}" for each in SIDE_FILES)):
        if reading.exists(f"{place}/{name}"):
            directory.remove(f"{place}/{name}")
            removed = True
    if removed:
        directory.sync_directory(place)
        directory.sync_directory(f"{place}/msg_store_persistent")
    return found


def write_side_files(started: Started) -> None:
    """Note what the next start needs to go on as if nothing had been. Everything else is on the disk already."""
    content = write_terms({name: _terms(queue) for name, queue in started.queues.items()})
    started.directory.write_small(f"{started.place}/{RECOVERY}", content)


def _terms(queue: LiveQueue) -> QueueTerms:
    counts = queue.index.unacked_by_segment()
    one, two = (counts, None) if queue.index.version == 1 else (None, counts)
    return QueueTerms(one, two, queue.next_seq, queue.next_deliver, os.urandom(16), queue.persistent, queue.persistent_bytes)
