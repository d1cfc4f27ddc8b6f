"""Steps for names on which a node stumbles: it takes every name with the ending of one of its files for one.

    core.idx, 9.idx as a directory      the node does not start
    core.qi, core.qi.bak                the queue does not start
    core.rdq, core.rdt, 5.rdq as a directory    the vhost does not start

All were put beside the files of a 3.10.8 node. Other names are ignored, and stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mqstore.files import DirectoryEntry, ReadOnlyDirectory
from mqstore.rabbitmq.format.layout import VhostDirectory, own_entries
from mqstore.rabbitmq.repair.queue_step import QueueStep
from mqstore.repair.change import Change

__all__ = ["stray_steps"]

_IN_QUEUE = re.compile(r"([0-9]*).*?\.(idx|qi)", re.ASCII)
_IN_STORE = re.compile(r"(.*)\.(?:rdq|rdt)", re.DOTALL)
_OTHERWISE = {
    "idx": "it does not start",
    "qi": "the queue does not start",
    "store": "the vhost does not start",
}


def stray_steps(directory: ReadOnlyDirectory, vhost: VhostDirectory) -> Iterator[QueueStep]:
    """Yield a step for each name that is taken out."""
    for queue in own_entries(directory, vhost.below("queues")):
        place = vhost.below(f"queues/{queue.name}")
        for entry in own_entries(directory, place) if queue.is_directory else ():
            found = _IN_QUEUE.match(entry.name)
            if found is not None and (not found[1] or entry.is_directory):
                yield _take_out(directory, vhost, f"{place}/{entry.name}", entry, found[2])
    place = vhost.below("msg_store_persistent")
    for entry in own_entries(directory, place):
        named = _IN_STORE.fullmatch(entry.name)
        if named is not None and (entry.is_directory or not (named[1].isascii() and named[1].isdigit())):
            yield _take_out(directory, vhost, f"{place}/{entry.name}", entry, "store")


def _take_out(directory: ReadOnlyDirectory, vhost: VhostDirectory, path: str, entry: DirectoryEntry, what: str) -> QueueStep:
    otherwise = _OTHERWISE[what]
    if not entry.is_directory:
        why = f"a file of {entry.size} bytes does not belong here: it is kept in the journal"
        changes: tuple[Change, ...] = (Change("remove", path),) if entry.is_file and not entry.is_link else ()
        if not changes:
            why = "it is not a regular file, and is left alone: remove it by hand"
        return QueueStep("take-out", path, 0, 0, why, otherwise, "", changes, vhost.place)
    inside = list(directory.walk(path))
    if not all(each.is_file for _, each in inside):
        why = "a directory does not belong here, and holds what is not a regular file: move it away by hand"
        return QueueStep("take-out", path, 0, 0, why, otherwise, "", (), vhost.place)
    below = sorted((path, *directory.directories(path)), key=lambda each: -each.count("/"))
    changes = (*(Change("remove", each) for each, _ in inside), *(Change("rmdir", each) for each in below))
    why = "a directory does not belong here: it is kept in the journal"
    return QueueStep("take-out", path, 0, 0, why, otherwise, "", changes, vhost.place)
