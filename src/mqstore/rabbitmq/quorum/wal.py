r"""Write-ahead log of Ra, shared by all queues of a node: `quorum/<node>/<number>.wal`, 8 or 16 digits.

    "RAWA", version u8 = 1, then records:

    u24   bit 23: the member's entries from this index on are replaced; bit 22: the id was given before in this file; the rest: its number
    u16, UID of the member                         only if the id is given
    u32   Adler-32 over index, term and entry; 0: not computed
    u32   length of the entry
    u64   index       u64   term       the entry, in the External Term Format

    >>> entry = b"\x83j"
    >>> body = bytes(7) + b"\x05" + bytes(7) + b"\x01" + entry
    >>> record = b"\0\0\0\0\x01U" + zlib.adler32(body).to_bytes(4, "big") + len(entry).to_bytes(4, "big") + body
    >>> log = read_wal(np.frombuffer(b"RAWA\x01" + record + bytes(64), np.uint8), "1.wal")
    >>> log.uids, log.records["index"].tolist(), log.records["position"].tolist(), log.damage
    ((b'U',), [5], [35], ())

Entries are returned by position; their bytes stay in the file. An incomplete or damaged last record is what a kill leaves: it is dropped,
as the node does, and reported. After damage in the middle reading goes on at the next record of a known member whose checksum fits.
Checksums do not cover the number of the member: a record that does not follow the others of its member, which do, is left out and reported.

Format: docs/formats/rabbitmq-quorum.md, section 2.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.findings import Damage, Kind
from mqstore.kernels.rabbitmq import wal_records

MAGIC, VERSION = b"RAWA", 1
HEADER = 5
BEGINNING = MAGIC + bytes((VERSION,))
TRUNCATES, KNOWN_ID, NUMBER = 1 << 23, 1 << 22, (1 << 22) - 1
TERM_START = 131  # the first byte of an entry

# one row a record. uid: number in `uids`; start: of the record, position, length: of the entry in the file; valid: its checksum fits
RECORD = np.dtype(
    [
        ("uid", np.int64),
        ("index", np.int64),
        ("term", np.int64),
        ("start", np.int64),
        ("position", np.int64),
        ("length", np.int64),
        ("truncates", np.int64),
        ("valid", np.int64),
    ]
)
WORDS = struct.Struct(">IIQQ")
_MAX_SIGNED = (1 << 63) - 1
# how often the search for records may checksum each byte of a file, on average, before it gives up
PATIENCE = 16
MAX_FINDINGS = 100
_SEARCHED = 1 << 20
_AFTER_LAST = 13  # bytes after a damaged record, of which none may be set for a node to take it for the last one
_SHORTEST = 27  # bytes of a record before its entry, if the id was given before
_RECORDS = 1 << 14  # records at once


@dataclass(frozen=True, slots=True)
class WalRecords:
    """The records of a file, in file order. torn: the position where a last record begins that the node drops; -1: there is none.

    wrong_last: that record is all there, with a wrong checksum: 3.8 does not start with it.
    stops_at: position of the first damage with which no node starts, -1 if there is none. 0: the file does not begin as a write-ahead log,
    and its records are read.
    ends_at: position of damage that is the end of the file for a node, which drops the records after it; -1 if there is none.
    rows: those of each member, in file order.
    """

    uids: tuple[bytes, ...]
    records: NDArray[np.void]
    damage: tuple[Damage, ...] = ()
    torn: int = -1
    stops_at: int = -1
    wrong_last: bool = False
    ends_at: int = -1
    rows: Mapping[bytes, NDArray[np.intp]] = field(default_factory=dict)

    def of(self, uid: str) -> NDArray[np.void]:
        """Return the records of a member."""
        return self.records[self.rows.get(uid.encode("latin-1", "replace"), slice(0))]


def read_wal(data: Bytes, file: str, known: Iterable[bytes] = ()) -> WalRecords:
    """Read a write-ahead log. file: its name in findings. known: UIDs of members, by which records after damage are found.

    An empty file is not damaged.
    """
    empty = np.zeros(0, RECORD)
    if not len(data):
        return WalRecords((), empty)
    if data[:HEADER].tobytes() == BEGINNING:
        return _Walk(data, file, known).run()
    if len(data) < HEADER:
        detail = "The file ends within its header: the node does not start with it."
        return WalRecords((), empty, (_damage(file, 0, len(data), Kind.BAD_WAL, detail),), -1, 0)
    detail = "The file does not begin as a write-ahead log of Ra, version 1."
    header = _damage(file, 0, min(HEADER, len(data)), Kind.BAD_WAL, detail)
    read = _Walk(data, file, known).run()
    if not len(read.records):  # another file
        return WalRecords((), empty, (header,), -1, 0)
    return replace(read, damage=(header, *read.damage), stops_at=0)


class _Walk:
    """One walk over a file."""

    def __init__(self, data: Bytes, file: str, known: Iterable[bytes]) -> None:
        self.known = set(known)
        self.data = data
        self.view = memoryview(cast(bytes, data))
        self.file = file
        self.parts: list[NDArray[np.int64]] = []
        self.numbers: dict[int, int] = {}  # number in the file -> number in uids
        self.members = np.full(1, -1, np.int64)  # the same, for the kernel
        self.uids: dict[bytes, int] = {}
        self.damage: list[Damage] = []
        self.torn = self.stops_at = self.ends_at = -1
        self.wrong_last = False
        self.patience = PATIENCE * len(data) + (1 << 20)

    def run(self) -> WalRecords:
        size, at = len(self.data), HEADER
        out = np.empty((_RECORDS, wal_records.RECORD_COLUMNS), np.int64)
        while at < size:
            count, at = wal_records.walk(self.data, at, self.members, out)
            if count:
                self.parts.append(out[:count].copy())
                continue
            following = self._record(at)
            if following > at:
                at = following
                continue
            if not self._is_written(at):
                break  # space that was reserved and never written
            at = self._after_damage(at)
        records = np.concatenate([np.zeros((0, wal_records.RECORD_COLUMNS), np.int64), *self.parts]).view(RECORD)[:, 0]
        for row in (strangers := _strangers(records, _by_member(records)))[:MAX_FINDINGS]:
            detail = f"A record with index {records['index'][row]} is between two of its member that follow each other: it is another's."
            self.damage.append(_damage(self.file, int(records["start"][row]), 3, Kind.BAD_WAL, detail))
        records = np.delete(records, strangers)
        rows = dict(zip(self.uids, _by_member(records), strict=False))
        return WalRecords(tuple(self.uids), records, tuple(self.damage), self.torn, self.stops_at, self.wrong_last, self.ends_at, rows)

    def _add(self, *row: int) -> None:
        self.parts.append(np.array([row], np.int64))

    def _record(self, at: int) -> int:
        """Read the record at a position, which the kernel does not read. Return the position after it, or -1."""
        view, size = self.view, len(self.data)
        start = at
        if at + 3 > size:
            return -1
        head = view[at] << 16 | view[at + 1] << 8 | view[at + 2]
        at += 3
        number = head & NUMBER
        uid = b""
        if not head & KNOWN_ID:
            if at + 2 > size:
                return -1
            length = view[at] << 8 | view[at + 1]
            at += 2 + length
            uid = bytes(view[at - length : at])
            if not length or len(uid) < length:
                return -1
        elif number not in self.numbers:
            return -1
        if at + 24 > size:
            return -1
        checksum, length, index, term = WORDS.unpack_from(view, at)
        position = at + 24
        end: int = position + length
        if end > size or index > _MAX_SIGNED or term > _MAX_SIGNED:
            return -1
        if checksum and zlib.adler32(view[at + 8 : end]) != checksum:
            return -1
        if not checksum and (not length or view[position] != TERM_START):
            return -1
        if uid:
            self._register(number, uid)
        self._add(self.numbers[number], index, term, start, position, length, 1 if head & TRUNCATES else 0, 1)
        return end

    def _register(self, number: int, uid: bytes) -> None:
        self.numbers[number] = self.uids.setdefault(uid, len(self.uids))
        if number >= len(self.members):
            self.members = np.concatenate([self.members, np.full(number + 1, -1, np.int64)])
        self.members[number] = self.numbers[number]

    def _is_written(self, at: int) -> bool:
        step = 1 << 20
        return any(self.data[low : low + step].any() for low in range(at, len(self.data), step))

    def _after_damage(self, at: int) -> int:
        """Report the damage at a position and return where reading goes on."""
        self._named_by_damage(at)
        following = self._next_record(at)
        rest = len(self.data) if following < 0 else following
        if following < 0 and self.patience < 0:
            self.stops_at = at if self.stops_at < 0 else self.stops_at
            kind, detail = Kind.BAD_WAL, "Too many bytes look like records without being any; the rest was not searched."
        elif following < 0 and self.ends_at < 0 and self._goes_on(self._wrong_for_a_node(at, rest)[1]):
            self.stops_at = at if self.stops_at < 0 else self.stops_at
            kind, detail = Kind.BAD_WAL, "A record is damaged, and so is what follows it: the node does not start with it."
        elif following < 0:
            self.torn, self.wrong_last = at, self.ends_at < 0 <= self._wrong_for_a_node(at, rest)[1]
            kind, detail = Kind.TORN_RECORD, "The last record is incomplete or damaged; the node drops it without a word."
        else:
            if self.stops_at < 0 and self.ends_at < 0:
                last, end = self._wrong_for_a_node(at, following)
                self.stops_at, self.ends_at = (-1, at) if end < 0 and last < following else (at, -1)
            self._damaged_record(at, following)
            does = "takes it for the end, and drops what follows" if self.ends_at >= 0 else "does not start with it"
            kind, detail = Kind.BAD_WAL, f"A record in the middle is damaged: the node {does}. The records after it were read."
        if len(self.damage) < MAX_FINDINGS:
            self.damage.append(_damage(self.file, at, rest - at, kind, detail))
        return rest

    def _wrong_for_a_node(self, at: int, stop: int) -> tuple[int, int]:
        """Return start and end of the first record from here up to stop in which a node finds a wrong checksum.

        The end is -1 if it finds none: then what begins at the start is longer than the file, which ends it for a node, or is at stop.
        A record of a number that it does not know it passes over.
        """
        view, size = self.view, len(self.data)
        while at < stop and at + 5 <= size:
            head = view[at] << 16 | view[at + 1] << 8 | view[at + 2]
            body = at + 3 if head & KNOWN_ID else at + 5 + (view[at + 3] << 8 | view[at + 4])
            if body + WORDS.size > size:
                break
            checksum, length, _, _ = WORDS.unpack_from(view, body)
            end: int = body + WORDS.size + length
            if end > size or not (head or checksum or length):
                break
            is_read = not head & KNOWN_ID or head & NUMBER in self.numbers
            if is_read and checksum and zlib.adler32(view[body + 8 : end]) != checksum:
                return at, end
            at = end
        return at, -1

    def _goes_on(self, end: int) -> bool:
        """Return whether a node does not take a record that ends here for the last one; -1: it ends nowhere."""
        return end >= 0 and end + _AFTER_LAST <= len(self.data) and bool(self.data[end : end + _AFTER_LAST].any())

    def _named_by_damage(self, at: int) -> bool:
        """Take over the id that a damaged record gives, if that is a known UID: later records name it by its number only.

        Return whether it is new.
        """
        head = self.view[at : at + 5].tobytes()
        stated, length = int.from_bytes(head[:3], "big"), int.from_bytes(head[3:], "big")
        number, uid = stated & NUMBER, self.view[at + 5 : at + 5 + length].tobytes()
        if stated & KNOWN_ID or uid not in self.known or number in self.numbers:
            return False
        self._register(number, uid)
        return True

    def _damaged_record(self, at: int, end: int) -> None:
        """Note an entry whose checksum is wrong but whose lengths lead exactly to the next record: its index is known."""
        view = self.view
        head = view[at] << 16 | view[at + 1] << 8 | view[at + 2] if at + 3 <= end else 0
        number = self.numbers.get(head & NUMBER)
        if not head & KNOWN_ID or number is None or at + 27 > end:
            return
        _, length, index, term = WORDS.unpack_from(view, at + 3)
        if at + 27 + length == end and index <= _MAX_SIGNED and term <= _MAX_SIGNED:
            self._add(number, index, term, at, at + 27, length, 0, 0)

    def _next_record(self, at: int) -> int:
        """Return the position of the next record of a known member with a checksum that fits, or -1."""
        size = len(self.data)
        for low in range(at + 1, size - _SHORTEST, _SEARCHED):
            high = min(low + _SEARCHED, size - _SHORTEST)
            named = (place for uid in {*self.uids, *self.known} for place in self._named(uid, low, high))
            for place in sorted({*_candidates(self.data, low, high, max(self.numbers, default=0)), *named}):
                if self._fits(place):
                    return place
                if self.patience < 0:
                    return -1
                if self._named_by_damage(place):
                    return self._next_record(place)
        return -1

    def _named(self, uid: bytes, low: int, high: int) -> list[int]:
        """Return the positions low..high-1 of records that give this UID."""
        mark = len(uid).to_bytes(2, "big") + uid
        text = self.data[low : high + 3 + len(mark)].tobytes()
        places: list[int] = []
        place = text.find(mark, 3)
        while place >= 0:
            places.append(low + place - 3)
            place = text.find(mark, place + 1)
        return [place for place in places if place < high]

    def _fits(self, at: int) -> bool:
        view, size = self.view, len(self.data)
        head = view[at] << 16 | view[at + 1] << 8 | view[at + 2]
        body = at + 3 if head & KNOWN_ID else at + 5 + (view[at + 3] << 8 | view[at + 4])
        if body + 24 > size or (head & KNOWN_ID and head & NUMBER not in self.numbers):
            return False
        checksum, length, _, _ = WORDS.unpack_from(view, body)
        end = body + 24 + length
        if end > size or not checksum or self.patience < 0:
            return False
        self.patience -= length + 16
        return bool(zlib.adler32(view[body + 8 : end]) == checksum)


def _by_member(records: NDArray[np.void]) -> list[NDArray[np.intp]]:
    """Return the rows of each member."""
    order = np.argsort(records["uid"], kind="stable")
    members = np.arange(1, records["uid"].max(initial=0) + 1)
    return np.split(order, np.searchsorted(records["uid"][order], members))


def _strangers(records: NDArray[np.void], members: Iterable[NDArray[np.intp]]) -> list[int]:
    """Return the rows that are of another member than they state: checksums do not cover the number of the member.

    The records of a member before and after such a one have indexes that follow each other.
    """
    strays: list[int] = []
    for rows in members:
        index = records["index"][rows]
        before, own, after = index[:-2], index[1:-1], index[2:]
        strange = (after == before + 1) & (own != before) & (own != after) & (records["truncates"][rows[1:-1]] == 0)
        strays += rows[1:-1][strange].tolist()
    return sorted(strays)


def _candidates(data: Bytes, low: int, high: int, highest: int) -> list[int]:
    """Return the positions low..high-1 where a record of a member named before may begin: its flags, its number, how its entry begins."""
    places = np.flatnonzero((data[low:high] & 0x40 != 0) & (data[low + _SHORTEST : high + _SHORTEST] == TERM_START)) + low
    head = data[places].astype(np.int64) << 16 | data[places + 1].astype(np.int64) << 8 | data[places + 2].astype(np.int64)
    found: list[int] = places[head & NUMBER <= highest].tolist()
    return found


def _damage(file: str, offset: int, length: int, kind: Kind, detail: str) -> Damage:
    return Damage(file, offset, length, kind, detail)
