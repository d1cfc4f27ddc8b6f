"""Steps for a vhost, beside those for the indexes of its queues: `.config`, names, message store, the files of a clean stop.

The step for the `.config` of a vhost that does not state how many entries a segment has, or is missing where the segments show it.

    garbage                         the node takes 16384: messages that were acknowledged come back, in another order
    text without a number, empty    the node does not start after an unclean stop
    missing                         the node takes 16384, which is right for vhosts from before 3.8.17

All were tried with a 3.10.8 node.

Steps for names on which a node stumbles: it takes every name with the ending of one of its files for one.

    core.idx, 9.idx as a directory      the node does not start
    core.qi, core.qi.bak                the queue does not start
    .queue_name as a directory          the queue does not start; of version 1 after an unclean stop, the node
    core.rdq, core.rdt, 5.rdq as a directory    the vhost does not start

All were put beside the files of a 3.10.8 node. Other names are ignored, and stay. Files `._…`, which a Mac adds, are such names beside
files of every ending; with one beside a write-ahead log (`._00000001.wal`) the node does not start. They are taken out in one step.

Steps for the persistent message store: after them a node finds every record that is whole.

    an .rdt without its .rdq                   becomes that .rdq
    messages that the node's scan misses       are copied into new files after the last one; the damaged file stays as it is

The node's scan stops at a size of 0 or at one that leads past the end, and goes astray after a wrong one. It appends an .rdt to its
.rdq whatever is there, so that an .rdt after zeros is lost. Copies have the same ids, of which a node takes one.

Steps for the files of a clean stop that do not agree with the rest of the store.

    recovery.dets cannot be read in part or at all    written again with what can be read of it
    numbers of a queue that are not those of its index    corrected: a node takes them from here, and does not count
    tables that describe other files                  `clean.dot` is taken out, so that the node reads the files

A node that finds `clean.dot`, both tables and the terms of all queues checks nothing.

Format: docs/formats/rabbitmq.md, sections 2.3, 6.1, 6.7 to 6.9, 7.1, 7.3, 8 and 15.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mqstore.files import DirectoryEntry, ReadOnlyDirectory
from mqstore.rabbitmq.erlang import dets
from mqstore.rabbitmq.format import message_file
from mqstore.rabbitmq.format.layout import NAME_FILE, STUMBLES, VhostDirectory, files_of_mac, own_entries, small_file
from mqstore.rabbitmq.format.recovery_terms import QueueTerms
from mqstore.rabbitmq.format.vhost_config import ENTRIES_WITHOUT_CONFIG, config_file
from mqstore.rabbitmq.repair.queue_step import QueueContent, QueueStep, clean_dot, recovery_file
from mqstore.rabbitmq.store.message_store import StoreFile
from mqstore.rabbitmq.store.vhost import Vhost
from mqstore.repair.change import Change
from mqstore.table.formatting import count

_IN_QUEUE = re.compile(r"([0-9]*).*?\.(idx|qi)", re.ASCII)
_IN_STORE = re.compile(r"(.*)\.(?:rdq|rdt)", re.DOTALL)
FILE_SIZE = 16 << 20


def config_steps(vhost: Vhost) -> Iterator[QueueStep]:
    """Yield the step for the file, if there is anything wrong with it. vhost: read carefully."""
    name, inferred = vhost.config_file, vhost.inferred_count
    damaged = vhost.config_there and any(item.file == name for item in vhost.config_findings)
    if inferred is None and not damaged:
        return
    if vhost.config_crash is not None:
        otherwise = "after an unclean stop it does not start"
    else:
        otherwise = f"it takes {ENTRIES_WITHOUT_CONFIG}: numbers of messages are wrong, and acknowledged messages come back"
    why = "it does not state the number of entries of a segment" if damaged else "it is missing"
    if inferred is None:
        why += ", and the segments do not show it: `mqstore salvage` saves the messages"
        yield QueueStep("config", name, 0, 0, why, otherwise, "", (), vhost.place.place)
        return
    if inferred.entries == ENTRIES_WITHOUT_CONFIG and vhost.config_crash is None:
        otherwise = "it takes the same number"
    shown = "the segments show that it is" if inferred.proved else "every sequence id is low, so that it may be"
    change = Change("put", name, content=config_file(inferred.entries))
    yield QueueStep("config", name, 0, 0, f"{why}: {shown} {inferred.entries}", otherwise, "", (change,), vhost.place.place)


def mac_step(directory: ReadOnlyDirectory) -> QueueStep | None:
    """Return the step that takes out the files that a Mac has added, wherever they are; None without any."""
    added = files_of_mac(directory)
    if added is None:
        return None
    changes = tuple(Change("remove", file) for file in added.files)
    return QueueStep("take-out", added.worst, 0, 0, f"{added.sentence}: kept in the journal", added.otherwise, "", changes)


def stray_steps(directory: ReadOnlyDirectory, vhost: VhostDirectory, taken: Collection[str] = ()) -> Iterator[QueueStep]:
    """Yield a step for each name that is taken out. taken: files of another step."""
    for step in _stray_steps(directory, vhost):
        if step.file not in taken:
            yield step


def _stray_steps(directory: ReadOnlyDirectory, vhost: VhostDirectory) -> Iterator[QueueStep]:
    for queue in own_entries(directory, vhost.below("queues")):
        place = vhost.below(f"queues/{queue.name}")
        for entry in own_entries(directory, place) if queue.is_directory else ():
            if entry.name == NAME_FILE and entry.is_directory:
                yield _take_out(directory, vhost, f"{place}/{entry.name}", entry, "qi")
            named_file = _IN_QUEUE.match(entry.name)
            if named_file is not None and (not named_file[1] or entry.is_directory):
                yield _take_out(directory, vhost, f"{place}/{entry.name}", entry, named_file[2])
    place = vhost.below("msg_store_persistent")
    for entry in own_entries(directory, place):
        named = _IN_STORE.fullmatch(entry.name)
        if named is not None and (entry.is_directory or not (named[1].isascii() and named[1].isdigit())):
            yield _take_out(directory, vhost, f"{place}/{entry.name}", entry, "store")


def _take_out(directory: ReadOnlyDirectory, vhost: VhostDirectory, path: str, entry: DirectoryEntry, what: str) -> QueueStep:
    otherwise = STUMBLES[what]
    if not entry.is_directory:
        why = f"a file of {entry.size} bytes does not belong here: it is kept in the journal"
        changes: tuple[Change, ...] = (Change("remove", path),) if entry.is_file and not entry.is_link else ()
        if not changes:
            why = "it is not a regular file, and is left alone: remove it by hand"
        return QueueStep("take-out", path, 0, 0, why, otherwise, "", changes, vhost.place)
    below = sorted((path, *directory.directories(path)), key=lambda each: -each.count("/"))
    changes = (*(Change("remove", each) for each, _ in directory.walk(path)), *(Change("rmdir", each) for each in below))
    why = "a directory does not belong here: it is kept in the journal"
    return QueueStep("take-out", path, 0, 0, why, otherwise, "", changes, vhost.place)


def left_over_steps(vhost: Vhost) -> Iterator[QueueStep]:
    """Yield the steps for each `.rdt` without its `.rdq`."""
    for file in _left_over(vhost):
        to = f"{vhost.persistent.place}/{file.number}.rdq"
        why = f"it is left over from a merge, and {file.number}.rdq is missing: it takes that name"
        change = Change("rename", file.name, to=to)
        yield QueueStep("rename", file.name, 0, file.size, why, "the vhost does not start", "", (change,), vhost.place.place)


def _left_over(vhost: Vhost) -> list[StoreFile]:
    numbers = {file.number for file in vhost.persistent.files if not file.leftover}
    return [file for file in vhost.persistent.files if file.leftover and file.number not in numbers]


def store_steps(vhost: Vhost, unseen: NDArray[np.int64]) -> Iterator[QueueStep]:
    """Yield the step for messages that a node does not find. unseen: their rows in the persistent store."""
    store = vhost.persistent
    missed = np.unique(unseen)
    for file in _left_over(vhost):  # of these, the node finds what its scan of the renamed file finds
        scan = message_file.strict_scan(vhost.root.map(file.name).data)
        seen = {file.name: frozenset(scan.at.tolist())}
        missed = np.array([row for row in missed.tolist() if not _is_in(vhost, row, seen)], np.int64)
    if not len(missed):
        return
    number = max((file.number for file in store.files), default=-1) + 1
    changes: list[Change] = []
    where: dict[str, int] = {}
    part: list[int] = []
    held = 0
    for row in missed.tolist():
        place = store.position(row)
        where[place.file] = where.get(place.file, 0) + 1
        if part and held + place.length > FILE_SIZE:
            changes.append(_new_file(vhost, number + len(changes), part))
            part, held = [], 0
        part.append(row)
        held += place.length
    changes.append(_new_file(vhost, number + len(changes), part))
    named = ", ".join(f"{names} in {file.rpartition('/')[2]}" for file, names in list(where.items())[:5])
    more = f" and {count(len(where) - 5, 'further file')}" if len(where) > 5 else ""
    why = f"a node's scan misses {count(len(missed), 'whole message')} of queues ({named}{more}): the records are copied"
    otherwise = "it drops them from their queues; 3.13.1 and later find some of them"
    yield QueueStep("records", changes[0].file, 0, 0, why, otherwise, "", tuple(changes), vhost.place.place)


def _is_in(vhost: Vhost, row: int, records: dict[str, frozenset[int]]) -> bool:
    place = vhost.persistent.position(row)
    return place.record in records.get(place.file, ())


def _new_file(vhost: Vhost, number: int, rows: list[int]) -> Change:
    return Change("put", f"{vhost.persistent.place}/{number}.rdq", content=_file_maker(vhost, tuple(rows)))


def _file_maker(vhost: Vhost, rows: tuple[int, ...]) -> Callable[[], bytes]:
    def make() -> bytes:
        store = vhost.persistent
        parts = []
        for row in rows:
            place = store.position(row)
            term = vhost.root.mapped(place.file).bytes(place.at, place.at + place.length)
            parts.append(message_file.record(store.id(row), term))
        return b"".join(parts)

    return make


def corrected_terms(noted: QueueTerms, content: QueueContent, *, clean: bool, rewritten: bool) -> tuple[QueueTerms, str] | None:
    """Return the terms that fit what a queue holds, and what is wrong with those there are; None if they fit.

    clean: a node would believe them without a look at the index. rewritten: a repair changes the index.
    """
    wrong = []
    if noted.count is not None and noted.count != content.messages:
        wrong.append(f"{noted.count} messages in place of {content.messages}")
    if noted.size is not None and noted.size != content.size:
        wrong.append(f"{noted.size} bytes in place of {content.size}")
    if noted.next_seq is not None and noted.next_seq <= content.last:
        wrong.append(f"{noted.next_seq} as the next sequence id, and {content.last} is there")
    actual = content.kept if rewritten else content.live
    stated = noted.segments if noted.segments is not None else noted.v2_segments
    if clean and stated is not None and _counted(stated) != _counted(actual):
        wrong.append("other numbers of messages in its segments")
    if not wrong:
        return None
    counts = dict(sorted(_counted(content.kept).items()))
    next_seq = None if noted.next_seq is None else max(noted.next_seq, content.last + 1)
    fitting = replace(
        noted,
        segments=None if noted.segments is None else counts,
        v2_segments=None if noted.v2_segments is None else counts,
        count=None if noted.count is None else content.messages,
        size=None if noted.size is None else content.size,
        next_seq=next_seq,
    )
    return fitting, ", ".join(wrong)


def _counted(counts: Mapping[int, int]) -> dict[int, int]:
    return {segment: number for segment, number in counts.items() if number}


def terms_steps(vhost: Vhost, wrong: Mapping[str, tuple[QueueTerms, str]]) -> Iterator[QueueStep]:
    """Yield the steps for `recovery.dets`. wrong: corrected terms by queue directory, with what was wrong."""
    name = recovery_file(vhost.place.place)
    data = small_file(vhost.root, name) or b""
    damage = dets.read_table(data, name).damage if data else ()
    if damage:
        readable = len(dets.read_objects(data))
        item = damage[0]
        why = f"{item.detail.rstrip('.')}; the file is written again with the terms of {count(readable, 'queue')}, which can be read"
        otherwise = "it deletes the file: all messages are delivered as redelivered, and numbers go on at the next segment"
        loss = "the numbers and marks of other queues, if there were any"
        yield QueueStep("terms", name, item.offset, item.length, why, otherwise, loss, (), vhost.place.place, rewrites=True)
    for directory, (terms, what) in sorted(wrong.items()):
        why = f"the terms of queue directory {directory} say {what}: they are corrected"
        otherwise = "it takes these numbers as they are, and the queue counts messages that it does not have"
        yield QueueStep("terms", name, 0, 0, why, otherwise, "", (), vhost.place.place, {directory: terms})


def marker_steps(vhost: Vhost, hi: NDArray[np.int64], lo: NDArray[np.int64]) -> Iterator[QueueStep]:
    """Yield the step for tables of a clean stop that do not describe the files. hi, lo: ids of the stored messages that queues have."""
    if not vhost.clean:
        return
    failing = vhost.failing_table
    why = f"{failing} ends in a mark that cannot be read" if failing else _lie(vhost, hi, lo)
    if why:
        mark = clean_dot(vhost.place.place)
        why = f"{why}: the mark of the clean stop is taken out, so that the node reads the files"
        trusted = "it trusts the tables: a queue crashes when it comes to a message that they lack, or that is elsewhere"
        otherwise = "the vhost does not start" if failing else trusted
        yield QueueStep("clean-markers", mark, 0, 0, why, otherwise, "", (Change("remove", mark),), vhost.place.place)


def _lie(vhost: Vhost, hi: NDArray[np.int64], lo: NDArray[np.int64]) -> str:
    """Return what the tables say that is not so; empty if they are right."""
    store = vhost.persistent
    sizes, stated = {file.number: file.size for file in store.files}, store.tables.sizes
    hits, readable = store.tables.lead_to(hi, lo)
    missing, astray = int((~hits).sum()), int((hits & ~readable).sum())
    if missing or astray:
        lacks = f"lacks {count(missing, 'message')} of queues" if missing else ""
        leads = f"has {count(astray, 'message')} in a wrong place" if astray else ""
        return f"msg_store_index.ets {' and '.join(part for part in (lacks, leads) if part)}"
    for number in sorted(sizes.keys() | stated.keys()):
        if sizes.get(number) != stated.get(number):
            has = "is missing" if number not in sizes else f"has {sizes[number]} bytes"
            return f"{number}.rdq {has}, and file_summary.ets says {stated.get(number, 'nothing')}"
    return ""
