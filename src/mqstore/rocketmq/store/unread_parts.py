"""Parts of a store that are recognised and not read: what they are, and how a store shows that it has them.

    ledger = second_log(directory)
    if ledger is not None:
        found.append(f"the log of a DLedger group beside the commit log ({ledger})")
    consumequeue/CURRENT      consume queues in RocksDB, if the database is not read
    compaction/compactionLog  compaction topics; every 5.5.0 broker has compaction/position-checkpoint, be it for none

What is not read is never called damaged, and never said to be missing.
"""

from __future__ import annotations

import json

from mqstore.files import ReadOnlyDirectory
from mqstore.rocketmq.config.rocksdb_config import GROUPS, OFFSETS, TOPICS, V2
from mqstore.rocketmq.format.dledger_log import second_log
from mqstore.rocketmq.store.databases import QUEUE_PLACES, Databases

__all__ = ["unread_parts"]

_PLACES = (
    ("compaction/compactionLog", "compaction topics"),
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


def unread_parts(directory: ReadOnlyDirectory, databases: Databases) -> list[str]:
    """Return the parts that a store has, by name."""
    found = [name for place, name in _PLACES if directory.exists(place)]
    if _has_compacted_queues(directory):
        found.append("compaction topics")
    ledger = second_log(directory)
    if ledger is not None:
        found.append(f"the log of a DLedger group beside the commit log ({ledger})")
    found += [f"{name}: {why}" for place, name in _DATABASES if (why := databases.why_unread(place)) is not None]
    return list(dict.fromkeys(found))
