"""Writers of queue files from columns: byte for byte what a broker's own conversion writes, for queues of either version.

    version 2   <k>.qs  messages in publish order, each with its checksum      <k>.qi  one entry for each sequence id, up to the last one
    version 1   <k>.idx  runs of publishes in descending order, each with its delivery; a run ends where a version 2 file would end

Both take entries in any number of pieces, with ascending sequence ids, which they keep. The messages are bytes of other mapped files and
are copied unchanged, a few megabytes at a time.

    >>> from tempfile import TemporaryDirectory
    >>> from mqstore.rabbitmq.format.index_v1 import ENTRY, IN_SEGMENT
    >>> entries = np.zeros(1, ENTRY)
    >>> entries["seq"], entries["length"], entries["size"], entries["place"] = 4097, 2, 5, IN_SEGMENT
    >>> with TemporaryDirectory() as root, DurableDirectory(root) as directory:
    ...     writer = Version2Writer(directory, "queues/Q", 4096)
    ...     writer.add(entries, (np.frombuffer(b"\\x83j", np.uint8),))
    ...     counts = writer.close()
    ...     written = directory.path("queues/Q/1.qs").read_bytes()
    >>> counts, written[64:].hex()
    ({1: 1}, '0000000201513100836a')

Format: docs/formats/rabbitmq.md, sections 12.6 and 15.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.files.durable import DurableDirectory
from mqstore.kernels.rabbitmq import queue_files
from mqstore.rabbitmq.format import segment
from mqstore.rabbitmq.format.index_v1 import IN_STORE
from mqstore.rabbitmq.format.index_v2 import ENTRY_COUNT, ENTRY_HEADER, QUEUE_STORE, ROW, SHARED, header
from mqstore.table.arrow_spans import pieces

PIECE = 32 << 20  # bytes of messages collected before they are written
_ENTRY_BYTES = segment.PUBLISH_SIZE + segment.MARK_SIZE  # of a message in a segment, with its delivery


def _entry_pieces(entries: NDArray[np.void], overhead: int) -> Iterator[NDArray[np.void]]:
    """Yield consecutive entries with PIECE bytes of messages, or one entry."""
    for start, stop in pieces(np.where(entries["place"] == IN_STORE, 0, entries["length"]) + overhead, PIECE):
        yield entries[start:stop]


def _groups(entries: NDArray[np.void], width: int) -> Iterator[tuple[int, NDArray[np.void]]]:
    """Yield the runs of entries with the number of their file, a file having `width` sequence ids."""
    numbers = entries["seq"] // width
    borders = np.flatnonzero(np.diff(numbers)) + 1
    for group in np.split(entries, borders):
        if len(group):
            yield int(group["seq"][0]) // width, group


def _column(entries: NDArray[np.void], name: str) -> NDArray[np.int64]:
    return np.ascontiguousarray(entries[name])


class Version2Writer:
    """Writes `<k>.qi` and `<k>.qs`. place: the queue's directory below the root; count: M."""

    version = 2

    def __init__(self, directory: DurableDirectory, place: str, count: int = ENTRY_COUNT) -> None:
        self.directory = directory
        self.place = place
        self.count = count
        self._number = -1
        self._rows = np.zeros(0, ROW)
        self._ends: dict[int, int] = {}  # bytes of each `.qs`
        self._unacked: dict[int, int] = {}

    def add(self, entries: NDArray[np.void], data: Sequence[Bytes]) -> None:
        """Add messages of the queue, all persistent. data: the bytes that `at` and `length` of an entry refer to, by its `place`."""
        for number, group in _groups(entries, self.count):
            if number != self._number:
                self._finish()
                self._number = number
                self._rows = np.zeros(self.count, ROW)
            self._unacked[number] = self._unacked.get(number, 0) + len(group)
            rows = np.zeros(len(group), ROW)
            rows["status"] = 1
            rows["flags"] = 1
            shared = group["place"] == IN_STORE
            rows["location"] = np.where(shared, SHARED, QUEUE_STORE)
            rows["hi"], rows["lo"] = group["hi"], group["lo"]
            rows["size"], rows["expiry"] = group["size"], group["expiry"]
            own = np.flatnonzero(~shared)
            if len(own):
                rows["hi"][own] = self._store(number, group[own], data)
                rows["lo"][own] = group["length"][own] << 32
            self._rows[_column(group, "seq") - number * self.count] = rows

    def _store(self, number: int, entries: NDArray[np.void], data: Sequence[Bytes]) -> NDArray[np.int64]:
        """Append messages to the queue store; return where the entry of each starts."""
        name = f"{self.place}/{number}.qs"
        if number not in self._ends:
            self._ends[number] = self.directory.append(name, header(number * self.count, self.count, store=True)) + 64
        starts = []
        for piece in _entry_pieces(entries, ENTRY_HEADER):
            at = np.zeros(len(piece) + 1, np.int64)
            np.cumsum(_column(piece, "length") + ENTRY_HEADER, out=at[1:])
            page = np.empty(int(at[-1]), np.uint8)
            for location in np.unique(piece["place"]).tolist():
                mine = np.flatnonzero(piece["place"] == location)
                queue_files.store_entries(data[location], _column(piece[mine], "at"), _column(piece[mine], "length"), page, at[mine])
            self.directory.append(name, page)
            starts.append(at[:-1] + self._ends[number])
            self._ends[number] += len(page)
        return np.concatenate(starts)

    def _finish(self) -> None:
        used = np.flatnonzero(self._rows["status"])
        if not len(used):
            return
        name = f"{self.place}/{self._number}.qi"
        if not self.directory.exists(name):
            self.directory.append(name, header(self._number * self.count, self.count))
            self.directory.append(name, self._rows[: used[-1] + 1])
        else:
            for run in np.split(used, np.flatnonzero(np.diff(used) > 1) + 1):
                self.directory.pwrite(name, 64 + int(run[0]) * ROW.itemsize, self._rows[run[0] : run[-1] + 1])

    def close(self) -> dict[int, int]:
        """Write what is left; return the number of messages in each file."""
        self._finish()
        return dict(sorted(self._unacked.items()))


class Version1Writer:
    """Writes `<k>.idx`. place: the queue's directory below the root; count: N; run: sequence ids after which a new run begins."""

    version = 1

    def __init__(self, directory: DurableDirectory, place: str, count: int, run: int = ENTRY_COUNT) -> None:
        self.directory = directory
        self.place = place
        self.count = count
        self.run = run
        self._unacked: dict[int, int] = {}
        self._waiting: list[Bytes] = []
        self._key = (-1, -1)
        self._bytes = 0

    def add(self, entries: NDArray[np.void], data: Sequence[Bytes]) -> None:
        """Add messages of the queue, all persistent. data: the bytes that `at` and `length` of an entry refer to, by its `place`."""
        for number, group in _groups(entries, self.count):
            for part, run in _groups(group, self.run):
                if (number, part) != self._key:
                    self._finish()
                    self._key = (number, part)
                for piece in _entry_pieces(run, _ENTRY_BYTES):
                    self._encode(piece, data)

    def _encode(self, entries: NDArray[np.void], data: Sequence[Bytes]) -> None:
        """Encode ascending entries in descending order; they are written after the entries that come later."""
        number = self._key[0]
        self._unacked[number] = self._unacked.get(number, 0) + len(entries)
        entries = entries[::-1]
        lengths = np.where(entries["place"] == IN_STORE, 0, entries["length"])
        at = np.zeros(len(entries) + 1, np.int64)
        np.cumsum(lengths + _ENTRY_BYTES, out=at[1:])
        page = np.empty(int(at[-1]), np.uint8)
        for location in np.unique(entries["place"]).tolist():
            mine = np.flatnonzero(entries["place"] == location)
            rows = entries[mine]
            shared = location == IN_STORE
            queue_files.publishes(
                np.empty(0, np.uint8) if shared else data[location],
                np.zeros(len(rows), np.int64) if shared else _column(rows, "at"),
                lengths[mine],
                _column(rows, "seq") - number * self.count,
                _column(rows, "hi"),
                _column(rows, "lo"),
                _column(rows, "expiry"),
                _column(rows, "size"),
                page,
                at[mine],
            )
        self._waiting.append(page)
        self._bytes += len(page)
        if self._bytes > PIECE:
            # a run that is too large for memory becomes two: order within a segment has no meaning
            self._finish()

    def _finish(self) -> None:
        for page in reversed(self._waiting):
            self.directory.append(f"{self.place}/{self._key[0]}.idx", page)
        self._waiting, self._bytes = [], 0

    def close(self) -> dict[int, int]:
        """Write what is left, and the empty journal that every queue of a node has; return the number of messages in each segment."""
        self._finish()
        if self._unacked:
            self.directory.append(f"{self.place}/journal.jif", b"")
        return dict(sorted(self._unacked.items()))


QueueWriter = Version1Writer | Version2Writer


def queue_writer(directory: DurableDirectory, place: str, version: int, *, count: int, count_v2: int = ENTRY_COUNT) -> QueueWriter:
    """Return a writer for a queue directory. count: N of its vhost; count_v2: M of its node."""
    if version == 1:
        return Version1Writer(directory, place, count, count_v2)
    return Version2Writer(directory, place, count_v2)
