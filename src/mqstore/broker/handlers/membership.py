"""Membership: heartbeats, group members, notifications of changes, requests to a member, and locks of queues.

    34 HEART_BEAT         registers producers and consumers, creates %RETRY%group, notifies the members of changed groups
    35 UNREGISTER_CLIENT  a client leaves one group
    46 CHECK_CLIENT_CONFIG  checks whether a consumer's filter is supported
    38 GET_CONSUMER_LIST_BY_GROUP, 203, 204, 328  list clients
    40 NOTIFY_CONSUMER_IDS_CHANGED  from the broker, oneway, to every member of a changed group, including the one that changed it

A member leaves when its connection is lost, when it unregisters, or after two minutes without a heartbeat; then its connection is closed.

The broker forwards these requests of administrators to a consumer, and returns its response:

    307 GET_CONSUMER_RUNNING_INFO    what a consumer is doing
    309 CONSUME_MESSAGE_DIRECTLY     let a consumer consume one message now; the broker adds the record

The client has ten seconds (`Settings.call_timeout`). Its response is returned unchanged, under the opaque of the original request.
Only the fields of the code's header are forwarded. The key and the signature of the administrator are not for the client, which chose
its client id and so a part of what was signed.

Queue locks: which client of a group may consume a queue in order.

An orderly consumer locks its queues with LOCK_BATCH_MQ (41) and renews them every 20 seconds; a lock that was not renewed for 60
seconds expires. UNLOCK_BATCH_MQ (42) releases a client's own queues. A lost connection releases nothing.

    >>> locks = QueueLocks()
    >>> queue = MessageQueue("T", "broker-a", 0)
    >>> locks.lock("g", [queue], "c@1", now=0), locks.lock("g", [queue], "c@2", now=60_000), locks.lock("g", [queue], "c@2", now=60_001)
    ([MessageQueue(topic='T', broker_name='broker-a', queue_id=0)], [], [MessageQueue(topic='T', broker_name='broker-a', queue_id=0)])

Pulls are not checked against locks: they are an agreement between clients.

Protocol: docs/formats/rocketmq-remoting.md, sections 3.7 to 3.10, 3.14 and 3.18. Source: Apache RocketMQ 4.9.3, RebalanceLockManager.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import Any

from mqstore.broker.handlers.pull_filter import PullFilter
from mqstore.broker.handlers.topic_creation import TopicsAndGroups
from mqstore.broker.protocol import bodies, headers
from mqstore.broker.protocol.bodies import MessageQueue
from mqstore.broker.protocol.codes import V3_1_8_SNAPSHOT, Language, RequestCode, ResponseCode, release_name
from mqstore.broker.protocol.frames import Frame, ResponseError, make_request, make_response
from mqstore.broker.protocol.headers import defined
from mqstore.broker.protocol.heartbeats import Heartbeat, parse, parse_subscription
from mqstore.broker.runtime.clients import Clients, Member
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Component, Context, Handler
from mqstore.broker.runtime.logs import log
from mqstore.errors import UsageError

NO_SQL = "The broker does not support consumer to filter message by SQL92"


class Membership(Component):
    """The clients of a broker."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.clients: Clients[Connection] = Clients(context.settings.client_timeout)

    def start(self) -> None:
        self.context.repeat(self.context.settings.client_scan_interval / 1000, self.expire)

    def expire(self) -> None:
        """Close the connections of members without recent heartbeats."""
        for connection in self.clients.silent(self.context.clock()):
            connection.close("no heartbeat for two minutes")
            self.connection_lost(connection)

    def connection_lost(self, connection: Connection) -> None:
        self.changed(self.clients.close(connection))

    def changed(self, groups: Iterable[str]) -> None:
        """Notify the members of groups to rebalance."""
        for name in groups:
            group = self.clients.consumer_group(name)
            if group is None or not self._notifies(name):
                continue
            for connection in list(group.members):
                connection.notify(make_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name}, oneway=True))

    def _notifies(self, group: str) -> bool:
        config = self.context.store.groups.get(group)
        return self.context.settings.notify_consumers and (config is None or config.notify_consumer_ids_changed_enable)


def heart_beat(context: Context, connection: Connection, request: Frame) -> Frame | Awaitable[Frame]:
    """Handle 34: register what a client produces and consumes."""
    try:
        heartbeat = parse(request.body)
    except UsageError as error:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    configured = context.component(TopicsAndGroups)
    _check_limits(context, connection, heartbeat)
    known = len(context.store.groups.names())
    new = False
    for group in heartbeat.consumers:
        config = configured.group(group.name)
        new |= config is not None and configured.retry_topic(config)
    new |= len(context.store.groups.names()) > known
    return _registered_once_saved(context, connection, request, heartbeat) if new else _registered(context, connection, request, heartbeat)


async def _registered_once_saved(context: Context, connection: Connection, request: Frame, heartbeat: Heartbeat) -> Frame:
    """Save new groups and topics, then register the client.

    Notifications follow the save, as in the broker: a client that is notified while its heartbeat is not answered rebalances, but cannot
    send the heartbeat with its new subscription, so its pulls are refused for a second.
    """
    await context.component(TopicsAndGroups).save()
    _check_limits(context, connection, heartbeat)  # others may have come meanwhile
    return make_response(request) if connection.closed else _registered(context, connection, request, heartbeat)


def _registered(context: Context, connection: Connection, request: Frame, heartbeat: Heartbeat) -> Frame:
    """Register a client, notify the members of its groups if they have changed, and return the response."""
    membership = context.component(Membership)
    changed = membership.clients.heartbeat(connection, heartbeat, request.language.name, request.version, context.clock())
    if changed:
        log("consumers-changed", groups=changed, client=heartbeat.client_id, peer=connection.peer)
        membership.changed(changed)
    ext = None
    if context.profile.knows_fingerprints:
        moved = bool(changed) or not heartbeat.fingerprint
        ext = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if moved else "false"}
    return make_response(request, ext=ext)


def _check_limits(context: Context, connection: Connection, heartbeat: Heartbeat) -> None:
    """Refuse a heartbeat that would make the broker hold too much, before anything of it is held. Raises ResponseError."""
    clients, limits, settings = context.component(Membership).clients, context.limits, context.settings
    limits.heartbeat(heartbeat)
    joined, more = clients.groups_of(connection), clients.new_groups(connection, heartbeat)
    if more and joined + more > settings.max_client_groups:
        remark = f"a client may be in maxClientGroups={settings.max_client_groups} groups (--config), this one would be in {joined + more}"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, remark)
    limits.check("groups of clients that are connected", clients.memberships, more)
    _check_address(context, connection, more)
    limits.check("subscriptions", clients.subscriptions, clients.new_subscriptions(heartbeat))
    limits.check("bytes of subscriptions", clients.subscription_bytes, clients.new_subscription_bytes(heartbeat))
    if settings.auto_create_groups:
        new = {group.name for group in heartbeat.consumers if group.name not in context.store.groups}
        limits.check("groups", len(context.store.groups.names()), len(new))
        limits.check("topics", len(context.store.topics.names()), len(new))


def _check_address(context: Context, connection: Connection, more: int) -> None:
    """Refuse memberships of which the clients of one remote address would have more than their share. Raises ResponseError."""
    clients, settings = context.component(Membership).clients, context.settings
    share = settings.max_memberships * settings.max_address_share // 100
    if not more or clients.memberships + more <= share:
        return
    of_address = sum(clients.groups_of(each) for each in context.connections if each.host == connection.host)
    if of_address + more > share:
        remark = f"clients at {connection.host} are in {of_address} groups, the limit of one address: raise maxAddressShare (--config)"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, remark)


def unregister_client(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 35: remove a client from groups; an empty name means none."""
    membership = context.component(Membership)
    headers.text(request, "clientID")
    membership.changed(
        membership.clients.unregister(
            connection,
            producer_group=headers.text_or(request, "producerGroup"),
            consumer_group=headers.text_or(request, "consumerGroup"),
        )
    )
    return make_response(request, ext={})


def check_client_config(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 46: check a subscription. Tags are always supported, expressions only with `Settings.property_filter`."""
    held = bodies.parse_request(request).get("subscriptionData")
    if not isinstance(held, dict):
        return make_response(request)
    try:
        subscription = parse_subscription(held)
    except UsageError as error:
        return make_response(request, ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))
    if subscription.by_tag:
        return make_response(request)
    if not context.settings.property_filter:
        return make_response(request, ResponseCode.SYSTEM_ERROR, NO_SQL)
    try:
        PullFilter.of(subscription)
    except UsageError as error:
        return make_response(request, ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))
    return make_response(request)


def consumer_list(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 38: return the client ids of a group."""
    name = headers.text(request, "consumerGroup")
    group = context.component(Membership).clients.consumer_group(name)
    if group is None:
        return make_response(request, ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
    return make_response(request, ext={}, body=bodies.encode({"consumerIdList": group.client_ids()}))


def consumer_connections(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 203: return the connections and subscriptions of a consumer group."""
    name = headers.text(request, "consumerGroup")
    group = context.component(Membership).clients.consumer_group(name)
    if group is None:
        return make_response(request, ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    body = {
        "connectionSet": _connections(group.members.values()),
        "consumeFromWhere": group.consume_from_where,
        "consumeType": group.consume_type,
        "messageModel": group.message_model,
        "subscriptionTable": {topic: subscription.bean() for topic, subscription in group.subscriptions.items()},
    }
    return make_response(request, body=bodies.encode(body))


def producer_connections(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 204: return the connections of a producer group."""
    name = headers.text(request, "producerGroup")
    members = context.component(Membership).clients.producer_group(name)
    if not members:
        return make_response(request, ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    return make_response(request, body=bodies.encode({"connectionSet": _connections(members)}))


def all_producers(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 328: return the producers of all groups."""
    producers = context.component(Membership).clients.producers
    data = {
        name: [
            {
                "clientId": member.client_id,
                "language": member.language,
                "lastUpdateTimestamp": member.last_heartbeat,
                "remoteIP": member.connection.peer,
                "version": member.version,
            }
            for member in members.values()
        ]
        for name, members in producers.items()
    }
    return make_response(request, body=bodies.encode({"data": data}))


def _connections(members: Iterable[Member[Connection]]) -> list[dict[str, Any]]:
    return [
        {"clientAddr": member.connection.peer, "clientId": member.client_id, "language": member.language, "version": member.version}
        for member in members
    ]


# requests that a consumer answers


def position_in_id(msg_id: str) -> int:
    """Return the physical offset in an offset message id. Raises ResponseError if it is not one.

    >>> position_in_id("7F00000100008FEB00000000000000D4")
    212
    """
    try:
        raw = bytes.fromhex(msg_id)
    except ValueError:
        raw = b""
    if len(raw) not in (16, 28):
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{msg_id!r} is not a message id, which has 32 or 56 hexadecimal digits")
    return int.from_bytes(raw[-8:], "big", signed=True)


async def running_info(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 307: forward the request."""
    group, client_id = headers.text(request, "consumerGroup"), headers.text(request, "clientId")
    return await call_consumer(context, request, group, client_id, defined(request))


async def consume_directly(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 309: forward the request with the record that it names."""
    group = headers.text(request, "consumerGroup")
    ext = {**defined(request), "brokerName": context.settings.broker_name}
    msg_id = headers.text_or(request, "msgId")
    body = b""
    if msg_id is not None:
        position = position_in_id(msg_id)
        record = context.store.raw_record_at(position)
        if record is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {position}")
        member = context.component(Membership).clients.consumer(group, headers.text_or(request, "clientId", "null"))
        body = context.response_body([record], request.language if member is None else Language[member.language])
    return await call_consumer(context, request, group, headers.text_or(request, "clientId", "null"), ext, body)


async def call_consumer(context: Context, request: Frame, group: str, client_id: str, ext: dict[str, str], body: bytes = b"") -> Frame:
    """Forward the request's code to one consumer and return its response."""
    member = context.component(Membership).clients.consumer(group, client_id)
    if member is None:
        return make_response(request, ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
    if member.version < V3_1_8_SNAPSHOT:
        remark = (
            f"The Consumer <{client_id}> Version <{release_name(member.version)}> too low to finish, please upgrade it to V3_1_8_SNAPSHOT"
        )
        return make_response(request, ResponseCode.SYSTEM_ERROR, remark)
    try:
        response = await member.connection.call(make_request(RequestCode(request.code), ext, body), context.settings.call_timeout / 1000)
    except TimeoutError:
        waited = context.settings.call_timeout
        return make_response(
            request, ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client_id}> Timeout: no response within {waited} ms"
        )
    except ConnectionError as error:
        return make_response(request, ResponseCode.SYSTEM_ERROR, f"invoke consumer <{group}> <{client_id}> Exception: {error}")
    return make_response(request, response.code, response.remark, response.ext, response.body)


# locks of queues


EXPIRES = 60_000  # ms


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed: int


class QueueLocks:
    """All locks, by group and queue. expires: ms after which a lock that is not renewed expires. now: ms."""

    def __init__(self, expires: int = EXPIRES) -> None:
        self.expires = expires
        self._held: dict[str, dict[MessageQueue, _Lock]] = {}

    def __len__(self) -> int:
        """Return the number of locks, expired ones included."""
        return sum(map(len, self._held.values()))

    def new(self, group: str, queues: Iterable[MessageQueue]) -> int:
        """Return how many of the queues have no lock yet."""
        held = self._held.get(group, {})
        return sum(queue not in held for queue in set(queues))

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str, now: int) -> list[MessageQueue]:
        """Lock queues for a client, or renew its locks. Returns those that it holds."""
        held = self._held.setdefault(group, {})
        granted = []
        for queue in queues:
            lock = held.get(queue)
            if lock is None or lock.client_id == client_id or now - lock.renewed > self.expires:
                held[queue] = _Lock(client_id, now)
                granted.append(queue)
        return granted

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Release those of the queues that the client holds."""
        held = self._held.get(group, {})
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]
        if not held:
            self._held.pop(group, None)

    def expire(self, now: int) -> None:
        """Drop expired locks."""
        for group, held in list(self._held.items()):
            for queue in [queue for queue, lock in held.items() if now - lock.renewed > self.expires]:
                del held[queue]
            if not held:
                del self._held[group]


class LockComponent(Component):
    """The locks of a broker."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.table = QueueLocks(context.settings.lock_timeout)

    def start(self) -> None:
        self.context.repeat(self.context.settings.lock_timeout / 1000, lambda: self.table.expire(self.context.clock()))


def _parse_lock_request(request: Frame) -> tuple[str, str, list[MessageQueue]]:
    """Return (group, client id, queues) of a request."""
    body = bodies.parse_request(request)
    group, client_id, named = body.get("consumerGroup"), body.get("clientId"), body.get("mqSet")
    if not isinstance(group, str) or not isinstance(client_id, str):
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "the body must name consumerGroup and clientId")
    queues = []
    for queue in named if isinstance(named, list) else ():
        topic, broker, number = (queue.get(name) for name in ("topic", "brokerName", "queueId")) if isinstance(queue, dict) else (None,) * 3
        if not isinstance(topic, str) or not isinstance(broker, str) or not isinstance(number, int):
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "a queue of mqSet must have topic, brokerName and queueId")
        queues.append(MessageQueue(topic, broker, number))
    return group, client_id, queues


def lock_batch(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 41: lock queues and return those that the client holds."""
    group, client_id, queues = _parse_lock_request(request)
    table = context.component(LockComponent).table
    context.limits.name(group, "consumer group")
    context.limits.name(client_id, "client")
    for queue in queues:
        context.limits.name(queue.topic, "topic")
        context.limits.name(queue.broker_name, "broker")
    context.limits.check("queue locks", len(table), table.new(group, queues))
    granted = table.lock(group, queues, client_id, context.clock())
    return make_response(request, body=bodies.encode({"lockOKMQSet": granted}))


def unlock_batch(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 42: release the client's own queues."""
    group, client_id, queues = _parse_lock_request(request)
    context.component(LockComponent).table.unlock(group, queues, client_id)
    return make_response(request)


COMPONENTS = (Membership, LockComponent)
HANDLERS: dict[int, Handler] = {
    RequestCode.HEART_BEAT: heart_beat,
    RequestCode.UNREGISTER_CLIENT: unregister_client,
    RequestCode.CHECK_CLIENT_CONFIG: check_client_config,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer_list,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: producer_connections,
    RequestCode.GET_ALL_PRODUCER_INFO: all_producers,
    RequestCode.GET_CONSUMER_RUNNING_INFO: running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
    RequestCode.LOCK_BATCH_MQ: lock_batch,
    RequestCode.UNLOCK_BATCH_MQ: unlock_batch,
}
