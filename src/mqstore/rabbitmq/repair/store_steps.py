"""Steps for the persistent message store: after them a node finds every record that is whole.

    an .rdt without its .rdq                   becomes that .rdq
    messages that the node's scan misses       are copied into new files after the last one; the damaged file stays as it is

The node's scan stops at a size of 0 or at one that leads past the end, and goes astray after a wrong one. It appends an .rdt to its
.rdq whatever is there, so that an .rdt after zeros is lost. Copies have the same ids, of which a node takes one.

Format: docs/formats/rabbitmq.md, sections 6.1 and 6.7 to 6.9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from mqstore.rabbitmq.format import message_file
from mqstore.rabbitmq.repair.queue_step import QueueStep
from mqstore.rabbitmq.store.message_store import StoreFile
from mqstore.rabbitmq.store.vhost import Vhost
from mqstore.repair.change import Change
from mqstore.table.formatting import count

__all__ = ["left_over_steps", "store_steps"]

FILE_SIZE = 16 << 20


def left_over_steps(vhost: Vhost) -> Iterator[QueueStep]:
    """Yield the steps for each `.rdt` without its `.rdq`."""
    for file in _orphans(vhost):
        to = f"{vhost.persistent.place}/{file.number}.rdq"
        why = f"it is left over from a merge, and {file.number}.rdq is missing: it takes that name"
        change = Change("rename", file.name, to=to)
        yield QueueStep("rename", file.name, 0, file.size, why, "the vhost does not start", "", (change,), vhost.place.place)


def _orphans(vhost: Vhost) -> list[StoreFile]:
    numbers = {file.number for file in vhost.persistent.files if not file.leftover}
    return [file for file in vhost.persistent.files if file.leftover and file.number not in numbers]


def store_steps(vhost: Vhost, unseen: NDArray[np.int64]) -> Iterator[QueueStep]:
    """Yield the step for messages that a node does not find. unseen: their rows in the persistent store."""
    store = vhost.persistent
    missed = np.unique(unseen)
    for file in _orphans(vhost):  # of these, the node finds what its scan of the renamed file finds
        scan = message_file.strict_scan(vhost.root.map(file.name).data)
        found = {file.name: frozenset(scan.at.tolist())}
        missed = np.array([row for row in missed.tolist() if not _is_in(vhost, row, found)], np.int64)
    if not len(missed):
        return
    number = max((file.number for file in store.files), default=-1) + 1
    changes: list[Change] = []
    where: dict[str, int] = {}
    part: list[int] = []
    held = 0
    for row in missed.tolist():
        place = store.position(row)
        where[place.file] = where.get(place.file, 0) + 1
        if part and held + place.length > FILE_SIZE:
            changes.append(_new_file(vhost, number + len(changes), part))
            part, held = [], 0
        part.append(row)
        held += place.length
    changes.append(_new_file(vhost, number + len(changes), part))
    named = ", ".join(f"{names} in {file.rpartition('/')[2]}" for file, names in list(where.items())[:5])
    more = f" and {count(len(where) - 5, 'further file')}" if len(where) > 5 else ""
    why = f"{count(len(missed), 'message')} of queues are whole, and a node's scan misses them ({named}{more}): they are copied"
    otherwise = "it drops them from their queues; 3.13.1 and later find some of them"
    yield QueueStep("records", changes[0].file, 0, 0, why, otherwise, "", tuple(changes), vhost.place.place)


def _is_in(vhost: Vhost, row: int, found: dict[str, frozenset[int]]) -> bool:
    place = vhost.persistent.position(row)
    return place.record in found.get(place.file, ())


def _new_file(vhost: Vhost, number: int, rows: list[int]) -> Change:
    return Change("put", f"{vhost.persistent.place}/{number}.rdq", content=_maker(vhost, tuple(rows)))


def _maker(vhost: Vhost, rows: tuple[int, ...]) -> Callable[[], bytes]:
    def make() -> bytes:
        store = vhost.persistent
        parts = []
        for row in rows:
            place = store.position(row)
            term = vhost.root.mapped(place.file).bytes(place.at, place.at + place.length)
            parts.append(message_file.record(store.id(row), term))
        return b"".join(parts)

    return make
