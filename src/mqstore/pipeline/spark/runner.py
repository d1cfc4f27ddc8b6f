"""Spark as the runner of a job's tasks, also while a session starts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import cache, partial
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

from mqstore.threads import in_threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


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
        for result in in_threads(self._while_starting(tasks), function, self.width):
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
