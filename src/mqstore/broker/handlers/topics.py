"""Administration of topics and groups: create, change, delete, list.

    17 UPDATE_AND_CREATE_TOPIC   215 DELETE_TOPIC_IN_BROKER   21 GET_ALL_TOPIC_CONFIG   351 GET_TOPIC_CONFIG
    200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP   207 DELETE_SUBSCRIPTIONGROUP   201 GET_ALL_…   352 GET_SUBSCRIPTIONGROUP_CONFIG

A change is on disk and visible in the name server before the response. A read-only store refuses changes with NO_PERMISSION.
In the 5.3.3 profile a topic has attributes, given as `+name=value,-name`:

    >>> changed_attributes({"message.type": "FIFO"}, "+message.type=DELAY", new=False)
    {'message.type': 'DELAY'}

Protocol: docs/formats/rocketmq-remoting.md, section 3.13.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqstore.broker.handlers.statistics import Statistics
from mqstore.broker.handlers.topic_creation import TopicsAndGroups, topic_problem
from mqstore.broker.protocol import bodies, headers
from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError, make_response
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Context, Handler
from mqstore.broker.runtime.logs import log
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.topic_table import SubscriptionGroupConfig, TopicConfig, topic_bean
from mqstore.rocketmq.format.system_topics import is_system_topic

# valid values of an attribute (None: a number), and whether it may change after the topic's creation
_ATTRIBUTES: dict[str, tuple[tuple[str, ...] | None, bool]] = {
    "queue.type": (("SimpleCQ", "BatchCQ"), False),
    "cleanup.policy": (("DELETE", "COMPACTION"), False),
    "message.type": (("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"), True),
    "reserve.time": (None, True),
}
_NOT_SERVED = {"queue.type": "BatchCQ", "cleanup.policy": "COMPACTION"}

_GROUP_NUMBERS = ("retryQueueNums", "retryMaxTimes", "brokerId", "whichBrokerWhenConsumeSlowly", "consumeTimeoutMinute", "groupSysFlag")
_GROUP_SWITCHES = (
    "consumeEnable",
    "consumeFromMinEnable",
    "consumeBroadcastEnable",
    "notifyConsumerIdsChangedEnable",
    "consumeMessageOrderly",
)


def _wrong(text: str) -> ResponseError:
    return ResponseError(ResponseCode.SYSTEM_ERROR, text)


def _check_name(context: Context, topic: str) -> str:
    """Check that an administrator may create or delete a topic, and return its name. Raises ResponseError."""
    problem = topic_problem(topic)
    if problem is None and is_system_topic(topic, context.settings.cluster, context.settings.broker_name):
        problem = f"The topic[{topic}] is conflict with system topic."
    if problem is not None:
        raise ResponseError(context.profile.parameter_code, problem)
    return topic


# topics


async def update_topic(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 17: create or change a topic."""
    context.writable_store(ResponseCode.NO_PERMISSION)
    topic = _check_name(context, headers.text(request, "topic"))
    before = context.store.topics.get(topic)
    attributes = dict(before.attributes) if before is not None else {}
    if context.profile.has_topic_attributes:
        attributes = changed_attributes(attributes, headers.text_or(request, "attributes", ""), new=before is None)
    config = TopicConfig(
        topic,
        perm=headers.int32(request, "perm"),
        read_queues=_queue_count(request, "readQueueNums"),
        write_queues=_queue_count(request, "writeQueueNums"),
        order=context.profile.has_topic_attributes and headers.boolean_or(request, "order"),
        sys_flag=headers.int32_or(request, "topicSysFlag", 0),
        filter_type=headers.text_or(request, "topicFilterType", "SINGLE_TAG"),
        attributes=attributes,
    )
    context.limits.name(config.filter_type, "filter")
    if before is None:
        context.component(TopicsAndGroups).check_topic()
    context.store.topics.put(config)
    await context.component(TopicsAndGroups).save()
    log("topic-changed" if before is not None else "topic-made", topic=topic, peer=connection.peer)
    return make_response(request)


def _queue_count(request: Frame, name: str) -> int:
    """Return a valid number of queues. Raises ResponseError."""
    number = headers.int32(request, name)
    if not 0 <= number <= 65536:
        raise _wrong(f"{name} is {number}; a topic has 0 to 65536 queues here")
    return number


def changed_attributes(held: Mapping[str, str], text: str, *, new: bool) -> dict[str, str]:
    """Return the attributes of a topic after a change. Raises ResponseError for changes that 5.x brokers, or this one, reject."""
    attributes = dict(held)
    for part in filter(None, text.split(",")):
        name, sign, value = part[1:].partition("=")
        known = _ATTRIBUTES.get(name)
        if part[0] not in "+-" or (part[0] == "+") != bool(sign):
            raise _wrong(f"{part!r} is not a change of an attribute; write +name=value or -name")
        if known is None:
            raise _wrong(f"unsupported key: {name}; the attributes of a topic are {', '.join(_ATTRIBUTES)}")
        allowed, changeable = known
        if not new and not changeable:
            raise _wrong(f"attempt to update an unchangeable attribute. key: {name}")
        if part[0] == "-":
            if name not in attributes:
                raise _wrong(f"attempt to delete a nonexistent key: {name}")
            del attributes[name]
            continue
        if value not in allowed if allowed is not None else headers.number_or_none(value) is None:
            raise _wrong(f"{value!r} is not a value of {name}")
        if value == _NOT_SERVED.get(name):
            raise _wrong(f"{name}={value} is not supported by this broker; omit it")
        attributes[name] = value
    return attributes


async def delete_topic(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 215: delete a topic and its queues. Its messages stay in the log until retention removes them."""
    store = context.writable_store(ResponseCode.NO_PERMISSION)
    topic = _check_name(context, headers.text(request, "topic"))
    context.store.topics.delete(topic)
    if context.profile.forgets_offsets:
        context.store.offsets.remove_topic(topic)
    await context.run(store.delete_queues, topic)
    context.component(Statistics).counters.forget_topic(topic)
    await context.component(TopicsAndGroups).save()
    log("topic-deleted", topic=topic, peer=connection.peer)
    return make_response(request)


def all_topics(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 21: return config/topics.json."""
    return make_response(request, body=bodies.encode(fastjson.parse(context.store.topics.text())))


def one_topic(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 351: return the configuration of a topic, for 5.x tools."""
    topic = headers.text(request, "topic")
    config = context.store.topics.get(topic)
    if config is None:
        return make_response(request, ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
    return make_response(request, body=bodies.encode(topic_bean(config)))


# groups


async def update_group(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 200: create or change a group."""
    context.writable_store(ResponseCode.NO_PERMISSION)
    body = bodies.parse_request(request)
    name = body.get("groupName")
    if not isinstance(name, str) or not name:
        raise _wrong("the body has no groupName; a group must have a name")
    before = context.store.groups.get(name)
    if before is None:
        context.component(TopicsAndGroups).check_group(name)
    config = _group(name, body, {} if before is None else before.attributes)
    context.limits.properties(dict(config.attributes))
    context.store.groups.put(config)
    await context.component(TopicsAndGroups).save()
    log("group-changed" if before is not None else "group-made", group=name, peer=connection.peer)
    return make_response(request)


def _group(name: str, body: Mapping[str, Any], attributes: Mapping[str, str]) -> SubscriptionGroupConfig:
    """Parse the group in a body; missing fields have their defaults."""
    usual = SubscriptionGroupConfig(name)
    given: dict[str, Any] = {}
    for theirs in (*_GROUP_NUMBERS, *_GROUP_SWITCHES):
        own = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in theirs)
        value = body.get(theirs, getattr(usual, own))
        if type(value) is not type(getattr(usual, own)) or (type(value) is int and not -(1 << 63) <= value < 1 << 63):
            raise _wrong(f"{theirs} is {value!r}, which is not valid; correct or omit it")
        given[own] = value
    if given["retry_queue_nums"] > 65536:
        raise _wrong(f"retryQueueNums is {given['retry_queue_nums']}; a topic has 0 to 65536 queues here")
    merged = dict(attributes)
    changes = body.get("attributes")
    for key, value in changes.items() if isinstance(changes, dict) else ():
        if str(key).startswith("-"):
            merged.pop(str(key)[1:], None)
        else:
            merged[str(key).removeprefix("+")] = str(value)
    return SubscriptionGroupConfig(name, attributes=merged, **given)


async def delete_group(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 207: delete a group, and with cleanOffset (5.x) its offsets."""
    context.writable_store(ResponseCode.NO_PERMISSION)
    name = headers.text(request, "groupName")
    context.store.groups.delete(name)
    if headers.boolean_or(request, "removeOffset") or headers.boolean_or(request, "cleanOffset"):
        context.store.offsets.remove(name)
    context.component(Statistics).counters.forget_group(name)
    await context.component(TopicsAndGroups).save()
    log("group-deleted", group=name, peer=connection.peer)
    return make_response(request)


def all_groups(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 201: return config/subscriptionGroup.json."""
    return make_response(request, body=bodies.encode(fastjson.parse(context.store.groups.text())))


def one_group(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 352: return the configuration of a group, for 5.x tools."""
    name = headers.text(request, "group")
    table = fastjson.parse(context.store.groups.text())["subscriptionGroupTable"]
    if name not in table:
        return make_response(request, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name}")
    return make_response(request, body=bodies.encode(table[name]))


HANDLERS: dict[int, Handler] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: update_topic,
    RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
    RequestCode.GET_ALL_TOPIC_CONFIG: all_topics,
    RequestCode.GET_TOPIC_CONFIG: one_topic,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: update_group,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: all_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: one_group,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
}
