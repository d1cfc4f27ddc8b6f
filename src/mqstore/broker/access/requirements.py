"""What a request needs: permissions on topics and groups, administrator rights, or only an account.

    >>> needed(Frame(11, ext={"topic": "orders", "consumerGroup": "billing"}), "DefaultCluster", lambda offset: None)
    Needs(resources={'orders': <Permission.SUB: 8>, '%RETRY%billing': <Permission.SUB: 8>}, admin=False)
    >>> needed(Frame(17), "DefaultCluster", lambda offset: None).admin
    True
    >>> described(11), described(17), described(106)
    ('`SUB` on `topic` and `consumerGroup`', 'administrator', 'an account')

A 4.9.3 broker checks permissions for ten request codes and administrator rights for five. That leaves ways around them (a batch is not
checked, nor is a message that is read by its offset), so here every request that is handled has a place: `RESOURCES`, `ADMIN` or
`ACCOUNT`. A request that names a message by its offset needs the permission on the topic of that message. Several permissions on a
resource are a sum: all of them are needed. The first line of each function of `RESOURCES` says what it asks for, and is the table in
the documentation.

Format: docs/formats/rocketmq-remoting.md, section 10. Source: Apache RocketMQ 4.9.3, PlainAccessValidator, Permission; 5.3.3,
DefaultAuthorizationContextBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mqstore.broker.access.accounts import Permission
from mqstore.broker.protocol import bodies, headers, heartbeats, send_header
from mqstore.broker.protocol.codes import RequestCode
from mqstore.broker.protocol.frames import Frame
from mqstore.rocketmq.format.record import Record, decode_properties
from mqstore.rocketmq.format.system_topics import DEAD_LETTER_PREFIX, HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, reply_topic, retry_topic

PUB, SUB, EITHER = Permission.PUB, Permission.SUB, Permission.EITHER
KNOWN = frozenset(map(int, RequestCode))  # any other request is not supported, which an account may learn
MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
RecordAt = Callable[[int], Record | None]  # physical offset -> the message that begins there
Resource = tuple[str, Permission]
Rule = Callable[[Frame, str, RecordAt], Iterator[Resource]]


@dataclass(frozen=True, slots=True)
class Needs:
    """What a request needs beyond an account. resources: by topic, and by retry topic for groups."""

    resources: dict[str, Permission] = field(default_factory=dict)
    admin: bool = False


def needed(request: Frame, cluster: str, record_at: RecordAt) -> Needs:
    """Return what a request needs. Raises UsageError or ResponseError if its body or fields cannot be read."""
    if request.code in ADMIN:
        return Needs(admin=True)
    find = RESOURCES.get(request.code)
    if find is None:
        return Needs(admin=request.code in KNOWN and request.code not in ACCOUNT)
    resources: dict[str, Permission] = {}
    for name, permission in find(request, cluster, record_at):
        resources[name] = resources.get(name, Permission(0)) | permission
    return Needs(resources)


def described(code: int) -> str:
    """Return what a request needs, in words for the documentation."""
    find = RESOURCES.get(code)
    if find is not None:
        return (find.__doc__ or "").partition("\n")[0].removesuffix(".")
    return "an account" if code in ACCOUNT else "administrator"


def _field(request: Frame, name: str) -> str | None:
    return headers.text_or(request, name) or None


def _topic(request: Frame, name: str, permission: Permission) -> Iterator[Resource]:
    topic = _field(request, name)
    if topic is not None:
        yield topic, permission
        if topic.strip() != topic:
            yield topic.strip(), permission  # some handlers strip names


def _group(request: Frame, name: str) -> Iterator[Resource]:
    group = headers.text_or(request, name)
    if group is not None:
        yield retry_topic(group), SUB


def _fields(description: str, permission: Permission | None, *groups: str) -> Rule:
    """Return a rule that asks for a permission on the field `topic`, if there is one, and for `SUB` on the groups in these fields."""

    def rule(request: Frame, cluster: str, record_at: RecordAt) -> Iterator[Resource]:
        if permission is not None:
            yield from _topic(request, "topic", permission)
        for name in groups:
            yield from _group(request, name)

    rule.__doc__ = description
    return rule


_consuming = _fields("`SUB` on `topic` and `consumerGroup`", SUB, "consumerGroup")
_moving = _fields("`SUB` on `topic` and `group`", SUB, "group")
_cloning = _fields("`SUB` on `srcGroup` and `destGroup`, and on `topic` if it is named", SUB, "srcGroup", "destGroup")
_asking_by_key = _fields("`SUB` on `topic`", SUB)
_reading_topic = _fields("`PUB` or `SUB` on `topic`", EITHER)
_of_group_in_topic = _fields("`PUB` or `SUB` on `topic`, `SUB` on `group`", EITHER, "group")
_of_consumers = _fields("`SUB` on `consumerGroup`", None, "consumerGroup")
_of_group = _fields("`SUB` on `group`", None, "group")


def _message(request: Frame, name: str, record_at: RecordAt) -> Record | None:
    offset = headers.int64_or(request, name)
    return None if offset is None else record_at(offset)


def _topic_of(record: Record) -> str:
    """Return the topic to which a message belongs: of one that waits in a topic of the broker, the topic that it waits for."""
    if record.topic in (HALF_TOPIC, SCHEDULE_TOPIC):
        return record.property_map().get("REAL_TOPIC", record.topic)
    return record.topic


def _further_queues(properties: bytes) -> Iterator[Resource]:
    """The topics of the further queues of a message, for a broker with enableMultiDispatch."""
    if MULTI_DISPATCH.encode() in properties:
        for topic in decode_properties(properties).get(MULTI_DISPATCH, "").split(","):
            if topic:
                yield topic, PUB


def _sent(request: Frame, topic: str, properties: str, batch: str) -> Iterator[Resource]:
    yield from _topic(request, topic, PUB)
    yield from _further_queues(headers.text_or(request, properties, "").encode("utf-8", "replace"))
    if (request.code == RequestCode.SEND_BATCH_MESSAGE or headers.boolean_or(request, batch)) and (
        MULTI_DISPATCH.encode() in bytes(request.body)
    ):
        for inner in send_header.inner_messages(bytes(request.body)):
            yield from _further_queues(inner.properties)


def _sending(request: Frame, cluster: str, record_at: RecordAt) -> Iterator[Resource]:
    """`PUB` on `topic`, and on those of INNER_MULTI_DISPATCH."""
    return _sent(request, "topic", "properties", "batch")


def _sending_v2(request: Frame, cluster: str, record_at: RecordAt) -> Iterator[Resource]:
    """`PUB` on `b`, the topic, and on those of INNER_MULTI_DISPATCH."""
    return _sent(request, "b", "i", "m")


def _replying(request: Frame, cluster: str, record_at: RecordAt) -> Iterator[Resource]:
    """Nothing for CLUSTER_REPLY_TOPIC, else `PUB` on the topic."""
    find = _sending if request.code == RequestCode.SEND_REPLY_MESSAGE else _sending_v2
    return (each for each in find(request, cluster, record_at) if each[0] != reply_topic(cluster))


def _sending_back(request: Frame, cluster: str, record_at: RecordAt) -> Iterator[Resource]:
    """`PUB` and `SUB` on the topic of the message, `PUB` on `originTopic`, `SUB` on `group`.

    The message is read, and written for the group. One that was sent back before is in the group's retry topic, which needs SUB, and
    names the topic that it came from.
    """
    yield from _topic(request, "originTopic", PUB)
    yield from _group(request, "group")
    record = _message(request, "offset", record_at)
    if record is not None:
        yield record.topic, SUB
        retried = record.topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
        yield (record.property_map().get("RETRY_TOPIC", record.topic) if retried else _topic_of(record)), PUB | SUB


def _leaving(request: Frame, cluster: str, record_at: RecordAt) -> Iterator[Resource]:
    """`SUB` on `consumerGroup`, unless it is empty."""
    group = _field(request, "consumerGroup")
    if group is not None:
        yield retry_topic(group), SUB


def _comparing_positions(request: Frame, cluster: str, record_at: RecordAt) -> Iterator[Resource]:
    """`PUB` or `SUB` on `topic` and each of `topicList`, `SUB` on `consumerGroup`."""
    yield from _topic(request, "topic", EITHER)
    for topic in (_field(request, "topicList") or "").split(";"):
        if topic:
            yield topic, EITHER
    yield from _group(request, "consumerGroup")


def _counting(request: Frame, cluster: str, record_at: RecordAt) -> Iterator[Resource]:
    """`PUB` or `SUB` on the topic and `SUB` on the group of `statsKey`; nothing for the series of the broker."""
    if not headers.text_or(request, "statsName", "").startswith("BROKER_"):
        topic, _, group = headers.text_or(request, "statsKey", "").partition("@")
        yield topic, EITHER
        if group:
            yield retry_topic(group), SUB


def _viewing(request: Frame, cluster: str, record_at: RecordAt) -> Iterator[Resource]:
    """`SUB` on the topic of the message."""
    record = _message(request, "offset", record_at)
    if record is not None:
        yield _topic_of(record), SUB


def _ending(request: Frame, cluster: str, record_at: RecordAt) -> Iterator[Resource]:
    """`PUB` on the topic of the half message."""
    record = _message(request, "commitLogOffset", record_at)
    if record is not None:
        yield _topic_of(record), PUB


def _beating(request: Frame, cluster: str, record_at: RecordAt) -> Iterator[Resource]:
    """`SUB` on the consumer groups and topics in the body."""
    for consumer in heartbeats.parse(request.body).consumers:
        yield retry_topic(consumer.name), SUB
        for subscription in consumer.subscriptions:
            yield subscription.topic, SUB


def _locking(request: Frame, cluster: str, record_at: RecordAt) -> Iterator[Resource]:
    """`SUB` on the group and the topics in the body."""
    body = bodies.parse_request(request)
    group, queues = body.get("consumerGroup"), body.get("mqSet")
    if isinstance(group, str):
        yield retry_topic(group), SUB
    for queue in queues if isinstance(queues, list) else ():
        topic = queue.get("topic") if isinstance(queue, dict) else None
        if isinstance(topic, str):
            yield topic, SUB


RESOURCES: dict[int, Rule] = {
    RequestCode.SEND_MESSAGE: _sending,
    RequestCode.SEND_MESSAGE_V2: _sending_v2,
    RequestCode.SEND_BATCH_MESSAGE: _sending_v2,
    RequestCode.SEND_REPLY_MESSAGE: _replying,
    RequestCode.SEND_REPLY_MESSAGE_V2: _replying,
    RequestCode.END_TRANSACTION: _ending,
    RequestCode.CONSUMER_SEND_MSG_BACK: _sending_back,
    RequestCode.PULL_MESSAGE: _consuming,
    RequestCode.LITE_PULL_MESSAGE: _consuming,
    RequestCode.QUERY_MESSAGE: _asking_by_key,
    RequestCode.VIEW_MESSAGE_BY_ID: _viewing,
    RequestCode.QUERY_CONSUME_QUEUE: _consuming,
    RequestCode.HEART_BEAT: _beating,
    RequestCode.UNREGISTER_CLIENT: _leaving,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _of_consumers,
    RequestCode.QUERY_CONSUMER_OFFSET: _consuming,
    RequestCode.UPDATE_CONSUMER_OFFSET: _consuming,
    RequestCode.LOCK_BATCH_MQ: _locking,
    RequestCode.UNLOCK_BATCH_MQ: _locking,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _moving,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _moving,
    RequestCode.CLONE_GROUP_OFFSET: _cloning,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _reading_topic,
    RequestCode.GET_MAX_OFFSET: _reading_topic,
    RequestCode.GET_MIN_OFFSET: _reading_topic,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _reading_topic,
    RequestCode.GET_TOPIC_STATS_INFO: _reading_topic,
    RequestCode.GET_TOPIC_CONFIG: _reading_topic,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _reading_topic,
    RequestCode.QUERY_CONSUME_TIME_SPAN: _of_group_in_topic,
    RequestCode.GET_CONSUME_STATS: _comparing_positions,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _of_consumers,
    RequestCode.GET_CONSUMER_RUNNING_INFO: _of_consumers,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _of_group,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _of_group,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _of_group_in_topic,
    RequestCode.VIEW_BROKER_STATS_DATA: _counting,
}

ADMIN: frozenset[int] = frozenset(
    {
        # those of a 4.9.3 broker
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        # others that change the broker or name server, or show keys or messages of any topic
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        # others whose answer is about all topics, groups or producers, or about the machine
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.QUERY_CORRECTION_OFFSET,
    }
)

ACCOUNT: frozenset[int] = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
        RequestCode.CHECK_CLIENT_CONFIG,
    }
)
