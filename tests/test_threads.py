"""Threads for tasks: an interruption stops running tasks, waiting ones never begin, and the threads do not outlive the block."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time

import pytest

from mqstore.threads import StoppedTask, TaskThreads


def test_results_and_errors_are_those_of_the_tasks() -> None:
    with TaskThreads(2) as pool:
        assert list(pool.map(lambda number: number * number, range(20))) == [number * number for number in range(20)]
        failed = pool.submit(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            failed.result()


def test_a_keyboard_interrupt_stops_running_tasks_and_drops_waiting_ones() -> None:
    begun, ended, late = threading.Event(), [], []

    def endless() -> None:
        begun.set()
        try:
            while True:
                time.sleep(0.001)
        finally:
            ended.append(True)

    with pytest.raises(KeyboardInterrupt), TaskThreads(1) as pool:
        running = pool.submit(endless)
        waiting = pool.submit(late.append, True)
        assert begun.wait(10)
        raise KeyboardInterrupt
    assert (ended, late, waiting.cancelled()) == ([True], [], True)
    assert isinstance(running.exception(), StoppedTask)


def test_after_another_error_running_tasks_end_by_themselves() -> None:
    done = []

    def slow() -> None:
        time.sleep(0.05)
        done.append(True)

    with pytest.raises(ValueError, match="other"), TaskThreads(1) as pool:
        running = pool.submit(slow)
        while not running.running():
            time.sleep(0.001)
        raise ValueError("other")
    assert done == [True]


PROFILED = """
import cProfile, faulthandler
from mqstore.threads import in_threads

faulthandler.dump_traceback_later(60, exit=True)
assert list(in_threads(range(10), str, 2)) == [str(number) for number in range(10)]
cProfile.run("sum(map(abs, range(10)))")
"""


def test_a_profiler_runs_after_tasks_have_run_in_threads() -> None:
    """In Python 3.11, it hangs once an asynchronous exception was taken back in any thread."""
    done = subprocess.run([sys.executable, "-c", PROFILED], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "function calls" in done.stdout


def test_an_interruption_reaches_nothing_after_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that end by themselves at that moment, too: what comes too late is not raised in the threads of the pool."""
    uncaught: list[object] = []
    monkeypatch.setattr(threading, "excepthook", uncaught.append)
    dice = random.Random(1)

    def task(steps: int) -> None:
        for _ in range(steps):
            time.sleep(0)

    for _ in range(300):
        with pytest.raises(KeyboardInterrupt), TaskThreads(3) as threads:
            for _ in range(3):
                threads.submit(task, dice.randrange(300))
            time.sleep(dice.random() / 5000)
            raise KeyboardInterrupt
    assert uncaught == []
