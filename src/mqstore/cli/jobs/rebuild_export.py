"""`rebuild` and `export`: the whole-store jobs, on Spark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqstore.cli.common.arguments import Config, Splits, Store, column_names, open_store, option, verb
from mqstore.cli.common.export_options import ExportOptions, Threads, To, check_target
from mqstore.cli.common.output import Output
from mqstore.cli.common.reports import print_damage
from mqstore.cli.rabbitmq import export as rabbitmq_export
from mqstore.table.formatting import clock, command, count, pace, size

if TYPE_CHECKING:
    from mqstore.pipeline.jobs.report import ExportReport, RebuildReport

__all__ = ["print_exported", "print_rebuilt", "register"]

_NOT_REBUILT = (
    "its indexes do not follow from its message files, so there is nothing to rebuild; `mqstore convert` and `salvage` write it anew"
)


def rebuild(
    out: Output,
    store: Store,
    to: To,
    copy: Annotated[bool, typer.Option("--copy", help="Copy all log files; by default all but the last are hard links.")] = False,
    check_crc: Annotated[bool, typer.Option("--check-crc", help="Check the bodies too, and report those that do not fit.")] = False,
    master: Annotated[
        str | None, option("--master", metavar="URL", help="Run on Spark there, whatever the size; by default the log's size decides.")
    ] = None,
    threads: Threads = None,
    splits: Splits = None,
    config: Config = None,
) -> int:
    """Make consume queues, index and checkpoint anew from the commit log: a sound store in OUT.

    The store is not changed. Log files are hard-linked into OUT where the file system can, but for the last one, into which a broker goes
    on writing: that is a copy, and ends behind its last believable record. Where an older log file is damaged a broker may cut the log
    there and write on in that file: use --copy then. Exit status 1 if a part of the log could not be read.
    """
    from mqstore.pipeline.jobs.rebuild import rebuild as run

    opened = open_store(store, config)
    check_target(to, opened.directory.root)
    with out.progress("rebuilding") as progress:
        report = run(
            opened.directory.root,
            to,
            master=master,
            copy=copy,
            splits=splits,
            check_crc=check_crc,
            in_process_threads=threads,
            config=config,
            progress=progress,
        )
    if out.is_text:
        print_rebuilt(out, report)
        out.line()
        out.next_step("check it, then start a broker with this directory as its storePathRootDir.", command("mqstore", "verify", to))
    else:
        out.report(report.as_dict() | {"store": str(store), "to": str(to)})
    return 0 if report.ok else 1


def export(out: Output, store: Store, options: ExportOptions) -> int:
    """The message table as Parquet, JSON lines or CSV files, with lineage: which log file and offset each row is from.

    iceberg and delta are Parquet files with the metadata of such a table beside them. Exit status 1 if a part of the log could not be read.
    """
    from mqstore.pipeline.jobs.export import export as run
    from mqstore.table.columns import check_columns

    chosen = options.filters.selection()
    columns = column_names(options.columns, "--columns")
    partition_by = column_names(options.partition_by, "--partition-by")
    opened = open_store(store, options.config)
    check_target(options.to, opened.directory.root)
    with out.progress("exporting") as progress:
        report = run(
            opened.directory.root,
            options.to,
            format=options.format.value,
            columns=None if columns is None else check_columns(columns),
            partition_by=check_columns(partition_by or ()),
            selection=chosen,
            master=options.master,
            splits=options.splits,
            mode=options.mode.value,
            resume=options.resume,
            in_process_threads=options.threads,
            config=options.config,
            progress=progress,
        )
    if out.is_text:
        print_exported(out, report)
    else:
        out.report(report.as_dict() | {"store": str(store), "to": str(options.to)})
    return 0 if report.ok else 1


# for a person


def print_rebuilt(out: Output, report: RebuildReport) -> None:
    """What was built, how fast, and what could not be read."""
    out.line(f"Rebuilt {report.to}", style="bold green" if report.ok else "bold yellow")
    out.line(
        f"{count(report.messages, 'message')} in {size(report.log_bytes)} of log: "
        f"{count(report.queue_entries, 'entry')} in {count(report.queues, 'consume queue')}, "
        f"{count(report.index_keys, 'key')} in {count(report.index_files, 'index file')}; "
        f"log files {'linked' if report.linked else 'copied'}."
    )
    apart = ", its start apart" if "Spark" in report.runs_on else ""
    out.line(f"{pace(report.log_bytes, report.seconds)}, with {report.runs_on}{apart}: {report.why}.")
    if out.settings.verbose:
        out.line("Steps: " + ", ".join(f"{name} {clock(seconds)}" for name, seconds in report.stages), style="dim")
    _print_skipped(out, report)


def print_exported(out: Output, report: ExportReport) -> None:
    """What was written, how fast, and what could not be read."""
    out.line(f"Exported {report.to}", style="bold green" if report.ok else "bold yellow")
    out.line(
        f"{count(report.messages, 'message')} from {size(report.log_bytes)} of log: "
        f"{count(len(report.files), 'file')} of {report.format}, {size(report.bytes)}."
    )
    out.line(f"{pace(report.log_bytes, report.seconds)}, the start of Spark apart.")
    _print_skipped(out, report)


def _print_skipped(out: Output, report: RebuildReport | ExportReport) -> None:
    for note in report.notes:
        out.line(f"Note: {note}.")
    if report.ok:
        return
    if report.damage and all(item.kind == "torn-record" for item in report.damage):
        for item in report.damage:
            torn = f"{count(item.length, 'byte')} at {item.offset} of {item.file}"
            out.line(f"Left out: the last record of the log, {torn}; it is incomplete, as a crash leaves it.")
    else:
        lost: Iterable[Any] = report.coverage.skipped
        out.line()
        out.line(
            f"Not read: {count(len(report.coverage.skipped), 'range')} of the log, {size(sum(skip.length for skip in lost))}.", style="bold"
        )
        print_damage(out, report.damage)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    verb(app, example="rebuild /backup/store --to /data/rebuilt", panel="On Spark", rabbitmq=_NOT_REBUILT)(rebuild)
    verb(
        app,
        example="export /backup/store --to /data/messages --format parquet --topic orders",
        panel="On Spark",
        rabbitmq=rabbitmq_export.export,
    )(export)
