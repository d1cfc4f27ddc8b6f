"""`export` on a RabbitMQ store."""

from __future__ import annotations

from mqstore.cli.common.arguments import Store, at_microseconds, column_names
from mqstore.cli.common.export_options import ExportOptions, check_target
from mqstore.cli.common.output import Output
from mqstore.cli.common.reports import print_damage, ran_on
from mqstore.cli.rabbitmq.store import open_rabbitmq
from mqstore.table.formatting import count, pace, size


def export(out: Output, store: Store, options: ExportOptions) -> int:
    """Export the message table as Parquet, JSON lines or CSV; each row names the file and position it came from.

    Exit status 1 if a part of the store is damaged.
    """
    from mqstore.jobs.export import export_queues as run

    chosen = options.filters.queue_selection(options.view)
    since, until = options.filters.times()
    opened = open_rabbitmq(store, now=at_microseconds(options.at), names=options.names)
    check_target(options.to, opened.directory.root)
    with out.progress("exporting", "parts") as progress:
        report = run(
            opened,
            options.to,
            format=options.format.value,
            columns=column_names(options.columns, "--columns"),
            partition_by=column_names(options.partition_by, "--partition-by") or (),
            selection=chosen,
            since=since,
            until=until,
            master=options.master,
            threads=options.threads,
            splits=options.splits,
            resume=options.resume,
            progress=progress,
        )
    if not report.messages and (unknown := opened.unknown_name(chosen.vhosts, chosen.queues)):
        out.note(f"no message matches: {unknown}")
    if not out.is_text:
        out.report(report.as_dict() | {"store": str(store), "to": str(options.to)})
        return 0 if report.ok else 1
    out.line(f"Exported {report.to}", style="bold green" if report.ok else "bold yellow")
    out.line(
        f"{count(report.messages, 'message')} from {size(report.log_bytes)} of store: "
        f"{count(len(report.files), 'file')} of {report.format}, {size(report.bytes)}."
    )
    out.line(f"{pace(report.log_bytes, report.seconds)}, with {ran_on(report)}.")
    if report.damage:
        out.line()
        print_damage(out, report.damage)
    return 0 if report.ok else 1
