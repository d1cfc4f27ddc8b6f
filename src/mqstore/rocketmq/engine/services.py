"""The threads of a store that is open for writing: dispatch, flush, cleaning.

    dispatch        follows the log; sleeps a millisecond when there is nothing to do
    pages           provides memory for the records to come while many come (not with SYNC_FLUSH)
    housekeeping    each at its own interval:
                    flush of the log (500 ms; all of it every 10 s), of queues (1 s; all of them, with the checkpoint, every 60 s),
                    the checkpoint (1 s, 5.3), cleaning (10 s, first after 60 s), consumer offsets (5 s, first after 10 s),
                    creation of the next log file in advance

A step that fails is retried in the next turn; a log that cannot be synced accepts no more messages.

Format: docs/formats/rocketmq.md, sections 6.2, 7.2 and 9.1.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Protocol

from mqstore.errors import MqstoreError
from mqstore.rocketmq.append.delay import DelayService
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.live.commit_log_writer import LiveLog
from mqstore.rocketmq.live.group_commit import GroupCommit

TICK = 0.02
IDLE = 0.001
BUSY = 0.003  # between two rounds of dispatch while messages keep coming: larger rounds cost less per message
BUSY_PAGES = 0.001  # between two looks at the log while many messages come
LAG_LIMIT = 8 << 20  # bytes of log not dispatched, from which puts yield to dispatch
PUT_YIELD = 40  # microseconds for which every 256th put then yields
FIRST_CLEANING = 60.0
FIRST_PERSIST = 10.0


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
