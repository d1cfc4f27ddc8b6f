"""Messages with an arbitrary delay: which ones wait, until when, and which were delivered or recalled.

    waiting      the slot of its second has not been read, or the record has not reached the wheel yet
    delivered    the slot was read: the message is in its real topic
    recalled     a unit of the same second names its unique key: the broker drops it
    unknown      there is no config/timercheck, so nothing shows how far the wheel was read

A message that is due after the range of the wheel is put into it again each time that its slot is reached: only its newest unit counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mqstore.findings import Damage
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.format.timer_wheel import RECALLS, ROLLED, TOPIC, UNIT_SIZE, TimerLog, read_check
from mqstore.rocketmq.store.store import RocketMQStore

__all__ = ["TIMER_NAMES", "Timer", "Timers"]

TIMER_NAMES = ("due_time", "topic", "queue_id", "physical_offset", "size", "uniq_key", "state")
_CHUNK = 4096


class Timer(NamedTuple):
    """One message. due_time: ms. topic, queue_id: to which it is delivered. physical_offset, size: of the record that waits."""

    due_time: int
    topic: str
    queue_id: int | None
    physical_offset: int
    size: int
    uniq_key: str | None
    state: str


class Timers:
    """The timers of a store. removed: delivered ones whose record has expired; unread: further ones whose record cannot be read."""

    def __init__(self, store: RocketMQStore) -> None:
        self._store = store
        self.log = TimerLog(store.directory)
        self.check = read_check(store.directory)
        self.unread = 0
        self.removed = 0

    @property
    def file_findings(self) -> tuple[Damage, ...]:
        """Findings about names and sizes of the files of the timer log."""
        return self.log.queue.findings

    def notes(self) -> Iterator[str]:
        """Yield what limits the answer, once the rows have been read."""
        for item in self.file_findings:
            yield f"{item.file}: {item.detail}"
        if self.unread:
            yield (
                f"{self.unread} units of the timer log lead to records that are damaged or no longer in the log, and are left out; "
                "`mqstore verify` reports them"
            )
        if self.removed:
            yield f"{self.removed} delivered messages are left out: their records have expired"
        if self.check is None and self.log.queue.files:
            yield "config/timercheck is missing or too short: nothing shows how far the timer wheel was read"
        if self.check is not None and self._store.unclean:
            yield "the broker did not exit cleanly: it delivers again what was due after it last wrote config/timercheck"
        if self._store.unread_queues is not None:
            yield "the consume queues are not read: messages that have not reached the timer wheel are left out"

    def rows(self) -> Iterator[Timer]:
        """Yield the messages of the timer log, and then those that have not reached it, in the order of arrival."""
        recalled = self._recalled()
        newest = -1
        for _, units in self.log.blocks():
            for unit in units[units["unit_size"] == UNIT_SIZE]:
                physical = int(unit["physical_offset"])
                newest = max(newest, physical)
                if int(unit["bits"]) & RECALLS:
                    continue
                row = self._row(physical, int(unit["size"]), int(unit["written"]) + int(unit["delay"]), int(unit["bits"]), recalled)
                if row is not None:
                    yield row
        yield from self._not_in_wheel(newest, recalled)

    def _recalled(self) -> set[tuple[int, str]]:
        """Return (due time, unique key) of every message that is recalled."""
        found: set[tuple[int, str]] = set()
        newest = -1
        for _, units in self.log.blocks():
            units = units[units["unit_size"] == UNIT_SIZE]
            newest = max(newest, int(units["physical_offset"].max(initial=-1)))
            for physical in units["physical_offset"][(units["bits"] & RECALLS) != 0].tolist():
                found.update(_recall(self._store.log.record(physical)))
        for physical in self._queued(newest):
            found.update(_recall(self._store.log.record(physical)))
        return found

    def _row(self, physical: int, size: int, slot_time: int, bits: int, recalled: set[tuple[int, str]]) -> Timer | None:
        passed = self.check is not None and slot_time <= self.check.read_until
        if passed and bits & ROLLED:
            return None
        message = self._store.log.record(physical)
        if message is None or message.topic != TOPIC:
            if passed and physical < self._store.log.start:
                self.removed += 1
            else:
                self.unread += 1
            return None
        properties = message.property_map()
        due = _number(properties.get("TIMER_OUT_MS")) or slot_time
        key = properties.get("UNIQ_KEY")
        if key is not None and (due, key) in recalled:
            state = "recalled"
        elif self.check is None:
            state = "unknown"
        else:
            state = "delivered" if passed else "waiting"
        queue_id = _number(properties.get("REAL_QID"))
        if queue_id is not None and queue_id >= 1 << 31:
            queue_id = None
        return Timer(due, properties.get("REAL_TOPIC", ""), queue_id, physical, size, key, state)

    def _queued(self, newest: int) -> Iterator[int]:
        """Yield the physical offsets of the records that have not reached the timer log."""
        view = self._store.view()
        queue = view.queue_or_none(TOPIC, 0)
        if queue is None:
            return
        low, _ = view.log_range()
        first, high = queue.min_offset, queue.max_offset
        begin = first
        while begin < high:  # entries ascend: find the first that is newer
            middle = (begin + high) // 2
            if int(queue.entries(middle, middle + 1)["physical_offset"][0]) > newest:
                high = middle
            else:
                begin = middle + 1
        for start in range(begin, queue.max_offset, _CHUNK):
            physical = queue.entries(start, min(queue.max_offset, start + _CHUNK))["physical_offset"].astype(np.int64)
            yield from physical[(physical > newest) & (physical >= low)].tolist()

    def _not_in_wheel(self, newest: int, recalled: set[tuple[int, str]]) -> Iterator[Timer]:
        for physical in self._queued(newest):
            message = self._store.log.record(physical)
            if message is None or "TIMER_DEL_UNIQKEY" in message.property_map():
                continue
            size = len(self._store.log.raw(physical) or b"")
            row = self._row(physical, size, 1 << 62, 0, recalled)
            if row is not None:
                yield row


def _recall(message: Record | None) -> Iterator[tuple[int, str]]:
    """Yield (due time, unique key) of the message that a record recalls."""
    properties = message.property_map() if message is not None and message.topic == TOPIC else {}
    due, key = _number(properties.get("TIMER_OUT_MS")), properties.get("TIMER_DEL_UNIQKEY")
    if due is not None and key:
        yield due, key


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None
