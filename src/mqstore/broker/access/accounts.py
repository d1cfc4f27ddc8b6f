"""Accounts: who may connect, and what each may do.

A permission is a set of PUB (send) and SUB (consume), or DENY. Groups are named by their retry topic, as in the broker, so that one
table holds the permissions of topics and groups:

    >>> account = Account("publisher", "a secret", permissions={"orders": Permission.PUB}, default_group=Permission.SUB)
    >>> account.allows("orders", Permission.PUB), account.allows("orders", Permission.SUB), account.allows("%RETRY%billing", Permission.SUB)
    (True, False, True)
    >>> account
    Account('publisher')

The dead-letter topic of a group has the permission of the group, unless an entry names the topic. Topics of the broker's own hold
messages of all topics, so no default lets an account into one: it needs an entry.

    >>> account.allows("%DLQ%billing", Permission.SUB), account.allows("SCHEDULE_TOPIC_XXXX", Permission.SUB)
    (True, False)

Format: docs/formats/rocketmq-remoting.md, section 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag

from mqstore.broker.access.addresses import NO_ADDRESS, WhiteList
from mqstore.rocketmq.format.system_topics import DEAD_LETTER_PREFIX, RETRY_PREFIX, TRACE_TOPIC, is_shared, retry_topic


class Permission(IntFlag):
    """What an account may do with a topic or group. PUB | SUB, of a request: both are needed. EITHER: one of them is enough."""

    DENY = 1
    EITHER = 2
    PUB = 4
    SUB = 8

    def grants(self, needed: Permission) -> bool:
        """Whether an account with this permission may do what a request needs."""
        if self & Permission.DENY:
            return False
        named = needed & (Permission.PUB | Permission.SUB)
        return self & named == named if named else bool(self & (Permission.PUB | Permission.SUB))


_ONE = (Permission.PUB, Permission.SUB)


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

    @property
    def unrestricted(self) -> bool:
        """Whether the account may do everything: that of an administrator without a table."""
        return self.admin and not self.permissions

    def allows(self, resource: str, needed: Permission) -> bool:
        """Whether the account has a permission on a topic or retry topic."""
        return self.unrestricted or self._owned(resource).grants(needed)

    def _owned(self, resource: str) -> Permission:
        """Return the permission on a topic or retry topic."""
        owned = self.permissions.get(resource)
        if owned is not None:
            return owned
        if resource.startswith(DEAD_LETTER_PREFIX):
            return self._owned(retry_topic(resource.removeprefix(DEAD_LETTER_PREFIX)))
        if resource.startswith(RETRY_PREFIX):
            return self.default_group
        if resource == TRACE_TOPIC:  # clients with tracing send to it
            return self.default_topic & ~Permission.SUB
        return Permission.DENY if is_shared(resource) else self.default_topic


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The content of a file of accounts. white: addresses that need no account. notes: remarks for the operator."""

    accounts: Mapping[str, Account]
    white: tuple[WhiteList, ...] = ()
    notes: tuple[str, ...] = ()

    def lost(self, later: AccessRules) -> list[str]:
        """Return what later rules take away, each as a short text that names the account."""
        losses = []
        for key, account in self.accounts.items():
            after = later.accounts.get(key)
            if after is None:
                losses.append(f"the account {shown(key)}")
                continue
            if account.admin and not after.admin:
                losses.append(f"the administrator's rights of {shown(key)}")
            gone = account.permissions.keys() - after.permissions.keys()
            if gone:
                losses.append(f"{len(gone)} of the {len(account.permissions)} topicPerms and groupPerms of {shown(key)}")
        return losses

    def risked(self, later: AccessRules) -> list[str]:
        """Return what later rules do to an administrator or give away because lines are missing, as a torn file would.

        Missing lines can give rights: an administrator without a table may do everything, and where a table has no entry the default
        holds.

        >>> first = AccessRules({"operator": Account("operator", "a secret", admin=True, permissions={"orders": Permission.SUB})})
        >>> first.risked(AccessRules({"operator": Account("operator", "a secret", admin=True)}))
        ['operator would get rights on orders, of which its entry is missing']
        >>> first.risked(AccessRules({}))
        ['the administrator operator would be missing']
        """
        risks = []
        for key, account in self.accounts.items():
            after = later.accounts.get(key)
            if account.admin and (after is None or not after.admin):
                risks.append(f"the administrator {shown(key)} would be missing")
            if after is None:
                continue
            gone = sorted(account.permissions.keys() - after.permissions.keys())
            more = (right for right in gone if any(after.allows(right, p) and not account.allows(right, p) for p in _ONE))
            right = next(more, None)
            if right is not None:
                risks.append(f"{shown(key)} would get rights on {shown(right)}, of which its entry is missing")
        return risks


def shown(text: str, limit: int = 64) -> str:
    """Return the beginning of a client's text, without control characters, for a remark or log line."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    return "".join(character if character.isprintable() else "?" for character in cut)
