"""`salvage`: everything that is whole in a wreck, to a file, into a fresh store, or into a running broker."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqstore.cli.common.arguments import Store, option, verb
from mqstore.cli.common.damage import print_damage
from mqstore.cli.common.grid import Column
from mqstore.cli.common.output import Format, Output
from mqstore.cli.rabbitmq.store import MessageNames, read_names
from mqstore.errors import NotAStoreError, UsageError
from mqstore.findings import Verdict
from mqstore.table.formatting import clock, command, count, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mqstore.rabbitmq.convert.convert_vhost import ConvertReport
    from mqstore.rabbitmq.store.store import RabbitMQStore

__all__ = ["register"]

MEANS = {
    Verdict.INTACT: "whole, and where their queue expects them",
    Verdict.CONSUMED: "acknowledged, and not collected yet",
    Verdict.UNINDEXED: "whole, but in no queue: acknowledged, or their index is lost",
    Verdict.DUPLICATE: "further copies",
    Verdict.DAMAGED: "some of their bytes cannot be believed",
    Verdict.UNREACHABLE: "in a queue, but their bytes are nowhere",
}


class TableFormat(StrEnum):
    """What file holds the rows."""

    JSONL = "jsonl"
    PARQUET = "parquet"


class Family(StrEnum):
    """What store is made."""

    RABBITMQ = "rabbitmq"


To = Annotated[
    str,
    option(
        "--to", metavar="OUT", help="A new file (.jsonl, .parquet), a new directory with --as, or amqp://user:password@host:port/vhost."
    ),
]
Kept = Annotated[
    list[Verdict] | None, option("--verdict", help="Only messages of this verdict; may be repeated. Over AMQP: intact, if not given.")
]
Into = Annotated[
    str | None, option("--into", metavar="QUEUE", help="RabbitMQ: the queue for messages that are in none; not with a file as OUT.")
]


def salvage(
    out: Output,
    store: Store,
    to: To,
    format: Annotated[TableFormat | None, option("--format", help="What the file holds, if its name does not tell.")] = None,  # noqa: A002
    as_: Annotated[Family | None, option("--as", help="Write a fresh store, from which a broker boots.")] = None,
    verdict: Kept = None,
    vhost: Annotated[
        str | None, option("--vhost", metavar="NAME", help="RabbitMQ: only this vhost; with --as, a name for one without.")
    ] = None,
    queue: Annotated[list[str] | None, option("--queue", metavar="NAME", help="RabbitMQ: only this queue; may be repeated.")] = None,
    into: Into = None,
    queue_version: Annotated[int, option("--queue-version", metavar="1|2", min=1, help="With --as: the version of the queues.")] = 2,
    entries: Annotated[int | None, option("--segment-entries", min=1, help="With --as: entries of a version 2 file, if not 4096.")] = None,
    names: MessageNames = None,
    by_exchange: Annotated[bool, typer.Option("--by-exchange", help="AMQP: to the exchange a message came by, not to its queue.")] = False,
    rate: Annotated[float | None, option("--rate", metavar="N", help="AMQP: at most N messages a second.")] = None,
    resume: Annotated[
        Path | None, option("--resume", metavar="FILE", help="AMQP: note in FILE what is confirmed, and go on from there.")
    ] = None,
) -> int:
    """Get every intact message out of a wreck, each with its verdict; RabbitMQ: also out of single files and parts of stores.

    Torn, truncated, zeroed, half-deleted stores: what is whole comes out, and what was acknowledged says so. Exit status 1 if anything
    is damaged or missing.
    """
    wanted = None if verdict is None else frozenset(str(item) for item in verdict)
    wreck = _wreck(store, names)
    if wreck is None:
        return _rocketmq(out, store, to, format, as_, wanted)
    if to.startswith(("amqp://", "amqps://")):
        return _send(out, wreck, to, wanted or frozenset({"intact"}), vhost, queue, into, by_exchange, rate, resume)
    if as_ is not None:
        return _fresh(out, wreck, to, queue_version, entries, into, vhost, (queue, wanted))
    if into is not None:
        raise UsageError("--into names a queue, which a file does not have; it goes with --as rabbitmq or an amqp:// address")
    from mqstore.rabbitmq.salvage.salvaging import WRITTEN
    from mqstore.rabbitmq.salvage.salvaging import salvage as run

    report = run(
        wreck,
        Path(to),
        format=format,
        verdicts=WRITTEN if wanted is None else wanted,
        vhosts=None if vhost is None else frozenset({vhost}),
        queues=None if queue is None else frozenset(queue),
    )
    document = report.as_dict() | {"store": str(store)}
    return _told(out, document, report.verdicts, report.findings, ok=report.ok)


def _wreck(store: Path, names: Path | None) -> RabbitMQStore | None:
    """The RabbitMQ store, or what is left of it; None for a RocketMQ store. Raises NotAStoreError, CannotOpenError."""
    from mqstore.cli.common.store_kind import family_of
    from mqstore.rabbitmq.salvage.salvaging import open_wreck

    try:
        return open_wreck(store, names=() if names is None else read_names(names))
    except NotAStoreError:
        if family_of(store) == "rocketmq" and store.is_dir() | store.is_file():
            return None
        raise


def _told(out: Output, document: dict[str, Any], verdicts: Mapping[str, int], findings: Any, *, ok: bool) -> int:
    if not out.is_text:
        if out.format is Format.CSV:
            out.pairs(document)
        else:
            out.document(document)
        return 0 if ok else 1
    out.line(f"Salvaged {document['to']}", style="bold green" if ok else "bold yellow")
    out.line(
        f"{count(document['messages'], 'message')}, {size(document['bytes'])} of {document['format']}, in {clock(document['seconds'])}."
    )
    out.line()
    columns = [Column("verdict"), Column("messages", right=True), Column("what it says", flexible=True)]
    out.table(columns, ((str(each), f"{verdicts.get(each, 0):,}", MEANS[each]) for each in Verdict if verdicts.get(each, 0)))
    if findings:
        out.line()
        print_damage(out, findings)
    return 0 if ok else 1


def _rocketmq(out: Output, store: Path, to: str, format: str | None, as_: Family | None, wanted: frozenset[str] | None) -> int:  # noqa: A002
    import time

    from mqstore.cli.common.arguments import open_store
    from mqstore.table.columns import ROCKETMQ_COLUMNS, rocketmq_schema
    from mqstore.table.file import format_of, write_rows
    from mqstore.table.text import columns_for

    if as_ is not None or to.startswith("amqp"):
        raise UsageError(
            f"{store} is a RocketMQ store: its messages go into a .jsonl or .parquet file; mqstore rebuild makes a fresh store of it"
        )
    opened = open_store(store, None)
    started = time.monotonic()
    chosen = format_of(Path(to), format)
    told = opened.to_batches(columns_for("base64"), milliseconds=True) if chosen == "jsonl" else opened.to_batches(ROCKETMQ_COLUMNS)
    written = write_rows(told, rocketmq_schema(ROCKETMQ_COLUMNS), Path(to), chosen, frozenset(Verdict) if wanted is None else wanted)
    document: dict[str, Any] = {
        "to": to,
        "format": chosen,
        "ok": not any(written.verdicts.get(each) for each in (Verdict.DAMAGED, Verdict.UNREACHABLE)),
        "messages": written.rows,
        "bytes": written.bytes,
        "verdicts": {str(each): written.verdicts.get(each, 0) for each in Verdict},
        "seconds": round(time.monotonic() - started, 3),
        "store": str(store),
    }
    return _told(out, document, written.verdicts, (), ok=document["ok"])


def _fresh(
    out: Output,
    wreck: RabbitMQStore,
    to: str,
    version: int,
    entries: int | None,
    into: str | None,
    vhost: str | None,
    other: tuple[Any, Any],
) -> int:
    from mqstore.cli.rabbitmq.convert import print_converted
    from mqstore.rabbitmq.format.index_v2 import ENTRY_COUNT
    from mqstore.rabbitmq.salvage.salvaging import salvage_store

    if other != (None, None):
        raise UsageError("a fresh store takes what waits in every queue: --queue and --verdict go with a file or an amqp:// address as OUT")
    with out.progress("salvaging") as progress:
        report: ConvertReport = salvage_store(
            wreck, Path(to), version, into=into, vhost=vhost or "/", entries_v2=entries or ENTRY_COUNT, progress=progress
        )
    if not out.is_text:
        document = report.as_dict() | {"store": str(wreck.path)}
        if out.format is Format.CSV:
            out.pairs(document)
        else:
            out.document(document)
        return 0 if report.ok else 1
    print_converted(out, report, "Salvaged into a fresh store")
    out.line()
    out.line("Next: check it, then put it in the place of the msg_stores of a node that knows these queues, while the node is stopped.")
    out.line(f"      {command('mqstore', 'verify', to)}", whole=True)
    return 0 if report.ok else 1


def _send(
    out: Output,
    wreck: RabbitMQStore,
    url: str,
    verdicts: frozenset[str],
    vhost: str | None,
    queues: list[str] | None,
    into: str | None,
    by_exchange: bool,
    rate: float | None,
    resume: Path | None,
) -> int:
    import time

    from mqstore.rabbitmq.salvage.amqp_sender import Sender, hidden
    from mqstore.rabbitmq.salvage.outgoing import outgoing_messages

    if rate is not None and rate <= 0:
        raise UsageError("--rate is a number of messages a second, above 0")
    way = "exchange" if by_exchange else f"queue, else {into}" if into else "queue"
    chosen = sorted(queues or [])
    about = f"{wreck.path.absolute()}: {', '.join(sorted(verdicts))} of {vhost or 'the vhost'} {chosen} by {way} to {hidden(url)}"
    sender = Sender(url, rate=rate, resume=resume, about=about)
    started = time.monotonic()
    sent = sender.send(
        outgoing_messages(
            wreck,
            verdicts,
            vhosts=frozenset({vhost or sender.vhost}),
            queues=frozenset(chosen) or None,
            by_exchange=by_exchange,
            user=sender.user,
            into=into,
        )
    )
    ok = not sent.returned and not sent.refused
    told = {name: getattr(sent, name) for name in ("sent", "confirmed", "returned", "refused", "skipped")}
    document = {"to": hidden(url), "store": str(wreck.path), "ok": ok, **told, "seconds": round(time.monotonic() - started, 3)}
    if not out.is_text:
        if out.format is Format.CSV:
            out.pairs(document)
        else:
            out.document(document)
        return 0 if ok else 1
    out.line(f"Sent to {document['to']}", style="bold green" if ok else "bold yellow")
    out.line(f"{count(sent.confirmed, 'message')} confirmed by the broker in {clock(document['seconds'])}.")
    if sent.skipped:
        out.line(f"{count(sent.skipped, 'message')} had been confirmed in an earlier run.")
    if sent.returned:
        out.line(f"Came back: {count(sent.returned, 'message')}; no such queue or route is there. Declare it and send again.")
    if sent.refused:
        out.line(f"Refused by the broker: {count(sent.refused, 'message')}; look into its log.")
    return 0 if ok else 1


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    verb(app, example="salvage /wreck --to messages.jsonl", panel="Read")(salvage)
