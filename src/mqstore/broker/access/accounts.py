"""Accounts: who may connect, and what each may do.

A permission is a set of PUB (send) and SUB (consume), or DENY. Groups are named by their retry topic, as in the broker, so that one
table holds the permissions of topics and groups:

    >>> account = Account("publisher", "a secret", permissions={"orders": Permission.PUB}, default_group=Permission.SUB)
    >>> account.allows("orders", Permission.PUB), account.allows("orders", Permission.SUB), account.allows("%RETRY%billing", Permission.SUB)
    (True, False, True)
    >>> account
    Account('publisher')

Format: docs/formats/rocketmq-remoting.md, section 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag

from mqstore.broker.access.addresses import NO_ADDRESS, WhiteList
from mqstore.rocketmq.dispatch.dispatcher import SCHEDULE_TOPIC
from mqstore.rocketmq.format.half_message import HALF_TOPIC, OP_TOPIC

__all__ = ["RETRY", "AccessRules", "Account", "Permission", "shown"]

RETRY = "%RETRY%"
SHARED_TOPICS = frozenset({HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC})  # hold messages of all topics; defaults do not apply


class Permission(IntFlag):
    """What an account may do with a topic or group. EITHER, of a request: one of PUB and SUB is enough."""

    DENY = 1
    EITHER = 2
    PUB = 4
    SUB = 8

    def grants(self, needed: Permission) -> bool:
        """Whether an account with this permission may do what a request needs."""
        if self & Permission.DENY:
            return False
        if needed & Permission.EITHER:
            return bool(self & (Permission.PUB | Permission.SUB))
        return bool(self & needed)


@dataclass(frozen=True, slots=True)
class Account:
    """An account. permissions: by topic, and by retry topic for groups. white: addresses whose requests are not checked further."""

    access_key: str
    secret_key: str
    admin: bool = False
    default_topic: Permission = Permission.DENY
    default_group: Permission = Permission.DENY
    permissions: Mapping[str, Permission] = field(default_factory=dict)
    white: WhiteList = NO_ADDRESS

    def __repr__(self) -> str:
        return f"Account({self.access_key!r})"  # the secret key must not reach a log line

    def allows(self, resource: str, needed: Permission) -> bool:
        """Whether the account has a permission on a topic or retry topic. An administrator without a table may do everything."""
        if self.admin and not self.permissions:
            return True
        owned = self.permissions.get(resource)
        if owned is None:
            if resource in SHARED_TOPICS:
                return False
            owned = self.default_group if resource.startswith(RETRY) else self.default_topic
        return owned.grants(needed)


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The content of a file of accounts. white: addresses that need no account. notes: remarks for the operator."""

    accounts: Mapping[str, Account]
    white: tuple[WhiteList, ...] = ()
    notes: tuple[str, ...] = ()


def shown(text: str, limit: int = 64) -> str:
    """Return the beginning of a client's text, without control characters, for a remark or log line."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    return "".join(character if character.isprintable() else "?" for character in cut)
