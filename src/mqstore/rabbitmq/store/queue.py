"""One queue directory: its entries, and which of them the broker would keep if it started on it.

A queue is read segment by segment; its journal and one segment are in memory. `entry_tables` yields the entries of each segment with the
place of every stored message, whether the broker would recover it, and what is known without reading the message.

Format: docs/formats/rabbitmq.md, sections 5, 7 and 12.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes, ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.kernels.rabbitmq import terms
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.format import index_v2, message_file
from mqstore.rabbitmq.format.index_v1 import HIDDEN, IN_QUEUE_STORE, IN_STORE, PERSISTENT, REPEATED, SPDA, IndexSegment, QueueIndexV1
from mqstore.rabbitmq.format.index_v2 import QueueIndexV2
from mqstore.rabbitmq.format.layout import NAME_FILE, QueueDirectory, mapped_bytes
from mqstore.rabbitmq.message.message_term import MessageTerm, read_message
from mqstore.rabbitmq.store import fate
from mqstore.rabbitmq.store.fate import Fates, QueueStart
from mqstore.shown import Shown

if TYPE_CHECKING:
    from mqstore.rabbitmq.store.message_store import MessageStore

MAX_FINDINGS = 100  # findings of a kind per segment that are listed one by one
# what is known of a message before its bytes are read
PLAIN, CONSUMED, UNREACHABLE, DAMAGED, DUPLICATE, UNINDEXED = range(6)
# where a message is: as in the column `location`
INDEX, PERSISTENT_STORE, TRANSIENT_STORE, QUEUE_STORE = range(4)
LOCATIONS = ("index", "msg_store_persistent", "msg_store_transient", "queue_store")


class SequenceRange(NamedTuple):
    """Sequence ids from start up to but not including stop; stop None: to the end."""

    start: int
    stop: int | None = None

    def holds(self, seq: int) -> bool:
        return self.start <= seq and (self.stop is None or seq < self.stop)


WHOLE = SequenceRange(0)


@dataclass(slots=True)
class QueueCounts:
    """Message counts of one queue directory, as if the broker started it.

    fates: what becomes of each entry at the next start. expired: recovered, and expired at `now`; expired_at_head: of these, the ones
    that the broker drops at once; both None if no time was given. transient_missing: transient, and in no file. size: bytes of the
    recovered bodies. min_seq, max_seq: the lowest and highest sequence id that it would recover; None if there is none.
    """

    fates: Fates = field(default_factory=Fates)
    expired: int | None = None
    expired_at_head: int | None = None
    transient_missing: int = 0
    size: int = 0
    min_seq: int | None = None
    max_seq: int | None = None

    @property
    def ready(self) -> int:
        """Messages that the broker would recover."""
        return self.fates.recovered


@dataclass(frozen=True, slots=True)
class EntryTable:
    """Entries of one segment, as columns.

    sources: the buffers with messages, and their file names; source, at, length: of each entry's stored message (source -1: in no file).
    record: position of the record in its file. recovered: by the broker. known: PLAIN, CONSUMED, …; location: INDEX, ….
    fate: what becomes of it at the next start (`store.fate`).
    """

    version: int
    entries: NDArray[np.void]
    sources: tuple[tuple[str, Bytes | None], ...]
    source: NDArray[np.int32]
    at: NDArray[np.int64]
    length: NDArray[np.int64]
    record: NDArray[np.int64]
    index_file: NDArray[np.int32]
    recovered: NDArray[np.bool_]
    redelivered: NDArray[np.bool_]
    known: NDArray[np.uint8]
    location: NDArray[np.uint8]
    fate: NDArray[np.uint8]
    crashes: tuple[str, ...] = ()
    findings: tuple[Damage, ...] = ()
    queue_addresses: bool = False  # as in QueueStart
    astray: tuple[int, ...] = ()  # sequence ids of messages that the tables of a clean stop have elsewhere

    def refuse(self) -> None:
        """Mark the entries as those of a queue that the broker does not start."""
        self.fate[self.recovered] = fate.REFUSED
        self.recovered[:] = False

    def take(self, rows: NDArray[np.intp]) -> EntryTable:
        """Return the same of some rows, without crashes and findings."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in _ENTRY_COLUMNS}
        return replace(self, **columns, crashes=(), findings=(), astray=())

    def message(self, row: int, directory: ReadOnlyDirectory) -> MessageTerm | None:
        """Return the stored message of an entry; None without one, or if its bytes do not decode as one. directory: that of the sources."""
        source, at = int(self.source[row]), int(self.at[row])
        name, data = self.sources[source] if source >= 0 else ("", None)
        data = mapped_bytes(directory, name) if data is None and name else data
        try:
            return None if data is None else read_message(data[at : at + int(self.length[row])].tobytes())
        except EtfError:
            return None


_ENTRY_COLUMNS = (
    "entries", "source", "at", "length", "record", "index_file", "recovered", "redelivered", "known", "location", "fate",
)  # fmt: skip


@dataclass(slots=True)
class _QueueSummary:
    """The result of one pass over a queue."""

    counts: QueueCounts
    crashes: list[str] = field(default_factory=list)
    astray: list[int] = field(default_factory=list)
    findings: list[Damage] = field(default_factory=list)
    next_seq: int = 0
    recovered: list[tuple[int, int]] = field(default_factory=list)  # first sequence id of each segment, and entries that it recovers


class _MessagePlaces(NamedTuple):
    """Where the stored messages of a segment's entries are; the columns are those of EntryTable.

    in_store: the broker finds the id, and the message. astray: it finds the id, and not the message.
    """

    sources: tuple[tuple[str, Bytes | None], ...]
    source: NDArray[np.int32]
    at: NDArray[np.int64]
    length: NDArray[np.int64]
    record: NDArray[np.int64]
    in_store: NDArray[np.bool_]
    astray: NDArray[np.bool_]


def _entry_damage(
    segment: IndexSegment, index_file: NDArray[np.int32], unreadable: NDArray[np.bool_], lost: NDArray[np.bool_]
) -> Iterator[Damage]:
    """Yield the findings of single entries, and one for all after the first hundred of a kind. lost: live, and in no file."""
    entries = segment.entries
    for number, row in enumerate(np.flatnonzero(unreadable)[: MAX_FINDINGS + 1].tolist()):
        name, left = segment.files[int(index_file[row])], int(unreadable.sum()) - number
        detail = "the embedded message is not a term" if number < MAX_FINDINGS else f"{left} more embedded messages are not terms"
        affected = 1 if number < MAX_FINDINGS else left
        yield Damage(name, int(entries["at"][row]), int(entries["length"][row]), Kind.BAD_TERM, detail, affected)
    for number, row in enumerate(np.flatnonzero(lost)[: MAX_FINDINGS + 1].tolist()):
        left = int(lost.sum()) - number
        detail = f"the message of sequence id {entries['seq'][row]} is in no message file; {int(lost.sum())} such in the segment"
        if number == MAX_FINDINGS:
            detail = f"{left} more messages of the segment are in no message file, from sequence id {entries['seq'][row]} on"
        affected = 1 if number < MAX_FINDINGS else left
        yield Damage(segment.files[int(index_file[row])], int(entries["record"][row]), 0, Kind.MISSING_BODY, detail, affected)


class Queue(Shown):
    """A queue directory. segment_entries: N of the vhost. stores: persistent and transient message store. now: microseconds, or None."""

    def __init__(
        self,
        directory: ReadOnlyDirectory,
        place: QueueDirectory,
        segment_entries: int,
        stores: tuple[MessageStore, MessageStore],
        start: QueueStart,
        now: int | None = None,
    ) -> None:
        self.place = place
        self.vhost = place.vhost
        self.name = place.queue
        self.directory = place.directory
        self.priority_level = place.priority_level
        self.start = start
        self.now = now
        self._root = directory
        self._stores = stores
        self.index = QueueIndexV1(directory, place.place, segment_entries)
        self.index_v2 = QueueIndexV2(directory, place.place)

    def _title(self) -> str:
        level = "" if self.priority_level is None else f", priority {self.priority_level}"
        return f"queue {self.name!r} of vhost {self.vhost!r}{level}"

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield "version", self.version

    @property
    def version(self) -> int:
        """2 if there are files of version 2, or of neither version and `.queue_name` or the terms of a clean stop say so; else 1."""
        if self.index_v2.exists:
            return 2
        terms = self.start.terms
        declared = self.place.declares_v2 or (terms is not None and terms.v2_segments is not None)
        return 2 if declared and not self.index.exists else 1

    @property
    def ignores_journal(self) -> bool:
        """Whether the broker opens this directory as version 2 and ignores its journal: it has no segments and no terms."""
        return self.place.declares_v2 and self.start.terms is None and not self.index.segment_numbers and not self.index_v2.exists

    def entry_tables(self, within: SequenceRange = WHOLE) -> Iterator[EntryTable]:
        """Yield all entries, segment by segment, ascending by sequence id. within: of the segments that begin there."""
        for version, number in self.segments(within):
            yield self.entry_table(version, number)

    def recovered_before(self, seq: int | None) -> int:
        """Return how many entries the broker keeps of the segments that begin before a sequence id; None: of all."""
        return sum(count for first, count in self._summary.recovered if seq is None or first < seq)

    def entry_table(self, version: int, number: int) -> EntryTable:
        """Return the entries of one segment of `segments`."""
        table = self._entry_table(self.index_of(version).segment(number, dirty=not self.start.clean), version)
        if version == 1 and self._converted:
            table = table.take(np.flatnonzero(~np.isin(table.entries["seq"], self._converted_ids)))
        return table

    def index_of(self, version: int) -> QueueIndexV1 | QueueIndexV2:
        """Return the files of one version."""
        return self.index_v2 if version == 2 else self.index

    def segments(self, within: SequenceRange = WHOLE) -> list[tuple[int, int]]:
        """Return version and number of each segment that begins in a range, ascending by sequence id."""
        segments = [(number * self.index.count, 1, number) for number in self.index.numbers]
        segments += [(number * self.index_v2.count, 2, number) for number in self.index_v2.numbers]
        return [(version, number) for first, version, number in sorted(segments) if within.holds(first)]

    def segment_sizes(self) -> dict[int, int]:
        """Return the bytes of the files of each segment by its first sequence id, from names alone: segments of a journal are not there."""
        files = [(number * self.index.count, self.index.segment_file(number)) for number in self.index.segment_numbers]
        for number in self.index_v2.numbers:
            files += [(number * self.index_v2.count, self.index_v2.index_file(number))]
            files += [(number * self.index_v2.count, self.index_v2.store_file(number))]
        known = {name: entry.size for name, entry in self._root.walk(self.place.place)}
        sizes: dict[int, int] = {}
        for first, name in sorted(files):
            sizes[first] = sizes.get(first, 0) + known.get(name, 0)
        return sizes

    @property
    def _converted(self) -> bool:
        return bool(self.index_v2.numbers) and self.index.exists

    @cached_property
    def _converted_ids(self) -> NDArray[np.int64]:
        """Sequence ids that an interrupted conversion already wrote in version 2."""
        segments = (self.index_v2.segment(number, dirty=False).entries for number in self.index_v2.numbers)
        return np.concatenate([entries["seq"][entries["seen"] != 0] for entries in segments])

    def named_ids(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of all messages that are in a message store, acknowledged ones included, as two big-endian halves each."""
        hi, lo = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for version, number in self.segments():
            entries = self.index_of(version).segment(number, dirty=not self.start.clean).entries
            shared = entries["place"] == IN_STORE
            hi.append(entries["hi"][shared])
            lo.append(entries["lo"][shared])
        return np.concatenate(hi), np.concatenate(lo)

    def _entry_table(self, segment: IndexSegment, version: int) -> EntryTable:
        entries = segment.entries
        persistent, live = (entries["flags"] & PERSISTENT) != 0, entries["seen"] != 0
        shared = entries["place"] == IN_STORE
        index_file = np.where(entries["from_journal"], 1, 0).astype(np.int32)
        places = self._locate(segment, shared)
        nowhere = shared & (places.source < 0)
        if version == 1:
            own_persistent, unreadable = self._embedded(segment)
        else:
            own_persistent, unreadable = persistent, np.zeros(len(entries), np.bool_)
        recovered = fate.keeps(entries, self.start, version, own_persistent=own_persistent, in_store=places.in_store)
        invalid = unreadable | ((version == 2) & ~shared & ((entries["flags"] & HIDDEN) != 0))
        recovered &= ~nowhere & ~invalid  # after a clean stop a queue ends at such a message, and is then started without it
        if version == 1 and self.ignores_journal:
            recovered[:] = False
        known = np.full(len(entries), PLAIN, np.uint8)
        known[nowhere] = UNREACHABLE
        known[invalid] = DAMAGED
        known[(entries["flags"] & REPEATED) != 0] = DUPLICATE
        known[entries["state"] == SPDA] = CONSUMED
        location = np.where(shared, np.where(persistent, PERSISTENT_STORE, TRANSIENT_STORE), INDEX)
        location[entries["place"] == IN_QUEUE_STORE] = QUEUE_STORE
        crashes = list(segment.crashes)
        if unreadable.any():
            first = int(np.flatnonzero(unreadable)[0])
            crashes.append(f"the message embedded at sequence id {entries['seq'][first]} is not a term; the broker crashes on it")
        consumed = entries["state"] == SPDA
        # a node drops transient messages at every start; a killed one leaves some half written, and 4.x their entries without bytes
        reported = ~consumed & persistent
        if version == 2:
            reported &= (entries["flags"] & HIDDEN) == 0  # these are findings of the index file
        findings = (*segment.findings, *_entry_damage(segment, index_file, unreadable & reported, nowhere & reported))
        return EntryTable(
            version,
            entries,
            places.sources,
            places.source,
            places.at,
            places.length,
            places.record,
            index_file,
            recovered,
            fate.redelivered(entries, self.start),
            known,
            location.astype(np.uint8),
            fate.fates(entries, recovered=recovered, consumed=consumed, nowhere=nowhere, invalid=invalid),
            tuple(crashes),
            findings,
            self.start.queue_addresses,
            tuple(entries["seq"][places.astray & persistent & live & ~consumed].tolist()),
        )

    def _locate(self, segment: IndexSegment, shared: NDArray[np.bool_]) -> _MessagePlaces:
        """Find the stored message of each entry. shared: entries whose message is in a message store."""
        entries = segment.entries
        source = np.where(shared, np.int32(-1), entries["place"].astype(np.int32))
        at, length, record = entries["at"].copy(), entries["length"].copy(), entries["record"].copy()
        in_queue_store = entries["place"] == IN_QUEUE_STORE
        record[in_queue_store] = at[in_queue_store] - index_v2.ENTRY_HEADER
        sources: list[tuple[str, Bytes | None]] = list(zip(segment.files, segment.data, strict=True))
        in_store, astray = np.zeros(len(entries), np.bool_), np.zeros(len(entries), np.bool_)
        persistent_store, transient_store = self._stores
        stored = np.flatnonzero(shared)
        rows = persistent_store.find(entries["hi"][stored], entries["lo"][stored])
        if self.start.clean:
            hits, readable = persistent_store.lead_to(entries["hi"][stored], entries["lo"][stored], rows)
            in_store[stored], astray[stored] = readable, hits & ~readable
        else:
            in_store[stored] = persistent_store.seen(rows)
        # an id may be in both stores: the broker reads the one that the entry names
        elsewhere = (rows < 0) | ((entries["flags"][stored] & PERSISTENT) == 0)
        transient_rows = transient_store.find(entries["hi"][stored[elsewhere]], entries["lo"][stored[elsewhere]])
        moved = np.flatnonzero(elsewhere)[transient_rows >= 0]
        rows[moved] = -1
        for store, hit, records in (
            (persistent_store, stored[rows >= 0], rows[rows >= 0]),
            (transient_store, stored[moved], transient_rows[transient_rows >= 0]),
        ):
            if not len(hit):
                continue
            files, places, lengths = store.locations(records)
            source[hit], at[hit], length[hit] = files + len(sources), places, lengths
            record[hit] = places - message_file.HEADER
            sources += [(file.name, None) for file in store.files]
        return _MessagePlaces(tuple(sources), source, at, length, record, in_store, astray)

    def _embedded(self, segment: IndexSegment) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which embedded messages are marked persistent in their terms, and which are not terms at all."""
        entries = segment.entries
        shape = np.zeros(len(entries), np.uint8)
        for number, data in enumerate(segment.data):
            rows = np.flatnonzero((entries["place"] == number) & (entries["length"] > 0))
            if len(rows):
                bits = np.zeros(len(rows), np.uint8)
                at, length, hi, lo = (np.ascontiguousarray(entries[name][rows]) for name in ("at", "length", "hi", "lo"))
                terms.shapes(data, at, length, hi, lo, bits)
                shape[rows] = bits
        embedded = entries["length"] > 0
        own = (shape & terms.PERSISTENT) != 0
        for row in np.flatnonzero(embedded & ((shape & (terms.PACKED | terms.CONTAINER)) != 0)).tolist():
            data = segment.data[int(entries["place"][row])]
            start, size = int(entries["at"][row]), int(entries["length"][row])
            try:
                own[row] = read_message(data[start : start + size].tobytes()).persistent
                shape[row] |= terms.TERM
            except EtfError:
                shape[row] &= ~terms.TERM & 0xFF
        return own, embedded & ((shape & terms.TERM) == 0)

    @cached_property
    def _summary(self) -> _QueueSummary:
        facts = _QueueSummary(QueueCounts())
        counts = facts.counts
        if self.now is not None:
            counts.expired = counts.expired_at_head = 0
        head = True
        for version, number in self.segments():
            table = self.entry_table(version, number)
            entries = table.entries
            counts.fates.add(fate.totals(table.fate))
            facts.recovered.append((self.index_of(table.version).count * number, int(table.recovered.sum())))
            counts.size += int(entries["size"][table.recovered].sum())
            counts.transient_missing += int(((table.fate == fate.TRANSIENT) & (table.known == UNREACHABLE)).sum())
            if self.now is not None:
                expired = (entries["expiry"] > 0) & (entries["expiry"] <= self.now)
                counts.expired = (counts.expired or 0) + int((expired & table.recovered).sum())
                if head:
                    among = expired[table.recovered]
                    first = int(np.argmin(among)) if len(among) and not among.all() else len(among)
                    counts.expired_at_head = (counts.expired_at_head or 0) + first
                    head = first == len(among)
            if table.recovered.any():
                low, high = int(entries["seq"][table.recovered].min()), int(entries["seq"][table.recovered].max())
                counts.min_seq = low if counts.min_seq is None else min(low, counts.min_seq)
                counts.max_seq = high if counts.max_seq is None else max(high, counts.max_seq)
                count = self.index_of(table.version).count
                facts.next_seq = fate.next_sequence_id(entries[table.recovered], self.start, count)
            facts.crashes += table.crashes
            facts.astray += table.astray
            facts.findings += table.findings
        facts.findings += self.place.findings
        facts.findings += self.index.journal.findings
        facts.findings += self._absent_journal(counts.fates)
        if self.start.terms is not None and self.start.terms.next_seq is not None:
            facts.next_seq = self.start.terms.next_seq
        if self.ignores_journal and len(self.index.journal.seq):
            detail = "the broker opens this queue as version 2 and ignores a journal without segments: it would lose all of it"
            facts.findings.append(Damage(self.index.journal_file, 0, len(self.index.journal.data), Kind.BROKER_LOSES, detail))
        return facts

    def _absent_journal(self, fates: fate.Fates) -> Iterator[Damage]:
        """Yield what is known of a journal that is gone: a node makes one before the first segment, and a clean stop empties it."""
        if self.index.has_journal or not self.index.segment_numbers or self._converted:
            return
        shown = "journal.jif is missing beside segments"
        noted = None if self.start.terms is None else self.start.terms.count
        persistent = fates.listed - fates.transient
        if noted is None:
            why = f"{shown}: it cannot be told which messages it acknowledged, so that they come back, and which it published"
            yield Damage(self.index.journal_file, 0, 0, Kind.ABSENT_PART, why)
        elif noted != persistent:
            why = f"{shown}, which have {persistent} persistent messages, and a clean stop counted {noted}"
            yield Damage(self.index.journal_file, 0, 0, Kind.ABSENT_PART, why)

    @property
    def counts(self) -> QueueCounts:
        """Counts of messages by state; reads the whole index once."""
        return self._summary.counts

    @property
    def next_seq(self) -> int:
        """The sequence id that the broker would assign to the next message."""
        return self._summary.next_seq

    @property
    def crashes(self) -> tuple[str, ...]:
        """Why the broker would crash on this queue's files."""
        astray, crashes = self._summary.astray, self._summary.crashes
        if self._root.is_directory(name := f"{self.place.place}/{NAME_FILE}"):
            crashes = [
                *crashes,
                f"a directory has the place of {name}, which the broker writes before it starts the queue: it crashes on it",
            ]
        if not astray:
            return tuple(crashes)
        where = f"sequence id {astray[0]}" + (f" and {len(astray) - 1} more" if len(astray) > 1 else "")
        lead = f"the message of {where} is not where msg_store_index.ets has it; the queue ends there at every attempt"
        return (*crashes, lead)

    @property
    def findings(self) -> tuple[Damage, ...]:
        return tuple(self._summary.findings)
