"""The sink: rows become messages once each, whatever fails, dies or is repeated on the way."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from support.cluster import end_of
from support.golden import case_named, opened
from support.spark_api import needs_stream_sink

import mqstore
from mqstore.errors import MqstoreError, TargetError, UsageError
from mqstore.files.recorder import Operation, RecordedWrites
from mqstore.files.state_file import parse, seal
from mqstore.pipeline.source import sink as sinks
from mqstore.pipeline.source.rocketmq import RocketMQDataSource, read, register
from mqstore.pipeline.spark.failures import error_sentence
from mqstore.rocketmq.engine import staged_commit as stagedcommit
from mqstore.rocketmq.engine import staging
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.engine.staged_commit import MANIFEST, CommittedBatch, Sink, SinkSettings
from mqstore.rocketmq.engine.staging import RowRules, StagedPart, open_stage, remove_stage, stage_of, write_part
from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.verify.verification import verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMALL = {"mappedFileSizeCommitLog": "16384", "mappedFileSizeConsumeQueue": "2000", "maxHashSlotNum": "100", "maxIndexNum": "400"}
CONTENT = ("topic", "queue_id", "tags", "keys", "body", "flag", "born_timestamp", "born_host", "store_host", "properties")


def batch(first: int, count: int, extra: dict[str, str] | None = None) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pydict(
        {
            "topic": [("orders", "bills")[n % 2] for n in numbers],
            "queue_id": pa.array([n % 3 for n in numbers], pa.int32()),
            "body": [f"{n}:".encode() + b"x" * (n % 97) for n in numbers],
            "keys": [f"k{n}" for n in numbers],
            "properties": pa.array([[("n", str(n)), *(extra or {}).items()] for n in numbers], pa.map_(pa.string(), pa.string())),
        }
    )


def rules(version: str = "5.3.3") -> RowRules:
    return RowRules(version, "127.0.0.1:10911", 4 << 20, 16384 - 8, False, False)


def staged(root: Path, run: str, batches: list[pa.RecordBatch], attempt: int = 0) -> tuple[Path, list[StagedPart]]:
    stage = stage_of(root, run)
    open_stage(stage)
    return stage, [write_part([each], str(stage), number, attempt, rules()) for number, each in enumerate(batches)]


def sink(root: Path, recorder: Any = None) -> Sink:
    return Sink(root, SinkSettings("5.3.3", broker=SMALL), recorder=recorder, patience=0)


def bodies(root: Path) -> list[bytes]:
    return [row["body"] for found in mqstore.open(root).view().batches(("body",)) for row in found.to_pylist()]


def wanted(batches: list[pa.RecordBatch]) -> list[bytes]:
    return [body for each in batches for body in each.column("body").to_pylist()]


def sound(root: Path) -> None:
    assert verify(mqstore.open(root)).damage == ()


def left(place: Path) -> list[str]:
    return sorted(name for name in os.listdir(place) if "mqstore-sink" in name)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with one message from another producer."""
    path = tmp_path / "store"
    with MessageStore.open(path, SinkSettings("5.3.3", broker=SMALL).config()) as store:
        store.put(Message("orders", b"before"))
    return path


# the protocol, without Spark


class Died(BaseException):
    """The process ends here: it does nothing more."""


class Dying:
    """From the n-th change on disk on, nothing is changed any more."""

    def __init__(self, n: int) -> None:
        self.left = n

    def attempt(self, operation: str, relative: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise Died

    def record(self, operation: Operation) -> None:
        return


def test_parts_are_appended_in_the_order_of_partitions_and_queue_offsets_follow(root: Path) -> None:
    batches = [batch(100, 50), batch(0, 50), batch(50, 0), batch(200, 7)]
    stage, parts = staged(root, "r", batches)
    done = sink(root).commit("r", 0, stage, parts[::-1], stored=False, named=True)
    assert bodies(root) == [b"before", *wanted(batches)]
    assert done.messages == 107
    for topic in ("orders", "bills"):
        for queue_id in range(3):
            rows = [
                row["queue_offset"]
                for found in mqstore.open(root).view().batches(("topic", "queue_id", "queue_offset"))
                for row in found.to_pylist()
                if (row["topic"], row["queue_id"]) == (topic, queue_id)
            ]
            assert rows == list(range(len(rows)))
    sound(root)
    assert left(root.parent) == []


def test_a_commit_that_is_repeated_adds_nothing(root: Path) -> None:
    stage, parts = staged(root, "r", [batch(0, 10)])
    first = sink(root).commit("r", 4, stage, parts, stored=False, named=True)
    stage, parts = staged(root, "r", [batch(0, 10)], attempt=1)
    assert sink(root).commit("r", 4, stage, parts, stored=False, named=True) == first
    stage, parts = staged(root, "r", [batch(0, 10)], attempt=2)
    assert sink(root).commit("r", 3, stage, parts, stored=False, named=True) == first
    assert len(bodies(root)) == 11
    assert left(root.parent) == []


def dies_at_every_change(
    root: Path, tmp_path: Path, step: int, change: Callable[[Path], None] = lambda root: None
) -> Iterator[tuple[Path, bool]]:
    """Yield commits that die at each step-th change on disk, and the same batch replayed with its rows in another order."""
    batches = [batch(0, 60), batch(60, 90, {"DELAY": "2"}), batch(150, 5)]
    n = 0
    died = True
    while died:  # until the commit completes before it is killed
        place = tmp_path / f"life{n}"
        shutil.copytree(root, place / "store")
        stage, parts = staged(place / "store", "r", batches)
        died = False
        try:
            sink(place / "store", Dying(n)).commit("r", 7, stage, parts, stored=False, named=True)
        except Died:
            died = True
        change(place / "store")
        stage, parts = staged(place / "store", "r", batches[::-1], attempt=1)
        done = sink(place / "store").commit("r", 7, stage, parts, stored=False, named=True)
        assert done.messages == 155
        found = bodies(place / "store")
        assert Counter(found)[b"before"] == 1
        mine = [body for body in found if body not in (b"before", b"foreign")]
        assert mine in (wanted(batches), wanted(batches[::-1])), f"the commit that died at change {n}"
        sound(place / "store")
        assert left(place) == []
        yield place / "store", mine == wanted(batches)
        shutil.rmtree(place)
        n += step


@pytest.mark.long
def test_a_commit_that_dies_at_any_change_of_the_disk_adds_each_row_once(root: Path, tmp_path: Path, whole: bool) -> None:
    first = [first for _, first in dies_at_every_change(root, tmp_path, 1 if whole else 5)]
    assert len(first) > 20
    # undecided before the intent, then always the rows that were staged first
    assert first == sorted(first)
    assert 0 < first.count(False) < len(first)


def test_what_a_broker_appends_between_death_and_replay_is_distinguished_from_the_rows(root: Path, tmp_path: Path, whole: bool) -> None:
    def foreign(place: Path) -> None:
        with MessageStore.open(place, SinkSettings("5.3.3", broker=SMALL).config()) as store:
            for _ in range(3):
                store.put(Message("orders", b"foreign", keys="k0"))

    for place, _ in dies_at_every_change(root, tmp_path, 1 if whole else 9, foreign):
        assert Counter(bodies(place))[b"foreign"] == 3


@pytest.mark.long
def test_a_machine_that_dies_at_any_point_keeps_each_row_once(root: Path, tmp_path: Path) -> None:
    batches = [batch(0, 60), batch(60, 40)]
    stage, parts = staged(root, "r", batches)
    kept = tmp_path / "stage"
    shutil.copytree(stage, kept)
    recorded = RecordedWrites()
    base = tmp_path / "base"
    shutil.copytree(root, base)
    sink(root, recorded).commit("r", 0, stage, parts, stored=False, named=True)
    total = len(recorded.operations)
    for upto in sorted({*range(0, total, max(1, total // 60)), total}):
        shutil.rmtree(root)
        shutil.copytree(base, root)
        recorded.replay(root, upto, lose_unsynced=True)
        shutil.rmtree(stage, ignore_errors=True)
        shutil.copytree(kept, stage)
        done = sink(root).commit("r", 0, stage, parts, stored=False, named=True)
        assert done.messages == 100
        assert bodies(root) == [b"before", *wanted(batches)], f"after operation {upto} of {total}"
        sound(root)


def test_another_run_finishes_the_commit_that_died(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, parts = staged(root, "dead", [batch(0, 20)])
    with monkeypatch.context() as patched:
        patched.setattr(MessageStore, "dispatch_now", raising(Died))
        with pytest.raises(Died):
            sink(root).commit("dead", 0, stage, parts, stored=False, named=False)
    stage, parts = staged(root, "next", [batch(20, 5)])
    sink(root).commit("next", 0, stage, parts, stored=False, named=False)
    assert bodies(root) == [b"before", *wanted([batch(0, 25)])]
    assert left(root.parent) == [] or [os.listdir(root.parent / name) for name in left(root.parent)] == [["owner"]]


def raising(error: type[BaseException]) -> Callable[..., Any]:
    def fails(*args: object, **named: object) -> None:
        raise error

    return fails


def test_finish_completes_a_commit_without_another_write(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, parts = staged(root, "dead", [batch(0, 20)])
    with monkeypatch.context() as patched:
        patched.setattr(MessageStore, "put_batch", raising(Died))
        with pytest.raises(Died):
            sink(root).commit("dead", 0, stage, parts, stored=False, named=False)
    assert len(bodies(root)) == 1
    done = sinks.finish(root)
    assert isinstance(done, CommittedBatch)
    assert done.messages == 20
    assert bodies(root) == [b"before", *wanted([batch(0, 20)])]
    assert sinks.finish(root) is None


def test_missing_staged_rows_are_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, parts = staged(root, "dead", [batch(0, 20)])
    with monkeypatch.context() as patched:
        patched.setattr(MessageStore, "put_batch", raising(Died))
        with pytest.raises(Died):
            sink(root).commit("dead", 0, stage, parts, stored=False, named=False)
    shutil.rmtree(stage)
    with pytest.raises(TargetError, match=r"staged rows in .* are missing.*remove the intent from"):
        sinks.finish(root)


def test_a_store_in_use_by_another_process_is_waited_for_and_then_reported(root: Path) -> None:
    stage, parts = staged(root, "r", [batch(0, 3)])
    with MessageStore.open(root, SinkSettings("5.3.3", broker=SMALL).config()), pytest.raises(TargetError, match="in use"):
        sink(root).commit("r", 0, stage, parts, stored=False, named=False)
    assert sink(root).commit("r", 0, stage, parts, stored=False, named=False).messages == 3


def test_a_manifest_that_cannot_be_read_stops_the_commit(root: Path) -> None:
    (root / "config").mkdir(exist_ok=True)
    (root / MANIFEST).write_text("{")
    stage, parts = staged(root, "r", [batch(0, 3)])
    with pytest.raises(TargetError, match="which runs are in the log"):
        sink(root).commit("r", 0, stage, parts, stored=False, named=False)
    assert len(bodies(root)) == 1


def test_the_stages_of_dead_jobs_go_with_the_next_commit(root: Path) -> None:
    dead = stage_of(root, "dead")
    open_stage(dead)
    owner = parse((dead / "owner").read_bytes())
    (dead / "owner").write_bytes(seal(owner | {"started": "1"}))
    living = stage_of(root, "living")
    open_stage(living)
    stage, parts = staged(root, "r", [batch(0, 3)])
    sink(root).commit("r", 0, stage, parts, stored=False, named=False)
    assert not dead.exists()
    assert living.exists()
    assert not stage.exists()


def test_two_jobs_of_one_run_do_not_take_each_other_s_stage_away(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dying, _ = staged(root, "r", [batch(0, 3)])
    as_other_job = staging.job_owner() | {"pid": 1}
    with monkeypatch.context() as again:
        again.setattr(staging, "job_owner", lambda: as_other_job)
        stage, parts = staged(root, "r", [batch(0, 3)])
        remove_stage(dying)  # the late abort of the first one
        assert sink(root).commit("r", 0, stage, parts, stored=False, named=True).messages == 3
    late, parts = staged(root, "r", [batch(0, 3)])
    lost = staged(root, "other", [batch(0, 3)])[0]
    with monkeypatch.context() as again:
        again.setattr(staging, "job_owner", lambda: as_other_job)
        stage, parts = staged(root, "r", [batch(0, 3)])
        assert sink(root).commit("r", 0, stage, parts, stored=False, named=True).messages == 3
    assert len(bodies(root)) == 4
    assert not stage.exists()
    assert not late.exists()
    assert lost.exists()


# on Spark


def numbered(spark: SparkSession, count: int, partitions: int, first: int = 0) -> DataFrame:
    return spark.range(first, first + count, 1, partitions).selectExpr(
        "if(id % 2 = 0, 'orders', 'bills') topic",
        "cast(id % 3 as int) queue_id",
        "cast(concat('body ', id) as binary) body",
        "array(concat('k', id), 'all') keys",
        "map('n', cast(id as string)) properties",
    )


def save(frame: DataFrame, path: Path, source: str = "rocketmq", **options: str) -> None:
    frame.write.format(source).mode("append").options(**({"writable": "true"} | options)).save(str(path))


def config_file(place: Path, **changes: str) -> str:
    path = place / "broker.conf"
    path.write_text("".join(f"{name}={value}\n" for name, value in (SMALL | changes).items()))
    return str(path)


@pytest.mark.versions
@pytest.mark.parametrize("partitions", [1, 5])
def test_a_store_that_is_read_and_written_again_has_the_same_messages(partitions: int, tmp_path: Path, spark: SparkSession) -> None:
    source = opened(case_named("4.9.3/a-clean-small"))
    frame = read(spark, source).orderBy("physical_offset").coalesce(1)
    frame = frame if partitions == 1 else frame.repartitionByRange(partitions, "physical_offset").sortWithinPartitions("physical_offset")
    save(frame, tmp_path / "copy", create="true", version="4.9.3", config=config_file(tmp_path, mappedFileSizeCommitLog="65536"))

    def table(path: Path) -> list[dict[str, Any]]:
        return [row for found in mqstore.open(path).view().batches(CONTENT) for row in found.to_pylist()]

    assert table(tmp_path / "copy") == table(source)
    sound(tmp_path / "copy")
    assert left(tmp_path) == []


@pytest.mark.versions
def test_a_run_with_a_name_is_written_once(tmp_path: Path, spark: SparkSession) -> None:
    register(spark)
    for _ in range(2):
        save(numbered(spark, 100, 3), tmp_path / "store", create="true", runId="january")
    save(numbered(spark, 100, 3), tmp_path / "store")
    assert Counter(Counter(bodies(tmp_path / "store")).values()) == {2: 100}


def test_tasks_that_fail_or_die_are_repeated_and_their_rows_stored_once(tmp_path: Path, spark: SparkSession) -> None:
    register(spark)
    marks = tmp_path / "marks"
    marks.mkdir()

    class Failing(RocketMQDataSource):
        @classmethod
        def name(cls) -> str:
            return "rocketmq-failing"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            made = sinks.writer(self.options, schema, overwrite)
            write = made.write

            def writing(batches: Iterator[pa.RecordBatch]) -> Any:
                message = write(batches)
                mark = marks / str(message.part.partition)  # type: ignore[attr-defined]
                if not mark.exists():
                    mark.touch()
                    if int(mark.name) % 2:
                        os._exit(1)
                    raise ValueError("the first attempt")
                return message

            made.write = writing  # type: ignore[method-assign]
            return made

    spark.dataSource.register(Failing)
    save(numbered(spark, 200, 4), tmp_path / "store", "rocketmq-failing", create="true")
    assert Counter(bodies(tmp_path / "store")) == Counter(f"body {n}".encode() for n in range(200))
    assert len(list(marks.iterdir())) == 4
    assert left(tmp_path) == []


def test_a_task_that_fails_for_good_leaves_the_store_as_it_was(tmp_path: Path, spark: SparkSession) -> None:
    register(spark)
    save(numbered(spark, 10, 1), tmp_path / "store", create="true")
    bad = numbered(spark, 100, 4).selectExpr("if(body = cast('body 77' as binary), null, topic) topic", "body")
    with pytest.raises(Exception, match="null; each message needs a topic") as raised:
        save(bad, tmp_path / "store")
    assert error_sentence(raised.value).startswith("column topic, row 2: it is null")
    assert len(bodies(tmp_path / "store")) == 10
    assert left(tmp_path) == []


@pytest.mark.parametrize("step", ["_write", "_append", "after _append", "remove_stage"])
def test_a_commit_that_dies_under_spark_is_finished_by_the_job_that_is_run_again(step: str, tmp_path: Path, spark: SparkSession) -> None:
    mark = tmp_path / "mark"

    def dies_once(*args: Any, **named: Any) -> Any:
        if step.startswith("after"):
            original(*args, **named)
        if not mark.exists():
            mark.touch()
            os._exit(1)
        return original(*args, **named)

    name = step.rpartition(" ")[2]
    place = Sink if hasattr(Sink, name) else stagedcommit
    original = getattr(place, name)

    class Dying(RocketMQDataSource):
        @classmethod
        def name(cls) -> str:
            return "rocketmq-dying"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            made = sinks.writer(self.options, schema, overwrite)
            commit = made.commit

            def committing(messages: Any) -> None:
                from unittest import mock

                with mock.patch.object(place, name, dies_once):
                    commit(messages)

            made.commit = committing  # type: ignore[method-assign]
            return made

    spark.dataSource.register(Dying)
    options = {"create": "true", "runId": "r", "config": config_file(tmp_path)}
    with pytest.raises(Exception, match=r"(?s)."):
        save(numbered(spark, 300, 3), tmp_path / "store", "rocketmq-dying", **options)
    assert mark.exists()
    save(numbered(spark, 300, 4), tmp_path / "store", "rocketmq-dying", **options)
    assert Counter(bodies(tmp_path / "store")) == Counter(f"body {n}".encode() for n in range(300))
    sound(tmp_path / "store")
    assert left(tmp_path) == []


DRIVER = """
import os, signal, sys
from unittest import mock
from pyspark.sql.types import StructType
from mqstore.pipeline.source import sink
from mqstore.pipeline.source import rocketmq as source
from mqstore.pipeline.spark.session import session
from mqstore.rocketmq.engine import staging
from mqstore.rocketmq.engine.message_store import MessageStore

def killing(store):
    os.kill(staging.job_owner()["pid"], signal.SIGKILL)
    os.kill(int(sys.argv[2]) if len(sys.argv) > 2 else driver, signal.SIGKILL)
    os._exit(1)

driver = os.getpid()

class Killed(source.RocketMQDataSource):
    def writer(self, schema, overwrite):
        made = sink.writer(self.options, schema, overwrite)
        commit = made.commit
        def committing(messages):
            with mock.patch.object(MessageStore, "dispatch_now", killing):
                commit(messages)
        made.commit = committing
        return made

spark = session("local[2]")
spark.dataSource.register(Killed)
frame = spark.range(0, 300, 1, 3).selectExpr("'orders' topic", "cast(concat('body ', id) as binary) body")
frame.write.format("rocketmq").mode("append").option("create", "true").option("runId", "night").save(sys.argv[1])
"""


def test_a_driver_that_is_killed_in_its_commit_loses_and_repeats_nothing(tmp_path: Path, spark: SparkSession) -> None:
    died = subprocess.run([sys.executable, "-c", DRIVER, str(tmp_path / "store")], capture_output=True, check=False, timeout=120)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert len(left(tmp_path)) == 1
    assert json.loads((tmp_path / "store" / MANIFEST).read_text())["intent"]["run"] == "night"
    register(spark)
    frame = spark.range(0, 300, 1, 5).selectExpr("'orders' topic", "cast(concat('body ', id) as binary) body")
    save(frame, tmp_path / "store", runId="night")
    assert bodies(tmp_path / "store") == [f"body {n}".encode() for n in range(300)]
    assert left(tmp_path) == []


# the lock


def counted(frame: DataFrame, marks: Path, gate: Path | None = None) -> DataFrame:
    """Return a frame each of whose tasks leaves a mark when it has produced its rows, and then waits for the gate."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        yield from batches
        (marks / str(os.getpid())).touch()
        while gate is not None and not gate.exists():
            time.sleep(0.02)

    return frame.mapInArrow(pass_on, frame.schema)  # type: ignore[arg-type]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("kind", ["batch", pytest.param("stream", marks=needs_stream_sink)])
def test_a_store_in_use_is_refused_before_a_row_is_produced(kind: str, root: Path, tmp_path: Path, spark: SparkSession) -> None:
    register(spark)
    marks = tmp_path / "marks"
    marks.mkdir()
    with MessageStore.open(root, SinkSettings("5.3.3", broker=SMALL).config()), pytest.raises(Exception, match=r"(?s).") as raised:
        if kind == "batch":
            save(counted(numbered(spark, 10, 1), marks), root, lockTimeout="0", config=config_file(tmp_path))
        else:
            feed(tmp_path, 0)
            stream(spark, tmp_path, marks=marks, lockTimeout="0", config=config_file(tmp_path))
    assert error_sentence(raised.value) == f"{root} is in use by another process; stop the broker, or close the store, and try again"
    assert [*marks.iterdir()] == left(tmp_path) == []
    if kind == "batch":
        save(counted(numbered(spark, 10, 1), marks), root, lockTimeout="0", config=config_file(tmp_path))
    else:
        stream(spark, tmp_path, marks=marks, lockTimeout="0", config=config_file(tmp_path))
    assert len(bodies(root)) == 1 + (10 if kind == "batch" else 20)
    assert len([*marks.iterdir()]) == 1


@pytest.fixture
def under_way(root: Path, tmp_path: Path, spark: SparkSession) -> Iterator[Callable[[], None]]:
    """A write of 40 rows in run r, which stands between its tasks and its commit; called, it goes on and ends, or raises."""
    register(spark)
    marks, gate = tmp_path / "marks", tmp_path / "gate"
    marks.mkdir()
    with ThreadPoolExecutor(1) as pool:
        frame = counted(numbered(spark, 40, 1), marks, gate)  # one of two cores

        def run() -> None:
            jvm: Any = spark._jvm  # a thread has no active session, and formats are registered with one
            jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
            save(frame, root, runId="r", lockTimeout="1", config=config_file(tmp_path))

        job = pool.submit(run)
        try:
            until(lambda: len([*marks.iterdir()]) == 1 or job.done())
            if job.done():
                job.result()

            def go_on() -> None:
                gate.touch()
                job.result()

            yield go_on
        finally:
            gate.touch()


def test_a_store_cannot_be_taken_while_a_write_is_under_way(root: Path, under_way: Callable[[], None]) -> None:
    with pytest.raises(TargetError, match="in use by another process"):
        MessageStore.open(root, SinkSettings("5.3.3", broker=SMALL).config())
    under_way()
    assert len(bodies(root)) == 41
    with MessageStore.open(root, SinkSettings("5.3.3", broker=SMALL).config()) as store:  # released when the write returns
        store.put(Message("orders", b"after"))
    assert left(root.parent) == []


def test_two_writes_of_one_application_share_the_lock(
    root: Path, under_way: Callable[[], None], tmp_path: Path, spark: SparkSession
) -> None:
    save(numbered(spark, 5, 1, 1000), root, lockTimeout="0", config=config_file(tmp_path))
    with pytest.raises(TargetError, match="in use by another process"):
        MessageStore.open(root, SinkSettings("5.3.3", broker=SMALL).config())
    under_way()
    assert len(bodies(root)) == 46


def test_a_store_that_is_taken_between_planning_and_commit_ends_without_a_lost_or_doubled_row(
    root: Path, under_way: Callable[[], None], tmp_path: Path, spark: SparkSession
) -> None:
    (keeper,) = keepers_of(root)
    end_of(keeper)  # a dying process has no command line before it gives up its locks
    with MessageStore.open(root, SinkSettings("5.3.3", broker=SMALL).config()) as other:
        other.put(Message("orders", b"foreign"))
        with pytest.raises(Exception, match=r"(?s).") as raised:
            under_way()
        assert "is in use by another process; stop the broker" in error_sentence(raised.value)
    assert bodies(root) == [b"before", b"foreign"]
    assert left(root.parent) == []
    for _ in range(2):
        save(numbered(spark, 40, 3), root, runId="r", config=config_file(tmp_path))
    assert Counter(bodies(root)) == Counter([b"before", b"foreign", *(f"body {n}".encode() for n in range(40))])
    sound(root)


def keepers_of(root: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"lock_keeper import serve; serve(*('{root}'" in (entry / "cmdline").read_text():
                found.append(int(entry.name))
    return found


def test_a_store_that_cannot_be_continued_is_refused_before_a_row_is_produced(root: Path, tmp_path: Path, spark: SparkSession) -> None:
    register(spark)
    marks = tmp_path / "marks"
    marks.mkdir()
    with pytest.raises(Exception, match=r"(?s).") as raised:
        save(counted(numbered(spark, 10, 1), marks), root)
    assert "no index file shows how many slots and positions there are; give maxHashSlotNum" in error_sentence(raised.value)
    assert [*marks.iterdir()] == left(tmp_path) == []


# streams


def stream(spark: SparkSession, place: Path, *, marks: Path | None = None, **options: str) -> None:
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(place / "in"))
    rows = lines.selectExpr("'orders' topic", "cast(value as binary) body")
    rows = rows if marks is None else counted(rows, marks)
    chosen = {"checkpointLocation": str(place / "checkpoint"), "create": "true", **options}
    query = rows.writeStream.format("rocketmq").options(**chosen).trigger(availableNow=True).start(str(place / "store"))
    query.awaitTermination(120)


def feed(place: Path, number: int) -> None:
    (place / "in").mkdir(exist_ok=True)
    path = place / "in" / f"{number}.txt"
    path.write_text("".join(f"{number}-{line}\n" for line in range(20)))
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


@pytest.mark.versions
@needs_stream_sink
def test_micro_batches_are_appended_in_order_and_a_replayed_one_adds_nothing(tmp_path: Path, spark: SparkSession) -> None:
    register(spark)
    for number in range(3):
        feed(tmp_path, number)
    stream(spark, tmp_path)
    once = bodies(tmp_path / "store")
    assert once == [f"{number}-{line}".encode() for number in range(3) for line in range(20)]
    commits = tmp_path / "checkpoint" / "commits"
    for path in (commits / "2", commits / ".2.crc"):  # the driver died before it recorded that the batch is done
        path.unlink(missing_ok=True)
    feed(tmp_path, 3)
    stream(spark, tmp_path)
    assert bodies(tmp_path / "store") == [*once, *(f"3-{line}".encode() for line in range(20))]
    runs = json.loads((tmp_path / "store" / MANIFEST).read_text())["runs"]
    assert [each["batch"] for each in runs.values()] == [3]
    assert left(tmp_path) == []


def test_a_stream_without_its_own_checkpoint_needs_a_name(tmp_path: Path, spark: SparkSession) -> None:
    from mqstore.pipeline.source.sink import stream_writer

    schema = numbered(spark, 1, 1).schema
    with pytest.raises(UsageError, match="checkpointLocation, or runId"):
        stream_writer({"path": str(tmp_path / "store"), "create": "true"}, schema, False)
    with pytest.raises(UsageError, match="cannot be read from"):
        stream_writer({"path": str(tmp_path / "store"), "create": "true", "checkpointLocation": "hdfs://a/b"}, schema, False)
    stream_writer({"path": str(tmp_path / "store"), "create": "true", "runId": "mine"}, schema, False)


@pytest.mark.versions
def test_for_each_batch_names_run_and_batch(tmp_path: Path, spark: SparkSession) -> None:
    register(spark)
    for number in (0, 1, 1, 0, 2):
        save(numbered(spark, 10, 1, 10 * number), tmp_path / "store", create="true", runId="mine", batchId=str(number))
    assert bodies(tmp_path / "store") == [f"body {n}".encode() for n in range(30)]


# bad input


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (["'a' topic", "1 colour"], "there is no column 'colour'; the columns are topic"),
        (["cast('x' as binary) body"], "there is no column 'topic'"),
        (["'a' topic", "true queue_id"], "column queue_id is of type bool, it must be whole numbers"),
        (["1 topic"], "column topic is of type int32, it must be text"),
        (["'a' topic", "array(1) body"], "column body is of type list"),
        (["'a' topic", "array(1) properties"], "column properties"),
        (["'a' topic", "cast(1 as bigint) physical_offset"], "lack the column body"),
    ],
)
def test_a_schema_that_cannot_be_messages_is_reported_by_its_column(
    columns: list[str], told: str, tmp_path: Path, spark: SparkSession
) -> None:
    register(spark)
    with pytest.raises(Exception, match=r"(?s).") as raised:
        save(spark.range(1).selectExpr(*columns), tmp_path / "store", create="true")
    assert told in error_sentence(raised.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.versions
@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (["'a/b' topic"], "column topic, row 0: 'a/b' cannot be the name of a directory"),
        (["'a' topic", "-1 queue_id"], "column queue_id, row 0: a queue id is not negative"),
        (["'a' topic", "map('DELAY', 'soon') properties"], "column properties, row 0: DELAY is 'soon'"),
        (["'a' topic", "map('TIMER_DELAY_SEC', '5') properties"], "column properties, row 0: it asks for the timer wheel"),
        (["'a' topic", "'nowhere' born_host"], "column born_host, row 0: 'nowhere' is not ip:port"),
        (["'a' topic", "cast(repeat('x', 20000) as binary) body"], "column body, row 0: a record of 20092 bytes, at most 16376 fit"),
        (["repeat('t', 130) topic"], "column topic: "),
    ],
)
def test_a_row_that_cannot_be_a_message_is_reported_and_nothing_is_written(
    columns: list[str], told: str, tmp_path: Path, spark: SparkSession
) -> None:
    register(spark)
    save(numbered(spark, 3, 1), tmp_path / "store", create="true", config=config_file(tmp_path))
    with pytest.raises(Exception, match=r"(?s).") as raised:
        save(spark.range(2).selectExpr(*columns), tmp_path / "store")
    assert told in error_sentence(raised.value)
    assert len(bodies(tmp_path / "store")) == 3
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "does not hold a store; the option create=true"),
        ({"create": "yes"}, "option create is 'yes'"),
        ({"create": "true", "version": "3.2"}, "option version is '3.2'"),
        ({"create": "true", "runId": "a/b"}, "option runId is 'a/b'"),
        ({"create": "true", "batchId": "1"}, "set the option runId too"),
        ({"create": "true", "runId": "a", "batchId": "first"}, "option batchId is 'first': give a whole number"),
        ({"create": "true", "staging": "/nowhere/at/all"}, "/nowhere/at is not a directory|/nowhere/at/all is not a directory"),
        ({"create": "true", "config": "/nowhere.conf"}, "/nowhere.conf does not exist"),
        ({"create": "true", "storeHost": "here"}, "'here'"),
    ],
)
def test_wrong_options_are_reported_before_a_task_runs(options: dict[str, str], told: str, tmp_path: Path, spark: SparkSession) -> None:
    import re

    register(spark)
    with pytest.raises(Exception, match=r"(?s).") as raised:
        save(numbered(spark, 3, 1), tmp_path / "store", **options)
    assert re.search(told, error_sentence(raised.value))
    assert list(tmp_path.iterdir()) == []


INSERTS = {
    "the rows of the view itself": lambda spark: spark.sql("INSERT INTO store_read SELECT * FROM store_read"),
    "values": lambda spark: spark.sql("INSERT INTO store_read (topic, body) VALUES ('orders', cast('x' as binary))"),
    "a view made in SQL": lambda spark: spark.sql("INSERT INTO store_named SELECT * FROM store_read"),
    "insertInto": lambda spark: spark.table("store_read").write.insertInto("store_read"),
    "writeTo": lambda spark: spark.table("store_read").writeTo("store_read").append(),
    "save without an option": lambda spark: (
        spark.sql("SELECT 'orders' topic, cast('x' as binary) body").write.format("rocketmq").mode("append").save(read_from(spark))
    ),
}


def read_from(spark: SparkSession) -> str:
    return str(spark.conf.get("mqstore.tests.place"))


@pytest.mark.versions
@pytest.mark.parametrize("how", INSERTS)
def test_a_store_that_is_read_is_not_written_to_without_an_option_for_it(how: str, root: Path, spark: SparkSession) -> None:
    """INSERT INTO a view over a read appended to the store: 1,023 messages of a killed broker became 2,046."""
    register(spark)
    spark.conf.set("mqstore.tests.place", str(root))
    spark.read.format("rocketmq").option("columns", "topic,body").load(str(root)).createOrReplaceTempView("store_read")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW store_named USING rocketmq OPTIONS (path '{root}', columns 'topic,body')")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(Exception, match=r"writable=true|has no option 'columns'"):
        INSERTS[how](spark)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


@pytest.mark.versions
def test_a_view_that_names_only_the_path_is_not_written_to_either(root: Path, spark: SparkSession) -> None:
    """Its options are exactly those of a plain `save`, so that one needs `writable` too."""
    register(spark)
    spark.read.format("rocketmq").load(str(root)).createOrReplaceTempView("store_plain")
    with pytest.raises(Exception, match="give the write the option writable=true, or a runId"):
        spark.sql("INSERT INTO store_plain SELECT * FROM store_plain")
    assert bodies(root) == [b"before"]


@pytest.mark.versions
@pytest.mark.parametrize("options", [{"writable": "true"}, {"writable": "TRUE"}, {"runId": "night"}, {"lockTimeout": "5"}])
def test_an_option_that_only_a_write_has_permits_it(options: dict[str, str], root: Path, tmp_path: Path, spark: SparkSession) -> None:
    register(spark)
    rows = spark.sql("SELECT 'orders' topic, cast('after' as binary) body")
    rows.write.format("rocketmq").mode("append").options(config=config_file(tmp_path), **options).save(str(root))
    assert bodies(root) == [b"before", b"after"]


def test_a_store_is_never_overwritten(tmp_path: Path, spark: SparkSession) -> None:
    register(spark)
    with pytest.raises(Exception, match=r"(?s).") as raised:
        numbered(spark, 3, 1).write.format("rocketmq").mode("overwrite").option("create", "true").save(str(tmp_path / "store"))
    assert 'mode("append")' in error_sentence(raised.value) or "TRUNCATE" in str(raised.value) or "truncate" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_mqstore_errors_of_the_sink_are_one_sentence(root: Path) -> None:
    with pytest.raises(MqstoreError, match=r"is not a directory, or no longer exists"):
        write_part([batch(0, 1)], str(root / "gone"), 0, 0, rules())
