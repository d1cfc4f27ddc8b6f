"""Parts of a store that are recognised and not read: what they are, and how a store shows that it has them.

    ledger = second_log(directory)
    if ledger is not None:
        found.append(f"the log of a DLedger group beside the commit log ({ledger})")
    consumequeue/CURRENT      consume queues in RocksDB, if the database is not read
    compaction/               compaction topics

What is not read is never called damaged, and never said to be missing.
"""

from __future__ import annotations

from mqstore.files import ReadOnlyDirectory
from mqstore.rocketmq.config.rocksdb_config import GROUPS, OFFSETS, TOPICS, V2
from mqstore.rocketmq.format.dledger_log import second_log
from mqstore.rocketmq.store.databases import QUEUE_PLACES, Databases

__all__ = ["unread_parts"]

_PLACES = (
    ("compaction/position-checkpoint", "compaction topics"),
    ("tiered_index_file", "tiered storage"),
    ("config/tieredStoreMetadata.json", "tiered storage"),
    ("kvStore", "state kept in RocksDB (kvStore)"),
)
_DATABASES = (
    *((place, "consume queues in RocksDB (storeType=defaultRocksDB)") for place in QUEUE_PLACES),
    (TOPICS, "topics kept in RocksDB"),
    (GROUPS, "subscription groups kept in RocksDB"),
    (OFFSETS, "consumer offsets kept in RocksDB"),
    (V2, "configuration kept in RocksDB"),
)


def unread_parts(directory: ReadOnlyDirectory, databases: Databases) -> list[str]:
    """Return the parts that a store has, by name."""
    found = [name for place, name in _PLACES if directory.exists(place)]
    ledger = second_log(directory)
    if ledger is not None:
        found.append(f"the log of a DLedger group beside the commit log ({ledger})")
    found += [f"{name}: {why}" for place, name in _DATABASES if (why := databases.why_unread(place)) is not None]
    return list(dict.fromkeys(found))
