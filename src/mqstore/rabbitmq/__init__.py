"""RabbitMQ classic queues: `QueueStore` writes those of a vhost in this process; `mqstore.open` reads a directory of message stores."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqstore.rabbitmq.engine.engine_config import EngineConfig
    from mqstore.rabbitmq.engine.queue_store import Counts, Delivery, QueueStore

__all__ = ["Counts", "Delivery", "EngineConfig", "QueueStore"]


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'engine.engine_config' if name == 'EngineConfig' else 'engine.queue_store'}"), name)
