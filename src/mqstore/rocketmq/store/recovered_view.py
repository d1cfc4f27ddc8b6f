"""The recovered view: what a broker would answer after loading a directory, with nothing written.

`recovery.broker_recovery.Recovery` does what the broker does; this view shows its memory afterwards: records up to the truncation
point, and queues and index files as the broker would hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from mqstore.files.rocksdb import RocksDatabase
from mqstore.findings import Damage
from mqstore.rocketmq.dispatch.index_image import IndexImage
from mqstore.rocketmq.format.profile import Profile, profile
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.format.rocksdb_queue import listed_until, readers
from mqstore.rocketmq.query.index_search import scanned_index
from mqstore.rocketmq.recovery.broker_recovery import LogFile, Recovery, RocksRecovery
from mqstore.rocketmq.store.databases import QUEUE_PLACE, STORE_TYPE
from mqstore.rocketmq.store.disk_view import BaseView
from mqstore.rocketmq.store.message_table import table
from mqstore.rocketmq.store.store_files import StoreFiles
from mqstore.rocketmq.store.view import QueueView
from mqstore.table.columns import ROCKETMQ_COLUMNS, Selection, check_columns

if TYPE_CHECKING:
    import pyarrow as pa


def recover(files: StoreFiles, version: str | None = None, *, unclean: bool | None = None) -> RecoveredView:
    """Return what a broker would have after load and start. version: of the broker; by default what the files suggest.

    unclean: its last exit; by default, whether `abort` exists. Raises UsageError, and RefusedError if the broker would not start.
    """
    broker = files.evidence.profile if version is None else profile(version)
    database = _queue_database(files) if broker.recovered_files is not None else None
    release: Profile | None = broker
    make: Callable[..., Recovery] = Recovery
    if database is not None:
        make = partial(RocksRecovery, readers(files.directory, database)[0], listed_until(database) or 0)
    elif broker.recovered_files is not None and files.queue_database is None and files.config.store_type == STORE_TYPE:
        make = partial(RocksRecovery, (), 0)  # the broker makes a new one
    elif files.queue_database is not None:
        release = None  # what the database lists of older log files is not known: all of the log is listed
    recovery = make(
        files.directory,
        files.log,
        files.index_files(),
        files.checkpoint,
        files.config,
        files.rules(version),
        broker.rules,
        unclean=files.unclean if unclean is None else unclean,
        of=release,
    )
    recovery.load()
    recovery.start()
    if files.queue_database is not None and database is None:
        recovery.notes.append(
            f"the database of queues ({files.queue_database}) is not used: the queues are those of the whole log, as if it listed all of it"
        )
    return RecoveredView(files, recovery, broker)


def _queue_database(files: StoreFiles) -> RocksDatabase | None:
    """Return the database that the broker's recovery goes on with; None without one, or if it cannot be read as it is."""
    if files.queue_database != QUEUE_PLACE or files.stored_queues.unread is not None:
        return None
    database = files.databases.open(QUEUE_PLACE)
    return database if database is not None and not database.repaired and not database.faults else None


class RecoveredView(BaseView):
    """A broker's memory after load and start. notes: what the broker gave up or skipped, a sentence each.

    profile: of the broker. version: whose rules it follows, `4.9.3` or `5.3.3`.
    """

    name = "recovered"

    def __init__(self, files: StoreFiles, recovery: Recovery, of: Profile) -> None:
        super().__init__(files)
        self._recovery = recovery
        self.profile = of
        self.version = recovery.version
        self.notes: tuple[str, ...] = tuple(recovery.notes)

    @property
    def _all_queues(self) -> Sequence[QueueView]:
        return [queue for queue in self._recovery.queues.values() if queue.exists]

    def log_range(self) -> tuple[int, int]:
        """Return the minimum and maximum physical offset."""
        return max(0, self._recovery.log_min), self._recovery.log_max

    @property
    def files(self) -> Sequence[LogFile]:
        """The log files that recovery keeps, each up to the bytes that count."""
        return self._recovery.log_files

    def log_files(self) -> Sequence[str]:
        """Return the names of the log files that recovery keeps."""
        return [file.file.name for file in self._recovery.log_files]

    def batches(
        self,
        columns: Sequence[str] = ROCKETMQ_COLUMNS,
        selection: Selection = Selection(),
        *,
        milliseconds: bool = False,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the message table in physical order. Arguments as in `View.batches`."""
        low, high = self.log_range()
        return table(
            self.log, low, high, check_columns(columns), selection, self.queue_lookup, milliseconds=milliseconds, on_damage=on_damage
        )

    def index_files(self) -> Sequence[IndexImage]:
        """Return the index files, oldest first."""
        if self._recovery.index is None:
            return []
        unclean, point = self._recovery.unclean, self._files.checkpoint.index
        if all(unclean and file.header.end_timestamp > point for file in self._files.unread_index):
            return self._recovery.index.files
        return self._scanned

    @cached_property
    def _scanned(self) -> Sequence[IndexImage]:
        """An index made from the log, which answers for a file that recovery keeps, and of which the geometry is not known."""
        return scanned_index(self.log, *self.log_range(), self._recovery.rules)

    def record(self, physical_offset: int) -> Record | None:
        """Return the valid record at a physical offset, or None."""
        low, high = self.log_range()
        return self.log.record(physical_offset) if low <= physical_offset < high else None
