"""The data directory of a node: where it is, and what its files say about the version that wrote them.

A store may be opened as the data directory itself, as its `msg_stores`, as the `vhosts` in that, or as one vhost. The metadata is beside
`msg_stores`: Mnesia's tables up to 4.2, the Raft log of Khepri under `coordination/` (see `metadata`).

The files in which 4.2 and newer differ from older versions are those of the Raft library: the name of a write-ahead log has 8 digits up to
4.1, 16 digits since.
"""

from __future__ import annotations

import re
from pathlib import Path

from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.location import Location

MNESIA = ("schema.DAT", "LATEST.LOG")
_LONG_NAME = re.compile(r"[0-9A-Fa-f]{16}\.(?:wal|segment)")
_SHORT_NAME = re.compile(r"[0-9A-Fa-f]{8}\.(?:wal|segment)")


def node_directory(directory: ReadOnlyDirectory) -> ReadOnlyDirectory | None:
    """Return the data directory of the node whose messages are in or below a directory, or None.

    directory: the data directory, its `msg_stores`, the `vhosts` in that, or one of these.
    """
    if directory.is_directory("msg_stores"):
        return directory
    above = _above_msg_stores(directory.root)
    try:
        return None if above is None else ReadOnlyDirectory(above)
    except CannotOpenError:
        return None


def _above_msg_stores(root: Location) -> Path | None:
    """Return the ancestor that contains `msg_stores`, judged by the names of the directories, or None."""
    if not isinstance(root, Path):
        return None
    above = root.absolute()
    for path in (above, above.parent, above.parent.parent):
        if path.name == "msg_stores" and above.relative_to(path).parts[:1] in ((), ("vhosts",)):
            return path.parent
    return None


def coordination_files(directory: ReadOnlyDirectory, place: str = "") -> list[str]:
    """Return the files of the Raft system that has the metadata. place: the data directory, relative to directory."""
    below = f"{place}/coordination" if place else "coordination"
    if not directory.is_directory(below):
        return []
    return sorted(path for path, entry in directory.walk(below) if entry.is_file)


def delivers_queue_names(node: ReadOnlyDirectory) -> bool | None:
    """Return whether the node's version delivers the name of a queue for its AMQP 1.0 address as a reply-to; None if unknown.

    4.3 does, 4.0 does not; the border is assumed to be the version that changed the names of Raft files.
    """
    try:
        names = {path.rpartition("/")[2] for path in coordination_files(node)}
    except CannotOpenError:
        names = set()
    if any(_LONG_NAME.fullmatch(name) for name in names):
        return True
    if any(_SHORT_NAME.fullmatch(name) for name in names) or any(node.has_entry(name) for name in MNESIA):
        return False
    return None
