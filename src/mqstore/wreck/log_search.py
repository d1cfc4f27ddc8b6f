"""Search of an image for logs of RabbitMQ: entries of quorum queues and chunks of streams, wherever their bytes are.

    RAWA | record record …          a record is proved by its Adler-32 over index, term and entry
    RASG | places | entry entry …   an entry by the CRC-32 that a place of any segment in the source has for its length
    OSIL | chunk chunk …            the data of a chunk by their CRC-32

Only bytes that belong to no other message are searched (`carving`). The files themselves need not be whole, nor in one piece: each record,
entry and chunk is found by itself. One that no checksum proves is taken if it is a complete command with a message.

What no checksum covers may be another record's where pieces of files are side by side. The number of a chunk is its own if it is in the
sector of the checksum that fits, or if the chunk before or after it agrees. The member of a record is that which the record states, in one
sector with its checksum, or which an earlier record of the same run gave for its number, as long as its indexes go on by one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.files.image import Image
from mqstore.kernels.rabbitmq import raft_commands, stream_chunks, terms
from mqstore.rabbitmq.carved_logs import (
    AT,
    CHUNK,
    CONTENT,
    CRC,
    END,
    ENTRY,
    INDEX,
    KIND,
    MARK,
    MESSAGES,
    NO_PROOF,
    NUMBER,
    PROOF,
    PROVED,
    RECORD,
    START,
    TERM,
    UID,
    UNIT_ROWS,
    FoundLogs,
    Longs,
)
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.quorum import segment, wal
from mqstore.rabbitmq.quorum.queue import stored_message
from mqstore.rabbitmq.streams.segment import HEADER as STREAM_HEADER
from mqstore.wreck.carving import SECTOR, Gap, nonzero_bounds

WINDOW = 8 << 20
AFTER = 1 << 20  # bytes after a window that are read with it
BEFORE = 96  # bytes before an entry that may belong to its record
EFFORT = 16  # bytes that failed attempts may take, for each byte of the range
LEAST_EFFORT = 256 << 20
LARGEST = 256 << 20  # bytes of an entry or a chunk
LARGEST_NUMBER = 1 << 48  # of an index or a term
CHUNK_HEAD = 48
PROVED_HEAD = 36  # bytes of a chunk as far as its checksum
BLOCK = 1 << 20
_UID = re.compile(rb"\0([\x01-\x40])([0-9A-Za-z_=-]{1,64})\Z", re.DOTALL)
_COMMANDS = (b"\x83h\x04w\x04$usr", b"\x83h\x04d\x00\x04$usr")
_MARKS = {wal.MAGIC + b"\1": wal.HEADER, segment.MAGIC: 0, STREAM_HEADER: len(STREAM_HEADER)}
_TUPLE, _ATOMS = 104, (100, 115, 118, 119)
_PLACE = np.dtype([("length", np.int64), ("crc", np.int64), ("index", np.int64), ("term", np.int64)])


@dataclass(slots=True)
class Units:
    """What was found in ranges of a file. units: as in `carved_logs`; places: what segments say about entries.

    untried: attempts to read took too long, as in a hostile image, so that some positions were passed over.
    """

    units: Longs
    uids: list[bytes]
    places: NDArray[np.void]
    untried: bool


# ranges of a file: (the first position that may belong to what is found, from, to)
Ranges = tuple[str, tuple[tuple[int, int, int], ...]]


def search_logs(files: Sequence[Ranges]) -> list[Units]:
    """Return what begins in ranges of files, file by file."""
    result = []
    for path, ranges in files:
        with Image(path) as image:
            search = _Search(image)
            for first, low, high in ranges:
                search.run(first, low, high)
        units = np.array(search.rows, np.int64).reshape(-1, UNIT_ROWS).T
        places = np.concatenate(search.places) if search.places else np.empty(0, _PLACE)
        result.append(Units(units, list(search.uids), places, search.untried))
    return result


@dataclass(slots=True)
class _Search:
    image: Image
    rows: list[tuple[int, ...]] = field(default_factory=list)
    places: list[NDArray[np.void]] = field(default_factory=list)
    uids: dict[bytes, int] = field(default_factory=dict)
    listed: dict[int, int] = field(default_factory=dict)  # entries that a segment proves: position, end
    untried: bool = False
    effort: int = LEAST_EFFORT
    end: int = 0  # of the last unit that is proved
    base: int = 0  # position of the window
    data: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))

    def run(self, first: int, low: int, high: int) -> None:
        """Search [low, high). first: nothing before this position may belong to what is found."""
        self.end = first
        self.effort += EFFORT * (high - low)
        at = low
        while at < high:
            at = min(high, self.image.next_data(at))
            stop = min(at + WINDOW, high)
            self.base = max(first, at - BEFORE)
            self.data = self.image.read(self.base, stop + AFTER)
            read = self.base + len(self.data)
            if read <= at:
                at = self.image.after_unreadable(max(at, read), high)
                continue
            stop = min(stop, read)
            self._window(at - self.base, stop - self.base)
            at = stop

    def _window(self, low: int, high: int) -> None:
        """Find what is in the window; low, high: positions in it."""
        for offset, kind in self._candidates(low, high):
            if self.base + offset < self.end:
                continue
            if self.effort <= 0:
                self.untried = True
                return
            if kind == CHUNK:
                self._chunk(offset)
            elif kind == MARK:
                self._mark(offset)
            elif not self._record(offset):
                self._entry(offset)

    def _candidates(self, low: int, high: int) -> Iterable[tuple[int, int]]:
        """Return positions where an entry, a chunk or a file may begin, in order, each with its kind."""
        data = self.data[: high + CHUNK_HEAD]
        entries = np.flatnonzero(data[low : len(data) - 1][: high - low] == wal.TERM_START) + low
        kind = data[entries + 1]
        # the first of a member is an atom, without a message; what is 0 in its record until very large numbers are reached
        head = np.maximum(entries, 16)
        stated = (data[head - 16] | data[head - 15] | data[head - 8] | data[head - 7]) == 0
        entries = entries[(kind == _TUPLE) | (stated & np.isin(kind, _ATOMS))]
        chunks = np.flatnonzero(data[low : max(low, min(high, len(data) - CHUNK_HEAD))] == 0x50) + low
        # its kind, and what is 0 until very large numbers are reached, or always
        for offset, most in ((1, 2), (8, 0), (16, 0), (24, 0), (45, 0), (46, 0), (47, 0)):
            chunks = chunks[data[chunks + offset] <= most]
        candidates = [(position, ENTRY) for position in entries.tolist()] + [(position, CHUNK) for position in chunks.tolist()]
        text = self.data[low : high + len(STREAM_HEADER)].tobytes()
        for mark in _MARKS:
            at = text.find(mark)
            while 0 <= at < high - low:
                candidates.append((low + at, MARK))
                at = text.find(mark, at + 1)
        return sorted(candidates)

    def _read(self, offset: int, length: int) -> Bytes:
        """Return bytes at a position of the window, perhaps fewer; from the image if they go on after the window."""
        if offset + length <= len(self.data):
            return self.data[offset : offset + length]
        return self.image.read(self.base + offset, self.base + offset + length)

    def _add(self, start: int, end: int, at: int, kind: int, *values: int) -> None:
        """Add a unit; positions are those in the image."""
        self.rows.append((start, end, at, kind, *values))
        if values[-3] == PROVED:
            self.end = max(self.end, at if kind == CHUNK else end)

    # files

    def _mark(self, offset: int) -> None:
        start = self.base + offset
        for mark, size in _MARKS.items():
            if self.data[offset : offset + len(mark)].tobytes() == mark:
                size = size or self._segment(start)
                if size:
                    self._add(start, start + size, start, MARK, -1, -1, 0, 0, NO_PROOF, -1, -1)

    def _segment(self, start: int) -> int:
        """Prove the entries of a segment by its places. Return the bytes as far as its places go on from each other; 0: it has none."""
        head = self.image.read(start, start + segment.HEADER.size)
        if len(head) < segment.HEADER.size:
            return 0
        _, version, count = segment.HEADER.unpack(head.tobytes())
        if version not in segment.PLACES:
            return 0
        shape = segment.PLACES[version]
        begin = start + segment.HEADER.size
        size = count * shape.itemsize
        one = self.image.read(begin, begin + shape.itemsize)
        if len(one) < shape.itemsize or np.frombuffer(one.tobytes(), shape)["offset"][0] != segment.HEADER.size + size:
            return 0  # the entries begin right after the places
        raw = self.image.read(begin, begin + size)
        self.effort -= EFFORT * len(raw)
        places = np.frombuffer(raw.tobytes(), shape, len(raw) // shape.itemsize)
        stated = (places["length"] > 0) & (places["crc"] > 0) & (places["index"] < LARGEST_NUMBER) & (places["term"] < LARGEST_NUMBER)
        stated &= (places["offset"] < LARGEST_NUMBER) & (places["length"] <= LARGEST)
        known = np.empty(int(stated.sum()), _PLACE)
        for name in _PLACE.names or ():
            known[name] = places[name][stated]
        self.places.append(known)
        follows = places["offset"][1:] == places["offset"][:-1] + places["length"][:-1]
        run = 1 + (len(follows) if follows.all() else int(follows.argmin()))
        proved = 0
        for offset, index, term, length, crc in zip(
            *(places[name][stated].tolist() for name in ("offset", "index", "term", "length", "crc")), strict=True
        ):
            at = start + offset
            self.effort -= length
            if self.effort <= 0:
                self.untried = True
                break
            entry = self.image.read(at, at + length)
            if offset >= segment.HEADER.size and len(entry) == length and zlib.crc32(cast(bytes, entry)) == crc and at not in self.listed:
                proved += 1
                self.listed[at] = at + length
                self.rows.append((at, at + length, at, ENTRY, index, term, crc, self._messages(entry), PROVED, -1, -1))
        self.effort += EFFORT * len(raw) if proved else 0
        return segment.HEADER.size + run * shape.itemsize if proved else 0

    # entries

    def _record(self, offset: int) -> bool:
        """Find the record of a write-ahead log whose entry begins at a position; return whether there is one."""
        if offset < 24:
            return False
        checksum, length, index, term = wal.WORDS.unpack(self.data[offset - 24 : offset].tobytes())
        if not 2 <= length <= LARGEST or index >= LARGEST_NUMBER or term >= LARGEST_NUMBER or not checksum:
            return False
        if self.base + offset + length > self.image.size:
            return False
        data = self._read(offset - 16, 16 + length)
        if len(data) < 16 + length or zlib.adler32(cast(bytes, data)) != checksum:
            self.effort -= length
            return False
        head, uid, number = self._head(offset - 24)
        start, at = self.base + head, self.base + offset
        if uid and start // SECTOR != (at - 24) // SECTOR:
            uid, number = b"", -1
        known = self.uids.setdefault(uid, len(self.uids)) if uid else -1
        entry = data[16:]
        self._add(start, at + length, at, RECORD, index, term, zlib.crc32(cast(bytes, entry)), self._messages(entry), PROVED, known, number)
        return True

    def _head(self, offset: int) -> tuple[int, bytes, int]:
        """Return where the record begins whose checksum is at a position, and the UID and the number of its member, if it has them."""
        before = self.data[max(0, offset - 70) : offset].tobytes()
        stated = _UID.search(before)
        if stated is not None and len(stated[2]) == stated[1][0] and stated.start() >= 3:
            head = int.from_bytes(before[stated.start() - 3 : stated.start()], "big")
            if not head & wal.KNOWN_ID:
                return offset - len(before) + stated.start() - 3, stated[2], head & wal.NUMBER
        head = int.from_bytes(before[-3:], "big") if len(before) >= 3 else 0
        return (offset - 3, b"", head & wal.NUMBER) if head & wal.KNOWN_ID else (offset, b"", -1)

    def _entry(self, offset: int) -> None:
        """Find an entry of a segment: a command with a message, which a segment proves, or nothing."""
        at = self.base + offset
        if at in self.listed:
            self.end = max(self.end, self.listed[at])
            return
        if self.data[offset : offset + 10].tobytes().startswith(_COMMANDS):
            data = self.data
            end = terms.end(data, offset, len(data))
            if end < 0 and self.base + len(data) < self.image.size and self.effort >= LARGEST:
                self.effort -= min(LARGEST, self.image.size - at)
                data, offset = self.image.read(at, at + LARGEST), 0
                end = terms.end(data, 0, len(data))
            if end < 0:
                return
            entry = data[offset:end]
            if self._messages(entry):
                self._add(at, at + len(entry), at, ENTRY, -1, -1, zlib.crc32(cast(bytes, entry)), 1, NO_PROOF, -1, -1)

    def _messages(self, entry: Bytes) -> int:
        """Return how many messages an entry has: one or none."""
        row = np.zeros((1, raft_commands.COLUMNS), np.int64)
        raft_commands.commands(entry, np.zeros(1, np.int64), np.array([len(entry)]), row)
        kind = int(row[0, raft_commands.KIND])
        if kind != raft_commands.OTHER:
            return int(kind == raft_commands.PUBLISH)
        try:
            stored_message(entry.tobytes())
        except EtfError:
            return 0
        return 1

    # chunks

    def _chunk(self, offset: int) -> None:
        """Find a chunk whose data are proved."""
        head = self.data[offset : offset + CHUNK_HEAD]
        filter_size = int(head[44])
        records, number, epoch = (int.from_bytes(head[low:high].tobytes(), "big") for low, high in ((4, 8), (24, 32), (16, 24)))
        crc, size, trailer = (int.from_bytes(head[low : low + 4].tobytes(), "big") for low in (32, 36, 40))
        end = CHUNK_HEAD + filter_size + size
        start = self.base + offset
        if not 0 < size <= LARGEST or 0 < filter_size < 16 or start + end > self.image.size:
            return
        out = np.empty((stream_chunks.CHUNK_COLUMNS, 1), np.int64)
        data = self._read(offset, end)
        self.effort -= size
        count, _, _ = stream_chunks.walk(data, 0, len(data), out)
        if not count or out[stream_chunks.STATE, 0] != stream_chunks.INTACT:
            return
        self.effort += size
        kind = int(head[1])
        proof = PROVED if start // SECTOR == (start + PROVED_HEAD - 1) // SECTOR else CONTENT
        self._add(start, start + end + trailer, start + end, CHUNK, number, epoch, crc, 0 if kind else records, proof, -1, records)
        self.end = max(self.end, start + end)


# findings put together


def joined_units(parts: Sequence[Units], gaps: Sequence[Gap]) -> tuple[Longs, tuple[str, ...]]:
    """Return the units of a file in order, none over another, and the UIDs in them. gaps: where a unit may begin."""
    numbers: dict[bytes, int] = {}
    arrays = []
    for part in parts:
        units = part.units.copy()
        own = np.array([*(numbers.setdefault(uid, len(numbers)) for uid in part.uids), -1], np.int64)
        units[UID] = own[units[UID]]
        arrays.append(units)
    units = np.concatenate(arrays, axis=1) if arrays else np.empty((UNIT_ROWS, 0), np.int64)
    starts = np.array([gap.start for gap in gaps], np.int64)
    stops = np.array([gap.stop for gap in gaps], np.int64)
    gap = np.searchsorted(starts, units[START], "right") - 1
    units = units[:, (gap >= 0) & (units[START] < (stops[gap] if len(stops) else 0))]
    units = units[:, np.lexsort((-units[PROOF], units[START]))]
    rows: list[list[int]] = []
    for unit in units.T.tolist():
        while rows and rows[-1][END] > unit[START]:
            last = rows[-1]
            if last[KIND] == CHUNK and last[AT] <= unit[START]:
                last[END] = last[AT]  # what would be its trailer is something else
            elif last[PROOF] == NO_PROOF and unit[PROOF] != NO_PROOF:
                rows.pop()
            else:
                break
        if not rows or rows[-1][END] <= unit[START]:
            rows.append(unit)
    following = [unit[START] for unit in rows[1:]] + [-1]
    # the mark of a file alone shows nothing: what it begins with has to be there
    rows = [
        unit
        for unit, after in zip(rows, following, strict=False)
        if unit[KIND] != MARK or after == unit[END] or unit[END] - unit[START] > len(STREAM_HEADER)
    ]
    for unit in rows:
        if unit[KIND] == CHUNK and unit[END] > stops[np.searchsorted(starts, unit[START], "right") - 1]:
            unit[END] = unit[AT]
    _name_members(rows)
    _prove_chunks(rows)
    ordered = np.array(rows, np.int64).reshape(-1, UNIT_ROWS).T
    return np.ascontiguousarray(ordered), tuple(uid.decode("ascii") for uid in numbers)


def _name_members(units: list[list[int]]) -> None:
    """Give records the member that an earlier one of their run has stated for their number."""
    known: dict[int, tuple[int, int, bool]] = {}  # by number: member, its last index, whether nothing in doubt is between
    end = -1
    for unit in units:
        if unit[START] != end or unit[KIND] != RECORD:
            known.clear()
        end = unit[END]
        if unit[KIND] != RECORD:
            continue
        if unit[START] // SECTOR != (unit[AT] - 24) // SECTOR or not unit[START] % SECTOR:
            known = {number: (uid, last, False) for number, (uid, last, _) in known.items()}
        if unit[UID] >= 0:
            known[unit[NUMBER]] = (unit[UID], unit[INDEX], True)
        elif unit[NUMBER] in known:
            uid, last, sure = known.pop(unit[NUMBER])
            if sure or unit[INDEX] == last + 1:
                unit[UID] = uid
                known[unit[NUMBER]] = (uid, unit[INDEX], True)


def _prove_chunks(units: list[list[int]]) -> None:
    """Prove the numbers of chunks by the chunk before or after them."""
    for before, after in pairwise(units):
        if before[KIND] == after[KIND] == CHUNK and before[END] == after[START] and before[INDEX] + before[NUMBER] == after[INDEX]:
            before[PROOF] = after[PROOF] = PROVED


def settle(files: Sequence[tuple[str, Image, Longs, tuple[str, ...]]], places: Sequence[NDArray[np.void]]) -> list[FoundLogs]:
    """Return the units of all files, entries proved by the places of any segment, copies marked."""
    listed = {(length, crc): (index, term) for part in places for length, crc, index, term in part.tolist()}
    seen: dict[tuple[int, ...], set[str]] = {}  # members whose message was found; "" for an unknown one
    logs = []
    for name, image, units, uids in files:
        copies = np.zeros(units.shape[1], np.bool_)
        for row in np.flatnonzero(units[MESSAGES]).tolist():
            unit = units[:, row]
            if unit[KIND] == ENTRY and unit[PROOF] == NO_PROOF:
                where = listed.get((int(unit[END] - unit[AT]), int(unit[CRC])))
                if where is not None:
                    unit[INDEX], unit[TERM] = where
                    unit[PROOF] = PROVED
            if unit[PROOF] == PROVED:
                length = int(unit[AT] - unit[START] if unit[KIND] == CHUNK else unit[END] - unit[AT])
                members = seen.setdefault((int(unit[KIND] == CHUNK), length, *unit[[INDEX, TERM, CRC]].tolist()), set())
                member = uids[unit[UID]] if unit[UID] >= 0 else ""
                # two queues may hold the same entry: of one message that was published to both
                copies[row] = member in members or members == {""} or (not member and bool(members))
                members.add(member)
        logs.append(FoundLogs(name, image, units, uids, copies))
    return logs


def without(image: Image, gaps: Sequence[Gap], units: Longs) -> list[Gap]:
    """Return the gaps without the bytes of units."""
    left = []
    spans = list(zip(units[START].tolist(), units[END].tolist(), strict=True))
    at = 0
    for gap in gaps:
        start = gap.start
        while at < len(spans) and spans[at][1] <= start:
            at += 1
        following = at
        while following < len(spans) and spans[following][0] < gap.stop:
            low, high = spans[following]
            if low > start:
                left.append(_bounded(image, gap, start, low))
            start = max(start, high)
            following += 1
        if start < gap.stop:
            left.append(gap if start == gap.start else _bounded(image, gap, start, gap.stop))
    return left


def _bounded(image: Image, gap: Gap, start: int, stop: int) -> Gap:
    """Return a part of a gap, with the bounds of what is not zero there."""
    low, high = max(start, gap.low), min(stop, gap.high)
    while 0 <= low < high:
        first, _ = nonzero_bounds(image.read(low, min(low + BLOCK, high)))
        if first >= 0:
            low += first
            break
        low += BLOCK
    if not 0 <= low < high:
        return Gap(start, -1, -1, stop)
    while True:
        begin = max(low, high - BLOCK)
        _, last = nonzero_bounds(image.read(begin, high))
        if last >= 0 or begin == low:
            return Gap(start, low, begin + max(1, last), stop)
        high = begin
