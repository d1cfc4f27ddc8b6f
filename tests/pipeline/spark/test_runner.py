"""Tasks run in this process while a session starts, and on Spark from then on; the results are in the order of the tasks."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.golden import case_named, opened

from mqstore.errors import PipelineError
from mqstore.jobs.rebuild import rebuild
from mqstore.jobs.runner import ThreadRunner
from mqstore.pipeline.spark import runner, session
from mqstore.pipeline.spark.runner import SparkRunner, StartingSparkRunner, purpose_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def on_spark(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tasks that would have run on Spark."""
    given: list[int] = []

    class Spark:
        def __init__(self, spark: Any) -> None:
            assert spark == "session"

        def each(self, tasks: Sequence[int], function: Callable[[int], int], done: Callable[[int], None] | None) -> Iterator[int]:
            given.extend(tasks)
            for number, task in enumerate(tasks, 1):
                if done is not None:
                    done(number)
                yield function(task)

    monkeypatch.setattr(runner, "SparkRunner", Spark)
    return given


@pytest.mark.parametrize("width", [1, 3])
def test_a_session_takes_over_as_soon_as_it_is_there(on_spark: list[int], width: int) -> None:
    starting: Future[Any] = Future()
    progress: list[int] = []

    def task(number: int) -> int:
        if number == 4:
            starting.set_result("session")
        return number * number

    found = list(StartingSparkRunner(starting, width).each(range(20), task, progress.append))
    assert found == [number * number for number in range(20)]
    # those that were waiting for a thread when the session was there ran here, too
    assert on_spark == list(range(on_spark[0], 20))
    assert 5 <= on_spark[0] <= 5 + width + 2
    assert progress == list(range(1, 21))


def test_later_tasks_are_all_spark_s(on_spark: list[int]) -> None:
    starting: Future[Any] = Future()
    starting.set_result("session")
    each = StartingSparkRunner(starting, 2).each
    assert list(each([1, 2], str)) == ["1", "2"]
    assert list(each([3], str)) == ["3"]
    assert on_spark == [1, 2, 3]


def test_tasks_that_end_before_the_session_is_there_do_not_wait_for_it(on_spark: list[int]) -> None:
    starting: Future[Any] = Future()
    started = StartingSparkRunner(starting, 2)
    assert list(started.each([1, 2, 3], str)) == ["1", "2", "3"]
    starting.set_result("session")
    started.require_started()
    assert on_spark == []


def test_a_session_that_does_not_start_is_an_error_of_its_first_task_or_of_the_wait(on_spark: list[int]) -> None:
    starting: Future[Any] = Future()
    starting.set_exception(PipelineError("Spark did not start"))
    started = StartingSparkRunner(starting, 2)
    with pytest.raises(PipelineError, match="did not start"):
        list(started.each([1], str))
    with pytest.raises(PipelineError, match="did not start"):
        started.require_started()


def test_a_rebuild_whose_session_does_not_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(master: str) -> None:
        raise PipelineError("Spark did not start")

    monkeypatch.setattr(session, "session", fail)
    monkeypatch.setattr(session, "starts_on_this_machine", lambda master: True)
    stopped: list[str] = []
    monkeypatch.setattr(session, "stop", lambda: stopped.append("another session"))
    with pytest.raises(PipelineError, match="did not start"):
        rebuild(opened(case_named("4.9.3/c-index-collisions")), tmp_path / "new", master="local[2]")
    assert list(tmp_path.iterdir()) == []
    assert stopped == []


def test_an_error_of_a_task_ends_the_others(on_spark: list[int]) -> None:
    with pytest.raises(ZeroDivisionError):
        list(StartingSparkRunner(Future(), 2).each(range(5), lambda number: 1 // (3 - number)))
    assert on_spark == []


@pytest.mark.parametrize("width", [1, 4])
def test_threads_keep_the_order_and_count_what_is_done(width: int) -> None:
    progress: list[int] = []
    assert list(ThreadRunner(width).each(range(50), lambda number: -number, progress.append)) == [-number for number in range(50)]
    assert progress == list(range(1, 51))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupt_does_not_wait_for_a_session_that_starts_and_any_other_error_does(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    go_on, stopped = threading.Event(), threading.Event()
    monkeypatch.setattr(session, "session", lambda master: go_on.wait(60) and "session")
    monkeypatch.setattr(session, "stop", stopped.set)
    if error is not KeyboardInterrupt:
        go_on.set()
    with pytest.raises(error), session.starting("local[2]"):
        raise error
    assert stopped.is_set() == (error is not KeyboardInterrupt)
    go_on.set()
    assert stopped.wait(60)  # in any case, as soon as it is there


@pytest.mark.spark
def test_a_rebuild_that_starts_its_own_session_writes_what_threads_write(tmp_path: Path) -> None:
    store = opened(case_named("4.9.3/c-index-collisions"))
    code = "import sys; from mqstore.jobs.rebuild import rebuild; rebuild(*sys.argv[1:3], master='local[2]', splits=9)"
    subprocess.run([sys.executable, "-c", code, store, tmp_path / "spark"], check=True)
    rebuild(store, tmp_path / "threads", threads=2)
    spark, threads = (
        {path.relative_to(tmp_path / name).as_posix(): path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()}
        for name in ("spark", "threads")
    )
    assert len(spark) > 3
    assert spark == threads


def test_spark_shows_in_words_what_the_tasks_of_a_job_do(spark: SparkSession) -> None:
    assert list(SparkRunner(spark).each([16, 18], abs)) == [16, 18]
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    described = [jobs.apply(k).description() for k in range(jobs.size())]  # jobs of other tests may have none
    shown = {each.get() for each in described if each.isDefined()}
    assert "mqstore: 2 times: Return the absolute value of the argument." in shown
    assert purpose_of(partial(partial(map, abs))) == purpose_of(abs)
