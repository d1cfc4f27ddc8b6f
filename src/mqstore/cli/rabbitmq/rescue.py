"""`rescue`: from a RabbitMQ node's data directory to a node of another version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqstore.cli.common.arguments import option, verb
from mqstore.cli.common.output import Output
from mqstore.cli.common.reports import print_damage
from mqstore.table.formatting import count

if TYPE_CHECKING:
    from mqstore.rabbitmq.convert.rescue import RescueReport

__all__ = ["register"]

SHOWN = 20

Data = Annotated[Path, typer.Argument(metavar="DATADIR", show_default=False, help="The data directory of a stopped or dead node.")]
To = Annotated[Path, option("--to", metavar="OUT", help="The directory to create; it must not exist, and appears only when complete.")]
Target = Annotated[str, option("--for", metavar="VERSION", help="The RabbitMQ version of the new node, for example 4.3.")]


def rescue(
    out: Output,
    data: Data,
    to: To,
    target: Target,
    users: Annotated[bool, typer.Option("--users", help="Include users, with their password hashes, and permissions.")] = False,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Number of queues converted at the same time.")] = 2,
) -> int:
    """Prepare a node's classic queues and definitions for a new node of any version, with the steps to take.

    OUT gets msg_stores, definitions.json and STEPS.md, which has the exact commands. The old data directory is not changed. Quorum queues
    and streams are named and not carried over. Exit status 1 if anything is damaged or missing, or would be deleted by the new node.
    """
    from mqstore.rabbitmq.convert.rescue import rescue as run

    with out.progress("rescuing") as progress:
        report = run(data, to, target, users=users, threads=threads, progress=progress)
    if not out.is_text:
        out.report(report.as_dict() | {"store": str(data)})
        return 0 if report.ok else 1
    _print(out, report)
    return 0 if report.ok else 1


def _print(out: Output, report: RescueReport) -> None:
    rows = report.definitions
    kinds = [f"{len(rows[kind]):,} {kind}" for kind in ("vhosts", "queues", "exchanges", "bindings", "policies")]
    out.line(f"Rescued for RabbitMQ {report.version}: {report.to}", style="bold green" if report.ok else "bold yellow", whole=True)
    out.line(f"{count(report.converted.messages - report.deleted, 'message')}; definitions: {', '.join(kinds)}.")
    for why, number in report.converted.left_out.items():
        out.line(f"Left out: {count(number, 'message')} ({why}).")
    for name in out.first(report.others, SHOWN):
        out.line(f"Not carried over: {name}.")
    for name in out.first(report.added, SHOWN):
        out.line(f"Not in the metadata, named by its directory: queue {name}.")
    for queue in out.first(report.unknown, SHOWN):
        out.line(f"No known name, a node would delete it: {queue.directory}, {count(queue.messages, 'message')}.")
    if report.dropped:
        out.line(f"Left out of the definitions: {count(len(report.dropped), 'setting')} of older versions; STEPS.md lists them.")
    found = (*report.converted.findings, *report.damage)
    if found:
        out.line()
        print_damage(out, found)
    out.line()
    out.next_step(f"follow {Path(report.to) / 'STEPS.md'}.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    verb(app, example="rescue /var/lib/rabbitmq/mnesia/rabbit@host --to rescued --for 4.3", panel="Read")(rescue)
