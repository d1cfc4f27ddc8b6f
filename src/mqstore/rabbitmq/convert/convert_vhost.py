"""Conversion of classic queues between version 1 and 2, offline, into a new directory from which a broker starts.

    STORE/…/<VH>/   .vhost  .config                    copied, or written if they were implied
                    recovery.dets                      written: numbering and redelivered marks of every queue
                    msg_store_persistent/<k>.rdq       copied or linked, without the side files, so that a broker checks everything
                    queues/<QH>/                       .qi + .qs, or segments; .queue_name

The new directory has the layout of the old one: for `msg_stores` it is one; for a node's data directory it contains `msg_stores` (without
the node's metadata: declare the queues on the node that will read it, or use the old node's). It appears under its name when it is
completely on disk. The old one is not changed.

A broker that opens a version 1 queue with only a journal as version 2 loses all of its messages silently; here they are carried over.
The report counts separately what a broker itself would not have recovered.

Format: docs/formats/rabbitmq.md, sections 12.6 and 15.2.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mqstore.errors import CannotOpenError, NotAStoreError, UnsupportedError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.directory_views import AliasDirectory, ConfinedDirectory
from mqstore.files.durable import DurableDirectory, NewDirectory
from mqstore.files.durable_file import SECRET
from mqstore.files.location import check_outside, local_target
from mqstore.findings import Damage, Kind
from mqstore.rabbitmq.broker_version import BrokerVersion, target_version
from mqstore.rabbitmq.convert.convert_messages import CopiedFiles, copy_store, rewrite_store
from mqstore.rabbitmq.convert.convert_queue import (
    LOST,
    ROWS,
    OpenVhost,
    QueueReport,
    QueueResult,
    QueueTask,
    convert_queue,
    needed_rows,
    open_vhost,
    write_orphan_queue,
)
from mqstore.rabbitmq.convert.quorum_queue import StoreFiles, write_quorum_queue
from mqstore.rabbitmq.format.index_v2 import ENTRY_COUNT
from mqstore.rabbitmq.format.layout import REQUIRED, QueueDirectory, find_vhosts, unread_entries
from mqstore.rabbitmq.format.names import queue_directory
from mqstore.rabbitmq.format.recovery_terms import QueueTerms, write_terms
from mqstore.rabbitmq.format.vhost_config import config_file
from mqstore.rabbitmq.quorum.raft_log import raft_systems
from mqstore.rabbitmq.quorum.rows import QuorumRows
from mqstore.rabbitmq.store.vhost import Vhost
from mqstore.rabbitmq.streams.stream import named_streams
from mqstore.table.formatting import agreeing, did_you_mean, no_vhost
from mqstore.threads import TaskThreads

THREADS = 2
MOST_ENTRIES = 1 << 20
REFUSED_SHOWN = 5

Beside = Callable[[Sequence["QueueReport"]], Mapping[str, bytes]]
DEFINITIONS = "definitions.json"  # among those files; it may have passwords or their hashes
Run = Callable[[Sequence[QueueTask], Callable[[QueueTask], QueueResult]], list[QueueResult]]


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """The result of a conversion. store: its message files; findings: damage in the old directory; runs_on, why: where it ran."""

    to: str
    version: int
    queues: tuple[QueueReport, ...]
    store: CopiedFiles
    findings: tuple[Damage, ...]
    notes: tuple[str, ...]
    seconds: float
    runs_on: str = ""
    why: str = ""

    @property
    def messages(self) -> int:
        return sum(queue.messages for queue in self.queues)

    @property
    def bytes(self) -> int:
        """Bytes of the bodies."""
        return sum(queue.bytes for queue in self.queues)

    @property
    def rewritten(self) -> int:
        """Number of messages that were rewritten as `basic_message`."""
        return sum(queue.rewritten for queue in self.queues)

    @property
    def left_out(self) -> dict[str, int]:
        """Number of messages that are not in the new directory, by reason."""
        counts: dict[str, int] = {}
        for queue in self.queues:
            for why, count in queue.left_out.items():
                counts[why] = counts.get(why, 0) + count
        return counts

    @property
    def ok(self) -> bool:
        """Whether nothing was damaged or missing; transient and expired messages do not count."""
        return not self.findings and not any(why in LOST for why in self.left_out)

    def as_dict(self) -> dict[str, Any]:
        return {
            "to": self.to,
            "queue_version": self.version,
            "ok": self.ok,
            "messages": self.messages,
            "bytes": self.bytes,
            "left_out": self.left_out,
            "beyond": sum(queue.beyond for queue in self.queues),
            "rewritten": self.rewritten,
            "queues": [queue.as_dict() for queue in self.queues],
            "message_files": {name: getattr(self.store, name) for name in self.store.__slots__},
            "notes": list(self.notes),
            "damage": [item.as_dict() for item in self.findings],
            "seconds": round(self.seconds, 3),
            "runs_on": self.runs_on,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """The options of `convert`. into: (vhost, queue) for messages in no queue or in an unnamed one; None: they are left out.

    broker: the version that will read the new directory; None: messages keep their form. beside: returns further files of the new
    directory. quorum: the rows of quorum queues to write as classic ones, by vhost and name; one whose vhost is not here is not written.
    """

    version: int
    entries_v2: int = ENTRY_COUNT
    now: int | None = None
    names: tuple[tuple[str, str], ...] = ()
    link: bool = False
    threads: int = THREADS
    run: Run | None = None
    progress: Callable[[int, int], None] | None = None
    into: tuple[str, str] | None = None
    broker: BrokerVersion | None = None
    beside: Beside | None = None
    quorum: Mapping[tuple[str, str], Iterable[QuorumRows]] = field(default_factory=dict)

    @property
    def basic(self) -> bool:
        """Whether message containers are rewritten as `basic_message`."""
        return self.broker is not None and not self.broker.containers


def convert(
    store: str | Path,
    to: str | Path,
    version: int | None = None,
    *,
    target: str | None = None,
    now: int | None = None,
    queues: Iterable[tuple[str, str]] | None = None,
    names: Iterable[tuple[str, str]] = (),
    entries_v2: int = ENTRY_COUNT,
    link: bool = False,
    threads: int = THREADS,
    run: Run | None = None,
    progress: Callable[[int, int], None] | None = None,
    beside: Beside | None = None,
    quorum: Mapping[tuple[str, str], Iterable[QuorumRows]] | None = None,
) -> ConvertReport:
    """Write a new directory in which the queues of a store have version 1 or 2.

    target: the version of RabbitMQ that will read it, for example "3.10": it determines the queue version unless one is given, and up to
    3.13 message containers are rewritten; without it messages keep their form.

    store: `msg_stores`, a node's data directory, or one vhost. now: microseconds since the epoch; messages at the
    head of their queues that have expired by then are left out. queues: pairs of vhost and name to convert, the others keep their
    version; None: all. names: pairs of vhost and queue for directories without a valid `.queue_name`. entries_v2: entries per version 2
    file, as configured on the node that will read them. beside: called with the reports of the queues, it returns further files of the
    new directory by name; for these it is made even without a vhost. quorum: as in `ConvertOptions`, with a target. link: hard links to
    the message files instead of copies; the old store must not be used afterwards. run: runs the tasks, one per queue (default: threads
    of this process). progress: called with (queues done, total).

    Raises NotAStoreError, TargetError, UnsupportedError, UsageError.
    """
    broker = None if target is None else target_version(target, version)
    if version is None and broker is not None:
        version = broker.queue_version
    if version is None:
        raise UsageError("give the version of RabbitMQ or of the queues")
    if version not in (1, 2):
        raise UsageError(f"queue version must be 1 or 2, not {version}")
    if not 1 <= entries_v2 <= MOST_ENTRIES:
        raise UsageError(f"a version 2 file has 1 to {MOST_ENTRIES} entries, not {entries_v2}; brokers have {ENTRY_COUNT}")
    if not Path(store).is_dir():
        raise CannotOpenError(f"{store} is not a directory; give msg_stores, a node's data directory, one vhost's directory, or an archive")
    directory = ConfinedDirectory(Path(store))
    places = find_vhosts(directory)
    if not places and directory.is_directory("commitlog"):
        raise UnsupportedError(f"{store} is a RocketMQ store; queues with versions are those of RabbitMQ")
    if not (places or beside):
        raise NotAStoreError(f"{store} has no RabbitMQ vhost; give msg_stores, the node's data directory, or one vhost's directory")
    chosen = None if queues is None else set(queues)
    known = tuple(sorted(set(names)))
    options = ConvertOptions(version, entries_v2, now, known, link, threads, run, progress, None, broker, beside, quorum or {})
    report = write_stores(directory, {place: place for place in places}, Path(to), options, chosen)
    return report if beside else replace(report, notes=(*report.notes, *_not_converted(directory)))


def write_stores(
    directory: ReadOnlyDirectory, places: Mapping[str, str], to: Path, options: ConvertOptions, chosen: set[tuple[str, str]] | None = None
) -> ConvertReport:
    """Write the vhosts of a directory into a new one. places: of each vhost, in the old and in the new one. chosen: as in `convert`."""
    started = time.monotonic()
    root = str(directory.root)
    files = tuple(sorted(directory.files.items())) if isinstance(directory, AliasDirectory) else ()
    directory.tolerate_unlisted(*REQUIRED)
    open_vhost.cache_clear()
    try:
        local_target(to)
        check_outside(to, directory.root)
        opened = {place: open_vhost(root, place, options.names, files) for place in places}
        versions = _versions(opened.values(), options.version, chosen)
        with NewDirectory(to) as new:
            stage = str(new.directory.root)
            task = partial(QueueTask, root, entries_v2=options.entries_v2, now=options.now, names=options.names, files=files)
            tasks = [
                task(place, own, stage, versions[place, own], place=places[place], basic=options.basic)
                for place, (_, directories) in opened.items()
                for own, queue in directories.items()
                if options.into is None or has_place(queue)
            ]
            for vhost, _ in opened.values():
                vhost.clean, len(vhost.persistent), len(vhost.transient)  # cache these before the threads start
            results = _in_threads(tasks, options) if options.run is None else options.run(tasks, convert_queue)
            _check_refused(results)
            copied = CopiedFiles()
            every = list(results)
            for place, opened_vhost in opened.items():
                mine = {task.directory: result for task, result in zip(tasks, results, strict=True) if task.vhost == place}
                orphans = _write_orphan_queue(opened_vhost, new.directory, places[place], options)
                if orphans is not None and orphans.report.directory not in mine:
                    mine[orphans.report.directory] = orphans
                    every.append(orphans)
                for result in _write_quorum_queues(opened_vhost, new.directory, places[place], options):
                    mine[result.report.directory] = result
                    every.append(result)
                copied += _finish_vhost(opened_vhost.vhost, new.directory, places[place], mine, options)
            new.directory.remove_tree(ROWS)
            reports = tuple(result.report for result in every)
            for name, content in ({} if options.beside is None else options.beside(reports)).items():
                new.directory.write_small(name, content, mode=SECRET if name == DEFINITIONS else None)
            new.publish()
        findings = (*unread_entries(directory), *_findings([vhost for vhost, _ in opened.values()], every))
        return ConvertReport(str(to), options.version, reports, copied, findings, _notes(reports), time.monotonic() - started)
    finally:
        open_vhost.cache_clear()


_DIRECTORY = re.compile("[0-9A-Z]{20,25}")


def has_place(queue: QueueDirectory) -> bool:
    """Return whether a broker that declares the queue would find its directory: it has a digest for a name."""
    return queue.named or _DIRECTORY.fullmatch(queue.directory) is not None


def _write_orphan_queue(vhost: OpenVhost, stage: DurableDirectory, place: str, options: ConvertOptions) -> QueueResult | None:
    if options.into is None:
        return None
    of, name = options.into
    if queue_directory(of, name) in vhost.queues:
        raise UsageError(f"vhost {of!r} already has a queue {name!r}; give another name for the messages that are in no queue")
    parts = [queue for queue in vhost.queues.values() if not has_place(queue)]
    orphans = write_orphan_queue(vhost.vhost, parts, of, name, stage, place, options.version, options.entries_v2)
    return orphans if orphans.report.messages else None


def _write_quorum_queues(vhost: OpenVhost, stage: DurableDirectory, place: str, options: ConvertOptions) -> Iterator[QueueResult]:
    """Write the quorum queues of a vhost; yield the result of each. One that has the name of a classic queue is left out."""
    if options.broker is None:
        return
    number = 1 + max((file.number for file in vhost.vhost.persistent.files), default=-1)
    files = StoreFiles(stage, f"{place}/msg_store_persistent" if place else "msg_store_persistent", number)
    for (of, name), rows in options.quorum.items():
        if of == vhost.vhost.name and queue_directory(of, name) not in vhost.queues:
            yield write_quorum_queue(vhost.vhost, name, rows, files, stage, place, options.broker)


def _versions(opened: Iterable[OpenVhost], version: int, chosen: set[tuple[str, str]] | None) -> dict[tuple[str, str], int | None]:
    """Return the version of each new queue directory, by place of the vhost and directory; None: unchanged. Raises UsageError."""
    versions: dict[tuple[str, str], int | None] = {}
    seen: set[tuple[str, str]] = set()
    for vhost, directories in opened:
        for directory, queue in directories.items():
            name = (queue.vhost or "", queue.queue)
            seen.add(name)
            versions[vhost.place.place, directory] = version if chosen is None or name in chosen else None
    missing = sorted((chosen or set()) - seen)
    if missing:
        of, unknown = missing[0]
        vhosts = {each for each, _ in seen}
        if of not in vhosts:
            raise UsageError(no_vhost(of, vhosts))
        meant = did_you_mean(unknown, (each for among, each in seen if among == of))
        raise UsageError(f"vhost {of!r} has no queue {unknown!r}{meant or '; `mqstore topics` lists its queues'}")
    return versions


def _in_threads(tasks: Sequence[QueueTask], options: ConvertOptions) -> list[QueueResult]:
    results = []
    with TaskThreads(max(1, options.threads)) as pool:
        for result in pool.map(convert_queue, tasks):
            results.append(result)
            if options.progress is not None:
                options.progress(len(results), len(tasks))
    return results


def _finish_vhost(
    vhost: Vhost, stage: DurableDirectory, place: str, queues: Mapping[str, QueueResult], options: ConvertOptions
) -> CopiedFiles:
    """Write message files, recovery.dets and the small files of a vhost. place: of the new one; queues: the results, by directory."""
    staged = ReadOnlyDirectory(stage.root)
    needed = np.zeros(len(vhost.persistent), np.bool_)
    for directory in queues:
        needed[staged.map(needed_rows(vhost.place.place, directory)).data.view(np.int64)] = True
    above = f"{place}/" if place else ""
    rows, target = np.flatnonzero(needed).astype(np.int64), f"{above}msg_store_persistent"
    if options.basic:
        copied = rewrite_store(vhost, rows, stage, target)
    else:
        copied = copy_store(vhost.persistent, rows, stage, target, link=options.link)
    stage.make_directory(f"{above}queues")
    stage.write_small(
        f"{above}recovery.dets", write_terms({directory: _terms(result.terms, options.broker) for directory, result in queues.items()})
    )
    stage.write_small(f"{above}.config", config_file(vhost.entry_count))
    name = vhost.root.read(vhost.place.below(".vhost"), 4096)
    if name is None and vhost.name is not None:
        name = vhost.name.encode("utf-8", "surrogateescape")
    if name is not None:
        stage.write_small(f"{above}.vhost", name)
    return copied


def _terms(terms: QueueTerms, broker: BrokerVersion | None) -> QueueTerms:
    """Return the terms as the version records deliveries; without one, those of all versions."""
    if broker is None or terms.delivery_counts is None:
        return terms
    return replace(terms, next_deliver=None) if broker.single_deliveries else replace(terms, delivery_counts=None, redeliver=None)


def _check_refused(results: Iterable[QueueResult]) -> None:
    """Raise UnsupportedError if messages cannot be rewritten, with the names of their queues."""
    refused = [result for result in results if result.refused]
    if not refused:
        return
    named = []
    for result in refused[:REFUSED_SHOWN]:
        report, first = result.report, result.refused[0]
        level = "" if report.priority_level is None else f" (priority {report.priority_level})"
        number = len(result.refused)
        count = "1 message" if number == 1 else f"{number:,} messages"
        named.append(
            f"queue {report.queue!r}{level} of vhost {report.vhost!r}: {count}, the first with sequence id {first.seq}: {first.why}"
        )
    more = "" if len(refused) <= REFUSED_SHOWN else f"; and {len(refused) - REFUSED_SHOWN} more queues"
    raise UnsupportedError(
        f"messages cannot be written for that version: {'; '.join(named)}{more}. Convert for 4.0 or newer, or take the messages out with "
        "`mqstore salvage` first"
    )


def _findings(vhosts: Iterable[Vhost], results: Iterable[QueueResult]) -> tuple[Damage, ...]:
    findings = [item for result in results for item in result.findings]
    for vhost in vhosts:
        findings += [part.damage for part in vhost.missing_parts]
        findings += [*vhost.place.findings, *vhost.persistent.findings]
        findings += [Damage(vhost.persistent.place, 0, 0, Kind.BROKER_CRASH, sentence) for sentence in vhost.persistent.crashes]
    return tuple(findings)


def _not_converted(directory: ReadOnlyDirectory) -> Iterator[str]:
    """Yield what a node's data directory has beside its classic queues."""
    members = sum(len(system.uids) for system in raft_systems(directory, "quorum"))
    for number, noun in ((members, "quorum queue"), (len(named_streams(directory, {})), "stream")):
        if number:
            yield f"{agreeing(number, noun, 'is', 'are')} not in the new directory: convert takes classic queues"


def _notes(reports: Iterable[QueueReport]) -> tuple[str, ...]:
    unnamed = sum(1 for report in reports if not report.named)
    beyond = sum(report.beyond for report in reports)
    notes = []
    if unnamed:
        notes.append(f"{unnamed} queue directories have no known name; they keep their directory, which is all that a broker needs")
    if beyond:
        notes.append(f"{beyond} messages were carried over that a broker would not have recovered from the old directory")
    return tuple(notes)
