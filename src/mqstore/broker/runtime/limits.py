"""Limits on what clients can make a broker hold: how many topics, groups, offsets, memberships, locks and names, and how long ones.

A request that would exceed a limit is refused with a remark that names the setting. What the store already holds is never refused, even
if it is more. The settings can be changed in the file of `--config`, not by clients.

    >>> Limits(Settings(max_groups=2)).check("groups", held=2)
    Traceback (most recent call last):
    mqstore.broker.protocol.frames.ResponseError: this broker holds 2 groups, its limit: delete some, or raise maxGroups (--config)
"""

from __future__ import annotations

from mqstore.broker.protocol.codes import ResponseCode
from mqstore.broker.protocol.frames import ResponseError
from mqstore.broker.protocol.heartbeats import Heartbeat
from mqstore.broker.runtime.settings import BROKER_NAMES, LIMITS, Settings

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

    def heartbeat(self, told: Heartbeat) -> None:
        """Refuse names and expressions that are too long, and more properties or topics than one client can need."""
        self.name(told.client_id, "client")
        for producer in told.producers:
            self.name(producer, "producer group")
        topics, most = sum(len(group.subscriptions) for group in told.consumers), self._settings.max_client_subscriptions
        if topics > most:
            remark = f"a heartbeat has {topics} subscriptions, more than maxClientSubscriptions={most} (--config)"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, remark)
        for group in told.consumers:
            self.name(group.name, "consumer group")
            for subscription in group.subscriptions:
                self.name(subscription.topic, "topic")
                self.name(subscription.expression_type, "filter")
                self.expression(subscription.expression)

    def expression(self, text: str) -> None:
        """Refuse an expression of a subscription that is too long."""
        most = self._settings.max_expression_length
        if len(text) > most:
            remark = f"an expression has {len(text)} characters, more than maxExpressionLength={most} (--config)"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, remark)

    def properties(self, held: dict[str, str]) -> None:
        """Refuse too many attributes of a topic or group, or too long ones."""
        most = self._settings.max_attributes
        if len(held) > most:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{len(held)} attributes are more than maxAttributes={most} (--config)")
        for key, value in held.items():
            self.name(key, "attribute")
            self.value(value)

    def value(self, value: str) -> None:
        """Refuse a value that is too long."""
        most = self._settings.max_expression_length
        if len(value) > most:
            remark = f"a value has {len(value)} characters, more than maxExpressionLength={most} (--config)"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, remark)
