"""Statistics: offsets of queues and groups, and the broker's counters.

    202 GET_TOPIC_STATS_INFO      each queue of a topic: minimum, maximum, time of the last message
    208 GET_CONSUME_STATS         each queue of a group: the broker's offset and the group's
    300, 343, 345                 groups of a topic, topics of a group, a group's subscription to a topic
    303 QUERY_CONSUME_TIME_SPAN   each queue of a group: times of its first, last and next message
    317 GET_BROKER_CONSUME_STATS  208 of all groups
    315 VIEW_BROKER_STATS_DATA    one of the series of `counters`

Requests that read many queues run in a thread. Maps with queues as keys have the form that the client accepts (`bodies`).

Counters hold messages and bytes in and out, by topic and group, with rates.
A series is a sum with recent samples: of the last minute (every 10 s), hour (every 10 min) and day (every hour). They give `sum`, `tps`
and `avgpt` (per call) of those spans, including what was counted since the last sample.

    >>> counters = Counters(now=0)
    >>> counters.stored("orders", messages=10, size=2000, elapsed=1, now=0)
    >>> counters.series("TOPIC_PUT_NUMS", "orders").span("minute", 2000)
    Span(sum=10, tps=5.0, avgpt=10.0)
    >>> counters.rates(["put"], 2000)
    (5.0, 5.0, 5.0)

Names are those of a broker: TOPIC_PUT_NUMS and TOPIC_PUT_SIZE by topic, GROUP_GET_NUMS, GROUP_GET_SIZE and SNDBCK_PUT_NUMS by
`topic@group`, BROKER_PUT_NUMS and BROKER_GET_NUMS by cluster. Times are ms.

Protocol: docs/formats/rocketmq-remoting.md, sections 3.14 and 3.15.
Source: Apache RocketMQ 4.9.3, StatsItem, BrokerStatsManager, StoreStatsService.
"""

from __future__ import annotations

import datetime
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from mqstore.broker.handlers.membership import Membership
from mqstore.broker.protocol import bodies, headers
from mqstore.broker.protocol.bodies import MessageQueue
from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError, make_response
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Component, Context, Handler
from mqstore.rocketmq.config.topic_table import TopicConfig

# counters


SpanName = Literal["minute", "hour", "day"]
SPANS: dict[SpanName, tuple[int, int]] = {"minute": (10_000, 7), "hour": (600_000, 7), "day": (3_600_000, 25)}  # ms, samples

RATE_WINDOWS = (10_000, 60_000, 600_000)
RATE_SAMPLE = 1_000
DAY = 86_400_000
MOST_SERIES = 100_000
BUCKETS = (
    0,
    10,
    50,
    100,
    200,
    500,
    1000,
    2000,
    3000,
    4000,
    5000,
    10_000,
)  # upper bounds in ms of a put's duration; one more bucket follows


class Span(NamedTuple):
    """Counts over a span of time. sum: total. tps: per second. avgpt: per call."""

    sum: int
    tps: float
    avgpt: float


class Series:
    """A sum over time. total, calls: since the start."""

    __slots__ = ("_samples", "calls", "total")

    def __init__(self, now: int) -> None:
        self.total = 0
        self.calls = 0
        self._samples: dict[SpanName, deque[tuple[int, int, int]]] = {
            name: deque([(now, 0, 0)], maxlen=count) for name, (_, count) in SPANS.items()
        }

    def add(self, amount: int, calls: int = 1) -> None:
        """Add an amount."""
        self.total += amount
        self.calls += calls

    def sample(self, now: int) -> None:
        """Take a sample for each span that is due."""
        for name, (every, _) in SPANS.items():
            samples = self._samples[name]
            if now - samples[-1][0] >= every:
                samples.append((now, self.calls, self.total))

    def span(self, name: SpanName, now: int) -> Span:
        """Return the counts of the last minute, hour or day."""
        every, count = SPANS[name]
        reach = now - every * (count - 1)
        samples = list(self._samples[name])  # called from other threads too
        first = next((sample for sample in samples if sample[0] >= reach), samples[-1])
        at, calls, total = first
        amount, times = self.total - total, self.calls - calls
        elapsed = max(now - at, RATE_SAMPLE)  # a message in the first millisecond is not a rate of a thousand per second
        return Span(amount, amount * 1000 / elapsed, amount / times if times else 0.0)

    def silent_for_a_day(self, now: int) -> bool:
        """Return whether nothing was counted for a day."""
        at, _, total = self._samples["day"][0]
        return total == self.total and now - at >= DAY


class Counters:
    """All series and the broker's totals. now: ms."""

    def __init__(self, now: int, cluster: str = "DefaultCluster") -> None:
        self.cluster = cluster
        self.totals = dict.fromkeys(("put", "put_size", "put_failed", "found", "miss", "transferred", "get_size"), 0)
        self.put_times = [0] * (len(BUCKETS) + 1)
        self.put_longest = 0
        self.get_longest = 0
        self._series: dict[tuple[str, str], Series] = {}
        self._rates: deque[tuple[int, dict[str, int]]] = deque([(now, dict(self.totals))], maxlen=RATE_WINDOWS[-1] // RATE_SAMPLE + 1)

    # counting

    def stored(self, topic: str, *, messages: int, size: int, elapsed: int, now: int) -> None:
        """Count stored messages of a topic. size: bytes of their records. elapsed: duration, ms."""
        self._count("TOPIC_PUT_NUMS", topic, messages, now)
        self._count("TOPIC_PUT_SIZE", topic, size, now)
        self._count("BROKER_PUT_NUMS", self.cluster, messages, now)
        self.totals["put"] += messages
        self.totals["put_size"] += size
        self.put_longest = max(self.put_longest, elapsed)
        self.put_times[bisect_left(BUCKETS, elapsed)] += 1

    def refused(self) -> None:
        """Count a rejected put."""
        self.totals["put_failed"] += 1

    def pulled(self, group: str, topic: str, *, messages: int, size: int, elapsed: int, now: int) -> None:
        """Count a pull that returned messages."""
        key = f"{topic}@{group}"
        self._count("GROUP_GET_NUMS", key, messages, now)
        self._count("GROUP_GET_SIZE", key, size, now)
        self._count("GROUP_GET_LATENCY", key, elapsed, now)
        self._count("BROKER_GET_NUMS", self.cluster, messages, now)
        self.totals["found"] += 1
        self.totals["transferred"] += messages
        self.totals["get_size"] += size
        self.get_longest = max(self.get_longest, elapsed)

    def missed(self) -> None:
        """Count a pull that found nothing."""
        self.totals["miss"] += 1

    def sent_back(self, group: str, topic: str, *, now: int) -> None:
        """Count a message that a consumer sent back."""
        self._count("SNDBCK_PUT_NUMS", f"{topic}@{group}", 1, now)

    def _count(self, name: str, key: str, amount: int, now: int) -> None:
        series = self._series.get((name, key))
        if series is None:
            if len(self._series) >= MOST_SERIES:
                return  # the rates of very many topics and groups would fill the memory
            series = self._series[name, key] = Series(now)
        series.add(amount)

    def forget_topic(self, topic: str) -> None:
        """Drop the series of a deleted topic."""
        for pair in [pair for pair in self._series if pair[1] == topic or pair[1].startswith(f"{topic}@")]:
            del self._series[pair]

    def forget_group(self, group: str) -> None:
        """Drop the series of a deleted group."""
        for pair in [pair for pair in self._series if pair[1].endswith(f"@{group}")]:
            del self._series[pair]

    # sampling and reading

    def sample(self, now: int) -> None:
        """Take samples; call this every second."""
        if now - self._rates[-1][0] >= RATE_SAMPLE:
            self._rates.append((now, dict(self.totals)))
        for pair, series in list(self._series.items()):
            series.sample(now)
            if series.silent_for_a_day(now):
                del self._series[pair]

    def series(self, name: str, key: str) -> Series | None:
        """Return a series, or None if nothing was counted."""
        return self._series.get((name, key))

    def all_series(self, name: str) -> Iterator[tuple[str, Series]]:
        """Return the (key, series) pairs of a name."""
        return ((key, series) for (of, key), series in sorted(self._series.items()) if of == name)

    def rates(self, names: Sequence[str], now: int) -> tuple[float, ...]:
        """Return rates per second of a sum of totals over the last 10 s, minute and 10 min."""
        return tuple(self._rate(names, now, window) for window in RATE_WINDOWS)

    def _rate(self, names: Sequence[str], now: int, window: int) -> float:
        rates = list(self._rates)
        at, sums = next((sample for sample in rates if sample[0] >= now - window), rates[-1])
        if now <= at:
            return 0.0
        return sum(self.totals[name] - sums[name] for name in names) * 1000 / max(now - at, RATE_SAMPLE)


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
        self.context.repeat(1.0, self._sample)

    def _sample(self) -> None:
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
    store, stats = context.store, {}
    for number in range(count):
        high = max(0, store.max_offset(topic, number))
        stats[MessageQueue(topic, context.settings.broker_name, number)] = {
            "lastUpdateTimestamp": store.store_time(topic, number, high - 1) if high else 0,
            "maxOffset": high,
            "minOffset": max(0, store.min_offset(topic, number)),
        }
    return stats


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
    store, topic, spans = context.store, config.name, []
    for number in range(config.write_queues):
        offset, high = store.offsets.query(group, topic, number), store.max_offset(topic, number)
        first = store.earliest_time(topic, number)
        consumed = store.store_time(topic, number, offset - 1) if offset > 0 else first
        last = store.store_time(topic, number, high - 1)
        behind = context.clock() - store.store_time(topic, number, offset) if offset < high or high == 0 else 0
        spans.append(
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
    return spans


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
