r"""Metrics for Prometheus, under the names of the RocketMQ exporter, so that its dashboards and alerts go on working.

    rocketmq_broker_tps, _qps                        messages in and out a second, of the last minute
    rocketmq_producer_*, rocketmq_topic_*            by topic: sums of the queues' maximums, messages and bytes a second
    rocketmq_consumer_*, rocketmq_group_*            by group and topic: offsets, lag, messages and bytes a second, age of the oldest
    rocketmq_brokeruntime_*                          the table of GET_BROKER_RUNTIME_INFO
    mqstore_broker_connections                       open connections

    >>> line(Sample("rocketmq_group_diff", 12, {"group": 'a"b', "topic": "orders"}))
    'rocketmq_group_diff{group="a\\"b",topic="orders"} 12'

`rocketmq_client_*` are missing: the exporter asks the consumers themselves for those. The text is made when it is asked for, in a thread.
With `Settings.metrics` a listener serves it at /metrics; it answers GET only, and holds no connection.

Source: Apache RocketMQ exporter, RMQMetricsCollector; Prometheus text format 0.0.4.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mqstore.broker.handlers.broker_info import runtime
from mqstore.broker.handlers.membership import Membership
from mqstore.broker.handlers.statistics import Statistics
from mqstore.broker.protocol.heartbeats import MESSAGE_MODELS
from mqstore.broker.runtime.address import advertised, bound
from mqstore.broker.runtime.clients import ConsumerGroup
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Context, Part

__all__ = ["PARTS", "Metrics", "Sample", "line", "samples", "text"]

RETRY, DEAD = "%RETRY%", "%DLQ%"
LONGEST_REQUEST = 8192  # bytes
PATIENCE = 5.0  # seconds that a request may take
AT_ONCE = 16

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"([\d.]+) ([KMGT]?i?B)")

# name behind rocketmq_brokeruntime_: key of the runtime table
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


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def line(sample: Sample) -> str:
    """A sample as Prometheus reads it."""
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
    return f"{sample.name}{{{labels}}} {sample.value:.15g}" if labels else f"{sample.name} {sample.value:.15g}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def text(context: Context) -> str:
    """All metrics, each name with its type in front of it. Reads the store: to be called in a thread."""
    by_name: dict[str, list[str]] = {}
    for sample in samples(context):
        by_name.setdefault(sample.name, []).append(line(sample))
    return "".join(f"# TYPE {name} gauge\n" + "".join(f"{one}\n" for one in lines) for name, lines in sorted(by_name.items()))


def samples(context: Context) -> Iterator[Sample]:
    """Every metric there is now."""
    yield Sample("mqstore_broker_connections", len(context.connections))
    yield from _of_counters(context)
    yield from _of_topics(context)
    yield from _of_groups(context)
    yield from _of_runtime(context)


def _broker(context: Context) -> dict[str, str]:
    return {"cluster": context.settings.cluster, "broker": context.settings.broker_name}


def _of_counters(context: Context) -> Iterator[Sample]:
    counters, now = context.part(Statistics).counters, context.clock()
    place = {"cluster": context.settings.cluster, "brokerIP": context.address, "broker": context.settings.broker_name}
    for series_name, name in (("BROKER_PUT_NUMS", "rocketmq_broker_tps"), ("BROKER_GET_NUMS", "rocketmq_broker_qps")):
        whole = counters.series(series_name, context.settings.cluster)
        yield Sample(name, 0.0 if whole is None else whole.span("minute", now).tps, place)
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
        if topic.startswith(DEAD):
            yield Sample("rocketmq_topic_dlq_offset", end, {**_broker(context), "group": topic.removeprefix(DEAD)})
        else:
            name = "rocketmq_topic_retry_offset" if topic.startswith(RETRY) else "rocketmq_producer_offset"
            yield Sample(name, end, {**_broker(context), "topic": topic})


def _of_groups(context: Context) -> Iterator[Sample]:
    clients = context.part(Membership).clients
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
    kind = "retrydiff" if topic.startswith(RETRY) else "dlqdiff" if topic.startswith(DEAD) else "diff"
    model = MESSAGE_MODELS.index(online.message_model) if online is not None else MESSAGE_MODELS.index("CLUSTERING")
    standing = {
        "group": name,
        "topic": topic,
        "countOfOnlineConsumers": str(0 if online is None else len(online.members)),
        "msgModel": str(model),
    }
    yield Sample(f"rocketmq_group_{kind}", sum(ends[number] - offset for number, offset in offsets.items()), standing)


def _of_runtime(context: Context) -> Iterator[Sample]:
    table = runtime(context)
    labels = {
        "cluster": context.settings.cluster,
        "brokerIP": context.address,
        "brokerHost": context.settings.broker_name,
        "des": table["brokerVersionDesc"],
        "boottime": table["bootTimestamp"],
        "broker_version": table["brokerVersion"],
    }
    values = {name: float(table[key]) for name, key in _RUNTIME.items()}
    values["remain_howmanydata_toflush"] = _size(table["remainHowManyDataToFlush"])
    for prefix, key in _RATES.items():
        for window, rate in zip((10, 60, 600), table[key].split(" "), strict=True):
            values[f"{prefix}_tps{window}"] = float(rate)
    for name, count in zip(_PUT_TIMES, context.part(Statistics).counters.put_times, strict=True):
        values[f"pmdt_{name}"] = count
    room = _SIZE.findall(table.get("commitLogDirCapacity", ""))
    if len(room) == 2:
        values["commitlogdir_capacity_total"], values["commitlogdir_capacity_free"] = (float(size) * _UNITS[unit] for size, unit in room)
    for name, value in values.items():
        yield Sample(f"rocketmq_brokeruntime_{name}", value, labels)


def _size(written: str) -> float:
    size, _, unit = written.partition(" ")
    return float(size) * _UNITS[unit]


class Metrics(Part):
    """The listener for Prometheus; there is none without `Settings.metrics`. address: where it listens, `host:port`."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.address = ""
        self._busy = 0
        self._server: asyncio.Server | None = None

    def start(self) -> None:
        if self.context.settings.metrics is None:
            return
        listener = bound(self.context.settings.metrics)
        self.address = advertised(*listener.getsockname()[:2])

        async def listen() -> None:
            self._server = await asyncio.start_server(self._answer, sock=listener, limit=LONGEST_REQUEST)

        self.context.spawn(listen())

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
                method, _, rest = head.partition(b" ")
                path = rest.partition(b" ")[0].partition(b"?")[0]
                writer.write(await self._response(method, path))
                await writer.drain()
        writer.close()

    async def _response(self, method: bytes, path: bytes) -> bytes:
        if path not in (b"/metrics", b"/"):
            return _http("404 Not Found", b"the metrics are at /metrics\n")
        if method not in (b"GET", b"HEAD"):
            return _http("405 Method Not Allowed", b"ask with GET\n")
        if self._busy >= AT_ONCE:
            return _http("503 Service Unavailable", b"too many ask at once; ask again later\n")
        self._busy += 1
        try:
            made = (await self.context.run(text, self.context)).encode("utf-8", "replace")
        finally:
            self._busy -= 1
        return _http("200 OK", made, head=method == b"HEAD")


def _http(status: str, body: bytes, *, head: bool = False) -> bytes:
    kind = "text/plain; version=0.0.4; charset=utf-8"
    headers = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return headers.encode() + (b"" if head else body)


PARTS = (Metrics,)
