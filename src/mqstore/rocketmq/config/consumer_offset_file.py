"""Consumer offset files: how far each consumer group is in each queue.

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

from dataclasses import dataclass, field
from typing import Any, Literal

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rocketmq.config import fastjson

CONSUMER_OFFSETS = "config/consumerOffset.json"
LMQ_OFFSETS = "config/lmqConsumerOffset.json"
DELAY_OFFSETS = "config/delayOffset.json"

ByQueue = dict[int, int]


@dataclass(frozen=True, slots=True)
class OffsetTable:
    """The offsets a broker would load. offsets: (group, topic) -> queue id -> next offset.

    unsplit: keys that are not a topic and a group separated by one @; a broker keeps them, but finds no group in them.
    of_5: the file has properties that only 5.x writes. used: the main file, its .bak, a RocksDB database, or None.
    """

    offsets: dict[tuple[str, str], ByQueue] = field(default_factory=dict)
    unsplit: dict[str, ByQueue] = field(default_factory=dict)
    of_5: bool = False
    used: Literal["main", "bak", "database"] | None = None
    findings: tuple[Damage, ...] = ()


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
    found: ByQueue = {}
    odd = 0
    for name, number in value.items():
        digits = name.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= 10 and -(1 << 31) <= int(name) < 1 << 31 and _is_i64(number):
            found[int(name)] = number
        else:
            odd += 1
    return found, odd


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


def load(directory: ReadOnlyDirectory, *, lmq: bool | None = None) -> OffsetTable:
    """Read the offset table of a store. lmq: whether the broker runs with LMQ; if None, the LMQ file is read if it exists."""
    if lmq is None:
        lmq = directory.exists(LMQ_OFFSETS) or directory.exists(f"{LMQ_OFFSETS}.bak")
    relative = LMQ_OFFSETS if lmq else CONSUMER_OFFSETS
    file = fastjson.load(directory, relative)
    offsets, unsplit, findings = table(file.value, relative)
    of_5 = "dataVersion" in file.value or "groupTopicMap" in file.value
    return OffsetTable(offsets, unsplit, of_5, file.used, (*file.findings, *findings))


def load_delay_offsets(directory: ReadOnlyDirectory) -> DelayOffsets:
    """Read how far each delay level was delivered."""
    file = fastjson.load(directory, DELAY_OFFSETS)
    by_level, odd = _parse_offsets(file.value.get("offsetTable", {}))
    findings = list(file.findings)
    if odd:
        findings.append(Damage(DELAY_OFFSETS, 0, 0, Kind.BAD_CONFIG, f"{odd} items are not offsets of a delay level; they are left out"))
    return DelayOffsets(by_level, tuple(findings))
