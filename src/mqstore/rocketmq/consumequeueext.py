"""Extended consume queue: what did not fit into 20 bytes of a queue entry, in `consumequeue_ext/<topic>/<queue id>`.

    offset  size  field                              A file ends with a size of -1.
         0     2  size of the unit
         2     8  tags code
        10     8  store time, ms
        18     2  bytes of the bitmap, then the bitmap

An entry's tags code leads here when it is at most -2147483649: the byte offset of the unit plus -2^63.

    >>> is_address(-2**63 + 28), offset_of(-2**63 + 28), is_address(-2147483648)
    (True, 28, False)

Format: docs/formats/rocketmq.md, section 4.8.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property

from mqstore.files import MappedFile, ReadOnlyDirectory
from mqstore.rocketmq import filequeue

__all__ = ["ConsumeQueueExt", "ExtUnit", "is_address", "offset_of"]

HIGHEST_ADDRESS = -2147483649
_UNIT = struct.Struct(">hqqh")


@dataclass(frozen=True, slots=True)
class ExtUnit:
    """One unit. bitmap: the filter bits, empty where no filters are used."""

    size: int
    tags_code: int
    store_timestamp: int
    bitmap: bytes


def is_address(tags_code: int) -> bool:
    """Whether a stored tags code leads into the extended queue."""
    return tags_code <= HIGHEST_ADDRESS


def offset_of(address: int) -> int:
    """Byte offset of the unit at an address."""
    return address + 2**63


class ConsumeQueueExt:
    """The extended queue of one queue. A missing directory is an empty one."""

    def __init__(self, directory: ReadOnlyDirectory, topic: str, queue_id: int, *, file_size: int | None = None) -> None:
        self._directory = directory
        self._relative = f"consumequeue_ext/{topic}/{queue_id}"
        self._file_size = file_size
        self._maps: dict[str, MappedFile] = {}

    @cached_property
    def _queue(self) -> filequeue.FileQueue:
        return filequeue.load(self._directory, self._relative, size=self._file_size)

    def unit(self, address: int) -> ExtUnit | None:
        """The unit at an address; None where none can be read."""
        file = self._queue.file_at(offset_of(address)) if is_address(address) else None
        if file is None:
            return None
        mapped = self._maps.get(file.name)
        if mapped is None:
            mapped = self._maps[file.name] = self._directory.map(file.relative)
        at = offset_of(address) - file.start
        if at + _UNIT.size > mapped.size:
            return None
        size, tags_code, stored, length = _UNIT.unpack_from(mapped.data, at)
        if size < _UNIT.size or length != size - _UNIT.size or at + size > mapped.size:
            return None
        return ExtUnit(size, tags_code, stored, mapped.bytes(at + _UNIT.size, at + size))

    def tags_code(self, stored: int) -> int:
        """The tags code that a stored one stands for: itself, or what the unit at its address says."""
        unit = self.unit(stored) if is_address(stored) else None
        return stored if unit is None else unit.tags_code
