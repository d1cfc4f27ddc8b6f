"""Dispatch: follow the commit log and add each record to its consume queues and to the index.

    log        [dispatched .............][not yet dispatched .....]
                                         ^ position               ^ end of the log (5.3.3 with SYNC_FLUSH: end of what is flushed)

A round dispatches everything up to that end. An error of the disk leaves the position where it was and the next round tries again; an
interrupt (KeyboardInterrupt and the like) may leave entries that were written but not counted, so nothing is dispatched after it.

Format: docs/formats/rocketmq.md, sections 4 to 6.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from mqstore.errors import MqstoreError, TargetError
from mqstore.kernels.rocketmq import frames
from mqstore.kernels.rocketmq.put import PutPath
from mqstore.rocketmq.live.index_writer import StoredIndex
from mqstore.rocketmq.live.loader import LoadedStore

RECORDS_AT_ONCE = 1 << 16

DispatchListener = Callable[[frozenset[tuple[str, int]]], object]


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
