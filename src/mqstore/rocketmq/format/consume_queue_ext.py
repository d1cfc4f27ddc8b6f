"""Extended consume queue: tags codes moved out of the consume queue, each with a time and a filter bitmap.

A broker with enableConsumeQueueExt stores an address in place of the tags code. The address is the position of a unit in
the file queue `consumequeue_ext/<topic>/<queueId>`, plus -2^63, so every address is below every 32-bit hash:

    unit     0   2  size of the unit, 20 + bitmap bytes        10   8  store time, ms
             2   8  tags code                                  18   2  bitmap bytes, then the bitmap

Units do not cross files: a size of -1, or any other size that is not positive, ends a file.

    >>> unit = unpack(bytes.fromhex("001c000000000027a8070000017e12ef9c7b00080102030405060708"), 0)
    >>> unit.address, unit.size, unit.tags_code, unit.store_timestamp, unit.bitmap.hex()
    (-9223372036854775808, 28, 2598919, 1640995200123, '0102030405060708')
    >>> is_address(-(2**63) + 28), is_address(-(2**31))
    (True, False)

Format: docs/formats/rocketmq.md, section 4.8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from mqstore.errors import CannotOpenError
from mqstore.files import MappedFile, ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rocketmq.format import mapped_file_queue
from mqstore.rocketmq.format.mapped_file_queue import QueueFile

DEFAULT_FILE_SIZE = 50_331_648
MIN_UNIT_SIZE = 20

_BASE = -(1 << 63)
_MAX_ADDRESS = -(1 << 31) - 1
UNIT = struct.Struct(">hqqh")


class ExtUnit(NamedTuple):
    """One unit. address: as consume queue entries hold it. size: of the whole unit in bytes."""

    address: int
    size: int
    tags_code: int
    store_timestamp: int
    bitmap: bytes


def is_address(tags_code: int) -> bool:
    """Return whether a stored tags code is the address of a unit."""
    return tags_code <= _MAX_ADDRESS


def address_of(position: int) -> int:
    """Return the address of the unit at a position of the run."""
    return position + _BASE


def position_of(address: int) -> int:
    """Return the position in the run that an address refers to."""
    return address - _BASE


def unpack(raw: bytes, position: int) -> ExtUnit | None:
    """Unpack the unit at the start of raw, which begins at `position` of the run; None if it is not valid."""
    if len(raw) < MIN_UNIT_SIZE:
        return None
    size, tags_code, store_timestamp, bitmap = UNIT.unpack_from(raw)
    if size < MIN_UNIT_SIZE or size > len(raw) or bitmap != size - MIN_UNIT_SIZE:
        return None
    return ExtUnit(address_of(position), size, tags_code, store_timestamp, raw[MIN_UNIT_SIZE:size])


class ConsumeQueueExt:
    """The extended queue of one topic queue; empty if the store does not have one."""

    def __init__(self, directory: ReadOnlyDirectory, topic: str, queue_id: int, *, file_size: int | None = None) -> None:
        self.relative = f"consumequeue_ext/{topic}/{queue_id}"
        self._directory = directory
        self._file_size = file_size

    @cached_property
    def queue(self) -> mapped_file_queue.FileQueue:
        """The files, listed on first use."""
        return mapped_file_queue.load(self._directory, self.relative, size=self._file_size)

    def _mapped(self, file: QueueFile) -> MappedFile | None:
        try:
            return self._directory.mapped(file.relative)
        except CannotOpenError:
            return None

    def unit(self, address: int) -> ExtUnit | None:
        """Return the unit at an address, or None if no valid unit is there."""
        position = position_of(address)
        file = self.queue.file_at(position) if is_address(address) else None
        mapped = self._mapped(file) if file is not None else None
        if file is None or mapped is None:
            return None
        at = position - file.start
        return unpack(mapped.bytes(at, at + 0x7FFF), position)

    def tags_code(self, stored: int) -> int:
        """Resolve a stored tags code: the unit's code if it is the address of a unit, else itself."""
        if not is_address(stored):
            return stored
        unit = self.unit(stored)
        return stored if unit is None else unit.tags_code

    def scan(self) -> Iterator[ExtUnit | Damage]:
        """Yield all units in order. An invalid unit with a usable size is a finding, and the scan goes on after it."""
        for file in self.queue.files:
            mapped = self._mapped(file)
            if mapped is None:
                yield Damage(file.relative, 0, file.size, Kind.UNREADABLE, "the file cannot be read")
                continue
            at = 0
            while at + 2 <= mapped.size:
                raw = mapped.bytes(at, at + 0x7FFF)
                size = int.from_bytes(raw[:2], "big", signed=True)
                if size <= 0:
                    break
                unit = unpack(raw, file.start + at)
                yield (
                    unit
                    if unit is not None
                    else Damage(
                        file.relative,
                        at,
                        min(size, len(raw)),
                        Kind.BAD_QUEUE_ENTRY,
                        f"{size} bytes that are not a valid extended queue unit",
                    )
                )
                at += size
