r"""Index of a version 2 queue, `<k>.qi`: one entry of fixed size for each sequence id, M per file (4096 by default).

A header of 64 bytes, the same in `.qs`, then 32 bytes for each sequence id; the file ends after the last one written.

    offset  size  header                            offset  size  entry
         0     4  RCQI (in .qs RCQS)                     0     1  status: 1 = a message, 0 = nothing, or acknowledged
         4     1  version, 2                             1     1  bit 0: persistent
         5     8  first sequence id of the file          2     1  0
        13     8  first sequence id of the next          3     1  location: 1 = shared store, 2 = `.qs`, 0 = memory only
        21    43  0                                      4    16  message id; or position in `.qs`, u32 size, u32 0
                                                        20     4  size: bytes of the body
                                                        24     8  expiry: microseconds since 1970, 0 = none

    >>> raw = header(0, 4096) + stored_entry(64, 10, size=3) + shared_entry(b"0123456789abcdef", size=9000, persistent=False)
    >>> found = read_index(np.frombuffer(raw, np.uint8), 0)
    >>> found.first, found.count, found.rows["location"].tolist(), found.rows["size"].tolist()
    (0, 4096, [2, 1], [3, 9000])

Sequence ids follow from the header, not from the file's number.

Format: docs/formats/rabbitmq.md, sections 12.1 and 12.2.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes, ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.kernels.rabbitmq import queue_files
from mqstore.rabbitmq.format.index_v1 import ENTRY, HIDDEN, IN_QUEUE_STORE, IN_STORE, PERSISTENT, SP, SPDA, IndexSegment
from mqstore.rabbitmq.format.layout import bytes_of, own_entries
from mqstore.rabbitmq.format.names import is_file_number
from mqstore.table.formatting import agreeing

ENTRY_COUNT = 4096
ENTRY_SIZE = 32
SHARED, QUEUE_STORE = 1, 2
_HEADER = struct.Struct(">4sBQQ43s")
_STORED = struct.Struct(">BBBBQIIIQ")
SHARED_ENTRY = struct.Struct(">BBBB16sIQ")
_MAX_COUNT = 1 << 22  # a header with more entries is implausible

ROW = np.dtype(
    [
        ("status", "u1"),
        ("flags", "u1"),
        ("zero", "u1"),
        ("location", "u1"),
        ("hi", ">i8"),
        ("lo", ">i8"),
        ("size", ">u4"),
        ("expiry", ">i8"),
    ]
)


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One `.qi`. first: its first sequence id; count: M; rows: its entries; valid_header: magic and version are right.

    partial: bytes of an incomplete entry at the end. crash: why the broker's queue process would crash on it.
    """

    first: int
    count: int
    rows: NDArray[np.void]
    valid_header: bool
    partial: int = 0
    crash: str | None = None
    findings: tuple[Damage, ...] = ()


def read_index(data: Bytes, number: int, file: str = "0.qi", count: int = ENTRY_COUNT) -> IndexFile:
    """Return the entries of an index file. number: k of its name. count: M to assume if the header is damaged."""
    findings: list[Damage] = []
    first, valid_header = number * count, False
    if len(data) >= HEADER_SIZE:
        magic, version, low, high, _ = _HEADER.unpack(data[:HEADER_SIZE].tobytes())
        valid_header = magic == b"RCQI" and version == 2
        if 0 < high - low <= _MAX_COUNT and low == number * (high - low):
            first, count = low, high - low
        elif valid_header:
            detail = f"the header names sequence ids {low} to {high}, which is not file {number}"
            findings.append(Damage(file, 5, 16, Kind.BAD_QUEUE_FILE, detail))
    if not valid_header:
        why = "the header is not that of a version 2 index; the broker deletes this file and its .qs after a crash"
        findings.append(Damage(file, 0, min(len(data), HEADER_SIZE), Kind.BAD_QUEUE_FILE, why))
    body = data[HEADER_SIZE:]
    whole = min(len(body) // ENTRY_SIZE, count)
    rows = body[: whole * ENTRY_SIZE].view(ROW)
    partial = len(body) % ENTRY_SIZE if whole < count else 0
    crash = None
    if partial:
        left = body[whole * ENTRY_SIZE :]
        findings.append(
            Damage(file, HEADER_SIZE + whole * ENTRY_SIZE, partial, Kind.TORN_RECORD, "the last entry of the index is incomplete")
        )
        if left[0] == 1 and (partial < 2 or left[1] & 1):
            crash = f"{file} ends inside the entry of a persistent message; the broker's queue process crashes on it at every start"
    strange = np.flatnonzero(rows["status"] > 1)
    if len(strange):
        offset = HEADER_SIZE + int(strange[0]) * ENTRY_SIZE
        detail = f"{agreeing(len(strange), 'entry', 'has', 'have')} a status that is neither 0 nor 1"
        findings.append(Damage(file, offset, ENTRY_SIZE, Kind.BAD_QUEUE_FILE, detail))
    return IndexFile(first, count, rows, valid_header, partial, crash, tuple(findings))


class QueueIndexV2:
    """The version 2 files of one queue directory, read file by file. place: the directory, relative to the root."""

    version = 2

    def __init__(self, directory: ReadOnlyDirectory, place: str) -> None:
        self.directory = directory
        self.place = place
        names = [entry.name for entry in own_entries(directory, place) if entry.is_file]
        self._index = {int(stem) for stem, ending in map(_split, names) if ending == "qi" and is_file_number(stem)}
        self._stores = {int(stem) for stem, ending in map(_split, names) if ending == "qs" and is_file_number(stem)}

    @property
    def exists(self) -> bool:
        return bool(self._index or self._stores)

    @property
    def numbers(self) -> list[int]:
        """Numbers of the index files, ascending."""
        return sorted(self._index)

    @property
    def orphan_stores(self) -> list[int]:
        """Numbers of `.qs` files without their `.qi`."""
        return sorted(self._stores - self._index)

    @cached_property
    def count(self) -> int:
        """M, from the first valid header."""
        for number in self.numbers[:64]:
            head = self.directory.read(self.index_file(number), HEADER_SIZE) or b""
            if len(head) == HEADER_SIZE:
                magic, version, low, high, _ = _HEADER.unpack(head)
                if magic == b"RCQI" and version == 2 and 0 < high - low <= _MAX_COUNT:
                    return int(high - low)
        return ENTRY_COUNT

    def index_file(self, number: int) -> str:
        return f"{self.place}/{number}.qi"

    def store_file(self, number: int) -> str:
        return f"{self.place}/{number}.qs"

    def store_data(self, number: int) -> Bytes:
        return bytes_of(self.directory, self.store_file(number))[0] if number in self._stores else np.empty(0, np.uint8)

    def lacks_store(self, number: int) -> bool:
        """Whether there is no `.qs` beside a `.qi`."""
        return number not in self._stores

    def store_range(self, number: int) -> tuple[int, int]:
        """Return the first sequence id and M of a `.qs`, by its header, if that is one for its number."""
        head = self.store_data(number)[:HEADER_SIZE].tobytes()
        if len(head) == HEADER_SIZE:
            magic, version, low, high, _ = _HEADER.unpack(head)
            if magic == b"RCQS" and version == 2 and 0 < high - low <= _MAX_COUNT and low == number * (high - low):
                return int(low), int(high - low)
        return number * self.count, self.count

    def segment(self, number: int, *, dirty: bool) -> IndexSegment:
        """Return the entries of a file. dirty: `seen` excludes entries that the broker discards after a crash because of this file.

        A crash leaves transient messages that were only begun to be written; they are not findings then.
        """
        name = self.index_file(number)
        data, unreadable = bytes_of(self.directory, name)
        index = read_index(data, number, name, self.count)
        store = self.store_data(number)
        rows = index.rows
        live = rows["status"] != 0
        # an acknowledgement during recovery clears only the status
        present = live | (rows["location"] != 0)
        places = np.flatnonzero(present)
        rows = rows[places]
        entries = np.zeros(len(places), ENTRY)
        entries["seq"] = places + index.first
        entries["record"] = places * ENTRY_SIZE + HEADER_SIZE
        for field in ("hi", "lo", "expiry", "size"):
            entries[field] = rows[field]
        entries["flags"] = np.where(rows["flags"] & 1, PERSISTENT, 0)
        entries["state"] = np.where(live[places], SP, SPDA)
        in_store = rows["location"] == QUEUE_STORE
        entries["place"] = np.where(in_store, IN_QUEUE_STORE, IN_STORE)
        at, size = entries["hi"][in_store], (entries["lo"][in_store] >> 32) & 0xFFFF_FFFF
        entries["at"][in_store] = at + ENTRY_HEADER
        entries["length"][in_store] = size
        entries["hi"][in_store] = 0
        entries["lo"][in_store] = 0
        valid = rows["location"] == SHARED
        valid[in_store] = valid_entries(store, at, size)
        findings = [
            *unreadable,
            *index.findings,
            *store_header_damage(store, self.store_file(number)),
            *self._entry_damage(number, rows, places, live[places] & ~valid & (((rows["flags"] & 1) != 0) | (not dirty))),
        ]
        seen = live[places] & (rows["status"] == 1)
        seen_in_store = seen & in_store
        if dirty:
            seen &= valid & ((entries["flags"] & PERSISTENT) != 0) & index.valid_header
        entries["seen"] = np.where(seen, SP, 0)
        entries["flags"] |= np.where(valid, 0, HIDDEN).astype(np.uint8)
        crashes: tuple[str, ...] = (index.crash,) if index.crash else ()
        # it is read with the entries before it, whatever it is; after an unclean stop only up to the last entry that is left
        if index.partial and (not dirty or (not index.crash and bool(seen.any()) and self._goes_on_after(number))):
            crashes = (f"{name} ends inside an entry; the broker's queue process crashes on it whenever it reads on",)
        if self.lacks_store(number) and (seen_in_store & ((rows["flags"] & 1) != 0)).any():
            crashes += (f"{number}.qs is missing, and {name} has messages in it; the broker's queue process crashes on it at every start",)
        empty = np.empty(0, np.uint8)
        return IndexSegment(number, entries, (empty, empty, store), (name, "", self.store_file(number)), crashes, tuple(findings))

    def _goes_on_after(self, number: int) -> bool:
        """Return whether there are messages in later segments after an unclean stop."""
        return any(self._has_messages(later) for later in self.numbers if later > number)

    def _has_messages(self, number: int) -> bool:
        index = read_index(bytes_of(self.directory, self.index_file(number))[0], number, self.index_file(number), self.count)
        rows = index.rows[(index.rows["status"] == 1) & ((index.rows["flags"] & 1) != 0)]
        own = rows[rows["location"] == QUEUE_STORE]
        stored = valid_entries(self.store_data(number), own["hi"].astype(np.int64), own["lo"].astype(np.int64) >> 32 & 0xFFFF_FFFF)
        return bool(index.valid_header) and (bool((rows["location"] == SHARED).any()) or bool(stored.any()))

    def _entry_damage(self, number: int, rows: NDArray[np.void], places: NDArray[np.intp], bad: NDArray[np.bool_]) -> list[Damage]:
        damage = []
        for k in np.flatnonzero(bad).tolist():
            offset = HEADER_SIZE + int(places[k]) * ENTRY_SIZE
            if rows["location"][k] == QUEUE_STORE:
                why = f"the entry does not point to a complete, valid message in {number}.qs"
            else:
                why = f"the entry has location {rows['location'][k]}: its message was never on disk"
            damage.append(Damage(self.index_file(number), offset, ENTRY_SIZE, Kind.BAD_QUEUE_FILE, why, 1))
        return damage

    def orphans(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return position and size of the entries of a `.qs` that no entry of its `.qi` points to."""
        at, size, _ = queue_store_entries(self.store_data(number))
        if number in self._index:
            known = self.segment(number, dirty=False).entries
            used = known["at"][known["place"] == IN_QUEUE_STORE] - ENTRY_HEADER
            left = ~np.isin(at, used)
            return at[left], size[left]
        return at, size


def header(first: int, count: int, *, store: bool = False) -> bytes:
    """Return the header of an index file, or of a queue store."""
    return _HEADER.pack(b"RCQS" if store else b"RCQI", 2, first, first + count, bytes(43))


def stored_entry(at: int, length: int, *, size: int, expiry: int = 0, persistent: bool = True) -> bytes:
    """Return the entry of a message in the queue store. at, length: position and Z of its entry there. size: bytes of the body."""
    return _STORED.pack(1, persistent, 0, QUEUE_STORE, at, length, 0, size, expiry)


def shared_entry(message_id: bytes, *, size: int, expiry: int = 0, persistent: bool = True) -> bytes:
    """Return the entry of a message in the shared store."""
    return SHARED_ENTRY.pack(1, persistent, 0, SHARED, message_id, size, expiry)


def _split(name: str) -> tuple[str, str]:
    stem, _, ending = name.rpartition(".")
    return stem, ending


# ---- queue store of version 2, `<k>.qs`: messages of one queue that are too small for the shared store, in publish order
#
# A header of 64 bytes (as above, with the magic RCQS), then entries without gaps:
#
#     offset  size  field
#          0     4  Z: bytes of the stored message
#          4     1  bit 0: the checksum is valid
#          5     2  low 16 bits of the CRC-32 of the message
#          7     1  0
#          8     Z  stored message
#
# Acknowledged messages stay until the file is deleted, so a `.qs` without its `.qi` has more messages than the queue had.
#
# Format: docs/formats/rabbitmq.md, section 12.3.

HEADER_SIZE = 64
_STORE_ENTRY = struct.Struct(">IBHB")
ENTRY_HEADER = _STORE_ENTRY.size


def valid_entries(data: Bytes, at: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each entry at `at` whether it is complete, has this size, and matches its checksum if it has one."""
    ok = np.zeros(len(at), np.uint8)
    queue_files.sound_entries(data, at, size, ok)
    return ok.astype(np.bool_)


def store_header_damage(data: Bytes, file: str) -> list[Damage]:
    """Return the finding for a header that is not of version 2; a broker does not check it."""
    if not len(data) or data[:5].tobytes() == b"RCQS\x02":
        return []
    why = "the header is not that of a version 2 store; its messages are accepted if their checksums match"
    return [Damage(file, 0, min(len(data), HEADER_SIZE), Kind.BAD_QUEUE_FILE, why)]


def queue_store_entries(data: Bytes) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return position and size of each entry, found without an index, and where the entries end."""
    position, rows = HEADER_SIZE, []
    while position + ENTRY_HEADER <= len(data):
        size = int.from_bytes(data[position : position + 4].tobytes(), "big")
        if not size or size > len(data) - position - ENTRY_HEADER:
            break
        rows.append((position, size))
        position += ENTRY_HEADER + size
    table = np.array(rows, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1], min(position, len(data))


def queue_store_entry(stored: bytes, *, checked: bool = True) -> bytes:
    r"""Return the entry of a stored message. checked: with a checksum, as the broker does by default.

    >>> raw = queue_store_entry(b"\x83j")
    >>> raw.hex()
    '0000000201513100836a'
    >>> valid_entries(np.frombuffer(raw, np.uint8), np.array([0, 0]), np.array([2, 3]))
    array([ True, False])
    """
    return _STORE_ENTRY.pack(len(stored), checked, zlib.crc32(stored) & 0xFFFF if checked else 0, 0) + stored
