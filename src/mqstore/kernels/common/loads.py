"""Big-endian loads and stores for kernels that run uncompiled; `loads.pxd` holds their C twins.

>>> import numpy as np
>>> word = np.frombuffer(bytes.fromhex("daa320a7"), np.uint8)
>>> i32(word, 0), u8(word, 1), u16(word, 2)
(-626843481, 163, 8359)
"""

from __future__ import annotations

from typing import Any

Array = Any

# integer literals above 2^31 would become Python objects in a compiled loop
TWO31 = 1 << 31
TWO32 = 1 << 32
LOW32 = TWO32 - 1
UNIQ_KEY = int.from_bytes(b"UNIQ_KEY", "big")


def first_byte(b: Array) -> Array:
    """Return where the bytes of b begin: compiled, a pointer."""
    return b


def u8(b: Array, p: int) -> int:
    return int(b[p])


def i8(b: Array, p: int) -> int:
    return int.from_bytes(bytes(b[p : p + 1]), "big", signed=True)


def i16(b: Array, p: int) -> int:
    return int.from_bytes(bytes(b[p : p + 2]), "big", signed=True)


def u16(b: Array, p: int) -> int:
    return int.from_bytes(bytes(b[p : p + 2]), "big")


def u32(b: Array, p: int) -> int:
    return int.from_bytes(bytes(b[p : p + 4]), "big")


def i32(b: Array, p: int) -> int:
    return int.from_bytes(bytes(b[p : p + 4]), "big", signed=True)


def i64(b: Array, p: int) -> int:
    return int.from_bytes(bytes(b[p : p + 8]), "big", signed=True)


def put32(b: Array, p: int, v: int) -> None:
    b[p : p + 4] = tuple((int(v) & 0xFFFFFFFF).to_bytes(4, "big"))


def put64(b: Array, p: int, v: int) -> None:
    b[p : p + 8] = tuple((int(v) & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "big"))


def cell(table: Array, row: int, column: int) -> int:
    return int(table[row, column])


def low32(v: int) -> int:
    """The lower half of a word as a signed number."""
    return ((int(v) & LOW32) ^ TWO31) - TWO31


def word64(v: int) -> int:
    """The bits of a signed word as an unsigned one."""
    return int(v) & 0xFFFFFFFFFFFFFFFF


def prefetch(b: Array, p: int) -> None:
    """Nothing to do: a hint for the processor."""


def find(b: Array, start: int, stop: int, c: int) -> int:
    """Position of the first byte c in [start, stop), or stop."""
    k = bytes(b[start:stop]).find(c)
    return stop if k < 0 else start + k


def copy(to: Array, at: int, b: Array, start: int, n: int) -> None:
    to[at : at + n] = b[start : start + n]


def same(a: Array, p: int, b: Array, q: int, n: int) -> bool:
    return bytes(a[p : p + n]) == bytes(b[q : q + n])


def ascii_hash(b: Array, p: int, n: int, seed: int) -> int:
    """Java's string hash of n bytes, carried on from seed; TWO32 if one of them is not ASCII."""
    h = seed
    for byte in bytes(b[p : p + n]):
        if byte >= 0x80:
            return TWO32
        h = (h * 31 + byte) & LOW32
    return h
