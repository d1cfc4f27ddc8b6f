"""Where a replay sends messages: a RocketMQ broker, an AMQP broker, or the directory of a RocketMQ store that no broker has open.

rocketmq://10.0.0.1:9876          each message to the topic with its name
rocketmq://10.0.0.1:9876/again    all to one topic
amqp://user:password@host/vhost   each to the queue of its topic's or queue's name
/backup/broker-b/store            into a store, created if it does not exist
"""

from __future__ import annotations

import ssl
from pathlib import Path

from mqstore.errors import UsageError
from mqstore.rabbitmq.salvage.amqp_sender import hidden
from mqstore.replay.amqp_target import AmqpTarget
from mqstore.replay.rocketmq_target import RocketMQTarget
from mqstore.replay.store_target import StoreTarget
from mqstore.replay.target import Target

__all__ = ["open_target", "shown"]


def shown(address: str) -> str:
    """Return a target's address without a password."""
    return hidden(address)


def open_target(address: str, *, credentials: tuple[str, str] | None = None, tls: ssl.SSLContext | None = None) -> Target:
    """Open a target. Raises UsageError, TargetError, CannotOpenError."""
    if address.startswith("rocketmq://"):
        return RocketMQTarget(address, credentials=credentials, tls=tls)
    if address.startswith(("amqp://", "amqps://")):
        return AmqpTarget(address)
    if "://" in address:
        raise UsageError(
            f"{shown(address)} is not a target; give rocketmq://host:port[/topic], amqp://user:password@host/vhost or a directory"
        )
    return StoreTarget(Path(address))
