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


class ExportFormat(StrEnum):
    """The kind of files that an export writes."""

    PARQUET = "parquet"
    JSONL = "jsonl"
    CSV = "csv"
    ICEBERG = "iceberg"
    DELTA = "delta"


To = Annotated[
    Path,
    option("--to", metavar="OUT", help="The directory to create; without --append it must not exist, and appears only when complete."),
]
Threads = Annotated[int | None, option("--threads", min=1, help="Run in this many threads of this process, without Spark.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Options of `export`."""

    to: To
    format: Annotated[ExportFormat, typer.Option("--format", help="The kind of files to write.")] = ExportFormat.PARQUET
    columns: Columns = None
    partition_by: Annotated[
        str | None, option("--partition-by", metavar="A,B,…", help="Write one directory per value of these columns.")
    ] = None
    filters: MessageFilters = field(default_factory=MessageFilters)
    view: RabbitMQOnly[ViewOption] = ViewName.DISK
    at: RabbitMQOnly[AtTime] = None
    mode: RocketMQOnly[
        Annotated[
            DamageMode,
            typer.Option("--mode", case_sensitive=False, help="FAILFAST: stop at the first damage; PERMISSIVE: skip it and report it."),
        ]
    ] = DamageMode.PERMISSIVE
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a killed run of the same export, and let this run be continued if it is killed.")
    ] = False
    append: RocketMQOnly[
        Annotated[
            bool,
            typer.Option("--append", help="iceberg, delta: add what the log has gained since to the table OUT, or begin one."),
        ]
    ] = False
    append_from: RocketMQOnly[
        Annotated[
            str | None,
            option("--append-from", metavar="WHERE", help="Begin a table that was made by others: earliest, or a physical offset."),
        ]
    ] = None
    skip_lost: RocketMQOnly[
        Annotated[bool, typer.Option("--skip-lost", help="With --append: skip what retention removed; by default that is an error.")]
    ] = False
    master: Master = None
    threads: Threads = None
    splits: Splits = None
    config: RocketMQOnly[Config] = None
    names: RabbitMQOnly[QueueNames] = None


def check_target(to: Path, root: Path | Url) -> None:
    """Refuse an unusable target before Spark is started. Raises TargetError."""
    from mqstore.files.location import check_outside, local_target

    local_target(to)
    if os.path.lexists(to):
        raise TargetError(f"{to} exists already; choose another name or remove it first, nothing is ever overwritten")
    check_outside(to, root)
