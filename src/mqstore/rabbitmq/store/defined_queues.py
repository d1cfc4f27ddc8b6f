"""Queues that only the node's metadata knows: empty classic queues without a directory, and queues of types that are not read.

3.8 and 3.9 create the directory of a queue with its first message on disk. Quorum queues are Raft logs below `quorum/`, streams are
below `stream/`; without the node's metadata only their directories show that there are some.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqstore.errors import CannotOpenError
from mqstore.rabbitmq.definitions.document import queue_type
from mqstore.rabbitmq.definitions.metadata import CLASSIC

if TYPE_CHECKING:
    from mqstore.rabbitmq.definitions.metadata import QueueDefinition
    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.rabbitmq.store.vhost import Vhost

__all__ = ["EmptyQueue", "UnreadQueue", "empty_queues", "unread_parts", "unread_queues"]

_PLURAL = {"quorum": "quorum queues", "stream": "streams"}


@dataclass(frozen=True, slots=True)
class EmptyQueue:
    """A classic queue without messages on disk. version: that of its arguments, else that of the other queues of the vhost."""

    vhost: str
    name: str
    priority_levels: int | None
    version: int


@dataclass(frozen=True, slots=True)
class UnreadQueue:
    """A queue of another type: `quorum`, `stream`, or the Erlang module of a type that a plugin brings."""

    vhost: str
    name: str
    type: str

    def __str__(self) -> str:
        kind = {"quorum": "quorum queue", "stream": "stream"}.get(self.type, f"queue of type {self.type}")
        return f"{kind} {self.name!r} of vhost {self.vhost!r}"


def _lasting(store: RabbitMQStore) -> Iterator[QueueDefinition]:
    return (queue for queue in store.definitions.queues if queue.durable and not queue.exclusive)


def empty_queues(store: RabbitMQStore, vhost: Vhost) -> list[EmptyQueue]:
    """Return the durable classic queues of a vhost that have no directory, by name."""
    names = {queue.name for queue in vhost.queues}
    versions = {queue.version for queue in vhost.queues}
    usual = 1 if versions == {1} or (not versions and not vhost.queue_addresses) else 2
    found = []
    for queue in _lasting(store):
        name = _text(queue.name)
        if queue.type == CLASSIC and _text(queue.vhost) == vhost.name and name not in names:
            levels = None if queue.priorities is None else queue.priorities + 1
            found.append(EmptyQueue(_text(queue.vhost), name, levels, queue.version or usual))
    return sorted(found, key=lambda queue: queue.name)


def unread_queues(store: RabbitMQStore) -> list[UnreadQueue]:
    """Return the durable queues that are not classic queues, by vhost and name."""
    found = [
        UnreadQueue(_text(queue.vhost), _text(queue.name), queue_type(queue.type)) for queue in _lasting(store) if queue.type != CLASSIC
    ]
    return sorted(found, key=lambda queue: (queue.vhost, queue.name))


def unread_parts(store: RabbitMQStore) -> list[str]:
    """Return a phrase for each queue that is not read; where the metadata names none, for each kind whose directories exist."""
    named = unread_queues(store)
    found = [f"{queue}: {_PLURAL.get(queue.type, 'such queues')} are not read" for queue in named]
    types = {queue.type for queue in named}
    for name, depth in (("quorum", 2), ("stream", 1)):
        if name not in types and _has_directories(store, name, depth):
            found.append(f"{name}/: {_PLURAL[name]} are not read")
    return found


def _has_directories(store: RabbitMQStore, name: str, depth: int) -> bool:
    """Return whether a directory has directories at this depth below it."""
    places = [name] if store.directory.is_directory(name) else []
    try:
        for _ in range(depth):
            places = [f"{place}/{entry.name}" for place in places for entry in store.directory.entries(place) if entry.is_directory]
    except CannotOpenError:
        return False
    return bool(places)


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "replace")
