r"""Heartbeats, which clients send every 30 seconds, and subscriptions.

The body of HEART_BEAT (34) names the client, its producer groups, and its consumer groups with their subscriptions:

    {"clientID":"192.0.2.2@i20",
     "producerDataSet":[{"groupName":"p1"}],
     "consumerDataSet":[{"groupName":"g1","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",
       "consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","unitMode":false,
       "subscriptionDataSet":[{"topic":"T","subString":"TagA || Aa","subVersion":1795229727088,"expressionType":"TAG",
                               "tagsSet":["TagA","Aa"],"codeSet":[2598919,2112],"classFilterMode":false}]}]}

C++ clients write ordinals for the three enumerations and the version as a string, and omit tags, which follow from the expression.

    >>> heartbeat = parse(
    ...     b'{"clientID":"c@1","consumerDataSet":[{"groupName":"g","messageModel":1,"consumeType":1,"consumeFromWhere":4,'
    ...     b'"subscriptionDataSet":[{"topic":"T","subString":"TagA","subVersion":"17"}]}],"producerDataSet":[]}\n'
    ... )
    >>> heartbeat.consumers[0].message_model, heartbeat.consumers[0].consume_from_where
    ('CLUSTERING', 'CONSUME_FROM_FIRST_OFFSET')
    >>> heartbeat.consumers[0].subscriptions[0].codes, heartbeat.consumers[0].subscriptions[0].version
    (frozenset({2598919}), 17)

5.x adds `heartbeatFingerprint` and `withoutSub`; the latter means that the subscriptions of an earlier heartbeat still apply.

Protocol: docs/formats/rocketmq-remoting.md, sections 3.7 and 9.
Source: Apache RocketMQ 4.9.3 and 5.3.3, HeartbeatData, ConsumerData, SubscriptionData.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mqstore.errors import UsageError
from mqstore.rocketmq.format.tag_filter import TagFilter

CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A group's subscription to a topic. version: creation time, ms. tags, codes: of an expression of type TAG."""

    topic: str
    expression: str = "*"
    version: int = 0
    expression_type: str = "TAG"
    tags: tuple[str, ...] = ()
    codes: frozenset[int] = frozenset()
    class_filter: bool = False

    @classmethod
    def of(cls, topic: str, expression: str | None, *, version: int = 0, expression_type: str | None = "TAG") -> Subscription:
        """Parse an expression. Raises UsageError for one that consists of bars only."""
        kind = expression_type or "TAG"
        text = expression or "*"
        tags = TagFilter.parse(text) if kind == "TAG" else TagFilter(True)
        return cls(topic, text, version, kind, tuple(sorted(tags.tags)), tags.hashes)

    @property
    def by_tag(self) -> bool:
        """Whether the expression selects by tag, which a broker can check by hash."""
        return self.expression_type == "TAG"

    @property
    def filter(self) -> TagFilter:
        """The tag filter of the subscription."""
        return TagFilter(not self.codes, frozenset(self.tags), self.codes)

    def bean(self) -> dict[str, Any]:
        """Return the JSON object for bodies."""
        return {
            "classFilterMode": self.class_filter,
            "codeSet": sorted(self.codes),
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }


@dataclass(frozen=True, slots=True)
class ConsumerGroupData:
    """A consumer group of a client."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: tuple[Subscription, ...]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A heartbeat. without_subscriptions: those of an earlier heartbeat still apply. fingerprint: nonzero for the second form."""

    client_id: str
    producers: tuple[str, ...]
    consumers: tuple[ConsumerGroupData, ...]
    fingerprint: int = 0
    without_subscriptions: bool = False


def parse(body: bytes | memoryview) -> Heartbeat:
    """Parse a heartbeat. Raises UsageError."""
    heartbeat = _object(body)
    client_id = heartbeat.get("clientID")
    if not isinstance(client_id, str) or not client_id:
        raise UsageError("the heartbeat has no clientID; a client must identify itself")
    return Heartbeat(
        client_id,
        tuple(dict.fromkeys(_name(group) for group in _objects(heartbeat, "producerDataSet"))),
        tuple(_consumer(group) for group in _objects(heartbeat, "consumerDataSet")),
        _to_int(heartbeat.get("heartbeatFingerprint")),
        heartbeat.get("withoutSub") is True,
    )


def parse_subscription(held: Mapping[str, Any]) -> Subscription:
    """Parse a subscription of a body. Raises UsageError."""
    topic = held.get("topic")
    if not isinstance(topic, str) or not topic:
        raise UsageError("a subscription has no topic; the heartbeat is rejected")
    text = held.get("subString")
    kind = held.get("expressionType")
    derived = Subscription.of(
        topic,
        text if isinstance(text, str) else None,
        version=_to_int(held.get("subVersion")),
        expression_type=kind if isinstance(kind, str) else None,
    )
    return derived if held.get("classFilterMode") is not True else _by_class(derived)


def _by_class(subscription: Subscription) -> Subscription:
    """Return the subscription of a class filter. There are no filter servers, so all messages match, as in a broker."""
    named = subscription
    return Subscription(named.topic, named.expression, named.version, named.expression_type, class_filter=True)


def _consumer(held: Mapping[str, Any]) -> ConsumerGroupData:
    subscriptions = {subscription.topic: subscription for subscription in map(parse_subscription, _objects(held, "subscriptionDataSet"))}
    return ConsumerGroupData(
        _name(held),
        _enumerated(held.get("consumeType"), CONSUME_TYPES, "CONSUME_PASSIVELY"),
        _enumerated(held.get("messageModel"), MESSAGE_MODELS, "CLUSTERING"),
        _enumerated(held.get("consumeFromWhere"), CONSUME_FROM, "CONSUME_FROM_LAST_OFFSET"),
        tuple(subscriptions.values()),
    )


def _object(body: bytes | memoryview) -> dict[str, Any]:
    try:
        value = json.loads(bytes(body))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UsageError("the body is not a JSON object; send a heartbeat as clients do")
    return value


def _objects(held: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    values = held.get(name)
    return (item for item in (values if isinstance(values, list) else ()) if isinstance(item, dict))


def _name(held: Mapping[str, Any]) -> str:
    name = held.get("groupName")
    if not isinstance(name, str) or not name:
        raise UsageError("a group of the heartbeat has no groupName; the heartbeat is rejected")
    return name


def _to_int(value: object) -> int:
    if isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return value
    try:
        return int(value) if isinstance(value, str) and len(value) < 32 else 0
    except ValueError:
        return 0


def _enumerated(value: object, names: tuple[str, ...], usual: str) -> str:
    """Return the name of an enumeration value given by name or ordinal."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        return names[value]
    return value if isinstance(value, str) and value in names else usual
