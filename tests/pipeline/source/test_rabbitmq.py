"""The Spark source of RabbitMQ stores: the rows of the command `messages`, for any number of tasks."""

from __future__ import annotations

import operator
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from support import quorum, streams
from support.golden import CASES, RABBITMQ, GoldenCase, case_id, case_named, opened, unpack
from support.spark_api import needs_filters

import mqstore
from mqstore.errors import MqstoreError, UsageError
from mqstore.jobs.export import export_queues as export
from mqstore.pipeline.queries.narrowing import relations_of, sql
from mqstore.pipeline.source.pushdown import filters_as_text
from mqstore.pipeline.source.rabbitmq import RabbitMQDataSource
from mqstore.pipeline.source.rabbitmq_options import RabbitMQOptions
from mqstore.pipeline.source.rocketmq import read
from mqstore.pipeline.spark.failures import error_sentence as told
from mqstore.pipeline.spark.source_api import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual
from mqstore.rabbitmq.store.task_groups import cut, index_batches, plan_files, plan_queues, read_group, record_batches
from mqstore.table.columns import RABBITMQ_COLUMNS, QueueSelection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIXED = case_named("3.10.8/f-mixed-features")
MERGED = case_named("3.10.8/e-gc-combined")
EVERYTHING = QueueSelection(everything=True)


def ordered(table: Any) -> list[dict[str, Any]]:
    return sorted(
        table.to_pylist(), key=lambda row: tuple(str(row[name]) for name in ("vhost", "queue", "priority_level", "seq_id", "msg_id"))
    )


# without Spark: what tasks do


@pytest.mark.parametrize("count", [None, 1, 3, 7, 100])
@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
@pytest.mark.parametrize("selection", [QueueSelection(), EVERYTHING], ids=["queued", "everything"])
def test_concatenated_groups_are_the_message_table(case: GoldenCase, count: int | None, selection: QueueSelection) -> None:
    store = mqstore.open(opened(case))
    wanted = store.to_arrow(RABBITMQ_COLUMNS, selection).to_pylist()
    groups = plan_queues(store, count, selection)
    assert count is None or len(groups) <= count
    found = [row for group in groups for batch in read_group(store, group, RABBITMQ_COLUMNS, selection) for row in batch.to_pylist()]
    assert found == wanted


@pytest.mark.parametrize(
    "name", ["3.10.8/b-dirty-journal", "3.10.8/b2-journal-replayed-twice", "3.10.8/c-segments-16384", "3.10.8/g2-v2-large-dirty"]
)
def test_a_large_queue_is_divided_by_its_segments(name: str) -> None:
    store = mqstore.open(opened(case_named(name)))
    groups = plan_queues(store, 1000, EVERYTHING)
    wanted = store.to_arrow().to_pylist()
    parts = [group for group in groups if group.parts]
    assert len(parts) > 1
    for group in parts:  # each task opens the store itself
        alone = mqstore.open(opened(case_named(name)))
        rows = [row for batch in read_group(alone, group, RABBITMQ_COLUMNS) for row in batch.to_pylist()]
        assert rows == [row for row in wanted if row in rows]
    assert [row for group in groups for batch in index_batches(store, group) for row in batch.to_pylist()] == [
        row for group in plan_queues(store, 1) for batch in index_batches(store, group) for row in batch.to_pylist()
    ]
    assert not any(group.parts for group in plan_queues(store, 1000, EVERYTHING, whole=True))


@pytest.mark.parametrize("count", [1, 3, 100])
def test_every_record_of_a_message_file_is_in_one_group(count: int) -> None:
    store = mqstore.open(opened(MERGED))
    groups = plan_files(store, count)
    found = [row for group in groups for batch in record_batches(store, group) for row in batch.to_pylist()]
    assert len(found) == 57
    assert len({(row["store_file"], row["position"]) for row in found}) == 57


@pytest.mark.parametrize("given", [{"at": "2026-12-01"}, {"at": "1796083200000"}, {"now": "1796083200000"}])
def test_expiry_is_judged_at_the_given_time(given: dict[str, str]) -> None:
    assert RabbitMQOptions.of({"path": str(opened(MIXED)), **given}).now == 1_796_083_200_000_000


def test_a_limit_counts_within_a_group() -> None:
    store = mqstore.open(opened(MIXED))
    (group,) = plan_queues(store, 1)
    assert sum(batch.num_rows for batch in read_group(store, group, ("seq_id",), QueueSelection(limit=5))) == 5


def test_runs_are_of_about_equal_size() -> None:
    assert [list(part) for part in cut([1] * 10, 3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(cut([], 3)) == []


@pytest.mark.real_sizes
def test_a_store_of_some_hundred_mib_is_read_by_several_tasks() -> None:
    files = [16 << 20] * 12
    assert [len(part) for part in cut(files, None)] == [1] * 12
    assert {len(part) for part in cut(files * 16, None)} == {4}
    assert len(list(cut([1 << 20] * 8, None))) == 1


def test_message_files_count_where_tasks_are_of_equal_size() -> None:
    store = mqstore.open(opened(MERGED))
    files = sum(group.bytes for group in plan_files(store))
    indexes = sum(entry.size for queue in store.queues for _, entry in store.directory.walk(queue.place.place))
    assert files > indexes
    assert indexes + files - len(store.queues) <= sum(group.bytes for group in plan_queues(store, 3)) <= indexes + files


# conditions of queries

CONDITIONED = {
    "classic": lambda: opened(MIXED),
    "merged": lambda: opened(case_named("3.10.8/e2-gc-interrupted")),
    "quorum": lambda: quorum.node("4.3.6/a-quorum-mix-kill9"),
    "streams": lambda: streams.node("4.3.6-killed"),
}
HOLDS: dict[Any, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq, In: lambda found, values: found in values, GreaterThan: operator.gt, GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt, LessThanOrEqual: operator.le,
}  # fmt: skip
NARROWED = ("vhost", "queue", "queue_type", "seq_id", "stream_offset", "recovered")


def random_condition(rng: random.Random, rows: list[dict[str, Any]]) -> Any:
    """Return a comparison of one of the columns that are narrowed with values of rows, or near them."""
    column = rng.choice(NARROWED)
    kind = rng.choice(list(HOLDS) if column in ("seq_id", "stream_offset") else [EqualTo, In])

    def value() -> Any:
        found = rng.choice(rows)[column]
        if column in ("seq_id", "stream_offset"):
            return (0 if found is None else found) + rng.randrange(-2, 3)
        return rng.choice((found if found is not None else "none", "\\none")) if column != "recovered" else found

    return kind((column,), tuple(value() for _ in range(rng.randrange(1, 4))) if kind is In else value())


def holds(condition: Any, row: dict[str, Any]) -> bool:
    found = row[condition.attribute[0]]
    return found is not None and HOLDS[type(condition)](found, condition.value)


@pytest.mark.parametrize("name", CONDITIONED)
def test_random_conditions_exclude_rows_before_their_messages_are_read_and_no_others(name: str) -> None:
    rng = random.Random(name)
    given = {"path": str(CONDITIONED[name]()), "all": "true", "columns": ",".join((*NARROWED, "pos", "store_file", "position"))}
    every = rows_read(given)
    narrower = 0
    for _ in range(10):
        conditions = [random_condition(rng, every) for _ in range(rng.randrange(1, 3))]
        narrowed = rows_read({**given, "filters": filters_as_text(conditions), "splits": str(rng.randrange(1, 5))})
        wanted = [row for row in every if all(holds(condition, row) for condition in conditions)]
        assert [row for row in narrowed if all(holds(condition, row) for condition in conditions)] == wanted, conditions
        narrower += len(narrowed) == len(wanted) < len(every)
    assert narrower >= 4


def rows_read(given: dict[str, str]) -> list[dict[str, Any]]:
    reader = RabbitMQDataSource(given).reader_of(given["columns"].split(","))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_a_condition_on_the_vhost_finds_a_queue_whose_directory_was_moved_to_another(tmp_path: Path) -> None:
    root = unpack(MIXED, tmp_path / "store")
    vhosts = sorted((root / "msg_stores" / "vhosts").iterdir())
    names = {(vhost / ".vhost").read_text().strip(): vhost for vhost in vhosts}
    moved = next(path.parent for path in sorted(names["/"].rglob(".queue_name")))
    other = next(vhost for name, vhost in names.items() if name != "/")
    shutil.move(moved, other / "queues" / moved.name)
    given = {"path": str(root), "columns": "vhost,queue,seq_id"}
    wanted = [row for row in rows_read(given) if row["vhost"] == "/"]
    found = rows_read({**given, "filters": filters_as_text([EqualTo(("vhost",), "/")])})
    assert [row for row in found if row["vhost"] == "/"] == wanted


# on Spark


@pytest.mark.versions
@pytest.mark.parametrize("splits", [1, 3, 7])
@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_a_dataframe_has_the_rows_of_the_command(spark: SparkSession, case: GoldenCase, splits: int) -> None:
    frame = read(spark, opened(case), format="rabbitmq", splits=splits)
    assert tuple(frame.columns) == RABBITMQ_COLUMNS
    assert ordered(frame.toArrow()) == ordered(mqstore.open(opened(case)).to_arrow())


def test_only_named_columns_are_read_and_filters_are_options(spark: SparkSession) -> None:
    frame = read(spark, opened(MIXED), ["queue", "size", "payload_len"], format="rabbitmq", vhost="/", queue="lazy.mixed,ttl.q")
    rows = frame.collect()
    assert {row["queue"] for row in rows} == {"lazy.mixed", "ttl.q"}
    assert all(row["size"] == row["payload_len"] for row in rows)
    kept = read(spark, opened(MIXED), ["recovered"], format="rabbitmq", recovered=True)
    assert kept.count() == 106
    schema = "queue string, seq_id bigint"
    assert spark.read.format("rabbitmq").schema(schema).load(str(opened(MIXED))).columns == ["queue", "seq_id"]


@needs_filters
def test_conditions_of_a_read_and_of_sql_narrow_what_is_read(spark: SparkSession) -> None:
    condition = "queue = 'lazy.mixed' and seq_id >= 3 and vhost = '/'"
    wanted = [row for row in mqstore.open(opened(MIXED)).to_arrow().to_pylist() if (row["queue"], row["vhost"]) == ("lazy.mixed", "/")]
    wanted = [row for row in wanted if row["seq_id"] >= 3]
    frame = read(spark, opened(MIXED), format="rabbitmq", where=condition)
    assert ordered(frame.toArrow()) == ordered(pa.Table.from_pylist(wanted, frame.toArrow().schema))
    narrow = sql(spark, f"select seq_id from messages where {condition}", opened(MIXED), format="rabbitmq")
    assert sorted(row["seq_id"] for row in narrow.collect()) == sorted(row["seq_id"] for row in wanted)
    assert '["EqualTo", ["queue"], "lazy.mixed"]' in str(relations_of(spark, narrow._jdf.queryExecution().analyzed())[0].options)


def test_several_stores_are_distinguished_by_the_column_store(spark: SparkSession) -> None:
    paths = [str(opened(MIXED)), str(opened(MERGED))]
    counts = {row["store"]: row["count"] for row in read(spark, paths, format="rabbitmq").groupBy("store").count().collect()}
    assert counts == {paths[0]: 118, paths[1]: 89}


def test_index_and_store_are_views_that_join_by_message_id(spark: SparkSession) -> None:
    index = read(spark, opened(MERGED), format="rabbitmq", view="index").where("location = 'message_store' and state != 'acknowledged'")
    records = read(spark, opened(MERGED), format="rabbitmq", view="store")
    live = index.join(records.where("seen_by_broker"), ["vhost", "msg_id"])
    stored = [row for row in mqstore.open(opened(MERGED)).to_arrow().to_pylist() if row["location"].startswith("msg_store")]
    assert {row["msg_id"] for row in live.select("msg_id").collect()} == {row["msg_id"] for row in stored}
    orphans = records.join(index, ["vhost", "msg_id"], "left_anti")
    assert orphans.count() == records.count() - len({row["msg_id"] for row in stored})


def test_messages_in_no_queue_come_with_the_option_all(spark: SparkSession) -> None:
    wanted = mqstore.open(opened(MERGED)).to_arrow(RABBITMQ_COLUMNS, EVERYTHING)
    frame = read(spark, opened(MERGED), format="rabbitmq", all=True, splits=4)
    assert ordered(frame.toArrow()) == ordered(wanted)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"view": "acks"}, "has no view 'acks'"),
        ({"columns": "topic"}, "there is no column 'topic'"),
        ({"columns": "size", "view": "store"}, "has no column 'size'"),
        ({"splits": "0"}, "must be at least 1"),
        ({"fromSeq": "x"}, "give a number"),
        ({"verdict": "lost"}, "give one of intact"),
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        RabbitMQOptions.of({"path": str(opened(MERGED)), **options})


def test_a_store_of_the_other_family_and_an_archive_are_refused_with_what_to_do(spark: SparkSession) -> None:
    for path, words in ((opened(CASES[0]), 'format("rocketmq")'), (MERGED.archive, "unpack it first")):
        with pytest.raises(MqstoreError, match=re.escape(words)):
            read(spark, path, format="rabbitmq")
        with pytest.raises(PySparkException) as caught:
            spark.read.format("rabbitmq").load(str(path)).count()
        assert words in str(told(caught.value))


def test_a_changed_store_is_read_again(spark: SparkSession, tmp_path: Path) -> None:
    root = unpack(MERGED, tmp_path / "store")
    assert read(spark, root, ["verdict"], format="rabbitmq").where("verdict = 'intact'").count() == 89
    for file in root.rglob("*.rdq"):
        file.chmod(0o644)
        file.write_bytes(b"")
    left = read(spark, root, ["location", "verdict"], format="rabbitmq")
    assert {row["verdict"] for row in left.where("location like 'msg_store%'").collect()} == {"unreachable"}


def test_an_export_on_spark_is_that_of_this_process(spark: SparkSession, tmp_path: Path) -> None:
    store = mqstore.open(opened(MIXED))
    export(store, tmp_path / "spark", format="jsonl", splits=3, spark=spark)
    export(store, tmp_path / "here", format="jsonl", splits=3, threads=1)
    files = {path.name: path.read_bytes() for path in (tmp_path / "here").glob("part-*")}
    assert len(files) == 3
    assert {path.name: path.read_bytes() for path in (tmp_path / "spark").glob("part-*")} == files
