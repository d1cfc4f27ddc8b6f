"""`inspect`: what a directory holds, from names, sizes, headers and the end of the log.

The table of several stores in `cli.read.fleet`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from mqstore.cli.common.arguments import Store, open_store, verb
from mqstore.cli.common.diagnoses import show_advice
from mqstore.cli.common.grid import Column
from mqstore.cli.common.output import Output
from mqstore.cli.common.read_options import InspectOptions
from mqstore.cli.common.store_parts import print_parts
from mqstore.cli.rabbitmq import inspect as rabbitmq_inspect
from mqstore.cli.read import fleet
from mqstore.table.formatting import count, moment, size

if TYPE_CHECKING:
    from mqstore.rocketmq.summary import RocketMQSummary

SHOWN = 12


def inspect(out: Output, store: Store, options: InspectOptions) -> int:
    """Show what a directory holds: broker and version, files, settings, shutdown, counts, times, and whether a broker would start on it.

    Only names, sizes, headers and the end of the log are read, so a store of any size is shown at once; `verify` checks every byte.
    """
    from mqstore.rocketmq.summary import summarize

    summary = summarize(open_store(store, options.config))
    if out.is_text:
        print_summary(out, summary)
        out.line()
        show_advice(out, summary.advice)
    else:
        out.report(summary.as_dict())
    return 0 if summary.ok else 1


# for a person


def print_summary(out: Output, summary: RocketMQSummary) -> None:
    """Print the summary: what the store is, what is in it, how it was shut down, and what is wrong."""
    if summary.log_only:
        out.line(f"One file of a RocketMQ commit log, {summary.store}", style="bold")
        out.line("Queues, index, checkpoint and configuration of its store are not known, nor how its broker ended.")
    else:
        fits, also = summary.fits
        out.line(f"RocketMQ store {summary.store}", style="bold")
        out.line(f"Files of RocketMQ {fits}; {also}.")
        out.line(f"Known from: {summary.version_known_from}.")
        out.line(_state(summary), style="yellow" if summary.unclean else None)
    out.line()
    for name, value in _facts(summary):
        out.fact(name, value)
    if summary.parts:
        out.line()
        print_parts(out, summary.parts)
    if summary.settings:
        out.line()
        out.table(
            (Column("setting"), Column("value", right=True), Column("known from", flexible=True)),
            ([setting.name, str(setting.value), setting.how] for setting in summary.settings),
        )
    _print_problems(out, summary)


def _state(summary: RocketMQSummary) -> str:
    if summary.unclean:
        return "Unclean shutdown: the file `abort` exists, so the broker was killed or is still running; it recovers the log at startup."
    return "Clean shutdown: there is no file `abort`."


def _facts(summary: RocketMQSummary) -> Iterator[tuple[str, str]]:
    end = summary.end
    length = size(end.offset - summary.log_start)
    torn = "; the last record is torn" if end.torn else ""
    yield "log", f"physical offsets {summary.log_start} to {end.offset}, {length} in {count(summary.log_files, 'file')}{torn}"
    if summary.dledger is not None:
        yield "", f"kept by DLedger in {summary.dledger}; what a broker of the group recovers depends on the other members"
    if summary.first_store_timestamp is not None:
        yield "time", f"{moment(summary.first_store_timestamp)} to {moment(end.last_store_timestamp)} (UTC)"
    if summary.queues:
        place = "" if summary.queues_in == "files" else f", in {summary.queues_in}"
        listed = "messages" if summary.listed is None else count(summary.listed, "message")
        yield "queues", f"{listed} in {count(summary.queues, 'queue')} of {count(summary.topics, 'topic')}{place}"
    elif summary.log_only:
        yield "messages", f"{end.unqueued:,}" if end.walked else "not counted; `mqstore verify` reads all of it"
        return
    elif not summary.queues_unread:
        yield "queues", "none; `mqstore rebuild` builds them from the log"
    else:
        yield "queues", "not read"
    if not end.walked:
        yield "", f"{'further ' if summary.queues else ''}messages in the log were not counted; `mqstore verify` reads all of it"
    elif end.unqueued:
        yield "", f"{count(end.unqueued, 'further message')} at the end of the log, not yet in a queue"
    if summary.index_files:
        behind = "" if summary.index_end is None else f", up to physical offset {summary.index_end}"
        yield "index", f"{count(summary.index_entries, 'key')} in {count(summary.index_files, 'file')}{behind}"
    else:
        yield "index", "none; key queries find nothing until `mqstore rebuild` builds it"
    if summary.checkpoint is None:
        yield "checkpoint", "none"
    else:
        names = (("log", "physicMsgTimestamp"), ("queues", "logicsMsgTimestamp"), ("index", "indexMsgTimestamp"))
        yield (
            "checkpoint",
            ", ".join(f"{what} {moment(summary.checkpoint[name]) if summary.checkpoint[name] else 'never'}" for what, name in names),
        )
    yield (
        "groups",
        f"{count(summary.groups, 'consumer group')} with {count(summary.committed, 'committed offset')}"
        if summary.groups
        else "no committed offsets",
    )


def _print_problems(out: Output, summary: RocketMQSummary) -> None:
    for version, sentence in summary.refusals.items():
        out.line()
        out.line(f"A RocketMQ {version} broker would not start here: {sentence.partition(': ')[2] or sentence}.", style="bold red")
    if summary.unsupported:
        out.line()
        out.line("Not read by mqstore:", style="bold")
        for name in summary.unsupported:
            out.line(f"  {name}")
    if summary.findings:
        out.line()
        out.line(f"{count(len(summary.findings), 'finding')} from names, sizes and small files alone:", style="bold")
        shown = out.first(summary.findings, SHOWN)
        for item in shown:
            out.line(f"  {item.file}: {item.kind}, {item.detail}")
        if len(shown) < len(summary.findings):
            out.line(f"  … {len(summary.findings) - len(shown)} more; -v lists all", style="dim")


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(
        app,
        example="inspect /backup/store",
        panel="Read",
        rabbitmq=rabbitmq_inspect.inspect,
        several=fleet.inspect,
        is_pattern=fleet.is_pattern,
    )(inspect)
