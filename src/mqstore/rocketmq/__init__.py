"""RocketMQ stores: `MessageStore` writes one in this process; `mqstore.open` reads one."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqstore.rocketmq.config.store_config import StoreConfig
    from mqstore.rocketmq.engine.message_store import MessageStore
    from mqstore.rocketmq.format.message import Inner, Message, MessageBatch, PutResult, PutStatus

__all__ = ["Inner", "Message", "MessageBatch", "MessageStore", "PutResult", "PutStatus", "StoreConfig"]

_PLACES = {"MessageStore": "engine.message_store", "StoreConfig": "config.store_config"}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES.get(name, 'format.message')}"), name)
