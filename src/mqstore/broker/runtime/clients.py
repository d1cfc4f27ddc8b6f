"""Connected clients: producer and consumer groups with their members, from heartbeats.

A member of a group is a connection, which has one client id. A consumer group has a message model and one table of subscriptions, the same
for all members: each heartbeat adds topics, replaces those with a newer version, and removes those it does not contain. Consumers of
one group with different subscriptions therefore overwrite each other, as in a broker.

    >>> clients: Clients[str] = Clients()
    >>> heartbeat = Heartbeat(
    ...     "c@1", ("p1",), (ConsumerGroupData("g1", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET", (Subscription("T"),)),)
    ... )
    >>> (
    ...     clients.heartbeat("connection 1", heartbeat, "JAVA", 399, now=1000),
    ...     clients.heartbeat("connection 1", heartbeat, "JAVA", 399, now=2000),
    ... )
    (['g1'], [])
    >>> clients.consumer_group("g1").client_ids(), clients.subscription("g1", "T").expression
    (['c@1'], '*')
    >>> clients.close("connection 1"), clients.consumer_group("g1")
    (['g1'], None)

Every change returns the consumer groups whose members must rebalance. Nothing here blocks; it is used by one thread, the broker's event
loop.

Protocol: docs/formats/rocketmq-remoting.md, sections 3.7 to 3.9.
Source: Apache RocketMQ 4.9.3 and 5.3.3, ConsumerManager, ConsumerGroupInfo, ProducerManager.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mqstore.broker.protocol.heartbeats import ConsumerGroupData, Heartbeat, Subscription
from mqstore.broker.runtime.limits import held_size

EXPIRES = 120_000

C = TypeVar("C", bound=Hashable)
G = TypeVar("G")


def _size(subscriptions: Iterable[Subscription]) -> int:
    """Return about how many bytes of memory subscriptions take."""
    return sum(held_size(subscription.expression) for subscription in subscriptions)


@dataclass(slots=True)
class Member(Generic[C]):
    """A connection in a group. version: release number of the client, as in frames. last_heartbeat: ms."""

    connection: C
    client_id: str
    language: str
    version: int
    last_heartbeat: int


@dataclass(slots=True)
class ConsumerGroup(Generic[C]):
    """A consumer group that is online."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[C, Member[C]] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    size: int = 0  # bytes of memory that the subscriptions take

    @property
    def broadcasting(self) -> bool:
        """Whether each member gets every message."""
        return self.message_model == "BROADCASTING"

    def client_ids(self) -> list[str]:
        """Return the distinct client ids in order of arrival."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def subscribe(self, subscriptions: Iterable[Subscription]) -> bool:
        """Apply a heartbeat's subscriptions. Returns whether a topic was added or removed."""
        by_topic = {subscription.topic: subscription for subscription in subscriptions}
        changed = by_topic.keys() != self.subscriptions.keys()
        for topic in [topic for topic in self.subscriptions if topic not in by_topic]:
            del self.subscriptions[topic]
        for topic, subscription in by_topic.items():
            held = self.subscriptions.get(topic)
            if held is None or subscription.version > held.version:
                self.subscriptions[topic] = subscription
        self.size = _size(self.subscriptions.values())
        return changed


class Clients(Generic[C]):
    """The groups of all connections. C: type of a connection. expires: ms without a heartbeat after which a member expires."""

    def __init__(self, expires: int = EXPIRES) -> None:
        self.expires = expires
        self.consumers: dict[str, ConsumerGroup[C]] = {}
        self.producers: dict[str, dict[C, Member[C]]] = {}
        self.memberships = 0
        self.subscriptions = 0
        self.subscription_bytes = 0
        self._groups_of: dict[C, int] = {}

    def groups_of(self, connection: C) -> int:
        """Return the number of groups, of producers and consumers, that a connection is in."""
        return self._groups_of.get(connection, 0)

    def new_groups(self, connection: C, heartbeat: Heartbeat) -> int:
        """Return the number of groups that a connection would join by a heartbeat."""
        produced = sum(connection not in self.producers.get(name, ()) for name in heartbeat.producers)
        names = {data.name for data in heartbeat.consumers}
        return produced + sum(name not in self.consumers or connection not in self.consumers[name].members for name in names)

    def new_subscriptions(self, heartbeat: Heartbeat) -> int:
        """Return the number of subscriptions that a heartbeat would add."""
        if heartbeat.without_subscriptions:
            return 0
        names = [data.name for data in heartbeat.consumers]
        held = {name: len(self.consumers[name].subscriptions) for name in names if name in self.consumers}
        return sum(max(0, len(data.subscriptions) - held.get(data.name, 0)) for data in heartbeat.consumers)

    def new_subscription_bytes(self, heartbeat: Heartbeat) -> int:
        """Return by how many bytes of memory the subscriptions would grow by a heartbeat."""
        if heartbeat.without_subscriptions:
            return 0
        held = {data.name: 0 if (group := self.consumers.get(data.name)) is None else group.size for data in heartbeat.consumers}
        return sum(max(0, _size(data.subscriptions) - held[data.name]) for data in heartbeat.consumers)

    def heartbeat(self, connection: C, heartbeat: Heartbeat, language: str, version: int, now: int) -> list[str]:
        """Apply a heartbeat. Returns the consumer groups that changed: by a new member, or by a topic added or removed."""
        for name in heartbeat.producers:
            self._seen(self.producers.setdefault(name, {}), connection, heartbeat.client_id, language, version, now)
        changed = []
        for data in heartbeat.consumers:
            group = self._group(data)
            came = self._seen(group.members, connection, heartbeat.client_id, language, version, now)
            before, size = len(group.subscriptions), group.size
            moved = False if heartbeat.without_subscriptions else group.subscribe(data.subscriptions)
            self.subscriptions += len(group.subscriptions) - before
            self.subscription_bytes += group.size - size
            if came or moved:
                changed.append(data.name)
        return changed

    def _group(self, data: ConsumerGroupData) -> ConsumerGroup[C]:
        group = self.consumers.get(data.name)
        if group is None:
            group = self.consumers[data.name] = ConsumerGroup(data.name, data.consume_type, data.message_model, data.consume_from_where)
        else:
            group.consume_type = data.consume_type
            group.message_model = data.message_model
            group.consume_from_where = data.consume_from_where
        return group

    def _seen(self, members: dict[C, Member[C]], connection: C, client_id: str, language: str, version: int, now: int) -> bool:
        """Record that a member is alive. Returns whether it is new."""
        held = members.get(connection)
        if held is None:
            self.memberships += 1
            self._groups_of[connection] = self._groups_of.get(connection, 0) + 1
        members[connection] = Member(connection, client_id, language, version, now)
        return held is None or held.client_id != client_id

    def unregister(self, connection: C, *, producer_group: str | None = None, consumer_group: str | None = None) -> list[str]:
        """Remove a connection from groups. Returns the consumer group if it was a member."""
        if producer_group:
            self._leave(self.producers, self.producers.get(producer_group), producer_group, connection)
        group = self.consumers.get(consumer_group) if consumer_group else None
        if group is None or consumer_group is None:
            return []
        return [consumer_group] if self._leave_group(group, connection) else []

    def close(self, connection: C) -> list[str]:
        """Remove a lost connection. Returns the consumer groups it was in."""
        for name in [name for name, members in self.producers.items() if connection in members]:
            self._leave(self.producers, self.producers[name], name, connection)
        left = [name for name, group in self.consumers.items() if connection in group.members]
        for name in left:
            self._leave_group(self.consumers[name], connection)
        return left

    def _leave_group(self, group: ConsumerGroup[C], connection: C) -> bool:
        left = self._leave(self.consumers, group.members, group.name, connection)
        if not group.members:
            self.subscriptions -= len(group.subscriptions)
            self.subscription_bytes -= group.size
        return left

    def _leave(self, groups: dict[str, G], members: dict[C, Member[C]] | None, name: str, who: C) -> bool:
        """Remove a member, and the group with its last member. Returns whether it was a member."""
        if members is None or members.pop(who, None) is None:
            return False
        if not members:
            del groups[name]
        self.memberships -= 1
        self._groups_of[who] -= 1
        if not self._groups_of[who]:
            del self._groups_of[who]
        return True

    def silent(self, now: int) -> list[C]:
        """Return the distinct connections of expired members, for the caller to close."""
        tables = [*self.producers.values(), *(group.members for group in self.consumers.values())]
        old = (member.connection for members in tables for member in members.values() if now - member.last_heartbeat > self.expires)
        return list(dict.fromkeys(old))

    def consumer_group(self, name: str) -> ConsumerGroup[C] | None:
        """Return a consumer group that is online, or None."""
        return self.consumers.get(name)

    def producer_group(self, name: str) -> list[Member[C]]:
        """Return the online producers of a group."""
        return list(self.producers.get(name, {}).values())

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return an online group's subscription to a topic, or None."""
        consumers = self.consumers.get(group)
        return None if consumers is None else consumers.subscriptions.get(topic)

    def subscribers(self, topic: str) -> list[str]:
        """Return the online groups that subscribe to a topic."""
        return [name for name, group in self.consumers.items() if topic in group.subscriptions]

    def consumer(self, group: str, client_id: str) -> Member[C] | None:
        """Return a member of an online consumer group, or None."""
        consumers = self.consumers.get(group)
        members = consumers.members.values() if consumers is not None else ()
        return next((member for member in members if member.client_id == client_id), None)

    def by_client_id(self, client_id: str) -> Member[C] | None:
        """Return the member with a client id, the one with the latest heartbeat, or None."""
        tables = [*self.producers.values(), *(group.members for group in self.consumers.values())]
        clients = [member for members in tables for member in members.values() if member.client_id == client_id]
        return max(clients, key=lambda member: member.last_heartbeat, default=None)
