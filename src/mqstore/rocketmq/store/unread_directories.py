"""Directories of a store that cannot be listed: no permission, a link that leads nowhere or in a circle, a file in their place.

    commitlog/           must be listed: without it there is no store to speak of
    consumequeue/T/Q/    one of them is a finding, and what is in it is neither damaged nor missing: it is not known

`StoreFiles` reads the rest of the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mqstore.files import DirectoryEntry, ReadOnlyDirectory
from mqstore.findings import Damage, Kind

REQUIRED = ("", "commitlog")
_QUEUES = ("consumequeue", "batchconsumequeue", "consumequeue_ext")
_PLACES = (*_QUEUES, "index", "config")
NOT_A_DIRECTORY = "not a directory, so nothing that belongs in it can be read; put the directory back, or rebuild it from the log"
_ADVICE = "it is skipped: replace it with the directory that belongs there"


def unread_directories(directory: ReadOnlyDirectory) -> Iterator[Damage]:
    """Yield a finding for each place of a directory that is not read. The queues' own directories must have been listed before."""
    for place in _PLACES:
        if directory.has_entry(place) and not directory.is_directory(place) and place not in directory.unlisted:
            yield Damage(place, 0, 0, Kind.UNREADABLE, NOT_A_DIRECTORY)
    for place in _QUEUES:
        for topic in directory.entries(place):
            own = f"{place}/{topic.name}"
            if topic.is_directory:
                yield from (_dead_link(f"{own}/{queue.name}") for queue in directory.entries(own) if _is_dead_link(queue))
            elif _is_dead_link(topic):
                yield _dead_link(own)
    for path, why in sorted(directory.unlisted.items()):
        yield Damage(path, 0, 0, Kind.UNREADABLE, why)


def _is_dead_link(entry: DirectoryEntry) -> bool:
    return entry.is_link and not entry.is_directory and not entry.is_file


def _dead_link(path: str) -> Damage:
    return Damage(path, 0, 0, Kind.UNREADABLE, f"a link that leads nowhere or in a circle; {_ADVICE}")


def below(path: str, places: Sequence[str]) -> bool:
    """Return whether a path is one of these places or below one."""
    return any(path == place or path.startswith(f"{place}/") for place in places)
