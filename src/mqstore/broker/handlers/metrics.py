"""Metrics for Prometheus, under the names of the RocketMQ exporter, so that its dashboards and alerts keep working.

    rocketmq_broker_tps, _qps                        messages in and out per second, over the last minute
    rocketmq_producer_*, rocketmq_topic_*            by topic: sum of the queues' maximum offsets, messages and bytes per second
    rocketmq_consumer_*, rocketmq_group_*            by group and topic: offsets, lag, messages and bytes per second, age of the oldest
    rocketmq_brokeruntime_*                          the table of GET_BROKER_RUNTIME_INFO
    mqstore_broker_connections                       open connections
    mqstore_broker_held, _held_limit, _refused       what clients hold, its limit, and how often more was refused (`runtime.limits`)

`rocketmq_client_*` are missing: the exporter asks the consumers themselves for those. `prometheus_client` (the extra `metrics`) writes
the text and serves it at /metrics if `Settings.metrics` is set; see `metrics_listener`.

Source: Apache RocketMQ exporter, RMQMetricsCollector.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from mqstore.broker.handlers.broker_info import runtime_table
from mqstore.broker.handlers.membership import Membership
from mqstore.broker.handlers.statistics import Statistics
from mqstore.broker.protocol.heartbeats import MESSAGE_MODELS
from mqstore.broker.runtime.address import advertised_address, bind_listener
from mqstore.broker.runtime.clients import ConsumerGroup
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Component, Context
from mqstore.errors import UsageError
from mqstore.rocketmq.format.system_topics import DEAD_LETTER_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from prometheus_client import Metric

    from mqstore.broker.handlers.metrics_listener import MetricsListener

READ_TIMEOUT = 5.0  # seconds that reading all values may take

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"([\d.]+) ([KMGT]?i?B)")

# name after rocketmq_brokeruntime_: key of the runtime table
_RUNTIME = {
    "msg_put_total_today_now": "msgPutTotalTodayNow",
    "msg_gettotal_today_now": "msgGetTotalTodayNow",
    "msg_puttotal_todaymorning": "msgPutTotalTodayMorning",
    "msg_gettotal_todaymorning": "msgGetTotalTodayMorning",
    "msg_puttotal_yesterdaymorning": "msgPutTotalYesterdayMorning",
    "msg_gettotal_yesterdaymorning": "msgGetTotalYesterdayMorning",
    "dispatch_behind_bytes": "dispatchBehindBytes",
    "dispatch_maxbuffer": "dispatchMaxBuffer",
    "put_message_size_total": "putMessageSizeTotal",
    "put_message_average_size": "putMessageAverageSize",
    "putmessage_entire_time_max": "putMessageEntireTimeMax",
    "putmessage_times_total": "putMessageTimesTotal",
    "getmessage_entire_time_max": "getMessageEntireTimeMax",
    "earliest_message_timestamp": "earliestMessageTimeStamp",
    "start_accept_sendrequest_time": "startAcceptSendRequestTimeStamp",
    "pagecache_lock_time_mills": "pageCacheLockTimeMills",
    "commitlog_disk_ratio": "commitLogDiskRatio",
    "consumequeue_disk_ratio": "consumeQueueDiskRatio",
    "commitlog_minoffset": "commitLogMinOffset",
    "commitlog_maxoffset": "commitLogMaxOffset",
    "remain_transientstore_buffer_numbs": "remainTransientStoreBufferNumbs",
    "send_threadpool_queue_size": "sendThreadPoolQueueSize",
    "pull_threadpoolqueue_size": "pullThreadPoolQueueSize",
    "query_threadpoolqueue_size": "queryThreadPoolQueueSize",
    "send_threadpoolqueue_capacity": "sendThreadPoolQueueCapacity",
    "pull_threadpoolqueue_capacity": "pullThreadPoolQueueCapacity",
    "query_threadpool_queue_capacity": "queryThreadPoolQueueCapacity",
    "send_threadpoolqueue_headwait_timemills": "sendThreadPoolQueueHeadWaitTimeMills",
    "pull_threadpoolqueue_headwait_timemills": "pullThreadPoolQueueHeadWaitTimeMills",
    "query_threadpoolqueue_headwait_timemills": "queryThreadPoolQueueHeadWaitTimeMills",
}
_SIZES = {
    "remain_howmanydata_toflush": "remainHowManyDataToFlush",
    "commitlogdir_capacity_total": "commitLogDirCapacity, total",
    "commitlogdir_capacity_free": "commitLogDirCapacity, free",
}
_RATES = {
    "put": "putTps",
    "getfound": "getFoundTps",
    "getmiss": "getMissTps",
    "gettotal": "getTotalTps",
    "gettransfered": "getTransferedTps",
}
_PUT_TIMES = (
    *("0ms", "0to10ms", "10to50ms", "50to100ms", "100to200ms", "200to500ms", "500to1s"),
    *("1to2s", "2to3s", "3to4s", "4to5s", "5to10s", "10stomore"),
)
_BY_SERIES = {
    "TOPIC_PUT_NUMS": "rocketmq_producer_tps",
    "TOPIC_PUT_SIZE": "rocketmq_producer_message_size",
    "GROUP_GET_NUMS": "rocketmq_consumer_tps",
    "GROUP_GET_SIZE": "rocketmq_consumer_message_size",
    "SNDBCK_PUT_NUMS": "rocketmq_send_back_nums",
}


_HELP = {
    "mqstore_broker_connections": "Open client connections",
    "mqstore_broker_held": "What clients hold, by quota",
    "mqstore_broker_held_limit": "Limit of what clients may hold, by quota",
    "mqstore_broker_refused": "How often clients were refused more than a quota since the start",
    "rocketmq_broker_tps": "Messages stored per second over the last minute",
    "rocketmq_broker_qps": "Messages delivered per second over the last minute",
    "rocketmq_producer_tps": "Messages stored per second and topic over the last minute",
    "rocketmq_producer_message_size": "Bytes stored per second and topic over the last minute",
    "rocketmq_producer_offset": "Sum of the maximum offsets of the topic's queues",
    "rocketmq_topic_retry_offset": "Sum of the maximum offsets of the retry topic's queues",
    "rocketmq_topic_dlq_offset": "Sum of the maximum offsets of the group's dead-letter queues",
    "rocketmq_consumer_tps": "Messages delivered per second, topic and group over the last minute",
    "rocketmq_consumer_message_size": "Bytes delivered per second, topic and group over the last minute",
    "rocketmq_consumer_offset": "Sum of the maximum offsets of the queues that the group has offsets of",
    "rocketmq_send_back_nums": "Messages sent back per second, topic and group over the last minute",
    "rocketmq_group_count": "Consumers of the group that are online",
    "rocketmq_group_consume_tps": "Messages delivered per second, topic and group over the last minute",
    "rocketmq_group_consume_total_offset": "Sum of the group's committed offsets",
    "rocketmq_group_get_latency_by_storetime": "Age of the oldest message that the group has not consumed, in milliseconds",
    "rocketmq_group_diff": "Messages that the group has not consumed",
    "rocketmq_group_retrydiff": "Messages of the group's retry topic that it has not consumed",
    "rocketmq_group_dlqdiff": "Messages of the group's dead-letter topic that it has not consumed",
}


class Sample(NamedTuple):
    """One value of one metric. labels: (name, value) pairs as a dictionary."""

    name: str
    value: float
    labels: dict[str, str]


class BrokerCollector:
    """A collector of `prometheus_client`: the metrics of a running broker."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def collect(self) -> Iterable[Metric]:
        """Return one gauge family per metric name, sorted by name.

        Called in a thread of the listener. The store is read in a worker thread of the broker, which `Context.release` waits for:
        no scrape reads a store that is being closed. Raises TimeoutError.
        """
        from prometheus_client import Metric

        reading = asyncio.run_coroutine_threadsafe(self._context.run(_all_samples, self._context), self._context.loop)
        families: dict[str, Metric] = {}
        for name, value, labels in reading.result(READ_TIMEOUT):
            if name not in families:
                families[name] = Metric(name, help_text(name), "gauge")
            families[name].add_sample(name, labels, value)
        return [family for _, family in sorted(families.items())]


def help_text(name: str) -> str:
    """Return the HELP text of a metric.

    >>> help_text("rocketmq_brokeruntime_commitlog_maxoffset"), help_text("rocketmq_brokeruntime_put_tps10")
    ('commitLogMaxOffset of the broker runtime table', 'putTps over 10 s of the broker runtime table')
    """
    short = name.removeprefix("rocketmq_brokeruntime_")
    if short == name:
        return _HELP[name]
    if short.startswith("pmdt_"):
        return f"Number of puts that took {short.removeprefix('pmdt_')}"
    rate, _, window = short.partition("_tps")
    key = f"{_RATES[rate]} over {window} s" if rate in _RATES else {**_RUNTIME, **_SIZES}[short]
    return f"{key} of the broker runtime table"


def _all_samples(context: Context) -> list[Sample]:
    return list(samples(context))


def samples(context: Context) -> Iterator[Sample]:
    """Yield all metrics as they are now."""
    yield Sample("mqstore_broker_connections", len(context.connections), {})
    for name, quota in context.shared.quotas:
        yield Sample("mqstore_broker_held", quota.held, {"quota": name})
        yield Sample("mqstore_broker_held_limit", quota.most, {"quota": name})
        yield Sample("mqstore_broker_refused", quota.refused, {"quota": name})
    yield from _of_counters(context)
    yield from _of_topics(context)
    yield from _of_groups(context)
    yield from _of_runtime(context)


def _broker(context: Context) -> dict[str, str]:
    return {"cluster": context.settings.cluster, "broker": context.settings.broker_name}


def _of_counters(context: Context) -> Iterator[Sample]:
    counters, now = context.component(Statistics).counters, context.clock()
    broker_labels = {"cluster": context.settings.cluster, "brokerIP": context.address, "broker": context.settings.broker_name}
    for series_name, name in (("BROKER_PUT_NUMS", "rocketmq_broker_tps"), ("BROKER_GET_NUMS", "rocketmq_broker_qps")):
        whole = counters.series(series_name, context.settings.cluster)
        yield Sample(name, 0.0 if whole is None else whole.span("minute", now).tps, broker_labels)
    for series_name, name in _BY_SERIES.items():
        for key, series in counters.all_series(series_name):
            topic, sign, group = key.partition("@")
            labels = {**_broker(context), "topic": topic, **({"group": group} if sign else {})}
            tps = series.span("minute", now).tps
            yield Sample(name, tps, labels)
            if series_name == "GROUP_GET_NUMS":
                yield Sample("rocketmq_group_consume_tps", tps, labels)


def _of_topics(context: Context) -> Iterator[Sample]:
    ends: dict[str, int] = {}
    for queue in context.store.queues():
        ends[queue.topic] = ends.get(queue.topic, 0) + max(0, queue.max_offset)
    for topic, end in ends.items():
        if topic.startswith(DEAD_LETTER_PREFIX):
            yield Sample("rocketmq_topic_dlq_offset", end, {**_broker(context), "group": topic.removeprefix(DEAD_LETTER_PREFIX)})
        else:
            name = "rocketmq_topic_retry_offset" if topic.startswith(RETRY_PREFIX) else "rocketmq_producer_offset"
            yield Sample(name, end, {**_broker(context), "topic": topic})


def _of_groups(context: Context) -> Iterator[Sample]:
    clients = context.component(Membership).clients
    for name, group in list(clients.consumers.items()):
        members = list(group.members.values())
        addresses = {
            "caddr": ",".join(member.connection.peer for member in members),
            "localaddr": ",".join(member.client_id.partition("@")[0] for member in members),
        }
        yield Sample("rocketmq_group_count", len(members), {**addresses, "group": name})
    names = {*context.store.groups.names(), *clients.consumers}
    for name in sorted(names):
        for topic in sorted(context.store.offsets.topics_of(name)):
            yield from _of_group(context, name, topic, clients.consumer_group(name))


def _of_group(context: Context, name: str, topic: str, online: ConsumerGroup[Connection] | None) -> Iterator[Sample]:
    """How far one group is in one topic."""
    store, offsets = context.store, context.store.offsets.by_queue(name, topic)
    ends = {number: max(0, store.max_offset(topic, number)) for number in offsets}
    waiting = [number for number, offset in offsets.items() if offset < ends[number]]
    oldest = min((time for number in waiting if (time := store.store_time(topic, number, offsets[number])) >= 0), default=None)
    labels = {**_broker(context), "topic": topic, "group": name}
    yield Sample("rocketmq_consumer_offset", sum(ends.values()), labels)
    yield Sample("rocketmq_group_consume_total_offset", sum(offsets.values()), labels)
    yield Sample("rocketmq_group_get_latency_by_storetime", 0 if oldest is None else max(0, context.clock() - oldest), labels)
    kind = "retrydiff" if topic.startswith(RETRY_PREFIX) else "dlqdiff" if topic.startswith(DEAD_LETTER_PREFIX) else "diff"
    model = MESSAGE_MODELS.index(online.message_model) if online is not None else MESSAGE_MODELS.index("CLUSTERING")
    standing = {
        "group": name,
        "topic": topic,
        "countOfOnlineConsumers": str(0 if online is None else len(online.members)),
        "msgModel": str(model),
    }
    yield Sample(f"rocketmq_group_{kind}", sum(ends[number] - offset for number, offset in offsets.items()), standing)


def _of_runtime(context: Context) -> Iterator[Sample]:
    table = runtime_table(context)
    labels = {
        "cluster": context.settings.cluster,
        "brokerIP": context.address,
        "brokerHost": context.settings.broker_name,
        "des": table["brokerVersionDesc"],
        "boottime": table["bootTimestamp"],
        "broker_version": table["brokerVersion"],
    }
    values = {name: float(table[key]) for name, key in _RUNTIME.items()}
    values["remain_howmanydata_toflush"] = _parse_size(table["remainHowManyDataToFlush"])
    for prefix, key in _RATES.items():
        for window, rate in zip((10, 60, 600), table[key].split(" "), strict=True):
            values[f"{prefix}_tps{window}"] = float(rate)
    for name, count in zip(_PUT_TIMES, context.component(Statistics).counters.put_times, strict=True):
        values[f"pmdt_{name}"] = count
    room = _SIZE.findall(table.get("commitLogDirCapacity", ""))
    if len(room) == 2:
        values["commitlogdir_capacity_total"], values["commitlogdir_capacity_free"] = (float(size) * _UNITS[unit] for size, unit in room)
    for name, value in values.items():
        yield Sample(f"rocketmq_brokeruntime_{name}", value, labels)


def _parse_size(written: str) -> float:
    size, _, unit = written.partition(" ")
    return float(size) * _UNITS[unit]


def check_metrics(listen: str) -> None:
    """Raise UsageError if metrics cannot be served at `host:port`."""
    if find_spec("prometheus_client") is None:
        raise UsageError("metrics need prometheus_client; install it with: pip install 'mqstore[metrics]'")
    bind_listener(listen).close()


class Metrics(Component):
    """The listener for Prometheus, if `Settings.metrics` is set. address: where it listens, `host:port`."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.address = ""
        self._listener: MetricsListener | None = None

    def start(self) -> None:
        if self.context.settings.metrics is None:
            return
        check_metrics(self.context.settings.metrics)
        from mqstore.broker.handlers.metrics_listener import MetricsListener

        listening = bind_listener(self.context.settings.metrics)
        self.address = advertised_address(*listening.getsockname()[:2])
        self._listener = MetricsListener(listening, BrokerCollector(self.context))
        self._listener.start()

    async def stop(self) -> None:
        if self._listener is not None:
            await asyncio.to_thread(self._listener.stop)


COMPONENTS = (Metrics,)
