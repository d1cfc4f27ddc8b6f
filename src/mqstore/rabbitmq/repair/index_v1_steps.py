"""Steps for the index of a version 1 queue: journal and segments.

    a torn end of the journal                 cut off
    damage in the journal or in a segment,    all that can be read is written to segments as they would be after a flush, and the
    or a state on which a node crashes        journal is emptied

Both kinds of damage make a node crash before it listens, or pass over what follows. Segments that neither the damage nor the journal
touches stay as they are.

Format: docs/formats/rabbitmq.md, sections 3 to 5 and 7.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mqstore.findings import Damage, Subject
from mqstore.rabbitmq.format import segment
from mqstore.rabbitmq.format.index_v1 import DELIVERED, IN_STORE, PERSISTENT
from mqstore.rabbitmq.repair.queue_content import QueueContent, segment_content
from mqstore.rabbitmq.repair.queue_step import QueueStep
from mqstore.rabbitmq.store.queue import Queue
from mqstore.rabbitmq.store.vhost import Vhost
from mqstore.repair.change import Change
from mqstore.table.formatting import count

__all__ = ["index_v1_step"]


def index_v1_step(queue: Queue, vhost: Vhost, content: QueueContent) -> QueueStep | None:
    """Return the step for a queue with files of version 1; None if a node reads all of them. Adds the queue's messages to content."""
    index = queue.index
    bad: set[int] = set()
    crashes: list[str] = []
    damaged: list[Damage] = []
    for version, number in queue.segments():
        if version != 1:
            continue
        found = queue.entry_table(version, number)
        mine = content.take(number, found, vhost)
        crashes += found.crashes
        faults = [item for item in found.findings if item.kind.subject is Subject.BYTES and item.file == index.segment_file(number)]
        damaged += faults
        if found.crashes or faults or mine.gained.any() or mine.returned or len(mine.fatal):
            bad.add(number)
    in_journal = [item for item in index.journal.findings if item.kind.subject is Subject.BYTES]
    if not bad and not in_journal:
        return None
    end = index.journal.end
    size = len(index.journal.data)
    if not bad and index.journal.seen == len(index.journal.seq):
        why = f"{in_journal[0].detail}, and nothing that can be read follows: the bytes are cut off"
        change = Change("resize", index.journal_file, length=end)
        otherwise = "it passes over them, and what it appends after them is lost at its next start"
        return QueueStep("torn-end", index.journal_file, end, size - end, why, otherwise, "", (change,), vhost.place.place)
    base = index.count
    touched = bad | set(np.unique(index.journal_all.seq // base).tolist())
    changes = [
        Change("put", index.segment_file(number), content=_maker(queue, vhost, number))
        if content.kept.get(number)
        else Change("remove", index.segment_file(number))
        for number in sorted(touched)
        if content.kept.get(number) or number in index.segment_numbers
    ]
    if size:
        changes.append(Change("resize", index.journal_file, length=0))
    damaged = [*in_journal, *damaged]
    reason = damaged[0].detail if damaged else crashes[0] if crashes else _reason(content)
    more = f" (and {count(len(damaged) - 1, 'further range')})" if len(damaged) > 1 else ""
    where = damaged[0].file if damaged else index.journal_file if size else index.segment_file(min(bad))
    why = f"{reason}{more}; what can be read, {count(content.messages, 'message')}, is written to segments"
    return QueueStep(
        "index",
        where,
        damaged[0].offset if damaged else 0,
        damaged[0].length if damaged else 0,
        why,
        _otherwise(queue, content, crashes),
        content.loss,
        tuple(changes),
        vhost.place.place,
    )


def _reason(content: QueueContent) -> str:
    if content.fatal:
        return f"the bytes of {count(content.fatal, 'message')} are not a message"
    return f"{count(content.gained, 'message')} of the queue are not where a node looks for them"


def _otherwise(queue: Queue, content: QueueContent, crashes: list[str]) -> str:
    if crashes and not queue.start.clean:
        return "it crashes here, the vhost does not start, and the node waits for it"
    parts = []
    if content.gained:
        parts.append(f"{count(content.gained, 'message')} are lost")
    if content.returned:
        parts.append(f"{count(content.returned, 'consumed message')} are delivered again")
    if content.fatal or crashes:
        parts.append("the queue process crashes when it comes to them, at every attempt")
    return ", ".join(parts) or "it passes over the bytes"


def _maker(queue: Queue, vhost: Vhost, number: int) -> Callable[[], bytes]:
    def make() -> bytes:
        found = queue.entry_table(1, number)
        content = segment_content(found, vhost, dict.fromkeys(QueueContent().left_out, 0))
        base = number * queue.index.count
        parts = []
        for row, entry in zip(content.rows[::-1].tolist(), content.entries[::-1], strict=True):
            embedded = b""
            if entry["place"] != IN_STORE:
                data = found.sources[int(found.source[row])][1]
                assert data is not None
                embedded = data[int(entry["at"]) : int(entry["at"]) + int(entry["length"])].tobytes()
            message_id = int(entry["hi"]).to_bytes(8, "big", signed=True) + int(entry["lo"]).to_bytes(8, "big", signed=True)
            rel = int(entry["seq"]) - base
            fields = {"size": int(entry["size"]), "expiry": int(entry["expiry"])}
            parts.append(segment.publish(rel, message_id, embedded, **fields, persistent=bool(entry["flags"] & PERSISTENT)))
            if entry["state"] & DELIVERED:
                parts.append(segment.mark(rel))
        return b"".join(parts)

    return make
