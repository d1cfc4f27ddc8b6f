"""`query`: a key query with the broker's semantics, and an explanation of its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mqstore.cli.common.arguments import AsVersion, BodyDisplay, BodyOption, Config, Format, Store, ViewName, ViewOption, option
from mqstore.cli.common.command import open_store, open_view, verb
from mqstore.cli.common.output import Output
from mqstore.table.formatting import parse_time
from mqstore.table.text import columns_for

END_OF_TIME = 2**63 - 1
MAX_RESULTS = 64

_NO_KEYS = "it has no key index; `mqstore messages --grep` searches payloads, `mqstore get --id` finds a message by its id"


def query(
    out: Output,
    store: Store,
    topic: Annotated[str, option("--topic", "-t", help="The topic.")],
    key: Annotated[str, option("--key", "-k", help="The key: one of KEYS, or the UNIQ_KEY.")],
    max_num: Annotated[int, typer.Option("--max", "-n", min=0, help="Maximum number of hits (a broker returns at most 64).")] = MAX_RESULTS,
    begin: Annotated[
        str, typer.Option("--begin", "-b", metavar="MS", help="Stored at or after this time: milliseconds since the epoch, or ISO 8601.")
    ] = "0",
    end: Annotated[
        str, typer.Option("--end", "-e", metavar="MS", help="Stored at or before this time.", show_default="the end of time")
    ] = str(END_OF_TIME),
    explain: Annotated[
        bool, typer.Option("--explain", help="Show every index file, slot and entry visited, and why it was taken or not.")
    ] = False,
    scan: Annotated[bool, typer.Option("--scan/--no-scan", help="Scan the log to explain an empty or short answer.")] = True,
    body: BodyOption = BodyDisplay.SHA256,
    view: ViewOption = ViewName.DISK,
    as_version: AsVersion = None,
    config: Config = None,
) -> int:
    """Find messages by key as the broker would, and explain an empty or short answer.

    Index hits are what the broker's index returns: records whose key has the right hash. Messages are those that actually have the key.
    Exit status 1 if the answer is empty or short.
    """
    return ask(
        out, store, topic, key, max_num, parse_time(begin, "--begin"), parse_time(end, "--end"),
        explain=explain, scan=scan, body=body, view=view, as_version=as_version, config=config,
    )  # fmt: skip


def ask(
    out: Output,
    store: Path,
    topic: str,
    key: str,
    max_num: int = MAX_RESULTS,
    begin: int = 0,
    end: int = END_OF_TIME,
    *,
    explain: bool = False,
    scan: bool = True,
    body: BodyDisplay = BodyDisplay.SHA256,
    view: ViewName = ViewName.DISK,
    as_version: Any = None,
    config: Path | None = None,
) -> int:
    """Open the store, run the query and print the answer. begin, end: milliseconds, inclusive."""
    from mqstore.report.keys import answer_parts
    from mqstore.rocketmq.get import message_rows
    from mqstore.rocketmq.lookup import explain as explaining

    opened = open_store(store, config, _NO_KEYS)
    looked_at = open_view(out, opened, view, as_version)
    for file in opened.unread_index:
        out.note(f"{file.relative}: {file.sentence}; the log is read instead of the index")
    if opened.unread_index_sentence is not None:
        out.note(opened.unread_index_sentence)
    with out.progress("scanning the log") as progress:
        answer = explaining.query(opened, looked_at, topic, key, max_num, begin, end, explain=explain, scan=scan, progress=progress)
    if out.format is Format.JSON:
        out.document(answer.as_dict(message_rows(looked_at, answer.messages, body.value), explained=explain))
    elif out.is_text:
        out.show(answer_parts(opened, looked_at, answer, explained=explain, everything=out.settings.verbose))
    else:
        out.records(columns_for(body.value), message_rows(looked_at, answer.messages, body.value))
    return 0 if answer.ok else 1


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="query /backup/store -t orders -k K57 --explain")(query)
