"""The files of a RocketMQ store: the one place that knows which files make up a store.

Opening reads names, sizes and the small configuration files; logs, queues and index files are mapped when they are first used.
Nothing in the directory is changed, locked or created.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Self

from mqstore.errors import CannotOpenError, UnsupportedError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.archive import UnpackedArchive
from mqstore.files.directory_views import AliasDirectory, MountedDirectory, MountedPath, SingleFile
from mqstore.files.location import Location, Url, as_location
from mqstore.files.rocksdb import Family
from mqstore.findings import Damage, Kind
from mqstore.repair.changed_directory import ChangedDirectory
from mqstore.rocketmq.config import broker_config, fastjson, rocksdb_config
from mqstore.rocketmq.config.broker_config import BrokerConfig
from mqstore.rocketmq.config.broker_paths import found_beside, log_paths, with_configured_log
from mqstore.rocketmq.config.consumer_offsets import CONSUMER_OFFSETS, DELAY_OFFSETS, OffsetTable, load_offset_table
from mqstore.rocketmq.config.rocksdb_config import GROUPS, OFFSETS, TOPICS, V2, json_version
from mqstore.rocketmq.config.topic_table import GROUPS_FILE, TOPICS_FILE, TopicsConfig, load_topics_config
from mqstore.rocketmq.dispatch.dispatcher import LMQ_PREFIX, DispatchRules, TagKeys, parse_delays
from mqstore.rocketmq.dispatch.index_image import IndexImage
from mqstore.rocketmq.format import checkpoint as checkpoints
from mqstore.rocketmq.format import consume_queue, index_file
from mqstore.rocketmq.format.batch_consume_queue import BatchQueueReader
from mqstore.rocketmq.format.checkpoint import Checkpoint
from mqstore.rocketmq.format.consume_queue import ConsumeQueueReader
from mqstore.rocketmq.format.consume_queue_ext import ConsumeQueueExt
from mqstore.rocketmq.format.dledger_log import DLedgerLog, open_log, refuse_dledger
from mqstore.rocketmq.format.index_file import IndexFile, UnreadIndex
from mqstore.rocketmq.format.log_file import named_start, open_place
from mqstore.rocketmq.format.profile import VERSIONS, Profile, profile, version_rules
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.format.rocksdb_queue import RocksQueueReader, readers
from mqstore.rocketmq.format.rocksdb_store import HALF_MESSAGES_FAMILY, TIMELINE_FAMILY, HalfMessages, RocksIndex, Timeline
from mqstore.rocketmq.query.index_search import scanned_index
from mqstore.rocketmq.store.compacted import COMPACTED_LOG
from mqstore.rocketmq.store.databases import INDEX_PLACE, QUEUE_PLACES, Databases
from mqstore.rocketmq.store.known_ranges import KnownRanges
from mqstore.rocketmq.store.unread_parts import REQUIRED, unread_directories, unread_parts
from mqstore.store import StorePlace
from mqstore.table.formatting import command, count

_ADDED_BY_5 = frozenset({"MSG_REGION", "TRACE_ON"})
_FURTHER_CONFIG = (DELAY_OFFSETS, "config/consumerFilter.json")  # that each broker loads, besides topics, groups and offsets
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


class StoreFiles:
    """The files of one store directory, as they are on disk. unclean: whether the broker that had the store did not exit cleanly.

    configured: whether a configuration was given; paths_config: the one that names paths, given or found beside the store.
    log_only: files of the log are all that was given, so that queues, index, configuration and shutdown are unknown, not missing;
    one_file: it is one.
    """

    family: ClassVar[Literal["rocketmq"]] = "rocketmq"
    config_path: Path | None = None  # of the broker's configuration file, if one was given
    known: KnownRanges | None = None  # of the log, where it is read several times

    def __init__(self, path: str | Location, *, config: BrokerConfig | None = None, keep: object = None) -> None:
        self.path = as_location(path)
        self.config = config if config is not None else BrokerConfig()
        self.configured = config is not None
        directory = open_place(path)  # with the mounts of a MountedPath
        self.one_file = isinstance(directory, SingleFile)
        self.log_only = self.one_file or isinstance(directory, AliasDirectory)
        beside = found_beside(directory.root) if config is None and type(directory) is ReadOnlyDirectory else None
        self.paths_config = beside or self.config
        self._read_from(with_configured_log(directory, self.paths_config))
        self.kept = keep  # keeps an unpacked archive as long as the store that reads it

    def _read_from(self, directory: ReadOnlyDirectory) -> None:
        self.directory = directory
        self.directory.tolerate_unlisted(*REQUIRED)
        if self.directory.has_entry("commitlog") and not self.directory.is_directory("commitlog"):
            self.directory.entries("commitlog")  # raises an error that says more
            raise CannotOpenError(
                f"{self.directory.path('commitlog')} is not a directory, or a link that leads to none; put the log there, or a link to it"
            )
        self.log = open_log(self.directory, self.config.commit_log_file_size)
        self.unclean = self.directory.exists("abort")

    def command(self, verb: str, *words: object) -> str:
        """Return the command line of a verb for this store, with the broker's configuration that was given."""
        given = () if self.config_path is None else ("--config", self.config_path)
        return command("mqstore", verb, self.path, *words, *given)

    def shown(self, path: Path | str) -> str:
        """Return a path as it is to be shown: one in an archive under its name."""
        return self.kept.named(str(path)) if isinstance(self.kept, UnpackedArchive) else str(path)

    def seen_in(self, directory: ReadOnlyDirectory) -> Self:
        """Return the same store as another directory shows it."""
        store = object.__new__(type(self))
        for name in ("path", "config", "configured", "log_only", "one_file", "paths_config", "config_path", "kept"):
            setattr(store, name, getattr(self, name))
        store._read_from(directory)
        if self.known is not None and isinstance(directory, ChangedDirectory) and directory.before is self.directory:
            store.known = self.known.after(directory.changes, self.log.queue.relative)
        return store

    def remembering(self, known: KnownRanges | None = None) -> Self:
        """Return the same store, which keeps what reads of its log give. known: what earlier ones gave of the same bytes."""
        if self.known is not None:
            return self
        store = copy(self)
        store.known = KnownRanges() if known is None else known
        return store

    @classmethod
    def at(cls, place: StorePlace, *, config: Path | None = None) -> Self:
        """Open the store at a place. config: the broker's configuration file."""
        store = cls(place.root, config=None if config is None else broker_config.load(config), keep=place.keep)
        store.path, store.config_path = place.path, config
        return store

    @property
    def place(self) -> str | Url:
        """The location of the store for a task: an absolute path (of what an archive was unpacked to), or a URL with its credentials."""
        if isinstance(self.path, Url):
            return self.path
        path = os.path.abspath(self.directory.root)
        return MountedPath(path, self.directory.mounts) if isinstance(self.directory, MountedDirectory) else path

    # the files

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint file."""
        return checkpoints.load(self.directory)

    @cached_property
    def databases(self) -> Databases:
        """The RocksDB databases."""
        return Databases(self.directory)

    @cached_property
    def topics(self) -> TopicsConfig:
        """The topic configuration."""
        return _topics(self.directory, self.databases)

    @cached_property
    def offset_table(self) -> OffsetTable:
        """The committed consumer offsets."""
        configured = self.config.enable_lmq
        return _offset_table(self.directory, self.databases, self.paths_config.enable_lmq if configured is None else configured)

    @cached_property
    def stored_queues(self) -> StoredQueues:
        """The consume queues, in files or in RocksDB, and which of them are there twice."""
        return _stored_queues(self.directory, self.databases, self.config.consume_queue_file_size, self.log.start)

    def consume_queues(self) -> Sequence[ConsumeQueueReader]:
        """Return all consume queues on disk, by topic and queue id."""
        return self.stored_queues.queues

    @cached_property
    def _batch_queues(self) -> tuple[BatchQueueReader, ...]:
        return tuple(
            BatchQueueReader(self.directory, topic, queue_id, file_size=self.config.batch_queue_file_size)
            for topic, queue_id in consume_queue.queues(self.directory, "batchconsumequeue")
        )

    def batch_queues(self) -> Sequence[BatchQueueReader]:
        """Return all batch queues on disk, by topic and queue id."""
        return self._batch_queues

    def all_queues(self) -> tuple[ConsumeQueueReader | BatchQueueReader, ...]:
        """Return the consume queues, then the batch queues."""
        return (*self.consume_queues(), *self._batch_queues)

    @cached_property
    def _index(self) -> index_file.IndexDirectory:
        return index_file.load(self.directory, slots=self.config.max_hash_slot_num, positions=self.config.max_index_num)

    def index_files(self) -> Sequence[IndexFile]:
        """Return the index files of known geometry, oldest first."""
        return self._index.files

    @cached_property
    def unread_directories(self) -> tuple[Damage, ...]:
        """Directories of queues, index and configuration that are not read, because they cannot be listed."""
        for queue in self.all_queues():
            queue.file_findings  # noqa: B018 - lists the queue's directory
        self.index_files()
        return tuple(unread_directories(self.directory))

    def require_directories(self) -> None:
        """Raise CannotOpenError if a directory cannot be listed: who writes must know everything that is there."""
        for item in self.unread_directories:
            raise CannotOpenError(f"{self.directory.path(item.file)} cannot be read: {item.detail}")

    @cached_property
    def unread_index(self) -> tuple[UnreadIndex, ...]:
        """The index files that have entries and an unknown geometry."""
        return tuple(file for file in self._index.unread if file.header.index_count > 1 or file.damaged)

    @cached_property
    def database_index(self) -> RocksIndex | None:
        """The index in RocksDB; None if there is none, it is empty, or it is not read."""
        family = self._index_family("default")
        index = RocksIndex(family) if family is not None else None
        return index if index is not None and index.last_offset is not None else None

    @property
    def has_unread_entries(self) -> bool:
        """Whether the database of index, timers and half messages is not read, and may have entries."""
        if self.databases.why_unread(INDEX_PLACE) is None:
            return False
        return any(file.size > 0 and file.name.endswith((".sst", ".log")) for file in self.directory.entries(INDEX_PLACE))

    @cached_property
    def unread_index_sentence(self) -> str | None:
        """The sentence for an index in RocksDB, or of one that was not given, which is not read; None if there is none, or it is read."""
        if self.log_only:
            return self.unread_sentence("index", "index")
        return self.unread_sentence("entries of an index", INDEX_PLACE) if self.has_unread_entries else None

    @cached_property
    def timeline(self) -> Timeline | None:
        """The timers in RocksDB; None if there are none, or they are not read."""
        family = self._index_family(TIMELINE_FAMILY)
        timeline = Timeline(family) if family is not None else None
        return timeline if timeline is not None and not timeline.is_empty() else None

    @cached_property
    def half_messages(self) -> HalfMessages | None:
        """The half messages in RocksDB; None if there are none, or they are not read."""
        family = self._index_family(HALF_MESSAGES_FAMILY)
        halves = HalfMessages(family) if family is not None else None
        return halves if halves is not None and not halves.is_empty() else None

    def _index_family(self, name: str) -> Family | None:
        database = self.databases.open(INDEX_PLACE)
        return database.family(name) if database is not None else None

    @cached_property
    def scanned_index(self) -> Sequence[IndexImage]:
        """An index of the whole log, made in memory, which answers for index files of unknown geometry."""
        return scanned_index(self.log, self.log.start, self.log.end(), self.rules())

    @cached_property
    def findings(self) -> tuple[Damage, ...]:
        """Damage found while listing the files and reading the small ones."""
        return (
            *self.unread_directories,
            *self.log.findings,
            *self._wrong_name(),
            *self._index.findings,
            *self._unread_ext_files(),
            *self.checkpoint.findings,
            *self.offset_table.findings,
            *self.topics.findings,
            *(item for relative in _FURTHER_CONFIG for item in fastjson.load(self.directory, relative).findings),
            *self.stored_queues.findings,
            *self.databases.findings(),
        )

    def _wrong_name(self) -> Iterator[Damage]:
        """Yield a finding if the one file of the log that was given has the name of another."""
        root = self.directory.root
        named = named_start(root) if self.one_file and isinstance(root, Path) else None
        if named is not None and named != self.log.start:
            sentence = f"the file is named {root.name}, but its records are those of {self.log.start:020d}: a broker would not read them"
            yield Damage(self.log.files[0].relative, 0, self.log.files[0].size, Kind.STRAY_FILE, sentence)

    def _unread_ext_files(self) -> Iterator[Damage]:
        """Yield a finding for each file of the extended consume queues that cannot be read."""
        size = self.config.consume_queue_ext_file_size
        for topic, queue_id in consume_queue.queues(self.directory, "consumequeue_ext"):
            findings = ConsumeQueueExt(self.directory, topic, queue_id, file_size=size).queue.findings
            yield from (item for item in findings if item.kind is Kind.UNREADABLE)

    @cached_property
    def unsupported(self) -> tuple[str, ...]:
        """Parts of the store that are recognised but not read, by name."""
        return (
            *unread_parts(self.directory, self.databases),
            *(
                f"compaction of topic {topic}"
                for topic in self.topics.compacted
                if not self.directory.is_directory(f"{COMPACTED_LOG}/{topic}")
            ),
            *(f"{file.relative}: {file.sentence}" for file in self.unread_index if not file.damaged),
        )

    @property
    def unread_queues(self) -> str | None:
        """The directory that holds the consume queues, if it is not read: it is a database, or was not given. None if they are read."""
        return "consumequeue" if self.log_only else self.stored_queues.unread

    def unread_sentence(self, what: str, place: str) -> str:
        """Return the sentence for a part of the store that is not read, and why. what: its name. place: the database that holds it."""
        if self.log_only:
            return f"{self.path} {self._given} of a log: the {what} of its store {'is' if what == 'index' else 'are'} not known"
        return f"the {what} of {self.path} are in a RocksDB database ({place}), which is not read: {self.databases.why_unread(place)}"

    @cached_property
    def bare_log(self) -> bool:
        """Whether there is a log and nothing else: what is derived from it was not lost, but not given."""
        others = (entry.name for entry in self.directory.entries() if entry.name not in ("commitlog", "lock"))
        return bool(self.log.files) and not any(others) and not self.log_only

    @property
    def dledger(self) -> str | None:
        """The directory that holds the log, if DLedger keeps it; None if there is a commit log."""
        return self.log.queue.relative if isinstance(self.log, DLedgerLog) else None

    def require_directory_for(self, action: str) -> None:
        """Raise UnsupportedError if files of the log are all that was given. action: what needs the store; it begins the sentence."""
        if self.log_only:
            named = "" if self.one_file else ", or one that has them in commitlog/ under the names that `mqstore inspect` gives"
            raise UnsupportedError(
                f"{action} needs the whole store, and {self.path} {self._given} of its log; give the directory of the store{named}"
            )

    @property
    def _given(self) -> str:
        """What there is of a log that was given alone, as the beginning of a predicate."""
        return "is one file" if self.one_file else f"has {count(len(self.log.files), 'file')}"

    def require_commit_log(self, action: str) -> None:
        """Raise UnsupportedError if DLedger keeps the log, or only files of it were given. action: what needs a commit log."""
        self.require_directory_for(action)
        refuse_dledger(self.directory, action)

    @cached_property
    def unread_offsets(self) -> str | None:
        """The place of the consumer offsets, if it is not read: a database, or not given. None if they are read."""
        if self.log_only:
            return CONSUMER_OFFSETS
        if self.directory.exists(CONSUMER_OFFSETS):
            return None
        return next((path for path in (OFFSETS, V2) if self.databases.why_unread(path) is not None), None)

    @property
    def queue_database(self) -> str | None:
        """The directory of the database that holds consume queues, read or not; None if they are files."""
        return next((path for path in QUEUE_PLACES if self.databases.exists(path)), None)

    @property
    def offset_database(self) -> str | None:
        """The directory of the database that holds the consumer offsets, read or not; None if they are a file."""
        return next((path for path in (OFFSETS, V2) if self.databases.exists(path)), None)

    @cached_property
    def version_hint(self) -> str:
        """The version whose rules the files suggest: `5.3.3` if anything exists that only 5.x writes, else `4.9.3`."""
        return VERSIONS[written_by_5(self)]

    @cached_property
    def evidence(self) -> Evidence:
        """The profile that the files suggest, and what in them does."""
        return _evidence(self)

    def rules(self, version: str | None = None) -> DispatchRules:
        """Return the broker settings that decide the contents of derived files: configured, or inferred from the directories.

        version: of the broker that dispatches; by default the one that wrote the store, as far as its files show.
        """
        asked = None if version is None else profile(version)
        follows = version_rules(self.version_hint if version is None else version)
        lmq = any(queue.topic.startswith(LMQ_PREFIX) for queue in self.consume_queues())
        multi = self.config.enable_multi_dispatch
        batch = {queue.topic for queue in self.batch_queues()} | set(self.topics.batch_topics) | set(self.config.batch_topics)
        return DispatchRules(
            delays=parse_delays(self.config.message_delay_level) if self.config.message_delay_level else parse_delays(),
            multi_dispatch=lmq if multi is None else multi,
            lmq=lmq if self.config.enable_lmq is None else self.config.enable_lmq,
            only_light_queues=follows.only_light_queues,
            batch_topics=frozenset(batch),
            index_tags=asked.indexes_tags if asked is not None else self.indexes_tags,
        )

    @cached_property
    def indexes_tags(self) -> bool:
        """Whether the broker indexes tags, too, as since 5.4.0: its newest entries decide, else files that only such a broker writes."""
        newest = TagKeys(self.log, self.index_files()).newest()
        return newest if newest is not None else self.checkpoint.logics_physical_offset > 0 or self.directory.exists("rocksdbstore")

    def tags_code_resolver(self, topic: str, queue_id: int) -> Callable[[int], int]:
        """Return a function from a stored tags code to the tags code itself: addresses are looked up in the extended queue."""
        ext = ConsumeQueueExt(self.directory, topic, queue_id, file_size=self.config.consume_queue_ext_file_size)
        return ext.tags_code


_MARKS = (
    "consumequeue",
    "index",
    "checkpoint",
    "config/consumerOffset.json",
    "config/topics.json",
    *(f"{place}/CURRENT" for place in (TOPICS, OFFSETS, V2)),
)
_OWN_MARKS = ("config/consumerOffset.json", "config/subscriptionGroup.json", "config/delayOffset.json")  # no other program has them


def looks_like_rocketmq(directory: ReadOnlyDirectory, *, log: bool = True) -> bool:
    """Return whether a directory looks like a RocketMQ store: it has a commit log, or what a broker keeps beside one.

    Of parts that another program may have, one is enough beside a configuration that says where the log is. log: whether a log is enough.
    """
    if log and directory.is_directory("commitlog"):
        return True
    marks = sum(map(directory.exists, _MARKS))
    own = any(directory.exists(mark) or directory.exists(f"{mark}.bak") for mark in _OWN_MARKS)
    return marks >= 2 or own or (marks == 1 and _configured_beside(directory))


def _configured_beside(directory: ReadOnlyDirectory) -> bool:
    """Return whether a configuration in a directory or beside it says where the log is."""
    beside = found_beside(directory.root) if type(directory) is ReadOnlyDirectory else None
    return beside is not None and bool(log_paths(beside, directory.root))


# The configuration of a store as its broker would load it: from JSON files, or from RocksDB databases.
#
# Of two tables, the one with the later data version counts, as at the start of a broker that changed from files to databases. Consumer
# offsets in a database have no data version: they count if there are any.


def _is_later(directory: ReadOnlyDirectory, relative: str, version: rocksdb_config.DataVersion | None) -> bool:
    """Return whether a file of JSON has a later data version than a database."""
    if not directory.exists(relative):
        return False
    stored = json_version(fastjson.load(directory, relative).value.get("dataVersion"))
    return stored is not None and version is not None and stored > version


def _topics(directory: ReadOnlyDirectory, databases: Databases) -> TopicsConfig:
    """Return the topics and groups of a store."""
    config = load_topics_config(directory)
    for path in (TOPICS, V2):
        database = databases.open(path)
        if database is not None:
            table = rocksdb_config.topics(database)
            if table.by_name and not _is_later(directory, TOPICS_FILE, table.version):
                config = replace(config, topics=table.by_name)
            config = replace(config, of_5=True, findings=(*config.findings, *table.findings))
    for path in (GROUPS, V2):
        database = databases.open(path)
        if database is not None:
            names = rocksdb_config.groups(database)
            if names.names and not _is_later(directory, GROUPS_FILE, names.version):
                config = replace(config, groups=names.names)
            config = replace(config, of_5=True, findings=(*config.findings, *names.findings))
    return config


def _offset_table(directory: ReadOnlyDirectory, databases: Databases, lmq: bool | None) -> OffsetTable:
    """Return the consumer offsets of a store. lmq: whether its broker runs with LMQ, None if that is not known."""
    offsets = load_offset_table(directory, lmq=lmq)
    for path in (OFFSETS, V2):
        database = databases.open(path)
        if database is not None:
            table = rocksdb_config.offsets(database)
            if table.offsets or table.unsplit or offsets.used is None:
                return table
            offsets = replace(offsets, findings=(*offsets.findings, *table.findings))
    return offsets


# The consume queues of a store: files, entries in a RocksDB database, or both side by side.
#
# With both (`CombineConsumeQueueStore`, or a change of `storeType`), the kind that reaches further into the log is the store's; of two that
# reach equally far, the files. A queue that only the other kind has belongs to the store, too. `second` are the queues of the other kind
# that the store has twice.


@dataclass(frozen=True, slots=True)
class StoredQueues:
    """queues, second: by topic and queue id. unread: the database that holds the queues and is not read; None if they are read.

    unread_beside: a database that is not read, of queues that the store also has as files.
    """

    queues: tuple[ConsumeQueueReader, ...]
    second: tuple[ConsumeQueueReader, ...] = ()
    findings: tuple[Damage, ...] = ()
    unread: str | None = None
    unread_beside: str | None = None


def _stored_queues(directory: ReadOnlyDirectory, databases: Databases, file_size: int | None, log_start: int) -> StoredQueues:
    """List the queues of a store. file_size: bytes of a queue file, if configured. log_start: physical offset of the log's start."""
    # a truncated file in a queue of one file is recognised by the file size of the other queues
    size = file_size or consume_queue.common_file_size(directory)
    files = tuple(ConsumeQueueReader(directory, topic, queue_id, file_size=size) for topic, queue_id in consume_queue.queues(directory))
    queue_readers: list[RocksQueueReader] = []
    findings: list[Damage] = []
    unread: str | None = None
    for path in QUEUE_PLACES:
        database = databases.open(path)
        if database is not None:
            queues, odd = readers(directory, database, log_start)
            queue_readers += queues
            findings += odd
        elif databases.why_unread(path) is not None:
            unread = path
    if not queue_readers:
        beside = bool(files) and unread == "consumequeue_rocksdb"
        return StoredQueues(files, (), tuple(findings), None if beside else unread, unread if beside else None)
    first, second = (queue_readers, files) if _reach(queue_readers) > _reach(files) else (files, queue_readers)
    known = {(queue.topic, queue.queue_id) for queue in first}
    further = [queue for queue in second if (queue.topic, queue.queue_id) not in known]
    again = [queue for queue in second if (queue.topic, queue.queue_id) in known]
    return StoredQueues(_sorted([*first, *further]), _sorted(again), tuple(findings))


def _reach(queues: Sequence[ConsumeQueueReader]) -> int:
    """Return how far into the log queues reach."""
    return max((queue.max_physical_offset for queue in queues), default=-1)


def _sorted(queues: Iterable[ConsumeQueueReader]) -> tuple[ConsumeQueueReader, ...]:
    return tuple(sorted(queues, key=lambda queue: (queue.topic, queue.queue_id)))


# Which version's broker wrote a store last, as far as its files show it, and by which of them.
#
# Nothing in a store states the version. Files, fields and forms of bytes that only later versions write do; without any of them the
# oldest version that fits is suggested; a later broker may have written the store.


_SEPARATED = ("4.0 to 4.8, or of 5.2 and later", "5.x opens both, and upgrades what 4.x wrote")  # properties that end with a separator


class Evidence(NamedTuple):
    """The profile that the files suggest, and what in them does. fits: the brokers that open the store, and what else to know."""

    profile: Profile
    why: str
    fits: tuple[str, str]

    @classmethod
    def of(cls, version: str, why: str) -> Evidence:
        """Return evidence of the files that a release writes."""
        rules = profile(version)
        return cls(rules, why, rules.fits)


def _evidence(store: StoreFiles) -> Evidence:
    """Return what the files suggest."""
    why = next(_v5(store), None)
    if why is None and _may_be_of_4_or_5(store):
        why = "there is only a log, and its properties end with a separator, as 4.0 to 4.8 and 5.2 and later write them"
        return Evidence(profile("4.7.1"), why, _SEPARATED)
    if why is None and store.bare_log:
        why = "there is only a log, and nothing in it is written by 5.2 and later only"
        return Evidence(profile("4.9.3"), why, ("4.9 and later 4.x, or of 5.0 and 5.1", "5.x opens both, and upgrades what 4.x wrote"))
    if why is None:
        return Evidence(profile("4.9.3"), "nothing in the store is written by 5.x only", _fits_4(store))
    if store.checkpoint.logics_physical_offset > 0:
        return Evidence.of("5.5.0", "the checkpoint has a sixth field, which 5.5.0 writes")
    if store.directory.exists("rocksdbstore"):
        return Evidence.of("5.4.0", "there is a directory rocksdbstore, which 5.4.0 and later make")
    if store.indexes_tags:
        return Evidence.of("5.4.0", "the index has entries of tags, which 5.4.0 and later write")
    return Evidence.of("5.3.3", why)


def _fits_4(store: StoreFiles) -> tuple[str, str]:
    """Return which brokers wrote a store that 5.x has left no sign in, by the properties of the newest log file's first record."""
    message = _newest_file_begins_with(store)
    if message is None or not message.properties:
        return "4.x", "5.x opens it too, and upgrades it when it writes"
    if not message.properties.endswith(b"\x02"):
        return profile("4.9.3").fits
    if store.directory.is_directory("config"):
        return "4.0 to 4.8", "later ones open it too, and 5.x upgrades it when it writes"
    return _SEPARATED


def written_by_5(store: StoreFiles) -> bool:
    """Return whether anything in a store is written by 5.x only."""
    return next(_v5(store), None) is not None


def _v5(store: StoreFiles) -> Iterator[str]:
    """Yield what in a store is written by 5.x only, the cheapest to find first."""
    point = store.checkpoint
    if point.confirm_physical_offset > 0 or point.master_flushed_offset > 0:
        yield "the checkpoint has fields that 5.x writes"
    for path in _V5_ONLY:
        if store.directory.exists(path):
            yield f"there is {path}, which 5.x makes"
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


def _abort_has_content(store: StoreFiles) -> bool:
    try:
        return bool(store.directory.read("abort", 64))
    except CannotOpenError:
        return False  # that it exists is all that counts for a broker


def _newest_file_is_of_5(store: StoreFiles) -> bool:
    """Return whether the first record of the newest written log file has version 2, or properties that end with a separator and have what
    5.x adds to them.

    Beside a checkpoint, a 5.x broker has left further signs.
    """
    message = _newest_file_begins_with(store)
    if message is None:
        return False
    return message.version == 2 or (_may_be_of_4_or_5(store) and not _ADDED_BY_5.isdisjoint(message.property_map()))


def _may_be_of_4_or_5(store: StoreFiles) -> bool:
    """Return whether a bare log has properties that end with a separator: it went in 4.9, and came back in 5.2."""
    message = _newest_file_begins_with(store)
    return message is not None and message.properties.endswith(b"\x02") and not store.checkpoint.exists


def _newest_file_begins_with(store: StoreFiles) -> Record | None:
    number = store.log.last_written()
    return None if number < 0 else store.log.record(store.log.files[number].start + store.log.header_size)
