"""`query`: a key query with the broker's semantics, and an explanation of its answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqstore.cli.common.arguments import (
    AsVersion,
    BodyDisplay,
    BodyOption,
    Config,
    Store,
    ViewName,
    ViewOption,
    open_store,
    open_view,
    option,
    verb,
)
from mqstore.cli.common.grid import Column
from mqstore.cli.common.output import Format, Output
from mqstore.cli.read.messages import GRID, GRID_COLUMNS, grid_rows
from mqstore.table.columns import Selection
from mqstore.table.formatting import command, count, did_you_mean, moment, parse_time
from mqstore.table.text import columns_for

if TYPE_CHECKING:
    from mqstore.rocketmq.format.index_file import SearchStep
    from mqstore.rocketmq.lookup.explain import KeyAnswer
    from mqstore.rocketmq.store.store import RocketMQStore
    from mqstore.rocketmq.store.view import View

END_OF_TIME = 2**63 - 1
MAX_RESULTS = 64
STEPS_SHOWN = 40
KEYS_READ = 16 << 20  # bytes at the end of the log with whose keys a misspelt one is compared

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
    from mqstore.rocketmq.get import message_rows
    from mqstore.rocketmq.lookup import explain as explaining

    opened = open_store(store, config)
    looked_at = open_view(out, opened, view, as_version)
    for file in opened.unread_index:
        out.note(f"{file.relative}: {file.sentence}; the log is read instead of the index")
    if opened.unread_index_sentence is not None:
        out.note(opened.unread_index_sentence)
    with out.progress("scanning the log") as progress:
        answer = explaining.query(opened, looked_at, topic, key, max_num, begin, end, explain=explain, scan=scan, progress=progress)
    if out.format is Format.JSON:
        out.document(_document(answer, message_rows(looked_at, answer.messages, body.value), explain))
    elif not out.is_text:
        out.records(columns_for(body.value), message_rows(looked_at, answer.messages, body.value))
    else:
        print_answer(out, opened, looked_at, answer, explained=explain)
    return 0 if answer.reason is None and answer.messages else 1


def _document(answer: KeyAnswer, rows: list[dict[str, Any]], explained: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "topic": answer.topic,
        "key": answer.key,
        "view": answer.view,
        "index_hits": list(answer.index_hits),
        "messages": rows,
        "complete": answer.complete,
        "reason": answer.reason,
        "detail": answer.detail,
        "advice": answer.advice,
        "missing": list(answer.missing),
        "scanned": answer.scanned,
        "index_last_update_timestamp": answer.index_last_update_timestamp,
        "index_last_update_phyoffset": answer.index_last_update_phyoffset,
    }
    if explained:
        document["steps"] = [step.as_dict() for step in answer.steps]
    return document


# for a person


def print_answer(out: Output, store: RocketMQStore, view: View, answer: KeyAnswer, *, explained: bool) -> None:
    """Print the answer in one sentence, the messages, the missing ones, how the search went, and what to do next."""
    _print_verdict(out, answer)
    if answer.messages:
        out.line()
        _print_messages(out, view, answer.messages)
    if answer.missing:
        out.line()
        out.line(f"In the log, not in the answer ({count(len(answer.missing), 'message')}):", style="bold")
        _print_messages(out, view, answer.missing[:10])
        if len(answer.missing) > 10:
            out.line(f"… and {len(answer.missing) - 10:,} more", style="dim")
    if explained:
        out.line()
        _print_search(out, store, view, answer)
    if answer.advice:
        out.line()
        out.line(f"Next: {answer.advice}{_meant(store, view, answer)}.".replace("?.", "?"))
        for verb, rest in (("rebuild", ("--to", "NEW")), ("verify", ()), ("topics", ())):
            if f"`mqstore {verb}`" in answer.advice:
                out.line(f"      {command('mqstore', verb, store.path, *rest)}", whole=True)


def _meant(store: RocketMQStore, view: View, answer: KeyAnswer) -> str:
    from mqstore.rocketmq.lookup.reason import Reason

    if answer.reason == Reason.KEY_NEVER_SEEN:
        return did_you_mean(answer.key, _keys_like(view, answer.topic, answer.key))
    known = {*store.topics.names, *(queue.topic for queue in store.view().queues())}
    return did_you_mean(answer.topic, known) if answer.reason == Reason.TOPIC_NEVER_SEEN else ""


def _keys_like(view: View, topic: str, key: str) -> set[str]:
    """Return keys of the newest messages of a topic that may have been meant: with other digits, a key is that of another order."""
    low, high = view.log_range()
    newest = Selection(topics=frozenset({topic}), from_offset=max(low, high - KEYS_READ))
    known = {each for batch in view.batches(("keys",), newest) for keys in batch.column(0).to_pylist() for each in keys or ()}
    digits = re.sub(r"\D", "", key)
    return {each for each in known if abs(len(each) - len(key)) <= 2 and re.sub(r"\D", "", each) == digits}


def _print_verdict(out: Output, answer: KeyAnswer) -> None:
    other = len(answer.index_hits) - len(answer.messages)
    collisions = (
        f" {count(other, 'further index hit')} {'has' if other == 1 else 'have'} only the same hash."
        if other > 0 and answer.messages
        else ""
    )
    what = f"key {answer.key!r} in topic {answer.topic!r}"
    if answer.messages and answer.reason is None:
        sure = "The answer is complete." if answer.complete and answer.scanned else ""
        out.line(f"{count(len(answer.messages), 'message')} with {what}.{collisions} {sure}".rstrip(), style="bold green")
    elif answer.messages:
        out.line(f"{count(len(answer.messages), 'message')} with {what}, but not all ({answer.reason}).{collisions}", style="bold yellow")
    else:
        out.line(f"No message for {what}: {answer.reason or 'the log was not scanned to explain it'}.", style="bold red")
    if answer.detail:
        out.line(f"Why: {answer.detail}.")


def _print_messages(out: Output, view: View, offsets: tuple[int, ...]) -> None:
    from mqstore.rocketmq.query.message_pages import batches_at

    grid = out.grid((Column("physical offset", right=True), *GRID[1:]), indent=2)
    for batch in batches_at(view, offsets, GRID_COLUMNS):
        grid.add(grid_rows(batch))
    grid.close()


def _print_search(out: Output, store: RocketMQStore, view: View, answer: KeyAnswer) -> None:
    from mqstore.rocketmq.format.java_text import index_hash
    from mqstore.rocketmq.lookup.explain import DATABASE

    files = view.index_files()
    key_hash = index_hash(answer.topic, answer.key)
    out.line(
        f"How the index was searched: {answer.topic}#{answer.key} has hash {key_hash}; newest file first, newest entry first.", style="bold"
    )
    if not files and store.database_index is None:
        out.line(f"  There is no index file in the {view.name} view.")
    for file in reversed(files):
        steps = [step for step in answer.steps if step.file == file.name]
        out.line(
            f"  {file.name}: {count(max(0, file.index_count - 1), 'entry')}, "
            f"physical offsets {file.begin_physical_offset} to {file.end_physical_offset}, "
            f"stored {moment(file.begin_timestamp)} to {moment(file.end_timestamp)}"
        )
        if not steps:
            out.line("    not visited: enough hits, or the previous file begins before the requested time")
            continue
        _print_steps(out, steps, file.slot_count)
    if store.database_index is not None:
        _print_database(out, store, [step for step in answer.steps if step.file == DATABASE])
    low, high = view.log_range()
    behind = (
        f", {high - answer.index_last_update_phyoffset:,} bytes past the start of the last indexed message"
        if files and high > answer.index_last_update_phyoffset
        else ""
    )
    out.line(f"  The log goes from {low} to {high}{behind}.")
    if answer.scanned:
        out.line("  The whole log was scanned to confirm this.", style="dim")


def _print_database(out: Output, store: RocketMQStore, steps: list[SearchStep]) -> None:
    from mqstore.rocketmq.lookup.explain import DATABASE

    index = store.database_index
    assert index is not None
    end = moment(index.last_store_timestamp)
    out.line(f"  {DATABASE}, the index in RocksDB: up to physical offset {index.last_offset}, stored {end}")
    for step in out.first(steps, STEPS_SHOWN):
        found = "" if step.physical_offset is None else f"physical offset {step.physical_offset}, stored {moment(step.timestamp)}: "
        out.line(f"    {found}{step.outcome}")


def _print_steps(out: Output, steps: list[SearchStep], slot_count: int) -> None:
    shown = out.first(steps, STEPS_SHOWN)
    first = steps[0]
    if len(steps) == 1 and first.physical_offset is None:
        out.line(f"    slot {first.slot} of {slot_count}: {first.outcome}")
        return
    out.line(f"    slot {first.slot} of {slot_count} leads to a chain:")
    out.table(
        (
            Column("entry", right=True),
            Column("physical offset", right=True),
            Column("time in the index (UTC)"),
            Column("outcome", flexible=True, style=lambda text: "32" if text.startswith("taken") else ""),
        ),
        (
            [
                str(step.number) if step.number else "-",
                "-" if step.physical_offset is None else str(step.physical_offset),
                moment(step.timestamp),
                step.outcome,
            ]
            for step in shown
        ),
        indent=4,
    )
    if len(shown) < len(steps):
        out.line(f"    … {len(steps) - len(shown):,} more steps; -v shows all", style="dim")


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="query /backup/store -t orders -k K57 --explain", panel="Read", rabbitmq=_NO_KEYS)(query)
