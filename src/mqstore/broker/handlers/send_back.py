"""Sending back: a consumer that could not process a message returns it (CONSUMER_SEND_MSG_BACK, 36).

    physical offset -> record -> %RETRY%group, with a longer delay for each retry, or %DLQ%group after the last one

The new message is made by `mqstore.rocketmq.append.send_path.sent_back`. If the request fails, a client sends the message itself to
%RETRY%group.

Protocol: docs/formats/rocketmq-remoting.md, section 3.11.
Source: Apache RocketMQ 4.9.3, SendMessageProcessor.asyncConsumerSendMsgBack.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable

from mqstore.broker.handlers.send import HELP
from mqstore.broker.handlers.statistics import Statistics
from mqstore.broker.handlers.topic_creation import WRITE, TopicsAndGroups
from mqstore.broker.protocol import headers
from mqstore.broker.protocol.codes import V3_4_9, RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError, make_response
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Context, Handler
from mqstore.rocketmq.append.send_path import sent_back
from mqstore.rocketmq.format.java_map import reencode
from mqstore.rocketmq.format.message import Message, PutStatus
from mqstore.rocketmq.format.record import Record, decode_properties, offset_message_id, parse_host
from mqstore.rocketmq.format.system_topics import dead_letter_topic, retry_topic

USUAL_TRIES = 16


def send_back(context: Context, connection: Connection, request: Frame) -> Frame | Awaitable[Frame]:
    """Handle 36: put a message into its group's retry or dead-letter topic."""
    store, tables = context.writable_store(), context.component(TopicsAndGroups)
    physical = headers.int64(request, "offset")
    name = headers.text(request, "group")
    level = headers.int32(request, "delayLevel")
    group = tables.group(name)
    if group is None:
        raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name} {HELP}")
    if group.retry_queue_nums <= 0:
        return make_response(request)
    new = tables.retry_topic(group)
    config = store.topics.get(retry_topic(name))
    if config is None or not config.perm & WRITE:
        raise ResponseError(ResponseCode.NO_PERMISSION, f"the topic[{retry_topic(name)}] sending message is forbidden")
    found = store.record_at(physical)
    if found is None:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {physical}")
    most = group.retry_max_times
    asked = headers.int32_or(request, "maxReconsumeTimes")
    if asked is not None and request.version >= V3_4_9:
        most = USUAL_TRIES if asked < 0 else asked
    queue_id = random.randrange(group.retry_queue_nums)
    message = sent_back(found, name, level, most, store.version, queue_id=queue_id)
    origin = decode_properties(found.properties).get("RETRY_TOPIC") or found.topic
    if message.topic == dead_letter_topic(name):
        new |= tables.make(message.topic, 1)
        if context.profile.marks_dead_letters:
            marks = {"DLQ_ORIGIN_TOPIC": origin, "DLQ_ORIGIN_MESSAGE_ID": _message_id(found)}
            message = message.replaced(properties=reencode(message.encoded_properties(store.version), marks, store.version))
    return _put_message(context, request, message, (name, origin), new=new)


def _message_id(found: Record) -> str:
    """Return the message id that clients show for a record."""
    return decode_properties(found.properties).get("UNIQ_KEY") or offset_message_id(parse_host(found.store_host), found.physical_offset)


async def _put_message(context: Context, request: Frame, message: Message, counted: tuple[str, str], *, new: bool) -> Frame:
    """Put a message in a thread and return the response. counted: (group, topic) to count it under. new: a topic was created for it."""
    if new:
        await context.component(TopicsAndGroups).save()
    put = await context.writable_store().put_async(message)
    if not put.stored or put.status is not PutStatus.PUT_OK:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, put.status.spelled(context.profile.version))
    context.component(Statistics).counters.sent_back(*counted, now=context.clock())
    return make_response(request)


HANDLERS: dict[int, Handler] = {RequestCode.CONSUMER_SEND_MSG_BACK: send_back}
