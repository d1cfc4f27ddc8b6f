"""What jobs have written: a rebuilt store, exported messages, a followed log, converted queues, looked-up keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqstore.report.checks import note_parts, outcome, ran_on
from mqstore.report.parts import Column, Findings, Gap, Headline, Parts, Sentence, Table, Tone
from mqstore.table.formatting import clock, count, pace, queue_title, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mqstore.findings import Coverage, Damage
    from mqstore.jobs.report import ExportReport, RebuildReport
    from mqstore.pipeline.tail.append import AppendReport
    from mqstore.pipeline.tail.follow import FollowReport
    from mqstore.rabbitmq.convert.convert_queue import QueueReport
    from mqstore.rabbitmq.convert.convert_vhost import ConvertReport
    from mqstore.rocketmq.lookup.answer import LookupReport

QUEUES_SHOWN = 40


def rebuilt_parts(report: RebuildReport, *, everything: bool = False) -> Parts:
    """Return what was built, how fast, and what could not be read. everything: also how long each step took."""
    yield Headline(f"Rebuilt {report.to}", outcome(report.ok))
    yield Sentence(
        f"{count(report.messages, 'message')} in {size(report.log_bytes)} of log: "
        f"{count(report.queue_entries, 'entry')} in {count(report.queues, 'consume queue')}, "
        f"{count(report.index_keys, 'key')} in {count(report.index_files, 'index file')}; "
        f"log files {'linked' if report.linked else 'copied'}."
    )
    yield Sentence(f"{pace(report.log_bytes, report.seconds)}, with {ran_on(report)}.")
    if everything:
        yield Sentence("Steps: " + ", ".join(f"{name} {clock(seconds)}" for name, seconds in report.stages), Tone.FAINT)
    yield from _not_read(report)


def exported_parts(report: ExportReport, family: str) -> Parts:
    """Return what was exported from a store of a family, how fast, and what could not be read."""
    yield Headline(f"Exported {report.to}", outcome(report.ok))
    source = "log" if family == "rocketmq" else "store"
    yield Sentence(
        f"{count(report.messages, 'message')} from {size(report.log_bytes)} of {source}: "
        f"{count(len(report.files), 'file')} of {report.format}, {size(report.bytes)}."
    )
    yield Sentence(f"{pace(report.log_bytes, report.seconds)}, with {ran_on(report)}.")
    if family == "rocketmq":
        yield from _not_read(report)
    elif report.damage:
        yield Gap()
        yield Findings(report.damage)


def _not_read(report: RebuildReport | ExportReport) -> Parts:
    yield from note_parts(report.notes)
    if report.ok:
        return
    if report.damage and all(item.kind == "torn-record" for item in report.damage):
        for item in report.damage:
            torn = f"{count(item.length, 'byte')} at {item.offset} of {item.file}"
            yield Sentence(f"Left out: the last record of the log, {torn}; it is incomplete, as after a crash.")
    else:
        yield from _unread_ranges(report.coverage, report.damage)


def _unread_ranges(coverage: Coverage, damage: Sequence[Damage]) -> Parts:
    yield Gap()
    if coverage.skipped:
        lost = size(sum(skip.length for skip in coverage.skipped))
        yield Headline(f"Not read: {count(len(coverage.skipped), 'range')} of the log, {lost}.")
    yield Findings(damage)


def appended_parts(report: AppendReport) -> Parts:
    """Return what was added to a table, and up to where it has the log."""
    yield Headline(f"Appended to {report.to}", outcome(report.ok))
    if report.start == report.stop:
        yield Sentence(f"Nothing new: it has the log up to physical offset {report.stop:,}.")
    else:
        yield Sentence(
            f"{count(report.messages, 'message')} from physical offsets {report.start:,} to {report.stop - 1:,}: "
            f"{count(len(report.files), 'file')} of {report.format}, {size(report.bytes)}."
        )
    if report.lost:
        yield Sentence(f"Lost to retention before they were appended, in all runs: {size(report.lost)} of log.")
    if report.damage:
        yield Findings(report.damage)


def followed_parts(report: FollowReport, to: object) -> Parts:
    """Return what a follow has written into `to`, and what was skipped."""
    yield Headline(f"Followed into {to}", outcome(report.ok))
    upto = f", up to physical offset {report.end:,}" if report.end >= 0 else ": nothing new"
    batches = f"{report.batches:,} batch" if report.batches == 1 else f"{report.batches:,} batches"
    yield Sentence(f"{count(report.messages, 'message')} in {batches} from {size(report.log_bytes)} of log{upto}; {clock(report.seconds)}.")
    if not report.ok:
        yield Gap()
        yield Headline("Skipped:")
        yield Findings(report.damage)


def looked_up_parts(report: LookupReport) -> Parts:
    """Return how many keys were found, which were not and why, and how they were looked up."""
    yield Headline(f"Written to {report.to}", outcome(report.ok))
    again = f" ({count(report.repeated, 'repetition')} left out)" if report.repeated else ""
    cut = f"; {report.cut:,} older ones left out by --max-per-key" if report.cut else ""
    yield Sentence(f"{count(report.keys, 'key')}{again}: {count(report.hits, 'message')} of {count(report.found, 'key')}{cut}.")
    if report.misses:
        yield Gap()
        columns = (Column("reason"), Column("keys without a message", right=True))
        yield Table(columns, [[why, f"{number:,}"] for why, number in report.misses.items()], title="Keys without a message")
        yield Gap()
    yield Sentence(f"By {report.plan}: {report.why}.")
    read = f"Read {size(report.index_bytes)} of index and {size(report.log_bytes)} of log in {clock(report.seconds)}"
    yield Sentence(f"{read}, with {report.runs_on}: {report.because}.")
    yield from note_parts(report.notes)
    if not report.ok:
        yield from _unread_ranges(report.coverage, report.damage)


def converted_parts(report: ConvertReport, title: str, *, everything: bool = False) -> Parts:
    """Return what was converted, queue by queue, and what was left out. everything: all queues."""
    yield Headline(f"{title}: {report.to}", outcome(report.ok), whole=True)
    files = report.store
    stored = f"; {count(files.files, 'message file')}, {size(files.bytes)}" if files.files else ""
    yield Sentence(f"{count(report.messages, 'message')} of {count(len(report.queues), 'queue')}, {size(report.bytes)} of bodies{stored}.")
    where = f", with {ran_on(report)}" if report.runs_on else ""
    yield Sentence(f"It took {clock(report.seconds)}{where}.")
    yield Gap()
    queues = sorted(report.queues, key=lambda each: -each.messages)
    shown = queues if everything else queues[:QUEUES_SHOWN]
    columns = [Column("vhost", flexible=True), Column("queue", flexible=True), Column("version")]
    columns += [Column(name, right=True) for name in ("messages", "redelivered", "next seq")]
    yield Table(columns, [_converted(each) for each in shown], title="Queues")
    if len(shown) < len(queues):
        yield Sentence(f"… and {count(len(queues) - len(shown), 'queue')} more; -v shows all")
    for why, number in report.left_out.items():
        yield Sentence(f"Left out: {count(number, 'message')} ({why}).")
    if report.rewritten:
        yield Sentence(f"Rewritten as messages of AMQP 0-9-1: {count(report.rewritten, 'message')}.")
    yield from note_parts(report.notes)
    if report.findings:
        yield Gap()
        yield Findings(report.findings)


def _converted(queue: QueueReport) -> list[str]:
    return [
        queue.vhost or "",
        queue_title(queue.queue, queue.priority_level),
        f"{queue.from_version} -> {queue.version}",
        f"{queue.messages:,}",
        f"{queue.redelivered:,}",
        f"{queue.next_seq:,}",
    ]
