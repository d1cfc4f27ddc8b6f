"""The writable index of a version 2 queue: `<k>.qi` and `<k>.qs`, and their state in memory.

An entry has a fixed position in its file (64 + 32 * (seq - first)); an acknowledgement overwrites it with zeros. Entries that are not
written yet are a map from sequence id to 32 bytes; a message acknowledged before it is written leaves no entry. Messages that version 1
would embed are appended to `<k>.qs` in publish order. A segment whose last message is acknowledged is deleted, with its `.qs`.

    .qs   written and synced before the entries that point into it
    .qi   entries written in runs, then synced; then the names of new and deleted files

The broker never syncs these files while it runs; here a confirmed message is on disk.

At a start every entry of every `.qi` is checked, and invalid ones get status 0.

    header invalid                        the `.qi` and its `.qs` are deleted
    transient, or an unknown location      dropped
    in the message store                  dropped if the id is not in the store
    in the `.qs`                          dropped unless the data exists, with the same size and a correct checksum
    incomplete entry at the end           truncated; the broker's queue process would crash on it

Format: docs/formats/rabbitmq.md, section 12.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.rabbitmq.engine.engine_config import EngineConfig
from mqstore.rabbitmq.engine.live_queue import LiveEntry, LiveIndex, LiveSegment, StoreReferences
from mqstore.rabbitmq.engine.message_locations import MessageLocations
from mqstore.rabbitmq.format import index_v2 as qi
from mqstore.rabbitmq.format.index_v2 import ENTRY_SIZE, HEADER_SIZE, QUEUE_STORE, ROW, SHARED, SHARED_ENTRY
from mqstore.rabbitmq.format.names import is_file_number

_PLACE = struct.Struct(">QII")
_GONE = bytes(qi.ENTRY_SIZE)


class LiveSegmentV2(LiveSegment):
    """One segment. qi, qs: bytes of its files, 0 if there is none. data: the part of the `.qs` that is not written yet."""

    __slots__ = ("data", "qi", "qs")

    def __init__(self, number: int, qi: int = 0, qs: int = 0, unacked: int = 0) -> None:
        super().__init__(number, unacked)
        self.qi = qi
        self.qs = qs
        self.data = bytearray()


class LiveIndexV2(LiveIndex):
    """The index of one queue."""

    version = 2

    def __init__(self, directory: DurableDirectory, reading: ReadOnlyDirectory, place: str, config: EngineConfig) -> None:
        super().__init__(directory, reading, place, config.classic_queue_index_v2_segment_entry_count)
        self.segments: dict[int, LiveSegmentV2] = {}
        self._changes: dict[int, bytes] = {}
        self._empty: set[int] = set()  # segments without messages whose files still exist
        self._touched: set[str] = set()  # files written since their last sync
        self._names_changed = False
        self._view: tuple[int, NDArray[np.uint8]] | None = None

    # actions

    def publish(self, seq: int, message_id: bytes, embedded: bytes, persistent: bool, expiry: int, size: int) -> None:
        number = seq // self.entries
        segment = self.segments.get(number)
        if segment is None:
            segment = self.segments[number] = LiveSegmentV2(number)
        if embedded:
            if not segment.qs and not segment.data:
                segment.data += qi.header(number * self.entries, self.entries, store=True)
            at = segment.qs + len(segment.data)
            self._changes[seq] = qi.stored_entry(at, len(embedded), size=size, expiry=expiry, persistent=persistent)
            segment.data += qi.queue_store_entry(embedded)
        else:
            self._changes[seq] = qi.shared_entry(message_id, size=size, expiry=expiry, persistent=persistent)
        segment.unacked += 1
        self._empty.discard(number)
        if len(self._changes) >= self.entries:
            self.write_out()

    def acknowledge(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            number = seq // self.entries
            segment = self.segments[number]
            segment.unacked -= 1
            if not segment.unacked:
                self._empty.add(number)
            self._changes.pop(seq, None)
            if self._is_written(segment, seq):
                self._changes[seq] = _GONE
        if len(self._changes) >= self.entries:
            self.write_out()

    def _is_written(self, segment: LiveSegmentV2, seq: int) -> bool:
        return qi.HEADER_SIZE + qi.ENTRY_SIZE * (seq - segment.number * self.entries) < segment.qi

    # reading

    def entry(self, seq: int) -> LiveEntry | None:
        number = seq // self.entries
        segment = self.segments.get(number)
        if segment is None:
            return None
        raw = self._changes.get(seq)
        if raw is None:
            if not self._is_written(segment, seq):
                return None
            raw = self._rows(segment)[seq - number * self.entries].tobytes()
        status, flags, _, location, place, size, expiry = SHARED_ENTRY.unpack(raw)
        if status != 1:
            return None
        if location == qi.SHARED:
            return LiveEntry(place, b"", bool(flags & 1), expiry, size)
        embedded = self._stored(segment, place)
        return LiveEntry(b"", embedded, bool(flags & 1), expiry, size)

    def _stored(self, segment: LiveSegmentV2, place: bytes) -> bytes:
        offset, length, _ = _PLACE.unpack(place)
        start = offset + qi.ENTRY_HEADER
        if start >= segment.qs:
            return bytes(segment.data[start - segment.qs : start - segment.qs + length])
        name = self.name(segment.number, "qs")
        mapped = self._reading.kept(name)
        if mapped is not None and mapped.size < start + length:
            self._reading.forget(name)
        return self._reading.mapped(name).bytes(start, start + length)

    def _rows(self, segment: LiveSegmentV2) -> NDArray[np.uint8]:
        """Return the entries in the file of a segment, 32 bytes each. Cached until another segment is read or this one changes."""
        if self._view is None or self._view[0] != segment.number:
            data = self._reading.map(self.name(segment.number, "qi")).data
            whole = (len(data) - qi.HEADER_SIZE) // qi.ENTRY_SIZE
            rows = data[qi.HEADER_SIZE : qi.HEADER_SIZE + whole * qi.ENTRY_SIZE].reshape(whole, qi.ENTRY_SIZE)
            self._view = segment.number, rows
        return self._view[1]

    def live(self, number: int) -> NDArray[np.int64]:
        segment = self.segments[number]
        base = number * self.entries
        live: set[int] = set()
        if segment.qi:
            live.update((np.flatnonzero(self._rows(segment)[:, 0]) + base).tolist())
        for changed, raw in self._changes.items():
            if changed // self.entries == number:
                live.discard(changed) if raw is _GONE else live.add(changed)
        return np.array(sorted(live), np.int64)

    def store_references(self, number: int) -> StoreReferences:
        """Return the live entries in the file of a segment whose messages are in the message store."""
        segment = self.segments[number]
        raw = np.ascontiguousarray(self._rows(segment)) if segment.qi else np.empty((0, qi.ENTRY_SIZE), np.uint8)
        rows = raw.view(qi.ROW).reshape(-1)[: self.entries]
        at = np.flatnonzero((rows["status"] == 1) & (rows["location"] == qi.SHARED))
        hi, lo, size = (rows[name][at].astype(np.int64) for name in ("hi", "lo", "size"))
        return StoreReferences(at + number * self.entries, hi, lo, size)

    # reaching the disk

    def name(self, number: int, suffix: str) -> str:
        return f"{self.place}/{number}.{suffix}"

    def write_out(self) -> None:
        """Write pending changes. Only the messages that entries point to are synced."""
        self._remove_empty()
        if not self._changes:
            return
        by_segment: dict[int, list[int]] = {}
        for seq in sorted(self._changes):
            by_segment.setdefault(seq // self.entries, []).append(seq)
        for number in by_segment:
            self._write_data(self.segments[number])
        for number, seqs in by_segment.items():
            self._write_entries(self.segments[number], seqs)
        self._changes.clear()
        self._view = None

    def _write_data(self, segment: LiveSegmentV2) -> None:
        if not segment.data:
            return
        name = self.name(segment.number, "qs")
        if not segment.qs:
            if self._reading.exists(name):  # left by a segment whose index a crash removed: no entry points into it
                self._reading.forget(name)
                self._directory.remove(name)
            self._directory.create(name)
            self._names_changed = True
        self._directory.pwrite(name, segment.qs, segment.data)
        segment.qs += len(segment.data)
        segment.data = bytearray()
        self._directory.sync(name)

    def _write_entries(self, segment: LiveSegmentV2, seqs: list[int]) -> None:
        name = self.name(segment.number, "qi")
        base = segment.number * self.entries
        if not segment.qi:
            self._directory.create(name)
            self._names_changed = True
            start, run = 0, [qi.header(base, self.entries)]
            if seqs[0] != base:
                self._directory.pwrite(name, 0, run[0])
                run = []
            segment.qi = qi.HEADER_SIZE
        else:
            start, run = -1, []
        before = base - 1 if run else None
        for seq in seqs:
            if before is None or seq != before + 1:
                if run:
                    self._directory.pwrite(name, start, b"".join(run))
                start, run = qi.HEADER_SIZE + qi.ENTRY_SIZE * (seq - base), []
            run.append(self._changes[seq])
            before = seq
        self._directory.pwrite(name, start, b"".join(run))
        segment.qi = max(segment.qi, qi.HEADER_SIZE + qi.ENTRY_SIZE * (seqs[-1] + 1 - base))
        self._touched.add(name)

    def _remove_empty(self) -> None:
        for number in sorted(self._empty):
            segment = self.segments.pop(number)
            for suffix, size in (("qi", segment.qi), ("qs", segment.qs)):
                if size:
                    name = self.name(number, suffix)
                    self._directory.remove(name)
                    self._reading.forget(name)
                    self._touched.discard(name)
                    self._names_changed = True
            for seq in [seq for seq in self._changes if seq // self.entries == number]:
                del self._changes[seq]
            if self._view is not None and self._view[0] == number:
                self._view = None
        self._empty.clear()

    def sync(self) -> None:
        """Write and sync everything."""
        self.write_out()
        for name in sorted(self._touched):
            self._directory.sync(name)
        self._touched.clear()
        if self._names_changed:
            self._directory.sync_directory(self.place)
            self._names_changed = False

    def flush(self) -> None:
        """Do what `sync` does: a version 2 index has no journal to flush."""
        self._empty.update(number for number, segment in self.segments.items() if not segment.unacked)
        self.sync()


def recover_v2(
    directory: DurableDirectory, reading: ReadOnlyDirectory, place: str, config: EngineConfig, locations: MessageLocations
) -> tuple[LiveIndexV2, int, NDArray[np.int64]]:
    """Return the index that the files describe, the size of the bodies in bytes, and the sequence ids to drop in any case.

    locations: counts a reference for each entry whose message is in the message store.
    """
    index = LiveIndexV2(directory, reading, place, config)
    names = {entry.name: entry.size for entry in reading.entries(place) if entry.is_file}
    dropped: list[int] = []
    size = 0
    for number in sorted(int(name[:-3]) for name in names if name.endswith(".qi") and is_file_number(name[:-3])):
        data = reading.map(f"{place}/{number}.qi").data
        if len(data) < HEADER_SIZE or data[:5].tobytes() != b"RCQI\x02":
            for name in (f"{number}.qi", f"{number}.qs"):
                if name in names:
                    directory.remove(f"{place}/{name}")
            directory.sync_directory(place)
            continue
        end = len(data) - (len(data) - HEADER_SIZE) % ENTRY_SIZE
        rows = data[HEADER_SIZE:end].view(ROW)[: index.entries]
        if end < len(data):
            directory.truncate(f"{place}/{number}.qi", end)
        stored = reading.map(f"{place}/{number}.qs").data if f"{number}.qs" in names else np.empty(0, np.uint8)
        live = rows["status"] == 1
        persistent = live & (rows["flags"] & 1 == 1)
        valid = persistent & (rows["location"] == SHARED)
        embedded = np.flatnonzero(persistent & (rows["location"] == QUEUE_STORE))
        valid[embedded] = qi.valid_entries(stored, rows["hi"][embedded].astype(np.int64), rows["lo"][embedded].astype(np.int64) >> 32)
        base = number * index.entries
        dropped += (np.flatnonzero(live & ~valid) + base).tolist()
        away = valid & (rows["location"] == SHARED)
        locations.count_references(rows["hi"][away].astype(np.int64), rows["lo"][away].astype(np.int64))
        size += int(rows["size"][valid].sum())
        index.segments[number] = LiveSegmentV2(number, end, names.get(f"{number}.qs", 0), int(live.sum()))
    return index, size, np.array(dropped, np.int64)
