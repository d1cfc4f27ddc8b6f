"""`follow`: keeps Parquet files, a table or a second store up to date with a log that grows."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqstore.cli.common.arguments import Columns, Config, Master, Store, column_names, option, verb
from mqstore.cli.common.output import Output
from mqstore.cli.common.reports import print_damage
from mqstore.table.formatting import clock, count, size

if TYPE_CHECKING:
    from mqstore.pipeline.tail.follow import FollowedBatch, FollowReport

__all__ = ["register"]

INTERRUPTED = 130


class FollowTarget(StrEnum):
    """What is kept up to date."""

    PARQUET = "parquet"
    ICEBERG = "iceberg"
    DELTA = "delta"
    STORE = "store"


def follow(
    out: Output,
    store: Store,
    to: Annotated[Path, option("--to", metavar="OUT", help="A new directory, or one that an earlier follow has made: it goes on there.")],
    form: Annotated[
        FollowTarget | None,
        typer.Option(
            "--as",
            help="store: the same log with queues and index of its own. parquet: the message table, a directory a batch; "
            "iceberg, delta: a table over those, a commit a batch. By default store, or parquet where --columns are named.",
        ),
    ] = None,
    columns: Columns = None,
    once: Annotated[bool, typer.Option("--once", help="End when all is there that was there at the beginning.")] = False,
    interval: Annotated[float, typer.Option("--interval", metavar="S", min=0, help="Seconds from one batch to the next.")] = 1.0,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Go on behind what retention removed unread; by default that is an error.")
    ] = False,
    master: Master = "local[*]",
    config: Config = None,
) -> int:
    """Follow a commit log that grows, until Ctrl-C: every message is in OUT once, also after a crash of either side.

    The store may be in use by its broker; nothing in it is changed. An incomplete record at its end waits until it is whole. A batch
    that is under way when an interrupt comes is taken whole. Exit status 130 after an interrupt, 1 if damage was passed over.
    """
    from mqstore.pipeline.tail.follow import follow as run

    kept = form or (FollowTarget.STORE if columns is None else FollowTarget.PARQUET)
    listener = _print_batch if (sys.stderr.isatty() or out.settings.progress) and not out.settings.quiet else None
    report = run(
        store,
        to,
        form=kept.value,
        columns=column_names(columns, "--columns"),
        once=once,
        interval=interval,
        fail_on_data_loss=not skip_lost,
        master=master,
        config=config,
        on_batch=listener,
    )
    for note in report.notes:
        out.note(f"opening {to}: {note}")
    if out.is_text:
        _print(out, report, to)
    else:
        out.report(report.as_dict() | {"store": str(store), "to": str(to)})
    return INTERRUPTED if report.stopped == "interrupt" else 0 if report.ok else 1


def _print_batch(batch: FollowedBatch) -> None:
    again = ", which was there already" if batch.repeated else ""
    line = f"batch {batch.number}: {count(batch.messages, 'message')} up to {batch.stop:,}{again}, {clock(batch.seconds)}"
    print(line, file=sys.stderr, flush=True)


def _print(out: Output, report: FollowReport, to: Path) -> None:
    out.line(f"Followed into {to}", style="bold green" if report.ok else "bold yellow")
    upto = f", up to physical offset {report.end:,}" if report.end >= 0 else ": nothing new"
    batches = f"{report.batches:,} batch" if report.batches == 1 else f"{report.batches:,} batches"
    out.line(f"{count(report.messages, 'message')} in {batches} from {size(report.log_bytes)} of log{upto}; {clock(report.seconds)}.")
    if not report.ok:
        out.line()
        out.line("Passed over:", style="bold")
        print_damage(out, report.damage)


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="follow /data/store --to /data/messages --interval 5", panel="On Spark")(follow)
