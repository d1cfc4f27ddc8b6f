"""Runners for the tasks of a job: this thread, threads of this process, or Spark. The task functions are the same.

Kernels release the GIL, so threads read a log on all cores of one host. For one store on one host that is the fastest choice.
Spark uses all hosts of its master. Results come in the order of the tasks, regardless of the order in which they finish.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from mqstore.threads import TaskThreads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Runner", "SparkRunner", "ThreadRunner", "freeze_gc_once"]

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


class ThreadRunner:
    """Threads of this process; with one thread, tasks run in the caller's thread."""

    shares_memory = True

    def __init__(self, threads: int) -> None:
        self.width = max(1, threads)
        self.name = f"{self.width} thread{'s' if self.width > 1 else ''} of this process"

    def each(self, tasks: Sequence[T], function: Callable[[T], R], done: Callable[[int], None] | None = None) -> Iterator[R]:
        if self.width == 1 or len(tasks) <= 1:
            for number, task in enumerate(tasks, 1):
                yield function(task)
                if done is not None:
                    done(number)
            return
        waiting: deque[Future[R]] = deque()
        with TaskThreads(self.width) as pool:
            try:
                finished = 0
                for task in tasks:
                    # finished results are kept in memory until their turn: limit how many
                    while len(waiting) > self.width + 1:
                        yield waiting.popleft().result()
                        finished += 1
                        if done is not None:
                            done(finished)
                    waiting.append(pool.submit(function, task))
                while waiting:
                    yield waiting.popleft().result()
                    finished += 1
                    if done is not None:
                        done(finished)
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
