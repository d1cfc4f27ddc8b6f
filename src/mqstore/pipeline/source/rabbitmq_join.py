"""The message table of RabbitMQ stores, with the join of index entries and message files by message id on Spark.

    pipeline.joined(spark, "/backup/msg_stores", columns=["queue", "payload"], vhost="/")

Every index is read once for its ids and every message file is scanned once, with one task per group of queues or files. Spark joins ids
and places, and sends each group of queues the places of its messages; the receiving task reads the queues again, and reads message files
only at these places. No task holds more ids than its queues have.

`spark.read.format("rabbitmq")` returns the same rows without a shuffle: there each Python worker scans all message files of a vhost.
That is faster for small stores, and slower for large ones on many executors.

The options are those of the format, except for `view` and `all`: messages in no queue take no part in the join.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.errors import UsageError
from mqstore.pipeline.source.rabbitmq import FORMAT
from mqstore.pipeline.source.rabbitmq_options import RabbitMQOptions, fields, open_rabbitmq
from mqstore.pipeline.source.rocketmq import read
from mqstore.pipeline.source.stores import STORE, ddl_schema, with_store
from mqstore.pipeline.spark.runner import freeze_gc_once
from mqstore.rabbitmq.store import task_groups as groups
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.store.task_groups import QueueGroup

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

NO_ID = "0" * 32
# the copy of a message that counts: complete, then found by the broker, then in the lowest file, there the last copy
_BEST = "struct(not (whole and ended), not seen_by_broker, number, plain, -position)"


@dataclass(frozen=True, slots=True)
class _JoinPlan:
    """The input common to all tasks of one store."""

    path: str
    root: str
    options: RabbitMQOptions
    groups: tuple[QueueGroup, ...]


def joined(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Return the message table of the stores at path, one or a list, with the join by message id on Spark. Raises UsageError."""
    paths = [os.fspath(path)] if isinstance(path, str | os.PathLike) else [os.fspath(each) for each in path]
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items() if value is not None}
    if columns is not None:
        given["columns"] = ",".join(columns)
    frames: list[DataFrame] = []
    for each in paths:
        asked = RabbitMQOptions.of({**given, "path": each})
        if asked.view != "messages" or asked.selection.everything:
            raise UsageError('a joined read returns only messages in queues; use spark.read.format("rabbitmq") for other views and for all')
        frames += [_join(spark, store, asked, given) for store in asked.paths]
    return reduce(lambda left, right: left.unionByName(right), frames)


def _join(spark: SparkSession, path: str, asked: RabbitMQOptions, given: dict[str, str]) -> DataFrame:
    store = open_rabbitmq(path, asked.names)
    planned = groups.plan_queues(store, asked.splits, asked.selection, whole=True)
    selected = {queue for group in planned for queue in group.queues}
    number = {queue: group.number for group in planned for queue in group.queues}
    directories = {vhost.directory: vhost.place.place for vhost in store.vhosts}
    queues = [
        (number[vhost.directory, queue.name], queue.place.place)
        for vhost in store.vhosts
        for queue in vhost.queues
        if (vhost.directory, queue.name) in selected
    ]
    options = {name: value for name, value in given.items() if name not in ("columns", "view")}
    index = read(spark, path, format=FORMAT, **{**options, "view": "index"})
    of_all_queues = {name: value for name, value in options.items() if name != "queue"}
    refusals = read(spark, path, format=FORMAT, **of_all_queues, view="refusals")
    records = read(spark, path, format=FORMAT, **of_all_queues, view="store")
    vhosts = spark.createDataFrame(
        [(group.number, directories[vhost]) for group in planned for vhost in sorted({vhost for vhost, _ in group.queues})],
        "group_number int, vhost_place string",
    )
    down = refusals.where("whole_vhost").selectExpr(_above("directory", 2)).distinct().selectExpr("vhost_place", "true as refused")
    # the input of a group: a row for each of its vhosts, without a message id, and one for each place of a message
    heads = vhosts.join(down, "vhost_place", "left").selectExpr(
        "group_number", "vhost_place", "string(null) as msg_id", "string(null) as store_file", "bigint(null) as position",
        "bigint(null) as length", "boolean(null) as seen", "coalesce(refused, false) as refused",
    )  # fmt: skip
    ids = (
        index.where("location = 'message_store'")
        .selectExpr(
            _above("index_file", 3), "regexp_replace(index_file, '/[^/]*$', '') as directory", f"coalesce(msg_id, '{NO_ID}') as msg_id"
        )
        .join(spark.createDataFrame(queues, "group_number int, directory string"), "directory")
        .select("group_number", "vhost_place", "msg_id")
        .distinct()
    )
    handed = heads.unionByName(ids.join(_best(records), ["vhost_place", "msg_id"]).selectExpr(*heads.columns[:-1], "false as refused"))
    schema = ddl_schema(fields("messages", asked.columns))
    plan = _JoinPlan(path, str(store.directory.root), asked, tuple(planned))
    parts = handed.repartition(max(1, len(planned)), "group_number").sortWithinPartitions("group_number", "msg_id")
    return parts.mapInArrow(partial(_read_groups, plan), schema)


def _above(column: str, levels: int) -> str:
    """Return SQL for the place of the vhost of a file or directory this many levels below it."""
    return f"regexp_replace({column}, '/?{'/'.join(['[^/]*'] * levels)}$', '') as vhost_place"


def _best(records: DataFrame) -> DataFrame:
    """Return for each message id of a vhost and a store the copy that counts, and whether the broker finds any."""
    from pyspark.sql.functions import expr

    placed = records.selectExpr(
        _above("store_file", 2), "location", f"coalesce(msg_id, '{NO_ID}') as msg_id", "store_file", "position", "length", "seen_by_broker",
        "whole", "ended", r"bigint(regexp_extract(store_file, '([0-9]+)[.]rd[qt]$', 1)) as number", "store_file not like '%.rdt' as plain",
    )  # fmt: skip
    best = placed.groupBy("vhost_place", "location", "msg_id").agg(
        expr(f"min_by(struct(store_file, position, length), {_BEST}) as place"), expr("bool_or(seen_by_broker) as seen")
    )
    return best.selectExpr("vhost_place", "msg_id", "place.store_file", "place.position", "place.length", "seen")


# in tasks


def _read_groups(plan: _JoinPlan, handed: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the groups in the input, one after the other."""
    freeze_gc_once()
    store = RabbitMQStore(Path(plan.root), now=plan.options.now, names=plan.options.names)
    known = {group.number: group for group in plan.groups}
    own = tuple(name for name in plan.options.columns if name != STORE) or ("seq_id",)
    for number, table in _runs(handed):
        vhosts = dict(_vhosts(store, table))
        batches = groups.read_group(store, known[number], own, replace(plan.options.selection, limit=None), vhosts)
        yield from with_store(batches, plan.options.columns, plan.path)


def _runs(handed: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each group; the input is sorted by group."""
    import numpy as np
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    last = -1
    for batch in handed:
        numbers = batch.column("group_number").to_numpy()
        borders = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        for start, stop in pairwise(borders):
            if start < stop and int(numbers[start]) != last and held:
                yield last, pa.Table.from_batches(held)
                held = []
            if start < stop:
                last = int(numbers[start])
                held.append(batch.slice(start, stop - start))
    if held:
        yield last, pa.Table.from_batches(held)


def _vhosts(store: RabbitMQStore, handed: pa.Table) -> Iterator[tuple[str, Any]]:
    """Yield the vhosts of a group by directory, with message stores that contain the joined records."""
    import pyarrow.compute as pc

    heads = handed.filter(pc.is_null(handed.column("msg_id")))
    records = handed.filter(pc.is_valid(handed.column("msg_id")))
    for vhost_path, refused in zip(heads.column("vhost_place").to_pylist(), heads.column("refused").to_pylist(), strict=True):
        mine = records.filter(pc.equal(records.column("vhost_place"), vhost_path))
        transient = pc.match_substring(mine.column("store_file"), "/msg_store_transient/")
        if not vhost_path:
            transient = pc.starts_with(mine.column("store_file"), "msg_store_transient/")
        stores = groups.joined_stores(store, vhost_path, (mine.filter(pc.invert(transient)), mine.filter(transient)))
        vhost = store.vhost_with_stores(vhost_path, stores, ("a queue of it",) if refused else stores[0].crashes)
        yield vhost.directory, vhost
