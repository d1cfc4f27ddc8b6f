"""Options of the commands that write a new directory."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqstore.cli.common.arguments import AtTime, Columns, Config, DamageMode, Master, QueueNames, Splits, ViewName, ViewOption, option
from mqstore.cli.common.filters import MessageFilters
from mqstore.cli.common.store_kind import RabbitMQOnly, RocketMQOnly
from mqstore.errors import TargetError

if TYPE_CHECKING:
    from mqstore.files.location import Url

__all__ = ["ExportFormat", "ExportOptions", "Threads", "To", "check_target"]


class ExportFormat(StrEnum):
    """What files an export writes."""

    PARQUET = "parquet"
    JSONL = "jsonl"
    CSV = "csv"
    ICEBERG = "iceberg"
    DELTA = "delta"


To = Annotated[Path, option("--to", metavar="OUT", help="The new directory; it must not exist, and appears only when it is whole.")]
Threads = Annotated[int | None, option("--threads", min=1, help="Run in so many threads of this process, without Spark.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Options of `export`."""

    to: To
    format: Annotated[ExportFormat, typer.Option("--format", help="What files to write.")] = ExportFormat.PARQUET
    columns: Columns = None
    partition_by: Annotated[str | None, option("--partition-by", metavar="A,B,…", help="A directory per value of these columns.")] = None
    filters: MessageFilters = field(default_factory=MessageFilters)
    view: RabbitMQOnly[ViewOption] = ViewName.DISK
    at: RabbitMQOnly[AtTime] = None
    mode: RocketMQOnly[
        Annotated[DamageMode, typer.Option("--mode", case_sensitive=False, help="FAILFAST: damage in the log fails the job.")]
    ] = DamageMode.PERMISSIVE
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what a killed run of the same export has finished; keep it if this one ends early.")
    ] = False
    master: Master = "local[*]"
    threads: Threads = None
    splits: Splits = None
    config: RocketMQOnly[Config] = None
    names: RabbitMQOnly[QueueNames] = None


def check_target(to: Path, root: Path | Url) -> None:
    """Refuse a target before Spark is started for it."""
    from mqstore.files.location import check_outside, local_target

    local_target(to)
    if os.path.lexists(to):
        raise TargetError(f"{to} exists already; choose another name or remove it first, nothing is ever overwritten")
    check_outside(to, root)
