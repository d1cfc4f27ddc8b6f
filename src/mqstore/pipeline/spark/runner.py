"""Runners for the tasks of a job: this thread, threads of this process, or Spark, also while it starts. The task functions are the same.

Kernels release the GIL, so threads read a log on all cores of one host. For one store on one host that is the fastest choice.
Spark uses all hosts of its master. Results come in the order of the tasks, regardless of the order in which they finish.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import cache, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol, TypeVar

from mqstore.threads import TaskThreads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Runner", "SparkRunner", "StartingSparkRunner", "ThreadRunner", "freeze_gc_once"]

T = TypeVar("T")
R = TypeVar("R")


class Runner(Protocol):
    """Runs tasks."""

    @property
    def width(self) -> int:
        """Number of tasks that run at the same time."""
        ...

    @property
    def shares_memory(self) -> bool:
        """Whether tasks run in this process, so that results may hold large arrays."""
        ...

    @property
    def name(self) -> str:
        """Name for reports: `2 threads of this process`."""
        ...

    def each(self, tasks: Sequence[T], function: Callable[[T], R], done: Callable[[int], None] | None = None) -> Iterator[R]:
        """Yield the results in the order of the tasks. done: called with the number of tasks finished so far."""
        ...

    def require_started(self) -> None:
        """Return when the tasks' host is there, which not every task needs. Raises PipelineError if it did not start."""
        ...


class ThreadRunner:
    """Threads of this process; with one thread, tasks run in the caller's thread."""

    shares_memory = True

    def __init__(self, threads: int) -> None:
        self.width = max(1, threads)
        self.name = f"{self.width} thread{'s' if self.width > 1 else ''} of this process"

    def each(self, tasks: Sequence[T], function: Callable[[T], R], done: Callable[[int], None] | None = None) -> Iterator[R]:
        if self.width == 1 or len(tasks) <= 1:
            results: Iterator[R] = map(function, tasks)
        else:
            results = _in_threads(tasks, function, self.width)
        for finished, result in enumerate(results, 1):
            yield result
            if done is not None:
                done(finished)

    def require_started(self) -> None:
        return


def _in_threads(tasks: Iterable[T], function: Callable[[T], R], width: int) -> Iterator[R]:
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


@cache
def freeze_gc_once() -> None:
    """Exclude all objects allocated so far from garbage collection, once per Python worker of Spark.

    A worker collects after each task; with all modules imported, a collection takes as long as a small task.
    """
    gc.freeze()


def _in_worker(function: Callable[[T], R], task: T) -> R:
    freeze_gc_once()
    return function(task)


class SparkRunner:
    """Tasks of a Spark session. Functions must be importable on the executors; tasks and results must be small."""

    shares_memory = False

    def __init__(self, spark: SparkSession) -> None:
        from mqstore.pipeline.spark.session import cores

        self.spark = spark
        self.width = cores(spark)
        self.name = f"{self.width} task{'s' if self.width > 1 else ''} of Spark at once"

    def each(self, tasks: Sequence[T], function: Callable[[T], R], done: Callable[[int], None] | None = None) -> Iterator[R]:
        from mqstore.pipeline.spark.tasks import run_tasks

        progress = None if done is None else lambda finished, total: done(finished)
        yield from run_tasks(self.spark, tasks, partial(_in_worker, function), progress=progress)

    def require_started(self) -> None:
        return


class StartingSparkRunner:
    """Tasks of a session that is being started, and of threads of this process until it is there.

    A session of this machine takes seconds to start, in which its cores have little to do. The tasks and their results are those of
    Spark; whether they ran here or there makes no difference to what they write. A session that does not start is an error of
    `require_started`, if not of a task before.
    """

    shares_memory = False

    def __init__(self, starting: Future[SparkSession], width: int) -> None:
        """width: number of tasks that the session will run at the same time."""
        self._starting = starting
        self.width = width
        self.name = f"{width} task{'s' if width > 1 else ''} of Spark at once"

    def each(self, tasks: Sequence[T], function: Callable[[T], R], done: Callable[[int], None] | None = None) -> Iterator[R]:
        finished = 0
        for result in _in_threads(self._while_starting(tasks), function, self.width):
            yield result
            finished += 1
            if done is not None:
                done(finished)
        rest = tasks[finished:]
        if rest:
            later = None if done is None else lambda number: done(finished + number)
            yield from SparkRunner(self._starting.result()).each(rest, function, later)

    def require_started(self) -> None:
        self._starting.result()

    def _while_starting(self, tasks: Sequence[T]) -> Iterator[T]:
        return takewhile(lambda task: not self._starting.done(), tasks)
