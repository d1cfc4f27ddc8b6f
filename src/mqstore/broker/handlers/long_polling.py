"""Long polling: pulls at the end of a queue are held until a message arrives or they time out.

    pull finds nothing new, may be suspended  -> held by topic and queue
    a message is dispatched to the queue      -> held pulls that it matches are retried at once
    every 5 s                                 -> held pulls of queues that grew are retried, even if the filter rejects the messages
    suspendTimeoutMillis elapsed              -> retried for the last time and answered in any case
    the connection is lost                    -> dropped

A pull stays held while its filter rejects all new messages; each message is checked once. A held pull keeps its compiled filter and what
its response needs, not its frame. It is held for `Settings.max_hold_time` at most, whatever it asks for, and number and bytes of held
pulls are bounded: over all clients, for each remote address, and for each connection.

Protocol: docs/formats/rocketmq-remoting.md, section 3.3. Source: Apache RocketMQ 4.9.3, PullRequestHoldService.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mqstore.broker.handlers.pull_filter import PullFilter
from mqstore.broker.protocol.codes import ResponseCode
from mqstore.broker.protocol.frames import ResponseError
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Component, Context
from mqstore.rocketmq.query.pull import GetStatus

CHECK_INTERVAL = 5.0  # seconds

QueueKey = tuple[str, int]


@dataclass(slots=True, eq=False)
class HeldPull:
    """A held pull. offset: the requested one. size: bytes of memory that it takes, as `held_size` gives them.

    looked_at: the filter rejected everything before it. again: pulls again and responds.
    """

    connection: Connection
    group: str
    topic: str
    queue_id: int
    offset: int
    filter: PullFilter
    size: int
    again: Callable[[], None]
    looked_at: int = 0
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)

    @property
    def key(self) -> QueueKey:
        return self.topic, self.queue_id


class LongPolling(Component):
    """The held pulls of a broker. Used in the event loop only, except `messages_dispatched`."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._by_queue: dict[QueueKey, set[HeldPull]] = {}
        self._by_connection: dict[Connection, set[HeldPull]] = {}
        self.count = 0

    def start(self) -> None:
        store = self.context.store.writable
        if store is not None:
            store.on_dispatch(self.messages_dispatched)
        self.context.repeat(CHECK_INTERVAL, self._check_all)

    async def stop(self) -> None:
        store = self.context.store.writable
        if store is not None:
            store.on_dispatch(None)
        self._answer([held for queue in list(self._by_queue.values()) for held in queue])

    def connection_lost(self, connection: Connection) -> None:
        for held in self._by_connection.pop(connection, set()):
            self._forget(held)

    def hold(self, held: HeldPull, milliseconds: int) -> bool:
        """Hold a pull. Returns False if a message has arrived meanwhile. Raises ResponseError if too much is held."""
        if not self.context.accepting:
            return False
        self._take(held)
        held.looked_at = held.offset
        self._by_queue.setdefault(held.key, set()).add(held)
        self._by_connection.setdefault(held.connection, set()).add(held)
        self.count += 1
        if self._has_news(held):
            self._forget(held)
            return False
        longest = self.context.settings.max_hold_time
        held.timer = self.context.loop.call_later(min(max(milliseconds, 0), longest) / 1000, self._expire, held)
        return True

    def _take(self, held: HeldPull) -> None:
        """Count a pull in the quotas of what is held. Raises ResponseError."""
        quotas, connection = self.context.shared.quotas, held.connection
        most = self.context.settings.max_client_held_pulls
        if len(self._by_connection.get(connection, ())) >= most:
            why = f"there are too many held pulls: the limit of one connection is {most:,}"
        else:
            why = quotas.held_pulls.take(connection.host)
            if not why:
                why = quotas.held_bytes.take(connection.host, held.size)
                if why:
                    quotas.held_pulls.give(connection.host)
        if why:
            raise ResponseError(ResponseCode.SYSTEM_BUSY, f"broker busy, start flow control for a while: {why}")

    # waking

    def messages_dispatched(self, queues: frozenset[QueueKey]) -> None:
        """Wake pulls of queues that got messages. Called by the dispatch thread."""
        if self.count:
            with contextlib.suppress(RuntimeError):  # the event loop may be closed
                self.context.loop.call_soon_threadsafe(self._check, queues)

    def wake(self, group: str, topic: str) -> None:
        """Retry the pulls of a group whose offsets of a topic were reset."""
        waiting = [held for key, queue in self._by_queue.items() if key[0] == topic for held in queue if held.group == group]
        self._answer(waiting)

    def _check(self, queues: Iterable[QueueKey]) -> None:
        """Retry the held pulls of these queues that have news."""
        for key in queues:
            waiting = self._by_queue.get(key)
            if waiting:
                self._answer([held for held in waiting if self._has_news(held)])

    def _has_news(self, held: HeldPull) -> bool:
        """Return whether there is a message that passes the filter, or any status other than no matching message."""
        store = self.context.store
        end = store.max_offset(held.topic, held.queue_id)
        if held.filter.everything:
            return end > held.offset
        while held.looked_at < end:
            result = held.filter.get(store, held.group, held.topic, held.queue_id, held.looked_at, 1)
            if result.status is not GetStatus.NO_MATCHED_MESSAGE or result.next_begin_offset <= held.looked_at:
                return True
            held.looked_at = result.next_begin_offset
        return False

    def _check_all(self) -> None:
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
        self.context.shared.quotas.held_pulls.give(held.connection.host)
        self.context.shared.quotas.held_bytes.give(held.connection.host, held.size)
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
