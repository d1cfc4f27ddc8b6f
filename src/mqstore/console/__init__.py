"""A web console over stores: live, dead and copied ones, of both brokers, read as files.

    mqstore console /backup/broker-a/store /var/lib/rabbitmq/mnesia/rabbit@a

Every page is made on the server and can be read without JavaScript. Nothing is decided here: what a store holds, what is damaged and
why a question has the answer that it has is told by the readers of `mqstore.rocketmq` and `mqstore.rabbitmq`.

    >>> from mqstore.console import Settings
    >>> Settings(("store",), host="127.0.0.1").is_loopback, Settings(("store",), host="0.0.0.0", token="t").is_loopback
    (True, False)

Guide: docs/guide/console.md. Needs the extra `console`.
"""

from __future__ import annotations

from mqstore.console.settings import Settings

__all__ = ["Settings"]
