"""The catalog of stores in Spark SQL: a store's tables under its path, without a view."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from support.golden import case_named, opened
from support.spark_api import needs_filters, needs_tables
from support.stores import store_contents

from mqstore import pipeline
from mqstore.pipeline.spark.session import CATALOG_JAR

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    needs_tables,
    pytest.mark.spark_in_all,
    pytest.mark.versions,
    pytest.mark.skipif(not CATALOG_JAR.exists(), reason="catalog.jar was not built: the installation found no JDK, or no pyspark"),
]

KILLED = case_named("4.9.3/b-kill9")


@pytest.fixture
def mail(spark: SparkSession, tmp_path: Path) -> Path:
    """A store in a path with a blank, a dot and a quote."""
    pipeline.register(spark)
    return Path(shutil.copytree(opened(KILLED), tmp_path / "broker a.1's" / "store"))


@pytest.mark.parametrize(
    ("name", "family"),
    [("4.9.3/m-damaged/16-everything", "rocketmq"), ("3.10.8/f-mixed-features", "rabbitmq")],
    ids=["rocketmq", "rabbitmq"],
)
def test_the_tables_of_a_path_are_its_views(name: str, family: str, spark: SparkSession) -> None:
    pipeline.register(spark)
    place = opened(case_named(name))
    views = pipeline.views(spark, place, format=family, prefix="v_")
    listed = [row["tableName"] for row in spark.sql(f"show tables in mq.`{place}`").collect()]
    assert listed == [view.removeprefix("v_") for view in views]
    for table, view in zip(listed, views, strict=True):
        found, expected = spark.table(f"mq.`{place}`.{table}"), spark.table(view)
        assert found.schema == expected.schema
        assert sorted(map(repr, found.collect())) == sorted(map(repr, expected.collect()))
        assert found.count() == expected.count()  # reads one column, which Spark does not name
        described = [row["col_name"] for row in spark.sql(f"describe mq.`{place}`.{table}").collect()]
        assert described == expected.columns


def test_several_stores_are_one_namespace(spark: SparkSession, mail: Path) -> None:
    shutil.copytree(mail, mail.with_name("other"))
    (mail.parent / "third").mkdir()
    rows = spark.sql(f"select store, count(*) from mq.`{mail.parent}/*`.messages group by 1 order by 1").collect()
    assert [tuple(row) for row in rows] == [(str(mail.with_name("other")), 1639), (str(mail), 1639)]


@needs_filters
def test_a_query_reads_what_it_needs(spark: SparkSession, mail: Path) -> None:
    condition = "topic = 'orders' and queue_id = 1 and queue_offset < 100"
    query = f"select size from mq.`{mail}`.messages where {condition}"
    asked = pipeline.explain_read(pipeline.read(spark, mail, columns=["size"], where=condition))
    assert pipeline.explain_read(query) == asked
    assert asked.records == 100
    # each part of one query has filters of its own
    both = f"select count(*), sum(b.queue_id) from mq.`{mail}`.messages a join mq.`{mail}`.messages b using (physical_offset)"
    pipeline.views(spark, mail)
    of_views = both.replace(f"mq.`{mail}`.messages", "messages")
    where = " where a.topic = 'orders' and b.queue_id > 0"
    assert spark.sql(both + where).collect() == spark.sql(of_views + where).collect()
    assert pipeline.sql(spark, both + where).collect() == spark.sql(of_views + where).collect()
    scan = spark.sql(f"explain {query}").collect()[0][0]
    assert f"BatchScan mq.`{mail}`.messages[" in scan
    assert "body_len" not in scan
    assert "body_len" in spark.sql(f"explain select * from mq.`{mail}`.messages").collect()[0][0]


def test_options_narrow_a_table_too(spark: SparkSession, mail: Path) -> None:
    rows = spark.sql(f"select topic, keys from mq.`{mail}`.messages with (keys = 'OrderID392')").collect()
    assert [tuple(row) for row in rows] == [("late", ["OrderID392"])]
    with pytest.raises(PySparkException, match=r"a read of rocketmq has no option 'kys'; did you mean keys\?"):
        spark.sql(f"select topic from mq.`{mail}`.messages with (kys = 'OrderID392')").collect()


def test_a_store_is_the_current_namespace_after_use(spark: SparkSession, mail: Path) -> None:
    spark.sql(f"use mq.`{mail}`")
    try:
        spark.catalog.dropTempView("messages")
        assert spark.sql("select count(*) from messages").collect()[0][0] == 1639
    finally:
        spark.sql("use spark_catalog.default")


@pytest.mark.parametrize(
    "statement", ["select * from {}.messages", "show tables in {}", "use {}", "describe {}.queues", "insert into {}.messages values (1)"]
)
def test_a_path_without_a_store_is_one_sentence(statement: str, spark: SparkSession, tmp_path: Path) -> None:
    pipeline.register(spark)
    with pytest.raises(PySparkException) as error:
        spark.sql(statement.format(f"mq.`{tmp_path}/none`"))
    spark.sql("use spark_catalog.default")  # `use` makes the catalog the current one before it asks for the namespace
    assert str(error.value).startswith(f"{tmp_path}/none does not exist; give the directory that contains commitlog/")
    assert "Traceback" not in str(error.value)


def test_a_table_that_a_store_does_not_have_is_not_there(spark: SparkSession, mail: Path) -> None:
    assert spark.catalog.tableExists(f"mq.`{mail}`.messages")
    assert not spark.catalog.tableExists(f"mq.`{mail}`.records")
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql("select * from mq.messages")


def test_nothing_is_written_through_the_catalog(spark: SparkSession, mail: Path) -> None:
    before = store_contents(mail)
    table = f"mq.`{mail}`.messages"
    for statement in (
        f"insert into {table} select * from {table}",
        f"insert into {table} with (writable = 'true', runId = 'a') select * from {table}",
        f"insert overwrite {table} select * from {table}",
        f"delete from {table}",
        f"truncate table {table}",
        f"drop table {table}",
        f"alter table {table} drop column size",
        f"create table mq.`{mail}`.mine (a int)",
        f"create table mq.`{mail}`.mine as select 1 a",
        f"drop namespace mq.`{mail}`",
        f"create namespace mq.`{mail}/new`",
    ):
        with pytest.raises(PySparkException, match=r"does not support|only reads stores|only supported with|does not exist;"):
            spark.sql(statement)
    with pytest.raises(PySparkException, match="does not support"):
        spark.table(table).writeTo(table).option("writable", "true").option("runId", "a").append()
    assert store_contents(mail) == before
    assert sorted(each.name for each in mail.parent.iterdir()) == ["store"]


def test_the_format_of_the_catalog_is_no_table(spark: SparkSession, mail: Path) -> None:
    with pytest.raises(PySparkException, match="mqstore is the format of the catalog mq"):
        spark.read.format("mqstore").load(str(mail)).collect()
