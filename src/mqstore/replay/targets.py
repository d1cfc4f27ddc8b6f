"""Where a replay sends messages: a RocketMQ broker, an AMQP broker, or the directory of a RocketMQ store that no broker has open.

rocketmq://10.0.0.1:9876          each message to the topic with its name
rocketmq://10.0.0.1:9876/again    all to one topic
amqp://user:password@host/vhost   each to the queue of its topic's or queue's name
/backup/broker-b/store            into a store; a new one only if that is asked for
"""

from __future__ import annotations

import ssl
from pathlib import Path

from mqstore.errors import UsageError
from mqstore.files.location import is_url, refuse_address, without_password
from mqstore.replay.amqp_target import AmqpTarget
from mqstore.replay.rocketmq_target import RocketMQTarget
from mqstore.replay.store_target import StoreTarget, check_store
from mqstore.replay.target import Target

BROKERS = ("rocketmq://", "amqp://", "amqps://")
WHAT = "give rocketmq://host:port[/topic], amqp://user:password@host:port/vhost (amqps:// with TLS) or a store's directory"


def shown(address: str) -> str:
    """Return a target's address without a password."""
    return without_password(address)


def check_target(address: str, *, create: bool = False) -> None:
    """Refuse what is not a target, before anything is read or created. Raises UsageError, CannotOpenError, NotAStoreError, TargetError.

    create: make a new store if there is none at the path.
    """
    if address.startswith(BROKERS):
        return
    if is_url(address):
        raise UsageError(f"{shown(address)} is not a target; {WHAT}")
    refuse_address(address, WHAT)
    check_store(Path(address), create)


def open_target(
    address: str, *, create: bool = False, credentials: tuple[str, str] | None = None, tls: ssl.SSLContext | None = None
) -> Target:
    """Open a target. Raises what `check_target` raises, and TargetError for one that is in use or does not answer."""
    check_target(address, create=create)
    if address.startswith("rocketmq://"):
        return RocketMQTarget(address, credentials=credentials, tls=tls)
    if address.startswith(BROKERS):
        return AmqpTarget(address)
    return StoreTarget(Path(address))
