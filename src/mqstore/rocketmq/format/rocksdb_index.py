"""The index in RocksDB (`indexRocksDBEnable`): a pair for each key, each tags text and each unique key of a record.

    key    i64 hour (store time without minutes, ms), `@topic@K@key@unique key@`, i64 physical offset
                                                      `@topic@T@tags@unique key@`
                                                      `@topic@U@unique key@`
    value  i64 store time, ms

    lastOffsetPy, lastStoreTimeStamp   i64: the newest record that has entries

A record without a unique key, or one that rolls a transaction back, has no entries. Text that is not UTF-8 is stored as Java reads it.

A broker goes through at most seven days of hours; a search here goes through all of them.

    >>> entry(bytes.fromhex("000001a200fb5100") + b"@orders@K@k-1@U1@" + (52830).to_bytes(8, "big"), b"@orders@K@k-1@")
    52830

Format: docs/formats/rocketmq.md, section 5.10.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from mqstore.files.rocksdb import Family, OnFault
from mqstore.rocketmq.format.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK, Record, split_keys

HOUR = 3_600_000
_INT64 = struct.Struct(">q")
_KINDS = (b"K", b"U")
_NAMES = (b"lastOffsetPy", b"lastStoreTimeStamp")


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


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def index_keys(record: Record) -> tuple[bytes, ...]:
    """Return the keys of the entries that a record must have."""
    properties = record.property_map()
    unique = properties.get("UNIQ_KEY")
    if not unique or record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return ()
    texts = [f"K@{key}@" for key in split_keys(properties.get("KEYS", ""))]
    if tags := properties.get("TAGS"):
        texts.append(f"T@{tags}@")
    hour = record.store_timestamp // HOUR * HOUR
    head, tail = _INT64.pack(hour) + _bytes(f"@{record.topic}@"), _bytes(f"{unique}@") + _INT64.pack(record.physical_offset)
    return tuple(dict.fromkeys(head + _bytes(text) + tail for text in (*texts, "U@")))


def parse_entry(key: bytes, value: bytes) -> IndexHit | None:
    """Return what an entry says; None for a pair that is not an entry."""
    if len(key) < 16 + len(b"@t@U@u@") or key[8:9] != b"@" or key[-9:-8] != b"@" or len(value) != 8:
        return None
    found = IndexHit(*(_INT64.unpack(part)[0] for part in (key[:8], key[-8:], value)))
    return found if found.physical_offset >= 0 else None


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

    def items(self, on_fault: OnFault | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield all pairs but the two names that follow the entries."""
        for key, value in self._family.items(on_fault=on_fault):
            if key not in _NAMES:
                yield key, value

    def stored(self, key: bytes) -> int | None:
        """Return the store time in the entry with a key; None if there is no such entry, or it cannot be read."""
        return self._number(key)

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
