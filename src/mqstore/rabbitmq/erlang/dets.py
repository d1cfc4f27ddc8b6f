r"""DETS, Erlang's tables on disk: `recovery.dets`, in which a clean stop records each queue.

All numbers are u32, big-endian. A table of format 9 has

    offset
         4  0x00ABCDEF        8  1 closed properly, 0 open       16  9, the format
        24  number of slots   32  number of objects
     0x138  256 positions of segments; each has 512 positions of blocks; each has 256 slots of 8 bytes: size, position

and at the position of a slot its objects:

    size | 12 34 56 78 | objects, each: length (itself included) | the term {Key, Value}

A table that was not closed, or whose slots are inconsistent, is read by searching for all 12 34 56 78. Erlang does the same when it opens
a table that was not closed; therefore `write_objects` writes one without slots, which needs no hash function.

    >>> table = write_objects([([56, 71, 65], b"value")])
    >>> table[:12].hex(" "), len(table)
    ('00 00 00 00 00 ab cd ef 00 00 00 00', 1372)
    >>> read_table(table).objects
    (([56, 71, 65], b'value'),)

Format: docs/formats/rabbitmq.md, sections 8.3 and 15.2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mqstore.findings import Damage, Kind
from mqstore.rabbitmq.erlang.etf import Buffer, EtfError, decode
from mqstore.rabbitmq.erlang.terms import Term, encode

COOKIE = 0x00ABCDEF
FORMAT = 9
ACTIVE = bytes.fromhex("12345678")
SEGMENTS = 0x138
HEADER_END = SEGMENTS + 4 * 256
SLOTS_PER_BLOCK = 256
BLOCKS_PER_SEGMENT = 512
# how often the search may read each byte of a file, on average, before it gives up
PATIENCE = 16
MAX_FINDINGS = 100
NOT_A_TABLE = "The file does not begin as a DETS table of format 9 does."

_WORD = struct.Struct(">I")
_HEAD = struct.Struct(">14I")

Object = tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class DetsTable:
    """The objects of a table, in file order; the key is the first element of each.

    closed: it was closed properly. salvaged: read without slots.
    """

    objects: tuple[Object, ...]
    closed: bool
    salvaged: bool
    damage: tuple[Damage, ...] = ()


class _InconsistentError(Exception):
    """The slots are inconsistent with the objects."""


def read_table(data: Buffer, file: str = "") -> DetsTable:
    """Return the objects of a table, through its slots if it was closed, else by searching for them. file: its name in findings."""
    view = memoryview(cast(bytes, data))
    words = _HEAD.unpack_from(view) if len(view) >= HEADER_END else (0,) * 14
    if words[1] != COOKIE or words[4] != FORMAT:
        objects, damage = _search_blocks(view, file)
        bad = Damage(file, 0, min(len(view), HEADER_END), Kind.BAD_SIDE_FILE, NOT_A_TABLE)
        return DetsTable(objects, False, True, (bad, *damage))
    if words[2] != 1:
        objects, damage = _search_blocks(view, file)
        return DetsTable(objects, False, True, damage)
    try:
        objects = _through_slots(view, words[6], words[8])
    except _InconsistentError as error:
        objects, damage = _search_blocks(view, file)
        return DetsTable(objects, True, True, (Damage(file, 0, len(view), Kind.BAD_SIDE_FILE, f"{error}"), *damage))
    return DetsTable(objects, True, False)


def read_objects(data: Buffer) -> list[tuple[Term, Term]]:
    """Return the (key, value) objects of a table; of several with one key, the last."""
    pairs: dict[bytes, tuple[Term, Term]] = {}
    for item in read_table(data).objects:
        if len(item) == 2:
            pairs[encode(item[0])] = (item[0], item[1])
    return list(pairs.values())


def _numbers(view: memoryview, start: int, count: int) -> NDArray[np.int64]:
    if start < 0 or start + 4 * count > len(view):
        raise _InconsistentError(f"A table of the file should be at {start}, beyond its {len(view)} bytes.")
    return np.frombuffer(view[start : start + 4 * count], ">u4").astype(np.int64)


def _through_slots(view: memoryview, slots: int, objects: int) -> tuple[Object, ...]:
    """Return the objects that the slots point to. Each part of the file is read once, so the time is proportional to its size."""
    segments = _numbers(view, SEGMENTS, 256)
    blocks = [
        _numbers(view, int(offset), BLOCKS_PER_SEGMENT) for offset in _without_overlap(segments[segments > 0], 4 * BLOCKS_PER_SEGMENT)
    ]
    places = np.concatenate([np.zeros(0, np.int64), *blocks])
    tables = [_numbers(view, int(offset), 2 * SLOTS_PER_BLOCK) for offset in _without_overlap(places[places > 0], 8 * SLOTS_PER_BLOCK)]
    pairs = np.concatenate([np.zeros(0, np.int64), *tables]).reshape(-1, 2)
    pairs = pairs[pairs[:, 1] > 0]
    result: list[Object] = []
    for size, offset in sorted(map(tuple, pairs.tolist()), key=lambda pair: pair[1]):
        if offset + 8 > len(view) or _WORD.unpack_from(view, offset)[0] != size or view[offset + 4 : offset + 8] != ACTIVE:
            raise _InconsistentError(f"A slot points to {offset}, where there are no objects of {size} bytes.")
        inside, why = _read_block(view, offset, size)
        if why:
            raise _InconsistentError(f"The objects at {offset} cannot be read: {why}.")
        result += inside
        if len(result) > objects:
            break
    if len(result) != objects:
        raise _InconsistentError(f"The slots point to {len(result)} objects or more, the file counts {objects}; it has {slots} slots.")
    return tuple(result)


def _without_overlap(places: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the positions in order. Raises _InconsistentError if two parts of the file overlap."""
    ordered = np.sort(places)
    if len(ordered) > 1 and np.diff(ordered).min() < size:
        raise _InconsistentError("Two tables of the file overlap.")
    return ordered


def _read_block(view: memoryview, offset: int, size: int) -> tuple[list[Object], str]:
    """Return the objects of the block at a position, and the reason why it has no more."""
    end, at = offset + size, offset + 8
    objects: list[Object] = []
    if end > len(view):
        return objects, "the file ends before its end"
    while at + 4 <= end:
        (length,) = _WORD.unpack_from(view, at)
        if length < 5 or length > end - at:
            return objects, f"an object of {length} bytes at {at}"
        try:
            term, used = decode(view[at + 4 : at + length])
        except EtfError as error:
            return objects, f"at {at + 4 + error.offset}: {error.what}"
        if not isinstance(term, tuple) or not term or used != length - 4:
            return objects, f"no valid object at {at}"
        objects.append(term)
        at += length
    return objects, "" if objects and at == end else "its size does not end with an object"


def _search_blocks(view: memoryview, file: str) -> tuple[tuple[Object, ...], tuple[Damage, ...]]:
    """Return the objects of every block found by its mark."""
    octets = bytes(view)
    objects: list[Object] = []
    damage: list[Damage] = []
    patience = PATIENCE * len(octets) + (1 << 20)
    mark = octets.find(ACTIVE)
    while mark >= 0:
        offset, following = mark - 4, mark + 1
        if offset >= 0:
            (size,) = _WORD.unpack_from(octets, offset)
            inside, why = _read_block(view, offset, size)
            objects += inside
            if not why:
                following = offset + size
            elif offset >= HEADER_END and len(damage) < MAX_FINDINGS:
                damage.append(
                    Damage(file, offset, min(size, len(octets) - offset), Kind.BAD_SIDE_FILE, f"Objects cannot be read: {why}.", 0)
                )
            patience -= 256 + min(size, len(octets) - offset)
            if patience < 0:
                damage.append(Damage(file, mark, len(octets) - mark, Kind.BAD_SIDE_FILE, "Too many blocks overlap; the rest was not read."))
                break
        mark = octets.find(ACTIVE, following)
    return tuple(objects), tuple(damage)


# writing


def write_objects(objects: Iterable[tuple[Term, Term]]) -> bytes:
    """Return a table with these objects, marked as not closed: Erlang reads them when it opens the table."""
    out = bytearray()
    count = 0
    for item in objects:
        term = encode(item)
        size = 12 + len(term)
        out += _WORD.pack(size) + ACTIVE + _WORD.pack(4 + len(term)) + term
        out += bytes((1 << max(4, (size - 1).bit_length())) - size)
        count += 1
    head = _HEAD.pack(0, COOKIE, 0, 1, FORMAT, 256, 256, 1, count, count, 256, 33554432, 1, 0)
    return head + bytes(HEADER_END - len(head)) + bytes(out) + bytes(4)
