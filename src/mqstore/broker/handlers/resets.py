"""Reset and query of the offsets of running consumers.

    222 INVOKE_BROKER_TO_RESET_OFFSET         4.9.3: new offsets are pushed to the group's clients (220), which apply them
                                              5.3.3: they are set here, and clients get them with their next pull
    223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS  asks the clients for their offsets (221)

The new offset is that of the requested time, or the maximum for -1; without force a group only moves back.

    >>> moved({0: 7, 1: 3}, {0: 5, 1: 9}, force=False), moved({0: 7, 1: 3}, {0: 5, 1: 9}, force=True)
    ({0: 5, 1: 3}, {0: 5, 1: 9})

Protocol: docs/formats/rocketmq-remoting.md, section 3.16.
Source: Apache RocketMQ 4.9.3 and 5.3.3, Broker2Client, AdminBrokerProcessor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from mqstore.broker.handlers.long_polling import LongPolling
from mqstore.broker.handlers.membership import Membership
from mqstore.broker.handlers.offsets import moving
from mqstore.broker.protocol import bodies, headers
from mqstore.broker.protocol.bodies import MessageQueue
from mqstore.broker.protocol.codes import V3_0_7_SNAPSHOT, RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError, make_request, make_response
from mqstore.broker.runtime.clients import Member
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Context, Handler
from mqstore.broker.runtime.logs import log
from mqstore.rocketmq.config.topic_table import TopicConfig

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
        told: object = table
        if member.language == "CPP":
            told = [{**queue.bean(), "offset": offset} for queue, offset in table.items()]
        member.connection.notify(
            make_request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, bodies.encode({"offsetTable": told}), oneway=True)
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
    table = {member.client_id: told for member, told in zip(members, answers, strict=True) if told is not None}
    return make_response(request, body=bodies.encode({"consumerTable": table}, strict=bodies.takes_strict_json(request)))


async def _status_of(member: Member[Connection], topic: str, group: str) -> dict[Any, Any] | None:
    """Return the offsets that one client reports, or None without a usable response."""
    try:
        told = await member.connection.call(
            make_request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": topic, "group": group}), CALL_TIMEOUT
        )
        value = bodies.parse(told.body) if told.code == ResponseCode.SUCCESS else {}
    except (TimeoutError, ConnectionError, bodies.BodyError) as error:
        log("consumer-status-failed", client=member.client_id, why=str(error) or type(error).__name__)
        return None
    found = value.get("messageQueueTable") if isinstance(value, dict) else None
    return found if isinstance(found, dict) else None


HANDLERS: dict[int, Handler] = {
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset_offset,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: consumer_status,
}
