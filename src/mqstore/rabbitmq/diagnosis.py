"""Diagnosis of a RabbitMQ store: what a node of a version would make of it, and what to do first.

What the node loses of files that it can read is decided by the one model of loss, `store.fate`. Added here is what depends on the version
and on the node:

    4.3 and later     does not know version 1 queues: it starts, reports nothing and deletes every message of them
    before 3.10       does not know version 2 queues: they start empty
    before 3.13       crashes on messages that a newer node stored (message containers)
    from 3.11 on      does not start on the feature flags of a node that lacks one that the version requires (`definitions.feature_flags`)
    before 3.11       does not start where a newer node has deleted the table rabbit_listener
    another name      a node does not start if cluster_nodes.config or schema.DAT is of other nodes (tried with 3.10.8); without them it
                      does not know the queues of a node of another name, and deletes their directories

Nothing is written.

Format: docs/formats/rabbitmq.md, sections 7, 11 and 12.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mqstore.diagnosis import Diagnosis, Evidence, Way, second_name
from mqstore.files import DirectoryEntry
from mqstore.findings import Advice, Kind, Report
from mqstore.rabbitmq.broker_version import BrokerVersion, node_version
from mqstore.rabbitmq.definitions.feature_flags import DELETES_LISTENERS, missing_flags, order, releases, unknown_flags
from mqstore.rabbitmq.definitions.known_directories import knows_no_queue, lacks_metadata
from mqstore.rabbitmq.definitions.metadata import SCHEMA
from mqstore.rabbitmq.delayed import delayed_sentences
from mqstore.rabbitmq.erlang.dets import NOT_A_TABLE
from mqstore.rabbitmq.format.layout import (
    IGNORED,
    NAME_FILE,
    NODE_NAME,
    cluster_nodes,
    has_other_queues,
    leads_elsewhere,
    node_name,
    small_file,
)
from mqstore.rabbitmq.format.names import vhost_directory
from mqstore.rabbitmq.listing import queue_rows, quorum_rows, unread_parts
from mqstore.rabbitmq.quorum.examination import ExaminedNode, ExaminedQueue
from mqstore.rabbitmq.quorum.facts import REDELIVERY_FAILS, damaged_logs
from mqstore.rabbitmq.quorum.raft_log import raft_systems
from mqstore.rabbitmq.repair.plan import LOCKING, plan, stored_ids
from mqstore.rabbitmq.repair.queue_step import QueueStep, completed
from mqstore.rabbitmq.site import absent_queues
from mqstore.rabbitmq.store.stated_parts import MissingFile
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.streams.examination import Examination
from mqstore.rabbitmq.streams.stream import SEGMENT_BYTES, NamedStream
from mqstore.rabbitmq.verify import verify
from mqstore.rabbitmq.version import are_containers, flags_of, lacks_schema_version, likely_version
from mqstore.repair.change import renames
from mqstore.repair.journal import is_copied, why_refused
from mqstore.table.columns import QueueSelection
from mqstore.table.formatting import agreeing, command, count, is_real_copy, real_copy

START = "rabbitmq-server"

# tried with a 3.10.8 node
_NOT_EMPTY = {
    "schema.DAT": "failed_to_start mnesia",
    "cluster_nodes.config": "corrupt_cluster_status_files",
    "nodes_running_at_shutdown": "corrupt_cluster_status_files",
    "schema_version": "case_clause in rabbit_version",
}
_SERIAL = "rabbit_serial"
_SERIAL_ENDS = "cannot_read_serial_file, or badarith in rabbit_guid"
# the one number in it that `rabbit_guid` of 3.10.8 adds 1 to; blanks are as `erl_scan` has them, and an empty file is 0
_NUMBER = re.compile(
    rb"[\x00-\x20\x80-\xa0]*(?:[+-]?[\x00-\x20\x80-\xa0]*(?:\d+(?:_\d+)*(?:#[0-9A-Za-z]+|\.\d+(?:[eE][+-]?\d+)?)?|\$[^\\])"
    rb"[\x00-\x20\x80-\xa0]*\.(?:[\x00-\x20\x80-\xa0]+|$))?"
)
_FILES = frozenset({*_NOT_EMPTY, "LATEST.LOG", _SERIAL})
_DIRECTORIES = frozenset({"msg_stores", "quorum", "coordination", "stream"})
_TERMS = {  # how the texts among them begin and end, blanks left out
    "cluster_nodes.config": (b"{[", b"]}."),
    "nodes_running_at_shutdown": (b"[", b"]."),
    "schema_version": (b"[", b"]."),
}
_MENDED = frozenset({"stale-tables", "wrong-terms"})  # a repair mends them, although no message may be lost
_WRITTEN = frozenset({".rdq", ".jif", ".idx", ".qi", ".wal", ".segment"})  # where a node goes on in files that are there
_CLIENTS_STOP = frozenset(
    {"bodies-missing", "reader-stops"}
)  # clients do not get past a damaged message, although the node has those after it
_OF_OTHER_NODES = frozenset({"feature-flags", "message-containers", "other-node", "damaged-schema", "empty-file"})


def diagnose(store: RabbitMQStore, version: str | None = None, *, progress: Callable[[int, int], None] | None = None) -> Diagnosis:
    """Return what a node makes of a store. version: of the node, by default the one that the files suggest. Raises MqstoreError."""
    name = version or likely_version(store)
    return _Work(store, name, node_version(name), asked=version is not None).run(progress)


def _listed(row: dict[str, Any]) -> int:
    """Return the messages of a queue that are not acknowledged, transient ones left out."""
    return int(row["messages"] + row["lost"] + row["waiting"])


def _without(absent: Sequence[str]) -> str:
    """Return why it is not known what is kept, as the predicate of a sentence. absent: paths of what is not here."""
    return f"cannot be told without {_first_of(absent)}" if absent else ""


def _first_of(paths: Sequence[str]) -> str:
    """Return the first of some paths, and how many others there are."""
    first, *others = dict.fromkeys(paths)
    return f"{first} and {len(others):,} more" if others else first


def advise(store: RabbitMQStore, report: Report | None = None) -> Advice:
    """Return what to do next with a store, from names and indexes, and the report of `verify` if there is one."""
    name = likely_version(store, read_messages=False)
    return _Work(store, name, node_version(name)).advice_after(report)


class _Work:
    def __init__(self, store: RabbitMQStore, name: str, version: BrokerVersion, *, asked: bool = False) -> None:
        self.store = store
        self.name = name
        self.version = version
        self.asked = asked
        self.obstacles: list[Evidence] = []
        self.evidence: list[Evidence] = []
        self.changes: list[str] = []
        self.unknown: list[str] = []
        self.harmless = True
        self._limited = 0  # messages that limits of streams delete once a client comes
        self.loses = self.again = 0
        self._deleted: set[tuple[str | None, str | None]] = set()  # queues that the node does not know, by vhost and name
        self._keeps: list[int] = []  # messages of each queue after a repair
        self.gained = 0  # messages that only a repair brings back
        self.intact = False  # `verify` found no damage

    def advice_after(self, report: Report | None) -> Advice:
        """Return what is known without a diagnosis. report: of `verify`; None: stored messages have not been read."""
        self._check_vhosts()
        if report is not None:
            self.intact = not report.damage
            self._check_feature_flags()
            self._check_small_files()
            self._check_steps()
        if self.obstacles:
            return Advice(False, *self._advice(starts=False, loses=0))
        if report is not None and self._other_node() is None and not (self.unknown or unread_parts(self.store)):
            affected = sum(item.messages for item in report.damage)
            if affected or (not report.damage and self._has_all()):
                return Advice(None if affected else True, *self._advice(starts=True, loses=affected))
        what = "every message is looked up" if report is None else "it also asks what depends on the node and its version"
        sentence = f"see whether a node starts on it, and which messages it does not deliver; {what}"
        return Advice(None, self.store.command("diagnose"), sentence)

    def _has_all(self) -> bool:
        """Return whether every queue has its directory, every directory is one of a queue that the node knows, and no log of a quorum queue
        leaves a question."""
        nodes = self.store.examined_quorum
        return (
            not any(each.sure or each.may_have_been_empty for each in absent_queues(self.store))
            and not any(map(self._unknown_queue, queue_rows(self.store)))
            and not any(node.facts or any(queue.facts or queue.uncertain for queue in node.queues) for node in nodes)
        )

    def run(self, progress: Callable[[int, int], None] | None) -> Diagnosis:
        rows = list(queue_rows(self.store))
        other = self._other_node()
        self._check_vhosts()
        self._check_feature_flags()
        self._check_small_files()
        if other is not None:
            members = cluster_nodes(self.store.directory)
            if (members or self.store.directory.exists(SCHEMA)) and self.version.starts_renamed is False:
                sentence = f"{other}: it does not start, as it reaches none of these nodes (failed_to_cluster_with, tried with 3.10.8)"
                self.obstacles.append(Evidence("other-node", "cluster_nodes.config" if members else SCHEMA, sentence))
            else:
                messages = sum(_listed(row) for row in rows)
                self._lose(messages, "other-node", ".", f"{other}: it deletes the directories of queues that it does not know")
                self.unknown.append("whether a node starts on the metadata of a node of another name")
        else:
            for row in rows:
                if row["vhost"] in self._renamed:
                    sentence = (
                        f"the node looks for vhost {row['vhost']!r} in a directory {vhost_directory(row['vhost'])}, and finds nothing of"
                        f" queue {row['queue']!r}: give this one that name"
                    )
                    self._lose(_listed(row), "unknown-directory", self._renamed[row["vhost"]], sentence)
                elif why := self._unknown_queue(row):
                    self._deleted.add((row["vhost"], row["queue"]))
                    messages = _listed(row)
                    self._lose(messages, "unknown-queue", str(row["directories"][0]), f"{why} ({count(messages, 'message')})")
                else:
                    self._take_queue(row)
            self._check_containers()
            self._check_streams()
            self._check_quorum()
        for system in raft_systems(self.store.directory, "coordination"):
            self.obstacles += [Evidence(fact.name, fact.place, fact.what) for fact in damaged_logs(system)]
        unread = [item for item in self.store.definitions.damage if item.kind is not Kind.MISSING_PART and item.file != SCHEMA]
        if unread and not self._without_metadata():
            damage = unread[0]
            what = "which queues the node knows, and it deletes the directories of all others"
            self.unknown.append(f"{what}: {damage.file} cannot be read whole: {damage.detail}")
        if not self.obstacles and other is None:
            self._check_marked()
        redelivers = 0 if self.obstacles or other is not None else self.again
        report = verify(self._careful, progress)
        self.intact = not report.damage
        self.evidence += [Evidence.of(item) for item in report.damage]
        absent = absent_queues(self.store)
        doubtful = [each.sentence for each in absent if each.may_have_been_empty]
        notes = [note for note in report.notes if note not in (*doubtful, *self._facts_of_quorum())]
        self.evidence += [Evidence("note", ".", note) for note in (*notes, *delayed_sentences(self.store), *self._without_name())]
        self.unknown += [f"what is in {item.file}: {item.detail}" for item in report.damage if item.kind is Kind.UNREADABLE]
        named = [each.sentence for each in absent if each.sure]
        self.unknown += named
        self.evidence += [
            Evidence("note", each.path or ".", f"{each.title} has no directory: it is empty, unless it was not copied")
            for each in absent
            if not each.sure and each.listed
        ]
        gone = [item for item in report.damage if item.kind is Kind.ABSENT_PART and item.detail not in named]
        self.unknown += [f"what of {item.file} is gone: {item.detail}" for item in gone]
        self.unknown += [f"whether the node keeps every message of {part}" for part in unread_parts(self.store)]
        if self._without_metadata() and other is None:
            if self._is_of_node():
                self.unknown.append(
                    "which queues the node knows, and it deletes the directories of all others: that cannot be told without its metadata "
                    "(schema.DAT and the tables of Mnesia, or Khepri in coordination/), which is not here"
                )
            else:
                self.evidence.append(
                    Evidence("note", ".", "the answer is for a node that has the definitions of these queues; all others it deletes")
                )
        if not self.obstacles and other is None:
            self._check_steps()
        starts = not self.obstacles
        loses = self.loses if starts else 0
        every = (*rows, *quorum_rows(self._careful))
        listed = sum(_listed(row) for row in every) + self.gained
        for _, examined in self._careful.examined_streams:
            start = examined.node_start()
            listed += start.kept + start.lost + examined.unread
        delivered = max(0, listed - loses)
        next_, why = self._advice(starts, loses, delivered)
        if doubtful:
            self.unknown += doubtful
            why = f"if the queues without a directory were always empty: {why}" if next_ == START else why
        root = self.store.directory.root
        if next_ == START and root == Path(self.store.path):
            written = sorted(os.path.relpath(path, root) for path in root.rglob("*.*") if path.suffix in _WRITTEN)
            self.evidence += second_name(root, written, "node", real_copy(root)[0])
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
            evidence=(*self.obstacles, *sorted(self.evidence, key=lambda item: item.finding in ("redelivered", "note"))),
            without=_without([*(each.path for each in absent if each.sure and not each.nodes and each.path is not None), *self._outside]),
            ways=self._ways(Way(next_, why), starts, delivered),
        )

    def _ways(self, advised: Way, starts: bool, delivered: int) -> tuple[Way, ...]:
        """Return the possible next commands, the advised one first. delivered: what the node delivers of the store as it is."""
        ways = {advised.next: advised}
        for first in (self._copy, self._missing):
            if first is not None:
                ways.setdefault(first.next, first)
        if self._repair is not None:
            ways.setdefault(self._repair.next, self._repair)
        ways.setdefault(self._salvage.next, self._salvage)
        if starts:
            ways.setdefault(START, Way(START, "start the node on it as it is"))
        readable = sum(self._keeps) if self._steps or self._keeps else None
        keeps: dict[str, int | None] = {START: delivered}
        # what is in files that are not here cannot be told
        keeps |= {first.next: None for first in (self._copy, self._missing) if first is not None}
        if self._repair is not None and readable is not None:  # what the node deletes is deleted then, too
            deleted = sum(item.messages for item in self.evidence if item.finding == "unknown-queue")
            keeps.setdefault(self._repair.next, max(0, readable - deleted))
        return tuple(Way(way.next, way.why, keeps.get(way.next, readable)) for way in ways.values())

    @cached_property
    def _renamed(self) -> dict[str, str]:
        """The directories below `msg_stores/vhosts` that are not named as the node names that of their vhost, by vhost."""
        vhosts = [vhost for vhost in self.store.vhosts if vhost.name is not None and vhost.place.place.startswith("msg_stores/vhosts/")]
        named = {vhost.name or "": vhost.place.place for vhost in vhosts if vhost.directory == vhost_directory(vhost.name or "")}
        return {vhost.name or "": vhost.place.place for vhost in vhosts if (vhost.name or "") not in named}

    def _unknown_queue(self, row: dict[str, Any]) -> str:
        """Return what a node does with a queue that the metadata, read whole, does not have; empty for one that it has."""
        names = row["directories"] if isinstance(row["directories"], list) else []
        known = self.store.known_directories
        if known is None or not names:
            return ""
        above = vhost_directory(row["vhost"] or "")
        if above not in known.vhosts:
            alone = f"leaves its queue {row['queue']!r} alone, and delivers nothing of it"
            return f"vhost {row['vhost']!r} is not in the metadata: the node {alone}"
        if not any(known.deleted(above, name) for name in names):
            return ""
        return f"queue {row['queue']!r} of vhost {row['vhost']!r} is not in the metadata: the node deletes its directory"

    @property
    def _knows_no_queue(self) -> bool:
        return knows_no_queue(self.store.definitions)

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
        return lacks_metadata(self.store.directory, self.store.definitions)

    def _is_of_node(self) -> bool:
        """Return whether more of a node's data directory is here than its message stores, or it has the name of a node."""
        directory = self.store.directory
        named = NODE_NAME.fullmatch(node_name(directory.root)) is not None
        return named or directory.exists("coordination") or has_other_queues(directory)

    def _check_feature_flags(self) -> None:
        """Say whether a node of the version starts with the feature flags of the one that wrote the metadata."""
        name = self.version.name
        flags = None if self._without_metadata() else flags_of(self.store)
        if flags is None:
            if self.asked and not self._without_metadata() and order(name) > order("3.10") and not self.version.starts_without_flags:
                self.unknown.append(
                    f"whether a {name} node starts: that cannot be told without the file <node>-feature_flags of the old node"
                )
            return
        if flags.enabled is None and self.version.starts_on_empty_files is False:
            ends = f"{flags.path} is not a list of feature flags: the node ends while it reads it; a copy of the list mends that"
            self.obstacles.append(Evidence("feature-flags", flags.path, ends))
        elif flags.enabled is None:
            self.unknown.append(f"whether a {name} node starts: {flags.path} is not a list of feature flags")
        if flags.enabled is None:
            return
        if unknown := unknown_flags(flags.enabled):
            self.unknown.append(f"whether a {name} node starts on {flags.path}: {unknown}")
        missing = missing_flags(flags.enabled, name)
        if missing:
            sentence = f"{flags.path} lacks {', '.join(missing)}, which {name} requires: the node ends with"
            ends = f"{sentence} failed_to_initialize_feature_flags_registry, disabled_required_feature_flag"
            self.obstacles.append(Evidence("feature-flags", flags.path, ends))
        elif self.version.has_listener_table and DELETES_LISTENERS in flags.enabled:
            sentence = f"{flags.path} has {DELETES_LISTENERS}, which deletes the table rabbit_listener: {name} ends with"
            self.obstacles.append(
                Evidence("feature-flags", flags.path, f"{sentence} schema_integrity_check_failed, table_missing rabbit_listener")
            )
        elif (oldest := releases(flags.enabled)) and order(oldest[0]) > order(name):
            self.unknown.append(f"whether a {name} node starts: {flags.path} has flags of {oldest[0]}, which {name} does not know")

    def _check_small_files(self) -> None:
        """Say which small files of the metadata are empty or damaged: a node does not start; and whether the log of Mnesia is there."""
        if self.store.directory.exists("schema.DAT") and not self.store.directory.exists("LATEST.LOG"):
            self.unknown.append(
                "what was declared last: that cannot be told without LATEST.LOG, which every node with a schema.DAT has; "
                "of a node that was killed, all queues may be in it alone"
            )
        for each in self.store.directory.entries():
            if each.is_directory if each.name in _FILES else each.is_file and each.name in _DIRECTORIES:
                what, place = ("directory", "file") if each.is_directory else ("file", "directory")
                self.unknown.append(f"whether a node starts: a {what} has the place of the {place} {each.name}")
        for name, ends in _NOT_EMPTY.items():
            entry = next((entry for entry in self.store.directory.entries() if entry.name == name), None)
            known = self.version.starts_on_empty_files is False
            if entry is None and known and name == "schema_version" and lacks_schema_version(self.store):
                state = "is missing"
            elif entry is None or self._is_whole(entry):
                continue
            else:
                state = "is damaged" if entry.size else "is empty"
            if known:
                self.obstacles.append(Evidence("empty-file", name, f"{name} {state}: the node ends with {ends}"))
            else:
                self.unknown.append(f"whether a {self.version.name} node starts: {name} {state}, on which 3.10 ends with {ends}")
        if not self._is_number(_SERIAL):
            sentence = f"{_SERIAL} has no number, and without the file a node begins with 0"
            if self.version.starts_on_empty_files is False:
                self.obstacles.append(Evidence("empty-file", _SERIAL, f"{sentence}: the node ends with {_SERIAL_ENDS}"))
            else:
                self.unknown.append(f"whether a {self.version.name} node starts: {sentence}; 3.10 ends with {_SERIAL_ENDS}")
        for item in self.store.definitions.damage:
            if item.file == SCHEMA and item.kind is not Kind.MISSING_PART:
                damaged = Evidence("damaged-schema", SCHEMA, f"{SCHEMA}, the list of all tables, is damaged: {item.detail}")
                if item.detail == NOT_A_TABLE:
                    self.obstacles.append(damaged)
                else:  # a node repairs it, and ends if it misses a table then
                    self.evidence.append(damaged)
                    self.unknown.append(f"whether a node starts, and with which tables: {SCHEMA} is damaged")

    def _is_number(self, name: str) -> bool:
        """Return whether a file has a number, is empty, or is not there or not readable."""
        text = small_file(self.store.directory, name) or b""
        return _NUMBER.fullmatch(re.sub(rb"%[^\n]*", b"", text)) is not None

    def _is_whole(self, entry: DirectoryEntry) -> bool:
        """Return whether a small file has what a node writes: something, and if it is a text, its term."""
        if not entry.size or entry.name not in _TERMS:
            return bool(entry.size)
        begins, ends = _TERMS[entry.name]
        content = small_file(self.store.directory, entry.name)
        text = b"".join((content or b"").split())
        return content is None or (text.startswith(begins) and text.endswith(ends))

    def _other_node(self) -> str | None:
        """Return why the node that would start on this directory does not know its queues; None if nothing indicates it."""
        name = node_name(self.store.directory.root)
        known = self._nodes_of_metadata()
        if NODE_NAME.fullmatch(name) is None or not known or name in known:
            return None
        return f"the directory is that of node {name}, but the metadata in it is of {', '.join(sorted(known))}"

    def _nodes_of_metadata(self) -> set[str]:
        known = set(cluster_nodes(self.store.directory))
        for system in ("quorum", "coordination"):
            if self.store.directory.is_directory(system):
                known |= {entry.name for entry in self.store.directory.entries(system) if NODE_NAME.fullmatch(entry.name)}
        return known

    def _without_name(self) -> Iterator[str]:
        """Yield which node is to start, if the name of the directory does not say it."""
        if NODE_NAME.fullmatch(node_name(self.store.directory.root)) is None and (known := self._nodes_of_metadata()):
            named = " or ".join(sorted(known))
            yield f"the metadata is of node {named}: only a node of this name starts on it (RABBITMQ_NODENAME), in whatever directory"

    # what it loses

    def _take_queue(self, row: dict[str, Any]) -> None:
        where = f"vhost {row['vhost']!r}, queue {row['queue']!r}"
        path = str(row["directories"][0]) if isinstance(row["directories"], list) and row["directories"] else "."
        listed = _listed(row)
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
            sentence = f"{count(row['waiting'], 'message')} of {where}, which does not start: kept in the files, and not delivered"
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
        mends_first = self.version.mends_streams_first
        for named, examined in self._careful.examined_streams:
            start = examined.node_start(mends_first=mends_first is not False)
            if mends_first is None and not start.refused:
                for change in examined.node_start(mends_first=False).refused:
                    why = f"3.10 does not, because of {change.file}: {change.detail}"
                    self.unknown.append(f"whether a {self.version.name} node starts {named}: {why}; 4.0 does")
            if self._knows_no_queue:
                self._not_started(str(named), named.stream.place, start.kept + start.lost)
                continue
            self.unknown += [f"{named}: {sentence}" for sentence in examined.uncertain]
            if examined.unread:
                sentence = f"{count(examined.unread, 'message')} of {named}, as the findings say"
                self._lose(examined.unread, "lost", named.stream.place, sentence)
            for change in start.changes:
                if change in start.refused and not change.messages:
                    self.harmless = False
                    sentence = f"{named}: the node does not start it, because of {change.file}: {change.detail}"
                    self.evidence.append(Evidence(str(change.change), change.file, sentence))
                if change.messages:
                    what = f"{change.change.replace('-', ' the ')} {change.file}, because {change.detail}"
                    if change in start.refused:
                        what = f"does not start it, because of {change.file}: {change.detail}"
                    sentence = f"{named}: the node {what}: {count(change.messages, 'message')} from offset {change.first} on"
                    self._lose(change.messages, str(change.change), change.file, sentence)
            if start.stops_at is not None:
                self.harmless = False
                left = count(start.kept - start.delivered, "message")
                sentence = f"{named}: a reader that starts at the beginning stops at offset {start.stops_at}, and {left} after it are there"
                self.evidence.append(Evidence("reader-stops", named.stream.place, f"{sentence}: {start.stops_why}"))

            if not start.changes:
                self._check_limit(named, examined)

    def _check_limit(self, named: NamedStream, examined: Examination) -> None:
        """Say what the limit of a stream deletes after the start, as soon as a client comes."""
        stream, queue = named.stream, self._careful.stream_definitions.get(named.stream.name)
        limit, most = (None, None) if queue is None else map(queue.limit, ("max-length-bytes", "stream-max-segment-size-bytes"))
        if type(limit) is not int or not stream.is_full(most if type(most) is int else SEGMENT_BYTES):
            return
        number = stream.limited_to(limit)
        messages = sum(segment.messages for segment in examined.segments[:number])
        if messages:
            when = "with the next message" if stream.tracking().is_empty else "for the first client"
            sentence = (
                f"{named}: its last segment is full, and {when} the node begins another one; then its limit of {limit:,} bytes deletes "
                f"{count(number, 'segment')} with {count(messages, 'message')}"
            )
            self.evidence.append(Evidence("note", stream.place, sentence, messages=messages))
            self.harmless = False
            self._limited += messages

    def _check_quorum(self) -> None:
        nodes = self._careful.examined_quorum
        used = self._used(nodes)
        if len(nodes) > 1 and used is None:
            places = " and ".join(node.place for node in nodes)
            self.unknown.append(f"which of {places} the node uses: the one with its name, which the files do not show")
        for node in nodes:
            unused = used is not None and node is not used
            for fact in node.facts:
                drops = self.version.drops_wrong_last if fact.wrong_last and not unused else True
                if drops is None:
                    self.unknown.append(f"whether a {self.version.name} node starts: {fact.place}: {fact.seen}; 3.8 does not, 3.10 does")
                elif not drops:
                    self.obstacles.append(Evidence(fact.name, fact.place, f"{fact.seen}; a {self.name} node does not start"))
                elif fact.stops and not unused:
                    self.obstacles.append(Evidence(fact.name, fact.place, fact.what))
                else:
                    self.evidence.append(Evidence(fact.name, fact.place, fact.what))
            if used is not None and unused:
                self._take_unused(node, used)
                continue
            for queue in node.queues:
                self._take_quorum_queue(queue)
        cluster = {name for node in nodes for queue in node.queues for _, name in queue.members}
        absent = sorted(cluster - {node.place.rpartition("/")[2] for node in nodes})
        if absent:
            why = "quorum queues, and from 4.x on the metadata, need a majority of their members"
            self.unknown.append(f"whether a node starts and delivers without {', '.join(absent)}: {why}")

    def _used(self, nodes: Sequence[ExaminedNode]) -> ExaminedNode | None:
        """Return the directory below `quorum` of the node that starts here; None if neither directory nor metadata state its name."""
        members = cluster_nodes(self.store.directory)
        names = {node_name(self.store.directory.root), *(members if len(members) == 1 else ())}
        used = [node for node in nodes if node.place.rpartition("/")[2] in names]
        return used[0] if len(used) == 1 else None

    def _take_unused(self, node: ExaminedNode, used: ExaminedNode) -> None:
        """Count the messages below the name of another node as lost, where the one that starts has no such queue."""
        names = {(queue.vhost, queue.queue) for queue in used.queues}
        both = [queue for queue in node.queues if (queue.vhost, queue.queue) in names and queue.total]
        if both:
            self.harmless = False
            self.unknown.append(
                f"what {node.place} has of {_first_of([*map(str, both)])} that {used.place} lacks: `mqstore members` compares them"
            )
        for queue in node.queues:
            if (queue.vhost, queue.queue) not in names and queue.recovered:
                sentence = f"{queue} is in {node.place}, and the node looks in {used.place} ({count(queue.recovered, 'message')})"
                self._lose(queue.recovered, "other-node", queue.place, sentence)

    def _facts_of_quorum(self) -> Iterator[str]:
        """Yield what `verify` notes of quorum queues: here each is evidence, or not known."""
        for node in self._careful.examined_quorum:
            yield from (fact.sentence for fact in node.facts)
            for queue in node.queues:
                yield from (f"{queue}: {sentence}" for sentence in (*(fact.sentence for fact in queue.facts), *queue.uncertain))

    def _not_started(self, queue: str, place: str, messages: int) -> None:
        sentence = f"{queue} is not in the metadata: the node does not start it ({count(messages, 'message')})"
        self._lose(messages, "unknown-queue", place, sentence)

    def _take_quorum_queue(self, queue: ExaminedQueue) -> None:
        if self._knows_no_queue:
            self._not_started(str(queue), queue.place, queue.recovered)
            return
        self._deliver_again(queue.redelivered, queue.place, str(queue))
        self.unknown += [f"{queue}: {sentence}" for sentence in queue.uncertain]
        if queue.version > self.version.machine:
            runs = f"its machine has version {queue.version}, and the node runs up to {self.version.machine}"
            self.unknown.append(f"what the node makes of {queue}: {runs}")
            return
        lost = 0
        for fact in queue.facts:
            if fact.name == REDELIVERY_FAILS and self.version.old_redelivered is not False:
                if self.version.old_redelivered is None:
                    self.unknown.append(f"whether {self.name} redelivers them from {queue}: {fact.seen}; 4.3 does not")
                continue
            more = max(0, fact.messages - lost)  # of one message that several facts concern, the first one counts
            self._lose(more, fact.name, fact.place, f"{queue}: {fact.what}")
            lost += more
            self.again += fact.again

    def _unread(self, queue_version: int) -> bool:
        return queue_version not in self.version.reads

    def _check_marked(self) -> None:
        """Count the messages of classic queues that the node delivers with the flag `redelivered`."""
        marked: Counter[str] = Counter()
        for rows in self.store.rows(QueueSelection(recovered=True)):
            if not self._unread(rows.table.version) and (rows.vhost, rows.queue) not in self._deleted:
                marked[f"vhost {rows.vhost!r}, queue {rows.queue!r}"] += int((rows.table.recovered & rows.table.redelivered).sum())
        for queue, messages in marked.items():
            self._deliver_again(messages, ".", queue)

    def _deliver_again(self, messages: int, file: str, queue: str) -> None:
        if messages:
            self.again += messages
            sentence = f"{count(messages, 'message')} of {queue}: delivered before, and not acknowledged"
            self.evidence.append(Evidence("redelivered", file, sentence, messages=messages))

    # what to do

    @cached_property
    def _careful(self) -> RabbitMQStore:
        """The store as `verify` and `repair` read it; they share its scan of the message files."""
        return self.store.carefully()

    @cached_property
    def _steps(self) -> list[QueueStep]:
        """The plan of a repair, with the steps that cannot be made, even in a real copy; without those of queues that the node deletes."""
        gone = tuple(f"{each.place.place}/" for vhost in self._careful.vhosts for each in vhost.queues if vhost.deletes(each))
        return [step for step in plan(self._careful, intact=self.intact, keeps=self._keeps, in_copy=True) if not step.file.startswith(gone)]

    @cached_property
    def _refused_files(self) -> frozenset[str]:
        """The files of the queues that do not start by themselves."""
        refused = (queue for vhost in self._careful.vhosts for queue in vhost.queues if queue.crashes)
        return frozenset(queue.index_v2.index_file(number) for queue in refused for number in queue.index_v2.numbers)

    def _check_steps(self) -> None:
        """Add what keeps the node from starting, or makes a queue fail, and is not in the messages that it loses."""
        for step in self._steps:
            if step.otherwise == IGNORED or step.file.endswith(f"/{NAME_FILE}"):
                continue  # the messages of the queue are counted as `waiting`
            if step.kind == "take-out":
                sentence = f"{step.why.partition(':')[0]}: {step.otherwise}"
                if step.otherwise.startswith("the queue"):
                    self.unknown.append(f"which messages the queue of {step.file} delivers: {sentence}")
                else:
                    self.obstacles.append(Evidence("broker-crash", step.file, sentence))
            elif step.kind == "clean-markers":
                self.evidence.append(Evidence("stale-tables", step.file, f"{step.why.partition(': ')[0]}: {step.otherwise}"))
                self.harmless = False
                own = [vhost for vhost in self._careful.vhosts if step.file.startswith(f"{vhost.place.place}/")]
                if any(vhost.persistent.tables.may_be_given_up for vhost in own):
                    then = "where a queue comes first to one of the last message file, the node reads all files, and delivers them"
                    self.unknown.append(f"whether messages that the tables beside {step.file} have in a wrong place are lost: {then}")
            elif step.kind == "terms" and step.terms:
                self.evidence.append(Evidence("wrong-terms", step.file, f"{step.why.rpartition(':')[0]}: {step.otherwise}"))
                self.harmless = False
            elif step.file in self._refused_files and step.kind in ("unreadable", "torn-entry", "header"):
                continue  # counted as `waiting`
            elif step.kind == "lost-index":
                self.gained += step.messages
                sentence = f"{step.why.partition(':')[0]}: {step.otherwise}, {count(step.messages, 'message')}"
                self._lose(step.messages, "lost-index", step.file, f"{sentence}; nothing shows which of them were acknowledged")
            elif step.kind in ("config", "terms", "unreadable") or "crashes when" in step.otherwise:
                self.unknown.append(f"what it makes of {step.file}: {step.why.partition(': ')[0]}, and {step.otherwise}")

    def _advice(self, starts: bool, loses: int, delivered: int | None = None) -> tuple[str, str]:
        """Return the next command, and for what. delivered: what the node delivers of the store as it is; None if that is not known."""
        store = self.store.path
        old = any(queue.version == 1 for queue in self.store.queues) and self._unread(1)
        new = any(queue.version == 2 for queue in self.store.queues) and self._unread(2)
        other = any(item.finding in _OF_OTHER_NODES for item in (*self.obstacles, *self.evidence))
        if self._copy is not None:
            return self._copy.next, self._copy.why
        if self._swapped is not None:
            return self._swapped.next, self._swapped.why
        if (missing := self._missing) is not None:
            if self.store.definitions.emptied:
                return self._rescue.next, f"{missing.why}; if it is gone, {self._rescue.why}"
            if self._repair is not None:
                return self._repair.next, f"{missing.why}; if it is gone, {self._repair.why}"
            if not sum(self._keeps):  # nothing that could be saved
                return missing.next, missing.why
            if starts and self._is_saved:
                return START, f"{missing.why}; if it is gone, start the node: what can be read of the files is saved"
            if not starts and self._without_metadata():
                return self._new_store.next, f"{missing.why}; if it is gone, {self._new_store.why}"
            return self._salvage.next, f"{missing.why}; if it is gone, {self._salvage.why}"
        if (old or new or other) and not self._without_metadata():
            return self._rescue.next, f"{self._rescue.why}; start none on this directory"
        if old or new or any(item.finding == "message-containers" for item in self.obstacles):
            return (
                command("mqstore", "convert", store, "--to", f"{store}.new", "--for", self.name),
                f"write the queues in a form that {self.name} reads, before a node of that version starts",
            )
        faulty = any(item.finding in _MENDED for item in self.evidence)
        if starts and not loses and not self.unknown and not faulty:
            until = f" until the limit of a stream deletes {count(self._limited, 'message')}" if self._limited else ""
            return START, f"start the node: it keeps every persistent message{until}"
        if self._repair is not None:
            if (costs := sum(step.costs for step in self._steps if step.possible)) and not self._is_saved:
                return self._salvage.next, f"{self._salvage.why}: a repair is possible, and costs {count(costs, 'message')}"
            return self._repair.next, self._repair.why
        if starts and self._is_saved:
            replay = command("mqstore", "replay", f"{store}.jsonl", "--queue")
            return START, f"start the node: what can be read is saved; `{replay} Q --to amqp://…` sends what a queue Q then lacks"
        stops = any(item.finding in _CLIENTS_STOP for item in self.evidence)
        if starts and not stops and delivered is not None and not self.unknown and self._keeps and sum(self._keeps) <= delivered:
            return START, "start the node: the bytes of what it loses are gone, and it delivers everything else"
        if not starts and delivered is not None and self._without_metadata():
            return self._new_store.next, self._new_store.why
        if not starts and delivered is not None and self._is_saved:
            return self._rescue.next, f"{self._rescue.why}; this directory cannot be repaired, and what can be read is saved"
        return self._salvage.next, self._salvage.why

    @cached_property
    def _repair(self) -> Way | None:
        """A repair, in a copy if links prevent it here; None if it would change nothing. It does not work on archives."""
        root, possible = self.store.directory.root, [step for step in self._steps if step.possible]
        if root != Path(self.store.path) or not possible:
            return None
        changes = [change for step in completed(self.store.directory, possible) for change in step.changes]
        if not why_refused(root, changes, LOCKING):
            if is_real_copy(root):
                return Way(self.store.command("repair", "--apply"), "repair this copy; the store that it was made of stays as it is")
            return Way(self.store.command("repair"), "list what can be repaired before a node starts; nothing is changed")
        if not self._is_copied:
            return None
        copied, copy = real_copy(root)
        why = "repair a real copy of the store, which itself stays as it is: some of its files are links, which a repair does not change"
        return Way(f"{copied} && {command('mqstore', 'repair', copy, '--apply')}", why)

    @cached_property
    def _outside(self) -> list[str]:
        """Links that lead out of the store, to something that is there and is not read; none of an archive."""
        directory = self.store.directory
        if directory.root != Path(self.store.path):
            return []
        return [item.file for item in self._careful.unread if leads_elsewhere(directory, item)]

    @cached_property
    def _is_copied(self) -> bool:
        return is_copied(self.store.directory.root)

    @cached_property
    def _copy(self) -> Way | None:
        """How to get what links lead to into the store; None if they lead nowhere."""
        if not self._outside or not self._is_copied:
            return None
        copied, copy = real_copy(self.store.path)
        links = agreeing(len(self._outside), "link", "leads out of it, and is", "lead out of it, and are")
        why = f"copy the store with what its links lead to, and ask again: {links} not read"
        return Way(f"{copied} && {command('mqstore', 'diagnose', copy)}", why)

    @cached_property
    def _swapped(self) -> Way | None:
        """How to give message files or message stores their own names that have each other's; None if there are none."""
        root = Path(self.store.directory.root)
        named: dict[str, str] = {}
        for vhost in self.store.vhosts:
            ids = (pair for queue in vhost.queues for pair in stored_ids(queue))
            if any(queue.counts.fates.unfound for queue in vhost.queues) and all((vhost.persistent.find(*pair) < 0).all() for pair in ids):
                named |= {vhost.persistent.place: vhost.transient.place, vhost.transient.place: vhost.persistent.place}
        for part in (part for vhost in self.store.vhosts for part in vhost.missing_files):
            if isinstance(part, MissingFile) and part.swapped is not None and named.keys().isdisjoint({part.path, part.swapped}):
                named |= {part.path: part.swapped, part.swapped: part.path}
        if not named or root != Path(self.store.path):
            return None
        commands = [command("mv", root / change.file, root / change.to) for change in renames(named)]
        return Way(" && ".join(commands), f"give each of these its own name before anything else: {', '.join(named)}")

    @cached_property
    def _missing(self) -> Way | None:
        """How to get the parts that are named, by the lists of a clean stop for example, and not there; None if all are there."""
        missing = [part.path for vhost in self.store.vhosts for part in vhost.missing_parts]
        if self._swapped is not None:
            return self._swapped
        missing += [item.file for item in self.store.definitions.damage if item.kind is Kind.MISSING_PART]
        missing += [absent.path for absent in absent_queues(self.store) if absent.sure and not absent.nodes and absent.path is not None]
        if not missing:
            return None
        why = f"get what is missing before anything else: {_first_of(missing)}; start no node before"
        return Way(self.store.command("inspect"), why)

    @property
    def _is_saved(self) -> bool:
        """Whether `_salvage` was run."""
        return Path(f"{self.store.path}.jsonl").exists()

    @property
    def _rescue(self) -> Way:
        store, target = self.store.path, self.version.name
        words = command("mqstore", "rescue", store, "--to", f"{store}.new", "--for", target)
        return Way(words, f"prepare queues, definitions and steps for a node of {target}")

    @property
    def _new_store(self) -> Way:
        store, words = self.store.path, ("--for", self.name) if self.asked else ()
        why = "write every message that can be read into a new store; this one cannot be repaired"
        return Way(self.store.command("salvage", "--as", "rabbitmq", "--to", f"{store}.new", *words), why)

    @property
    def _salvage(self) -> Way:
        store = self.store.path
        words = self.store.command("salvage", "--to", f"{store}.jsonl")
        return Way(words, "save every message that can be read before a node starts")
