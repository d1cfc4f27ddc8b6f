"""Every check of a RabbitMQ store: indexes, message files, and every stored message against its index entry.

Journals and segments are merged as the broker merges them, and compared with the message files. Every message's term is decoded; its id
must be that of the entry, and its body must have the entry's size. Streams are read as a whole, quorum queues are replayed. The report
includes what the broker would do: crashes and losses are damage, everything else is a note. What is lost is decided in one place,
`mqstore.rabbitmq.store.fate`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mqstore.findings import CheckCounts, Coverage, Damage, Kind, Report, SkippedRange, Subject, Verdict
from mqstore.rabbitmq.format.layout import IGNORED, files_of_mac
from mqstore.rabbitmq.quorum.facts import REDELIVERY_FAILS
from mqstore.rabbitmq.site import absent_queues
from mqstore.rabbitmq.store import fate, message_table
from mqstore.rabbitmq.store.message_table import MessageRows
from mqstore.rabbitmq.store.queue import DAMAGED, PLAIN
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.store.vhost import Vhost
from mqstore.table.columns import QueueSelection
from mqstore.table.formatting import count

# fates of which a queue has one finding for all messages
_WHOLE_QUEUES = (
    (fate.HIDDEN, Kind.BROKER_LOSES, "they are after damage that the broker does not read past"),
    (fate.REPEATED, Kind.REPEATED_ENTRY, "they were published under the sequence id of another"),
    (fate.REFUSED, Kind.BROKER_CRASH, "the broker would not start the queue"),
)


def verify(store: RabbitMQStore, progress: Callable[[int, int], None] | None = None) -> Report:
    """Check indexes, message files and every stored message, always carefully.

    progress: called with (rows checked, 0), because the total is not known in advance.
    """
    store = store.carefully()
    checked = CheckCounts()
    for vhost in store.vhosts:
        for _, entry in store.directory.walk(vhost.place.place):
            checked.files += 1
            checked.bytes += entry.size
    work = _Rows()
    done = 0
    for rows in store.rows(QueueSelection(everything=True)):
        work.take(store, rows)
        done += len(rows)
        if progress is not None:
            progress(done, 0)
    checked.queue_entries, checked.messages = work.entries, work.messages
    damage = work.findings()
    damage += [*store.unread, *store.definitions.damage]
    notes: list[str] = []
    of_mac = files_of_mac(store.directory)
    if of_mac is not None and of_mac.otherwise != IGNORED:
        damage.append(Damage(of_mac.worst, 0, 0, Kind.BROKER_CRASH, f"{of_mac.sentence}; of a node: {of_mac.otherwise}"))
    elif of_mac is not None:
        notes.append(f"{of_mac.sentence}; a node ignores them")
    for absent in absent_queues(store):
        if absent.is_damage:
            damage.append(Damage(absent.path or ".", 0, 0, Kind.ABSENT_PART, absent.sentence))
        elif absent.sure or absent.may_have_been_empty:
            notes.append(absent.sentence)
    if work.unlisted:
        index = "lost, or not read" if store.unread else "lost"
        notes.append(f"{count(work.unlisted, 'stored message')} in no queue: acknowledged and not yet reclaimed, or their index is {index}")
    affected = work.affected
    for vhost in store.vhosts:
        checked.records += len(vhost.persistent) + len(vhost.transient)
        damage += (
            item if item.kind.subject is Subject.MESSAGE or item.kind is Kind.MISSING_PART else replace(item, messages=0)
            for item in vhost.findings
        )
        notes += _notes(vhost)
        affected += sum(part.messages for part in vhost.missing_queues)
    for named, examined in store.examined_streams:
        start = examined.node_start()
        checked.files += examined.counts.files
        checked.bytes += examined.counts.bytes
        checked.index_entries += examined.counts.index_entries
        checked.messages += examined.counts.messages
        affected += start.lost + examined.unread
        damage += examined.damage
        if start.lost:
            notes.append(f"{named}: a node would not keep {count(start.lost, 'message')} that are here and intact")
    for node in store.examined_quorum:
        checked.files += node.counts.files
        checked.bytes += node.counts.bytes
        checked.records += node.counts.records
        checked.messages += node.counts.messages
        damage += node.damage
        notes += [fact.sentence for fact in node.facts]
        for queue in node.queues:
            affected += max(queue.unread, *(fact.messages for fact in queue.facts if fact.name != REDELIVERY_FAILS), 0)
            damage += queue.damage
            notes += [f"{queue}: {fact.sentence}" for fact in queue.facts if fact.name != REDELIVERY_FAILS]
            notes += [f"{queue}: {sentence}" for sentence in queue.uncertain]
    damage = sorted(dict.fromkeys(damage), key=lambda item: (item.file, item.offset, item.length))
    skipped = tuple(SkippedRange(item.file, item.offset, item.length, item.detail) for item in damage if item.kind is Kind.UNREADABLE)
    return Report(str(store.path), store.family, checked, Coverage(skipped), tuple(damage), tuple(notes), affected)


class _Rows:
    """The index entries checked so far. Each message is in exactly one finding that counts messages, whatever else is wrong with it."""

    def __init__(self) -> None:
        self.entries = self.messages = self.affected = self.unlisted = 0
        self._places: dict[tuple[str, int, Kind], Damage] = {}
        self._of_queues: Counter[tuple[str, str, Kind, str]] = Counter()

    def take(self, store: RabbitMQStore, rows: MessageRows) -> None:
        """Check the messages of some rows."""
        broken = _undecodable(store, rows)
        table = rows.table
        if not rows.indexed:
            self.unlisted += len(rows)
            return
        self.entries += len(rows)
        listed = table.fate != fate.ACKNOWLEDGED
        self.messages += int(listed.sum())
        self.affected += int((listed & (broken | (table.known == DAMAGED) | fate.lost(table.fate) | (table.fate == fate.REFUSED))).sum())
        self._add(rows, np.flatnonzero(broken), Kind.BAD_TERM, "does not match its entry")
        there = ~broken & (table.known != DAMAGED)
        unfound = there & (table.fate == fate.UNFOUND) & (table.source >= 0)
        self._add(rows, np.flatnonzero(unfound), Kind.BROKER_LOSES, "is intact, but the broker would not find it")
        for code, kind, why in _WHOLE_QUEUES:
            for number in np.unique(table.index_file[there & (table.fate == code)]).tolist():
                mine = there & (table.fate == code) & (table.index_file == number)
                self._of_queues[table.sources[number][0], str(rows.queue), kind, why] += int(mine.sum())

    def _add(self, rows: MessageRows, chosen: NDArray[np.intp], kind: Kind, why: str) -> None:
        """Add findings of single messages. The bytes of a message may be shared by queues: they are one finding."""
        table = rows.table
        for row in chosen.tolist():
            file, at = table.sources[int(table.source[row])][0], int(table.at[row] if kind is Kind.BAD_TERM else table.record[row])
            known = self._places.get((file, at, kind))
            if known is not None:
                self._places[file, at, kind] = replace(known, messages=known.messages + 1)
                continue
            detail = f"the message of sequence id {table.entries['seq'][row]} of queue {rows.queue!r} {why}"
            self._places[file, at, kind] = Damage(file, at, int(table.length[row]), kind, detail, 1)

    def findings(self) -> list[Damage]:
        """Return the findings so far."""
        of_queues = (
            Damage(file, 0, 0, kind, f"{count(number, 'message')} of queue {queue!r}: {why}", number)
            for (file, queue, kind, why), number in self._of_queues.items()
        )
        return [*self._places.values(), *of_queues]


def _undecodable(store: RabbitMQStore, rows: MessageRows) -> NDArray[np.bool_]:
    """Return which rows have bytes that are not the message of their entry."""
    broken = np.zeros(len(rows), np.bool_)
    read = np.flatnonzero((rows.table.known == PLAIN) & (rows.table.source >= 0))
    rows = rows.take(read)
    broken[read] = [verdict == Verdict.DAMAGED for verdict in message_table.verdicts(rows, store.terms(rows))]
    return broken


def _notes(vhost: Vhost) -> Iterator[str]:
    name = repr(vhost.name if vhost.name is not None else vhost.directory)
    yield f"vhost {name}: the last stop was {'clean' if vhost.clean else 'unclean, so the broker reads and checks everything'}"
    if vhost.refusals:
        yield f"vhost {name}: the broker would not start it: {vhost.refusals[0]}"
    if not vhost.config_stated:
        config = "no .config that can be read" if vhost.config_there else "no .config"
        shown = "" if vhost.inferred_count is None else ", as the segments show"
        yield f"vhost {name}: it has {config}, so a segment has {vhost.entry_count} entries{shown}"
    for queue in vhost.queues:
        fates = queue.counts.fates
        if not queue.place.named:
            yield f"vhost {name}: the queue in directory {queue.directory} has no known name"
        if fates.transient:
            dropped, missing = count(fates.transient, "transient message"), queue.counts.transient_missing
            partly = f", {missing} of them without their bytes" if missing else ""
            yield f"vhost {name}, queue {queue.name!r}: {dropped}{partly}; a broker drops them at every start"
        if fates.hidden:
            yield f"vhost {name}, queue {queue.name!r}: {count(fates.hidden, 'message')} after damage, which the broker does not read"
    if not vhost.clean and vhost.transient.findings:
        ranges = count(len(vhost.transient.findings), "range")
        yield f"vhost {name}: {ranges} of msg_store_transient as a crash left them; the broker deletes that store at every start"
