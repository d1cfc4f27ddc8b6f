"""Parts of a store that are recognised and not read: what they are, and how a store shows that it has them.

    consumequeue/CURRENT      consume queues in RocksDB: which messages they list
    config/consumerOffsets    consumer offsets in RocksDB
    dledger-NAME/data         beside a commit log: what the broker stored since it is in a group

What is not read is never called damaged, and never said to be missing.
"""

from __future__ import annotations

from mqstore.files import ReadOnlyDirectory
from mqstore.rocketmq.format.dledger_log import second_log

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
    found = [name for place, name in _PLACES if directory.exists(place)]
    ledger = second_log(directory)
    if ledger is not None:
        found.append(f"the log of a DLedger group beside the commit log ({ledger})")
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
