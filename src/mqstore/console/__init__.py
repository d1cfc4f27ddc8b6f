"""A web console over stores of both brokers, whether live, dead or copied; they are read as files.

    mqstore console /backup/broker-a/store /var/lib/rabbitmq/mnesia/rabbit@a

Every page is rendered on the server and readable without JavaScript. The console decides nothing itself: contents, damage and
explanations come from the readers of `mqstore.rocketmq` and `mqstore.rabbitmq`.

    >>> from mqstore.console import Settings, create_app
    >>> Settings(("store",), host="127.0.0.1").is_loopback, Settings(("store",), host="0.0.0.0", token="t").is_loopback
    (True, False)

`create_app(settings)` returns the ASGI application. Guide: docs/guide/console.md. Needs the extra `console`.

The names in `__all__` are the public interface. Deeper module paths are private and may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqstore.public_names import on_first_use

if TYPE_CHECKING:
    from mqstore.console.app import create_app
    from mqstore.console.settings import Settings

__all__ = ["Settings", "create_app"]

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "mqstore.console.app": ["create_app"],
        "mqstore.console.settings": ["Settings"],
    },
)
