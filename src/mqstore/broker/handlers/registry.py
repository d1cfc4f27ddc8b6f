"""The registry of request handlers: the server merges the HANDLERS of these modules and starts their COMPONENTS in this order."""

from __future__ import annotations

from types import ModuleType

from mqstore.broker.handlers import (
    broker_info,
    call_through,
    long_polling,
    membership,
    metrics,
    nameserver,
    offsets,
    pull,
    queries,
    queue_locks,
    reply,
    resets,
    send,
    send_back,
    statistics,
    topic_creation,
    topics,
    transactions,
)

HANDLER_MODULES: tuple[ModuleType, ...] = (
    topic_creation,
    nameserver,
    membership,
    queue_locks,
    statistics,
    topics,
    broker_info,
    call_through,
    metrics,
    long_polling,
    send,
    send_back,
    reply,
    pull,
    queries,
    offsets,
    resets,
    transactions,
)
