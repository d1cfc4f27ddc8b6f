"""A broker that RocketMQ clients connect to, over a store of this process: for tests, replay and reading.

    async with Broker("store", auto_create_topics=True) as broker:
        print(broker.address)      # name server and broker in one, as in DefaultMQProducer.setNamesrvAddr

There is no replication. The store is `mqstore.rocketmq.MessageStore`.

The names in `__all__` are the public interface. Deeper module paths are private and may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqstore.public_names import on_first_use

if TYPE_CHECKING:
    from mqstore.broker.runtime.settings import Settings
    from mqstore.broker.server import Broker

__all__ = ["Broker", "Settings"]

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "mqstore.broker.runtime.settings": ["Settings"],
        "mqstore.broker.server": ["Broker"],
    },
)
