"""`members`: the members of quorum queues in the directories of several nodes, compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from mqstore.cli.common.arguments import option, path
from mqstore.cli.common.command import verb
from mqstore.cli.common.output import Output
from mqstore.errors import CannotOpenError, NotFoundError
from mqstore.report.parts import Column, Field, Table
from mqstore.table.formatting import count

Nodes = Annotated[
    list[Path],
    typer.Argument(
        metavar="NODE…", help="Data directories of nodes of one cluster, with quorum/ in each.", show_default=False, parser=path
    ),
]


def members(
    out: Output,
    nodes: Nodes,
    vhost: Annotated[str | None, option("--vhost", metavar="VHOST", help="Only queues of this vhost.")] = None,
    queue: Annotated[str | None, option("--queue", metavar="QUEUE", help="Only this queue.")] = None,
) -> int:
    """Compare the members of quorum queues in the directories of several nodes: which one is furthest, what only one of them has.

    A queue without a leader is recovered from the member with the highest term and index of its last entry. Messages that it lacks and
    others have are named: a majority never accepted them, or its disk has lost them. Give every node of the cluster: what a node that is
    not given holds cannot be told. Exit status 1 if the furthest member lacks messages or entries, or a member has another entry at the
    same index.
    """
    from mqstore.rabbitmq.quorum.members import COLUMNS, compare, member_rows, members_by_queue

    by_queue = members_by_queue([(str(node), _directory(node)) for node in nodes])
    rows: list[dict[str, Any]] = []
    sentences: list[str] = []
    for (of, name), mine in sorted(by_queue.items(), key=lambda item: (item[0][0] or "", item[0][1])):
        if vhost in (None, of) and queue in (None, name):
            compared = compare(mine)
            rows += member_rows(of, name, compared)
            sentences += (f"queue {name!r} of vhost {of or '?'!r}: {sentence}" for sentence in compared.sentences)
    if not rows:
        raise NotFoundError("no quorum queue matches; `mqstore topics NODE` lists the queues of a node")
    if out.is_text:
        out.show((Table.of(_FIELDS, rows, title="Members"),))
        out.line(f"{count(len({(row['vhost'], row['queue']) for row in rows}), 'queue')}, {count(len(rows), 'member')}", style="bold")
    else:
        out.records(COLUMNS, rows)
    out.notes(sentences)
    return int(any(row["best"] and (row["missing"] or row["gaps"] or row["conflicts"]) for row in rows))


def _directory(node: Path) -> Any:
    from mqstore.files.directory_views import ConfinedDirectory
    from mqstore.rabbitmq.quorum.raft_log import raft_systems

    directory = ConfinedDirectory(node)
    if not raft_systems(directory, "quorum"):
        raise CannotOpenError(f"{node} has no quorum queues: give the data directory of a node, the one with quorum/")
    return directory


def _or_dash(name: str) -> Iterator[Field]:
    yield Field(Column(name.replace("_", " "), right=True), lambda row: "-" if row[name] is None else f"{row[name]:,}")


_FIELDS = (
    Field(Column("vhost", flexible=True, once=True, drop=5), lambda row: row["vhost"] or "?"),
    Field(Column("queue", flexible=True), lambda row: row["queue"]),
    Field(Column("node", flexible=True, path=True), lambda row: row["node"]),
    Field(Column("recover from"), lambda row: "this" if row["best"] else ""),
    *(field for name in ("last_term", "last_index", "last_applied", "snapshot", "gaps", "messages") for field in _or_dash(name)),
    Field(Column("only here", right=True), lambda row: f"{row['unique']:,}"),
    Field(Column("missing here", right=True), lambda row: f"{row['missing']:,}"),
)


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="members /backup/node-a /backup/node-b /backup/node-c --queue orders")(members)
