"""What a task carries does not grow with the store: no list of files, no list of records."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.spark_api import needs_streams
from support.sparse import FILE_SIZE, QUEUES, TOPIC, sparse_store
from support.stores import Store, message

import mqstore
from mqstore import pipeline
from mqstore.errors import CannotOpenError, PipelineError
from mqstore.jobs.runner import ThreadRunner
from mqstore.pipeline.source import rocketmq
from mqstore.pipeline.source.options import ReadOptions
from mqstore.pipeline.source.rocketmq import RocketMQReader
from mqstore.pipeline.spark import runner
from mqstore.rocketmq.lookup.pruning import Offsets
from mqstore.rocketmq.scan.planned_files import files_seen, require_seen, token_of
from mqstore.rocketmq.scan.splits import MAX_TASKS
from mqstore.rocketmq.verify.tasks import check_part, parts
from mqstore.threads import AT_ONCE

MOST = 1500  # bytes of a pickled task

FILTERS: dict[str, dict[str, str]] = {
    "nothing": {},
    "topic": {"topic": TOPIC},
    "queue offsets": {"topic": TOPIC, "queueId": "1", "startingQueueOffset": "5", "endingQueueOffset": "90"},
    "time": {"startingTimestamp": "1640995200100"},
    "physical offsets": {"startingOffsets": str(FILE_SIZE), "endingOffsets": str(9 * FILE_SIZE)},
    "a key": {"keys": "k7"},
}


def reader_of(path: Path | str, columns: tuple[str, ...] = ("topic", "queue_offset"), **options: str) -> RocketMQReader:
    return RocketMQReader(ReadOptions.of({"path": str(path), **options}), columns)


def pickled(tasks: Any) -> list[int]:
    return [len(pickle.dumps(task)) for task in tasks]


@pytest.mark.parametrize("files", [2_000, pytest.param(20_000, marks=pytest.mark.long), pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_task_is_as_small_for_any_number_of_log_files(files: int, tmp_path: Path) -> None:
    path = sparse_store(tmp_path, files)
    for name, options in FILTERS.items():
        sizes = pickled(reader_of(path, **options).partitions())
        assert 0 < len(sizes) <= MAX_TASKS, name
        assert max(sizes) <= MOST, name
    reader = reader_of(path)
    planned = reader.partitions()
    (path / "commitlog" / f"{files // 2 * FILE_SIZE:020d}").rename(tmp_path / "gone")
    for part in planned:
        task = part.task  # type: ignore[attr-defined]
        if task.split.start <= files // 2 * FILE_SIZE < task.split.stop:
            with pytest.raises(PipelineError, match=rf"{files // 2 * FILE_SIZE:020d} was removed after the read was planned"):
                list(reader.read(part))
    assert sum(batch.num_rows for batch in reader.read(planned[0])) >= 1
    (tmp_path / "gone").rename(path / "commitlog" / f"{files // 2 * FILE_SIZE:020d}")
    store = mqstore.open(path)
    tasks = parts(store)
    assert len(tasks) <= MAX_TASKS
    assert max(pickled(tasks)) <= MOST
    proofs = pickled([check_part(tasks[0]), check_part(tasks[-1])])
    assert max(proofs) <= MOST


def tasks_of(monkeypatch: pytest.MonkeyPatch, job: Any, *arguments: Any, **more: Any) -> list[list[Any]]:
    """Return the tasks that a job gives to its runner, stage by stage; the last stage is not run."""
    stages: list[list[Any]] = []
    real = ThreadRunner.each

    def each(self: ThreadRunner, tasks: Any, function: Any, done: Any = None) -> Any:
        stages.append(list(tasks))
        return real(self, tasks, function, done)

    with monkeypatch.context() as patch:
        patch.setattr(ThreadRunner, "each", each)
        job(*arguments, **more)
    return stages


def test_the_tasks_of_every_job_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files, many of which are read by one task."""
    path = sparse_store(tmp_path / "store", 300, file_size=64 << 10)
    for job, arguments, more in (
        (pipeline.verify, (path,), {"splits": 3}),
        (pipeline.usage, (path,), {"splits": 3}),
        (pipeline.find, (path, "k7"), {}),
        (pipeline.lookup, (path, [(TOPIC, "k7"), (TOPIC, "none")], tmp_path / "found"), {"by": "scan"}),
        (pipeline.export, (path, tmp_path / "out"), {"splits": 3}),
    ):
        stages = tasks_of(monkeypatch, job, *arguments, threads=1, **more)
        assert any(stages), job
        assert max(size for tasks in stages for size in pickled(tasks)) <= MOST, job


def test_keys_travel_once_and_the_places_of_their_records_in_bounded_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Store(tmp_path / "written", file_size=1 << 20)
    for number in range(8000):
        written.put(message("orders", b"", keys=f"k{number}"))
    pipeline.rebuild(written.write(), tmp_path / "store", threads=1)
    keys = " ".join(f"k{number}" for number in range(0, 8000, 5))
    wanted = reader_of(tmp_path / "store", keys=keys, useDerivedFiles="false")
    scanned = wanted.partitions()
    assert max(pickled(scanned)) <= MOST
    monkeypatch.setattr(rocketmq, "OFFSETS", 100)
    reader = reader_of(tmp_path / "store", keys=keys)
    planned = reader.partitions()
    assert {part.how for part in planned} == {"index"}  # type: ignore[attr-defined]
    assert len(planned) == 17  # 1,600 records, and those at the borders of index files
    assert max(pickled(planned)) <= MOST + 4 * 100
    sent = pickle.loads(pickle.dumps(reader))
    rows = [row for part in planned for batch in sent.read(part) for row in batch.to_pylist()]
    assert len(rows) == 1600
    assert rows == [row for part in scanned for batch in wanted.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("offsets", [[7], [0, 1, 5], [9, 9 + (1 << 32) - 1], [9, 10, 10 + (1 << 32), 1 << 60]])
def test_offsets_are_those_that_were_given(offsets: list[int]) -> None:
    packed = Offsets.of(np.array(offsets, np.int64))
    assert pickle.loads(pickle.dumps(packed)).values().tolist() == offsets
    assert len(packed) == len(offsets)


def test_many_large_stores_share_the_tasks(tmp_path: Path) -> None:
    for number in range(50):
        sparse_store(tmp_path / f"broker-{number:02d}", 60, queues=False)
    sizes = pickled(reader_of(str(tmp_path / "broker-*")).partitions())
    assert len(sizes) <= MAX_TASKS
    assert max(sizes) <= MOST


@pytest.mark.parametrize(("at_once", "tasks"), [(None, 16), ("2", 5), ("40", 16)], ids=["a cluster", "two cores", "the least size"])
def test_a_session_on_this_machine_has_some_two_tasks_a_core(at_once: str | None, tasks: int, tmp_path: Path, monkeypatch: Any) -> None:
    path = sparse_store(tmp_path, 16, file_size=64 << 20)
    monkeypatch.delenv(AT_ONCE, raising=False)
    if at_once is not None:
        monkeypatch.setenv(AT_ONCE, at_once)
    assert len(reader_of(path).partitions()) == tasks


DRIVER = """
import json, os, re, sys, threading
from pathlib import Path
from mqstore import pipeline
from mqstore.pipeline import session

path, first, stop = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
batches, there = [], threading.Event()

def taken(frame, number):
    batches.append(frame.count())
    there.set()

def peak():  # MiB of the largest Python process of this session
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path(f"/proc/{pid}/status").read_text() if os.getsid(int(pid)) == os.getsid(0) else ""
        except OSError:  # it has ended
            continue
        if text.startswith("Name:\tpython"):
            found.append(int(re.search("VmHWM:\\s*([0-9]+)", text)[1]) >> 10)
    return max(found)

with session("local[2]", config={"spark.driver.memory": "512m"}) as spark:
    some = pipeline.read(spark, path, columns=["queue_offset"], startingOffsets=first, endingOffsets=stop)
    live = spark.readStream.format("rocketmq").option("columns", "topic").option("startingOffsets", "earliest")
    query = live.option("maxRowsPerTrigger", 10).load(path).writeStream.foreachBatch(taken).start()
    try:
        while query.isActive and not there.wait(1):
            pass
    finally:
        query.stop()
    print(json.dumps({"plan": str(pipeline.explain_read(some)), "rows": some.count(), "batch": batches[0], "peak": peak()}))
"""


@needs_streams
@pytest.mark.parametrize(
    ("stores", "files"),
    [
        pytest.param(1, 20_000, marks=pytest.mark.long),
        pytest.param(1, 100_000, marks=pytest.mark.slow),
        pytest.param(50, 400, marks=pytest.mark.long),
        pytest.param(50, 2_000, marks=pytest.mark.slow),
    ],
)
def test_a_driver_of_1_gb_plans_logs_of_any_number_of_files_and_streams_them(stores: int, files: int, tmp_path: Path) -> None:
    """512 MB of heap, and 512 MB for the largest Python process; a filter leaves ten tasks, or one a store. files: of each store."""
    for number in range(stores):
        sparse_store(tmp_path / f"broker-{number:02d}", files)
    step = stores * files // 1000 // min(stores, 10)
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "broker-*"), str(step * FILE_SIZE), str(2 * step * FILE_SIZE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, start_new_session=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    partitions = re.search(r"(\d+) partitions", found["plan"])
    assert partitions is not None, found
    assert 10 <= int(partitions[1]) <= max(11, stores)
    assert (found["rows"], found["batch"]) == (stores * step, 10)
    assert found["peak"] <= 512


def test_a_sparse_store_is_read_whole(tmp_path: Path) -> None:
    path = sparse_store(tmp_path, 9)
    reader = reader_of(path, ("physical_offset", "queue_id", "queue_offset"))
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert found == [
        {"physical_offset": number * FILE_SIZE, "queue_id": number % QUEUES, "queue_offset": number // QUEUES} for number in range(9)
    ]
    assert pipeline.verify(path, threads=2).ok
    assert pipeline.verify(path, threads=2, splits=3).ok


# what changes between planning and reading


@pytest.fixture
def mail(tmp_path: Path) -> Path:
    store = Store(tmp_path / "mail", file_size=4096)
    for number in range(60):
        store.put(message("orders", b"x" * 100, keys=f"k{number}"))
    return store.write()


def test_a_range_is_what_planning_saw_of_it(mail: Path) -> None:
    log = mqstore.open(mail).log
    seen, token = files_seen(log, 5000, 9000), token_of(log)
    require_seen(mqstore.open(mail).log, seen)
    # other files may come and go
    (mail / "commitlog" / f"{0:020d}").unlink()
    later = mqstore.open(mail).log
    require_seen(later, seen)
    assert token_of(later) != token
    second = mail / "commitlog" / f"{4096:020d}"
    second.rename(mail / "elsewhere")
    with pytest.raises(CannotOpenError, match=rf"{second} no longer exists: it was removed after the store was listed"):
        require_seen(mqstore.open(mail).log, seen)
    second.write_bytes((mail / "elsewhere").read_bytes()[:3000])
    with pytest.raises(CannotOpenError, match=rf"{second}, or a file after it up to physical offset 9000, changed or was removed"):
        require_seen(mqstore.open(mail).log, seen)
    alone = files_seen(log, 5000, 8192)
    with pytest.raises(CannotOpenError, match=rf"{second}: the file changed since the store was listed; run the job again"):
        require_seen(mqstore.open(mail).log, alone)


def test_a_worker_with_another_version_of_the_package_reads_nothing(mail: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(mail)
    sent, planned = pickle.dumps(reader), reader.partitions()
    monkeypatch.setattr(runner, "__version__", "0.0.7")
    with pytest.raises(PipelineError, match=r"this worker of Spark has mqstore 0\.0\.7, and its task was planned by \S+: install the same"):
        list(pickle.loads(sent).read(planned[0]))


@pytest.mark.parametrize("where", [{}, {"topic": "orders", "queueId": "0", "startingQueueOffset": "1", "endingQueueOffset": "60"}])
def test_a_file_that_shrank_between_plan_and_read_ends_the_read(mail: Path, where: dict[str, str]) -> None:
    reader = reader_of(mail, **where)
    planned = reader.partitions()
    last = max((mail / "commitlog").iterdir())
    last.write_bytes(last.read_bytes()[:200])
    with pytest.raises(PipelineError, match=r"changed.* since the store was listed; run the job again; failOnDataLoss=false"):
        [batch for part in planned for batch in reader.read(part)]


def test_a_job_does_not_skip_a_file_that_vanished(mail: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ThreadRunner.each

    def each(self: ThreadRunner, tasks: Any, function: Any, done: Any = None) -> Any:
        for path in (mail / "commitlog").glob(f"*{4096:05d}"):
            path.unlink()
        return real(self, tasks, function, done)

    whole = {path.name: path.read_bytes() for path in (mail / "commitlog").iterdir()}
    monkeypatch.setattr(ThreadRunner, "each", each)
    for job in (
        lambda: pipeline.verify(mail, threads=1, splits=9),
        lambda: pipeline.usage(mail, threads=1, splits=3),
        lambda: pipeline.export(mail, tmp_path / "out", threads=1, splits=3),
        lambda: pipeline.find(mail, "k7", threads=1),
    ):
        with pytest.raises(CannotOpenError, match=r"(since|after) the store was listed"):
            job()
        for name, raw in whole.items():
            (mail / "commitlog" / name).write_bytes(raw)
