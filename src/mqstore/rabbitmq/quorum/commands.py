r"""Entries of a quorum queue's log as commands of its machine.

    undefined                                      entry 0
    {noop, Meta, MachineVersion}                   a new leader
    {'$usr', Meta, Command, ReplyMode}             Meta = #{ts => milliseconds, …}
    {'$ra_join' | '$ra_leave' | '$ra_cluster_change' | '$ra_cluster', …}      membership

A command is a tuple that begins with its name. `enqueue` and `e` carry a message; only what the machine needs of it is taken out here:
sizes, time to live, priority, how often it was delivered before it came to this queue.

    >>> from mqstore.rabbitmq.erlang.terms import encode
    >>> message = (Atom("mc"), Atom("mc_amqp"), [], {Atom("ttl"): 500, Atom("p"): 7})
    >>> entry = encode((Atom("$usr"), {Atom("ts"): 99}, (Atom("e"), 1, message, (30, 12)), Atom("noreply")))
    >>> read_entry(entry)
    UserCommand(ts=99, name='e', fields=(1, MessageFacts(meta=30, body=12, ttl=500, priority=7, delivery_count=None)), pid=None)

Format: docs/formats/rabbitmq-quorum.md, section 6.
"""

from __future__ import annotations

from typing import NamedTuple

from mqstore.rabbitmq.erlang.etf import EtfError, decode
from mqstore.rabbitmq.erlang.terms import Atom, Opaque, Pairs, Term
from mqstore.rabbitmq.message import amqp10

_HEADER_SIZE = 100  # bytes that the machine counts for each header of decoded properties, and for message annotations
_PRIORITY, _HEADERS, _EXPIRATION = 5, 3, 8  # fields of the record P_basic


class Pid(NamedTuple):
    """A process. Ordered as Erlang orders processes of one node; creation: of the node."""

    serial: int
    number: int
    node: str
    creation: int


class MessageFacts(NamedTuple):
    """What the machine needs of a message. meta, body: bytes of its properties and of its body. ttl: ms. None: not stated."""

    meta: int
    body: int
    ttl: int | None
    priority: int | None
    delivery_count: int | None


NO_FACTS = MessageFacts(0, 0, None, None, None)


class UserCommand(NamedTuple):
    """A command. ts: the machine's time, ms. fields: without the name; pid: of `e`, from the mode of reply."""

    ts: int
    name: str
    fields: tuple[Term, ...]
    pid: Pid | None = None


class Noop(NamedTuple):
    """The first entry of a leader. version: of the machine, from then on."""

    ts: int
    version: int


class Membership(NamedTuple):
    """A change of the cluster. cluster: the members as stated, else None; deleted: the queue is being deleted."""

    cluster: Term
    deleted: bool


Entry = UserCommand | Noop | Membership | None


def read_entry(data: bytes) -> Entry:
    """Decode an entry; None for `undefined` and for what no machine sees. Raises EtfError."""
    term, _ = decode(data)
    if type(term) is not tuple or not term or not isinstance(term[0], Atom):
        if isinstance(term, Atom):
            return None
        raise EtfError(0, "an entry of a log is a tuple that begins with its kind")
    kind = str(term[0])
    if kind == "$usr" and len(term) >= 4:
        return _user_command(term)
    if kind == "noop" and len(term) >= 3 and type(term[2]) is int:
        return Noop(_timestamp(term[1]), term[2])
    if kind == "$ra_cluster_change" and len(term) >= 3:
        return Membership(term[2], False)
    if kind in ("$ra_join", "$ra_leave", "$ra_cluster"):
        return Membership(None, kind == "$ra_cluster" and len(term) >= 3 and term[2] == "delete")
    return None


def _user_command(term: tuple[Term, ...]) -> UserCommand:
    command, mode = term[2], term[3]
    ts = _timestamp(term[1])
    if isinstance(command, Atom):
        return UserCommand(ts, str(command), ())
    if type(command) is not tuple or not command or not isinstance(command[0], Atom):
        raise EtfError(0, "a command is a tuple that begins with its name")
    name, fields = str(command[0]), command[1:]
    if name == "e" and len(fields) >= 3:
        meta, body = _sizes(fields[2])
        facts = message_facts(fields[1])._replace(meta=meta, body=body)
        pid = mode[2] if type(mode) is tuple and len(mode) >= 3 and mode[0] == "notify" else None
        return UserCommand(ts, name, (fields[0], facts), pid_of(pid))
    if name == "enqueue" and len(fields) >= 3:
        return UserCommand(ts, name, (fields[1], message_facts(fields[2])), pid_of(fields[0]))
    if name == "requeue" and len(fields) >= 5:
        return UserCommand(ts, name, (key_of(fields[0]), fields[1], fields[2], fields[3]))
    return UserCommand(ts, name, tuple(key_of(field) for field in fields))


def _timestamp(meta: Term) -> int:
    ts = meta.get("ts") if isinstance(meta, dict) else None
    return ts if type(ts) is int else 0


def _sizes(term: Term) -> tuple[int, int]:
    if type(term) is tuple and len(term) == 2 and all(type(part) is int for part in term):
        return term
    return 0, 0


# processes


def pid_of(term: Term) -> Pid | None:
    """Return a pid, or None for any other term."""
    if type(term) is Pid:
        return term
    if not isinstance(term, Opaque) or term.encoded[:1] not in (b"\x58", b"\x67"):
        return None
    data, new = term.encoded, term.encoded[0] == 88
    tag = data[1]
    width = 2 if tag in (100, 118) else 1
    end = 2 + width + int.from_bytes(data[2 : 2 + width], "big")
    node = data[2 + width : end].decode("utf-8" if tag in (118, 119) else "latin-1", "replace")
    number, serial = int.from_bytes(data[end : end + 4], "big"), int.from_bytes(data[end + 4 : end + 8], "big")
    return Pid(serial, number, node, int.from_bytes(data[end + 8 : end + (12 if new else 9)], "big"))


def key_of(term: Term) -> Term:
    """Return a term with its pids as `Pid` and lists of atoms and pids kept; tuples of them can be keys."""
    if isinstance(term, Opaque):
        return pid_of(term) or term
    if type(term) is tuple:
        return tuple(key_of(item) for item in term)
    return term


def order_of(key: Term) -> tuple[Term, ...]:
    """Return what sorts keys as Erlang does: numbers, then tuples {Tag, Pid}."""
    if type(key) is int:
        return (0, key, b"", ())
    tag, pid = key if type(key) is tuple and len(key) == 2 else (b"", key)
    return (1, 0, tag if type(tag) is bytes else str(tag).encode(), pid if type(pid) is Pid else ())


# messages


def message_facts(message: Term) -> MessageFacts:
    """Return what the machine needs of a message, in any form in which it is stored."""
    if type(message) is not tuple or not message:
        return NO_FACTS
    if message[0] == "basic_message" and len(message) == 6:
        return _content_facts(message[3])
    if message[0] == "mc" and len(message) == 4:
        annotations = _named(message[3])
        facts = _content_facts(message[2]) if message[1] == "mc_amqpl" else _amqp_facts(message[1], message[2])
        ttl, priority, count = (_integer(annotations.get(name)) for name in ("ttl", "p", "delivery_count"))
        return MessageFacts(facts.meta, facts.body, ttl, facts.priority if priority is None else priority, count)
    return NO_FACTS


def _content_facts(content: Term) -> MessageFacts:
    if type(content) is not tuple or len(content) != 6:
        return NO_FACTS
    record, block, payload = content[2], content[3], content[5]
    body = sum(len(part) for part in payload if type(part) is bytes) if type(payload) is list else 0
    meta, ttl, priority = len(block) if type(block) is bytes else 0, None, None
    if type(record) is tuple and len(record) > _EXPIRATION:
        headers, expiration = record[_HEADERS], record[_EXPIRATION]
        if type(block) is not bytes:
            meta = _HEADER_SIZE * len(headers) if type(headers) is list else 0
        ttl = int(expiration) if type(expiration) is bytes and expiration.isdigit() and len(expiration) < 20 else None
        priority = _integer(record[_PRIORITY])
    return MessageFacts(meta, body, ttl, priority, None)


def _amqp_facts(form: Term, data: Term) -> MessageFacts:
    if form == "mc_mqtt":
        return NO_FACTS
    body = amqp10.stored_size(data) or 0
    meta = _HEADER_SIZE if body and type(data) is tuple and data[1] != [] else 0
    return MessageFacts(meta, body, None, None, None)


def _named(annotations: Term) -> dict[Term, Term]:
    if isinstance(annotations, Pairs):
        return {key: value for key, value in annotations if isinstance(key, Atom)}
    return annotations if isinstance(annotations, dict) else {}


def _integer(value: Term) -> int | None:
    return value if type(value) is int else None
