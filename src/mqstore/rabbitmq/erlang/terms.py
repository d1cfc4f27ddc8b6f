"""Erlang terms as plain Python values, and their encoding as OTP writes it.

An atom is an `Atom`, a binary `bytes`, a string a list of numbers; tuples, lists, maps, integers and floats are Python's own.

    >>> encode((Atom("ok"), [1, 2, 3], [1, 300])).hex(" ")
    '83 68 03 64 00 02 6f 6b 6b 00 03 01 02 03 6c 00 00 00 02 61 01 62 00 00 01 2c 6a'

The output is that of OTP 25, byte for byte; with `atoms="utf8"` that of OTP 26 and newer. Maps keep their order: OTP 25 writes up to
32 keys in Erlang's term order.

Format: docs/formats/rabbitmq.md, section 9; the tags are listed in `etf`.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, Literal

Term = Any

VERSION = 131
MAX_ATOM_LENGTH = 255

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_I32 = struct.Struct(">i")
_F64 = struct.Struct(">d")


class Atom(str):
    """An atom. Equal to the text of its name; a binary is `bytes`, so the two cannot be confused."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Atom({str.__repr__(self)})"


class Pairs(tuple[tuple[Term, Term], ...]):
    """A map as its pairs, if a dict cannot hold it: keys that are lists or maps, or that Python considers equal."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class BitBinary:
    """A bit string. bits: number of used bits in the last byte, 1 to 8."""

    octets: bytes
    bits: int


@dataclass(frozen=True, slots=True)
class ImproperList:
    """A list whose tail is not a list."""

    items: tuple[Term, ...]
    tail: Term


@dataclass(frozen=True, slots=True)
class Opaque:
    """A pid, reference, port or function. encoded: its bytes, tag included."""

    encoded: bytes


def encode(term: Term, atoms: Literal["latin1", "utf8"] = "latin1") -> bytes:
    """Return the bytes that OTP writes for a term. atoms: `latin1` as up to OTP 25, `utf8` as since OTP 26.

    Raises TypeError for a value that is not a term, and ValueError for one out of range.
    """
    out = bytearray([VERSION])
    todo: list[Term] = [term]
    while todo:
        value = todo.pop()
        if type(value) is _RawBytes:
            out += value.octets
        elif isinstance(value, Atom):
            out += _atom_bytes(value, atoms)
        elif isinstance(value, bytes):
            out += b"m" + _U32.pack(len(value))
            out += value
        elif isinstance(value, Pairs | dict):
            pairs = list(value.items() if isinstance(value, dict) else value)
            out += b"t" + _U32.pack(len(pairs))
            for key, item in reversed(pairs):
                todo += (item, key)
        elif isinstance(value, tuple):
            out += bytes([104, len(value)]) if len(value) < 256 else b"i" + _U32.pack(len(value))
            todo.extend(reversed(value))
        elif isinstance(value, list):
            if value and len(value) < 1 << 16 and all(type(item) is int and 0 <= item <= 255 for item in value):
                out += b"k" + _U16.pack(len(value)) + bytes(value)
            elif value:
                out += b"l" + _U32.pack(len(value))
                todo.append(_NIL)
                todo.extend(reversed(value))
            else:
                out += b"j"
        elif type(value) is int:
            out += _int_bytes(value)
        elif type(value) is float and math.isfinite(value):
            out += b"F" + _F64.pack(value)
        elif isinstance(value, ImproperList):
            out += b"l" + _U32.pack(len(value.items))
            todo.append(value.tail)
            todo.extend(reversed(value.items))
        elif isinstance(value, BitBinary):
            out += b"M" + _U32.pack(len(value.octets)) + bytes([value.bits]) + value.octets
        elif isinstance(value, Opaque):
            out += value.encoded
        else:
            raise TypeError(f"{value!r} is not an Erlang term; use Atom for atoms and bytes for binaries")
    return bytes(out)


@dataclass(frozen=True, slots=True)
class _RawBytes:
    octets: bytes


_NIL = _RawBytes(b"j")


def _atom_bytes(atom: Atom, atoms: str) -> bytes:
    if len(atom) > MAX_ATOM_LENGTH:
        raise ValueError(f"an atom has at most {MAX_ATOM_LENGTH} characters, not {len(atom)}")
    if atoms == "latin1":
        try:
            name = atom.encode("latin-1")
            return b"d" + _U16.pack(len(name)) + name
        except UnicodeEncodeError:
            pass
    name = atom.encode("utf-8")
    return bytes([119, len(name)]) + name if len(name) < 256 else b"v" + _U16.pack(len(name)) + name


def _int_bytes(value: int) -> bytes:
    if 0 <= value <= 255:
        return bytes([97, value])
    if -(1 << 31) <= value < 1 << 31:
        return b"b" + _I32.pack(value)
    octets = abs(value).to_bytes((abs(value).bit_length() + 7) // 8, "little")
    sign = value < 0
    return bytes([110, len(octets), sign]) + octets if len(octets) < 256 else b"o" + _U32.pack(len(octets)) + bytes([sign]) + octets
