"""Sends: messages, batches, replies, messages that a consumer sends back, and transactions.

Sending: a producer's message or batch, from the request to the store.

    10 SEND_MESSAGE   310 SEND_MESSAGE_V2   320 SEND_BATCH_MESSAGE

Steps: check the topic's name; create an unknown topic, if allowed; check the queue id; redirect a message to %RETRY%group that was
reretried too often to %DLQ%group; add the broker's properties; store. The topic's write permission is not checked: producers do not
see the queues of a topic without it.

A topic is created from a template (defaultTopic, TBW102) with the inherit bit: with as many queues as the producer requests, at most
as many as the template has.

    >>> template = TopicConfig("TBW102", perm=7, read_queues=8, write_queues=8)
    >>> after_template("orders", template, 4)
    TopicConfig(name='orders', perm=6, read_queues=4, write_queues=4, order=False, sys_flag=0, filter_type='SINGLE_TAG', attributes={})

Request and reply: the broker pushes a reply to the client that sent the request.

    requester 310, an ordinary message with CORRELATION_ID, REPLY_TO_CLIENT and TTL
    replier   324 or 325, a message to CLUSTER_REPLY_TOPIC with REPLY_TO_CLIENT = client id of the requester
    broker    326 to that client, waits for its response, then responds to the replier; the reply is also stored

Sending back: a consumer that could not process a message returns it (CONSUMER_SEND_MSG_BACK, 36).

    physical offset -> record -> %RETRY%group, with a longer delay for each retry, or %DLQ%group after the last one

The new message is made by `mqstore.rocketmq.append.send_path.sent_back`. If the request fails, a client sends the message itself to
%RETRY%group.

Transactions: producers commit or roll back half messages, and are asked about undecided ones.

    37 END_TRANSACTION           oneway: commit (8), roll back (12), or undecided (0)
    39 CHECK_TRANSACTION_STATE   from the broker, oneway, to one producer of the group, which sends 37

Half messages are stored as any other; `mqstore.rocketmq.append.transactions` handles them in the store. Every minute
(transactionCheckInterval) those undecided for more than 6 s (transactionTimeOut) are put again, and their producers are asked.

Protocol: docs/formats/rocketmq-remoting.md, sections 2.3, 3.2, 3.11, 3.12 and 3.19.
Source: Apache RocketMQ 4.9.3 and 5.3.3, SendMessageProcessor, TopicConfigManager, ReplyMessageProcessor, EndTransactionProcessor,
AbstractTransactionalMessageCheckListener.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from mqstore.broker.handlers.membership import Membership
from mqstore.broker.handlers.statistics import Statistics
from mqstore.broker.handlers.topic_creation import WRITE, TopicsAndGroups, topic_problem
from mqstore.broker.protocol import headers, send_header
from mqstore.broker.protocol.codes import V3_4_9, RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError, make_request, make_response
from mqstore.broker.protocol.headers import number_or_none
from mqstore.broker.protocol.send_header import SendHeader
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Component, Context, Handler
from mqstore.broker.runtime.logs import log
from mqstore.errors import NotFoundError, RefusedError
from mqstore.rocketmq.append.send_path import UniqueIds, as_sent, batch_as_sent, sent_back
from mqstore.rocketmq.config.topic_table import TopicConfig
from mqstore.rocketmq.format.half_message import IMMUNITY
from mqstore.rocketmq.format.java_map import reencode
from mqstore.rocketmq.format.message import Message, MessageBatch, PutResult, PutStatus, property_text
from mqstore.rocketmq.format.record import Record, decode_properties, encode, offset_message_id, parse_host
from mqstore.rocketmq.format.system_topics import (
    FORBIDDEN_TOPICS,
    HALF_TOPIC,
    RETRY_PREFIX,
    TEMPLATE_TOPIC,
    dead_letter_topic,
    retry_topic,
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
        problem = topic_problem(header.topic)
        if problem is not None:
            raise ResponseError(context.profile.parameter_code, problem)
        if header.topic in FORBIDDEN_TOPICS:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{header.topic}] is forbidden.")
        if config is None:
            return _sent_to_new_topic(context, connection, request, header)
    return _sent_to(context, connection, request, header, config)


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
        properties=reencode(property_text(message, context.profile.version), {"DELAY": "0"}, context.profile.version),
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
    properties = property_text(message, version)
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


# replies


PUSH_TIMEOUT = 3.0


async def send_reply(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 324 and 325: push a reply to the client that waits for it, and store it."""
    context.writable_store()
    header = send_header.parse(request)
    to = decode_properties(header.properties).get("REPLY_TO_CLIENT")
    code, remark = await _push(context, connection, request, header, to)
    marks = {"MSG_REGION": context.settings.region, "TRACE_ON": "true"}
    if not context.settings.store_replies:
        return make_response(request, code, remark, {"msgId": "", "queueId": str(max(header.queue_id, 0)), "queueOffset": "0", **marks})
    work = sent(context, connection, request, header)
    stored = work if isinstance(work, Frame) else await work
    ext = stored.ext if stored.ext is not None and "msgId" in stored.ext else marks
    return make_response(request, code, remark, ext)


async def _push(context: Context, connection: Connection, request: Frame, header: SendHeader, to: str | None) -> tuple[int, str | None]:
    """Push the reply and return (code, remark)."""
    if to is None:
        return ResponseCode.SYSTEM_ERROR, "reply message properties[REPLY_TO_CLIENT] is null"
    member = context.component(Membership).clients.by_client_id(to)
    if member is None:
        return ResponseCode.SYSTEM_ERROR, f"push reply message fail, channel of <{to}> not found."
    frame = pushed(header, request.body, connection.peer, context.address, context.clock(), context.profile.version)
    try:
        response = await member.connection.call(frame, PUSH_TIMEOUT)
    except (TimeoutError, ConnectionError) as error:
        log("reply-not-pushed", peer=member.connection.peer, why=str(error) or type(error).__name__)
        return ResponseCode.SYSTEM_ERROR, f"push reply message to {to}fail."
    if response.code != ResponseCode.SUCCESS:
        return ResponseCode.SYSTEM_ERROR, f"push reply message to {to} fail."
    return ResponseCode.SUCCESS, None


def pushed(header: SendHeader, body: bytes | memoryview, born_host: str, store_host: str, now: int, version: str) -> Frame:
    """Return the request that delivers a reply to its client."""
    properties = reencode(header.properties, {"PUSH_REPLY_TIME": str(now)}, version)
    ext = {
        "bornHost": f"/{born_host}",
        "storeHost": f"/{store_host}",
        "storeTimestamp": str(now),
        "producerGroup": header.producer_group,
        "topic": header.topic,
        "defaultTopic": header.default_topic,
        "defaultTopicQueueNums": str(header.default_queues),
        "queueId": str(header.queue_id),
        "sysFlag": str(header.sys_flag),
        "bornTimestamp": str(header.born_timestamp),
        "flag": str(header.flag),
        "properties": properties.decode("utf-8", "replace"),
        "reconsumeTimes": str(header.reconsume_times),
        "unitMode": "true" if header.unit_mode else "false",
    }
    return replace(make_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext), body=body)


# messages sent back


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
    record = store.record_at(physical)
    if record is None:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {physical}")
    most = group.retry_max_times
    asked = headers.int32_or(request, "maxReconsumeTimes")
    if asked is not None and request.version >= V3_4_9:
        most = USUAL_TRIES if asked < 0 else asked
    queue_id = random.randrange(group.retry_queue_nums)
    message = sent_back(record, name, level, most, store.version, queue_id=queue_id)
    origin = decode_properties(record.properties).get("RETRY_TOPIC") or record.topic
    if message.topic == dead_letter_topic(name):
        new |= tables.make(message.topic, 1)
        if context.profile.marks_dead_letters:
            marks = {"DLQ_ORIGIN_TOPIC": origin, "DLQ_ORIGIN_MESSAGE_ID": _message_id(record)}
            message = message.replaced(properties=reencode(property_text(message, store.version), marks, store.version))
    return _put_message(context, request, message, (name, origin), new=new)


def _message_id(record: Record) -> str:
    """Return the message id that clients show for a record."""
    return decode_properties(record.properties).get("UNIQ_KEY") or offset_message_id(parse_host(record.store_host), record.physical_offset)


async def _put_message(context: Context, request: Frame, message: Message, counted: tuple[str, str], *, new: bool) -> Frame:
    """Put a message in a thread and return the response. counted: (group, topic) to count it under. new: a topic was created for it."""
    if new:
        await context.component(TopicsAndGroups).save()
    put = await context.writable_store().put_async(message)
    if not put.stored or put.status is not PutStatus.PUT_OK:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, put.status.spelled(context.profile.version))
    context.component(Statistics).counters.sent_back(*counted, now=context.clock())
    return make_response(request)


# transactions


COMMIT, ROLLBACK = 8, 12


async def end_transaction(context: Context, connection: Connection, request: Frame) -> Frame | None:
    """Handle 37: commit or roll back a half message."""
    group = headers.text(request, "producerGroup")
    queue_offset = headers.int64(request, "tranStateTableOffset")
    physical = headers.int64(request, "commitLogOffset")
    decision = headers.int32(request, "commitOrRollback")
    from_check = headers.boolean_or(request, "fromTransactionCheck")
    if decision not in (COMMIT, ROLLBACK):
        return None
    store = context.writable_store()
    await context.run(_check_half_message, context, group, queue_offset, physical, from_check)
    settle = store.transactions.commit if decision == COMMIT else store.transactions.rollback

    def settled() -> PutResult:
        return settle(physical, producer_group=group)

    try:
        put = await context.run(settled)
    except (NotFoundError, RefusedError) as error:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    if put.stored:
        return make_response(request)
    code = ResponseCode.SERVICE_NOT_AVAILABLE if put.status is PutStatus.SERVICE_NOT_AVAILABLE else ResponseCode.SYSTEM_ERROR
    return make_response(request, code, put.detail)


def _check_half_message(context: Context, group: str, queue_offset: int, physical: int, from_check: bool) -> None:
    """Raise ResponseError unless the half message exists and belongs to the producer."""
    record = context.store.record_at(physical)
    if record is None or record.topic != HALF_TOPIC:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
    properties = record.property_map()
    if properties.get("PGROUP") != group:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if record.queue_offset != queue_offset:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    if record.physical_offset != physical:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
    seconds = number_or_none(properties.get(IMMUNITY, ""))
    if not context.profile.limits_time_of_decision or from_check or seconds is None or seconds < 0:
        return
    if context.clock() - record.born_timestamp > seconds * 1000:
        raise ResponseError(ResponseCode.ILLEGAL_OPERATION, "the time for a decision has passed; wait until the broker asks")


class CheckBack(Component):
    """Asks producers about undecided half messages."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._turn = itertools.count()

    def start(self) -> None:
        if self.context.writable:
            self.context.repeat(self.context.settings.transaction_check_interval / 1000, self.check)

    async def check(self) -> None:
        """Check the half messages once."""
        context = self.context
        if HALF_TOPIC in (queue.topic for queue in context.store.queues()):
            await context.run(self._find_half_messages)

    def _find_half_messages(self) -> None:
        """Find the half messages to ask about. Runs in a thread."""
        settings = self.context.settings
        run = self.context.writable_store().transactions.check(
            timeout=settings.transaction_timeout, max_checks=settings.transaction_check_max, hook=self._later
        )
        if run.failure or run.given_up:
            log("transactions-checked", asked=run.asked, given_up=run.given_up, failure=run.failure)

    def _later(self, half: Record) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop may be closed; the next broker asks
            self.context.loop.call_soon_threadsafe(self.ask, half)

    def ask(self, half: Record) -> None:
        """Ask one producer of the group about a half message, given with its real topic and queue."""
        group = half.property_map().get("PGROUP", "")
        members = [member for member in self.context.component(Membership).clients.producer_group(group) if member.connection.writable]
        if not members:
            log("transaction-producer-offline", group=group, physical_offset=half.physical_offset)
            return
        member = members[next(self._turn) % len(members)]
        broker_name = self.context.settings.broker_name if self.context.profile.names_broker_in_check else None
        member.connection.notify(check_request(half, broker_name))


def check_request(half: Record, broker_name: str | None = None) -> Frame:
    """Return the request that asks about a half message. broker_name: sent by 5.3.3 together with the half topic."""
    unique = half.property_map().get("UNIQ_KEY")
    ext = {
        "commitLogOffset": str(half.physical_offset),
        "offsetMsgId": offset_message_id(parse_host(half.store_host), half.physical_offset),
        "tranStateTableOffset": str(half.queue_offset),
    }
    if unique is not None:
        ext |= {"msgId": unique, "transactionId": unique}
    if broker_name is not None:
        ext |= {"bname": broker_name, "topic": HALF_TOPIC}
    return make_request(RequestCode.CHECK_TRANSACTION_STATE, ext, encode(half), oneway=True)


COMPONENTS = (CheckBack,)
HANDLERS: dict[int, Handler] = {
    RequestCode.SEND_MESSAGE: send_message,
    RequestCode.SEND_MESSAGE_V2: send_message,
    RequestCode.SEND_BATCH_MESSAGE: send_message,
    RequestCode.SEND_REPLY_MESSAGE: send_reply,
    RequestCode.SEND_REPLY_MESSAGE_V2: send_reply,
    RequestCode.CONSUMER_SEND_MSG_BACK: send_back,
    RequestCode.END_TRANSACTION: end_transaction,
}
