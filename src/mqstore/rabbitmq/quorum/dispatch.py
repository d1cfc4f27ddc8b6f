"""Commands of a log by name: which method of the machine each is, and whether its fields are of the right kind.

    >>> machine = Machine(8)
    >>> apply_command(machine, 1, 0, "from_the_future", ())
    >>> machine.unknown
    {'from_the_future'}

Format: docs/formats/rabbitmq-quorum.md, section 6.
"""

from __future__ import annotations

from collections.abc import Callable

from mqstore.rabbitmq.erlang.terms import Term
from mqstore.rabbitmq.quorum.commands import Pid, pid_of
from mqstore.rabbitmq.quorum.machine import Machine


def apply_command(machine: Machine, index: int, ts: int, name: str, fields: tuple[Term, ...], pid: Pid | None = None) -> None:
    """Apply a command of the log to a machine. Raises an exception for fields of another kind than the command has."""
    command = _COMMANDS.get(name)
    if command is None:
        machine.unknown.add(name)
        return
    command(machine, index, ts, fields, pid)


def _ids(term: Term) -> list[int]:
    if type(term) is not list or not all(type(item) is int for item in term):
        raise ValueError("message ids are a list of numbers")
    return term


def _hashable(key: Term) -> Term:
    try:
        hash(key)
    except TypeError:
        raise ValueError("a consumer is a number, or a tag and a process") from None
    return key


def _enqueue(machine: Machine, index: int, ts: int, fields: tuple[Term, ...], pid: Pid | None) -> None:
    seq, facts = fields[0], fields[1]
    machine.enqueue(index, ts, pid, seq if type(seq) is int else None, facts)


def _modify(machine: Machine, index: int, ts: int, fields: tuple[Term, ...], _: Pid | None) -> None:
    key, ids, failed, undeliverable, annotations = fields[:5]
    command = machine.discard if undeliverable == "true" else machine.give_back
    command(index, ts, _hashable(key), _ids(ids), failed == "true", annotations)


def _credit(machine: Machine, index: int, ts: int, fields: tuple[Term, ...], _: Pid | None) -> None:
    key, credit, count, drain = fields[:4]
    if type(credit) is not int or type(count) is not int:
        raise ValueError("credit is a number")
    machine.credit(index, ts, _hashable(key), credit, count, drain == "true")


def _requeue(machine: Machine, index: int, ts: int, fields: tuple[Term, ...], _: Pid | None) -> None:
    machine.requeue(index, ts, _hashable(fields[0]), fields[1], fields[3])


def _down(machine: Machine, index: int, ts: int, fields: tuple[Term, ...], _: Pid | None) -> None:
    pid = pid_of(fields[0])
    if pid is None:
        raise ValueError("what is down is a process")
    machine.down(index, ts, pid, fields[1])


def _purge_nodes(machine: Machine, index: int, ts: int, fields: tuple[Term, ...], _: Pid | None) -> None:
    if type(fields[0]) is not list:
        raise ValueError("nodes are a list")
    machine.purge_nodes(index, ts, fields[0])


_Command = Callable[[Machine, int, int, tuple[Term, ...], Pid | None], None]
_COMMANDS: dict[str, _Command] = {
    "enqueue": _enqueue,
    "e": _enqueue,
    "register_enqueuer": lambda machine, index, ts, fields, pid: machine.register_enqueuer(pid_of(fields[0])),
    "checkout": lambda machine, index, ts, fields, pid: machine.checkout(index, ts, _hashable(fields[0]), fields[1], fields[2]),
    "settle": lambda machine, index, ts, fields, pid: machine.settle(index, ts, _hashable(fields[0]), _ids(fields[1])),
    "discard": lambda machine, index, ts, fields, pid: machine.discard(index, ts, _hashable(fields[0]), _ids(fields[1])),
    "return": lambda machine, index, ts, fields, pid: machine.give_back(index, ts, _hashable(fields[0]), _ids(fields[1])),
    "modify": _modify,
    "requeue": _requeue,
    "credit": _credit,
    "purge": lambda machine, index, ts, fields, pid: machine.purge(index, ts),
    "purge_nodes": _purge_nodes,
    "update_config": lambda machine, index, ts, fields, pid: machine.update_config(index, ts, fields[0]),
    "garbage_collection": lambda machine, index, ts, fields, pid: None,
    "down": _down,
    "nodeup": lambda machine, index, ts, fields, pid: machine.nodeup(index, ts, str(fields[0])),
    "nodedown": lambda machine, index, ts, fields, pid: None,
    "timeout": lambda machine, index, ts, fields, pid: machine.timeout(index, ts, fields[0]),
    "dlx": lambda machine, index, ts, fields, pid: machine.dead_letter_command(index, ts, fields[0]),
    "delayed_cmd": lambda machine, index, ts, fields, pid: machine.delayed_command(index, ts, fields[0]),
}
