"""Pulling: messages of a queue from an offset onwards.

    11 PULL_MESSAGE   361 LITE_PULL_MESSAGE, the same, as lite pull consumers of 5.x send it

    sysFlag  0x1 commit commitOffset   0x2 may be suspended   0x4 the subscription is in the request   0x10 lite pull

With accounts, records of another topic, to which a stale entry of the queue leads, are left out.

The status of the store's pull decides the code:

    FOUND                                          0, with the records as stored in the log
    NO_MATCHED_MESSAGE, MESSAGE_WAS_REMOVING       20, continue at nextBeginOffset
    OFFSET_FOUND_NULL, OFFSET_OVERFLOW_ONE         19, nothing new: the pull is held if it may be
    NO_MESSAGE_IN_QUEUE, NO_MATCHED_LOGIC_QUEUE    19 at offset 0, else 21
    OFFSET_OVERFLOW_BADLY, OFFSET_TOO_SMALL        21, continue at nextBeginOffset

Protocol: docs/formats/rocketmq-remoting.md, section 3.3. Source: Apache RocketMQ 4.9.3 and 5.3.3, PullMessageProcessor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from mqstore.broker.access.answers import of_topic
from mqstore.broker.handlers.long_polling import HeldPull, LongPolling
from mqstore.broker.handlers.membership import NO_SQL, Membership
from mqstore.broker.handlers.offsets import commit
from mqstore.broker.handlers.pull_filter import PullFilter
from mqstore.broker.handlers.send import HELP
from mqstore.broker.handlers.statistics import Statistics
from mqstore.broker.handlers.topic_creation import READ, TopicsAndGroups
from mqstore.broker.protocol import headers
from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError, make_response
from mqstore.broker.protocol.heartbeats import Subscription
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Context, Handler
from mqstore.broker.runtime.limits import held_size
from mqstore.errors import UsageError
from mqstore.rocketmq.query.pull import GetResult, GetStatus

COMMITS, MAY_SUSPEND, HAS_SUBSCRIPTION = 0x1, 0x2, 0x4

_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


@dataclass(frozen=True, slots=True)
class PullHeader:
    """Header of a pull. suspend_timeout: ms. most_bytes: maximum size of the response, 0 for no limit."""

    group: str
    topic: str
    queue_id: int
    offset: int
    max_count: int
    sys_flag: int
    commit_offset: int
    suspend_timeout: int
    version: int
    most_bytes: int

    @classmethod
    def of(cls, request: Frame) -> PullHeader:
        """Parse the header of a request. Raises ResponseError."""
        return cls(
            headers.text(request, "consumerGroup"),
            headers.text(request, "topic"),
            headers.int32(request, "queueId"),
            headers.int64(request, "queueOffset"),
            headers.int32(request, "maxMsgNums"),
            headers.int32(request, "sysFlag"),
            headers.int64(request, "commitOffset"),
            headers.int64(request, "suspendTimeoutMillis"),
            headers.int64(request, "subVersion"),
            headers.int32_or(request, "maxMsgBytes", 0),
        )


def pull(context: Context, connection: Connection, request: Frame) -> Frame | None:
    """Handle 11 and 361: return messages now, or as soon as there are any."""
    return _pulled(context, connection, request, PullHeader.of(request), may_suspend=True)


def _pulled(
    context: Context, connection: Connection, request: Frame, header: PullHeader, given: PullFilter | None = None, *, may_suspend: bool
) -> Frame | None:
    """Pull and return the response, or None if the pull is held. given: the filter in the request, if it is known already."""
    began = context.clock()
    _check_pull(context, connection, header)
    pull_filter = given or _filter(context, request, header)
    reset = context.store.offsets.pop_reset(header.group, header.topic, header.queue_id) if context.profile.rules.resets_at_broker else None
    if reset is not None:
        return _moved(context, request, header, reset)
    result = pull_filter.get(context.store, header.group, header.topic, header.queue_id, header.offset, header.max_count)
    if may_suspend and header.sys_flag & COMMITS and not (context.settings.freeze_offsets and not context.writable):
        commit(context, header.group, header.topic, header.queue_id, header.commit_offset)
    code = _CODES.get(result.status)
    if code is None:
        code = ResponseCode.PULL_NOT_FOUND if header.offset == 0 else ResponseCode.PULL_OFFSET_MOVED
    if code == ResponseCode.PULL_NOT_FOUND and may_suspend and header.sys_flag & MAY_SUSPEND:
        if _held(context, connection, request, header, pull_filter):
            return None
        result = pull_filter.get(context.store, header.group, header.topic, header.queue_id, header.offset, header.max_count)
        code = _CODES.get(result.status, code)
    return _pull_response(context, request, header, result, code, began)


def _held(context: Context, connection: Connection, request: Frame, header: PullHeader, pull_filter: PullFilter) -> bool:
    """Hold a pull, which keeps nothing of its frame but what the response needs. Returns False if there is a message already."""
    with_filter = bool(header.sys_flag & HAS_SUBSCRIPTION)  # else the next pull takes what the group subscribes to then
    if with_filter:
        expression = headers.text_or(request, "subscription", "")
    else:
        subscription = context.component(Membership).clients.subscription(header.group, header.topic)
        expression = "" if subscription is None else subscription.expression
    size = held_size(expression)
    again = partial(_pull_again, context, connection, request.without_content(), header, pull_filter if with_filter else None)
    held = HeldPull(connection, header.group, header.topic, header.queue_id, header.offset, pull_filter, size, again)
    settings = context.settings
    return context.component(LongPolling).hold(held, header.suspend_timeout if settings.long_polling else settings.short_polling_time)


def _pull_again(context: Context, connection: Connection, request: Frame, header: PullHeader, given: PullFilter | None) -> None:
    """Answer a pull that was held."""
    try:
        done = _pulled(context, connection, request, header, given, may_suspend=False)
    except ResponseError as error:
        done = make_response(request, error.code, error.remark, error.ext)
    if done is not None and not request.is_oneway:
        connection.send(done)


def _pull_response(context: Context, request: Frame, header: PullHeader, result: GetResult, code: int, began: int) -> Frame:
    counters = context.component(Statistics).counters
    following = result.next_begin_offset
    parts: list[memoryview] = []
    if code == ResponseCode.SUCCESS:
        parts = result.slices
        if 0 < header.most_bytes < result.total_bytes:
            sent = _fitting(result.sizes, header.most_bytes)
            if sent < len(parts):
                following = result.queue_offsets[sent]
                parts = parts[:sent]
        if context.settings.acl is not None:
            parts = [raw for raw in parts if of_topic(raw, header.topic)]
            if not parts:
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
        now = context.clock()
        counters.pulled(header.group, header.topic, messages=len(parts), size=result.total_bytes, elapsed=now - began, now=now)
    else:
        counters.missed()
    ext = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(following),
        "maxOffset": str(result.max_offset),
        "minOffset": str(result.min_offset),
    }
    done = make_response(request, code, result.status.value, ext)
    done.parts = context.response_parts(parts, request.language)
    return done


def _fitting(sizes: list[int], most: int) -> int:
    """Return how many records of these sizes fit; the first always does."""
    total = 0
    for number, size in enumerate(sizes):
        total += size
        if total > most and number:
            return number
    return len(sizes)


def _moved(context: Context, request: Frame, header: PullHeader, offset: int) -> Frame:
    """Return the response to the first pull after a reset of the offset on the server side."""
    low, high = context.store.min_offset(header.topic, header.queue_id), context.store.max_offset(header.topic, header.queue_id)
    ext = {"suggestWhichBrokerId": "0", "nextBeginOffset": str(offset), "maxOffset": str(high), "minOffset": str(low)}
    return make_response(request, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", ext)


# checks


def _check_pull(context: Context, connection: Connection, header: PullHeader) -> None:
    """Raise ResponseError if the group may not pull from the queue."""
    group = context.component(TopicsAndGroups).group(header.group)
    if group is None:
        raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{header.group}] does not exist, {HELP}")
    if not group.consume_enable:
        raise ResponseError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.group}")
    topic = context.store.topics.get(header.topic)
    if topic is None:
        raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please! {HELP}")
    if not topic.perm & READ:
        raise ResponseError(ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden")
    if not 0 <= header.queue_id < topic.read_queues:
        raise ResponseError(
            context.profile.parameter_code,
            f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] topicConfig.readQueueNums:[{topic.read_queues}] "
            f"consumer:[/{connection.peer}]",
        )


def _filter(context: Context, request: Frame, header: PullHeader) -> PullFilter:
    """Return the filter of the request's subscription, or of its group's heartbeats. Raises ResponseError."""
    if header.sys_flag & HAS_SUBSCRIPTION:
        expression, kind = headers.text_or(request, "subscription"), headers.text_or(request, "expressionType")
        context.limits.expression(expression or "")
        context.limits.name(kind or "", "filter")
        try:
            subscription = Subscription.of(header.topic, expression, version=header.version, expression_type=kind)
            pull_filter = PullFilter.of(subscription)
        except UsageError:
            raise ResponseError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed") from None
    else:
        subscription = _subscribed(context, header)
        try:
            pull_filter = PullFilter.of(subscription)
        except UsageError:
            raise ResponseError(
                ResponseCode.FILTER_DATA_NOT_EXIST, "The broker's consumer filter data is not exist!Your expression may be wrong!"
            ) from None
    if not subscription.by_tag and not context.settings.property_filter:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, NO_SQL)
    return pull_filter


def _subscribed(context: Context, header: PullHeader) -> Subscription:
    """Return the group's subscription to the topic from its heartbeats. Raises ResponseError."""
    clients = context.component(Membership).clients
    group = clients.consumer_group(header.group)
    if group is None:
        raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{HELP}")
    config = context.store.groups.get(header.group)
    if group.broadcasting and config is not None and not config.consume_broadcast_enable:
        raise ResponseError(ResponseCode.NO_PERMISSION, f"the consumer group[{header.group}] can not consume by broadcast way")
    subscription = group.subscriptions.get(header.topic)
    if subscription is None:
        raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{HELP}")
    if subscription.version < header.version:
        raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
    return subscription


HANDLERS: dict[int, Handler] = {RequestCode.PULL_MESSAGE: pull, RequestCode.LITE_PULL_MESSAGE: pull}
