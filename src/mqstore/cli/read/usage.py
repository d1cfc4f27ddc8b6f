"""`usage`: what takes the space in the log, and what retains its files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from mqstore.cli.common.arguments import Store, open_store, verb
from mqstore.cli.common.grid import Column
from mqstore.cli.common.output import Format, Output
from mqstore.cli.common.read_options import UsageOptions
from mqstore.cli.common.reports import print_damage, print_shares, ran_on
from mqstore.cli.rabbitmq import usage as rabbitmq_usage
from mqstore.table.formatting import count, moment, pace, size

if TYPE_CHECKING:
    from mqstore.rocketmq.usage import UsageReport

SHOWN = 20


def usage(out: Output, store: Store, options: UsageOptions) -> int:
    """Count bytes and messages by topic, queue, day or key, and show what each log file retains.

    Every byte of the log is counted once: records (body, properties, overhead), fillers at the ends of files, damaged bytes, unwritten
    space. RabbitMQ: live and garbage bytes of each message file. Exit status 1 if bytes are damaged.
    """
    import time

    from mqstore.jobs.usage import usage as run
    from mqstore.rocketmq.usage import key_prefix

    by = options.by
    prefix = None if by is None else key_prefix(by)
    opened = open_store(store, options.config)
    begun = time.perf_counter()
    with out.progress("counting") as progress:
        report = run(
            opened,
            prefix=prefix,
            master=options.master,
            threads=options.threads,
            splits=options.splits,
            progress=progress,
        )
    seconds = time.perf_counter() - begun
    if out.format is Format.JSON:
        out.document(report.as_dict(("topic", "queue", "day", "retained") if by is None else (by,)) | {"store": str(store)})
    elif not out.is_text:
        rows = report.rows(by or "topic")
        out.records(tuple(rows[0]) if rows else ("messages", "bytes"), rows)
    else:
        print_usage(out, report, by, seconds)
    return 0 if report.ok else 1


def print_usage(out: Output, report: UsageReport, by: str | None, seconds: float) -> None:
    """Print totals, then a table by the requested group, or by topic and by day."""
    total = report.total
    out.line(f"{count(total.messages, 'message')} in {size(report.log_bytes)} of log.", style="bold")
    parts = (
        ("bodies", total.body),
        ("properties", total.properties),
        ("overhead of records", total.overhead),
        ("fillers at file ends", report.filler_bytes),
        ("damaged", report.damaged_bytes),
        ("unwritten", report.unwritten_bytes),
    )
    print_shares(out, parts, report.log_bytes)
    for what in (by,) if by is not None else ("topic", "day"):
        out.line()
        _print_rows(out, report.rows(what), what)
    others = [f"{place} {size(amount)}" for place, amount in report.places.items() if amount and place != "commitlog"]
    if others and by is None:
        out.line()
        out.line(f"Besides the log: {', '.join(others)}, by file length.")
    out.line(f"{pace(report.log_bytes - report.unwritten_bytes, seconds)}, with {ran_on(report)}.", style="dim")
    for note in report.notes:
        out.line(f"Note: {note}.")
    if report.damage:
        out.line()
        print_damage(out, report.damage)


def _print_rows(out: Output, rows: Sequence[dict[str, Any]], by: str) -> None:
    shown = out.first(rows, SHOWN)
    if by == "retained":
        columns: tuple[Column, ...] = (
            Column("log file", drop=1),
            Column("topic", flexible=True),
            Column("queue", right=True),
            Column("messages", right=True),
            Column("bytes", right=True),
            Column("oldest", flexible=True, drop=2),
            Column("not consumed by", flexible=True),
        )
        cells = [
            [
                row["file"],
                row["topic"],
                str(row["queue_id"]),
                f"{row['messages']:,}",
                f"{row['bytes']:,}",
                moment(row["oldest_store_timestamp"]),
                ", ".join(f"{group} ({behind:,})" for group, behind in row["waiting_groups"].items()) or "-",
            ]
            for row in shown
        ]
    else:
        names = [name for name in ("topic", "queue_id", "day", "key_prefix") if rows and name in rows[0]]
        columns = (
            *(Column(name.replace("_", " "), right=name == "queue_id", flexible=name != "queue_id") for name in names),
            *(Column(title, right=True) for title in ("messages", "bytes", "bodies", "properties", "share")),
        )
        cells = [
            [
                *("-" if row[name] is None else str(row[name]) for name in names),
                *(f"{row[name]:,}" for name in ("messages", "bytes", "body_bytes", "properties_bytes")),
                f"{100 * row['share']:.1f} %",
            ]
            for row in shown
        ]
    out.table(columns, cells)
    out.more_rows(len(rows) - len(shown))


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="usage /backup/store --by day", panel="Read", rabbitmq=rabbitmq_usage.usage)(usage)
