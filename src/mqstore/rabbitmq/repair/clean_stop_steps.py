"""Steps for the files of a clean stop that do not agree with the rest of the store.

    recovery.dets cannot be read in part or at all    written again with what can be read of it
    numbers of a queue that are not those of its index    corrected: a node takes them from here, and does not count
    tables that describe other files                  `clean.dot` is taken out, so that the node reads the files

A node that finds `clean.dot`, both tables and the terms of all queues checks nothing.

Format: docs/formats/rabbitmq.md, sections 7.1, 7.3, 8 and 15.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.rabbitmq.erlang import dets
from mqstore.rabbitmq.erlang.disk_log import items
from mqstore.rabbitmq.erlang.etf import EtfError, decode
from mqstore.rabbitmq.erlang.terms import Atom, Term
from mqstore.rabbitmq.format.message_file import HEADER
from mqstore.rabbitmq.format.recovery_terms import QueueTerms
from mqstore.rabbitmq.repair.queue_content import QueueContent
from mqstore.rabbitmq.repair.queue_step import QueueStep, clean_dot, recovery_file
from mqstore.rabbitmq.store.vhost import Vhost
from mqstore.repair.change import Change
from mqstore.table.formatting import count

__all__ = ["corrected_terms", "marker_steps", "terms_steps"]

_LOCATION, _SUMMARY = Atom("msg_location"), Atom("file_summary")


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
    try:
        data = vhost.root.read(name) or b""
    except CannotOpenError:
        data = b""
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


def marker_steps(vhost: Vhost, needed: NDArray[np.int64]) -> Iterator[QueueStep]:
    """Yield the step for tables of a clean stop that do not describe the files. needed: rows of the persistent store that queues have."""
    if not vhost.clean:
        return
    why = _lie(vhost, needed)
    if why:
        mark = clean_dot(vhost.place.place)
        why = f"{why}: the mark of the clean stop is taken out, so that the node reads the files"
        otherwise = "it trusts the tables, and a queue process crashes when it comes to a message that is elsewhere"
        yield QueueStep("clean-markers", mark, 0, 0, why, otherwise, "", (Change("remove", mark),), vhost.place.place)


def _lie(vhost: Vhost, needed: NDArray[np.int64]) -> str:
    """Return what the tables say that is not so; empty if they are right."""
    store = vhost.persistent
    sizes = {file.number: file.size for file in store.files}
    stated: dict[int, int] = {}
    for row in _objects(vhost, "file_summary.ets"):
        if len(row) >= 6 and row[0] == _SUMMARY and isinstance(row[1], int) and isinstance(row[5], int):
            stated[row[1]] = row[5]
    for number in sorted(sizes.keys() | stated.keys()):
        if sizes.get(number) != stated.get(number):
            has = "is missing" if number not in sizes else f"has {sizes[number]} bytes"
            return f"{number}.rdq {has}, and file_summary.ets says {stated.get(number, 'nothing')}"
    places: dict[bytes, tuple[int, int, int]] = {}
    for row in _objects(vhost, "msg_store_index.ets"):
        if len(row) == 6 and row[0] == _LOCATION and isinstance(row[1], bytes) and all(isinstance(each, int) for each in row[2:]):
            places[row[1]] = (int(row[3]), int(row[4]), int(row[5]))
    missing = astray = 0
    for number in needed.tolist():
        message_id = store.id(number)
        place = places.get(message_id)
        if place is None:
            missing += 1
        elif not _is_there(vhost, message_id, *place):
            astray += 1
    if missing or astray:
        return f"msg_store_index.ets lacks {count(missing, 'message')} of queues, and has {count(astray, 'message')} in a wrong place"
    return ""


def _objects(vhost: Vhost, name: str) -> Iterator[tuple[Term, ...]]:
    data = vhost.root.map(f"{vhost.persistent.place}/{name}").data
    view = data.data
    for item in items(view):
        try:
            term = decode(view[item.start : item.start + item.length])[0]
        except EtfError:
            continue
        if isinstance(term, tuple):
            yield term


def _is_there(vhost: Vhost, message_id: bytes, number: int, offset: int, total: int) -> bool:
    name = f"{vhost.persistent.place}/{number}.rdq"
    try:
        data = vhost.root.mapped(name).data
    except CannotOpenError:
        return False
    if offset < 0 or total < HEADER + 1 or offset + total > len(data) or data[offset + total - 1] != 255:
        return False
    return data[offset : offset + HEADER].tobytes() == (total - 9).to_bytes(8, "big") + message_id
