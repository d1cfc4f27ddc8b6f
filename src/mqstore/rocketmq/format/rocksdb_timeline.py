"""The timeline: messages with an arbitrary delay in RocksDB (`timerRocksDBEnable`), in family `timer` of `rocksdbstore`.

    key    i64 time at which the message is due, ms; its unique key, UTF-8
    value  i32 size, i64 physical offset of its record in topic rmq_sys_wheel_timer

    timeline_checkpoint                 i64: what is due before that time, in ms, has been delivered
    sys_topic_scan_offset_checkpoint    i64 queue offset in rmq_sys_wheel_timer up to which records are in the timeline

A broker removes the pairs of delivered messages half an hour later, and the pair of a recalled message at once. A record that was already
due when the broker read it never gets one. A message that is due in more than two hours is put again each hour, and its pair leads to
the newest record. After a kill the family is as of some moment before it, or empty: the write-ahead log is written in blocks.

    >>> parse_pair(bytes.fromhex("000001a2075b9c30") + b"FD01", bytes.fromhex("0000072c 00000000000015cf"))
    TimerPair(due_time=1795419774000, uniq_key='FD01', size=1836, physical_offset=5583)

Format: docs/formats/rocketmq.md, section 12.2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from mqstore.files.rocksdb import Family, OnFault

FAMILY = "timer"
ROLL_LABEL = "TIMER_ROLL_LABEL"  # property of a record that was put again
_CHECKPOINT, _SCANNED = b"timeline_checkpoint", b"sys_topic_scan_offset_checkpoint"
_INT64 = struct.Struct(">q")
_VALUE = struct.Struct(">iq")


class TimerPair(NamedTuple):
    """A message in the timeline. due_time: ms. size, physical_offset: of its record in rmq_sys_wheel_timer."""

    due_time: int
    uniq_key: str
    size: int
    physical_offset: int


def parse_pair(key: bytes, value: bytes) -> TimerPair | None:
    """Return what a pair says; None for a pair that is not of a message."""
    if len(key) <= _INT64.size or len(value) != _VALUE.size:
        return None
    (due,) = _INT64.unpack_from(key)
    size, offset = _VALUE.unpack(value)
    if due <= 0 or size <= 0 or offset < 0:
        return None
    return TimerPair(due, key[_INT64.size :].decode("utf-8", "surrogateescape"), size, offset)


class Timeline:
    """The timeline of one store."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def _number(self, name: bytes) -> int | None:
        value = self._family.get(name)
        return int(_INT64.unpack(value)[0]) if value is not None and len(value) == _INT64.size else None

    def is_empty(self) -> bool:
        """Return whether the family holds nothing, as on a broker that keeps its timers in the wheel."""
        return self._family.first(b"") is None

    @property
    def read_until(self) -> int:
        """Time before which all messages have been delivered, ms; 0 if none is stored."""
        return self._number(_CHECKPOINT) or 0

    @property
    def scanned(self) -> int:
        """Queue offset in rmq_sys_wheel_timer up to which records are in the timeline; 0 if none is stored."""
        return self._number(_SCANNED) or 0

    def pair(self, due_time: int, uniq_key: str) -> TimerPair | None:
        """Return the pair of a message; None if there is none."""
        key = _INT64.pack(due_time) + uniq_key.encode("utf-8", "surrogateescape")
        value = self._family.get(key)
        return parse_pair(key, value) if value is not None else None

    def items(self, on_fault: OnFault | None = None) -> Iterator[tuple[bytes, TimerPair | None]]:
        """Yield (key, what the pair says) in the order of due times, without the two names; None for other bytes."""
        for key, value in self._family.items(on_fault=on_fault):
            if key not in (_CHECKPOINT, _SCANNED):
                yield key, parse_pair(key, value)
