"""A broker that RocketMQ clients talk to, over a store of this process: for tests, replay and reading.

    async with Broker("store", auto_create_topics=True) as broker:
        print(broker.address)      # name server and broker in one, as in DefaultMQProducer.setNamesrvAddr

There is no replication and no access control. What is stored, and how, is `mqstore.rocketmq.MessageStore`'s business.
"""

from __future__ import annotations

from mqstore.broker.runtime.settings import Settings
from mqstore.broker.server import Broker

__all__ = ["Broker", "Settings"]
