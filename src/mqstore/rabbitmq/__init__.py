"""RabbitMQ classic queues, written and read without a broker.

    QueueStore       the queues of one vhost, open for writing in this process; EngineConfig has its settings
    Delivery, Counts what `QueueStore.deliver` and `QueueStore.counts` return; `Delivery.message` is a MessageTerm
    RabbitMQStore    a directory of message stores, open for reading; `mqstore.open` returns one
    QueueSelection   which rows of the message table `RabbitMQStore.messages` returns

Modules below this package are private: their names and contents may change with any release.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqstore.rabbitmq.engine.engine_config import EngineConfig
    from mqstore.rabbitmq.engine.queue_store import Counts, Delivery, QueueStore
    from mqstore.rabbitmq.message.message_term import MessageTerm
    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.table.columns import QueueSelection

__all__ = ["Counts", "Delivery", "EngineConfig", "MessageTerm", "QueueSelection", "QueueStore", "RabbitMQStore"]

_MODULES = {
    "Counts": "mqstore.rabbitmq.engine.queue_store",
    "Delivery": "mqstore.rabbitmq.engine.queue_store",
    "EngineConfig": "mqstore.rabbitmq.engine.engine_config",
    "MessageTerm": "mqstore.rabbitmq.message.message_term",
    "QueueSelection": "mqstore.table.columns",
    "QueueStore": "mqstore.rabbitmq.engine.queue_store",
    "RabbitMQStore": "mqstore.rabbitmq.store.store",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """Return the public names only."""
    return sorted(__all__)
