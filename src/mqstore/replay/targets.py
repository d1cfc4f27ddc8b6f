"""Where a replay sends messages: a RocketMQ broker, an AMQP broker, or the directory of a RocketMQ store that no broker has open.

rocketmq://10.0.0.1:9876          each message to the topic with its name
rocketmq://10.0.0.1:9876/again    all to one topic
amqp://user:password@host/vhost   each to the queue of its topic's or queue's name
/backup/broker-b/store            into a store; a new one only if that is asked for
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mqstore.errors import TargetError, UsageError
from mqstore.files.location import check_creation, is_url, refuse_address, without_password
from mqstore.rabbitmq.amqp_channel import LAST, PATIENCE, TICK, AmqpChannel, connection_parameters, why
from mqstore.replay.outgoing import FROM, FROM_HEADER, Outcome, ReplayMessage, Target
from mqstore.replay.rocketmq_target import RocketMQTarget
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.message import Message
from mqstore.table.columns import Selection

BROKERS = ("rocketmq://", "amqp://", "amqps://")
WHAT = "give rocketmq://host:port[/topic], amqp://user:password@host:port/vhost (amqps:// with TLS) or a store's directory"


def check_target(address: str, *, create: bool = False) -> None:
    """Refuse what is not a target, before anything is read or created. Raises UsageError, CannotOpenError, NotAStoreError, TargetError.

    create: make a new store if there is none at the path.
    """
    if address.startswith(BROKERS):
        return
    if is_url(address):
        raise UsageError(f"{without_password(address)} is not a target; {WHAT}")
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


# ---- the directory of a RocketMQ store that no broker has open as a target


def check_store(path: Path, create: bool) -> None:
    """Refuse a path without a store, unless a new one is to be created there. Raises CannotOpenError, NotAStoreError, TargetError."""
    if os.path.isfile(path):
        raise TargetError(f"{path} is a file; give a directory, or rocketmq:// or amqp:// and an address")
    if not check_creation(path, create) and not (path / "commitlog").is_dir():
        raise TargetError(f"{path} is not empty and not the store of a RocketMQ broker; give another directory")


class StoreTarget(Target):
    """The directory of a RocketMQ store, open for writing; created if it is not there (`check_store` says whether it may be)."""

    width = 1

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._store = MessageStore.open(path, StoreConfig(services=False))
        self._marks: dict[str, int] | None = None

    def begin(self, message: ReplayMessage) -> str:
        return str(self._store.log_max)

    def post(self, message: ReplayMessage, where: str) -> None:
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
        if result.stored:
            self._done.append(Outcome(message, str(result.physical_offset)))
        elif result.status.is_refusal:
            self._done.append(Outcome(message, where, result.detail))
        else:
            raise TargetError(f"the store takes no more messages: {result.detail}")

    def finished(self) -> list[Outcome]:
        return self._taken()

    def last(self) -> list[Outcome]:
        return self._taken()

    def arrived(self, message: ReplayMessage, where: str) -> str | None:
        if self._marks is None:
            self._marks = dict(self._stored_marks())
        offset = self._marks.get(message.mark)
        return str(offset) if offset is not None and where.isdigit() and offset >= int(where) else None

    def _stored_marks(self) -> list[tuple[str, int]]:
        """Return the marks of all messages of the store, with their physical offsets."""
        from mqstore.places import open_rocketmq

        marks = []
        for batch in open_rocketmq(self._path).to_batches(("physical_offset", "properties"), selection=Selection()):
            for offset, pairs in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                marks += [(value, offset) for name, value in pairs if name == FROM]
        return marks

    def close(self) -> None:
        self._store.dispatch_now()
        self._store.close()


# ---- a broker that speaks AMQP 0-9-1 as a target
#
# A message goes through the default exchange to its queue, or through the exchange that a row of a file names. A broker that has no queue
# for a message returns it, and one that finds it too large closes the channel; since that does not say which message it was, a large one
# is published alone.

LARGE = 1 << 20  # bytes of a body that may be more than the broker takes
TOO_LARGE = 406  # PRECONDITION_FAILED


class AmqpTarget(Target):
    """A channel to an AMQP broker. Raises UsageError, TargetError."""

    can_look = False

    def __init__(self, address: str) -> None:
        super().__init__()
        parameters = connection_parameters(address, PATIENCE)
        self._shown = without_password(address)
        self._user = str(parameters.credentials.username)
        self._failure: TargetError | None = None
        self._channel: AmqpChannel[ReplayMessage] = AmqpChannel(self._shown, parameters, self._answered, self._returned)

    def _returned(self, method: Any, properties: Any, _body: bytes) -> None:
        mark = (getattr(properties, "headers", None) or {}).get(FROM_HEADER)
        mark = mark.decode("utf-8", "replace") if isinstance(mark, bytes) else mark
        for tag in [tag for tag, message in self._channel.open.items() if message.mark == mark]:
            del self._channel.open[tag]
        key, exchange = method.routing_key, method.exchange
        queue = f"queue for {key!r} at exchange {exchange!r}" if exchange else f"queue {key!r}"
        self._fail(f"{self._shown} has no {queue}; declare it there, then run again with --resume")

    def _answered(self, message: ReplayMessage, taken: bool) -> None:
        if taken:
            self._done.append(Outcome(message, ""))
        else:
            self._fail(f"{self._shown} rejected a message to queue {message.topic!r}, which may be full; see its log")

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or TargetError(reason)

    def _check(self) -> None:
        """Raise TargetError if the run cannot go on."""
        if self._channel.closed is not None:
            self._fail(f"{self._shown} did not confirm a message: {self._channel.closed}; run again with --resume")
        if self._failure is not None:
            raise self._failure

    def begin(self, message: ReplayMessage) -> str:
        return ""

    def post(self, message: ReplayMessage, where: str) -> None:
        alone = len(message.body) >= LARGE
        if alone and self._channel.open:
            self._settle(lambda: not self._channel.open)
        block = message.for_user(self._user).amqp_block()
        exchange, key = message.amqp_address
        try:
            self._channel.publish(message, exchange, key, block, message.body)
        except TargetError as error:
            self._check()
            raise error from None
        except ValueError as error:
            self._done.append(Outcome(message, where, f"it cannot be published: {why(error)}"))
            return
        if alone:
            self._settle(lambda: not self._channel.open)

    def finished(self) -> list[Outcome]:
        if not self._done:
            self._settle(lambda: bool(self._done))
        return self._taken()

    def _settle(self, until: Callable[[], bool]) -> None:
        """Exchange bytes with the broker until something is so. Raises TargetError."""
        channel, end = self._channel, time.monotonic() + PATIENCE
        while channel.refused is None and not until():
            self._check()
            if time.monotonic() >= end:
                raise channel.silent()
            channel.turn(end - time.monotonic())
        if channel.refused is not None:
            self._reopen(*channel.refused)

    def _reopen(self, code: int, words: str) -> None:
        """Go on after a message that the broker refused with its channel, if it is known which one. Raises TargetError."""
        if code != TOO_LARGE or len(self._channel.open) != 1:
            self._fail(f"{self._shown} refused the messages: {words}; run again with --resume")
            self._check()
        self._done.append(Outcome(self._channel.open.popitem()[1], "", words))
        self._channel.reopen()

    def last(self) -> list[Outcome]:
        end = time.monotonic() + LAST
        while self._channel.open and self._channel.is_open and time.monotonic() < end:
            self._channel.turn(TICK)
        return self._taken()

    def arrived(self, message: ReplayMessage, where: str) -> str | None:
        return None

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._channel.turn(end - time.monotonic())
            self._check()

    def close(self) -> None:
        self._channel.close()
