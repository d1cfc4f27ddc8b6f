"""Membership: heartbeats and farewells of clients, who is in a group, and who hears that this has changed.

    34 HEART_BEAT         notes producers and consumers, makes %RETRY%group, tells the group's members of a change
    35 UNREGISTER_CLIENT  a client leaves one group
    46 CHECK_CLIENT_CONFIG  whether a filter of a consumer can be used here
    38 GET_CONSUMER_LIST_BY_GROUP, 203, 204, 328  who is there
    40 NOTIFY_CONSUMER_IDS_CHANGED  from the broker, oneway, to every member of a group that changed, also the one that changed it

A member is gone when its connection is, when it says so, or when nothing was heard from it for two minutes; then its connection is closed.

Protocol: docs/formats/rocketmq-remoting.md, sections 3.7 to 3.9 and 3.14.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

from mqstore.broker.filter.pull_filter import PullFilter
from mqstore.broker.handlers.topic_creation import Tables
from mqstore.broker.protocol import bodies, headers
from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.broker.protocol.frames import AnswerError, Frame, answer, request
from mqstore.broker.protocol.heartbeats import parse, parse_subscription
from mqstore.broker.runtime.clients import Clients, Member
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Context, Handler, Part
from mqstore.broker.runtime.logs import log
from mqstore.errors import UsageError

__all__ = ["HANDLERS", "PARTS", "Membership"]

NO_SQL = "The broker does not support consumer to filter message by SQL92"


class Membership(Part):
    """The clients of a broker."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.clients: Clients[Connection] = Clients(context.settings.client_timeout)

    def start(self) -> None:
        self.context.spawn(self._scan())

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(self.context.settings.client_scan_interval / 1000)
            self.expire()

    def expire(self) -> None:
        """Close the connections of members that have gone silent."""
        for connection in self.clients.silent(self.context.clock()):
            connection.close("no heartbeat came for two minutes")
            self.connection_lost(connection)

    def connection_lost(self, connection: Connection) -> None:
        self.changed(self.clients.close(connection))

    def changed(self, groups: Iterable[str]) -> None:
        """Tell the members of groups to look at their queues again."""
        for name in groups:
            group = self.clients.consumer_group(name)
            if group is None or not self._notifies(name):
                continue
            for connection in list(group.members):
                connection.notify(request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name}, oneway=True))

    def _notifies(self, group: str) -> bool:
        config = self.context.store.groups.get(group)
        return self.context.settings.notify_consumers and (config is None or config.notify_consumer_ids_changed_enable)


def heart_beat(context: Context, connection: Connection, asked: Frame) -> Frame | Awaitable[Frame]:
    """34: the client is alive, and this is what it produces and consumes."""
    try:
        told = parse(asked.body)
    except UsageError as error:
        raise AnswerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    membership, tables = context.part(Membership), context.part(Tables)
    known = len(context.store.groups.names())
    new = False
    for group in told.consumers:
        config = tables.group(group.name)
        new |= config is not None and tables.retry_topic(config)
    new |= len(context.store.groups.names()) > known
    changed = membership.clients.heartbeat(connection, told, asked.language.name, asked.version, context.clock())
    if changed:
        log("consumers-changed", groups=changed, client=told.client_id, peer=connection.peer)
        membership.changed(changed)
    ext = None
    if context.profile.five:
        moved = bool(changed) or not told.fingerprint
        ext = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if moved else "false"}
    done = answer(asked, ext=ext)
    return _saved(tables, done) if new else done


async def _saved(tables: Tables, done: Frame) -> Frame:
    await tables.save()
    return done


def unregister_client(context: Context, connection: Connection, asked: Frame) -> Frame:
    """35: the client leaves a group; an empty name means none."""
    membership = context.part(Membership)
    headers.text(asked, "clientID")
    membership.changed(
        membership.clients.unregister(
            connection,
            producer_group=headers.text_or(asked, "producerGroup"),
            consumer_group=headers.text_or(asked, "consumerGroup"),
        )
    )
    return answer(asked, ext={})


def check_client_config(context: Context, connection: Connection, asked: Frame) -> Frame:
    """46: whether a subscription can be filtered here: by tags always, by an expression if the broker has that switched on."""
    held = bodies.parse_request(asked).get("subscriptionData")
    if not isinstance(held, dict):
        return answer(asked)
    try:
        subscription = parse_subscription(held)
    except UsageError as error:
        return answer(asked, ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))
    if subscription.by_tag:
        return answer(asked)
    if not context.settings.property_filter:
        return answer(asked, ResponseCode.SYSTEM_ERROR, NO_SQL)
    try:
        PullFilter.of(subscription)
    except UsageError as error:
        return answer(asked, ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))
    return answer(asked)


def consumer_list(context: Context, connection: Connection, asked: Frame) -> Frame:
    """38: the client ids of a group."""
    name = headers.text(asked, "consumerGroup")
    group = context.part(Membership).clients.consumer_group(name)
    if group is None:
        return answer(asked, ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
    return answer(asked, ext={}, body=bodies.encode({"consumerIdList": group.client_ids()}))


def consumer_connections(context: Context, connection: Connection, asked: Frame) -> Frame:
    """203: the connections of a consumer group, with what it subscribes to."""
    name = headers.text(asked, "consumerGroup")
    group = context.part(Membership).clients.consumer_group(name)
    if group is None:
        return answer(asked, ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    body = {
        "connectionSet": _connections(group.members.values()),
        "consumeFromWhere": group.consume_from_where,
        "consumeType": group.consume_type,
        "messageModel": group.message_model,
        "subscriptionTable": {topic: subscription.bean() for topic, subscription in group.subscriptions.items()},
    }
    return answer(asked, body=bodies.encode(body))


def producer_connections(context: Context, connection: Connection, asked: Frame) -> Frame:
    """204: the connections of a producer group."""
    name = headers.text(asked, "producerGroup")
    members = context.part(Membership).clients.producer_group(name)
    if not members:
        return answer(asked, ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    return answer(asked, body=bodies.encode({"connectionSet": _connections(members)}))


def all_producers(context: Context, connection: Connection, asked: Frame) -> Frame:
    """328: the producers of all groups."""
    producers = context.part(Membership).clients.producers
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
    return answer(asked, body=bodies.encode({"data": data}))


def _connections(members: Iterable[Member[Connection]]) -> list[dict[str, Any]]:
    return [
        {"clientAddr": member.connection.peer, "clientId": member.client_id, "language": member.language, "version": member.version}
        for member in members
    ]


PARTS = (Membership,)
HANDLERS: dict[int, Handler] = {
    RequestCode.HEART_BEAT: heart_beat,
    RequestCode.UNREGISTER_CLIENT: unregister_client,
    RequestCode.CHECK_CLIENT_CONFIG: check_client_config,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer_list,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: producer_connections,
    RequestCode.GET_ALL_PRODUCER_INFO: all_producers,
}
