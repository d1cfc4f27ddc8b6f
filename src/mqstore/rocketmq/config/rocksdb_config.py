"""Topics, groups and consumer offsets in RocksDB, as 5.x brokers keep them instead of JSON files.

Version 1, a database for each; the values are JSON, and family `kvDataVersion` has the version of the table:

    config/topics               topic -> one topic, as in topics.json
    config/subscriptionGroups   group -> one group
    config/consumerOffsets      topic@group -> {"offsetTable":{"0":40,"1":40}}

Version 2 (`configManagerVersion=v2`), one database, `config/rdb`; integers are big-endian, `01` is a byte of value 1, and a name is
its length as i16 and its bytes:

    key    01, i16 table (1 offsets, 2 pull offsets, 3 topics, 4 groups), kind (01 data version, 02 data), and
           of an offset        group, 01, topic, 01, i32 queue id    value  i64 next offset
           of a topic, group   name                                  value  01 (JSON), JSON

    >>> parse_key_v2(bytes.fromhex("01 0001 02 0001 67 01 0001 74 01 00000003"))
    (1, ('g', 't', 3))
    >>> parse_key_v2(bytes.fromhex("01 0003 02 0006 6f7264657273"))
    (3, ('orders',))

Format: docs/formats/rocketmq.md, section 11.2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mqstore.files.rocksdb import RocksDatabase
from mqstore.findings import Damage, Kind
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.consumer_offsets import ByQueue, OffsetTable, table
from mqstore.rocketmq.config.topic_table import TopicConfig, topic_of

TOPICS, GROUPS, OFFSETS, V2 = "config/topics", "config/subscriptionGroups", "config/consumerOffsets", "config/rdb"
OFFSET_TABLE, TOPIC_TABLE, GROUP_TABLE = 1, 3, 4
_DATA = 2
_INT16, _INT32, _INT64 = struct.Struct(">H"), struct.Struct(">i"), struct.Struct(">q")
_VERSION = struct.Struct(">qqq")

DataVersion = tuple[int, int, int]  # state version, counter, timestamp: in the order in which brokers compare them


@dataclass(frozen=True, slots=True)
class TopicTable:
    """The topics of a database."""

    by_name: dict[str, TopicConfig] = field(default_factory=dict)
    version: DataVersion | None = None
    findings: tuple[Damage, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupNames:
    """The groups of a database."""

    names: tuple[str, ...] = ()
    version: DataVersion | None = None
    findings: tuple[Damage, ...] = ()


def json_version(value: object) -> DataVersion | None:
    """Return the `dataVersion` of a JSON file; None if it has none."""
    if not isinstance(value, dict):
        return None
    numbers = [value.get(name, 0) for name in ("stateVersion", "counter", "timestamp")]
    return (numbers[0], numbers[1], numbers[2]) if all(isinstance(number, int) for number in numbers) else None


def parse_key_v2(key: bytes) -> tuple[int, tuple[Any, ...]] | None:
    """Return (table, (group, topic, queue id) or (name,)) of a key of version 2 that has data; None for any other."""
    if len(key) < 6 or key[0] != 1 or key[3] != _DATA:
        return None
    number = _INT16.unpack_from(key, 1)[0]
    first, at = _name(key, 4)
    if first is None:
        return None
    if number in (TOPIC_TABLE, GROUP_TABLE):
        return (number, (first,)) if at == len(key) else None
    second, at = _name(key, at + 1)
    if second is None or len(key) != at + 5:
        return None
    return number, (first, second, _INT32.unpack_from(key, at + 1)[0])


def _name(key: bytes, at: int) -> tuple[str | None, int]:
    if at + 2 > len(key):
        return None, at
    end = at + 2 + _INT16.unpack_from(key, at)[0]
    return (key[at + 2 : end].decode("utf-8", "replace"), end) if end <= len(key) else (None, end)


class _Reading:
    """The pairs of one table of a database, and what is wrong with them."""

    def __init__(self, database: RocksDatabase, number: int) -> None:
        self._database = database
        self._number = number
        self._odd = 0

    def pairs(self) -> Iterator[tuple[tuple[Any, ...], bytes]]:
        """Yield (parts of the key, value). In version 1 the key is the only part."""
        family = self._database.family()
        for key, value in family.items() if family is not None else ():
            if self._database.relative != V2:
                yield (key.decode("utf-8", "replace"),), value
            elif len(key) > 3 and key[3] == _DATA and key[1:3] == _INT16.pack(self._number):
                parts = parse_key_v2(key)
                if parts is None:
                    self._odd += 1
                else:
                    yield parts[1], value

    def objects(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (name, parsed JSON)."""
        for parts, value in self.pairs():
            text = value[1:] if self._database.relative == V2 and value[:1] == b"\1" else value
            try:
                parsed = fastjson.parse(text.decode("utf-8", "replace"))
            except ValueError:
                self._odd += 1
                continue
            yield parts[0], parsed

    def number_of(self, value: bytes) -> int | None:
        if len(value) == 8:
            number: int = _INT64.unpack(value)[0]
            return number
        self._odd += 1
        return None

    def version(self) -> DataVersion | None:
        """Return the version of the table; None if the database has none."""
        if self._database.relative == V2:
            family = self._database.family()
            raw = family.get(b"\1%b\1data_version" % _INT16.pack(self._number)) if family is not None else None
            if raw is None or len(raw) != _VERSION.size:
                return None
            state, timestamp, counter = _VERSION.unpack(raw)
            return state, counter, timestamp
        family = self._database.family("kvDataVersion")
        raw = family.get(b"kvDataVersionKey") if family is not None else None
        try:
            return None if raw is None else json_version(fastjson.parse(raw.decode("utf-8", "replace")))
        except ValueError:
            return None

    def findings(self) -> tuple[Damage, ...]:
        if not self._odd:
            return ()
        sentence = f"{self._odd} pairs of the database are not what a broker writes; they are left out"
        return (Damage(self._database.relative, 0, 0, Kind.BAD_CONFIG, sentence),)


def topics(database: RocksDatabase) -> TopicTable:
    """Read the topics of a database of either version."""
    reading = _Reading(database, TOPIC_TABLE)
    by_name = {name: topic_of(name, value) for name, value in reading.objects()}
    return TopicTable(by_name, reading.version(), reading.findings())


def groups(database: RocksDatabase) -> GroupNames:
    """Read the names of the subscription groups of a database of either version."""
    reading = _Reading(database, GROUP_TABLE)
    names = tuple(sorted(name for name, _ in reading.objects()))
    return GroupNames(names, reading.version(), reading.findings())


def offsets(database: RocksDatabase) -> OffsetTable:
    """Read the consumer offsets of a database of either version."""
    reading = _Reading(database, OFFSET_TABLE)
    if database.relative != V2:
        value = {name: value.get("offsetTable") for name, value in reading.objects()}
        by_queue, unsplit, findings = table({"offsetTable": value}, database.relative)
        return OffsetTable(by_queue, unsplit, True, "database", (*reading.findings(), *findings))
    by_group: dict[tuple[str, str], ByQueue] = {}
    for parts, raw in reading.pairs():
        offset = reading.number_of(raw)
        if offset is not None and len(parts) == 3:
            by_group.setdefault((parts[0], parts[1]), {})[parts[2]] = offset
    return OffsetTable(by_group, {}, True, "database", reading.findings())
