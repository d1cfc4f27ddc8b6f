"""`export` on a RabbitMQ store."""

from __future__ import annotations

from typing import Annotated

import typer

from mqstore.cli.common.arguments import GrepOption, Master, Store, ViewName, ViewOption, option
from mqstore.cli.common.damage import print_damage
from mqstore.cli.common.export_options import ExportFormat, Splits, Threads, To, check_target
from mqstore.cli.common.filters import Limit, Queues, Since, Until
from mqstore.cli.common.output import Format, Output
from mqstore.cli.rabbitmq.messages import Everything, FromSeq, ToSeq, Verdicts, queue_selection
from mqstore.cli.rabbitmq.store import AtTime, MessageNames, Vhosts, microseconds, open_rabbitmq
from mqstore.errors import UsageError
from mqstore.table.formatting import count, pace, parse_time, size

__all__ = ["export"]


def export(
    out: Output,
    store: Store,
    to: To,
    format: Annotated[ExportFormat, typer.Option("--format", help="What files to write.")] = ExportFormat.PARQUET,  # noqa: A002
    columns: Annotated[str | None, option("--columns", metavar="A,B,…", help="Only these columns of the message table.")] = None,
    partition_by: Annotated[str | None, option("--partition-by", metavar="A,B,…", help="A directory per value of these columns.")] = None,
    vhost: Vhosts = None,
    queue: Queues = None,
    from_seq: FromSeq = None,
    to_seq: ToSeq = None,
    since: Since = None,
    until: Until = None,
    grep: GrepOption = None,
    limit: Limit = None,
    verdict: Verdicts = None,
    everything: Everything = False,
    view: ViewOption = ViewName.DISK,
    at: AtTime = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what a killed run of the same export has finished.")] = False,
    master: Master = "local[*]",
    threads: Threads = None,
    splits: Splits = None,
    names: MessageNames = None,
) -> int:
    """The message table as Parquet, JSON lines or CSV files, with lineage: which file and position each row is from.

    Exit status 1 if a part of the store is damaged.
    """
    from mqstore.pipeline.jobs.rabbitmq_export import export as run

    chosen = queue_selection(
        vhosts=vhost, queues=queue, from_seq=from_seq, to_seq=to_seq, grep=grep, verdicts=verdict, everything=everything, limit=limit,
        view=view,
    )  # fmt: skip
    low = None if since is None else parse_time(since, "--since")
    high = None if until is None else parse_time(until, "--until")
    opened = open_rabbitmq(store, now=microseconds(at), names=names)
    check_target(to, opened.directory.root)
    with out.progress("exporting") as progress:
        report = run(
            opened,
            to,
            format=format.value,
            columns=_names(columns, "--columns"),
            partition_by=_names(partition_by, "--partition-by") or (),
            selection=chosen,
            since=low,
            until=high,
            master=master,
            in_process_threads=threads,
            splits=splits,
            resume=resume,
            progress=progress,
        )
    if not out.is_text:
        document = report.as_dict() | {"store": str(store), "to": str(to)}
        out.pairs(document) if out.format is Format.CSV else out.document(document)
        return 0 if report.ok else 1
    out.line(f"Exported {report.to}", style="bold green" if report.ok else "bold yellow")
    out.line(
        f"{count(report.messages, 'message')} from {size(report.log_bytes)} of store: "
        f"{count(len(report.files), 'file')} of {report.format}, {size(report.bytes)}."
    )
    out.line(f"{pace(report.log_bytes, report.seconds)}, the start of Spark apart.")
    if report.damage:
        out.line()
        print_damage(out, report.damage)
    return 0 if report.ok else 1


def _names(text: str | None, flag: str) -> tuple[str, ...] | None:
    """The column names of a comma list. Raises UsageError."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise UsageError(f"{flag} names no column")
    return names
