"""A step of a RabbitMQ repair, and what the steps of a vhost need together.

The terms of all queues of a vhost are in one file, `recovery.dets`. A step says which terms its queues have afterwards; the file is made
once, for the steps that were chosen. The tables of a clean stop describe files that a repair changes, so that `clean.dot` goes with the
first change of its vhost: a node then reads the files, and keeps numbers and marks from the terms.

What a queue holds: the messages that it can have after a repair, and what a node would make of them before.

A message is kept by a repair if a node would keep it, or if it is a live, persistent message whose bytes are intact. One that a node
would keep and cannot read is not: the queue process ends when it is to be delivered, and again after every restart.

Format: docs/formats/rabbitmq.md, sections 7.1, 8 and 15.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.convert.convert_queue import LEFT_OUT, LOST, select_messages
from mqstore.rabbitmq.erlang import dets
from mqstore.rabbitmq.erlang.terms import Term
from mqstore.rabbitmq.format.index_v1 import ACKED, IN_STORE, PERSISTENT, PUBLISHED
from mqstore.rabbitmq.format.layout import small_file
from mqstore.rabbitmq.format.recovery_terms import QueueTerms, queue_value
from mqstore.rabbitmq.store.queue import EntryTable
from mqstore.rabbitmq.store.vhost import Vhost
from mqstore.repair.change import Change, Step
from mqstore.table.formatting import count


@dataclass(frozen=True, slots=True)
class QueueStep(Step):
    """A step, with what it changes in the terms of a vhost. vhost: its place; terms: by queue directory; rewrites: the file is damaged.

    messages: those that a node does not deliver as it is, where only the step counts them.
    """

    vhost: str = ""
    terms: Mapping[str, QueueTerms] = field(default_factory=dict)
    rewrites: bool = False
    messages: int = 0

    @property
    def possible(self) -> bool:
        return bool(self.changes or self.terms or self.rewrites)

    def refused(self, why: str, *, in_copy: bool) -> QueueStep:
        """Return the step of which nothing can be done. why: a sentence, with paths below the store; in_copy: it can in a real copy."""
        because = f"{self.why}; that cannot be done: {why.replace(self.file, 'it') if self.file else why}"
        return replace(self, why=because, loss="", changes=(), terms={}, rewrites=False, in_copy=in_copy)


def clean_dot(vhost: str) -> str:
    return f"{vhost}/msg_store_persistent/clean.dot".lstrip("/")


def recovery_file(vhost: str) -> str:
    return f"{vhost}/recovery.dets".lstrip("/")


def completed(directory: ReadOnlyDirectory, steps: Sequence[QueueStep]) -> list[QueueStep]:
    """Return the steps, the last of each vhost with the changes of its `clean.dot` and `recovery.dets`."""
    result = list(steps)
    for vhost in dict.fromkeys(step.vhost for step in steps if step.possible):
        mine = [number for number, step in enumerate(steps) if step.vhost == vhost and step.possible]
        changes: list[Change] = []
        mark = clean_dot(vhost)
        if directory.exists(mark) and not any(change.file == mark for number in mine for change in steps[number].changes):
            changes.append(Change("remove", mark))
        terms = {name: noted for number in mine for name, noted in steps[number].terms.items()}
        if terms or any(steps[number].rewrites for number in mine):
            changes.append(Change("put", recovery_file(vhost), content=partial(_recovery, directory, vhost, terms)))
        last = result[mine[-1]]
        result[mine[-1]] = replace(last, changes=(*changes, *last.changes))
    return result


def _recovery(directory: ReadOnlyDirectory, vhost: str, terms: Mapping[str, QueueTerms]) -> bytes:
    """Return `recovery.dets` with these terms in place of those that it has for the same queues."""
    content = small_file(directory, recovery_file(vhost)) or b""
    objects: list[tuple[Term, Term]] = []
    for key, value in dets.read_objects(content) if content else []:
        name = bytes(each for each in key if isinstance(each, int) and 0 < each < 256).decode("latin-1") if isinstance(key, list) else ""
        objects.append((key, queue_value(terms[name]) if name in terms else value))
    return dets.write_objects(objects)


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

    def take(self, number: int, table: EntryTable, vhost: Vhost) -> SegmentContent:
        """Add one segment."""
        content = segment_content(table, vhost, self.left_out)
        entries = content.entries
        self.messages += len(entries)
        self.size += int(entries["size"].sum())
        self.last = max(self.last, int(entries["seq"].max(initial=-1)))
        self.kept[number] = self.kept.get(number, 0) + len(entries)
        state = table.entries["state"]
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


def segment_content(table: EntryTable, vhost: Vhost, left_out: dict[str, int]) -> SegmentContent:
    """Return the messages of one segment. Adds to left_out."""
    rows, entries = select_messages(table, vhost, left_out)
    state = table.entries["state"]
    live = (state & (PUBLISHED | ACKED)) == PUBLISHED
    rest = np.setdiff1d(np.flatnonzero(table.recovered & live & ((table.entries["flags"] & PERSISTENT) != 0)), rows)
    readable = np.array([table.message(int(row), vhost.root) is not None for row in rest], np.bool_)
    if readable.any():
        more = rest[readable]
        added = table.entries[more].copy()
        added["at"], added["length"] = table.at[more], table.length[more]
        order = np.argsort(np.concatenate([entries["seq"], added["seq"]]), kind="stable")
        rows, entries = np.concatenate([rows, more])[order], np.concatenate([entries, added])[order]
    shared = np.flatnonzero(entries["place"] == IN_STORE)
    at = vhost.persistent.find(entries["hi"][shared], entries["lo"][shared])
    missed = (at >= 0) & ~vhost.persistent.seen(at)
    gained = ~table.recovered[rows]
    gained[shared[missed]] = False
    if vhost.clean:  # the tables are not right: without `clean.dot` the node finds all
        gained[shared[at >= 0]] = False
    returned = int((table.recovered & ~live).sum())
    return SegmentContent(rows, entries, gained, at[missed], returned, rest[~readable] if len(rest) else rest)
