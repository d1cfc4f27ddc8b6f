"""Verify on Spark: the proof of `mqstore.rocketmq.verify.verification`, its parts run as tasks; the report is the same.

    pipeline.verify("/backup/broker-a/store", master="spark://host:7077").ok

A task reads 256 MiB of log and the queue and index entries that belong to it, and returns which of them it proved. Then
one task per index file replays its chains. Entries that no task proved are checked one by one, in this process.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mqstore.errors import UsageError
from mqstore.files.archive import refuse_packed
from mqstore.findings import Report
from mqstore.opening import open_rocketmq
from mqstore.jobs.report import Progress
from mqstore.pipeline.spark.runner import Runner, SparkRunner, ThreadRunner
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.tasks import absorb, check_index, check_part, index_tasks, joined, parts
from mqstore.rocketmq.verify.verification import Verification

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["verify"]


def verify(
    store_path: str | os.PathLike[str],
    *,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    in_process_threads: int | None = None,
    splits: int | None = None,
    config: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check a whole store: every record, queue entry and index entry, and whether they agree.

    spark: a session to run on; otherwise one is started on `master`. in_process_threads: run in threads of this process instead.
    splits: number of parts to cut the log into. progress: called with (bytes of log checked, bytes of log to check).
    Raises CannotOpenError, NotAStoreError, UsageError, and PipelineError if Spark cannot run.
    """

    if splits is not None and splits < 1:
        raise UsageError(f"the number of splits must be at least 1 (got {splits})")
    if in_process_threads is None:
        refuse_packed(store_path)
    store = open_rocketmq(store_path, config=config)
    if in_process_threads is not None:
        return _run(store, ThreadRunner(in_process_threads), splits, progress)
    from mqstore.pipeline.spark.session import running

    with running(master, spark=spark) as started:
        return _run(store, SparkRunner(started), splits, progress)


def _run(store: RocketMQStore, runner: Runner, count: int | None, progress: Progress | None) -> Report:
    work = Verification(store)
    tasks = parts(store, count)
    total = sum(split.stop - split.start for task in tasks for split in task.splits)

    def done(finished: int) -> None:
        if progress is not None:
            progress(total * finished // max(1, len(tasks)), total)

    for part in joined(runner.each(tasks, check_part, done)):
        absorb(work, part)
    return work.report(list(runner.each(index_tasks(work, store), check_index)))
