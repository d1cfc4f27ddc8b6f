"""Conversion of RabbitMQ queues, one task per queue, in threads or on Spark.

The tasks write into the staged directory beside the target. On Spark they must reach it, and the store, by the same path as the driver. A
repeated task writes the same files. The driver writes message files and recovery terms, and renames the directory at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.files import ReadOnlyDirectory
from mqstore.files.archive import is_packed
from mqstore.jobs.runner import choose_runner
from mqstore.places import find_store
from mqstore.rabbitmq.convert import convert_vhost
from mqstore.rabbitmq.convert.convert_queue import QueueResult, QueueTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mqstore.rabbitmq.convert.convert_vhost import ConvertReport


def convert(
    store: str | Path,
    to: str | Path,
    version: int | None = None,
    *,
    spark: SparkSession | None = None,
    master: str | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> ConvertReport:
    """Convert as `mqstore.rabbitmq.convert.convert_vhost.convert` does, with the same further options.

    spark: a session to run on. master: start one there. threads: run in threads of this process. Without any of them the size of the store
    decides (`mqstore.jobs.runner`). Raises PipelineError too.
    """
    store = Path(store)
    choice = choose_runner(store, partial(_size, store), spark=spark, master=master, threads=threads)
    names: list[str] = []

    def run(tasks: Sequence[QueueTask], function: Callable[[QueueTask], QueueResult]) -> list[QueueResult]:
        done = None if progress is None else lambda finished: progress(finished, len(tasks))
        with choice.runner(spark) as runner:
            names.append(runner.name)
            return list(runner.each(tasks, function, done))

    packed = find_store(store, "rabbitmq") if is_packed(store) else None
    report = convert_vhost.convert(store if packed is None else Path(str(packed.root)), to, version, run=run, **options)
    return replace(report, runs_on=names[0], why=choice.why)


def _size(store: Path) -> int:
    """Return the bytes of all files of a store; of an archive, its own."""
    return sum(entry.size for _, entry in ReadOnlyDirectory(store).walk()) if store.is_dir() else 0
