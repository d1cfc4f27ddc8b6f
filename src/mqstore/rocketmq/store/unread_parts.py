"""Parts of a store that are recognised and not read: what they are, and how a store shows that it has them.

    consumequeue/CURRENT      consume queues in RocksDB: which messages they list
    dledger-NAME/data         the log as DLedger keeps it: every message
    config/consumerOffsets    consumer offsets in RocksDB

What is not read is never called damaged, and never said to be missing.
"""

from __future__ import annotations

from mqstore.files import ReadOnlyDirectory

__all__ = ["dledger_log", "offsets_in_rocksdb", "queues_in_rocksdb", "unread_parts"]

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
    found = [name for place, name in _PLACES if directory.exists(place)]
    ledger = dledger_log(directory)
    if ledger is not None:
        found.append(f"the log, which DLedger keeps in {ledger}")
    return list(dict.fromkeys(found))


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


def dledger_log(directory: ReadOnlyDirectory) -> str | None:
    """Return the directory that holds the log if DLedger keeps it; None if there is a commit log."""
    if any(entry.is_file for entry in directory.entries("commitlog")):
        return None
    places = (f"{entry.name}/data" for entry in directory.entries() if entry.is_directory and entry.name.startswith("dledger-"))
    return next((place for place in places if directory.is_directory(place)), None)
