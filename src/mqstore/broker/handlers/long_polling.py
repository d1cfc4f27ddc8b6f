"""Long polling: pulls at the end of a queue are held until a message comes, or their time is up.

    pull finds nothing new, may be suspended  -> held by topic and queue
    a message is listed in the queue          -> those it is for are pulled again, at once
    every 5 s                                 -> all are pulled again for which there is anything new, also if it is filtered out
    suspendTimeoutMillis over                 -> pulled for the last time, answered whatever comes
    the connection is gone                    -> forgotten

A pull whose filter lets nothing of what came through stays held, and what was looked at once is not looked at again.

Protocol: docs/formats/rocketmq-remoting.md, section 3.3. Source: Apache RocketMQ 4.9.3, PullRequestHoldService.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mqstore.broker.filter.pull_filter import PullFilter
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Component, Context
from mqstore.rocketmq.query.pull import GetStatus

__all__ = ["COMPONENTS", "HeldPull", "LongPolling"]

CHECK_INTERVAL = 5.0  # seconds

QueueKey = tuple[str, int]


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that waits. offset: that it asked for. looked_at: everything before it is filtered out. again: pulls and answers, now."""

    connection: Connection
    group: str
    topic: str
    queue_id: int
    offset: int
    filter: PullFilter
    again: Callable[[], None]
    looked_at: int = 0
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)

    @property
    def key(self) -> QueueKey:
        return self.topic, self.queue_id


class LongPolling(Component):
    """The held pulls of a broker. Used in the event loop only, but for `messages_dispatched`."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._by_queue: dict[QueueKey, set[HeldPull]] = {}
        self._by_connection: dict[Connection, set[HeldPull]] = {}
        self.count = 0

    def start(self) -> None:
        store = self.context.store.writable
        if store is not None:
            store.on_dispatch(self.messages_dispatched)
        self.context.spawn(self._check_all_periodically())

    async def stop(self) -> None:
        store = self.context.store.writable
        if store is not None:
            store.on_dispatch(None)
        self._answer([held for queue in list(self._by_queue.values()) for held in queue])

    def connection_lost(self, connection: Connection) -> None:
        for held in self._by_connection.pop(connection, set()):
            self._forget(held)

    def hold(self, held: HeldPull, milliseconds: int) -> bool:
        """Hold a pull for so long. Returns whether it is held; it is not if too many are, or something has come meanwhile."""
        if self.count >= self.context.settings.max_held_pulls or not self.context.accepting:
            return False
        held.looked_at = held.offset
        self._by_queue.setdefault(held.key, set()).add(held)
        self._by_connection.setdefault(held.connection, set()).add(held)
        self.count += 1
        if self._has_news(held):
            self._forget(held)
            return False
        held.timer = self.context.loop.call_later(max(milliseconds, 0) / 1000, self._expire, held)
        return True

    # waking

    def messages_dispatched(self, queues: frozenset[QueueKey]) -> None:
        """Messages were listed in queues. Called by the thread that lists them."""
        if self.count:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self.context.loop.call_soon_threadsafe(self._check, queues)

    def wake(self, group: str, topic: str) -> None:
        """Pull again for a group whose offsets in a topic were moved."""
        waiting = [held for key, queue in self._by_queue.items() if key[0] == topic for held in queue if held.group == group]
        self._answer(waiting)

    def _check(self, queues: Iterable[QueueKey]) -> None:
        """Answer those for whom something has come."""
        for key in queues:
            waiting = self._by_queue.get(key)
            if waiting:
                self._answer([held for held in waiting if self._has_news(held)])

    def _has_news(self, held: HeldPull) -> bool:
        """Whether there is a message that the filter lets through, or anything else than messages that it does not."""
        store = self.context.store
        end = store.max_offset(held.topic, held.queue_id)
        if held.filter.everything:
            return end > held.offset
        while held.looked_at < end:
            found = held.filter.get(store, held.group, held.topic, held.queue_id, held.looked_at, 1)
            if found.status is not GetStatus.NO_MATCHED_MESSAGE or found.next_begin_offset <= held.looked_at:
                return True
            held.looked_at = found.next_begin_offset
        return False

    async def _check_all_periodically(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            store = self.context.store
            for topic, queue_id in list(self._by_queue):
                end = store.max_offset(topic, queue_id)
                waiting = self._by_queue.get((topic, queue_id), set())
                self._answer([held for held in waiting if end > held.offset])

    def _expire(self, held: HeldPull) -> None:
        self._answer([held])

    def _answer(self, pulls: list[HeldPull]) -> None:
        for held in pulls:
            self._forget(held)
            if not held.connection.closed:
                held.again()

    def _forget(self, held: HeldPull) -> None:
        waiting = self._by_queue.get(held.key)
        if waiting is None or held not in waiting:
            return
        self.count -= 1
        waiting.discard(held)
        if not waiting:
            del self._by_queue[held.key]
        of_connection = self._by_connection.get(held.connection)
        if of_connection is not None:
            of_connection.discard(held)
            if not of_connection:
                del self._by_connection[held.connection]
        if held.timer is not None:
            held.timer.cancel()


COMPONENTS = (LongPolling,)
