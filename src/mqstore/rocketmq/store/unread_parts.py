"""Parts of a store that are recognised and not read: what they are, and how a store shows that it has them.

    dledger-*/data            the log of a DLedger group, if there is a commit log, too
    consumequeue/CURRENT      consume queues in RocksDB, if the database is not read
    compaction/compactionLog  compaction topics (`mqstore.rocketmq.store.compacted`), which are counted; every 5.5.0 broker has
                              compaction/position-checkpoint, be it for none
    kvStore                   messages that pop consumers have in hand, in RocksDB, if the database is not read
    config/topicQueueMapping.json    static topics: what their logic queues are on other brokers
    epochFileCheckpoint, brokerIdentity
                              what a controller knows of the group, of which this broker is one
    config/tieredStoreMetadata.json, tiered_index_file
                              tiered storage, which is elsewhere; 5.x makes both, be it for none

What is not read is never called damaged, and never said to be missing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

from mqstore.errors import CannotOpenError
from mqstore.files import DirectoryEntry, ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.rocksdb_config import GROUPS, OFFSETS, TOPICS, V2
from mqstore.rocketmq.format.dledger_log import second_log
from mqstore.rocketmq.format.timer_wheel import CHECK, WHEEL
from mqstore.rocketmq.store.compacted import compacted_topics
from mqstore.rocketmq.store.databases import INDEX_PLACE, KV_PLACE, POP_FAMILY, QUEUE_PLACES, Databases

_TIERED = "config/tieredStoreMetadata.json"
_MAPPING = "config/topicQueueMapping.json"
EPOCHS, IDENTITY = "epochFileCheckpoint", "brokerIdentity"
_LIMIT = 1 << 20
_SHOWN = 8
_TIERED_INDEX = "tiered_index_file"
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
_FILES = (WHEEL, CHECK, EPOCHS, IDENTITY)
_NOT_DERIVED = ("timerlog", "compaction", KV_PLACE, INDEX_PLACE, "consumequeue_rocksdb")
_NOT_A_DIRECTORY = "not a directory, so nothing that belongs in it can be read; put the directory back"
_ADVICE = "it is skipped: replace it with the directory that belongs there"


def holds(directory: ReadOnlyDirectory, path: str, *endings: str) -> bool:
    """Return whether a directory has a file that ends like one of these and is not empty, or cannot be listed."""
    try:
        return any(entry.size and entry.name.endswith(endings) for entry in directory.entries(path) if not entry.is_directory)
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
    return f"tiered storage: its index ({_TIERED_INDEX})" if holds(directory, _TIERED_INDEX, "") else None


def has_tier(directory: ReadOnlyDirectory) -> bool:
    """Return whether messages were moved to tiered storage, so that one that is no longer in the log may still be read."""
    return bool((tiered := _tiered(directory)) and _TIERED_INDEX not in tiered)


def _length(segment: object) -> int:
    size = segment.get("size") if isinstance(segment, dict) else None
    return size if isinstance(size, int) and size > 0 else 0


def static_topics(directory: ReadOnlyDirectory) -> Iterator[str]:
    """Yield a sentence for each static topic: which of its logic queues are queues of this broker."""
    mapping = fastjson.load(directory, _MAPPING)
    topics = mapping.value.get("topicQueueMappingInfoMap")
    if mapping.used is None and mapping.findings:
        yield f"static topics: which there are is not known, {_MAPPING} cannot be read"
    for topic, details in sorted(topics.items()) if isinstance(topics, dict) else ():
        hosted = details.get("hostedQueues") if isinstance(details, dict) else None
        places = []
        for logic, items in hosted.items() if isinstance(hosted, dict) else ():
            mapped = [_mapped(item) for item in items if isinstance(item, dict)] if isinstance(items, list) else []
            places.append(f"{logic} is {', then '.join(mapped)}" if mapped else f"{logic} is not mapped")
        total = details.get("totalQueues") if isinstance(details, dict) else None
        named = f": {'; '.join(places[:_SHOWN])}{f'; and {len(places) - _SHOWN} more' if len(places) > _SHOWN else ''}" if places else ""
        yield (
            f"static topic {topic}: queues and offsets are those of the files here, while clients count {total} logic queues over all "
            f"brokers{named}; what the other brokers have is not known"
        )


def _mapped(item: dict[str, object]) -> str:
    """Return the queue that a logic one is, from an offset on; that is -1 on the broker from which it has moved."""
    offset = item.get("logicOffset")
    begins = f", from {offset} on" if isinstance(offset, int) and offset >= 0 else ""
    return f"queue {item.get('queueId')} of {item.get('bname')}{begins}"


def _group_of_brokers(directory: ReadOnlyDirectory) -> Iterator[str]:
    """Yield what the files of a controller's group say, and what they cannot."""
    for path in filter(directory.is_directory, (IDENTITY, EPOCHS)):
        yield f"the group of brokers of a controller: {path} cannot be read, it is a directory"
        return
    identity = (directory.read(IDENTITY, _LIMIT) or b"").decode("utf-8", "replace").split("#")
    if len(identity) == 3:
        yield f"the group of brokers of a controller: this is broker {identity[2]} of {identity[1]} in cluster {identity[0]} ({IDENTITY})"
    elif identity != [""]:
        yield f"the group of brokers of a controller: {IDENTITY} is not a cluster, a broker's name and a number"
    raw = directory.read(EPOCHS, _LIMIT)
    if raw is None:
        return
    epochs = read_epochs(raw)
    if epochs is None:
        yield f"the epochs of a controller: {EPOCHS} is damaged, its checksum or its lines are wrong; a broker falls back on its .bak"
        return
    last = f", the last one, {epochs[-1][0]}, from physical offset {epochs[-1][1]}" if epochs else ""
    yield f"the epochs of a controller ({EPOCHS}): {len(epochs)}{last}; what the other brokers of the group have is not known"


def read_epochs(raw: bytes) -> list[tuple[int, int]] | None:
    """Return (epoch, physical offset of its start) of a file of epochs; None if it is damaged: number of lines, CRC of them, lines.

    >>> read_epochs(b"3\\n1786556340\\n1-0\\n2-1000\\n5-5180\\n"), read_epochs(b"1\\n1786556340\\n1-0\\n")
    ([(1, 0), (2, 1000), (5, 5180)], None)
    """
    number, crc, lines = (*raw.split(b"\n", 2), b"", b"")[:3]
    pairs = [line.split(b"-") for line in lines.split()]
    if number.strip() != b"%d" % len(pairs) or crc.strip() != b"%d" % (zlib.crc32(lines) & 0x7FFFFFFF):
        return None
    if not all(len(pair) == 2 and pair[0].isdigit() and pair[1].isdigit() for pair in pairs):
        return None
    return [(int(epoch), int(start)) for epoch, start in pairs]


def unread_parts(directory: ReadOnlyDirectory, databases: Databases) -> list[str]:
    """Return the parts that a store has, by name."""
    parts: list[str] = []
    parts += compacted_topics(directory)
    tiered = _tiered(directory)
    if tiered is not None:
        parts.append(tiered)
    pops = databases.open(KV_PLACE)
    if holds(directory, KV_PLACE, ".sst", ".log") and (pops is None or pops.family(POP_FAMILY) is None):
        parts.append(f"messages that pop consumers have in hand, in RocksDB ({KV_PLACE})")
    parts += [*static_topics(directory), *_group_of_brokers(directory)]
    ledger = second_log(directory)
    if ledger is not None:
        parts.append(f"the log of a DLedger group beside the commit log ({ledger})")
    parts += [f"{name}: {why}" for path, name in _DATABASES if (why := databases.why_unread(path)) is not None]
    return list(dict.fromkeys(parts))


# Directories of a store that cannot be listed: no permission, a link that leads nowhere or in a circle, a file in their place.
#
#     commitlog/           must be listed: without it there is no store to speak of
#     consumequeue/T/Q/    one of them is a finding, and what is in it is neither damaged nor missing: it is not known
#
# `StoreFiles` reads the rest of the store.


def unread_directories(directory: ReadOnlyDirectory) -> Iterator[Damage]:
    """Yield a finding for each place of a directory that is not read. The queues' own directories must have been listed before."""
    for directory_path in (*_PLACES, *_NOT_DERIVED):
        if directory.has_entry(directory_path) and not directory.is_directory(directory_path) and directory_path not in directory.unlisted:
            advice = "" if directory_path in _NOT_DERIVED else ", or rebuild it from the log"
            yield Damage(directory_path, 0, 0, Kind.UNREADABLE, f"{_NOT_A_DIRECTORY}{advice}")
    for path in _FILES:
        if directory.is_directory(path):
            yield Damage(path, 0, 0, Kind.UNREADABLE, "a directory in the place of a file: move it away")
    for directory_path in _QUEUES:
        for topic in directory.entries(directory_path):
            own = f"{directory_path}/{topic.name}"
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
