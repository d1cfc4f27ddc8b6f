"""Consumer offsets of a writable store: the table in memory, the broker's operations on it, and its file.

`topic@group` -> queue id -> queue offset of the next message to consume. Read from and written to `config/consumerOffset.json`,
or `config/lmqConsumerOffset.json` if the broker runs with LMQ; there a group named `%LMQ%…` has one offset per topic.

    >>> offsets = ConsumerOffsets("4.9.3")
    >>> offsets.commit("billing", "orders", 0, 29), offsets.commit("billing", "orders", 0, 31), offsets.query("billing", "orders", 1)
    (-1, 29, -1)
    >>> print(offsets.text().expandtabs(2))
    {
      "offsetTable":{
        "orders@billing":{0:31
        }
      }
    }

5.3.3 adds a `dataVersion`, incremented on every 500th commit, and `groupTopicMap`, a view of the table that is never read.
Keys keep the order of the loaded file, followed by new ones; a broker writes them in the order of its hash map.

Keys are split as Java does: at each @, without trailing empty parts. A key that does not have two parts has no topic and group.

    >>> split("a@b"), split("a@b@"), split("@b"), split("a@"), split("a@b@c")
    (('a', 'b'), ('a', 'b'), ('', 'b'), None, None)

Consumer offset files: how far each consumer group is in each queue.

`config/consumerOffset.json`, or `config/lmqConsumerOffset.json` if the broker runs with LMQ:

    {
        "offsetTable":{
            "orders@billing":{0:29,1:27
            }
        }
    }

A key is `topic@group`, its value maps queue ids to the offset of the next message to consume. In `lmqOffsetTable` the
value is one number, for queue 0. `config/delayOffset.json` has the same shape, with delay levels instead of queues.

    >>> table({"offsetTable": {"orders@billing": {"0": 29}, "a@b@c": {"0": 1}}}, "consumerOffset.json")
    ({('billing', 'orders'): {0: 29}}, {'a@b@c': {0: 1}}, [])

Format: docs/formats/rocketmq.md, sections 1.5 and 11.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from mqstore.errors import NotFoundError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.config_writer import ConfigWriter, DataVersion, bean, to_text
from mqstore.rocketmq.config.store_config import now_ms
from mqstore.rocketmq.dispatch.dispatcher import LMQ_PREFIX
from mqstore.rocketmq.format.java_map import JavaMap
from mqstore.rocketmq.format.profile import version_rules

if TYPE_CHECKING:
    from mqstore.files.durable import DurableDirectory

COMMITS_PER_VERSION = 500
UNKNOWN = -1

_OWN = frozenset({"dataVersion", "groupTopicMap", "offsetTable"})
CONSUMER_OFFSETS = "config/consumerOffset.json"
LMQ_OFFSETS = "config/lmqConsumerOffset.json"
DELAY_OFFSETS = "config/delayOffset.json"

ByQueue = dict[int, int]


@dataclass(frozen=True, slots=True)
class OffsetTable:
    """The offsets a broker would load. offsets: (group, topic) -> queue id -> next offset.

    unsplit: keys that are not a topic and a group separated by one @; a broker keeps them, but finds no group in them.
    of_5: the file has properties that only 5.x writes. used: the main file, its .bak, a RocksDB database, or None. file: which file.
    doubt: a clause about the other file, which the broker loads instead if enableLmq is what is not known here; empty if there is none.
    """

    offsets: dict[tuple[str, str], ByQueue] = field(default_factory=dict)
    unsplit: dict[str, ByQueue] = field(default_factory=dict)
    of_5: bool = False
    used: Literal["main", "bak", "database"] | None = None
    findings: tuple[Damage, ...] = ()
    file: str = CONSUMER_OFFSETS
    doubt: str = ""

    @property
    def number(self) -> int:
        """The number of offsets: one for each queue of each group."""
        return sum(map(len, (*self.offsets.values(), *self.unsplit.values())))


@dataclass(frozen=True, slots=True)
class DelayOffsets:
    """by_level: delay level -> next queue offset in that level's queue of SCHEDULE_TOPIC_XXXX."""

    by_level: dict[int, int] = field(default_factory=dict)
    findings: tuple[Damage, ...] = ()


def _is_i64(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63


def _parse_offsets(value: object) -> tuple[ByQueue, int]:
    """Return (offset by queue id, number of invalid items) of one inner map."""
    if not isinstance(value, dict):
        return {}, 1
    offsets: ByQueue = {}
    odd = 0
    for name, number in value.items():
        digits = name.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= 10 and -(1 << 31) <= int(name) < 1 << 31 and _is_i64(number):
            offsets[int(name)] = number
        else:
            odd += 1
    return offsets, odd


def table(value: dict[str, Any], relative: str) -> tuple[dict[tuple[str, str], ByQueue], dict[str, ByQueue], list[Damage]]:
    """Return (offsets, unsplit, findings) of a parsed file."""
    offsets: dict[tuple[str, str], ByQueue] = {}
    unsplit: dict[str, ByQueue] = {}
    findings: list[Damage] = []
    for name in ("offsetTable", "lmqOffsetTable"):
        part = value.get(name)
        if part is None:
            continue
        if not isinstance(part, dict):
            findings.append(Damage(relative, 0, 0, Kind.BAD_CONFIG, f"{name} is not a map"))
            continue
        for key, inner in part.items():
            by_queue, odd = ({0: inner}, 0) if name == "lmqOffsetTable" and _is_i64(inner) else _parse_offsets(inner)
            if odd:
                sentence = f"{odd} items of {key!r} are not queue offsets; they are left out"
                findings.append(Damage(relative, 0, 0, Kind.BAD_CONFIG, sentence))
            topic, _, group = key.partition("@")
            if group and "@" not in group:
                offsets.setdefault((group, topic), {}).update(by_queue)
            else:
                unsplit.setdefault(key, {}).update(by_queue)
    return offsets, unsplit, findings


def load_offset_table(directory: ReadOnlyDirectory, *, lmq: bool | None = None) -> OffsetTable:
    """Read the offset table of a store. lmq: whether the broker runs with LMQ, None if that is not known.

    It is then seen from the files: the one that is there, of two the one that has offsets, of two with offsets that of LMQ.
    """
    if lmq is not None:
        used, other = _load(directory, LMQ_OFFSETS if lmq else CONSUMER_OFFSETS), _load(directory, CONSUMER_OFFSETS if lmq else LMQ_OFFSETS)
        passed_over = other.number if not used.number else 0
        doubt = f"{other.file} has {passed_over} offsets, and a broker with enableLmq={str(lmq).lower()} does not load it"
        return replace(used, doubt=doubt if passed_over else "")
    if not (directory.exists(LMQ_OFFSETS) or directory.exists(f"{LMQ_OFFSETS}.bak")):
        return _load(directory, CONSUMER_OFFSETS)
    used, other = _load(directory, LMQ_OFFSETS), _load(directory, CONSUMER_OFFSETS)
    if other.number and not used.number:
        used, other = other, used
    if not other.number and not (used.number and used.file == CONSUMER_OFFSETS):
        return used
    holds = f"{other.number} offsets" if other.number else "no offset"
    setting = f"enableLmq={'false' if used.file == LMQ_OFFSETS else 'true'}"
    return replace(used, doubt=f"a broker with {setting} does not load {used.file}, but {other.file}, which has {holds}")


def _load(directory: ReadOnlyDirectory, relative: str) -> OffsetTable:
    file = fastjson.load(directory, relative)
    offsets, unsplit, findings = table(file.value, relative)
    of_5 = "dataVersion" in file.value or "groupTopicMap" in file.value
    return OffsetTable(offsets, unsplit, of_5, file.used, (*file.findings, *findings), relative)


def load_delay_offsets(directory: ReadOnlyDirectory) -> DelayOffsets:
    """Read how far each delay level was delivered."""
    file = fastjson.load(directory, DELAY_OFFSETS)
    by_level, odd = _parse_offsets(file.value.get("offsetTable", {}))
    findings = list(file.findings)
    if odd:
        findings.append(Damage(DELAY_OFFSETS, 0, 0, Kind.BAD_CONFIG, f"{odd} items are not offsets of a delay level; they are left out"))
    return DelayOffsets(by_level, tuple(findings))


def split(key: str) -> tuple[str, str] | None:
    """Split a key into (topic, group); None if it does not have two parts."""
    parts = key.rstrip("@").split("@") if key.strip("@") else []
    return (parts[0], parts[1]) if len(parts) == 2 else None


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The result of a reset in one queue. before, after: the group's offset, -1 if it has none. target: the requested offset."""

    queue_id: int
    before: int
    target: int
    after: int


class ConsumerOffsets:
    """The offset table of a store. Thread-safe. findings: invalid parts of the file.

    version: the broker version whose rules and dialect are followed. lmq: whether the broker runs with LMQ. clock: ms.
    """

    def __init__(self, version: str, *, lmq: bool = False, clock: Callable[[], int] = now_ms) -> None:
        self.version = version
        self.lmq = lmq
        self.findings: tuple[Damage, ...] = ()
        self._rules = version_rules(version)
        self._clock = clock
        self._lock = threading.RLock()
        self._table: dict[str, ByQueue] = {}
        self._lmq_table: dict[str, int] = {}
        self._resets: dict[str, ByQueue] = {}
        self._data_version = DataVersion(clock())
        self._commits = 0
        self._count = 0
        self._others: dict[str, Any] = {}
        self._writer = ConfigWriter(LMQ_OFFSETS if lmq else CONSUMER_OFFSETS, version)

    @classmethod
    def load(cls, reading: ReadOnlyDirectory, version: str, lmq: bool = False, *, clock: Callable[[], int] = now_ms) -> ConsumerOffsets:
        """Load the table of a store; a missing file gives an empty one. Offsets are not checked against the queues."""
        made = cls(version, lmq=lmq, clock=clock)
        file = fastjson.load(reading, made._writer.relative)
        findings = list(file.findings)
        for name in ("offsetTable", "lmqOffsetTable"):
            offsets, unsplit, odd = table({name: file.value.get(name)}, made._writer.relative)
            findings += odd
            by_key = {f"{topic}@{group}": by_queue for (group, topic), by_queue in offsets.items()} | unsplit
            part = file.value.get(name)
            keys = part if isinstance(part, dict) else ()
            if name == "offsetTable":
                made._table = {key: by_key[key] for key in keys}
            elif lmq:
                made._lmq_table = {key: by_key[key][0] for key in keys if 0 in by_key[key]}
        made._count = sum(map(len, made._table.values()))
        made.findings = tuple(findings)
        if not lmq:  # a broker with LMQ starts counting from 0
            made._data_version = DataVersion.of(file.value.get("dataVersion"), clock)
        made._others = {name: part for name, part in file.value.items() if name not in _OWN and not (lmq and name == "lmqOffsetTable")}
        return made

    # commits and queries

    def __len__(self) -> int:
        """Return the number of offsets: one for each queue of each group."""
        return self._count + len(self._lmq_table)

    def has_offset(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether a group has an offset in a queue."""
        key = f"{topic}@{group}"
        with self._lock:
            return key in self._lmq_table if self._is_lmq(group) else queue_id in self._table.get(key, {})

    def _is_lmq(self, group: str) -> bool:
        return self.lmq and group.startswith(LMQ_PREFIX)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> int:
        """Set the next offset to consume, greater or smaller. Returns the previous offset, or -1."""
        key = f"{topic}@{group}"
        with self._lock:
            if self._is_lmq(group):
                before = self._lmq_table.get(key, UNKNOWN)
                self._lmq_table[key] = offset
                return before
            by_queue = self._table.setdefault(key, {})
            before = by_queue.get(queue_id, UNKNOWN)
            self._count += queue_id not in by_queue
            by_queue[queue_id] = offset
            self._commits += 1
            if self._commits % COMMITS_PER_VERSION == 0:
                self._data_version.next(self._clock())
            return before

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Return the next offset to consume, -1 if unknown. In 5.3.3 a pending reset takes precedence."""
        key = f"{topic}@{group}"
        with self._lock:
            if self._is_lmq(group):
                return self._lmq_table.get(key, UNKNOWN)
            reset = self._resets.get(key, {}).get(queue_id)
            return reset if reset is not None else self._table.get(key, {}).get(queue_id, UNKNOWN)

    def by_queue(self, group: str, topic: str) -> ByQueue:
        """Return a copy of the offsets by queue id; an LMQ group has one, for queue 0."""
        key = f"{topic}@{group}"
        with self._lock:
            if self._is_lmq(group):
                return {0: self._lmq_table[key]} if key in self._lmq_table else {}
            return dict(self._table.get(key, {}))

    def answer(
        self,
        group: str,
        topic: str,
        queue_id: int,
        *,
        min_offset: int,
        first_entry: Literal["none", "memory", "disk"],
        zero_if_not_found: bool = True,
    ) -> int | None:
        """Return a broker's answer to a client that queries its offset; None: not found, the client decides.

        min_offset: of the queue. first_entry: where the record at queue offset 0 would be read from; none: there is no such entry.
        zero_if_not_found: field of the request, 5.3.3 only.
        """
        offset = self.query(group, topic, queue_id)
        if offset >= 0:
            return offset
        if min_offset > 0:
            return None
        if not self._rules.answers_from_memory_only:
            return None if first_entry == "disk" else 0
        return 0 if zero_if_not_found and first_entry == "memory" else None

    # groups and topics

    def groups_of(self, topic: str) -> frozenset[str]:
        """Return the groups with offsets in a topic."""
        return frozenset(group for of, group in self._pairs() if of == topic)

    def topics_of(self, group: str) -> frozenset[str]:
        """Return the topics in which a group has offsets."""
        return frozenset(topic for topic, of in self._pairs() if of == group)

    def _pairs(self) -> list[tuple[str, str]]:
        with self._lock:
            return [pair for pair in map(split, self._table) if pair is not None]

    def clone(self, source: str, target: str, topic: str) -> bool:
        """Replace a group's offsets in a topic by those of another group. Returns False if the source has none."""
        with self._lock:
            offsets = self._table.get(f"{topic}@{source}")
            if offsets is None:
                return False
            self._count += len(offsets) - len(self._table.get(f"{topic}@{target}", ()))
            self._table[f"{topic}@{target}"] = dict(offsets)
            return True

    def remove(self, group: str) -> int:
        """Remove a group and return the number of topics it had offsets in. With LMQ, 4.9.3 never removes an LMQ group."""
        with self._lock:
            if self._is_lmq(group):
                return self._drop(self._lmq_table, 1, group) if self._rules.removes_light_groups else 0
            self._drop(self._resets, 1, group)
            return self._drop_offsets(1, group)

    def remove_topic(self, topic: str) -> int:
        """Remove the offsets of a topic and return the number of groups that had any."""
        with self._lock:
            return self._drop_offsets(0, topic)

    def _drop_offsets(self, part: int, name: str) -> int:
        gone = self._drop(self._table, part, name)
        self._count = sum(map(len, self._table.values()))
        return gone

    @staticmethod
    def _drop(held: dict[str, Any], part: int, name: str) -> int:
        gone = [key for key in held if (pair := split(key)) is not None and pair[part] == name]
        for key in gone:
            del held[key]
        return len(gone)

    def min_in_all_groups(self, topic: str, min_offset: Callable[[int], int], *, without: Collection[str] = ()) -> ByQueue:
        """Return the smallest offset of any group by queue id; offsets below the queue's minimum do not count.

        min_offset: of a queue id of the topic. without: groups to leave out. Both versions of the broker *delete* the
        offsets of those groups, in all topics, from the live table; this method only leaves them out.
        """
        smallest: ByQueue = {}
        with self._lock:
            for key, by_queue in self._table.items():
                pair = split(key)
                if pair is None or pair[0] != topic or pair[1] in without:
                    continue
                for queue_id, offset in by_queue.items():
                    if offset >= min_offset(queue_id):
                        smallest[queue_id] = min(offset, smallest.get(queue_id, offset))
        return smallest

    def lag(self, group: str, topic: str, max_offsets: Mapping[int, int]) -> ByQueue:
        """Return each queue's maximum minus the group's offset. Queues without an offset are left out."""
        committed = self.by_queue(group, topic)
        return {queue_id: high - committed[queue_id] for queue_id, high in max_offsets.items() if queue_id in committed}

    # resets

    def assign_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Reset on the server side (5.3.3): the next pull starts there whatever the client requests. Raises UsageError."""
        if not topic or not group or queue_id < 0 or offset < 0:
            raise UsageError(
                f"queue {queue_id} of {topic!r} cannot be reset to {offset} for {group!r}: names must not be empty, nor numbers negative"
            )
        key = f"{topic}@{group}"
        with self._lock:
            self._resets.setdefault(key, {})[queue_id] = offset
            by_queue = self._table.setdefault(key, {})
            self._count += queue_id not in by_queue
            by_queue[queue_id] = offset

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether a reset is pending for the next pull."""
        with self._lock:
            return queue_id in self._resets.get(f"{topic}@{group}", {})

    def pop_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Pop the pending reset, or return None."""
        with self._lock:
            return self._resets.get(f"{topic}@{group}", {}).pop(queue_id, None)

    def reset(
        self, group: str, topic: str, targets: Mapping[int, int], *, force: bool, server_side: bool = False
    ) -> tuple[OffsetChange, ...]:
        """Move a group to the target of each queue id: only back, unless forced. A queue without an offset is moved only if forced.

        server_side: by `assign_reset`, so that running consumers follow.
        """
        changes = []
        with self._lock:
            for queue_id, target in targets.items():
                before = self.query(group, topic, queue_id)
                after = target if force or target < before else before
                if after != before and server_side:
                    self.assign_reset(group, topic, queue_id, after)
                elif after != before:
                    self.commit(group, topic, queue_id, after)
                changes.append(OffsetChange(queue_id, before, target, after))
        return tuple(changes)

    def reset_by_time(
        self,
        group: str,
        topic: str,
        queue_ids: Iterable[int],
        timestamp: int,
        *,
        offset_by_time: Callable[[int, int], int],
        max_offset: Callable[[int], int],
        force: bool = False,
    ) -> tuple[OffsetChange, ...]:
        """Move a group to the first messages stored at a time (ms; -1: to the end), as the broker's reset command does.

        offset_by_time(queue_id, timestamp), max_offset(queue_id): of the queue. In 4.9.3 a group must already have an
        offset in every queue, else NotFoundError. In 5.3.3 the reset is server-side, forced or not, and running consumers follow.
        """
        ids = list(queue_ids)
        with self._lock:
            if not self._rules.resets_at_broker:
                missing = [queue_id for queue_id in ids if self.query(group, topic, queue_id) < 0]
                if missing:
                    raise NotFoundError(
                        f"group {group!r} has no offset in queue {missing[0]} of {topic!r}; 4.9.3 resets only groups that have one in each"
                    )
            targets = {
                queue_id: max_offset(queue_id) if timestamp == -1 else max(0, offset_by_time(queue_id, timestamp)) for queue_id in ids
            }
            return self.reset(group, topic, targets, force=force or self._rules.resets_at_broker, server_side=self._rules.resets_at_broker)

    def skip_to_max(self, group: str, topic: str, max_offsets: Mapping[int, int]) -> tuple[OffsetChange, ...]:
        """Move a group to the end of each queue, past all waiting messages."""
        return self.reset(group, topic, max_offsets, force=True)

    # the file

    def text(self) -> str:
        """Return the text of the file in the dialect of the version."""
        with self._lock:
            whole: dict[str, Any] = dict(self._others)
            whole["offsetTable"] = {key: dict(sorted(by_queue.items())) for key, by_queue in self._table.items()}
            if self.lmq:
                whole["lmqOffsetTable"] = self._lmq_table
            if self._rules.writes_every_field:
                whole["dataVersion"] = self._data_version.value(True)
                whole["groupTopicMap"] = self._topics_by_group()
            return to_text(bean(whole))

    def _topics_by_group(self) -> dict[str, list[str]]:
        by_group: dict[str, list[str]] = {}
        for topic, group in self._pairs():
            by_group.setdefault(group, []).append(topic)
        return {group: _java_order(by_group[group], 8) for group in _java_order(by_group, 128)}

    def persist(self, directory: DurableDirectory) -> bool:
        """Write the file unless it already has this content. Returns whether it was written."""
        return self._writer.write(directory, self.text)


def _java_order(names: Iterable[str], capacity: int) -> list[str]:
    """Return the names, each once, in the iteration order of a Java HashMap created with that capacity."""
    return [name for name, _ in JavaMap.of(dict.fromkeys(names, ""), capacity).items()]
