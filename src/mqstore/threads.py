"""Threads for the tasks of a job, which end soon after an interruption.

`ThreadPoolExecutor` waits for running tasks, and a task may take minutes: Ctrl-C would seem to do nothing. Here a task that runs
when the block is left by a KeyboardInterrupt gets the exception `StoppedTask` at its next step, and tasks that wait never begin. The block
ends when no task runs, so that unfinished files can be removed afterwards.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

AT_ONCE = "MQSTORE_TASKS_AT_ONCE"  # of a Spark session on this machine, in the environment of its processes
_LEAST_TASKS = 16

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


def least_tasks() -> int:
    """Return the number of tasks that a read is divided into, unless they get too small: two for each that runs at once.

    To start a task of Spark takes some 40 ms. The planner of a cluster cannot find out the number of its cores.
    """
    at_once = os.environ.get(AT_ONCE, "")
    return 2 * int(at_once) if at_once.isdecimal() else _LEAST_TASKS


class StoppedTask(BaseException):
    """The job of this task was interrupted."""


class TaskThreads(ThreadPoolExecutor):
    """A pool of threads. After a KeyboardInterrupt in the block, running tasks are stopped."""

    def __init__(self, width: int, name: str = "mqstore") -> None:
        super().__init__(width, thread_name_prefix=name)
        self._guard = threading.Lock()
        self._running: set[int] = set()

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Queue a task."""

        def task() -> Any:
            own = threading.get_ident()
            with self._guard:
                self._running.add(own)
            try:
                return fn(*args, **kwargs)
            finally:
                try:
                    with self._guard:
                        self._running.discard(own)
                    _next_step()
                except StoppedTask:
                    pass  # it came too late, and must not hit what the pool does next

        return super().submit(task)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.shutdown(wait=False, cancel_futures=True)
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            with self._guard:
                for each in self._running:
                    _raise_in(each, StoppedTask)
        self.shutdown(wait=True)


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    """Raise an exception in a thread at its next step.

    It cannot be taken back: Python 3.11 would look for one at every step from then on, and a profiler or debugger would never end.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


def _next_step() -> None:
    """Let an exception come that another thread has raised in this one."""


def in_threads(tasks: Iterable[T], function: Callable[[T], R], width: int) -> Iterator[R]:
    """Yield the results of tasks in their order, from `width` threads. The next task is taken when a thread is about to need it."""
    waiting: deque[Future[R]] = deque()
    with TaskThreads(width) as pool:
        try:
            for task in tasks:
                # finished results are kept in memory until their turn: limit how many
                while len(waiting) > width + 1:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(function, task))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
