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
from mqstore.rabbitmq.definitions.feature_flags import flags_file
from mqstore.rabbitmq.format.layout import MNESIA, NODE_NAME, cluster_nodes, is_node, node_name

COORDINATION = "coordination"  # the directory of the Raft system that has the metadata
_CONTAINERS = "message_containers"
_LONG_NAME = re.compile(r"[0-9A-Fa-f]{16}\.(?:wal|segment)")
_SHORT_NAME = re.compile(r"[0-9A-Fa-f]{8}\.(?:wal|segment)")


def node_directory(directory: ReadOnlyDirectory) -> ReadOnlyDirectory | None:
    """Return the data directory of the node whose messages are in or below a directory, or None.

    directory: the data directory, its `msg_stores`, the `vhosts` in that, or one of these.
    """
    if is_node(directory):
        return directory
    above = _above_msg_stores(directory.root)
    try:
        return None if above is None else ReadOnlyDirectory(above)
    except CannotOpenError:
        return None


def name_of_node(node: ReadOnlyDirectory) -> str | None:
    """Return the name of the node that wrote a data directory; None if its files do not show it.

    That is the name of its Raft systems, else of the directory if the cluster has such a member, else of the only member.
    """
    for system in ("quorum", COORDINATION):
        if node.is_directory(system):
            raft = [entry.name for entry in node.entries(system) if entry.is_directory and NODE_NAME.fullmatch(entry.name)]
            if len(raft) == 1:
                return raft[0]
    members = cluster_nodes(node)
    own = node_name(node.root)
    if own in members or (not members and NODE_NAME.fullmatch(own)):
        return own
    return members[0] if len(members) == 1 else None


def _above_msg_stores(root: Location) -> Path | None:
    """Return the ancestor that contains `msg_stores`, judged by the names of the directories, or None."""
    if not isinstance(root, Path):
        return None
    above = root.absolute()
    for path in (above, above.parent, above.parent.parent):
        if path.name == "msg_stores" and above.relative_to(path).parts[:1] in ((), ("vhosts",)):
            return path.parent
    return None


def coordination_files(directory: ReadOnlyDirectory) -> list[str]:
    """Return the files of the Raft system that has the metadata. directory: the data directory."""
    if not directory.is_directory(COORDINATION):
        return []
    return sorted(path for path, entry in directory.walk(COORDINATION) if entry.is_file)


def stream_release(node: ReadOnlyDirectory) -> str:
    """Return the release whose rules the node has for messages of streams: 3.10, 4.0 or 4.3; 4.3 if nothing shows its version.

    3.13 and newer are known by a feature flag, or by the lack of `schema_version` beside the tables of Mnesia.
    """
    if delivers_queue_names(node) is not False:
        return "4.3"
    flags = flags_file(node)
    containers = not node.has_entry("schema_version") if flags is None or flags.enabled is None else _CONTAINERS in flags.enabled
    return "4.0" if containers else "3.10"


def delivers_queue_names(node: ReadOnlyDirectory) -> bool | None:
    """Return whether the node's version delivers the name of a queue for its AMQP 1.0 address as a reply-to; None if unknown.

    4.3 does, 4.0 does not; the border is assumed to be the version that changed the names of Raft files.
    """
    names = raft_file_names(node)
    if "long" in names:
        return True
    return False if "short" in names or any(node.has_entry(name) for name in MNESIA) else None


def raft_file_names(node: ReadOnlyDirectory) -> frozenset[str]:
    """Return the kinds of names that files of the metadata's Raft system have: `long`, of 16 digits, and `short`, of 8."""
    try:
        names = {path.rpartition("/")[2] for path in coordination_files(node)}
    except CannotOpenError:
        return frozenset()
    kinds = {"long": _LONG_NAME, "short": _SHORT_NAME}
    return frozenset(kind for kind, pattern in kinds.items() if any(pattern.fullmatch(name) for name in names))
