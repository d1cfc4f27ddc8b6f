r"""Tracking of a stream: the offsets that consumers stored, and the last publishing id of each named publisher.

Blocks, in the trailer of a chunk of messages, and as the one entry of a tracking chunk:

    offset  size  field
         0     1  0 sequence of a publisher, 1 offset of a consumer, 2 timestamp of a consumer
         1     1  N, bytes of the id
         2     N  id: the name of the publisher or consumer
       2+N     8  last publishing id, or the stored offset, or a time in milliseconds

In a snapshot, a tracking chunk of kind 2, a sequence has two numbers: chunk id and publishing id. A snapshot replaces everything before.
It is written at the end of a full segment, and so begins the next one: the last segment alone has the whole state.

    >>> state = Tracking()
    >>> state.add(b"\x00\x03abc" + (7).to_bytes(8, "big") + b"\x01\x01r" + (2).to_bytes(8, "big"), chunk_id=5)
    True
    >>> state.sequences, state.offsets
    ({b'abc': (5, 7)}, {b'r': 2})

Format: docs/formats/rabbitmq-streams.md, section 4.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from mqstore.files import Bytes
from mqstore.rabbitmq.streams.segment import MESSAGES, TRACKING_SNAPSHOT, Chunks

SEQUENCE, OFFSET, TIMESTAMP = 0, 1, 2
_ENTRY_LENGTH = 4
_NUMBER = struct.Struct(">Q")
_PAIR = struct.Struct(">QQ")
_TIME = struct.Struct(">q")


@dataclass(slots=True)
class Tracking:
    """What a node knows of the clients of a stream. Names are bytes.

    sequences: chunk id and last publishing id of each publisher; offsets, timestamps: stored by each consumer.
    """

    sequences: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    offsets: dict[bytes, int] = field(default_factory=dict)
    timestamps: dict[bytes, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether it knows no client."""
        return not (self.sequences or self.offsets or self.timestamps)

    @property
    def size(self) -> int:
        """Bytes of its blocks in a snapshot."""
        names = [*self.sequences, *self.offsets, *self.timestamps]
        return sum(map(len, names)) + 10 * len(names) + _NUMBER.size * len(self.sequences)

    def add(self, blocks: bytes, chunk_id: int, *, snapshot: bool = False) -> bool:
        """Take over blocks; a snapshot replaces everything. Return whether all of them could be read."""
        if snapshot:
            for known in (self.sequences, self.offsets, self.timestamps):
                known.clear()
        at = 0
        while len(blocks) - at >= 2:
            kind, start = blocks[at], at + 2 + blocks[at + 1]
            name = blocks[at + 2 : start]
            shape = _PAIR if kind == SEQUENCE and snapshot else _TIME if kind == TIMESTAMP else _NUMBER
            if kind > TIMESTAMP or len(blocks) - start < shape.size:
                return False
            numbers = shape.unpack_from(blocks, start)
            if kind == SEQUENCE:
                self.sequences[name] = (numbers[0], numbers[1]) if snapshot else (chunk_id, numbers[0])
            else:
                (self.offsets if kind == OFFSET else self.timestamps)[name] = numbers[0]
            at = start + shape.size
        return at == len(blocks)


def track(state: Tracking, data: Bytes, chunks: Chunks) -> list[int]:
    """Take over what chunks of a segment say, in their order. Return the positions of those whose tracking cannot be read."""
    unread: list[int] = []
    rows = np.flatnonzero(((chunks.kind != MESSAGES) | (chunks.trailer_size > 0)) & chunks.readable)
    for row in rows.tolist():
        kind = int(chunks.kind[row])
        start = int(chunks.data_at[row])
        stop = start + int(chunks.data_size[row])
        if kind == MESSAGES:
            start, stop = stop, min(len(data), stop + int(chunks.trailer_size[row]))
        else:
            start += _ENTRY_LENGTH
        if not state.add(data[start:stop].tobytes(), int(chunks.id[row]), snapshot=kind == TRACKING_SNAPSHOT):
            unread.append(int(chunks.at[row]))
    return unread


def block(kind: int, name: bytes, *numbers: int) -> bytes:
    """Return a block. numbers: one, and two of a sequence in a snapshot."""
    return bytes([kind, len(name)]) + name + b"".join((_TIME if kind == TIMESTAMP else _NUMBER).pack(number) for number in numbers)
