"""`follow`: keeps files, a table or a second store up to date with a growing log."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqstore.cli.common.arguments import Columns, Config, Store, column_names, option
from mqstore.cli.common.command import verb
from mqstore.cli.common.output import Output
from mqstore.report.written import followed_parts
from mqstore.table.formatting import clock, count

if TYPE_CHECKING:
    from mqstore.pipeline.tail.follow import FollowedBatch

INTERRUPTED = 130


class FollowForm(StrEnum):
    """What a follow keeps up to date."""

    PARQUET = "parquet"
    ICEBERG = "iceberg"
    DELTA = "delta"
    STORE = "store"


def follow(
    out: Output,
    store: Store,
    to: Annotated[Path, option("--to", metavar="OUT", help="A new directory, or one written by an earlier follow, which is continued.")],
    form: Annotated[
        FollowForm | None,
        typer.Option(
            "--as",
            metavar="FORM",
            help="store: a copy of the log with its own queues and index. parquet: the message table, one directory per batch. "
            "iceberg, delta: a table over these files, one commit per batch. Default: store, or parquet if --columns is given.",
        ),
    ] = None,
    columns: Columns = None,
    once: Annotated[bool, typer.Option("--once", help="Stop after everything present at the start has been read.")] = False,
    interval: Annotated[float, typer.Option("--interval", metavar="S", min=0, help="Seconds between batches.")] = 1.0,
    compact_every: Annotated[
        int, option("--compact-every", metavar="N", min=0, help="delta: rewrite small files as large ones after every N batches.")
    ] = 0,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Skip what retention removed before it was read; by default that is an error.")
    ] = False,
    master: Annotated[str, typer.Option("--master", metavar="URL", help="The Spark master to run on.")] = "local[*]",
    config: Config = None,
) -> int:
    """Follow a growing commit log until Ctrl-C: every message arrives in OUT exactly once, even if either side crashes.

    The store may be in use by its broker; it is not changed. An incomplete record at the end is read once it is complete. A batch in
    progress is finished before an interrupt takes effect. Exit status 1 if damage was skipped.
    """
    from mqstore.pipeline.tail.follow import follow as run

    chosen = form or (FollowForm.STORE if columns is None else FollowForm.PARQUET)
    listener = _print_batch if (sys.stderr.isatty() or out.settings.progress) and not out.settings.quiet else None
    report = run(
        store,
        to,
        form=chosen.value,
        columns=column_names(columns, "--columns"),
        once=once,
        interval=interval,
        compact_every=compact_every,
        fail_on_data_loss=not skip_lost,
        master=master,
        config=config,
        on_batch=listener,
    )
    for note in report.notes:
        out.note(f"opening {to}: {note}")
    if out.is_text:
        out.show(followed_parts(report, to))
    else:
        out.report(report.as_dict() | {"store": str(store), "to": str(to)})
    return INTERRUPTED if report.stopped == "interrupt" else 0 if report.ok else 1


def _print_batch(batch: FollowedBatch) -> None:
    again = ", already present" if batch.repeated else ""
    line = f"batch {batch.number}: {count(batch.messages, 'message')} up to {batch.stop:,}{again}, {clock(batch.seconds)}"
    print(line, file=sys.stderr, flush=True)


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="follow /data/store --to /data/messages --interval 5")(follow)
