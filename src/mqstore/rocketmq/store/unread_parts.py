"""Parts of a store that are recognised and not read: what they are, and how a store shows that it has them.

    dledger-*/data            the log of a DLedger group, if there is a commit log, too
    consumequeue/CURRENT      consume queues in RocksDB, if the database is not read
    compaction/compactionLog  compaction topics; every 5.5.0 broker has compaction/position-checkpoint, be it for none
    kvStore                   messages that pop consumers have in hand, in RocksDB; 5.5.0 makes the database, be it for none
    config/tieredStoreMetadata.json, tiered_index_file
                              tiered storage, which is elsewhere; 5.x makes both, be it for none

What is not read is never called damaged, and never said to be missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from mqstore.errors import CannotOpenError
from mqstore.files import DirectoryEntry, ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.rocksdb_config import GROUPS, OFFSETS, TOPICS, V2
from mqstore.rocketmq.format.dledger_log import second_log
from mqstore.rocketmq.store.databases import QUEUE_PLACES, Databases

_TIERED = "config/tieredStoreMetadata.json"
_TIERED_INDEX = "tiered_index_file"
_POP = "kvStore"
_DATABASES = (
    *((place, "consume queues in RocksDB (storeType=defaultRocksDB)") for place in QUEUE_PLACES),
    (TOPICS, "topics kept in RocksDB"),
    (GROUPS, "subscription groups kept in RocksDB"),
    (OFFSETS, "consumer offsets kept in RocksDB"),
    (V2, "configuration kept in RocksDB"),
)
REQUIRED = ("", "commitlog")
_QUEUES = ("consumequeue", "batchconsumequeue", "consumequeue_ext")
_PLACES = (*_QUEUES, "index", "config")
NOT_A_DIRECTORY = "not a directory, so nothing that belongs in it can be read; put the directory back, or rebuild it from the log"
_ADVICE = "it is skipped: replace it with the directory that belongs there"


def _has_compacted_queues(directory: ReadOnlyDirectory) -> bool:
    """Return whether the positions of compacted queues name a queue, or cannot be read."""
    raw = directory.read("compaction/position-checkpoint")
    if raw is None:
        return False
    try:
        found = json.loads(raw)
    except ValueError:
        return True
    return not isinstance(found, dict) or bool(found.get("queueOffsetMap"))


def _holds(directory: ReadOnlyDirectory, place: str, *endings: str) -> bool:
    """Return whether a directory has a file that ends like one of these and is not empty, or cannot be listed."""
    try:
        return any(entry.size and entry.name.endswith(endings) for entry in directory.entries(place) if not entry.is_directory)
    except CannotOpenError:
        return True


def _tiered(directory: ReadOnlyDirectory) -> str | None:
    """Return what is in tiered storage, and how to read it; None if nothing is."""
    listed = fastjson.load(directory, _TIERED)
    if listed.used is None and listed.findings:
        return f"tiered storage: what it holds is not known, {_TIERED} cannot be read"
    queues = segments = size = 0
    logs = listed.value.get("commitLogFileSegmentTable")
    for queue in logs.values() if isinstance(logs, dict) else ():
        lengths = [_length(segment) for segment in queue.values()] if isinstance(queue, dict) else []
        held = [length for length in lengths if length]
        queues += bool(held)
        segments += len(held)
        size += sum(held)
    if segments:
        from mqstore.table.formatting import count

        return (
            f"tiered storage: {size:,} bytes in {count(segments, 'log segment')} of {count(queues, 'queue')}, "
            "in the directory tieredStoreFilePath; "
            "`mqstore messages` reads a segment in COMMIT_LOG/, `mqstore salvage DIRECTORY --to OUT` reads all"
        )
    return f"tiered storage: its index ({_TIERED_INDEX})" if _holds(directory, _TIERED_INDEX, "") else None


def _length(segment: object) -> int:
    size = segment.get("size") if isinstance(segment, dict) else None
    return size if isinstance(size, int) and size > 0 else 0


def unread_parts(directory: ReadOnlyDirectory, databases: Databases) -> list[str]:
    """Return the parts that a store has, by name."""
    found = []
    if directory.exists("compaction/compactionLog") or _has_compacted_queues(directory):
        found.append("compaction topics")
    tiered = _tiered(directory)
    if tiered is not None:
        found.append(tiered)
    if _holds(directory, _POP, ".sst", ".log"):
        found.append(f"messages that pop consumers have in hand, in RocksDB ({_POP})")
    ledger = second_log(directory)
    if ledger is not None:
        found.append(f"the log of a DLedger group beside the commit log ({ledger})")
    found += [f"{name}: {why}" for place, name in _DATABASES if (why := databases.why_unread(place)) is not None]
    return list(dict.fromkeys(found))


# Directories of a store that cannot be listed: no permission, a link that leads nowhere or in a circle, a file in their place.
#
#     commitlog/           must be listed: without it there is no store to speak of
#     consumequeue/T/Q/    one of them is a finding, and what is in it is neither damaged nor missing: it is not known
#
# `StoreFiles` reads the rest of the store.


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
