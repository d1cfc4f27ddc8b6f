"""Where a replay sends messages: a RocketMQ broker, an AMQP broker, or the directory of a RocketMQ store that no broker has open.

    rocketmq://10.0.0.1:9876          each message to the topic with its name
    rocketmq://10.0.0.1:9876/again    all to one topic
    amqp://user:password@host/vhost   each to the queue of its topic's or queue's name
    /backup/broker-b/store            into a store, created if it does not exist

`where` is the place in the target after the last confirmed message of a queue. With it a target can say whether the message after it has
arrived; AMQP has no such question, so there a message in doubt is sent again.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from mqstore.errors import MqstoreError, TargetError, UsageError
from mqstore.rabbitmq.salvage.amqp_sender import encoded_properties, hidden
from mqstore.replay.connection import ClientError
from mqstore.replay.outgoing import FROM, ReplayMessage
from mqstore.replay.producer import Producer, WriteQueue
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.message import Message
from mqstore.table.columns import Selection

__all__ = ["RefusedMessageError", "Target", "open_target", "shown"]


class RefusedMessageError(MqstoreError):
    """The target will never take this message; the others may go on."""


class Target(Protocol):
    """Takes messages one by one."""

    def begin(self, message: ReplayMessage) -> str:
        """Return the place where the first message of a queue will be stored, at the earliest."""
        ...

    def send(self, message: ReplayMessage, where: str) -> str:
        """Send a message; return the place after it. where: the place before it. Raises TargetError, RefusedMessageError."""
        ...

    def arrived(self, message: ReplayMessage, where: str) -> str | None:
        """Return the place after a message in doubt that has arrived, None if it has not, or if there is no way to know it."""
        ...

    @property
    def can_look(self) -> bool:
        """Whether `arrived` knows it."""
        ...

    def close(self) -> None:
        """Finish; what was sent is durable as far as the target makes it so."""
        ...


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


class RocketMQTarget:
    """The brokers of a RocketMQ name server."""

    can_look = True

    def __init__(self, address: str, *, credentials: tuple[str, str] | None, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(address)
        try:
            host, port = parts.hostname, parts.port or 9876
        except ValueError:
            host, port = None, 0
        if not host or parts.query or parts.fragment or "/" in parts.path.strip("/"):
            raise UsageError(f"{shown(address)} is not the address of a broker; give rocketmq://host:port or rocketmq://host:port/topic")
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._topic = unquote(parts.path.strip("/")) or None
        self._producer = Producer(name, credentials=credentials, tls=tls)

    def _named(self, message: ReplayMessage) -> ReplayMessage:
        return message.edited({"topic": self._topic or message.rocketmq_topic})

    def _queue(self, message: ReplayMessage, where: str) -> tuple[WriteQueue, int]:
        """Return the queue of a place, and the offset in it."""
        broker, _, rest = where.rpartition("/")[0].rpartition("/")
        for queue in self._producer.queues(message.topic):
            if (queue.broker, str(queue.queue_id)) == (broker, rest):
                return queue, int(where.rpartition("/")[2])
        raise TargetError(f"queue {rest} of broker {broker} has gone since the replay began; start again with another resume file")

    def begin(self, message: ReplayMessage) -> str:
        queue = self._producer.queue_for(self._named(message))
        return f"{queue.broker}/{queue.queue_id}/{self._producer.end_of(queue)}"

    def send(self, message: ReplayMessage, where: str) -> str:
        message = self._named(message)
        queue, end = self._queue(message, where)
        try:
            after = self._producer.send(message, queue, end)
        except ClientError as error:
            raise RefusedMessageError(str(error)) from None
        return f"{queue.broker}/{queue.queue_id}/{after}"

    def arrived(self, message: ReplayMessage, where: str) -> str | None:
        message = self._named(message)
        queue, end = self._queue(message, where)
        try:
            after = self._producer.find(message.mark, queue, end)
        except ClientError as error:
            raise TargetError(f"{error}; whether the message from {message.mark} has arrived is unknown: run again") from None
        return None if after is None else f"{queue.broker}/{queue.queue_id}/{after}"

    def close(self) -> None:
        self._producer.close()


class StoreTarget:
    """The directory of a RocketMQ store, open for writing."""

    can_look = True

    def __init__(self, path: Path) -> None:
        if os.path.isfile(path):
            raise TargetError(f"{path} is a file; give a directory, or rocketmq:// or amqp:// and an address")
        if path.is_dir() and any(path.iterdir()) and not (path / "commitlog").is_dir():
            raise TargetError(f"{path} is not empty and not the store of a RocketMQ broker; give another directory")
        self._path = path
        self._store = MessageStore.open(path, StoreConfig(services=False))
        self._arrived: dict[str, int] | None = None

    def begin(self, message: ReplayMessage) -> str:
        return str(self._store.log_max)

    def send(self, message: ReplayMessage, where: str) -> str:
        result = self._store.put(
            Message(
                message.rocketmq_topic,
                message.body,
                queue_id=message.queue_id,
                properties=message.rocketmq_properties(),
                flag=message.flag,
                born_timestamp=message.born_timestamp,
                born_host=message.born_host,
                reconsume_times=message.reconsume_times,
            )
        )
        if not result.stored:
            if result.status.value in ("MESSAGE_ILLEGAL", "PROPERTIES_SIZE_EXCEEDED"):
                raise RefusedMessageError(result.detail)
            raise TargetError(f"the store takes no more messages: {result.detail}")
        return str(result.physical_offset)

    def arrived(self, message: ReplayMessage, where: str) -> str | None:
        if self._arrived is None:
            self._arrived = dict(self._marks())
        found = self._arrived.get(message.mark)
        return str(found) if found is not None and found >= int(where) else None

    def _marks(self) -> list[tuple[str, int]]:
        """Return the marks of all messages of the store, with their physical offsets."""
        from mqstore.opening import open_rocketmq

        found = []
        for batch in open_rocketmq(self._path).to_batches(("physical_offset", "properties"), selection=Selection()):
            for offset, pairs in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                found += [(value, offset) for name, value in pairs if name == FROM]
        return found

    def close(self) -> None:
        self._store.dispatch_now()
        self._store.close()


class AmqpTarget:
    """A broker that speaks AMQP 0-9-1; each message is confirmed before the next is published. Needs pika: the extra `amqp`."""

    can_look = False

    def __init__(self, address: str) -> None:
        try:
            import pika
        except ImportError:
            raise UsageError("sending needs pika; install it with: pip install 'mqstore[amqp]'") from None
        self._shown = shown(address)
        try:
            parameters = pika.URLParameters(address)
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError(f"{self._shown} is not the address of a broker: {error}; give amqp://user:password@host:port/vhost") from None
        parameters.blocked_connection_timeout = 60
        parameters.socket_timeout = 10
        self._user = str(parameters.credentials.username)
        self._errors = pika.exceptions
        try:
            self._connection = pika.BlockingConnection(parameters)
            self._channel = self._connection.channel()
            self._channel.confirm_delivery()
        except (self._errors.AMQPError, OSError) as error:
            why = str(error).strip() or type(error).__name__
            raise TargetError(f"{self._shown} refused the connection: {why}; check address, user, password and vhost") from None

    def begin(self, message: ReplayMessage) -> str:
        return ""

    def send(self, message: ReplayMessage, where: str) -> str:
        try:
            self._channel.basic_publish("", message.topic, message.body, encoded_properties(self._block(message)), mandatory=True)
        except self._errors.UnroutableError:
            raise TargetError(f"{self._shown} has no queue {message.topic!r}; declare it there, then run again with --resume") from None
        except self._errors.NackError:
            raise TargetError(f"{self._shown} rejected a message to queue {message.topic!r}, which may be full; see its log") from None
        except (self._errors.AMQPError, OSError) as error:
            why = str(error).strip() or type(error).__name__
            raise TargetError(f"{self._shown} did not confirm a message: {why}; run again with --resume") from None
        return ""

    def _block(self, message: ReplayMessage) -> bytes:
        return message.for_user(self._user).amqp_block()

    def arrived(self, message: ReplayMessage, where: str) -> str | None:
        return None

    def close(self) -> None:
        try:
            self._connection.close()
        except (self._errors.AMQPError, OSError):
            return
