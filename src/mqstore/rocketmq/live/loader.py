"""Loading a store that is to be written: everything between the lock and the first put.

    lock      `lock`, exclusively: a broker and this engine can never have the store at the same time
    look      version, geometry, unsupported parts: refuse before anything is changed
    abort     from here until `close`, the next process to load the store recovers as after a crash (a broker writes it last)
    load      what a broker of that version does (`recovery.broker_recovery`), on the files themselves: recover, cut, dispatch
    clear     bytes that a crash left after the end of log and queues are overwritten with zeros
    distrust  after an unclean exit, nothing that a killed process may have written counts as flushed

Format: docs/formats/rocketmq.md, sections 7.4, 7.5 and 8.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from mqstore.errors import RefusedError, TargetError, UnsupportedError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory, make_root
from mqstore.files.locking import forked_sentence
from mqstore.rocketmq.config.broker_config import BrokerConfig
from mqstore.rocketmq.config.broker_paths import found_beside, refuse_second_log
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.dispatch.dispatcher import parse_delays
from mqstore.rocketmq.format import consume_queue
from mqstore.rocketmq.format.dledger_log import refuse_dledger
from mqstore.rocketmq.format.index_file import UnreadIndex
from mqstore.rocketmq.format.profile import DEFAULT_VERSION, profile, version_rules
from mqstore.rocketmq.format.record import parse_host
from mqstore.rocketmq.live.checkpoint_writer import LiveCheckpoint
from mqstore.rocketmq.live.commit_log_writer import LiveLog
from mqstore.rocketmq.live.derived_files import DerivedFiles
from mqstore.rocketmq.live.index_writer import IndexFiles, StoredIndex, StoredIndexFile
from mqstore.rocketmq.live.queue_files import QueueFiles, StoredFile, open_files_at_once
from mqstore.rocketmq.live.store_lock import StoreLock, create_abort, remove_abort
from mqstore.rocketmq.recovery.broker_recovery import Recovery
from mqstore.rocketmq.store.store import RocketMQStore

DEFAULT_LOG_FILE = 1 << 30
DEFAULT_EXT_FILE = 48 << 20
_ROCKSDB = ("consumequeue/CURRENT", "config/rdb", "config/consumerOffsets", "config/topics", "config/subscriptionGroups")


@dataclass(slots=True)
class LoadedStore:
    """The parts of a store that is ready to be written. full_index: index files filled since they were last checked.

    version: whose rules are followed. release: the one that is written for. released: whether the store is being closed.
    process: id of the process that loaded it.
    """

    version: str
    release: str
    lock: StoreLock
    reading: ReadOnlyDirectory
    directory: DurableDirectory
    log: LiveLog
    recovery: Recovery
    derived: DerivedFiles
    queue_files: QueueFiles
    checkpoint: LiveCheckpoint
    full_index: list[StoredIndexFile]
    released: bool = False
    process: int = field(default_factory=os.getpid)

    def require_open(self) -> None:
        """Raise TargetError once the store is being closed: its files then belong to the next process that locks it."""
        if self.released:
            raise TargetError(self.why_released)

    @property
    def why_released(self) -> str:
        """Why nothing is written any more, in a sentence."""
        what = f"the store in {self.directory.root}"
        return f"{what} is closed; open it again" if self.process == os.getpid() else forked_sentence(what, self.process)

    def close(self) -> None:
        """Close everything, the lock last. Nothing is flushed."""
        with contextlib.ExitStack() as last_first:
            last_first.callback(self.lock.close)
            last_first.callback(self.directory.close)
            last_first.callback(self.reading.forget_all)
            last_first.callback(self.full_index.clear)
            last_first.callback(self.checkpoint.close)
            last_first.callback(self.derived.close)
            last_first.callback(self.queue_files.close)
            if isinstance(self.recovery.index, StoredIndex):
                last_first.callback(self.recovery.index.close)
            last_first.callback(self.log.close, keep_next=True)


def load(path: str | os.PathLike[str], config: StoreConfig) -> LoadedStore:
    """Create or take over a store. Raises MqstoreError, with nothing changed, if it cannot be taken over."""
    root = Path(path)
    if config.version is not None:
        profile(config.version)
    try:
        parse_host(config.store_host)
    except ValueError as error:
        raise UsageError(f"the store host {config.store_host!r} must be ip:port or [ip]:port: {error}") from None
    refuse_second_log(found_beside(root) or BrokerConfig(), root)
    made = make_root(root)
    if made and config.recorder is not None:
        raise UsageError("a recorded store needs an existing directory; create it first")
    directory = DurableDirectory(root, recorder=config.recorder)
    lock = StoreLock(directory)
    try:
        return _load(directory, lock, config)
    except BaseException:
        directory.close()
        lock.close()
        raise


def _broker_config(config: StoreConfig) -> BrokerConfig:
    """Return the settings that loading uses, in the form of a broker configuration file."""
    return BrokerConfig(
        commit_log_file_size=config.commit_log_file_size,
        consume_queue_file_size=config.consume_queue_file_size,
        consume_queue_ext_file_size=config.consume_queue_ext_file_size,
        batch_queue_file_size=config.batch_queue_file_size,
        max_hash_slot_num=config.max_hash_slot_num,
        max_index_num=config.max_index_num,
        message_delay_level=config.message_delay_level,
        enable_consume_queue_ext=config.enable_consume_queue_ext,
        enable_multi_dispatch=config.enable_multi_dispatch,
        enable_lmq=config.enable_lmq,
        message_index_enable=config.message_index_enable,
        message_index_safe=config.message_index_safe,
        check_crc_on_recover=config.check_crc_on_recover,
        force_verify_prop_crc=config.force_verify_prop_crc,
        recheck_reput_offset_from_cq=config.recheck_reput_offset_from_cq,
        batch_topics=tuple(sorted(config.batch_topics)),
    )


def _load(directory: DurableDirectory, lock: StoreLock, config: StoreConfig) -> LoadedStore:
    root, recorder = directory.root, config.recorder
    reading = ReadOnlyDirectory(root)
    _refuse_unsupported(reading)
    store = RocketMQStore(root, config=_broker_config(config))
    store.require_directories()
    fresh = not store.log.files and not store.consume_queues()
    # an existing store shows whether its broker indexes tags
    writer = profile(config.version or DEFAULT_VERSION) if config.version or fresh else store.evidence.profile
    version = writer.rules
    for name in ("commitlog", "consumequeue"):
        directory.make_directory(name)
    directory.sync_directory()
    if version_rules(version).deletes_empty_last_file or store.unclean:
        _remove_empty_last_file(directory, store)
    if store.unclean:
        _restore_lengths(directory, store)
    store = RocketMQStore(root, config=_broker_config(config))

    writing = DurableDirectory(root, recorder=recorder, open_files=open_files_at_once())
    queue_files = QueueFiles(reading, writing, DurableDirectory(root, recorder=recorder))
    full_index: list[StoredIndexFile] = []
    index_files = IndexFiles(reading, DurableDirectory(root, recorder=recorder), config.clock, full_index.append)
    ext = config.enable_consume_queue_ext
    derived = DerivedFiles(
        queue_files,
        index_files,
        reading,
        DurableDirectory(root, recorder=recorder),
        ext_file_size=(config.consume_queue_ext_file_size or DEFAULT_EXT_FILE) if ext else None,
        delays=parse_delays(config.message_delay_level),
    )
    _refuse_other_queue_type(store, version)
    _refuse_unknown_geometry(store)
    rules = replace(
        store.rules(writer.version if config.version or fresh else None), multi_dispatch=config.enable_multi_dispatch, lmq=config.enable_lmq
    )
    stored, unclean = store.checkpoint, store.unclean
    derived.amending = unclean
    recovery = Recovery(
        reading,
        store.log,
        store.index_files(),
        stored,
        store.config,
        rules,
        version,
        unclean=unclean,
        target=derived,
        strict=True,
        of=writer,
    )
    # before anything changes: if the machine dies now, the next load must recover
    if not unclean:
        create_abort(directory, version, os.getpid())
    try:
        recovery.load()
        recovery.start()
    except BaseException:
        if not unclean:
            remove_abort(directory)
        raise
    derived.amending = False
    log_file_size = config.commit_log_file_size or store.log.file_size or DEFAULT_LOG_FILE
    log = LiveLog(
        reading,
        DurableDirectory(root, recorder=recorder),
        DurableDirectory(root, recorder=recorder),
        log_file_size,
        recovery.log_files,
    )
    _clear(directory, log, recovery, queue_files)
    confirm = 0
    if version_rules(version).confirms_offset:
        confirm = recovery.last_record if recovery.last_record >= 0 else stored.confirm_physical_offset
    checkpoint = LiveCheckpoint(DurableDirectory(root, recorder=recorder), stored, confirm, recovery.log_max, writer.checkpoint_fields)
    if unclean:
        log.distrust(recovery.recovered_from)
        for queue in recovery.queues.values():
            queue_files.distrust(queue.files)
        create_abort(directory, version, os.getpid())
    store.log.forget_all()
    return LoadedStore(version, writer.version, lock, reading, directory, log, recovery, derived, queue_files, checkpoint, full_index)


def check_loadable(root: Path, config: StoreConfig) -> None:
    """Refuse a store that `load` would refuse because of what its files are. Reads only. Raises MqstoreError."""
    _refuse_unsupported(ReadOnlyDirectory(root))
    store = RocketMQStore(root, config=_broker_config(config))
    store.require_directories()
    fresh = not store.log.files and not store.consume_queues()
    _refuse_other_queue_type(store, profile(config.version or (DEFAULT_VERSION if fresh else store.version_hint)).rules)
    _refuse_unknown_geometry(store)


def _refuse_unsupported(reading: ReadOnlyDirectory) -> None:
    refuse_dledger(reading, "writing")
    databases = [path for path in _ROCKSDB if reading.exists(path)]
    if databases:
        raise UnsupportedError(
            f"{reading.root} keeps parts of its state in RocksDB ({', '.join(databases)}), which mqstore cannot write; "
            "export it or rebuild it into a new directory first"
        )


def _refuse_other_queue_type(store: RocketMQStore, version: str) -> None:
    """Refuse plain queues of a topic that now has batch queues: their entries would no longer be visible."""
    batch = store.rules(version).batch_topics if version_rules(version).has_batch_queues else frozenset()
    for queue in store.consume_queues():
        if queue.topic in batch:
            raise RefusedError(
                f"the queue type of topic {queue.topic} should be BatchCQ, but is SimpleCQ: it has queues in consumequeue/{queue.topic}; "
                f"a {version} broker refuses to start on this store: set its queue.type back"
            )


def _refuse_unknown_geometry(store: RocketMQStore) -> None:
    """Refuse to add keys to index files of which the geometry is not known: a broker would misread what is put there."""
    config = store.config
    if config.message_index_enable is False:
        return
    unread = [file for file in store.unread_index if not (store.unclean and _is_dropped(store, file))]
    if unread:
        raise RefusedError(f"{unread[0].relative} cannot be continued: {unread[0].sentence}; nothing was changed")
    files = store.index_files()
    if not files:
        return
    # after an unclean exit, the last file is made again
    continued = not store.unclean and not files[-1].proved
    if continued or not (any(file.proved for file in files) or (config.max_hash_slot_num and config.max_index_num)):
        against = next((item.detail for item in store.findings if item.file == files[-1].relative), None)
        why = against or (
            "no index file shows how many slots and positions there are; "
            "give maxHashSlotNum and maxIndexNum, as the broker's own configuration has them, with --config"
        )
        raise RefusedError(f"{files[-1].relative} cannot be continued: {why}; nothing was changed")


def _remove_empty_last_file(directory: DurableDirectory, store: RocketMQStore) -> None:
    """Remove a last log file of 0 bytes, which a full disk leaves: 5.3 removes it at load."""
    listing = store.log.queue.listing
    if listing and listing[-1].is_file and listing[-1].size == 0:
        directory.remove(f"commitlog/{listing[-1].name}")


def _restore_lengths(directory: DurableDirectory, store: RocketMQStore) -> None:
    """Extend queue files that a dead machine left too short, and remove index files that it left too short.

    A broker would refuse to start on them, although the log still has everything they held. Log files are never too short: their
    length is synced before anything is put into them.
    """
    queue_size = store.config.consume_queue_file_size or consume_queue.common_file_size(store.directory) or 0
    batch_size = store.config.batch_queue_file_size or 0
    places: list[tuple[str, int]] = []
    for path, size in (("consumequeue", queue_size), ("batchconsumequeue", batch_size)):
        places += [(f"{path}/{topic}/{queue_id}", size) for topic, queue_id in consume_queue.queues(store.directory, path)]
    for path, size in places:
        for entry in store.directory.entries(path):
            if entry.is_file and entry.size < size:
                directory.truncate(f"{path}/{entry.name}", size)
                directory.sync(f"{path}/{entry.name}")
    known = {file.name for file in store.index_files()} | {file.name for file in store.unread_index if not _is_dropped(store, file)}
    for entry in store.directory.entries("index"):
        if entry.is_file and entry.name not in known and entry.name.isdigit():
            directory.remove(f"index/{entry.name}")


def _is_dropped(store: RocketMQStore, file: UnreadIndex) -> bool:
    """Return whether a recovery deletes an index file: it ends later than the checkpoint's index time, or has no possible length."""
    return file.header.end_timestamp > store.checkpoint.index or (file.damaged and file.header.index_count <= 1)


def _clear(directory: DurableDirectory, log: LiveLog, recovery: Recovery, queue_files: QueueFiles) -> None:
    """Overwrite what is after the last record and the last queue entries, so that no later scan takes it for more."""
    if log.files:
        last = log.files[-1]
        mapped = log.reading.mapped(last.relative)
        stop = mapped.last_nonzero(last.written, last.size) + 1
        at = last.written
        while at < stop:
            step = min(stop - at, 1 << 20)
            directory.pwrite(last.relative, at, bytes(step))
            at += step
        if stop > last.written:
            directory.sync(last.relative)
    for queue in recovery.queues.values():
        if queue.files and isinstance(queue.files[-1], StoredFile):
            queue_files.clear_tail(queue.files[-1])
