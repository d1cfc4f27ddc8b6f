"""`rebuild` and `export`: the whole-store jobs, on Spark."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqstore.cli.common.arguments import Config, Master, Splits, Store, column_names, open_store, option, verb
from mqstore.cli.common.export_options import ExportOptions, Threads, To, check_target
from mqstore.cli.common.output import Output
from mqstore.cli.common.reports import print_damage, ran_on
from mqstore.cli.rabbitmq import export as rabbitmq_export
from mqstore.errors import UsageError
from mqstore.table.formatting import clock, command, count, pace, size

if TYPE_CHECKING:
    from mqstore.jobs.report import ExportReport, RebuildReport
    from mqstore.pipeline.tail.append import AppendReport
    from mqstore.table import columns as table_columns


class QueueKind(StrEnum):
    """How a store keeps its consume queues."""

    FILES = "files"
    ROCKSDB = "rocksdb"


_NOT_REBUILT = "its indexes cannot be derived from its message files; `mqstore convert` and `mqstore salvage` write a new store"


def rebuild(
    out: Output,
    store: Store,
    to: To,
    copy: Annotated[bool, typer.Option("--copy", help="Copy all log files; by default all but the last are hard-linked.")] = False,
    check_crc: Annotated[bool, typer.Option("--check-crc", help="Also check body CRCs, and report those that do not match.")] = False,
    master: Master = None,
    threads: Threads = None,
    splits: Splits = None,
    config: Config = None,
    queues: Annotated[
        QueueKind,
        typer.Option(
            "--queues", help="How the new store keeps its consume queues: in files, or in RocksDB as with storeType=defaultRocksDB."
        ),
    ] = QueueKind.FILES,
    for_version: Annotated[
        str | None,
        option("--for", metavar="VERSION", help="The version of the broker that will open OUT; by default as the files suggest."),
    ] = None,
) -> int:
    """Rebuild consume queues, index and checkpoint from the commit log, into a new store in OUT.

    The store is not changed. Log files are hard-linked into OUT if the file system allows it, except the last one, to which a broker will
    append: it is copied, up to the end of its last valid record. If an older log file is damaged, a broker may truncate the log there and
    append to that file; use --copy in that case. --queues rocksdb needs the extra `rocksdb` and a broker of 5.4.0 or later.
    Exit status 1 if a part of the log could not be read.
    """
    from mqstore.jobs.rebuild import rebuild as run

    opened = open_store(store, config)
    check_target(to, opened.directory.root)
    with out.progress("rebuilding") as progress:
        report = run(
            opened,
            to,
            master=master,
            copy=copy,
            splits=splits,
            check_crc=check_crc,
            threads=threads,
            queues=queues.value,
            version=for_version,
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
    """Export the message table as Parquet, JSON lines or CSV; each row names the file and position it came from.

    iceberg and delta write Parquet files with the metadata of such a table. Exit status 1 if a part of the store could not be read.
    """
    from mqstore.jobs.export import export as run
    from mqstore.table.columns import check_columns

    chosen = options.filters.selection()
    if options.append:
        return _append(out, store, options, chosen)
    if options.append_from is not None or options.skip_lost:
        raise UsageError("--append-from and --skip-lost belong to --append")
    columns = column_names(options.columns, "--columns")
    partition_by = column_names(options.partition_by, "--partition-by")
    opened = open_store(store, options.config)
    check_target(options.to, opened.directory.root)
    with out.progress("exporting") as progress:
        report = run(
            opened,
            options.to,
            format=options.format.value,
            columns=None if columns is None else check_columns(columns),
            partition_by=check_columns(partition_by or ()),
            selection=chosen,
            master=options.master,
            splits=options.splits,
            mode=options.mode.value,
            resume=options.resume,
            threads=options.threads,
            progress=progress,
        )
    if not report.messages and (unknown := opened.unknown_topic(chosen.topics)):
        out.note(f"no message matches: {unknown}")
    if out.is_text:
        print_exported(out, report)
    else:
        out.report(report.as_dict() | {"store": str(store), "to": str(options.to)})
    return 0 if report.ok else 1


def _append(out: Output, store: Store, options: ExportOptions, chosen: table_columns.Selection) -> int:
    from mqstore.pipeline.tail.append import append
    from mqstore.table.columns import Selection

    if chosen != Selection() or options.resume or options.splits is not None or options.mode.value != "PERMISSIVE":
        raise UsageError("--append adds the whole range of the log: omit filters, --resume, --splits and --mode")
    report = append(
        store,
        options.to,
        format=options.format.value,
        columns=column_names(options.columns, "--columns"),
        partition_by=column_names(options.partition_by, "--partition-by"),
        start=options.append_from,
        skip_lost=options.skip_lost,
        master=options.master,
        threads=options.threads,
        config=options.config,
    )
    for note in report.notes:
        out.note(note)
    if out.is_text:
        print_appended(out, report)
    else:
        out.report(report.as_dict() | {"store": str(store), "to": str(options.to)})
    return 0 if report.ok else 1


# for a person


def print_appended(out: Output, report: AppendReport) -> None:
    """Print what was added to a table, and up to where it has the log."""
    out.line(f"Appended to {report.to}", style="bold green" if report.ok else "bold yellow")
    if report.start == report.stop:
        out.line(f"Nothing new: it has the log up to physical offset {report.stop:,}.")
    else:
        out.line(
            f"{count(report.messages, 'message')} from physical offsets {report.start:,} to {report.stop - 1:,}: "
            f"{count(len(report.files), 'file')} of {report.format}, {size(report.bytes)}."
        )
    if report.lost:
        out.line(f"Lost to retention before they were appended, in all runs: {size(report.lost)} of log.")
    if report.damage:
        print_damage(out, report.damage)


def print_rebuilt(out: Output, report: RebuildReport) -> None:
    """Print what was built, how fast, and what could not be read."""
    out.line(f"Rebuilt {report.to}", style="bold green" if report.ok else "bold yellow")
    out.line(
        f"{count(report.messages, 'message')} in {size(report.log_bytes)} of log: "
        f"{count(report.queue_entries, 'entry')} in {count(report.queues, 'consume queue')}, "
        f"{count(report.index_keys, 'key')} in {count(report.index_files, 'index file')}; "
        f"log files {'linked' if report.linked else 'copied'}."
    )
    out.line(f"{pace(report.log_bytes, report.seconds)}, with {ran_on(report)}.")
    if out.settings.verbose:
        out.line("Steps: " + ", ".join(f"{name} {clock(seconds)}" for name, seconds in report.stages), style="dim")
    _print_skipped(out, report)


def print_exported(out: Output, report: ExportReport) -> None:
    """Print what was written, how fast, and what could not be read."""
    out.line(f"Exported {report.to}", style="bold green" if report.ok else "bold yellow")
    out.line(
        f"{count(report.messages, 'message')} from {size(report.log_bytes)} of log: "
        f"{count(len(report.files), 'file')} of {report.format}, {size(report.bytes)}."
    )
    out.line(f"{pace(report.log_bytes, report.seconds)}, with {ran_on(report)}.")
    _print_skipped(out, report)


def _print_skipped(out: Output, report: RebuildReport | ExportReport) -> None:
    for note in report.notes:
        out.line(f"Note: {note}.")
    if report.ok:
        return
    if report.damage and all(item.kind == "torn-record" for item in report.damage):
        for item in report.damage:
            torn = f"{count(item.length, 'byte')} at {item.offset} of {item.file}"
            out.line(f"Left out: the last record of the log, {torn}; it is incomplete, as after a crash.")
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
