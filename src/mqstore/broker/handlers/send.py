"""Sending: a producer's message or batch, from the request to the store.

    10 SEND_MESSAGE   310 SEND_MESSAGE_V2   320 SEND_BATCH_MESSAGE

Steps: check the topic's name; create an unknown topic, if allowed; check the queue id; redirect a message to %RETRY%group that was
reretried too often to %DLQ%group; add the broker's properties; store. The topic's write permission is not checked: producers do not
see the queues of a topic without it.

A topic is created from a template (defaultTopic, TBW102) with the inherit bit: with as many queues as the producer requests, at most
as many as the template has.

    >>> template = TopicConfig("TBW102", perm=7, read_queues=8, write_queues=8)
    >>> after_template("orders", template, 4)
    TopicConfig(name='orders', perm=6, read_queues=4, write_queues=4, order=False, sys_flag=0, filter_type='SINGLE_TAG', attributes={})

Protocol: docs/formats/rocketmq-remoting.md, sections 2.3 and 3.2.
Source: Apache RocketMQ 4.9.3 and 5.3.3, SendMessageProcessor, TopicConfigManager.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from mqstore.broker.handlers.statistics import Statistics
from mqstore.broker.handlers.topic_creation import TopicsAndGroups, topic_problem
from mqstore.broker.protocol import send_header
from mqstore.broker.protocol.codes import V3_4_9, RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError, make_response
from mqstore.broker.protocol.send_header import SendHeader
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Context, Handler
from mqstore.rocketmq.append.send_path import UniqueIds, as_sent, batch_as_sent
from mqstore.rocketmq.config.topic_table import TopicConfig
from mqstore.rocketmq.format.java_map import reencode
from mqstore.rocketmq.format.message import Message, MessageBatch, PutResult, PutStatus
from mqstore.rocketmq.format.system_topics import (
    FORBIDDEN_TOPICS,
    RETRY_PREFIX,
    TEMPLATE_TOPIC,
    dead_letter_topic,
)
from mqstore.rocketmq.live.retention import disk_ratio

HELP = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
INHERIT, MULTI_TAG = 1, 0x2

_IDS = UniqueIds()

_CODES = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
}


def send_message(context: Context, connection: Connection, request: Frame) -> Frame | Awaitable[Frame]:
    """Handle 10, 310 and 320: store a message or a batch."""
    return sent(context, connection, request, send_header.parse(request))


def sent(context: Context, connection: Connection, request: Frame, header: SendHeader) -> Frame | Awaitable[Frame]:
    """Store a message, as `send_message`, with a parsed header."""
    store = context.writable_store()
    config = store.topics.get(header.topic)
    if config is None or header.topic in FORBIDDEN_TOPICS:
        _check_name(context, header.topic)
        if config is None:
            return _sent_to_new_topic(context, connection, request, header)
    return _sent_to(context, connection, request, header, config)


def _check_name(context: Context, topic: str) -> None:
    problem = topic_problem(topic)
    if problem is not None:
        raise ResponseError(context.profile.parameter_code, problem)
    if topic in FORBIDDEN_TOPICS:
        raise ResponseError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")


async def _sent_to_new_topic(context: Context, connection: Connection, request: Frame, header: SendHeader) -> Frame:
    config = _make_topic(context, header)
    await context.component(TopicsAndGroups).save()
    work = _sent_to(context, connection, request, header, config)
    return work if isinstance(work, Frame) else await work


def _make_topic(context: Context, header: SendHeader) -> TopicConfig:
    """Create a topic and return its configuration. Raises ResponseError if it cannot be created."""
    topics = context.writable_store().topics
    name = header.topic
    template = topics.get(header.default_topic)
    made = None
    if template is not None:
        if template.name == TEMPLATE_TOPIC and not context.settings.auto_create_topics:
            template = replace(template, perm=template.perm & ~INHERIT)
        made = after_template(name, template, header.default_queues)
    if made is None and name.startswith(RETRY_PREFIX):
        made = TopicConfig(name, perm=6, read_queues=1, write_queues=1)
    if made is None:
        raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!{HELP}")
    context.component(TopicsAndGroups).check_topic(ResponseCode.TOPIC_NOT_EXIST)
    topics.put(made)
    return made


def after_template(name: str, template: TopicConfig, queues: int) -> TopicConfig | None:
    """Return the topic created from a template, or None if the template may not be inherited."""
    if not template.perm & INHERIT:
        return None
    number = max(0, min(queues, template.write_queues))
    return TopicConfig(name, perm=template.perm & ~INHERIT, read_queues=number, write_queues=number, filter_type=template.filter_type)


def _sent_to(context: Context, connection: Connection, request: Frame, header: SendHeader, config: TopicConfig) -> Frame | Awaitable[Frame]:
    """Store a message of an existing topic."""
    queue_id = header.queue_id
    if queue_id >= max(config.write_queues, config.read_queues):
        described_as = described(config, attributes=context.profile.has_topic_attributes)
        remark = f"request queueId[{queue_id}] is illegal, {described_as} Producer: {connection.peer}"
        raise ResponseError(context.profile.parameter_code, remark)
    if queue_id < 0:
        queue_id = random.randrange(max(config.write_queues, 1))
    topic, properties = header.topic, header.properties
    sys_flag = header.sys_flag
    if config.filter_type == "MULTI_TAG":
        sys_flag |= MULTI_TAG
    message = Message(
        topic,
        request.body,
        queue_id=queue_id,
        properties=properties,
        flag=header.flag,
        sys_flag=sys_flag,
        born_timestamp=header.born_timestamp,
        born_host=connection.peer,
        reconsume_times=header.reconsume_times,
    )
    if topic.startswith(RETRY_PREFIX) and _is_dead(context, request, header):
        return _dead_letter(context, request, message, topic.removeprefix(RETRY_PREFIX))
    return store_it(context, request, message, batch=header.batch)


# retried too often


def _is_dead(context: Context, request: Frame, header: SendHeader) -> bool:
    """Return whether a message to a retry topic has used up its retries. Raises ResponseError for an unknown group."""
    group = header.topic.removeprefix(RETRY_PREFIX)
    config = context.component(TopicsAndGroups).group(group)
    if config is None:
        raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group} {HELP}")
    most = config.retry_max_times
    if request.version >= V3_4_9 and header.max_reconsume_times is not None:
        most = header.max_reconsume_times
    return header.reconsume_times >= most


async def _dead_letter(context: Context, request: Frame, message: Message, group: str) -> Frame:
    tables = context.component(TopicsAndGroups)
    topic = dead_letter_topic(group)
    if tables.make(topic, 1):
        await tables.save()
    dead = message.replaced(
        topic=topic,
        queue_id=0,
        properties=reencode(message.encoded_properties(context.profile.version), {"DELAY": "0"}, context.profile.version),
    )
    done = store_it(context, request, dead, batch=False)
    return done if isinstance(done, Frame) else await done


# into the store


def store_it(context: Context, request: Frame, message: Message, *, batch: bool) -> Frame | Awaitable[Frame]:
    """Put a message into the store and return the response. Only puts that wait for the disk are awaitable."""
    store, settings, version = context.writable_store(), context.settings, context.profile.version
    waits = store.config.flush_disk_type == "SYNC_FLUSH"
    if batch:
        whole = batch_as_sent(
            MessageBatch(message, send_header.inner_messages(bytes(request.body))),
            version,
            cluster=settings.cluster,
            region=settings.region,
            ids=_IDS,
        )
        if waits:
            return _put_in_thread(context, request, message, lambda: store.put_messages(whole))
        return put_answer(context, request, message, store.put_messages(whole))
    properties = message.encoded_properties(version)
    whole_message = as_sent(message, version, cluster=settings.cluster, region=settings.region, ids=_IDS)
    if b"TRAN_MSG\x01" in properties and message.property_map().get("TRAN_MSG", "").lower() == "true":
        if settings.reject_transactions:
            host = context.address.rpartition(":")[0]
            raise ResponseError(ResponseCode.NO_PERMISSION, f"the broker[{host}] sending transaction message is forbidden")
        if waits:
            return _put_in_thread(context, request, message, lambda: store.transactions.prepare(whole_message))
        return put_answer(context, request, message, store.transactions.prepare(whole_message))
    if waits:
        return _put_and_wait(context, request, message, whole_message)
    return put_answer(context, request, message, store.put(whole_message))


async def _put_and_wait(context: Context, request: Frame, message: Message, whole: Message) -> Frame:
    return put_answer(context, request, message, await context.writable_store().put_async(whole))


async def _put_in_thread(context: Context, request: Frame, message: Message, put: Callable[[], PutResult]) -> Frame:
    return put_answer(context, request, message, await context.run(put))


def put_answer(context: Context, request: Frame, message: Message, put: PutResult) -> Frame:
    """Return the response to a send. message: as received, with the chosen queue."""
    profile = context.profile
    counters = context.component(Statistics).counters
    status = put.status
    if status is not PutStatus.PUT_OK and not put.stored:
        counters.refused()
        return make_response(request, *_refusal(context, message, put), {"MSG_REGION": context.settings.region, "TRACE_ON": "true"})
    now = context.clock()
    counters.stored(message.topic, messages=put.count, size=put.size, elapsed=now - put.store_timestamp, now=now)
    ext = {
        "queueId": str(message.queue_id),
        "MSG_REGION": context.settings.region,
        "TRACE_ON": "true",
        "msgId": put.msg_id,
        "queueOffset": str(put.queue_offset),
    }
    if profile.tells_transaction_id and request.code != RequestCode.SEND_BATCH_MESSAGE:
        unique = message.property_map().get("UNIQ_KEY")
        if unique:
            ext["transactionId"] = unique
    code = ResponseCode.SUCCESS if status is PutStatus.PUT_OK else _CODES.get(status, ResponseCode.SYSTEM_ERROR)
    return make_response(request, code, None, ext)


def _refusal(context: Context, message: Message, put: PutResult) -> tuple[int, str]:
    """Return (code, remark) of a rejected put."""
    code = _CODES.get(put.status, ResponseCode.SYSTEM_ERROR)
    if code == ResponseCode.MESSAGE_ILLEGAL:
        most = context.store.config.max_message_size
        limits = (
            f"{most}B, msg properties length limit 32KB." if context.profile.tells_size_limit else "128k, msg properties length limit 32k."
        )
        remark = f"the message is illegal, maybe msg body or properties length not matched. msg body length limit {limits}"
        too_large = len(message.body) > most or put.status is PutStatus.PROPERTIES_SIZE_EXCEEDED
        return code, remark if too_large or not put.detail else f"{remark} {put.detail}"
    if code == ResponseCode.SERVICE_NOT_AVAILABLE:
        store = context.writable_store()
        used = (store.config.disk_ratio or disk_ratio)(str(store.directory.root)) or 0.0
        return code, (
            "service not available now. It may be caused by one of the following reasons: the broker's disk is full "
            f"[CL: {used:.2f} CQ: {used:.2f} INDEX: {used:.2f}], messages are put to the slave, message store has been shut down, etc."
        )
    if put.status is PutStatus.CREATE_MAPPED_FILE_FAILED:
        return code, "create mapped file failed, server is busy or broken."
    if put.status is PutStatus.OS_PAGE_CACHE_BUSY:
        return code, "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
    return code, "UNKNOWN_ERROR"


def described(config: TopicConfig, *, attributes: bool = False) -> str:
    """Format a topic's configuration as the broker does.

    >>> described(TopicConfig("orders", perm=6, read_queues=4, write_queues=4))[:72]
    'TopicConfig [topicName=orders, readQueueNums=4, writeQueueNums=4, perm=R'
    """
    perm = ("R" if config.perm & 4 else "-") + ("W" if config.perm & 2 else "-") + ("X" if config.perm & INHERIT else "-")
    further = ", attributes={" + ", ".join(f"{name}={value}" for name, value in config.attributes.items()) + "}" if attributes else ""
    return (
        f"TopicConfig [topicName={config.name}, readQueueNums={config.read_queues}, writeQueueNums={config.write_queues}, perm={perm}, "
        f"topicFilterType={config.filter_type}, topicSysFlag={config.sys_flag}, order={'true' if config.order else 'false'}{further}]"
    )


HANDLERS: dict[int, Handler] = {
    RequestCode.SEND_MESSAGE: send_message,
    RequestCode.SEND_MESSAGE_V2: send_message,
    RequestCode.SEND_BATCH_MESSAGE: send_message,
}
