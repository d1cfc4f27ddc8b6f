"""An embedded message store: the core of a RocketMQ broker, on the same files.

    >>> from tempfile import TemporaryDirectory
    >>> from mqstore.rocketmq.format.message import Message
    >>> with TemporaryDirectory() as place, MessageStore.open(place, StoreConfig(commit_log_file_size=1 << 20)) as store:
    ...     put = store.put(Message("orders", b"paid", keys="o-1", tags="eu"))
    ...     _ = store.wait_dispatched()
    ...     got = store.get("billing", "orders", 0, 0)
    ...     put.status.value, got.status.value, got.records()[0].body, [found.body for found in store.query("orders", "o-1").records]
    ('PUT_OK', 'FOUND', b'paid', [b'paid'])

Messages are appended to the commit log in the caller's thread; one thread follows the log and dispatches them to consume queues and
index, others flush, clean up and persist. A broker of the same version can take the directory over at any time, even after the process
was killed, and vice versa: lock, abort file, checkpoint and recovery are those of the broker.

Format: docs/formats/rocketmq.md, sections 3 to 11.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Self

from mqstore.errors import MqstoreError, TargetError
from mqstore.files.durable import DurableDirectory
from mqstore.files.locking import bind_to_process
from mqstore.kernels.rocketmq.key_query import QueryPath
from mqstore.kernels.rocketmq.pull import PullPath
from mqstore.kernels.rocketmq.put import SinglePut
from mqstore.rocketmq.append.appender import Appender
from mqstore.rocketmq.append.batch_appender import BatchResult, put_columns, put_each
from mqstore.rocketmq.append.delay import DelayService, DueMessage
from mqstore.rocketmq.append.transactions import Transactions
from mqstore.rocketmq.config.consumer_offsets import ConsumerOffsets
from mqstore.rocketmq.config.store_config import StoreConfig, now_ms
from mqstore.rocketmq.config.topic_table import SubscriptionGroups, Topics
from mqstore.rocketmq.dispatch.consume_queue_image import BatchQueueImage
from mqstore.rocketmq.dispatch.index_image import IndexImage
from mqstore.rocketmq.dispatch.targets import AnyQueueImage
from mqstore.rocketmq.engine.services import DispatchListener, DispatchLoop, Services
from mqstore.rocketmq.format.batch_consume_queue import UNIT_SIZE
from mqstore.rocketmq.format.consume_queue_ext import ConsumeQueueExt
from mqstore.rocketmq.format.message import Message, MessageBatch, PutResult, PutStatus
from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.format.tag_filter import TagFilter
from mqstore.rocketmq.live.commit_log_writer import LiveLog
from mqstore.rocketmq.live.group_commit import GroupCommit
from mqstore.rocketmq.live.index_writer import StoredIndex
from mqstore.rocketmq.live.loader import LoadedStore, load
from mqstore.rocketmq.live.retention import Retention, RetentionResult
from mqstore.rocketmq.live.store_lock import remove_abort
from mqstore.rocketmq.query import pull
from mqstore.rocketmq.query.index_search import END_OF_TIME, MAX_RESULTS
from mqstore.rocketmq.query.point_lookup import QueryResult
from mqstore.rocketmq.store.read_side import ReadSide

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

_DEFAULTS = StoreConfig()


class MessageStore(ReadSide, SinglePut):
    """A store open for writing; `open` returns one. Thread-safe: any thread may put, any thread may read.

    version: whose rules it follows, `4.9.3` or `5.3.3`. release: for which it writes. notes: what loading gave up or skipped, a
    sentence each. offsets, topics, groups: the tables under config/. delays, transactions: the services on top of puts.
    """

    def __init__(self, path: str | os.PathLike[str], config: StoreConfig) -> None:
        loaded = load(path, config)
        try:
            self._assemble(loaded, config)
        except BaseException:
            loaded.close()
            raise
        if config.services:
            self._services.start()

    def _assemble(self, loaded: LoadedStore, config: StoreConfig) -> None:
        self.version = loaded.version
        self.release = loaded.release
        self.config = config
        self.reading = loaded.reading
        self.directory = loaded.directory
        self.log: LiveLog = loaded.log
        self.notes: tuple[str, ...] = tuple(loaded.recovery.notes)
        self._loaded = loaded
        self._recovery = loaded.recovery
        self._rules = version_rules(self.version)
        self._open = True
        maximums = {(queue.topic, queue.queue_id): queue.max_offset for queue in self.queues()}
        batch_topics = loaded.recovery.rules.batch_topics
        self._appender = Appender(self.log, replace(config, batch_topics=batch_topics), self.release, maximums, loaded.checkpoint)
        self._path = self._appender.path
        self._sync_flush = config.flush_disk_type == "SYNC_FLUSH"
        self.commit = GroupCommit(self.log.sync, self._update_paused)
        self.retention = Retention(self.log, config)
        self._dispatch_loop = DispatchLoop(
            loaded, self._path, flushed_only=self._rules.dispatches_flushed_only and self._sync_flush, on_state_change=self._update_paused
        )
        self._pull_rules = pull.PullRules(
            version=self.version,
            in_memory_bytes=_memory() * config.access_message_in_memory_max_ratio // 100,
            travel_files=config.travel_cq_file_num_when_get_message,
        )
        self._pulls = PullPath(
            pull.GetResult,
            pull.GetStatus.FOUND,
            pull.GetStatus.NO_MATCHED_MESSAGE,
            self._recovery.queues,
            self.log,
            pull.kernel_limits(self._pull_rules),
        )
        self._queries: QueryPath[QueryResult] = QueryPath(
            partial(tuple.__new__, QueryResult), self._recovery, self.log, self._pulls, config.max_msgs_num_batch
        )
        self.offsets = ConsumerOffsets.load(self.reading, self.version, config.enable_lmq, clock=config.clock)
        self.topics = Topics.load(self.reading, self.version, clock=config.clock)
        self.groups = SubscriptionGroups.load(self.reading, self.version, clock=config.clock)
        self._config_directory = DurableDirectory(self.directory.root, recorder=config.recorder)
        self.delays = DelayService(self)
        self.transactions = Transactions(self)
        self._services = Services(self)
        bind_to_process(self)

    def forked(self) -> None:
        """Give the store up in a forked child: it belongs to the parent. Nothing is accepted or written, and `close` does nothing."""
        self._open = False
        self._loaded.released = True
        self._path.release()
        self._path.paused = True

    @classmethod
    def open(cls, path: str | os.PathLike[str], config: StoreConfig = _DEFAULTS) -> MessageStore:
        """Create a store, or take one over, doing all that a broker does at load and start.

        Raises TargetError if another process has the store, RefusedError if a broker would not start on it, UnsupportedError.
        """
        return cls(path, config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # puts

    # put(message: Message) -> PutResult. Compiled, in `kernels.rocketmq.put`: as a method here it took 868 ns for 737 (100 bytes and a
    # key, the message object included). What its fast path does not take comes to `_put_slow`.
    put = SinglePut.put

    def _put_slow(self, message: Message) -> PutResult:
        return self._refusal() or self._appender.put_slow(message)

    def _wait_for_flush(self, message: Message, result: PutResult) -> None:
        if result.stored and _waits(message):
            self._await_flush(result)

    def put_messages(self, batch: MessageBatch) -> PutResult:
        """Store a producer's batch: all of its messages or none."""
        result = self._refusal() or self._appender.put_messages(batch)
        if self._sync_flush and result.stored and _waits(batch.envelope):
            self._await_flush(result)
        return result

    def put_stored(self, stored: Record) -> PutResult:
        """Store a record unchanged except for its offsets and store timestamp, which are reassigned."""
        result = self._refusal() or self._appender.put_stored(stored)
        if self._sync_flush and result.stored:
            self._await_flush(result)
        return result

    def put_batch(self, messages: Sequence[Message] | pa.RecordBatch | pa.Table, *, stored: bool = False) -> BatchResult:
        """Store many independent messages in order; stop at the first that is refused.

        messages: a list, or Arrow columns with the names of the message table, of which only `topic` is required; columns that only a
        store can fill (offsets, store time, checksums) are ignored. stored: the rows of a batch were read from a store, so a delay that
        they name is over, or they are in the queue in which they wait. Raises UsageError for columns that cannot be messages, naming
        column and row, before anything is stored.
        """
        refused = self._refusal()
        if refused is not None:
            return BatchResult(refused.status, detail=refused.detail)
        if isinstance(messages, Sequence):
            result = put_each(self._appender, messages)
        else:
            result = put_columns(self._appender, messages, stored=stored)
        if self._sync_flush and result.count and not self.commit.wait(result.end, self.config.sync_flush_timeout / 1000):
            result.status = PutStatus.FLUSH_DISK_TIMEOUT
            result.detail = self.commit.failed or "the disk took longer than syncFlushTimeout"
        return result

    async def put_async(self, message: Message) -> PutResult:
        """Store one message as `put` does; with SYNC_FLUSH all waiting calls of an event loop share one thread and do not block it."""
        result = self._refusal() or self._appender.put(message)
        if self._sync_flush and result.stored and _waits(message):
            done = await self.commit.wait_async(result.physical_offset + result.size, self.config.sync_flush_timeout / 1000)
            self._apply_flush_result(result, done)
        return result

    def refusal_of(self, topic: str) -> str:
        """Return why no message of a topic is accepted; empty for a topic that is."""
        return self._appender.refusal_of(topic)

    def _await_flush(self, result: PutResult) -> None:
        self._apply_flush_result(result, self.commit.wait(result.physical_offset + result.size, self.config.sync_flush_timeout / 1000))

    def _apply_flush_result(self, result: PutResult, flushed: bool) -> None:
        if not flushed:
            result.status = PutStatus.FLUSH_DISK_TIMEOUT
            result.detail = self.commit.failed or "the disk took longer than syncFlushTimeout"

    def _update_paused(self) -> None:
        """Close or open the fast path, after something changed that decides whether puts are accepted."""
        self._path.paused = self._refusal() is not None

    def _refusal(self) -> PutResult | None:
        """Return why the store accepts no messages now, or None if it does."""
        if self._open and not self._dispatch_loop.failure and self.commit.failed is None and not self.retention.full:
            return None
        if not self._open:
            sentence = "the store is closed" if self._loaded.process == os.getpid() else self._loaded.why_released
        elif self.retention.full:
            sentence = "the disk is fuller than diskSpaceWarningLevelRatio; free some space"
        else:
            sentence = self._dispatch_loop.failure or f"{self.commit.failed}; close the store and open it again"
        return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, detail=sentence)

    # dispatch

    def dispatch_now(self) -> int:
        """Dispatch everything in the log to queues and index. Returns the number of records. Raises TargetError if that fails."""
        return self._dispatch_loop.run()

    def on_dispatch(self, listener: DispatchListener | None) -> None:
        """Call a function with the (topic, queue id) of the queues that each round of dispatch touched; None removes it.

        It is called in the dispatching thread with the dispatch lock held: it must return at once and must not call the store.
        """
        self._dispatch_loop.set_listener(listener)

    def set_put_yield(self, microseconds: int) -> None:
        """Yield to other threads for this many microseconds on every 256th put (0: never)."""
        self._path.yield_microseconds = microseconds

    @property
    def dispatch_lag(self) -> int:
        """Bytes of log that are not dispatched yet."""
        return self._dispatch_loop.lag

    def wait_dispatched(self, timeout: float = 60.0) -> bool:
        """Wait until everything put before the call is dispatched. Returns False after timeout (s)."""
        target = self.log.max_offset
        if not self.config.services:
            self.dispatch_now()
        elif self._dispatch_loop.position < target:
            self._loaded.require_open()
        end = time.monotonic() + timeout
        while self._dispatch_loop.position < target:
            if time.monotonic() > end:
                return False
            time.sleep(0.0005)
        return True

    # flush and retention

    def flush(self) -> None:
        """Bring log, queues and checkpoint to disk. Raises TargetError if the disk refuses."""
        self._loaded.require_open()
        self._sync_files()
        self._loaded.checkpoint.write()

    def flush_queues(self, least_pages: int) -> None:
        """Bring queue files with at least this many new pages to disk."""
        self._loaded.require_open()
        self._loaded.queue_files.sync(least_pages)

    def release_pages(self) -> None:
        """Release pages of the index from this process's memory: keys go to random slots, so in time all of the file would be in it."""
        index = self._recovery.index
        if isinstance(index, StoredIndex):
            index.release_pages()

    def write_checkpoint(self) -> None:
        """Write what is known to be on disk to the checkpoint."""
        self._loaded.require_open()
        self._loaded.checkpoint.write()

    def run_retention(self, now: int | None = None) -> RetentionResult:
        """Run the cleaning services once. now: ms, compared with the times of the log files; by default the current time."""
        self._loaded.require_open()
        logs = self.retention.clean_log(now_ms() if now is None else now, self._dispatch_loop.position)
        self._update_paused()
        with self._dispatch_loop.lock:
            index = self._recovery.index
            queues, indexes = self.retention.clean_derived(
                list(self._recovery.queues.values()), index if isinstance(index, StoredIndex) else None, self.version
            )
        return RetentionResult(logs, queues, indexes)

    def delete_queues(self, topic: str) -> int:
        """Delete the consume queues of a topic, as a broker does after the topic is deleted; its next message gets queue offset 0.

        The messages stay in the log. Returns the number of queues deleted. Raises TargetError if they cannot be removed.
        """
        self._loaded.require_open()
        with self._appender.lock:
            self._sync_log()  # with SYNC_FLUSH, 5.3 dispatches only what is on disk
            self.dispatch_now()
            with self._dispatch_loop.lock:
                queues = self._recovery.queues
                deleted = [queues.pop(key) for key in list(queues) if key[0] == topic]
                for queue in deleted:
                    queue.destroy()
            self._appender.admission.forget(topic)
        return len(deleted)

    def delete_files_manually(self) -> None:
        """Make the next 20 runs of the cleaning services check the log files at any hour."""
        self.retention.delete_manually()

    def persist(self) -> None:
        """Write the changed tables under config/."""
        self._loaded.require_open()
        self.offsets.persist(self._config_directory)
        for table in (self.topics, self.groups):
            if table.names():
                table.persist(self._config_directory)

    # reading

    @property
    def log_min(self) -> int:
        """Physical offset of the first byte of the log; -1 without files."""
        return self.log.min_offset

    @property
    def log_max(self) -> int:
        """Physical offset after the last record."""
        return self.log.max_offset

    def queues(self) -> list[AnyQueueImage]:
        """Return all consume queues, by topic and queue id."""
        return [queue for _, queue in sorted(self._recovery.queues.copy().items(), key=lambda item: item[0])]

    def queue_or_none(self, topic: str, queue_id: int) -> AnyQueueImage | None:
        """Return one consume queue, or None if nothing was ever dispatched to it."""
        queues = self._recovery.queues
        return queues.get((topic, queue_id, False)) or queues.get((topic, queue_id, True))

    def requested_queue(self, topic: str, queue_id: int) -> AnyQueueImage | None:
        """Return the queue that a client asks for. A broker creates it then: an empty batch queue has other bounds than no queue."""
        queue = self.queue_or_none(topic, queue_id)
        if queue is None and topic in self._recovery.rules.batch_topics:
            return BatchQueueImage(topic, queue_id, self.config.batch_queue_file_size or UNIT_SIZE)
        return queue

    def index_files(self) -> Sequence[IndexImage]:
        """Return the index files, oldest first."""
        return [] if self._recovery.index is None else list(self._recovery.index.files)

    def query(self, topic: str, key: str, max_num: int = MAX_RESULTS, begin: int = 0, end: int = END_OF_TIME) -> QueryResult:
        """Return the newest messages with a key, in log order. begin, end: store times in ms, both included."""
        result = self._queries.find(topic, key, max_num, begin, end)
        return super().query(topic, key, max_num, begin, end) if result is None else result

    def get(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        filter: TagFilter | str | None = None,  # noqa: A002 - the term of the protocol
    ) -> pull.GetResult:
        """Pull at most max_count messages of a queue, from a queue offset on. filter: tags, such as `TagA || TagB`.

        group: the consumer group; the answer does not depend on it. The result holds slices of the log, which are not copied.
        """
        tags = _tags(filter) if isinstance(filter, str) else filter
        hashes = None if tags is None or tags.everything else pull.filter_hashes(tags)
        result: pull.GetResult | None = self._pulls.get(topic, queue_id, offset, max_count, hashes)
        if result is not None:
            return result
        queue = self.requested_queue(topic, queue_id)
        if queue is None:
            return pull.GetResult(pull.GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        codes = None
        if self.config.enable_consume_queue_ext:
            codes = ConsumeQueueExt(self.reading, topic, queue_id, file_size=self.config.consume_queue_ext_file_size).tags_code
        return pull.get_message(self.log, queue, offset, max_count, tags, self._pull_rules, codes)

    # closing

    def close(self) -> None:
        """Shut down cleanly: dispatch, flush and persist everything, remove `abort`, release the lock.

        Every step is attempted, whatever the disk refuses; then the first error is raised. If something cannot be dispatched or
        flushed, `abort` stays, so that the next process recovers, and the checkpoint makes it begin early enough to restore the newest
        index file, which it removes. `abort` also stays, without an error, if a put or dispatch was interrupted.
        """
        if not self._open:
            return
        self._open = False
        errors: list[MqstoreError] = []
        try:
            self._services.stop()
            _attempt(self.delays.stop, errors)
            self._appender.stop()
            whole = not self._dispatch_loop.interrupted and not self._appender.interrupted
            if whole:
                if self._rules.dispatches_flushed_only and self._sync_flush:
                    self.commit.sync()  # dispatch then takes only what is on disk
                steps = (self.dispatch_now, self._sync_files, self._sync_index)
                done = [_attempt(step, errors) for step in steps]
                whole = all(done)
            else:
                self.commit.sync()
            if not whole:
                _attempt(self._reach_back, errors)
            _attempt(self._loaded.checkpoint.write, errors)
            for step in (self.persist, self.log.close, *((lambda: remove_abort(self.directory),) if whole else ())):
                _attempt(step, errors)
        finally:
            self._release()
        if errors:
            raise errors[0]

    def _sync_log(self) -> None:
        if not self.commit.sync():
            raise TargetError(f"{self.commit.failed}; close the store and open it again")

    def _sync_files(self) -> None:
        """Bring log and queues to disk, and note how far that is for the checkpoint."""
        loop = self._dispatch_loop
        listed, dispatched, dispatched_at = loop.last_record, loop.position, loop.last_timestamp
        self._sync_log()
        self._loaded.queue_files.sync()
        self._loaded.checkpoint.synced(min(dispatched, self.log.flushed), physic=self.log.stored_at, logics=dispatched_at, listed=listed)

    def _sync_index(self) -> None:
        index = self._recovery.index
        if isinstance(index, StoredIndex):
            index.sync(headers=self._rules.syncs_index_headers)

    def _reach_back(self) -> None:
        """Let the next process, which will recover, dispatch the records again whose keys are in the index files that it removes."""
        checkpoint = self._loaded.checkpoint
        removed = [
            file
            for file in self.index_files()
            if file.index_count > 1 and (file.index_count < file.positions or file.end_timestamp > checkpoint.index)
        ]
        if removed:
            starts = [file.start for file in self.log.files if file.start > removed[0].begin_physical_offset]
            first_records = [(start, self.record_at(start)) for start in starts]
            checkpoint.reach_back([(start, record.store_timestamp) for start, record in first_records if record is not None])

    def abandon(self) -> None:
        """Release the store as a killed process does: nothing is flushed, and `abort` stays."""
        if not self._open:
            return
        self._open = False
        try:
            self._services.stop()
            self.delays.stop(persist=False)
        finally:
            self._release()

    def _release(self) -> None:
        self._appender.stop()
        with self._dispatch_loop.lock:
            self._loaded.released = True
        try:
            self._config_directory.close()
            self._pulls.close()
        finally:
            self._loaded.close()


def _attempt(step: Callable[[], object], errors: list[MqstoreError]) -> bool:
    """Run a step. Returns whether it succeeded; its error is appended to errors."""
    try:
        step()
    except MqstoreError as error:
        errors.append(error)
        return False
    return True


def _waits(message: Message) -> bool:
    """Return whether a put waits for the disk: unless WAIT is false or the message is delivered after a delay."""
    properties = message.properties
    if isinstance(properties, bytes):
        return b"WAIT\x01false" not in properties and not isinstance(message, DueMessage)
    return properties.get("WAIT") != "false" and not isinstance(message, DueMessage)


_tags = lru_cache(256)(TagFilter.parse)


def _memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
