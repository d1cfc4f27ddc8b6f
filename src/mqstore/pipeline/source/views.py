"""SQL over stores: temporary views of everything in them, created by one call.

    pipeline.views(spark, "/backup/broker-a/store")
    spark.sql("select topic, verdict, count(*), sum(size) from messages group by all").show()

    view             rows                                    source
    messages         the message table, without the bodies   rocketmq
    queues           entries of the consume queues           rocketmq-queue
    groups           consumer groups and their lag           rocketmq-offsets
    damage           what `verify` finds                     rocketmq-damage
    index_entries    entries of the index files              rocketmq-index
    timers           messages with an arbitrary delay        rocketmq-timer

Of a RabbitMQ store (`format="rabbitmq"`): messages without the payloads, index_entries, records of the message files, refusals.

Nothing is read until a view is queried. Spark does not report to a Python source which columns a query needs, so a view
produces all of its columns: choose those of `messages` for work on a large store. `damage` verifies the store at each query;
keep the result with `cache table damage`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mqstore.errors import UsageError
from mqstore.pipeline.source.rabbitmq import RABBITMQ_MESSAGE_COLUMNS, RABBITMQ_VIEWS
from mqstore.pipeline.source.rocketmq import read
from mqstore.pipeline.source.stores import STORE, store_paths
from mqstore.table.columns import ROCKETMQ_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGE_COLUMNS = (*(name for name in ROCKETMQ_COLUMNS if name != "body"), "body_len")
FORMATS = {
    "messages": "rocketmq",
    "queues": "rocketmq-queue",
    "groups": "rocketmq-offsets",
    "damage": "rocketmq-damage",
    "index_entries": "rocketmq-index",
    "timers": "rocketmq-timer",
}
VIEWS = tuple(FORMATS)


def tables_of(family: str, *, several: bool) -> dict[str, tuple[str, Sequence[str] | None, dict[str, str]]]:
    """Return the tables of a store, or of several, by name: the format of each, its columns (None: the default ones) and options."""
    store = (STORE,) if several else ()
    if family == "rabbitmq":
        chosen = {"messages": (*RABBITMQ_MESSAGE_COLUMNS, *store)}
        return {name: (family, chosen.get(name), {"view": view}) for name, view in RABBITMQ_VIEWS.items()}
    chosen = {"messages": (*MESSAGE_COLUMNS, *store)}
    return {name: (kind, chosen.get(name), {}) for name, kind in FORMATS.items()}


def views(
    spark: SparkSession,
    store: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Sequence[str] | None = None,
    prefix: str = "",
    format: str = "rocketmq",  # noqa: A002
    **options: Any,
) -> tuple[str, ...]:
    """Register the views of a store, or of several stores, where every view has a column `store`. Return the names of the views.

    columns: of `messages`; by default all but the body, with `body_len`. prefix: of each name, to look at stores side by side.
    format: `rocketmq` or `rabbitmq`.
    options: `where` and those of `spark.read.format("rocketmq")`; `config` and `fs.NAME` apply to all views, `mode` to all but
    `damage`, the others to `messages`.
    A view of the same name is replaced. Raises UsageError.
    """
    if not re.fullmatch(r"\w*", prefix, re.ASCII):
        raise UsageError(f"the prefix {prefix!r} is not part of a valid view name: use letters, digits and underscores")
    frames = {}
    for name, (kind, default, own) in tables_of(format, several=_are_several(store)).items():
        is_messages = name == "messages"
        given = options if is_messages or format == "rabbitmq" else _shared(options, mode=name != "damage")
        chosen = columns if is_messages and columns is not None else default
        frames[name] = read(spark, store, chosen, format=kind, **own, **given)
    for name, frame in frames.items():
        frame.createOrReplaceTempView(prefix + name)
    return tuple(prefix + name for name in frames)


def _shared(options: Mapping[str, Any], *, mode: bool) -> dict[str, Any]:
    """Return the options that apply to all tables; what the read of the messages has reported, the others do not repeat."""
    known = {name: value for name, value in options.items() if name == "config" or name.startswith("fs.") or (mode and name == "mode")}
    return known | {"reported": 1 << 30}


def _are_several(store: Any) -> bool:
    return not isinstance(store, str | os.PathLike) or len(store_paths({"path": os.fspath(store)})) > 1
