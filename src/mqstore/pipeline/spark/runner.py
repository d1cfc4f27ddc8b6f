"""Spark as the runner of a job's tasks, also while a session starts.

`run_tasks` runs one Spark task per item of a list, and returns the results in the order of the items. Items and results pass through
Spark's JVM and should be small: a task reads and writes its bulk data itself. An attempt may be repeated (`local[2,3]`, a lost worker,
speculation), so a task must write the same bytes each time it runs. On a session of Spark Connect, which has no Spark context, the tasks
are the partitions of a data source (`connect.py`).
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import cache, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from mqstore.errors import PipelineError
from mqstore.pipeline.spark.connect import is_connect, run_on_connect
from mqstore.pipeline.spark.failures import failures
from mqstore.threads import in_threads
from mqstore.version import __version__

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


@cache
def freeze_gc_once() -> None:
    """Exclude all objects allocated so far from garbage collection, once per Python worker of Spark.

    A worker collects after each task; with all modules imported, a collection takes as long as a small task.
    """
    gc.freeze()


def require_version(planned_by: str) -> None:
    """Raise PipelineError in a worker that imports another version of this package than the process that planned its task."""
    if planned_by != __version__:
        raise PipelineError(
            f"this worker of Spark has mqstore {__version__}, and its task was planned by {planned_by}: install the same version on every "
            "host, or none, so that it is shipped"
        )


def _in_worker(function: Callable[[T], R], planned_by: str, task: T) -> R:
    require_version(planned_by)
    freeze_gc_once()
    return function(task)


def purpose_of(function: Callable[..., Any]) -> str:
    """Return what a task function does, in words: the first line of its documentation.

    >>> purpose_of(partial(purpose_of))
    'Return what a task function does, in words: the first line of its documentation.'
    """
    while isinstance(function, partial):
        # a function that wraps the one of the tasks takes it as its first argument
        inner = next((each for each in function.args if callable(each)), None)
        function = function.func if inner is None else inner
    text = function.__doc__ or str(getattr(function, "__name__", "tasks"))
    return text.strip().partition("\n")[0]


class SparkRunner:
    """Tasks of a Spark session. Functions must be importable on the executors; tasks and results must be small."""

    shares_memory = False

    def __init__(self, spark: SparkSession) -> None:
        from mqstore.pipeline.spark.session import cores

        self.spark = spark
        self.width = cores(spark)
        self.name = f"{self.width} task{'s' if self.width > 1 else ''} of Spark at once"

    def each(self, tasks: Sequence[T], function: Callable[[T], R], done: Callable[[int], None] | None = None) -> Iterator[R]:

        progress = None if done is None else lambda finished, total: done(finished)
        description = f"mqstore: {len(tasks)} times: {purpose_of(function)}"
        yield from run_tasks(self.spark, tasks, partial(_in_worker, function, __version__), progress=progress, description=description)

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


# tasks


POLL_SECONDS = 0.1
CANCEL_SECONDS = 15.0


def run_tasks(
    spark: SparkSession,
    tasks: Sequence[T],
    function: Callable[[T], R],
    *,
    progress: Callable[[int, int], None] | None = None,
    doing: str = "the Spark job",
    description: str | None = None,
) -> list[R]:
    """Return function(task) for each task, computed in Spark's Python workers. Function and tasks are pickled, modules by name.

    progress: called with (tasks done, tasks) from another thread while they run, and with (n, n) at the end.
    doing: name of the work in error messages.
    description: what Spark's page of jobs shows, by default `doing`. Raises PipelineError with the message of the task that finally failed.
    An interrupt cancels the tasks and waits until they have ended.
    """
    if not tasks:
        return []
    if is_connect(spark):
        return run_on_connect(spark, tasks, function, progress=progress, doing=doing)
    context = spark.sparkContext
    group = f"mqstore-{uuid.uuid4().hex}"
    with failures(doing), _progress_reported(context, group, len(tasks), progress):
        results = _in_thread(context, group, description or doing, lambda: context.parallelize(tasks, len(tasks)).map(function).collect())
    if progress is not None:
        progress(len(tasks), len(tasks))
    return results


def _in_thread(context: SparkContext, group: str, doing: str, action: Callable[[], list[R]]) -> list[R]:
    """Run a Spark action in another thread while the calling thread only waits.

    On an interrupt pyspark calls the JVM from the main thread; in the middle of another call that would corrupt both.
    """
    outcome: Future[list[R]] = Future()

    def run() -> None:
        try:
            context.setJobGroup(group, doing, interruptOnCancel=False)
            outcome.set_result(action())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name=group, daemon=True).start()
    try:
        return outcome.result()
    except BaseException:
        _cancel(context, group)
        raise


@contextlib.contextmanager
def _progress_reported(context: SparkContext, group: str, total: int, progress: Callable[[int, int], None] | None) -> Iterator[None]:
    """Report progress from a separate thread while the block runs."""
    if progress is None:
        yield
        return
    over = threading.Event()

    def watch(report: Callable[[int, int], None]) -> None:
        tracker = context.statusTracker()
        last = -1
        while not over.wait(POLL_SECONDS):
            try:
                stages = [stage for job in tracker.getJobIdsForGroup(group) for stage in _stages(tracker.getJobInfo(job))]
                done = sum(info.numCompletedTasks for info in map(tracker.getStageInfo, stages) if info is not None)
            except Exception:  # the session may be stopping; progress is optional
                return
            if done != last:
                last = done
                report(min(done, total), total)

    watcher = threading.Thread(target=watch, args=(progress,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _stages(job: object) -> Sequence[int]:
    return tuple(getattr(job, "stageIds", ()))


def _cancel(context: SparkContext, group: str) -> None:
    """End the job and wait until no task runs, so that nothing is written afterwards.

    Without interruptOnCancel the JVM ends a task only after it has killed the task's Python worker.
    """
    with contextlib.suppress(Exception):
        context.cancelJobGroup(group)
        tracker = context._jsc.sc().statusTracker()
        deadline = time.monotonic() + CANCEL_SECONDS
        idle = 0
        # a task may start just before the cancellation takes effect: one idle poll is not enough
        while time.monotonic() < deadline and idle < 4:
            time.sleep(0.05)
            idle = 0 if any(executor.numRunningTasks() for executor in tracker.getExecutorInfos()) else idle + 1
