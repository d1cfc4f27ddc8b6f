r"""Khepri, the store of metadata since 4.2 (optional from 3.13 on): its tree, replayed from the Raft log of the node.

    coordination/<node>/names.dets          {rabbitmq_metadata, UID}: the member whose log it is
    coordination/<node>/<UID>/snapshots/    the tree at some index: {khepri_machine, Config, {tree, Node, …}, …},
                                            Node = {node, Properties, Payload, #{Name => Node}}
    coordination/<node>/<UID>/*.segment     older entries, *.wal the latest ones of all members

An entry is {'$usr', Meta, Command, …}. {put, Path, {p_data, Payload}, Options} and {delete, Path, Options} name a path such as
[rabbitmq, vhosts, VHost, queues, Name]; a component {if_all, [Name, Condition, …]} is a name with conditions. {dedup, _, _, {tx, Fun, _}}
is a transaction: the code of an Erlang function with the values that it uses. The code is not run; the functions that change
definitions are recognised by their names, and their values say what they change. A function or a command that is not known is a finding,
because it may have changed definitions.

    >>> tree = Tree()
    >>> vhost = (Atom("vhost"), b"/", [], {})
    >>> path = [Atom("rabbitmq"), Atom("vhosts"), (Atom("if_all"), [b"/", (Atom("if_node_exists"), Atom("false"))])]
    >>> tree.apply((Atom("put"), path, (Atom("p_data"), vhost), {}))
    >>> tree.payloads()
    [(Atom('vhost'), b'/', [], {})]

Format: docs/formats/rabbitmq.md, section 11.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rabbitmq.definitions.node_directory import COORDINATION
from mqstore.rabbitmq.erlang.etf import EtfError, decode
from mqstore.rabbitmq.erlang.terms import Atom, Pairs, Term
from mqstore.rabbitmq.quorum.raft_log import LogEntry, MemberLog, raft_systems

MEMBER = "rabbitmq_metadata"

Path = tuple[Term, ...]

# transactions that do not change what is read here: serial numbers, decorators, the policy in effect on a queue
_UNIMPORTANT = re.compile(
    r"rabbit_db_(queue__-tie_binding|exchange__-(recover|next_serial|peek_serial|update|set)|policy__-update|maintenance|msup|m_exchange"
    r"|rtparams__-get|binding__-recover|topic_exchange|jms_exchange|rh_exchange|ch_exchange|queue__-(update|set|mark|consistent))"
)


# commands that do not change the tree
_OTHER_COMMANDS = frozenset(
    (
        "dedup_ack",
        "drop_dedups",
        "register_projection",
        "unregister_projection",
        "unregister_projections",
        "register_trigger",
        "ack_triggered",
    )
)


@dataclass(frozen=True, slots=True)
class KhepriRecords:
    """The records in the tree, of all kinds. there: the node has a log or a snapshot of Khepri. damage: what could not be read."""

    records: tuple[Term, ...] = ()
    there: bool = False
    damage: tuple[Damage, ...] = ()


@dataclass(slots=True)
class Tree:
    """The payloads by path. versions: of each payload; bindings are kept apart, by their record; ends: their keys by queue or exchange."""

    nodes: dict[Path, Term] = field(default_factory=dict)
    versions: dict[Path, int] = field(default_factory=dict)
    bindings: dict[Term, Term] = field(default_factory=dict)
    ends: dict[Path, set[Term]] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    unknown_commands: set[str] = field(default_factory=set)

    def payloads(self) -> list[Term]:
        """Return all records, bindings as {route, Binding, const}; bindings of missing exchanges and queues are left out."""
        routes: list[Term] = [(Atom("route"), binding, Atom("const")) for binding in self.bindings.values() if self._is_tied(binding)]
        return [*self.nodes.values(), *routes]

    def _is_tied(self, binding: Term) -> bool:
        return all(_resource_path(end) in self.nodes for end in (binding[1], binding[3]))

    def load(self, state: Term) -> None:
        """Take the tree of a snapshot. Raises ValueError."""
        tree = next((part for part in state if type(part) is tuple and part and part[0] == "tree"), None) if type(state) is tuple else None
        if tree is None:
            raise ValueError("it has no tree")
        todo: list[tuple[Path, Term]] = [((), tree[1])]
        while todo:
            path, node = todo.pop()
            if type(node) is not tuple or len(node) != 4 or node[0] != "node":
                raise ValueError("a node of the tree is {node, Properties, Payload, Children}")
            self._load_payload(path, node[2], dict(_pairs(node[1])).get(Atom("payload_version"), 1))
            todo += [((*path, name), child) for name, child in _pairs(node[3])]

    def _load_payload(self, path: Path, payload: Term, version: Term) -> None:
        if type(payload) is not tuple or len(payload) != 2 or payload[0] != "p_data":
            return
        if "bindings" in path[3:6]:
            for binding in _all_bindings(payload[1]):
                self._bind(binding)
            return
        self.nodes[path] = payload[1]
        self.versions[path] = version if type(version) is int else 1

    def apply(self, command: Term) -> None:
        """Apply a command of the log. Raises ValueError for a term that is not a command."""
        if type(command) is not tuple or not command or not isinstance(command[0], Atom):
            raise ValueError("a command is a tuple that begins with its name")
        if command[0] == "dedup" and len(command) == 4:
            command = command[3]
        if command[0] == "put" and len(command) >= 3:
            self._put(command[1], command[2])
        elif command[0] == "delete" and len(command) >= 2:
            self._delete(command[1])
        elif command[0] == "tx" and len(command) >= 2:
            self._transaction(command[1])
        elif command[0] not in _OTHER_COMMANDS:
            self.unknown_commands.add(str(command[0]))

    def _put(self, pattern: Term, payload: Term) -> None:
        path = _literal(pattern)
        if path is None or type(payload) is not tuple or payload[:1] != ("p_data",) or not self._holds(path, pattern[-1]):
            return
        self.nodes[path] = payload[1]
        self.versions[path] = self.versions.get(path, 0) + 1

    def _holds(self, path: Path, condition: Term) -> bool:
        """Return whether the conditions on a node allow a put; those that are not known are assumed to."""
        if type(condition) is not tuple or len(condition) < 2:
            return True
        kind, value = str(condition[0]), condition[1]
        if kind == "if_all" and type(value) is list:
            return all(self._holds(path, each) for each in value)
        if kind == "if_any" and type(value) is list:
            return any(self._holds(path, each) for each in value)
        if kind in ("if_node_exists", "if_has_payload"):
            return (path in self.nodes) is (value in ("true",))
        if kind == "if_payload_version" and type(value) is int and path in self.versions:
            return self.versions[path] == value
        return True

    def _delete(self, pattern: Term) -> None:
        if type(pattern) is not list:
            return
        parts = [_component(part) for part in pattern]
        if None not in parts and parts[3:4] == ["queues"] and len(parts) == 5:  # has no nodes below it; there may be very many
            if tuple(parts) in self.nodes:
                self._remove(tuple(parts))
            return
        for path in [path for path in self.nodes if len(path) >= len(parts) and all(map(_matches, parts, path))]:
            self._remove(path)

    def _remove(self, path: Path) -> None:
        del self.nodes[path]
        self.versions.pop(path, None)
        # a binding exists as long as its two ends
        for key in self.ends.pop(path, ()):
            self.bindings.pop(key, None)

    def _bind(self, binding: Term) -> None:
        key = _key(binding)
        self.bindings[key] = binding
        for end in (binding[1], binding[3]):
            self.ends.setdefault(_resource_path(end), set()).add(key)

    def _transaction(self, function: Term) -> None:
        name, values = _function(function)
        inner = next((value for value in values if _function(value)[0]), None)
        if inner is not None and "with_fun_in_khepri_tx" in name:
            self._transaction(inner)
            return
        match name.partition("/")[0].removeprefix("rabbit_db_"):
            case "binding__-create":
                binding = next((value for value in values if _is_record(value, "binding", 5)), None)
                if binding is not None and self._is_tied(binding):
                    self._bind(binding)
            case "binding__-delete" | "binding__-delete_v2":
                for value in values:
                    if _is_record(value, "binding", 5):
                        self.bindings.pop(_key(value), None)
            case "binding__-delete_for_destination":
                for value in values:
                    for key in self.ends.get(_resource_path(value), ()):
                        if key in self.bindings and self.bindings[key][3] == value:
                            del self.bindings[key]
            case "user__-set_user_permissions" | "user__-set_topic_permissions":
                self._set_permission(values)
            case "user__-update" if inner is not None and values and type(values[0]) is bytes:
                self._update_user(values[0], inner)
            case "rtparams__-set" if len(values) >= 2 and type(values[1]) is tuple and len(values[1]) == 3:
                vhost, component, own = values[1]
                record = (Atom("runtime_parameters"), values[1], values[0])
                self.nodes[(Atom("rabbitmq"), Atom("vhosts"), vhost, Atom("runtime_params"), component, own)] = record
            case "exchange__-delete" | "queue__-delete" | "queue__-internal_delete":
                for value in values:
                    path = _resource_path(value)
                    if path in self.nodes:
                        self._remove(path)
            case "exchange__-delete_all" | "user__-clear_all_permissions_for_vhost":
                parts = ("exchanges",) if "delete_all" in name else ("user_permissions", "topic_permissions")
                for part in parts:
                    self._delete([Atom("rabbitmq"), Atom("vhosts"), *values[:1], Atom(part)])
            case "vhost__-update" | "vhost__-merge_metadata" | "vhost__-set_tags":
                self._update_vhost(values)
            case _:
                if _UNIMPORTANT.match(name) is None:
                    self.unknown.add(name.partition("/")[0])

    def _set_permission(self, values: list[Term]) -> None:
        for value in values:
            if _is_record(value, "user_permission", 3):
                _, user, vhost = value[1]
                self.nodes[(Atom("rabbitmq"), Atom("vhosts"), vhost, Atom("user_permissions"), user)] = value
            elif _is_record(value, "topic_permission", 3):
                (_, user, vhost), exchange = value[1][1], value[1][2]
                self.nodes[(Atom("rabbitmq"), Atom("vhosts"), vhost, Atom("topic_permissions"), user, exchange)] = value

    def _update_user(self, user: bytes, change: Term) -> None:
        path = (Atom("rabbitmq"), Atom("users"), user)
        record = self.nodes.get(path)
        name, values = _function(change)
        if type(record) is not tuple or len(record) < 5:
            return
        if "-set_tags/" in name and values:
            self.nodes[path] = (*record[:3], values[0], *record[4:])
        elif "-change_password_hash/" in name and len(values) >= 2:
            self.nodes[path] = (*record[:2], values[0], record[3], values[1], *record[5:])
        elif "limit" in name and len(record) > 5 and values and isinstance(values[0], dict):
            limits = record[5] if isinstance(record[5], dict) else {}
            self.nodes[path] = (*record[:5], {**limits, **values[0]}, *record[6:])
        else:
            self.unknown.add(name.partition("/")[0])

    def _update_vhost(self, values: list[Term]) -> None:
        name = next((value for value in values if type(value) is bytes), None)
        path = (Atom("rabbitmq"), Atom("vhosts"), name)
        record, changed = self.nodes.get(path), next((value for value in values if isinstance(value, dict)), None)
        if type(record) is tuple and len(record) > 3 and changed is not None and isinstance(record[3], dict):
            self.nodes[path] = (*record[:3], {**record[3], **changed}, *record[4:])


def _pairs(term: Term) -> Iterable[tuple[Term, Term]]:
    return term.items() if isinstance(term, dict) else term if isinstance(term, Pairs) else ()


def _is_record(term: Term, name: str, size: int) -> bool:
    return type(term) is tuple and len(term) == size and term[0] == name


def _key(term: Term) -> Term:
    """Return a term with its lists as tuples, as a key."""
    return tuple(_key(item) for item in term) if isinstance(term, tuple | list) else repr(term) if isinstance(term, dict) else term


def _all_bindings(payload: Term) -> Iterator[Term]:
    """Yield the bindings in the payload of a route: a record, or a set or map of them."""
    todo = [payload]
    while todo:
        item = todo.pop()
        if _is_record(item, "binding", 5):
            yield item
        elif isinstance(item, dict | Pairs):
            todo += [part for pair in _pairs(item) for part in pair]
        elif isinstance(item, tuple | list):
            todo += list(item)


def _function(term: Term) -> tuple[str, list[Term]]:
    """Return name and values of {horus_fun, Module, Code, Arity, …, Values, …}; an empty name for any other term."""
    if type(term) is not tuple or len(term) < 7 or term[0] != "horus_fun":
        return "", []
    values = term[6] if type(term[6]) is list else []
    return str(term[1]).removeprefix("horus__"), values


def _component(part: Term) -> Term:
    """Return the name in a component of a path; None for one that any name matches."""
    if type(part) is not tuple or len(part) < 2:
        return part
    if part[0] == "if_all" and type(part[1]) is list:
        return next((each for each in part[1] if type(each) is bytes or isinstance(each, Atom)), None)
    return None


def _matches(part: Term, name: Term) -> bool:
    return part is None or (part == name and type(part) is type(name))


def _literal(pattern: Term) -> Path | None:
    parts = [_component(part) for part in pattern] if type(pattern) is list else [None]
    return None if None in parts else tuple(parts)


def _resource_path(term: Term) -> Path:
    """Return the path of {resource, VHost, exchange | queue, Name}."""
    if not _is_record(term, "resource", 4):
        return ()
    kind = {"exchange": "exchanges", "queue": "queues"}.get(str(term[2]), "")
    return (Atom("rabbitmq"), Atom("vhosts"), term[1], Atom(kind), term[3])


# files


def read_khepri(directory: ReadOnlyDirectory) -> KhepriRecords:
    """Return the records of a node's metadata in Khepri. directory: its data directory."""
    damage: list[Damage] = []
    tree, there = Tree(), False
    for system in raft_systems(directory, COORDINATION) if directory.is_directory(COORDINATION) else ():
        for uid in [uid for uid, name in system.names.items() if name == MEMBER]:
            log = system.member(uid)
            tree = _replay(log, damage)
            there |= bool(len(log)) or log.base is not None
            damage += log.damage
        damage += system.damage
    strange = (*(f"transaction {name}" for name in sorted(tree.unknown)), *(f"command {name}" for name in sorted(tree.unknown_commands)))
    for name in strange:
        detail = f"The log of Khepri has a {name}, which is not known; it may have changed definitions."
        damage.append(Damage(COORDINATION, 0, 0, Kind.BAD_SIDE_FILE, detail))
    return KhepriRecords(tuple(tree.payloads()), there, tuple(damage))


def _replay(log: MemberLog, damage: list[Damage]) -> Tree:
    """Return the tree after the last entry of a log."""
    tree = Tree()
    log.base = None
    for base in log.bases():
        try:
            tree.load(base.snapshot.state)
        except ValueError as error:
            damage.append(Damage(base.path, 0, 0, Kind.BAD_SIDE_FILE, f"The snapshot of Khepri cannot be read: {error}."))
            tree = Tree()
            continue
        log.base = base
        break
    for first, last in log.gaps:
        detail = f"The log of Khepri lacks entries {first} to {last}; definitions may be missing or outdated."
        damage.append(Damage(log.place, 0, 0, Kind.BAD_SIDE_FILE, detail))
    for entry in log.entries():
        if not entry.valid:
            continue
        try:
            term = decode(entry.entry)[0]
        except EtfError as error:
            detail = f"Entry {entry.index} is not a term: {error.what}."
            damage.append(Damage(entry.file, entry.start, len(entry.entry), Kind.BAD_SIDE_FILE, detail))
            continue
        if type(term) is tuple and len(term) >= 3 and term[0] == "$usr":
            _apply(tree, term[2], entry, damage)
    return tree


def _apply(tree: Tree, command: Term, entry: LogEntry, damage: list[Damage]) -> None:
    try:
        tree.apply(command)
    except (TypeError, ValueError, IndexError, KeyError, AttributeError):
        detail = f"Entry {entry.index} of the log of Khepri is not a command."
        damage.append(Damage(entry.file, entry.start, len(entry.entry), Kind.BAD_SIDE_FILE, detail))
