"""`inspect` on a RabbitMQ store, for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqstore.cli.common.arguments import Store
from mqstore.cli.common.diagnoses import show_advice
from mqstore.cli.common.output import Output
from mqstore.cli.common.read_options import InspectOptions
from mqstore.cli.common.store_parts import print_parts
from mqstore.cli.rabbitmq.store import open_rabbitmq
from mqstore.table.formatting import count, moment, size

if TYPE_CHECKING:
    from mqstore.rabbitmq.summary import RabbitMQSummary

SHOWN = 12


def inspect(out: Output, store: Store, options: InspectOptions) -> int:
    """Show versions, vhosts, files, settings, shutdown state, counts, and whether a broker would start on the store."""
    from mqstore.rabbitmq.summary import summarize

    summary = summarize(open_rabbitmq(store, names=options.names))
    if out.is_text:
        _print_summary(out, summary)
        out.line()
        show_advice(out, summary.advice)
    else:
        out.report(summary.as_dict())
    return 0 if summary.ok else 1


def _print_summary(out: Output, summary: RabbitMQSummary) -> None:
    from mqstore.rabbitmq.summary import FITS

    versions = " and ".join(map(str, summary.queue_versions))
    out.line(f"RabbitMQ store {summary.store}", style="bold")
    out.line(f"Classic queues of version {versions}, as of {FITS[summary.queue_versions]}." if versions else "No queue directory.")
    known = "The version of the node is not known" if summary.suggested_version is None else f"Node: {summary.suggested_version}"
    out.line(f"{known}: {summary.version_known_from}.")
    if summary.shutdown == "clean":
        out.line("Clean shutdown: the broker would use everything as it is.")
    else:
        out.line("Unclean shutdown: the broker was killed or is still running; it reads and checks everything at startup.", style="yellow")
    if summary.first is not None:
        out.line(f"Files written {moment(summary.first)} to {moment(summary.last)} (UTC).")
    for vhost in summary.vhosts:
        out.line()
        out.line(f"vhost {vhost.name or '?'} ({vhost.directory})", style="bold")
        sums = vhost.totals
        out.fact("queues", f"{count(sums.messages, 'message')}, {size(sums.bytes)}, in {count(sums.queues, 'queue')}")
        for sentence in sums.sentences:
            out.fact("", f"besides, {sentence}")
        if sums.acknowledged:
            out.fact("", f"{count(sums.acknowledged, 'acknowledged message')} still in the files; `mqstore messages --all` lists them")
        out.fact("shutdown", vhost.shutdown)
        out.fact("segments", f"{vhost.segment_entry_count} entries each, known from {vhost.entries_from}")
        out.line()
        print_parts(out, vhost.parts)
    _print_problems(out, summary)


def _print_problems(out: Output, summary: RabbitMQSummary) -> None:
    for vhost in summary.vhosts:
        for sentence in vhost.refusals:
            out.line()
            out.line(f"A broker would not start vhost {vhost.name or vhost.directory}: {sentence}.", style="red")
    if summary.findings:
        out.line()
        out.line(f"{count(len(summary.findings), 'finding')}:", style="yellow")
        shown = out.first(summary.findings, SHOWN)
        for item in shown:
            out.line(f"  {item.file} at {item.offset}: {item.detail}")
        if len(shown) < len(summary.findings):
            out.line(f"  … {len(summary.findings) - len(shown):,} more; -v lists all", style="dim")
    for part in summary.unsupported:
        out.line()
        out.line(f"Not read: {part}.", style="yellow")
