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

The number of slots is not stored in the file. `index_geometry` infers it from the length and the entries; a file whose geometry is not
known is not among the `files` of its directory, but among those `unread`.

Format: docs/formats/rocketmq.md, section 5.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.files import Bytes, MappedFile, ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rocketmq.format.index_geometry import (
    ENTRY,
    ENTRY_SIZE,
    HEADER_SIZE,
    SLOT_SIZE,
    Geometry,
    Header,
    file_size,
    infer,
    read_header,
)

_SLOT = struct.Struct(">i")
_ENTRY = struct.Struct(">iqii")


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


class IndexFile:
    """One index file, mapped. A search touches only a slot and the entries of its chain.

    inferred: the source of the geometry. proved: whether it is known for certain, so that keys may be added.
    """

    def __init__(
        self, name: str, relative: str, mapped: MappedFile, slot_count: int, positions: int, inferred: str, *, proved: bool = True
    ) -> None:
        self.name = name
        self.relative = relative
        self.slot_count = slot_count
        self.positions = positions
        self.inferred = inferred
        self.proved = proved
        self._mapped = mapped
        self.octets: memoryview | None = None if mapped.remote else mapped.data.data
        self._base = HEADER_SIZE + SLOT_SIZE * slot_count
        self._size = mapped.size
        stored = read_header(mapped)
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
class UnreadIndex:
    """An index file of which the geometry is not known. sentence: why. damaged: whether that is reported as damage."""

    name: str
    relative: str
    header: Header
    sentence: str
    damaged: bool


@dataclass(frozen=True, slots=True)
class IndexDirectory:
    """The index files of a store, oldest first, findings about the directory, and the files whose geometry is not known."""

    files: tuple[IndexFile, ...]
    findings: tuple[Damage, ...]
    unread: tuple[UnreadIndex, ...] = ()


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
    unread: list[UnreadIndex] = []
    for (name, relative, file), geometry in zip(mapped, infer([file for _, _, file in mapped], slots, positions), strict=True):
        if geometry.shape is None:
            sentence = _why_unread(file, geometry)
            if geometry.contradicted:
                findings.append(Damage(relative, 0, file.size, Kind.BAD_INDEX_HEADER, sentence))
            elif not geometry.candidates:
                findings.append(Damage(relative, 0, file.size, Kind.WRONG_SIZE, sentence))
            header = read_header(file) if file.size >= HEADER_SIZE else Header(0, 0, 0, 0, 0, 0)
            unread.append(UnreadIndex(name, relative, header, sentence, geometry.contradicted or not geometry.candidates))
            continue
        if geometry.misconfigured:
            sentence = (
                f"its entries are laid out for {geometry.shape[0]} slots and {geometry.shape[1]} positions, "
                f"--config has {slots} and {positions}: a broker with this configuration misreads the file"
            )
            findings.append(Damage(relative, 0, HEADER_SIZE, Kind.BAD_INDEX_HEADER, sentence))
        needed = file_size(geometry.shape)
        if needed != file.size:
            sentence = f"the file has {file.size} bytes, but {geometry.shape[0]} slots and {geometry.shape[1]} positions take {needed}"
            findings.append(Damage(relative, 0, file.size, Kind.WRONG_SIZE, sentence))
        if HEADER_SIZE + SLOT_SIZE * geometry.shape[0] <= file.size:
            files.append(IndexFile(name, relative, file, *geometry.shape, geometry.source, proved=geometry.proved))
    return IndexDirectory(tuple(files), tuple(findings), tuple(unread))


def _why_unread(file: MappedFile, geometry: Geometry) -> str:
    if not geometry.candidates:
        return f"{file.size} bytes fit no number of slots and positions; if the file is intact, give them with --config"
    named = ", ".join(f"maxHashSlotNum={slots} with maxIndexNum={positions}" for slots, positions in geometry.candidates)
    entries = max(0, read_header(file).index_count - 1)
    if geometry.contradicted:
        return f"its header counts {entries} entries, but no geometry fits them ({named}, …); if the file is intact, --config gives it"
    return f"its geometry is ambiguous: {geometry.source} ({named}, …); --config with the broker's own settings decides"
