"""Parts of a store that are recognised and not read: what they are, and how a store shows that it has them.

    consumequeue/CURRENT      consume queues in RocksDB: which messages they list
    config/consumerOffsets    consumer offsets in RocksDB

What is not read is never called damaged, and never said to be missing.
"""

from __future__ import annotations

from mqstore.files import ReadOnlyDirectory

__all__ = ["offsets_in_rocksdb", "queues_in_rocksdb", "unread_parts"]

_PLACES = (
    ("consumequeue/CURRENT", "consume queues in RocksDB (storeType=defaultRocksDB)"),
    ("consumequeue_rocksdb/CURRENT", "consume queues in RocksDB (storeType=defaultRocksDB)"),
    ("timerwheel", "the timer wheel (messages with arbitrary delay wait in topic rmq_sys_wheel_timer)"),
    ("compaction/position-checkpoint", "compaction topics"),
    ("tiered_index_file", "tiered storage"),
    ("config/tieredStoreMetadata.json", "tiered storage"),
    ("kvStore", "state kept in RocksDB (kvStore)"),
    ("config/rdb", "configuration kept in RocksDB"),
    ("config/consumerOffsets", "consumer offsets kept in RocksDB"),
)


def unread_parts(directory: ReadOnlyDirectory) -> list[str]:
    """Return the parts that a store has, by name."""
    return list(dict.fromkeys(name for place, name in _PLACES if directory.exists(place)))


def queues_in_rocksdb(directory: ReadOnlyDirectory) -> str | None:
    """Return the directory of the RocksDB database that holds the consume queues; None if they are files, or both."""
    if directory.exists("consumequeue/CURRENT"):
        return "consumequeue"
    separate = directory.exists("consumequeue_rocksdb/CURRENT")
    return "consumequeue_rocksdb" if separate and not any(entry.is_directory for entry in directory.entries("consumequeue")) else None


def offsets_in_rocksdb(directory: ReadOnlyDirectory) -> str | None:
    """Return the directory of the RocksDB database that holds the consumer offsets, if a file of JSON is not there."""
    if directory.exists("config/consumerOffset.json"):
        return None
    return next((place for place in ("config/consumerOffsets", "config/rdb") if directory.exists(f"{place}/CURRENT")), None)
