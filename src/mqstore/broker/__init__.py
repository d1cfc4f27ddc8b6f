"""A broker that RocketMQ clients connect to, over a store of this process: for tests, replay and reading.

    async with Broker("store", auto_create_topics=True) as broker:
        print(broker.address)      # name server and broker in one, as in DefaultMQProducer.setNamesrvAddr

There is no replication. The store is `mqstore.rocketmq.MessageStore`.

The names in `__all__` are the public interface. Deeper module paths are private and may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqstore.broker.runtime.settings import Settings
    from mqstore.broker.server import Broker

__all__ = ["Broker", "Settings"]

_MODULES = {"Broker": "server", "Settings": "runtime.settings"}


def __getattr__(name: str) -> Any:
    """Import a public name on first access."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
