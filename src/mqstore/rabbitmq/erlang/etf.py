"""Erlang's external term format, in which RabbitMQ stores messages, side files and definitions.

A term is the byte 131 and then one tag byte with its contents, big-endian, nested as the term is:

    tag  name             contents               becomes
     97  SMALL_INTEGER    u8                     int
     98  INTEGER          i32                    int
    110  SMALL_BIG        n u8, sign, n bytes    int (little-endian bytes); 111 LARGE_BIG: n u32
     70  NEW_FLOAT        f64                    float; 99 FLOAT: 31 bytes of text
    100  ATOM             u16, latin-1           Atom; 115: u8 length; 118, 119: the same in UTF-8
    104  SMALL_TUPLE      arity u8, terms        tuple; 105 LARGE_TUPLE: arity u32
    106  NIL                                     [] (an empty list)
    107  STRING           u16, bytes             list of int
    108  LIST             n u32, n terms, tail   list; ImproperList when the tail is not NIL
    109  BINARY           u32, bytes             bytes
     77  BIT_BINARY       u32, bits u8, bytes    BitBinary
    116  MAP              n u32, n × key, value  dict in file order; Pairs if a dict cannot hold the keys
    others: pids, references, ports, functions   Opaque, the bytes unchanged

131 80 begins a compressed term: u32 uncompressed length, then zlib data. RabbitMQ never writes it; this module reads it.

    >>> decode(bytes.fromhex("83 68 02 64 0002 6f6b 6d 00000003 616263"))
    ((Atom('ok'), b'abc'), 16)

A file can produce only these plain values. Decoding does not recurse, and its memory is proportional to the input: a count is accepted
only if that many bytes are left. Not read: atom cache references (distribution only), LOCAL_EXT.

Format: docs/formats/rabbitmq.md, section 9.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mqstore.rabbitmq.erlang.terms import MAX_ATOM_LENGTH, VERSION, Atom, BitBinary, ImproperList, NotATermError, Opaque, Pairs, Term

Buffer = bytes | bytearray | memoryview | NDArray[np.uint8]

COMPRESSED = 80
# Python prints integers of at most 4300 decimal digits, and no field of a broker has more than 64 bits.
MAX_INTEGER_BYTES = 1024
# A dict of keys with chosen hashes takes quadratic time.
MAX_CHOSEN_KEYS = 1024

_U32 = struct.Struct(">I")
_I32 = struct.Struct(">i")
_F64 = struct.Struct(">d")


class EtfError(NotATermError):
    """Bytes that are not a term, or a term beyond the limits. offset: byte position in the given buffer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a decoder. depth: of nested terms. terms: total number of elements of one term. inflated: bytes of a compressed term."""

    depth: int = 256
    terms: int = 2_000_000
    inflated: int = 64 << 20


LIMITS = Limits()


# decoding


def decode(buf: Buffer, pos: int = 0, limits: Limits = LIMITS) -> tuple[Term, int]:
    """Return the term that begins (with byte 131) at pos, and the position after it. Raises EtfError."""
    view = buf if isinstance(buf, memoryview) else memoryview(cast(bytes, buf))
    if pos >= len(view) or view[pos] != VERSION:
        raise EtfError(pos, "a term begins with byte 131" + (f", not {view[pos]}" if pos < len(view) else "; the bytes end here"))
    if pos + 1 < len(view) and view[pos + 1] == COMPRESSED:
        return _decode_compressed(view, pos, limits)
    return _Decoder(view, limits).term(pos + 1)


def _decode_compressed(view: memoryview, pos: int, limits: Limits) -> tuple[Term, int]:
    if pos + 6 > len(view):
        raise EtfError(pos, "the bytes end within the head of a compressed term")
    (size,) = _U32.unpack_from(view, pos + 2)
    if size > limits.inflated:
        raise EtfError(pos, f"a compressed term of {size} bytes; at most {limits.inflated} are read")
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(view[pos + 6 :], size + 1)
    except zlib.error as error:
        raise EtfError(pos, f"a compressed term cannot be decompressed: {error}") from None
    if len(data) != size or not inflater.eof:
        raise EtfError(pos, f"a compressed term does not have the {size} bytes it announces")
    try:
        term, end = _Decoder(memoryview(data), limits).term(0)
    except EtfError as error:
        raise EtfError(pos, f"within a compressed term, at byte {error.offset} of it: {error.what}") from None
    if end != size:
        raise EtfError(pos, f"a compressed term ends {size - end} bytes early")
    return term, len(view) - len(inflater.unused_data)


class _Decoder:
    """Reads one term. Open containers are kept in a list, not on the call stack."""

    def __init__(self, view: memoryview, limits: Limits) -> None:
        self.view = view
        self.size = len(view)
        self.limits = limits
        self.left = limits.terms

    def term(self, pos: int) -> tuple[Term, int]:
        open_: list[tuple[Callable[[list[Term]], Term], int, list[Term]]] = []
        view, size = self.view, self.size
        while True:
            if pos >= size:
                raise EtfError(pos, "the bytes end where a term should begin")
            start = pos
            tag = view[pos]
            pos += 1
            value: Term
            if tag == 109:
                value, pos = self.counted(pos, 4)
            elif tag == 97:
                self.need(pos, 1)
                value = view[pos]
                pos += 1
            elif tag in _ATOMS:
                width, encoding = _ATOMS[tag]
                value, pos = self.atom(pos, width, encoding)
            elif tag in _CONTAINERS:
                width, finish, per = _CONTAINERS[tag]
                count = self.number(pos, width)
                pos += width
                need = count * per + (tag == 108)
                if need > size - pos or need > self.left:
                    raise EtfError(start, f"{count} elements are announced; {size - pos} bytes are left, {self.left} elements allowed")
                self.left -= need
                if need:
                    if len(open_) >= self.limits.depth:
                        raise EtfError(start, f"terms nest deeper than {self.limits.depth}")
                    open_.append((finish, need, []))
                    continue
                value = finish([])
            else:
                value, pos = self.plain(tag, pos)
            while open_:
                finish, need, items = open_[-1]
                items.append(value)
                if len(items) < need:
                    break
                open_.pop()
                value = finish(items)
            else:
                return value, pos

    def need(self, pos: int, count: int) -> None:
        if count > self.size - pos:
            raise EtfError(pos, f"{count} bytes are needed, {max(0, self.size - pos)} are left")

    def number(self, pos: int, width: int) -> int:
        self.need(pos, width)
        return int.from_bytes(self.view[pos : pos + width], "big")

    def counted(self, pos: int, width: int) -> tuple[bytes, int]:
        count = self.number(pos, width)
        pos += width
        self.need(pos, count)
        return bytes(self.view[pos : pos + count]), pos + count

    def atom(self, pos: int, width: int, encoding: str) -> tuple[Atom, int]:
        name, end = self.counted(pos, width)
        try:
            atom = Atom(name, encoding)
        except UnicodeDecodeError:
            raise EtfError(pos, "an atom is not UTF-8") from None
        if len(atom) > MAX_ATOM_LENGTH:
            raise EtfError(pos, f"an atom of {len(atom)} characters; {MAX_ATOM_LENGTH} are the most")
        return atom, end

    def plain(self, tag: int, pos: int) -> tuple[Term, int]:
        """Decode a term without inner terms, except for the tags that `term` decodes itself."""
        start = pos - 1
        if tag == 98:
            self.need(pos, 4)
            return _I32.unpack_from(self.view, pos)[0], pos + 4
        if tag == 106:
            return [], pos
        if tag in (110, 111):
            return self.integer(pos, 1 if tag == 110 else 4)
        if tag == 107:
            octets, end = self.counted(pos, 2)
            if len(octets) > self.left:
                raise EtfError(start, f"more than {self.limits.terms} elements")
            self.left -= len(octets)
            return list(octets), end
        if tag in (70, 99):
            return self.real(pos, tag)
        if tag == 77:
            count, bits = self.number(pos, 4), self.number(pos + 4, 1)
            self.need(pos + 5, count)
            if not 1 <= bits <= 8 or not count:
                raise EtfError(start, f"a bit string of {count} bytes whose last has {bits} bits")
            return BitBinary(bytes(self.view[pos + 5 : pos + 5 + count]), bits), pos + 5 + count
        if tag in _OPAQUE:
            end = self.opaque(tag, pos)
            return Opaque(bytes(self.view[start:end])), end
        raise EtfError(start, f"tag {tag} is not one of a stored term")

    def integer(self, pos: int, width: int) -> tuple[int, int]:
        count, sign = self.number(pos, width), self.number(pos + width, 1)
        pos += width + 1
        if count > MAX_INTEGER_BYTES or sign > 1:
            raise EtfError(pos, f"an integer of {count} bytes with sign {sign}; at most {MAX_INTEGER_BYTES} bytes and sign 0 or 1 are read")
        self.need(pos, count)
        value = int.from_bytes(self.view[pos : pos + count], "little")
        return (-value if sign else value), pos + count

    def real(self, pos: int, tag: int) -> tuple[float, int]:
        width = 8 if tag == 70 else 31
        self.need(pos, width)
        octets = bytes(self.view[pos : pos + width])
        try:
            value = _F64.unpack(octets)[0] if tag == 70 else float(octets.rstrip(b"\0"))
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise EtfError(pos, "a float that is not a finite number")
        return value, pos + width

    def opaque(self, tag: int, pos: int) -> int:
        """Return where the value after an opaque tag ends."""
        if tag == 112:
            size = self.number(pos, 4)
            self.need(pos, size)
            if size < 4:
                raise EtfError(pos, f"a function of {size} bytes, too short for its own size field")
            return pos + size
        if tag == 113:
            return self.inner(self.inner(self.inner(pos, "atom"), "atom"), "integer")
        words, rest = _OPAQUE[tag]
        if words:
            rest += 4 * self.number(pos, 2)
            pos += 2
        end = self.inner(pos, "atom")
        self.need(end, rest)
        return end + rest

    def inner(self, pos: int, kind: str) -> int:
        tag = self.number(pos, 1)
        if kind == "atom" and tag in _ATOMS:
            return self.atom(pos + 1, *_ATOMS[tag])[1]
        if kind == "integer" and tag in (97, 98):
            return self.plain(tag, pos + 1)[1] if tag == 98 else pos + 2
        raise EtfError(pos, f"tag {tag} where an {kind} belongs")


def _list_of(items: list[Term]) -> Term:
    tail = items.pop()
    if type(tail) is list:
        return items + tail if tail else items
    return ImproperList(tuple(items), tail) if items else tail


def _map_of(items: list[Term]) -> dict[Term, Term] | Pairs:
    keys, values = items[::2], items[1::2]
    pairs = Pairs(zip(keys, values, strict=True))
    if len(keys) > MAX_CHOSEN_KEYS and not all(type(key) in (Atom, bytes) or (type(key) is int and abs(key) < 1 << 60) for key in keys):
        return pairs
    try:
        result = dict(pairs)
    except TypeError:
        return pairs
    return result if len(result) == len(keys) else pairs


_ATOMS: dict[int, tuple[int, str]] = {100: (2, "latin-1"), 115: (1, "latin-1"), 118: (2, "utf-8"), 119: (1, "utf-8")}
# tag: width of the count, function from elements to value, elements per count
_CONTAINERS: dict[int, tuple[int, Callable[[list[Term]], Term], int]] = {
    104: (1, tuple, 1),
    105: (4, tuple, 1),
    108: (4, _list_of, 1),
    116: (4, _map_of, 2),
}
# tag: whether a count of 32-bit words precedes, bytes after the atom; the decoder treats 112 and 113 separately
_OPAQUE: dict[int, tuple[bool, int]] = {
    88: (False, 12),
    103: (False, 9),
    90: (True, 4),
    114: (True, 1),
    89: (False, 8),
    120: (False, 12),
    102: (False, 5),
    112: (False, 0),
    113: (False, 0),
}
