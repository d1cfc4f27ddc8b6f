"""Geometry of index files: the number of slots and of positions, which no file states.

A file of L bytes with S slots and N positions has L = 40 + 4 S + 20 N, so each length has many geometries: one position fewer makes
room for five slots more. The contents decide. In a valid file with k entries

    the last byte that is not zero is in entry k           this leaves one geometry
    entries 1 and k have the header's offsets and times
    physical offsets ascend, no entry is before the first
    every slot holds the newest entry of its hashes, or 0, and every entry links to the next older one
    the header counts the slots in use

A geometry is proved by a file that has all of this. If a file has damage, the geometry that most of its entries bear out is accepted, too:
a wrong one contradicts nearly all of them. A file without entries proves nothing; files of one length lend each other their proof,
because a broker makes them alike. What is left is ambiguous: it is not read, and not written to, until `--config` gives the geometry.

In a file with more than a million entries, the last 65,536 are checked, 256 of the older ones of many files, and 64 of a large file
behind a URL: an agreement by chance is impossible.

    >>> geometry_of_length(420_000_040)
    (5000000, 20000000)

Format: docs/formats/rocketmq.md, section 5.1.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.files import MappedFile
from mqstore.kernels.rocketmq import index_chains

ENTRY = np.dtype([("key_hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
HEADER = struct.Struct(">qqqqii")
HEADER_SIZE = HEADER.size
SLOT_SIZE = 4
ENTRY_SIZE = ENTRY.itemsize

WHOLE = 1_000_000  # a file with more entries is checked at its end only
LAST = 65_536
FEW = 256
REMOTE_LAST = 64
REMOTE_SIZE = 4 << 20  # a file behind a URL that is larger is checked at its end only
SEARCHED = 64 << 20  # and one that is larger than this is not searched for the end of its entries
PLACES = 64  # places of the header's end offset that are tried in a damaged file
IN_FULL = 8  # files of one length that are checked in full, the fullest and newest
DEFAULT = (5_000_000, 20_000_000)
_MAX_INT = 2**31 - 1

Shape = tuple[int, int]
Longs = NDArray[np.int64]


class Header(NamedTuple):
    """The 40-byte header. index_count: number of the next entry, at least 1."""

    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    hash_slot_count: int
    index_count: int

    def may_use(self, slots: int) -> bool:
        """Return whether the count of slots can belong to a file that uses this many.

        4.3.0 counts every key, later brokers every slot; a file that both have written has a number in between.
        """
        return slots <= self.hash_slot_count <= max(slots, self.index_count - 1)


@dataclass(frozen=True, slots=True)
class Geometry:
    """The geometry of one file. shape: (slots, positions); None: ambiguous. source: where it is known from, or why it is not known.

    proved: whether keys may be added to the file. candidates: geometries that its length allows, likely ones first, if it is ambiguous.
    contradicted: whether its entries rule out every geometry. misconfigured: whether they rule out the configured one, and bear out this.
    """

    shape: Shape | None
    source: str
    proved: bool
    candidates: tuple[Shape, ...] = ()
    contradicted: bool = False
    misconfigured: bool = False


def read_header(file: MappedFile) -> Header:
    """Return the header of a file of at least 40 bytes, as it is stored."""
    return Header(*HEADER.unpack_from(file.bytes(0, HEADER_SIZE)))


def file_size(shape: Shape) -> int:
    """Return the length of a file of a geometry."""
    return HEADER_SIZE + SLOT_SIZE * shape[0] + ENTRY_SIZE * shape[1]


def geometry_of_length(length: int) -> Shape | None:
    """Return (slots, positions) of a file of this length at the broker's ratio of one to four; None if not a whole number."""
    slots, rest = divmod(length - HEADER_SIZE, SLOT_SIZE + 4 * ENTRY_SIZE)
    return (slots, 4 * slots) if slots > 0 and rest == 0 else None


def with_slots(length: int, slots: int) -> Shape | None:
    """Return the geometry of a file of this length with this number of slots, if the rest is whole entries."""
    positions, rest = divmod(length - HEADER_SIZE - SLOT_SIZE * slots, ENTRY_SIZE)
    return (slots, positions) if slots > 0 and positions > 1 and rest == 0 else None


def with_positions(length: int, positions: int) -> Shape | None:
    """Return the geometry of a file of this length with this number of positions, if the rest is whole slots."""
    slots, rest = divmod(length - HEADER_SIZE - ENTRY_SIZE * positions, SLOT_SIZE)
    return (slots, positions) if slots > 0 and positions > 1 and rest == 0 else None


def possible(length: int) -> bool:
    """Return whether a file of this length can have any geometry."""
    return length >= file_size((1, 2)) and (length - HEADER_SIZE) % SLOT_SIZE == 0


def infer(files: Sequence[MappedFile], slots: int | None, positions: int | None) -> list[Geometry]:
    """Return the geometry of each file. files: oldest first. slots, positions: as configured, None if not."""
    if slots is not None and positions is not None:
        return [_configured(file, (slots, positions)) for file in files]
    if slots is not None:
        return [_half_configured(with_slots(file.size, slots)) for file in files]
    if positions is not None:
        return [_half_configured(with_positions(file.size, positions)) for file in files]
    contents = [_Contents(file) for file in files]
    geometries: list[Geometry | None] = [None] * len(files)
    proved: dict[int, list[Shape]] = {}  # by length: geometries proved so far
    checked: Counter[int] = Counter()
    for number in sorted(range(len(files)), key=lambda number: (-contents[number].entries, -number)):
        known = proved.setdefault(files[number].size, [])
        checked[files[number].size] += 1
        made = geometries[number] = contents[number].geometry(known, in_full=checked[files[number].size] <= IN_FULL)
        if made is not None and made.shape is not None and made.shape not in known:
            known.append(made.shape)
    return [each or _lent(content, proved) for content, each in zip(contents, geometries, strict=True)]


def _configured(file: MappedFile, shape: Shape) -> Geometry:
    """Return the configured geometry, unless the file is valid with another one."""
    contents = _Contents(file)
    geometry = contents.geometry([shape] if file.size == file_size(shape) else [], in_full=True)
    if geometry is None or geometry.shape == shape or geometry.shape is None or not contents.bears_out(geometry.shape):
        return Geometry(shape, "configured", True)
    source = f"the entries agree, against the configured {shape[0]} slots and {shape[1]} positions"
    return Geometry(geometry.shape, source, False, misconfigured=True)


def _half_configured(shape: Shape | None) -> Geometry:
    return Geometry(shape, "half configured, the rest from the length" if shape else "no geometry fits", shape is not None)


def _lent(content: _Contents, proved: dict[int, list[Shape]]) -> Geometry:
    """Return the geometry of a file that does not show its own: that of the other files, or none."""
    length = content.file.size
    same = proved.get(length, [])
    if len(same) == 1:
        return Geometry(same[0], "the other index files of this length", True)
    others = list(dict.fromkeys(shape for shapes in proved.values() for shape in shapes))
    if len(others) == 1 and length != file_size(others[0]) and (not content.entries or content.support(others[0]) >= 0.5):
        return Geometry(others[0], "the other index files", False)  # the file was cut
    if not content.entries and possible(length):
        if length == file_size(DEFAULT):
            return Geometry(DEFAULT, "the broker's default for this length", True)
        shape = geometry_of_length(length) or with_slots(length, (length - HEADER_SIZE) // SLOT_SIZE % 5 or 5)
        return Geometry(shape, "assumed: the file has no entries that show it", False, content.candidates())
    if not possible(length):
        return Geometry(others[0] if len(others) == 1 else None, "the other index files" if len(others) == 1 else "no geometry fits", False)
    if length == file_size(DEFAULT):
        return Geometry(DEFAULT, "the broker's default for this length", False)
    unclear = not content.entries or content.shows_nothing
    sentence = "every geometry fits its entries" if unclear else "no geometry fits its entries"
    return Geometry(None, sentence, False, tuple(dict.fromkeys((*same, *content.candidates()))), not unclear)


class _Contents:
    """What one file shows of its geometry. entries: as the header counts them."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.header = read_header(file) if file.size >= HEADER_SIZE else Header(0, 0, 0, 0, 0, 0)
        self.entries = max(0, self.header.index_count - 1)
        self._whole = not file.remote or file.size <= REMOTE_SIZE
        self._searched = not file.remote or file.size <= SEARCHED
        self._few = REMOTE_LAST if file.remote else LAST

    @cached_property
    def _last(self) -> int:
        """Position of the last byte after the header that is not zero, or -1."""
        return self.file.last_nonzero(HEADER_SIZE, self.file.size)

    @property
    def shows_nothing(self) -> bool:
        """Whether all bytes of the entries are zeros, as of one key of hash 0 in the first record of a log."""
        return self._searched and self.entries <= 1 and self._last < HEADER_SIZE + SLOT_SIZE

    def geometry(self, known: Sequence[Shape], *, in_full: bool) -> Geometry | None:
        """Return the geometry that the entries show; None if they do not. known: those of other files of this length."""
        if not self.entries or not possible(self.file.size) or self.shows_nothing:
            return None
        if not in_full:
            self._few = min(self._few, FEW)
        first: dict[Shape, None] = {}
        for shape in chain(known, self._likely()):
            if shape not in first and self.bears_out(shape, in_full=in_full):
                kind = (
                    "from the length, four positions a slot"
                    if shape == geometry_of_length(self.file.size)
                    else "from the length and the header"
                )
                return Geometry(shape, f"{kind}; the entries agree", True)
            first[shape] = None
        support = {shape: self.support(shape) for shape in (*first, *self._at_end_offset())}
        ranked = sorted(support, key=lambda shape: -support[shape])
        if ranked and support[ranked[0]] >= 0.5 and all(support[shape] < support[ranked[0]] / 2 for shape in ranked[1:]):
            return Geometry(ranked[0], "most of the entries agree", True)
        return None

    def candidates(self) -> tuple[Shape, ...]:
        """Return a few geometries that the length allows, likely ones first."""
        length = self.file.size
        more = (with_positions(length, positions) for positions in range((length - HEADER_SIZE) // ENTRY_SIZE, 1, -1))
        few = [shape for shape, _ in zip((each for each in more if each), range(3), strict=False)]
        return tuple(dict.fromkeys((*self._likely(), *few)))

    def _likely(self) -> Iterator[Shape]:
        """Yield the broker's ratio, the geometry if the file is full, and those in which the entries end where the bytes do."""
        length, count = self.file.size, self.header.index_count
        likely = [geometry_of_length(length), with_positions(length, count)]
        yield from (shape for shape in likely if shape is not None)
        if self._searched and self.entries:
            # the last entries may be zeros: of the first record of a log, hash 0
            for number in (count - 1, count - 2):
                base = self._last - (self._last - length) % ENTRY_SIZE - ENTRY_SIZE * number
                shape = with_slots(length, (base - HEADER_SIZE) // SLOT_SIZE) if base > HEADER_SIZE else None
                if shape is not None:
                    yield shape

    def _at_end_offset(self) -> Iterable[Shape]:
        """Yield the geometries in which the last entry is where its physical offset, repeated in the header, is found."""
        file, at = self.file, HEADER_SIZE - 1
        if not self._searched or self.header.end_physical_offset <= 0:
            return
        pattern = self.header.end_physical_offset.to_bytes(8, "big")
        stop = file.data_end(0)
        for _ in range(PLACES):
            at = file.find(pattern, at + 1, stop)
            if at < 0:
                return
            slots, rest = divmod(at - 4 - ENTRY_SIZE * self.entries - HEADER_SIZE, SLOT_SIZE)
            shape = with_slots(file.size, slots) if rest == 0 else None
            if shape is not None:
                yield shape

    # against one geometry

    def bears_out(self, shape: Shape, *, in_full: bool = True) -> bool:
        """Return whether the file is valid with this geometry. in_full: check all entries, if they are not too many."""
        slots, positions = shape
        header, count = self.header, self.header.index_count
        if not 2 <= count <= positions or file_size(shape) != self.file.size or header.begin_physical_offset < 0:
            return False
        base = HEADER_SIZE + SLOT_SIZE * slots
        if any(self.file.bytes(base, base + ENTRY_SIZE)):
            return False
        if self._whole and in_full and not base + ENTRY_SIZE <= self._last < base + ENTRY_SIZE * count:
            return False
        first, last = self._entries(slots, 1, 2)[0], self._entries(slots, count - 1, count)[0]
        offsets = header.begin_physical_offset, header.end_physical_offset
        if (int(first["physical_offset"]), int(last["physical_offset"])) != offsets or not offsets[0] <= offsets[1]:
            return False
        if count > 2 and int(last["seconds"]) != _seconds(header):
            return False
        if self._whole and in_full and self.entries <= WHOLE:
            return self._replays(slots)
        return self._ends_well(slots, min(self.entries, self._few))

    def _replays(self, slots: int) -> bool:
        """Return whether all entries, slots and the header's count of slots agree."""
        newest, bad = np.zeros(slots, np.int32), np.empty(0, np.int64)
        count = self.header.index_count
        raw = self._bytes(slots, 1, count)
        offsets = raw.view(ENTRY)["physical_offset"].astype(np.int64)
        if index_chains.check(raw, 1, newest, bad) or (np.diff(offsets) < 0).any() or (raw.view(ENTRY)["seconds"] < 0).any():
            return False
        table = self._table(slots)
        used = int(np.count_nonzero(table.view(np.int32)))  # zero is zero in either byte order
        if not self.header.may_use(used):
            return False
        if self.entries > slots // 8:
            return bool((table == newest).all())
        taken = np.sort(raw.view(ENTRY)["key_hash"].astype(np.int64) % slots)
        taken = taken[np.diff(taken, prepend=-1) > 0]  # np.unique imports numpy.ma, a thirtieth of the time of `inspect`
        return len(taken) == used and bool((table[taken] == newest[taken]).all())

    def _ends_well(self, slots: int, number: int) -> bool:
        """Return whether the last entries are the newest of their chains, and link as they follow each other."""
        count = self.header.index_count
        low = count - number
        entries = self._entries(slots, low, count)
        hashes, previous = entries["key_hash"].astype(np.int64), entries["previous"].astype(np.int64)
        offsets = entries["physical_offset"].astype(np.int64)
        if (hashes < 0).any() or (np.diff(offsets) < 0).any() or (entries["seconds"] < 0).any():
            return False
        slot = hashes % slots
        order = np.argsort(slot, kind="stable")
        numbers, of = low + order, slot[order]
        follows = of[1:] == of[:-1]
        if (previous[order][1:][follows] != numbers[:-1][follows]).any():
            return False
        starts = np.concatenate([[True], ~follows])
        if (previous[order][starts] >= low).any() or (previous[order][starts] < 0).any():
            return False
        ends = np.concatenate([~follows, [True]])
        return bool((self._heads(slots, of[ends]) == numbers[ends]).all())

    def support(self, shape: Shape) -> float:
        """Return the share of entries that are where their links and slots say, from 0 to 1."""
        slots, positions = shape
        base = HEADER_SIZE + SLOT_SIZE * slots
        there = (self.file.size - base) // ENTRY_SIZE - 1
        number = min(self.entries, positions - 1, there, WHOLE if self._whole else REMOTE_LAST)
        if self._searched:
            number = min(number, max(0, (self._last - base) // ENTRY_SIZE))
        if number < 1:
            return 0.0
        newest, bad = np.zeros(slots, np.int32), np.empty(0, np.int64)
        raw = self._bytes(slots, 1, 1 + number)
        wrong = index_chains.check(raw, 1, newest, bad)
        used = np.flatnonzero(newest)
        used = used[: LAST if self._whole else REMOTE_LAST].astype(np.int64)
        if not len(used):
            return 0.0
        stored, expected = self._heads(slots, used), newest[used]
        # if not all entries were looked at, a slot may lead to a later one
        heads = stored == expected if number == self.entries else stored >= expected
        return float((1 - wrong / number) * heads.mean())

    def _bytes(self, slots: int, low: int, high: int) -> NDArray[np.uint8]:
        base = HEADER_SIZE + SLOT_SIZE * slots
        start, stop = base + ENTRY_SIZE * low, base + ENTRY_SIZE * high
        return self.file.load(start, stop)[start:stop]

    def _entries(self, slots: int, low: int, high: int) -> NDArray[np.void]:
        return self._bytes(slots, low, high).view(ENTRY)

    def _table(self, slots: int) -> NDArray[np.int32]:
        stop = HEADER_SIZE + SLOT_SIZE * slots
        return self.file.load(HEADER_SIZE, stop)[HEADER_SIZE:stop].view(">i4")

    def _heads(self, slots: int, selected: Longs) -> Longs:
        """Return the values of slots."""
        if self._whole:
            return self._table(slots)[selected].astype(np.int64)
        read = (self.file.bytes(HEADER_SIZE + SLOT_SIZE * slot, HEADER_SIZE + SLOT_SIZE * (slot + 1)) for slot in selected.tolist())
        return np.array([int.from_bytes(raw, "big", signed=True) for raw in read], np.int64)


def _seconds(header: Header) -> int:
    """Return the time difference that the last entry has, unless it is the first, too."""
    if header.begin_timestamp <= 0:
        return 0
    return min(max(0, header.end_timestamp - header.begin_timestamp) // 1000, _MAX_INT)
