"""The default place to run a job: a small log in threads of this process, a large one on Spark.

Both run the same functions on the same splits. On one host, threads are faster at any size: no session has to start and no key
has to be staged. For a large log Spark adds its configuration, its cluster and its retries. An explicit session, master or
number of threads takes precedence, regardless of the size.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqstore.errors import PipelineError, UsageError
from mqstore.pipeline.spark.runner import Runner, SparkRunner, StartingSparkRunner, ThreadRunner
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.scan.splits import log_bytes, plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SPARK_FROM", "RunnerChoice", "choose_runner"]

SPARK_FROM = 10 << 30  # bytes of log


@dataclass(frozen=True, slots=True)
class RunnerChoice:
    """Where a job runs, and why. threads: of this process, or None for Spark, on `master` unless a session is given."""

    threads: int | None
    master: str
    why: str

    @contextlib.contextmanager
    def runner(self, spark: SparkSession | None = None) -> Iterator[Runner]:
        """Yield the chosen runner. A session that was started here is stopped at the end.

        Raises PipelineError; a session of this machine may still be starting, see `Runner.require_started`.
        """
        if self.threads is not None:
            yield ThreadRunner(self.threads)
            return
        from mqstore.pipeline.spark import session

        if spark is None and session.starts_on_this_machine(self.master):
            with session.starting(self.master) as future:
                yield StartingSparkRunner(future, session.tasks_at_once(self.master))
            return
        with session.running(self.master, spark=spark) as started:
            yield SparkRunner(started)


def choose_runner(
    log: CommitLog, *, spark: SparkSession | None = None, master: str | None = None, threads: int | None = None
) -> RunnerChoice:
    """Return the requested choice, or the one that suits the log. Raises UsageError if both Spark and threads are requested."""
    if threads is not None:
        if master is not None or spark is not None:
            raise UsageError("a master runs the job on Spark, threads run it in this process; give only one of them")
        return RunnerChoice(threads, "", "as requested")
    if master is not None or spark is not None:
        return RunnerChoice(None, master or "local[*]", "as requested")
    cores = len(os.sched_getaffinity(0))
    if log_bytes(log, plan(log)) < SPARK_FROM:
        return RunnerChoice(cores, "", f"less than {SPARK_FROM >> 30} GiB of log does not justify starting Spark")
    missing = _missing_for_spark()
    if missing:
        return RunnerChoice(cores, "", f"the log is large enough for Spark, which cannot start here: {missing}")
    return RunnerChoice(None, "local[*]", f"{SPARK_FROM >> 30} GiB of log or more justifies starting Spark")


def _missing_for_spark() -> str:
    """Return what a session on this host lacks; empty if nothing."""
    from mqstore.pipeline.spark.java import find_java

    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    try:
        find_java()
    except PipelineError as error:
        return str(error)
    return ""
