"""Offsets of consumer groups: query, commit, clone, compare, list, reset.

    14  QUERY_CONSUMER_OFFSET     the next offset of a group in a queue; 22: the consumer decides where to start
    15  UPDATE_CONSUMER_OFFSET    mostly oneway
    314 CLONE_GROUP_OFFSET        copies the offsets of one group to another
    308 QUERY_CORRECTION_OFFSET   the smallest offset of any other group in each queue
    43, 45                        the tables of consumer offsets and delay offsets, as in their files

In a read-only store only a copy in memory changes, or nothing if the offsets are frozen (16).

The offsets of running consumers are reset and queried:

    222 INVOKE_BROKER_TO_RESET_OFFSET         4.9.3: new offsets are pushed to the group's clients (220), which apply them
                                              5.3.3: they are set here, and clients get them with their next pull
    223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS  asks the clients for their offsets (221)

The new offset is that of the requested time, or the maximum for -1; without force a group only moves back.

    >>> moved({0: 7, 1: 3}, {0: 5, 1: 9}, force=False), moved({0: 7, 1: 3}, {0: 5, 1: 9}, force=True)
    ({0: 5, 1: 3}, {0: 5, 1: 9})

Protocol: docs/formats/rocketmq-remoting.md, sections 3.5, 3.16 and 3.22.
Source: Apache RocketMQ 4.9.3 and 5.3.3, Broker2Client, AdminBrokerProcessor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

from mqstore.broker.handlers.long_polling import LongPolling
from mqstore.broker.handlers.membership import Membership
from mqstore.broker.protocol import bodies, headers
from mqstore.broker.protocol.bodies import MessageQueue
from mqstore.broker.protocol.codes import V3_0_7_SNAPSHOT, RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError, make_request, make_response
from mqstore.broker.runtime.clients import Member
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Context, Handler
from mqstore.broker.runtime.logs import log
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.consumer_offsets import ConsumerOffsets
from mqstore.rocketmq.config.topic_table import TopicConfig
from mqstore.rocketmq.query.pull import GetStatus

NOT_FOUND = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


def moving(context: Context) -> ConsumerOffsets:
    """Return the offsets for changing them. Raises ResponseError if they are frozen."""
    if context.settings.freeze_offsets and not context.writable:
        raise ResponseError(ResponseCode.NO_PERMISSION, "the store is served read-only with frozen offsets; no offsets can be changed")
    return context.store.offsets


def commit(context: Context, group: str, topic: str, queue_id: int, offset: int) -> None:
    """Commit an offset. Raises ResponseError if it would be one more than the broker holds."""
    offsets = moving(context)
    if not offsets.has_offset(group, topic, queue_id):
        context.limits.name(group, "consumer group")
        context.limits.name(topic, "topic")
        context.limits.check("consumer offsets", len(offsets))
    offsets.commit(group, topic, queue_id, offset)


def query_offset(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 14: return a group's next offset in a queue."""
    group, topic = headers.text(request, "consumerGroup"), headers.text(request, "topic")
    queue_id = headers.int32(request, "queueId")
    store = context.store
    offset: int | None = store.offsets.query(group, topic, queue_id)
    if offset is not None and offset < 0:
        offset = store.offsets.answer(
            group,
            topic,
            queue_id,
            min_offset=store.min_offset(topic, queue_id),
            first_entry=_first_entry(context, topic, queue_id),
            zero_if_not_found=headers.boolean_or(request, "setZeroIfNotFound", True),
        )
    if offset is None:
        return make_response(request, ResponseCode.QUERY_NOT_FOUND, NOT_FOUND)
    return make_response(request, ext={"offset": str(offset)})


def _first_entry(context: Context, topic: str, queue_id: int) -> Literal["none", "memory", "disk"]:
    """Return where the first message of a queue would be read from, as a pull would report it."""
    result = context.store.get("", topic, queue_id, 0, 1)
    if result.status is not GetStatus.FOUND:
        return "none"
    return "disk" if result.suggest_pulling_from_slave else "memory"


def update_offset(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 15: commit a group's offset in a queue."""
    group, topic = headers.text(request, "consumerGroup"), headers.text(request, "topic")
    if context.profile.compares_commits:
        return _update_checked(context, request, group, topic)
    commit(context, group, topic, headers.int32(request, "queueId"), headers.int64(request, "commitOffset"))
    return make_response(request)


def _update_checked(context: Context, request: Frame, group: str, topic: str) -> Frame:
    """Commit as 5.3.3 does: only for existing groups, topics and queues, and not while a reset is pending."""
    if group not in context.store.groups:
        raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
    if topic not in context.store.topics:
        raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
    queue_id, offset = headers.int32_or(request, "queueId"), headers.int64_or(request, "commitOffset")
    if queue_id is None:
        raise ResponseError(ResponseCode.INVALID_PARAMETER, f"QueueId is null, topic is {topic}")
    if offset is None:
        raise ResponseError(ResponseCode.INVALID_PARAMETER, f"Offset is null, topic is {topic}")
    offsets = moving(context)
    if offsets.has_reset(group, topic, queue_id):
        return make_response(request, ResponseCode.SUCCESS, "Offset has been previously reset")
    commit(context, group, topic, queue_id, offset)
    return make_response(request)


def clone_offsets(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 314: copy a group's offsets of one topic, or of all, to another group."""
    source, target = headers.text(request, "srcGroup"), headers.text(request, "destGroup")
    topic = headers.text_or(request, "topic")
    offsets = moving(context)
    for name in [topic] if topic else sorted(offsets.topics_of(source)):
        if name in context.store.topics:
            context.limits.name(target, "consumer group")
            more = len(offsets.by_queue(source, name)) - len(offsets.by_queue(target, name))
            context.limits.check("consumer offsets", len(offsets), more)
            offsets.clone(source, target, name)
    return make_response(request)


def correction_offset(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 308: return the smallest offset of the other groups per queue; no limit if the compared group has passed it."""
    topic = headers.text(request, "topic")
    compared = headers.text_or(request, "compareGroup", "")
    without = [name for name in headers.text_or(request, "filterGroups", "").split(",") if name]
    store = context.store
    smallest = store.offsets.min_in_all_groups(topic, lambda queue_id: store.min_offset(topic, queue_id), without=without)
    if compared:
        own = store.offsets.by_queue(compared, topic)
        corrected = {
            queue_id: (1 << 63) - 1 if own.get(queue_id, offset) > offset else offset
            for queue_id, offset in smallest.items()
            if queue_id in own
        }
        smallest |= corrected
    return make_response(request, body=bodies.encode({"correctionOffsets": dict(sorted(smallest.items()))}))


def all_consumer_offsets(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 43: return the table of consumer offsets as compact JSON."""
    value = fastjson.parse(context.store.offsets.text())
    table = value.get("offsetTable")
    if isinstance(table, dict):
        value["offsetTable"] = {key: {int(number): offset for number, offset in by_queue.items()} for key, by_queue in table.items()}
    return make_response(request, body=bodies.encode(value))


def all_delay_offsets(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 45: return the delivery offset of each delay level."""
    store = context.store.writable
    table = {} if store is None else store.delays.offsets()
    return make_response(request, body=bodies.encode({"offsetTable": dict(sorted(table.items()))}))


# resets


CALL_TIMEOUT = 5.0


def moved(before: Mapping[int, int], targets: Mapping[int, int], *, force: bool) -> dict[int, int]:
    """Return the offset of each queue id after a reset."""
    return {queue_id: target if force or target < before[queue_id] else before[queue_id] for queue_id, target in targets.items()}


async def reset_offset(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 222: reset a group to a time."""
    topic, group = headers.text(request, "topic"), headers.text(request, "group")
    timestamp, force = headers.int64(request, "timestamp"), headers.boolean(request, "isForce")
    moving(context)
    config = context.store.topics.get(topic)
    if context.profile.rules.resets_at_broker and context.settings.server_side_reset:
        return await _reset_here(context, request, config, topic, group, timestamp)
    if config is None:
        remark = f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, remark)
    before = {queue_id: context.store.offsets.query(group, topic, queue_id) for queue_id in range(config.write_queues)}
    if any(offset < 0 for offset in before.values()):
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{group}> not exist")
    targets = await context.run(_targets, context, topic, list(before), timestamp)
    return _push(context, request, topic, group, timestamp, moved(before, targets, force=force))


def _targets(context: Context, topic: str, queue_ids: list[int], timestamp: int) -> dict[int, int]:
    store = context.store
    return {
        queue_id: store.max_offset(topic, queue_id) if timestamp == -1 else max(0, store.offset_by_time(topic, queue_id, timestamp))
        for queue_id in queue_ids
    }


def _push(context: Context, request: Frame, topic: str, group: str, timestamp: int, offsets: Mapping[int, int]) -> Frame:
    """Push the offsets to the group's clients, which apply them."""
    table = {MessageQueue(topic, context.settings.broker_name, queue_id): offset for queue_id, offset in offsets.items()}
    online = context.component(Membership).clients.consumer_group(group)
    if online is None or not online.members:
        remark = f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic} Timestamp: {timestamp}"
        raise ResponseError(ResponseCode.CONSUMER_NOT_ONLINE, remark)
    members = list(online.members.values())
    _check_versions(members)
    ext = {"topic": topic, "group": group, "timestamp": str(timestamp), "isForce": "false"}
    for member in members:
        sent: object = table
        if member.language == "CPP":
            sent = [{**queue.bean(), "offset": offset} for queue, offset in table.items()]
        member.connection.notify(
            make_request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, bodies.encode({"offsetTable": sent}), oneway=True)
        )
    log("offsets-reset", group=group, topic=topic, clients=len(members))
    return make_response(request, body=bodies.encode({"offsetTable": table}, strict=bodies.takes_strict_json(request)))


def _check_versions(members: list[Member[Connection]]) -> None:
    for member in members:
        if member.version < V3_0_7_SNAPSHOT:
            remark = f"the client does not support this feature. version={member.version}"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, remark)


async def _reset_here(context: Context, request: Frame, config: TopicConfig | None, topic: str, group: str, timestamp: int) -> Frame:
    """Set the offsets in the table; the next pull of each queue returns them."""
    store = context.store
    if config is None:
        raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
    if group not in store.groups:
        raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
    queue_id, offset = headers.int32_or(request, "queueId", -1), headers.int64_or(request, "offset", -1)
    queue_ids = [queue_id] if queue_id >= 0 else list(range(config.write_queues))
    if queue_id >= 0 and offset != -1:
        if not store.min_offset(topic, queue_id) <= offset <= store.max_offset(topic, queue_id):
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"Target offset {offset} not in consume queue range")
        targets = {queue_id: offset}
    else:
        targets = await context.run(_targets, context, topic, queue_ids, timestamp)
    new = sum(not store.offsets.has_offset(group, topic, queue_id) for queue_id in targets)
    context.limits.check("consumer offsets", len(store.offsets), new)
    store.offsets.reset(group, topic, targets, force=True, server_side=True)
    context.component(LongPolling).wake(group, topic)
    table = {MessageQueue(topic, context.settings.broker_name, queue_id): target for queue_id, target in targets.items()}
    return make_response(request, body=bodies.encode({"offsetTable": table}, strict=bodies.takes_strict_json(request)))


async def consumer_status(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 223: return the offsets of each client of a group, or of the named one."""
    topic, group = headers.text(request, "topic"), headers.text(request, "group")
    only = headers.text_or(request, "clientAddr", "").strip()
    online = context.component(Membership).clients.consumer_group(group)
    if online is None:
        raise ResponseError(context.profile.offline_code, f"the consumer group[{group}] not online")
    members = [member for member in online.members.values() if not only or member.client_id == only]
    _check_versions(members)
    answers = await asyncio.gather(*(_status_of(member, topic, group) for member in members))
    table = {member.client_id: offsets for member, offsets in zip(members, answers, strict=True) if offsets is not None}
    return make_response(request, body=bodies.encode({"consumerTable": table}, strict=bodies.takes_strict_json(request)))


async def _status_of(member: Member[Connection], topic: str, group: str) -> dict[Any, Any] | None:
    """Return the offsets that one client reports, or None without a usable response."""
    try:
        response = await member.connection.call(
            make_request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": topic, "group": group}), CALL_TIMEOUT
        )
        value = bodies.parse(response.body) if response.code == ResponseCode.SUCCESS else {}
    except (TimeoutError, ConnectionError, bodies.BodyError) as error:
        log("consumer-status-failed", client=member.client_id, why=str(error) or type(error).__name__)
        return None
    offsets = value.get("messageQueueTable") if isinstance(value, dict) else None
    return offsets if isinstance(offsets, dict) else None


HANDLERS: dict[int, Handler] = {
    RequestCode.QUERY_CONSUMER_OFFSET: query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_offset,
    RequestCode.CLONE_GROUP_OFFSET: clone_offsets,
    RequestCode.QUERY_CORRECTION_OFFSET: correction_offset,
    RequestCode.GET_ALL_CONSUMER_OFFSET: all_consumer_offsets,
    RequestCode.GET_ALL_DELAY_OFFSET: all_delay_offsets,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset_offset,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: consumer_status,
}
