r"""Segment of a queue index, `<k>.idx`: the entries of sequence ids k*N … k*N+N-1, N being the vhost's segment entry count.

A sequence of entries without header, checksums or order. The first 16-bit word of an entry:

    publish   1, 1 = persistent or 0 = transient, then 14 bits rel      34 + E bytes
    del/ack   0, 1, then 14 bits rel                                    2 bytes

    offset  size  field of a publish
         0     2  the word
         2    16  message id
        18     8  expiry: microseconds since 1970, 0 = none
        26     4  size: bytes of the body
        30     4  E: bytes of the embedded message, 0 = it is in the message store
        34     E  embedded message

The first del/ack after a publish is the delivery, the second the acknowledgement; they have the same bits.

    >>> raw = publish(1, b"0123456789abcdef", b"", size=5000) + publish(0, bytes(16), b"", size=6000) + mark(0) + mark(1) + mark(0)
    >>> found = read_segment(np.frombuffer(raw, np.uint8), 2048)
    >>> found.state[:3].tolist(), found.at[:2].tolist()
    ([7, 3, 0], [34, 0])

State bits: 1 published, 2 delivered, 4 acknowledged. The broker misreads what follows an incomplete publish and then crashes; this reader
continues at the next publish whose embedded message has the entry's id. A file of zeros counts as missing, as it does since 3.10.

Format: docs/formats/rabbitmq.md, section 4.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.findings import Damage, Kind
from mqstore.kernels.rabbitmq import queue_index

MAX_ENTRIES = 16384
_PUBLISH = struct.Struct(">H16sQII")
_WORD = struct.Struct(">H")
PUBLISH_SIZE = _PUBLISH.size
MARK_SIZE = _WORD.size
ID_AT = _WORD.size


@dataclass(frozen=True, slots=True)
class Segment:
    """The contents of a segment file by rel. state: bits P, D, A, CRASH, REPEATED of the kernel; at: position of the publish.

    exists: False for a missing file or one of zeros. crash: why the broker would crash on this file, or None. earlier: (rel, position)
    of each publish that a later one of the same rel, with other bytes, replaces.
    """

    data: Bytes
    state: NDArray[np.uint8]
    at: NDArray[np.int64]
    exists: bool
    crash: str | None = None
    findings: tuple[Damage, ...] = ()
    earlier: tuple[tuple[int, int], ...] = ()


def read_segment(data: Bytes, count: int, file: str = "0.idx") -> Segment:
    """Return the entries of a segment. count: the segment entry count N, at most 16384. file: its name in findings."""
    state = np.zeros(count, np.uint8)
    at = np.full(count, -1, np.int64)
    if not len(data) or not data.any():
        return Segment(data, state, at, False)
    findings: list[Damage] = []
    crash: str | None = None
    position = 0
    pieces: list[tuple[int, int]] = []
    while True:
        begin = position
        _, position, status = queue_index.segment_walk(data, position, count, state, at)
        pieces.append((begin, position))
        if status == queue_index.DONE:
            break
        resumed = queue_index.segment_resume(data, position + 1, count)
        stop = len(data) if resumed < 0 else resumed
        detail = _describe_fault(data, position, status, count)
        crash = crash or f"{detail}; the broker misreads what follows and crashes"
        findings.append(Damage(file, position, stop - position, Kind.BAD_SEGMENT, detail))
        if resumed < 0:
            break
        position = resumed
    flagged = np.flatnonzero(state & queue_index.CRASH)
    if len(flagged):
        detail = f"rel {flagged[0]} has a surplus delivery or acknowledgement, or one without a publish ({len(flagged)} such entries)"
        crash = crash or f"{detail}; the broker crashes on it"
        findings.append(Damage(file, 0, len(data), Kind.BAD_SEGMENT, detail, len(flagged)))
    repeated = np.flatnonzero(state & queue_index.REPEATED)
    findings.extend(
        Damage(
            file,
            int(at[rel]),
            PUBLISH_SIZE,
            Kind.REPEATED_ENTRY,
            f"rel {rel} is published twice with different contents; the second counts",
            1,
        )
        for rel in repeated[:100].tolist()
    )
    earlier = _replaced(data, pieces, {int(rel): int(at[rel]) for rel in repeated})
    return Segment(data, state, at, True, crash, tuple(findings), earlier)


def _replaced(data: Bytes, pieces: list[tuple[int, int]], last: dict[int, int]) -> tuple[tuple[int, int], ...]:
    """Return (rel, position) of the publishes that are not the last of their rel, each content once. pieces: ranges of whole entries."""
    if not last:
        return ()
    raw = data.data
    seen = {(rel, _publish_bytes(raw, offset)) for rel, offset in last.items()}
    replaced: list[tuple[int, int]] = []
    for position, stop in pieces:
        while position < stop:
            (word,) = _WORD.unpack_from(raw, position)
            if not word & 0x8000:
                position += _WORD.size
                continue
            entry = _publish_bytes(raw, position)
            if (word & 0x3FFF) in last and (word & 0x3FFF, entry) not in seen:
                seen.add((word & 0x3FFF, entry))
                replaced.append((word & 0x3FFF, position))
            position += len(entry)
    return tuple(replaced)


def _publish_bytes(raw: memoryview, position: int) -> bytes:
    embedded = int.from_bytes(raw[position + PUBLISH_SIZE - 4 : position + PUBLISH_SIZE], "big")
    return raw[position : position + PUBLISH_SIZE + embedded].tobytes()


def _describe_fault(data: Bytes, position: int, status: int, count: int) -> str:
    if status == queue_index.TORN:
        return f"the entry at offset {position} is incomplete"
    word = int(data[position]) << 8 | int(data[position + 1])
    if word < 1 << 14:
        return f"the word {word:04x} at offset {position} is not an entry"
    return f"the entry at offset {position} has rel {word & 0x3FFF}, but a segment has {count} entries"


def publish(rel: int, message_id: bytes, embedded: bytes, *, size: int, expiry: int = 0, persistent: bool = True) -> bytes:
    """Return the entry of a publish. embedded: the stored message, empty if it is in the message store. size: bytes of the body."""
    return _PUBLISH.pack(0x8000 | persistent << 14 | rel, message_id, expiry, size, len(embedded)) + embedded


def mark(rel: int) -> bytes:
    """Return the entry of a delivery, or, as the second of a rel, of an acknowledgement."""
    return _WORD.pack(0x4000 | rel)
