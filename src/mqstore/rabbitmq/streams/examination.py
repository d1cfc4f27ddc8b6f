"""A stream examined: every chunk proved, indexes compared, and what a node would make of it at its start.

What a node does, by the rules of osiris: it looks at the last index and segment only, and deletes segments without an index.

    index of a segment gone             deletes the segment, with all its messages; 3.10 reads one between others
    last index short, or its end wrong  cuts the last segment after the last chunk that the index knows and that is valid
    last segment without a chunk        deletes it with its index; the one before is the last then
    chunk damaged elsewhere             serves it as it is: readers stop there
    offsets missing between segments    readers stop there
    no valid chunk where it needs one   does not start the stream (`start`)

Segments are read one at a time, block by block.

Format: docs/formats/rabbitmq-streams.md, sections 8 and 9.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from mqstore.findings import CheckCounts, Damage, Kind
from mqstore.kernels.rabbitmq.stream_chunks import BAD_DATA, BAD_HEADER
from mqstore.rabbitmq.streams.entries import walk_records
from mqstore.rabbitmq.streams.index import HEADER as INDEX_HEADER
from mqstore.rabbitmq.streams.index import IndexComparison, header_damage
from mqstore.rabbitmq.streams.segment import MESSAGES, Chunks, Longs
from mqstore.rabbitmq.streams.start import NO_CHUNK, refusal
from mqstore.rabbitmq.streams.stream import Stream

_NOTHING: Longs = np.empty(0, np.int64)


class Change(StrEnum):
    """What a node does to a file at its start."""

    DELETES_SEGMENT = "deletes-segment"  # it has no index
    CUTS_SEGMENT = "cuts-segment"  # the index does not know the chunks at its end, or they are not valid
    DELETES_INDEX = "deletes-index"  # it has no segment
    DOES_NOT_START = "does-not-start"  # it does not find what it needs at the ends of the stream


@dataclass(frozen=True, slots=True)
class NodeChange:
    """One change. kept: bytes of the file that are left. messages: that are on disk, intact, and then gone; from the offset first on."""

    change: Change
    file: str
    kept: int
    messages: int
    first: int
    detail: str


@dataclass(frozen=True, slots=True)
class NodeStart:
    """A stream after the start of a node. ends: up to which byte each segment is kept, 0 for a deleted one.

    kept: messages that are intact and kept. delivered: those that a reader gets who starts at the beginning. stops_at: the offset where
    that one stops, None if it gets all; stops_why says what is there. lost: messages that are on disk, intact, and not kept.
    first, following: the first offset, and that after the last one.
    """

    changes: tuple[NodeChange, ...]
    ends: Longs
    kept: int
    delivered: int
    lost: int
    stops_at: int | None = None
    stops_why: str = ""
    first: int = 0
    following: int = 0

    @property
    def refused(self) -> tuple[NodeChange, ...]:
        """The file because of which the node does not start the stream, the only change then; none if it starts it."""
        return tuple(change for change in self.changes[:1] if change.change is Change.DOES_NOT_START)


@dataclass(slots=True)
class _Segment:
    """One segment, examined. bad: position and offset of its first chunk that is not intact, in the order of the file, and why."""

    end: int  # offset after its last record
    messages: int = 0
    bad: tuple[int, int, str] | None = None
    # of each chunk, kept for the last segment only; count: of its messages
    at: Longs = field(default_factory=lambda: _NOTHING)
    stop: Longs = field(default_factory=lambda: _NOTHING)
    id: Longs = field(default_factory=lambda: _NOTHING)
    records: Longs = field(default_factory=lambda: _NOTHING)
    count: Longs = field(default_factory=lambda: _NOTHING)


class Examination:
    """A stream read as a whole. damage: findings in the order of the files; counts: what was read; uncertain: what cannot be told."""

    def __init__(self, stream: Stream) -> None:
        """Read every segment."""
        self.stream = stream
        self.counts = CheckCounts()
        self.damage: list[Damage] = stream.stray_findings()
        self.uncertain: list[str] = []
        self._last = last_segment(stream)
        self._epoch = 0
        self.segments = [self._examine(number) for number in range(len(stream))]
        self._find_gaps()
        self._examine_lone()

    def _examine(self, number: int) -> _Segment:
        stream, name, known = self.stream, self.stream.segment_file(number), len(self.damage)
        data, unreadable = stream.open(number)
        self.damage += unreadable
        self.counts.files += 1
        self.counts.bytes += len(data)
        comparison = self._comparison(number)
        segment = _Segment(int(stream.first[number]))
        kept: list[Chunks] = []
        for chunks, damage in stream.walk(number, data):
            self.damage += damage
            if segment.bad is None:
                segment.bad = self._first_bad(chunks, damage, segment.end)
            if len(chunks):
                self.counts.records += len(chunks)
                segment.end = int(chunks.id[-1] + chunks.records[-1])
                segment.messages += _messages(chunks)
                self._check_epochs(chunks, name)
                if comparison is not None:
                    self.damage += comparison.add(chunks)
                if number == self._last:
                    kept.append(Chunks(chunks.columns.copy()))
                sound = chunks.state != BAD_DATA
                for _, wrong in walk_records(data, chunks if sound.all() else chunks.take(sound), file=name):
                    self.damage += wrong
        if comparison is not None:
            if number >= self._last:
                torn = [each for each in self.damage[known:] if each.file == name and each.offset >= 8 and each.kind is Kind.TORN_RECORD]
                self._check_end(*comparison.listed_until(), segment.end + sum(each.messages for each in torn), name, Kind.TORN_RECORD)
            self.damage += comparison.finish()
        self.counts.messages += segment.messages
        if kept:
            whole = Chunks(np.concatenate([chunks.columns for chunks in kept], axis=1))
            whole = whole.take(whole.readable)
            segment.at, segment.stop, segment.id, segment.records = whole.at, whole.end, whole.id, whole.records
            segment.count = np.where(whole.kind == MESSAGES, whole.records, 0)
        return segment

    def _check_end(self, listed: int, counted: bool, end: int, name: str, kind: Kind) -> None:
        """Say which offsets an index lists from an offset on, that no segment has. listed, counted: of `IndexComparison.listed_until`."""
        if listed <= end:
            return
        last, least = listed - 1, "" if counted else ", at least,"
        self.damage.append(Damage(name, 0, 0, kind, f"the index lists offsets {end} to {last}{least} which no segment has", listed - end))
        if not counted:
            self.uncertain.append(f"how many messages are lost from offset {last} on: the index does not count those of its last chunk")

    def _examine_lone(self) -> None:
        """Name indexes without a segment; after the last segment, they alone say what was there."""
        lone = self.stream.lone.tolist()
        end = self.segments[-1].end if self.segments else min(lone, default=0)
        for first, following in itertools.zip_longest(lone, lone[1:]):
            name = self.stream.lone_index_file(first)
            detail = "the index has no segment; a node deletes it if it is the last"
            self.damage.append(Damage(name, 0, 0, Kind.BAD_STREAM_INDEX, detail))
            if first >= end:
                index, unreadable = self.stream.lone_index(first)
                self.damage += unreadable
                listed, counted = IndexComparison(index, name).listed_until() if following is None else (following, True)
                self._check_end(listed, counted, end, name, Kind.MISSING_SEGMENT)
                end = max(end, listed)

    def _comparison(self, number: int) -> IndexComparison | None:
        stream, name = self.stream, self.stream.index_file(number)
        if stream.index_size[number] < 0:
            detail = "the segment has no index: a node deletes the segment at its start"
            self.damage.append(Damage(stream.segment_file(number), 0, int(stream.size[number]), Kind.BAD_STREAM_INDEX, detail))
            return None
        index, unreadable = stream.index(number)
        self.damage += unreadable
        self.damage += header_damage(index, name, int(stream.index_size[number]))
        self.counts.files += 1
        self.counts.bytes += int(stream.index_size[number])
        self.counts.index_entries += len(index)
        return IndexComparison(index, name)

    def _first_bad(self, chunks: Chunks, damage: list[Damage], expected: int) -> tuple[int, int, str] | None:
        """Return position, offset and reason of the first place where readers stop."""
        places = [(item.offset, expected, item.detail) for item in damage if item.kind is Kind.BAD_CHUNK and item.offset >= 8]
        bad = np.flatnonzero(chunks.state == BAD_DATA)[:1].tolist()
        places += [(int(chunks.at[row]), int(chunks.id[row]), "the checksum of the chunk does not fit") for row in bad]
        if not places:
            return None
        position, offset, why = min(places)
        before = np.flatnonzero(chunks.at < position)
        if len(before):
            offset = int(chunks.id[before[-1]] + chunks.records[before[-1]])
        return position, offset, why

    def _check_epochs(self, chunks: Chunks, name: str) -> None:
        before = np.empty_like(chunks.epoch)
        before[0], before[1:] = self._epoch, chunks.epoch[:-1]
        for row in np.flatnonzero((chunks.epoch < before) & (chunks.state != BAD_HEADER))[:10].tolist():
            detail = f"the epoch goes back from {int(before[row])} to {int(chunks.epoch[row])}: a header here or before is damaged"
            self.damage.append(Damage(name, int(chunks.at[row]), 48, Kind.BAD_CHUNK, detail))
        self._epoch = int(chunks.epoch[-1])

    def _find_gaps(self) -> None:
        if not self.segments:
            detail = "the stream has no segment, and even an empty one has; a node starts it as empty, at offset 0"
            self.damage.append(Damage(self.stream.place or ".", 0, 0, Kind.MISSING_SEGMENT, detail))
            self.uncertain += [] if len(self.stream.lone) else ["what was in it: no segment is here"]
        for number, before in enumerate(self.segments[:-1], start=1):
            first = int(self.stream.first[number])
            if before.bad is None and first > before.end:
                detail = f"offsets {before.end} to {first - 1} are in no segment"
                self.damage.append(Damage(self.stream.segment_file(number), 0, 0, Kind.MISSING_SEGMENT, detail, first - before.end))

    @property
    def unread(self) -> int:
        """Messages and offsets that are lost, or cannot be read."""
        return sum(item.messages for item in self.damage if item.kind.lost or item.kind is Kind.TORN_RECORD)

    # what a node makes of it

    def node_start(self, *, mends_first: bool | None = None) -> NodeStart:
        """Return the stream after the start of a node. mends_first: whether that is a 4.0 or later; None: as the stream's own one."""
        stream = self.stream
        mends_first = stream.mends_first if mends_first is None else mends_first
        if refused := refusal(stream, mends_first=mends_first):
            first, messages = stream.first_offset, sum(segment.messages for segment in self.segments)
            change = NodeChange(Change.DOES_NOT_START, refused[0], 0, messages, first, refused[1])
            return NodeStart((change,), np.zeros(len(stream), np.int64), 0, 0, messages, None, "", first, first)
        ends = stream.size.copy()
        changes = [
            NodeChange(Change.DELETES_INDEX, stream.lone_index_file(first), 0, 0, first, "the index has no segment")
            for first in stream.lone.tolist()
            if not len(stream) or first > int(stream.first[-1])
        ]
        first_indexed = next((number for number, size in enumerate(stream.index_size.tolist()) if size >= 0), -1)
        for number, segment in enumerate(self.segments):
            deleted = ""
            if stream.index_size[number] < 0:
                between = 0 <= first_indexed < number < self._last
                deleted = "" if between and not mends_first else "the segment has no index"  # 3.10 reads one that others follow
            elif number > self._last:
                deleted = "the last segment holds no chunk"
            if deleted:
                ends[number] = 0
                name = stream.segment_file(number)
                changes.append(NodeChange(Change.DELETES_SEGMENT, name, 0, segment.messages, int(stream.first[number]), deleted))
        if self._last >= 0:
            changes += self._cut(ends)
        kept = [number for number in range(len(stream)) if ends[number]]
        messages = sum(self.segments[number].messages for number in kept) - sum(
            change.messages for change in changes if change.change is Change.CUTS_SEGMENT
        )
        delivered, stops_at, why = self._delivered(kept, ends)
        lost = sum(change.messages for change in changes)
        first = int(stream.first[kept[0]]) if kept else 0
        following = self.segments[kept[-1]].end if kept else 0
        if self._last in kept:
            last = self.segments[self._last]
            left = np.flatnonzero(last.at < ends[self._last])
            following = int(last.id[left[-1]] + last.records[left[-1]]) if len(left) else int(stream.first[self._last])
        kept_all = messages if stops_at is None else delivered
        return NodeStart(tuple(changes), ends, messages, kept_all, lost, stops_at, why, first, following)

    def _cut(self, ends: Longs) -> Iterator[NodeChange]:
        number, segment = self._last, self.segments[self._last]
        end = _cut_at(self.stream, number, segment.at, segment.stop)
        ends[number] = end
        gone = segment.at >= end
        if end < self.stream.size[number]:
            messages = int(segment.count[gone].sum())
            first = int(segment.id[gone][0]) if gone.any() else segment.end
            detail = f"the index knows no valid chunk after position {end}" if messages else f"nothing valid follows position {end}"
            yield NodeChange(Change.CUTS_SEGMENT, self.stream.segment_file(number), end, messages, first, detail)

    def _delivered(self, kept: list[int], ends: Longs) -> tuple[int, int | None, str]:
        """Return how many messages a reader gets from the beginning on, and where it stops."""
        total, before = 0, None
        for number in kept:
            segment = self.segments[number]
            first = int(self.stream.first[number])
            if before is not None and first > before:
                return total, before, f"offsets {before} to {first - 1} are in no segment"
            if segment.bad is not None and segment.bad[0] < ends[number]:
                position, offset, why = segment.bad
                return total + self._messages_before(number, position), offset, why
            total += segment.messages
            before = segment.end
        return total, None, ""

    def _messages_before(self, number: int, position: int) -> int:
        """Return the messages of a segment before a position; it is read again."""
        data, _ = self.stream.open(number)
        return sum(_messages(chunks.take(chunks.at < position)) for chunks, _ in self.stream.walk(number, data))


def last_segment(stream: Stream) -> int:
    """Return the number of the segment that a node takes for the last one, -1 for none."""
    indexed = np.flatnonzero(stream.index_size >= 0)
    for place, number in enumerate(indexed[::-1].tolist()):
        if stream.size[number] > NO_CHUNK or place == len(indexed) - 1:
            return int(number)
    return -1


class KeptEnds:
    """Up to which byte a node keeps each segment of a stream; the last one is read when its end is asked for."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._last = -1 if refusal(stream, mends_first=stream.mends_first) else last_segment(stream)
        self._end: int | None = None

    def keeps(self, number: int) -> bool:
        """Return whether a node keeps a segment at all."""
        return number <= self._last and bool(self._stream.index_size[number] >= 0)

    def of(self, number: int) -> int:
        """Return the end of what it keeps of a segment, 0 for one that it deletes."""
        if not self.keeps(number):
            return 0
        if number < self._last:
            return int(self._stream.size[number])
        if self._end is None:
            data, _ = self._stream.open(number)
            parts = [chunks.take(chunks.readable) for chunks, _ in self._stream.walk(number, data)]
            at = np.concatenate([_NOTHING, *(part.at for part in parts)])
            stop = np.concatenate([_NOTHING, *(part.end for part in parts)])
            self._end = _cut_at(self._stream, number, at, stop)
        return self._end


def _cut_at(stream: Stream, number: int, at: Longs, stop: Longs) -> int:
    """Return the end of the last chunk of a segment that its index knows. at, stop: where its valid chunks begin and end."""
    index, _ = stream.index(number)
    position = index.records["position"].astype(np.int64)
    valid = np.flatnonzero(np.isin(position, at))
    if not len(valid):
        return len(INDEX_HEADER)
    return min(int(stream.size[number]), int(stop[np.searchsorted(at, position[valid[-1]])]))


def _messages(chunks: Chunks) -> int:
    return int(chunks.records[(chunks.kind == MESSAGES) & chunks.readable].sum())
