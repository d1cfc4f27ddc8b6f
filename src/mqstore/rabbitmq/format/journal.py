r"""Journal of a queue, `journal.jif`: the publishes, deliveries and acknowledgements since the last flush to segments.

A sequence of records without header or checksums. Each begins with a 64-bit word: the kind in its two highest bits, then the sequence id:

    00  publish, persistent   40 + E bytes      10  deliver ("del")       8 bytes
    01  publish, transient    40 + E bytes      11  acknowledge ("ack")   8 bytes

    offset  size  field of a publish
         0     8  kind and sequence id
         8    16  message id
        24     8  expiry: microseconds since 1970, 0 = none
        32     4  size: bytes of the body
        36     4  E: bytes of the embedded message, 0 = it is in the message store
        40     E  embedded message

    >>> raw = publish(7, b"0123456789abcdef", b"", size=5000) + deliver(7) + acknowledge(7)
    >>> found = read_journal(np.frombuffer(raw + bytes(4096), np.uint8))
    >>> found.kind.tolist(), found.seq.tolist(), found.at.tolist(), found.end
    ([0, 2, 3], [7, 7, 7], [0, 40, 48], 56)

The broker stops silently at the first bytes that are not a record: at 40 zero bytes, which a crash can leave, and at an incomplete record;
`seen` actions precede that point. This reader continues after the damage at the next valid publish. A changed sequence id, kind or
size that still yields a record cannot be detected: there is no checksum.

Format: docs/formats/rabbitmq.md, section 3.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.findings import Damage, Kind
from mqstore.kernels.rabbitmq import queue_index

PUBLISH, PUBLISH_TRANSIENT, DELIVER, ACKNOWLEDGE = range(4)  # the first two bits of an action

PUBLISH_ACTION = struct.Struct(">Q16sQII")
WORD = struct.Struct(">Q")
PUBLISH_SIZE = PUBLISH_ACTION.size
ID_AT = WORD.size
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Journal:
    """Actions in file order. data: the file; kind, seq, at: of each action; seen: the number that the broker reads; end: where it stops."""

    data: Bytes
    kind: NDArray[np.uint8]
    seq: NDArray[np.int64]
    at: NDArray[np.int64]
    seen: int
    end: int
    findings: tuple[Damage, ...] = ()


def read_journal(data: Bytes, file: str = "journal.jif") -> Journal:
    """Return the actions of a journal. file: its name in findings."""
    runs: list[tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]] = []
    findings: list[Damage] = []
    position, seen, end = 0, -1, 0
    while True:
        while True:
            kind, seq, at = np.empty(_BLOCK, np.uint8), np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
            count, position, status = queue_index.journal_walk(data, position, kind, seq, at)
            runs.append((kind[:count].copy(), seq[:count].copy(), at[:count].copy()))
            if status != queue_index.FULL:
                break
        if seen < 0:
            seen, end = sum(len(run[0]) for run in runs), position
        if status == queue_index.DONE:
            break
        resumed = queue_index.journal_resume(data, position + 1)
        stop = len(data) if resumed < 0 else resumed
        if stop == len(data) and not data[position:].any():
            # zeros that a file system leaves after a crash: nothing is lost
            break
        what = "there are zeros" if status == queue_index.ZEROS else "there is no complete record"
        findings.append(
            Damage(
                file,
                position,
                stop - position,
                Kind.TORN_RECORD if resumed < 0 and status == queue_index.TORN else Kind.BAD_JOURNAL,
                f"{what} at offset {position} of the journal; the broker stops here"
                + ("" if resumed < 0 else f", valid records continue at {resumed}"),
            )
        )
        if resumed < 0:
            break
        position = resumed
    columns = [np.concatenate(column) for column in zip(*runs, strict=True)]
    return Journal(data, columns[0], columns[1], columns[2], seen, end, tuple(findings))


def publish(seq: int, message_id: bytes, embedded: bytes, *, size: int, expiry: int = 0, persistent: bool = True) -> bytes:
    """Return the record of a publish. embedded: the stored message, empty if it is in the message store. size: bytes of the body."""
    kind = PUBLISH if persistent else PUBLISH_TRANSIENT
    return PUBLISH_ACTION.pack(kind << 62 | seq, message_id, expiry, size, len(embedded)) + embedded


def deliver(seq: int) -> bytes:
    """Return the record of a delivery, which since 3.10 follows every publish."""
    return WORD.pack(DELIVER << 62 | seq)


def acknowledge(seq: int) -> bytes:
    """Return the record of an acknowledgement."""
    return WORD.pack(ACKNOWLEDGE << 62 | seq)
