r"""Erlang's disk log: the container of Mnesia's tables and of `file_summary.ets` and `msg_store_index.ets`.

    offset  size
         0     4  01 02 03 04
         4     4  63 58 4D 0B closed properly · 06 07 08 09 was open
         8     …  items, one after the other:
                    length n (4) | 62 57 4C 41 | MD5 of the 4 length bytes (16), only if n >= 65528 | n bytes, one term

In very old logs items have 0C 21 2C 37 and never an MD5. The last complete item ends the log; bytes after it are an unfinished write.

    >>> log = write_log([(Atom("log_header"), Atom("dcd_log"))])
    >>> log[:16].hex(" ")
    '01 02 03 04 63 58 4d 0b 00 00 00 1a 62 57 4c 41'
    >>> read_log(log).terms
    ((Atom('log_header'), Atom('dcd_log')),)

A table saved by `ets:tab2file` is such a log: the table's properties, its objects, and `['$end_of_table', [{count, n}]]`.

Format: docs/formats/rabbitmq.md, sections 8.2 and 11.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from mqstore.findings import Damage, Kind
from mqstore.rabbitmq.erlang.etf import Buffer, EtfError, decode
from mqstore.rabbitmq.erlang.terms import Atom, Term, encode

MAGIC = bytes.fromhex("01020304")
CLOSED = bytes.fromhex("63584d0b")
OPENED = bytes.fromhex("06070809")
ITEM = bytes.fromhex("62574c41")
OLD_ITEM = bytes.fromhex("0c212c37")
# from this length on, an item's header has a checksum
CHECKED_LENGTH = 65528
_LENGTH = struct.Struct(">I4s")
END_OF_TABLE = Atom("$end_of_table")


class LogItem(NamedTuple):
    """The position of an item. offset: of the item; start, length: of its term."""

    offset: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class DiskLog:
    """The terms of a log. closed: it was closed properly. end: where the last complete item ends. damage: unreadable parts."""

    terms: tuple[Term, ...]
    closed: bool
    end: int
    damage: tuple[Damage, ...] = ()


@dataclass(frozen=True, slots=True)
class SavedTable:
    """A table of `ets:tab2file`. whole: its end item exists and has the right count of objects."""

    properties: tuple[Term, ...]
    objects: tuple[Term, ...]
    whole: bool
    damage: tuple[Damage, ...] = ()


def items(data: Buffer, at: int = 8) -> Iterator[LogItem]:
    """Yield the complete items of a log from a position on, without decoding their terms."""
    view = data if isinstance(data, memoryview) else memoryview(cast(bytes, data))
    if view[:4] != MAGIC or view[4:8] not in (CLOSED, OPENED):
        return
    size = len(view)
    while at + 8 <= size:
        length, magic = _LENGTH.unpack_from(view, at)
        start = at + 8
        if magic == ITEM and length >= CHECKED_LENGTH:
            if view[start : start + 16] != hashlib.md5(view[at : at + 4], usedforsecurity=False).digest():
                return
            start += 16
        elif magic not in (ITEM, OLD_ITEM):
            return
        if length > size - start:
            return
        yield LogItem(at, start, length)
        at = start + length


def read_log(data: Buffer, file: str = "") -> DiskLog:
    """Return all terms of a log. file: its name in findings. A term that cannot be decoded is a finding."""
    view = data if isinstance(data, memoryview) else memoryview(cast(bytes, data))
    if view[:4] != MAGIC or view[4:8] not in (CLOSED, OPENED):
        return DiskLog((), False, 0, (Damage(file, 0, min(8, len(view)), Kind.BAD_SIDE_FILE, "The file is not an Erlang disk log."),))
    terms, damage, end = [], [], 8
    for item in items(view):
        end = item.start + item.length
        try:
            terms.append(decode(view[item.start : end])[0])
        except EtfError as error:
            damage.append(
                Damage(
                    file,
                    item.offset,
                    end - item.offset,
                    Kind.BAD_SIDE_FILE,
                    f"An item of the log is not a term: byte {error.offset}: {error.what}.",
                )
            )
    closed = view[4:8] == CLOSED
    if end != len(view) and (closed or any(view[end:])):
        damage.append(Damage(file, end, len(view) - end, Kind.BAD_SIDE_FILE, "The log ends within an item, or in other bytes."))
    return DiskLog(tuple(terms), closed, end, tuple(damage))


def write_log(terms: Sequence[Term], closed: bool = True) -> bytes:
    """Return the bytes of a log with these terms."""
    out = bytearray(MAGIC + (CLOSED if closed else OPENED))
    for term in terms:
        octets = encode(term)
        length = len(octets).to_bytes(4, "big")
        out += length + ITEM
        if len(octets) >= CHECKED_LENGTH:
            out += hashlib.md5(length, usedforsecurity=False).digest()
        out += octets
    return bytes(out)


# ets:tab2file


def read_table(data: Buffer, file: str = "") -> SavedTable:
    """Return a saved table with all its objects."""
    log = read_log(data, file)
    first, rest = log.terms[:1], log.terms[1:]
    properties = first[0] if first and isinstance(first[0], tuple) else ()
    last = rest[-1] if rest else None
    ended = isinstance(last, list) and last[:1] == [END_OF_TABLE]
    objects = rest[:-1] if ended else rest
    whole = log.closed and ended and not log.damage and last == [END_OF_TABLE, [(Atom("count"), len(objects))]]
    return SavedTable(properties, objects, whole, log.damage)


def write_table(table: SavedTable) -> bytes:
    """Return the bytes of a saved table, identical to those it was read from."""
    return write_log([table.properties, *table.objects, [END_OF_TABLE, [(Atom("count"), len(table.objects))]]])
