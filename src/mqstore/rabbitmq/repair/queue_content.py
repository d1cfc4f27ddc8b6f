"""What a queue holds: the messages that it can have after a repair, and what a node would make of them before.

A message is kept by a repair if a node would keep it, or if it is a live, persistent message whose bytes are intact. One that a node
would keep and cannot read is not: the queue process ends when it is to be delivered, and again after every restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.rabbitmq.convert.convert_queue import LEFT_OUT, LOST, UNREADABLE, select_messages
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.format.index_v1 import ACKED, IN_STORE, PERSISTENT, PUBLISHED
from mqstore.rabbitmq.message.message_term import read_message
from mqstore.rabbitmq.store.queue import EntryTable
from mqstore.rabbitmq.store.vhost import Vhost
from mqstore.table.formatting import count

__all__ = ["UNREADABLE", "QueueContent", "SegmentContent", "segment_content"]


class SegmentContent(NamedTuple):
    """Messages of one segment. rows, entries: those to keep. gained: of these, what a node would not find in the index.

    unseen: rows of the persistent store that a node does not find. returned: consumed messages that a node would deliver again.
    fatal: rows of messages that a node keeps and cannot read.
    """

    rows: NDArray[np.intp]
    entries: NDArray[np.void]
    gained: NDArray[np.bool_]
    unseen: NDArray[np.int64]
    returned: int
    fatal: NDArray[np.intp]


@dataclass(slots=True)
class QueueContent:
    """Counts of one queue directory over its segments. live: by segment, all that is not acknowledged. left_out: by reason."""

    messages: int = 0
    size: int = 0
    last: int = -1
    kept: dict[int, int] = field(default_factory=dict)
    live: dict[int, int] = field(default_factory=dict)
    gained: int = 0
    returned: int = 0
    fatal: int = 0
    unseen: list[NDArray[np.int64]] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LEFT_OUT, 0))

    def take(self, number: int, found: EntryTable, vhost: Vhost) -> SegmentContent:
        """Add one segment."""
        content = segment_content(found, vhost, self.left_out)
        entries = content.entries
        self.messages += len(entries)
        self.size += int(entries["size"].sum())
        self.last = max(self.last, int(entries["seq"].max(initial=-1)))
        self.kept[number] = self.kept.get(number, 0) + len(entries)
        state = found.entries["state"]
        self.live[number] = self.live.get(number, 0) + int(((state & (PUBLISHED | ACKED)) == PUBLISHED).sum())
        self.gained += int(content.gained.sum())
        self.returned += content.returned
        self.fatal += len(content.fatal)
        self.unseen.append(content.unseen)
        return content

    def add(self, number: int, messages: int, size: int, last: int) -> None:
        """Add messages that only the repair makes readable. number: of their segment; last: the highest of their sequence ids."""
        self.messages += messages
        self.size += size
        self.kept[number] = self.kept.get(number, 0) + messages
        self.last = max(self.last, last)

    @property
    def loss(self) -> str:
        """What is not in the queue afterwards, for a person; empty for nothing."""
        parts = [f"{count(number, 'message')} ({why})" for why, number in self.left_out.items() if number and why in LOST]
        return f"nothing that is readable; lost before: {', '.join(parts)}" if parts else ""


def segment_content(found: EntryTable, vhost: Vhost, left_out: dict[str, int]) -> SegmentContent:
    """Return the messages of one segment. Adds to left_out."""
    rows, entries = select_messages(found, vhost, left_out)
    state = found.entries["state"]
    live = (state & (PUBLISHED | ACKED)) == PUBLISHED
    rest = np.setdiff1d(np.flatnonzero(found.kept & live & ((found.entries["flags"] & PERSISTENT) != 0)), rows)
    readable = np.array([_is_message(found, int(row), vhost) for row in rest], np.bool_)
    if readable.any():
        more = rest[readable]
        added = found.entries[more].copy()
        added["at"], added["length"] = found.at[more], found.length[more]
        order = np.argsort(np.concatenate([entries["seq"], added["seq"]]), kind="stable")
        rows, entries = np.concatenate([rows, more])[order], np.concatenate([entries, added])[order]
    shared = np.flatnonzero(entries["place"] == IN_STORE)
    at = vhost.persistent.find(entries["hi"][shared], entries["lo"][shared])
    missed = (at >= 0) & ~vhost.persistent.seen(at)
    gained = ~found.kept[rows]
    gained[shared[missed]] = False
    returned = int((found.kept & ~live).sum())
    return SegmentContent(rows, entries, gained, at[missed], returned, rest[~readable] if len(rest) else rest)


def _is_message(found: EntryTable, row: int, vhost: Vhost) -> bool:
    """Return whether the bytes of a row are a message, of whatever id."""
    if found.source[row] < 0:
        return False
    name, data = found.sources[int(found.source[row])]
    at, length = int(found.at[row]), int(found.length[row])
    try:
        data = vhost.root.map(name).data if data is None else data
        read_message(data[at : at + length].tobytes())
    except (CannotOpenError, EtfError):
        return False
    return True
