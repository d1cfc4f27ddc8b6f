"""Options of the commands that make a new directory from a store."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mqstore.cli.common.arguments import option
from mqstore.errors import TargetError

if TYPE_CHECKING:
    from mqstore.files.location import Url

__all__ = ["ExportFormat", "Splits", "Threads", "To", "check_target"]


class ExportFormat(StrEnum):
    """What files an export writes."""

    PARQUET = "parquet"
    JSONL = "jsonl"
    CSV = "csv"
    ICEBERG = "iceberg"
    DELTA = "delta"


To = Annotated[Path, option("--to", metavar="OUT", help="The new directory; it must not exist, and appears only when it is whole.")]
Threads = Annotated[int | None, option("--threads", min=1, help="Run in so many threads of this process, without Spark.")]
Splits = Annotated[int | None, option("--splits", min=1, help="Read the log in so many splits; the outcome is the same for any.")]


def check_target(to: Path, root: Path | Url) -> None:
    """Refuse a target before Spark is started for it."""
    from mqstore.files.location import check_outside, local_target

    local_target(to)
    if os.path.lexists(to):
        raise TargetError(f"{to} exists already; choose another name or remove it first, nothing is ever overwritten")
    check_outside(to, root)
