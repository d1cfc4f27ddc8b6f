"""The families of requests: every module whose HANDLERS the server gathers, and whose PARTS it starts, in this order."""

from __future__ import annotations

from types import ModuleType

from mqstore.broker import (
    brokerinfo,
    callthrough,
    longpolling,
    membership,
    metrics,
    nameserver,
    offsets,
    pulling,
    queries,
    queuelocks,
    replying,
    resets,
    sendback,
    sending,
    statistics,
    tables,
    topics,
    transactions,
)

__all__ = ["FAMILIES"]

FAMILIES: tuple[ModuleType, ...] = (
    tables,
    nameserver,
    membership,
    queuelocks,
    statistics,
    topics,
    brokerinfo,
    callthrough,
    metrics,
    longpolling,
    sending,
    sendback,
    replying,
    pulling,
    queries,
    offsets,
    resets,
    transactions,
)
