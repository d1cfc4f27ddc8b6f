"""Every check of a RabbitMQ store: indexes, message files, and every stored message against its index entry.

Journals and segments are merged as the broker merges them, and compared with the message files. Every message's term is decoded; its id
must be that of the entry, and its body must have the entry's size. The report includes what the broker would do: crashes and losses
are damage, everything else is a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from mqstore.files import Bytes
from mqstore.findings import CheckCounts, Coverage, Damage, Kind, Report, SkippedRange, Verdict
from mqstore.rabbitmq.format.index_v1 import PERSISTENT
from mqstore.rabbitmq.store import message_table
from mqstore.rabbitmq.store.message_table import MessageRows
from mqstore.rabbitmq.store.queue import PLAIN

if TYPE_CHECKING:
    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.rabbitmq.store.vhost import Vhost

__all__ = ["verify"]


def verify(store: RabbitMQStore, rows: Iterator[MessageRows], data_of: Callable[[str], Bytes | None]) -> Report:
    """Check a store. rows: all its index entries; data_of: the bytes of a file."""
    checked = CheckCounts()
    for _, entry in store.directory.walk():
        checked.files += 1
        checked.bytes += entry.size
    damage: list[Damage] = []
    refused = {(queue.vhost, queue.name) for vhost in store.vhosts for queue in vhost.queues if vhost.refusals or queue.crashes}
    for found in rows:
        checked.queue_entries += len(found) if found.indexed else 0
        checked.messages += int((found.table.source >= 0).sum())
        damage += _undecodable(found, data_of)
        damage += _unreachable(found, refused)
    damage += store.unread
    notes: list[str] = []
    for vhost in store.vhosts:
        checked.records += len(vhost.persistent) + len(vhost.transient)
        damage += vhost.findings
        notes += _notes(vhost)
    # an embedded message that is not a term is also a finding of its index
    unique = {(item.file, item.offset, item.kind): item for item in reversed(damage)}
    damage = sorted(unique.values(), key=lambda item: (item.file, item.offset, item.length))
    skipped = tuple(SkippedRange(item.file, item.offset, item.length, item.detail) for item in damage if item.kind is Kind.UNREADABLE)
    return Report(str(store.path), store.family, checked, Coverage(skipped), tuple(damage), tuple(notes))


def _undecodable(rows: MessageRows, data_of: Callable[[str], Bytes | None]) -> Iterator[Damage]:
    rows = rows.take(np.flatnonzero((rows.table.known == PLAIN) & (rows.table.source >= 0)))
    table = rows.table
    for row, verdict in enumerate(message_table.verdicts(rows, message_table.decode_terms(rows, data_of))):
        if verdict == Verdict.DAMAGED:
            file = table.sources[int(table.source[row])][0]
            detail = f"the message of sequence id {table.entries['seq'][row]} of queue {rows.queue!r} does not match its entry"
            yield Damage(file, int(table.at[row]), int(table.length[row]), Kind.BAD_TERM, detail, 1)


def _unreachable(rows: MessageRows, refused: set[tuple[str | None, str]]) -> Iterator[Damage]:
    """Yield persistent messages that exist but that the broker would not find. Queues that it refuses are not listed message by message."""
    if not rows.indexed or (rows.vhost, rows.queue) in refused:
        return
    table = rows.table
    entries = table.entries
    there = (table.known == PLAIN) & (table.source >= 0) & (entries["seen"] != 0) & ((entries["flags"] & PERSISTENT) != 0)
    for row in np.flatnonzero(there & ~table.kept).tolist():
        file = table.sources[int(table.source[row])][0]
        detail = f"the message of sequence id {entries['seq'][row]} of queue {rows.queue!r} is intact, but the broker would not find it"
        yield Damage(file, int(table.record[row]), int(table.length[row]), Kind.BROKER_LOSES, detail, 1)


def _notes(vhost: Vhost) -> Iterator[str]:
    name = repr(vhost.name if vhost.name is not None else vhost.directory)
    yield f"vhost {name}: the last stop was {'clean' if vhost.clean else 'unclean, so the broker reads and checks everything'}"
    if vhost.refusals:
        yield f"vhost {name}: the broker would not start it: {vhost.refusals[0]}"
    if not vhost.config_stated:
        config = "no .config that can be read" if vhost.config_there else "no .config"
        yield f"vhost {name}: it has {config}, so a segment has {vhost.entry_count} entries"
    for queue in vhost.queues:
        counts = queue.counts
        if not queue.place.named:
            yield f"vhost {name}: the queue in directory {queue.directory} has no known name"
        if counts.transient:
            yield f"vhost {name}, queue {queue.name!r}: {counts.transient} transient messages would be discarded at the next start"
        if counts.hidden:
            yield f"vhost {name}, queue {queue.name!r}: {counts.hidden} messages exist that the broker would not recover"
