"""Queries: messages by key, by physical offset and by queue; offsets by time.

    12  QUERY_MESSAGE            records with a key, from the index; with `_UNIQUE_KEY_QUERY` at most 32, whatever maxNum is
                                 with accounts, not those of another topic or key with the same hash
    33  VIEW_MESSAGE_BY_ID       the record at a physical offset
    29, 30, 31, 32               offset for a time, maximum, minimum, time of the first message of a queue
    321 QUERY_CONSUME_QUEUE      entries of a queue

Queries of offsets always succeed, also for unknown queues. Queries that may read much of the index or log run in a thread.

Protocol: docs/formats/rocketmq-remoting.md, sections 3.4, 3.6 and 3.17.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Any

from mqstore.broker.access.answers import has_key
from mqstore.broker.handlers.membership import Membership
from mqstore.broker.protocol import bodies, headers
from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError, make_response
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Component, Context, Handler
from mqstore.rocketmq.format.queue_page import page_from
from mqstore.rocketmq.query.point_lookup import QueryResult

MOST_ENTRIES = 10_000
SLOW = 0.01  # seconds


class KeyQueries(Component):
    """Decides where key queries run: in the event loop, since most take microseconds; in threads for a while after a slow one.

    That while is a hundred times the duration of the slow query, so that slow queries block the event loop 1 % of the time at most.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.in_threads_until = 0.0

    def took(self, seconds: float) -> None:
        """Record the duration of a query in the event loop."""
        if seconds > SLOW:
            self.in_threads_until = self.context.loop.time() + 100 * seconds


def query_message(context: Context, connection: Connection, request: Frame) -> Frame | Awaitable[Frame]:
    """Handle 12: return the newest records with a key, in log order."""
    topic, key = headers.text(request, "topic"), headers.text(request, "key")
    number = headers.int32(request, "maxNum")
    begin, end = headers.int64(request, "beginTimestamp"), headers.int64(request, "endTimestamp")
    if headers.boolean_or(request, "_UNIQUE_KEY_QUERY"):
        number = context.store.config.default_query_max_num
    queries = context.component(KeyQueries)
    # a key's chain is followed from its newest entry, so a query of the past may skip any number of entries
    if end < context.clock() or context.loop.time() < queries.in_threads_until:
        return _query_in_thread(context, request, (topic, key, number, begin, end))
    began = time.perf_counter()
    result = context.store.query(topic, key, number, begin, end)
    queries.took(time.perf_counter() - began)
    return _query_response(context, request, result)


async def _query_in_thread(context: Context, request: Frame, asked: tuple[str, str, int, int, int]) -> Frame:
    return _query_response(context, request, await context.run(context.store.query, *asked))


def _query_response(context: Context, request: Frame, result: QueryResult) -> Frame:
    ext = {
        "indexLastUpdatePhyoffset": str(result.index_last_update_physical_offset),
        "indexLastUpdateTimestamp": str(result.index_last_update_timestamp),
    }
    records = result.slices
    if context.settings.acl is not None:
        topic, key = headers.text(request, "topic"), headers.text(request, "key")
        records = tuple(raw for raw in records if has_key(raw, topic, key))
    if not records:
        return make_response(request, ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct", ext)
    return make_response(request, ext=ext, body=context.response_body(records, request.language))


def view_message(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 33: return the record at a physical offset."""
    physical = headers.int64(request, "offset")
    record = context.store.raw_record_at(physical)
    if record is None:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {physical}")
    return make_response(request, body=context.response_body([record], request.language))


async def search_offset(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 29: return the queue offset for a time."""
    topic, queue_id = headers.text(request, "topic"), headers.int32(request, "queueId")
    timestamp = headers.int64(request, "timestamp")
    upper = (headers.text_or(request, "boundaryType") or "").upper() == "UPPER"
    offset = await context.run(context.store.offset_by_time, topic, queue_id, timestamp, "upper" if upper else "lower")
    return make_response(request, ext={"offset": str(offset)})


def max_offset(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 30: return the offset of a queue's next message."""
    offset = context.store.max_offset(headers.text(request, "topic"), headers.int32(request, "queueId"))
    return make_response(request, ext={"offset": str(offset)})


def min_offset(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 31: return the offset of a queue's first message."""
    offset = context.store.min_offset(headers.text(request, "topic"), headers.int32(request, "queueId"))
    return make_response(request, ext={"offset": str(offset)})


def earliest_time(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 32: return the store time of a queue's first message."""
    timestamp = context.store.earliest_time(headers.text(request, "topic"), headers.int32(request, "queueId"))
    return make_response(request, ext={"timestamp": str(timestamp)})


def consume_queue(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 321: return entries of a queue from an index onwards, and a group's subscription."""
    topic, queue_id = headers.text_or(request, "topic", ""), headers.int32_or(request, "queueId", 0)
    index, count = headers.int64_or(request, "index", 0), headers.int32_or(request, "count", 0)
    name = f"{queue_id}@{topic}"
    queue = context.store.queue_or_none(topic, queue_id)
    if queue is None:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{name} is not exist!")
    body: dict[str, Any] = {"maxQueueIndex": queue.max_offset, "minQueueIndex": queue.min_offset}
    group = headers.text_or(request, "consumerGroup")
    if group:
        subscription = context.component(Membership).clients.subscription(group, topic)
        if subscription is None:
            body["filterData"] = f"{group}@{topic} is not online!"
        else:
            body["subscriptionData"] = subscription.bean()
    page = page_from(queue, index) if queue.min_offset <= index < queue.max_offset else None
    if page is None:
        return make_response(request, ResponseCode.SUCCESS, f"Index {index} of {name} is not exist!", body=bodies.encode(body))
    rows = page.rows(min(max(count, 0), MOST_ENTRIES))
    body["queueData"] = [
        {"eval": False, "physicOffset": row[0], "physicSize": row[1], "tagsCode": row[2]} for row in rows[: max(count, 0)].tolist()
    ]
    return make_response(request, body=bodies.encode(body))


HANDLERS: dict[int, Handler] = {
    RequestCode.QUERY_MESSAGE: query_message,
    RequestCode.VIEW_MESSAGE_BY_ID: view_message,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search_offset,
    RequestCode.GET_MAX_OFFSET: max_offset,
    RequestCode.GET_MIN_OFFSET: min_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: earliest_time,
    RequestCode.QUERY_CONSUME_QUEUE: consume_queue,
}
