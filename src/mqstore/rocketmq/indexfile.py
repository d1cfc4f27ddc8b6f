"""Index file: which records have a key, by hash chains.

    offset             size             what
         0               40             header
        40        4 x slots             slot table: number of the newest entry of each chain, 0 where empty
        …    20 x positions             entries; number 0 is never used

    header   0  i64  store time of the first entry      24  i64  physical offset of the last entry
             8  i64  store time of the last entry       32  i32  slots in use
            16  i64  physical offset of the first entry 36  i32  number of the next entry

    entry    0  i32  hash of `topic#key`                12  i32  seconds from the header's first time
             4  i64  physical offset of the record      16  i32  number of the entry before in the same slot, 0: none

Nothing in the file says how many slots it has. `geometry` infers it: from the length where the broker's ratio of four
positions per slot gives it, else by trying which number of slots makes the chains of the first entries true.

    >>> geometry_of_length(420_000_040)
    (5000000, 20000000)

Format: docs/formats/rocketmq.md, section 5.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
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

_HEADER = struct.Struct(">qqqqii")
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
    """One entry that a search visited, or why it visited none. number 0: the slot itself."""

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
    """(slots, positions) of a file of this length in the broker's ratio of one to four; None if that gives no whole number."""
    slots, rest = divmod(length - HEADER_SIZE, SLOT_SIZE + 4 * ENTRY_SIZE)
    return (slots, 4 * slots) if slots > 0 and rest == 0 else None


class IndexFile:
    """One index file, mapped. Searching touches a slot and the entries of its chain, nothing else."""

    def __init__(self, name: str, relative: str, mapped: MappedFile, slot_count: int, positions: int, inferred: str) -> None:
        self.name = name
        self.relative = relative
        self.slot_count = slot_count
        self.positions = positions
        self.inferred = inferred
        self._mapped = mapped
        self._view = memoryview(mapped.data)
        self._base = HEADER_SIZE + SLOT_SIZE * slot_count

    @cached_property
    def header(self) -> Header:
        fields = _HEADER.unpack_from(self._view, 0)
        return Header(*fields[:5], max(1, fields[5]))

    @property
    def begin_timestamp(self) -> int:
        return self.header.begin_timestamp

    @property
    def end_timestamp(self) -> int:
        return self.header.end_timestamp

    @property
    def begin_physical_offset(self) -> int:
        return self.header.begin_physical_offset

    @property
    def end_physical_offset(self) -> int:
        return self.header.end_physical_offset

    @property
    def index_count(self) -> int:
        return self.header.index_count

    def entry_position(self, number: int) -> int:
        """Byte of entry `number` in the file."""
        return self._base + ENTRY_SIZE * number

    def slot_position(self, slot: int) -> int:
        """Byte of a slot in the file."""
        return HEADER_SIZE + SLOT_SIZE * slot

    def entry(self, number: int) -> IndexEntry:
        """Entry `number`; zeros where the file does not reach."""
        position = self._base + ENTRY_SIZE * number
        if number < 0 or position + ENTRY_SIZE > self._mapped.size:
            return IndexEntry(0, 0, 0, 0)
        return IndexEntry(*_ENTRY.unpack_from(self._view, position))

    def entry_bytes(self, low: int, high: int) -> Bytes:
        """The stored bytes of entries low..high-1, as far as the file reaches."""
        return self._mapped.data[self._base + ENTRY_SIZE * low : self._base + ENTRY_SIZE * high]

    def slots(self) -> NDArray[np.int32]:
        """The slot table as native numbers: a copy of 4 bytes a slot."""
        return self._mapped.data[HEADER_SIZE : self._base].view(">i4").astype(np.int32)

    def slot(self, number: int) -> int:
        """What a slot holds."""
        value: int = _SLOT.unpack_from(self._view, HEADER_SIZE + SLOT_SIZE * number)[0]
        return value

    def drop(self) -> None:
        """Let go of the file's resident pages."""
        self._mapped.drop(0, self._mapped.size)


@dataclass(frozen=True, slots=True)
class IndexDirectory:
    """The index files of a store, oldest first, and what is odd about the directory."""

    files: tuple[IndexFile, ...]
    findings: tuple[Damage, ...]


def load(directory: ReadOnlyDirectory, place: str = "index", *, slots: int | None = None, positions: int | None = None) -> IndexDirectory:
    """Map every index file. slots, positions: as configured; inferred where None."""
    files: list[IndexFile] = []
    findings: list[Damage] = []
    mapped: list[tuple[str, str, MappedFile]] = []
    for entry in directory.entries(place):
        relative = f"{place}/{entry.name}"
        if not entry.is_file or not entry.name.isdecimal():
            findings.append(Damage(relative, 0, entry.size, Kind.STRAY_FILE, "an entry of the index directory that is no index file: the broker skips it"))
            continue
        try:
            mapped.append((entry.name, relative, directory.map(relative)))
        except CannotOpenError as error:
            findings.append(Damage(relative, 0, entry.size, Kind.UNREADABLE, str(error)))
    known = (slots, positions) if slots is not None and positions is not None else None
    for name, relative, file in mapped:
        geometry, how = (known, "configured") if known is not None else _infer(file)
        if geometry is None:
            findings.append(Damage(relative, 0, file.size, Kind.WRONG_SIZE, f"{file.size} bytes fit no number of slots and positions: give --config with maxHashSlotNum and maxIndexNum"))
            continue
        if HEADER_SIZE + SLOT_SIZE * geometry[0] + ENTRY_SIZE * geometry[1] > file.size:
            findings.append(Damage(relative, 0, file.size, Kind.WRONG_SIZE, f"{file.size} bytes are fewer than {geometry[0]} slots and {geometry[1]} positions take"))
            if HEADER_SIZE + SLOT_SIZE * geometry[0] > file.size:
                continue
        files.append(IndexFile(name, relative, file, *geometry, how))
    return IndexDirectory(tuple(files), tuple(findings))


def _infer(file: MappedFile) -> tuple[tuple[int, int] | None, str]:
    if file.size < HEADER_SIZE + SLOT_SIZE + ENTRY_SIZE:
        return None, "too short"
    guess = geometry_of_length(file.size)
    if guess is not None and _fits(file, *guess):
        return guess, "inferred from the length, four positions a slot"
    body = file.size - HEADER_SIZE
    # 4 slots + 20 positions = body; slots is a multiple of 5 apart from one remainder
    first = next((slots for slots in range(1, 6) if (body - SLOT_SIZE * slots) % ENTRY_SIZE == 0), None)
    if first is not None:
        for slots in _candidates(first, body // SLOT_SIZE):
            if _fits(file, slots, (body - SLOT_SIZE * slots) // ENTRY_SIZE, strict=True):
                return (slots, (body - SLOT_SIZE * slots) // ENTRY_SIZE), "inferred from the chains"
    return (guess, "inferred from the length, four positions a slot") if guess is not None else (None, "no geometry fits")


def _candidates(first: int, limit: int) -> Sequence[int]:
    return range(first, min(limit, first + 5 * 200_000), 5)


def _fits(file: MappedFile, slots: int, positions: int, *, strict: bool = False) -> bool:
    """Whether the first entries stand in the slots that their hashes name, and link downwards."""
    count = _HEADER.unpack_from(file.data, 0)[5]
    if not 0 <= count <= positions:
        return False
    base = HEADER_SIZE + SLOT_SIZE * slots
    if count <= 1:
        return not strict
    sample = min(count - 1, 64)
    rows = file.data[base + ENTRY_SIZE : base + ENTRY_SIZE * (1 + sample)]
    if len(rows) < ENTRY_SIZE * sample:
        return False
    entries = rows.view(ENTRY)
    newest: dict[int, int] = {}
    wrong = 0
    for k in range(sample):
        slot = int(entries["key_hash"][k]) % slots
        wrong += int(entries["previous"][k]) != newest.get(slot, 0) or int(entries["physical_offset"][k]) < 0
        newest[slot] = k + 1
    return wrong <= sample // 8
