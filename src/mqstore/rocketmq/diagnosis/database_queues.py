"""Queues in RocksDB at the start of a broker: whether it starts on the database, and what it makes of the queues.

As 5.5.0 does it, seen with its real store on each of these states:

    a table, the manifest or CURRENT is missing, cut,     the broker does not start
    or not what it should be
    the bounds of the queues (family `offset`) cannot     the broker does not start
    be read
    entries cannot be read                                cannot be determined: it starts, and fails at some reads
    damage in the write-ahead log                         harmless: entries are written without it
    no directory, or one without a database               the broker makes a new one, and lists the log in it

Other databases: `rocksdbstore` never keeps a broker from starting; those below `config/` have not been tried with damage.

Format: docs/formats/rocketmq.md, section 4.11.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mqstore.diagnosis import Evidence
from mqstore.errors import UnsupportedError
from mqstore.files.rocksdb import RocksDatabase
from mqstore.rocketmq.config.rocksdb_config import GROUPS, OFFSETS, TOPICS, V2
from mqstore.rocketmq.dispatch.rocksdb_queue_image import RocksQueueImage
from mqstore.rocketmq.format.profile import Profile
from mqstore.rocketmq.format.rocksdb_queue import MAX_GAP, RocksQueueReader, listed_until, readers
from mqstore.rocketmq.recovery.broker_recovery import Recovery, RocksRecovery
from mqstore.rocketmq.store.databases import INDEX_PLACE, QUEUE_PLACE, STORE_TYPE
from mqstore.rocketmq.store.store import RocketMQStore

BESIDE = "consumequeue_rocksdb"
RULES = "5.5.0"  # the release whose real store was compared
PART = 65536  # entries that are read at once


def keeps_queues_in_database(store: RocketMQStore) -> bool:
    """Return whether the broker of a store keeps its queues in RocksDB, by its files or its configuration."""
    return store.queue_database is not None or store.config.store_type == STORE_TYPE


class DatabaseQueues:
    """The database of queues of a store, as a broker opens it. obstacle: what keeps the broker from starting; None if nothing does."""

    def __init__(self, store: RocketMQStore, of: Profile) -> None:
        """Raises UnsupportedError if it cannot be determined what a broker makes of the database."""
        self._store = store
        self.obstacle: Evidence | None = None
        self.readers: tuple[RocksQueueReader, ...] = ()
        self.listed = 0
        self.is_new = False
        where = f"the consume queues of {store.path} are in a RocksDB database ({QUEUE_PLACE})"
        if not of.has_databases:
            raise UnsupportedError(f"{where}: what a {of.version} broker makes of it is not known; `--for {RULES}` asks about that version")
        if store.databases.exists(BESIDE) or (store.queue_database is not None and _has_files(store)):
            raise UnsupportedError(
                f"{store.path} has consume queues as files and in a RocksDB database: what a broker makes of both cannot be determined; "
                "`mqstore verify` checks them"
            )
        if store.directory.has_entry(QUEUE_PLACE) and not store.directory.is_directory(QUEUE_PLACE):
            self.obstacle = Evidence(
                "bad-database", QUEUE_PLACE, "a file has the place of the database of queues: the broker does not start"
            )
        elif store.databases.exists(QUEUE_PLACE):
            self._open(where)
        else:
            self.is_new = True

    def _open(self, where: str) -> None:
        databases = self._store.databases
        database = databases.open(QUEUE_PLACE)
        unread = databases.why_unread(QUEUE_PLACE)
        if database is None and not any(item.file == QUEUE_PLACE for item in databases.findings()):
            raise UnsupportedError(f"{where}, which is not read, so that it cannot be determined what a broker makes of it: {unread}")
        if database is None or database.repaired:
            fault = unread if database is None else "; ".join(database.faults[:3])
            sentence = f"the database of queues cannot be opened: the broker does not start ({fault})"
            self.obstacle = Evidence("bad-database", QUEUE_PLACE, sentence)
            return
        self._read(database, where)

    def _read(self, database: RocksDatabase, where: str) -> None:
        bounds = database.family("offset")
        faults: list[str] = []
        for _ in bounds.items(on_fault=faults.append) if bounds is not None else ():
            pass
        if faults:
            sentence = f"the bounds of the queues cannot be read: the broker does not start ({faults[0]})"
            self.obstacle = Evidence("bad-database", QUEUE_PLACE, sentence)
            return
        before = len(database.faults)
        self.readers, _ = readers(self._store.directory, database)  # also entries of removed records: the broker finds the minimum
        for reader in self.readers:
            for start in range(reader.min_offset, reader.max_offset, PART):
                reader.entries(start, start + PART)
        if len(database.faults) > before:
            raise UnsupportedError(
                f"{where}, of which entries cannot be read: what a broker makes of it cannot be determined ({database.faults[before]}); "
                f"`mqstore rebuild {self._store.path} --to {self._store.path}.new --queues rocksdb` lists the log again"
            )
        self.listed = listed_until(database) or 0
        self.is_new = not self.readers

    def recovery(self, *arguments: Any, **options: Any) -> RocksRecovery:
        """Return the load of a broker, which is yet to be run. arguments, options: those of `Recovery`."""
        return RocksRecovery(self.readers, self.listed, *arguments, **options)

    def changes(self) -> Iterator[str]:
        """Yield what the broker does to the database when it starts."""
        if self.is_new:
            unlisted = "" if self._store.unclean or self._store.log.start else ", except its first message"
            yield f"makes a new database of queues in {QUEUE_PLACE}, and lists the log in it{unlisted}"

    def unknown(self, recovery: Recovery) -> Iterator[str]:
        """Yield what is not known of the queues after the start."""
        store = self._store
        reach = max((file.end_physical_offset for file in store.index_files() if file.header.index_count > 1), default=-1)
        if store.database_index is not None:
            reach = max(reach, store.database_index.last_offset or -1)
        if reach >= max(recovery.log_max, self.listed) and store.log.record(reach) is None:
            yield (
                f"how many messages the log has lost after {recovery.log_max}: the index has entries up to {reach}, and no queue lists them"
            )
        for image in recovery.queues.values():
            if isinstance(image, RocksQueueImage) and image.apart:
                yield (
                    f"what a broker makes of queue {image.queue_id} of topic {image.topic!r}: the queue offsets of {image.apart} messages "
                    f"are more than {MAX_GAP:,} from the others"
                )
        if recovery.log_max < self.listed and not store.unclean:
            yield (
                "whether a queue loses one message more: the log is cut, and the broker searches the database for the new end of each "
                "queue, which it may set one entry too low"
            )


def _has_files(store: RocketMQStore) -> bool:
    return any(entry.is_directory for entry in store.directory.entries(QUEUE_PLACE))


def require_configuration(store: RocketMQStore) -> None:
    """Raise UnsupportedError if a database of topics, groups or offsets is damaged or not read: whether a broker starts is not known."""
    for path in (TOPICS, GROUPS, OFFSETS, V2):
        database = store.databases.open(path)
        unread = store.databases.why_unread(path)
        for family in () if database is None else database.families.values():
            for _ in family.items():
                pass
        fault = unread if unread is not None else None if database is None else database.torn or next(iter(database.faults), None)
        if fault is not None:
            state = "is damaged" if unread is None else "is not read"
            raise UnsupportedError(
                f"it cannot be determined whether a broker starts on {store.path}: {path} is a RocksDB database, which {state}: {fault}"
            )


def unknown_of_index(store: RocketMQStore) -> Iterator[str]:
    """Yield a sentence for an index in RocksDB, which keeps no broker from starting."""
    if store.database_index is not None or store.unread_index_sentence is not None:
        yield f"which messages key queries find: there is an index in RocksDB ({INDEX_PLACE}), which is not compared with the log"
