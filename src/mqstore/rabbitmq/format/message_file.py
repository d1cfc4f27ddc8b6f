r"""Message store file, `<k>.rdq`: records of messages too large for the index, keyed by a 16-byte id.

    offset  size  field
         0     8  S = 16 + B
         8    16  message id
        24     B  stored message
      24+B     1  255, the record is complete

Records are written without gaps. No header, no checksum. `<k>.rdt` has the same format; an interrupted merge leaves it.

    >>> raw = record(b"0123456789abcdef", b"\x83j")
    >>> len(raw), strict_scan(np.frombuffer(raw + raw, np.uint8))
    (27, Scan(at=array([ 0, 27]), total=array([27, 27]), end=54))

*Strict* is the broker's scan up to 3.13.0: it stops at a size of 0 and at an incomplete record, skips a record without its mark, and does
not check contents. *Careful* accepts records that contain their id a second time, inside the stored message, at any position; such a
record ends where its message ends, even if its size field is damaged. So it continues after damage, and finds records that the broker
misses. 3.13.1 and later also step byte by byte, but accept any frame (`resynchronising_scan`). Holes of a sparse file are not read.

Format: docs/formats/rabbitmq.md, sections 6.1, 6.8, 13.2 and 14.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.findings import Damage, Kind
from mqstore.kernels.rabbitmq import message_store

Extents = Sequence[tuple[int, int]]

_HEADER = struct.Struct(">Q16s")
HEADER = _HEADER.size
OVERHEAD = HEADER + 1  # and the mark at the end
_BLOCK = 1 << 14


class Scan(NamedTuple):
    """Records in file order. at: where each starts; total: its bytes, header and mark included; end: where the scan stopped."""

    at: NDArray[np.int64]
    total: NDArray[np.int64]
    end: int


class CarefulScan(NamedTuple):
    """As Scan. quality: bits MARKED (the mark is there), PROVED (the stored message has the record's id), RESIZED (its size is wrong).

    complete: every position was tried; False only for files made to waste time.
    """

    at: NDArray[np.int64]
    total: NDArray[np.int64]
    quality: NDArray[np.uint8]
    complete: bool = True


def strict_scan(data: Bytes) -> Scan:
    """Return the records that the broker finds in a file."""
    nothing = np.empty(0, np.int64)
    count, end = message_store.strict_scan(data, 0, nothing, nothing)
    at, total = np.empty(count, np.int64), np.empty(count, np.int64)
    message_store.strict_scan(data, 0, at, total)
    return Scan(at, total, end)


def careful_scan(data: Bytes, extents: Extents | None = None) -> CarefulScan:
    """Return all valid records of a file. extents: its stored blocks, as (from, to); the rest is zeros. None: everywhere."""
    runs: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]] = []
    complete = True
    position = 0
    for low, high in [(0, len(data))] if extents is None else extents:
        position = max(position, _first_start(low))
        while position < high:
            at, total, quality = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.uint8)
            count, position, tried = message_store.careful_scan(data, position, high, at, total, quality)
            runs.append((at[:count].copy(), total[:count].copy(), quality[:count].copy()))
            complete = complete and tried
            if count < _BLOCK:
                break
    if not runs:
        empty = np.empty(0, np.int64)
        return CarefulScan(empty, empty, np.empty(0, np.uint8))
    columns = [np.concatenate(column) for column in zip(*runs, strict=True)]
    return CarefulScan(columns[0], columns[1], columns[2], complete)


def _first_start(low: int) -> int:
    """Return the first position at which a record may start whose first byte other than zero is at or after low: part of its size."""
    return max(0, low - 7)


def resynchronising_scan(data: Bytes, extents: Extents | None = None) -> Scan:
    """Return the records that a broker from 3.13.1 on finds in a file: any frame with its mark, byte by byte. extents: as above."""
    nothing = np.empty(0, np.int64)
    runs: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = [(nothing, nothing)]
    position = 0
    for low, high in [(0, len(data))] if extents is None else extents:
        start = max(position, _first_start(low))
        count, position = message_store.resynchronising_scan(data, start, high, nothing, nothing)
        at, total = np.empty(count, np.int64), np.empty(count, np.int64)
        message_store.resynchronising_scan(data, start, high, at, total)
        runs.append((at, total))
    at, total = (np.concatenate(column) for column in zip(*runs, strict=True))
    return Scan(at, total, position)


def ids(data: Bytes, at: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids of the records at these places, as two big-endian halves each."""
    hi, lo = np.empty(len(at), np.int64), np.empty(len(at), np.int64)
    message_store.record_ids(data, at, hi, lo)
    return hi, lo


def halves(octets: bytes) -> NDArray[np.int64]:
    """Return the ids in these bytes, one after the other, a row of two big-endian halves each."""
    return np.frombuffer(octets, ">i8").astype(np.int64).reshape(-1, 2)


def gaps(scan: CarefulScan, size: int, extents: Extents | None = None) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Yield the ranges of a file of this size without a record of a scan, each with its parts that are not holes."""
    starts, ends = scan.at, scan.at + scan.total
    wide = np.flatnonzero(starts > np.concatenate([np.zeros(1, np.int64), ends[:-1]])) if len(starts) else starts
    bounds = [(int(ends[k - 1]) if k else 0, int(starts[k])) for k in wide.tolist()]
    end = int(ends[-1]) if len(ends) else 0
    if end < size:
        bounds.append((end, size))
    stored = [(0, size)] if extents is None else extents
    first = 0
    for low, high in bounds:
        while first < len(stored) and stored[first][1] <= low:
            first += 1
        inside = takewhile(lambda extent: extent[0] < high, islice(stored, first, None))  # noqa: B023 - used up before high changes
        yield low, high, [(max(low, start), min(high, stop)) for start, stop in inside]


def damage(data: Bytes, scan: CarefulScan, file: str, extents: Extents | None = None) -> list[Damage]:
    """Return the findings of a careful scan: non-zero bytes between records, and records that are not proved."""
    findings: list[Damage] = []
    for low, high, parts in gaps(scan, len(data), extents):
        if any(data[start:stop].any() for start, stop in parts):
            torn = high == len(data) and _is_torn(data, low)
            kind, why = (Kind.TORN_RECORD, "the last record is incomplete") if torn else (Kind.BAD_STORE_RECORD, NO_RECORD)
            findings.append(Damage(file, low, high - low, kind, why))
    findings += [
        Damage(file, int(scan.at[k]), int(scan.total[k]), Kind.BAD_STORE_RECORD, _flaw(int(scan.quality[k])), 1)
        for k in np.flatnonzero(scan.quality != message_store.MARKED | message_store.PROVED).tolist()
    ]
    if not scan.complete:
        detail = "the file has too many false beginnings of records: only those in sequence were read"
        findings.append(Damage(file, 0, len(data), Kind.BAD_STORE_RECORD, detail))
    return findings


NO_RECORD = "there is no valid record here"


def _flaw(quality: int) -> str:
    if not quality & message_store.PROVED:
        return "the record is framed, but its content is not the message of its id"
    if quality & message_store.RESIZED:
        return "the record's size field is wrong, but its message is complete"
    return "the record does not end with its mark, but its message is complete"


def _is_torn(data: Bytes, position: int) -> bool:
    left = len(data) - position
    return left < 8 or int.from_bytes(data[position : position + 8].tobytes(), "big") + 9 > left


def record(message_id: bytes, stored: bytes) -> bytes:
    """Return the record of a stored message."""
    return b"".join((_HEADER.pack(16 + len(stored), message_id), stored, b"\xff"))
