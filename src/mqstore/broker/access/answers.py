"""What an answer may contain: records of the topic and key that were asked for, and lists of what the account has a permission on.

A request names what it wants, but what is found may be more. An index entry is the hash of a topic and a key, so that a record of
another topic may have the same; an entry of a queue may be stale and point to a record of another; a list names all topics.

    >>> from mqstore.rocketmq.format.record import Record, encode
    >>> ours, other = (memoryview(encode(Record(topic, b"", properties=b"KEYS\\x01k1 k2\\x02"))) for topic in ("orders", "secrets"))
    >>> [of_topic(raw, "orders") for raw in (ours, other)], [has_key(raw, "orders", "k2") for raw in (ours, other)]
    ([True, False], [True, False])
    >>> has_key(ours, "orders", "k1 k2")
    False

Records are compared by the handlers, for every client of a broker with accounts (`RECORDS`). Lists are filtered by the account that
asks (`LISTS`); the answers to others are about what the request names, on which it needed the permission.

Format: docs/formats/rocketmq-remoting.md, section 10.4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mqstore.broker.access.accounts import Account, Permission
from mqstore.broker.access.requirements import MULTI_DISPATCH
from mqstore.broker.protocol import bodies
from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame
from mqstore.rocketmq.dispatch.dispatcher import TAGS_KEY
from mqstore.rocketmq.format.record import record_or_none, split_keys
from mqstore.rocketmq.format.system_topics import retry_topic

EITHER = Permission.EITHER

# records


def of_topic(raw: memoryview, topic: str) -> bool:
    """The records of `topic`, or whose INNER_MULTI_DISPATCH names it.

    Returns whether a record is one of them.
    """
    record = record_or_none(raw)
    if record is None:
        return False
    return record.topic == topic or topic in record.property_map().get(MULTI_DISPATCH, "").split(",")


def has_key(raw: memoryview, topic: str, key: str) -> bool:
    """The records of `topic` with `key`.

    Returns whether a record is one of them.
    """
    record = record_or_none(raw)
    if record is None or record.topic != topic:
        return False
    properties = record.property_map()
    return key in (properties.get("UNIQ_KEY"), TAGS_KEY + properties.get("TAGS", ""), *split_keys(properties.get("KEYS", "")))


RECORDS: dict[int, Callable[..., bool]] = {
    RequestCode.PULL_MESSAGE: of_topic,
    RequestCode.LITE_PULL_MESSAGE: of_topic,
    RequestCode.QUERY_MESSAGE: has_key,
}

# lists


def _names_topics(body: dict[str, Any], account: Account) -> None:
    """The topics with `PUB` or `SUB`."""
    body["topicList"] = [topic for topic in body["topicList"] if account.allows(topic, EITHER)]


def _names_groups(body: dict[str, Any], account: Account) -> None:
    """The groups with `PUB` or `SUB`."""
    body["groupList"] = [group for group in body["groupList"] if account.allows(retry_topic(group), EITHER)]


def _holds_topics(body: dict[str, Any], account: Account) -> None:
    """The topics with `PUB` or `SUB`."""
    table = body["topicConfigTable"]
    body["topicConfigTable"] = {topic: config for topic, config in table.items() if account.allows(topic, EITHER)}


def _holds_groups(body: dict[str, Any], account: Account) -> None:
    """The groups with `PUB` or `SUB`."""
    for name in ("subscriptionGroupTable", "forbiddenTable"):
        if name in body:
            body[name] = {group: config for group, config in body[name].items() if account.allows(retry_topic(group), EITHER)}


def _holds_positions(body: dict[str, Any], account: Account) -> None:
    """The offsets of groups with `PUB` or `SUB` in topics with `PUB` or `SUB`."""

    def is_seen(key: str) -> bool:
        topic, _, group = key.partition("@")
        return account.allows(topic, EITHER) and account.allows(retry_topic(group), EITHER)

    for name in ("offsetTable", "resetOffsetTable", "pullOffsetTable"):
        if name in body:
            body[name] = {key: offsets for key, offsets in body[name].items() if is_seen(key)}


def _holds_queues(body: dict[str, Any], account: Account) -> None:
    """The queues of topics with `PUB` or `SUB`."""

    def topic(queue: bodies.MessageQueue | str) -> str:  # a text in strict JSON
        return queue.topic if isinstance(queue, bodies.MessageQueue) else str(bodies.parse(queue.encode())["topic"])

    body["offsetTable"] = {queue: standing for queue, standing in body["offsetTable"].items() if account.allows(topic(queue), EITHER)}


def _holds_subscriptions(body: dict[str, Any], account: Account) -> None:
    """The connections, and the subscriptions to topics with `PUB` or `SUB`."""
    table = body["subscriptionTable"]
    body["subscriptionTable"] = {topic: subscription for topic, subscription in table.items() if account.allows(topic, EITHER)}


LISTS: dict[int, Callable[[dict[str, Any], Account], None]] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: _holds_topics,
    RequestCode.GET_ALL_CONSUMER_OFFSET: _holds_positions,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _holds_groups,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _holds_subscriptions,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _names_topics,
    RequestCode.GET_CONSUME_STATS: _holds_queues,
    RequestCode.GET_TOPICS_BY_CLUSTER: _names_topics,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _names_groups,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _names_topics,
}


def filtered(answer: Frame, request: Frame, account: Account | None) -> Frame:
    """Return what an account may see of an answer. account: None for one that is gone meanwhile, which sees nothing of a list."""
    keep = LISTS.get(request.code)
    if keep is None or answer.code != ResponseCode.SUCCESS or not answer.body or (account is not None and account.unrestricted):
        return answer
    body = bodies.parse(answer.body)
    keep(body, account if account is not None else Account("", ""))
    strict = request.code == RequestCode.GET_CONSUME_STATS and bodies.takes_strict_json(request)
    return replace(answer, body=bodies.encode(body, strict=strict))


def described(code: int) -> str:
    """Return what the answer to an account may contain, in words for the documentation; empty if it is what the request names."""
    description = RECORDS.get(code) or LISTS.get(code)
    return "" if description is None else (description.__doc__ or "").partition("\n")[0].removesuffix(".")
