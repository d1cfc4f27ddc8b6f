"""The database `rocksdbstore`: index, half messages and timers of a broker that is set to keep them in RocksDB.

The index (`indexRocksDBEnable`), in the default family: a pair for each key, each tags text and each unique key of a record.

    key    i64 hour (store time without minutes, ms), `@topic@K@key@unique key@`, i64 physical offset
                                                      `@topic@T@tags@unique key@`
                                                      `@topic@U@unique key@`
    value  i64 store time, ms

    lastOffsetPy, lastStoreTimeStamp   i64: the newest record that has entries

A record without a unique key, or one that rolls a transaction back, has no entries. Text that is not UTF-8 is stored as Java reads it.

A broker goes through at most seven days of hours; a search here goes through all of them.

    >>> entry(bytes.fromhex("000001a200fb5100") + b"@orders@K@k-1@U1@" + (52830).to_bytes(8, "big"), b"@orders@K@k-1@")
    52830

Half messages (`transRocksDBEnable`), in family `trans`: those whose transaction is undecided.

    key    i64 physical offset of the half record, `@topic@unique key`
    value  i32 checks so far, i32 size of the record

    lastOffsetPy   i64 physical offset of the newest half record that was dispatched

With `transWriteOriginTransHalfEnable=false` half messages are in topic RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC, their op messages in
RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC; without it the broker keeps to the topics of other versions, and the family stays empty. A commit, a
rollback and one check too many remove the pair. An op message names the record in its property TRANS_OFFSET.

    >>> parse_half(bytes.fromhex("000000000000f1a1") + b"@orders@FD01", bytes.fromhex("00000007 00000205"))
    HalfMessage(physical_offset=61857, topic='orders', uniq_key='FD01', checks=7, size=517)

The timeline: messages with an arbitrary delay (`timerRocksDBEnable`), in family `timer`.

    key    i64 time at which the message is due, ms; its unique key, UTF-8
    value  i32 size, i64 physical offset of its record in topic rmq_sys_wheel_timer

    timeline_checkpoint                 i64: what is due before that time, in ms, has been delivered
    sys_topic_scan_offset_checkpoint    i64 queue offset in rmq_sys_wheel_timer up to which records are in the timeline

A broker removes the pairs of delivered messages half an hour later, and the pair of a recalled message at once. A record that was already
due when the broker read it never gets one. A message that is due in more than two hours is put again each hour, and its pair leads to
the newest record. After a kill the family is as of some moment before it, or empty: the write-ahead log is written in blocks.

    >>> parse_timer(bytes.fromhex("000001a2075b9c30") + b"FD01", bytes.fromhex("0000072c 00000000000015cf"))
    TimerPair(due_time=1795419774000, uniq_key='FD01', size=1836, physical_offset=5583)

Format: docs/formats/rocketmq.md, sections 5.10, 12.2 and 12.3.
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
HALF_MESSAGES_FAMILY = "trans"
_LAST = b"lastOffsetPy"
_HALF_VALUE = struct.Struct(">ii")
TIMELINE_FAMILY = "timer"
ROLL_LABEL = "TIMER_ROLL_LABEL"  # property of a record that was put again
_CHECKPOINT, _SCANNED = b"timeline_checkpoint", b"sys_topic_scan_offset_checkpoint"
_TIMER_VALUE = struct.Struct(">iq")


class IndexHit(NamedTuple):
    """An entry of a key. stored: store time of the record, ms."""

    hour: int
    physical_offset: int
    stored: int


def entry(key: bytes, expected: bytes) -> int | None:
    """Return the physical offset of an entry whose text begins with wanted, which follows the hour; None for other bytes."""
    if len(key) < 16 + len(expected) or not key.startswith(expected, 8):
        return None
    offset: int = _INT64.unpack_from(key, len(key) - 8)[0]
    return offset if offset >= 0 else None


def _number(family: Family, name: bytes) -> int | None:
    value = family.get(name)
    return int(_INT64.unpack(value)[0]) if value is not None and len(value) == _INT64.size else None


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
    hit = IndexHit(*(_INT64.unpack(part)[0] for part in (key[:8], key[-8:], value)))
    return hit if hit.physical_offset >= 0 else None


class _Pairs:
    """The pairs of one family."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def is_empty(self) -> bool:
        """Return whether the family holds nothing, as on a broker that keeps its contents in files."""
        return self._family.first(b"") is None


class RocksIndex(_Pairs):
    """The index of one store."""

    @property
    def last_offset(self) -> int | None:
        """Physical offset of the newest record with an entry; None if the index is empty."""
        return _number(self._family, b"lastOffsetPy")

    @property
    def last_store_timestamp(self) -> int | None:
        """Its store time."""
        return _number(self._family, b"lastStoreTimeStamp")

    def items(self, on_fault: OnFault | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield all pairs but the two names that follow the entries."""
        for key, value in self._family.items(on_fault=on_fault):
            if key not in _NAMES:
                yield key, value

    def stored(self, key: bytes) -> int | None:
        """Return the store time in the entry with a key; None if there is no such entry, or it cannot be read."""
        return _number(self._family, key)

    def hits(self, topic: str, key: str, limit: int, begin: int, end: int) -> list[IndexHit]:
        """Return the entries of a key, of KEYS or as the unique key, with a store time in [begin, end]; the oldest hours first."""
        texts = [f"@{topic}@".encode("utf-8", "surrogateescape") + kind + f"@{key}@".encode("utf-8", "surrogateescape") for kind in _KINDS]
        hits: dict[int, IndexHit] = {}
        at = max(0, begin) // HOUR * HOUR
        while len(hits) < limit and (pair := self._family.first(_INT64.pack(min(at, (1 << 63) - 1)))) is not None:
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
                    if offset is not None and stored is not None and begin <= stored <= end and len(hits) < limit:
                        hits.setdefault(offset, IndexHit(hour, offset, stored))
            at = hour + 1
        return list(hits.values())


class HalfMessage(NamedTuple):
    """A message that waits for a decision. topic: to which a commit puts it. physical_offset, size: of the half record."""

    physical_offset: int
    topic: str
    uniq_key: str
    checks: int
    size: int


def parse_half(key: bytes, value: bytes) -> HalfMessage | None:
    """Return what a pair says; None for a pair that is not of a half message."""
    if len(key) <= _INT64.size or len(value) != _HALF_VALUE.size:
        return None
    (offset,) = _INT64.unpack_from(key)
    checks, size = _HALF_VALUE.unpack(value)
    parts = key[_INT64.size :].decode("utf-8", "surrogateescape").split("@")
    if offset < 0 or checks < 0 or size <= 0 or len(parts) != 3 or parts[0] or not parts[1] or not parts[2]:
        return None
    return HalfMessage(offset, parts[1], parts[2], checks, size)


class HalfMessages(_Pairs):
    """The half messages of one store; none on a broker that keeps them in a queue."""

    @property
    def last_offset(self) -> int | None:
        """Physical offset of the newest half record that was dispatched; None if there is none."""
        return _number(self._family, _LAST)

    def items(self, on_fault: OnFault | None = None) -> Iterator[tuple[bytes, HalfMessage | None]]:
        """Yield (key, what the pair says) in the order of the log, without the name; None for other bytes."""
        for key, value in self._family.items(on_fault=on_fault):
            if key != _LAST:
                yield key, parse_half(key, value)


class TimerPair(NamedTuple):
    """A message in the timeline. due_time: ms. size, physical_offset: of its record in rmq_sys_wheel_timer."""

    due_time: int
    uniq_key: str
    size: int
    physical_offset: int


def parse_timer(key: bytes, value: bytes) -> TimerPair | None:
    """Return what a pair says; None for a pair that is not of a message."""
    if len(key) <= _INT64.size or len(value) != _TIMER_VALUE.size:
        return None
    (due,) = _INT64.unpack_from(key)
    size, offset = _TIMER_VALUE.unpack(value)
    if due <= 0 or size <= 0 or offset < 0:
        return None
    return TimerPair(due, key[_INT64.size :].decode("utf-8", "surrogateescape"), size, offset)


class Timeline(_Pairs):
    """The timeline of one store; empty on a broker that keeps its timers in the wheel."""

    @property
    def read_until(self) -> int:
        """Time before which all messages have been delivered, ms; 0 if none is stored."""
        return _number(self._family, _CHECKPOINT) or 0

    @property
    def scanned(self) -> int:
        """Queue offset in rmq_sys_wheel_timer up to which records are in the timeline; 0 if none is stored."""
        return _number(self._family, _SCANNED) or 0

    def pair(self, due_time: int, uniq_key: str) -> TimerPair | None:
        """Return the pair of a message; None if there is none."""
        key = _INT64.pack(due_time) + uniq_key.encode("utf-8", "surrogateescape")
        value = self._family.get(key)
        return parse_timer(key, value) if value is not None else None

    def items(self, on_fault: OnFault | None = None) -> Iterator[tuple[bytes, TimerPair | None]]:
        """Yield (key, what the pair says) in the order of due times, without the two names; None for other bytes."""
        for key, value in self._family.items(on_fault=on_fault):
            if key not in (_CHECKPOINT, _SCANNED):
                yield key, parse_timer(key, value)
