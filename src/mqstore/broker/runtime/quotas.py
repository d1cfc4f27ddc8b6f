"""Quotas: what connections hold at a time, bounded over all of them and for each remote address.

One address may hold `Settings.max_address_share` percent of each limit, so that the clients of one machine cannot keep all others out:

    >>> connections = Quota("connections", most=4, share=50)
    >>> connections.take("192.0.2.1"), connections.take("192.0.2.1"), connections.take("192.0.2.1")
    ('', '', 'there are too many connections from 192.0.2.1: the limit of one address is 2')
    >>> connections.take("192.0.2.2", 3)
    'there are too many connections from 192.0.2.2: the limit of one address is 2'
    >>> connections.take("192.0.2.2", 2), connections.take("192.0.2.3")
    ('', 'there are too many connections: the limit of this broker is 4')
    >>> connections.give("192.0.2.1"), connections.held, connections.of("192.0.2.1"), connections.refused
    (None, 3, 1, 3)

Limits on what stays (topics, groups, offsets) are in `mqstore.broker.runtime.limits`.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator

from mqstore.broker.runtime.settings import Settings

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
