"""Dispatch: which consume queue entries and index keys the records of the commit log give. Pure functions of records.

For every record, in log order, the broker creates

* one 20-byte queue entry (physical offset, size, tags code) unless the record is a prepared or rolled back transaction,
* one index key per UNIQ_KEY and per part of KEYS unless it is rolled back.

The tags code is the Java string hash of TAGS, or 0; a delayed message in SCHEDULE_TOPIC_XXXX carries its delivery
time instead. With multi-dispatch on, a record also gets entries in further queues, named in its own properties.

`dispatch_request` implements this for one record in plain Python; `Dispatcher` runs the compiled kernel over many records and
passes the few special ones to `dispatch_request`. Rebuild, verify and the recovery simulation all start here.

    >>> from mqstore.rocketmq.format.record import Record
    >>> dispatch_request(Record("TopicTest", b"", properties=b"TAGS\\x01TagA\\x02KEYS\\x01k1 k2\\x02"), DispatchRules())
    DispatchRequest(tags_code=2598919, keys=('k1', 'k2'), further_queues=(), base=0, count=1)

Format: docs/formats/rocketmq.md, sections 4.3, 5.4 and 6.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.kernels.rocketmq import dispatch
from mqstore.rocketmq.dispatch.base_queue_image import java_long
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.batch_consume_queue import UNIT_SIZE
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.format.consume_queue import ENTRY_SIZE, PACKED_ENTRY
from mqstore.rocketmq.format.index_file import IndexFile
from mqstore.rocketmq.format.java_text import decode_utf8, index_hash, java_hash
from mqstore.rocketmq.format.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK, Record
from mqstore.rocketmq.format.system_topics import SCHEDULE_TOPIC, is_left_out_of_light_queues

Longs = NDArray[np.int64]

DEFAULT_DELAYS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LMQ_PREFIX = "%LMQ%"
TAGS_KEY = "T#"  # before the tags of a record, where they are indexed like a key

_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNIT_TAIL = struct.Struct(">qqhii")

KEY_ROW = np.dtype([("hash", ">i4"), ("physical_offset", ">i8"), ("store_timestamp", ">i8")])
WINDOW = 64  # entries that are looked at in one place
NEWEST = 1024  # entries at the end of a file that are looked at until a record with tags is found
PLACES = 32  # files that are looked at


def parse_delays(text: str = DEFAULT_DELAYS) -> tuple[int, ...]:
    """Parse delay levels into milliseconds, level 1 first. Raises ValueError for an unknown unit."""
    delays = []
    for item in text.split():
        unit = _UNITS.get(item[-1])
        if unit is None or not item[:-1].isdigit():
            raise ValueError(f"{item!r} is not a delay: it must be a number followed by s, m, h or d")
        delays.append(int(item[:-1]) * unit)
    return tuple(delays)


@dataclass(frozen=True, slots=True)
class DispatchRules:
    """The broker settings that affect the derived files.

    delays: milliseconds per delay level; empty if the broker does not know them (4.9 during an unclean recovery).
    multi_dispatch, lmq: the broker's enableMultiDispatch and enableLmq. batch_topics: topics whose queue.type is BatchCQ.
    only_light_queues: as in `VersionRules`. index_tags: whether the index has the tags of a record, too, as `topic#T#tags`.
    """

    delays: tuple[int, ...] = field(default_factory=parse_delays)
    multi_dispatch: bool = False
    lmq: bool = False
    only_light_queues: bool = False
    batch_topics: frozenset[str] = frozenset()
    index_tags: bool = False


@dataclass(frozen=True, slots=True)
class DispatchRequest:
    """What one record adds to queues and index. further_queues: (topic, queue id, queue offset). base, count: of an inner batch."""

    tags_code: int
    keys: tuple[str, ...]
    further_queues: tuple[tuple[str, int, int], ...]
    base: int
    count: int


def _int_or_none(text: str | None, bits: int = 64) -> int | None:
    try:
        number = 0 if text is None else int(text)
    except ValueError:
        return None
    return number if text is not None and -(1 << bits - 1) <= number < 1 << bits - 1 else None


def dispatch_request(message: record.Record, rules: DispatchRules) -> DispatchRequest:
    """Return the dispatch request of one record."""
    properties = message.property_map()
    tags = properties.get("TAGS")
    tags_code = java_hash(tags) if tags else 0
    if message.topic == SCHEDULE_TOPIC and rules.delays:
        level = min(_int_or_none(properties.get("DELAY")) or 0, len(rules.delays))
        if level > 0:
            tags_code = java_long(message.store_timestamp + rules.delays[level - 1])
    keys: list[str] = []
    if message.sys_flag & record.TRANSACTION_MASK != record.TRANSACTION_ROLLBACK:
        if "UNIQ_KEY" in properties:
            keys.append(properties["UNIQ_KEY"])
        keys.extend(record.split_keys(properties.get("KEYS", "")))
        if rules.index_tags and tags:
            keys.append(TAGS_KEY + tags)
    base, count = message.queue_offset, 1
    inner_base, inner_count = _int_or_none(properties.get("INNER_BASE")), _int_or_none(properties.get("INNER_NUM"), 16)
    if inner_base is not None and inner_count is not None:
        base, count = inner_base, inner_count
    return DispatchRequest(tags_code, tuple(keys), _multi_dispatch_queues(message, properties, rules), base, count)


def _multi_dispatch_queues(message: record.Record, properties: dict[str, str], rules: DispatchRules) -> tuple[tuple[str, int, int], ...]:
    """Return the further queues of a multi-dispatch record (docs/formats/rocketmq.md, 4.1)."""
    if not rules.multi_dispatch or message.sys_flag & record.TRANSACTION_MASK not in (record.TRANSACTION_NONE, record.TRANSACTION_COMMIT):
        return ()
    if rules.only_light_queues and is_left_out_of_light_queues(message.topic):
        return ()
    names = _java_split(properties.get("INNER_MULTI_DISPATCH", ""))
    offsets = _java_split(properties.get("INNER_MULTI_QUEUE_OFFSET", ""))
    if not names or len(names) != len(offsets):
        return ()
    queues = []
    for name, text in zip(names, offsets, strict=True):
        offset = _int_or_none(text)
        if offset is None or (rules.only_light_queues and "/" in name):
            continue
        queue_id = 0 if rules.lmq and name.startswith(LMQ_PREFIX) else message.queue_id
        queues.append((name, queue_id, offset))
    return tuple(queues)


def _java_split(text: str) -> list[str]:
    """Split at commas as Java does: trailing empty items are dropped."""
    items = text.split(",")
    while items and not items[-1]:
        items.pop()
    return items


@dataclass(frozen=True, slots=True)
class QueueRun:
    """Entries of one queue in log order. entries: 20-byte rows (46-byte units in a batch queue). offsets: the queue offset of each.

    consecutive: the offsets ascend by one, so that the run can be written in one piece.
    """

    topic: str
    queue_id: int
    offsets: Longs
    entries: Bytes
    consecutive: bool
    batch: bool = False

    @property
    def first(self) -> int:
        return int(self.offsets[0])

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True)
class DispatchOutput:
    """Output of dispatching a run of records. keys: KEY_ROW rows in the order in which the index service puts them."""

    records: int
    runs: tuple[QueueRun, ...]
    keys: NDArray[np.void]
    last_store_timestamp: int


class Dispatcher:
    """Dispatches records of one file, chunk by chunk; `finish` returns the output.

    room: maximum number of records; memory is touched only as far as it is used.
    """

    def __init__(self, data: Bytes, rules: DispatchRules, room: int) -> None:
        self._data = data
        self._rules = rules
        self.positions = np.empty(room, np.int64)
        self._counters = np.zeros(dispatch.COUNTER_COUNT, np.int64)
        self._entries = np.empty(room * ENTRY_SIZE, np.uint8)
        self._group = np.empty(room, np.int32)
        self._queue_offset = np.empty(room, np.int64)
        self._store_timestamp = np.empty(room, np.int64)
        self._special = np.empty(room, np.int64)
        self._keys = np.empty((4 * room + 64) * KEY_ROW.itemsize, np.uint8)
        self._make_groups(256)
        self.count = 0

    def _make_groups(self, room: int) -> None:
        self._table = np.full(4 * room, -1, np.int32)
        self._group_topic = np.empty(room, np.int64)
        self._group_length = np.empty(room, np.int64)
        self._group_queue = np.empty(room, np.int32)

    def _grow_groups(self) -> None:
        """Double the room for groups; known groups keep their numbers, only their slots move."""
        known = int(self._counters[dispatch.GROUPS])
        topics, lengths, queues = self._group_topic, self._group_length, self._group_queue
        self._make_groups(2 * len(topics))
        self._group_topic[:known], self._group_length[:known], self._group_queue[:known] = topics[:known], lengths[:known], queues[:known]
        dispatch.enter_groups(self._data, self._table, self._group_topic, self._group_length, self._group_queue, known)

    def add(self, positions: Longs) -> None:
        """Dispatch further records, given by their positions in the file."""
        self.positions[self.count : self.count + len(positions)] = positions
        self.add_walked(len(positions))

    def add_walked(self, count: int) -> None:
        """Dispatch `count` records whose positions are already in `positions`, after those dispatched so far."""
        self.count += count
        while True:
            status = dispatch.dispatch(
                self._data,
                self.positions[: self.count],
                self._counters,
                self._entries,
                self._group,
                self._queue_offset,
                self._store_timestamp,
                self._keys,
                self._special,
                self._table,
                self._group_topic,
                self._group_length,
                self._group_queue,
                self._rules.index_tags,
            )
            if status == dispatch.KEYS_FULL:
                self._keys = np.concatenate([self._keys, np.empty(len(self._keys), np.uint8)])
            elif status == dispatch.GROUPS_FULL:
                self._grow_groups()
            else:
                return

    def finish(self) -> DispatchOutput:
        """Return the runs and keys of all records added. O(records)."""
        count = self.count
        groups = int(self._counters[dispatch.GROUPS])
        keys = self._keys[: int(self._counters[dispatch.KEYS]) * KEY_ROW.itemsize].view(KEY_ROW)
        units, extra = self._dispatch_specials(keys)
        entries = self._entries[: count * ENTRY_SIZE]
        group = self._group[:count]
        offsets = self._queue_offset[:count]
        first, length, start = np.zeros(groups, np.int64), np.zeros(groups, np.int64), np.zeros(groups, np.int64)
        plain = np.zeros(groups, np.uint8)
        ordered = np.empty(count * ENTRY_SIZE, np.uint8)
        dispatch.sort_by_group(entries, group, offsets, first, length, plain, start, ordered)
        runs: list[QueueRun] = []
        for number in range(groups):
            at, stop = int(start[number]), int(start[number] + length[number])
            if at == stop:
                continue
            begin = int(self._group_topic[number])
            topic = decode_utf8(self._data[begin : begin + int(self._group_length[number])].tobytes())
            queue_id = int(self._group_queue[number])
            if topic in self._rules.batch_topics:
                runs.append(self._batch_run(topic, queue_id, np.flatnonzero(group == number), units))
                continue
            own = int(first[number]) + np.arange(stop - at) if plain[number] else offsets[group == number]
            runs.append(QueueRun(topic, queue_id, own, ordered[20 * at : 20 * stop], bool(plain[number])))
        last = int(self._store_timestamp[count - 1]) if count else 0
        return DispatchOutput(count, tuple(merge_runs([*runs, *extra])), keys, last)

    def _dispatch_specials(self, keys: NDArray[np.void]) -> tuple[dict[int, DispatchRequest], list[QueueRun]]:
        """Fill in the entries and keys of the records that the kernel left to `dispatch_request`.

        Returns the requests by record number, and the entries in further queues as runs of one entry.
        """
        requests: dict[int, DispatchRequest] = {}
        extra: list[QueueRun] = []
        specials = self._special[: int(self._counters[dispatch.SPECIALS])].tolist()
        if not specials:
            return requests, extra
        key_offsets = keys["physical_offset"].astype(np.int64)
        for k in specials:
            position = int(self.positions[k])
            size = int.from_bytes(self._data[position : position + 4].tobytes(), "big")
            message = record.decode(self._data[position : position + size].tobytes())
            request = requests[k] = dispatch_request(message, self._rules)
            self._entries[20 * k + 12 : 20 * k + 20] = np.frombuffer(struct.pack(">q", request.tags_code), np.uint8)
            low, high = np.searchsorted(key_offsets, [message.physical_offset, message.physical_offset + 1])
            keys["hash"][low:high] = [index_hash(message.topic, key) for key in request.keys]
            for topic, queue_id, offset in request.further_queues:
                tags = message.property_map().get("TAGS")
                packed = PACKED_ENTRY.pack(message.physical_offset, size, java_hash(tags) if tags else 0)
                entry = np.frombuffer(packed, np.uint8)
                extra.append(QueueRun(topic, queue_id, np.array([offset]), entry, True))
        return requests, extra

    def _batch_run(self, topic: str, queue_id: int, members: Longs, requests: dict[int, DispatchRequest]) -> QueueRun:
        """Return the 46-byte units of a batch queue as a run. offsets: the base offset of each unit."""
        units = bytearray()
        bases = []
        for k in members.tolist():
            request = requests.get(k)
            base, count = (int(self._queue_offset[k]), 1) if request is None else (request.base, request.count)
            bases.append(base)
            units += self._entries[20 * k : 20 * k + 20].tobytes()
            units += _UNIT_TAIL.pack(int(self._store_timestamp[k]), base, count, -1, 0)
        return QueueRun(topic, queue_id, np.array(bases, np.int64), np.frombuffer(bytes(units), np.uint8), False, batch=True)


def merge_runs(runs: Iterable[QueueRun]) -> list[QueueRun]:
    """Merge the runs of each queue, with entries in log order. The run of a queue that has only one is returned as it is."""
    by_queue: dict[tuple[str, int, bool], list[QueueRun]] = {}
    for run in runs:
        by_queue.setdefault((run.topic, run.queue_id, run.batch), []).append(run)
    merged = []
    for (topic, queue_id, batch), parts in by_queue.items():
        if len(parts) == 1:
            merged.append(parts[0])
            continue
        width = UNIT_SIZE if batch else ENTRY_SIZE
        rows = np.concatenate([part.entries for part in parts]).reshape(-1, width)
        offsets = np.concatenate([part.offsets for part in parts])
        physical = rows[:, :8].copy().view(">i8").ravel()
        order = np.argsort(physical, kind="stable")
        offsets = offsets[order]
        plain = not batch and bool((np.diff(offsets) == 1).all())
        merged.append(QueueRun(topic, queue_id, offsets, np.ascontiguousarray(rows[order]).ravel(), plain, batch))
    return merged


def dispatch_positions(data: Bytes, positions: Longs, rules: DispatchRules) -> DispatchOutput:
    """Dispatch records, given by their positions, at once."""
    dispatcher = Dispatcher(data, rules, len(positions))
    dispatcher.add(positions)
    return dispatcher.finish()


# Whether an index holds the tags of messages, too: since 5.4.0 brokers index them as `topic#T#tags`.
#
# No file says so. The entries do: a record with tags has an entry of that hash, or it has none. A store that was upgraded has both kinds of
# records; the newest ones show what its broker does now.


def tags_hash(message: Record) -> int | None:
    """Return the hash under which the tags of a record are indexed; None if it has none, or is rolled back."""
    if message.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return None
    tags = message.property_map().get("TAGS")
    return index_hash(message.topic, TAGS_KEY + tags) if tags else None


class TagKeys:
    """What the entries of index files say. files: oldest first."""

    def __init__(self, log: CommitLog, files: Sequence[IndexFile]) -> None:
        self._log = log
        self._files = [file for file in files if file.stop > 1]

    def newest(self) -> bool | None:
        """Return whether the newest record with tags has an entry for them; None if no record shows it."""
        for file in reversed(self._files[-2:]):
            last = True
            for answer in self._answers(file, max(1, file.stop - NEWEST), file.stop, newest_first=True):
                # of the last record of a file some keys may be in the next one, or not put yet
                if answer or not last:
                    return answer
                last = False
        return None

    def anywhere(self) -> bool:
        """Return whether some record near the beginning or the end of a file has an entry for its tags."""
        step = -(-len(self._files) // PLACES) or 1
        for file in self._files[::step]:
            for low in (1, max(1, file.stop - WINDOW)):
                if any(self._answers(file, low, min(low + WINDOW, file.stop))):
                    return True
        return False

    def between(self, start: int, stop: int) -> bool:
        """Return whether some record near the beginning or the end of a range of physical offsets has an entry for its tags."""
        for file in self._files:
            if file.begin_physical_offset < stop and file.end_physical_offset >= start:
                low, high = file.first_at(start), file.first_at(stop)
                for at in (low, max(low, high - WINDOW)):
                    if any(self._answers(file, at, min(at + WINDOW, high))):
                        return True
        return False

    def _answers(self, file: IndexFile, low: int, high: int, *, newest_first: bool = False) -> Iterator[bool]:
        """Yield, for each record with tags that entries low..high-1 point at, whether one of them is for its tags."""
        entries = file.entries(low, high)
        offsets = entries["physical_offset"].astype(np.int64)
        hashes = entries["key_hash"].astype(np.int64)
        for offset in sorted(set(offsets.tolist()), reverse=newest_first):
            message = self._log.record(offset) if offset >= self._log.start else None
            expected = None if message is None else tags_hash(message)
            if expected is not None:
                yield bool((hashes[offsets == offset] == expected).any())
