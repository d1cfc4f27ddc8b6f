"""Conversion of RabbitMQ queues with one Spark task per queue.

The tasks write into the staged directory beside the target. They must reach it, and the store, by the same path as the driver. A
repeated task writes the same files. The driver writes message files and recovery terms, and renames the directory at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.pipeline.spark.session import running
from mqstore.pipeline.spark.tasks import run_tasks
from mqstore.rabbitmq.convert import convert_vhost
from mqstore.rabbitmq.convert.convert_queue import QueueResult, QueueTask

if TYPE_CHECKING:
    from mqstore.rabbitmq.convert.convert_vhost import ConvertReport

__all__ = ["convert"]


def convert(
    store: str | Path,
    to: str | Path,
    version: int | None = None,
    *,
    master: str = "local[*]",
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> ConvertReport:
    """Convert as `mqstore.rabbitmq.convert.convert_vhost.convert` does, with the same further options. Raises PipelineError too."""

    def on_spark(tasks: Sequence[QueueTask], function: Callable[[QueueTask], QueueResult]) -> list[QueueResult]:
        with running(master) as spark:
            return run_tasks(spark, tasks, function, progress=progress, doing="the conversion")

    return convert_vhost.convert(store, to, version, run=on_spark, **options)
