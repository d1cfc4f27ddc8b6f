"""The RocksDB databases of a store: opened when first asked for, each once; why one is not read, and its faults.

    consumequeue            consume queues, if the broker keeps them in RocksDB only
    consumequeue_rocksdb    the same beside consumequeue/, which has them as files
    config/topics, config/subscriptionGroups, config/consumerOffsets, config/rdb
    rocksdbstore            index, timers and transactions
    kvStore                 messages that pop consumers have in hand

What is not read is never called damaged, and never said to be missing.

Format: docs/formats/rocketmq.md, sections 4.11, 5.10 and 11.2.
"""

from __future__ import annotations

from collections.abc import Iterator

from mqstore.files import ReadOnlyDirectory
from mqstore.files.rocksdb import RocksDatabase, UnreadDatabaseError, is_database, is_installed
from mqstore.findings import Damage, Kind

STORE_TYPE = "defaultRocksDB"  # storeType of a broker that keeps its queues in one
QUEUE_PLACE = "consumequeue"  # where the database is all that the broker has
QUEUE_PLACES = (QUEUE_PLACE, "consumequeue_rocksdb")
INDEX_PLACE = "rocksdbstore"
KV_PLACE, POP_FAMILY = "kvStore", "popState"
INSTALL = "`pip install 'mqstore[rocksdb]'` installs what reads it"


class Databases:
    """The databases of one store directory."""

    def __init__(self, directory: ReadOnlyDirectory) -> None:
        self._directory = directory
        self._opened: dict[str, RocksDatabase | None] = {}
        self._unread: dict[str, str] = {}
        self._damaged: list[Damage] = []

    def exists(self, place: str) -> bool:
        """Return whether a directory is that of a database."""
        return is_database(self._directory, place)

    def open(self, place: str) -> RocksDatabase | None:
        """Return a database; None if there is none, or it is not read."""
        if place not in self._opened:
            self._opened[place] = self._try(place) if self.exists(place) else None
        return self._opened[place]

    def _try(self, place: str) -> RocksDatabase | None:
        if not is_installed():
            self._unread[place] = INSTALL
            return None
        try:
            return RocksDatabase(self._directory, place)
        except UnreadDatabaseError as error:
            self._unread[place] = str(error)
            self._damaged.append(Damage(place, 0, 0, Kind.BAD_DATABASE, str(error)))
        return None

    def why_unread(self, place: str) -> str | None:
        """Return why a database is not read; None if it is read, or there is none."""
        self.open(place)
        return self._unread.get(place)

    def findings(self) -> Iterator[Damage]:
        """Yield what is wrong with the files of the databases, as far as they have been read."""
        yield from self._damaged
        for place, database in self._opened.items():
            for fault in database.faults if database is not None else ():
                yield Damage(place, 0, 0, Kind.BAD_DATABASE, f"not all of the database can be read: {fault}")

    def torn(self) -> Iterator[tuple[str, str]]:
        """Yield (place, what the library says) of each database whose write-ahead log ends in an incomplete record."""
        for place, database in self._opened.items():
            if database is not None and database.torn is not None:
                yield place, database.torn
