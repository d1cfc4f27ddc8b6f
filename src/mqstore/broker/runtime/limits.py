"""Limits on what clients can make a broker hold: quotas of connections, and limits on what stays.

Quotas bound what connections hold at a time, over all of them and for each remote address. One address may hold
`Settings.max_address_share` percent of each limit, so that the clients of one machine cannot keep all others out:

    >>> connections = Quota("connections", most=4, share=50)
    >>> connections.take("192.0.2.1"), connections.take("192.0.2.1"), connections.take("192.0.2.1")
    ('', '', 'there are too many connections from 192.0.2.1: the limit of one address is 2')
    >>> connections.take("192.0.2.2", 3)
    'there are too many connections from 192.0.2.2: the limit of one address is 2'
    >>> connections.take("192.0.2.2", 2), connections.take("192.0.2.3")
    ('', 'there are too many connections: the limit of this broker is 4')
    >>> connections.give("192.0.2.1"), connections.held, connections.of("192.0.2.1"), connections.refused
    (None, 3, 1, 3)

Limits hold for what stays: how many topics, groups, offsets, memberships, locks and names clients can make a broker hold, and how long
ones.

A request that would exceed a limit is refused with a remark that names the setting. What the store already holds is never refused, even
if it is more. The settings can be changed in the file of `--config`, not by clients.

    >>> Limits(Settings(max_groups=2)).check("groups", held=2)
    Traceback (most recent call last):
    mqstore.broker.protocol.frames.ResponseError: this broker holds 2 groups, its limit: delete some, or raise maxGroups (--config)
"""

from __future__ import annotations

import resource
from collections.abc import Iterator

from mqstore.broker.protocol.codes import ResponseCode
from mqstore.broker.protocol.frames import ResponseError
from mqstore.broker.protocol.heartbeats import Heartbeat
from mqstore.broker.runtime.settings import BROKER_NAMES, LIMITS, Settings

HELD_BASE = 2 << 10  # bytes of memory that a held pull or a subscription takes without its expression
HELD_PER_CHARACTER = 32  # bytes of memory that a character of a compiled expression takes; measured: 27 for SQL92, 20 for tags
DESCRIPTORS = 0.75  # the part of the process's file descriptors that connections may take; the rest is for files


def held_size(expression: str) -> int:
    """Return about how many bytes of memory a held pull, or a subscription, with this expression takes."""
    return HELD_BASE + HELD_PER_CHARACTER * len(expression)


class Quota:
    """An amount that connections hold. what: as in reasons. most: over all addresses; share: percent of it for one address.

    held: the amount over all addresses. refused: how often `take` refused.
    """

    def __init__(self, what: str, most: int, share: int) -> None:
        self.what = what
        self.most = most
        self.most_of_address = most * share // 100
        self.held = 0
        self.refused = 0
        self._by_address: dict[str, int] = {}

    def of(self, host: str) -> int:
        """Return the amount that an address holds."""
        return self._by_address.get(host, 0)

    def take(self, host: str, amount: int = 1) -> str:
        """Take an amount for an address. Returns an empty text, or why it is refused; then nothing is taken."""
        of_address = self._by_address.get(host, 0) + amount
        if of_address > self.most_of_address < self.most:
            self.refused += 1
            return f"there are too many {self.what} from {host}: the limit of one address is {self.most_of_address:,}"
        if self.held + amount > self.most:
            self.refused += 1
            return f"there are too many {self.what}: the limit of this broker is {self.most:,}"
        self.held += amount
        self._by_address[host] = of_address
        return ""

    def give(self, host: str, amount: int = 1) -> None:
        """Return an amount that was taken."""
        self.held -= amount
        left = self._by_address.get(host, 0) - amount
        if left > 0:
            self._by_address[host] = left
        else:
            self._by_address.pop(host, None)


class Quotas:
    """The quotas of a broker. incoming: bytes of unfinished frames. unsent: bytes of paused clients' write buffers.

    working: bytes of the requests that are being worked on.
    """

    def __init__(self, settings: Settings) -> None:
        share = settings.max_address_share
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        connections = settings.max_connections
        if descriptors != resource.RLIM_INFINITY:
            connections = min(connections, int(descriptors * DESCRIPTORS))
        self.connections = Quota("connections", connections, share)
        self.handshakes = Quota("TLS handshakes", settings.max_handshakes, share)
        self.incoming = Quota("bytes of unfinished frames", settings.incoming_limit, share)
        self.working = Quota("bytes of requests in flight", settings.working_limit, share)
        self.unsent = Quota("bytes of responses that clients do not read", settings.unsent_limit, share)
        self.held_pulls = Quota("held pulls", settings.max_held_pulls, share)
        self.held_bytes = Quota("bytes of held pulls", settings.held_limit, share)

    def __iter__(self) -> Iterator[tuple[str, Quota]]:
        """Iterate over (name, quota)."""
        return iter(vars(self).items())


_OPTIONS = {own: name for name, own in BROKER_NAMES.items() if name in LIMITS}
_SETTINGS = {
    "topics": "max_topics",
    "groups": "max_groups",
    "consumer offsets": "max_offsets",
    "groups of clients that are connected": "max_memberships",
    "subscriptions": "max_subscriptions",
    "bytes of subscriptions": "max_subscription_bytes",
    "queue locks": "max_queue_locks",
    "values": "max_kv_values",
    "topics of other brokers": "max_registered_topics",
}


class Limits:
    """The limits of a broker's settings. Every method raises ResponseError if a limit would be exceeded."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def check(self, what: str, held: int, more: int = 1, code: int = ResponseCode.SYSTEM_ERROR) -> None:
        """Refuse more of something. what: as in the remark. held: what there is; more: what would come; code: of the response."""
        own = _SETTINGS[what]
        most: int = getattr(self._settings, own)
        if more > 0 and held + more > most:
            raise ResponseError(code, f"this broker holds {held} {what}, its limit: delete some, or raise {_OPTIONS[own]} (--config)")

    def name(self, name: str, what: str) -> None:
        """Refuse a name that is too long. what: whose name it is."""
        most = self._settings.max_name_length
        if len(name) > most:
            remark = f"the name of a {what} has {len(name)} characters, more than maxNameLength={most} (--config)"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, remark)

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        """Refuse names and expressions that are too long, and more properties or topics than one client can need."""
        self.name(heartbeat.client_id, "client")
        for producer in heartbeat.producers:
            self.name(producer, "producer group")
        topics, most = sum(len(group.subscriptions) for group in heartbeat.consumers), self._settings.max_client_subscriptions
        if topics > most:
            remark = f"a heartbeat has {topics} subscriptions, more than maxClientSubscriptions={most} (--config)"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, remark)
        for group in heartbeat.consumers:
            self.name(group.name, "consumer group")
            for subscription in group.subscriptions:
                self.name(subscription.topic, "topic")
                self.name(subscription.expression_type, "filter")
                self.expression(subscription.expression)

    def expression(self, text: str) -> None:
        """Refuse an expression of a subscription that is too long."""
        self._length("an expression", text)

    def properties(self, held: dict[str, str]) -> None:
        """Refuse too many attributes of a topic or group, or too long ones."""
        most = self._settings.max_attributes
        if len(held) > most:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{len(held)} attributes are more than maxAttributes={most} (--config)")
        for key, value in held.items():
            self.name(key, "attribute")
            self.value(value)

    def value(self, text: str) -> None:
        """Refuse a value that is too long."""
        self._length("a value", text)

    def _length(self, what: str, text: str) -> None:
        most = self._settings.max_expression_length
        if len(text) > most:
            remark = f"{what} has {len(text)} characters, more than maxExpressionLength={most} (--config)"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, remark)
