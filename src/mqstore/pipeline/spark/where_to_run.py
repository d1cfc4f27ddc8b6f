"""Where a job runs when nobody says: a small log in threads of this process, a large one on Spark.

Both are the same functions on the same splits. On one host threads are the faster way at any size, for no session has to start and
no key has to be staged; a large log is worth Spark for its settings, its cluster, its retries. Whoever names a session, a master or
a number of threads gets that, whatever the size.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqstore.errors import PipelineError, UsageError
from mqstore.pipeline.spark.runner import Runner, SparkRunner, ThreadRunner
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.scan.splits import log_bytes, plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SPARK_FROM", "RunnerChoice", "choose_runner"]

SPARK_FROM = 10 << 30  # bytes of log


@dataclass(frozen=True, slots=True)
class RunnerChoice:
    """Where a job runs and why there. threads: of this process, or None for Spark, on `master` if no session is given."""

    threads: int | None
    master: str
    why: str

    @contextlib.contextmanager
    def runner(self, spark: SparkSession | None = None) -> Iterator[Runner]:
        """What runs the tasks there; a session that it starts ends with the block. Raises PipelineError."""
        if self.threads is not None:
            yield ThreadRunner(self.threads)
            return
        from mqstore.pipeline.spark.session import running

        with running(self.master, spark=spark) as started:
            yield SparkRunner(started)


def choose_runner(
    log: CommitLog, *, spark: SparkSession | None = None, master: str | None = None, threads: int | None = None
) -> RunnerChoice:
    """The place that was asked for, or the one that suits the log. Raises UsageError where Spark and threads are both asked for."""
    if threads is not None:
        if master is not None or spark is not None:
            raise UsageError("a master runs the job on Spark, and threads run it in this process; give one of them")
        return RunnerChoice(threads, "", "as asked for")
    if master is not None or spark is not None:
        return RunnerChoice(None, master or "local[*]", "as asked for")
    cores = len(os.sched_getaffinity(0))
    if log_bytes(log, plan(log)) < SPARK_FROM:
        return RunnerChoice(cores, "", f"less than {SPARK_FROM >> 30} GiB of log are not worth a start of Spark")
    missing = _missing_for_spark()
    if missing:
        return RunnerChoice(cores, "", f"the log is worth Spark, which cannot start here: {missing}")
    return RunnerChoice(None, "local[*]", f"from {SPARK_FROM >> 30} GiB of log on Spark is worth its start")


def _missing_for_spark() -> str:
    """What a session on this host lacks; empty if nothing."""
    from mqstore.pipeline.spark.java import find_java

    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    try:
        find_java()
    except PipelineError as error:
        return str(error)
    return ""
