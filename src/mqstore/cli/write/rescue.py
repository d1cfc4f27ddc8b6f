"""`rescue`: from a RabbitMQ node's data directory to a node of another version."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqstore.cli.common.arguments import option
from mqstore.cli.common.command import diagnosis_of, refuse_rocketmq, verb
from mqstore.cli.common.output import Output
from mqstore.errors import UsageError
from mqstore.report.parts import Findings
from mqstore.table.formatting import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mqstore.findings import Damage
    from mqstore.rabbitmq.convert.convert_queue import QueueReport
    from mqstore.rabbitmq.convert.in_place import InPlaceReport
    from mqstore.rabbitmq.convert.node_check import NodeCheck
    from mqstore.rabbitmq.convert.rescue import RescueReport

SHOWN = 20
_DEFINED = {"vhosts": "vhost", "queues": "queue", "exchanges": "exchange", "bindings": "binding", "policies": "policy"}

Data = Annotated[
    Path,
    typer.Argument(
        metavar="DATADIR", show_default=False, help="A stopped or dead node's data directory, or its archive; with --check, also OUT."
    ),
]
To = Annotated[
    Path | None, option("--to", metavar="OUT", help="The directory to create; it must not exist, and appears only when complete.")
]
Target = Annotated[str | None, option("--for", metavar="VERSION", help="The RabbitMQ version of the new node, for example 4.3.")]
InPlace = Annotated[
    bool,
    typer.Option(
        "--in-place", help="From 3.10-3.12 to 4.3: stores and steps for a new node on a copy of the data directory, with no import."
    ),
]
Check = Annotated[
    str | None,
    option(
        "--check",
        metavar="NODE-URL",
        help="Write nothing: ask the management interface of a running node (http://host:15672) whether it has all definitions in OUT. "
        "User and password: in the URL, or in MQSTORE_MANAGEMENT_USER and MQSTORE_MANAGEMENT_PASSWORD.",
    ),
]


def rescue(
    out: Output,
    data: Data,
    to: To = None,
    target: Target = None,
    in_place: InPlace = False,
    check: Check = None,
    users: Annotated[bool, typer.Option("--users", help="Include users, with their password hashes, and permissions.")] = False,
    quorum_as_classic: Annotated[
        bool, typer.Option("--quorum-as-classic", help="Write quorum queues as classic queues into msg_stores, instead of replaying them.")
    ] = False,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Number of queues converted at the same time.")] = 2,
) -> int:
    """Prepare a node's queues, streams and definitions for a new node of any version, with the steps to take.

    OUT gets msg_stores, definitions.json and STEPS.md, which has the exact commands. The old data directory is not changed. Messages of
    quorum queues and streams are replayed by a command in STEPS.md; with --quorum-as-classic those of quorum queues are in msg_stores.
    Exit status 1 if anything is damaged or missing, or would be deleted by the new node.
    """
    refuse_rocketmq(data, "`mqstore diagnose STORE` says whether a RocketMQ broker starts on it, and what to run")
    if check is not None:
        if in_place:
            raise UsageError("with --in-place there are no definitions to import, so --check has nothing to compare; leave one of them out")
        return _check(out, to or data, check, target)
    if to is None or target is None:
        raise UsageError(f"{'--to OUT' if to is None else '--for VERSION'} is missing; only --check does without it")
    if in_place:
        if quorum_as_classic:
            raise UsageError("with --in-place the definitions stay, in which they are quorum queues; leave out --quorum-as-classic")
        if users:
            raise UsageError("with --in-place users and permissions stay in the data directory; leave out --users")
        return _rescue_in_place(out, data, to, target, threads)
    from mqstore.places import find_store
    from mqstore.rabbitmq.convert.rescue import rescue as run

    place = find_store(data, "rabbitmq")
    with out.progress("rescuing", "queues") as progress:
        report = run(
            str(place.root), to, target, users=users, threads=threads, progress=progress, named=str(place.path),
            quorum_as_classic=quorum_as_classic,
        )  # fmt: skip
    if out.is_text:
        _print(out, report)
    _end(out, report, data)
    return 0 if report.ok else 1


def _print(out: Output, report: RescueReport) -> None:
    rows = report.definitions
    kinds = [count(len(rows[kind]), noun) for kind, noun in _DEFINED.items()]
    out.line(f"Rescued for RabbitMQ {report.version}: {report.to}", style="bold green" if report.ok else "bold yellow", whole=True)
    out.line(f"{count(report.converted.messages - report.deleted, 'message')}; definitions: {', '.join(kinds)}.")
    out.line(f"Old node: {report.written_by.version or 'its version is not known'}: {report.written_by.why}.")
    if sent := sum(report.replayed.values()):
        out.line(f"{count(sent, 'message')} of quorum queues and streams: STEPS.md sends them to the new node with `mqstore replay`.")
    _print_left_out(out, report)
    for sentence in out.first(report.untold, SHOWN):
        out.line(f"Not known: {sentence}.")
    for name in out.first(report.others, SHOWN):
        out.line(f"Not carried over: {name}.")
    for plugin, names in report.plugins.items():
        out.line(f"Needs the plug-in {plugin}: {', '.join(names[:SHOWN])}{' …' if len(names) > SHOWN else ''}.")
    for node, number in report.delayed.items():
        out.line(f"Not carried over: {count(number, 'delayed message')} of node {node}; see `mqstore timers`.")
    for name in out.first(report.added, SHOWN):
        out.line(f"Not in the metadata, named by its directory: queue {name}.")
    _print_unknown(out, report.unknown, "No definition leads to it, a node would delete it")
    if report.dropped:
        out.line(f"Left out of the definitions: {count(len(report.dropped), 'setting')}; STEPS.md says which.")
    _print_findings(out, report, (*report.converted.findings, *report.damage))


def _rescue_in_place(out: Output, data: Path, to: Path, target: str, threads: int) -> int:
    from mqstore.rabbitmq.convert.in_place import rescue_in_place

    with out.progress("rescuing", "queues") as progress:
        report = rescue_in_place(data, to, target, threads=threads, progress=progress)
    if out.is_text:
        title = f"Prepared for RabbitMQ {report.version} on the data directory of {report.node}: {report.to}"
        out.line(title, style="bold green" if report.ok else "bold yellow", whole=True)
        out.line(f"{count(report.converted.messages - report.deleted, 'message')}; definitions, users and policies stay in the directory.")
        _print_left_out(out, report)
        for name in out.first(report.others, SHOWN):
            out.line(f"Stays as it is, and was not looked at: {name}.")
        _print_unknown(out, report.unknown, "Not in the metadata, the new node would delete it")
        _print_findings(out, report, report.damage)
    _end(out, report, data)
    return 0 if report.ok else 1


def _print_left_out(out: Output, report: RescueReport | InPlaceReport) -> None:
    for why, number in report.converted.left_out.items():
        out.line(f"Left out: {count(number, 'message')} ({why}).")


def _print_unknown(out: Output, queues: Sequence[QueueReport], why: str) -> None:
    for queue in out.first(queues, SHOWN):
        out.line(f"{why}: {queue.directory}, {count(queue.messages, 'message')}.")


def _print_findings(out: Output, report: RescueReport | InPlaceReport, damage: Sequence[Damage]) -> None:
    if damage:
        out.line()
        out.show((Findings(damage),))
    for note in report.notes:
        out.note(note)


def _end(out: Output, report: RescueReport | InPlaceReport, data: Path) -> None:
    written = Path(report.to) / "msg_stores"  # not of a node of which only metadata is left
    answer = diagnosis_of(out, written, version=report.version) if written.exists() else None
    if not out.is_text:
        out.report(report.as_dict() | {"store": str(data), "diagnosis": None if answer is None else answer.as_dict()})
        return
    out.line()
    if answer is not None:
        out.line(answer.headline)
    out.next_step(f"follow {Path(report.to) / 'STEPS.md'}.")


def _check(out: Output, path: Path, url: str, version: str | None) -> int:
    from mqstore.rabbitmq.convert.node_check import ManagementApi, check_node, read_document

    check = check_node(read_document(path), ManagementApi(url, os.environ), version)
    if not out.is_text:
        out.report(check.as_dict() | {"definitions": str(path)})
        return 0 if check.ok else 1
    _print_check(out, check)
    return 0 if check.ok else 1


def _print_check(out: Output, check: NodeCheck) -> None:
    kinds = ", ".join(count(number, _DEFINED.get(kind, kind.removesuffix("s"))) for kind, number in check.compared.items())
    if check.ok:
        out.line(f"RabbitMQ {check.version} at {check.node} has all definitions: {kinds}.", style="bold green")
    else:
        of = count(len(check.missing), "definition")
        out.line(f"RabbitMQ {check.version} at {check.node} lacks {of}, or has them otherwise.", style="bold yellow")
        for sentence in out.first(check.missing, SHOWN):
            out.line(f"  {sentence}")
    if check.messages:
        out.note(f"the node already has {count(check.messages, 'message')}: replacing its msg_stores deletes them")
    out.line()
    if check.ok:
        out.next_step("stop the node and put the stores in place, as STEPS.md says.")
    else:
        out.next_step("import definitions.json again, or define what is missing; put no stores in place before.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    verb(app, example="rescue /var/lib/rabbitmq/mnesia/rabbit@host --to rescued --for 4.3")(rescue)
