"""The threads of a store that is open for writing: dispatch, flush, cleaning.

    dispatch        follows the log; sleeps a millisecond when there is nothing to do
    pages           provides memory for the records to come while many come (not with SYNC_FLUSH)
    housekeeping    each at its own interval:
                    flush of the log (500 ms; all of it every 10 s), of queues (1 s; all of them, with the checkpoint, every 60 s),
                    the checkpoint (1 s, 5.3), cleaning (10 s, first after 60 s), consumer offsets (5 s, first after 10 s),
                    creation of the next log file in advance

A step that fails is retried in the next turn; a log that cannot be synced accepts no more messages.

Format: docs/formats/rocketmq.md, sections 4 to 6, 7.2 and 9.1.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from mqstore.errors import MqstoreError, TargetError
from mqstore.kernels.rocketmq import frames
from mqstore.kernels.rocketmq.put import PutPath
from mqstore.rocketmq.append.delay import DelayService
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.live.commit_log_writer import LiveLog
from mqstore.rocketmq.live.group_commit import GroupCommit
from mqstore.rocketmq.live.index_writer import StoredIndex
from mqstore.rocketmq.live.loader import LoadedStore

TICK = 0.02
IDLE = 0.001
BUSY = 0.003  # between two rounds of dispatch while messages keep coming: larger rounds cost less per message
BUSY_PAGES = 0.001  # between two looks at the log while many messages come
LAG_LIMIT = 8 << 20  # bytes of log not dispatched, from which puts yield to dispatch
PUT_YIELD = 40  # microseconds for which every 256th put then yields
FIRST_CLEANING = 60.0
FIRST_PERSIST = 10.0
RECORDS_AT_ONCE = 1 << 16

DispatchListener = Callable[[frozenset[tuple[str, int]]], object]


class WritableStore(Protocol):
    """What the threads call of a store."""

    version: str
    config: StoreConfig
    log: LiveLog
    commit: GroupCommit
    delays: DelayService

    @property
    def dispatch_lag(self) -> int: ...
    def dispatch_now(self) -> int: ...
    def set_put_yield(self, microseconds: int) -> None: ...
    def flush(self) -> None: ...
    def flush_queues(self, least_pages: int) -> None: ...
    def write_checkpoint(self) -> None: ...
    def release_pages(self) -> None: ...
    def run_retention(self) -> object: ...
    def persist(self) -> None: ...


class Services:
    """Starts and stops the threads of a store."""

    def __init__(self, store: WritableStore) -> None:
        self._store = store
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start all threads."""
        threads = {"dispatch": self._dispatch, "housekeeping": self._housekeep}
        if self._store.config.flush_disk_type != "SYNC_FLUSH":  # every sync would write the pages that are provided ahead
            threads["pages"] = self._provide_pages
        for name, run in threads.items():
            thread = threading.Thread(target=run, name=f"mqstore-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._store.delays.start()

    def stop(self) -> None:
        """Stop all threads, once they have finished what they are doing."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _dispatch(self) -> None:
        store = self._store
        while not self._stop.is_set():
            count = 0
            try:
                if store.dispatch_lag:
                    count = store.dispatch_now()
            except MqstoreError:
                self._stop.wait(1.0)  # puts are refused meanwhile
            store.set_put_yield(PUT_YIELD if store.dispatch_lag > LAG_LIMIT else 0)
            time.sleep(BUSY if count else IDLE)

    def _provide_pages(self) -> None:
        while not self._stop.is_set():
            time.sleep(BUSY_PAGES if self._store.log.populate() else TICK)

    def _housekeep(self) -> None:
        store, config = self._store, self._store.config
        now = time.monotonic()
        thorough = 0.0
        flushed = queues = checkpoint = now
        whole = now
        cleaned = now + FIRST_CLEANING - config.clean_resource_interval / 1000
        persisted = now + FIRST_PERSIST - config.flush_consumer_offset_interval / 1000
        while not self._stop.wait(TICK):
            now = time.monotonic()
            self._try(store.log.prepare_next)
            if now - flushed >= config.flush_interval_commit_log / 1000:
                flushed = now
                all_of_it = now - thorough >= config.flush_commit_log_thorough_interval / 1000
                if all_of_it or store.log.max_offset - store.log.flushed >= config.flush_commit_log_least_pages * 4096:
                    thorough = now if all_of_it else thorough
                    store.commit.sync()
                if all_of_it:
                    store.release_pages()
            if now - queues >= config.flush_interval_consume_queue / 1000:
                queues = now
                if now - whole >= config.flush_consume_queue_thorough_interval / 1000:
                    whole = now
                    self._try(store.flush)
                else:
                    self._try(lambda: store.flush_queues(config.flush_consume_queue_least_pages))
            if version_rules(store.version).writes_checkpoint_each_second and now - checkpoint >= 1.0:
                checkpoint = now
                self._try(store.write_checkpoint)
            if now - cleaned >= config.clean_resource_interval / 1000:
                cleaned = now
                self._try(store.run_retention)
            if now - persisted >= config.flush_consumer_offset_interval / 1000:
                persisted = now
                self._try(store.persist)

    def _try(self, work: Callable[[], object]) -> None:
        with contextlib.suppress(MqstoreError):
            work()


# Dispatch: follow the commit log and add each record to its consume queues and to the index.
#
#     log        [dispatched .............][not yet dispatched .....]
#                                          ^ position               ^ end of the log (5.3.3 with SYNC_FLUSH: end of what is flushed)
#
# A round dispatches everything up to that end. An error of the disk leaves the position where it was and the next round tries again; an
# interrupt (KeyboardInterrupt and the like) may leave entries that were written but not counted, so nothing is dispatched after it.


class DispatchLoop:
    """Dispatches the records of an open store.

    lock: held while anything is dispatched, or while queues and index files are removed.
    position: physical offset after the last dispatched record. last_timestamp: its store time, ms; 0 if nothing was dispatched.
    last_record: physical offset of its first byte; 0 likewise.
    failure: why dispatch has stopped; empty if it has not. interrupted: whether queues and position may disagree.
    """

    def __init__(self, loaded: LoadedStore, path: PutPath, *, flushed_only: bool, on_state_change: Callable[[], object]) -> None:
        """path: the fast path of puts, which must know the checkpoint's index time. flushed_only: dispatch only what is on disk.

        on_state_change: called, with the lock held, after `failure` was set or cleared.
        """
        self.lock = threading.Lock()
        self.position = loaded.log.max_offset
        self.last_timestamp = 0
        self.last_record = 0
        self.failure = ""
        self.interrupted = False
        self._loaded = loaded
        self._log = loaded.log
        self._recovery = loaded.recovery
        self._path = path
        self._flushed_only = flushed_only
        self._on_state_change = on_state_change
        self._listener: DispatchListener | None = None
        self._positions = np.empty(RECORDS_AT_ONCE, np.int64)

    def run(self) -> int:
        """Dispatch everything up to the end of the log. Returns the number of records. Raises TargetError if queues or index fail."""
        self._loaded.require_open()
        with self.lock:
            self._loaded.require_open()
            if self.interrupted:
                raise TargetError(self.failure)
            try:
                count = self._dispatch()
                self._checkpoint_full_index()
            except MqstoreError as error:
                self._set_failure(f"queues or index cannot be written: {error}")
                raise
            except BaseException:
                self.interrupted = True
                self._set_failure("dispatch was interrupted; close the store and open it again")
                raise
            if self.failure:
                self._set_failure("")
            if self._listener is not None and self._recovery.touched_queues:
                touched, self._recovery.touched_queues = self._recovery.touched_queues, set()
                self._listener(frozenset(touched))
            return count

    def set_listener(self, listener: DispatchListener | None) -> None:
        """Call a function with the queues (topic, queue id) that each round touched; None removes it."""
        with self.lock:
            self._listener = listener
            self._recovery.touched_queues = None if listener is None else set()

    @property
    def lag(self) -> int:
        """Bytes of log that are not dispatched yet."""
        return max(0, self._log.max_offset - self.position)

    def _set_failure(self, sentence: str) -> None:
        self.failure = sentence
        self._on_state_change()

    def _dispatch(self) -> int:
        log = self._log
        end = log.flushed if self._flushed_only else log.max_offset
        count = 0
        while self.position < end:
            file = log.file_at(self.position)
            if file is None:
                if self.position < log.min_offset:
                    self.position = log.min_offset
                    continue
                break
            data = np.frombuffer(log.view(file), np.uint8)
            start, stop = self.position - file.start, min(end - file.start, file.written)
            walked, after, status = frames.walk(data, start, stop, file.start, True, self._positions)
            if walked:
                self.last_timestamp = self._recovery.dispatch(data, self._positions[:walked].copy(), self._recovery.rules)
                self.last_record = file.start + int(self._positions[walked - 1])
                count += walked
            if status in (frames.STOP, frames.FULL):
                self.position = file.start + after
            elif status == frames.BLANK:
                self.position = file.start + file.size
            else:
                raise TargetError(f"{file.relative}: byte {after} was written as the start of a record, but is not one; verify the store")
            if status == frames.STOP and walked == 0 and after == start:
                break
        return count

    def _checkpoint_full_index(self) -> None:
        """Let the checkpoint name the last full index file, once a newer file with a later end is on disk."""
        index, full = self._recovery.index, self._loaded.full_index
        if not full or not isinstance(index, StoredIndex):
            return
        full[:] = [file for file in full if file in index.files]  # retention may have removed some
        if not full:
            return
        for file in full:
            file.sync()
        if index.files[-1].end_timestamp > full[-1].end_timestamp:
            index.sync(headers=False)
            checkpoint = self._loaded.checkpoint
            checkpoint.index = max(file.end_timestamp for file in full)
            self._path.not_after = checkpoint.index
            full.clear()
            checkpoint.write()
