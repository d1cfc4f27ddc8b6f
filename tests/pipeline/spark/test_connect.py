"""Jobs on a session of Spark Connect: the result of every job is that of threads. A real server in a process of its own."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from support.cluster import until
from support.connect import ConnectServer, blocks
from support.golden import RABBITMQ, case_named, opened, run_cli, unpack
from support.spark_api import needs_tables
from support.stores import store_contents
from support.tables import plain, table

from mqstore import pipeline
from mqstore.errors import PipelineError, TargetError, UnsupportedError, UsageError
from mqstore.jobs.export import export_queues as export_rabbitmq
from mqstore.pipeline.spark.connect import connected, disconnect, is_connect
from mqstore.pipeline.spark.runner import run_tasks
from mqstore.pipeline.spark.session import CATALOG_JAR, cores
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.stores import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("grpc", reason="needs the extra connect")
pytestmark = [needs_tables, pytest.mark.cluster, pytest.mark.xdist_group("connect")]

CLEAN = case_named("4.9.3/a-clean-small")
CASES = [CLEAN, case_named("4.9.3/b2-kill9-live"), case_named("5.3.3/o-batch-queue")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path_factory.mktemp("connect") / "server") as started:
        yield started


@pytest.fixture(scope="module")
def client(server: ConnectServer) -> Iterator[SparkSession]:
    session = connected(server.url)
    yield session
    disconnect(session)


# every job


@pytest.mark.versions
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_verify_and_usage_report_what_threads_report(client: SparkSession, case: Any) -> None:
    assert is_connect(client)
    source = opened(case)
    on_server = pipeline.verify(source, spark=client, splits=3).as_dict()
    assert on_server == pipeline.verify(source, threads=2, splits=3).as_dict()
    used = pipeline.usage(source, spark=client, splits=3)
    assert used.rows("topic") == pipeline.usage(source, threads=2, splits=3).rows("topic")


@pytest.mark.versions
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_rebuilt_store_has_the_bytes_that_threads_write(client: SparkSession, case: Any, tmp_path: Path) -> None:
    pipeline.rebuild(opened(case), tmp_path / "threads", threads=2, splits=3)
    pipeline.rebuild(opened(case), tmp_path / "server", spark=client, splits=3)
    assert store_contents(tmp_path / "server") == store_contents(tmp_path / "threads")
    assert sorted(os.listdir(tmp_path)) == ["server", "threads"]


@pytest.mark.versions
@pytest.mark.parametrize("file_format", ["parquet", "iceberg", "delta"])
def test_an_export_has_the_rows_that_threads_write(client: SparkSession, file_format: str, tmp_path: Path) -> None:
    pipeline.export(opened(CLEAN), tmp_path / "threads", threads=2, splits=3)
    report = pipeline.export(opened(CLEAN), tmp_path / "server", format=file_format, spark=client, splits=3)
    rows = plain(tmp_path / "server") if file_format == "parquet" else table(file_format, tmp_path / "server")
    assert rows == plain(tmp_path / "threads")
    assert report.messages == len(rows) > 0


def test_an_append_to_a_table_has_the_rows_that_threads_write(client: SparkSession, tmp_path: Path) -> None:
    pipeline.export(opened(CLEAN), tmp_path / "threads", threads=2)
    report = pipeline.append(opened(CLEAN), tmp_path / "server", format="delta", spark=client)
    assert table("delta", tmp_path / "server") == plain(tmp_path / "threads")
    assert report.messages == 511
    assert pipeline.append(opened(CLEAN), tmp_path / "server", format="delta", spark=client).messages == 0


@pytest.mark.parametrize("by", ["probe", "sweep", "scan"])
def test_a_lookup_gives_the_answers_that_threads_give(client: SparkSession, by: Any, tmp_path: Path) -> None:
    some = [
        (row["topic"], key)
        for row in pipeline.read(client, opened(CLEAN), columns=["topic", "keys"]).collect()
        for key in row["keys"] or ()
    ]
    keys = [*some[:40:4], ("orders", "no such key")]
    one = pipeline.lookup(opened(CLEAN), keys, tmp_path / "threads.parquet", by=by)
    other = pipeline.lookup(opened(CLEAN), keys, tmp_path / "server.parquet", by=by, spark=client)
    assert pq.read_table(tmp_path / "server.parquet").equals(pq.read_table(tmp_path / "threads.parquet"))
    assert (other.hits, other.misses) == (one.hits, one.misses)
    assert one.hits > 0
    assert sum(one.misses.values()) == 1


def test_an_export_of_rabbitmq_queues_has_the_rows_that_threads_write(client: SparkSession, tmp_path: Path) -> None:
    source = open_store(opened(RABBITMQ[0]))
    assert isinstance(source, RabbitMQStore)
    export_rabbitmq(source, tmp_path / "threads", threads=2)
    export_rabbitmq(source, tmp_path / "server", spark=client)
    read = [
        sorted(str(row) for path in sorted((tmp_path / name).glob("*.parquet")) for row in pq.read_table(path).to_pylist())
        for name in ("threads", "server")
    ]
    assert read[0] == read[1] != []


# tasks


@pytest.mark.skipif(not CATALOG_JAR.exists(), reason="catalog.jar was not built: the installation found no JDK, or no pyspark")
def test_the_catalog_of_a_server_has_the_tables_of_a_store(client: SparkSession) -> None:
    pipeline.register(client)
    store = opened(CLEAN)
    expected = pipeline.read(client, store, ["topic", "queue_id"]).where("queue_id = 1").collect()
    found = client.sql(f"select topic, queue_id from mq.`{store}`.messages where queue_id = 1").collect()
    assert sorted(found) == sorted(expected) != []
    assert "timers" in [row["tableName"] for row in client.sql(f"show tables in mq.`{store}`").collect()]


def test_results_come_in_the_order_of_the_tasks_with_their_progress(client: SparkSession) -> None:
    told: list[tuple[int, int]] = []
    results = run_tasks(client, range(5), _square, progress=lambda done, total: told.append((done, total)))
    assert results == [0, 1, 4, 9, 16]
    assert told[-1] == (5, 5)
    assert told == sorted(told)
    assert cores(client) == 2
    assert run_tasks(client, [], _square) == []


def _square(number: int) -> int:
    return number * number


_square.__module__ = "__main__"  # pickled by value: the server does not have the tests


def test_no_task_carries_the_other_tasks() -> None:
    from pyspark import cloudpickle

    from mqstore import __version__
    from mqstore.pipeline.spark.connect import _text
    from mqstore.pipeline.spark.source_api import CaseInsensitiveDict
    from mqstore.pipeline.spark.task_source import TaskSource

    tasks = [bytes(100_000)] * 20
    options = {"secretTasks": _text(cloudpickle.dumps(tasks)), "secretFunction": _text(cloudpickle.dumps(len)), "version": __version__}
    source = TaskSource(CaseInsensitiveDict(options))
    reader = source.reader(source.schema())  # type: ignore[arg-type]
    assert len(cloudpickle.dumps((reader, source))) < 1000
    assert [len(cloudpickle.dumps(part)) < 101_000 for part in reader.partitions()] == [True] * 20


def test_a_task_that_always_fails_is_its_own_sentence(client: SparkSession) -> None:
    def full(number: int) -> int:
        raise TargetError("out cannot be written: the disk is full")

    full.__module__ = "__main__"
    with pytest.raises(PipelineError) as caught:
        run_tasks(client, [0], full)
    assert str(caught.value) == "out cannot be written: the disk is full"
    with pytest.raises(PipelineError) as caught:
        run_tasks(client, [1, 0], lambda number: 1 / number, doing="the division")
    assert str(caught.value) == "the division failed: division by zero (ZeroDivisionError)"


def test_a_task_whose_process_dies_is_tried_again_and_one_that_always_dies_is_one_sentence(client: SparkSession, tmp_path: Path) -> None:
    def dies_at_first(number: int) -> int:
        mark = tmp_path / str(number)
        if number == 0 or not mark.exists():
            mark.touch()
            os._exit(1)
        return number

    assert run_tasks(client, [7], dies_at_first) == [7]
    with pytest.raises(PipelineError) as caught:
        run_tasks(client, [0], dies_at_first)
    assert str(caught.value) == "the Spark job failed: a Python worker of Spark exited unexpectedly: it was killed, or ran out of memory"


def test_another_version_on_the_server_is_said(client: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqstore.pipeline.spark.connect.__version__", "0.0.7")
    with pytest.raises(PipelineError, match=r"^the Spark Connect server has mqstore \S+, this process has 0\.0\.7: install"):
        run_tasks(client, [1], _square)


def test_an_interrupt_cancels_the_tasks(server: ConnectServer, tmp_path: Path) -> None:
    program = f"""
        import os, time
        from mqstore.pipeline.spark.connect import connected
        from mqstore.pipeline.spark.runner import run_tasks
        def lasts(number):
            open({str(tmp_path)!r} + f"/{{number}}-{{os.getpid()}}", "x").close()
            time.sleep(600)
        run_tasks(connected({server.url!r}), range(2), lasts)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stderr=subprocess.PIPE) as running:
        try:
            until(lambda: True if len(list(tmp_path.iterdir())) == 2 else None, "two tasks")
            workers = [int(path.name.partition("-")[2]) for path in tmp_path.iterdir()]
            running.send_signal(signal.SIGINT)
            assert b"KeyboardInterrupt" in running.communicate(timeout=300)[1]
        finally:
            running.kill()
    for worker in workers:
        until(lambda worker=worker: None if Path(f"/proc/{worker}").exists() else True, f"the end of worker {worker}")  # type: ignore[misc]
    assert len(list(tmp_path.iterdir())) == 2


# what does not work says so


def test_what_cannot_work_is_refused_by_name(client: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="follow writes its batches in the process that runs it"):
        pipeline.follow(opened(CLEAN), tmp_path / "out", once=True, spark=client)
    assert not (tmp_path / "out").exists()
    with pytest.raises(UnsupportedError, match="install it in the Python that the server runs"):
        pipeline.ship(client)
    with pytest.raises(UnsupportedError, match="explain_read needs a classic session"):
        pipeline.explain_read(pipeline.read(client, opened(CLEAN)))


def test_a_server_that_does_not_answer_and_a_bad_url_are_one_sentence_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        port = taken.getsockname()[1]
        begun = time.monotonic()
        with pytest.raises(PipelineError, match=f"^no Spark Connect server answers at 127.0.0.1:{port}"):
            connected(f"sc://127.0.0.1:{port}")
    assert time.monotonic() - begun < 10
    with pytest.raises(UsageError, match="is not a URL of a Spark Connect server"):
        connected("sc://127.0.0.1:port")


# the guide


def test_the_commands_of_the_guide_work(server: ConnectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    unpack(CLEAN, tmp_path / "store")
    (tmp_path / "keys.txt").write_text("orders\tno such key\n")
    lines = blocks("sh jobs")[0].replace("sc://127.0.0.1:15002", server.url).splitlines()
    assert len(lines) == 5
    for line in lines:
        done = run_cli(*shlex.split(line)[1:])
        assert done.status == 0, done.stderr
    assert store_contents(tmp_path / "rebuilt")
    assert plain(tmp_path / "messages")


@pytest.mark.versions
def test_the_program_of_the_guide_prints_what_threads_find(server: ConnectServer, tmp_path: Path) -> None:
    unpack(CLEAN, tmp_path / "store")
    program = blocks("python")[0].replace("sc://127.0.0.1:15002", server.url)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    found = pipeline.verify(tmp_path / "store", threads=1)
    assert done.stdout.startswith(f"{found.ok} {found.checked.records}\n"), done.stderr
    assert done.returncode == 0, done.stderr
    assert "|orders|" in done.stdout.replace(" ", "")


def test_after_a_session_of_spark_connect_this_process_can_have_another_kind(server: ConnectServer) -> None:
    code = f"""
        from mqstore.pipeline import session
        from mqstore.pipeline.spark.session import stop
        for master in ({server.url!r}, "local[1]"):
            print(session(master).range(7).count())
            stop()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "7\n7\n"), done.stderr[-3000:]
