r"""Segments of Ra: older entries of one member, `quorum/<node>/<UID>/<number>.segment`.

    0   "RASG"     4   u16 version     6   u16 number of places N
    8   N places   version 2: u64 index, u64 term, u64 offset, u32 length, u32 CRC-32 of the entry (0: not computed)
                   version 1: the same with a u32 offset
        the entries; the first one is directly after the places

The first place whose index, term and offset are 0 ends the list: entry 0 of a log has an offset. Places of zeros between others are damage.
An index that is not higher than the one before it replaces that entry and everything above it. A single index that does not lie between
its neighbours, which follow each other, is damaged: places have no checksum, and it would replace entries that are intact.

    >>> entry = b"\x83j"
    >>> place = struct.pack(">QQQII", 7, 1, 72, len(entry), zlib.crc32(entry))
    >>> found = read_segment(np.frombuffer(b"RASG\0\x02\0\x02" + place + bytes(32) + entry, np.uint8), "1.segment")
    >>> found.entries["index"].tolist(), found.entries["position"].tolist(), found.damage
    ([7], [72], ())

Format: docs/formats/rabbitmq-quorum.md, section 3.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.findings import Damage, Kind
from mqstore.rabbitmq.quorum.wal import TERM_START
from mqstore.table.formatting import count as count_of

MAGIC = b"RASG"
HEADER = struct.Struct(">4sHH")
PLACES = {
    1: np.dtype([("index", ">u8"), ("term", ">u8"), ("offset", ">u4"), ("length", ">u4"), ("crc", ">u4")]),
    2: np.dtype([("index", ">u8"), ("term", ">u8"), ("offset", ">u8"), ("length", ">u4"), ("crc", ">u4")]),
}

# one row an entry. start: of its place, position, length: of the entry in the file; truncates: entries above it are void;
# valid: it is in the file and its checksum fits
ENTRY = np.dtype(
    [
        ("index", np.int64),
        ("term", np.int64),
        ("start", np.int64),
        ("position", np.int64),
        ("length", np.int64),
        ("truncates", np.int64),
        ("valid", np.int64),
    ]
)
MAX_FINDINGS = 100
Longs = NDArray[np.int64]
_MAX_SIGNED = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class SegmentEntries:
    """The entries of a file, in the order of its places."""

    entries: NDArray[np.void]
    damage: tuple[Damage, ...] = ()


def read_segment(data: Bytes, file: str) -> SegmentEntries:
    """Read a segment. file: its name in findings. An entry that is damaged or not in the file has a finding, and is not valid."""
    none = np.zeros(0, ENTRY)
    if len(data) < HEADER.size:
        kind = Kind.TORN_RECORD if MAGIC.startswith(data[:4].tobytes()) else Kind.BAD_RAFT_SEGMENT
        return SegmentEntries(none, () if not len(data) else (Damage(file, 0, len(data), kind, "The file ends within its header."),))
    magic, version, count = HEADER.unpack(data[: HEADER.size].tobytes())
    if magic != MAGIC or version not in PLACES:
        detail = "The file does not begin as a segment of a Raft log, version 1 or 2."
        return SegmentEntries(none, (Damage(file, 0, HEADER.size, Kind.BAD_RAFT_SEGMENT, detail),))
    shape = PLACES[version]
    damage: list[Damage] = []
    complete = min(count, (len(data) - HEADER.size) // shape.itemsize)
    if complete < count and len(data) > HEADER.size:  # a segment that was just made has its header alone
        damage.append(Damage(file, len(data), 0, Kind.BAD_RAFT_SEGMENT, f"The file ends within its list of {count} places."))
    places = np.frombuffer(data[HEADER.size : HEADER.size + complete * shape.itemsize].tobytes(), shape)
    used = (places["index"] != 0) | (places["term"] != 0) | (places["offset"] != 0)
    written = np.flatnonzero(used)
    places = places[: int(written[-1]) + 1] if len(written) else places[:0]
    beyond = (places["index"] > _MAX_SIGNED) | (places["term"] > _MAX_SIGNED) | (places["offset"] > _MAX_SIGNED)
    far = np.flatnonzero(beyond).tolist()[:MAX_FINDINGS]
    damage += [_bad_place(file, shape, row, "A place of the segment has a number beyond 2^63.") for row in far]
    blank = np.flatnonzero(~used[: len(places)]).tolist()
    if blank:
        detail = f"{count_of(len(blank), 'place')} of the segment between others {'is' if len(blank) == 1 else 'are'} zeros."
        damage.append(_bad_place(file, shape, blank[0], detail))
    rows = np.flatnonzero(~beyond & used[: len(places)])
    places = places[rows]
    index, kept = places["index"].astype(np.int64), np.ones(len(rows), np.bool_)
    for row, right in _wrong_indexes(index, rows, places):
        instead = f"by its neighbours it is {right}" if right >= 0 else "no other place confirms it"
        damage.append(_bad_place(file, shape, int(rows[row]), f"A place of the segment states the index {int(index[row])}; {instead}."))
        index[row], kept[row] = right, right >= 0
    rows, places = rows[kept], places[kept]
    entries = np.zeros(len(places), ENTRY)
    entries["index"], entries["term"], entries["length"] = index[kept], places["term"], places["length"]
    entries["position"] = places["offset"]
    entries["start"] = HEADER.size + rows * shape.itemsize
    entries["truncates"][1:] = entries["index"][1:] <= np.maximum.accumulate(entries["index"])[:-1] if len(entries) > 1 else 0
    # an entry is after the places: one of no bytes, at 0, is an unused place with a bit that is wrong
    inside = (entries["position"] >= HEADER.size + count * shape.itemsize) & (entries["position"] <= len(data) - entries["length"])
    entries["valid"] = inside
    view = memoryview(cast(bytes, data))
    crc = places["crc"].tolist()
    for row, (position, length, here) in enumerate(
        zip(entries["position"].tolist(), entries["length"].tolist(), inside.tolist(), strict=True)
    ):
        # an unused place with a wrong bit has no checksum, and leads to no entry
        if here and length and (zlib.crc32(view[position : position + length]) == crc[row] if crc[row] else view[position] == TERM_START):
            continue
        entries["valid"][row] = 0
        if len(damage) < MAX_FINDINGS:
            why = "is damaged" if here else "is not in the file"
            damage.append(_bad_place(file, shape, int(rows[row]), f"Entry {entries['index'][row]} of the log {why}."))
    return SegmentEntries(entries, tuple(damage))


def _wrong_indexes(stated: Longs, rows: Longs, places: NDArray[np.void]) -> list[tuple[int, int]]:
    """Return the rows whose index is damaged, each with the right index, or -1 where nothing shows it. rows: the numbers of the places.

    Entries that are written again begin with one that is the same as before, or one of another term.
    """
    index, last = stated.copy(), len(stated) - 1
    ahead = stated - rows  # the same for places that follow each other, also past one of zeros
    wrong = []
    for row in (np.flatnonzero(np.diff(ahead)) + 1).tolist():
        if row < last and ahead[row + 1] == ahead[row - 1]:
            wrong.append((row, int(ahead[row - 1] + rows[row])))
        elif row == 1 < last and ahead[2] == ahead[1] and index[0] >= index[1] and _is_foreign(0, 1, index, places):
            wrong.append((0, int(ahead[1] + rows[0])))
        elif row == last and index[row] <= index[row - 1] and _is_foreign(row, row - 1, index, places):
            wrong.append((row, -1))
        else:
            continue
        at, right = wrong[-1]
        index[at], ahead[at] = right, right - rows[at]
    return [(row, right) for row, right in wrong if right != stated[row]][:MAX_FINDINGS]


def _is_foreign(row: int, neighbour: int, index: Longs, places: NDArray[np.void]) -> bool:
    """Return whether a row has the term of its neighbour, and no other row has its index and its entry."""
    same = (index == index[row]) & (places["crc"] == places["crc"][row])
    return bool(places["term"][row] == places["term"][neighbour] and np.count_nonzero(same) == 1)


def _bad_place(file: str, shape: np.dtype[np.void], row: int, detail: str) -> Damage:
    return Damage(file, HEADER.size + row * shape.itemsize, shape.itemsize, Kind.BAD_RAFT_SEGMENT, detail)
