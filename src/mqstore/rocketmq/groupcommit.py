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


class GroupCommit:
    """sync: brings the log to disk and returns how far it is. failed: the sentence of the sync that failed, if one did."""

    def __init__(self, sync: Callable[[], int], on_failure: Callable[[], object]) -> None:
        """on_failure: told when a sync has failed."""
        self._sync = sync
        self._on_failure = on_failure
        self._changed = threading.Condition()
        self._leading = False
        self._done = 0
        self._serving = False
        self._waiting: list[tuple[int, asyncio.Future[bool], asyncio.AbstractEventLoop]] = []
        self.failed: str | None = None

    def sync(self) -> bool:
        """Sync now, whoever asks; False once a sync has failed."""
        try:
            done = self._sync() if self.failed is None else self._done
        except MqstoreError as error:
            done = self._done
            self.failed = str(error)
            self._on_failure()
        with self._changed:
            self._done = max(self._done, done)
            self._changed.notify_all()
        return self.failed is None

    def wait(self, physical_offset: int, timeout: float) -> bool:
        """Return once the log is on disk up to a physical offset; False if that takes longer than timeout (s) or has failed."""
        end = time.monotonic() + timeout
        while True:
            with self._changed:
                while self._leading and self._done < physical_offset and self.failed is None:
                    left = end - time.monotonic()
                    if left <= 0 or not self._changed.wait(left):
                        return self._done >= physical_offset
                if self._done >= physical_offset or self.failed is not None:
                    return self._done >= physical_offset
                self._leading = True
            try:
                self.sync()
            finally:
                with self._changed:
                    self._leading = False
                    self._changed.notify_all()
            if time.monotonic() > end:
                return False

    async def wait_async(self, physical_offset: int, timeout: float) -> bool:
        """As `wait`, without holding up the event loop: all who wait in one loop share one thread."""
        if self._done >= physical_offset:
            return True
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        with self._changed:
            self._waiting.append((physical_offset, future, loop))
            begin, self._serving = not self._serving, True
        if begin:
            try:
                loop.run_in_executor(None, self._serve, timeout)
            except BaseException:
                with self._changed:
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
            with self._changed:
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
