"""Index of a version 1 queue: journal and segments of one directory, read segment by segment.

Only the journal of a queue stays in memory, and one row of ENTRY for each entry of the segment being read. There is no object per
entry, and messages are not read: a row has the place of its message.

    seq  hi lo  expiry  size   as in the files                        state  published, delivered, acknowledged, from all bytes
    place  at  length          where the stored message is            seen   the same from what the broker reads; 0: not an entry for it
    record                     position of the entry in its file      flags  PERSISTENT, HIDDEN, REPEATED

    >>> ENTRY.itemsize
    69

`merge` combines journal and segments.

Format: docs/formats/rabbitmq.md, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes, ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.kernels.rabbitmq import queue_index
from mqstore.rabbitmq.format import journal as journals
from mqstore.rabbitmq.format import segment as segments
from mqstore.rabbitmq.format.journal import PUBLISH_TRANSIENT, Journal
from mqstore.rabbitmq.format.layout import bytes_of, own_entries
from mqstore.rabbitmq.format.names import is_file_number
from mqstore.rabbitmq.format.segment import Segment

# flags of an entry
PERSISTENT = 1
HIDDEN = 2  # the broker does not see it: it is after damage in the journal
REPEATED = 4  # a second publish of a sequence id, with different bytes

# places of the bytes of an entry
IN_SEGMENT, IN_JOURNAL, IN_QUEUE_STORE, IN_STORE = 0, 1, 2, 3

ENTRY = np.dtype(
    [
        ("seq", np.int64),
        ("hi", np.int64),  # the message id, as two big-endian halves
        ("lo", np.int64),
        ("expiry", np.int64),  # microseconds since 1970, 0 = none
        ("size", np.int64),  # bytes of the body
        ("at", np.int64),  # position of the stored message in the file `place` names
        ("length", np.int64),  # its bytes; 0: in the message store
        ("record", np.int64),  # position of the entry in its index file
        ("state", np.uint8),  # bits PUBLISHED, DELIVERED, ACKED, from all bytes
        ("seen", np.uint8),  # the same from what the broker reads; 0 = not an entry for it
        ("flags", np.uint8),
        ("place", np.uint8),  # of the stored message: IN_SEGMENT, IN_JOURNAL, IN_QUEUE_STORE, IN_STORE
        ("from_journal", np.bool_),  # the publish is in the journal
    ]
)


@dataclass(frozen=True, slots=True)
class IndexSegment:
    """Entries of one segment, ascending by sequence id, with the buffers that contain their stored messages.

    entries: rows of ENTRY; acknowledged ones included. crashes: why the broker would crash here.
    """

    number: int
    entries: NDArray[np.void]
    data: tuple[Bytes, ...]  # by place
    files: tuple[str, ...]  # by place
    crashes: tuple[str, ...] = ()
    findings: tuple[Damage, ...] = ()
    file: Segment | None = None  # version 1 only: the segment file without the journal


class QueueIndexV1:
    """Journal and segments of one queue directory, read segment by segment.

    place: the queue's directory, relative to the root. count: the vhost's segment entry count N.
    """

    version = 1

    def __init__(self, directory: ReadOnlyDirectory, place: str, count: int, *, lenient: bool = False) -> None:
        self.directory = directory
        self.place = place
        self.count = min(max(count, 1), segments.MAX_ENTRIES)
        self.lenient = lenient
        self._files = {
            int(entry.name[:-4]): entry.size
            for entry in own_entries(directory, place)
            if entry.is_file and entry.name.endswith(".idx") and is_file_number(entry.name[:-4])
        }
        self.has_journal = directory.exists(f"{place}/journal.jif")

    def segment_file(self, number: int) -> str:
        return f"{self.place}/{number}.idx"

    @property
    def journal_file(self) -> str:
        return f"{self.place}/journal.jif"

    @property
    def exists(self) -> bool:
        """Whether there is any file of version 1 with bytes in it."""
        return bool(self._files) or (self.has_journal and len(self.journal.data) > 0)

    @property
    def segment_numbers(self) -> list[int]:
        """Numbers of the existing segment files."""
        return sorted(self._files)

    @cached_property
    def journal(self) -> Journal:
        if not self.has_journal:
            return journals.read_journal(np.empty(0, np.uint8), self.journal_file)
        data, unreadable = bytes_of(self.directory, self.journal_file)
        journal = journals.read_journal(data, self.journal_file)
        return replace(journal, findings=(*unreadable, *journal.findings))

    @cached_property
    def journal_seen(self) -> JournalMap:
        """The journal map as the broker has it."""
        journal = self.journal
        return journal_map(journal.kind[: journal.seen], journal.seq[: journal.seen], lenient=self.lenient)

    @cached_property
    def journal_all(self) -> JournalMap:
        """The journal map including actions after damage."""
        journal = self.journal
        if journal.seen == len(journal.seq):
            return self.journal_seen
        return journal_map(journal.kind, journal.seq, lenient=self.lenient)

    @cached_property
    def numbers(self) -> list[int]:
        """Numbers of the segments that have a file or journal entries, ascending."""
        touched = np.unique(self.journal_all.seq // self.count)
        return sorted(set(self._files) | set(touched.tolist()))

    def segment(self, number: int, *, dirty: bool) -> IndexSegment:
        """Return the entries of a segment. dirty: combined as after a crash ("minus" before "plus")."""
        data: Bytes = np.empty(0, np.uint8)
        unreadable: tuple[Damage, ...] = ()
        if number in self._files:
            data, unreadable = bytes_of(self.directory, self.segment_file(number))
        file = segments.read_segment(data, self.count, self.segment_file(number))
        seen = self._merge(number, file, self.journal_seen, dirty)
        complete = seen if self.journal_all is self.journal_seen else self._merge(number, file, self.journal_all, dirty)
        rels = np.flatnonzero((complete.state != 0) | (seen.state != 0))
        entries = np.zeros(len(rels), ENTRY)
        entries["seq"] = rels + number * self.count
        entries["state"] = complete.state[rels]
        entries["seen"] = np.where(seen.state[rels] == SPDA, 0, seen.state[rels])
        entries["flags"] = np.where(seen.published[rels], 0, HIDDEN)
        in_journal = complete.in_journal[rels]
        entries["from_journal"] = in_journal
        self._fill(entries, np.flatnonzero(~in_journal), file.data, file.at[rels[~in_journal]], False)
        self._fill(entries, np.flatnonzero(in_journal), self.journal.data, complete.at[rels[in_journal]], True)
        entries = self._with_repeats(entries, number, file, complete.at)
        crashes = (*((file.crash,) if file.crash else ()), *seen.crashes)
        return IndexSegment(
            number,
            entries,
            (file.data, self.journal.data, np.empty(0, np.uint8)),
            (self.segment_file(number), self.journal_file, ""),
            crashes,
            (*unreadable, *file.findings, *self._crash_damage(number, seen)),
            file,
        )

    def _merge(self, number: int, file: Segment, journal: JournalMap, dirty: bool) -> _SegmentStates:
        low, high = np.searchsorted(journal.seq, (number * self.count, (number + 1) * self.count))
        if low == high:
            return self._merge_without_journal(number, file, dirty)
        rels = journal.seq[low:high] - number * self.count
        j = np.zeros(self.count, np.uint8)
        j[rels] = journal.state[low:high]
        at = np.full(self.count, -1, np.int64)
        publish = journal.publish[low:high]
        at[rels[publish >= 0]] = self.journal.at[publish[publish >= 0]]
        s = (file.state & 7).astype(np.uint8)
        same = self._same(file, at, np.flatnonzero((j == JP) & (s == SP)))
        merged = merge(j, s, same, dirty=dirty, lenient=self.lenient)
        state = merged.state
        removed = np.zeros(self.count, np.bool_)
        removed[rels] = journal.removed[low:high]
        # removed from the map, and in no file: acknowledged
        state = np.where(removed & (state == 0), np.uint8(SPDA), state)
        in_journal = (s & queue_index.P == 0) & (at >= 0)
        crashed = np.zeros(self.count, np.bool_)
        crashed[rels] = journal.bad[low:high] >= 0
        both = crashed | merged.crash
        published = (s & queue_index.P != 0) | (at >= 0)
        return _SegmentStates(state, in_journal, at, published, _crash_reasons(both, merged.crash, j, s, number * self.count))

    def _merge_without_journal(self, number: int, file: Segment, dirty: bool) -> _SegmentStates:
        """Return the same for a segment without entries in the journal."""
        s = (file.state & 7).astype(np.uint8)
        outcome = without_journal(dirty=dirty, lenient=self.lenient)
        nothing = np.zeros(self.count, np.bool_)
        crash = outcome.crash[s]
        crashes = _crash_reasons(crash, crash, np.zeros(self.count, np.uint8), s, number * self.count) if crash.any() else ()
        return _SegmentStates(outcome.state[s], nothing, np.full(self.count, -1, np.int64), s & queue_index.P != 0, crashes)

    def _same(self, file: Segment, at: NDArray[np.int64], rels: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return for each of these rels whether journal and segment have the same publish; True for all others."""
        same = np.ones(self.count, np.bool_)
        for rel in rels.tolist():
            p = int(file.at[rel])
            persistent, published = self._published_at(int(at[rel]))
            same[rel] = bool(file.data[p] & 0x40) == persistent and file.data[p + 2 : p + 2 + len(published)].tobytes() == published
        return same

    def _fill(self, entries: NDArray[np.void], rows: NDArray[np.intp], data: Bytes, at: NDArray[np.int64], from_journal: bool) -> None:
        """Read the fields of the publishes at `at` into these rows."""
        if not len(rows):
            return
        columns = [np.empty(len(rows), np.int64) for _ in range(5)]
        queue_index.publish_fields(data, at, journals.ID_AT if from_journal else segments.ID_AT, *columns)
        for name, column in zip(("hi", "lo", "expiry", "size", "length"), columns, strict=True):
            entries[name][rows] = column
        fixed = journals.PUBLISH_SIZE if from_journal else segments.PUBLISH_SIZE
        entries["record"][rows] = at
        entries["at"][rows] = at + fixed
        first = data[at]
        persistent = (first >> 6) == journals.PUBLISH if from_journal else first & 0x40 != 0
        entries["flags"][rows] |= np.where(persistent, PERSISTENT, 0).astype(np.uint8)
        place = np.where(columns[4] > 0, IN_JOURNAL if from_journal else IN_SEGMENT, IN_STORE)
        entries["place"][rows] = place

    def _with_repeats(self, entries: NDArray[np.void], number: int, file: Segment, at: NDArray[np.int64]) -> NDArray[np.void]:
        """Return the entries, each followed by other publishes of it that differ: others of the journal, the one of the journal that the
        segment has otherwise, an earlier in the segment. at: position of the journal's publish of each rel."""
        again, acknowledged = self._other_publishes(number)
        both = np.flatnonzero((file.state & queue_index.P != 0) & (at >= 0))
        other = both[~self._same(file, at, both)[both]]
        in_journal, in_file = np.arange(len(again) + len(other)), len(again) + len(other) + np.arange(len(file.earlier))
        if not len(in_journal) + len(in_file):
            return entries
        extra = np.zeros(len(in_journal) + len(in_file), ENTRY)
        earlier = np.array(file.earlier, np.int64).reshape(-1, 2)
        extra["seq"] = np.concatenate([self.journal.seq[again], number * self.count + other, number * self.count + earlier[:, 0]])
        extra["flags"] = REPEATED | HIDDEN
        extra["state"] = SP
        extra["state"][: len(again)][acknowledged] = SPDA
        extra["from_journal"][in_journal] = True
        self._fill(extra, in_journal, self.journal.data, np.concatenate([self.journal.at[again], at[other]]), True)
        self._fill(extra, in_file, file.data, earlier[:, 1], False)
        merged = np.concatenate([entries, extra])
        return merged[np.argsort(merged["seq"], kind="stable")]

    def _other_publishes(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the journal's publishes in a segment that differ from those that count, and which of them were acknowledged before."""
        journal, entries = self.journal, self.journal_all
        low, high = np.searchsorted(journal.seq[entries.other], (number * self.count, (number + 1) * self.count))
        again = entries.other[low:high]
        counted = entries.publish[np.searchsorted(entries.seq, journal.seq[again])]
        places = zip(journal.at[again].tolist(), journal.at[counted].tolist(), strict=True)
        differs = np.array([self._published_at(a) != self._published_at(b) for a, b in places], np.bool_)
        return again[differs], (again < counted)[differs]

    def _published_at(self, at: int) -> tuple[bool, bytes]:
        """Return whether the publish at a position of the journal is persistent, and its bytes after the sequence id."""
        source = self.journal.data
        size = 32 + int.from_bytes(source[at + 36 : at + 40].tobytes(), "big")
        return bool(source[at] >> 6 == journals.PUBLISH), source[at + 8 : at + 8 + size].tobytes()

    def _crash_damage(self, number: int, seen: _SegmentStates) -> list[Damage]:
        if not seen.crashes:
            return []
        where = self.journal_file if self.has_journal else self.segment_file(number)
        return [Damage(where, 0, 0, Kind.BROKER_CRASH, sentence, 1) for sentence in seen.crashes]


@dataclass(frozen=True, slots=True)
class _SegmentStates:
    """One segment and one journal map together, a row per rel. at: position of the journal's publish."""

    state: NDArray[np.uint8]
    in_journal: NDArray[np.bool_]
    at: NDArray[np.int64]
    published: NDArray[np.bool_]
    crashes: tuple[str, ...]


_ACTION_NAMES = {0: "nothing", 1: "pub", 2: "del", 3: "pub, del", 4: "ack", 6: "del, ack", 7: "pub, del, ack"}
_MAX_REASONS = 20


def _crash_reasons(
    crash: NDArray[np.bool_], tables: NDArray[np.bool_], j: NDArray[np.uint8], s: NDArray[np.uint8], base: int
) -> tuple[str, ...]:
    """Return why the broker would crash, for the first sequence ids."""
    rels = np.flatnonzero(crash)
    reasons = []
    for rel in rels[:_MAX_REASONS].tolist():
        if tables[rel]:
            in_journal, in_segment = (_ACTION_NAMES.get(int(bits[rel]), "pub, ack") for bits in (j, s))
            why = f"the journal says ({in_journal}), the segment ({in_segment})"
        else:
            why = "the journal repeats an action or acknowledges a message it has not delivered"
        reasons.append(f"the broker crashes on sequence id {base + rel}: {why}")
    if len(rels) > _MAX_REASONS:
        reasons.append(f"the broker crashes on {len(rels) - _MAX_REASONS} more sequence ids of the segment from {base}")
    return tuple(reasons)


# ---- merge of journal and segments of a version 1 queue: the broker's tables, applied to columns
#
# The journal holds the actions since the last flush, the segments those before it; after a crash between writing the segments and
# truncating the journal, the same actions are in both. For each sequence id, with J from the journal and S from the segment:
#
#     minus   removes from J what S already has (a dirty start does this first)    J' = minus(J, S)
#     plus    is the resulting state of the entry                                  state = plus(S, J')
#
# J is one of nothing, P, PD, D, A, DA (published, delivered, acknowledged), S one of nothing, P, PD, PDA. The tables below are the
# broker's. In some cells it crashes; there the actions are combined (an acknowledgement in either counts), and the crash is reported.
# Since 3.10.24, 3.11.18 and 3.12.1 an acknowledgement without a delivery does not crash (`lenient`).
#
# Format: docs/formats/rabbitmq.md, sections 5.2, 5.6 and 7.2.

# states of an entry: bits
PUBLISHED, DELIVERED, ACKED = queue_index.P, queue_index.D, queue_index.A
NOTHING, SP, SPD, SPDA = 0, 1, 3, 7
JP, JPD, JPDA, JD, JA, JDA = 1, 3, 7, 2, 4, 6

_CRASH = 16
# J after "minus": rows by the bits of J, columns by the bits of S
_MINUS = np.full((8, 8), _CRASH, np.uint8)
for _j, _row in {
    NOTHING: {NOTHING: 0, SP: 0, SPD: 0, SPDA: 0},
    JP: {NOTHING: JP, SP: 0},  # SP: only if both publishes are identical
    JPD: {NOTHING: JPD, SP: JD, SPD: 0},
    JPDA: {NOTHING: JPDA, SP: JDA, SPD: JA, SPDA: 0},
    JD: {SP: JD, SPD: 0},
    JA: {NOTHING: 0, SPD: JA, SPDA: 0},
    JDA: {NOTHING: 0, SP: JDA, SPD: JA, SPDA: 0},
}.items():
    for _s, _out in _row.items():
        _MINUS[_j, _s] = _out
# state after "plus": rows by the bits of S, columns by the bits of J; an entry acknowledged in the file counts as nothing here
_PLUS = np.full((8, 8), _CRASH, np.uint8)
for _s, _row in {
    NOTHING: {NOTHING: 0, JP: SP, JPD: SPD, JPDA: SPDA},
    SP: {NOTHING: SP, JD: SPD, JDA: SPDA},
    SPD: {NOTHING: SPD, JA: SPDA},
}.items():
    for _j, _out in _row.items():
        _PLUS[_s, _j] = _out
_PLUS[SPDA] = _PLUS[NOTHING]


class MergedStates(NamedTuple):
    """The state of each sequence id as bits (7: acknowledged), and whether the broker would crash on it."""

    state: NDArray[np.uint8]
    crash: NDArray[np.bool_]


def merge(j: NDArray[np.uint8], s: NDArray[np.uint8], same: NDArray[np.bool_], *, dirty: bool, lenient: bool = False) -> MergedStates:
    """Return the state of each sequence id from the bits of its journal part j and its segment part s.

    same: whether the publishes are identical, if both have one. dirty: "minus" first, as after a crash.
    """
    crash = np.zeros(len(j), np.bool_)
    left = j
    if dirty:
        left = _MINUS[j, s]
        crash |= left == _CRASH
        crash |= (j == JP) & (s == SP) & ~same
        if lenient:
            accepted = (j == JA) & (s == SP)
            left = np.where(accepted, np.uint8(JDA), left)
            crash &= ~accepted
        left = np.where(crash, np.uint8(0), left)
    state = _PLUS[s, left]
    if lenient:
        accepted = (s == SP) & (left == JA)
        state = np.where(accepted, np.uint8(SPDA), state)
    crash |= state == _CRASH
    # acknowledged in the file, and not published again in the journal: still acknowledged
    state = np.where((s == SPDA) & (state == 0), np.uint8(SPDA), state)
    added = j | s
    added = np.where(added & queue_index.P == 0, np.uint8(0), np.where(added & queue_index.A != 0, np.uint8(7), added))
    return MergedStates(np.where(crash, added, state).astype(np.uint8), crash)


@cache
def without_journal(*, dirty: bool, lenient: bool) -> MergedStates:
    """Return the result of `merge` for each of the eight segment parts, with nothing in the journal."""
    return merge(np.zeros(8, np.uint8), np.arange(8, dtype=np.uint8), np.ones(8, np.bool_), dirty=dirty, lenient=lenient)


@dataclass(frozen=True, slots=True)
class JournalMap:
    """The journal's actions combined, one row per sequence id, ascending.

    state: bits P, D, A in the broker's map. publish: the action that publishes, or -1. removed: published, delivered and acknowledged
    within the journal, and therefore no longer in the map. other: all other actions that publish one of these ids, by id and in file
    order; what is before `publish` of its id was acknowledged before that. bad: the action at which the broker would crash, or -1.
    """

    seq: NDArray[np.int64]
    state: NDArray[np.uint8]
    publish: NDArray[np.int64]
    removed: NDArray[np.bool_]
    other: NDArray[np.int64]
    bad: NDArray[np.int64]


def journal_map(kind: NDArray[np.uint8], seq: NDArray[np.int64], *, lenient: bool = False) -> JournalMap:
    """Combine actions as the broker does when it reads a journal. lenient: an acknowledgement without a delivery does not crash."""
    count = len(seq)
    order = np.argsort(seq, kind="stable").astype(np.int64, copy=False)
    first, publish, repeat, bad = (np.empty(count, np.int64) for _ in range(4))
    state = np.empty(count, np.uint8)
    ids = queue_index.fold(order, kind, seq, first, state, publish, repeat, bad)
    bits = state[:ids]
    bad = bad[:ids].copy()
    if lenient:
        # only the crash of an acknowledgement after a bare publish has left an entry removed
        bad[(bits & queue_index.REMOVED != 0) & (repeat[:ids] < 0)] = -1
    other = kind <= PUBLISH_TRANSIENT
    other[publish[:ids][publish[:ids] >= 0]] = False
    return JournalMap(
        seq[first[:ids]],
        (bits & 7).astype(np.uint8),
        publish[:ids].copy(),
        bits & queue_index.REMOVED != 0,
        order[other[order]],
        bad,
    )
