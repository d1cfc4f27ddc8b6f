"""What `salvage` has written, sent and found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mqstore.findings import Verdict
from mqstore.report.checks import outcome
from mqstore.report.parts import SHOWN, Column, Findings, Gap, Headline, NextStep, Others, Parts, Sentence, Table, Tone
from mqstore.report.written import converted_parts
from mqstore.table.formatting import clock, command, count, pace, size
from mqstore.wreck.salvage import AnyReport, CarveReport, SentReport, StoreReport

if TYPE_CHECKING:
    from mqstore.findings import SalvageReport
    from mqstore.wreck.search import Unclaimed, Wreck

MEANINGS = {
    Verdict.INTACT: "intact, and where their queue expects them",
    Verdict.CONSUMED: "acknowledged, but still in the files",
    Verdict.UNINDEXED: "intact, but in no queue: acknowledged, or their index entry is lost",
    Verdict.UNREACHABLE: "in a queue, but their bytes were not found",
    Verdict.DAMAGED: "some of their bytes are invalid",
    Verdict.DUPLICATE: "further copies",
    Verdict.UNPROVED: "whole, but their properties may be another message's",
}
CARVED_MEANINGS = {
    Verdict.INTACT: "whole, every check passes",
    Verdict.UNINDEXED: "whole; the queue is unknown, or whether it still had the message (RabbitMQ)",
    Verdict.DAMAGED: "whole, but some of their bytes are invalid",
    Verdict.UNPROVED: "whole, but no checksum covers it, or not its properties or its offset",
    Verdict.DUPLICATE: "further copies",
}


def salvaged_parts(report: AnyReport, *, everything: bool = False, diagnosed: bool = False) -> Parts:
    """Return how many messages were written or sent, with which verdicts, and what was not.

    everything: also long lists in full. diagnosed: a diagnosis of the store follows, so that none is advised.
    """
    if isinstance(report, StoreReport):
        return _store_parts(report, everything)
    if isinstance(report, SentReport):
        return _sent_parts(report)
    if isinstance(report, CarveReport):
        return _carved_parts(report, everything)
    return _file_parts(report, diagnosed)


def _file_parts(report: SalvageReport, diagnosed: bool) -> Parts:
    yield Headline(f"Salvaged {report.to}", outcome(report.ok))
    yield Sentence(f"{count(report.messages, 'message')}, {size(report.bytes)} of {report.format}, in {clock(report.seconds)}.")
    yield from _verdicts(report.verdicts, MEANINGS)
    if report.findings:
        yield Gap()
        yield Findings(report.findings)
    if not diagnosed and any((Path(report.store) / part).is_dir() for part in ("commitlog", "msg_stores")):
        yield Gap()
        advice = "see what the broker itself keeps of the store; `mqstore replay` sends rows of the file to a running one."
        yield NextStep(advice, (command("mqstore", "diagnose", report.store),))


def _store_parts(report: StoreReport, everything: bool) -> Parts:
    yield from converted_parts(report.converted, "Salvaged into a new store", everything=everything)


def _sent_parts(report: SentReport) -> Parts:
    yield Headline(f"Sent to {report.to}", outcome(report.ok))
    yield Sentence(f"{count(report.confirmed, 'message')} confirmed by the broker in {clock(report.seconds)}.")
    if report.skipped:
        yield Sentence(f"{count(report.skipped, 'message')} skipped, delivered in an earlier run.")
    for why, number in sorted(report.left_out.items()):
        yield Sentence(f"Not sent: {count(number, 'message')} ({why}).")
    yield from _refused(report.returned, report.refused, "; see its log")


def _carved_parts(report: CarveReport, everything: bool) -> Parts:
    wreck, written = report.wreck, report.written
    where = " and ".join(written.get("files") or [written["to"]])
    yield Headline(f"{'Sent to' if written['format'] == 'broker' else 'Salvaged'} {where}", outcome(report.ok))
    yield Sentence(f"{count(written['messages'], 'message')} in {clock(report.seconds)}.")
    searched = f"{count(wreck.pieces, 'file')}, {size(wreck.bytes)} searched ({pace(wreck.bytes, wreck.seconds)})"
    yield Sentence(f"{searched}: {', '.join(_hits(wreck))}.")
    if wreck.resumed:
        yield Sentence(f"{count(wreck.resumed, 'split')} had been searched by an earlier run.")
    if written.get("skipped"):
        yield Sentence(f"{count(written['skipped'], 'message')} skipped, delivered in an earlier run.")
    why = f", such as {written['refusals'][0]['reason']}" if written.get("refusals") else "; see its log"
    yield from _refused(written.get("returned", 0), written.get("refused", 0), why)
    for why, number in sorted(written.get("left_out", {}).items()):
        yield Sentence(f"Left out: {count(number, 'message')} ({why}).")
    yield from _verdicts(report.verdicts, CARVED_MEANINGS)
    if written["groups"]:
        yield Gap()
        columns = (Column("exchange", flexible=True), Column("routing key", flexible=True), Column("messages", right=True))
        rows = [(each["exchange"] or "(default)", each["routing_key"], f"{each['messages']:,}") for each in written["groups"]]
        yield Table(columns, rows, SHOWN)
    yield from _ranges(wreck.gaps, wreck.gap_count, wreck.gap_bytes, "belonged to no whole message:", everything)
    yield from _ranges(wreck.unreadable, wreck.unreadable_count, wreck.unreadable_bytes, "cannot be read:", everything)
    for name in wreck.untried:
        yield Gap()
        yield Sentence(f"{name} looks made to be slow to search: not every position was tried for a message of RabbitMQ.", Tone.CAUTION)


def _hits(wreck: Wreck) -> Iterator[str]:
    if wreck.records:
        stretches = "1 stretch" if wreck.stretches == 1 else f"{wreck.stretches:,} stretches"
        yield f"{count(wreck.records, 'record')} in {stretches} of {count(wreck.logs, 'log')}"
    if wreck.messages:
        yield f"{count(wreck.messages, 'RabbitMQ message')}"


def _refused(returned: int, refused: int, why: str) -> Parts:
    if returned:
        yield Sentence(f"Returned: {count(returned, 'message')}, because no such queue or route exists. Declare it and run again.")
    if refused:
        yield Sentence(f"Refused by the broker: {count(refused, 'message')}{why}.")


def _verdicts(verdicts: Mapping[str, int], meanings: Mapping[Verdict, str]) -> Parts:
    yield Gap()
    columns = (Column("verdict"), Column("messages", right=True), Column("meaning", flexible=True))
    yield Table(columns, [(str(each), f"{verdicts[each]:,}", why) for each, why in meanings.items() if verdicts.get(each, 0)])


def _ranges(ranges: Sequence[Unclaimed], number: int, total: int, what: str, everything: bool) -> Parts:
    """Yield ranges of files. ranges: the first of them; number, total: of all."""
    if not number:
        return
    yield Gap()
    yield Sentence(f"{count(number, 'range')}, {size(total)}, {what}")
    shown = ranges if everything else ranges[:SHOWN]
    columns = (Column("file", flexible=True), Column("offset", right=True), Column("bytes", right=True))
    yield Table(columns, [(each.file, f"{each.offset:,}", f"{each.length:,}") for each in shown])
    yield Others(number - len(shown))
