"""`verify`: checks every record and entry, and maps the damage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from mqstore.cli.common.arguments import Store, open_either, verb
from mqstore.cli.common.output import Output
from mqstore.cli.common.read_options import VerifyOptions
from mqstore.cli.common.reports import print_damage, ran_on, show_verification
from mqstore.table.formatting import count, pace, size

if TYPE_CHECKING:
    from mqstore.findings import Report


def verify(out: Output, store: Store, options: VerifyOptions) -> int:
    """Check every record, queue entry and index entry, and each against the others. RabbitMQ: journals, segments and message files.

    Runs in threads of this process, which is fastest on one host, or on Spark across many; the report is the same.
    Exit status 1 if anything is damaged. What a crash leaves and the broker repairs by itself at startup is a note, not damage.
    """
    import time

    opened = open_either(store, config=options.config, names=options.names, careful=True)
    chosen: dict[str, Any] = {}
    if opened.family == "rocketmq":
        chosen = {"master": options.master or ("local[*]" if options.spark else None), "threads": options.threads}
    begun = time.perf_counter()
    with out.progress("verifying", opened.progress_unit) as progress:
        report = opened.verify(**chosen, progress=progress)
    seconds = time.perf_counter() - begun
    return show_verification(out, report, lambda: print_report(out, report, seconds))


def print_report(out: Output, report: Report, seconds: float) -> None:
    """Print the outcome for a person: what was checked, damage by kind and in detail, notes, what is lost."""
    checked = report.checked
    if report.family == "rocketmq":
        what = (
            f"{count(checked.records, 'record')} of log, {count(checked.queue_entries, 'queue entry')} and "
            f"{count(checked.index_entries, 'index entry')}"
        )
    else:
        what = f"{count(checked.queue_entries, 'index entry')} and {count(checked.records, 'record')} of message files"
    out.line(
        f"Checked {count(checked.messages, 'message')} in {what}: "
        f"{size(checked.bytes)} in {count(checked.files, 'file')}; {pace(checked.bytes, seconds)}."
    )
    if report.damage:
        out.line()
        print_damage(out, report.damage)
    unread = [skip for skip in report.coverage.skipped if skip.file.startswith("commitlog")]
    if unread:
        out.line(f"Not readable as records: {count(len(unread), 'range')} of the log, {size(sum(skip.length for skip in unread))}.")
    for note in report.notes:
        out.line(f"Note: {note}.")
    if report.runs_on:
        out.line(f"Ran with {ran_on(report)}.", style="dim")
    if report.damage:
        out.line()
        _print_losses(out, report)


def _print_losses(out: Output, report: Report) -> None:
    from mqstore.findings import Kind

    lost = (item.file.partition("/")[0] for item in report.damage if item.kind.lost)
    if report.family == "rocketmq" and any("consumequeue" not in place for place in lost):
        out.line("Bytes of the log are lost: look for the same offsets in a replica or a backup. All other messages can be read.")
    if any(item.kind is Kind.TORN_RECORD for item in report.damage):
        out.line("A torn last record is left by a crash; the broker truncates it at startup.")


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="verify /backup/store -o json", panel="Read", rabbitmq=True)(verify)
