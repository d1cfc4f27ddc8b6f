"""Index file: finds the records with a key, by hash chains.

    offset             size             what
         0               40             header
        40        4 x slots             slot table: number of the newest entry of each chain, 0 where empty
        …    20 x positions             entries; number 0 is never used

    header   0  i64  store time of the first entry      24  i64  physical offset of the last entry
             8  i64  store time of the last entry       32  i32  slots in use
            16  i64  physical offset of the first entry 36  i32  number of the next entry

    entry    0  i32  hash of `topic#key`                12  i32  seconds from the header's first time
             4  i64  physical offset of the record      16  i32  number of the previous entry in the same slot, 0: none

The number of slots is not stored in the file. `load` infers it from the length, at the broker's ratio of four positions
per slot; if that does not give a whole number or the entries contradict it, from the position at which the last entry's
physical offset is found. Entries confirm a geometry if the first ones are in the chains that it implies.

    >>> geometry_of_length(420_000_040)
    (5000000, 20000000)

Format: docs/formats/rocketmq.md, section 5.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.files import Bytes, MappedFile, ReadOnlyDirectory
from mqstore.findings import Damage, Kind

__all__ = ["ENTRY", "Header", "IndexDirectory", "IndexEntry", "IndexFile", "SearchStep", "geometry_of_length", "load"]

ENTRY = np.dtype([("key_hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
HEADER_SIZE = 40
SLOT_SIZE = 4
ENTRY_SIZE = 20

SAMPLE = 64  # entries that confirm a geometry
MAX_CANDIDATES = 1000

HEADER = struct.Struct(">qqqqii")
_SLOT = struct.Struct(">i")
_ENTRY = struct.Struct(">iqii")


class Header(NamedTuple):
    """The 40-byte header. index_count: number of the next entry, at least 1."""

    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    hash_slot_count: int
    index_count: int


class IndexEntry(NamedTuple):
    """One entry, as stored."""

    key_hash: int
    physical_offset: int
    seconds: int
    previous: int


@dataclass(frozen=True, slots=True)
class SearchStep:
    """One entry that a search visited, or the reason it visited none. number 0: the slot itself."""

    file: str
    slot: int
    number: int
    physical_offset: int | None
    timestamp: int | None
    outcome: str

    def as_dict(self) -> dict[str, object]:
        return {
            "file": self.file,
            "slot": self.slot,
            "entry": self.number or None,
            "physical_offset": self.physical_offset,
            "timestamp": self.timestamp,
            "outcome": self.outcome,
        }


def geometry_of_length(length: int) -> tuple[int, int] | None:
    """Return (slots, positions) of a file of this length at the broker's ratio of one to four; None if not a whole number."""
    slots, rest = divmod(length - HEADER_SIZE, SLOT_SIZE + 4 * ENTRY_SIZE)
    return (slots, 4 * slots) if slots > 0 and rest == 0 else None


class IndexFile:
    """One index file, mapped. A search touches only a slot and the entries of its chain. inferred: the source of the geometry."""

    def __init__(self, name: str, relative: str, mapped: MappedFile, slot_count: int, positions: int, inferred: str) -> None:
        self.name = name
        self.relative = relative
        self.slot_count = slot_count
        self.positions = positions
        self.inferred = inferred
        self._mapped = mapped
        self.octets: memoryview | None = None if mapped.remote else mapped.data.data
        self._base = HEADER_SIZE + SLOT_SIZE * slot_count
        self._size = mapped.size
        stored = _header(mapped)
        self.header = stored._replace(index_count=max(1, stored.index_count))
        self.begin_timestamp: int = self.header.begin_timestamp
        self.end_timestamp: int = self.header.end_timestamp
        self.begin_physical_offset: int = self.header.begin_physical_offset
        self.end_physical_offset: int = self.header.end_physical_offset
        self.index_count: int = self.header.index_count

    @property
    def stop(self) -> int:
        """Number after the last entry that the file can hold."""
        return max(1, min(self.header.index_count, self.positions))

    def first_at(self, physical_offset: int) -> int:
        """Return the number of the first entry whose record is at or after a physical offset. Entries ascend in a valid file."""
        low, high = 1, self.stop
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle).physical_offset < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def may_use(self, slots: int) -> bool:
        """Return whether the header's count of slots can belong to a file that uses this many.

        4.3.0 counts every key, later brokers every slot; a file that both have written has a number in between.
        """
        return slots <= self.header.hash_slot_count <= max(slots, self.header.index_count - 1)

    def numbers_of(self, physical_offset: int) -> range:
        """Return the numbers of the entries of the record at a physical offset."""
        return range(self.first_at(physical_offset), self.first_at(physical_offset + 1))

    def entry_position(self, number: int) -> int:
        """Return the position of entry `number` in the file."""
        return self._base + ENTRY_SIZE * number

    def slot_position(self, slot: int) -> int:
        """Return the position of a slot in the file."""
        return HEADER_SIZE + SLOT_SIZE * slot

    def entry(self, number: int) -> IndexEntry:
        """Return entry `number`; zeros past the end of the file."""
        position = self._base + ENTRY_SIZE * number
        if number < 0 or position + ENTRY_SIZE > self._size:
            return IndexEntry(0, 0, 0, 0)
        if self.octets is None:
            return IndexEntry(*_ENTRY.unpack(self._mapped.bytes(position, position + ENTRY_SIZE)))
        return IndexEntry(*_ENTRY.unpack_from(self.octets, position))

    def entries(self, low: int, high: int) -> NDArray[np.void]:
        """Return entries low..high-1 as a structured array, as far as the file reaches: a view of the map."""
        raw = self.entry_bytes(low, high)
        return raw[: len(raw) - len(raw) % ENTRY_SIZE].view(ENTRY)

    def entry_bytes(self, low: int, high: int) -> Bytes:
        """Return the stored bytes of entries low..high-1, as far as the file reaches."""
        start, stop = self._base + ENTRY_SIZE * low, self._base + ENTRY_SIZE * high
        return self._mapped.load(start, stop)[start:stop]

    def slots(self) -> NDArray[np.int32]:
        """Return the slot table as native integers: a copy of 4 bytes per slot."""
        return self.slot_table().astype(np.int32)

    def slot_table(self) -> NDArray[np.int32]:
        """Return the slot table as stored, big-endian: a view of the map."""
        return self._mapped.load(HEADER_SIZE, self._base)[HEADER_SIZE : self._base].view(">i4")

    def slot(self, number: int) -> int:
        """Return the value of a slot."""
        position = HEADER_SIZE + SLOT_SIZE * number
        if self.octets is None:
            value: int = _SLOT.unpack(self._mapped.bytes(position, position + SLOT_SIZE))[0]
        else:
            value = _SLOT.unpack_from(self.octets, position)[0]
        return value

    def drop(self) -> None:
        """Release the file's resident pages."""
        self._mapped.drop(0, self._mapped.size)


@dataclass(frozen=True, slots=True)
class IndexDirectory:
    """The index files of a store, oldest first, and findings about the directory."""

    files: tuple[IndexFile, ...]
    findings: tuple[Damage, ...]


def load(directory: ReadOnlyDirectory, place: str = "index", *, slots: int | None = None, positions: int | None = None) -> IndexDirectory:
    """Map every index file. slots, positions: as configured; inferred if None."""
    files: list[IndexFile] = []
    findings: list[Damage] = []
    mapped: list[tuple[str, str, MappedFile]] = []
    for entry in directory.entries(place):
        relative = f"{place}/{entry.name}"
        if not entry.is_file or not (entry.name.isascii() and entry.name.isdigit() and len(entry.name) < 20):
            sentence = "an entry of the index directory that is not an index file: the broker skips it"
            findings.append(Damage(relative, 0, entry.size, Kind.STRAY_FILE, sentence))
            continue
        try:
            mapped.append((entry.name, relative, directory.map(relative)))
        except CannotOpenError as error:
            findings.append(Damage(relative, 0, entry.size, Kind.UNREADABLE, str(error)))
    geometries = _geometries([file for _, _, file in mapped], slots, positions)
    for name, relative, file in mapped:
        geometry, source = geometries[file.size]
        if geometry is None:
            sentence = f"{file.size} bytes fit no number of slots and positions; if the file is intact, give them with --config"
            findings.append(Damage(relative, 0, file.size, Kind.WRONG_SIZE, sentence))
            continue
        needed = HEADER_SIZE + SLOT_SIZE * geometry[0] + ENTRY_SIZE * geometry[1]
        if needed != file.size:
            sentence = f"the file has {file.size} bytes, but {geometry[0]} slots and {geometry[1]} positions take {needed}"
            findings.append(Damage(relative, 0, file.size, Kind.WRONG_SIZE, sentence))
        if HEADER_SIZE + SLOT_SIZE * geometry[0] <= file.size:
            files.append(IndexFile(name, relative, file, *geometry, source))
    return IndexDirectory(tuple(files), tuple(findings))


def _geometries(files: Sequence[MappedFile], slots: int | None, positions: int | None) -> dict[int, tuple[tuple[int, int] | None, str]]:
    """Return (slots, positions) and their source by file length. A broker makes all files equal, so the commonest length decides."""
    if slots is not None and positions is not None:
        return {file.size: ((slots, positions), "configured") for file in files}
    by_length: dict[int, list[MappedFile]] = {}
    for file in files:
        by_length.setdefault(file.size, []).append(file)
    found = {length: _infer_geometry(length, same, slots, positions) for length, same in by_length.items()}
    common = max(by_length, key=lambda length: (len(by_length[length]), length), default=0)
    for length in found:
        if not found[length][1].endswith(_PROVED) and found[common][0] is not None:
            found[length] = found[common]
    return found


_PROVED = "the entries agree"


def _infer_geometry(
    length: int, files: Sequence[MappedFile], slots: int | None, positions: int | None
) -> tuple[tuple[int, int] | None, str]:
    """Infer the geometry of files of one length: a candidate that the entries of all files confirm, else the broker's ratio."""
    fullest = sorted((file for file in files if file.size >= HEADER_SIZE), key=lambda file: -_header(file).index_count)[:4]
    if slots is not None or positions is not None:
        given = (
            _geometry_with_slots(length, slots)
            if slots is not None
            else _geometry_with_slots(length, (length - HEADER_SIZE - ENTRY_SIZE * (positions or 0)) // SLOT_SIZE)
        )
        return given, "half configured, the rest from the length"
    ratio = geometry_of_length(length)
    if (
        ratio is not None
        and all(_geometry_fits(file, *ratio) for file in fullest)
        and any(_header(file).index_count > 1 for file in fullest)
    ):
        return ratio, f"from the length, four positions a slot; {_PROVED}"
    for file in fullest:
        for candidate in _candidates(file):
            if all(_geometry_fits(other, *candidate) for other in fullest):
                return candidate, f"from the place of the last entry; {_PROVED}"
    return ratio, "from the length, four positions a slot" if ratio is not None else "no geometry fits"


def _geometry_with_slots(length: int, slots: int) -> tuple[int, int] | None:
    """Return (slots, positions) if that many slots leave room for whole entries, else None."""
    positions, rest = divmod(length - HEADER_SIZE - SLOT_SIZE * slots, ENTRY_SIZE)
    return (slots, positions) if slots > 0 and positions > 1 and rest == 0 else None


def _header(file: MappedFile) -> Header:
    return Header(*HEADER.unpack_from(file.bytes(0, HEADER_SIZE)))


def _candidates(file: MappedFile) -> Iterator[tuple[int, int]]:
    """Yield geometries in which the last entry is where its physical offset, repeated in the header, is found."""
    header = _header(file)
    last = header.index_count - 1
    if last < 1 or header.end_physical_offset <= 0:
        return
    pattern = header.end_physical_offset.to_bytes(8, "big")
    at = HEADER_SIZE - 1
    for _ in range(MAX_CANDIDATES):
        at = file.find(pattern, at + 1, file.data_end(0))
        if at < 0:
            return
        slots, rest = divmod(at - 4 - ENTRY_SIZE * last - HEADER_SIZE, SLOT_SIZE)
        candidate = _geometry_with_slots(file.size, slots) if rest == 0 else None
        if candidate is not None and candidate[1] > last:
            yield candidate


def _geometry_fits(file: MappedFile, slots: int, positions: int) -> bool:
    """Return whether the first entries are in the slots of their hashes and link to older entries. True for a file without entries."""
    count = _header(file).index_count
    if count <= 1:
        return True
    base = HEADER_SIZE + SLOT_SIZE * slots
    sample = min(count, positions, SAMPLE + 1) - 1
    first = file.bytes(base + ENTRY_SIZE, base + ENTRY_SIZE * (sample + 1))
    newest: dict[int, int] = {}
    wrong = 0
    for number in range(1, sample + 1):
        key_hash, physical, seconds, previous = _ENTRY.unpack_from(first, ENTRY_SIZE * (number - 1))
        slot = key_hash % slots
        head: int = _SLOT.unpack(file.bytes(HEADER_SIZE + SLOT_SIZE * slot, HEADER_SIZE + SLOT_SIZE * (slot + 1)))[0]
        wrong += previous != newest.get(slot, 0) or key_hash < 0 or physical < 0 or seconds < 0 or head < number
        newest[slot] = number
    # a few damaged entries must not rule out the right geometry; a wrong one contradicts nearly all of them
    return wrong <= sample // 4
