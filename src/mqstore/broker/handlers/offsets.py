"""Offsets of consumer groups: query, commit, clone, compare, list.

    14  QUERY_CONSUMER_OFFSET     the next offset of a group in a queue; 22: the consumer decides where to start
    15  UPDATE_CONSUMER_OFFSET    mostly oneway
    314 CLONE_GROUP_OFFSET        copies the offsets of one group to another
    308 QUERY_CORRECTION_OFFSET   the smallest offset of any other group in each queue
    43, 45                        the tables of consumer offsets and delay offsets, as in their files

In a read-only store only a copy in memory changes, or nothing if the offsets are frozen (16).

Protocol: docs/formats/rocketmq-remoting.md, sections 3.5, 3.16 and 3.22.
"""

from __future__ import annotations

from typing import Literal

from mqstore.broker.protocol import bodies, headers
from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError, make_response
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Context, Handler
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.consumer_offsets import ConsumerOffsets
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
    found: int | None = store.offsets.query(group, topic, queue_id)
    if found is not None and found < 0:
        found = store.offsets.answer(
            group,
            topic,
            queue_id,
            min_offset=store.min_offset(topic, queue_id),
            first_entry=_first_entry(context, topic, queue_id),
            zero_if_not_found=headers.boolean_or(request, "setZeroIfNotFound", True),
        )
    if found is None:
        return make_response(request, ResponseCode.QUERY_NOT_FOUND, NOT_FOUND)
    return make_response(request, ext={"offset": str(found)})


def _first_entry(context: Context, topic: str, queue_id: int) -> Literal["none", "memory", "disk"]:
    """Return where the first message of a queue would be read from, as a pull would report it."""
    found = context.store.get("", topic, queue_id, 0, 1)
    if found.status is not GetStatus.FOUND:
        return "none"
    return "disk" if found.suggest_pulling_from_slave else "memory"


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
    return make_response(request, body=_compact(context.store.offsets.text()))


def all_delay_offsets(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 45: return the delivery offset of each delay level."""
    store = context.store.writable
    table = {} if store is None else store.delays.offsets()
    return make_response(request, body=bodies.encode({"offsetTable": dict(sorted(table.items()))}))


def _compact(text: str) -> bytes:
    """Return the text of a file under config/ on one line."""
    value = fastjson.parse(text)
    table = value.get("offsetTable")
    if isinstance(table, dict):
        value["offsetTable"] = {key: {int(number): offset for number, offset in by_queue.items()} for key, by_queue in table.items()}
    return bodies.encode(value)


HANDLERS: dict[int, Handler] = {
    RequestCode.QUERY_CONSUMER_OFFSET: query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_offset,
    RequestCode.CLONE_GROUP_OFFSET: clone_offsets,
    RequestCode.QUERY_CORRECTION_OFFSET: correction_offset,
    RequestCode.GET_ALL_CONSUMER_OFFSET: all_consumer_offsets,
    RequestCode.GET_ALL_DELAY_OFFSET: all_delay_offsets,
}
