r"""The files of Ra, RabbitMQ's Raft library, as far as one member on one node is read from them.

    <system>/<n>.wal               "RAWA", version u8, then records of all members that share the system
    <system>/<UID>/<n>.segment     "RASG", version u16, number of places u16, places of 32 bytes, data: older entries of one member
    <system>/<UID>/snapshots/…/snapshot.dat     "RASN", version u8, CRC-32 of what follows, u32 length of meta data, meta data, state

A record of a write-ahead log:

    u24   bit 23: entries from this index on are replaced; bit 22: the id was already given; the rest is a number for it
    u16, id                                          only if the id is given
    u32   Adler-32 of what follows the length        u32   length of the entry
    u64   index       u64   term       the entry, in the External Term Format

A place of a segment: index u64, term u64, offset u64, length u32, CRC-32 of the entry. Version 1 has an offset of 32 bits.

    >>> entry = b"\x83j"
    >>> body = bytes(7) + b"\x05" + bytes(7) + b"\x01" + entry
    >>> record = b"\0\0\0\0\x01U" + zlib.adler32(body).to_bytes(4, "big") + len(entry).to_bytes(4, "big") + body
    >>> [(item.uid, item.index, item.entry) for item in write_ahead_log(b"RAWA\x01" + record, "1.wal").entries]
    [(b'U', 5, b'\x83j')]

What follows damage in a write-ahead log is not read: lengths lead from one record to the next.

Format: docs/formats/rabbitmq.md, section 11.1.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from mqstore.findings import Damage, Kind
from mqstore.rabbitmq.erlang.etf import EtfError, Term, decode

WAL, SEGMENT, SNAPSHOT = b"RAWA", b"RASG", b"RASN"
TRUNCATES, KNOWN_ID, NUMBER = 1 << 23, 1 << 22, (1 << 22) - 1
_WORDS = struct.Struct(">II")
_INDEX_TERM = struct.Struct(">QQ")
_PLACES = {1: struct.Struct(">QQIII"), 2: struct.Struct(">QQQII")}


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry. uid: of the member, empty in a segment. truncates: entries of higher indexes are replaced by what follows."""

    uid: bytes
    index: int
    term: int
    truncates: bool
    entry: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class RaftFile:
    """The entries of a file, and what could not be read."""

    entries: tuple[LogEntry, ...]
    damage: tuple[Damage, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of the machine. index: of the last entry in it."""

    index: int
    state: Term


def write_ahead_log(data: bytes, file: str) -> RaftFile:
    """Read a write-ahead log. An incomplete record at its end is what a kill leaves behind, and a finding as well."""
    if not data:
        return RaftFile(())
    if data[:4] != WAL or len(data) < 5:
        return RaftFile((), (_damage(file, 0, min(5, len(data)), "The file is not a write-ahead log of Ra."),))
    entries: list[LogEntry] = []
    uids: dict[int, bytes] = {}
    at = 5
    while at < len(data):
        start = at
        head = int.from_bytes(data[at : at + 3], "big")
        at += 3
        number = head & NUMBER
        if not head & KNOWN_ID:
            length = int.from_bytes(data[at : at + 2], "big")
            uids[number] = data[at + 2 : at + 2 + length]
            at += 2 + length
        if at + 8 > len(data):
            return _cut(entries, file, start, data)
        checksum, length = _WORDS.unpack_from(data, at)
        at += 8
        body = data[at : at + 16 + length]
        at += 16 + length
        if at > len(data) or zlib.adler32(body) != checksum or number not in uids:
            return _cut(entries, file, start, data)
        index, term = _INDEX_TERM.unpack_from(body)
        entries.append(LogEntry(uids[number], index, term, bool(head & TRUNCATES), body[16:], start))
    return RaftFile(tuple(entries))


def _cut(entries: list[LogEntry], file: str, start: int, data: bytes) -> RaftFile:
    rest = data[start:]
    if not any(rest):
        return RaftFile(tuple(entries))  # space that was reserved and never written
    return RaftFile(tuple(entries), (_damage(file, start, len(rest), "A record is cut or damaged; what follows it is not read."),))


def segment(data: bytes, file: str) -> RaftFile:
    """Read a segment. Entries with a wrong checksum are findings."""
    version = int.from_bytes(data[4:6], "big")
    if data[:4] != SEGMENT or version not in _PLACES:
        return RaftFile((), (_damage(file, 0, min(8, len(data)), "The file is not a segment of a Raft log."),))
    shape = _PLACES[version]
    entries, damage = [], []
    for number in range(int.from_bytes(data[6:8], "big")):
        at = 8 + number * shape.size
        if at + shape.size > len(data):
            damage.append(_damage(file, at, 0, "The file ends within its list of entries."))
            break
        index, term, offset, length, checksum = shape.unpack_from(data, at)
        if not offset:
            break
        entry = data[offset : offset + length]
        if len(entry) != length or zlib.crc32(entry) != checksum:
            damage.append(_damage(file, at, shape.size, f"Entry {index} of the log is damaged or not in the file."))
            continue
        entries.append(LogEntry(b"", index, term, False, entry, at))
    return RaftFile(tuple(entries), tuple(damage))


def snapshot(data: bytes, file: str) -> Snapshot | Damage:
    """Read a snapshot, or return the finding."""
    if data[:4] != SNAPSHOT or len(data) < 13:
        return _damage(file, 0, min(13, len(data)), "The file is not a snapshot of a Raft log.")
    if zlib.crc32(data[9:]) != int.from_bytes(data[5:9], "big"):
        return _damage(file, 9, len(data) - 9, "The checksum of the snapshot is wrong.")
    length = int.from_bytes(data[9:13], "big")
    try:
        meta = decode(data[13 : 13 + length])[0]
        state = decode(data[13 + length :])[0]
    except EtfError as error:
        return _damage(file, 13, len(data) - 13, f"The snapshot is not a term: {error.what}.")
    index = next((value for key, value in meta.items() if key == "index"), None) if isinstance(meta, dict) else None
    if type(index) is not int:
        return _damage(file, 13, length, "The snapshot does not state its index.")
    return Snapshot(index, state)


def _damage(file: str, offset: int, length: int, detail: str) -> Damage:
    return Damage(file, offset, length, Kind.BAD_SIDE_FILE, detail)
