"""Following a log: Parquet files or a second store that have every message exactly once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from support.golden import case_named, opened, run_cli, unchanged
from support.spark_api import needs_streams
from support.stores import Store, message

import mqstore
from mqstore.errors import MqstoreError, PipelineError, TargetError, UsageError
from mqstore.pipeline.tail.follow import FollowedBatch, FollowReport, follow
from mqstore.pipeline.tail.sinks import MANIFEST, STATE
from mqstore.rocketmq import MessageStore
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.format.message import Message
from mqstore.table.columns import ROCKETMQ_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [needs_streams, pytest.mark.spark_in_all]

FILE = 1 << 15
CONFIG = StoreConfig(version="4.9.3", commit_log_file_size=FILE, max_hash_slot_num=100, max_index_num=5000, services=False)


def put(store: MessageStore, count: int) -> None:
    for number in range(count):
        result = store.put(Message(f"t{number % 3}", b"x" * (number % 700), queue_id=number % 2, keys=f"k{number}", tags="T"))
        assert result.stored, result.detail
    store.dispatch_now()


def offsets(path: Path) -> list[int]:
    """Return the physical offsets in the disk view of a store."""
    return [offset for batch in mqstore.open(path).view().batches(["physical_offset"]) for offset in batch.column(0).to_pylist()]


def followed(out: Path) -> list[int]:
    """Return the physical offsets in the Parquet files, batch by batch, in the order of the batches."""
    found: list[int] = []
    for batch in sorted(out.glob("batch=*")):
        rows = sorted(ds.dataset(batch, format="parquet").to_table(columns=["physical_offset"]).column(0).to_pylist())
        assert json.loads((batch / MANIFEST).read_text())["messages"] == len(rows)
        found += rows
    return found


def once(spark: SparkSession, store: Path, out: Path, form: str, **more: Any) -> FollowReport:
    return follow(store, out, form=form, once=True, spark=spark, **more)


def sound(path: Path) -> bool:
    """Return whether a broker's load keeps everything and verify has no findings."""
    outcome = run_cli("verify", path, "-o", "json")
    assert outcome.status == 0, outcome.stdout
    return bool(outcome.document["ok"])


@pytest.mark.versions
@pytest.mark.long
@pytest.mark.parametrize("form", ["parquet", "store"])
def test_out_has_every_message_once_while_the_store_goes_on_and_is_killed(form: str, spark: SparkSession, tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "out"
    store = MessageStore.open(path, CONFIG)
    told: list[FollowedBatch] = []
    for number in range(4):
        put(store, 150)
        if number == 2:
            store.abandon()
            store = MessageStore.open(path, CONFIG)
        report = once(spark, path, out, form, batch_bytes=20_000, on_batch=told.append)
        assert (report.messages, report.stopped, report.ok) == (150, "end", True)
        assert report.batches > 1
        there = followed(out) if form == "parquet" else offsets(out)
        assert there == offsets(path)
        if form == "store":
            assert sound(out)
    assert once(spark, path, out, form).batches == 0
    assert not any(batch.repeated for batch in told)
    assert sum(batch.messages for batch in told) == 600
    assert not list((out / STATE).glob("stage-*"))
    store.close()


@pytest.mark.long
def test_parquet_is_the_message_table_with_lineage(spark: SparkSession, tmp_path: Path) -> None:
    case = case_named("5.3.3/i-v2-codecs-crc")
    source = opened(case)
    with unchanged(source):
        once(spark, source, tmp_path / "out", "parquet", config=case.config, batch_bytes=30_000)
    whole = [row for batch in mqstore.open(source, config=case.config).view().batches() for row in batch.to_pylist()]
    table = ds.dataset(tmp_path / "out", format="parquet").to_table()
    assert table.column_names == list(ROCKETMQ_COLUMNS)
    assert sorted(table.to_pylist(), key=lambda row: row["physical_offset"]) == whole
    frame = spark.read.parquet(str(tmp_path / "out"))
    assert frame.count() == len(whole)
    assert "batch" in frame.columns


@pytest.mark.parametrize(
    "name", ["4.9.3/a-clean-small", "4.9.3/b-kill9", "5.3.3/i-v2-codecs-crc", "5.3.3/o-batch-queue", "4.9.3/b3-kill9-torn"]
)
def test_a_copy_of_a_golden_store_answers_as_a_rebuilt_one(name: str, spark: SparkSession, tmp_path: Path) -> None:
    case = case_named(name)
    source = opened(case)
    with unchanged(source):
        report = once(spark, source, tmp_path / "out", "store", config=case.config, batch_bytes=50_000)
    assert run_cli("rebuild", source, "--to", tmp_path / "rebuilt", "--threads", 1, "--config", case.config).status in (0, 1)
    ours, rebuilt = mqstore.open(tmp_path / "out", config=case.config), mqstore.open(tmp_path / "rebuilt", config=case.config)
    assert offsets(tmp_path / "out") == offsets(tmp_path / "rebuilt")
    assert report.messages == len(offsets(tmp_path / "out"))
    queues = [
        {(queue.topic, queue.queue_id): queue.entries(queue.min_offset, queue.max_offset).tolist() for queue in each.view().queues()}
        for each in (ours, rebuilt)
    ]
    assert queues[0] == queues[1]
    assert sound(tmp_path / "out")
    assert not ours.unclean


def test_a_copy_begins_where_the_log_begins(spark: SparkSession, tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "out"
    store = MessageStore.open(path, CONFIG)
    put(store, 400)
    for _ in range(2):
        store.log.remove_first()
    once(spark, path, out, "store")
    assert offsets(out) == offsets(path)
    assert min(offsets(out)) == 2 * FILE
    put(store, 100)
    once(spark, path, out, "store")
    assert offsets(out) == offsets(path)
    assert sound(out)
    store.close()


def test_a_batch_that_is_run_again_adds_nothing(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = MessageStore.open(path, CONFIG)
    put(store, 100)
    for form in ("parquet", "store"):
        out = tmp_path / f"as-{form}"
        once(spark, path, out, form, batch_bytes=10_000)
        before = followed(out) if form == "parquet" else offsets(out)
        # as if the driver had died after it wrote the last batch and before Spark recorded that it was done
        last = max((out / STATE / "checkpoint/commits").iterdir(), key=lambda each: int(each.name) if each.name.isdigit() else -1)
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
        told: list[FollowedBatch] = []
        report = once(spark, path, out, form, on_batch=told.append)
        assert [batch.repeated for batch in told] == [True]
        assert report.messages == 0
        assert (followed(out) if form == "parquet" else offsets(out)) == before
    store.close()


def test_a_batch_that_ended_half_way_is_written_whole(spark: SparkSession, tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "out"
    store = MessageStore.open(path, CONFIG)
    put(store, 60)

    def die(_: FollowedBatch) -> None:
        raise OSError("a power cut")

    with pytest.raises(PipelineError, match="a power cut"):
        once(spark, path, out, "parquet", batch_bytes=5_000, on_batch=die)
    (out / STATE / "stage-0-dead").mkdir()
    once(spark, path, out, "parquet", batch_bytes=5_000)
    assert followed(out) == offsets(path)
    assert not list((out / STATE).glob("stage-*"))
    store.close()


@pytest.mark.versions
def test_it_follows_until_stopped(spark: SparkSession, tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "out"
    store = MessageStore.open(path, CONFIG)
    put(store, 10)
    stop, seen = threading.Event(), []

    def told(batch: FollowedBatch) -> None:
        seen.append(batch)
        if sum(each.messages for each in seen) == 60:
            stop.set()
        else:
            put(store, 25)

    report = follow(path, out, form="store", spark=spark, interval=0.2, on_batch=told, stop=stop)
    assert (report.messages, report.stopped) == (60, "asked")
    assert offsets(out) == offsets(path)
    assert report.end == store.log.max_offset
    store.close()


def test_damage_is_passed_over_in_parquet_and_ends_a_copy(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for _ in range(6):
        store.put(message("orders", b"x" * 300))
    path = store.write()
    store.patch_log(store.puts[2].offset + 4, b"\xff" * 4)
    report = once(spark, path, tmp_path / "out", "parquet")
    assert (report.messages, report.ok, len(report.damage)) == (5, False, 1)
    with pytest.raises(TargetError, match=f"no valid record at {store.puts[2].offset} "):
        once(spark, path, tmp_path / "copy", "store")


def test_what_does_not_fit_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.put(message("orders"))
    path, out = store.write(), tmp_path / "out"
    once(spark, path, out, "parquet", columns=["topic"])
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    refused: list[tuple[dict[str, Any], type[MqstoreError], str]] = [
        ({"to": out, "form": "store"}, UsageError, "is kept as parquet"),
        ({"to": out}, UsageError, "was begun with the columns topic,physical_offset,store_file,verdict"),
        ({"to": tmp_path / "full"}, TargetError, "already exists, and was not created by follow"),
        ({"to": path / "out"}, TargetError, "is inside the store"),
        ({"to": tmp_path / "no/where"}, TargetError, "is not a directory; create it first"),
        ({"to": tmp_path / "x", "form": "csv"}, UsageError, "cannot be kept as 'csv'"),
        ({"to": tmp_path / "x", "form": "store", "columns": ["topic"]}, UsageError, "a store always holds complete messages"),
        ({"to": tmp_path / "x", "interval": -1}, UsageError, "the interval must be at least 0 seconds"),
    ]
    for options, kind, sentence in refused:
        with pytest.raises(kind, match=sentence):
            follow(path, once=True, spark=spark, **options)
    with pytest.raises(MqstoreError, match="does not exist"):
        follow(tmp_path / "nowhere", out, once=True, spark=spark)


def test_a_lost_checkpoint_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    import shutil

    store = Store(tmp_path / "store")
    for _ in range(9):
        store.put(message("orders", b"x" * 300))
    path, out = store.write(), tmp_path / "out"
    once(spark, path, out, "parquet", batch_bytes=1000)
    shutil.rmtree(out / STATE / "checkpoint")
    with pytest.raises(TargetError, match=r"holds the log from 0 to .* its checkpoint was removed"):
        once(spark, path, out, "parquet", batch_bytes=2000)


def test_the_command_follows_once_and_reports(spark: SparkSession, tmp_path: Path) -> None:
    source = opened(case_named("4.9.3/b-kill9"))
    with unchanged(source):
        outcome = run_cli("follow", source, "--to", tmp_path / "out", "--once", "-o", "json", "--progress", "--columns", "topic,keys")
    assert outcome.status == 0, outcome.stderr
    assert (outcome.document["messages"], outcome.document["stopped"], outcome.document["as"]) == (1639, "end", "parquet")
    assert "batch 0: 1,639 messages" in outcome.stderr
    text = run_cli("follow", source, "--to", tmp_path / "copy", "--once")
    with MessageStore.open(tmp_path / "copy") as copy:
        assert [len(copy.query("late", f"OrderID{number}").records) for number in (392, 1 << 40)] == [1, 0]
    assert text.status == 0, text.stderr
    assert "1,639 messages" in text.stdout


@pytest.mark.spark
@pytest.mark.parametrize("form", ["parquet", "store"])
def test_an_interrupt_ends_the_command_with_nothing_half_written(form: str, tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "out"
    store = MessageStore.open(path, CONFIG)
    put(store, 100)
    command = [sys.executable, "-m", "mqstore", "follow", path, "--to", out, "--as", form, "--interval", "0.2", "--progress"]
    running = subprocess.Popen(
        [*map(str, command), "--master", "local[1]", "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert running.stderr is not None
    try:
        for line in running.stderr:
            if line.startswith("batch"):
                break
        put(store, 100)
        time.sleep(0.1)
        os.killpg(running.pid, signal.SIGINT)
        told, complaints = running.communicate(timeout=120)
    finally:
        if running.poll() is None:
            running.kill()
    assert running.returncode == 130, complaints
    report = json.loads(told)
    assert report["stopped"] == "interrupt"
    assert not list((out / STATE).glob("stage-*"))
    there = followed(out) if form == "parquet" else offsets(out)
    assert there == [offset for offset in offsets(path) if offset < report["end"]]
    if form == "store":
        assert sound(out)
    store.close()


LATE_WORKER = """#!/bin/sh
case "$*" in *streaming_source*) [ -e {mark} ] || { touch {mark}; sleep 12; } ;; esac
exec {python} "$@"
"""


@pytest.mark.spark
def test_a_query_whose_worker_starts_later_than_spark_allows_is_started_again(tmp_path: Path) -> None:
    store = MessageStore.open(tmp_path / "store", CONFIG)
    put(store, 30)
    store.close()
    worker = tmp_path / "python"
    worker.write_text(LATE_WORKER.replace("{mark}", str(tmp_path / "late")).replace("{python}", sys.executable))
    worker.chmod(0o755)
    script = "import sys; sys.executable, *command = sys.argv[1:]; from mqstore.cli.main import run; sys.exit(run(command))"
    command = ["follow", tmp_path / "store", "--to", tmp_path / "out", "--as", "parquet", "--once", "--master", "local[1]", "-o", "json"]
    done = subprocess.run([sys.executable, "-c", script, worker, *map(str, command)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "late").exists()
    assert json.loads(done.stdout)["messages"] == 30
    assert followed(tmp_path / "out") == offsets(tmp_path / "store")


@pytest.mark.spark
@pytest.mark.parametrize("form", ["parquet", "store"])
def test_a_killed_follow_goes_on_where_it_was(form: str, spark: SparkSession, tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "out"
    store = MessageStore.open(path, CONFIG)
    put(store, 300)
    script = textwrap.dedent(
        """
        import os, sys
        from mqstore.pipeline.tail.follow import follow
        seen = []
        def told(batch):
            seen.append(batch)
            if len(seen) == 3:
                os._exit(9)
        follow(sys.argv[1], sys.argv[2], form=sys.argv[3], once=True, batch_bytes=9000, master="local[1]", on_batch=told)
        """
    )
    done = subprocess.run([sys.executable, "-c", script, path, out, form], capture_output=True, timeout=300, check=False)
    assert done.returncode == 9, done.stderr
    put(store, 50)
    once(spark, path, out, form, batch_bytes=20_000)
    assert (followed(out) if form == "parquet" else offsets(out)) == offsets(path)
    if form == "store":
        assert sound(out)
    store.close()
