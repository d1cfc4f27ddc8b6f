"""Queue locks: which client of a group may consume a queue in order.

An orderly consumer locks its queues with LOCK_BATCH_MQ (41) and renews them every 20 seconds; a lock that was not renewed for 60
seconds is free for others. UNLOCK_BATCH_MQ (42) frees a client's own queues. A lost connection frees nothing.

    >>> locks = QueueLocks()
    >>> queue = Queue("T", "broker-a", 0)
    >>> locks.lock("g", [queue], "c@1", now=0), locks.lock("g", [queue], "c@2", now=60_000), locks.lock("g", [queue], "c@2", now=60_001)
    ([Queue(topic='T', broker_name='broker-a', queue_id=0)], [], [Queue(topic='T', broker_name='broker-a', queue_id=0)])

Pulls are not checked against locks: they are an agreement between clients.

Protocol: docs/formats/rocketmq-remoting.md, section 3.10. Source: Apache RocketMQ 4.9.3, RebalanceLockManager.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mqstore.broker.bodies import Queue

__all__ = ["QueueLocks"]

EXPIRES = 60_000  # ms


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed: int


class QueueLocks:
    """All locks, by group and queue. now: ms, of a clock that does not jump."""

    def __init__(self) -> None:
        self._held: dict[str, dict[Queue, _Lock]] = {}

    def lock(self, group: str, queues: Iterable[Queue], client_id: str, now: int) -> list[Queue]:
        """Lock queues for a client, or renew its locks. Returns those that it has now."""
        held = self._held.setdefault(group, {})
        granted = []
        for queue in queues:
            lock = held.get(queue)
            if lock is None or lock.client_id == client_id or now - lock.renewed > EXPIRES:
                held[queue] = _Lock(client_id, now)
                granted.append(queue)
        return granted

    def unlock(self, group: str, queues: Iterable[Queue], client_id: str) -> None:
        """Free those of the queues that the client has."""
        held = self._held.get(group, {})
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]
        if not held:
            self._held.pop(group, None)

    def expire(self, now: int) -> None:
        """Forget what nobody renews."""
        for group, held in list(self._held.items()):
            for queue in [queue for queue, lock in held.items() if now - lock.renewed > EXPIRES]:
                del held[queue]
            if not held:
                del self._held[group]
