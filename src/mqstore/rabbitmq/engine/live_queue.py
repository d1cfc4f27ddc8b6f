"""One classic queue of a store that is open for writing: which messages are ready, unacknowledged or requeued.

Sequence ids number the messages in publish order. A queue delivers from `cursor` upwards; requeued messages come first, at their old
positions. A delivered message stays on disk until it is acknowledged. After a clean stop only `next_deliver` records the delivery:
a message with a lower sequence id is redelivered.

Transient messages stay in memory. Only persistent ones are on disk, so their sequence ids have gaps. `LiveIndex` is what the indexes of
both versions have in common.

Format: docs/formats/rabbitmq.md, sections 5.6 and 7.3 to 7.6.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.rabbitmq.engine.message_locations import MessageLocations

CHUNK = 4096


class LiveEntry(NamedTuple):
    """A live index entry. embedded: the message term; empty if the message is in the message store."""

    id: bytes
    embedded: bytes
    persistent: bool
    expiry: int
    size: int


class StoreReferences(NamedTuple):
    """Live entries whose messages are in the message store. hi, lo: the halves of their ids."""

    seq: NDArray[np.int64]
    hi: NDArray[np.int64]
    lo: NDArray[np.int64]
    size: NDArray[np.int64]


class LiveSegment:
    """One segment of an index. unacked: number of its live entries."""

    __slots__ = ("number", "unacked")

    def __init__(self, number: int, unacked: int = 0) -> None:
        self.number = number
        self.unacked = unacked


class LiveIndex(ABC):
    """The writable index of one queue, of either version. place: its directory, relative to the root. entries: those of a segment."""

    version: int
    segments: Mapping[int, LiveSegment]

    def __init__(self, directory: DurableDirectory, reading: ReadOnlyDirectory, place: str, entries: int) -> None:
        self.place = place
        self.entries = entries
        self._directory = directory
        self._reading = reading

    @abstractmethod
    def publish(self, seq: int, message_id: bytes, embedded: bytes, persistent: bool, expiry: int, size: int) -> None:
        """Record a publish."""

    @abstractmethod
    def acknowledge(self, seqs: Iterable[int]) -> None:
        """Acknowledge live entries."""

    @abstractmethod
    def entry(self, seq: int) -> LiveEntry | None:
        """Return the live entry of a sequence id, or None."""

    @abstractmethod
    def live(self, number: int) -> NDArray[np.int64]:
        """Return the sequence ids of the live entries of a segment, ascending."""

    @abstractmethod
    def store_references(self, number: int) -> StoreReferences:
        """Return the live entries of a segment whose messages are in the message store."""

    @abstractmethod
    def sync(self) -> None:
        """Write and sync everything."""

    @abstractmethod
    def flush(self) -> None:
        """Do what the broker does for an idle queue; files of segments without messages are removed."""

    def live_from(self, seq: int) -> NDArray[np.int64]:
        """Return the live sequence ids from `seq` on in the first segment that has any; empty if there are none."""
        for number in sorted(number for number in self.segments if number >= seq // self.entries):
            live = self.live(number)
            live = live[live >= seq]
            if len(live):
                return live
        return np.empty(0, np.int64)

    def unacked_by_segment(self) -> dict[int, int]:
        """Return how many messages are in each segment."""
        return {number: segment.unacked for number, segment in sorted(self.segments.items())}

    @property
    def unacked(self) -> int:
        return sum(segment.unacked for segment in self.segments.values())

    @property
    def bound(self) -> int:
        """The first sequence id after all segments, where numbering continues after an unclean stop."""
        return self.entries * (1 + max(self.segments, default=-1))

    def drop(self, dropped: NDArray[np.int64], locations: MessageLocations) -> tuple[int, int]:
        """Remove these entries and those whose message is not in the store, and flush.

        Returns the count of the entries without a message, and the size of their bodies in bytes.
        """
        missing = [dropped]
        size = 0
        for number in sorted(self.segments) if locations.unplaced else ():
            stored = self.store_references(number)
            gone = ~locations.placed(stored.hi, stored.lo) & ~np.isin(stored.seq, dropped)
            missing.append(stored.seq[gone])
            size += int(stored.size[gone].sum())
        self.acknowledge(np.concatenate(missing).tolist())
        self.flush()
        return sum(map(len, missing[1:])), size


class LiveQueue:
    """A queue, or one level of a priority queue. cursor: the lowest sequence id that was not looked at since the start.

    unacked: for each delivered message its id, if it is in the message store, and its size. ready: number of ready messages.
    next_seq, next_deliver: the sequence id of the next publish, and the first that was never delivered.
    """

    def __init__(self, index: LiveIndex, *, ready: int, next_seq: int, next_deliver: int, bytes_ready: int) -> None:
        self.index = index
        self.ready = ready
        self.next_seq = next_seq
        self.next_deliver = next_deliver
        self.persistent = ready
        self.persistent_bytes = bytes_ready
        self.cursor = 0
        self.unacked: dict[int, tuple[bytes | None, int]] = {}
        self.transient: dict[int, LiveEntry] = {}
        self._requeued: list[int] = []
        self._ahead: list[int] = []  # sequence ids from the cursor on, descending

    def publish(self, message_id: bytes, embedded: bytes, persistent: bool, expiry: int, size: int) -> int:
        """Append a message and return its sequence id."""
        seq = self.next_seq
        self.next_seq = seq + 1
        self.ready += 1
        if persistent:
            self.persistent += 1
            self.persistent_bytes += size
            self.index.publish(seq, message_id, embedded, True, expiry, size)
        else:
            self.transient[seq] = LiveEntry(message_id, embedded, False, expiry, size)
        return seq

    def head(self) -> int | None:
        """Return the sequence id that is delivered next."""
        if self._requeued:
            return self._requeued[0]
        return self._next()

    def _next(self) -> int | None:
        while True:
            if self._ahead:
                return self._ahead[-1]
            if self.cursor >= self.next_seq:
                return None
            self._look_ahead()

    def _look_ahead(self) -> None:
        """Find the next live sequence ids from the cursor on."""
        live = self.index.live_from(self.cursor)
        if len(live):
            stop = int(live[-1]) + 1
            ahead = live.tolist()
        else:
            stop, ahead = self.next_seq, []
        if self.transient:
            ahead = sorted({*ahead, *(seq for seq in self.transient if self.cursor <= seq < stop and seq not in self.unacked)})
        self._ahead = ahead[::-1]
        self.cursor = stop

    def entry(self, seq: int) -> LiveEntry | None:
        return self.transient.get(seq) or self.index.entry(seq)

    def take(self) -> tuple[int, LiveEntry, bool] | None:
        """Deliver the next message; return (sequence id, entry, redelivered), or None if none is ready."""
        while True:
            seq = self.head()
            if seq is None:
                return None
            self._drop_head()
            entry = self.entry(seq)
            if entry is None:
                continue
            redelivered = seq < self.next_deliver
            if not redelivered:
                self.next_deliver = seq + 1
            self.unacked[seq] = (None if entry.embedded else entry.id), entry.size
            self.ready -= 1
            return seq, entry, redelivered

    def _drop_head(self) -> None:
        if self._requeued:
            heapq.heappop(self._requeued)
        else:
            self._ahead.pop()

    def requeue(self, seqs: Iterable[int]) -> None:
        """Return delivered messages to their positions. Nothing is written."""
        for seq in self._require_unacked(seqs):
            del self.unacked[seq]
            heapq.heappush(self._requeued, seq)
            self.ready += 1

    def acknowledge(self, seqs: Iterable[int]) -> list[bytes]:
        """Acknowledge delivered messages; return the ids of those that are in the message store."""
        checked = self._require_unacked(seqs)
        stored: list[bytes] = []
        on_disk: list[int] = []
        for seq in checked:
            message_id, size = self.unacked.pop(seq)
            transient = self.transient.pop(seq, None)
            if transient is None:
                on_disk.append(seq)
                self.persistent -= 1
                self.persistent_bytes -= size
                if message_id is not None:
                    stored.append(message_id)
        self.index.acknowledge(on_disk)
        return stored

    def _require_unacked(self, seqs: Iterable[int]) -> list[int]:
        checked = list(seqs)
        if len(set(checked)) != len(checked) or any(seq not in self.unacked for seq in checked):
            raise UsageError("a message that is not unacknowledged cannot be acknowledged or requeued; nothing was changed")
        return checked

    def purge(self) -> Iterator[tuple[int, list[bytes]]]:
        """Drop all ready messages, in chunks; yield (count, ids of those in the message store). Unacknowledged messages are kept."""
        while self.ready:
            seqs: list[int] = []
            for _ in range(CHUNK):
                taken = self.take()
                if taken is None:
                    break
                seqs.append(taken[0])
            if not seqs:
                break
            yield len(seqs), self.acknowledge(seqs)
