"""Which version's broker wrote a store last, as far as its files show it, and by which of them.

Nothing in a store states the version. Files, fields and forms of bytes that only later versions write do; without any of them the
oldest version that fits is suggested; a later broker may have written the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.rocketmq.config.consumer_offset_file import OffsetTable
from mqstore.rocketmq.config.topic_config import TopicsConfig
from mqstore.rocketmq.format.checkpoint import Checkpoint
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.format.profile import Profile, profile

_V5_ONLY = (
    "abort.bak",
    "timerwheel",
    "timerlog",
    "compaction",
    "batchconsumequeue",
    "rocksdbstore",
    "config/timercheck",
    "config/topicQueueMapping.json",
)


class Signs(Protocol):
    """The parts of a store that show its version."""

    @property
    def directory(self) -> ReadOnlyDirectory: ...
    @property
    def log(self) -> CommitLog: ...
    @property
    def checkpoint(self) -> Checkpoint: ...
    @property
    def topics(self) -> TopicsConfig: ...
    @property
    def offset_table(self) -> OffsetTable: ...
    @property
    def queue_database(self) -> str | None: ...
    @property
    def offset_database(self) -> str | None: ...
    @property
    def indexes_tags(self) -> bool: ...


class Evidence(NamedTuple):
    """The profile that the files suggest, and what in them does."""

    profile: Profile
    why: str


def evidence(store: Signs) -> Evidence:
    """Return what the files suggest."""
    why = next(_v5(store), None)
    if why is None:
        return Evidence(profile("4.9.3"), "nothing in the store is written by 5.x only")
    if store.checkpoint.logics_physical_offset > 0:
        return Evidence(profile("5.5.0"), "the checkpoint has a sixth field, which 5.5.0 writes")
    if store.directory.exists("rocksdbstore"):
        return Evidence(profile("5.4.0"), "there is a directory rocksdbstore, which 5.4.0 and later make")
    if store.indexes_tags:
        return Evidence(profile("5.4.0"), "the index has entries of tags, which 5.4.0 and later write")
    return Evidence(profile("5.3.3"), why)


def written_by_5(store: Signs) -> bool:
    """Return whether anything in a store is written by 5.x only."""
    return next(_v5(store), None) is not None


def _v5(store: Signs) -> Iterator[str]:
    """Yield what in a store is written by 5.x only, the cheapest to find first."""
    point = store.checkpoint
    if point.confirm_physical_offset > 0 or point.master_flushed_offset > 0:
        yield "the checkpoint has fields that 5.x writes"
    for place in _V5_ONLY:
        if store.directory.exists(place):
            yield f"there is {place}, which 5.x makes"
    if store.queue_database is not None or store.offset_database is not None:
        yield "queues or offsets are in RocksDB, which 5.x can do"
    if store.topics.of_5 or store.offset_table.of_5:
        yield "the configuration has properties that 5.x writes"
    if _abort_has_content(store):
        yield "the file abort has contents, which 5.x writes"
    if _newest_file_is_of_5(store):
        yield "the first record of the newest log file has a form that 5.x writes"
    if store.indexes_tags:
        yield "the index has entries of tags, which 5.4.0 and later write"


def _abort_has_content(store: Signs) -> bool:
    try:
        return bool(store.directory.read("abort", 64))
    except CannotOpenError:
        return False  # that it exists is all that counts for a broker


def _newest_file_is_of_5(store: Signs) -> bool:
    """Return whether the first record of the newest written log file has version 2, or properties that end as 5.3 writes them.

    4.3 to 4.7 end them in the same way. Beside a checkpoint, a 5.x broker has left further signs, so that without any it was one of these.
    """
    number = store.log.last_written()
    if number < 0:
        return False
    file = store.log.files[number]
    message = store.log.record(file.start + store.log.header_size)
    if message is None:
        return False
    return message.version == 2 or (message.properties.endswith(b"\x02") and not store.checkpoint.exists)
