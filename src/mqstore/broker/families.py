"""The families of requests: every module whose HANDLERS the server gathers, and whose PARTS it starts, in this order."""

from __future__ import annotations

from types import ModuleType

from mqstore.broker import membership, nameserver, queuelocks, tables

__all__ = ["FAMILIES"]

FAMILIES: tuple[ModuleType, ...] = (
    tables,
    nameserver,
    membership,
    queuelocks,
)
