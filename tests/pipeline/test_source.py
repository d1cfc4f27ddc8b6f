"""The Spark source: the rows of the message table, whichever columns, filters and splits a query has."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from goldenkit import CASES, GoldenCase, case_id, case_named, expected, opened, unchanged
from pyspark.errors import PySparkException
from storekit import BEGIN, Store, message

import mqstore
from mqstore.errors import UsageError
from mqstore.messages import ROCKETMQ_COLUMNS, Selection
from mqstore.pipeline.session import sentence as told
from mqstore.pipeline.source import read, register, schema_text
from mqstore.rocketmq.reading import MAX_BATCH_BYTES, ReadTask, overlapping, read_split, token_of
from mqstore.rocketmq.splits import plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHEAP = ["topic", "queue_id", "queue_offset", "physical_offset"]


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted((row.asDict(recursive=True) for row in frame.collect()), key=lambda row: row["physical_offset"])


@pytest.fixture(scope="module")
def mail(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = Store(tmp_path_factory.mktemp("mail"), file_size=16384)
    for number in range(400):
        topic = ("orders", "bills", "größe")[number % 3]
        store.put(message(topic, b"x" * (number % 50), keys=f"k{number} all", tags=f"T{number % 2}", queue_id=number % 4))
    register(spark)
    return store.write()


# without Spark: what a task does


def table_of(path: Path, columns: tuple[str, ...], selection: Selection, count: int) -> list[dict[str, Any]]:
    store = mqstore.open(path)
    splits = overlapping(plan(store.log, count=count), selection)
    tasks = [ReadTask(str(path), store.config, token_of(store.log), split, columns, selection) for split in splits]
    return [row for task in tasks for batch in read_split(task) for row in batch.to_pylist()]


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_splits_put_together_are_the_message_table(case: GoldenCase) -> None:
    source = opened(case)
    with unchanged(source):
        whole = [row for batch in mqstore.open(source).view().batches(ROCKETMQ_COLUMNS) for row in batch.to_pylist()]
        for count in (1, 7):
            assert table_of(source, ROCKETMQ_COLUMNS, Selection(), count) == whole


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_rows_are_those_the_broker_read(case: GoldenCase) -> None:
    wanted = [row for row in expected(case) if row.get("intact", True)]
    found = {
        row["physical_offset"]: row
        for row in table_of(opened(case), ("physical_offset", "topic", "queue_id", "queue_offset", "size", "tags"), Selection(), 5)
    }
    for row in wanted:
        there = found[row["physical_offset"]]
        assert {name: row[name] for name in there} == there


def test_a_selection_of_offsets_reads_only_the_splits_that_hold_them(tmp_path: Path) -> None:
    store = Store(tmp_path, file_size=16384)
    for number in range(300):
        store.put(message("orders", b"x" * 300, keys=f"k{number}"))
    path = store.write()
    low, high = store.puts[100].offset + 1, store.puts[120].offset
    selection = Selection(from_offset=low, to_offset=high)
    kept = overlapping(plan(mqstore.open(path).log, count=9), selection)
    assert len(kept) < 3
    found = [row["physical_offset"] for row in table_of(path, ("physical_offset",), selection, 9)]
    assert found == [put.offset for put in store.puts[101:120]]


def test_large_bodies_are_cut_into_batches_far_below_what_arrow_can_hold(tmp_path: Path) -> None:
    store = Store(tmp_path, file_size=64 << 20)
    for number in range(12):
        store.put(message("orders", bytes([number]) * (4 << 20)))
    opened_store = mqstore.open(store.write())
    (split,) = plan(opened_store.log, count=1)
    task = ReadTask(str(tmp_path), opened_store.config, "", split, ("body",), Selection())
    batches = list(read_split(task))
    assert [batch.num_rows for batch in batches] == [3, 3, 3, 3]
    assert all(batch.nbytes <= MAX_BATCH_BYTES for batch in batches)
    assert [body[:1] for batch in batches for body in batch.column(0).to_pylist()] == [bytes([number]) for number in range(12)]


def test_the_schema_is_that_of_the_message_table() -> None:
    assert schema_text(["topic", "keys", "properties", "body", "store_timestamp", "body_crc_ok", "queue_offset"]) == (
        "topic string, keys array<string>, properties map<string,string>, body binary, store_timestamp timestamp, "
        "body_crc_ok boolean, queue_offset bigint"
    )


# on Spark


@pytest.mark.parametrize("name", ["4.9.3/a-clean-small", "5.3.3/i-v2-codecs-crc", "4.9.3/m-damaged/16-everything", "5.3.3/o-batch-queue"])
def test_a_dataframe_holds_every_column_of_every_message(name: str, spark: SparkSession) -> None:
    case = case_named(name)
    found = rows(read(spark, opened(case), config=case.config))
    whole = [row for batch in mqstore.open(opened(case), config=case.config).view().batches() for row in batch.to_pylist()]
    assert len(found) == len(whole)
    for row, wanted in zip(found, whole, strict=True):
        for column in ("born_timestamp", "store_timestamp"):
            wanted[column] = wanted[column].replace(tzinfo=None)
        wanted["properties"] = dict(wanted["properties"])
        row["body"] = None if row["body"] is None else bytes(row["body"])
        assert row == wanted


def test_columns_come_by_option_by_schema_and_by_name(mail: Path, spark: SparkSession) -> None:
    by_option = spark.read.format("rocketmq").option("columns", "size, topic").load(str(mail))
    by_schema = spark.read.format("rocketmq").schema("size int, topic string").load(str(mail))
    by_name = read(spark, mail, columns=["size", "topic"])
    assert by_option.columns == by_schema.columns == by_name.columns == ["size", "topic"]
    assert by_option.collect() == by_schema.collect() == by_name.collect()


FILTERS = [
    "topic = 'orders'",
    "topic in ('orders', 'größe') and queue_id = 1",
    "topic <> 'orders'",
    "upper(topic) = 'ORDERS' or queue_id > 2",
    "queue_offset >= 10 and queue_offset < 20",
    "queue_offset between 3 and 4 and topic <=> 'bills'",
    "physical_offset > 5000 and physical_offset <= 9000",
    "physical_offset in (0, 131)",
    "topic = 'orders' and topic = 'bills'",
    "queue_offset > 20 and queue_offset < 10",
    "tags = 'T1' and queue_id in (1, 3)",
    "tags is null",
    "uniq_key = 'k1'",
    "array_contains(keys, 'k77')",
    "store_timestamp >= timestamp'2022-01-01 00:00:00.1' and store_timestamp < timestamp'2022-01-01 00:00:00.2'",
    "store_timestamp > timestamp'2022-01-01 00:00:00.1005' and store_timestamp <= timestamp'2022-01-01 00:00:00.1995'",
    "store_timestamp = timestamp'2022-01-01 00:00:00.150'",
]


@pytest.mark.parametrize("condition", FILTERS)
def test_a_filter_gives_what_spark_would_keep_of_the_whole_table(condition: str, mail: Path, spark: SparkSession) -> None:
    columns = [*CHEAP, "tags", "keys", "uniq_key", "store_timestamp"]
    frame = read(spark, mail, columns=columns)
    whole = spark.createDataFrame(frame.collect(), frame.schema)
    assert rows(frame.where(condition)) == rows(whole.where(condition))


def test_filters_reach_the_reader() -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull, LessThanOrEqual, StringContains

    from mqstore.pipeline.filters import narrowed

    time = datetime(2022, 1, 1, 0, 0, 0, 1500, UTC)
    found = narrowed(
        Selection(topics=frozenset({"a", "b"}), from_offset=7),
        [
            IsNotNull(("topic",)),
            In(("topic",), ("b", "c", None)),
            EqualTo(("uniq_key",), "u"),
            GreaterThan(("physical_offset",), 3),
            GreaterThan(("store_timestamp",), time),
            LessThanOrEqual(("store_timestamp",), time),
            StringContains(("topic",), "x"),
            EqualTo(("a", "b"), 1),
        ],
    )
    assert found == Selection(topics=frozenset({"b"}), keys=frozenset({"u"}), from_offset=7, since=BEGIN + 2, until=BEGIN + 2)


def test_a_reader_applies_what_it_was_told_and_hands_every_filter_back(mail: Path) -> None:
    from pyspark.sql.datasource import EqualTo, StringContains

    from mqstore.pipeline.source import ReadOptions, RocketMQReader

    reader = RocketMQReader(ReadOptions.of({"path": str(mail)}), ("topic",))
    filters = [EqualTo(("topic",), "bills"), StringContains(("tags",), "T")]
    assert list(reader.pushFilters(filters)) == filters
    found = [topic for part in reader.partitions() for batch in reader.read(part) for topic in batch.column(0).to_pylist()]
    assert found == ["bills"] * 133


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"topic": "orders"}, lambda n, put: n % 3 == 0),
        ({"topic": "orders,bills"}, lambda n, put: n % 3 != 2),
        ({"keys": "k5 k77 nothing"}, lambda n, put: n in (5, 77)),
        ({"startingOffsets": "5000", "endingOffsets": "latest"}, lambda n, put: put.offset >= 5000),
        ({"startingOffsets": "earliest", "endingOffsets": 5000}, lambda n, put: put.offset < 5000),
        ({"startingTimestamp": BEGIN + 10, "endingTimestamp": BEGIN + 12}, lambda n, put: n in (10, 11)),
    ],
)
def test_options_select_messages(options: dict[str, Any], wanted: Any, mail: Path, spark: SparkSession) -> None:
    found = [row["physical_offset"] for row in rows(read(spark, mail, columns=["physical_offset"], **options))]
    puts = list(_puts(mail))
    assert found == [put for n, put in puts if wanted(n, _At(put))]


class _At:
    def __init__(self, offset: int) -> None:
        self.offset = offset


def _puts(mail: Path) -> list[tuple[int, int]]:
    offsets = [offset for batch in mqstore.open(mail).view().batches(["physical_offset"]) for offset in batch.column(0).to_pylist()]
    return list(enumerate(offsets))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"columns": "topic,colour"}, "there is no column 'colour'"),
        ({"startingOffsets": "first"}, "give a number or 'earliest'"),
        ({"view": "recovered"}, "there is no view 'recovered' on Spark"),
        ({"path": "/nowhere"}, "/nowhere does not exist"),
    ],
)
def test_a_bad_option_is_told_in_a_sentence(options: dict[str, str], sentence: str, mail: Path, spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.read.format("rocketmq").options(**{"path": str(mail), **options}).load().count()
    assert sentence in told(caught.value)


def test_a_schema_of_another_type_is_refused(mail: Path, spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.read.format("rocketmq").schema("size bigint").load(str(mail)).count()
    assert "column size is of type int, the schema says bigint" in told(caught.value)


def test_an_unknown_column_is_refused_before_spark_is_asked(mail: Path, spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="no column 'colour'"):
        read(spark, mail, columns=["colour"])
