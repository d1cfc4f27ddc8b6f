"""`salvage`: the intact messages of a damaged store, to a file, a new store, or a running broker."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from mqstore.cli.common.arguments import Master, QueueNames, Store, option
from mqstore.cli.common.command import diagnosis_of, verb
from mqstore.cli.common.output import Output
from mqstore.findings import SalvageReport, Verdict


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
        list[Verdict] | None,
        option("--verdict", help=f"Only messages with this verdict: {', '.join(Verdict)}; may be repeated. Default over AMQP: intact."),
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

    def request(self) -> dict[str, Any]:
        """Return the options as `mqstore.salvage` takes them."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("to", "names")}
        verdicts, queues, version = given.pop("verdict"), given.pop("queue"), given.pop("for_version")
        return given | {
            "verdicts": None if verdicts is None else frozenset(map(str, verdicts)),
            "queues": None if queues is None else tuple(queues),
            "version": version,
        }


def salvage(out: Output, store: Store, options: SalvageOptions) -> int:
    """Recover every intact message from a damaged store, each with its verdict; also from files, nameless pieces and disk images.

    Works on torn, truncated, zeroed and partly deleted stores. In an image, messages of both brokers are found by their own marks, in
    splits, in threads or with --master on Spark; with --resume a run that was killed goes on. Acknowledged messages are marked as such.
    Exit status 1 if anything is damaged or missing, or if bytes belonged to nothing.
    """
    from mqstore.rabbitmq.definitions.document import read_queue_names
    from mqstore.report.checks import answer_parts
    from mqstore.report.salvage import salvaged_parts
    from mqstore.wreck.salvage import salvage as run

    names = () if options.names is None else tuple(read_queue_names(options.names))
    report = run(store, options.to, names=names, observer=out, **options.request())
    advised = options.to == f"{store}.jsonl" and isinstance(report, SalvageReport)  # by `diagnose`, where nothing can be repaired
    if not out.is_text:
        out.report(report.as_dict())
    else:
        out.show(salvaged_parts(report, everything=out.settings.verbose, diagnosed=advised))
        if options.as_kind is not None:
            out.show(answer_parts(diagnosis_of(out, Path(options.to), version=options.for_version)))
        elif advised:
            out.show(answer_parts(diagnosis_of(out, Path(store)), written=False))
    return 0 if report.ok else 1


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    verb(app, example="salvage /wreck --to messages.jsonl")(salvage)
