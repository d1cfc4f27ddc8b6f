"""Every check of a RabbitMQ store: indexes, message files, every stored message against the entry that leads to it.

Journals and segments are walked, combined as the broker would, and laid against the message files; of every message the term is decoded,
its id compared with that of its entry and its body's length with the size. What the broker would do with all this is part of the report:
crashes and losses are damage, the rest are notes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from mqstore.files import Bytes
from mqstore.files.confined_directory import ConfinedDirectory
from mqstore.findings import Checked, Coverage, Damage, Kind, Report, Skipped, Verdict
from mqstore.rabbitmq.format.index_v1 import PERSISTENT
from mqstore.rabbitmq.store import message_table
from mqstore.rabbitmq.store.message_table import Rows
from mqstore.rabbitmq.store.queue import PLAIN

if TYPE_CHECKING:
    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.rabbitmq.store.vhost import Vhost

__all__ = ["verify"]

NOT_FOLLOWED = "a link that leads out of the store, or no file; it is passed over: copy what it leads to in its place"


def verify(store: RabbitMQStore, rows: Iterator[Rows], data_of: Callable[[str], Bytes | None]) -> Report:
    """Check a store. rows: all its index entries; data_of: the bytes of a file."""
    checked = Checked()
    for _, entry in store.directory.walk():
        checked.files += 1
        checked.bytes += entry.size
    damage: list[Damage] = []
    refused = {(queue.vhost, queue.name) for vhost in store.vhosts for queue in vhost.queues if vhost.refusals or queue.crashes}
    for found in rows:
        checked.queue_entries += len(found) if found.indexed else 0
        checked.messages += int((found.table.source >= 0).sum())
        damage += _undecodable(found, data_of)
        damage += _lost(found, refused)
    if isinstance(store.directory, ConfinedDirectory):
        damage += [Damage(name, 0, 0, Kind.UNREADABLE, NOT_FOLLOWED) for name in store.directory.foreign_entries()]
    notes: list[str] = []
    for vhost in store.vhosts:
        checked.records += len(vhost.persistent) + len(vhost.transient)
        damage += vhost.findings
        notes += _notes(vhost)
    # an embedded message that is no term is told by its index, too
    unique = {(item.file, item.offset, item.kind): item for item in reversed(damage)}
    damage = sorted(unique.values(), key=lambda item: (item.file, item.offset, item.length))
    skipped = tuple(Skipped(item.file, item.offset, item.length, item.detail) for item in damage if item.kind is Kind.UNREADABLE)
    return Report(str(store.path), store.family, checked, Coverage(skipped), tuple(damage), tuple(notes))


def _undecodable(rows: Rows, data_of: Callable[[str], Bytes | None]) -> Iterator[Damage]:
    rows = rows.take(np.flatnonzero((rows.table.known == PLAIN) & (rows.table.source >= 0)))
    table = rows.table
    for row, verdict in enumerate(message_table.verdicts(rows, message_table.decode_terms(rows, data_of))):
        if verdict == Verdict.DAMAGED:
            file = table.sources[int(table.source[row])][0]
            detail = f"the message of sequence id {table.entries['seq'][row]} of queue {rows.queue!r} is not what its entry announces"
            yield Damage(file, int(table.at[row]), int(table.length[row]), Kind.BAD_TERM, detail, 1)


def _lost(rows: Rows, refused: set[tuple[str | None, str]]) -> Iterator[Damage]:
    """Persistent messages that are here, but that the broker would not find; of a queue that it refuses nothing is said one by one."""
    if not rows.indexed or (rows.vhost, rows.queue) in refused:
        return
    table = rows.table
    entries = table.entries
    there = (table.known == PLAIN) & (table.source >= 0) & (entries["seen"] != 0) & ((entries["flags"] & PERSISTENT) != 0)
    for row in np.flatnonzero(there & ~table.kept).tolist():
        file = table.sources[int(table.source[row])][0]
        detail = f"the message of sequence id {entries['seq'][row]} of queue {rows.queue!r} is whole, but the broker would not find it"
        yield Damage(file, int(table.record[row]), int(table.length[row]), Kind.BROKER_LOSES, detail, 1)


def _notes(vhost: Vhost) -> Iterator[str]:
    name = repr(vhost.name if vhost.name is not None else vhost.directory)
    yield f"vhost {name}: the last stop was {'clean' if vhost.clean else 'unclean, so the broker reads and checks everything'}"
    if vhost.refusals:
        yield f"vhost {name}: the broker would not bring it up: {vhost.refusals[0]}"
    if not vhost.config_stated:
        yield f"vhost {name}: there is no .config, so a segment has {vhost.entry_count} entries"
    for queue in vhost.queues:
        counts = queue.counts
        if not queue.place.named:
            yield f"vhost {name}: nothing tells the name of the queue in directory {queue.directory}"
        if counts.transient:
            yield f"vhost {name}, queue {queue.name!r}: {counts.transient} transient messages would be thrown away at the next start"
        if counts.hidden:
            yield f"vhost {name}, queue {queue.name!r}: {counts.hidden} messages are here that the broker would not recover"
