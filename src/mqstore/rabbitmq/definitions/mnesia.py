r"""Mnesia's tables on disk, in the node's data directory up to RabbitMQ 4.2.

Each file is a disk log (see `disk_log`) whose first item, if there is one, is a header:

    <table>.DCD   {log_header, dcd_log, …}    then the records of the table when it was last dumped
    <table>.DCL   {log_header, dcl_log, …}    then changes since: {{Table, Key}, Record, Op}
    LATEST.LOG    {log_header, trans_log, …}  then transactions not yet dumped, PREVIOUS.LOG before it while they are being dumped:
                  {commit, Node, Decision, RamCopies, DiscCopies, …}, DiscCopies being a list of such changes

A transaction is committed if its Decision is presume_commit, or {decision, Tid, …} and the logs contain {decision, Tid, committed, …}.
 On a node that has just booted, all definitions may be in LATEST.LOG alone.

    >>> change = ((Atom("t"), b"key"), (Atom("record"), b"key", 1), Atom("write"))
    >>> log = disk_log.write_log(
    ...     [(Atom("log_header"), Atom("trans_log")), (Atom("commit"), Atom("n"), Atom("presume_commit"), [], [change])]
    ... )
    >>> replay({"LATEST.LOG": log}, ["t"]).records["t"]
    ((Atom('record'), b'key', 1),)

Tables kept only on disk (`.DAT`) and those of RAM only are not read; RabbitMQ has no definitions in them.

Format: docs/formats/rabbitmq.md, section 11.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mqstore.findings import Damage
from mqstore.rabbitmq.erlang import disk_log
from mqstore.rabbitmq.erlang.etf import Buffer
from mqstore.rabbitmq.erlang.terms import Atom, Term, encode

LOGS = ("PREVIOUS.LOG", "LATEST.LOG")
DECISIONS = "DECISION_TAB.LOG"

Record = tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Tables:
    """Replayed tables. records: of each table, in the order of their first write. damage: unreadable parts."""

    records: Mapping[str, tuple[Record, ...]]
    damage: tuple[Damage, ...]


def file_names(tables: Iterable[str]) -> list[str]:
    """Return the files that hold these tables, in the order of replay."""
    return [*(f"{table}.{kind}" for table in tables for kind in ("DCD", "DCL")), DECISIONS, *LOGS]


def replay(files: Mapping[str, Buffer], tables: Sequence[str]) -> Tables:
    """Return the tables after all changes. files: the contents of those files of `file_names` that exist."""
    logs = {name: disk_log.read_log(files[name], name) for name in file_names(tables) if name in files}
    held: dict[str, dict[bytes, Record]] = {table: {} for table in tables}
    for table in tables:
        if f"{table}.DCD" in logs:
            for term in logs[f"{table}.DCD"].terms:
                if isinstance(term, tuple) and len(term) >= 2 and not _is_header(term):
                    held[table][encode(term[1])] = term
        if f"{table}.DCL" in logs:
            for term in logs[f"{table}.DCL"].terms:
                _apply(held, term)
    every = [log.terms for name, log in logs.items() if name in LOGS]
    committed = {encode(term[1]) for terms in every for term in terms if _is_decision(term) and term[2] == "committed"}
    for terms in every:
        for change in _changes(terms, committed):
            _apply(held, change)
    damage = tuple(item for log in logs.values() for item in log.damage)
    return Tables({table: tuple(records.values()) for table, records in held.items()}, damage)


def _is_header(term: Record) -> bool:
    return isinstance(term[0], Atom) and term[0] == "log_header"


def _is_decision(term: Term) -> bool:
    return isinstance(term, tuple) and len(term) >= 3 and isinstance(term[0], Atom) and term[0] == "decision"


def _changes(terms: Sequence[Term], committed: set[bytes]) -> Iterator[Term]:
    """Yield the changes on disk of all committed transactions."""
    for term in terms:
        if not isinstance(term, tuple) or len(term) < 5 or term[0] != "commit" or not isinstance(term[4], list):
            continue
        decision = term[2]
        if decision == "presume_commit" or (_is_decision(decision) and encode(decision[1]) in committed):
            yield from term[4]


def _apply(held: dict[str, dict[bytes, Record]], change: Term) -> None:
    if not isinstance(change, tuple) or len(change) != 3 or not isinstance(change[0], tuple) or len(change[0]) != 2:
        return
    (table, key), record, action = change
    if not isinstance(table, Atom) or table not in held:
        return
    records = held[table]
    if action == "write" and isinstance(record, tuple):
        records[encode(key)] = record
    elif action in ("delete", "delete_object"):
        records.pop(encode(key), None)
    elif action == "clear_table":
        records.clear()
