"""Group commit: one sync of the log answers everyone who waited for it.

The first who must wait becomes the leader and syncs; all others wait, and whoever is not covered when the sync returns
leads the next one. Whose time is up is told no, even if the disk was only slow.

A sync that fails is never repeated: what the disk made of the bytes is unknown from then on, so `failed` stays set and
everyone waiting is told no.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

from mqstore.errors import MqstoreError

__all__ = ["GroupCommit"]


GATHERING = 0.00005  # seconds that a leader who is not alone gives the others to append what his sync can cover, too


class _Waiter:
    """One who waits. turn: held until there is an answer, or he is to lead."""

    __slots__ = ("physical_offset", "turn")

    def __init__(self, physical_offset: int) -> None:
        self.physical_offset = physical_offset
        self.turn = threading.Lock()
        self.turn.acquire()


class GroupCommit:
    """sync: brings the log to disk and returns how far it is. failed: the sentence of the sync that failed, if one did."""

    def __init__(self, sync: Callable[[], int], on_failure: Callable[[], object]) -> None:
        """on_failure: told when a sync has failed."""
        self._sync = sync
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._leading = False
        self._queue: list[_Waiter] = []
        self._together = False  # whether the last sync answered several
        self._done = 0
        self._serving = False
        self._waiting: list[tuple[int, asyncio.Future[bool], asyncio.AbstractEventLoop]] = []
        self.failed: str | None = None

    def sync(self) -> bool:
        """Sync now, whoever asks; False once a sync has failed."""
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
        """Return once the log is on disk up to a physical offset; False if that takes longer than timeout (s) or has failed."""
        end = time.monotonic() + timeout
        while self._done < physical_offset and self.failed is None:
            with self._lock:
                waiter = _Waiter(physical_offset) if self._leading else None
                if waiter is None:
                    self._leading = True
                else:
                    self._queue.append(waiter)
            if waiter is None:
                self._lead()
                if time.monotonic() > end:
                    return False
            elif not waiter.turn.acquire(timeout=max(0.0, end - time.monotonic())):
                with self._lock:
                    if waiter in self._queue:
                        self._queue.remove(waiter)
                        return False
                # the answer, or the lead, came at the last moment: the lead must not be lost
        return self._done >= physical_offset

    def _lead(self) -> None:
        """Sync once, answer everyone whom it covers, and let one of the others lead on."""
        try:
            if self._together:
                time.sleep(GATHERING)
            self.sync()
        finally:
            with self._lock:
                self._leading = False
                answered = [each for each in self._queue if each.physical_offset <= self._done or self.failed is not None]
                rest = [each for each in self._queue if each not in answered]
                self._together = len(answered) > 0
                # who has not been covered tries again, the first of them as leader
                answered += rest[:1]
                self._queue = rest[1:]
            for each in answered:
                each.turn.release()

    async def wait_async(self, physical_offset: int, timeout: float) -> bool:
        """As `wait`, without holding up the event loop: all who wait in one loop share one thread."""
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
        expiry = loop.call_later(timeout, _answer, future, False)
        try:
            return await future
        finally:
            expiry.cancel()

    def _serve(self, timeout: float) -> None:
        """Sync until nobody waits any more."""
        while True:
            with self._lock:
                asked, self._waiting = self._waiting, []
                if not asked:
                    self._serving = False
                    return
            good = self.wait(max(offset for offset, _, _ in asked), timeout)
            for offset, future, loop in asked:
                with contextlib.suppress(RuntimeError):  # the loop of one who no longer waits may be closed
                    loop.call_soon_threadsafe(_answer, future, good or self._done >= offset)


def _answer(future: asyncio.Future[bool], good: bool) -> None:
    if not future.done():
        future.set_result(good)
