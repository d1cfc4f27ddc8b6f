r"""Filter of a chunk: which filter values its messages may have; since 3.13, for streams whose publishers give such values.

F bytes, a Bloom filter; bit 0 is the most significant of the first byte. A value sets the bits `phash2(V) mod (8F-1) + 1` and
`phash2([V]) mod (8F-1) + 1`; bit 0 is for messages without a value in a chunk that has others with one. No filter at all: no message of
the chunk has a value. A filter proves only that a value is *not* there.

    >>> made = bytes.fromhex("80000000008000004000000000000000")  # of red, and of no value
    >>> may_hold(made, b"red"), may_hold(made, b"blue"), may_hold(made, None), may_hold(b"", None), may_hold(b"", b"red")
    (True, False, True, True, False)

`phash2` is Erlang's portable hash, of the binary and of the list that holds it: Bob Jenkins' hash of 1997. As Erlang shows it, it is
reduced to 27 bits:

    >>> [number % 2**27 for number in hash_pair(b"red")]
    [114102602, 79772180]

Format: docs/formats/rabbitmq-streams.md, section 6.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.kernels.rabbitmq.stream_chunks import BAD_DATA
from mqstore.rabbitmq.streams.segment import Chunks

_GOLDEN = 0x9E3779B9
_MASK = 0xFFFFFFFF


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for first, second, third in ((13, 8, 13), (12, 16, 5), (3, 10, 15)):
        a = ((a - b - c) & _MASK) ^ c >> first
        b = ((b - c - a) & _MASK) ^ (a << second & _MASK)
        c = ((c - a - b) & _MASK) ^ b >> third
    return a, b, c


def _hash(octets: bytes, start: int) -> int:
    a = b = _GOLDEN
    c = start & _MASK
    if not octets:
        return c
    whole = len(octets) - len(octets) % 12
    for at in range(0, whole, 12):
        words = [int.from_bytes(octets[at + k : at + k + 4], "little") for k in (0, 4, 8)]
        a, b, c = _mix((a + words[0]) & _MASK, (b + words[1]) & _MASK, (c + words[2]) & _MASK)
    rest = octets[whole:].ljust(11, b"\0")
    c += len(octets) + (int.from_bytes(rest[8:11], "little") << 8)
    a += int.from_bytes(rest[:4], "little")
    b += int.from_bytes(rest[4:8], "little")
    return _mix(a & _MASK, b & _MASK, c & _MASK)[2]


def hash_pair(value: bytes) -> tuple[int, int]:
    """Return phash2 of a binary and of the list that holds it, both before they are reduced to a range."""
    own = _hash(value, 13 * _GOLDEN)
    return own, _mix((2 * _GOLDEN + 2) & _MASK, 2 * _GOLDEN & _MASK, own)[2]


def _bits(value: bytes | None, size: int) -> tuple[int, ...]:
    return (0,) if value is None else tuple(number % (8 * size - 1) + 1 for number in hash_pair(value))


def may_hold(octets: bytes, value: bytes | None) -> bool:
    """Return whether a chunk with this filter may have a message with this value; None: without a value."""
    if not octets:
        return value is None
    return all(octets[bit >> 3] & 0x80 >> (bit & 7) for bit in _bits(value, len(octets)))


def chunks_that_may_hold(data: Bytes, chunks: Chunks, values: Iterable[bytes | None]) -> NDArray[np.bool_]:
    """Return for each chunk of a segment whether it may have a message with one of these values; None: without a value.

    Nothing is read but bits of the filters. A chunk that is damaged may hold anything.
    """
    selected = set(values)
    mask = np.asarray(chunks.state >= BAD_DATA)
    if None in selected:
        mask |= chunks.filter_size == 0
    start = chunks.data_at - chunks.filter_size
    for size in np.unique(chunks.filter_size).tolist():
        rows = np.flatnonzero(chunks.filter_size == size)
        for value in selected if size else ():
            held = np.ones(len(rows), np.bool_)
            for bit in _bits(value, size):
                held &= (data[start[rows] + (bit >> 3)] & (0x80 >> (bit & 7))) != 0
            mask[rows] |= held
    return mask
