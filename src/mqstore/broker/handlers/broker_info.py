"""Broker information and administration.

    28 GET_BROKER_RUNTIME_INFO    totals, rates, offsets, disk; every value is a string
    26, 25 GET and UPDATE_BROKER_CONFIG    settings under the broker's names; those of requests can change at run time
    305 GET_SYSTEM_TOPIC_LIST_FROM_BROKER
    306, 316 CLEAN_EXPIRED_CONSUMEQUEUE, CLEAN_UNUSED_TOPIC
    323 RESUME_CHECK_HALF_MESSAGE    a half message that was checked too often is checked again
    50 to 54                         access control, which is not implemented

Changed settings last until the broker stops.

    >>> format_duration(93_784_005)
    '[ 1 days, 2 hours, 3 minutes, 4 seconds ]'
    >>> format_size(0), format_size(1 << 20)
    ('0 B', '1.0 MiB')

Protocol: docs/formats/rocketmq-remoting.md, sections 3.15 and 3.20.
"""

from __future__ import annotations

import json

from mqstore.broker.handlers.nameserver import properties_of, properties_text
from mqstore.broker.handlers.statistics import Statistics
from mqstore.broker.protocol import bodies, headers
from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError, make_response
from mqstore.broker.runtime import settings
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Component, Context, Handler
from mqstore.broker.runtime.logs import log
from mqstore.errors import UsageError
from mqstore.rocketmq.config import store_config
from mqstore.rocketmq.config.config_writer import DataVersion
from mqstore.rocketmq.config.topic_table import system_topics
from mqstore.rocketmq.dispatch.dispatcher import parse_delays
from mqstore.rocketmq.format.half_message import CHECK_TIMES
from mqstore.rocketmq.format.java_map import reencode
from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.format.system_topics import GIVEN_UP_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, is_system_topic
from mqstore.rocketmq.live.retention import disk_ratio

# names by which clients know the broker, and what limits them
FIXED = frozenset({"brokerName", "brokerClusterName", "brokerId", *settings.LIMITS})
POOLS = ("send", "pull", "query")
NO_ACCESS_CONTROL = "this broker has no access control: every client that reaches it may do everything"
FIXED_ACCOUNTS = "clients cannot read or change the accounts; edit the file, which is read again when it changes"


class Configuration(Component):
    """The settings as administrators see them. version: counts changes."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.version = DataVersion(context.boot)

    def values(self) -> dict[str, str]:
        """Return all settings that have a broker name, sorted by name."""
        own = {name: getattr(self.context.settings, attribute) for name, attribute in settings.BROKER_NAMES.items()}
        store = {name: getattr(self.context.store.config, attribute) for name, attribute in store_config.BROKER_NAMES.items()}
        values = {name: value for name, value in {**store, **own}.items() if value is not None}
        values["brokerIP1"], _, values["listenPort"] = self.context.address.rpartition(":")
        return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in sorted(values.items())}

    def change(self, named: dict[str, str]) -> list[str]:
        """Change settings and return the names of those that changed. Raises ResponseError for one that cannot change at run time."""
        before = self.values()
        changed = [name for name, value in named.items() if name in before and before[name] != value]
        fast = [name for name in changed if name in FIXED or name not in settings.BROKER_NAMES]
        if fast:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{fast[0]} cannot change while the broker runs; nothing was changed")
        try:
            self.context.settings = self.context.settings.with_broker({name: named[name] for name in changed})
        except UsageError as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if changed:
            self.version.next(self.context.clock())
        return changed


# numbers


def format_duration(milliseconds: int) -> str:
    """Format a duration as brokers do."""
    seconds = milliseconds // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"


def format_size(size: int) -> str:
    """Format a number of bytes as brokers do."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def _distribution(times: list[int]) -> str:
    names = ["<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s"]
    names += ["1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"]
    return " ".join(f"[{name}]:{count}" for name, count in zip(names, times, strict=True))


def runtime_table(context: Context) -> dict[str, str]:
    """Return the table of request 28. Reads the store and the file system, so call it in a thread."""
    table = _of_broker(context) | _of_store(context)
    if context.profile.tells_timers:
        table |= dict.fromkeys(("timerReadBehind", "timerOffsetBehind", "timerCongestNum"), "0")
        table |= dict.fromkeys(("timerEnqueueTps", "timerDequeueTps"), "0.0") | {"brokerActive": "true"}
    return dict(sorted(table.items()))


def _of_broker(context: Context) -> dict[str, str]:
    statistics, now = context.component(Statistics), context.clock()
    counters, (yesterday, today) = statistics.counters, statistics.mornings
    totals = counters.totals

    def rates(*names: str) -> str:
        return " ".join(str(rate) for rate in counters.rates(names, now))

    table = {
        "brokerVersion": str(context.profile.number),
        "brokerVersionDesc": context.profile.release,
        "bootTimestamp": str(context.boot),
        "runtime_table": format_duration(now - context.boot),
        "startAcceptSendRequestTimeStamp": "0",
        "pageCacheLockTimeMills": "0",
        "remainTransientStoreBufferNumbs": "2147483647",
        "dispatchMaxBuffer": "0",
        "putMessageTimesTotal": str(totals["put"]),
        "putMessageSizeTotal": str(totals["put_size"]),
        "putMessageAverageSize": str(totals["put_size"] / totals["put"] if totals["put"] else 0.0),
        "putMessageFailedTimes": str(totals["put_failed"]),
        "putMessageEntireTimeMax": str(counters.put_longest),
        "putMessageDistributeTime": _distribution(counters.put_times),
        "getMessageEntireTimeMax": str(counters.get_longest),
        "putTps": rates("put"),
        "getTotalTps": rates("found", "miss"),
        "getFoundTps": rates("found"),
        "getMissTps": rates("miss"),
        "getTransferedTps": rates("transferred"),
        "getTransferredTps": rates("transferred"),
        "msgPutTotalYesterdayMorning": str(yesterday[0]),
        "msgGetTotalYesterdayMorning": str(yesterday[1]),
        "msgPutTotalTodayMorning": str(today[0]),
        "msgGetTotalTodayMorning": str(today[1]),
        "msgPutTotalTodayNow": str(totals["put"]),
        "msgGetTotalTodayNow": str(totals["transferred"]),
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": str(context.settings.max_in_flight),
    }
    for pool in POOLS:  # there are no request queues: each connection accepts up to max_in_flight requests
        table[f"{pool}ThreadPoolQueueSize"] = table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        table[f"{pool}ThreadPoolQueueCapacity"] = str(context.settings.max_in_flight)
    return table


def _of_store(context: Context) -> dict[str, str]:
    store, live = context.store, context.store.writable
    table = {
        "earliestMessageTimeStamp": str(store.earliest_time()),
        "commitLogMinOffset": str(store.log_min),
        "commitLogMaxOffset": str(store.log_max),
        "dispatchBehindBytes": str(0 if live is None else live.dispatch_lag),
        "remainHowManyDataToFlush": format_size(0 if live is None else max(0, live.log_max - live.log.flushed)),
        "commitLogDiskRatio": "0.0",
        "consumeQueueDiskRatio": "0.0",
    }
    if live is not None:
        root = live.directory.root
        ratio = live.config.disk_ratio or disk_ratio
        table["commitLogDiskRatio"] = str(ratio(str(root / "commitlog")) or 0.0)
        table["consumeQueueDiskRatio"] = str(ratio(str(root / "consumequeue")) or 0.0)
        import shutil  # a broker starts without it

        room = shutil.disk_usage(root)
        table["commitLogDirCapacity"] = f"Total : {format_size(room.total)}, Free : {format_size(room.free)}."
        reached = live.delays.offsets()
        for level in range(1, len(parse_delays(live.config.message_delay_level)) + 1):
            waiting = max(0, store.max_offset(SCHEDULE_TOPIC, level - 1))
            if level in reached or waiting:
                table[f"scheduleMessageOffset_{level}"] = f"{reached.get(level, 0)},{waiting}"
    return table


async def runtime_info(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 28: return the runtime table."""
    return make_response(request, body=bodies.encode({"table": await context.run(runtime_table, context)}))


# settings


def broker_config(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 26: return the settings, one `name=value` per line."""
    configuration = context.component(Configuration)
    version = json.dumps(configuration.version.value(context.profile.rules.writes_every_field), separators=(",", ":"))
    return make_response(request, ext={"version": version}, body=properties_text(configuration.values()).encode())


def update_config(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 25: change settings. Unknown names are ignored, as in a broker."""
    context.writable_store(ResponseCode.NO_PERMISSION)
    named = properties_of(bytes(request.body).decode("utf-8", "replace"))
    for value in named.values():
        context.limits.value(value)
    changed = context.component(Configuration).change(named)
    log("settings-changed", settings={name: named[name] for name in changed}, peer=connection.peer)
    return make_response(request)


# topics and queues


def system_topic_list(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 305: return the system topics."""
    own = {
        config.name
        for config in system_topics(context.profile.version, cluster=context.settings.cluster, broker=context.settings.broker_name)
    }
    there = {name for name in context.store.topics.names() if is_system_topic(name, context.settings.cluster, context.settings.broker_name)}
    return make_response(request, body=bodies.encode({"topicList": sorted(own | there)}))


async def clean_expired(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 306: run retention now, including queues and index."""
    store = context.writable_store(ResponseCode.NO_PERMISSION)
    gone = await context.run(store.run_retention)
    log("cleaned", log_files=gone.log_files, queue_files=gone.queue_files, index_files=gone.index_files, peer=connection.peer)
    return make_response(request)


async def clean_unused(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 316: remove the queues of topics that are not configured."""
    store = context.writable_store(ResponseCode.NO_PERMISSION)
    configured = {*store.topics.names(), SCHEDULE_TOPIC}
    cluster, broker = context.settings.cluster, context.settings.broker_name
    unused = sorted({queue.topic for queue in store.queues()} - configured)
    gone = [topic for topic in unused if not is_system_topic(topic, cluster, broker)]
    for topic in gone:
        await context.run(store.delete_queues, topic)
    log("unused-topics-cleaned", topics=gone, peer=connection.peer)
    return make_response(request)


async def resume_check(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 323: put a half message again with its check count reset."""
    store = context.writable_store()
    msg_id = headers.text(request, "msgId")
    try:
        half = store.record_by_id(msg_id)
    except UsageError as error:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    if half is None or half.topic not in (HALF_TOPIC, GIVEN_UP_TOPIC):
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR, f"there is no half message with id {msg_id}; Put message back to {HALF_TOPIC} failed."
        )
    again = Message(
        HALF_TOPIC,
        half.body,
        properties=reencode(half.properties, {CHECK_TIMES: "0"}, store.version),
        flag=half.flag,
        sys_flag=half.sys_flag,
        born_timestamp=half.born_timestamp,
        born_host=half.born_host,
        store_host=half.store_host,
        reconsume_times=half.reconsume_times,
    )
    put = await context.run(store.put, again)
    if not put.stored:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"Put message back to {HALF_TOPIC} failed: {put.detail}")
    return make_response(request)


def access_control(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 50 to 54: not supported."""
    why = NO_ACCESS_CONTROL if context.settings.acl is None else FIXED_ACCOUNTS
    return make_response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported: {why}")


COMPONENTS = (Configuration,)
HANDLERS: dict[int, Handler] = {
    RequestCode.GET_BROKER_RUNTIME_INFO: runtime_info,
    RequestCode.GET_BROKER_CONFIG: broker_config,
    RequestCode.UPDATE_BROKER_CONFIG: update_config,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: system_topic_list,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: clean_expired,
    RequestCode.CLEAN_UNUSED_TOPIC: clean_unused,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: resume_check,
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: access_control,
    RequestCode.DELETE_ACL_CONFIG: access_control,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: access_control,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: access_control,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: access_control,
}
