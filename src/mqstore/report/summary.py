"""What `inspect` shows of one store of either family, and of many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mqstore.findings import Kind
from mqstore.report.checks import advice_part
from mqstore.report.parts import Column, Fact, Gap, Headline, Parts, Sentence, Sentences, Table, Tone
from mqstore.site import Site
from mqstore.table.formatting import count, moment, size

if TYPE_CHECKING:
    from mqstore.rabbitmq.summary import RabbitMQSummary, VhostSummary
    from mqstore.rocketmq.summary import RocketMQSummary
    from mqstore.store import StorePart
    from mqstore.stores.fleet import StoreRow

SHOWN = 12
_BROKERS = {"rocketmq": "RocketMQ", "rabbitmq": "RabbitMQ"}


def summary_parts(summary: RocketMQSummary | RabbitMQSummary) -> Parts:
    """Return what a store is, what is in it, how it was shut down, what is wrong, and what to do next."""
    yield from _queues_summary(summary) if summary.family == "rabbitmq" else _log_summary(summary)
    yield Gap()
    yield advice_part(summary.advice)


def _files(parts: Iterable[StorePart]) -> Table:
    """Return a table of the parts of a store, by directory or kind of file."""
    columns = (Column("part"), *(Column(title, right=True) for title in ("files", "size", "on disk")), Column("what", flexible=True))
    rows = [[part.name, f"{part.files:,}", size(part.bytes), size(part.stored), part.purpose] for part in parts]
    return Table(columns, rows, title="Files")


def _site(site: Site, store: str) -> Table:
    """Return a table of the parts that a store has or should have."""
    columns = (Column("part of the site"), Column("state"), Column("where", flexible=True, path=True), Column("known from", flexible=True))
    return Table(columns, [[part.part, part.state, part.within(store), part.known_from] for part in site.shown], title="Site")


# RocketMQ


def _many_files(summary: RocketMQSummary) -> str:
    return "One file" if summary.log_files == 1 else count(summary.log_files, "file")


def _log_summary(summary: RocketMQSummary) -> Parts:
    if summary.log_only:
        yield Headline(f"{_many_files(summary)} of a RocketMQ commit log, {summary.store}")
        yield Sentence("Queues, index, checkpoint and configuration of its store are not known, nor how its broker ended.")
    else:
        fits, also = summary.fits
        yield Headline(f"RocketMQ store {summary.store}")
        yield Sentence(f"Files of RocketMQ {fits}; {also}.")
        yield Sentence(f"Known from: {summary.version_known_from}.")
        yield _log_state(summary)
    yield Gap()
    yield from (Fact(name, value) for name, value in _log_facts(summary))
    if summary.parts:
        yield Gap()
        yield _files(summary.parts)
    if summary.settings:
        yield Gap()
        columns = (Column("setting"), Column("value", right=True), Column("known from", flexible=True))
        yield Table(columns, [[setting.name, str(setting.value), setting.how] for setting in summary.settings], title="Settings")
    if summary.settings_not_used:
        yield Gap()
        yield Sentence(f"Settings of {summary.configuration} that are not used: {', '.join(summary.settings_not_used)}.")
    yield Gap()
    yield _site(summary.site, summary.store)
    for version, sentence in summary.refusals.items():
        yield Gap()
        why = sentence.partition(": ")[2] or sentence
        yield Headline(f"A RocketMQ {version} broker would not start here: {why}.", Tone.BAD)
    if summary.unsupported:
        yield Gap()
        yield Headline("Not read by mqstore:")
        yield Sentences(summary.unsupported)
    if summary.findings:
        yield Gap()
        yield Headline(f"{count(len(summary.findings), 'finding')} from names, sizes and small files alone:")
        yield Sentences([f"{item.file}: {item.kind}, {item.detail}" for item in summary.findings], SHOWN)


def _log_state(summary: RocketMQSummary) -> Sentence:
    if summary.bare_log:
        return Sentence("There is only a log: how its broker ended is not known.")
    if summary.unclean:
        return Sentence(
            "Unclean shutdown: the file `abort` exists, so the broker was killed or is still running; it recovers the log at startup.",
            Tone.CAUTION,
        )
    return Sentence("Clean shutdown: there is no file `abort`.")


def _log_facts(summary: RocketMQSummary) -> Iterator[tuple[str, str]]:
    end = summary.end
    length = size(end.offset - summary.log_start)
    torn = "; the last record is torn" if end.torn else ""
    covers = f"physical offsets {summary.log_start} to {end.offset}, {length} in {count(summary.log_files, 'file')}{torn}"
    yield "log", covers if summary.log_files else "no file of it is here"
    if summary.dledger is not None:
        yield "", f"kept by DLedger in {summary.dledger}; what a broker of the group recovers depends on the other members"
    if summary.first_store_timestamp is not None:
        yield "time", f"{moment(summary.first_store_timestamp)} to {moment(end.last_store_timestamp)} (UTC)"
    if summary.queues:
        place = "" if summary.queues_in == "files" else f", in {summary.queues_in}"
        listed = "messages" if summary.listed is None else count(summary.listed, "message")
        unknown = "" if summary.listed is not None or summary.log_files else "; how many cannot be told without the log"
        yield "queues", f"{listed} in {count(summary.queues, 'queue')} of {count(summary.topics, 'topic')}{place}{unknown}"
    elif summary.log_only:
        yield "messages", f"{end.unqueued:,}" if end.walked else "not counted; `mqstore verify` reads all of it"
        return
    elif not summary.queues_unread:
        yield "queues", "none; `mqstore rebuild` builds them from the log" if summary.log_files else "none"
    else:
        yield "queues", "not read"
    if not end.walked:
        yield "", f"{'further ' if summary.queues else ''}messages in the log were not counted; `mqstore verify` reads all of it"
    elif end.unqueued:
        yield "", f"{count(end.unqueued, 'further message' if summary.queues else 'message')} at the end of the log, not yet in a queue"
    if summary.index_files:
        behind = "" if summary.index_end is None else f", up to physical offset {summary.index_end}"
        yield "index", f"{count(summary.index_entries, 'key')} in {count(summary.index_files, 'file')}{behind}"
    else:
        yield "index", "none; key queries find nothing" + (" until `mqstore rebuild` builds it" if summary.log_files else "")
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


# RabbitMQ


def _queues_summary(summary: RabbitMQSummary) -> Parts:
    versions = " and ".join(map(str, summary.queue_versions))
    yield Headline(f"RabbitMQ store {summary.store}")
    from mqstore.rabbitmq.site import DELAYED
    from mqstore.rabbitmq.summary import FITS

    fits = FITS[summary.queue_versions]
    others = [(sums, "quorum queue" if kind == "quorum" else "stream") for kind, sums in summary.others if sums.queues]
    none = f"{' and '.join(count(sums.queues, noun) for sums, noun in others)}; no classic queue." if others else "No queue directory."
    yield Sentence(f"Classic queues of version {versions}, as of {fits}." if versions else none)
    yield Sentence(f"{summary.written_by.sentence}.")
    if summary.shutdown == "clean" and any(item.kind is Kind.MISSING_PART for item in summary.findings):
        yield Sentence("Clean shutdown, but not all that was there then is here.", Tone.CAUTION)
    elif summary.shutdown == "clean":
        yield Sentence("Clean shutdown: the broker would use everything as it is.")
    elif summary.vhosts:
        unclean = "Unclean shutdown: the broker was killed or is still running; it reads and checks everything at startup."
        yield Sentence(unclean, Tone.CAUTION)
    if summary.first is not None:
        yield Sentence(f"Files written {moment(summary.first)} to {moment(summary.last)} (UTC).")
    for vhost in summary.vhosts:
        yield Gap()
        yield Headline(f"vhost {vhost.name or '?'} ({vhost.directory})")
        yield from _vhost_facts(vhost)
        yield Gap()
        yield _files(vhost.parts)
    for sums, noun in others:
        yield Gap()
        yield Headline(f"{noun.capitalize()}s")
        what = noun.removeprefix("quorum ")
        yield Fact(f"{what}s", f"{count(sums.messages, 'message')}, {size(sums.bytes)}, in {count(sums.queues, what)}")
        for sentence in sums.sentences:
            yield Fact("", f"besides, {sentence}")
    if elsewhere := tuple(part for part in summary.site.shown if part.state != "here" or part.part == DELAYED):
        yield Gap()
        yield _site(Site(elsewhere), summary.store)
    for vhost in summary.vhosts:
        for sentence in vhost.refusals:
            yield Gap()
            yield Sentence(f"A broker would not start vhost {vhost.name or vhost.directory}: {sentence}.", Tone.BAD)
    if summary.findings:
        yield Gap()
        yield Sentence(f"{count(len(summary.findings), 'finding')}:", Tone.CAUTION)
        yield Sentences([f"{item.file} at {item.offset}: {item.detail}" for item in summary.findings], SHOWN)
    for part in summary.unsupported:
        yield Gap()
        yield Sentence(f"Not read: {part}.", Tone.CAUTION)


def _vhost_facts(vhost: VhostSummary) -> Parts:
    sums = vhost.totals
    held = f"{count(sums.messages, 'message')}, {size(sums.bytes)}, in {count(sums.queues, 'queue')}"
    yield Fact("queues", held if sums.queues else "no classic queue")
    for sentence in sums.sentences:
        yield Fact("", f"besides, {sentence}")
    if sums.acknowledged:
        yield Fact("", f"{count(sums.acknowledged, 'acknowledged message')} still in the files; `mqstore messages --all` lists them")
    yield Fact("shutdown", vhost.shutdown)
    yield Fact("segments", f"{vhost.segment_entry_count} entries each, known from {vhost.entries_from}")


# many stores


def fleet_table(rows: Iterable[StoreRow]) -> Table:
    """Return a table of stores; paths that are not stores are left out."""
    columns = (
        Column("store", flexible=True, path=True),
        Column("broker"),
        Column("version"),
        Column("shutdown"),
        Column("messages", right=True),
        Column("files", right=True, drop=2),
        Column("size", right=True, drop=1),
        Column("findings", right=True),
    )
    return Table(columns, (_cells(row) for row in rows if row.error is None), title="Stores")


def _cells(row: StoreRow) -> list[str]:
    messages = "?" if row.messages is None else f"{row.messages + (row.messages_not_listed or 0):,}"
    problems = (row.findings or 0) + (row.refusals or 0)
    return [
        row.store,
        _BROKERS[row.family or ""],
        row.suggested_version or "",
        row.shutdown or "",
        messages,
        f"{row.files:,}",
        size(row.bytes or 0),
        f"{problems:,}" if problems else "",
    ]
