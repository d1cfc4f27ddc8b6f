"""What differs between the versions of the machine of a quorum queue, `rabbit_fifo` 0 to 8, in one table.

    RabbitMQ   3.8   3.9   3.10   3.11 to 3.13   4.0    4.1 to 4.2   4.3
    version    0     1     2      3              4, 5   6, 7         8

    >>> RULES[2].expiry, RULES[2].capped_credit, RULES[3].capped_credit
    (True, False, True)

Format: docs/formats/rabbitmq-quorum.md, section 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NEWEST = 8


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one version.

    pending: an enqueue that comes early is kept until the gap closes, else ignored. placeholders: a snapshot has sizes instead of messages.
    levels: of priority: one FIFO, two weighted ones, 32 strict ones. expiry: messages have a time to live, dead letters may be held.
    limit: which count a delivery limit is compared with. count_returns: a return by the client counts as a failed delivery.
    capped_credit: credit does not exceed the prefetch. acquired: acquired counts, consumers by index, `modify`, credit by serial
    arithmetic. ordered_returns: in the order of the command, else by message id. own_priority: consumers have priorities.
    status_matters: a consumer that is not up is not served. activates: the commands after which the single active consumer is chosen.
    header_size: the size of a message counts its properties. delays: delayed retry and timeouts of consumers.
    sparse: a snapshot may be above messages, whose segments alone are kept.
    """

    version: int
    pending: bool
    placeholders: bool
    levels: Literal[1, 2, 32]
    expiry: bool
    limit: Literal["delivery", "acquired"]
    count_returns: bool
    capped_credit: bool
    acquired: bool
    ordered_returns: bool
    own_priority: bool
    status_matters: bool
    activates: frozenset[str]
    header_size: bool
    delays: bool
    sparse: bool


_CHECKOUT = frozenset({"checkout"})
_FOUR = frozenset({"checkout", "cancel", "down", "settle", "discard"})
_SEVEN = _FOUR | {"return", "requeue"}


def _rules(version: int) -> Rules:
    return Rules(
        version=version,
        pending=version < 2,
        placeholders=version < 2,
        levels=32 if version >= 8 else 2 if version >= 4 else 1,
        expiry=version >= 2,
        limit="acquired" if 4 <= version < 8 else "delivery",
        count_returns=version < 4,
        capped_credit=version >= 3,
        acquired=version >= 4,
        ordered_returns=version >= 4,
        own_priority=version >= 1,
        status_matters=version >= 1,
        activates=_SEVEN if version >= 7 else _FOUR if version >= 4 else _CHECKOUT if version >= 2 else frozenset(),
        header_size=version >= 8,
        delays=version >= 8,
        sparse=version >= 8,
    )


RULES = tuple(_rules(version) for version in range(NEWEST + 1))
