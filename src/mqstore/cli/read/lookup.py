"""`lookup`: many keys at once, in this process or on Spark."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mqstore.cli.common.arguments import Columns, Config, DamageMode, Master, Splits, Store, column_names, option
from mqstore.cli.common.command import open_store, verb
from mqstore.cli.common.output import Output
from mqstore.report.written import looked_up_parts

_NO_KEYS = "it has no keys to look up; `mqstore messages --grep` searches payloads, `mqstore get --id` finds a message by its id"


class LookupPlan(StrEnum):
    """How messages are found."""

    AUTO = "auto"
    PROBE = "probe"
    SWEEP = "sweep"
    SCAN = "scan"


def lookup(
    out: Output,
    store: Store,
    keys: Annotated[
        Path, option("--keys", metavar="FILE", help="The keys: lines `topic<TAB>key`, or CSV or Parquet with columns topic and key.")
    ],
    to: Annotated[Path, option("--to", metavar="OUT", help="A new directory of Parquet files, or a new .parquet or .jsonl file.")],
    by: Annotated[
        LookupPlan,
        typer.Option(
            "--by", help="probe: follow index chains. sweep: read all index entries. scan: read the log. auto: whichever is the least work."
        ),
    ] = LookupPlan.AUTO,
    max_per_key: Annotated[int | None, option("--max-per-key", min=1, help="Maximum number of messages per key, newest first.")] = None,
    columns: Columns = None,
    mode: Annotated[
        DamageMode,
        typer.Option("--mode", case_sensitive=False, help="FAILFAST: stop at the first damage; PERMISSIVE: skip it and report it."),
    ] = DamageMode.PERMISSIVE,
    master: Master = None,
    threads: Annotated[int | None, option("--threads", min=1, help="Number of threads of this process; default: one per core.")] = None,
    splits: Splits = None,
    config: Config = None,
) -> int:
    """Look up the keys listed in a file: one row per key and message, and one row with the reason for each key without a message.

    Messages are found through the index where it is intact, and by reading the rest of the log. Exit status 1 if a part of what was read
    is damaged.
    """
    from mqstore.jobs.lookup import lookup as run
    from mqstore.table.columns import check_columns

    names = column_names(columns, "--columns")
    opened = open_store(store, config, _NO_KEYS)
    with out.progress("looking up") as progress:
        report = run(
            opened,
            keys,
            to,
            by=by.value,
            columns=None if names is None else check_columns(names),
            max_per_key=max_per_key,
            mode=mode.value,
            master=master,
            threads=threads,
            splits=splits,
            progress=progress,
        )
    if out.is_text:
        out.show(looked_up_parts(report))
    else:
        out.report(report.as_dict() | {"store": str(store), "to": str(to)})
    return 0 if report.ok else 1


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="lookup /backup/store --keys lost-orders.txt --to answers")(lookup)
