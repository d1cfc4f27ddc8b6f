"""Nothing to read is an empty table: for every format, at a path and at a URL, in batches and in streams."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from support.golden import case_named, opened
from support.queries import drained
from support.s3 import endpoint
from support.spark_api import FILTERS, needs_streams
from support.stores import BEGIN, Store, message

from mqstore.files.location import Url
from mqstore.pipeline.source.rocketmq import explain_read, read, register
from mqstore.pipeline.spark.failures import error_sentence as told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEYOND = 10**12
# questions that no message answers: the condition, then the options
QUESTIONS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "beyond the log": (f"physical_offset >= {BEYOND}", {}),
    "offsets beyond the log": (None, {"startingOffsets": BEYOND}),
    "offsets before the log": (None, {"endingOffsets": 0}),
    "beyond the queue": (f"topic = 'orders' and queue_id = 0 and queue_offset >= {BEYOND}", {}),
    "queue offsets beyond the queue": (None, {"topic": "orders", "queueId": 0, "startingQueueOffset": BEYOND}),
    "a time that has not come": (None, {"startingTimestamp": BEGIN + BEYOND}),
    "another topic": ("topic = 'nothing'", {}),
    "no such queue": (None, {"queueId": 99}),
    "no such key": (None, {"keys": "nothing"}),
    "a contradiction": ("queue_offset > 5 and queue_offset < 3", {}),
    "a contradiction of values": ("topic = 'orders' and topic = 'bills'", {}),
    "never": ("false", {}),
    "another store": ("store = '/elsewhere'", {}),
}
TABLES = ("rocketmq", "rocketmq-queue", "rocketmq-index", "rocketmq-offsets", "rocketmq-timer", "rocketmq-findings")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A store of ten messages; one whose log has no file; one whose only log file is unwritten; one that is only a directory of the log."""
    root = tmp_path_factory.mktemp("stores")
    full = Store(root / "full", file_size=4096)
    for number in range(10):
        full.put(message("orders", keys=f"k{number}"))
    full.write()
    (root / "empty" / "commitlog").mkdir(parents=True)
    (root / "unwritten" / "commitlog").mkdir(parents=True)
    (root / "unwritten" / "commitlog" / f"{0:020d}").write_bytes(bytes(4096))
    (root / "unwritten" / "consumequeue").mkdir()
    (root / "unwritten" / "index").mkdir()
    return {path.name: path for path in root.iterdir()}


CASES = [
    *(
        pytest.param(table, name, None, {}, None, id=f"{table} of an {name} store")
        for table, name in product(TABLES, ("empty", "unwritten"))
    ),
    *(
        pytest.param("rocketmq", name, where, options, columns, id=f"{question}, {chosen}, {name}")
        for (question, (where, options)), (name, chosen, columns) in product(
            QUESTIONS.items(), [("full", "all columns", None), ("full", "one column", ["body_len"]), ("empty", "one column", ["body_len"])]
        )
    ),
    pytest.param("rocketmq-queue", "full", "file = 'nothing'", {}, None, id="rocketmq-queue, another file"),
    pytest.param("rocketmq-queue", "full", "topic = 'nothing'", {}, ["size"], id="rocketmq-queue, another topic"),
    pytest.param("rocketmq-index", "full", "number < 0", {}, ["file"], id="rocketmq-index, no number"),
    pytest.param("rocketmq-findings", "full", None, {}, None, id="rocketmq-findings of a store without findings"),
]


@pytest.mark.parametrize(("table", "name", "where", "options", "columns"), CASES)
def test_a_read_of_nothing_is_an_empty_table(
    table: str,
    name: str,
    where: str | None,
    options: dict[str, Any],
    columns: list[str] | None,
    stores: dict[str, Path],
    spark: SparkSession,
) -> None:
    frame = read(spark, stores[name], columns, where=where, format=table, **options)
    assert frame.columns == (columns or frame.columns)
    assert frame.collect() == []


def test_a_count_of_nothing_is_zero(stores: dict[str, Path], spark: SparkSession) -> None:
    for where, options in (QUESTIONS["beyond the log"], QUESTIONS["offsets beyond the log"], QUESTIONS["another store"]):
        frame = read(spark, stores["full"], ["topic"], where=where, **options)
        assert frame.count() == 0
        assert frame.groupBy("topic").count().collect() == []


@pytest.mark.parametrize("question", ["another topic", "beyond the log", "offsets beyond the log", "another store"])
def test_the_plan_of_an_empty_read_says_so(question: str, stores: dict[str, Path], spark: SparkSession) -> None:
    where, options = QUESTIONS[question]
    frame = read(spark, stores["full"], ["topic"], where=where, **options)
    assert frame.collect() == []
    assert explain_read(frame).records == 0
    if question == "offsets beyond the log" or (FILTERS and question != "another topic"):
        assert str(explain_read(frame)) == "nothing has to be read"


@pytest.mark.parametrize("table", TABLES)
def test_an_empty_store_among_others_adds_no_rows(table: str, stores: dict[str, Path], spark: SparkSession) -> None:
    alone = read(spark, stores["full"], format=table)
    together = read(spark, [stores["empty"], stores["full"], stores["unwritten"]], format=table)
    assert together.count() == alone.count()
    assert {row["store"] for row in together.collect()} <= {str(stores["full"])}


def test_a_url_of_nothing_is_an_empty_table(stores: dict[str, Path], spark: SparkSession) -> None:
    full, unwritten = endpoint().uploaded(stores["full"]), endpoint().uploaded(stores["unwritten"])
    for table in TABLES:
        assert read(spark, unwritten, format=table).collect() == [], table
    for where, options in QUESTIONS.values():
        for url in (full, unwritten):
            assert read(spark, url, ["topic"], where=where, **options).collect() == [], where or options
    assert read(spark, [unwritten, full], ["topic"]).count() == 10


@pytest.mark.versions
def test_a_rabbitmq_read_of_nothing_is_an_empty_table(spark: SparkSession) -> None:
    path = opened(case_named("3.10.8/f-mixed-features"))
    for view, options in product(("messages", "index", "store"), ({"vhost": "nothing"}, {"queue": "nothing"})):
        if view == "store" and "queue" in options:
            continue  # the records of message files belong to no queue
        assert read(spark, path, format="rabbitmq", view=view, **options).collect() == [], (view, options)
    assert read(spark, path, ["queue"], format="rabbitmq", where="queue = 'nothing'").collect() == []


def streamed(spark: SparkSession, path: Path | Url, checkpoint: Path, **options: Any) -> int:
    """Return the number of rows of a stream that reads all there is."""
    register(spark)
    counts: list[int] = []
    live = spark.readStream.format("rocketmq").options(**{"startingOffsets": "earliest", **options}).load(str(path))
    writing = live.writeStream.foreachBatch(lambda batch, _: counts.append(batch.count()))
    drained(writing.option("checkpointLocation", str(checkpoint)))
    return sum(counts)


@pytest.mark.versions
@needs_streams
@pytest.mark.parametrize("columns", [{}, {"columns": "topic"}], ids=["all", "one"])
def test_a_stream_of_nothing_ends_without_rows(
    columns: dict[str, str], stores: dict[str, Path], tmp_path: Path, spark: SparkSession
) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [
        ("empty", {}),
        ("unwritten", {}),
        ("full", {"startingOffsets": "latest"}),
        ("full", {"startingTimestamp": BEGIN + BEYOND}),
        ("full", {"topic": "nothing"}),
    ]
    for number, (name, options) in enumerate(asked):
        for _ in range(2 if number == 0 else 1):  # the first also from its checkpoint
            assert streamed(spark, stores[name], tmp_path / str(number), **columns, **options) == 0, (name, options)
    both = f"{stores['empty']},{stores['full']}"
    assert streamed(spark, both, tmp_path / "both", **columns) == 10  # type: ignore[arg-type]
    assert streamed(spark, both, tmp_path / "both", **columns) == 0  # type: ignore[arg-type]


@needs_streams
def test_a_stream_from_an_offset_past_the_log_is_refused_with_its_range(
    stores: dict[str, Path], tmp_path: Path, spark: SparkSession
) -> None:
    with pytest.raises(PySparkException) as caught:
        streamed(spark, stores["full"], tmp_path / "checkpoint", startingOffsets=BEYOND)
    assert f"startingOffsets is {BEYOND}, but the log of {stores['full']} covers 0 to" in told(caught.value)
