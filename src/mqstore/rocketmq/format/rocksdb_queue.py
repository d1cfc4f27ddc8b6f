"""Consume queues in RocksDB (`storeType=defaultRocksDB`): the entries of all queues in one database.

Family `default`, one pair for each entry; integers are big-endian, `01` is a byte of value 1:

    key    i32 length of the topic, 01, topic, 01, i32 queue id, 01, i64 queue offset
    value  i64 physical offset, i32 size of the record, i64 tags code, i64 store time in ms

Family `offset`, the bounds of each queue:

    key    i32 length of the topic, 01, topic, 01, `max` or `min`, 01, i32 queue id
    value  i64 physical offset, i64 queue offset

The maximum offset of a queue is the queue offset under `max` plus one; entries from there on are left over from a log that was cut.
`min` is written late, or not at all: the minimum is the first entry whose record is in the log. Topic CHECKPOINT_TOPIC has a value of 8
bytes: the end of the log that is in the database.

    >>> entry_key(b"orders", 0, 1).hex()
    '00000006016f72646572730100000000010000000000000001'
    >>> parse_key(entry_key(b"orders", 0, 1))
    (b'orders', 0, 1)

Format: docs/formats/rocketmq.md, section 4.11.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mqstore.files import ReadOnlyDirectory
from mqstore.files.rocksdb import Family, RocksDatabase
from mqstore.findings import Damage, Kind
from mqstore.rocketmq.format.consume_queue import DEFAULT_FILE_SIZE, ENTRY, ENTRY_SIZE, ConsumeQueueReader
from mqstore.rocketmq.format.mapped_file_queue import FileQueue

BOUNDS = "offset"  # the family of bounds
CHECKPOINT_TOPIC = b"CHECKPOINT_TOPIC"
VALUE_SIZE = 28
MAX_GAP = 1 << 20  # entries that may be missing in one place before those after them are left out
_LAST = (1 << 63) - 1
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_TAIL = struct.Struct(">ibq")

Name = tuple[bytes, int]


def queue_prefix(topic: bytes, queue_id: int) -> bytes:
    """Return what the keys of a queue's entries begin with; the queue offset follows."""
    return b"%b\1%b\1%b\1" % (_INT32.pack(len(topic)), topic, _INT32.pack(queue_id))


def entry_key(topic: bytes, queue_id: int, queue_offset: int) -> bytes:
    """Return the key of an entry."""
    return queue_prefix(topic, queue_id) + _INT64.pack(queue_offset)


def parse_key(key: bytes) -> tuple[bytes, int, int] | None:
    """Return (topic, queue id, queue offset) of an entry's key; None for other bytes."""
    if len(key) < 19:
        return None
    end = 5 + _INT32.unpack_from(key)[0]
    if len(key) != end + 14 or key[4] != 1 or key[end] != 1:
        return None
    queue_id, mark, offset = _TAIL.unpack_from(key, end + 1)
    return (key[5:end], queue_id, offset) if mark == 1 and queue_id >= 0 and offset >= 0 else None


def bound_key(topic: bytes, queue_id: int, name: bytes) -> bytes:
    """Return the key of a bound, `min` or `max`."""
    return b"%b\1%b\1%b\1%b" % (_INT32.pack(len(topic)), topic, name, _INT32.pack(queue_id))


def _with_maximum(family: Family) -> Iterator[Name]:
    """Yield the queues of which the family `offset` has a maximum."""
    for key, value in family.items():
        topic, end = key[5:-9], len(key) - 9
        if len(value) == 16 and end >= 5 and key[end:-4] == b"\1max\1" and _INT32.unpack_from(key)[0] == len(topic):
            queue_id: int = _INT32.unpack_from(key, len(key) - 4)[0]
            if queue_id >= 0:
                yield topic, queue_id


def _with_entries(family: Family, relative: str, findings: list[Damage]) -> Iterator[Name]:
    """Yield the queues that have entries, by seeks from the end of one queue to the start of the next."""
    at = b""
    odd = 0
    while (pair := family.first(at)) is not None:
        name = parse_key(pair[0])
        if name is None:
            odd += 1
            at = pair[0] + b"\0"
            continue
        yield name[:2]
        at = entry_key(name[0], name[1], _LAST) + b"\0"
    if odd:
        findings.append(Damage(relative, 0, 0, Kind.BAD_QUEUE_ENTRY, f"{odd} keys of the database are not those of queue entries"))


def listed_until(database: RocksDatabase) -> int | None:
    """Return the physical offset up to which the log is in a database; None if it does not state one."""
    bounds = database.family(BOUNDS)
    value = None if bounds is None else bounds.get(bound_key(CHECKPOINT_TOPIC, 0, b"max"))
    return _INT64.unpack(value)[0] if value is not None and len(value) == 8 else None


def readers(directory: ReadOnlyDirectory, database: RocksDatabase, log_start: int = 0) -> tuple[tuple[RocksQueueReader, ...], list[Damage]]:
    """Return the queues of a database, by topic and queue id, and findings about its keys. log_start: where the log starts."""
    findings: list[Damage] = []
    entries, bounds = database.family("default"), database.family(BOUNDS)
    names: set[Name] = set()
    if entries is None:  # pragma: no cover - RocksDB does not open a database without it either
        findings.append(Damage(database.relative, 0, 0, Kind.BAD_DATABASE, "the database does not have the column family of entries"))
        return (), findings
    names.update(_with_entries(entries, database.relative, findings))
    if bounds is not None:
        names.update(_with_maximum(bounds))
    queues = (RocksQueueReader(directory, database, entries, bounds, topic, queue_id, log_start) for topic, queue_id in names)
    return tuple(sorted(queues, key=lambda queue: (queue.topic, queue.queue_id))), findings


class RocksQueueReader(ConsumeQueueReader):
    """Entries of one queue in a database, by queue offset. It has no files."""

    def __init__(
        self,
        directory: ReadOnlyDirectory,
        database: RocksDatabase,
        entries: Family,
        bounds: Family | None,
        topic: bytes,
        queue_id: int,
        log_start: int = 0,
    ) -> None:
        self.root = database.relative
        super().__init__(directory, topic.decode("utf-8", "surrogateescape"), queue_id)
        self._database = database
        self._entries = entries
        self._stored_bounds = bounds
        self._name = topic
        self._log_start = log_start

    @cached_property
    def _queue(self) -> FileQueue:
        return FileQueue((), DEFAULT_FILE_SIZE)

    @cached_property
    def stored_last(self) -> tuple[int, int] | None:
        """Physical offset and queue offset of the last entry, as the database states them, also if it is gone; None if it does not."""
        value = None if self._stored_bounds is None else self._stored_bounds.get(bound_key(self._name, self.queue_id, b"max"))
        if value is None or len(value) != 16:
            return None
        return _INT64.unpack(value[:8])[0], max(0, _INT64.unpack(value[8:])[0])

    @property
    def _stored_maximum(self) -> int | None:
        """The maximum that the database states; None if it states none."""
        return None if self.stored_last is None else self.stored_last[1] + 1

    @cached_property
    def _ends(self) -> tuple[int, int, tuple[Damage, ...]]:
        """The minimum, the maximum, and findings about them."""
        prefix = queue_prefix(self._name, self.queue_id)
        ends = self._entries.first(prefix + bytes(8)), self._entries.last(prefix + _INT64.pack(_LAST))
        first, last = (parse_key(pair[0]) if pair is not None and pair[0].startswith(prefix) else None for pair in ends)
        stated = self._stored_maximum
        if first is None or last is None:
            return stated or 0, stated or 0, ()
        low, end = first[2], last[2] + 1
        if stated is not None and stated < end:
            return min(low, stated), stated, ()
        sentences = []
        if end - low > MAX_GAP and (reached := self._end_of_run(low, end)) < end:
            sentences.append(
                f"after queue offset {reached - 1} the next entry is at {end - 1} or before; entries after the gap are left out"
            )
            end = reached
        elif stated is not None and stated > end:
            sentences.append(f"the database states that the queue ends at {stated}, but its newest entry is at {end - 1}")
        who = f"topic {self.topic!r}, queue {self.queue_id}"
        return low, end, tuple(Damage(self._database.relative, 0, 0, Kind.QUEUE_GAP, f"{sentence} ({who})") for sentence in sentences)

    @cached_property
    def listed(self) -> int:
        """The number of messages that the database lists, by the bounds of the queue."""
        return self.max_offset - self.min_offset

    def _end_of_run(self, low: int, end: int) -> int:
        """Return the queue offset after the last entry before a gap that no broker leaves."""
        prefix = queue_prefix(self._name, self.queue_id)
        at = low
        for key, _ in self._entries.items(prefix + _INT64.pack(low), prefix + _INT64.pack(end - 1) + b"\0"):
            offset: int = _INT64.unpack_from(key, len(prefix))[0]
            if offset - at > MAX_GAP:
                return at
            at = offset + 1
        return at

    @cached_property
    def _bounds(self) -> tuple[int, int]:
        low, high, _ = self._ends
        return self._first_in_log(low, high), high

    def _first_in_log(self, low: int, high: int) -> int:
        """Return the queue offset of the first entry whose record the log may hold: entries ascend."""
        if self._log_start <= 0:
            return low
        prefix = queue_prefix(self._name, self.queue_id)
        stop = prefix + _INT64.pack(high)
        while low < high:
            middle = (low + high) // 2
            pair = self._entries.first(prefix + _INT64.pack(middle))
            if pair is None or pair[0] >= stop or len(pair[1]) != VALUE_SIZE or _INT64.unpack_from(pair[1])[0] >= self._log_start:
                high = middle
            else:
                low = middle + 1
        return low

    @property
    def findings(self) -> tuple[Damage, ...]:
        return self._ends[2]

    def entries(self, start: int, stop: int) -> NDArray[np.void]:
        """Return entries start..stop-1, within the queue's bounds; zeros where the database has none, or none that can be read."""
        start, stop = max(start, self.min_offset), min(stop, self.max_offset)
        if start >= stop:
            return np.empty(0, ENTRY)
        values: list[bytes] = []
        at = start
        for offset, value in self._values(start, stop):
            if offset > at:
                values.append(bytes(ENTRY_SIZE * (offset - at)))
            values.append(value[:ENTRY_SIZE] if len(value) == VALUE_SIZE else bytes(ENTRY_SIZE))
            at = offset + 1
        values.append(bytes(ENTRY_SIZE * (stop - at)))
        return np.frombuffer(b"".join(values), ENTRY)

    def _values(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yield (queue offset, value) of the entries that can be read: a block that cannot is passed over."""
        prefix = queue_prefix(self._name, self.queue_id)
        end = prefix + _INT64.pack(stop)
        at: int | None = start
        while at is not None:
            faults: list[str] = []
            for key, value in self._entries.items(prefix + _INT64.pack(at), end, faults.append):
                offset = _INT64.unpack_from(key, len(prefix))[0]
                yield offset, value
                at = offset + 1
            at = self._after_fault(at, stop) if faults else None

    def _after_fault(self, low: int, stop: int) -> int | None:
        """Return the first queue offset from which entries can be read again, after a block that cannot; None if there is none."""
        step = 1
        while low + step < stop and not self._is_readable(low + step):
            step *= 2
        if low + step >= stop and not self._is_readable(stop - 1):
            return None
        bad, good = low + step // 2, min(low + step, stop - 1)
        while good - bad > 1:
            middle = (bad + good) // 2
            bad, good = (bad, middle) if self._is_readable(middle) else (middle, good)
        return good

    def _is_readable(self, queue_offset: int) -> bool:
        faults: list[str] = []
        self._entries.first(entry_key(self._name, self.queue_id, queue_offset), faults.append)
        return not faults

    def place(self, queue_offset: int) -> tuple[str, int]:
        """Return (directory of the database, 0): an entry does not have a position in a file."""
        return self._database.relative, 0

    def drop(self) -> None:
        """Do nothing: the entries are not mapped."""
