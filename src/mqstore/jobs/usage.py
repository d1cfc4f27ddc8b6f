"""Usage: a RocketMQ store's log counted in threads or on Spark; the report is that of `rocketmq.usage`.

pipeline.usage("/backup/broker-a/store", threads=4).rows("topic")
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mqstore.errors import MqstoreError, UsageError
from mqstore.findings import Damage, merge_adjacent
from mqstore.jobs.report import Progress, by_share
from mqstore.jobs.runner import Runner, choose_runner, open_for
from mqstore.rocketmq.scan.planned_files import files_seen, token_of
from mqstore.rocketmq.scan.splits import bytes_to_read, check_seams, plan
from mqstore.rocketmq.store.log_site import lacks_of_log
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.usage import Group, LogFileUsage, Tally, UsageReport, UsageTask, add, usage_of_split

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def usage(
    store: str | os.PathLike[str] | RocketMQStore,
    *,
    prefix: int | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    threads: int | None = None,
    splits: int | None = None,
    config: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> UsageReport:
    """Count the messages and bytes of a store's log.

    prefix: count also by this many characters of the first key. spark: a session to run on. master: start one there. threads: run in
    threads of this process. Without any of them the size of the log decides (`mqstore.jobs.runner`).
    progress: called with (bytes of log counted, bytes of log to count).
    Raises CannotOpenError, NotAStoreError, UsageError, and PipelineError if Spark cannot run.
    """
    if prefix is not None and prefix < 1:
        raise UsageError(f"the key prefix must have at least 1 character (got {prefix})")
    store = open_for(store, config, spark=spark, master=master)
    choice = choose_runner(store.path, partial(bytes_to_read, store.log), spark=spark, master=master, threads=threads)
    with choice.runner(spark) as runner:
        return replace(_run(store, runner, prefix, splits, progress), runs_on=runner.name, why=choice.why)


def _run(store: RocketMQStore, runner: Runner, prefix: int | None, count: int | None, progress: Progress | None) -> UsageReport:
    pieces = plan(store.log, count=count, tasks=4 * runner.width)
    read = sum(split.stop - split.start for split in pieces)
    token = token_of(store.log)
    tasks = [
        UsageTask(store.place, store.config.commit_log_file_size, token, split, files_seen(store.log, split.start, split.stop), prefix)
        for split in pieces
    ]

    groups: dict[Group, Tally] = {}
    by_key: dict[str | None, Tally] = {}
    filler: dict[int, int] = {}
    damaged: dict[int, int] = {}
    damage: list[Damage] = list(store.log.findings)
    unreported = 0
    outcomes = runner.each(tasks, usage_of_split, by_share(progress, read, len(tasks)))
    again = {split.number: task for split, task in zip(pieces, tasks, strict=True)}
    for outcome, _ in check_seams(store.log, outcomes, lambda split, first: usage_of_split(replace(again[split.number], first=first))):
        add(groups, outcome.groups)
        add(by_key, outcome.by_key)
        for into, part in ((filler, outcome.filler), (damaged, outcome.damaged)):
            for start, length in part.items():
                into[start] = into.get(start, 0) + length
        damage.extend(outcome.damage)
        unreported += outcome.unreported
    total = Tally()
    for tally in groups.values():
        total.add(tally)
    changed = {entry.name: entry.mtime_ms for entry in store.log.queue.listing}
    files = tuple(
        LogFileUsage(file.name, file.start, file.size, filler.get(file.start, 0), damaged.get(file.start, 0), changed[file.name])
        for file in store.log.files
    )
    return UsageReport(
        str(store.path),
        store.log.size_on_paper,
        total,
        sum(filler.values()),
        sum(damaged.values()),
        files,
        groups,
        by_key,
        _waiting(store),
        {
            place: _tree_size(store, place)
            for place in ("commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "config")
        },
        prefix,
        tuple(merge_adjacent(damage)),
        tuple(_notes(store, unreported)),
    )


def _notes(store: RocketMQStore, unreported: int) -> Iterator[str]:
    if unreported:
        yield f"{unreported} further findings are not listed individually"
    if lacks := lacks_of_log(store, expired=False):
        yield f"only what is left of the log is counted: {lacks}"


def _waiting(store: RocketMQStore) -> dict[tuple[str, int], dict[str, int]]:
    """Return for each queue the groups that consume it, with the next offset of each."""
    waiting: dict[tuple[str, int], dict[str, int]] = {}
    for item in store.view().consumer_offsets():
        waiting.setdefault((item.topic, item.queue_id), {})[item.group] = item.offset
    return waiting


def _tree_size(store: RocketMQStore, place: str) -> int:
    """Return the size of all files below a directory."""
    try:
        return sum(entry.size for _, entry in store.directory.walk(place)) if store.directory.is_directory(place) else 0
    except MqstoreError:
        return 0
