"""`salvage`: the intact messages of a damaged store, to a file, a new store, or a running broker."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqstore.cli.common.arguments import Master, QueueNames, Store, option
from mqstore.cli.common.command import verb
from mqstore.cli.common.output import Output
from mqstore.cli.jobs.carve import carve
from mqstore.errors import NotAStoreError, UnsupportedError, UsageError
from mqstore.findings import Kind, Verdict
from mqstore.report.parts import Column, Findings
from mqstore.report.written import converted_parts
from mqstore.table.formatting import clock, command, count, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mqstore.rabbitmq.convert.convert_vhost import ConvertReport
    from mqstore.rabbitmq.store.store import RabbitMQStore

VERDICT_MEANINGS = {
    Verdict.INTACT: "intact, and where their queue expects them",
    Verdict.CONSUMED: "acknowledged, but still in the files",
    Verdict.UNINDEXED: "intact, but in no queue: acknowledged, or their index entry is lost",
    Verdict.DUPLICATE: "further copies",
    Verdict.DAMAGED: "some of their bytes are invalid",
    Verdict.UNREACHABLE: "in a queue, but their bytes were not found",
}


class TableFormat(StrEnum):
    """The format of an output file."""

    JSONL = "jsonl"
    PARQUET = "parquet"


class TargetKind(StrEnum):
    """The kind of store to write."""

    ROCKETMQ = "rocketmq"
    RABBITMQ = "rabbitmq"


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvageOptions:
    """Options of `salvage`."""

    to: Annotated[
        str,
        option(
            "--to", metavar="OUT", help="A new file (.jsonl, .parquet), a new directory with --as, or amqp://user:password@host:port/vhost."
        ),
    ]
    format: Annotated[TableFormat | None, option("--format", help="The file's format, if its name does not imply it.")] = None
    as_kind: Annotated[TargetKind | None, option("--as", help="Write a new store that a broker can start from.")] = None
    verdict: Annotated[
        list[Verdict] | None, option("--verdict", help="Only messages with this verdict; may be repeated. Default over AMQP: intact.")
    ] = None
    vhost: Annotated[
        str | None, option("--vhost", metavar="NAME", help="RabbitMQ: only this vhost; with --as, the name for a vhost without one.")
    ] = None
    queue: Annotated[list[str] | None, option("--queue", metavar="NAME", help="RabbitMQ: only this queue; may be repeated.")] = None
    into: Annotated[
        str | None, option("--into", metavar="QUEUE", help="RabbitMQ: the queue for messages that are in no queue; not if OUT is a file.")
    ] = None
    queue_version: Annotated[
        int | None,
        option("--queue-version", metavar="1|2", min=1, help="With --as: the version of the queues; by default 2, or that of --for."),
    ] = None
    entries: Annotated[int | None, option("--segment-entries", min=1, help="With --as: entries per version 2 segment, if not 4096.")] = None
    for_version: Annotated[
        str | None,
        option("--for", metavar="VERSION", help="With --as: the broker's version, such as 4.9.3, or 3.10 of RabbitMQ."),
    ] = None
    names: QueueNames = None
    by_exchange: Annotated[
        bool, typer.Option("--by-exchange", help="AMQP: publish to the exchange a message came through, not to its queue.")
    ] = False
    rate: Annotated[float | None, option("--rate", metavar="N", help="AMQP: at most N messages per second.")] = None
    resume: Annotated[
        Path | None,
        option(
            "--resume",
            metavar="FILE",
            help="Continue from FILE: what was confirmed (brokers) or found so far (images).",
        ),
    ] = None
    master: Master = None
    threads: Annotated[int | None, option("--threads", min=1, help="Images: threads of this process; by default all cores.")] = None

    @property
    def to_amqp(self) -> bool:
        """Whether the target is a running broker."""
        return self.to.startswith(("amqp://", "amqps://"))

    @property
    def sent(self) -> bool:
        """Whether the target is a running broker of either kind."""
        return self.to_amqp or self.to.startswith("rocketmq://")

    @property
    def verdicts(self) -> frozenset[str] | None:
        """The verdicts asked for; None without --verdict."""
        return None if self.verdict is None else frozenset(map(str, self.verdict))


def salvage(out: Output, store: Store, options: SalvageOptions) -> int:
    """Recover every intact message from a damaged store, each with its verdict; also from single files, nameless pieces and disk images.

    Works on torn, truncated, zeroed and partly deleted stores. In an image, messages of both brokers are found by their own marks, in
    splits, in threads or with --master on Spark; with --resume a run that was killed goes on. Acknowledged messages are marked as such.
    Exit status 1 if anything is damaged or missing, or if bytes belonged to nothing.
    """
    from mqstore.rabbitmq.salvage import unread_files

    if not options.sent:
        from mqstore.files.location import local_target, refuse_address

        refuse_address(options.to, "give rocketmq://host:port[/topic] or amqp://user:password@host:port/vhost (amqps:// with TLS)")
        local_target(options.to)
    wreck = _open_wreck(store, options.names)
    if wreck is None:
        return _rocketmq_to_file(out, store, options)
    if options.for_version is not None and options.as_kind is None:
        raise UsageError("--for is the version that is to start on a new store; give --as")
    if options.to_amqp:
        return to_running_broker(out, wreck, options)
    if store.is_dir() and (unread := unread_files(wreck.directory)):
        others = f"{count(len(unread), 'file')} under other names, such as {unread[0]}"
        out.note(f"{others}: not read, because there are files of RabbitMQ under their names; salvage others from a separate directory")
    if options.master or options.threads:
        raise UsageError(f"{store} has files of RabbitMQ under their names; --master and --threads apply to images and nameless pieces")
    if options.as_kind is TargetKind.ROCKETMQ:
        raise UsageError(f"{store} is what is left of a RabbitMQ store; --as rabbitmq writes a new one, mqstore replay a RocketMQ store")
    if options.as_kind is not None:
        return _to_new_store(out, wreck, options)
    return _rabbitmq_to_file(out, store, wreck, options)


def _open_wreck(store: Path, names: Path | None) -> RabbitMQStore | None:
    """Open a RabbitMQ store or what is left of one; return None for what has no part of one. Raises CannotOpenError."""
    from mqstore.rabbitmq.definitions.document import read_queue_names
    from mqstore.rabbitmq.salvage import open_wreck

    try:
        return open_wreck(store, names=() if names is None else list(read_queue_names(names)))
    except NotAStoreError:
        return None


def _rabbitmq_to_file(out: Output, store: Path, wreck: RabbitMQStore, options: SalvageOptions) -> int:
    from mqstore.rabbitmq.salvage import WRITTEN
    from mqstore.rabbitmq.salvage import salvage as run

    if options.into is not None:
        raise UsageError("--into names a queue, which a file does not have; use it with --as rabbitmq or an amqp:// address")
    with out.progress("salvaging", "messages") as progress:
        report = run(
            wreck,
            Path(options.to),
            format=options.format,
            verdicts=WRITTEN if options.verdicts is None else options.verdicts,
            vhosts=None if options.vhost is None else frozenset({options.vhost}),
            queues=None if options.queue is None else frozenset(options.queue),
            progress=progress,
        )
    if not report.messages and (unknown := wreck.unknown_name(options.vhost and [options.vhost], options.queue)):
        out.note(f"no message matches: {unknown}")
    document = report.as_dict() | {"store": str(store)}
    return _print_salvaged(out, document, report.verdicts, report.findings, ok=report.ok)


def _print_salvaged(out: Output, document: dict[str, Any], verdicts: Mapping[str, int], findings: Any, *, ok: bool) -> int:
    if not out.is_text:
        out.report(document)
        return 0 if ok else 1
    out.line(f"Salvaged {document['to']}", style="bold green" if ok else "bold yellow")
    out.line(
        f"{count(document['messages'], 'message')}, {size(document['bytes'])} of {document['format']}, in {clock(document['seconds'])}."
    )
    out.line()
    columns = [Column("verdict"), Column("messages", right=True), Column("meaning", flexible=True)]
    out.table(columns, ((str(each), f"{verdicts.get(each, 0):,}", VERDICT_MEANINGS[each]) for each in Verdict if verdicts.get(each, 0)))
    if findings:
        out.line()
        out.show((Findings(findings),))
    return 0 if ok else 1


def _rocketmq_to_file(out: Output, store: Path, options: SalvageOptions) -> int:
    import time

    from mqstore.cli.common.command import open_store
    from mqstore.table.columns import ROCKETMQ_COLUMNS, rocketmq_schema
    from mqstore.table.row_files import format_of, write_rows
    from mqstore.table.text import columns_for

    carved = options.as_kind is not None or options.sent or not _is_in_place(store)
    if carved:
        return carve(out, store, options)
    if options.master or options.threads or options.resume:
        raise UsageError(f"{store} has its log in place: --master, --threads and --resume apply to images and nameless pieces")
    opened = open_store(store, None)
    started = time.monotonic()
    to = Path(options.to)
    chosen = format_of(to, options.format)
    as_text = chosen == "jsonl"
    batches = opened.to_batches(columns_for("base64"), milliseconds=True) if as_text else opened.to_batches(ROCKETMQ_COLUMNS)
    verdicts = options.verdicts or frozenset(Verdict)
    with out.progress("salvaging", "messages") as progress:
        written = write_rows(batches, rocketmq_schema(ROCKETMQ_COLUMNS), to, chosen, verdicts, progress=progress)
    document: dict[str, Any] = {
        "to": options.to,
        "format": chosen,
        "ok": not any(written.verdicts.get(each) for each in (Verdict.DAMAGED, Verdict.UNREACHABLE)),
        "messages": written.rows,
        "bytes": written.bytes,
        "verdicts": {str(each): written.verdicts.get(each, 0) for each in Verdict},
        "seconds": round(time.monotonic() - started, 3),
        "store": str(store),
    }
    return _print_salvaged(out, document, written.verdicts, (), ok=document["ok"])


def _is_in_place(store: Path) -> bool:
    """Return whether a RocketMQ log is where a broker expects it, so that its queues say what became of a message."""
    from mqstore.cli.common.command import open_store
    from mqstore.files.archive import is_archive

    if not store.is_dir() and not (store.is_file() and is_archive(store)):
        return False
    try:
        opened = open_store(store, None)
    except (NotAStoreError, UnsupportedError):
        return False
    strays = any(item.kind is Kind.STRAY_FILE for item in opened.findings)
    return bool(opened.log.files) and not strays


def _to_new_store(out: Output, wreck: RabbitMQStore, options: SalvageOptions) -> int:
    from mqstore.rabbitmq.format.index_v2 import ENTRY_COUNT
    from mqstore.rabbitmq.salvage import salvage_store

    if options.queue is not None or options.verdict is not None:
        raise UsageError(
            "a new store takes the ready messages of every queue; --queue and --verdict apply if OUT is a file or an amqp:// address"
        )
    with out.progress("salvaging", "queues") as progress:
        report: ConvertReport = salvage_store(
            wreck,
            Path(options.to),
            options.queue_version,
            target=options.for_version,
            into=options.into,
            vhost=options.vhost or "/",
            entries_v2=options.entries or ENTRY_COUNT,
            progress=progress,
        )
    if not out.is_text:
        out.report(report.as_dict() | {"store": str(wreck.path)})
        return 0 if report.ok else 1
    out.show(converted_parts(report, "Salvaged into a new store", everything=out.settings.verbose))
    out.line()
    out.next_step(
        "check it, then replace the msg_stores of a node that has these queues with it, while the node is stopped.",
        command("mqstore", "verify", options.to),
    )
    return 0 if report.ok else 1


def to_running_broker(out: Output, wreck: RabbitMQStore, options: SalvageOptions) -> int:
    import time
    from collections import Counter

    from mqstore.rabbitmq.amqp_sender import Sender, outgoing_messages

    if options.rate is not None and options.rate <= 0:
        raise UsageError("--rate must be above 0 messages per second")
    url, into, verdicts = options.to, options.into, options.verdicts or frozenset({"intact"})
    way = "exchange" if options.by_exchange else f"queue, else {into}" if into else "queue"
    chosen = sorted(options.queue or [])
    from mqstore.files.location import without_password

    to = without_password(url)
    about = f"{wreck.path.absolute()}: {', '.join(sorted(verdicts))} of {options.vhost or 'the vhost'} {chosen} by {way} to {to}"
    sender = Sender(url, rate=options.rate, resume=options.resume, about=about)
    started = time.monotonic()
    left_out = Counter[str]()
    sent = sender.send(
        outgoing_messages(
            wreck,
            verdicts,
            vhosts=frozenset({options.vhost or sender.vhost}),
            queues=frozenset(chosen) or None,
            by_exchange=options.by_exchange,
            user=sender.user,
            into=into,
            skipped=left_out,
        )
    )
    ok = not sent.returned and not sent.refused and not left_out
    counts = {name: getattr(sent, name) for name in ("sent", "confirmed", "returned", "refused", "skipped")}
    document = {"to": to, "store": str(wreck.path), "ok": ok, **counts, "left_out": dict(left_out)}
    document["seconds"] = round(time.monotonic() - started, 3)
    if not out.is_text:
        out.report(document)
        return 0 if ok else 1
    out.line(f"Sent to {document['to']}", style="bold green" if ok else "bold yellow")
    out.line(f"{count(sent.confirmed, 'message')} confirmed by the broker in {clock(document['seconds'])}.")
    if sent.skipped:
        out.line(f"{count(sent.skipped, 'message')} skipped, delivered in an earlier run.")
    for why, number in sorted(left_out.items()):
        out.line(f"Not sent: {count(number, 'message')} ({why}).")
    if sent.returned:
        out.line(f"Returned: {count(sent.returned, 'message')}, because no such queue or route exists. Declare it and run again.")
    if sent.refused:
        out.line(f"Refused by the broker: {count(sent.refused, 'message')}; see its log.")
    return 0 if ok else 1


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    verb(app, example="salvage /wreck --to messages.jsonl", panel="Read")(salvage)
