"""RabbitMQ classic queues, written and read without a broker.

    QueueStore       the queues of one vhost, open for writing in this process; EngineConfig has its settings
    Delivery, Counts what `QueueStore.deliver` and `QueueStore.counts` return; `Delivery.message` is a MessageTerm
    RabbitMQStore    a directory of message stores, open for reading; `mqstore.open` returns one
    QueueSelection   which rows of the message table `RabbitMQStore.messages` returns

Modules below this package are private: their names and contents may change with any release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqstore.public_names import on_first_use

if TYPE_CHECKING:
    from mqstore.rabbitmq.engine.engine_config import EngineConfig
    from mqstore.rabbitmq.engine.queue_store import Counts, Delivery, QueueStore
    from mqstore.rabbitmq.message.message_term import MessageTerm
    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.table.columns import QueueSelection

__all__ = ["Counts", "Delivery", "EngineConfig", "MessageTerm", "QueueSelection", "QueueStore", "RabbitMQStore"]

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "mqstore.rabbitmq.engine.engine_config": ["EngineConfig"],
        "mqstore.rabbitmq.engine.queue_store": ["Counts", "Delivery", "QueueStore"],
        "mqstore.rabbitmq.message.message_term": ["MessageTerm"],
        "mqstore.rabbitmq.store.store": ["RabbitMQStore"],
        "mqstore.table.columns": ["QueueSelection"],
    },
)
