"""Comparing timers and half messages in RocksDB with the log.

A pair of a message that waits must lead to its record: same topic, size, due time and unique key. A message that the broker has read,
that is due later than both of its clocks and was not recalled must have a pair. What has been delivered may have lost its record. A half
message without a pair is decided, given up or not dispatched yet; none of them is damage.

Format: docs/formats/rocketmq.md, sections 12.2 and 12.3.
"""

from __future__ import annotations

from collections.abc import Iterator

from mqstore.findings import Damage, Kind
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.format.rocksdb_half_messages import HalfMessage
from mqstore.rocketmq.format.rocksdb_timeline import Timeline, TimerPair
from mqstore.rocketmq.format.system_topics import ROCKSDB_HALF_TOPIC, TIMER_TOPIC
from mqstore.rocketmq.store.databases import INDEX_PLACE
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.store.timers import Timers

MAX_FINDINGS = 200


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
        wanted = (TIMER_TOPIC, pair.size, str(pair.due_time), pair.uniq_key)
        if (message.topic, size, properties.get("TIMER_OUT_MS"), properties.get("UNIQ_KEY")) != wanted:
            yield _at(
                Kind.BAD_TIMER, f"{where} is one of topic {message.topic!r} with {size} bytes, or has another due time or unique key", 1
            )

    def _halves(self) -> Iterator[Damage]:
        found = self._store.half_messages
        for key, half in found.items(self._faults.append) if found is not None else ():
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
