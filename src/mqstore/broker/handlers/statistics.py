"""Statistics: offsets of queues and groups, and the broker's counters.

    202 GET_TOPIC_STATS_INFO      each queue of a topic: minimum, maximum, time of the last message
    208 GET_CONSUME_STATS         each queue of a group: the broker's offset and the group's
    300, 343, 345                 groups of a topic, topics of a group, a group's subscription to a topic
    303 QUERY_CONSUME_TIME_SPAN   each queue of a group: times of its first, last and next message
    317 GET_BROKER_CONSUME_STATS  208 of all groups
    315 VIEW_BROKER_STATS_DATA    one of the series of `counters`

Requests that read many queues run in a thread. Maps with queues as keys have the form that the client accepts (`bodies`).

Protocol: docs/formats/rocketmq-remoting.md, sections 3.14 and 3.15.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterable
from typing import Any

from mqstore.broker.handlers.membership import Membership
from mqstore.broker.protocol import bodies, headers
from mqstore.broker.protocol.bodies import MessageQueue
from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError, make_response
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Component, Context, Handler
from mqstore.broker.runtime.counters import SPANS, Counters
from mqstore.rocketmq.config.topic_table import TopicConfig


class Statistics(Component):
    """Counters of a broker, sampled each second. mornings: messages put and pulled up to yesterday's and today's midnight."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.counters = Counters(context.clock(), context.settings.cluster)
        self.mornings = ((0, 0), (0, 0))
        self._day = self._today()

    @staticmethod
    def _today() -> datetime.date:
        return datetime.datetime.now().astimezone().date()

    def start(self) -> None:
        self.context.spawn(self._sample())

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.counters.sample(self.context.clock())
            self.turn_day(self._today())

    def turn_day(self, today: datetime.date) -> None:
        """Save the day's counts at midnight."""
        if today != self._day:
            totals = self.counters.totals
            self._day = today
            self.mornings = (self.mornings[1], (totals["put"], totals["transferred"]))


def _json_response(request: Frame, value: object) -> Frame:
    return make_response(request, body=bodies.encode(value, strict=bodies.takes_strict_json(request)))


def _topic(context: Context, name: str) -> TopicConfig:
    config = context.store.topics.get(name)
    if config is None:
        raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
    return config


# offsets and times of queues


async def topic_stats(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 202: return minimum, maximum and last store time of each queue of a topic."""
    config = _topic(context, headers.text(request, "topic"))
    count = max(config.read_queues, config.write_queues) if context.profile.tells_put_rate else config.write_queues
    body: dict[str, Any] = {"offsetTable": await context.run(_queue_stats, context, config.name, count)}
    if context.profile.tells_put_rate:
        series = context.component(Statistics).counters.series("TOPIC_PUT_NUMS", config.name)
        body["topicPutTps"] = 0.0 if series is None else series.span("minute", context.clock()).tps
    return _json_response(request, body)


def _queue_stats(context: Context, topic: str, count: int) -> dict[MessageQueue, dict[str, int]]:
    store, found = context.store, {}
    for number in range(count):
        high = max(0, store.max_offset(topic, number))
        found[MessageQueue(topic, context.settings.broker_name, number)] = {
            "lastUpdateTimestamp": store.store_time(topic, number, high - 1) if high else 0,
            "maxOffset": high,
            "minOffset": max(0, store.min_offset(topic, number)),
        }
    return found


async def consume_stats(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 208: return a group's offsets in each queue of a topic, or of all topics that it has offsets of."""
    group = headers.text(request, "consumerGroup")
    named = headers.text_or(request, "topic", "").strip()
    listed = [part for part in headers.text_or(request, "topicList", "").split(";") if part]
    topics = listed or ([named] if named else sorted(context.store.offsets.topics_of(group)))
    watched = [config for config in map(context.store.topics.get, topics) if config is not None and _watched(context, group, config.name)]
    return _json_response(request, await context.run(_group_stats, context, group, watched))


def _watched(context: Context, group: str, topic: str) -> bool:
    """Return whether a group's offsets of a topic count: not if it is online without a subscription to the topic."""
    online = context.component(Membership).clients.consumer_group(group)
    return online is None or not online.subscriptions or topic in online.subscriptions


def _group_stats(context: Context, group: str, topics: Iterable[TopicConfig], *, written: bool = False) -> dict[str, Any]:
    """Return a group's offsets by queue. written: cover the write queues instead of the read queues."""
    store, table, tps = context.store, {}, 0.0
    for config in topics:
        for number in range(config.write_queues if written else config.read_queues):
            offset = max(0, store.offsets.query(group, config.name, number))
            standing = {
                "brokerOffset": max(0, store.max_offset(config.name, number)),
                "consumerOffset": offset,
                "lastTimestamp": max(0, store.store_time(config.name, number, offset - 1)) if offset else 0,
            }
            if context.profile.tells_pull_offset:
                standing["pullOffset"] = max(0, store.offsets.query(group, config.name, number))
            table[MessageQueue(config.name, context.settings.broker_name, number)] = standing
        series = context.component(Statistics).counters.series("GROUP_GET_NUMS", f"{config.name}@{group}")
        tps += 0.0 if series is None else series.span("minute", context.clock()).tps
    return {"consumeTps": tps, "offsetTable": table}


async def time_span(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 303: return the times of the first, last and next message of each queue."""
    config, group = _topic(context, headers.text(request, "topic")), headers.text(request, "group")
    return _json_response(request, {"consumeTimeSpanSet": await context.run(_time_spans, context, config, group)})


def _time_spans(context: Context, config: TopicConfig, group: str) -> list[dict[str, Any]]:
    store, topic, found = context.store, config.name, []
    for number in range(config.write_queues):
        offset, high = store.offsets.query(group, topic, number), store.max_offset(topic, number)
        first = store.earliest_time(topic, number)
        consumed = store.store_time(topic, number, offset - 1) if offset > 0 else first
        last = store.store_time(topic, number, high - 1)
        behind = context.clock() - store.store_time(topic, number, offset) if offset < high or high == 0 else 0
        found.append(
            {
                "consumeTimeStamp": consumed,
                "consumeTimeStampStr": _moment(consumed),
                "delayTime": behind,
                "maxTimeStamp": last,
                "maxTimeStampStr": _moment(last),
                "messageQueue": MessageQueue(topic, context.settings.broker_name, number),
                "minTimeStamp": first,
                "minTimeStampStr": _moment(first),
            }
        )
    return found


def _moment(milliseconds: int) -> str:
    """Format a time in the local time zone, as brokers do."""
    seconds, rest = divmod(milliseconds, 1000)
    return datetime.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d#%H:%M:%S:") + f"{rest:03d}"


async def broker_consume_stats(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 317: return the offsets of all groups. isOrder: in ordered topics only."""
    ordered = headers.boolean(request, "isOrder")
    groups = {
        group: [
            config
            for config in map(context.store.topics.get, sorted(context.store.offsets.topics_of(group)))
            if config is not None and (config.order or not ordered) and _watched(context, group, config.name)
        ]
        for group in context.store.groups.names()
    }
    return _json_response(request, await context.run(_all_groups, context, groups))


def _all_groups(context: Context, groups: dict[str, list[TopicConfig]]) -> dict[str, Any]:
    listed = {group: [_group_stats(context, group, [topic], written=True) for topic in topics] for group, topics in groups.items()}
    standings = [queue for stats in listed.values() for topic in stats for queue in topic["offsetTable"].values()]
    return {
        "brokerAddr": context.address,
        "consumeStatsList": [{group: stats} for group, stats in listed.items()],
        "totalDiff": sum(queue["brokerOffset"] - queue["consumerOffset"] for queue in standings),
    }


# subscriptions


def topic_groups(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 300: return the groups that subscribe to a topic or have offsets of it."""
    topic = headers.text(request, "topic")
    online = context.component(Membership).clients.subscribers(topic)
    return make_response(request, body=bodies.encode({"groupList": sorted({*online, *context.store.offsets.groups_of(topic)})}))


def group_topics(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 343: return the topics that a group has offsets of."""
    group = headers.text(request, "group")
    return make_response(request, body=bodies.encode({"topicList": sorted(context.store.offsets.topics_of(group))}))


def group_subscription(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 345: return an online group's subscription to a topic."""
    group, topic = headers.text(request, "group"), headers.text(request, "topic")
    subscription = context.component(Membership).clients.subscription(group, topic)
    body = {"group": group, "subscriptionData": None if subscription is None else subscription.bean(), "topic": topic}
    return make_response(request, body=bodies.encode(body))


# sums


def view_stats(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 315: return a series over the last minute, hour and day."""
    name, key = headers.text(request, "statsName"), headers.text(request, "statsKey")
    series = context.component(Statistics).counters.series(name, key)
    if series is None:
        return make_response(request, ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
    spans = {f"stats{span.capitalize()}": series.span(span, context.clock())._asdict() for span in SPANS}
    return make_response(request, body=bodies.encode(spans))


COMPONENTS = (Statistics,)
HANDLERS: dict[int, Handler] = {
    RequestCode.GET_TOPIC_STATS_INFO: topic_stats,
    RequestCode.GET_CONSUME_STATS: consume_stats,
    RequestCode.QUERY_CONSUME_TIME_SPAN: time_span,
    RequestCode.GET_BROKER_CONSUME_STATS: broker_consume_stats,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: topic_groups,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: group_topics,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: group_subscription,
    RequestCode.VIEW_BROKER_STATS_DATA: view_stats,
}
