"""Narrowed queries on Spark: the rows of the query as it is, from fewer columns and messages."""

from __future__ import annotations

import random
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from support.golden import case_named, opened
from support.random_queries import RandomQuery, same_rows
from support.spark_api import needs_filters

import mqstore
from mqstore import pipeline
from mqstore.errors import UsageError
from mqstore.pipeline.queries import narrowing
from mqstore.pipeline.queries.narrowing import relations_of
from mqstore.pipeline.source import pushdown
from mqstore.pipeline.source.pushdown import keeps_filters_apart
from mqstore.pipeline.source.views import MESSAGE_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark_in_all

DECISION = Path(__file__).resolve().parents[3] / "docs" / "decisions" / "0011-a-query-is-planned-before-it-is-read.md"
GROUPS, KILLED = "4.9.3/f-broker-offsets", "4.9.3/b-kill9"
VIEWS = ("messages", "queues", "groups")


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> dict[str, dict[str, pa.Table]]:
    """The views of two stores as tables in memory, by the prefix of the views."""
    found = {}
    for prefix, name in (("f_", GROUPS), ("k_", KILLED)):
        pipeline.views(spark, opened(case_named(name)), prefix=prefix)
        found[prefix] = {view: spark.table(prefix + view).toArrow() for view in VIEWS}
        found[prefix]["messages"] = mqstore.open(opened(case_named(name))).to_arrow(MESSAGE_COLUMNS)
    return found


def in_duckdb(query: str, prefix: str, tables: dict[str, pa.Table]) -> list[tuple[Any, ...]]:
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    for name, table in tables.items():
        connection.register(prefix + name, table)
    return [tuple(row.values()) for row in connection.sql(query).to_arrow_table().to_pylist()]


def check_random(spark: SparkSession, tables: dict[str, dict[str, pa.Table]], seed: int) -> bool:
    """Compare one query in three engines. Returns whether it has rows."""
    prefix = ("f_", "k_")[seed % 2]
    query = RandomQuery(random.Random(seed), tables[prefix], prefix).text()
    wanted = same_rows(in_duckdb(query, prefix, tables[prefix]))
    plain = same_rows([tuple(row) for row in spark.sql(query).collect()])
    assert plain == wanted, f"seed {seed}: Spark and DuckDB differ: {query}"
    assert same_rows([tuple(row) for row in pipeline.sql(spark, query).collect()]) == wanted, f"seed {seed}: {query}"
    return bool(wanted)


@pytest.mark.long
def test_random_queries_have_the_rows_of_plain_spark_and_of_duckdb(spark: SparkSession, tables: Any, whole: bool) -> None:
    count = 300 if whole else 16
    assert sum(check_random(spark, tables, seed) for seed in range(count)) >= count // 2


# what is read


def read_columns(frame: DataFrame) -> list[list[str]]:
    """Return the columns that each occurrence of a relation reads."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    return [relation.schema.names for relation in relations_of(frame.sparkSession, plan)]


@pytest.mark.long
@needs_filters
@pytest.mark.versions
def test_each_occurrence_of_a_view_is_read_by_its_own_columns_and_conditions(spark: SparkSession) -> None:
    store = opened(case_named(KILLED))
    whole = pipeline.explain_read(pipeline.read(spark, store)).log_bytes
    found = pipeline.sql(
        spark,
        "select a.size, (select max(c.tags) from messages c where c.topic = 'none') from messages a left join messages b "
        "on a.uniq_key = b.uniq_key and b.queue_id = 1 where a.physical_offset >= 700000",
        store,
    )
    assert sorted(map(sorted, read_columns(found))) == [
        ["physical_offset", "size", "uniq_key"],
        ["queue_id", "uniq_key"],
        ["tags", "topic"],
    ]
    # explain_read does not list what a scalar subquery reads
    assert whole < pipeline.explain_read(found).log_bytes < 2 * whole


@pytest.mark.versions
def test_a_count_reads_one_number(spark: SparkSession) -> None:
    found = pipeline.narrowed(pipeline.read(spark, opened(case_named(KILLED))).groupBy().count())
    assert read_columns(found) == [["physical_offset"]]
    assert found.collect()[0][0] == 1639


@pytest.mark.versions
def test_conditions_of_a_read_are_kept(spark: SparkSession) -> None:
    frame = pipeline.read(spark, opened(case_named(KILLED)), columns=["topic", "queue_id"], where="topic = 'orders'")
    both = pipeline.narrowed(frame.where("queue_id = 1"))
    assert both.count() == frame.where("queue_id = 1").count() > 0


def test_a_narrowed_frame_answers_any_number_of_queries(spark: SparkSession) -> None:
    found = pipeline.sql(spark, "select topic, queue_id from messages", opened(case_named(KILLED)))
    assert [found.where("topic = 'late'").count(), found.count()] == [562, 1639]
    assert found.where("topic = 'late'").union(found.where("topic = 'orders'")).count() == 562 + 565


def test_a_column_that_is_not_in_the_result_is_not_found_instead_of_null(spark: SparkSession) -> None:
    found = pipeline.sql(spark, "select topic from messages", opened(case_named(KILLED)))
    for use in (lambda: found.where("size > 5"), lambda: found.orderBy("size"), lambda: found.where(spark.table("messages")["size"] > 5)):
        with pytest.raises(AnalysisException, match="size"):
            use()


# what is not narrowed


@needs_filters
def test_a_condition_on_the_current_time_is_left_to_spark(spark: SparkSession) -> None:
    with pytest.warns(UserWarning, match="depends on the current time"):
        found = pipeline.sql(spark, "select count(*) from messages where store_timestamp < now()", opened(case_named(KILLED)))
    assert read_columns(found) == [["store_timestamp"]]
    assert found.collect()[0][0] == 1639


def test_a_cached_table_is_used_as_it_is(spark: SparkSession) -> None:
    frame = pipeline.read(spark, opened(case_named(KILLED)), columns=["topic"]).cache()
    try:
        with pytest.warns(UserWarning, match="in Spark's cache"):
            assert pipeline.narrowed(frame.where("topic = 'late'")).count() == 562
    finally:
        frame.unpersist()


def test_a_frame_of_another_source_is_left_as_it_is(spark: SparkSession) -> None:
    frame = spark.range(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pipeline.narrowed(frame) is frame


@needs_filters
def test_where_spark_has_moved_a_class_nothing_is_narrowed_and_a_sentence_says_so(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moved(*arguments: Any) -> Any:
        return spark._jvm.org.apache.spark.sql.moved.Dataset.ofRows(*arguments)  # type: ignore[union-attr]

    store = opened(case_named(KILLED))
    frame = pipeline.read(spark, store, ["topic", "size"])
    with monkeypatch.context() as patched:
        patched.setattr(narrowing, "dataset", moved)
        with pytest.warns(UserWarning, match="nothing is narrowed, because this version of Spark has other plans"):
            found = pipeline.narrowed(frame.where("topic = 'orders'"))
    assert found.count() == 565
    for name in ("_RELATION", "_PYTHON_TABLE", "_SCAN"):
        with monkeypatch.context() as patched:
            patched.setattr(narrowing, "_KNOWN", set())
            patched.setattr(narrowing, name, "org.apache.spark.sql.moved.Node")
            with pytest.warns(UserWarning, match=r"nothing is narrowed, .* other plans \(of a query whose answer is known\)"):
                assert pipeline.narrowed(frame.where("topic = 'orders'")).count() == 565
    with monkeypatch.context() as patched:
        patched.setattr(pushdown, "_SCAN", "MovedScan rocketmq-filters")
        with pytest.warns(UserWarning, match=r"`where` does not narrow .* other plans \(no scan of a condition\)"):
            assert pipeline.read(spark, store, ["size"], where="topic = 'orders'").count() == 565
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pipeline.read(spark, store, ["size"], where="1 = 0").count() == 0
    with monkeypatch.context() as patched:
        patched.setattr(pushdown.pickle, "loads", moved)
        with pytest.warns(UserWarning, match="`where` does not narrow what is read, because this version of Spark has other plans"):
            assert pipeline.read(spark, store, ["size"], where="topic = 'orders'").count() == 565


def test_a_frame_of_spark_connect_is_left_as_it_is_with_a_warning() -> None:
    class ConnectFrame:
        """A frame without a Java plan, which is all that is looked at."""

    frame: Any = ConnectFrame()
    with pytest.warns(UserWarning, match="Spark Connect does not show its plans"):
        assert pipeline.narrowed(frame) is frame


def test_options_without_a_store_are_refused(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="no store is given"):
        pipeline.sql(spark, "select 1", where="topic = 'orders'")


# the decision


def test_the_fault_of_spark_is_as_the_decision_shows_it(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    if keeps_filters_apart(spark):
        pytest.skip("this Spark keeps the filters of queries apart")
    program, printed = re.findall(r"```(?:python|text)\n(.*?)```", DECISION.read_text(encoding="utf-8"), re.DOTALL)
    exec(program, {})
    assert capsys.readouterr().out == printed
