"""One message on its way to another broker, in the form of its family, and its translation to the other.

    RocketMQ -> RocketMQ   topic, keys, tags, UNIQ_KEY, user properties, flag, born time, reconsume times; compressed again if it was
    RocketMQ -> AMQP       default exchange, routing key: the topic. Headers: the properties, and the born time in milliseconds;
                           message_id: UNIQ_KEY; timestamp: born time in seconds; correlation_id; persistent
    RabbitMQ -> AMQP       default exchange, routing key: its queue. Properties and headers as they are, without CC, BCC and a foreign user;
                           exchange and routing key by which it came, if that was not the default exchange, as headers
    RabbitMQ -> RocketMQ   topic: the queue, with `_` for what a topic cannot have; KEYS: message_id; born time: timestamp; headers become
                           properties `header.NAME`, other properties keep their names; exchange and routing key as properties

Properties on which a broker would act once more are left out: a delay that is over, a transaction that is decided, offsets and checksums.
Every message is marked with the place that it came from: property `MQSTORE_FROM`, or header `x-mqstore-from`.

>>> paid = ReplayMessage("orders/0", 17, "store#orders/0/17", "orders", b"paid", properties={"KEYS": "o-1", "DELAY": "3"})
>>> paid.rocketmq_properties()
{'KEYS': 'o-1', 'MQSTORE_FROM': 'store#orders/0/17'}
>>> paid.edited({"topic": "again", "property.KEYS": "o-2"}).topic
'again'
"""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mqstore.errors import UsageError
from mqstore.rabbitmq.amqp_sender import without_actions
from mqstore.rabbitmq.message.properties import PropertiesError, json_properties, properties_to_bin

FROM, FROM_HEADER = "MQSTORE_FROM", "x-mqstore-from"
EXCHANGE_HEADER, KEY_HEADER, BORN_HEADER = "x-mqstore-exchange", "x-mqstore-routing-key", "x-mqstore-born-timestamp"
LONGEST_NAME = 255  # bytes of a header's name
LATEST_SECOND = 1 << 33  # a timestamp after the year 2242 is not one in seconds
EDITS = ("topic", "queue", "keys", "tags", "body")

# a broker would delay the message again, treat it as a half of a transaction or a batch, or compare a checksum that is not its own
_ACTED_UPON = frozenset(
    {
        "DELAY",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        "TIMER_OUT_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_DEL_UNIQKEY",
        "TRAN_MSG",
        "PGROUP",
        "CLUSTER",
        "REAL_TOPIC",
        "REAL_QID",
        "INNER_NUM",
        "INNER_BASE",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "POP_CK",
        "1ST_POP_TIME",
        "__CRC32#",
        "__CHECK_MESSAGE_TIMES__",
        "WAIT",
        FROM,
    }
)


LONGEST_TOPIC = 127
_NOT_IN_TOPICS = re.compile(r"[^%|a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class ReplayMessage:
    """A message. source: the queue that it was in; position: ascending in it. mark: the place that it came from, unique.

    properties: those of RocketMQ. born_timestamp: ms. amqp: those of AMQP, by name, for a message of RabbitMQ; its topic is its queue.
    exchange, routing_key: by which a message of RabbitMQ came into its queue. routed: it has no queue and goes to its exchange again.
    """

    source: str
    position: int
    mark: str
    topic: str
    body: bytes
    queue_id: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    amqp: Mapping[str, Any] | None = None
    flag: int = 0
    compressed: bool = False
    born_timestamp: int | None = None
    born_host: str | None = None
    reconsume_times: int = 0
    exchange: str = ""
    routing_key: str = ""
    routed: bool = False

    @property
    def amqp_address(self) -> tuple[str, str]:
        """The exchange and routing key with which the message is published to an AMQP broker."""
        return (self.exchange, self.routing_key) if self.routed else ("", self.topic)

    @property
    def rocketmq_topic(self) -> str:
        """The topic on a RocketMQ broker: of a RabbitMQ queue its name, each character that a topic cannot have replaced by `_`."""
        return self.topic if self.amqp is None else _NOT_IN_TOPICS.sub("_", self.topic)[:LONGEST_TOPIC]

    def rocketmq_properties(self) -> dict[str, str]:
        """Return the properties of the message as a producer sends it to a RocketMQ broker."""
        given = self.properties if self.amqp is None else _from_amqp(self.amqp) | self._came_by("exchange", "routing_key")
        properties = {name: value for name, value in given.items() if name not in _ACTED_UPON}
        return properties | {FROM: self.mark}

    def _came_by(self, exchange: str, routing_key: str) -> dict[str, str]:
        """Return the exchange and routing key by which a message of RabbitMQ came, under these names; nothing for the default exchange."""
        return {exchange: self.exchange, routing_key: self.routing_key} if self.exchange and not self.routed else {}

    def amqp_block(self) -> bytes:
        """Return the property block of the message as it is published to an AMQP broker."""
        if self.amqp is not None:
            own = {**self._came_by(EXCHANGE_HEADER, KEY_HEADER), FROM_HEADER: self.mark}
            headers_left = [each for each in self.amqp.get("headers") or () if _text(each[0]) not in own]
            all_headers = [*headers_left, *((name, "longstr", value.encode("utf-8", "replace")) for name, value in own.items())]
            try:
                return properties_to_bin({**self.amqp, "headers": all_headers})
            except PropertiesError as error:
                raise UsageError(f"the message from {self.mark} cannot be sent: {error}") from None
        headers: list[tuple[str, str, Any]] = [
            (name, "longstr", value.encode("utf-8", "replace"))
            for name, value in self.properties.items()
            if len(name.encode("utf-8", "replace")) <= LONGEST_NAME and name != FROM
        ]
        properties: dict[str, Any] = {"headers": headers, "delivery_mode": 2}
        if self.born_timestamp is not None:
            properties["timestamp"] = max(0, self.born_timestamp // 1000)
            headers.append((BORN_HEADER, "long", self.born_timestamp))
        headers.append((FROM_HEADER, "longstr", self.mark.encode("utf-8", "replace")))
        if self.properties.get("UNIQ_KEY"):
            properties["message_id"] = self.properties["UNIQ_KEY"].encode()[:255]
        if self.properties.get("CORRELATION_ID"):
            properties["correlation_id"] = self.properties["CORRELATION_ID"].encode()[:255]
        return properties_to_bin(properties)

    def for_user(self, user: str) -> ReplayMessage:
        """Return the message without what a broker would act upon: another user's id, and CC and BCC, whose queues have their own copy."""
        return self if self.amqp is None else replace(self, amqp=without_actions(self.amqp, user))

    def edited(self, edits: Mapping[str, str]) -> ReplayMessage:
        """Return the message with the values of `parse_edits`."""
        message = self
        for name, value in edits.items():
            if name == "topic":
                message = replace(message, topic=value)
            elif name == "queue":
                message = replace(message, queue_id=int(value))
            elif name == "body":
                message = replace(message, body=value.encode())
            else:
                message = message._with_property({"keys": "KEYS", "tags": "TAGS"}.get(name) or name.removeprefix("property."), value)
        return message

    def _with_property(self, name: str, value: str) -> ReplayMessage:
        if self.amqp is not None:
            headers = [each for each in self.amqp.get("headers") or () if each[0] not in (name, name.encode())]
            added = [(name.encode(), "longstr", value.encode())] if value else []
            return replace(self, amqp={**self.amqp, "headers": [*headers, *added]})
        properties = {each: text for each, text in self.properties.items() if each != name}
        return replace(self, properties=properties | ({name: value} if value else {}))


def parse_edits(given: list[str] | None) -> dict[str, str]:
    """Parse the values of --set, `NAME=VALUE`. Raises UsageError."""
    edits: dict[str, str] = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        known = name in EDITS or (name.startswith("property.") and len(name) > len("property."))
        if not equals or not known:
            raise UsageError(f"--set {each!r} is not NAME=VALUE; the names are {', '.join(EDITS)} and property.NAME")
        if name == "queue" and not (value.isascii() and value.isdigit()):
            raise UsageError(f"--set {each!r}: a queue is a number from 0 upwards")
        if name == "topic" and not value:
            raise UsageError("--set topic= leaves the message without a topic; name one")
        edits[name] = value
    return edits


def born_of(properties: Mapping[str, Any]) -> int | None:
    """Return the time of an AMQP message in milliseconds: of a header that this module wrote, or its timestamp; None if it has none."""
    for each in properties.get("headers") or ():
        if _text(each[0]) == BORN_HEADER and type(each[2]) is int:
            return each[2]
    seconds = properties.get("timestamp")
    return seconds * 1000 if type(seconds) is int and 0 < seconds < LATEST_SECOND else None


def _from_amqp(properties: Mapping[str, Any]) -> dict[str, str]:
    converted: dict[str, str] = {}
    for name, value in json_properties(dict(properties)).items():
        if name == "headers":
            converted |= {f"header.{_text(each[0])}": _text(each[2]) for each in value or () if each[2] is not None}
        elif value is not None:
            converted["KEYS" if name == "message_id" else name] = _text(value)
    return {_plain(name): _plain(value) for name, value in converted.items()}


def _text(value: Any) -> str:
    """Return a value as text: text as it is, anything else as JSON."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _plain(text: str) -> str:
    """Return text without the two characters that separate properties in a record."""
    return text.replace("\x01", "\ufffd").replace("\x02", "\ufffd")


# ---- a target: takes messages, several of them at once, and says which have arrived
#
# `where` is the place in the target after the last confirmed message of a queue of the source. With it a target can say whether the
# message after it has arrived; AMQP has no such question, so there a message in doubt is sent again.


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a message. where: the place after it; refused: why the target will never take it, None if it has it.

    doubtful: it may be there twice.
    """

    message: ReplayMessage
    where: str
    refused: str | None = None
    doubtful: bool = False


class Target(ABC):
    """Takes messages. There is never more than one message of a queue of the source on its way.

    width: how many messages may be on their way at once. can_look: whether `arrived` knows it.
    """

    width = 32
    can_look = True

    def __init__(self) -> None:
        self._done: list[Outcome] = []

    def _taken(self) -> list[Outcome]:
        done, self._done = self._done, []
        return done

    @abstractmethod
    def begin(self, message: ReplayMessage) -> str:
        """Return the place where the first message of a queue will be stored, at the earliest. Raises TargetError."""

    @abstractmethod
    def post(self, message: ReplayMessage, where: str) -> None:
        """Send a message; `finished` returns its outcome. where: the place before it. Raises TargetError."""

    @abstractmethod
    def finished(self) -> list[Outcome]:
        """Wait for the outcome of at least one message that was posted. Raises TargetError."""

    @abstractmethod
    def last(self) -> list[Outcome]:
        """Return the outcomes that still come, without sending anything again; the run has failed."""

    @abstractmethod
    def arrived(self, message: ReplayMessage, where: str) -> str | None:
        """Return the place after a message in doubt that has arrived, None if it has not, or if there is no way to know it."""

    def wait(self, seconds: float) -> None:
        """Wait while nothing is on its way, and keep the connection."""
        time.sleep(seconds)

    @abstractmethod
    def close(self) -> None:
        """Finish; what was sent is durable as far as the target makes it so."""
