"""The families of requests: every module whose HANDLERS the server gathers, and whose PARTS it starts, in this order."""

from __future__ import annotations

from types import ModuleType

from mqstore.broker.handlers import broker_info as brokerinfo
from mqstore.broker.handlers import call_through as callthrough
from mqstore.broker.handlers import long_polling as longpolling
from mqstore.broker.handlers import membership, metrics, nameserver, offsets, queries, resets, statistics, topics, transactions
from mqstore.broker.handlers import pull as pulling
from mqstore.broker.handlers import queue_locks as queuelocks
from mqstore.broker.handlers import reply as replying
from mqstore.broker.handlers import send as sending
from mqstore.broker.handlers import send_back as sendback
from mqstore.broker.handlers import topic_creation as tables

__all__ = ["FAMILIES"]

FAMILIES: tuple[ModuleType, ...] = (
    tables,
    nameserver,
    membership,
    queuelocks,
    statistics,
    topics,
    brokerinfo,
    callthrough,
    metrics,
    longpolling,
    sending,
    sendback,
    replying,
    pulling,
    queries,
    offsets,
    resets,
    transactions,
)
