"""Group commit: one sync of the log answers all threads that wait for it.

The first thread that must wait becomes the leader and syncs; the others wait, and one that is not covered when the sync returns
leads the next one. Before it syncs, a leader gives the threads that the last sync concerned time to put their next message, so that
one sync covers them all; it goes on at once when as many wait as then. A thread whose time is up gets a negative answer, even if the
disk was only slow.

A failed sync is never repeated: it is unknown what the disk did with the bytes, so `failed` stays set and all waiting threads get a
negative answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

from mqstore.errors import MqstoreError

GATHERING = 0.001  # seconds that a leader waits at most for the threads that the last sync concerned, and
GATHERING_SHARE = 2  # no longer than this many times what the last sync took


class _Waiter:
    """A waiting thread. turn: a lock that is released when there is an answer, or when this thread is to lead."""

    __slots__ = ("physical_offset", "turn")

    def __init__(self, physical_offset: int) -> None:
        self.physical_offset = physical_offset
        self.turn = threading.Lock()
        self.turn.acquire()


class GroupCommit:
    """sync: brings the log to disk and returns its flushed offset. failed: the sentence of the sync that failed, or None."""

    def __init__(self, sync: Callable[[], int], on_failure: Callable[[], object]) -> None:
        """on_failure: called when a sync has failed."""
        self._sync = sync
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._leading = False
        self._queue: list[_Waiter] = []
        self._expected = 1  # threads that the last sync concerned: its leader, those it answered and those that came too late for it
        self._took = 0.0  # seconds that it took
        self._gathered: threading.Lock | None = None  # released when as many wait, while a leader waits for that
        self._done = 0
        self._serving = False
        self._waiting: list[tuple[int, asyncio.Future[bool], asyncio.AbstractEventLoop]] = []
        self.failed: str | None = None

    def sync(self) -> bool:
        """Sync now. Returns False once a sync has failed."""
        done = self._done
        try:
            if self.failed is None:
                done = self._sync()
        except MqstoreError as error:
            self.failed = str(error)
            self._on_failure()
        with self._lock:
            self._done = max(self._done, done)
        return self.failed is None

    def wait(self, physical_offset: int, timeout: float) -> bool:
        """Wait until the log is on disk up to a physical offset. Returns False after timeout (s) or if a sync failed."""
        end = time.monotonic() + timeout
        while self._done < physical_offset and self.failed is None:
            with self._lock:
                waiter = _Waiter(physical_offset) if self._leading else None
                if waiter is None:
                    self._leading = True
                else:
                    self._queue.append(waiter)
                    if self._gathered is not None and len(self._queue) + 1 >= self._expected:
                        gathered, self._gathered = self._gathered, None
                        gathered.release()
            if waiter is None:
                self._lead()
                if time.monotonic() > end:
                    return False
            elif not waiter.turn.acquire(timeout=max(0.0, end - time.monotonic())):
                with self._lock:
                    if waiter in self._queue:
                        self._queue.remove(waiter)
                        return False
                # the answer or the lead arrived at the last moment: the lead must not be lost
        return self._done >= physical_offset

    def _lead(self) -> None:
        """Sync once, answer all threads that it covers, and let one of the others lead."""
        try:
            self._gather()
            begin = time.monotonic()
            self.sync()
            self._took = time.monotonic() - begin
        finally:
            with self._lock:
                self._leading = False
                answered = [each for each in self._queue if each.physical_offset <= self._done or self.failed is not None]
                rest = [each for each in self._queue if each not in answered]
                self._expected = 1 + len(self._queue)
                # threads that are not covered try again, the first of them as leader
                answered += rest[:1]
                self._queue = rest[1:]
            for each in answered:
                each.turn.release()

    def _gather(self) -> None:
        """Wait until as many threads wait as the last sync concerned, for a limited time."""
        with self._lock:
            if len(self._queue) + 1 >= self._expected:
                return
            gathered = self._gathered = threading.Lock()
            gathered.acquire()
        gathered.acquire(timeout=min(GATHERING, GATHERING_SHARE * self._took))
        with self._lock:
            self._gathered = None

    async def wait_async(self, physical_offset: int, timeout: float) -> bool:
        """Wait as `wait` does, without blocking the event loop: all waiting calls of a loop share one thread."""
        if self._done >= physical_offset:
            return True
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        with self._lock:
            self._waiting.append((physical_offset, future, loop))
            begin, self._serving = not self._serving, True
        if begin:
            try:
                loop.run_in_executor(None, self._serve, timeout)
            except BaseException:
                with self._lock:
                    self._serving = False
                raise
        expiry = loop.call_later(timeout, _resolve, future, False)
        try:
            return await future
        finally:
            expiry.cancel()

    def _serve(self, timeout: float) -> None:
        """Sync until no call waits."""
        while True:
            with self._lock:
                waiting, self._waiting = self._waiting, []
                if not waiting:
                    self._serving = False
                    return
            flushed = self.wait(max(offset for offset, _, _ in waiting), timeout)
            for offset, future, loop in waiting:
                with contextlib.suppress(RuntimeError):  # the loop of a call that no longer waits may be closed
                    loop.call_soon_threadsafe(_resolve, future, flushed or self._done >= offset)


def _resolve(future: asyncio.Future[bool], flushed: bool) -> None:
    if not future.done():
        future.set_result(flushed)
