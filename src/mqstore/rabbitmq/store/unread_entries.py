"""Entries of a RabbitMQ store that are not read although they are in the place of its files.

Directories that cannot be listed are empty for their readers. Links that point out of the store, FIFOs, sockets and devices are never
opened (`files.confined_directory`); a directory in the place of a file cannot be. Whatever they stand for is missing from every answer,
so every answer about the store has to name them.
"""

from __future__ import annotations

from collections.abc import Iterator

from mqstore.files import ReadOnlyDirectory
from mqstore.files.confined_directory import ConfinedDirectory
from mqstore.findings import Damage, Kind
from mqstore.rabbitmq.format.layout import find_vhosts

__all__ = ["REQUIRED", "unread_entries"]

NOT_FOLLOWED = "a link that points out of the store, or not a regular file; it is skipped: replace it with a copy of its target"
NOT_A_FILE = "a directory in the place of a file; it is skipped: move it away"
REQUIRED = ("", "msg_stores", "msg_stores/vhosts", "vhosts")  # without these there is no store to speak of
_DIRECTORIES = frozenset({"queues", "msg_store_persistent", "msg_store_transient"})


def unread_entries(directory: ReadOnlyDirectory) -> Iterator[Damage]:
    """Yield a finding for each entry that is not read: directories that cannot be listed first, then by path."""
    yield from _unlisted(directory)
    if not isinstance(directory, ConfinedDirectory):
        return
    for name in directory.foreign_entries():
        yield Damage(name, 0, 0, Kind.UNREADABLE, NOT_FOLLOWED)
    for vhost in find_vhosts(directory):
        for path in directory.directories(vhost):
            if _is_misplaced(path.removeprefix(f"{vhost}/" if vhost else "")):
                yield Damage(path, 0, 0, Kind.UNREADABLE, NOT_A_FILE)


def _unlisted(directory: ReadOnlyDirectory) -> Iterator[Damage]:
    """Yield a finding for each directory that cannot be listed."""
    for _ in directory.walk():
        pass
    for path, why in sorted(directory.unlisted.items()):
        yield Damage(path, 0, 0, Kind.UNREADABLE, why)


def _is_misplaced(path: str) -> bool:
    """Return whether a directory of a vhost is where only files are. path: relative to the vhost."""
    parts = path.split("/")
    if len(parts) == 1:
        return path.startswith(".") or path.endswith((".dets", ".dcd"))
    return parts[0] in _DIRECTORIES and len(parts) == (3 if parts[0] == "queues" else 2)
