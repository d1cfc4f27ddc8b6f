"""The log of a DLedger group with one damaged entry, made from a store that a real broker wrote."""

from __future__ import annotations

import struct
from pathlib import Path

from support.golden import case_named, unpack

CASE = case_named("5.5.0/g-dledger")
MIDDLE = 20  # the entry that is damaged, of 40
HEADER = 48


def damaged(place: Path, at: int, bits: int) -> tuple[Path, int]:
    """Change a byte of the entry in the middle. Returns the store and the position of the entry."""
    unpack(CASE, place)
    path = place / "dledger-n0" / "data" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    entry = 0
    for _ in range(MIDDLE):
        entry += struct.unpack_from(">i", raw, entry + 4)[0]
    raw[entry + at] ^= bits
    path.write_bytes(raw)
    return place, entry
