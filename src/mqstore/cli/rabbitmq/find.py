"""`find` on a RabbitMQ store: the messages that hold a text, and whether they wait or were acknowledged."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

from mqstore.cli.common.arguments import BodyDisplay, Store
from mqstore.cli.common.bodies import PREVIEW
from mqstore.cli.common.grid import Column
from mqstore.cli.common.output import Format, Output
from mqstore.cli.common.read_options import FindOptions
from mqstore.cli.rabbitmq.store import note_findings, open_rabbitmq, queue_title
from mqstore.table.formatting import clock, count, shorten, size
from mqstore.table.text import rabbitmq_columns_for

__all__ = ["find"]

DEFAULT_LIMIT = 10_000


def find(out: Output, store: Store, options: FindOptions) -> int:
    """Find the messages that hold a text, and say what became of each."""
    from mqstore.rabbitmq.store.find import FOUND_COLUMNS, FoundInQueues
    from mqstore.rabbitmq.store.find import find as search
    from mqstore.table.needle import Needle

    needle = Needle(options.text)
    opened = open_rabbitmq(store, names=options.names, careful=True)
    shown = options.body or (BodyDisplay.NONE if out.is_text else BodyDisplay.SHA256)
    started = time.monotonic()
    found = FoundInQueues()
    with out.progress("searching") as progress:
        hits = search(opened, needle, found, body=shown.value, progress=progress)
        rows = list(islice(hits, options.limit or DEFAULT_LIMIT))
        for _ in hits:  # counted, not kept
            pass
    seconds = time.monotonic() - started
    incomplete = bool(note_findings(out, opened)) or bool(found.unreadable)
    if out.format is Format.JSON:
        read = {"messages": found.messages, "bytes": found.bytes, "seconds": round(seconds, 3)}
        out.document(
            {
                "store": str(store),
                "text": needle.text,
                "hits": found.hits,
                "messages": rows,
                "complete": not incomplete,
                "read": read,
                "messages_not_readable": found.unreadable,
            }
        )
    elif not out.is_text:
        names = tuple("properties" if name == "properties_json" else name for name in rabbitmq_columns_for(shown.value))
        out.records((*names, *FOUND_COLUMNS), rows)
    else:
        _print(out, needle.text, rows, found, seconds, shown)
    if found.unreadable:
        out.note(f"{count(found.unreadable, 'message')} could not be searched, because their bytes are damaged or lost")
    if not found.hits:
        out.note(
            "not found; whether a message that could not be searched has it is unknown"
            if incomplete
            else "not found: no message in these files has it"
        )
    return 0 if found.hits and not incomplete else 1


def _print(out: Output, text: str, rows: list[dict[str, Any]], found: Any, seconds: float, shown: BodyDisplay) -> None:
    what = count(found.hits, "message") if found.hits else "no message"
    out.line(f"{what} with {text!r}.", style="bold green" if found.hits else "bold yellow")
    if rows:
        columns = [
            Column("vhost", flexible=True, name=True),
            Column("queue", flexible=True, name=True),
            Column("seq id", right=True),
            Column("found in"),
            Column("state"),
            Column("verdict"),
            Column("stored in", flexible=True, drop=1),
        ]
        if shown is not BodyDisplay.NONE:
            columns.append(Column("payload", flexible=True))
        out.table(columns, (_cells(row, shown) for row in out.first(rows, 50)))
        if not out.settings.verbose:
            out.more_rows(len(rows) - min(len(rows), 50))
    out.line(f"{count(found.messages, 'message')}, {size(found.bytes)} of payloads searched in {clock(seconds)}.", style="dim")


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
