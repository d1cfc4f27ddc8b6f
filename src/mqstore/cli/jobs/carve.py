"""`salvage` of what is not a store under its own names: single files, nameless pieces, disk images, of either broker or both."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.cli.common.output import Output
from mqstore.errors import NotAStoreError, TargetError, UsageError
from mqstore.findings import Verdict
from mqstore.report.parts import Column
from mqstore.table.formatting import clock, command, count, pace, size

if TYPE_CHECKING:
    from mqstore.files.durable import NewFile
    from mqstore.jobs.runner import Runner
    from mqstore.rabbitmq.salvage import CarvedStore
    from mqstore.table.row_files import Complete, RowCounts
    from mqstore.wreck.rows import FragmentCounts
    from mqstore.wreck.search import SourceFile, Wreck

SHOWN = 20
MAX_GROUPS = 1000
MEANINGS = {
    Verdict.INTACT: "whole, every check passes",
    Verdict.UNINDEXED: "whole; the queue is unknown, only its index knew it (RabbitMQ)",
    Verdict.DAMAGED: "whole, but some of their bytes are invalid",
    Verdict.DUPLICATE: "further copies",
}


@dataclass(slots=True)
class _Work:
    """A salvage in progress. stage: directory for what is not finished; keep: it stays if the run ends early."""

    out: Output
    store: Path
    options: Any
    wreck: Wreck
    runner: Runner
    stage: Path
    keep: bool

    @property
    def to(self) -> Path:
        return Path(self.options.to)


def carve(out: Output, store: Path, options: Any) -> int:
    """Carve a source and write what was found. Returns the exit status: 1 if a message is damaged or bytes belonged to nothing."""
    from mqstore.files.archive import UnpackedArchive, is_archive
    from mqstore.jobs.runner import choose_runner
    from mqstore.wreck.search import carve as search
    from mqstore.wreck.search import source_files

    _check(store, options)
    started = time.monotonic()
    keep = UnpackedArchive(store) if is_archive(store) and store.is_file() else None
    if keep is not None and options.master:
        raise UsageError(f"{store} is an archive: unpack it first, tasks cannot share an unpacked copy")
    files = source_files(store if keep is None else keep.store_root())
    choice = choose_runner(store, lambda: sum(file.size for file in files), threads=options.threads, master=options.master)
    with _stage(options, files) as (stage, resumable), choice.runner() as runner:
        with out.progress("carving") as progress:
            wreck = search(files, runner, stage=stage if resumable else None, progress=progress)
        work = _Work(out, store, options, wreck, runner, stage, resumable)
        document, verdicts = _write(work)
    ok = not verdicts.get("damaged") and wreck.ok and not document.get("refused") and not document.get("returned")
    document = {
        "store": str(store),
        "ok": ok,
        **document,
        "verdicts": {str(each): verdicts.get(str(each), 0) for each in Verdict},
        **wreck.as_dict(),
        "seconds": round(time.monotonic() - started, 3),
    }
    if out.is_text:
        _print(out, wreck, document, verdicts, as_store=options.as_kind is not None)
    else:
        out.report(document)
    return 0 if ok else 1


def _check(store: Path, options: Any) -> None:
    """Refuse what cannot be done, before anything is searched."""
    from mqstore.jobs.resume import is_work

    if options.for_version is not None and options.as_kind is None:
        raise UsageError("--for is the version that is to start on a new store; give --as")
    if options.queue is not None:
        raise UsageError(f"the messages of {store} are in no queue, because only an index knows it; choose among the rows of OUT instead")
    if options.as_kind == "rabbitmq" and options.into is None:
        raise UsageError("carved messages are in no queue, because only an index knows it; give --into QUEUE, the queue to put them in")
    if options.as_kind == "rocketmq" and options.for_version is not None:
        from mqstore.rocketmq.format.profile import profile

        profile(options.for_version)
    if options.sent:
        return
    if options.resume is not None and options.resume.exists() and not is_work(options.resume):
        raise UsageError(f"{options.resume} is not the directory of an earlier salvage; give a name that does not exist yet")
    _refuse_existing(Path(options.to), options.resume)


def _refuse_existing(to: Path, stage: Path | None) -> None:
    """Refuse a target that exists, unless an earlier run, whose work directory is given, wrote it completely."""
    from mqstore.jobs.resume import written_before

    if os.path.lexists(to) and (stage is None or written_before(stage, to) is None):
        raise TargetError(f"{to} exists already; choose another name or remove it first, nothing is ever overwritten")


@contextlib.contextmanager
def _stage(options: Any, files: list[SourceFile]) -> Iterator[tuple[Path, bool]]:
    """Yield the directory for what is not finished, and whether another run can go on from it."""
    from mqstore.files.location import check_parent
    from mqstore.jobs.resume import work_at
    from mqstore.wreck.search import SPLIT, fingerprint

    to = Path(options.to)
    if options.sent:
        path, kept = Path(tempfile.gettempdir()) / f".mqstore-salvage-{os.getpid()}", False
    elif options.resume is not None:
        path, kept = options.resume.absolute(), True
    else:
        path, kept = to.absolute().parent / f".{to.name[:100]}.mqstore-carve", False
    check_parent(path)
    wanted = {
        "files": fingerprint(files),
        "split": SPLIT,
        "format": None if options.sent or options.as_kind else _format(options),
        "verdict": sorted(options.verdicts or ()),
    }
    with work_at(path, resume=kept, identity=wanted, what="salvage") as work:
        if work.resumed_plan is None:
            work.write_plan(wanted)
        yield work.path, kept


def _format(options: Any) -> str:
    from mqstore.table.row_files import format_of

    return format_of(Path(options.to), options.format)


def _write(work: _Work) -> tuple[dict[str, Any], Mapping[str, int]]:
    wreck, options = work.wreck, work.options
    if options.as_kind == "rocketmq":
        if not wreck.placed:
            raise NotAStoreError(f"{work.store} holds no record of RocketMQ; --as rabbitmq writes a store of its RabbitMQ messages")
        return _to_rocketmq_store(work, work.to, work.out)
    if options.as_kind == "rabbitmq":
        _need_messages(work)
        return _to_rabbitmq_store(work)
    if options.sent:
        return _send(work)
    parts = []
    if wreck.placed:
        parts.append(_rocketmq_rows(work, _own(work, "rocketmq")))
    if wreck.found:
        parts.append(_rabbitmq_rows(work, _own(work, "rabbitmq")))
    verdicts: Counter[str] = Counter()
    for _, found in parts:
        verdicts.update(found)
    document = {
        "to": options.to,
        "format": _format(options),
        "messages": sum(each["messages"] for each, _ in parts),
        "bytes": sum(each["bytes"] for each, _ in parts),
        "files": [each["to"] for each, _ in parts],
        "groups": [group for each, _ in parts for group in each["groups"]],
    }
    return document, verdicts


def _need_messages(work: _Work) -> None:
    if not work.wreck.found:
        raise NotAStoreError(f"{work.store} holds no message of RabbitMQ; --as rocketmq writes a store of its RocketMQ records")


def _own(work: _Work, family: str) -> Path:
    """Return the file for the rows of a family: OUT, or, if both were found, a separate name beside it."""
    if not (work.wreck.placed and work.wreck.found):
        return work.to
    to = work.to.with_name(f"{work.to.stem}.{family}{work.to.suffix}")
    _refuse_existing(to, work.stage if work.keep else None)
    return to


def _finished(work: _Work, to: Path) -> tuple[dict[str, Any], Mapping[str, int]] | None:
    """Return what an earlier run reported about a file that it wrote completely; None if it is to be written."""
    from mqstore.files.durable import remove_left_behind
    from mqstore.jobs.resume import written_before

    found = written_before(work.stage, to) if work.keep else None
    if found is None:
        return None
    remove_left_behind(to)  # of a run that was killed right after the file got its name
    return found.part, found.verdicts


def _recording(work: _Work, to: Path, groups: Counter[tuple[str, str]]) -> Complete:
    """Return what records a file in the work directory right before it gets its name."""
    from mqstore.jobs.resume import record_written

    def complete(new: NewFile, counts: RowCounts) -> None:
        if work.keep:
            record_written(work.stage, new, _part(to, counts, groups), counts.verdicts)

    return complete


def _part(to: Path, counts: RowCounts, groups: Counter[tuple[str, str]]) -> dict[str, Any]:
    found = [{"exchange": exchange, "routing_key": key, "messages": number} for (exchange, key), number in groups.most_common(MAX_GROUPS)]
    return {"to": str(to), "messages": counts.rows, "bytes": counts.bytes, "groups": found}


def _rocketmq_rows(work: _Work, to: Path) -> tuple[dict[str, Any], Mapping[str, int]]:
    from mqstore.wreck.rows import write_carved_rows

    before = _finished(work, to)
    if before is not None:
        return before
    verdicts, none = work.options.verdicts or frozenset(Verdict), Counter[tuple[str, str]]()
    with work.out.progress("writing", "records") as progress:
        written = write_carved_rows(
            work.wreck.placed,
            to,
            _format(work.options),
            verdicts,
            work.runner,
            work.stage,
            keep=work.keep,
            progress=progress,
            complete=_recording(work, to, none),
        )
    return _part(to, written, none), written.verdicts


def _carved(work: _Work, *, transient: bool = True) -> CarvedStore:
    """Write the RabbitMQ messages that were found as message files into the stage."""
    from mqstore.files.durable import DurableDirectory
    from mqstore.rabbitmq.salvage import write_carved

    with DurableDirectory(work.stage) as stage:
        stage.discard("messages")
        stage.make_directory("messages")
    with DurableDirectory(work.stage / "messages") as directory:
        return write_carved(work.wreck.found, directory, damaged=False, transient=transient)


def _rabbitmq_rows(work: _Work, to: Path) -> tuple[dict[str, Any], Mapping[str, int]]:
    from mqstore.wreck.rows import write_carved_rabbitmq_rows

    before = _finished(work, to)
    if before is not None:
        return before
    groups: Counter[tuple[str, str]] = Counter()

    def take(counts: FragmentCounts) -> None:
        for group, number in counts.groups.items():
            if group in groups or len(groups) < MAX_GROUPS:
                groups[group] += number

    verdicts = work.options.verdicts or frozenset(Verdict)
    with work.out.progress("writing", "readings of messages") as progress:
        written = write_carved_rabbitmq_rows(
            work.wreck.found,
            to,
            _format(work.options),
            verdicts,
            work.runner,
            work.stage,
            keep=work.keep,
            take=take,
            progress=progress,
            complete=_recording(work, to, groups),
        )
    return _part(to, written, groups), written.verdicts


def _to_rocketmq_store(work: _Work, to: Path, out: Output) -> tuple[dict[str, Any], Mapping[str, int]]:
    from mqstore.rocketmq.salvage import salvage_into_store

    with out.progress("writing", "records") as progress:
        verdicts = salvage_into_store(work.wreck.placed, to, work.options.for_version, progress)
    return {"to": str(to), "format": "rocketmq", "messages": verdicts[str(Verdict.INTACT)], "groups": []}, verdicts


def _to_rabbitmq_store(work: _Work) -> tuple[dict[str, Any], Mapping[str, int]]:
    from mqstore.rabbitmq.format.index_v2 import ENTRY_COUNT
    from mqstore.rabbitmq.salvage import salvage_store

    options = work.options
    store = _carved(work, transient=False)
    with work.out.progress("writing", "queues") as progress:
        report = salvage_store(
            store.open(),
            work.to,
            options.queue_version,
            target=options.for_version,
            into=options.into,
            vhost=options.vhost or "/",
            entries_v2=options.entries or ENTRY_COUNT,
            progress=progress,
        )
    verdicts = {str(Verdict.UNINDEXED): report.messages + store.transient, str(Verdict.DAMAGED): store.damaged}
    verdicts[str(Verdict.DUPLICATE)] = store.count - report.messages
    left_out = {"not persistent: a broker drops them when it starts": store.transient} if store.transient else {}
    return {"to": options.to, "format": "rabbitmq", "messages": report.messages, "groups": [], "left_out": left_out}, verdicts


def _send(work: _Work) -> tuple[dict[str, Any], Mapping[str, int]]:
    """Send the messages that were found to a running broker: those of its family, or of RocketMQ to AMQP if there are no others."""
    from mqstore.replay.targets import shown

    to = shown(work.options.to)
    if work.options.to_amqp and work.wreck.found:
        sent, verdicts = _send_rabbitmq(work)
    else:
        if not work.wreck.placed:
            raise NotAStoreError(f"{work.store} holds no record of RocketMQ; its RabbitMQ messages can be sent to an amqp:// address")
        sent, verdicts = _send_rocketmq(work)
    return {"to": to, "format": "broker", "groups": [], **sent}, verdicts


def _send_rabbitmq(work: _Work) -> tuple[dict[str, Any], Mapping[str, int]]:
    from mqstore.rabbitmq.amqp_sender import Sender, outgoing_messages

    options = work.options
    store = _carved(work)
    about = f"{work.store.absolute()}: carved, by {options.into or 'exchange'}"
    sender = Sender(options.to, rate=options.rate, resume=options.resume, about=about)
    left: Counter[str] = Counter()
    chosen = options.verdicts or frozenset({str(Verdict.UNINDEXED)})
    sent = sender.send(
        outgoing_messages(store.open(), chosen, by_exchange=options.into is None, user=sender.user, into=options.into, skipped=left)
    )
    counts = {name: getattr(sent, name) for name in ("sent", "confirmed", "returned", "refused", "skipped")}
    verdicts = {str(Verdict.UNINDEXED): sent.sent + sent.skipped, str(Verdict.DAMAGED): store.damaged}
    return {"messages": sent.confirmed, **counts, "left_out": dict(left)}, verdicts


def _send_rocketmq(work: _Work) -> tuple[dict[str, Any], Mapping[str, int]]:
    from mqstore.places import open_rocketmq
    from mqstore.replay.running import Journal, ReplayCounts, replay
    from mqstore.replay.sources import DEFAULT_VERDICTS, rocketmq_messages
    from mqstore.replay.targets import open_target, shown
    from mqstore.table.columns import Selection

    options = work.options
    place = work.stage / "store"
    _, verdicts = _to_rocketmq_store(replace(work, options=_Unversioned(None)), place, work.out)
    counts, skipped = ReplayCounts(), Counter[str]()
    store = open_rocketmq(place)
    with Journal(options.resume, f"{work.store.absolute()}: carved -> {shown(options.to)}") as journal:
        target = open_target(options.to)
        try:
            with work.out.progress("sending", "messages") as progress:
                messages = rocketmq_messages(store, Selection(), DEFAULT_VERDICTS, None, skipped)
                replay(messages, target, journal, counts, rate=options.rate, progress=progress)
        finally:
            target.close()
    document = {"messages": counts.sent, "confirmed": counts.sent, "skipped": counts.skipped, "refused": counts.refused}
    refusals = [{"message": mark, "reason": reason} for mark, reason in counts.refusals]
    return {**document, "refusals": refusals, "left_out": dict(skipped)}, verdicts


@dataclass(frozen=True, slots=True)
class _Unversioned:
    for_version: str | None


def _print(out: Output, wreck: Wreck, document: dict[str, Any], verdicts: Mapping[str, int], *, as_store: bool) -> None:
    where = " and ".join(document.get("files") or [document["to"]])
    out.line(
        f"{'Sent to' if document['format'] == 'broker' else 'Salvaged'} {where}", style="bold green" if document["ok"] else "bold yellow"
    )
    out.line(f"{count(document['messages'], 'message')} in {clock(document['seconds'])}.")
    searched = f"{count(wreck.pieces, 'file')}, {size(wreck.bytes)} searched ({pace(wreck.bytes, wreck.seconds)})"
    found = []
    if wreck.records:
        stretches = "1 stretch" if wreck.stretches == 1 else f"{wreck.stretches:,} stretches"
        found.append(f"{count(wreck.records, 'record')} in {stretches} of {count(wreck.logs, 'log')}")
    if wreck.messages:
        found.append(f"{count(wreck.messages, 'RabbitMQ message')}")
    out.line(f"{searched}: {', '.join(found)}.")
    if wreck.resumed:
        out.line(f"{count(wreck.resumed, 'split')} had been searched by an earlier run.")
    if document.get("skipped"):
        out.line(f"{count(document['skipped'], 'message')} skipped, delivered in an earlier run.")
    if document.get("returned"):
        out.line(f"Returned: {count(document['returned'], 'message')}, because no such queue or route exists. Declare it and run again.")
    if document.get("refused"):
        why = f", such as {document['refusals'][0]['reason']}" if document.get("refusals") else "; see its log"
        out.line(f"Refused by the broker: {count(document['refused'], 'message')}{why}.")
    for why, number in sorted(document.get("left_out", {}).items()):
        out.line(f"Left out: {count(number, 'message')} ({why}).")
    out.line()
    columns = [Column("verdict"), Column("messages", right=True), Column("meaning", flexible=True)]
    out.table(columns, ((str(each), f"{verdicts[str(each)]:,}", MEANINGS[each]) for each in MEANINGS if verdicts.get(str(each), 0)))
    if document["groups"]:
        out.line()
        shown = out.first(document["groups"], SHOWN)
        table = [Column("exchange", flexible=True), Column("routing key", flexible=True), Column("messages", right=True)]
        out.table(table, ((each["exchange"] or "(default)", each["routing_key"], f"{each['messages']:,}") for each in shown))
        out.more_rows(len(document["groups"]) - len(shown))
    _print_ranges(out, wreck.gaps, wreck.gap_count, wreck.gap_bytes, "belonged to no whole message:")
    _print_ranges(out, wreck.unreadable, wreck.unreadable_count, wreck.unreadable_bytes, "cannot be read:")
    for name in wreck.untried:
        out.line()
        out.line(f"{name} looks made to be slow to search: not every position was tried for a message of RabbitMQ.", style="yellow")
    if as_store:
        out.line()
        if document["format"] == "rocketmq":
            out.next_step("check it, then start a broker on it.", command("mqstore", "verify", document["to"]))
        else:
            advice = "check it, then replace the msg_stores of a node that has the queue with it, while the node is stopped."
            out.next_step(advice, command("mqstore", "verify", document["to"]))


def _print_ranges(out: Output, ranges: list[Any], number: int, total: int, what: str) -> None:
    if not number:
        return
    out.line()
    out.line(f"{count(number, 'range')}, {size(total)}, {what}")
    shown = out.first(ranges, SHOWN)
    table = [Column("file", flexible=True), Column("offset", right=True), Column("bytes", right=True)]
    out.table(table, ((each.file, f"{each.offset:,}", f"{each.length:,}") for each in shown))
    out.more_rows(number - len(shown))
