r"""Definitions of queues, exchanges and bindings, read from the node's data directory without Erlang.

Up to 4.2 they are Mnesia tables in the node's data directory:

    rabbit_vhost             {vhost, Name, …}
    rabbit_durable_queue     {amqqueue, {resource, VHost, queue, Name}, Durable, AutoDelete, ExclusiveOwner, Arguments, …}
                             of 21 elements; of 19, without Type and TypeState, before 3.8.0 or its feature flag
    rabbit_durable_exchange  {exchange, {resource, VHost, exchange, Name}, Type, Durable, AutoDelete, Internal, Arguments, …}
    rabbit_durable_route     {route, {binding, Source, Key, Destination, Arguments}, const}

    rabbit_runtime_parameters  {runtime_parameters, {VHost, Component, Name} | Name, Value}: policies among others
    rabbit_user, rabbit_user_permission, rabbit_topic_permission    passwords as hashes

With Khepri (optional in 3.13 to 4.1, the default since 4.2) the same records are in a Raft log under `coordination/`, see `khepri`. A
directory that was migrated may have both; then those of Khepri count. Whatever the state of these files, `resource_names` finds names in
them: a name is proved by a directory named by its digest.

Messages can be read without definitions. They are needed for queues without `.queue_name`, for empty queues, and for properties of a
queue: durability, priorities, policy.

    >>> name = b"h\x04d\x00\x08resourcem\x00\x00\x00\x01/d\x00\x05queuem\x00\x00\x00\x02q1"
    >>> list(resource_names(b"..." + name + b"..."))
    [(b'/', b'q1')]

Format: docs/formats/rabbitmq.md, section 11.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rabbitmq.definitions.khepri import read_khepri
from mqstore.rabbitmq.definitions.node_directory import COORDINATION, coordination_files, node_directory
from mqstore.rabbitmq.erlang import disk_log
from mqstore.rabbitmq.erlang.dets import read_table
from mqstore.rabbitmq.erlang.etf import Buffer
from mqstore.rabbitmq.erlang.terms import Atom, Opaque, Pairs, Term, encode, text_of
from mqstore.rabbitmq.format.layout import small_file
from mqstore.rabbitmq.format.names import priority_name, queue_directory
from mqstore.rabbitmq.message.properties import Fields, PropertiesError, properties_from_record

TABLES = (
    "rabbit_vhost",
    "rabbit_durable_queue",
    "rabbit_durable_exchange",
    "rabbit_durable_route",
    "rabbit_runtime_parameters",
    "rabbit_user",
    "rabbit_user_permission",
    "rabbit_topic_permission",
)
SCHEMA = "schema.DAT"
CLASSIC = "rabbit_classic_queue"
STREAM = "rabbit_stream_queue"
MAX_PRIORITY = 255
# names beyond this size of a Raft log are not found
MAX_FILE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class QueueDefinition:
    """One durable queue. arguments: [name, type, value] as headers have them. type: Erlang module. policy: the definition of its policy.

    stream_directory: the name of the directory of a stream, below `stream/`; None for queues of other types. nodes: on which its
    process, or its members, were; empty where nothing says so.
    """

    vhost: bytes
    name: bytes
    durable: bool
    auto_delete: bool
    exclusive: bool
    arguments: Fields
    type: str
    policy: dict[str, Any]
    stream_directory: str | None = None
    nodes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, str]:
        """The vhost and the name, as text."""
        return text_of(self.vhost), text_of(self.name)

    def argument(self, name: bytes) -> Any:
        """Return the value of an argument, None if it was not given."""
        return next((value for key, _, value in self.arguments if key == name), None)

    def limit(self, name: str) -> int | str | None:
        """Return a limit of a stream: its argument before its policy, as the node has it for ages; of two sizes the lower one."""
        own, policy = self.argument(f"x-{name}".encode()), self.policy.get(name)
        own = own.decode("utf-8", "replace") if type(own) is bytes else own
        if type(own) is int and type(policy) is int:
            return min(own, policy)
        limit: int | str | None = policy if own is None else own
        return limit

    @property
    def priorities(self) -> int | None:
        """The highest priority level; None for a queue without priorities."""
        most = self.argument(b"x-max-priority")
        return min(most, MAX_PRIORITY) if type(most) is int and most >= 0 else None

    @property
    def version(self) -> int | None:
        """The version from argument or policy; None if neither sets it: then the broker decides."""
        asked = self.argument(b"x-queue-version")
        version = asked if asked is not None else self.policy.get("queue-version")
        return version if version in (1, 2) and type(version) is int else None

    def directories(self) -> Iterator[tuple[int | None, str]]:
        """Yield priority level and name of each directory; nothing for queues of other types."""
        if self.type != CLASSIC:
            return
        if self.priorities is None:
            yield None, queue_directory(self.vhost, self.name)
        else:
            for level in range(self.priorities + 1):
                yield level, queue_directory(self.vhost, priority_name(self.name, level))


@dataclass(frozen=True, slots=True)
class Exchange:
    """One durable exchange."""

    vhost: bytes
    name: bytes
    type: str
    auto_delete: bool
    internal: bool
    arguments: Fields
    durable: bool = True


@dataclass(frozen=True, slots=True)
class Binding:
    """From an exchange to a queue or to another exchange (destination_type) of the same vhost."""

    vhost: bytes
    source: bytes
    key: bytes
    destination_type: str
    destination: bytes
    arguments: Fields


@dataclass(frozen=True, slots=True)
class Parameter:
    """A runtime parameter: a policy (component `policy` or `operator_policy`), a limit, …

    vhost and component are empty for a global one.
    """

    vhost: bytes
    component: bytes
    name: bytes
    value: Term = field(hash=False)


@dataclass(frozen=True, slots=True)
class User:
    """A user. password_hash: salt and hash; limits: by name."""

    name: bytes
    password_hash: bytes
    tags: tuple[str, ...]
    hashing_algorithm: str
    limits: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Permission:
    """What a user may do in a vhost, as patterns. exchange: of a topic permission, which has no configure."""

    user: bytes
    vhost: bytes
    configure: bytes | None
    write: bytes
    read: bytes
    exchange: bytes | None = None


@dataclass(frozen=True, slots=True)
class Definitions:
    """The contents of the tables. vhost_metadata: by name of the vhost; damage: records and files that could not be read, or are missing.

    emptied: tables that a node of Mnesia finds empty, whatever was read of them here. certain: whether a node finds no more in the others.
    """

    vhosts: tuple[bytes, ...] = ()
    queues: tuple[QueueDefinition, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    bindings: tuple[Binding, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    users: tuple[User, ...] = ()
    permissions: tuple[Permission, ...] = ()
    vhost_metadata: dict[bytes, Term] = field(default_factory=dict, hash=False)
    damage: tuple[Damage, ...] = field(default=())
    emptied: frozenset[str] = frozenset()
    certain: bool = True


def table_files(directory: ReadOnlyDirectory, tables: Sequence[str]) -> tuple[dict[str, bytes], list[Damage]]:
    """Return the files of Mnesia that tables are in, by name, and those that cannot be read."""
    files, damage = {}, []
    for name in file_names(tables):
        try:
            content = directory.read(name, MAX_FILE_BYTES)
        except CannotOpenError as error:
            damage.append(Damage(name, 0, 0, Kind.UNREADABLE, str(error)))
            continue
        if content is not None:
            files[name] = content
    return files, damage


def read_definitions(directory: ReadOnlyDirectory) -> Definitions:
    """Return the definitions of a node. directory: its data directory, which also has `msg_stores`."""
    files, damage = table_files(directory, TABLES)
    tables = replay(files, TABLES)
    replayed = read_khepri(directory)
    damage += replayed.damage
    certain = not damage
    missing: dict[str, Damage] = {}
    records: list[tuple[str, Term]]
    if any(_tag(record) == "vhost" for record in replayed.records):
        records = [(COORDINATION, record) for record in replayed.records]
    else:
        missing = _missing(directory, files)
        certain = certain and not any(item.file.endswith(".DCL") for item in tables.damage)  # of the others a node has what is read here
        damage += [*dict.fromkeys(missing.values()), *tables.damage, *_schema(directory)]
        records = [(f"{table}.DCD", record) for table, rows in tables.records.items() for record in rows]
    rows: dict[str, list[Any]] = {name: [] for name, _ in _READERS.values()}
    vhosts: dict[bytes, Term] = {}
    for path, record in records:
        try:
            name, read = _READERS.get(_tag(record), ("", None))
            if read is not None:
                rows[name].append(read(record))
            elif _tag(record) == "vhost":
                vhosts[_octets(record[1])] = record[3] if len(record) > 3 else {}
        except (PropertiesError, TypeError, ValueError, IndexError) as error:
            certain = False
            damage.append(Damage(path, 0, 0, Kind.BAD_SIDE_FILE, f"A record of the table, or of the logs, cannot be read: {error}."))
    users = {user.name for user in rows["users"]}
    # the permissions of a user go with the user
    rows["permissions"] = [each for each in rows["permissions"] if not users or each.user in users]
    known = {name: tuple(each) for name, each in rows.items()}
    return Definitions(tuple(vhosts), **known, vhost_metadata=vhosts, damage=tuple(damage), emptied=frozenset(missing), certain=certain)


def _missing(directory: ReadOnlyDirectory, files: Mapping[str, bytes]) -> dict[str, Damage]:
    """Return the tables that a node of Mnesia finds empty because a file is missing, each with it.

    As 3.10.8 and 4.0.5 do: they create the file, and delete the table's .DCL, into which LATEST.LOG was read. Without schema.DAT all
    tables are created empty.
    """
    if not any(f"{table}.DCD" in files for table in TABLES):
        return {}
    if not directory.exists(SCHEMA):
        return dict.fromkeys(TABLES, _absent(SCHEMA, "empty tables"))
    return {
        table: _absent(f"{table}.DCD", "an empty table")
        for table in TABLES
        if f"{table}.DCD" not in files and not directory.exists(f"{table}.DCD")
    }


def _schema(directory: ReadOnlyDirectory) -> tuple[Damage, ...]:
    """Return the damage of the list of tables, in which no definition is; nothing of one that is missing or empty."""
    try:
        content = directory.read(SCHEMA, MAX_FILE_BYTES)
    except CannotOpenError as error:
        return (Damage(SCHEMA, 0, 0, Kind.UNREADABLE, str(error)),)
    return read_table(content, SCHEMA).damage[:1] if content else ()


def _absent(name: str, what: str) -> Damage:
    return Damage(name, 0, 0, Kind.MISSING_PART, f"{name} is missing: a node begins with {what}")


def _tag(record: Term) -> str:
    return str(record[0]) if type(record) is tuple and record and isinstance(record[0], Atom) else ""


def _name(term: Term) -> bytes:
    return str(term).encode("utf-8") if isinstance(term, Atom) else _octets(term)


def _parameter(record: Term) -> Parameter:
    if type(record[1]) is tuple and len(record[1]) == 3:
        vhost, component, name = map(_name, record[1])
        return Parameter(vhost, component, name, record[2])
    return Parameter(b"", b"", _name(record[1]), record[2])


def _user(record: Term) -> User:
    tags = record[3] if type(record[3]) is list else []
    limits = record[5] if len(record) > 5 and isinstance(record[5], dict) else {}
    known = {_name(key).decode("utf-8", "replace"): value for key, value in limits.items()}
    algorithm = str(record[4]) if len(record) > 4 and isinstance(record[4], Atom) else ""
    hashed = record[2] if type(record[2]) is bytes else b""
    return User(_octets(record[1]), hashed, tuple(str(tag) for tag in tags), algorithm, known)


def _permission(record: Term) -> Permission:
    if record[0] == "user_permission":
        (_, user, vhost), (_, configure, write, read) = record[1], record[2]
        return Permission(_octets(user), _octets(vhost), _octets(configure), _octets(write), _octets(read))
    (_, (_, user, vhost), exchange), (_, _, write, read) = record[1], record[2]
    return Permission(_octets(user), _octets(vhost), None, _octets(write), _octets(read), _octets(exchange))


def _octets(term: Term) -> bytes:
    if type(term) is not bytes:
        raise TypeError(f"a name is a binary, not {term!r:.60}")
    return term


def _resource(term: Term) -> tuple[bytes, str, bytes]:
    if type(term) is not tuple or len(term) != 4 or term[0] != "resource" or not isinstance(term[2], Atom):
        raise TypeError(f"a name is {{resource, VHost, Kind, Name}}, not {term!r:.60}")
    return _octets(term[1]), str(term[2]), _octets(term[3])


def _is_true(term: Term) -> bool:
    return isinstance(term, Atom) and term == "true"


def _arguments(term: Term) -> Fields:
    record = (Atom("P_basic"), Atom("undefined"), Atom("undefined"), term, *[Atom("undefined")] * 11)
    arguments: Fields = properties_from_record(record).get("headers", [])
    return arguments


def _queue(record: Term) -> QueueDefinition:
    if record[0] != "amqqueue" or len(record) < 18:
        raise TypeError(f"a queue is {{amqqueue, …}} of 18 elements or more, not {record[0]!s:.40} of {len(record)}")
    vhost, _, name = _resource(record[1])
    kind = str(record[19]) if len(record) >= 21 and isinstance(record[19], Atom) else CLASSIC
    exclusive = record[4] != "none"
    return QueueDefinition(
        vhost,
        name,
        _is_true(record[2]),
        _is_true(record[3]),
        exclusive,
        _arguments(record[5]),
        kind,
        _policy(record[10]),
        _stream_directory(kind, record),
        _nodes(record),
    )


_NODE_OF_PID = re.compile(rb"[Xg](?:d\x00|[ws])[\x00-\xff]([A-Za-z0-9_.-]+@[A-Za-z0-9_.-]+)\x00")


def _nodes(record: tuple[Term, ...]) -> tuple[str, ...]:
    """Return the nodes of the members in the type state of a queue, else that of its process: a pid, or {name, node}."""
    nodes = _in_type_state(record, "nodes")
    if isinstance(nodes, list):
        return tuple(str(each) for each in nodes if isinstance(each, Atom))
    process = record[6]
    if isinstance(process, Opaque):
        match = _NODE_OF_PID.match(process.encoded)
        return () if match is None else (match[1].decode(),)
    return (str(process[1]),) if isinstance(process, tuple) and len(process) == 2 and isinstance(process[1], Atom) else ()


def _stream_directory(kind: str, record: tuple[Term, ...]) -> str | None:
    """Return the name in the type state of a stream, which is a list of characters."""
    name = _in_type_state(record, "name") if kind == STREAM else None
    if type(name) is not list or not all(type(each) is int and 0 <= each < 0x110000 for each in name):
        return None
    return "".join(map(chr, name))


def _in_type_state(record: tuple[Term, ...], name: str) -> Term:
    """Return a value of the type state of a queue, which is a map; None without it."""
    state = record[20] if len(record) > 20 else None
    pairs = state.items() if isinstance(state, dict) else state if isinstance(state, Pairs) else ()
    return next((value for key, value in pairs if key == name), None)


def _policy(term: Term) -> dict[str, Any]:
    """Return the definition of a policy: [{name, …}, {definition, [{Key, Value}, …]}, …]."""
    pairs = [pair for pair in term if isinstance(pair, tuple) and len(pair) == 2] if isinstance(term, list) else []
    defined: Term = next((value for key, value in pairs if key == "definition"), [])
    if not isinstance(defined, list):
        return {}
    return {key.decode("utf-8", "replace"): value for key, value in (pair for pair in defined if type(pair) is tuple) if type(key) is bytes}


def _exchange(record: Term) -> Exchange:
    if record[0] != "exchange" or len(record) < 7:
        raise TypeError(f"an exchange is {{exchange, …}}, not {record[0]!s:.40} of {len(record)}")
    vhost, _, name = _resource(record[1])
    return Exchange(vhost, name, str(record[2]), _is_true(record[4]), _is_true(record[5]), _arguments(record[6]), _is_true(record[3]))


def _binding(record: Term) -> Binding:
    binding = record[1]
    if record[0] != "route" or type(binding) is not tuple or len(binding) != 5 or binding[0] != "binding":
        raise TypeError(f"a binding is {{route, {{binding, …}}, const}}, not {record[0]!s:.40}")
    vhost, _, source = _resource(binding[1])
    _, kind, destination = _resource(binding[3])
    return Binding(vhost, source, _octets(binding[2]), kind, destination, _arguments(binding[4]))


# what the records of each kind define, but for those of vhosts; records of other kinds are skipped
_READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "amqqueue": ("queues", _queue),
    "exchange": ("exchanges", _exchange),
    "route": ("bindings", _binding),
    "runtime_parameters": ("parameters", _parameter),
    "internal_user": ("users", _user),
    "user_permission": ("permissions", _permission),
    "topic_permission": ("permissions", _permission),
}


# names in any bytes

_HEAD = re.compile(rb"h\x04(?:d\x00|[ws])\x08resourcem\x00\x00")
_MIDDLE = re.compile(rb"(?:d\x00|[ws])\x05queuem\x00\x00")


def resource_names(octets: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield (vhost, queue) of every {resource, VHost, queue, Name} in any bytes. Names may repeat."""
    for head in _HEAD.finditer(octets):
        start = head.end() + 2
        end = start + int.from_bytes(octets[head.end() : start], "big")
        middle = _MIDDLE.match(octets, end)
        if middle is None:
            continue
        first = middle.end() + 2
        last = first + int.from_bytes(octets[middle.end() : first], "big")
        if last <= len(octets):
            yield octets[start:end], octets[first:last]


def search_names(directory: ReadOnlyDirectory) -> set[tuple[bytes, bytes]]:
    """Return names of queues in the files of Mnesia and the Raft logs, damaged or not: candidates, to be proved by a directory."""
    names: set[tuple[bytes, bytes]] = set()
    for path in (*file_names(TABLES), *coordination_files(directory)):
        names.update(resource_names(small_file(directory, path, MAX_FILE_BYTES) or b""))
    return names


def names_of_node(directory: ReadOnlyDirectory) -> tuple[tuple[str, str], ...]:
    """Return (vhost, queue) of every queue in the metadata of the node whose messages are below this directory.

    directory: as in `node_directory`; for any other the result is empty.
    """
    node = node_directory(directory)
    try:
        pairs = set() if node is None else search_names(node)
    except CannotOpenError:
        return ()
    return tuple((vhost.decode("utf-8", "surrogateescape"), queue.decode("utf-8", "surrogateescape")) for vhost, queue in sorted(pairs))


# ---- Mnesia's tables on disk, in the node's data directory up to RabbitMQ 4.2
#
# Each file is a disk log (see `disk_log`) whose first item, if there is one, is a header:
#
#     <table>.DCD   {log_header, dcd_log, …}    then the records of the table when it was last dumped
#     <table>.DCL   {log_header, dcl_log, …}    then changes since: {{Table, Key}, Record, Op}
#     LATEST.LOG    {log_header, trans_log, …}  then transactions not yet dumped, PREVIOUS.LOG before it while they are being dumped:
#                   {commit, Node, Decision, RamCopies, DiscCopies, …}, DiscCopies being a list of such changes
#
# A transaction is committed if its Decision is presume_commit, or {decision, Tid, …} and the logs contain {decision, Tid, committed, …}.
# On a node that has just booted, all definitions may be in LATEST.LOG alone.
#
# Tables kept only on disk (`.DAT`) and those of RAM only are not read; RabbitMQ has no definitions in them.
#
# Format: docs/formats/rabbitmq.md, section 11.

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


def replay(files: Mapping[str, Buffer], tables: Sequence[str], *, bags: bool = False) -> Tables:
    r"""Return the tables after all changes. files: the contents of those files of `file_names` that exist.

    bags: a key may have several records.

    >>> change = ((Atom("t"), b"key"), (Atom("record"), b"key", 1), Atom("write"))
    >>> log = disk_log.write_log(
    ...     [(Atom("log_header"), Atom("trans_log")), (Atom("commit"), Atom("n"), Atom("presume_commit"), [], [change])]
    ... )
    >>> replay({"LATEST.LOG": log}, ["t"]).records["t"]
    ((Atom('record'), b'key', 1),)
    """
    logs = {name: disk_log.read_log(files[name], name) for name in file_names(tables) if name in files}
    held = _Held(tables, bags)
    for table in tables:
        if f"{table}.DCD" in logs:
            for term in logs[f"{table}.DCD"].terms:
                if isinstance(term, tuple) and len(term) >= 2 and not _is_header(term):
                    held.write(table, encode(term[1]), term)
        if f"{table}.DCL" in logs:
            for term in logs[f"{table}.DCL"].terms:
                held.apply(term)
    every = [log.terms for name, log in logs.items() if name in LOGS]
    committed = {encode(term[1]) for terms in every for term in terms if _is_decision(term) and term[2] == "committed"}
    for terms in every:
        for change in _changes(terms, committed):
            held.apply(change)
    damage = tuple(item for log in logs.values() for item in log.damage)
    return Tables({table: held.records(table) for table in tables}, damage)


class _Held:
    """The records of tables, by key; of a bag, by key and content."""

    def __init__(self, tables: Sequence[str], bags: bool) -> None:
        self._tables: dict[str, dict[bytes, dict[bytes, Record]]] = {table: {} for table in tables}
        self._bags = bags

    def records(self, table: str) -> tuple[Record, ...]:
        return tuple(record for records in self._tables[table].values() for record in records.values())

    def write(self, table: str, key: bytes, record: Record) -> None:
        self._tables[table].setdefault(key, {})[encode(record) if self._bags else b""] = record

    def apply(self, change: Term) -> None:
        """Make a change: {{Table, Key}, Record, Op}; any other term changes nothing."""
        if not isinstance(change, tuple) or len(change) != 3 or not isinstance(change[0], tuple) or len(change[0]) != 2:
            return
        (table, key), record, action = change
        if not isinstance(table, Atom) or table not in self._tables:
            return
        records = self._tables[table]
        if action == "write" and isinstance(record, tuple):
            self.write(table, encode(key), record)
        elif action == "delete_object" and self._bags:
            records.get(encode(key), {}).pop(encode(record), None)
        elif action in ("delete", "delete_object"):
            records.pop(encode(key), None)
        elif action == "clear_table":
            records.clear()


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
