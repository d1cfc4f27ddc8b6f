"""The stream of a growing log: every message once and in order, whatever happens to the writer, the files and the query."""

from __future__ import annotations

import json
import random
import shutil
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from support.golden import CASES, GoldenCase, case_id, case_named, opened, unchanged
from support.queries import drained
from support.spark_api import needs_streams
from support.stores import BEGIN, Store, message

import mqstore
from mqstore.errors import PipelineError, UsageError
from mqstore.pipeline.source.rocketmq import read, register
from mqstore.pipeline.source.stream import LogRange, RocketMQStreamReader, read_range
from mqstore.pipeline.spark.failures import error_sentence as told
from mqstore.pipeline.spark.source_api import ReadAllAvailable
from mqstore.rocketmq import MessageStore
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.scan.log_tail import LogPosition, LogTail
from mqstore.table.columns import ROCKETMQ_COLUMNS, Selection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = needs_streams

FILE = 1 << 15
CONFIG = StoreConfig(version="4.9.3", commit_log_file_size=FILE, max_hash_slot_num=100, max_index_num=5000, services=False)
ORDER = ("topic", "queue_id", "queue_offset", "physical_offset")


class Writer:
    """A store that is being written, by an engine that may be killed. offsets: of all messages that were put."""

    def __init__(self, path: Path, seed: int = 1) -> None:
        self.path = path
        self.random = random.Random(seed)
        self.store = MessageStore.open(path, CONFIG)
        self.offsets: list[int] = []

    def put(self, count: int) -> None:
        for _ in range(count):
            number = len(self.offsets)
            body = self.random.randbytes(self.random.randrange(900))
            result = self.store.put(Message(f"t{number % 3}", body, queue_id=number % 2, keys=f"k{number}"))
            assert result.stored, result.detail
            self.offsets.append(result.physical_offset)
        self.store.dispatch_now()

    def kill(self) -> None:
        """End as a killed process does, and start again."""
        self.store.abandon()
        self.store = MessageStore.open(self.path, CONFIG)

    def retire(self, files: int) -> int:
        """Remove the oldest log files; return the offset at which the log begins then."""
        for _ in range(files):
            self.store.log.remove_first()
        return self.store.log.min_offset


def offsets_in(tail: LogTail, start: LogPosition, end: LogPosition, least: int = 0) -> list[int]:
    config = mqstore.open(tail.path).config
    token = f"{end.offset} {random.random()}"
    return [
        offset
        for piece in tail.pieces(start, end, least=least)
        for batch in read_range(LogRange(tail.path, config, token, piece, False), ("physical_offset",), Selection())
        for offset in batch.column(0).to_pylist()
    ]


# the tail of one log, without Spark


@pytest.mark.parametrize("seed", range(6))
def test_every_message_comes_once_and_in_order_while_writer_and_reader_die(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    writer = Writer(tmp_path / "store", seed)
    tail = LogTail(str(writer.path))
    position, found = tail.earliest(), []
    for _ in range(60):
        match chance.randrange(5):
            case 0:
                writer.kill()
            case 1:
                tail = LogTail(str(writer.path))  # a query that starts again knows no more than its checkpoint
            case _:
                writer.put(chance.randrange(40))
        rows, size = chance.choice([None, None, 1, 7, 30]), chance.choice([None, None, 1, 5000, 40_000])
        step = tail.advance(position, rows=rows, size=size)
        batch = offsets_in(tail, position, step.end, chance.choice([0, 0, 3]))
        assert len(batch) == step.records
        assert rows is None or len(batch) <= rows
        assert size is None or len(batch) <= 1 or batch[-1] - position.offset < size
        position = LogPosition.from_json(step.end.as_json())
        found += batch
    while (step := tail.advance(position, rows=50)).end != position:
        found += offsets_in(tail, position, step.end)
        position = step.end
    assert found == writer.offsets
    assert writer.store.log.max_offset > 5 * FILE
    writer.store.close()


def test_a_reader_beside_the_writer_sees_whole_records_only(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "store")
    tail, found = LogTail(str(writer.path), fail_fast=True), []
    position = tail.earliest()
    writing = threading.Thread(target=lambda: [writer.put(50) for _ in range(80)])
    writing.start()
    while True:
        alive = writing.is_alive()
        step = tail.advance(position)
        found += offsets_in(tail, position, step.end)
        position = step.end
        if not alive:
            break
    writing.join()
    assert found == writer.offsets
    assert len(found) == 4000
    writer.store.close()


def test_a_batch_is_cut_again_by_a_query_that_did_not_plan_it(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "store")
    writer.put(200)
    tail = LogTail(str(writer.path))
    start = tail.advance(tail.earliest(), rows=70).end
    end = tail.advance(start, rows=50).end
    for least in (0, 1, 9):
        for ask in (LogTail.earliest, LogTail.latest, lambda tail: tail.advance(tail.earliest(), rows=100)):
            other = LogTail(str(writer.path))
            ask(other)
            assert offsets_in(other, start, end, least) == writer.offsets[70:120]
    assert len(tail.pieces(start, end, least=9)) <= 9
    writer.store.close()


def test_nothing_new_leaves_the_position_as_it_is(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "store")
    tail = LogTail(str(writer.path))
    start = tail.earliest()
    assert start == LogPosition(0)
    assert tail.advance(start).end is start
    writer.put(3)
    end = tail.advance(start).end
    assert tail.advance(end).end is end
    assert end == tail.latest()
    writer.store.close()


def test_a_torn_tail_is_not_data_until_it_is_whole(tmp_path: Path) -> None:
    store = Store(tmp_path, file_size=65536)
    for number in range(5):
        store.put(message("orders", b"x" * 3000, keys=f"k{number}"))
    path = store.write()
    last = store.puts[-1]
    tail = LogTail(str(path))
    for there in (0, 4, 8, 50, 100, 2000, len(last.raw) - 1):
        store.patch_log(last.offset, last.raw[:there].ljust(len(last.raw), b"\0"))
        step = tail.advance(tail.earliest())
        assert (step.end.offset, step.records) == (last.offset, 4), there
        assert tail.latest() == step.end
    store.patch_log(last.offset, last.raw)
    rest = tail.advance(step.end)
    assert (rest.end.offset, rest.records) == (last.offset + len(last.raw), 1)


def test_a_last_record_whose_middle_pages_are_missing_waits_and_does_not_stay_away_for_good(tmp_path: Path) -> None:
    store = Store(tmp_path, file_size=65536)
    for _ in range(4):
        store.put(message("orders", b"x" * 9000))
    path = store.write()
    store.patch_log(store.puts[2].offset + 200, bytes(4096))
    tail = LogTail(str(path))
    # a record follows it: it is final
    assert tail.advance(tail.earliest()).records == 4
    store.patch_log(store.puts[3].offset, bytes(len(store.puts[3].raw)))
    assert tail.advance(tail.earliest()).records == 2
    store.patch_log(store.puts[2].offset, store.puts[2].raw)
    assert tail.advance(tail.earliest()).records == 3


def test_the_end_of_a_file_leads_to_the_next_one_and_zeros_there_are_the_end(tmp_path: Path) -> None:
    store = Store(tmp_path, file_size=8192)
    while len(store.files) < 3:
        store.put(message("orders", b"x" * 1000))
    third = store.puts.pop()
    store.files[16384] = bytearray()
    path = store.write()
    tail = LogTail(str(path))
    end = tail.advance(tail.earliest()).end
    assert (end.offset, tail.advance(end).records) == (16384, 0)
    store.patch_log(third.offset, third.raw)
    assert tail.advance(end).records == 1


def test_files_that_retention_removed_unread_are_an_error_that_names_what_is_lost(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "store")
    writer.put(300)
    strict, lenient = LogTail(str(writer.path)), LogTail(str(writer.path), tolerate_loss=True)
    read_to = strict.advance(strict.earliest(), rows=10).end
    start = writer.retire(2)
    with pytest.raises(PipelineError, match=f"has lost physical offsets {read_to.offset} to {start - 1} .* failOnDataLoss=false"):
        strict.advance(read_to)
    step = lenient.advance(read_to)
    assert step.end.lost == start - read_to.offset
    assert LogPosition.from_json(step.end.as_json()) == step.end
    assert offsets_in(lenient, read_to, step.end) == [offset for offset in writer.offsets if offset >= start]
    # files already read may be removed
    assert strict.advance(step.end).records == 0
    writer.put(200)
    writer.retire(2)
    assert strict.advance(step.end).records == 200
    writer.store.close()


def test_a_missing_file_in_the_middle_is_a_loss_too(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "store")
    writer.put(300)
    writer.store.close()
    (writer.path / f"commitlog/{FILE:020d}").unlink()
    with pytest.raises(PipelineError, match=f"has lost physical offsets {FILE} to {2 * FILE - 1}"):
        LogTail(str(writer.path)).advance(LogPosition(0))
    lenient = LogTail(str(writer.path), tolerate_loss=True)
    step = lenient.advance(LogPosition(0))
    assert step.end.lost == FILE
    assert offsets_in(lenient, LogPosition(0), step.end) == [offset for offset in writer.offsets if not FILE <= offset < 2 * FILE]


def test_another_log_in_the_same_place_is_noticed(tmp_path: Path) -> None:
    first, second = Writer(tmp_path / "a", 1), Writer(tmp_path / "b", 2)
    for writer in (first, second):
        writer.put(60)
        writer.store.close()
    tail = LogTail(str(first.path))
    end = tail.advance(tail.earliest()).end
    first.path.rename(tmp_path / "moved")
    assert LogTail(str(tmp_path / "moved")).advance(end).end == end  # a store may be moved, or be a copy
    second.path.rename(first.path)
    with pytest.raises(PipelineError, match=r"is not the one that was read .* new checkpointLocation"):
        tail.advance(end)
    shutil.rmtree(first.path / "commitlog")
    with pytest.raises(mqstore.errors.CannotOpenError, match="has no log files any more"):
        tail.advance(end)


def test_a_stream_begins_where_requested(tmp_path: Path) -> None:
    store = Store(tmp_path, file_size=8192)
    for number in range(60):
        store.put(message("orders", b"x" * 500), at=10 * number)
    tail = LogTail(str(store.write()))
    for number in (0, 1, 11, 12, 13, 14, 30, 59):
        put = store.puts[number]
        assert tail.at(put.offset).offset == tail.since(put.time).offset == put.offset
        behind = tail.at(put.offset + 1).offset
        assert behind in {put.offset + len(put.raw), -(-put.offset // 8192) * 8192}
        assert tail.since(put.time + 1).offset == behind
    assert tail.since(0) == tail.earliest() == tail.at(0)
    with pytest.raises(UsageError, match=r"startingOffsets is 999999, but the log of .* covers 0 to"):
        tail.at(999_999)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_a_golden_store_streamed_whole_is_its_message_table(case: GoldenCase) -> None:
    source = opened(case)
    store = mqstore.open(source, config=case.config)
    whole = [row for batch in store.view().batches(ROCKETMQ_COLUMNS) for row in batch.to_pylist()]
    if whole and whole[-1]["body_crc_ok"] is False:
        whole.pop()  # as the last record of a log it may still be incomplete
    with unchanged(source):
        tail = LogTail(str(source), store.config.commit_log_file_size, tolerate_loss=True)
        position, found, end = tail.earliest(), [], tail.latest()
        for rows in (1, 40, None):
            step = tail.advance(position, rows=rows)
            pieces = tail.pieces(position, step.end, least=5)
            found += [
                row
                for piece in pieces
                for batch in read_range(LogRange(str(source), store.config, f"{step.end}", piece, True), ROCKETMQ_COLUMNS, Selection())
                for row in batch.to_pylist()
            ]
            position = step.end
    assert found == whole
    assert position.offset == end.offset


# the stream


def drain(frame: DataFrame, checkpoint: Path, **options: Any) -> list[list[dict[str, Any]]]:
    """Read everything; return the rows of each batch, in the order of the log."""
    batches: dict[int, list[dict[str, Any]]] = {}

    def take(batch: DataFrame, number: int) -> None:
        rows = [row.asDict() for row in batch.collect()]
        batches[number] = sorted(rows, key=lambda row: (row.get("store", ""), row["physical_offset"]))

    drained(frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint)))
    assert sorted(batches) == list(batches)
    return list(batches.values())


def stream(spark: SparkSession, *paths: Path, **options: Any) -> DataFrame:
    register(spark)
    chosen = {"startingOffsets": "earliest", "columns": ",".join(ORDER), **options}
    return spark.readStream.format("rocketmq").options(**chosen).load(",".join(map(str, paths)))


def in_order(rows: list[dict[str, Any]]) -> bool:
    """Return whether the messages of each queue come in ascending queue offsets, none missing."""
    queues: dict[tuple[str, int], list[int]] = {}
    for row in rows:
        queues.setdefault((row["topic"], row["queue_id"]), []).append(row["queue_offset"])
    return all(b == a + 1 for offsets in queues.values() for a, b in pairwise(offsets))


@pytest.mark.versions
@pytest.mark.long
def test_a_query_that_is_restarted_reads_every_message_once(spark: SparkSession, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "store")
    found: list[dict[str, Any]] = []
    for number in range(4):
        writer.put(120)
        if number % 2:
            writer.kill()
        batches = drain(stream(spark, writer.path, maxRowsPerTrigger=50, minPartitions=3), tmp_path / "checkpoint")
        assert [len(batch) for batch in batches] == [50, 50, 20]
        found += [row for batch in batches for row in batch]
    assert drain(stream(spark, writer.path), tmp_path / "checkpoint") == []
    assert [row["physical_offset"] for row in found] == writer.offsets
    assert in_order(found)
    writer.store.close()


def test_available_now_ends_at_what_was_there_when_it_began(tmp_path: Path) -> None:
    from mqstore.pipeline.spark.source_api import ReadMaxRows

    writer = Writer(tmp_path / "store")
    writer.put(10)
    reader = RocketMQStreamReader({"path": str(writer.path), "startingOffsets": "earliest"}, ORDER)
    offset = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    writer.put(10)
    read_ = 0
    while (after := reader.latestOffset(offset, ReadMaxRows(4))) != offset:
        read_ += sum(batch.num_rows for part in reader.partitions(offset, after) for batch in reader.read(part))
        offset = after
    assert read_ == 10
    writer.store.close()


def test_a_batch_waits_for_the_least_number_of_messages_but_not_longer_than_the_delay(tmp_path: Path) -> None:

    writer = Writer(tmp_path / "store")
    writer.put(3)
    given = {"path": str(writer.path), "startingOffsets": "earliest", "minOffsetsPerTrigger": "5"}
    reader = RocketMQStreamReader({**given, "maxTriggerDelay": "1h"}, ORDER)
    first = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert first != reader.initialOffset()
    writer.put(4)
    assert reader.latestOffset(first, ReadAllAvailable()) == first
    impatient = RocketMQStreamReader({**given, "maxTriggerDelay": "0s"}, ORDER)
    assert impatient.latestOffset(first, ReadAllAvailable()) != first
    assert impatient.latestOffset(first, ReadAllAvailable()) != first
    writer.put(1)
    after = reader.latestOffset(first, ReadAllAvailable())
    assert sum(batch.num_rows for part in reader.partitions(first, after) for batch in reader.read(part)) == 5
    writer.put(1)
    assert reader.latestOffset(after, ReadAllAvailable()) == after
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(after, ReadAllAvailable()) != after
    writer.store.close()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"maxTriggerDelay": "soon"}, "option maxTriggerDelay is 'soon': give a time such as 30s, 15m or 2h"),
        ({"minOffsetsPerTrigger": "5", "maxRowsPerTrigger": "4"}, "option minOffsetsPerTrigger is 5, more than maxRowsPerTrigger, 4"),
    ],
)
def test_a_wait_that_cannot_end_is_refused(options: dict[str, str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=sentence):
        RocketMQStreamReader({"path": str(tmp_path), **options}, ORDER)


def test_rows_have_all_columns_of_the_batch_source(spark: SparkSession, tmp_path: Path) -> None:
    case = case_named("5.3.3/i-v2-codecs-crc")
    frame = stream(spark, opened(case), columns=",".join(ROCKETMQ_COLUMNS), config=str(case.config))
    (rows,) = drain(frame, tmp_path / "checkpoint")
    wanted = read(spark, opened(case), config=case.config)
    assert frame.schema == wanted.schema
    assert rows == sorted((row.asDict() for row in wanted.collect()), key=lambda row: row["physical_offset"])


@pytest.mark.versions
def test_several_stores_are_one_stream(spark: SparkSession, tmp_path: Path) -> None:
    writers = [Writer(tmp_path / name, seed) for seed, name in enumerate(("a", "b"))]
    found: list[dict[str, Any]] = []
    for _ in range(2):
        for writer, count in zip(writers, (70, 10), strict=True):
            writer.put(count)
        columns = ",".join((*ORDER, "store"))
        frame = stream(spark, *(writer.path for writer in writers), columns=columns, maxRowsPerTrigger=30)
        batches = drain(frame, tmp_path / "checkpoint")
        assert max(map(len, batches)) <= 30
        found += [row for batch in batches for row in batch]
    for writer in writers:
        mine = [row for row in found if row["store"] == str(writer.path)]
        assert [row["physical_offset"] for row in mine] == writer.offsets
        writer.store.close()


def test_options_choose_messages_and_the_beginning(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path / "store", file_size=8192)
    for number in range(60):
        store.put(message(("orders", "bills")[number % 2], b"x" * 500, keys=f"k{number}"))
    path = store.write()
    late = store.puts[40]

    def offsets(name: str, **options: Any) -> list[int]:
        return [row["physical_offset"] for batch in drain(stream(spark, path, **options), tmp_path / name) for row in batch]

    assert offsets("a", topic="bills", startingOffsets=late.offset) == [put.offset for put in store.puts[41::2]]
    assert offsets("b", keys="k1 k3", startingTimestamp=BEGIN + 2) == [store.puts[3].offset]
    assert offsets("c", startingOffsets=f'{{"{path}": {late.offset}}}') == [put.offset for put in store.puts[40:]]
    assert offsets("d", startingOffsets="-1") == offsets("e", startingOffsets="latest") == []
    by_kafka = drain(stream(spark, path, subscribePattern="b.*s", startingOffsets="-2", maxOffsetsPerTrigger=25), tmp_path / "f")
    assert [len(batch) for batch in by_kafka] == [12, 13, 5]


def test_a_stream_that_retention_has_overtaken_stops_with_the_lost_range(spark: SparkSession, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "store")
    writer.put(100)
    drain(stream(spark, writer.path), tmp_path / "checkpoint")
    behind = writer.store.log.max_offset
    writer.put(300)
    start = writer.retire(4)
    with pytest.raises(PySparkException) as caught:
        drain(stream(spark, writer.path), tmp_path / "checkpoint")
    assert f"has lost physical offsets {behind} to {start - 1}" in told(caught.value)
    (rows,) = drain(stream(spark, writer.path, failOnDataLoss="false"), tmp_path / "checkpoint")
    assert [row["physical_offset"] for row in rows] == [offset for offset in writer.offsets if offset >= start]
    writer.store.close()


class Query:
    """A stream's reader as Spark leads it: each step plans and reads a batch, from the offset at which the last one ended."""

    def __init__(self, path: Path, **options: str) -> None:
        self.options = {"path": str(path), "startingOffsets": "earliest", **options}
        self.path = str(path)
        self.start_again()
        self.offset = self.reader.initialOffset()

    def start_again(self) -> None:
        self.reader = RocketMQStreamReader(self.options, ("physical_offset",))

    def plan(self) -> dict[str, Any]:
        from mqstore.pipeline.spark.source_api import ReadAllAvailable

        return self.reader.latestOffset(self.offset, ReadAllAvailable())

    def read(self, end: dict[str, Any]) -> list[int]:
        parts = self.reader.partitions(self.offset, end)
        found = [offset for part in parts for batch in self.reader.read(part) for offset in batch.column(0).to_pylist()]
        self.offset = end
        return found

    @property
    def lost(self) -> int:
        return int(self.offset[self.path].get("lost", 0))


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("removed", ["head", "middle", "all but the last"])
def test_what_is_lost_after_its_batch_was_planned_is_counted_in_the_next_offset(removed: str, restarted: bool, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "store")
    writer.put(400)
    writer.store.close()
    query = Query(writer.path, failOnDataLoss="false")
    end = query.plan()
    files = sorted((writer.path / "commitlog").iterdir())[:-1]
    gone = {"head": files[:2], "middle": files[1:2], "all but the last": files}[removed]
    for file in gone:
        file.unlink()
    if restarted:
        query.start_again()
    ranges = [range(int(file.name), int(file.name) + FILE) for file in gone]
    found = query.read(end)
    assert found == [offset for offset in writer.offsets if not any(offset in each for each in ranges)]
    assert query.lost == 0  # that offset was in the checkpoint before
    for _ in range(3):
        end = query.plan()
        assert query.read(end) == []
        assert query.lost == FILE * len(gone)
    again = MessageStore.open(writer.path, CONFIG) if removed != "middle" else None
    if again is not None:
        offset = again.put(Message("t1", b"more")).physical_offset
        again.dispatch_now()
        assert query.read(query.plan()) == [offset]
        assert query.lost == FILE * len(gone)
        again.close()


def test_a_batch_that_lost_files_is_an_error_by_default_also_in_the_middle(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "store")
    writer.put(300)
    writer.store.close()
    query = Query(writer.path)
    end = query.plan()
    (writer.path / f"commitlog/{FILE:020d}").unlink()
    for _ in range(2):
        with pytest.raises(PipelineError, match=rf"has lost (physical offsets {FILE} to|{FILE} bytes of the batch).* failOnDataLoss=false"):
            query.read(end)
        query.start_again()


@pytest.mark.parametrize(
    ("loss", "advice"), [("true", "failOnDataLoss=false continues"), ("false", "start the query again: it counts the loss")]
)
def test_a_task_whose_file_vanished_since_the_batch_was_cut_fails_instead_of_giving_fewer_rows(
    loss: str, advice: str, tmp_path: Path
) -> None:
    writer = Writer(tmp_path / "store")
    writer.put(300)
    writer.store.close()
    query = Query(writer.path, failOnDataLoss=loss)
    end = query.plan()
    parts = query.reader.partitions(query.offset, end)
    (writer.path / f"commitlog/{0:020d}").unlink()
    with pytest.raises(PipelineError, match=f"the log file {0:020d} of .* was removed before it was read: .*{advice}"):
        [batch for part in parts for batch in query.reader.read(part)]
    if loss == "false":
        query.start_again()
        assert query.read(end) == [offset for offset in writer.offsets if offset >= FILE]
        query.read(query.plan())
        assert query.lost == FILE


def test_a_directory_that_was_replaced_stops_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    writers = [Writer(tmp_path / name, seed) for seed, name in enumerate(("store", "other"))]
    for writer in writers:
        writer.put(50)
        writer.store.close()
    drain(stream(spark, tmp_path / "store"), tmp_path / "checkpoint")
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "other").rename(tmp_path / "store")
    with pytest.raises(PySparkException) as caught:
        drain(stream(spark, tmp_path / "store"), tmp_path / "checkpoint")
    assert "is not the one that was read" in told(caught.value)


def test_damage_stops_a_stream_only_in_mode_failfast(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for _ in range(6):
        store.put(message("orders", b"x" * 300))
    path = store.write()
    store.patch_log(store.puts[2].offset + 4, b"\xff" * 4)
    (rows,) = drain(stream(spark, path), tmp_path / "a")
    assert [row["queue_offset"] for row in rows] == [0, 1, 3, 4, 5]
    with pytest.raises(PySparkException) as caught:
        drain(stream(spark, path, mode="failfast"), tmp_path / "b")
    assert f"bytes at {store.puts[2].offset} are damaged" in told(caught.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"endingOffsets": "latest"}, "a stream has no option 'endingOffsets': it follows the log"),
        ({"startingOffsets": "first"}, "give earliest, latest, a physical offset, or an object of them"),
        ({"startingOffsets": '{"/else": 3}'}, "startingOffsets names /else, which is not among the stores"),
        ({"startingOffsets": "-5"}, "option startingOffsets is '-5': give earliest, latest, a physical offset"),
        ({"maxOffsetPerTrigger": "5"}, "a stream has no option 'maxOffsetPerTrigger'; did you mean maxOffsetsPerTrigger?"),
        ({"useDerivedFiles": "false"}, "a stream has no option 'useDerivedFiles': a stream reads the log"),
        ({"maxOffsetsPerTrigger": "0"}, "option maxRowsPerTrigger is '0'"),
        ({"maxRowsPerTrigger": "0"}, "option maxRowsPerTrigger is '0': give a number of 1 or more"),
        ({"maxBytesPerTrigger": "many"}, "option maxBytesPerTrigger is 'many'"),
        ({"startingTimestamp": "-1"}, "option startingTimestamp is '-1'"),
    ],
)
def test_a_bad_option_is_one_sentence(options: dict[str, str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=sentence.replace("(", r"\(")):
        RocketMQStreamReader({"path": str(tmp_path), **options}, ORDER)


def rows_of(path: Path, **options: str) -> list[dict[str, Any]]:
    """Return all that a stream gives, without Spark."""
    reader = RocketMQStreamReader({"path": str(path), "startingOffsets": "earliest", **options}, (*ORDER, "store_timestamp"))
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def test_a_stream_begins_at_offsets_by_queue_as_kafka_gives_them(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for number in range(60):
        store.put(message(("orders", "bills")[number % 2], queue_id=number // 2 % 2), at=number)
    path = store.write()
    whole = rows_of(path)
    assert len(whole) == 60

    def left(bounds: dict[tuple[str, int], int], column: str) -> list[dict[str, Any]]:
        return [row for row in whole if value(row, column) >= bounds.get((row["topic"], row["queue_id"]), 0)]

    def value(row: dict[str, Any], column: str) -> int:
        return int(row[column].timestamp() * 1000) if column == "store_timestamp" else int(row[column])

    assert rows_of(path, startingOffsets='{"orders": {"0": 7, "1": -2}, "bills": {"1": 14}}') == left(
        {("orders", 0): 7, ("bills", 1): 14}, "queue_offset"
    )
    since = BEGIN + 31
    assert rows_of(path, startingOffsetsByTimestamp=f'{{"bills": {{"0": {since}}}}}') == left({("bills", 0): since}, "store_timestamp")
    assert rows_of(path, topic="orders", startingOffsets='{"orders": {"0": 900, "1": 14}}') == [
        row for row in whole if (row["topic"], row["queue_id"]) == ("orders", 1) and row["queue_offset"] >= 14
    ]
    with pytest.raises(UsageError, match=r"give numbers of 0 or more \(-2 for earliest\) by topic and queue"):
        rows_of(path, startingOffsets='{"orders": {"0": -1}}')


def test_a_stream_from_an_offset_that_a_queue_no_longer_has_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path, start=3 * 65536)
    store.next_queue_offset["orders", 0] = 5
    for _ in range(9):
        store.put(message("orders"))
    path, begin = store.write(), '{"orders": {"0": 2}}'
    with pytest.raises(PipelineError, match=r"offsets 2 to 4 of queue 0 of orders were requested.*failOnDataLoss=false reads the rest"):
        rows_of(path, startingOffsets=begin)
    assert rows_of(path, startingOffsets=begin, failOnDataLoss="false") == rows_of(path)


def test_a_place_without_a_store_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException) as caught:
        drain(stream(spark, tmp_path / "nowhere"), tmp_path / "checkpoint")
    assert "nowhere does not exist" in told(caught.value)


LATE_ONCE = """#!/bin/sh
case "$*" in *streaming_source*) [ -e {mark} ] || { touch {mark}; sleep 12; } ;; esac
exec {python} "$@"
"""


@pytest.mark.long
def test_a_stream_that_spark_did_not_wait_for_is_started_again_and_said(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path / "store")
    writer.put(20)
    worker = tmp_path / "python"
    worker.write_text(LATE_ONCE.replace("{mark}", str(tmp_path / "late")).replace("{python}", sys.executable))
    worker.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(worker))
    with pytest.warns(UserWarning, match="started again: a Python worker did not start within the 10 seconds that Spark allows"):
        batches = drain(stream(spark, writer.path), tmp_path / "checkpoint")
    monkeypatch.undo()
    register(spark)
    assert [row["physical_offset"] for batch in batches for row in batch] == writer.offsets


@pytest.mark.versions
def test_the_progress_of_a_query_says_how_far_it_is_behind(spark: SparkSession, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "store")
    writer.put(90)
    frame = stream(spark, writer.path, startingOffsets="earliest", maxRowsPerTrigger=40)
    query = drained(frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "mark")))
    told_of = [json.loads(progress["sources"][0]["latestOffset"]) for progress in query.recentProgress if progress["numInputRows"]]
    end = LogTail(str(writer.path), FILE).latest().offset
    lags = [found[str(writer.path)] for found in told_of]
    assert [lag["behind_messages"] for lag in lags] == [50, 10, 0]
    assert {lag["off"] for lag in lags} == {end}
    assert lags[0]["behind_bytes"] == end - writer.offsets[40]
    assert (lags[-1]["behind_bytes"], lags[-1]["behind_seconds"], lags[-1]["lost"]) == (0, 0.0, 0)
