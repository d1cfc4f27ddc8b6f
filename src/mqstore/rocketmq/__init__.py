"""RocketMQ stores: `MessageStore` writes one in this process; `mqstore.open` reads one."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqstore.rocketmq.engine import MessageStore
    from mqstore.rocketmq.message import Inner, Message, MessageBatch, PutResult, PutStatus
    from mqstore.rocketmq.storeconfig import StoreConfig

__all__ = ["Inner", "Message", "MessageBatch", "MessageStore", "PutResult", "PutStatus", "StoreConfig"]

_PLACES = {"MessageStore": "engine", "StoreConfig": "storeconfig"}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES.get(name, 'message')}"), name)
