"""From a dead node's data directory to all that a new node of another version needs: stores, definitions, and the steps in a safe order.

    OUT/msg_stores/         the classic queues, converted for the version; not without those of the old node
    OUT/definitions.json    vhosts, exchanges, queues, bindings, policies, parameters, for `rabbitmqctl import_definitions`; for its owner
                            only: users have password hashes, and parameters may have URLs with passwords
    OUT/definitions-plugins.json    what only a node with certain plug-ins imports, if there is any; STEPS.md names them
    OUT/STEPS.md            the commands to type

A node deletes each queue directory whose queue it does not know when it starts. Therefore each converted directory has its queue in
`definitions.json`: one that the metadata lacks is added under the name in its `.queue_name`; one that no definition can lead to, because
its name is not known or not UTF-8, is reported, and is the only thing that would be lost. Arguments and policies that the new version does
not know are left out.

Quorum queues and streams are defined too, with their arguments, and their messages are sent to the new node by `mqstore replay`, in the
order in which the old node would deliver them: no file of theirs is written. Where it is asked for, quorum queues become classic ones
instead, in OUT/msg_stores. In the new stream offsets begin at 0. The messages that a plug-in delays are named, and are not carried over.

`StoppedNode` is the data directory that a rescue reads: whether it is one, and whether a node is writing to it.

A node that runs on the directory has files of it open for writing, which /proc shows for processes on this machine. Any other writer, on
another machine for example, is noticed by what has changed while the directory was read.

Format: docs/formats/rabbitmq.md, sections 7.1, 11 and 12.6.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mqstore.errors import NotAStoreError, UsageError
from mqstore.files.directory_views import ConfinedDirectory
from mqstore.files.locking import can_tell, writers
from mqstore.files.readonly import walk_tree
from mqstore.findings import Damage, Verdict
from mqstore.rabbitmq.broker_version import BrokerVersion, target_version
from mqstore.rabbitmq.convert.convert_queue import QueueReport
from mqstore.rabbitmq.convert.convert_vhost import DEFINITIONS, ConvertReport, convert
from mqstore.rabbitmq.convert.quorum_queue import as_classic
from mqstore.rabbitmq.definitions.document import definitions_document, encrypted_values, split_plugins
from mqstore.rabbitmq.definitions.metadata import Definitions, read_definitions
from mqstore.rabbitmq.delayed import PLUGIN, delayed_tables
from mqstore.rabbitmq.format.layout import is_node
from mqstore.rabbitmq.format.names import priority_name, queue_directory
from mqstore.rabbitmq.quorum.queue import QuorumQueue
from mqstore.rabbitmq.quorum.rows import rows_of
from mqstore.rabbitmq.site import absent_queues
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.version import VersionEvidence, version_evidence
from mqstore.table.columns import CLASSIC, QUORUM, STREAM, QueueSelection
from mqstore.table.formatting import count

# what 3.12 and newer ignore, and 4.x refuses in a policy
_OLD_ARGUMENTS = frozenset({"x-queue-version", "x-queue-mode", "x-queue-master-locator", "x-max-in-memory-length", "x-max-in-memory-bytes"})
_OLD_POLICIES = frozenset(
    {
        "queue-version", "queue-mode", "queue-master-locator", "ha-mode", "ha-params", "ha-sync-mode", "ha-sync-batch-size",
        "ha-promote-on-shutdown", "ha-promote-on-failure",
    }
)  # fmt: skip
OF_PLUGINS = "definitions-plugins.json"
WITHOUT_METADATA = (
    "which exchanges, bindings, policies, users and empty queues there were: that cannot be told without the node's metadata, its *.DCD, "
    "*.DCL and *.LOG or coordination/"
)
_POLICY_COMPONENTS = ("operator_policy",)


@dataclass(frozen=True, slots=True)
class RescueReport:
    """The result. converted: of the stores; added: queues that only their directories name; unknown: directories to which no definition
    leads, which a node deletes with their messages; others: queues that are not carried over; dropped: what was left out of the
    definitions; notes: what could not be determined. replayed: messages of quorum queues and streams to send, by vhost and name. plugins:
    what each plug-in is needed for; delayed: messages that the plug-in for delayed messages holds, by the name of the node. untold: what
    cannot be told without parts that are not here; lacking: whether any of them was here, or must have been. written_by: the old node.
    """

    to: str
    version: str
    converted: ConvertReport
    definitions: dict[str, Any]
    added: tuple[str, ...] = ()
    unknown: tuple[QueueReport, ...] = ()
    others: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    damage: tuple[Damage, ...] = field(default=())
    notes: tuple[str, ...] = ()
    replayed: Mapping[tuple[str, str], int] = field(default_factory=dict)
    plugins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    delayed: Mapping[str, int] = field(default_factory=dict)
    untold: tuple[str, ...] = ()
    lacking: bool = False
    written_by: VersionEvidence = field(default=VersionEvidence(None, "nothing was looked at"))

    @property
    def deleted(self) -> int:
        """Messages that the new node deletes at its start."""
        return sum(queue.messages for queue in self.unknown)

    @property
    def ok(self) -> bool:
        return self.converted.ok and not self.deleted and not self.damage and not self.lacking

    def as_dict(self) -> dict[str, Any]:
        return {
            "to": self.to,
            "version": self.version,
            "ok": self.ok,
            "messages": self.converted.messages - self.deleted,
            "deleted": self.deleted,
            "defined": {name: len(rows) for name, rows in self.definitions.items()},
            "added": list(self.added),
            "unknown_directories": [queue.directory for queue in self.unknown],
            "not_carried_over": list(self.others),
            "to_replay": [{"vhost": vhost, "queue": name, "messages": number} for (vhost, name), number in self.replayed.items()],
            "left_out_of_definitions": list(self.dropped),
            "needs_plugins": {plugin: list(names) for plugin, names in self.plugins.items()},
            "delayed_messages": sum(self.delayed.values()),
            "unknown": list(self.untold),
            "suggested_version": self.written_by.version,
            "version_known_from": self.written_by.why,
            "converted": self.converted.as_dict(),
            "damage": [item.as_dict() for item in self.damage],
            "notes": list(self.notes),
        }


def rescue(
    data: str | Path,
    to: str | Path,
    version: str,
    *,
    users: bool = False,
    threads: int = 2,
    progress: Callable[[int, int], None] | None = None,
    named: str | Path | None = None,
    quorum_as_classic: bool = False,
) -> RescueReport:
    """Write a new directory with everything for a node of a version. data: a node's data directory. users: with users and permissions.

    named: the path of data in the steps; an archive has the one of the archive. quorum_as_classic: write quorum queues as classic ones,
    but for those whose vhost has no directory or a classic queue of the same name.
    Raises NotAStoreError, TargetError, UnsupportedError, UsageError; then nothing is left behind.
    """
    broker = target_version(version)
    stopped = StoppedNode(Path(data))
    definitions = read_definitions(stopped.directory)
    made: list[_Prepared] = []
    store = RabbitMQStore(Path(data))
    replayed: dict[tuple[str, str], int] = {}
    absent = [each for each in absent_queues(store) if each.sure]
    untold = tuple(each.sentence for each in absent)
    written_by = version_evidence(store)
    if not definitions.vhosts:
        untold = (*untold, WITHOUT_METADATA)
    missing = (part.damage for vhost in store.vhosts for part in vhost.missing_parts)
    untold = (*(f"what is in {item.file}: {item.detail}" for item in missing), *untold, *encrypted_values(definitions))
    delayed = {table.node: len(table.messages) for table in delayed_tables(stopped.directory) if table.messages}

    def beside(queues: Sequence[QueueReport]) -> Mapping[str, bytes]:
        stopped.check()
        prepared = _prepare(definitions, queues, users)
        made.append(prepared)
        carried = _carried(queues)
        replayed.update(messages_to_replay(store, carried))
        sending = replay_steps(Path(named or data), Path(to), replayed, 6 if store.vhosts else 3, by_name=bool(carried))
        text = steps(
            broker, Path(to), prepared, queues, sending, users=users, delayed=delayed, untold=untold, written_by=written_by,
            stores=bool(store.vhosts),
        )  # fmt: skip
        files = {DEFINITIONS: _json(prepared.document), "STEPS.md": text.encode("utf-8", "surrogateescape")}
        return files | {OF_PLUGINS: _json(prepared.of_plugins)} if prepared.plugins else files

    quorum: dict[tuple[str, str], list[QuorumQueue]] = {}
    for queue in store.quorum_queues if quorum_as_classic else ():
        vhost, name = queue.name
        if vhost is not None:
            quorum.setdefault((vhost, name), []).append(queue)
    rows = {of: chain.from_iterable(rows_of(queue, QueueSelection(), None) for queue in members) for of, members in quorum.items()}
    converted = convert(
        data, to, target=version, names=queue_names(definitions), threads=threads, progress=progress, beside=beside, quorum=rows
    )
    last = made[-1]
    return RescueReport(
        str(to),
        broker.name,
        converted,
        last.document,
        last.added,
        last.unknown,
        last.others,
        last.dropped,
        (*definitions.damage, *_damage_of_logs(store)),
        stopped.notes,
        replayed,
        last.plugins,
        delayed,
        untold,
        any(not each.nodes for each in absent),
        written_by,
    )


def _damage_of_logs(store: RabbitMQStore) -> Iterator[Damage]:
    """Yield what is damaged in the files of quorum queues, and in what was read of streams."""
    for node in store.examined_quorum:
        yield from node.damage
        for queue in node.queues:
            yield from queue.damage
    yield from store.walked


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, indent=1).encode() + b"\n"


def _carried(queues: Iterable[QueueReport]) -> set[tuple[str | None, str]]:
    """Return vhost and name of the quorum queues that were written as classic ones."""
    return {(queue.vhost, queue.queue) for queue in queues if queue.from_version == QUORUM}


def messages_to_replay(store: RabbitMQStore, carried: Collection[tuple[str | None, str]]) -> dict[tuple[str, str], int]:
    """Return how many messages of each quorum queue and stream a replay sends, by vhost and name, of those whose names are known.

    carried: the quorum queues that it does not send.
    """
    names = (*(queue.name for queue in store.quorum_queues), *((named.vhost, named.queue) for named in store.streams))
    counts = {(vhost, name): 0 for vhost, name in names if vhost is not None and (vhost, name) not in carried}
    types = frozenset({STREAM}) if all(queue.name in carried for queue in store.quorum_queues) else None
    for each in store.replayed_messages(QueueSelection(queue_types=types)):
        readable = each.verdict == Verdict.INTACT and each.stored is not None and each.properties is not None
        if each.vhost is not None and (each.vhost, each.queue) in counts and readable and each.leaves is None:
            counts[each.vhost, each.queue] += 1
    return counts


def queue_names(definitions: Definitions) -> list[tuple[str, str]]:
    """Return the vhost and name of each queue."""
    return [(queue.vhost.decode("utf-8", "surrogateescape"), queue.name.decode("utf-8", "surrogateescape")) for queue in definitions.queues]


@dataclass(frozen=True, slots=True)
class _Prepared:
    document: dict[str, Any]
    added: tuple[str, ...]
    unknown: tuple[QueueReport, ...]
    others: tuple[str, ...]
    dropped: tuple[str, ...]
    of_plugins: dict[str, Any]
    plugins: Mapping[str, tuple[str, ...]]


def _prepare(definitions: Definitions, queues: Sequence[QueueReport], users: bool) -> _Prepared:
    document = definitions_document(definitions, users=users)
    others = [queue for queue in document["queues"] if queue["type"] not in (CLASSIC, QUORUM, STREAM)]
    left = {(queue["vhost"], queue["name"]) for queue in others}
    document["queues"] = [queue for queue in document["queues"] if (queue["vhost"], queue["name"]) not in left]
    document["bindings"] = [
        each for each in document["bindings"] if each["destination_type"] != "queue" or (each["vhost"], each["destination"]) not in left
    ]
    dropped = (*_drop_old(document), *_made_classic(document, _carried(queues)))
    of_plugins, plugins = split_plugins(document)
    added, unknown = _add_missing(document, queues)
    named = tuple(f"{queue['type']} {queue['name']!r} of vhost {queue['vhost']!r}" for queue in others)
    return _Prepared(document, added, unknown, named, dropped, of_plugins, plugins)


def _made_classic(document: dict[str, Any], carried: Collection[tuple[str | None, str]]) -> Iterator[str]:
    """Define the quorum queues that were written as classic ones as such; yield what was left out of their arguments."""
    for queue in document["queues"]:
        if queue["type"] == QUORUM and (queue["vhost"], queue["name"]) in carried:
            for name in as_classic(queue, queue["arguments"]):
                yield f"argument {name} of queue {queue['name']!r} of vhost {queue['vhost']!r}, a classic one now"


def _drop_old(document: dict[str, Any]) -> tuple[str, ...]:
    """Take out of the definitions what belongs to older versions only; return what it was."""
    dropped = []
    for queue in document["queues"]:
        for name in sorted(_OLD_ARGUMENTS & queue["arguments"].keys()):
            dropped.append(f"argument {name} of queue {queue['name']!r} of vhost {queue['vhost']!r}")
            del queue["arguments"][name]
    document["policies"] = [
        policy
        for policy in document["policies"]
        if _without_old(policy["definition"], f"policy {policy['name']!r} of vhost {policy['vhost']!r}", dropped)
    ]
    parameters = []
    for each in document["parameters"]:
        value = each["value"]
        what = f"operator policy {each['name']!r} of vhost {each['vhost']!r}"
        is_policy = each["component"] in _POLICY_COMPONENTS and isinstance(value, dict) and isinstance(value.get("definition"), dict)
        if not is_policy or _without_old(value["definition"], what, dropped):
            parameters.append(each)
    document["parameters"] = parameters
    return tuple(dropped)


def _without_old(definition: dict[str, Any], what: str, dropped: list[str]) -> bool:
    """Take old keys out of a policy; return whether any key is left."""
    for name in sorted(_OLD_POLICIES & definition.keys()):
        dropped.append(f"{name} of {what}")
        del definition[name]
    return bool(definition)


def _is_found(queue: QueueReport, definition: Mapping[str, Any] | None) -> bool:
    """Return whether a node that has the definition, or one made of the directory's name, would find the directory.

    It would not if the name is not UTF-8, which no definition can have, or if the queue has other priority levels.
    """
    name: str | bytes = queue.queue
    if queue.priority_level is not None:
        name = priority_name(queue.queue.encode(), queue.priority_level)
    if definition is not None:
        most = definition["arguments"].get("x-max-priority")
        most = most if type(most) is int else None
        if queue.priority_level is None and most is not None:
            return False
        if queue.priority_level is not None and (most is None or queue.priority_level > most):
            return False
    return queue.named and queue.vhost is not None and queue_directory(queue.vhost, name) == queue.directory


def _add_missing(document: dict[str, Any], queues: Sequence[QueueReport]) -> tuple[tuple[str, ...], tuple[QueueReport, ...]]:
    """Define every queue that has a directory. Returns what was added, and the directories that a node would not find."""
    defined = {(queue["vhost"], queue["name"]): queue for queue in document["queues"]}
    vhosts = {vhost["name"] for vhost in document["vhosts"]}
    added: dict[tuple[str, str], int] = {}
    unknown = []
    for queue in queues:
        if queue.vhost is None or not _is_found(queue, defined.get((queue.vhost, queue.queue))):
            unknown.append(queue)
        elif (queue.vhost, queue.queue) not in defined:
            level = -1 if queue.priority_level is None else queue.priority_level
            added[queue.vhost, queue.queue] = max(level, added.get((queue.vhost, queue.queue), -1))
    for (vhost, name), level in sorted(added.items()):
        if vhost not in vhosts:
            document["vhosts"].append({"name": vhost})
            vhosts.add(vhost)
        arguments = {} if level < 0 else {"x-max-priority": level}
        row = {"name": name, "vhost": vhost, "type": "classic", "durable": True, "auto_delete": False, "arguments": arguments}
        document["queues"].append(row)
    return tuple(f"{name!r} of vhost {vhost!r}" for vhost, name in sorted(added)), tuple(unknown)


class StoppedNode:
    """The data directory of a node that does not run. Raises NotAStoreError, UsageError, CannotOpenError if it is not one.

    notes: what could not be determined.
    """

    def __init__(self, data: Path) -> None:
        if not data.is_dir():
            raise UsageError(f"{data} is not a directory; give the data directory of a node, which has msg_stores/ and its metadata")
        self.directory = ConfinedDirectory(data)
        if not is_node(self.directory):
            has = "no msg_stores/, quorum/ or stream/, and no metadata"
            raise NotAStoreError(f"{data} has {has}; give the data directory of a node, not one of its parts")
        self._data = data
        self.notes: tuple[str, ...] = ()
        if not can_tell(data):
            self.notes = (f"whether a node has {data} open cannot be determined by this user: make sure that it is stopped",)
        self._check_closed()
        self._before = self._state()

    def _check_closed(self) -> None:
        if processes := writers(self._data):
            first = processes[0]
            raise UsageError(
                f"{self._data} is in use: process {first.process} ({first.name}) has {first.file} open for writing; stop the node first"
            )

    def check(self) -> None:
        """Raise UsageError if anything has changed since the directory was opened, or is about to."""
        self._check_closed()
        if self._state() != self._before:
            raise UsageError(f"{self._data} changed while it was read: a node runs on it, perhaps on another machine; stop it first")

    def _state(self) -> bytes:
        """Return a digest of names, sizes and times."""
        digest = hashlib.sha256()
        for above, directories, names in walk_tree(self._data):
            directories.sort()
            for name in sorted(names):
                path = os.path.join(above, name)
                try:
                    known = os.lstat(path)
                except OSError:
                    continue
                digest.update(f"{os.fsencode(path)!r} {known.st_size} {known.st_mtime_ns} {known.st_ino}\n".encode())
        return digest.digest()


# ---- `STEPS.md`: the commands that bring rescued queues into a new node, in an order in which nothing is deleted
#
# Those of the way in place: the old data directory is moved aside and kept, a copy of it gets the converted stores.

Counts = Mapping[tuple[str, str], int]


def quoted(text: str) -> str:
    r"""Return a text as one word of bash, on one line.

    >>> print(quoted("orders"), quoted("of two"), quoted("two\nlines"))
    orders 'of two' $'two\x0alines'
    """
    if all(character.isprintable() or "\udc80" <= character <= "\udcff" for character in text):
        return shlex.quote(text)
    octets = text.encode("utf-8", "surrogateescape")
    return "$'" + "".join(chr(octet) if chr(octet).isalnum() and octet < 128 else f"\\x{octet:02x}" for octet in octets) + "'"


def message_counts(queues: Iterable[QueueReport], unknown: Iterable[QueueReport]) -> dict[tuple[str, str], int]:
    """Return the number of messages of each queue, by vhost and name, without those of unknown directories."""
    lost = {(queue.vhost, queue.directory) for queue in unknown}
    counts: dict[tuple[str, str], int] = {}
    for queue in queues:
        if (queue.vhost, queue.directory) not in lost:
            key = (queue.vhost or "", queue.queue)
            counts[key] = counts.get(key, 0) + queue.messages
    return counts


def list_commands(vhosts: Iterable[str]) -> list[str]:
    """Return the lines that list the queues of vhosts with their numbers of messages."""
    return [f"       rabbitmqctl -q list_queues -p {quoted(vhost)} name messages" for vhost in vhosts]


def message_table(counts: Counts) -> list[str]:
    """Return the lines of a table of the queues that have messages."""
    lines = ["| vhost | queue | messages |", "|---|---|---|"]
    return lines + [f"| {_cell(vhost)} | {_cell(name)} | {count} |" for (vhost, name), count in sorted(counts.items()) if count]


def steps(
    broker: BrokerVersion,
    to: Path,
    prepared: _Prepared,
    queues: Sequence[QueueReport],
    sending: Sequence[str],
    *,
    users: bool,
    delayed: Mapping[str, int],
    untold: Sequence[str],
    written_by: VersionEvidence,
    stores: bool,
) -> str:
    """Return the text. queues: those converted; stores: whether there are any; sending: from `replay_steps`."""
    version = broker.name
    out = quoted(os.path.abspath(to))
    document, plugins = prepared.document, prepared.plugins
    counts = message_counts(queues, prepared.unknown)
    total = sum(counts.values())
    lines = [
        f"# Into a RabbitMQ {version} node",
        "",
        f"{count(total, 'message')} in {count(sum(map(bool, counts.values())), 'queue')}. Run the commands as root, in one bash, on",
        "the machine of the new node, in this order: a node deletes the messages of every queue that it does not know when it starts.",
        "",
        f"The old node: {written_by.version or 'its version is not known'} ({written_by.why}).",
        "",
        *(f"* Not here: {sentence}." for sentence in untold),
        *(("Get that first if it still exists, and run `mqstore rescue` again.", "") if untold else ()),
        f"1. Install RabbitMQ {version}. The node must be new, without queues, vhosts and messages.",
        "",
        "       systemctl start rabbitmq-server",
        "",
        "2. Import the definitions, and check that the node has all queues:",
        "",
        f"       chown rabbitmq {out}/definitions.json || true    # rabbitmqctl reads it as this user; it is for its owner only",
        f"       rabbitmqctl import_definitions {out}/definitions.json",
    ]
    for vhost in document["vhosts"]:
        own = sum(1 for queue in document["queues"] if queue["vhost"] == vhost["name"])
        lines.append(f"       rabbitmqctl -q list_queues -p {quoted(vhost['name'])} --no-table-headers name | wc -l    # {own}")
    if plugins:
        lines += ["", "   These need plug-ins, and are in a separate file, because a node without them ends the import:", ""]
        lines += [f"   * {plugin}: {', '.join(names)}" for plugin, names in plugins.items()]
        lines += [
            "",
            "   Until they are there, what clients publish to these exchanges is refused. Plug-ins that do not come with RabbitMQ must be",
            "   installed first; one named ? is not known here.",
            "",
            *(f"       rabbitmq-plugins enable {quoted(plugin)}" for plugin in plugins if plugin != "?"),
            f"       chown rabbitmq {out}/{OF_PLUGINS} || true",
            f"       rabbitmqctl import_definitions {out}/{OF_PLUGINS}",
        ]
    lines += [
        "",
        "   Do not go on if a queue is missing. If the plug-in rabbitmq_management is enabled, this names every definition that is:",
        "",
        f"       mqstore rescue {out} --check http://USER:PASSWORD@localhost:15672",
    ]
    if stores:
        lines += _stores_in_place(out, document, counts)
    lines += sending
    lines += ["", "## Not in the new node", ""]
    lines += [f"* {name}: such queues are not carried over." for name in prepared.others]
    if number := len(_carried(queues)):
        lines.append(
            f"* Members on other nodes, and the counts of deliveries, of {count(number, 'quorum queue')}: classic ones have neither."
        )
    lines += [
        f"* {count(number, 'message')} that the plug-in {PLUGIN} of node {node} holds until the time has come: `mqstore timers` with "
        "the old data directory lists them, with exchange, payload and time."
        for node, number in delayed.items()
    ]
    lines += [
        f"* {count(queue.messages, 'message')} of the directory {queue.directory}: no definition leads to it; the node deletes all of it."
        for queue in prepared.unknown
    ]
    ignored = f"RabbitMQ {version} ignores or refuses it"
    if broker.has_mirrors:
        ignored = f"newer releases ignore or refuse it; set it again if RabbitMQ {version} is to have it"
    lines += [f"* {what}: {ignored}." for what in prepared.dropped]
    if not users:
        lines.append(
            "* Users and permissions: `mqstore rescue --users` includes them. Without them, create users with access to each vhost."
        )
    lines.append("")
    return "\n".join(lines)


def _stores_in_place(out: str, document: dict[str, Any], counts: Counts) -> list[str]:
    """Return the lines that bring the converted stores into the new node."""
    return [
        "",
        "3. Find the data directory, then stop the node:",
        "",
        "       DATA=$(rabbitmq-diagnostics -q status | sed -n 's/^Node data directory: //p'); echo \"$DATA\"",
        "       systemctl stop rabbitmq-server",
        "",
        "4. Put the stores in place:",
        "",
        '       mv "$DATA/msg_stores" "$DATA.msg_stores.empty"',
        f'       cp -a {out}/msg_stores "$DATA/msg_stores"',
        '       chown -R --reference="$DATA" "$DATA/msg_stores"',
        "",
        "5. Start the node, and compare the numbers with the table below before anything consumes:",
        "",
        "       systemctl start rabbitmq-server",
        *list_commands(vhost["name"] for vhost in document["vhosts"]),
        "",
        *message_table(counts),
    ]


def replay_steps(data: Path, to: Path, replayed: Counts, step: int, *, by_name: bool = False) -> list[str]:
    """Return the lines that send the messages of quorum queues and streams; none if there are none. step: its number.

    by_name: not all that there are, but these.
    """
    if not any(replayed.values()):
        return []
    lines = [
        "",
        f"{step}. Send the messages of the quorum queues and streams out of the old directory, in their order. A line that was interrupted",
        "   goes on where it ended if it is run again. Give the name and password of a user who may write to the vhost. In a new stream",
        "   offsets begin at 0, and what consumers stored is not carried over: `mqstore topics -o json` with the old directory lists it.",
        "   The limits of a stream, x-max-length-bytes and x-max-age, apply to what is sent, whose age begins now.",
        "",
    ]
    own, out = quoted(os.path.abspath(data)), os.path.abspath(to)
    for number, vhost in enumerate(sorted({vhost for (vhost, _), messages in replayed.items() if messages}), 1):
        target = f"amqp://USER:PASSWORD@localhost:5672/{quote(vhost, safe='')}"
        resume = quoted(f"{out}/replayed-{number}")
        chosen = "".join(f" --queue {quoted(name)}" for (of, name), messages in replayed.items() if by_name and of == vhost and messages)
        types = f"--vhost {quoted(vhost)}{chosen} --queue-type quorum --queue-type stream"
        lines.append(f"       mqstore replay {own} {types} --to {target} --resume {resume}")
    return [*lines, "", *message_table(replayed)]


def _cell(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text).replace("|", "\\|")


def steps_in_place(
    node: str,
    data: Path,
    to: Path,
    queues: Sequence[QueueReport],
    unknown: Sequence[QueueReport],
    others: Sequence[str],
) -> str:
    """Return the text. node: its name; data, to: the old data directory, and that with the new stores; the rest as in `InPlaceReport`."""
    own = Path(os.path.abspath(data))
    counts = message_counts(queues, unknown)
    vhosts = sorted({vhost for vhost, _ in counts})
    lines = [
        "# RabbitMQ 4.3 on the data directory of an older node",
        "",
        f"{count(sum(counts.values()), 'message')} in {count(sum(map(bool, counts.values())), 'queue')}. Run the commands as root, in one",
        f"bash, on the machine of the node, in this order. The new node must have the name of the old one, `{node}`. The old data",
        "directory is moved aside and stays as it is, and a copy of it without its messages gets the converted ones.",
        "",
        "1. Stop the old node, and move its data directory to where no other node finds it: installing RabbitMQ may start one, and",
        "   4.3 deletes the messages of older queues without a word. If this is not the data directory, but a copy, change the line.",
        "",
        f"       DATA={quoted(str(own))}",
        "       systemctl stop rabbitmq-server",
        '       mv "$DATA" "$DATA.before"',
        '       if [ -e "$DATA-feature_flags" ]; then mv "$DATA-feature_flags" "$DATA.before-feature_flags"; fi',
        "",
        "2. Install RabbitMQ 4.3, and stop the node that this may have started. What it made is moved aside too.",
        "",
        "       systemctl stop rabbitmq-server",
        '       if [ -e "$DATA" ]; then mv "$DATA" "$DATA.empty"; fi',
        '       rm -f "$DATA-feature_flags"',
        "",
        "3. Copy the old directory without its messages and feature flags, and put the converted messages in place:",
        "",
        '       mkdir "$DATA"',
        '       tar -C "$DATA.before" --exclude=./msg_stores --exclude=./feature_flags -cf - . | tar -C "$DATA" -xpf -',
        f'       cp -a {quoted(os.path.abspath(to))}/msg_stores "$DATA/msg_stores"',
        '       chown -R --reference="$DATA.before" "$DATA"',
        "",
        "4. Start the node, and compare the numbers with the table below before anything consumes:",
        "",
        "       systemctl start rabbitmq-server",
        *list_commands(vhosts),
        "",
        *message_table(counts),
        "",
        "## To go back",
        "",
        "The old directory has everything that it had; what clients did on the new node is not in it.",
        "",
        "       systemctl stop rabbitmq-server",
        '       mv "$DATA" "$DATA.new"',
        '       if [ -e "$DATA-feature_flags" ]; then mv "$DATA-feature_flags" "$DATA.new-feature_flags"; fi',
        "",
        "Install the older version again, and stop the node that this may have started.",
        "",
        "       systemctl stop rabbitmq-server",
        '       if [ -e "$DATA" ]; then mv "$DATA" "$DATA.empty.old"; fi',
        '       rm -f "$DATA-feature_flags"',
        '       mv "$DATA.before" "$DATA"',
        '       if [ -e "$DATA.before-feature_flags" ]; then mv "$DATA.before-feature_flags" "$DATA-feature_flags"; fi',
        "       systemctl start rabbitmq-server",
        "",
        "## What is not converted",
        "",
    ]
    lines += [f"* {name}: its files stay as they are; `mqstore diagnose --for 4.3` says what the node makes of them." for name in others]
    lines += [
        f"* {count(queue.messages, 'message')} of the directory {queue.directory}: the metadata has no queue for it; the new node "
        "deletes all of it; `mqstore rescue` without `--in-place` defines such queues."
        for queue in unknown
    ]
    if not others and not unknown:
        lines.append("Nothing.")
    lines.append("")
    return "\n".join(lines)
