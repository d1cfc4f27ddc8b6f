"""One queue for all messages of a vhost that are in none: from parts of unknown queues, and messages without an index entry.

They are in the order of their parts, those without an index last, by file and position: approximately publish order. Sequence ids are
reassigned. Nothing records whether such a message was already acknowledged; all are included.

Format: docs/formats/rabbitmq.md, sections 14 and 15.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.files.durable import DurableDirectory
from mqstore.kernels.rabbitmq import message_terms
from mqstore.rabbitmq.convert.convert_queue import (
    LEFT_OUT,
    QueueReport,
    QueueResult,
    buffers,
    needed_rows,
    queue_reference,
    select_messages,
    valid_messages,
)
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.format.index_v1 import IN_STORE
from mqstore.rabbitmq.format.layout import QueueDirectory
from mqstore.rabbitmq.format.names import queue_directory, queue_name_file
from mqstore.rabbitmq.format.queue_writer import queue_writer
from mqstore.rabbitmq.format.recovery_terms import QueueTerms
from mqstore.rabbitmq.message.message_term import read_message
from mqstore.rabbitmq.store.orphans import orphan_rows
from mqstore.rabbitmq.store.queue import PERSISTENT_STORE, TRANSIENT_STORE, UNINDEXED, EntryTable, Queue
from mqstore.rabbitmq.store.start_rules import QueueStart
from mqstore.rabbitmq.store.vhost import Vhost

__all__ = ["write_orphan_queue"]

Piece = tuple[NDArray[np.void], tuple[Bytes, ...]]


def write_orphan_queue(
    vhost: Vhost, parts: Iterable[QueueDirectory], of: str, name: str, stage: DurableDirectory, place: str, version: int, entries_v2: int
) -> QueueResult:
    """Write the queue `name` of the vhost `of` below the new vhost's place. parts: queue directories whose messages it includes."""
    directory = queue_directory(of, name)
    below = f"{place}/queues/{directory}"
    stage.make_directory(below)
    writer = queue_writer(stage, below, version, count=vhost.entry_count, count_v2=entries_v2)
    left_out = dict.fromkeys(LEFT_OUT, 0)
    messages = size = 0
    rows = [np.empty(0, np.int64)]
    for entries, sources in _orphan_pieces(vhost, parts, left_out):
        entries["seq"] = np.arange(messages, messages + len(entries))
        shared = entries[entries["place"] == IN_STORE]
        rows.append(vhost.persistent.find(shared["hi"], shared["lo"]))
        writer.add(entries, sources)
        messages += len(entries)
        size += int(entries["size"].sum())
    unacked = writer.close()
    stage.write_small(needed_rows(vhost.place.place, directory), np.unique(np.concatenate(rows)).tobytes())
    stage.write_small(f"{below}/.queue_name", queue_name_file(of, name, version == 2))
    counted = {why: count for why, count in left_out.items() if count}
    report = QueueReport(of, name, None, directory, True, version, version, messages, size, messages, messages, messages, counted)
    reference = queue_reference(vhost, directory)
    v1, v2 = (unacked, None) if version == 1 else (None, unacked)
    return QueueResult(report, QueueTerms(v1, v2, messages, messages, reference, messages, size))


def _orphan_pieces(vhost: Vhost, parts: Iterable[QueueDirectory], left_out: dict[str, int]) -> Iterator[Piece]:
    for part in parts:
        queue = Queue(vhost.root, part, vhost.entry_count, (vhost.persistent, vhost.transient), QueueStart(None, False))
        for found in queue.entry_tables():
            _, entries = select_messages(found, vhost, left_out)
            if len(entries):
                yield entries, buffers(found)
    for rows in orphan_rows(vhost):
        found = rows.table
        chosen = np.flatnonzero((found.known == UNINDEXED) & (found.location != TRANSIENT_STORE))
        entries = found.entries[chosen].copy()
        entries["at"], entries["length"] = found.at[chosen], found.length[chosen]
        entries["place"] = np.where(found.location[chosen] == PERSISTENT_STORE, IN_STORE, 0)
        valid = valid_messages(found, chosen, entries, vhost)
        chosen, entries = chosen[valid], entries[valid]
        if len(entries):
            entries["size"] = _sizes(found, chosen, vhost)
            yield entries, buffers(found)


def _sizes(found: EntryTable, rows: NDArray[np.intp], vhost: Vhost) -> NDArray[np.int64]:
    """Return the sizes of the bodies of valid messages."""
    sizes = np.zeros(len(rows), np.int64)
    for number in np.unique(found.source[rows]).tolist():
        name, data = found.sources[number]
        if data is None:
            data = vhost.root.map(name).data
        mine = np.flatnonzero(found.source[rows] == number)
        at, length = found.at[rows[mine]], found.length[rows[mine]]
        fields = np.zeros((len(mine), message_terms.FIELD_COUNT), np.int64)
        message_terms.fields(data, at, length, fields)
        sizes[mine] = fields[:, message_terms.BODY_LENGTH]
        for k in np.flatnonzero(fields[:, message_terms.STATUS] != message_terms.FAST).tolist():
            sizes[mine[k]] = _body_size(data, int(at[k]), int(length[k]))
    return sizes


def _body_size(data: Bytes, at: int, length: int) -> int:
    try:
        message = read_message(data[at : at + length].tobytes())
    except EtfError:
        return 0
    return len(message.body) if message.stated_size is None else message.stated_size
