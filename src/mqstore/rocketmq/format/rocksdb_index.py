"""The index in RocksDB (`indexRocksDBEnable`): a pair for each key, each tags text and each unique key of a record.

    key    i64 hour (store time without minutes, ms), `@topic@K@key@unique key@`, i64 physical offset
                                                      `@topic@T@tags@unique key@`
                                                      `@topic@U@unique key@`
    value  i64 store time, ms

    lastOffsetPy, lastStoreTimeStamp   i64: the newest record that has entries

A broker goes through at most seven days of hours; a search here goes through all of them.

    >>> entry(bytes.fromhex("000001a200fb5100") + b"@orders@K@k-1@U1@" + (52830).to_bytes(8, "big"), b"@orders@K@k-1@")
    52830

Format: docs/formats/rocketmq.md, section 5.10.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from mqstore.files.rocksdb import Family

__all__ = ["IndexHit", "RocksIndex", "entry"]

HOUR = 3_600_000
_INT64 = struct.Struct(">q")
_KINDS = (b"K", b"U")


class IndexHit(NamedTuple):
    """An entry of a key. stored: store time of the record, ms."""

    hour: int
    physical_offset: int
    stored: int


def entry(key: bytes, wanted: bytes) -> int | None:
    """Return the physical offset of an entry whose text begins with wanted, which follows the hour; None for other bytes."""
    if len(key) < 16 + len(wanted) or not key.startswith(wanted, 8):
        return None
    found: int = _INT64.unpack_from(key, len(key) - 8)[0]
    return found if found >= 0 else None


class RocksIndex:
    """The index of one store."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def _number(self, name: bytes) -> int | None:
        value = self._family.get(name)
        return int(_INT64.unpack(value)[0]) if value is not None and len(value) == 8 else None

    @property
    def last_offset(self) -> int | None:
        """Physical offset of the newest record with an entry; None if the index is empty."""
        return self._number(b"lastOffsetPy")

    @property
    def last_store_timestamp(self) -> int | None:
        """Its store time."""
        return self._number(b"lastStoreTimeStamp")

    def hits(self, topic: str, key: str, limit: int, begin: int, end: int) -> list[IndexHit]:
        """Return the entries of a key, of KEYS or as the unique key, with a store time in [begin, end]; the oldest hours first."""
        texts = [f"@{topic}@".encode("utf-8", "surrogateescape") + kind + f"@{key}@".encode("utf-8", "surrogateescape") for kind in _KINDS]
        found: dict[int, IndexHit] = {}
        at = max(0, begin) // HOUR * HOUR
        while len(found) < limit and (pair := self._family.first(_INT64.pack(min(at, (1 << 63) - 1)))) is not None:
            if len(pair[0]) < 9 or pair[0][8:9] != b"@":
                break  # the names after the entries
            hour: int = _INT64.unpack_from(pair[0])[0]
            if hour > end:
                break
            for text in texts:
                prefix = _INT64.pack(hour) + text
                for name, value in self._family.items(prefix, prefix + b"\xff" * 9):
                    offset = entry(name, text)
                    stored = int(_INT64.unpack(value)[0]) if len(value) == 8 else None
                    if offset is not None and stored is not None and begin <= stored <= end and len(found) < limit:
                        found.setdefault(offset, IndexHit(hour, offset, stored))
            at = hour + 1
        return list(found.values())
