"""Checking the timer wheel: slots, the chains of units that they lead to, and the records of the units.

A chain goes from newer to older units, so that one that does not is cut where it turns: no chain is followed for ever. Slots that
have been read may lead to units that are no longer in the timer log. After an unclean exit the broker makes the wheel again from the timer
log; what differs then is a note, except for chains that loop and records that are missing.

Format: docs/formats/rocketmq.md, sections 12.1, 12.2 and 12.3.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mqstore.findings import Damage, Kind
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.format.rocksdb_store import HalfMessage, Timeline, TimerPair
from mqstore.rocketmq.format.system_topics import ROCKSDB_HALF_TOPIC, TIMER_TOPIC
from mqstore.rocketmq.format.timer_wheel import SLOT_SIZE, UNIT_SIZE, WHEEL, Slot, TimerLog, read_check, slots
from mqstore.rocketmq.store.databases import INDEX_PLACE
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.store.timers import Timers

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
        size = directory.map(WHEEL).size if directory.exists(WHEEL) and not directory.is_directory(WHEEL) else 0
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
                    record = f"a record of topic {message.topic!r} with {len(raw)} bytes"
                    yield self._of_unit(start + UNIT_SIZE * k, f"it leads to physical offset {physical}, {size} bytes: {record}")

    def _of_unit(self, position: int, sentence: str, messages: int = 0) -> Damage:
        file = self._log.queue.file_at(position)
        name, at = ("timerlog", position) if file is None else (file.relative, position - file.start)
        return Damage(name, at, UNIT_SIZE, Kind.BAD_TIMER, sentence, messages)


# Comparing timers and half messages in RocksDB with the log.
#
# A pair of a message that waits must lead to its record: same topic, size, due time and unique key. A message that the broker has read,
# that is due later than both of its clocks and was not recalled must have a pair. What has been delivered may have lost its record. A half
# message without a pair is decided, given up or not dispatched yet; none of them is damage.


class TimelineProof:
    """The proof of both families of one store. Call `damage`, then `notes`."""

    def __init__(self, store: RocketMQStore) -> None:
        self._store = store
        self._faults: list[str] = []

    def damage(self) -> Iterator[Damage]:
        """Yield what is wrong; at most `MAX_FINDINGS` pairs of each family one by one."""
        timeline = self._store.timeline
        if timeline is not None:
            yield from _limited(self._timers(timeline), Kind.BAD_TIMER, "timers")
        yield from _limited(self._halves(), Kind.BAD_TRANSACTION, "half messages")

    def notes(self) -> Iterator[str]:
        """Yield what could not be compared."""
        if self._store.has_unread_entries and any(
            queue.topic in (TIMER_TOPIC, ROCKSDB_HALF_TOPIC) for queue in self._store.view().queues()
        ):
            yield f"{self._store.unread_sentence('timers and half messages', INDEX_PLACE)}; whether it has any is not known"
        if self._faults:
            yield f"not all timers and half messages in RocksDB ({INDEX_PLACE}) can be read: what they lead to is not known"

    def _timers(self, timeline: Timeline) -> Iterator[Damage]:
        read_until = timeline.read_until
        for key, pair in timeline.items(self._faults.append):
            if pair is None:
                yield _at(Kind.BAD_TIMER, f"the pair with key {key[:80].hex()} is not that of a message in the timeline")
            elif pair.due_time >= read_until:
                yield from self._timer(pair)
        if not self._faults:
            for row in Timers(self._store).without_pair():
                sentence = f"the message at physical offset {row.physical_offset} waits until {row.due_time}, and the timeline lacks it"
                yield _at(Kind.BAD_TIMER, f"{sentence}; the broker will not deliver it", 1)

    def _timer(self, pair: TimerPair) -> Iterator[Damage]:
        message, size = self._record(pair.physical_offset)
        where = f"a message waits until {pair.due_time}, but its record at physical offset {pair.physical_offset}"
        if message is None:
            yield _at(Kind.BAD_TIMER, f"{where} {self._absent(pair.physical_offset)}", 1)
            return
        properties = message.property_map()
        expected = (TIMER_TOPIC, pair.size, str(pair.due_time), pair.uniq_key)
        if (message.topic, size, properties.get("TIMER_OUT_MS"), properties.get("UNIQ_KEY")) != expected:
            yield _at(
                Kind.BAD_TIMER, f"{where} is one of topic {message.topic!r} with {size} bytes, or has another due time or unique key", 1
            )

    def _halves(self) -> Iterator[Damage]:
        halves = self._store.half_messages
        for key, half in halves.items(self._faults.append) if halves is not None else ():
            if half is None:
                yield _at(Kind.BAD_TRANSACTION, f"the pair with key {key[:80].hex()} is not that of a half message")
            else:
                yield from self._half(half)

    def _half(self, half: HalfMessage) -> Iterator[Damage]:
        message, size = self._record(half.physical_offset)
        where = f"a half message of topic {half.topic!r} waits, but its record at physical offset {half.physical_offset}"
        if message is None:
            yield _at(Kind.BAD_TRANSACTION, f"{where} {self._absent(half.physical_offset)}", 1)
            return
        properties = message.property_map()
        held = (message.topic, size, properties.get("REAL_TOPIC"), properties.get("__transactionId__"))
        if held != (ROCKSDB_HALF_TOPIC, half.size, half.topic, half.uniq_key):
            yield _at(Kind.BAD_TRANSACTION, f"{where} is one of topic {message.topic!r} with {size} bytes, or of another message", 1)

    def _record(self, physical: int) -> tuple[Record | None, int]:
        message = self._store.log.record(physical)
        return message, len(self._store.log.raw(physical) or b"") if message is not None else 0

    def _absent(self, physical: int) -> str:
        return "has expired" if physical < self._store.log.start else "cannot be read"


def _limited(items: Iterator[Damage], kind: Kind, what: str) -> Iterator[Damage]:
    count = 0
    for count, item in enumerate(items, 1):
        if count <= MAX_FINDINGS:
            yield item
    if count > MAX_FINDINGS:
        yield _at(kind, f"{count - MAX_FINDINGS} further {what} in RocksDB are not valid")


def _at(kind: Kind, sentence: str, messages: int = 0) -> Damage:
    return Damage(INDEX_PLACE, 0, 0, kind, sentence, messages)
