"""`usage` on a RabbitMQ store: live against garbage bytes of the message files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mqstore.cli.common.arguments import Store
from mqstore.cli.common.grid import Column
from mqstore.cli.common.output import Format, Output
from mqstore.cli.common.read_options import UsageOptions
from mqstore.cli.common.reports import print_shares
from mqstore.cli.rabbitmq.store import open_rabbitmq
from mqstore.errors import UsageError
from mqstore.table.formatting import count, pace, size

if TYPE_CHECKING:
    from mqstore.rabbitmq.usage import QueuesUsageReport

SHOWN = 20


def usage(out: Output, store: Store, options: UsageOptions) -> int:
    """Count live and garbage bytes of each message file, and messages and bytes by queue.

    A record is live while an unacknowledged message refers to it. Exit status 1 if parts of message files are not records.
    """
    import time

    from mqstore.rabbitmq.usage import usage as run

    by = options.by
    if by not in (None, "file", "queue"):
        raise UsageError(f"--by {by!r} does not apply to a RabbitMQ store; use file or queue")
    opened = open_rabbitmq(store, names=options.names)
    begun = time.perf_counter()
    with out.progress("counting", "queues") as progress:
        report = run(opened, progress)
    seconds = time.perf_counter() - begun
    if out.format is Format.JSON:
        out.document(report.as_dict(("file", "queue") if by is None else (by,)) | {"store": str(store)})
    elif not out.is_text:
        rows = report.rows(by or "file")
        out.records(tuple(rows[0]) if rows else ("file", "bytes"), rows)
    else:
        _print_usage(out, report, by, seconds)
    return 1 if report.unreadable_bytes else 0


def _print_usage(out: Output, report: QueuesUsageReport, by: str | None, seconds: float) -> None:
    total = report.total_bytes
    out.line(f"{count(report.live_records, 'live record')} in {size(total)} of message files.", style="bold")
    parts = (("live", report.live_bytes), ("garbage", report.garbage_bytes), ("unreadable", report.unreadable_bytes))
    print_shares(out, parts, total)
    for what in (by,) if by is not None else ("file", "queue"):
        rows = report.rows(what)
        if rows:
            out.line()
            _print_rows(out, rows, what)
    out.line(f"{pace(total, seconds)}.", style="dim")


def _print_rows(out: Output, rows: Sequence[dict[str, Any]], by: str) -> None:
    shown = out.first(rows, SHOWN)
    if by == "file":
        titles: tuple[str, ...] = ("records", "live", "bytes", "live bytes", "garbage bytes", "unreadable")
        names: tuple[str, ...] = ("records", "live_records", "bytes", "live_bytes", "garbage_bytes", "unreadable_bytes")
        columns = (
            Column("message file", flexible=True, path=True),
            *(Column(title, right=True, drop=rank) for title, rank in zip(titles, (3, 2, 1, 0, 0, 0), strict=True)),
        )
        table = [[row["file"], *(f"{row[name]:,}" for name in names)] for row in shown]
    else:
        titles = ("messages", "bytes", "in the index", "in message files", "index files")
        names = ("messages", "bytes", "embedded_bytes", "shared_bytes", "index_bytes")
        columns = (
            Column("vhost", flexible=True),
            Column("queue", flexible=True),
            *(Column(title, right=True) for title in titles),
        )
        table = [[row["vhost"] or "?", row["queue"], *(f"{row[name]:,}" for name in names)] for row in shown]
    out.table(columns, table)
    out.more_rows(len(rows) - len(shown))
