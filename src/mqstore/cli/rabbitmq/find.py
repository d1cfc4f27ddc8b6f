"""`find` on a RabbitMQ store: the messages that hold a text, and whether they wait or were acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mqstore.cli.common.arguments import BodyDisplay, Store
from mqstore.cli.common.bodies import PREVIEW
from mqstore.cli.common.grid import Column
from mqstore.cli.common.output import Format, Output
from mqstore.cli.common.read_options import FindOptions
from mqstore.cli.common.reports import ran_on
from mqstore.cli.rabbitmq.store import note_findings, open_rabbitmq
from mqstore.table.formatting import clock, count, queue_title, shorten, size
from mqstore.table.text import rabbitmq_columns_for

if TYPE_CHECKING:
    from mqstore.jobs.find_in_queues import FindInQueuesReport


def find(out: Output, store: Store, options: FindOptions) -> int:
    """Find the messages that hold a text, and say what became of each."""
    from mqstore.jobs.find_in_queues import find_in_queues
    from mqstore.rabbitmq.find import FOUND_COLUMNS

    opened = open_rabbitmq(store, names=options.names, careful=True)
    shown = options.body or (BodyDisplay.NONE if out.is_text else BodyDisplay.SHA256)
    with out.progress("searching") as progress:
        report = find_in_queues(
            opened,
            options.text,
            body=shown.value,
            limit=options.limit,
            master=options.master,
            threads=options.threads,
            progress=progress,
        )
    found = report.counts
    note_findings(out, opened)
    if out.format is Format.JSON:
        out.document(report.as_dict() | {"store": str(store)})
    elif not out.is_text:
        names = tuple("properties" if name == "properties_json" else name for name in rabbitmq_columns_for(shown.value))
        out.records((*names, *FOUND_COLUMNS), report.rows)
    else:
        _print(out, options.text, report, shown)
    if found.unreadable:
        out.note(f"{count(found.unreadable, 'message')} could not be searched, because their bytes are damaged or lost")
    if not found.hits:
        out.note(
            "not found; whether a message that could not be searched has it is unknown"
            if not report.complete
            else "not found: no message in these files has it"
        )
    return 0 if found.hits and report.complete else 1


def _print(out: Output, text: str, report: FindInQueuesReport, shown: BodyDisplay) -> None:
    rows, found = report.rows, report.counts
    what = count(found.hits, "message") if found.hits else "no message"
    out.line(f"{what} with {text!r}.", style="bold green" if found.hits else "bold yellow")
    if rows:
        columns = [
            Column("vhost", flexible=True),
            Column("queue", flexible=True),
            Column("seq id", right=True),
            Column("found in", flexible=True),
            Column("state"),
            Column("verdict"),
            Column("stored in", flexible=True, path=True, drop=1),
        ]
        if shown is not BodyDisplay.NONE:
            columns.append(Column("payload", flexible=True))
        out.table(columns, (_cells(row, shown) for row in out.first(rows, 50)))
        if not out.settings.verbose:
            out.more_rows(len(rows) - min(len(rows), 50))
    searched = f"{count(found.messages, 'message')}, {size(found.bytes)} of payloads searched in {clock(report.seconds)}"
    out.line(f"{searched}, with {ran_on(report)}.", style="dim")


def _cells(row: dict[str, Any], shown: BodyDisplay) -> list[str]:
    cells = [
        row["vhost"] or "?",
        queue_title(row["queue"] or "-", row["priority_level"]),
        "-" if row["seq_id"] is None else str(row["seq_id"]),
        ", ".join(row["matched_in"]),
        row["state"],
        row["verdict"],
        f"{row['store_file']} at {row['position']}",
    ]
    if shown is not BodyDisplay.NONE:
        cells.append(shorten(row.get("payload") or row.get("payload_b64") or row.get("payload_sha256") or "", PREVIEW))
    return cells
