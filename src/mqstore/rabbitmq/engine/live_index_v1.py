"""The writable index of a version 1 queue: `journal.jif` and `<k>.idx`, and their state in memory.

The actions since the last flush are in the journal and, for each segment, in a map J from rel to the bits P, D, A:

    present   publish   deliver   acknowledge
    nothing   P         D         A
    P         -         PD        removed
    PD        -         -         removed
    D         -         -         DA

A message that is published, delivered and acknowledged between two flushes never reaches a segment. A segment's `unacked` is the
number of publishes minus acknowledgements in its file and J. A flush deletes the segments whose unacked is 0, appends J to each of
the others in one write, by descending rel, and empties the journal. It happens when the journal exceeds its limit of actions or
bytes, when the queue is idle, and at the end of a dirty start.

    journal on disk      a prefix of the actions since the last flush; a flush completes and syncs it before it changes anything else
    segment              synced, with its directory entry, before the journal is truncated
    removed segment      its removal synced before the journal is truncated
    truncated journal    synced before the next record is written

This order is stricter than the broker's, which discards the unwritten part of the journal. A crash then leaves pairs of journal and
segment that its own start cannot read: a delivery of an acknowledged message, or of one in a deleted segment.

A start reads journal and segments, repairs them, and flushes everything to segments:

    1. the journal is replayed over the segments (section 7.2), one sequence id at a time
    2. invalid entries are dropped: an embedded message that is transient or has another id, a transient entry, an entry whose
       message is not in the store
    3. an entry without a delivery gets one: since 3.10 every publish has one, and it has no meaning
    4. flush: segments hold everything, the journal is empty

Between 1 and 2 the message store is scanned, for which the ids that all queues reference must be known. A damaged segment is rewritten
with its valid entries; a broker would not read what is appended after a torn entry.

Format: docs/formats/rabbitmq.md, sections 5 and 7.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.files import Bytes, ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.kernels.rabbitmq import queue_index, terms
from mqstore.rabbitmq.engine.engine_config import EngineConfig
from mqstore.rabbitmq.engine.live_queue import LiveEntry, LiveIndex, LiveSegment, StoreReferences
from mqstore.rabbitmq.engine.message_locations import MessageLocations
from mqstore.rabbitmq.format.index_v1 import IN_JOURNAL, IN_SEGMENT, IN_STORE, PERSISTENT, REPEATED, QueueIndexV1
from mqstore.rabbitmq.format.journal import PUBLISH_ACTION, WORD, acknowledge, deliver
from mqstore.rabbitmq.format.segment import mark, read_segment

P, D, A = queue_index.P, queue_index.D, queue_index.A
_DELIVER = 2 << 62
_ACKNOWLEDGE = 3 << 62
_FIXED = struct.Struct(">16sQII")
_MARKS = struct.Struct(">H")


class LiveSegmentV1(LiveSegment):
    """One segment. size: bytes of its file, -1 without one. state: J; at: positions of publishes in the journal; None if J is empty."""

    __slots__ = ("at", "size", "state")

    def __init__(self, number: int, size: int = -1, unacked: int = 0) -> None:
        super().__init__(number, unacked)
        self.size = size
        self.state: bytearray | None = None
        self.at: array[int] | None = None

    def open_map(self, entries: int) -> bytearray:
        """Return J, creating it if it was empty."""
        if self.state is None:
            self.state = bytearray(entries)
            self.at = array("q", bytes(8 * entries))
        return self.state


class LiveIndexV1(LiveIndex):
    """The index of one queue. entries: N.

    journal: the records since the last flush; the first `written` bytes of them are in the file. dirty: number of actions in it.
    """

    version = 1

    def __init__(self, directory: DurableDirectory, reading: ReadOnlyDirectory, place: str, entries: int, config: EngineConfig) -> None:
        super().__init__(directory, reading, place, entries)
        self.segments: dict[int, LiveSegmentV1] = {}
        self.journal = bytearray()
        self.written = 0
        self.dirty = 0
        self._file = f"{place}/journal.jif"
        self._has_file = reading.exists(self._file)
        self._max_entries = config.queue_index_max_journal_entries
        self._max_bytes = config.queue_index_max_journal_bytes
        self._view: tuple[int, int, Bytes, NDArray[np.uint8], NDArray[np.int64]] | None = None

    # actions

    def publish(self, seq: int, message_id: bytes, embedded: bytes, persistent: bool, expiry: int, size: int) -> None:
        """Record a publish and its delivery, which brokers since 3.10 always write together."""
        number, rel = divmod(seq, self.entries)
        segment = self.segments.get(number)
        if segment is None:
            segment = self.segments[number] = LiveSegmentV1(number)
        state = segment.state
        if state is None:
            state = segment.open_map(self.entries)
        journal = self.journal
        segment.at[rel] = len(journal)  # type: ignore[index] # created together with the state
        state[rel] = P
        segment.unacked += 1
        journal += PUBLISH_ACTION.pack(seq if persistent else 1 << 62 | seq, message_id, expiry, size, len(embedded))
        journal += embedded
        self.dirty += 1
        if self.dirty > self._max_entries or len(journal) > self._max_bytes:
            self.flush()
            segment.open_map(self.entries)
        segment.state[rel] |= D  # type: ignore[index]
        journal += WORD.pack(_DELIVER | seq)
        self.dirty += 1
        if self.dirty > self._max_entries:
            self.flush()

    def acknowledge(self, seqs: Iterable[int]) -> None:
        """Acknowledge live entries; flush after the whole batch if the journal is over its limit."""
        for seq in seqs:
            number, rel = divmod(seq, self.entries)
            segment = self.segments[number]
            state = segment.state if segment.state is not None else segment.open_map(self.entries)
            state[rel] = 0 if state[rel] & P else state[rel] | A
            segment.unacked -= 1
            self.journal += WORD.pack(_ACKNOWLEDGE | seq)
            self.dirty += 1
        if self.dirty > self._max_entries:
            self.flush()

    def deliver(self, seqs: Iterable[int]) -> None:
        """Record deliveries of entries that have none. Only a start does so separately."""
        for seq in seqs:
            number, rel = divmod(seq, self.entries)
            self.segments[number].open_map(self.entries)[rel] |= D
            self.journal += WORD.pack(_DELIVER | seq)
            self.dirty += 1

    # reading

    def entry(self, seq: int) -> LiveEntry | None:
        number, rel = divmod(seq, self.entries)
        segment = self.segments.get(number)
        if segment is None:
            return None
        bits = segment.state[rel] if segment.state is not None else 0
        if bits & A:
            return None
        if bits & P:
            at = segment.at[rel]  # type: ignore[index]
            persistent = not self.journal[at] & 0x40
            return self._entry_at(self.journal, at + 8, persistent)
        if segment.size <= 0:
            return None
        data, state, positions = self._segment(segment)
        if state[rel] & (P | A) != P:
            return None
        at = int(positions[rel])
        return self._entry_at(data, at + 2, bool(data[at] & 0x40))

    @staticmethod
    def _entry_at(octets: bytearray | Bytes, at: int, persistent: bool) -> LiveEntry:
        message_id, expiry, size, embedded = _FIXED.unpack(bytes(octets[at : at + 32]))
        return LiveEntry(message_id, bytes(octets[at + 32 : at + 32 + embedded]), persistent, expiry, size)

    def _segment(self, segment: LiveSegmentV1) -> tuple[Bytes, NDArray[np.uint8], NDArray[np.int64]]:
        """Return data, states and positions of a segment's file. Cached until another segment is read or this one changes."""
        if self._view is None or self._view[:2] != (segment.number, segment.size):
            data = self._reading.map(f"{self.place}/{segment.number}.idx").data
            if len(data) < segment.size:
                raise CannotOpenError(
                    f"{self.place}/{segment.number}.idx became shorter while the queue was open; close and verify the store"
                )
            file = read_segment(data, self.entries)
            self._view = segment.number, segment.size, data, file.state, file.at
        return self._view[2:]

    def live(self, number: int) -> NDArray[np.int64]:
        segment = self.segments[number]
        bits = np.zeros(self.entries, np.uint8) if segment.size <= 0 else self._segment(segment)[1] & 7
        if segment.state is not None:
            bits = bits | np.frombuffer(bytes(segment.state), np.uint8)
        return np.flatnonzero(bits & (P | A) == P).astype(np.int64) + number * self.entries

    def store_references(self, number: int) -> StoreReferences:
        segment, seqs = self.segments[number], self.live(number)
        rels = seqs - number * self.entries
        in_journal = np.zeros(len(seqs), np.bool_)
        if segment.state is not None:
            in_journal = np.frombuffer(bytes(segment.state), np.uint8)[rels] & P != 0
        columns = np.zeros((5, len(seqs)), np.int64)
        for mine, fixed in ((in_journal, 8), (~in_journal, 2)):
            if not mine.any():
                continue
            if fixed == 8:
                data, at = np.frombuffer(self.journal, np.uint8), np.array(segment.at, np.int64)
            else:
                data, _, at = self._segment(segment)
            fields = np.empty((5, int(mine.sum())), np.int64)
            queue_index.publish_fields(data, at[rels[mine]], fixed, *fields)
            columns[:, mine] = fields
        hi, lo, _, size, embedded = columns
        away = embedded == 0
        return StoreReferences(seqs[away], hi[away], lo[away], size[away])

    # reaching the disk

    def sync(self) -> None:
        """Write and sync the journal."""
        if self.written == len(self.journal):
            return
        if not self._has_file:
            self._directory.create(self._file)
            self._directory.sync_directory(self.place)
            self._has_file = True
        with memoryview(self.journal) as view:
            self._directory.pwrite(self._file, self.written, view[self.written :])
        self.written = len(self.journal)
        self._directory.sync(self._file)

    def flush(self) -> None:
        """Move all actions to the segments and empty the journal."""
        if not self.dirty and not self.journal:
            return
        if self.written > 0:
            self.sync()
        names_changed = False
        for segment in sorted(self.segments.values(), key=lambda segment: segment.number):
            name = f"{self.place}/{segment.number}.idx"
            if segment.unacked == 0:
                if segment.size >= 0:
                    self._directory.remove(name)
                    names_changed = True
                del self.segments[segment.number]
            elif segment.state is not None:
                run = self._segment_bytes(segment)
                segment.state = segment.at = None
                if run:
                    if segment.size < 0:
                        self._directory.create(name)
                        segment.size, names_changed = 0, True
                    self._directory.pwrite(name, segment.size, run)
                    segment.size += len(run)
                    self._directory.sync(name)
        if names_changed:
            self._directory.sync_directory(self.place)
        self._cut_journal()

    def replace_file(self, segment: LiveSegmentV1, content: bytes) -> None:
        """Replace the file of a segment atomically."""
        self._directory.write_small(f"{self.place}/{segment.number}.idx", content)
        segment.size = len(content)
        self._view = None

    def _segment_bytes(self, segment: LiveSegmentV1) -> bytes:
        """Return what a flush appends to a segment: by descending rel, the publish, then one mark each for delivery and acknowledgement."""
        state, at = segment.state, segment.at
        assert state is not None
        assert at is not None
        parts: list[bytes | memoryview] = []
        with memoryview(self.journal) as journal:
            for rel in np.flatnonzero(np.frombuffer(bytes(state), np.uint8))[::-1].tolist():
                bits = state[rel]
                if bits & P:
                    start = at[rel]
                    parts.append(_MARKS.pack(0x8000 | rel if journal[start] & 0x40 else 0xC000 | rel))
                    parts.append(journal[start + 8 : start + 40 + int.from_bytes(journal[start + 36 : start + 40], "big")])
                mark = _MARKS.pack(0x4000 | rel)
                if bits & D:
                    parts.append(mark)
                if bits & A:
                    parts.append(mark)
            run = b"".join(parts)
            for part in parts:
                if isinstance(part, memoryview):
                    part.release()
        return run

    def _cut_journal(self) -> None:
        if self._has_file and self.written:
            self._directory.truncate(self._file, 0)
            self._directory.sync(self._file)
        self.journal.clear()
        self.written = self.dirty = 0


def recover_v1(
    directory: DurableDirectory, reading: ReadOnlyDirectory, place: str, entries: int, config: EngineConfig, locations: MessageLocations
) -> tuple[LiveIndexV1, int, NDArray[np.int64]]:
    """Return the index that the files describe, the size of the bodies in bytes, and the sequence ids to drop in any case: here none.

    Entries that are not valid are left out already. locations: counts a reference for each entry whose message is in the message store.
    """
    files = QueueIndexV1(reading, place, entries, lenient=True)
    index = LiveIndexV1(directory, reading, place, entries, config)
    size = 0
    words: list[bytes] = []
    _take_journal(index, files, directory)
    for number in files.numbers:
        segment, live = _segment(index, files, number, words)
        if segment is None:
            continue
        index.segments[number] = segment
        away = live[live["place"] == IN_STORE]
        locations.count_references(np.ascontiguousarray(away["hi"]), np.ascontiguousarray(away["lo"]))
        size += int(live["size"].sum())
    if words and not files.journal.findings:
        index.journal += b"".join(words)
    index.dirty = len(files.journal.seq) + 1
    return index, size, np.empty(0, np.int64)


def _take_journal(index: LiveIndexV1, files: QueueIndexV1, directory: DurableDirectory) -> None:
    """Adopt the journal file as the written part of the index; a tail that is not a record is truncated."""
    if not files.has_journal:
        return
    journal = files.journal
    index.journal = bytearray(journal.data)
    index.written = len(index.journal)
    if journal.seen == len(journal.seq) and journal.end < len(journal.data):
        del index.journal[journal.end :]
        index.written = journal.end
        directory.truncate(files.journal_file, journal.end)
        directory.sync(files.journal_file)


def _segment(index: LiveIndexV1, files: QueueIndexV1, number: int, words: list[bytes]) -> tuple[LiveSegmentV1 | None, NDArray[np.void]]:
    """Return one segment, with the actions its file lacks, and its live entries. words: receives the records to add to the journal."""
    combined = files.segment(number, dirty=True)
    rows = combined.entries[(combined.entries["flags"] & REPEATED) == 0]
    exists = number in files.segment_numbers
    data = combined.data[0]
    file = combined.file
    assert file is not None
    sound = not file.findings and file.exists
    segment = LiveSegmentV1(number, len(data) if exists else -1)
    base = number * index.entries
    on_file = file.state & 7
    published = rows[rows["state"] & P != 0]
    live = published[(published["state"] & A == 0)]
    valid = _recoverable(live, combined.data)
    rel = (live["seq"] - base).astype(np.int64)
    states = np.zeros(index.entries, np.uint8)
    states[(published["seq"] - base).astype(np.int64)] = published["state"] & 7
    dropped = rel[~valid]
    states[dropped] = P | D | A
    undelivered = rel[live["state"] & D == 0]
    states[undelivered] |= D
    words += [deliver(base + each) for each in undelivered.tolist()]
    words += [acknowledge(base + each) for each in dropped.tolist()]
    segment.unacked = int(valid.sum())
    if exists and not sound:
        _rewrite_segment(index, segment, file.state, file.at, data)
        on_file = np.where(on_file & P, on_file, 0).astype(np.uint8)
    added = np.where(on_file & P, states & ~on_file & 7, np.where(states & A, 0, states)).astype(np.uint8)
    if added.any():
        state = segment.open_map(index.entries)
        state[:] = added.tobytes()
        at = np.zeros(index.entries, np.int64)
        in_journal = rows["from_journal"]
        at[(rows["seq"][in_journal] - base).astype(np.int64)] = rows["record"][in_journal]
        segment.at = array("q", at.tobytes())
    if not exists and not segment.unacked and segment.state is None:
        return None, live[:0]
    return segment, live[valid]


def _recoverable(live: NDArray[np.void], data: tuple[Bytes, ...]) -> NDArray[np.bool_]:
    valid = np.ones(len(live), np.bool_)
    for buffer in (IN_SEGMENT, IN_JOURNAL):
        mine = np.flatnonzero(live["place"] == buffer)
        if len(mine):
            rows = live[mine]
            shape = np.empty(len(mine), np.uint8)
            at, length, hi, lo = (np.ascontiguousarray(rows[name]) for name in ("at", "length", "hi", "lo"))
            terms.shapes(data[buffer], at, length, hi, lo, shape)
            own = (shape & (terms.MESSAGE | terms.SAME_ID) == terms.MESSAGE | terms.SAME_ID) | (shape & terms.PACKED != 0)
            valid[mine] = own & (shape & (terms.PERSISTENT | terms.CONTAINER | terms.PACKED) != 0)
    valid &= live["flags"] & PERSISTENT != 0
    return valid


def _rewrite_segment(index: LiveIndexV1, segment: LiveSegmentV1, state: NDArray[np.uint8], at: NDArray[np.int64], data: Bytes) -> None:
    """Replace a damaged segment file by one with its valid entries."""
    parts = []
    for rel in np.flatnonzero(state & P)[::-1].tolist():
        start = int(at[rel])
        parts.append(data[start : start + 34 + int.from_bytes(data[start + 30 : start + 34].tobytes(), "big")].tobytes())
        parts += [mark(rel)] * (int(state[rel] & D != 0) + int(state[rel] & A != 0))
    content = b"".join(parts)
    index.replace_file(segment, content)
