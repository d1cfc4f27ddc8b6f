"""Where the tasks of a job run: threads of this process, or Spark. The task functions are the same, and so is what they write.

Kernels release the GIL, so threads read a store on all cores of one host, and are the fastest choice there at any size: no session has
to start and no key has to be staged. For a large store Spark adds its configuration, its cluster and its retries. So a small store
is read in threads and a large one on Spark; an explicit session, master or number of threads takes precedence, regardless of the size.

Spark is loaded, from `mqstore.pipeline.spark`, only once it has been chosen.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from mqstore.errors import PipelineError, UsageError
from mqstore.files.archive import is_packed, refuse_packed
from mqstore.places import open_rocketmq
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.threads import in_threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mqstore.files.location import Location

MODES = ("PERMISSIVE", "FAILFAST")  # what damage does to a read, in the words of Spark
SPARK_FROM = 10 << 30  # bytes of a store

T = TypeVar("T")
R = TypeVar("R")


class Runner(Protocol):
    """Runs tasks. Results come in the order of the tasks, regardless of the order in which they finish."""

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
            results = in_threads(tasks, function, self.width)
        for finished, result in enumerate(results, 1):
            yield result
            if done is not None:
                done(finished)

    def require_started(self) -> None:
        return


@dataclass(frozen=True, slots=True)
class RunnerChoice:
    """Where a job runs, and why. threads: of this process, or None for Spark, on `master` unless a session is given."""

    threads: int | None
    master: str
    why: str

    @contextlib.contextmanager
    def runner(self, spark: SparkSession | None = None, *, while_starting: bool = False) -> Iterator[Runner]:
        """Yield the chosen runner. A session that was started here is stopped at the end.

        while_starting: run tasks in threads until a session of this machine is there (see `Runner.require_started`).
        Raises PipelineError.
        """
        if self.threads is not None:
            yield ThreadRunner(self.threads)
            return
        from mqstore.pipeline.spark import runner, session

        if while_starting and spark is None and session.starts_on_this_machine(self.master):
            with session.starting(self.master) as future:
                yield runner.StartingSparkRunner(future, session.tasks_at_once(self.master))
            return
        with session.running(self.master, spark=spark) as started:
            yield runner.SparkRunner(started)


def open_for(
    store: str | os.PathLike[str] | RocketMQStore, config: str | os.PathLike[str] | None, *, spark: SparkSession | None, master: str | None
) -> RocketMQStore:
    """Open the store of a job. Raises CannotOpenError for an archive that Spark is to read, before it is unpacked."""
    if not isinstance(store, RocketMQStore) and (spark is not None or master is not None):
        refuse_packed(store)
    return open_rocketmq(store, config=config)


def choose_runner(
    path: Location,
    size: Callable[[], int],
    *,
    spark: SparkSession | None = None,
    master: str | None = None,
    threads: int | None = None,
) -> RunnerChoice:
    """Return the requested choice, or the one that suits the store at a path. size: returns the bytes to read.

    Raises UsageError if both Spark and threads are requested, and CannotOpenError if Spark is to read an archive.
    """
    if threads is not None:
        if master is not None or spark is not None:
            raise UsageError("a master runs the job on Spark, threads run it in this process; give only one of them")
        return RunnerChoice(threads, "", "as requested")
    if master is not None or spark is not None:
        refuse_packed(path)
        return RunnerChoice(None, master or "local[*]", "as requested")
    cores = len(os.sched_getaffinity(0))
    if size() < SPARK_FROM:
        return RunnerChoice(cores, "", f"less than {SPARK_FROM >> 30} GiB does not justify starting Spark")
    missing = "tasks cannot share an unpacked copy" if is_packed(path) else _missing_for_spark()
    if missing:
        return RunnerChoice(cores, "", f"the store is large enough for Spark, which cannot start here: {missing}")
    return RunnerChoice(None, "local[*]", f"{SPARK_FROM >> 30} GiB or more justifies starting Spark")


def _missing_for_spark() -> str:
    """Return what a session on this host lacks; empty if nothing."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    from mqstore.pipeline.spark.java import find_java

    try:
        find_java()
    except PipelineError as error:
        return str(error)
    return ""
