"""Diagnosis of a RabbitMQ store: what a node of a version would make of it, and what to do first.

What the node loses of files that it can read is decided by the one model of loss, `store.fate`. Added here is what depends on the version
and on the node:

    4.3 and later     does not know version 1 queues: it starts, reports nothing and deletes every message of them
    before 3.10       does not know version 2 queues: they start empty
    before 3.13       crashes on messages that a newer node stored (message containers)
    4.3, 3.x node     the file `feature_flags` of a 3.x node keeps it from starting
    another name      a node does not know the queues of a node of another name, and deletes their directories

Nothing is written.

Format: docs/formats/rabbitmq.md, sections 7, 11 and 12.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mqstore.diagnosis import Advice, Diagnosis, Evidence
from mqstore.errors import CannotOpenError
from mqstore.findings import Kind, Report
from mqstore.rabbitmq.convert.broker_version import NEWEST_NODE, BrokerVersion, node_version
from mqstore.rabbitmq.format.layout import mapped_bytes
from mqstore.rabbitmq.repair.plan import plan
from mqstore.rabbitmq.repair.queue_step import QueueStep
from mqstore.rabbitmq.store.listing import queue_rows, unread_parts
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.verify import verify
from mqstore.table.columns import QueueSelection
from mqstore.table.formatting import command, count

START = "rabbitmq-server"

_OF_OTHER_NODES = frozenset({"feature-flags", "message-containers", "other-node"})
_NODE = re.compile(r"[A-Za-z0-9_.-]+@[A-Za-z0-9_.-]+")


def diagnose(store: RabbitMQStore, version: str | None = None, *, progress: Callable[[int, int], None] | None = None) -> Diagnosis:
    """Return what a node makes of a store. version: of the node, by default the one that the files suggest. Raises MqstoreError."""
    name = version or _likely_version(store)
    return _Work(store, name, node_version(name)).run(progress)


def advise(store: RabbitMQStore, report: Report | None = None) -> Advice:
    """Return what to do next with a store, from names and indexes, and the report of `verify` if there is one."""
    name = _likely_version(store, read_messages=False)
    return _Work(store, name, node_version(name)).advice_after(report)


def _small(store: RabbitMQStore, relative: str) -> bytes:
    try:
        return store.directory.read(relative) or b""
    except CannotOpenError:
        return b""


def _likely_version(store: RabbitMQStore, *, read_messages: bool = True) -> str:
    """Return the version that the files suggest: its feature flags, else the versions of its queues and messages."""
    if flags := flags_of_4(store):
        return f"4.{min(max(flags), int(NEWEST_NODE[2:]))}"
    if any(queue.version == 1 for queue in store.queues):
        return "3.10" if all(vhost.config_there for vhost in store.vhosts) else "3.8"
    return "4.0" if read_messages and any(are_containers(store)) else "3.10"


class _Work:
    def __init__(self, store: RabbitMQStore, name: str, version: BrokerVersion) -> None:
        self.store = store
        self.name = name
        self.version = version
        self.obstacles: list[Evidence] = []
        self.evidence: list[Evidence] = []
        self.changes: list[str] = []
        self.unknown: list[str] = []
        self.harmless = True
        self.loses = 0
        self.intact = False  # `verify` found no damage

    def advice_after(self, report: Report | None) -> Advice:
        """Return what is known without a diagnosis. report: of `verify`; None: stored messages have not been read."""
        self._check_vhosts()
        if report is not None:
            self.intact = not report.damage
            self._check_steps()
        if self.obstacles:
            return Advice(False, *self._advice(starts=False, loses=0))
        if report is not None and self._other_node() is None and not (self.unknown or unread_parts(self.store, checked=True)):
            affected = sum(item.messages for item in report.damage)
            if affected or not report.damage:
                return Advice(None if affected else True, *self._advice(starts=True, loses=affected))
        what = "every message is looked up" if report is None else "it also asks what depends on the node and its version"
        sentence = f"see whether a node starts on it, and which messages it does not deliver; {what}"
        return Advice(None, command("mqstore", "diagnose", self.store.path), sentence)

    def run(self, progress: Callable[[int, int], None] | None) -> Diagnosis:
        rows = list(queue_rows(self.store))
        other = self._other_node()
        self._check_vhosts()
        self._check_feature_flags()
        if other is not None:
            messages = sum(row["messages"] + row["lost"] + row["waiting"] for row in rows)
            self._lose(messages, "other-node", ".", f"{other}: it deletes the directories of queues that it does not know")
            self.unknown.append("whether a node starts on the metadata of a node of another name")
        else:
            for row in rows:
                self._take_queue(row)
            self._check_containers()
            self._check_streams()
        redelivers = 0 if self.obstacles or other is not None else sum(self._marked())
        report = verify(self._careful, progress)
        self.intact = not report.damage
        self.evidence += [Evidence.of(item) for item in report.damage]
        self.evidence += [Evidence("note", ".", note) for note in report.notes]
        self.unknown += [f"what is in {item.file}: {item.detail}" for item in report.damage if item.kind is Kind.UNREADABLE]
        self.unknown += [f"whether the node keeps every message of {part}" for part in unread_parts(self.store, checked=True)]
        if self._without_metadata() and other is None:
            self.evidence.append(
                Evidence("note", ".", "the answer is for a node that has the definitions of these queues; all others it deletes")
            )
        if not self.obstacles and other is None:
            self._check_steps()
        starts = not self.obstacles
        loses = self.loses if starts else 0
        next_, why = self._advice(starts, loses)
        return Diagnosis(
            store=str(self.store.path),
            family="rabbitmq",
            version=self.name,
            rules=self.name,
            starts=starts,
            loses=loses,
            redelivers=redelivers,
            next=next_,
            why=why,
            changes=tuple(self.changes),
            harmless=self.harmless and not any(item.messages for item in report.damage),
            unknown=tuple(dict.fromkeys(self.unknown)),
            evidence=(*self.obstacles, *self.evidence),
        )

    def _lose(self, messages: int, finding: str, file: str, sentence: str) -> None:
        self.harmless = False
        self.loses += messages
        self.evidence.append(Evidence(finding, file, sentence, messages=messages))

    # whether it starts

    def _check_vhosts(self) -> None:
        for vhost in self.store.vhosts:
            for refusal in vhost.refusals:
                sentence = f"{refusal}: vhost {vhost.name or vhost.directory!r} does not start, and the node waits for it"
                self.obstacles.append(Evidence("broker-crash", vhost.place.place or ".", sentence))

    def _without_metadata(self) -> bool:
        return not any(
            self.store.directory.exists(name) for name in ("rabbit_durable_queue.DCD", "schema.DAT", "cluster_nodes.config", "coordination")
        )

    def _check_feature_flags(self) -> None:
        if (
            not self.version.wants_flags
            or self._without_metadata()
            or not self.store.directory.exists("feature_flags")
            or flags_of_4(self.store)
        ):
            return
        sentence = "it was written by a 3.x node and lacks flags that the version requires"
        if self.version.ends_without_flags:
            self.obstacles.append(
                Evidence("feature-flags", "feature_flags", f"{sentence}: the node ends with disabled_required_feature_flag")
            )
        else:
            self.unknown.append(f"whether the node starts with this file `feature_flags`: {sentence.removeprefix('it ')}")

    def _other_node(self) -> str | None:
        """Return why the node that would start on this directory does not know its queues; None if nothing indicates it."""
        name = self.store.directory.root.name
        if _NODE.fullmatch(name) is None:
            return None
        known = set(_NODE.findall(_small(self.store, "cluster_nodes.config").decode("latin-1")))
        for system in ("quorum", "coordination"):
            if self.store.directory.is_directory(system):
                known |= {entry.name for entry in self.store.directory.entries(system) if _NODE.fullmatch(entry.name)}
        if not known or name in known:
            return None
        return f"the directory is that of node {name}, but the metadata in it is of {', '.join(sorted(known))}"

    # what it loses

    def _take_queue(self, row: dict[str, Any]) -> None:
        where = f"vhost {row['vhost']!r}, queue {row['queue']!r}"
        path = str(row["directories"][0]) if isinstance(row["directories"], list) and row["directories"] else "."
        listed = row["messages"] + row["lost"] + row["waiting"]
        if row["queue_version"] == 1 and self._unread(1):
            sentence = (
                f"{where} is a version 1 queue, which {self.name} does not read: the node starts, reports nothing and deletes its messages"
            )
            self._lose(listed, "queue-version", path, f"{sentence} ({count(listed, 'message')})")
            return
        if row["queue_version"] == 2 and self._unread(2):
            sentence = f"{where} is a version 2 queue, which {self.name} does not read: it starts empty"
            self._lose(listed, "queue-version", path, f"{sentence} ({count(listed, 'message')})")
            return
        if row["lost"]:
            self._lose(row["lost"], "lost", path, f"{count(row['lost'], 'message')} of {where}, as the findings say")
        if row["waiting"]:
            sentence = f"{count(row['waiting'], 'message')} of {where}, which does not start: they stay in the files and are not delivered"
            self._lose(row["waiting"], "waiting", path, sentence)
        if row["transient"]:
            self.harmless = False
            self.changes.append(f"drops {count(row['transient'], 'transient message')} of {where}, as at every start")

    def _check_containers(self) -> None:
        if not self.version.crashes_on_containers:
            return
        containers = sum(are_containers(self.store))
        if containers:
            sentence = f"{count(containers, 'message')} in the form of 3.13 and later ({{mc, …}}), on which a {self.name} node crashes"
            self.obstacles.append(Evidence("message-containers", ".", sentence, messages=containers))

    def _check_streams(self) -> None:
        for named, examined in self._careful.examined_streams:
            start = examined.node_start()
            for change in start.changes:
                if change.messages:
                    what = f"{change.change.replace('-', ' the ')} {change.file}, because {change.detail}"
                    sentence = f"{named}: the node {what}: {count(change.messages, 'message')} from offset {change.first} on"
                    self._lose(change.messages, str(change.change), change.file, sentence)
            if start.stops_at is not None:
                self.harmless = False
                left = count(start.kept - start.delivered, "message")
                sentence = f"{named}: a reader that starts at the beginning stops at offset {start.stops_at}, and {left} after it are there"
                self.evidence.append(Evidence("reader-stops", named.stream.place, f"{sentence}: {start.stops_why}"))

    def _unread(self, queue_version: int) -> bool:
        return queue_version not in self.version.reads

    def _marked(self) -> Iterator[int]:
        """Yield how many messages of each piece of a queue the node delivers with the flag `redelivered`."""
        for rows in self.store.rows(QueueSelection(recovered=True)):
            if not self._unread(rows.table.version):
                yield int((rows.table.kept & rows.table.redelivered).sum())

    # what to do

    @cached_property
    def _careful(self) -> RabbitMQStore:
        """The store as `verify` and `repair` read it; they share its scan of the message files."""
        return self.store.carefully()

    @cached_property
    def _steps(self) -> list[QueueStep]:
        """What `repair` would change."""
        return [step for step in plan(self._careful, intact=self.intact) if step.possible]

    def _check_steps(self) -> None:
        """Add what keeps the node from starting, or makes a queue fail, and is not in the messages that it loses."""
        for step in self._steps:
            if step.kind == "take-out":
                sentence = f"{step.why.partition(':')[0]}: {step.otherwise}"
                if step.otherwise.startswith("the queue"):
                    self.unknown.append(f"which messages the queue of {step.file} delivers: {sentence}")
                else:
                    self.obstacles.append(Evidence("broker-crash", step.file, sentence))
            elif step.kind in ("config", "terms", "clean-markers", "unreadable", "lost-index") or "crashes when" in step.otherwise:
                self.unknown.append(f"what it makes of {step.file}: {step.why.partition(': ')[0]}, and {step.otherwise}")

    def _advice(self, starts: bool, loses: int) -> tuple[str, str]:
        store = self.store.path
        old = any(queue.version == 1 for queue in self.store.queues) and self._unread(1)
        new = any(queue.version == 2 for queue in self.store.queues) and self._unread(2)
        other = any(item.finding in _OF_OTHER_NODES for item in (*self.obstacles, *self.evidence))
        if old or new or other:
            directory = self.store.directory
            if directory.root == Path(store) and directory.is_directory("msg_stores") and not self._without_metadata():
                target = self.version.name
                return (
                    command("mqstore", "rescue", store, "--to", f"{store}.new", "--for", target),
                    f"prepare queues, definitions and steps for a node of {target}; start none on this directory",
                )
        if old or new or any(item.finding == "message-containers" for item in self.obstacles):
            return (
                command("mqstore", "convert", store, "--to", f"{store}.new", "--for", self.name),
                f"write the queues in a form that {self.name} reads, before a node of that version starts",
            )
        if starts and not loses and not self.unknown:
            return START, "start the node: it keeps every persistent message"
        if self.store.directory.root == Path(store) and self._steps:
            return command("mqstore", "repair", store), "list what can be repaired before a node starts; nothing is changed"
        return (
            command("mqstore", "salvage", store, "--to", f"{store}.jsonl"),
            "save every message that can be read before a node starts",
        )


# ---- which version's node wrote a RabbitMQ store last, as far as its files show it, and by which of them
#
# Nothing in `msg_stores` states the version. In order:
#
#     feature_flags of a data directory    names `rabbitmq_4.N.0` for each 4.x version whose flags are on
#     redeliver_seq_id in recovery.dets    4.3
#     message containers                   3.13 and later; version 1 queues with them: up to 4.2
#     other stored messages                before 3.13, or stored before an upgrade
#
# Without metadata and without a stored message the version cannot be known.
#
# Format: docs/formats/rabbitmq.md, sections 7, 8.3 and 11.

LOOKED_AT = 10_000  # messages

_CONTAINER = re.compile(rb"\x83h\x04(?:d\x00|[ws])\x02mc")  # {mc, …}: a tuple of four whose first element is that atom
_FLAG_OF_4 = re.compile(rb"rabbitmq_4\.(\d{1,2})\.0")


class VersionEvidence(NamedTuple):
    """version: as text, None if nothing shows it. why: what in the files does, or what is missing."""

    version: str | None
    why: str


def flags_of_4(store: RabbitMQStore) -> list[int]:
    """Return the minor versions of 4.x that the file `feature_flags` names."""
    return [int(flag[1]) for flag in _FLAG_OF_4.finditer(_small(store, "feature_flags"))]


def are_containers(store: RabbitMQStore) -> Iterator[bool]:
    """Yield, for each stored message, whether it is a message container, as nodes from 3.13 on write them."""
    for rows in store.rows(QueueSelection()):
        table = rows.table
        for row in np.flatnonzero(table.source >= 0).tolist():
            data = mapped_bytes(store.directory, table.sources[int(table.source[row])][0])
            at = int(table.at[row])
            yield data is not None and _CONTAINER.match(data[at : at + 16].tobytes()) is not None


def version_evidence(store: RabbitMQStore) -> VersionEvidence:
    """Return what the files suggest; at most `LOOKED_AT` messages are looked at."""
    if flags := flags_of_4(store):
        return VersionEvidence(f"4.{max(flags)}", f"the file feature_flags names rabbitmq_4.{max(flags)}.0")
    if any(terms.redeliver is not None for vhost in store.vhosts for terms in vhost.terms.values()):
        return VersionEvidence("4.3", "recovery.dets has redeliver_seq_id, which 4.3 writes")
    count = 0
    for container in islice(are_containers(store), LOOKED_AT):
        if container:
            if any(queue.version == 1 for queue in store.queues):
                return VersionEvidence("3.13 to 4.2", "a stored message is a message container, and there are version 1 queues")
            return VersionEvidence("3.13 or later", "a stored message is a message container, which 3.13 and later write")
        count += 1
    if not count:
        return VersionEvidence(None, "no message is stored and no feature flag of 4.x is named: nothing shows the version")
    oldest = "3.10" if any(queue.version == 2 for queue in store.queues) else "3.8"
    return VersionEvidence(f"{oldest} to 3.12", "no stored message that was looked at is a message container, which 3.13 and later write")
