"""RocketMQ stores: `MessageStore` writes one in this process; `mqstore.open` returns a `RocketMQStore`, which reads one.

The names in `__all__` are the public interface. Deeper module paths are private and may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqstore.rocketmq.append.send_path import as_sent
    from mqstore.rocketmq.config.store_config import StoreConfig
    from mqstore.rocketmq.config.topic_table import TopicConfig
    from mqstore.rocketmq.engine.message_store import MessageStore
    from mqstore.rocketmq.format.message import Inner, Message, MessageBatch, PutResult, PutStatus
    from mqstore.rocketmq.format.record import Record
    from mqstore.rocketmq.format.tag_filter import TagFilter
    from mqstore.rocketmq.query.pull import GetResult, GetStatus
    from mqstore.rocketmq.store.store import RocketMQStore

__all__ = [
    "GetResult",
    "GetStatus",
    "Inner",
    "Message",
    "MessageBatch",
    "MessageStore",
    "PutResult",
    "PutStatus",
    "Record",
    "RocketMQStore",
    "StoreConfig",
    "TagFilter",
    "TopicConfig",
    "as_sent",
]

_MODULES = {
    "GetResult": "query.pull",
    "GetStatus": "query.pull",
    "Inner": "format.message",
    "Message": "format.message",
    "MessageBatch": "format.message",
    "MessageStore": "engine.message_store",
    "PutResult": "format.message",
    "PutStatus": "format.message",
    "Record": "format.record",
    "RocketMQStore": "store.store",
    "StoreConfig": "config.store_config",
    "TagFilter": "format.tag_filter",
    "TopicConfig": "config.topic_table",
    "as_sent": "append.send_path",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first access."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
