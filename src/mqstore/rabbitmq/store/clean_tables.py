"""The tables of a clean stop as a node loads them: where each message is, `msg_store_index.ets`, and its files, `file_summary.ets`.

A node that finds `clean.dot` reads no message file: it believes both tables. It loads them with `ets:file2tab`, which takes what there is:

    the file ends early, or in zeros    the rows before, without a word, also if the table was never closed; the same of eight zeros
                                        where the head of a row is looked for
    a row that is not a term            all other rows
    no log, or none of its properties   none: it reads the files instead
    a table of files without a row      3.10 takes 0.rdq for its last file, and 4.0 does not start the vhost
    an end mark without a list of facts none, and the vhost does not start (3.8.9)

A message that is not in the first table is not there for the node. Its queue ends when it comes to the message, and once it is started
again it drops all of them. A row that leads elsewhere ends the queue at every attempt. But up to 3.x it is the store that reads the last
file: it ends instead, and reads all files when it is started again, if a queue comes to such a message first. Without `clean.dot` a node
reads the files at once.

    >>> from mqstore.rabbitmq.erlang.disk_log import write_log
    >>> rows = [(_LOCATION, bytes(15) + b"a", 1, 0, 0, 99), (_LOCATION, bytes(15) + b"b", 0, 0, 99, 50)]
    >>> half = np.frombuffer(write_log([(Atom("name"),), *rows])[:-1], np.uint8)
    >>> Locations.of(half).find(np.array([0, 0]), np.array([97, 98])).tolist(), loadable(half), loadable(half[:9])
    ([0, -1], True, False)

Format: docs/formats/rabbitmq.md, sections 7.1 and 8.2.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.files import Bytes, ReadOnlyDirectory
from mqstore.kernels.rabbitmq import message_store
from mqstore.rabbitmq.erlang.disk_log import END_OF_TABLE, ITEM, items
from mqstore.rabbitmq.erlang.etf import EtfError, decode
from mqstore.rabbitmq.erlang.terms import Atom
from mqstore.rabbitmq.format import recovery_terms
from mqstore.rabbitmq.format.message_file import HEADER, OVERHEAD, halves

_LOCATION, _SUMMARY = Atom("msg_location"), Atom("file_summary")
_INT = rb"(a.|b.{4}|n\x04\x00.{4}|n\x05\x00.{5}|n\x06\x00.{6})"
# {msg_location, <<16 bytes>>, RefCount, File, Offset, TotalSize}, as every node writes it
_ROW = re.compile(rb"\x83h\x06(?:d\x00|[ws])\x0cmsg_locationm\x00\x00\x00\x10(.{16})" + _INT * 4, re.DOTALL)
_AHEAD = 1 << 16
_END_BYTES = 256  # that hold the end mark of a table, which has some 40


def loadable(data: Bytes) -> bool:
    """Return whether a node takes a table from these bytes, whole or not."""
    for item in items(data.data):
        try:
            return isinstance(decode(data.data[item.start : item.start + item.length])[0], tuple)
        except EtfError:
            return False
    return False


def stops_vhost(data: Bytes) -> bool:
    """Return whether a node that reads a table fails at its end: `ets:file2tab` looks for a fact in what is not a list.

    >>> from mqstore.rabbitmq.erlang.disk_log import write_log
    >>> tables = (write_log([(Atom("name"),), [END_OF_TABLE, facts]]) for facts in ([(Atom("count"), 0)], (Atom("count"), 0)))
    >>> [stops_vhost(np.frombuffer(table, np.uint8)) for table in tables]
    [False, True]
    """
    last = bytes(data.data[-_END_BYTES:])
    return _is_bad_end(last[last.rfind(ITEM) + len(ITEM) :]) and any(map(_is_bad_end, _terms(data)))


def _is_bad_end(term: bytes) -> bool:
    try:
        mark = decode(term)[0]
    except EtfError:
        return False
    return isinstance(mark, list) and len(mark) == 2 and mark[0] == END_OF_TABLE and not isinstance(mark[1], list)


def _terms(data: Bytes) -> Iterator[bytes]:
    """Yield the terms of a table after its properties. What follows a damaged head of an item is read from the next mark on."""
    view = data.data
    at, first = 8, True
    while True:
        for item in items(view, at):
            at = item.start + item.length
            if not first:
                yield bytes(view[item.start : at])
            first = False
        if first or not any(view[at : at + 8]):
            return
        ahead = bytes(view[at + 1 : at + 5 + _AHEAD])
        following, zeros = ahead.find(ITEM, 4) - 4, ahead.find(bytes(8))
        if following < 0 or 0 <= zeros < following:
            return
        at += following + 1


def _number(term: bytes) -> int:
    if term[0] in b"ab":
        return int.from_bytes(term[1:], "big", signed=term[:1] == b"b")  # one byte has no sign
    return int.from_bytes(term[3:], "little")


def _location(term: bytes) -> tuple[bytes, int, int, int, int] | None:
    """Return id, references, file, offset and total of a row; None if it is not one."""
    row = _ROW.fullmatch(term)
    if row is not None:
        return row[1], _number(row[2]), _number(row[3]), _number(row[4]), _number(row[5])
    try:
        other = decode(term)[0]
    except EtfError:
        return None
    if not isinstance(other, tuple) or len(other) != 6 or other[0] != _LOCATION or not isinstance(other[1], bytes) or len(other[1]) != 16:
        return None
    numbers = [each for each in other[2:] if isinstance(each, int) and -(1 << 63) <= each < 1 << 63]
    return (other[1], numbers[0], numbers[1], numbers[2], numbers[3]) if len(numbers) == 4 else None


@dataclass(frozen=True, slots=True)
class Locations:
    """The messages that a node finds, in order of their ids: halves of the id, file number, offset and total bytes of the record."""

    hi: NDArray[np.int64]
    lo: NDArray[np.int64]
    file: NDArray[np.int64]
    at: NDArray[np.int64]
    total: NDArray[np.int64]

    @classmethod
    def of(cls, data: Bytes) -> Locations:
        """Read the table `msg_store_index.ets`. Rows without a reference are not messages."""
        ids = bytearray()
        numbers = array("q")
        for term in _terms(data):
            row = _location(term)
            if row is not None and row[1]:
                ids += row[0]
                numbers.extend(row[2:])
        hi, lo = halves(bytes(ids)).T
        columns = np.frombuffer(numbers, np.int64).reshape(-1, 3)
        order = np.lexsort((lo, hi))
        return cls(*(np.ascontiguousarray(column[order]) for column in (hi, lo, *columns.T)))

    def find(self, hi: NDArray[np.int64], lo: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of each id, or -1."""
        rows = np.full(len(hi), -1, np.int64)
        if len(self.hi):
            message_store.find_ids(self.hi, self.lo, np.ascontiguousarray(hi), np.ascontiguousarray(lo), rows)
        return rows


class CleanTables:
    """Both tables of a message store. place: its directory, relative to the root."""

    def __init__(self, directory: ReadOnlyDirectory, place: str) -> None:
        self._directory = directory
        self._place = place
        self.locations = Locations.of(directory.map(f"{place}/msg_store_index.ets").data)
        self.sizes = dict(self._sizes())
        self._last = max(self.sizes, default=0)

    def _sizes(self) -> Iterator[tuple[int, int]]:
        """Yield number and size of each file in the table `file_summary.ets`."""
        for term in _terms(self._directory.map(f"{self._place}/file_summary.ets").data):
            try:
                row = decode(term)[0]
            except EtfError:
                continue
            if isinstance(row, tuple) and len(row) >= 6 and row[0] == _SUMMARY and isinstance(row[1], int) and isinstance(row[5], int):
                yield row[1], row[5]

    @cached_property
    def given_up(self) -> bool:
        """Whether the store ends at a message of its last file, and reads all files when it is started again."""
        return self._ends_at_last and not self.may_be_given_up

    @cached_property
    def may_be_given_up(self) -> bool:
        """Whether that depends on the order of the queues: one that comes to a message of another file first ends there each time."""
        return self._ends_at_last and any(
            not self._has_all(number) for number in np.unique(self.locations.file).tolist() if number != self._last
        )

    @cached_property
    def _ends_at_last(self) -> bool:
        dot = recovery_terms.read_clean_dot(self._directory.read(f"{self._place}/clean.dot") or b"")
        return not isinstance(dot, str) and dot.index_module is not None and not self._has_all(self._last)

    def _has_all(self, number: int) -> bool:
        """Return whether each row of a file leads to its message."""
        mine = np.flatnonzero(self.locations.file == number)
        return bool(self._are_there(number, mine, self.locations.hi[mine], self.locations.lo[mine]).all())

    def lead_to(self, hi: NDArray[np.int64], lo: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return for each id whether the node finds it, and whether it can read it there."""
        rows = self.locations.find(hi, lo)
        known = rows >= 0
        readable = known.copy()
        for number in np.unique(self.locations.file[rows[known]]).tolist():
            mine = np.flatnonzero(known & (self.locations.file[rows] == number))
            readable[mine] = self._are_there(number, rows[mine], hi[mine], lo[mine])
        return known, readable

    def _are_there(self, number: int, rows: NDArray[np.int64], hi: NDArray[np.int64], lo: NDArray[np.int64]) -> NDArray[np.bool_]:
        there = np.zeros(len(rows), np.bool_)
        if number not in self.sizes:  # a queue of 3.10 asks for it without end, and the store of 4.0 ends when it is acknowledged
            return there
        try:
            data = self._directory.mapped(f"{self._place}/{number}.rdq").data
        except CannotOpenError:
            return there
        size = len(data)
        if number == self._last:  # the node cuts it to the size in the table
            size = min(size, self.sizes[number])
        at, total = self.locations.at[rows], self.locations.total[rows]
        inside = (at >= 0) & (total > OVERHEAD) & (at <= size - total)
        for row in np.flatnonzero(inside).tolist():
            start, length = int(at[row]), int(total[row])
            id_ = np.array([hi[row], lo[row]], ">i8").tobytes()
            head = (length - OVERHEAD + 16).to_bytes(8, "big") + id_
            there[row] = data[start + length - 1] == 255 and data[start : start + HEADER].tobytes() == head
        return there
