"""Slices of the commit log: the interface through which the read paths of a store read a log, however it is held.

    readable(p)       the written bytes of the file that holds p
    slice(p, size)    the bytes p .. p+size-1, or None unless one file holds them all

A broker that looks up physical offset 0 and finds no file for it reads the first file from its start. So a blank entry at
the front of a queue, whose physical offset is 0, leads to some other record once the beginning of the log has been
deleted. This is reproduced, because the broker's answers depend on it.

    >>> log = LogFiles([(64, memoryview(b"abcdefgh")), (128, memoryview(b"ABCD"))], 64)
    >>> log.min_offset, log.max_offset, bytes(log.slice(66, 3)), log.slice(130, 3), bytes(log.slice(0, 2))
    (64, 132, b'cde', None, b'ab')

Format: docs/formats/rocketmq.md, section 10.5.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from typing import Protocol

from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.format.record import BORN_HOST_IPV6, STORE_TIMESTAMP_AT, STORE_TIMESTAMP_AT_IPV6, SYS_FLAG_AT

_TIME = struct.Struct(">q")


class LogSlices(Protocol):
    """A commit log read by physical offset."""

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte; -1 without files."""
        ...

    @property
    def max_offset(self) -> int:
        """Physical offset after the last written byte; 0 without files."""
        ...

    @property
    def file_size(self) -> int: ...

    def readable(self, physical: int) -> tuple[int, memoryview] | None:
        """Return (start, bytes) of the file that holds an offset: byte p of the log is bytes[p - start]. None if no file holds it.

        If no file holds offset 0, returns (0, bytes of the first file) for it; only the record at offset 0 may be read from that.
        """
        ...

    def slice(self, physical: int, size: int) -> memoryview | None:
        """Return bytes physical..physical+size-1, or None if they are not all readable in one file."""
        ...


class LogFiles:
    """A log held in memory. files: start and written bytes of each, ascending."""

    def __init__(self, files: Iterable[tuple[int, memoryview]], file_size: int) -> None:
        self.files = list(files)
        self.file_size = file_size
        self._starts = [start for start, _ in self.files]

    @property
    def min_offset(self) -> int:
        return self._starts[0] if self.files else -1

    @property
    def max_offset(self) -> int:
        return self._starts[-1] + len(self.files[-1][1]) if self.files else 0

    def readable(self, physical: int) -> tuple[int, memoryview] | None:
        number = bisect_right(self._starts, physical) - 1
        if number >= 0 and physical < self._starts[number] + self.file_size:
            return self.files[number]
        return (0, self.files[0][1]) if physical == 0 and self.files else None

    def slice(self, physical: int, size: int) -> memoryview | None:
        readable = self.readable(physical)
        if readable is None or size < 0 or physical - readable[0] + size > len(readable[1]):
            return None
        at = physical - readable[0]
        return readable[1][at : at + size]


def roll_next_file(log: LogSlices, physical: int) -> int:
    """Return the start of the file after the one that an offset belongs to; the remainder of a negative one is negative, as in Java."""
    remainder = physical % log.file_size if physical >= 0 else -(-physical % log.file_size)
    return physical + log.file_size - remainder


def store_timestamp_in(raw: memoryview) -> int:
    """Return the store time of the record at the start of raw, or -1 if raw is too short."""
    wide = len(raw) >= SYS_FLAG_AT + 4 and raw[SYS_FLAG_AT + 3] & BORN_HOST_IPV6
    at = STORE_TIMESTAMP_AT_IPV6 if wide else STORE_TIMESTAMP_AT
    stored: int = _TIME.unpack_from(raw, at)[0] if len(raw) >= at + 8 else -1
    return stored


def store_timestamp_at(log: LogSlices, physical: int, size: int, version: str) -> int:
    """Return the store time of a record of a known size, or -1 if the log does not hold it (any more)."""
    if physical < log.min_offset or (version_rules(version).reads_within_log and physical + size > log.max_offset):
        return -1
    raw = log.slice(physical, size)
    return -1 if raw is None else store_timestamp_in(raw)
