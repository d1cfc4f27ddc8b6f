"""SQL over stores: temporary views of everything in them, created by one call.

    pipeline.views(spark, "/backup/broker-a/store")
    spark.sql("select topic, verdict, count(*), sum(size) from messages group by all").show()

    view             rows                                    source
    messages         the message table, without the bodies   rocketmq
    queues           entries of the consume queues           rocketmq-queue
    groups           consumer groups and their lag           rocketmq-offsets
    damage           what `verify` finds                     rocketmq-findings, section damage
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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mqstore.errors import UsageError
from mqstore.pipeline.source.rabbitmq import RABBITMQ_MESSAGE_COLUMNS, RABBITMQ_VIEWS
from mqstore.pipeline.source.rocketmq import read
from mqstore.table.columns import ROCKETMQ_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGE_COLUMNS = (*(name for name in ROCKETMQ_COLUMNS if name != "body"), "body_len")
VIEWS = ("messages", "queues", "groups", "damage", "index_entries", "timers")
_FORMATS = {"queues": "rocketmq-queue", "groups": "rocketmq-offsets", "index_entries": "rocketmq-index", "timers": "rocketmq-timer"}


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
    if format == "rabbitmq":
        return _rabbitmq_views(spark, store, columns, prefix, options)
    several = not isinstance(store, str | os.PathLike)
    default = (*MESSAGE_COLUMNS, "store") if several or _names_several(store) else MESSAGE_COLUMNS
    frames = {"messages": read(spark, store, columns=default if columns is None else columns, **options)}
    # what the first read has reported, the others do not repeat
    shared = {name: value for name, value in options.items() if name == "config" or name.startswith("fs.")} | {"reported": 1 << 30}
    frames |= {name: read(spark, store, format=kind, **shared, mode=options.get("mode")) for name, kind in _FORMATS.items()}
    findings = read(spark, store, format="rocketmq-findings", **shared)
    frames["damage"] = findings.where("section = 'damage'").drop("section")
    for name in VIEWS:
        frames[name].createOrReplaceTempView(prefix + name)
    return tuple(prefix + name for name in VIEWS)


def _rabbitmq_views(spark: SparkSession, store: Any, columns: Sequence[str] | None, prefix: str, options: Any) -> tuple[str, ...]:
    for name, view in RABBITMQ_VIEWS.items():
        chosen = None if view != "messages" else RABBITMQ_MESSAGE_COLUMNS if columns is None else columns
        read(spark, store, format="rabbitmq", columns=chosen, view=view, **options).createOrReplaceTempView(prefix + name)
    return tuple(prefix + name for name in RABBITMQ_VIEWS)


def _names_several(store: Any) -> bool:
    from mqstore.pipeline.source.stores import store_paths

    return len(store_paths({"path": os.fspath(store)})) > 1
