"""SQL: the same query in Spark, DuckDB and Polars has one result, for any store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pytest
from support.golden import CASES, GoldenCase, case_id, case_named, opened

import mqstore
from mqstore import pipeline
from mqstore.errors import UnsupportedError, UsageError
from mqstore.pipeline.source.views import VIEWS
from mqstore.rocketmq.store import store as reader
from mqstore.rocketmq.verify.verification import verify
from mqstore.table.columns import ROCKETMQ_COLUMNS, Selection, rocketmq_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark_in_all

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "spark.md"
COLUMNS = ["topic", "queue_id", "queue_offset", "size", "verdict", "store_timestamp"]
QUESTIONS = {
    "by topic": "select topic, count(*) as n, sum(size) as bytes, min(queue_offset) as low from messages group by topic",
    "by verdict": "select verdict, count(distinct topic) as topics, max(size) as largest from messages group by verdict",
    "filtered": "select topic, queue_id, count(*) as n from messages where queue_offset between 3 and 40 group by topic, queue_id",
    "by time": "select min(store_timestamp) as first, max(store_timestamp) as last from messages",
}


def plain(rows: list[Any]) -> list[tuple[Any, ...]]:
    """Return rows as sorted tuples, times without their zone, which is UTC in all of them."""
    return sorted(
        (tuple(value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value for value in row) for row in rows),
        key=repr,
    )


def in_duckdb(question: str, **tables: Any) -> list[tuple[Any, ...]]:
    connection = duckdb.connect()
    # a time zone of this process must not decide what is printed
    connection.execute("set timezone = 'UTC'")
    for name, table in tables.items():
        connection.register(name, table)
    return plain([tuple(row.values()) for row in connection.sql(question).to_arrow_table().to_pylist()])


# without Spark


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_an_arrow_table_holds_the_message_table(case: GoldenCase) -> None:
    store = mqstore.open(opened(case), config=case.config)
    found = store.to_arrow()
    assert found.schema == rocketmq_schema(ROCKETMQ_COLUMNS)
    assert found.to_pylist() == [row for batch in store.to_batches() for row in batch.to_pylist()]


def test_an_arrow_table_has_its_columns_also_without_messages() -> None:
    store = mqstore.open(opened(case_named("4.9.3/a-clean-small")))
    found = store.to_arrow(["topic", "size"], Selection(topics=frozenset({"nothing"})))
    assert (found.column_names, found.num_rows) == (["topic", "size"], 0)
    with pytest.raises(UsageError, match="no column 'colour'"):
        store.to_arrow(["colour"])


def test_without_pandas_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "find_spec", lambda name: None)
    store = mqstore.open(opened(case_named("4.9.3/a-clean-small")))
    with pytest.raises(UnsupportedError, match="`pip install pandas`"):
        store.to_pandas(["topic"])


def test_a_pandas_frame_holds_the_message_table() -> None:
    store = mqstore.open(opened(case_named("4.9.3/a-clean-small")))
    frame = store.to_pandas(["topic", "size"], Selection(topics=frozenset({"orders"})))
    wanted = store.to_arrow(["topic", "size"], Selection(topics=frozenset({"orders"}))).to_pydict()
    assert {name: frame[name].tolist() for name in frame.columns} == wanted


# one query, several engines


@pytest.mark.versions
@pytest.mark.parametrize("name", ["4.9.3/b2-kill9-live", "4.9.3/m-damaged/16-everything", "5.3.3/i-v2-codecs-crc"])
def test_spark_and_duckdb_answer_alike(name: str, spark: SparkSession) -> None:
    case = case_named(name)
    pipeline.views(spark, opened(case), config=case.config, columns=COLUMNS)
    table = mqstore.open(opened(case), config=case.config).to_arrow(COLUMNS)
    for question in QUESTIONS.values():
        assert plain(spark.sql(question).collect()) == in_duckdb(question, messages=table)


def test_polars_answers_alike(spark: SparkSession) -> None:
    case = case_named("4.9.3/b2-kill9-live")
    pipeline.views(spark, opened(case), columns=COLUMNS)
    table = mqstore.open(opened(case)).to_arrow(COLUMNS)
    for question in QUESTIONS.values():
        found = polars.SQLContext(messages=polars.from_arrow(table)).execute(question, eager=True).rows()
        assert plain(spark.sql(question).collect()) == plain(found)


# the views


@pytest.mark.parametrize("name", ["4.9.3/f-broker-offsets", "4.9.3/m-damaged/16-everything", "5.3.3/o-batch-queue"])
def test_every_view_holds_what_the_store_holds(name: str, spark: SparkSession) -> None:
    case = case_named(name)
    store = mqstore.open(opened(case), config=case.config)
    assert pipeline.views(spark, opened(case), config=case.config) == VIEWS
    counts = {view: spark.table(view).count() for view in VIEWS}
    units = sum(len(queue.entries(queue.min_offset, queue.max_offset)) for queue in store.view().queues())
    assert counts == {
        "messages": store.to_arrow(["topic"]).num_rows,
        "queues": units,
        "groups": len(store.view().consumer_offsets()),
        "damage": len(verify(store).damage),
        "index_entries": sum(file.index_count - 1 for file in store.index_files()),
        "timers": 0,
    }
    assert "body" not in spark.table("messages").columns
    assert spark.table("damage").columns == ["file", "offset", "length", "kind", "detail", "messages"]


def test_stores_stand_side_by_side_by_a_prefix_and_together_by_a_list(spark: SparkSession) -> None:
    one, other = (opened(case_named(name)) for name in ("4.9.3/a-clean-small", "5.3.3/g-clean-small"))
    assert pipeline.views(spark, one, prefix="old_")[0] == "old_messages"
    pipeline.views(spark, other, prefix="new_")
    pipeline.views(spark, [one, other], prefix="both_")
    found = spark.sql("select (select count(*) from old_messages) + (select count(*) from new_messages) = count(*) from both_messages")
    assert found.collect()[0][0] is True
    for view in VIEWS:
        assert "store" in spark.table(f"both_{view}").columns
        assert "store" not in spark.table(f"old_{view}").columns


def test_a_prefix_that_makes_no_name_is_refused(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="is not part of a valid view name"):
        pipeline.views(spark, opened(case_named("4.9.3/a-clean-small")), prefix="a b")
