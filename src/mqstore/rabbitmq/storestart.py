"""Start of the message store of a vhost that is written: references counted from the queues, records found by scanning the files.

    1. every live, persistent entry of a queue that embeds no message counts one reference to its id
    2. `<k>.rdq` are scanned by number; a record is valid if its id is referred to and has no place yet; in one file the last copy counts
    3. a file without a valid record is deleted; the last one is cut behind its last valid record and written on
    4. entries whose id has no record are dropped by their queues

That is the broker's own way. What it does not find is found, too: records behind damage, and in a `<k>.rdt` that an interrupted merge
left. They are written once more, behind all others, and only then the `.rdt` goes.

Format: docs/formats/rabbitmq.md, sections 6.7 to 6.9.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes, ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.kernels import messagestore as kernel
from mqstore.rabbitmq import rdq
from mqstore.rabbitmq.livestore import DRAFT, FileSummary, LiveStore, Location

__all__ = ["References", "start_store"]


@dataclass(frozen=True, slots=True)
class References:
    """How often each id is referred to; ids as two big-endian halves, sorted."""

    hi: NDArray[np.int64]
    lo: NDArray[np.int64]
    count: NDArray[np.int64]

    @classmethod
    def of(cls, runs: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> References:
        found = list(runs)
        hi = np.concatenate([run[0] for run in found]) if found else np.empty(0, np.int64)
        lo = np.concatenate([run[1] for run in found]) if found else np.empty(0, np.int64)
        order = np.lexsort((lo, hi))
        hi, lo = hi[order], lo[order]
        first = np.ones(len(hi), np.bool_)
        first[1:] = (hi[1:] != hi[:-1]) | (lo[1:] != lo[:-1])
        starts = np.flatnonzero(first)
        return cls(hi[starts], lo[starts], np.diff(np.append(starts, len(hi))))

    def find(self, hi: NDArray[np.int64], lo: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each id, or -1."""
        found = np.empty(len(hi), np.int64)
        kernel.find_ids(self.hi, self.lo, hi, lo, found)
        return found


@dataclass(slots=True)
class _Scanning:
    references: References
    place: NDArray[np.int64]  # by reference: the file of its record, or -1
    offset: NDArray[np.int64]
    total: NDArray[np.int64]
    rescued: dict[int, bytes] = field(default_factory=dict)  # by reference: the term of a record that a plain scan does not find

    def take(self, number: int, data: Bytes, scan: rdq.Scan) -> None:
        """Give places in this file to ids that have none; of several copies the last."""
        row = self.references.find(*rdq.ids(data, scan.at))
        mine = row >= 0
        mine[mine] &= self.place[row[mine]] < 0
        row = row[mine]
        self.place[row] = number
        self.offset[row] = scan.at[mine]
        self.total[row] = scan.total[mine]

    def rescue(self, data: Bytes) -> None:
        """Keep what only the careful scan finds, if its id has no place by the end."""
        found = rdq.careful_scan(data)
        row = self.references.find(*rdq.ids(data, found.at))
        for each, at, total in zip(row.tolist(), found.at.tolist(), found.total.tolist(), strict=True):
            if each >= 0 and self.place[each] < 0:
                self.rescued[each] = data[at + 24 : at + total - 1].tobytes()


def start_store(
    directory: DurableDirectory, reading: ReadOnlyDirectory, place: str, limit: int, references: References
) -> tuple[LiveStore, NDArray[np.bool_]]:
    """The store, ready to be written, and for each reference whether there is a record of it."""
    directory.make_directory(place)
    numbers, left_over = _list(directory, reading, place)
    count = len(references.hi)
    scanning = _Scanning(references, np.full(count, -1, np.int64), np.empty(count, np.int64), np.empty(count, np.int64))
    sizes: dict[int, int] = {}
    broken: list[str] = []
    for number in numbers:
        name = f"{place}/{number}.rdq"
        data = reading.map(name).data
        scan = rdq.strict_scan(data)
        scanning.take(number, data, scan)
        sizes[number] = scan.end
        if scan.end < len(data) and data[scan.end :].any():
            broken.append(name)
    for name in (*broken, *(f"{place}/{number}.rdt" for number in left_over)):
        if (scanning.place < 0).any():
            scanning.rescue(reading.map(name).data)
    store = LiveStore(directory, reading, place, limit)
    _adopt(store, scanning, sizes, directory)
    for row, term in scanning.rescued.items():
        if scanning.place[row] < 0:
            message_id = _id(references, row)
            store.write(message_id, term, int(references.count[row]))
            scanning.place[row] = store.locations[message_id].file
    store.sync()
    for number in left_over:
        directory.remove(f"{place}/{number}.rdt")
    store.collect()
    return store, scanning.place >= 0


def _list(directory: DurableDirectory, reading: ReadOnlyDirectory, place: str) -> tuple[list[int], list[int]]:
    """Numbers of the `.rdq` and `.rdt` files. Drafts of an interrupted merge are removed."""
    numbers: dict[str, list[int]] = {".rdq": [], ".rdt": []}
    for entry in reading.entries(place):
        stem, suffix = entry.name[:-4], entry.name[-4:]
        if DRAFT in entry.name:
            directory.remove(f"{place}/{entry.name}")
        elif suffix in numbers and stem.isascii() and stem.isdigit() and entry.is_file:
            numbers[suffix].append(int(stem))
    return sorted(numbers[".rdq"]), sorted(numbers[".rdt"])


def _id(references: References, row: int) -> bytes:
    return int(references.hi[row]).to_bytes(8, "big", signed=True) + int(references.lo[row]).to_bytes(8, "big", signed=True)


def _adopt(store: LiveStore, scanning: _Scanning, sizes: dict[int, int], directory: DurableDirectory) -> None:
    references = scanning.references
    placed = np.flatnonzero(scanning.place >= 0)
    valid = dict.fromkeys(sizes, 0)
    ends = dict.fromkeys(sizes, 0)
    locations: dict[bytes, Location] = {}
    columns = (scanning.place[placed], scanning.offset[placed], scanning.total[placed], references.count[placed])
    for row, file, offset, total, count in zip(placed.tolist(), *(column.tolist() for column in columns), strict=True):
        locations[_id(references, row)] = Location(count, file, offset, total)
        valid[file] += total
        ends[file] = max(ends[file], offset + total)
    files = {}
    last = max(sizes, default=-1)
    for number, size in sizes.items():
        if number == last:
            directory.truncate(store.name(number), ends[number])
            directory.sync(store.name(number))
            files[number] = FileSummary(valid[number], ends[number])
        elif valid[number]:
            files[number] = FileSummary(valid[number], size)
        else:
            directory.remove(store.name(number))
    store.adopt(locations, files)
