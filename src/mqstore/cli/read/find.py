"""`find`: the messages that hold a text, and what became of each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from mqstore.cli.common.arguments import BodyDisplay, Store, open_store, verb
from mqstore.cli.common.bodies import PREVIEW
from mqstore.cli.common.output import Format, Output
from mqstore.cli.common.read_options import FindOptions
from mqstore.cli.common.reports import ran_on
from mqstore.cli.rabbitmq import find as rabbitmq_find
from mqstore.table.formatting import count, moment, pace, shorten
from mqstore.table.text import columns_for

if TYPE_CHECKING:
    from mqstore.rocketmq.find import FindReport

SHOWN = 20
_NOT_CONSUMED = {
    "waiting": "whose offset is {}",
    "no-offset": "which has no offset in this queue",
    "above-max": "unknown: its offset {} is past the end of the queue",
}


def find(out: Output, store: Store, options: FindOptions) -> int:
    """Find the messages that hold a text: did this order go through?

    Searches keys, ids, properties and bodies (as they are, as base64, compressed) of all topics or queues, and says of each hit
    whether it is intact, indexed, and consumed: by which groups, or acknowledged. Exit status 1 if nothing is found, or if bytes could not
    be searched.
    """
    from mqstore.jobs.find import DEFAULT_LIMIT
    from mqstore.jobs.find import find as run
    from mqstore.rocketmq.find import FOUND_COLUMNS

    opened = open_store(store, options.config)
    shown = options.body or (BodyDisplay.NONE if out.is_text else BodyDisplay.SHA256)
    with out.progress("searching") as progress:
        report = run(
            opened,
            options.text,
            whole_key=options.whole_key,
            body=shown.value,
            limit=options.limit or DEFAULT_LIMIT,
            master=options.master,
            threads=options.threads,
            progress=progress,
        )
    if out.format is Format.JSON:
        out.document(report.as_dict() | {"store": str(store)})
    elif not out.is_text:
        out.records((*columns_for(shown.value), *FOUND_COLUMNS), report.rows)
    else:
        _print(out, report, shown)
    _note_limits(out, report)
    return 0 if report.hits and report.complete else 1


def _note_limits(out: Output, report: FindReport) -> None:
    """Note what the search could not see."""
    if report.hits > len(report.rows):
        out.note(f"{count(len(report.rows), 'row')} of {report.hits:,} shown; --limit N shows more")
    for file, offset in report.buried[:SHOWN]:
        out.note(f"{file} at {offset}: the text is in bytes that are not a valid record; `mqstore verify` reports what is there")
    if report.unsearched:
        out.note(f"{count(report.unsearched, 'compressed message')} could not be searched, because the body cannot be decompressed")
    if report.damaged_ranges:
        out.note(
            f"bytes of the log that are not a valid record were searched ({count(report.damaged_ranges, 'range')}), "
            "but what was overwritten or compressed there is unknown"
        )
    for note in report.notes:
        out.note(note)


def _print(out: Output, report: FindReport, shown: BodyDisplay) -> None:
    what = count(report.hits, "message") if report.hits else "no message"
    out.line(f"{what} with {report.text!r}.", style="bold green" if report.hits else "bold yellow")
    rows = out.first(report.rows, SHOWN)
    for row in rows:
        out.line()
        _print_hit(out, row, shown)
    if rows:
        out.line()
        out.more_rows(len(report.rows) - len(rows))
    read = f"{count(report.records, 'record')} read: {report.how}"
    out.line(f"{read}; {pace(report.searched, report.seconds)}, with {ran_on(report)}.", style="dim")


def _print_hit(out: Output, row: dict[str, Any], shown: BodyDisplay) -> None:
    out.line(f"{row['topic']}, queue {row['queue_id']}, queue offset {row['queue_offset']}", style="bold")
    forms = "" if row["matched_as"] == ["text"] else f" ({', '.join(row['matched_as'])})"
    out.fact("found in", ", ".join(row["matched_in"]) + forms)
    indexed = {True: ", the index leads to it", False: ", NOT in the index under all of its keys", None: ""}[row["indexed"]]
    style = {"intact": "green", "unindexed": "yellow"}.get(row["verdict"], "red")
    out.fact("bytes", f"{row['verdict']}{indexed}", style)
    out.fact("state", row["state"])
    for each in row["consumed_by"]:
        out.fact("consumed by", f"{each['group']}, whose offset is {each['offset']}")
    for each in row["not_consumed_by"]:
        out.fact("not by", f"{each['group']}, {_NOT_CONSUMED[each['state']].format(each['offset'])}")
    out.fact("keys", row["keys"] or row["uniq_key"] or "-")
    out.fact("stored", f"{moment(row['store_timestamp'])} UTC at physical offset {row['physical_offset']}")
    if shown is not BodyDisplay.NONE:
        out.fact("body", shorten(row.get("body") or row.get("body_sha256") or "", PREVIEW))


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="find /backup/store order-4711", panel="Read", rabbitmq=rabbitmq_find.find)(find)
