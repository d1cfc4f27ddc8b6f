"""RocketMQ stores: `MessageStore` writes one in this process; `mqstore.open` returns a `RocketMQStore`, which reads one.

The names in `__all__` are the public interface. Deeper module paths are private and may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqstore.public_names import on_first_use

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

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "mqstore.rocketmq.append.send_path": ["as_sent"],
        "mqstore.rocketmq.config.store_config": ["StoreConfig"],
        "mqstore.rocketmq.config.topic_table": ["TopicConfig"],
        "mqstore.rocketmq.engine.message_store": ["MessageStore"],
        "mqstore.rocketmq.format.message": ["Inner", "Message", "MessageBatch", "PutResult", "PutStatus"],
        "mqstore.rocketmq.format.record": ["Record"],
        "mqstore.rocketmq.format.tag_filter": ["TagFilter"],
        "mqstore.rocketmq.query.pull": ["GetResult", "GetStatus"],
        "mqstore.rocketmq.store.store": ["RocketMQStore"],
    },
)
