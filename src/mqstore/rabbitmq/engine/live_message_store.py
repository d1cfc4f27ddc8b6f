"""The writable message store of a vhost: `msg_store_persistent/<k>.rdq`, and its state in memory.

A message in several queues is stored once, with a reference count. Records are appended to the file with the highest number; when that
reaches the limit (16 MiB) it is synced, and the next file is started. A record that no queue references is garbage:

* a file that holds only garbage, and is not the last one, is deleted;
* when more than half of all bytes are garbage and the store is larger than two files, the lowest pair of neighbours whose live bytes
  fit into one file is merged: the live records of both go to the lower one, in order, and the higher one is deleted.

The broker merges in place, through `<k>.rdt`, and loses records if it dies during the merge and starts again (section 6.7). Here the
merged file is written beside the old one, synced and renamed over it; only then is the higher one deleted. After a crash both the
broker and this engine recover every record; at worst a record is in two files.

Reference counts are not on disk: a start counts the live index entries that name an id.

A start counts references from the queues, and finds records by scanning the files:

    1. every live, persistent entry of a queue that does not embed its message counts one reference to its id
    2. `<k>.rdq` are scanned by number; a record is valid if its id is referenced and has no place yet; within one file the last copy counts
    3. a file without a valid record is deleted; the last file is truncated after its last valid record and continued
    4. queues drop the entries whose id has no record

This is the broker's own procedure. This engine also recovers what the broker misses: records after damage, and records in a `<k>.rdt`
that an interrupted merge left. They are appended to the store, and only then is the `.rdt` deleted.

Format: docs/formats/rabbitmq.md, section 6.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes, MappedFile, ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.rabbitmq.engine.message_locations import MessageLocation, MessageLocations
from mqstore.rabbitmq.format import message_file
from mqstore.rabbitmq.format.message_file import HEADER, OVERHEAD
from mqstore.rabbitmq.format.names import is_file_number

MAX_BUFFERED = 8 << 20  # bytes of records that are buffered until the next sync
DRAFT = ".mqstore-"


@dataclass(slots=True)
class FileSummary:
    """One file. valid: bytes of referenced records."""

    valid: int
    size: int


class LiveMessageStore:
    """A message store that is open for writing. place: its directory, relative to the root. limit: bytes after which a file is full."""

    def __init__(self, directory: DurableDirectory, reading: ReadOnlyDirectory, place: str, limit: int) -> None:
        self.place = place
        self.limit = limit
        self.locations = MessageLocations()
        self.files: dict[int, FileSummary] = {}
        self.current = -1
        self.merged = 0
        self._directory = directory
        self._reading = reading
        self._buffer = bytearray()  # the unwritten end of the current file
        self._synced = True

    def name(self, number: int) -> str:
        return f"{self.place}/{number}.rdq"

    # starting

    def adopt(self, locations: MessageLocations, files: dict[int, FileSummary]) -> None:
        """Take over the result of a start; the highest file becomes the current one."""
        self.locations = locations
        self.files = files
        if not files:
            self._open_new(0)
        self.current = max(self.files)

    def _open_new(self, number: int) -> None:
        self._directory.create(self.name(number))
        self._directory.sync_directory(self.place)
        self.files[number] = FileSummary(0, 0)
        self.current = number

    # messages

    def write(self, message_id: bytes, term: bytes, references: int = 1) -> None:
        """Store a message with this reference count, or add to the count if the message is stored already."""
        if self.locations.add_references(message_id, references):
            return
        at, total = self.files[self.current].size, len(term) + OVERHEAD
        self.locations.add(message_id, MessageLocation(references, self.current, at, total))
        self._append(message_id, term)

    def write_again(self, message_id: bytes, term: bytes) -> None:
        """Store the message of an id that is referenced but has no place."""
        (ids,) = message_file.halves(message_id)
        at, total = np.array([self.files[self.current].size]), np.array([len(term) + OVERHEAD])
        self.locations.place(self.current, (ids[:1], ids[1:]), at, total)
        self._append(message_id, term)

    def _append(self, message_id: bytes, term: bytes) -> None:
        summary = self.files[self.current]
        buffer = self._buffer
        buffer += (len(term) + 16).to_bytes(8, "big")
        buffer += message_id
        buffer += term
        buffer.append(255)
        self._synced = False
        summary.size += len(term) + OVERHEAD
        summary.valid += len(term) + OVERHEAD
        if summary.size >= self.limit:
            self._roll()
        elif len(buffer) > MAX_BUFFERED:
            self._write_out()

    def _roll(self) -> None:
        self.sync()
        finished = self.current
        self._open_new(finished + 1)
        self._drop_if_empty(finished)
        self.collect()

    def remove(self, message_id: bytes) -> None:
        """Decrement the message's reference count. `collect` reclaims the space."""
        known = self.locations.release(message_id)
        if known is not None and not known.references:
            self.files[known.file].valid -= known.total
            self._drop_if_empty(known.file)

    def read(self, message_id: bytes) -> bytes | None:
        """Return the term of a stored message, or None if there is none."""
        known = self.locations.get(message_id)
        if known is None:
            return None
        start, stop = known.offset + HEADER, known.offset + known.total - 1
        if known.file == self.current:
            buffered = self.files[self.current].size - len(self._buffer)
            if known.offset >= buffered:
                return bytes(self._buffer[start - buffered : stop - buffered])
        mapped = self._reading.kept(self.name(known.file))
        if mapped is not None and mapped.size < stop:  # mapped while the file was written
            self._reading.forget(self.name(known.file))
        return self._reading.mapped(self.name(known.file)).bytes(start, stop)

    # reaching the disk

    def _write_out(self) -> None:
        if self._buffer:
            start = self.files[self.current].size - len(self._buffer)
            self._directory.pwrite(self.name(self.current), start, self._buffer)
            self._buffer = bytearray()

    def sync(self) -> None:
        """Write and sync all records."""
        if self._synced:
            return
        self._write_out()
        self._directory.sync(self.name(self.current))
        self._synced = True

    # garbage

    def _drop_if_empty(self, number: int) -> None:
        if number != self.current and not self.files[number].valid:
            self._delete(number)

    def _delete(self, number: int) -> None:
        self._reading.forget(self.name(number))
        self._directory.remove(self.name(number))
        del self.files[number]

    def collect(self) -> None:
        """Merge neighbouring files while the broker's two conditions hold and a pair fits into one."""
        while self._should_merge():
            pair = self._mergeable_pair()
            if pair is None:
                return
            self._merge(*pair)

    def _should_merge(self) -> bool:
        size = sum(summary.size for summary in self.files.values())
        valid = sum(summary.valid for summary in self.files.values())
        return size > 2 * self.limit and (size - valid) / size > 0.5

    def _mergeable_pair(self) -> tuple[int, int] | None:
        numbers = sorted(self.files)
        for target, source in pairwise(numbers):
            first, second = self.files[target], self.files[source]
            if source != self.current and first.valid and second.valid and first.valid + second.valid <= self.limit:
                return target, source
        return None

    def _merge(self, target: int, source: int) -> None:
        draft = f"{self.name(target)}{DRAFT}{secrets.token_hex(4)}"
        size = 0
        moved: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
        self._directory.create(draft)
        for number in (target, source):
            data = self._reading.map(self.name(number)).data
            at, total = self._records(number, data)
            ids = message_file.ids(data, at)
            live = np.flatnonzero(self.locations.are_current(number, ids, at))
            ends = at[live] + total[live]
            runs = np.split(np.arange(len(live)), np.flatnonzero(at[live][1:] != ends[:-1]) + 1)
            pieces = [data[int(at[live[run[0]]]) : int(ends[run[-1]])] for run in runs if len(run)]
            self._directory.append(draft, np.concatenate(pieces) if pieces else b"")
            moved.append((ids[0][live], ids[1][live], total[live]))
        self._directory.sync(draft)
        self._reading.forget(self.name(target))
        self._directory.rename(draft, self.name(target))
        self._directory.sync_directory(self.place)
        for number, (hi, lo, total) in zip((target, source), moved, strict=True):
            self.locations.place(target, (hi, lo), size + np.cumsum(total) - total, total, number)
            size += int(total.sum())
        self.files[target] = FileSummary(size, size)
        self._delete(source)
        self.merged += 1

    def _records(self, number: int, data: Bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return offset and size of all records of a finished file; only of the live ones if its chain of records is broken."""
        scan = message_file.strict_scan(data)
        return (scan.at, scan.total) if scan.end == len(data) else self.locations.of_file(number)


def start_message_store(
    directory: DurableDirectory, reading: ReadOnlyDirectory, place: str, limit: int, locations: MessageLocations
) -> LiveMessageStore:
    """Recover a message store. locations: the references of all queues; ids without a record are left unplaced."""
    directory.make_directory(place)
    numbers, left_over = _list_files(directory, reading, place)
    sizes: dict[int, int] = {}
    broken: list[str] = []
    for number in numbers:
        name = f"{place}/{number}.rdq"
        mapped = reading.map(name)
        data = mapped.data
        scan = message_file.strict_scan(data)
        locations.place(number, message_file.ids(data, scan.at), scan.at, scan.total)
        sizes[number] = scan.end
        if mapped.last_nonzero(scan.end, mapped.size) >= 0:
            broken.append(name)
    rescued: dict[bytes, bytes] = {}
    for number in left_over:
        if locations.unplaced:
            _rescue(locations, reading.map(f"{place}/{number}.rdt"), rescued, missed_only=False)
    # a size field that is too large leads past other records, so that nothing but their absence shows it
    for name in dict.fromkeys((*broken, *(f"{place}/{number}.rdq" for number in numbers))):
        if locations.unplaced > len(rescued):
            _rescue(locations, reading.map(name), rescued, missed_only=True)
    store = LiveMessageStore(directory, reading, place, limit)
    _adopt(store, locations, sizes, directory)
    for message_id, term in rescued.items():
        store.write_again(message_id, term)
    store.sync()
    for number in left_over:
        directory.remove(f"{place}/{number}.rdt")
    store.collect()
    return store


def _rescue(locations: MessageLocations, mapped: MappedFile, rescued: dict[bytes, bytes], *, missed_only: bool) -> None:
    """Add to `rescued` the terms of unplaced ids that only the careful scan finds; of several copies the last.

    missed_only: the file's other records have been looked at.
    """
    data = mapped.data
    scan = message_file.careful_scan(data, list(mapped.data_extents()))
    missed = ~np.isin(scan.at, message_file.strict_scan(data).at) if missed_only else np.ones(len(scan.at), np.bool_)
    for at, total in zip(scan.at[missed].tolist(), scan.total[missed].tolist(), strict=True):
        message_id = data[at + 8 : at + HEADER].tobytes()
        known = locations.get(message_id)
        if known is not None and not known.total:
            rescued[message_id] = data[at + HEADER : at + total - 1].tobytes()


def _list_files(directory: DurableDirectory, reading: ReadOnlyDirectory, place: str) -> tuple[list[int], list[int]]:
    """Return numbers of the `.rdq` and `.rdt` files. Drafts of an interrupted merge are removed."""
    numbers: dict[str, list[int]] = {".rdq": [], ".rdt": []}
    for entry in reading.entries(place):
        stem, suffix = entry.name[:-4], entry.name[-4:]
        if DRAFT in entry.name:
            directory.remove(f"{place}/{entry.name}")
        elif suffix in numbers and is_file_number(stem) and entry.is_file:
            numbers[suffix].append(int(stem))
    return sorted(numbers[".rdq"]), sorted(numbers[".rdt"])


def _adopt(store: LiveMessageStore, locations: MessageLocations, sizes: dict[int, int], directory: DurableDirectory) -> None:
    live = locations.bytes_by_file()
    files = {}
    last = max(sizes, default=-1)
    for number, size in sizes.items():
        valid, end = live.get(number, (0, 0))
        if number == last:
            directory.truncate(store.name(number), end)
            directory.sync(store.name(number))
            files[number] = FileSummary(valid, end)
        elif valid:
            files[number] = FileSummary(valid, size)
        else:
            directory.remove(store.name(number))
    store.adopt(locations, files)
