"""Checking the timer wheel: slots, the chains of units that they lead to, and the records of the units.

A chain goes from newer to older units, so that one that does not is cut where it turns: no chain is followed for ever. Slots that
have been read may lead to units that are no longer in the timer log. After an unclean exit the broker makes the wheel again from the timer
log; what differs then is a note, except for chains that loop and records that are missing.

Format: docs/formats/rocketmq.md, section 12.1.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mqstore.findings import Damage, Kind
from mqstore.rocketmq.format.system_topics import TIMER_TOPIC
from mqstore.rocketmq.format.timer_wheel import SLOT_SIZE, UNIT_SIZE, WHEEL, Slot, TimerLog, read_check, slots
from mqstore.rocketmq.store.store import RocketMQStore

MAX_FINDINGS = 200


class TimerProof:
    """The proof of one store's timers. Call `damage`, then `notes`. units, slots: how many were checked."""

    def __init__(self, store: RocketMQStore) -> None:
        self._store = store
        self._log = TimerLog(store.directory)
        check = read_check(store.directory)
        self._read_until = check.read_until if check is not None else 0
        self._differing = 0
        self.units = self.slots = 0

    def damage(self) -> Iterator[Damage]:
        """Yield what is wrong with wheel and timer log; at most `MAX_FINDINGS` slots and units one by one."""
        directory = self._store.directory
        if not directory.exists(WHEEL) and not self._log.queue.files:
            return
        yield from self._log.queue.findings
        size = directory.map(WHEEL).size if directory.exists(WHEEL) else 0
        if size % SLOT_SIZE:
            yield Damage(WHEEL, 0, size, Kind.BAD_TIMER, f"the wheel has {size} bytes, which is not a whole number of slots")
        count = 0
        for item in (*self._bad_slots(size // SLOT_SIZE), *self._bad_units()):
            count += 1
            if count <= MAX_FINDINGS:
                yield item
        if count > MAX_FINDINGS:
            yield Damage(WHEEL, 0, 0, Kind.BAD_TIMER, f"{count - MAX_FINDINGS} further slots and units are not valid")

    def notes(self) -> Iterator[str]:
        """Yield what a broker puts right when it starts."""
        if self._differing:
            yield f"{self._differing} slots of the timer wheel differ from the timer log: the broker's recovery makes them again"

    def _bad_slots(self, number: int) -> Iterator[Damage]:
        for slot in slots(self._store.directory):
            self.slots += 1
            if slot.second % number != slot.number:
                yield self._at(slot, f"the slot is for second {slot.second}, which belongs to slot {slot.second % number}")
                continue
            fault = self._fault(slot)
            if fault is None:
                continue
            if self._store.unclean and not fault[1]:
                self._differing += 1
            else:
                yield self._at(slot, fault[0])

    def _at(self, slot: Slot, sentence: str) -> Damage:
        return Damage(WHEEL, slot.number * SLOT_SIZE, SLOT_SIZE, Kind.BAD_TIMER, f"{sentence} (second {slot.second})")

    def _fault(self, slot: Slot) -> tuple[str, bool] | None:
        """Return (what is wrong with the chain of a slot, whether recovery keeps it); None if it is valid."""
        passed = slot.second * 1000 <= self._read_until
        position = slot.last
        while True:
            if position < self._log.start:
                return None if passed else (f"its chain leads to position {position}, before the timer log", False)
            unit = self._log.unit(position)
            if unit is None:
                return f"its chain leads to position {position}, where no unit of the timer log starts", False
            time = int(unit["written"]) + int(unit["delay"])
            if time // 1000 != slot.second:
                return f"its chain leads to the unit at position {position}, which is for second {time // 1000}", False
            previous = int(unit["previous"])
            if previous == -1:
                break
            if previous >= position:
                return f"its chain loops: the unit at position {position} leads to one at {previous}, which is not older", True
            position = previous
        if position != slot.first:
            return f"its chain ends at position {position}, and not at its first unit, {slot.first}", False
        return None

    def _bad_units(self) -> Iterator[Damage]:
        log = self._store.log
        for start, units in self._log.blocks():
            for k in np.flatnonzero(units["unit_size"] != UNIT_SIZE).tolist():
                yield self._of_unit(start + UNIT_SIZE * k, f"the unit has size {int(units['unit_size'][k])}, and not {UNIT_SIZE}")
            times = units["written"].astype(np.int64) + units["delay"].astype(np.int64)
            self.units += len(units)
            for k in np.flatnonzero((units["unit_size"] == UNIT_SIZE) & (times > self._read_until)).tolist():
                physical, size = int(units["physical_offset"][k]), int(units["size"][k])
                message = log.record(physical)
                raw = log.raw(physical) if message is not None else None
                if message is None or raw is None:
                    what = "has expired" if physical < log.start else "cannot be read"
                    yield self._of_unit(start + UNIT_SIZE * k, f"a message waits, but its record at physical offset {physical} {what}", 1)
                elif message.topic != TIMER_TOPIC or len(raw) != size:
                    found = f"a record of topic {message.topic!r} with {len(raw)} bytes"
                    yield self._of_unit(start + UNIT_SIZE * k, f"it leads to physical offset {physical}, {size} bytes: {found}")

    def _of_unit(self, position: int, sentence: str, messages: int = 0) -> Damage:
        file = self._log.queue.file_at(position)
        name, at = ("timerlog", position) if file is None else (file.relative, position - file.start)
        return Damage(name, at, UNIT_SIZE, Kind.BAD_TIMER, sentence, messages)
