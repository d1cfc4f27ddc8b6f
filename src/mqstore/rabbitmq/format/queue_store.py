r"""Queue store of version 2, `<k>.qs`: messages of one queue that are too small for the shared store, in publish order.

A header of 64 bytes (as in `index_v2`, with the magic RCQS), then entries without gaps:

    offset  size  field
         0     4  Z: bytes of the stored message
         4     1  bit 0: the checksum is valid
         5     2  low 16 bits of the CRC-32 of the message
         7     1  0
         8     Z  stored message

    >>> raw = entry(b"\x83j")
    >>> raw.hex()
    '0000000201513100836a'
    >>> valid_entries(np.frombuffer(raw, np.uint8), np.array([0, 0]), np.array([2, 3]))
    array([ True, False])

Acknowledged messages stay until the file is deleted, so a `.qs` without its `.qi` has more messages than the queue had.

Format: docs/formats/rabbitmq.md, section 12.3.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.findings import Damage, Kind
from mqstore.kernels.rabbitmq import queue_files

HEADER_SIZE = 64
_ENTRY = struct.Struct(">IBHB")
ENTRY_HEADER = _ENTRY.size


def valid_entries(data: Bytes, at: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each entry at `at` whether it is complete, has this size, and matches its checksum if it has one."""
    ok = np.zeros(len(at), np.uint8)
    queue_files.sound_entries(data, at, size, ok)
    return ok.astype(np.bool_)


def header_damage(data: Bytes, file: str) -> list[Damage]:
    """Return the finding for a header that is not of version 2; a broker does not check it."""
    if not len(data) or data[:5].tobytes() == b"RCQS\x02":
        return []
    why = "the header is not that of a version 2 store; its messages are accepted if their checksums match"
    return [Damage(file, 0, min(len(data), HEADER_SIZE), Kind.BAD_QUEUE_FILE, why)]


def entries(data: Bytes) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return position and size of each entry, found without an index, and where the entries end."""
    position, found = HEADER_SIZE, []
    while position + ENTRY_HEADER <= len(data):
        size = int.from_bytes(data[position : position + 4].tobytes(), "big")
        if not size or size > len(data) - position - ENTRY_HEADER:
            break
        found.append((position, size))
        position += ENTRY_HEADER + size
    table = np.array(found, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1], min(position, len(data))


def entry(stored: bytes, *, checked: bool = True) -> bytes:
    """Return the entry of a stored message. checked: with a checksum, as the broker does by default."""
    return _ENTRY.pack(len(stored), checked, zlib.crc32(stored) & 0xFFFF if checked else 0, 0) + stored
