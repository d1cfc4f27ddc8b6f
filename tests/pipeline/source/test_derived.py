"""The derived files as tables: the contents of the files, entry by entry, however they are cut into parts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from support.golden import CASES, GoldenCase, case_id, case_named, opened, run_cli, unchanged, unpack
from support.stores import Store, message

import mqstore
from mqstore.pipeline.source import derived
from mqstore.pipeline.source.derived import SOURCES, QueueFilter, TableReader, finding_rows
from mqstore.pipeline.source.rocketmq import read
from mqstore.pipeline.spark.failures import error_sentence as told
from mqstore.rocketmq.listing import entry_rows
from mqstore.rocketmq.verify.verification import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark_in_all

Row = dict[str, Any]
BY_NAME = {source.format.removeprefix("rocketmq-"): source for source in SOURCES}


def rows_of(name: str, path: Path, config: Path | None = None, columns: tuple[str, ...] | None = None) -> list[Row]:
    """Return what tasks would yield, concatenated, without Spark."""
    source = BY_NAME[name]
    reader = TableReader(source, (str(path),), None if config is None else str(config), columns or tuple(source.table))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_a_queue_row_is_an_entry_of_a_queue_file(case: GoldenCase) -> None:
    path = opened(case)
    store = mqstore.open(path, config=case.config)
    view = store.view()
    with unchanged(path):
        found = rows_of("queue", path, case.config)
    wanted = [
        {"topic": queue.topic, "queue_id": queue.queue_id, **row}
        for queue in view.queues()
        for row in entry_rows(store, view, queue, queue.min_offset, queue.max_offset)
    ]

    def place(row: Row) -> tuple[str, int, int]:
        return row["topic"], row["queue_id"], row["queue_offset"]

    names = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "tags_code")
    assert sorted(({name: row[name] for name in names} for row in found), key=place) == sorted(
        ({name: row[name] for name in names} for row in wanted), key=place
    )
    assert all(store.directory.exists(row["file"]) for row in found if row["size"])


@pytest.mark.parametrize("name", ["5.5.0/f-timer-wheel", "5.5.0/k-rocksdb-timers", "4.9.3/a-clean-small"])
def test_a_timer_row_is_what_the_command_lists(name: str) -> None:
    path = opened(case_named(name))
    with unchanged(path):
        found = rows_of("timer", path)
    for row in found:
        row["due_time"] = round(row["due_time"].timestamp() * 1000)
    assert found == run_cli("timers", path, "-o", "jsonl").rows
    wanted = {"5.5.0/f-timer-wheel": {"waiting": 33, "delivered": 18}, "5.5.0/k-rocksdb-timers": {"waiting": 34, "delivered": 17}}
    assert Counter(row["state"] for row in found) == (wanted[name] | {"recalled": 3} if name in wanted else {})


def test_a_hostile_timer_is_a_row_or_a_finding(tmp_path: Path) -> None:
    store = unpack(case_named("5.5.0/f-timer-wheel"), tmp_path / "store")
    wanted = rows_of("timer", store)
    log = next((store / "commitlog").iterdir())
    data = log.read_bytes()
    queue_id = b"REAL_QID\x01"
    at = data.index(queue_id) + len(queue_id)
    assert data[at : at + 2] in (b"0\x02", b"1\x02", b"2\x02", b"3\x02")
    name = data.index(b"REAL_TOPIC\x01") + len(b"REAL_TOPIC\x01")
    changed = bytearray(data)
    changed[at : at + 1] = b"-"
    changed[name : name + 1] = b"\xff"
    log.write_bytes(changed)
    found = rows_of("timer", store)
    assert len(found) == len(wanted)
    assert [row for row in found if row["queue_id"] is None]
    assert [row for row in found if "\ufffd" in row["topic"]]
    (next((store / "timerlog").iterdir())).write_bytes(b"\xff" * 4096)
    assert len(rows_of("timer", store)) <= len(wanted)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_an_index_row_is_an_entry_of_an_index_file(case: GoldenCase) -> None:
    found = rows_of("index", opened(case), case.config)
    wanted = []
    for file in mqstore.open(opened(case), config=case.config).index_files():
        for number in range(1, min(file.index_count, file.positions)):
            entry = file.entry(number)
            wanted.append((file.relative, number, *entry))
    assert [
        (row["file"], row["number"], row["key_hash"], row["physical_offset"], row["seconds"], row["previous"]) for row in found
    ] == wanted


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_offsets_are_those_of_the_store(case: GoldenCase) -> None:
    found = rows_of("offsets", opened(case), case.config)
    held = mqstore.open(opened(case), config=case.config).view().consumer_offsets()
    assert found == [{name: getattr(item, name) for name in derived.OFFSETS} for item in held]


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_findings_are_those_of_verify(case: GoldenCase) -> None:
    report = verify(mqstore.open(opened(case), config=case.config))
    found = rows_of("findings", opened(case), case.config)
    assert found == finding_rows(report)
    assert sum(row["section"] == "damage" for row in found) == len(report.damage)
    assert sum(row["section"] == "coverage" for row in found) == len(report.coverage.skipped)


@pytest.mark.parametrize("name", ["queue", "index"])
def test_the_rows_do_not_depend_on_the_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_named("5.3.3/k-rolled")
    whole = rows_of(name, opened(case), case.config)
    monkeypatch.setattr(derived, "ENTRIES", 7)
    monkeypatch.setattr(derived, "BATCH", 3)
    reader = TableReader(BY_NAME[name], (str(opened(case)),), str(case.config), tuple(BY_NAME[name].table))
    assert len(list(reader.partitions())) > 20
    assert rows_of(name, opened(case), case.config) == whole


def test_an_entry_names_the_file_it_is_in(tmp_path: Path) -> None:
    store = Store(tmp_path, queue_entries=4)
    for number in range(10):
        store.put(message("orders", keys=f"k{number}"))
    path = store.write()
    files = [row["file"].rpartition("/")[2] for row in rows_of("queue", path)]
    assert files == ["00000000000000000000"] * 4 + ["00000000000000000080"] * 4 + ["00000000000000000160"] * 2


def test_a_filter_on_topic_and_queue_leaves_out_queues_before_they_are_read(tmp_path: Path) -> None:
    from mqstore.pipeline.spark.source_api import EqualTo, In

    store = Store(tmp_path)
    for number in range(12):
        store.put(message(("orders", "bills")[number % 2], queue_id=number % 3))
    reader = TableReader(BY_NAME["queue"], (str(store.write()),), None, ("topic", "queue_id"))
    reader.confine([EqualTo(("topic",), "bills"), In(("queue_id",), (0, 2))])
    assert reader.queue_filter == QueueFilter(frozenset({"bills"}), frozenset({0, 2}))
    found = [tuple(row.values()) for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert sorted(set(found)) == [("bills", 0), ("bills", 2)]


# on Spark


@pytest.mark.versions
@pytest.mark.parametrize("name", list(BY_NAME))
@pytest.mark.parametrize(
    "case", ["4.9.3/a-clean-small", "4.9.3/m-damaged/16-everything", "5.3.3/o-batch-queue", "5.5.0/e-rocksdb-config-v1"]
)
def test_a_dataframe_holds_every_row(name: str, case: str, spark: SparkSession) -> None:
    golden = case_named(case)
    frame = read(spark, opened(golden), format=f"rocketmq-{name}", config=golden.config)
    wanted = rows_of(name, opened(golden), golden.config)
    for row in wanted:
        if "store_timestamp" in row:
            row["store_timestamp"] = row["store_timestamp"].replace(tzinfo=None)
    key = repr
    assert sorted((row.asDict() for row in frame.collect()), key=key) == sorted(wanted, key=key)


def test_several_stores_are_distinguished_and_a_filter_on_them_reads_one(spark: SparkSession) -> None:
    paths = [str(opened(case_named(name))) for name in ("4.9.3/f-broker-offsets", "5.3.3/j-broker-offsets")]
    frame = read(spark, paths, format="rocketmq-offsets")
    assert frame.columns[-1] == "store"
    assert {row["store"]: row["count"] for row in frame.groupBy("store").count().collect()} == {
        path: len(rows_of("offsets", Path(path))) for path in paths
    }
    one = read(spark, paths, format="rocketmq-offsets", where=f"store = '{paths[1]}'")
    assert one.count() == frame.where(frame["store"] == paths[1]).count() == len(rows_of("offsets", Path(paths[1])))


def test_the_queues_and_the_messages_join_in_sql(spark: SparkSession) -> None:
    path = opened(case_named("4.9.3/a-clean-small"))
    messages = read(spark, path, columns=["physical_offset", "topic", "queue_id", "queue_offset"])
    entries = read(spark, path, format="rocketmq-queue", columns=["physical_offset", "topic", "queue_id", "queue_offset"])
    assert messages.subtract(entries).count() == entries.subtract(messages).count() == 0


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("queue", {"columns": "topic,colour"}, "there is no column 'colour'; the columns of rocketmq-queue are topic, queue_id"),
        ("index", {"path": "/nowhere"}, "/nowhere does not exist"),
        ("offsets", {"path": "/nowhere*"}, "nothing matches /nowhere*"),
        ("findings", {"columns": " , "}, "no column is given"),
    ],
)
def test_a_bad_option_is_reported_in_one_sentence(name: str, options: dict[str, str], sentence: str, spark: SparkSession) -> None:
    path = str(opened(case_named("4.9.3/a-clean-small")))
    read(spark, path, format="rocketmq-queue")
    with pytest.raises(PySparkException) as caught:
        spark.read.format(f"rocketmq-{name}").options(**{"path": path, **options}).load().count()
    assert sentence in told(caught.value)


def test_a_schema_of_another_type_is_refused(spark: SparkSession) -> None:
    path = str(opened(case_named("4.9.3/a-clean-small")))
    read(spark, path, format="rocketmq-queue")
    with pytest.raises(PySparkException) as caught:
        spark.read.format("rocketmq-queue").schema("size string").load(path).count()
    assert "column size is of type int, the schema says string" in told(caught.value)
