"""The parts that a store has, where each is, and who says that it should be there.

Said by what was given, the lines of the configuration, what is found beside, and what other parts state: the checkpoint, offsets of
consumers, entries of queues, keys of index files.

Format: docs/formats/rocketmq.md, sections 1.1 to 1.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mqstore.files.location import Url
from mqstore.findings import Subject
from mqstore.rocketmq.config.broker_config import PATHS, SIZES, is_known
from mqstore.rocketmq.config.broker_paths import locate, log_paths
from mqstore.rocketmq.config.consumer_offsets import CONSUMER_OFFSETS, DELAY_OFFSETS, LMQ_OFFSETS
from mqstore.rocketmq.config.rocksdb_config import GROUPS, OFFSETS, TOPICS, V2
from mqstore.rocketmq.config.topic_table import GROUPS_FILE, TOPICS_FILE
from mqstore.rocketmq.store.log_site import log_elsewhere, misnamed_log
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.site import Part, Site, State
from mqstore.table.formatting import count

_GIVEN = "given"
_MOST_NAMED = 20
_NOTHING = "nothing says that there is one"
_CONFIG_FILES = (TOPICS_FILE, GROUPS_FILE, CONSUMER_OFFSETS, DELAY_OFFSETS)
_CONFIG_DATABASES = {TOPICS_FILE: (TOPICS, V2), GROUPS_FILE: (GROUPS, V2), CONSUMER_OFFSETS: (OFFSETS, V2)}
_FURTHER = (  # only where they are, or a setting asks for them
    ("consumer filters", "config/consumerFilter.json"),
    ("offsets of light queues", LMQ_OFFSETS),
    ("static topics", "config/topicQueueMapping.json"),
    ("orders of consumption", "config/consumerOrderInfo.json"),
    ("batch queues", "batchconsumequeue"),
    ("extended queues", "consumequeue_ext"),
    ("timer wheel", "timerwheel"),
    ("timer log", "timerlog"),
    ("timer check", "config/timercheck"),
    ("compaction log", "compaction/compactionLog"),
    ("compaction queues", "compaction/compactionCq"),
    ("tiered storage, metadata", "config/tieredStoreMetadata.json"),
    ("tiered storage, index", "tiered_index_file"),
    ("RocksDB queues", "consumequeue_rocksdb"),
    ("RocksDB store", "rocksdbstore"),
    ("RocksDB pop records", "kvStore"),
)
_NOT_READ = frozenset({"tiered_index_file"})
_OF_SETTINGS = (  # parts that a setting moves: name, setting, where they are without it
    ("epochs of the controller", "storePathEpochFile", "epochFileCheckpoint"),
    ("identity of the broker", "storePathBrokerIdentity", "brokerIdentity"),
    ("tiered storage", "tieredStoreFilePath", ""),
)


def site_of(store: RocketMQStore) -> Site:
    """Return the parts of a store."""
    if store.log_only:
        return Site((Part("log", str(store.path), "partly", _known_by_records(store)),))
    parts = (*_log_parts(store), *_derived_parts(store), *_small_parts(store), *_further_parts(store))
    return Site(tuple(part if part.path is None else replace(part, path=store.shown(part.path)) for part in parts))


def _known_by_records(store: RocketMQStore) -> str:
    """Return what was given of a log alone; of several files, which is which."""
    if store.one_file:
        return "one file of a log was given"
    named = [f"{store.directory.path(file.relative).name} is {file.name}" for file in store.log.files]
    more = f"; and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return f"files of a log were given, known by their records: {'; '.join(named[:_MOST_NAMED])}{more}"


def _log_parts(store: RocketMQStore) -> Iterator[Part]:
    elsewhere = log_elsewhere(store) or misnamed_log(store)
    own = str(store.directory.path(store.log.queue.relative))
    if store.dledger is not None:
        yield Part("DLedger log", own, "partly" if _lacks_files(store) else "here", _found_or(store, "storePathDLedgerCommitLog"))
        return
    named = () if isinstance(store.path, Url) else log_paths(store.paths_config, store.directory.root)
    if elsewhere is not None and elsewhere.state == "elsewhere":
        yield Part("log", elsewhere.place, "elsewhere", elsewhere.why)
    elif elsewhere is not None and elsewhere.state == "absent":
        yield Part("log", own, "absent", elsewhere.known_from)
    elif named:
        for each in named:
            state: State = "partly" if _lacks_files(store) else "here"
            yield Part("log", str(each.path or each.configured), "elsewhere" if each.path is None else state, each.setting)
    elif elsewhere is not None or _lacks_files(store):
        yield Part("log", own, "partly", "names of the log files" if elsewhere is None else elsewhere.why)
    elif store.log.files:
        yield Part("log", own, "here", _GIVEN)
    else:
        yield Part("log", own, "absent", _NOTHING, wanted=False)
    ledger = store.paths_config.store_path_dledger_commit_log
    if ledger is not None:
        yield _configured_part(store, "DLedger log", "storePathDLedgerCommitLog", ledger)


def _lacks_files(store: RocketMQStore) -> bool:
    return any(item.kind.subject is Subject.FILE for item in store.log.findings)


def _found_or(store: RocketMQStore, setting: str) -> str:
    where = store.paths_config.where(setting)
    return where if where != setting else _GIVEN


def _configured_part(store: RocketMQStore, name: str, setting: str, configured: str) -> Part:
    if isinstance(store.path, Url):
        return Part(name, configured, "elsewhere", store.paths_config.where(setting))
    at = locate(store.paths_config, store.directory.root, setting, configured)
    return Part(name, str(at.path or at.configured), "elsewhere" if at.path is None and not at.is_file else "not-read", at.setting)


def _derived_parts(store: RocketMQStore) -> Iterator[Part]:
    directory = store.directory
    unlisted = {item.file.partition("/")[0] for item in store.unread_directories}
    written = store.log.last_written() >= 0
    queues = str(directory.path("consumequeue"))
    if store.unread_queues is not None:
        yield Part("consume queues", str(directory.path(store.unread_queues)), "not-read", "a RocksDB database there")
    elif store.queue_database is not None or any(queue.max_offset > 0 for queue in store.all_queues()):
        lacking = _queues_without_files(store)
        known = f"{CONSUMER_OFFSETS} has offsets of {count(lacking, 'queue')} without files" if lacking else _GIVEN
        yield Part("consume queues", queues, "partly" if lacking or "consumequeue" in unlisted else "here", known)
    else:
        read = store.unread_offsets is None and any(offset > 0 for each in store.offset_table.offsets.values() for offset in each.values())
        known = "the log has messages" if written else "consumerOffset.json" if read else _NOTHING
        yield Part("consume queues", queues, "absent", known, wanted=known != _NOTHING)
    index = str(directory.path("index"))
    if store.unread_index or "index" in unlisted:
        yield Part("index", index, "not-read", _GIVEN)
    elif store.index_files() or store.database_index is not None:
        yield Part("index", index if store.index_files() else str(directory.path("rocksdbstore")), "here", _GIVEN)
    elif store.config.message_index_enable is False:
        yield Part("index", index, "absent", store.config.where("messageIndexEnable"), wanted=False)
    else:
        indexed = store.checkpoint.index > 0
        known = "checkpoint" if indexed else "the log has messages" if written else _NOTHING
        yield Part(
            "index",
            index,
            "absent",
            "checkpoint" if indexed else "the log has messages" if written else _NOTHING,
            wanted=written or indexed,
        )


def _queues_without_files(store: RocketMQStore) -> int:
    """Return the number of queues that a group has read from, of topics that have others, and that have no files."""
    if store.unread_offsets is not None:
        return 0
    there = {(queue.topic, queue.queue_id) for queue in store.all_queues()}
    topics = {topic for topic, _ in there}
    read = {
        (topic, queue_id)
        for (_, topic), by_queue in store.offset_table.offsets.items()
        for queue_id, offset in by_queue.items()
        if offset > 0 and topic in topics
    }
    return len(read - there)


def _small_parts(store: RocketMQStore) -> Iterator[Part]:
    directory = store.directory
    yield _part(store, "checkpoint", "checkpoint", "a broker writes one")
    abort: tuple[State, str] = ("here", "an unclean exit") if store.unclean else ("absent", "a clean exit removes it")
    yield Part("abort", str(directory.path("abort")), *abort, wanted=False)
    for relative in _CONFIG_FILES:
        name = relative.partition("/")[2]
        database = next((place for place in _CONFIG_DATABASES.get(relative, ()) if store.databases.exists(place)), None)
        if database is not None:
            unread = store.databases.why_unread(database)
            yield Part(name, str(directory.path(database)), "here" if unread is None else "not-read", "a RocksDB database there")
        elif directory.exists(f"{relative}.bak") and not directory.exists(relative):
            yield Part(name, str(directory.path(relative)), "partly", f"{name}.bak, an older state, is found beside")
        else:
            yield _part(store, name, relative, "a broker writes one" if relative != DELAY_OFFSETS else _NOTHING)


def _part(store: RocketMQStore, name: str, relative: str, asked_for_by: str) -> Part:
    path = str(store.directory.path(relative))
    if store.directory.exists(relative):
        return Part(name, path, "here", _GIVEN)
    return Part(name, path, "absent", asked_for_by, wanted=asked_for_by != _NOTHING)


def _further_parts(store: RocketMQStore) -> Iterator[Part]:
    directory = store.directory
    for name, relative in _FURTHER:
        if directory.exists(relative):
            unread = relative in _NOT_READ or store.databases.why_unread(relative) is not None
            yield Part(name, str(directory.path(relative)), "not-read" if unread else "here", _GIVEN)
        elif relative == LMQ_OFFSETS and store.paths_config.enable_lmq:
            yield Part(name, str(directory.path(relative)), "absent", store.paths_config.where("enableLmq"))
        elif relative == "timerlog" and directory.exists("timerwheel"):
            yield Part(name, str(directory.path(relative)), "absent", "timerwheel")
    config = store.paths_config
    configured = (config.store_path_epoch_file, config.store_path_broker_identity, config.tiered_store_file_path)
    for (name, setting, relative), path in zip(_OF_SETTINGS, configured, strict=True):
        if path is not None:
            yield _configured_part(store, name, setting, path)
        elif relative and directory.exists(relative):
            yield Part(name, str(directory.path(relative)), "here", _GIVEN)


def settings_not_used(store: RocketMQStore) -> tuple[str, ...]:
    """Return the settings of the configuration, given or found beside, that nothing here reads.

    Of one that was found beside, only paths are used, and sizes where no file shows them.
    """
    used = is_known if store.configured else (PATHS + SIZES).__contains__
    return tuple(name for name, _ in store.paths_config.lines if not used(name))
