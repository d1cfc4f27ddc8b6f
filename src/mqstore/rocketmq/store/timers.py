"""Messages with an arbitrary delay: which ones wait, until when, and which were delivered or recalled.

    waiting      the slot of its second has not been read, or the record has not reached the wheel yet
    delivered    the slot was read: the message is in its real topic
    recalled     a unit of the same second names its unique key: the broker drops it
    unknown      there is no config/timercheck, so nothing shows how far the wheel was read; or it is in a database that is not read

A message that is due after the range of the wheel is put into it again each time that its slot is reached: only its newest unit counts.

A broker with timerRocksDBEnable keeps them in RocksDB instead, in the timeline; the wheel holds what it got before. What has no pair in
the timeline although the broker has read its record was recalled, or it has been delivered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mqstore.findings import Damage
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.format.rocksdb_store import ROLL_LABEL, Timeline
from mqstore.rocketmq.format.system_topics import REVIVE_PREFIX, TIMER_TOPIC
from mqstore.rocketmq.format.timer_wheel import RECALLS, ROLLED, UNIT_SIZE, TimerLog, read_check
from mqstore.rocketmq.store.databases import INDEX_PLACE
from mqstore.rocketmq.store.log_site import LogElsewhere
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.table.formatting import count

TIMER_NAMES = ("due_time", "topic", "queue_id", "physical_offset", "size", "uniq_key", "state")
_CHUNK = 4096
_PRECISION = 1000  # ms by which a broker may deliver before the due time


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
        self._faults: list[str] = []
        self._of_pops = 0
        self._unknown = 0  # messages that may be in a database which is not read

    @property
    def file_findings(self) -> tuple[Damage, ...]:
        """Findings about names and sizes of the files of the timer log."""
        return self.log.queue.findings

    @property
    def unread_places(self) -> tuple[Damage, ...]:
        """Findings about directories of timers that are not directories."""
        return tuple(item for item in self._store.unread_directories if item.file in ("timerlog", INDEX_PLACE))

    @property
    def log_elsewhere(self) -> LogElsewhere | None:
        """What is known of a log that is not, or not all, in the directory."""
        return self._store.view().log_elsewhere

    def notes(self) -> Iterator[str]:
        """Yield what limits the answer, once the rows have been read."""
        for item in self.file_findings:
            yield f"{item.file}: {item.detail}"
        yield from (f"{item.file}: {item.detail}" for item in self.unread_places)
        if self.log_elsewhere is not None:
            yield f"which messages wait in the rest of the log {self.log_elsewhere.sentence}"
        if self.unread:
            units = "pairs of the timeline" if self._store.timeline is not None else "units of the timer log"
            yield (
                f"{self.unread} {units} lead to records that are damaged or no longer in the log, and are left out; "
                "`mqstore verify` reports them"
            )
        if self.removed:
            yield f"{self.removed} delivered messages are left out: their records have expired"
        if self.check is None and self.log.queue.files:
            yield "config/timercheck is missing or too short: nothing shows how far the timer wheel was read"
        if self._of_pops:
            held = count(self._store.view().pops.messages, "message")
            yield (
                f"{count(self._of_pops, 'timer')} of topics {REVIVE_PREFIX}… are checkpoints and acknowledgements of pop consumers, which "
                f"have {held} in hand; `mqstore groups` shows whose"
            )
        if self._unknown:
            sentence = self._store.unread_sentence("timers", INDEX_PLACE)
            yield f"{sentence}; the state of {count(self._unknown, 'message')} not in the timer wheel is not known"
        if self._faults:
            yield f"not all of the timers in RocksDB ({INDEX_PLACE}) can be read: {self._faults[0]}"
        if self._store.timeline is not None and self._store.unclean:
            yield "the broker did not exit cleanly: it delivers again what it delivered after it last wrote its timers to the disk"
        elif self.check is not None and self._store.unclean:
            yield "the broker did not exit cleanly: it delivers again what was due after it last wrote config/timercheck"
        if self._store.unread_queues is not None:
            yield "the consume queues are not read: messages that have not reached the timer wheel are left out"

    def rows(self) -> Iterator[Timer]:
        """Yield the messages of the timer log, those of the timeline by due time, and then those in neither, in the order of arrival."""
        for row in self._rows():
            self._of_pops += row.state == "waiting" and row.topic.startswith(REVIVE_PREFIX)
            yield row

    def _rows(self) -> Iterator[Timer]:
        recalled = self._recalled()
        newest = -1
        for _, units in self.log.blocks():
            for unit in units[units["unit_size"] == UNIT_SIZE]:
                physical = int(unit["physical_offset"])
                if int(unit["bits"]) & RECALLS:
                    continue  # with timerRocksDBEnable the wheel gets recalls as well, and no messages
                newest = max(newest, physical)
                row = self._row(physical, int(unit["size"]), int(unit["written"]) + int(unit["delay"]), int(unit["bits"]), recalled)
                if row is not None:
                    yield row
        timeline = self._store.timeline
        if timeline is None:
            yield from self._not_in_wheel(newest, recalled)
        else:
            yield from self._in_timeline(timeline, recalled)
            yield from self._not_in_timeline(timeline, recalled)

    def _recalled(self) -> set[tuple[int, str]]:
        """Return (due time, unique key) of every message that is recalled."""
        recalled: set[tuple[int, str]] = set()
        newest = -1
        for _, units in self.log.blocks():
            units = units[units["unit_size"] == UNIT_SIZE]
            recalls = (units["bits"] & RECALLS) != 0
            newest = max(newest, int(units["physical_offset"][~recalls].max(initial=-1)))
            for physical in units["physical_offset"][recalls].tolist():
                recalled.update(self._recall(physical))
        for physical in self._queued(newest if self._store.timeline is None else -1):
            recalled.update(self._recall(physical))
        return recalled

    def _recall(self, physical: int) -> Iterator[tuple[int, str]]:
        """Yield (due time, unique key) of the message that a record recalls."""
        message = self._store.log.record(physical)
        if message is None or message.topic != TIMER_TOPIC:
            return
        properties = message.property_map()
        due, key = _number(properties.get("TIMER_OUT_MS")), properties.get("TIMER_DEL_UNIQKEY")
        if due is None or not key:
            return
        key = key.partition("+")[2] or key  # `topic+key` as well
        timeline = self._store.timeline
        if timeline is None or message.queue_offset >= timeline.scanned or timeline.pair(due, key) is None:
            yield due, key  # one that was read and left the pair had no effect

    def _row(self, physical: int, size: int, slot_time: int, bits: int, recalled: set[tuple[int, str]]) -> Timer | None:
        passed = self.check is not None and slot_time <= self.check.read_until
        if passed and bits & ROLLED:
            return None
        message = self._message(physical, passed)
        state = "unknown" if self.check is None else "delivered" if passed else "waiting"
        return None if message is None else _timer(message, physical, size, slot_time, state, recalled)

    def _message(self, physical: int, passed: bool) -> Record | None:
        """Return the record of a message; None, which is counted, if it cannot be read. passed: whether it has been delivered."""
        message = self._store.log.record(physical)
        if message is not None and message.topic == TIMER_TOPIC:
            return message
        if passed and physical < self._store.log.start:
            self.removed += 1
        else:
            self.unread += 1
        return None

    def _in_timeline(self, timeline: Timeline, recalled: set[tuple[int, str]]) -> Iterator[Timer]:
        read_until = timeline.read_until
        for _, pair in timeline.items(self._faults.append):
            if pair is None:
                self.unread += 1
                continue
            passed = pair.due_time < read_until
            message = self._message(pair.physical_offset, passed)
            if message is not None:
                state = "delivered" if passed else "waiting"
                yield _timer(message, pair.physical_offset, pair.size, pair.due_time, state, recalled)

    def _not_in_timeline(self, timeline: Timeline, recalled: set[tuple[int, str]]) -> Iterator[Timer]:
        """Yield the messages without a pair: to come, recalled, due when they were read, or removed after they were delivered."""
        scanned = timeline.scanned
        in_wheel: set[int] = set()  # what the wheel got before its broker was set to use the timeline
        for _, units in self.log.blocks():
            units = units[(units["unit_size"] == UNIT_SIZE) & (units["bits"] & RECALLS == 0)]
            in_wheel.update(units["physical_offset"].tolist())
        for physical in self._queued(-1):
            message = self._store.log.record(physical)
            if message is None or physical in in_wheel:
                continue
            properties = message.property_map()
            due, key = _number(properties.get("TIMER_OUT_MS")), properties.get("UNIQ_KEY")
            if due is None or "TIMER_DEL_UNIQKEY" in properties or (key is not None and timeline.pair(due, key) is not None):
                continue
            waits = message.queue_offset >= scanned
            if not waits and ROLL_LABEL in properties:
                continue  # put again: the first record has its row
            yield _timer(message, physical, self._size(physical), due, "waiting" if waits else "delivered", recalled)

    def without_pair(self) -> Iterator[Timer]:
        """Yield the messages that the broker has read, that no clock of it has passed, and that have no pair in the timeline."""
        timeline = self._store.timeline
        if timeline is None:
            return
        clock = max(timeline.read_until, self.check.read_until if self.check is not None else 0) + _PRECISION
        for row in self._not_in_timeline(timeline, self._recalled()):
            if row.state == "delivered" and row.due_time > clock:
                yield row

    def _queued(self, newest: int) -> Iterator[int]:
        """Yield the physical offsets of the records that have not reached the timer log."""
        view = self._store.view()
        queue = view.queue_or_none(TIMER_TOPIC, 0)
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
        unread = self._store.has_unread_entries
        for physical in self._queued(newest):
            message = self._store.log.record(physical)
            if message is None or "TIMER_DEL_UNIQKEY" in message.property_map():
                continue
            row = self._row(physical, self._size(physical), 1 << 62, 0, recalled)
            if row is not None and unread and row.state != "recalled":
                self._unknown += 1
                row = row._replace(state="unknown")
            if row is not None:
                yield row

    def _size(self, physical: int) -> int:
        return len(self._store.log.raw(physical) or b"")


def _timer(message: Record, physical: int, size: int, slot_time: int, state: str, recalled: set[tuple[int, str]]) -> Timer:
    properties = message.property_map()
    due, key = _number(properties.get("TIMER_OUT_MS")) or slot_time, properties.get("UNIQ_KEY")
    if key is not None and (due, key) in recalled:
        state = "recalled"
    queue_id = _number(properties.get("REAL_QID"))
    if queue_id is not None and queue_id >= 1 << 31:
        queue_id = None
    return Timer(due, properties.get("REAL_TOPIC", ""), queue_id, physical, size, key, state)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None
