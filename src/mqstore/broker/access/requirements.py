"""What a request needs: permissions on topics and groups, administrator rights, or only an account.

    >>> needed(Frame(11, ext={"topic": "orders", "consumerGroup": "billing"}), "DefaultCluster", lambda offset: None)
    Needs(resources={'orders': <Permission.SUB: 8>, '%RETRY%billing': <Permission.SUB: 8>}, admin=False)
    >>> needed(Frame(17), "DefaultCluster", lambda offset: None).admin
    True

A 4.9.3 broker checks permissions for ten request codes and administrator rights for five. That leaves ways around them (a batch is not
checked, nor is a message that is read by its offset), so here every request that is handled has a place: `RESOURCES`, `ADMIN` or
`ACCOUNT`. A request that names a message by its offset needs the permission on the topic of that message.

Format: docs/formats/rocketmq-remoting.md, section 10. Source: Apache RocketMQ 4.9.3, PlainAccessValidator, Permission; 5.3.3,
DefaultAuthorizationContextBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mqstore.broker.access.accounts import RETRY, Permission
from mqstore.broker.protocol import bodies, headers, heartbeats
from mqstore.broker.protocol.codes import RequestCode
from mqstore.broker.protocol.frames import Frame

__all__ = ["ACCOUNT", "ADMIN", "RESOURCES", "Needs", "TopicAt", "needed"]

PUB, SUB, EITHER = Permission.PUB, Permission.SUB, Permission.EITHER
KNOWN = frozenset(map(int, RequestCode))  # any other request is not supported, which an account may learn
TopicAt = Callable[[int], str | None]  # physical offset -> topic of the message there
Resource = tuple[str, Permission]


@dataclass(frozen=True, slots=True)
class Needs:
    """What a request needs beyond an account. resources: by topic, and by retry topic for groups."""

    resources: dict[str, Permission] = field(default_factory=dict)
    admin: bool = False


def needed(request: Frame, cluster: str, topic_at: TopicAt) -> Needs:
    """Return what a request needs. Raises UsageError or ResponseError if its body or fields cannot be read."""
    if request.code in ADMIN:
        return Needs(admin=True)
    find = RESOURCES.get(request.code)
    if find is None:
        return Needs(admin=request.code in KNOWN and request.code not in ACCOUNT)
    found: dict[str, Permission] = {}
    for name, permission in find(request, cluster, topic_at):
        found[name] = found.get(name, Permission(0)) | permission
    return Needs(found)


def _field(request: Frame, name: str) -> str | None:
    return headers.text_or(request, name) or None


def _topic(request: Frame, name: str, permission: Permission) -> Iterator[Resource]:
    topic = _field(request, name)
    if topic is not None:
        yield topic, permission
        if topic.strip() != topic:
            yield topic.strip(), permission  # some handlers strip names


def _group(request: Frame, *names: str) -> Iterator[Resource]:
    for name in names:
        group = _field(request, name)
        if group is not None:
            yield RETRY + group, SUB


def _sending(request: Frame, cluster: str, topic_at: TopicAt) -> Iterator[Resource]:
    return _topic(request, "topic", PUB)


def _sending_v2(request: Frame, cluster: str, topic_at: TopicAt) -> Iterator[Resource]:
    return _topic(request, "b", PUB)


def _replying(request: Frame, cluster: str, topic_at: TopicAt) -> Iterator[Resource]:
    """A reply goes to a topic of the cluster that needs no permission; nothing else may go there this way."""
    name = "topic" if request.code == RequestCode.SEND_REPLY_MESSAGE else "b"
    return (each for each in _topic(request, name, PUB) if each[0] != f"{cluster}_REPLY_TOPIC")


def _sending_back(request: Frame, cluster: str, topic_at: TopicAt) -> Iterator[Resource]:
    yield from _topic(request, "originTopic", PUB)
    yield from _group(request, "group")
    yield from _message(request, "offset", topic_at, SUB)


def _consuming(request: Frame, cluster: str, topic_at: TopicAt) -> Iterator[Resource]:
    yield from _topic(request, "topic", SUB)
    yield from _group(request, "consumerGroup", "group")


def _reading(request: Frame, cluster: str, topic_at: TopicAt) -> Iterator[Resource]:
    yield from _topic(request, "topic", EITHER)
    for topic in (_field(request, "topicList") or "").split(";"):
        if topic:
            yield topic, EITHER
    yield from _group(request, "consumerGroup", "group")


def _viewing(request: Frame, cluster: str, topic_at: TopicAt) -> Iterator[Resource]:
    return _message(request, "offset", topic_at, SUB)


def _ending(request: Frame, cluster: str, topic_at: TopicAt) -> Iterator[Resource]:
    return _message(request, "commitLogOffset", topic_at, PUB)


def _message(request: Frame, name: str, topic_at: TopicAt, permission: Permission) -> Iterator[Resource]:
    offset = headers.int64_or(request, name)
    topic = None if offset is None else topic_at(offset)
    if topic is not None:
        yield topic, permission


def _cloning(request: Frame, cluster: str, topic_at: TopicAt) -> Iterator[Resource]:
    yield from _topic(request, "topic", SUB)
    yield from _group(request, "srcGroup", "destGroup")


def _comparing(request: Frame, cluster: str, topic_at: TopicAt) -> Iterator[Resource]:
    yield from _topic(request, "topic", EITHER)
    yield from _group(request, "compareGroup")


def _beating(request: Frame, cluster: str, topic_at: TopicAt) -> Iterator[Resource]:
    for consumer in heartbeats.parse(request.body).consumers:
        yield RETRY + consumer.name, SUB
        for subscription in consumer.subscriptions:
            yield subscription.topic, SUB


def _locking(request: Frame, cluster: str, topic_at: TopicAt) -> Iterator[Resource]:
    body = bodies.parse_request(request)
    group, queues = body.get("consumerGroup"), body.get("mqSet")
    if isinstance(group, str):
        yield RETRY + group, SUB
    for queue in queues if isinstance(queues, list) else ():
        topic = queue.get("topic") if isinstance(queue, dict) else None
        if isinstance(topic, str):
            yield topic, SUB


RESOURCES: dict[int, Callable[[Frame, str, TopicAt], Iterator[Resource]]] = {
    RequestCode.SEND_MESSAGE: _sending,
    RequestCode.SEND_MESSAGE_V2: _sending_v2,
    RequestCode.SEND_BATCH_MESSAGE: _sending_v2,
    RequestCode.SEND_REPLY_MESSAGE: _replying,
    RequestCode.SEND_REPLY_MESSAGE_V2: _replying,
    RequestCode.END_TRANSACTION: _ending,
    RequestCode.CONSUMER_SEND_MSG_BACK: _sending_back,
    RequestCode.PULL_MESSAGE: _consuming,
    RequestCode.LITE_PULL_MESSAGE: _consuming,
    RequestCode.QUERY_MESSAGE: _consuming,
    RequestCode.VIEW_MESSAGE_BY_ID: _viewing,
    RequestCode.QUERY_CONSUME_QUEUE: _consuming,
    RequestCode.HEART_BEAT: _beating,
    RequestCode.UNREGISTER_CLIENT: _consuming,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _consuming,
    RequestCode.QUERY_CONSUMER_OFFSET: _consuming,
    RequestCode.UPDATE_CONSUMER_OFFSET: _consuming,
    RequestCode.LOCK_BATCH_MQ: _locking,
    RequestCode.UNLOCK_BATCH_MQ: _locking,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _consuming,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _consuming,
    RequestCode.CLONE_GROUP_OFFSET: _cloning,
    RequestCode.QUERY_CORRECTION_OFFSET: _comparing,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _reading,
    RequestCode.GET_MAX_OFFSET: _reading,
    RequestCode.GET_MIN_OFFSET: _reading,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _reading,
    RequestCode.GET_TOPIC_STATS_INFO: _reading,
    RequestCode.GET_TOPIC_CONFIG: _reading,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _reading,
    RequestCode.QUERY_CONSUME_TIME_SPAN: _reading,
    RequestCode.GET_CONSUME_STATS: _reading,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _reading,
    RequestCode.GET_CONSUMER_RUNNING_INFO: _reading,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _reading,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _reading,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _reading,
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
    }
)

ACCOUNT: frozenset[int] = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.QUERY_DATA_VERSION,
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
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
        RequestCode.VIEW_BROKER_STATS_DATA,
        RequestCode.CHECK_CLIENT_CONFIG,
    }
)
