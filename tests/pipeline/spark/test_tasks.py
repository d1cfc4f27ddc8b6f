"""One Spark task per item: order, retries, failures, progress, interrupts. On a real session, with real Python workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mqstore.errors import PipelineError, TargetError
from mqstore.pipeline.spark.runner import run_tasks
from mqstore.pipeline.spark.session import cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.versions
def test_results_come_in_the_order_of_the_tasks(spark: SparkSession) -> None:
    def slower_first(number: int) -> tuple[int, int]:
        time.sleep(0.2 if number == 0 else 0)
        return number, os.getpid()

    results = run_tasks(spark, range(12), slower_first)
    assert [number for number, _ in results] == list(range(12))
    assert os.getpid() not in {worker for _, worker in results}
    assert cores(spark) == 2


def test_no_tasks_need_no_job(spark: SparkSession) -> None:
    assert run_tasks(spark, [], str) == []


def test_a_task_that_fails_once_is_tried_again_and_counted_once(spark: SparkSession, tmp_path: Path) -> None:
    def fails_at_first(number: int) -> int:
        with open(tmp_path / f"{number}-{time.monotonic_ns()}", "xb"):
            pass
        if number == 2 and len(list(tmp_path.glob("2-*"))) == 1:
            raise OSError("a passing trouble")
        return number

    assert run_tasks(spark, range(4), fails_at_first) == [0, 1, 2, 3]
    assert len(list(tmp_path.glob("2-*"))) == 2


@pytest.mark.versions
def test_a_task_whose_process_dies_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    def dies_at_first(number: int) -> int:
        mark = tmp_path / str(number)
        if not mark.exists():
            mark.touch()
            os._exit(1)
        return number

    assert run_tasks(spark, [7], dies_at_first) == [7]


@pytest.mark.versions
def test_a_task_that_always_fails_ends_the_job_with_its_own_sentence(spark: SparkSession, tmp_path: Path) -> None:
    def full(number: int) -> int:
        with open(tmp_path / f"{number}-{time.monotonic_ns()}", "xb"):
            pass
        raise TargetError("out/queue cannot be written: the disk is full; free some space or choose a target on another disk")

    with pytest.raises(PipelineError) as caught:
        run_tasks(spark, [0], full)
    assert str(caught.value) == "out/queue cannot be written: the disk is full; free some space or choose a target on another disk"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_mistake_in_a_task_is_one_line_without_a_traceback(spark: SparkSession) -> None:
    with pytest.raises(PipelineError) as caught:
        run_tasks(spark, [1, 0], lambda number: 1 / number, doing="the division")
    assert str(caught.value) == "the division failed: division by zero (ZeroDivisionError)"


def test_a_process_that_always_dies_is_one_sentence(spark: SparkSession) -> None:
    with pytest.raises(PipelineError) as caught:
        run_tasks(spark, [0], lambda number: os._exit(number))
    assert str(caught.value) == "the Spark job failed: a Python worker of Spark exited unexpectedly: it was killed, or ran out of memory"


def test_progress_never_falls_and_ends_at_all(spark: SparkSession) -> None:
    seen: list[tuple[int, int]] = []
    run_tasks(spark, range(8), lambda _: time.sleep(0.2), progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (8, 8)
    assert {total for _, total in seen} == {8}
    assert len({done for done, _ in seen}) > 2


def test_the_session_is_usable_after_a_failure(spark: SparkSession) -> None:
    with pytest.raises(PipelineError):
        run_tasks(spark, [0], lambda number: 1 / number)
    assert run_tasks(spark, [1, 2], lambda number: -number) == [-1, -2]
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None


@pytest.mark.spark
def test_an_interrupt_ends_the_tasks_before_it_reaches_the_caller(tmp_path: Path) -> None:
    """Ctrl-C at a terminal reaches every process of the group. What a task would write later is never written."""
    script = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from mqstore.pipeline.spark.session import session
        from mqstore.pipeline.spark.runner import run_tasks
        place = Path(sys.argv[1])
        def task(number):
            (place / f"begun-{number}").touch()
            for _ in range(60):
                time.sleep(0.1)
                (place / f"beat-{number}").touch()
            (place / f"ended-{number}").touch()
        spark = session("local[2]")
        try:
            run_tasks(spark, range(4), task)
        except KeyboardInterrupt:
            (place / "interrupted").touch()
            time.sleep(3)
            sys.exit(130)
    """)
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("beat-*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=300)
    assert (process.returncode, error.decode()) == (130, "")
    interrupted = (tmp_path / "interrupted").stat().st_mtime_ns
    assert all(beat.stat().st_mtime_ns <= interrupted for beat in tmp_path.glob("beat-*"))
    assert not list(tmp_path.glob("ended-*"))
