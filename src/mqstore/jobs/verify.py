"""Verify, its parts run as tasks: the proof of `mqstore.rocketmq.verify.verification`; the report is the same.

    pipeline.verify("/backup/broker-a/store", master="spark://host:7077").ok

A task reads 256 MiB of log and the queue and index entries that belong to it, and returns which of them it proved. Then
one task per index file replays its chains. Entries that no task proved are checked one by one, in this process.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mqstore.findings import Report
from mqstore.jobs.report import Progress, by_share
from mqstore.jobs.runner import Runner, choose_runner, open_for
from mqstore.rocketmq.scan.splits import bytes_to_read, check_count
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.tasks import absorb, check_index, check_part, index_tasks, joined, parts
from mqstore.rocketmq.verify.verification import Verification

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def verify(
    store: str | os.PathLike[str] | RocketMQStore,
    *,
    spark: SparkSession | None = None,
    master: str | None = None,
    threads: int | None = None,
    splits: int | None = None,
    config: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check a whole store: every record, queue entry and index entry, and whether they agree.

    spark: a session to run on. master: start one there. threads: run in threads of this process. Without any of them the size of the log
    decides (`mqstore.jobs.runner`).
    splits: number of parts to cut the log into. progress: called with (bytes of log checked, bytes of log to check).
    Raises CannotOpenError, NotAStoreError, UsageError, and PipelineError if Spark cannot run.
    """
    check_count(splits)
    store = open_for(store, config, spark=spark, master=master)
    choice = choose_runner(store.path, partial(bytes_to_read, store.log), spark=spark, master=master, threads=threads)
    with choice.runner(spark) as runner:
        if choice.threads is not None and splits is None:
            report = Verification(store).run(choice.threads, progress)
        else:
            report = _run(store, runner, splits, progress)
        return replace(report, runs_on=runner.name, why=choice.why)


def _run(store: RocketMQStore, runner: Runner, count: int | None, progress: Progress | None) -> Report:
    work = Verification(store)
    tasks = parts(store, count)
    total = sum(sum(task.stop) - sum(task.start) for task in tasks)

    for part in joined(runner.each(tasks, check_part, by_share(progress, total, len(tasks)))):
        absorb(work, part)
    return work.report(list(runner.each(index_tasks(work, store), check_index)))
