"""Which directories of queues a node keeps: those of its metadata. It deletes the others at its start, before it reads them."""

from __future__ import annotations

from typing import NamedTuple

from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.definitions.metadata import SCHEMA, TABLES, Definitions
from mqstore.rabbitmq.format.names import vhost_directory


class KnownDirectories(NamedTuple):
    """The directories, by their names below `msg_stores/vhosts`, that the metadata has. queues: those of vhost and queue."""

    vhosts: frozenset[str]
    queues: frozenset[tuple[str, str]]

    def deleted(self, vhost: str, queue: str) -> bool:
        """Return whether the node deletes a directory of a queue. Those of vhosts that it does not know it leaves alone."""
        return vhost in self.vhosts and (vhost, queue) not in self.queues


def lacks_metadata(directory: ReadOnlyDirectory, definitions: Definitions) -> bool:
    """Return whether there are neither files of Mnesia nor definitions of Khepri; `coordination` has other things, too."""
    known = any(directory.exists(name) for name in ("rabbit_durable_queue.DCD", SCHEMA, "cluster_nodes.config"))
    return not known and not definitions.vhosts and not any(item.file.startswith("coordination") for item in definitions.damage)


def knows_no_queue(definitions: Definitions) -> bool:
    """Return whether the table of queues, or that of vhosts, is read as an empty one."""
    return not definitions.emptied.isdisjoint({"rabbit_durable_queue", "rabbit_vhost"})


def known_directories(directory: ReadOnlyDirectory, definitions: Definitions) -> KnownDirectories | None:
    """Return the directories that the metadata in a node's data directory has; None if there is none, or it cannot be read whole.

    Without schema.DAT a node begins with empty tables, and knows the vhost / only.
    """
    if lacks_metadata(directory, definitions) or not definitions.certain or not directory.is_directory("msg_stores/vhosts"):
        return None
    if not (directory.exists("rabbit_durable_queue.DCD") or definitions.vhosts):
        return None
    vhosts = frozenset(map(vhost_directory, definitions.vhosts))
    if "rabbit_vhost" in definitions.emptied:
        vhosts = frozenset({vhost_directory("/")} if definitions.emptied.issuperset(TABLES) else ())
    if knows_no_queue(definitions):
        return KnownDirectories(vhosts, frozenset())
    queues = ((vhost_directory(queue.vhost), own) for queue in definitions.queues for _, own in queue.directories())
    return KnownDirectories(vhosts, frozenset(queues))
