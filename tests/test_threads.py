"""Threads for tasks: an interruption stops running tasks, waiting ones never begin, and the threads do not outlive the block."""

from __future__ import annotations

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
