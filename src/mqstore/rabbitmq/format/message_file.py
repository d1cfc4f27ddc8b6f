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
not check contents. *Careful* accepts records that contain their id a second time, inside the stored message, at any position; so it
continues after damage, and finds records that the broker misses. 3.13.1 and later also step byte by byte, but accept any frame
(`resynchronising_scan`).

Format: docs/formats/rabbitmq.md, sections 6.1, 6.8, 13.2 and 14.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.findings import Damage, Kind
from mqstore.kernels.rabbitmq import message_store

__all__ = ["CarefulScan", "Scan", "careful_scan", "damage", "ids", "record", "resynchronising_scan", "strict_scan"]

HEADER = 24
OVERHEAD = 25
_HEADER = struct.Struct(">Q16s")
_BLOCK = 1 << 14


class Scan(NamedTuple):
    """Records in file order. at: where each starts; total: its bytes, header and mark included; end: where the scan stopped."""

    at: NDArray[np.int64]
    total: NDArray[np.int64]
    end: int


class CarefulScan(NamedTuple):
    """As Scan. quality: bits MARKED (the mark is there), PROVED (the stored message has the record's id)."""

    at: NDArray[np.int64]
    total: NDArray[np.int64]
    quality: NDArray[np.uint8]


def strict_scan(data: Bytes) -> Scan:
    """Return the records that the broker finds in a file."""
    nothing = np.empty(0, np.int64)
    count, end = message_store.strict_scan(data, 0, nothing, nothing)
    at, total = np.empty(count, np.int64), np.empty(count, np.int64)
    message_store.strict_scan(data, 0, at, total)
    return Scan(at, total, end)


def careful_scan(data: Bytes) -> CarefulScan:
    """Return all valid records of a file."""
    runs: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]] = []
    position = 0
    while True:
        at, total, quality = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.uint8)
        count, position = message_store.careful_scan(data, position, at, total, quality)
        runs.append((at[:count].copy(), total[:count].copy(), quality[:count].copy()))
        if count < _BLOCK:
            break
    columns = [np.concatenate(column) for column in zip(*runs, strict=True)]
    return CarefulScan(columns[0], columns[1], columns[2])


def resynchronising_scan(data: Bytes) -> Scan:
    """Return the records that a broker from 3.13.1 on finds in a file: any frame with its mark, searched byte by byte."""
    nothing = np.empty(0, np.int64)
    count, end = message_store.resynchronising_scan(data, 0, nothing, nothing)
    at, total = np.empty(count, np.int64), np.empty(count, np.int64)
    message_store.resynchronising_scan(data, 0, at, total)
    return Scan(at, total, end)


def ids(data: Bytes, at: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids of the records at these places, as two big-endian halves each."""
    hi, lo = np.empty(len(at), np.int64), np.empty(len(at), np.int64)
    message_store.record_ids(data, at, hi, lo)
    return hi, lo


def damage(data: Bytes, scan: CarefulScan, file: str) -> list[Damage]:
    """Return the findings of a careful scan: non-zero bytes between records, and records that are not proved."""
    found: list[Damage] = []
    position = 0
    starts, ends = scan.at, scan.at + scan.total
    gaps = np.flatnonzero(starts > np.concatenate([np.zeros(1, np.int64), ends[:-1]])) if len(starts) else starts
    bounds = [(int(ends[k - 1]) if k else 0, int(starts[k])) for k in gaps.tolist()]
    position = int(ends[-1]) if len(ends) else 0
    if position < len(data):
        bounds.append((position, len(data)))
    for low, high in bounds:
        if data[low:high].any():
            last = high == len(data)
            kind = Kind.TORN_RECORD if last and _is_torn(data, low) else Kind.BAD_STORE_RECORD
            why = "the last record is incomplete" if kind is Kind.TORN_RECORD else "there is no valid record here"
            found.append(Damage(file, low, high - low, kind, why))
    for k in np.flatnonzero(scan.quality != message_store.MARKED | message_store.PROVED).tolist():
        if scan.quality[k] & message_store.PROVED:
            why = "the record does not end with its mark, but its message is complete"
        else:
            why = "the record is framed, but its content is not the message of its id"
        found.append(Damage(file, int(scan.at[k]), int(scan.total[k]), Kind.BAD_STORE_RECORD, why, 1))
    return found


def _is_torn(data: Bytes, position: int) -> bool:
    left = len(data) - position
    return left < 8 or int.from_bytes(data[position : position + 8].tobytes(), "big") + 9 > left


def record(message_id: bytes, stored: bytes) -> bytes:
    """Return the record of a stored message."""
    return b"".join((_HEADER.pack(16 + len(stored), message_id), stored, b"\xff"))
