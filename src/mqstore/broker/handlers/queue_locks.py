"""Queue locks: which client of a group may consume a queue in order.

An orderly consumer locks its queues with LOCK_BATCH_MQ (41) and renews them every 20 seconds; a lock that was not renewed for 60
seconds expires. UNLOCK_BATCH_MQ (42) releases a client's own queues. A lost connection releases nothing.

    >>> locks = QueueLocks()
    >>> queue = MessageQueue("T", "broker-a", 0)
    >>> locks.lock("g", [queue], "c@1", now=0), locks.lock("g", [queue], "c@2", now=60_000), locks.lock("g", [queue], "c@2", now=60_001)
    ([MessageQueue(topic='T', broker_name='broker-a', queue_id=0)], [], [MessageQueue(topic='T', broker_name='broker-a', queue_id=0)])

Pulls are not checked against locks: they are an agreement between clients.

Protocol: docs/formats/rocketmq-remoting.md, section 3.10. Source: Apache RocketMQ 4.9.3, RebalanceLockManager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from mqstore.broker.protocol import bodies
from mqstore.broker.protocol.bodies import MessageQueue
from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError, make_response
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Component, Context, Handler

EXPIRES = 60_000  # ms


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed: int


class QueueLocks:
    """All locks, by group and queue. expires: ms after which a lock that is not renewed expires. now: ms."""

    def __init__(self, expires: int = EXPIRES) -> None:
        self.expires = expires
        self._held: dict[str, dict[MessageQueue, _Lock]] = {}

    def __len__(self) -> int:
        """Return the number of locks, expired ones included."""
        return sum(map(len, self._held.values()))

    def new(self, group: str, queues: Iterable[MessageQueue]) -> int:
        """Return how many of the queues have no lock yet."""
        held = self._held.get(group, {})
        return sum(queue not in held for queue in set(queues))

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str, now: int) -> list[MessageQueue]:
        """Lock queues for a client, or renew its locks. Returns those that it holds."""
        held = self._held.setdefault(group, {})
        granted = []
        for queue in queues:
            lock = held.get(queue)
            if lock is None or lock.client_id == client_id or now - lock.renewed > self.expires:
                held[queue] = _Lock(client_id, now)
                granted.append(queue)
        return granted

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Release those of the queues that the client holds."""
        held = self._held.get(group, {})
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]
        if not held:
            self._held.pop(group, None)

    def expire(self, now: int) -> None:
        """Drop expired locks."""
        for group, held in list(self._held.items()):
            for queue in [queue for queue, lock in held.items() if now - lock.renewed > self.expires]:
                del held[queue]
            if not held:
                del self._held[group]


class LockComponent(Component):
    """The locks of a broker."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.table = QueueLocks(context.settings.lock_timeout)

    def start(self) -> None:
        self.context.spawn(self._scan())

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(self.context.settings.lock_timeout / 1000)
            self.table.expire(self.context.clock())


def _parse_lock_request(request: Frame) -> tuple[str, str, list[MessageQueue]]:
    """Return (group, client id, queues) of a request."""
    body = bodies.parse_request(request)
    group, client_id, named = body.get("consumerGroup"), body.get("clientId"), body.get("mqSet")
    if not isinstance(group, str) or not isinstance(client_id, str):
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "the body must name consumerGroup and clientId")
    queues = []
    for queue in named if isinstance(named, list) else ():
        topic, broker, number = (queue.get(name) for name in ("topic", "brokerName", "queueId")) if isinstance(queue, dict) else (None,) * 3
        if not isinstance(topic, str) or not isinstance(broker, str) or not isinstance(number, int):
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "a queue of mqSet must have topic, brokerName and queueId")
        queues.append(MessageQueue(topic, broker, number))
    return group, client_id, queues


def lock_batch(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 41: lock queues and return those that the client holds."""
    group, client_id, queues = _parse_lock_request(request)
    table = context.component(LockComponent).table
    context.limits.name(group, "consumer group")
    context.limits.name(client_id, "client")
    for queue in queues:
        context.limits.name(queue.topic, "topic")
        context.limits.name(queue.broker_name, "broker")
    context.limits.check("queue locks", len(table), table.new(group, queues))
    granted = table.lock(group, queues, client_id, context.clock())
    return make_response(request, body=bodies.encode({"lockOKMQSet": granted}))


def unlock_batch(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 42: release the client's own queues."""
    group, client_id, queues = _parse_lock_request(request)
    context.component(LockComponent).table.unlock(group, queues, client_id)
    return make_response(request)


COMPONENTS = (LockComponent,)
HANDLERS: dict[int, Handler] = {RequestCode.LOCK_BATCH_MQ: lock_batch, RequestCode.UNLOCK_BATCH_MQ: unlock_batch}
