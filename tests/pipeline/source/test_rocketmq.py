"""The Spark source: the rows of the message table, for any columns, filters and splits."""

from __future__ import annotations

import json
import random
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from support.golden import CASES, GoldenCase, case_id, case_named, expected, opened, unchanged
from support.spark_api import needs_filters
from support.stores import BEGIN, Store, message

import mqstore
from mqstore.errors import MqstoreError, PipelineError, UsageError
from mqstore.pipeline.queries.narrowing import narrowed
from mqstore.pipeline.source.options import ReadOptions, message_fields
from mqstore.pipeline.source.pushdown import filters_as_text, filters_from
from mqstore.pipeline.source.rocketmq import PushingReader, RocketMQDataSource, RocketMQReader, explain_read, read, register
from mqstore.pipeline.source.stores import ddl_schema, store_paths
from mqstore.pipeline.spark.failures import error_sentence as told
from mqstore.rocketmq.lookup import pruning
from mqstore.rocketmq.lookup.pruning import FileTask, PointTask
from mqstore.rocketmq.scan.planned_files import token_of
from mqstore.rocketmq.scan.splits import plan
from mqstore.rocketmq.store.split_reader import MAX_BATCH_BYTES, ReadTask, overlapping, read_split
from mqstore.table.columns import ROCKETMQ_COLUMNS, Selection

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


@pytest.mark.real_sizes
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
    assert ddl_schema(message_fields(["topic", "keys", "properties", "body", "store_timestamp", "body_crc_ok", "queue_offset"])) == (
        "topic string, keys array<string>, properties map<string,string>, body binary, store_timestamp timestamp, "
        "body_crc_ok boolean, queue_offset bigint"
    )


# what queues and index prove is read record by record


def reader_of(path: object, columns: tuple[str, ...] = ("physical_offset",), **options: object) -> RocketMQReader:
    return RocketMQReader(ReadOptions.of({"path": str(path), **{name: str(value) for name, value in options.items()}}), columns)


def read_all(reader: RocketMQReader) -> list[dict[str, Any]]:
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def offsets_of(reader: RocketMQReader) -> list[int]:
    return sorted(row["physical_offset"] for row in read_all(reader))


@pytest.fixture(params=["in planning", "in tasks"])
def proved(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where it is proved that a range of a queue is all that has to be read."""
    if request.param == "in tasks":
        monkeypatch.setattr(pruning, "MAX_PLANNED", -1)
        monkeypatch.setattr(pruning, "SEARCH_COST", 0)
    return str(request.param)


def hows(reader: RocketMQReader) -> set[str]:
    return {part.how for part in reader.partitions()}


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_a_narrowed_read_finds_what_a_scan_finds(case: GoldenCase, proved: str) -> None:
    source = opened(case)
    columns = ["topic", "queue_id", "queue_offset", "physical_offset", "keys", "uniq_key"]
    store = mqstore.open(source, config=case.config)
    table = [row for batch in store.view().batches(columns) for row in batch.to_pylist()]
    chance = random.Random(case.id)
    with unchanged(source):
        for row in chance.sample(table, min(len(table), 12)):
            low, high = row["queue_offset"] - chance.randrange(3), row["queue_offset"] + chance.randrange(1, 20)
            wanted = [
                other["physical_offset"]
                for other in table
                if (other["topic"], other["queue_id"]) == (row["topic"], row["queue_id"]) and low <= other["queue_offset"] < high
            ]
            where = {"topic": row["topic"], "queueId": row["queue_id"], "startingQueueOffset": low, "endingQueueOffset": high}
            assert offsets_of(reader_of(source, config=case.config, **where)) == wanted
            for key in [*(row["keys"] or []), row["uniq_key"]]:
                if key and proved == "in planning":
                    wanted = [other["physical_offset"] for other in table if key in (*(other["keys"] or ()), other["uniq_key"])]
                    assert offsets_of(reader_of(source, config=case.config, keys=key)) == wanted


def test_on_an_intact_store_nothing_is_scanned() -> None:
    case = case_named("4.9.3/a-clean-small")
    store = mqstore.open(opened(case))
    queue = max(store.consume_queues(), key=lambda queue: queue.max_offset)
    entry = queue.entries(3, 4)[0]
    message_there = store.log.record(int(entry["physical_offset"]))
    assert message_there is not None
    by_queue = reader_of(opened(case), topic=queue.topic, queueId=queue.queue_id, startingQueueOffset=3, endingQueueOffset=9)
    by_index = reader_of(opened(case), keys=message_there.property_map()["UNIQ_KEY"])
    assert hows(by_queue) == {"queue"}
    assert hows(by_index) == {"index"}
    for reader in (by_queue, by_index):
        assert all(isinstance(part.task, PointTask) for part in reader.partitions())
        assert "nothing is scanned" in reader.partitions()[0].why
    assert hows(reader_of(opened(case), keys="x", useDerivedFiles=False)) == {"scan"}


def test_where_queues_lag_behind_the_log_only_the_files_they_do_not_account_for_are_scanned() -> None:
    case = case_named("4.9.3/b2-kill9-live")
    reader = reader_of(opened(case), topic="orders", queueId=1, startingQueueOffset=0, endingQueueOffset=9)
    scanned = [part.task.split for part in reader.partitions() if isinstance(part.task, ReadTask)]
    log = mqstore.open(opened(case)).log
    assert {log.file_at(split.start) for split in scanned} == {log.files[log.last_written()]}


def test_messages_of_a_topic_that_was_deleted_and_created_again_are_not_lost_to_its_queue(tmp_path: Path, proved: str) -> None:
    """The new topic's queue has entries for new messages only; the log still holds older ones with the same queue offsets."""
    store = Store(tmp_path, file_size=4096)
    for number in range(30):
        store.put(message("orders", b"old", keys=f"k{number}"))
    store.next_queue_offset.clear()
    for number in range(60):
        store.put(message("orders", b"new", keys=f"k{number}"))
    path = store.write()
    wanted = [put.offset for put in store.puts if 5 <= put.record.queue_offset < 8]
    assert len(wanted) == 6
    assert offsets_of(reader_of(path, topic="orders", queueId=0, startingQueueOffset=5, endingQueueOffset=8)) == wanted
    assert offsets_of(reader_of(path, keys="k7")) == [put.offset for put in store.puts if put.record.queue_offset == 7]


@pytest.mark.parametrize("damage", ["hash", "offset", "slot", "gone"])
def test_an_index_that_is_not_valid_is_not_used(damage: str, tmp_path: Path) -> None:
    store = Store(tmp_path, slots=7, positions=60, file_size=4096)
    for number in range(120):
        store.put(message("orders", keys=f"k{number}"))
    path = store.write()
    names = sorted(entry.name for entry in (path / "index").iterdir())
    relative, at = f"index/{names[1]}", 40 + 4 * 7 + 20 * 5
    file = mqstore.open(path).index_files()[1]
    key = next(put.record.property_map()["KEYS"] for put in store.puts if put.offset == file.entry(5).physical_offset)
    if damage == "hash":
        store.patch(relative, at, b"\0\0\0\1")
    elif damage == "offset":
        store.patch(relative, at + 4, (file.entry(5).physical_offset + 1).to_bytes(8, "big"))
    elif damage == "slot":
        store.patch(relative, 40, b"\0" * 28)
    else:
        (path / relative).unlink()
    wanted = [put.offset for put in store.puts if put.record.property_map()["KEYS"] == key]
    assert len(wanted) == 1
    assert offsets_of(reader_of(path, keys=key)) == wanted


def test_a_queue_whose_entries_lead_elsewhere_is_not_trusted(tmp_path: Path, proved: str) -> None:
    store = Store(tmp_path)
    for number in range(40):
        store.put(message("orders", keys=f"k{number}", queue_id=number % 2))
    path = store.write()
    one, other = (path / f"consumequeue/orders/{queue}/{0:020d}" for queue in (0, 1))
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    reader = reader_of(path, topic="orders", queueId=0, startingQueueOffset=2, endingQueueOffset=5)
    assert offsets_of(reader) == [put.offset for put in store.puts if put.record.queue_id == 0][2:5]


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_queue_hides_no_message(seed: int, tmp_path: Path, proved: str) -> None:
    """Entries that point beside their message, have another size, are swapped or are lost, among them those of other queues."""
    chance = random.Random(seed)
    store = Store(tmp_path, file_size=4096)
    for number in range(200):
        store.put(message("orders", b"x" * chance.randrange(99), keys=f"k{number}", queue_id=chance.randrange(2)))
    path = store.write()
    queues = [path / f"consumequeue/orders/{queue}/{0:020d}" for queue in (0, 1)]
    whole = [file.read_bytes() for file in queues]
    for _ in range(12):
        damaged, own = chance.randrange(2), bytearray(whole[0])
        own[:] = whole[damaged]
        at = 20 * chance.randrange(60)
        match chance.randrange(4):
            case 0:
                own[at + 6 : at + 8] = chance.randbytes(2)
            case 1:
                own[at + 7] ^= 1 << chance.randrange(3)
            case 2:
                own[at : at + 20], own[at + 20 : at + 40] = own[at + 20 : at + 40], own[at : at + 20]
            case 3:
                own[at + 8 : at + 12] = chance.randrange(1, 400).to_bytes(4, "big")
        queues[damaged].write_bytes(own)
        low = chance.randrange(70)
        where = {"topic": "orders", "queueId": 0, "startingQueueOffset": low, "endingQueueOffset": low + chance.randrange(40)}
        assert offsets_of(reader_of(path, **where)) == offsets_of(reader_of(path, useDerivedFiles=False, **where))
        queues[damaged].write_bytes(whole[damaged])


def test_tasks_that_prove_their_log_files_read_only_the_records_of_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, file_size=4096)
    for number in range(200):
        store.put(message("orders", b"x" * 50, keys=f"k{number}", queue_id=number % 2))
    path = store.write()
    where = {"topic": "orders", "queueId": 1, "startingQueueOffset": 10, "endingQueueOffset": 30}
    monkeypatch.setattr(pruning, "MAX_PLANNED", -1)
    assert hows(reader_of(path, **where)) == {"scan"}
    assert "that is faster than to search 2 queues" in reader_of(path, **where).partitions()[0].why
    monkeypatch.setattr(pruning, "SEARCH_COST", 0)
    parts = reader_of(path, **where).partitions()
    assert [type(part.task) for part in parts] == [FileTask] * len(mqstore.open(path).log.files)
    assert "(200 entries)" in parts[0].why
    for put in store.puts:  # a scan would not find these
        if (put.record.queue_id, put.record.queue_offset) == (0, 15):
            store.patch_log(put.offset + 4, b"\0\0\0\0")
    strict = reader_of(path, mode="FAILFAST", **where)
    assert offsets_of(strict) == [put.offset for put in store.puts if put.record.queue_id == 1 and 10 <= put.record.queue_offset < 30]


# offsets by queue


def test_offsets_and_times_by_topic_and_queue_select_like_those_of_kafka(tmp_path: Path) -> None:
    store = Store(tmp_path, file_size=4096)
    for number in range(120):
        store.put(message(("orders", "bills")[number % 2], keys=f"k{number}", queue_id=number % 3), at=number)
    path = store.write()
    begins = {"orders": {"0": 3, "1": -2, "2": 7}, "bills": {"1": 5}, "nothing": {"0": 1}}
    ends = {"orders": {"0": 9, "2": -1}, "bills": {"0": 0}}
    since, until = {"bills": {"2": BEGIN + 30}}, {"bills": {"2": BEGIN + 50}, "orders": {"1": BEGIN + 20}}
    options = {
        name: json.dumps(value)
        for name, value in (
            ("startingOffsets", begins), ("endingOffsets", ends), ("startingOffsetsByTimestamp", since), ("endingOffsetsByTimestamp", until)
        )
    }  # fmt: skip

    def wanted(put: Any) -> bool:
        topic, queue = put.record.topic, str(put.record.queue_id)
        low, high = begins.get(topic, {}).get(queue, -2), ends.get(topic, {}).get(queue, -1)
        first, last = since.get(topic, {}).get(queue, 0), until.get(topic, {}).get(queue, 1 << 62)
        offset, time = put.record.queue_offset, put.record.store_timestamp
        return offset >= low and (high == -1 or offset < high) and first <= time < last

    assert offsets_of(reader_of(path, **options)) == [put.offset for put in store.puts if wanted(put)]
    orders = [put.offset for put in store.puts if wanted(put) and put.record.topic == "orders"]
    assert offsets_of(reader_of(path, topic="orders", **options)) == orders


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("startingOffsets", '{"orders": {"0": -1}}'),
        ("startingOffsets", '{"orders": 5}'),
        ("endingOffsets", '{"orders": {"0": -2}}'),
        ("endingOffsets", '{"orders": {"one": 5}}'),
        ("startingOffsetsByTimestamp", "5"),
        ("endingOffsetsByTimestamp", '{"orders": {"0": "2026-01-01"}}'),
        ("endingOffsets", '{"orders": {"0": 5.5}'),
    ],
)
def test_offsets_by_queue_that_cannot_be_read_are_refused(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=rf"option {name} is .*: give numbers of 0 or more.* by topic and queue, such as"):
        ReadOptions.of({"path": "/", name: text})


def test_offsets_of_a_queue_that_retention_removed_fail_by_default(tmp_path: Path) -> None:
    store = Store(tmp_path, file_size=4096)
    for number in range(80):
        store.put(message("orders", b"x" * 100, keys=f"k{number}"))
    path = store.write()
    (path / "commitlog" / f"{0:020d}").unlink()
    queue = path / f"consumequeue/orders/0/{0:020d}"
    first = next(put.record.queue_offset for put in store.puts if put.offset >= 4096)
    queue.write_bytes(bytes(20 * first) + queue.read_bytes()[20 * first :])
    if mqstore.open(path).consume_queues()[0].min_offset == first:
        with pytest.raises(PipelineError, match=rf"offsets 2 to {first - 1} of queue 0 of orders were requested, but are no longer"):
            reader_of(path, startingOffsets='{"orders": {"0": 2}}').partitions()
    given = {"startingOffsets": '{"orders": {"0": 2}}', "failOnDataLoss": "false"}
    assert offsets_of(reader_of(path, **given)) == [put.offset for put in store.puts if put.offset >= 4096]


# modes


def test_failfast_fails_where_bytes_are_no_record_and_where_a_message_is_damaged(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(9):
        store.put(message("orders", b"body", keys=f"k{number}"))
    path = store.write()
    assert len(read_all(reader_of(path, mode="FAILFAST"))) == 9
    store.patch_log(store.puts[4].offset + 88, b"B")
    with pytest.raises(PipelineError, match=f"message at physical offset {store.puts[4].offset} .* is damaged; mode=PERMISSIVE"):
        read_all(reader_of(path, mode="failfast"))
    assert len(read_all(reader_of(path, mode="FAILFAST", endingOffsets=store.puts[4].offset))) == 4
    store.patch_log(store.puts[4].offset + 4, b"\x13")
    with pytest.raises(PipelineError, match=f"at {store.puts[4].offset}, .* bad-frame, .*; mode=PERMISSIVE skips such ranges"):
        read_all(reader_of(path, mode="FAILFAST"))
    assert len(read_all(reader_of(path))) == 8
    with pytest.raises(PipelineError, match="a queue or the index points here"):
        read_all(reader_of(path, mode="FAILFAST", keys="k4"))


def test_requested_but_missing_data_fails_by_default(tmp_path: Path) -> None:
    store = Store(tmp_path, start=3 * 65536)
    for number in range(9):
        store.put(message("orders", keys=f"k{number}"))
    path = store.write()
    with pytest.raises(PipelineError, match="physical offsets 5 to 196607 were requested, but are no longer in the log"):
        reader_of(path, startingOffsets=5).partitions()
    assert len(read_all(reader_of(path, startingOffsets=5, failOnDataLoss="false"))) == 9
    assert len(read_all(reader_of(path))) == 9


def test_a_file_removed_between_plan_and_read_fails_by_default(tmp_path: Path) -> None:
    store = Store(tmp_path, file_size=4096)
    for number in range(60):
        store.put(message("orders", b"x" * 100, keys=f"k{number}"))
    path = store.write()
    for where in ({}, {"keys": "k3"}):
        strict, loose = reader_of(path, **where), reader_of(path, failOnDataLoss=False, **where)
        plans = strict.partitions(), loose.partitions()
        first = path / "commitlog" / f"{0:020d}"
        raw = first.read_bytes()
        first.unlink()
        with pytest.raises(PipelineError, match=f"commitlog/{0:020d} was removed after the read was planned"):
            [batch for part in plans[0] for batch in strict.read(part)]
        found = {row["physical_offset"] for part in plans[1] for batch in loose.read(part) for row in batch.to_pylist()}
        assert found == ({put.offset for put in store.puts if put.offset >= 4096} if not where else set())
        first.write_bytes(raw)


def test_headers_are_a_column_on_request_and_can_be_left_out(mail: Path) -> None:
    assert "properties" in ReadOptions.of({"path": str(mail)}).columns
    assert "properties" not in ReadOptions.of({"path": str(mail), "includeHeaders": "false"}).columns
    assert ReadOptions.of({"path": str(mail), "includeHeaders": "true", "columns": "topic"}).columns == ("topic", "properties")
    assert ReadOptions.of({"path": str(mail), "includeHeaders": "false", "columns": "properties"}).columns == ("properties",)


# several stores


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fleet")
    for name, count in (("a", 3), ("b", 5), ("c, d", 7)):
        store = Store(root / name / "store")
        for number in range(count):
            store.put(message("orders", name.encode(), keys=f"k{number}"))
        store.write()
    return root


def test_stores_come_as_a_list_a_comma_list_or_a_glob(fleet: Path) -> None:
    one, two, three = (str(fleet / name / "store") for name in ("a", "b", "c, d"))
    assert store_paths({"paths": json.dumps([two, one])}) == (two, one)
    assert store_paths({"path": f"{one}, {two}"}) == (one, two)
    assert store_paths({"path": f"{fleet}/*/store"}) == (one, two, three)
    assert store_paths({"path": three}) == (three,)
    assert store_paths({"path": f"file://{one}"}) == store_paths({"path": f"file:{one}"}) == (one,)
    for nothing in ({"path": ""}, {}, {"path": f"{fleet}/*/nothing"}):
        with pytest.raises(UsageError):
            store_paths(nothing)


def test_the_store_column_is_there_when_named_or_when_several_are_read(fleet: Path) -> None:
    one = str(fleet / "a" / "store")
    assert "store" not in ReadOptions.of({"path": one}).columns
    assert ReadOptions.of({"path": f"{fleet}/*/store"}).columns[-1] == "store"
    assert ReadOptions.of({"path": f"{fleet}/*/store", "columns": "topic"}).columns == ("topic",)
    assert read_all(reader_of(one, ("store", "size", "store")))[0]["store"] == one
    assert [row["store"] for row in read_all(reader_of(one, ("store",)))] == [one] * 3


# on Spark


@pytest.mark.parametrize("name", ["rocketmq", "rocketmq-queue"])
def test_a_table_of_the_catalog_is_refused_with_the_statements_that_work(name: str, mail: Path, spark: SparkSession) -> None:
    columns = "topic string, size int"
    for statement in (f"create table kept using `{name}` options (path '{mail}')", f"create table kept using `{name}` location '{mail}'"):
        with pytest.raises(PySparkException) as caught:
            spark.sql(statement)
        assert told(caught.value).startswith(f"Spark does not pass the path of a table in its catalog to {name}: use CREATE TEMPORARY VIEW")
    spark.sql(f"create temporary view passing using `{name}` options (path '{mail}')")
    spark.sql(f"create table kept ({columns}) using `{name}`")
    try:
        assert spark.sql("select count(*) from passing").collect() == [(400,)]
        assert spark.sql(f"select count(topic), min(size) > 0 from kept with (path = '{mail}')").collect() == [(400, True)]
        with pytest.raises(PySparkException) as caught:
            spark.sql("select * from kept").collect()
        assert "no store is given: load a path" in told(caught.value)
        assert "SELECT … FROM … WITH (path = '…')" in told(caught.value)
    finally:
        spark.sql("drop table kept")
        spark.catalog.dropTempView("passing")


@needs_filters
def test_a_fleet_is_one_table_and_a_condition_on_the_store_opens_one(fleet: Path, spark: SparkSession) -> None:
    paths = [str(fleet / name / "store") for name in ("a", "b", "c, d")]
    for place, columns in ((f"{fleet}/*/store", None), (paths, None), (paths, ["store", "topic"])):
        frame = read(spark, place, columns)
        assert {row["store"]: row["count"] for row in frame.groupBy("store").count().collect()} == dict(zip(paths, (3, 5, 7), strict=True))
        one = read(spark, place, columns, where=f"store = '{paths[1]}'")
        assert [each.store for each in explain_read(one).stores] == [paths[1]]
        assert one.count() == 5


@needs_filters
@pytest.mark.versions
def test_the_plan_of_a_read_says_what_is_scanned_and_why(spark: SparkSession) -> None:
    case = case_named("5.3.3/g-clean-small")
    columns = [*CHEAP, "uniq_key"]
    frame = read(spark, opened(case), columns)
    whole = explain_read(frame)
    assert whole.log_bytes > 0
    assert whole.records == 0
    assert "no condition on a queue's offsets or on keys" in str(whole)
    first = frame.orderBy("physical_offset").first()
    assert first is not None
    where = f"topic = '{first['topic']}' and queue_id = {first['queue_id']} and queue_offset < 4"
    by_queue = read(spark, opened(case), columns, where=where)
    told_of = explain_read(by_queue)
    assert (told_of.stores[0].how, told_of.log_bytes, told_of.records) == ("queue", 0, 4)
    assert by_queue.count() == 4
    by_key = read(spark, opened(case), columns, where=f"uniq_key = '{first['uniq_key']}'")
    assert explain_read(by_key.groupBy("topic").count()).stores[0].how == "index"
    assert explain_read(spark.range(3)).stores == ()


@pytest.mark.versions
def test_failfast_fails_the_job_with_a_sentence(spark: SparkSession) -> None:
    damaged = opened(case_named("4.9.3/m-damaged/16-everything"))
    assert read(spark, damaged, columns=["topic"], mode="PERMISSIVE").count() > 0
    with pytest.raises(PySparkException) as caught:
        read(spark, damaged, columns=["topic"], mode="FAILFAST").count()
    assert told(caught.value).startswith("mode=FAILFAST: ")


@pytest.mark.versions
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


@pytest.mark.versions
@pytest.mark.parametrize("condition", FILTERS)
def test_a_filter_gives_what_spark_would_keep_of_the_whole_table(condition: str, mail: Path, spark: SparkSession) -> None:
    columns = [*CHEAP, "tags", "keys", "uniq_key", "store_timestamp"]
    frame = read(spark, mail, columns=columns)
    whole = spark.createDataFrame(frame.collect(), frame.schema)
    wanted = rows(whole.where(condition))
    assert rows(frame.where(condition)) == wanted
    assert rows(read(spark, mail, columns=columns, where=condition)) == wanted


@pytest.mark.versions
def test_the_filters_of_one_query_do_not_reach_another_of_the_same_dataframe(mail: Path, spark: SparkSession) -> None:
    """Spark 4.2 keeps a source's response to the filters of one query, and gave the same rows to every later query of the DataFrame."""
    frame = read(spark, mail, columns=CHEAP)
    assert frame.where("queue_offset < 5").count() == 60
    assert frame.count() == 400
    assert frame.where("queue_offset < 5").union(frame.where("queue_offset >= 5")).count() == 400
    frame.createOrReplaceTempView("mail")
    both = spark.sql("select (select count(*) from mail where topic = 'orders') as few, (select count(*) from mail) as whole")
    assert both.collect()[0].asDict() == {"few": 134, "whole": 400}


@pytest.mark.versions
@pytest.mark.parametrize("condition", FILTERS)
def test_a_condition_may_name_columns_that_are_not_returned(condition: str, mail: Path, spark: SparkSession) -> None:
    wanted = rows(read(spark, mail, where=condition).select("physical_offset", "size"))
    found = read(spark, mail, columns=["physical_offset", "size"], where=condition)
    assert found.columns == ["physical_offset", "size"]
    assert rows(found) == wanted


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("length(body) = 7 and body_len = 7", 8),
        ("struct(*) is not null and queue_id = 2", 100),
        ("PROPERTIES['TAGS'] = 'T1' and store like '%mail%'", 200),
        ("`tags` = 'T1'", 200),
        ("exists(keys, key -> key = 'k5')", 1),
    ],
)
def test_any_column_can_be_in_a_condition(condition: str, count: int, mail: Path, spark: SparkSession) -> None:
    frame = read(spark, mail, columns=["topic"], where=condition)
    assert frame.columns == ["topic"]
    assert frame.count() == count


def test_a_condition_on_derived_files_may_name_columns_that_are_not_returned(mail: Path, spark: SparkSession) -> None:
    frame = read(spark, mail, columns=["queue_offset"], where="topic = 'orders' and queue_id = 1", format="rocketmq-queue")
    assert frame.columns == ["queue_offset"]
    assert [row[0] for row in frame.orderBy("queue_offset").collect()] == list(range(33))


def test_columns_that_neither_the_read_nor_its_condition_names_are_not_produced(mail: Path, spark: SparkSession) -> None:
    frame = read(spark, mail, columns=["size"], where="topic = 'orders'")
    (scan,) = re.findall(r"BatchScan rocketmq\[([^]]*)\]", frame._jdf.queryExecution().sparkPlan().toString())
    assert [name.partition("#")[0] for name in scan.split(", ")] == ["size", "topic"]


def test_an_error_in_a_condition_prints_nothing(mail: Path, spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    for where in ("colour = 'red'", "topic ="):
        with pytest.raises(PipelineError, match="planning the read failed"):
            read(spark, mail, columns=CHEAP, where=where)
    assert "".join(capfd.readouterr()) == ""


def test_a_condition_is_for_its_dataframe_alone_and_holds_for_all_its_queries(mail: Path, spark: SparkSession) -> None:
    frame = read(spark, mail, columns=CHEAP, where="topic = 'orders' and queue_offset < 9 and upper(topic) = 'ORDERS'")
    few = frame.count()
    assert 0 < few < 134
    assert frame.where("queue_offset >= 5").count() + frame.where("queue_offset < 5").count() == few
    assert read(spark, mail, columns=CHEAP).count() == 400


@needs_filters
def test_filters_travel_as_text() -> None:
    from pyspark.sql.datasource import EqualNullSafe, EqualTo, GreaterThan, In, IsNull, LessThanOrEqual, StringContains

    time = datetime(2022, 1, 1, 0, 0, 0, 1501, UTC)
    kept = (
        EqualTo(("topic",), "größe"),
        In(("queue_id",), (1, None)),
        GreaterThan(("store_timestamp",), time),
        EqualNullSafe(("a", "b"), None),
    )
    others = (IsNull(("tags",)), StringContains(("topic",), "x"), LessThanOrEqual(("body",), b"x"))
    assert filters_from(filters_as_text([*kept, *others])) == kept
    assert filters_from(None) == filters_from("[]") == ()
    for wrong in ("x", '[["Or", ["topic"], 1]]', "[1]"):
        with pytest.raises(UsageError, match="pass the condition there"):
            filters_from(wrong)


def test_a_condition_that_spark_does_not_understand_is_one_sentence(mail: Path, spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match=r"planning the read failed: .*colour"):
        read(spark, mail, columns=CHEAP, where="colour = 'red'")


@needs_filters
def test_filters_reach_the_reader() -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull, LessThanOrEqual, StringContains

    from mqstore.pipeline.source.pushdown import apply_filters

    time = datetime(2022, 1, 1, 0, 0, 0, 1500, UTC)
    found = apply_filters(
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


@needs_filters
@pytest.mark.parametrize(("values", "low", "high"), [((9, None, 5), 5, 10), ((None,), None, None)])
def test_a_list_of_offsets_is_a_range_from_the_lowest_on(values: tuple[int | None], low: int | None, high: int | None) -> None:
    from pyspark.sql.datasource import In

    from mqstore.pipeline.source.pushdown import apply_filters

    assert apply_filters(Selection(), [In(("physical_offset",), values)]) == Selection(from_offset=low, to_offset=high)


@needs_filters
def test_a_reader_applies_given_filters_and_hands_every_filter_back(mail: Path) -> None:
    from pyspark.sql.datasource import EqualTo, StringContains

    reader = PushingReader(ReadOptions.of({"path": str(mail)}), ("topic",))
    filters = [EqualTo(("topic",), "bills"), StringContains(("tags",), "T")]
    assert list(reader.pushFilters(filters)) == filters
    found = [topic for part in reader.partitions() for batch in reader.read(part) for topic in batch.column(0).to_pylist()]
    assert found == ["bills"] * 133


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"topic": "orders"}, lambda n, put: n % 3 == 0),
        ({"topic": "orders,bills"}, lambda n, put: n % 3 != 2),
        ({"subscribe": "orders,bills"}, lambda n, put: n % 3 != 2),
        ({"subscribePattern": "o.*|gr..e"}, lambda n, put: n % 3 != 1),
        ({"subscribePattern": "order"}, lambda n, put: False),
        ({"startingOffsets": "-2", "endingOffsets": "-1", "minPartitions": 7}, lambda n, put: True),
        ({"startingOffsets": "EARLIEST", "endingOffsets": "Latest"}, lambda n, put: True),
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
        ({"view": "recovered"}, "the view 'recovered' is not available on Spark"),
        ({"path": "/nowhere"}, "/nowhere does not exist"),
        ({"path": "/nowhere/*"}, "nothing matches /nowhere/*"),
        ({"columns": ","}, "no column is given"),
        ({"mode": "DROPMALFORMED"}, "option mode is 'DROPMALFORMED': give PERMISSIVE or FAILFAST"),
        ({"failOnDataLoss": "perhaps"}, "option failOnDataLoss is 'perhaps': give true or false"),
        ({"includeHeaders": "1"}, "option includeHeaders is '1': give true or false"),
        ({"queueId": "one"}, "option queueId is 'one': give numbers"),
        ({"topics": "orders"}, "a read of rocketmq has no option 'topics'; did you mean topic?"),
        ({"startingOffset": "5"}, "has no option 'startingoffset'; did you mean startingOffsets?"),
        ({"colour": "red"}, "has no option 'colour'; its options are columns, config"),
        ({"maxOffsetsPerTrigger": "5"}, "has no option 'maxoffsetspertrigger': it limits the batches of a stream"),
        ({"kafka.bootstrap.servers": "x:1"}, "a store is read from its directory, without a server"),
        ({"assign": "{}"}, "has no option 'assign': give topic and queueId"),
        ({"subscribe": "a", "topic": "b"}, "the options topic and subscribe mean the same: give one of them"),
        ({"subscribe": "a", "subscribePattern": "b"}, "exclude each other"),
        ({"subscribePattern": "("}, "option subscribePattern is '(', which is not a regular expression"),
        ({"endingOffsets": "-3"}, "option endingOffsets is -3: give a number of 0 or more, or 'latest'"),
        ({"startingQueueOffset": "last"}, "option startingQueueOffset is 'last': give a number or 'earliest'"),
    ],
)
def test_a_bad_option_is_reported_in_one_sentence(options: dict[str, str], sentence: str, mail: Path, spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.read.format("rocketmq").options(**{"path": str(mail), **options}).load().count()
    assert sentence in told(caught.value)


@pytest.mark.parametrize(
    ("format_", "columns", "options", "sentence"),
    [
        ("rocketmq", ["colour"], {}, "there is no column 'colour'"),
        ("rocketmq", None, {"topics": "orders"}, "has no option 'topics'; did you mean topic?"),
        ("rocketmq", None, {"startingQueueOffset": "last"}, "option startingQueueOffset is 'last'"),
        ("rocketmq", None, {"mode": "LOUD"}, "option mode is 'LOUD'"),
        ("rocketmq-queue", ["colour"], {}, "there is no column 'colour'"),
        ("rabbitmq", None, {}, 'is a RocketMQ store; read it with format("rocketmq")'),
        ("rabbitmq", None, {"view": "all"}, "a RabbitMQ store has no view 'all'"),
    ],
)
def test_read_refuses_before_spark_is_asked(
    format_: str, columns: list[str] | None, options: dict[str, str], sentence: str, mail: Path, spark: SparkSession
) -> None:
    with pytest.raises(MqstoreError, match=re.escape(sentence)):
        read(spark, mail, columns, format=format_, **options)


@pytest.mark.parametrize("format_", ["rocketmq", "rocketmq-queue", "rabbitmq"])
def test_read_of_a_path_without_a_store_is_refused_before_spark_is_asked(format_: str, tmp_path: Path, spark: SparkSession) -> None:
    for path in (tmp_path / "nowhere", [tmp_path / "nowhere", tmp_path / "neither"]):
        with pytest.raises(MqstoreError, match=r"nowhere does not exist"):
            read(spark, path, format=format_)


def test_a_schema_of_another_type_is_refused(mail: Path, spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.read.format("rocketmq").schema("size bigint").load(str(mail)).count()
    assert "column size is of type int, the schema says bigint" in told(caught.value)


@pytest.mark.parametrize("schema", ["tags string not null", "properties struct<a:int>", "size int, tags string not null"])
def test_a_schema_that_rules_out_nulls_is_refused(schema: str, mail: Path, spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.read.format("rocketmq").schema(schema).load(str(mail)).collect()
    wanted = "column tags can be null, the schema says that it, or a part of it, is not: omit NOT NULL"
    assert (wanted if "null" in schema else "column properties is of type map<string,string>") in told(caught.value)


def test_a_schema_loses_no_row_for_its_nulls(mail: Path, spark: SparkSession) -> None:
    """Whatever is asked of a column: the rows with and without a value are all rows, or the query is refused."""
    for spelt in ("uniq_key", "UNIQ_KEY", "Uniq_Key"):
        frame = spark.read.format("rocketmq").schema(f"TOPIC string, {spelt} string").load(str(mail))
        counts = [frame.where(f"uniq_key is {word}null").count() for word in ("", "not ")]
        assert counts == [400, 0]
        assert frame.count() == len(frame.collect()) == 400
        declared = spark.read.format("rocketmq").schema(f"TOPIC string, {spelt} string not null").load(str(mail))
        queries: list[DataFrame] = [declared, declared.select("topic"), declared.where("uniq_key is not null"), declared.groupBy().count()]
        for query in queries:
            with pytest.raises(PySparkException) as caught:
                query.collect()
            assert f"column {spelt} can be null, the schema says that it" in told(caught.value)
        # Spark answers this from the declaration, without asking the source; a narrowed query asks it
        with pytest.raises(UsageError, match=f"column {spelt} can be null"):
            narrowed(declared.where("uniq_key is null"))


def test_a_schema_that_rules_out_nulls_in_a_part_is_refused(mail: Path) -> None:
    from pyspark.sql.types import ArrayType, StringType, StructType

    schema = StructType().add("keys", ArrayType(StringType(), containsNull=False))
    with pytest.raises(UsageError, match="column keys can be null, the schema says that it, or a part of it, is not"):
        RocketMQDataSource({"path": str(mail)}).reader(schema)


def test_names_of_columns_do_not_depend_on_case(mail: Path, spark: SparkSession) -> None:
    wanted = [tuple(row) for row in read(spark, mail, columns=["topic", "size"]).collect()]
    by_schema = spark.read.format("rocketmq").schema("TOPIC string, Size int").load(str(mail))
    assert by_schema.columns == ["TOPIC", "Size"]
    assert [tuple(row) for row in by_schema.collect()] == wanted
    assert read(spark, mail, columns=["TOPIC", "Size"]).columns == ["topic", "size"]
    assert read(spark, mail, columns=["Size"], where="TOPIC = 'orders' and Queue_ID = 1").count() == 33
    queues = spark.read.format("rocketmq-queue").schema("Physical_Offset bigint, STORE string").load(str(mail))
    assert queues.collect()[0].asDict().keys() == {"Physical_Offset", "STORE"}


def test_a_read_has_at_least_as_many_tasks_as_minpartitions_says(mail: Path) -> None:
    assert len(reader_of(mail).partitions()) == 1
    for wanted in (2, 7):
        reader = reader_of(mail, minPartitions=wanted)
        assert len(reader.partitions()) == wanted
        assert len(read_all(reader)) == 400


def test_an_unknown_column_is_refused_before_spark_runs(mail: Path, spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="no column 'colour'"):
        read(spark, mail, columns=["colour"])


@needs_filters
def test_a_query_in_sql_is_explained_as_its_dataframe(spark: SparkSession, mail: Path) -> None:
    read(spark, mail, columns=["topic", "size"], where="physical_offset < 20000").createOrReplaceTempView("few_mails")
    text = "select topic, count(*) from few_mails group by topic"
    assert str(explain_read(text)) == str(explain_read(text, spark)) == str(explain_read(spark.sql(text)))
    assert explain_read(text).log_bytes == 20000
    with pytest.raises(PipelineError, match="no_such_view"):
        explain_read("select * from no_such_view", spark)
