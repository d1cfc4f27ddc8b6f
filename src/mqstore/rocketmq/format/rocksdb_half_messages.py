"""Half messages in RocksDB (`transRocksDBEnable`), in family `trans` of `rocksdbstore`: those whose transaction is undecided.

    key    i64 physical offset of the half record, `@topic@unique key`
    value  i32 checks so far, i32 size of the record

    lastOffsetPy   i64 physical offset of the newest half record that was dispatched

With `transWriteOriginTransHalfEnable=false` half messages are in topic RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC, their op messages in
RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC; without it the broker keeps to the topics of other versions, and the family stays empty. A commit, a
rollback and one check too many remove the pair. An op message names the record in its property TRANS_OFFSET.

    >>> parse_half(bytes.fromhex("000000000000f1a1") + b"@orders@FD01", bytes.fromhex("00000007 00000205"))
    HalfMessage(physical_offset=61857, topic='orders', uniq_key='FD01', checks=7, size=517)

Format: docs/formats/rocketmq.md, section 12.3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from mqstore.files.rocksdb import Family, OnFault

FAMILY = "trans"
_LAST = b"lastOffsetPy"
_INT64 = struct.Struct(">q")
_VALUE = struct.Struct(">ii")


class HalfMessage(NamedTuple):
    """A message that waits for a decision. topic: to which a commit puts it. physical_offset, size: of the half record."""

    physical_offset: int
    topic: str
    uniq_key: str
    checks: int
    size: int


def parse_half(key: bytes, value: bytes) -> HalfMessage | None:
    """Return what a pair says; None for a pair that is not of a half message."""
    if len(key) <= _INT64.size or len(value) != _VALUE.size:
        return None
    (offset,) = _INT64.unpack_from(key)
    checks, size = _VALUE.unpack(value)
    parts = key[_INT64.size :].decode("utf-8", "surrogateescape").split("@")
    if offset < 0 or checks < 0 or size <= 0 or len(parts) != 3 or parts[0] or not parts[1] or not parts[2]:
        return None
    return HalfMessage(offset, parts[1], parts[2], checks, size)


class HalfMessages:
    """The half messages of one store."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def is_empty(self) -> bool:
        """Return whether the family holds nothing, as on a broker that keeps half messages in a queue."""
        return self._family.first(b"") is None

    @property
    def last_offset(self) -> int | None:
        """Physical offset of the newest half record that was dispatched; None if there is none."""
        value = self._family.get(_LAST)
        return int(_INT64.unpack(value)[0]) if value is not None and len(value) == _INT64.size else None

    def items(self, on_fault: OnFault | None = None) -> Iterator[tuple[bytes, HalfMessage | None]]:
        """Yield (key, what the pair says) in the order of the log, without the name; None for other bytes."""
        for key, value in self._family.items(on_fault=on_fault):
            if key != _LAST:
                yield key, parse_half(key, value)
