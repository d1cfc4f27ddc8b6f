"""`rebuild` and `export`: the whole-store jobs, on Spark."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqstore.cli.common.arguments import AssumeDefaults, Config, Master, Splits, Store, at_microseconds, column_names, option
from mqstore.cli.common.command import diagnosis_of, given, open_either, open_store, show_diagnosis, verb
from mqstore.cli.common.options import ExportOptions, Threads, To, check_target
from mqstore.cli.common.output import Output
from mqstore.errors import UsageError
from mqstore.report.written import appended_parts, exported_parts, rebuilt_parts

if TYPE_CHECKING:
    from mqstore.stores.rabbitmq import RabbitMQ
    from mqstore.stores.rocketmq import RocketMQ
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
    assume_defaults: AssumeDefaults = False,
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
    append to that file; use --copy in that case. The new configuration, and a log in which damage is noticed, are repaired as by `repair`,
    and the notes say how. --queues rocksdb needs the extra `rocksdb` and a broker of 5.4.0 or later.
    Exit status 1 if a part of the log could not be read.
    """
    from mqstore.jobs.rebuild import rebuild as run
    from mqstore.repair.repair import ask_for_configuration
    from mqstore.rocketmq.rebuild_steps import queue_file_size

    opened = open_store(store, config, _NOT_REBUILT)
    check_target(to, opened.directory.root)
    opened.require_commit_log("a rebuild")
    assumed = "" if assume_defaults or queues is QueueKind.ROCKSDB else queue_file_size(opened)[1]
    if assumed and opened.log.last_written() >= 0:
        raise UsageError(ask_for_configuration(assumed))
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
            mend=True,
            progress=progress,
        )
    if out.is_text:
        out.show(rebuilt_parts(report, everything=out.settings.verbose))
    document = report.as_dict() | {"store": str(store), "to": str(to)}
    known = given(rebuilt=report.queue_entries if report.intact else None, known=report.known)
    show_diagnosis(out, document, diagnosis_of(out, to, version=for_version, config=config, **known))
    return 0 if report.ok else 1


def export(out: Output, store: Store, options: ExportOptions) -> int:
    """Export the message table as Parquet, JSON lines or CSV; each row names the file and position it came from.

    iceberg and delta write Parquet files with the metadata of such a table. Exit status 1 if a part of the store could not be read.
    """
    opened = open_either(store, options, now=at_microseconds(options.at))
    chosen = _chosen(opened, options)
    if opened.family == "rocketmq":
        if options.append:
            return _append(out, store, options, chosen["selection"])
        if options.append_from is not None or options.skip_lost:
            raise UsageError("--append-from and --skip-lost belong to --append")
    check_target(options.to, opened.directory.root)
    with out.progress("exporting", opened.export_unit) as progress:
        report = opened.export(
            options.to,
            format=options.format.value,
            columns=column_names(options.columns, "--columns"),
            partition_by=column_names(options.partition_by, "--partition-by") or (),
            master=options.master,
            threads=options.threads,
            splits=options.splits,
            resume=options.resume,
            progress=progress,
            **chosen,
        )
    if not report.messages and (unknown := _unknown(opened, chosen["selection"])):
        out.note(f"no message matches: {unknown}")
    if out.is_text:
        out.show(exported_parts(report, opened.family))
    else:
        out.report(report.as_dict() | {"store": str(store), "to": str(options.to)})
    return 0 if report.ok else 1


def _chosen(opened: RocketMQ | RabbitMQ, options: ExportOptions) -> dict[str, Any]:
    """Return the arguments of `export` that choose messages, in the terms of the family."""
    if opened.family == "rocketmq":
        return {"selection": options.filters.selection(), "mode": options.mode.value}
    since, until = options.filters.times()
    return {"selection": options.filters.queue_selection(options.view), "since": since, "until": until}


def _unknown(opened: RocketMQ | RabbitMQ, selection: Any) -> str:
    if opened.family == "rocketmq":
        return opened.unknown_topic(selection.topics)
    return opened.unknown_name(selection.vhosts, selection.queues)


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
        out.show(appended_parts(report))
    else:
        out.report(report.as_dict() | {"store": str(store), "to": str(options.to)})
    return 0 if report.ok else 1


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    verb(app, example="rebuild /backup/store --to /data/rebuilt")(rebuild)
    verb(
        app,
        example="export /backup/store --to /data/messages --format parquet --topic orders",
    )(export)
