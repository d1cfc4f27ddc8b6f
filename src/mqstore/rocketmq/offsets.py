"""Consumer offsets: `config/consumerOffset.json`, how far each group has consumed each queue.

    {"offsetTable":{"TestTopic@TestTopicGroup":{0:0,1:1,2:1,3:0}}}

A key is `topic@group`; the number is the offset of the next message to consume. Brokers with light message queues use
`config/lmqConsumerOffset.json`, whose `lmqOffsetTable` holds one number per `topic@group`. Nothing is checked against
the queues when a broker loads the file, so any number may stand here.

Format: docs/formats/rocketmq.md, sections 1.5.2 and 11.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rocketmq import configjson

__all__ = ["OffsetTable", "load", "table_of"]

FILE = "config/consumerOffset.json"
LMQ_FILE = "config/lmqConsumerOffset.json"


@dataclass(frozen=True, slots=True)
class OffsetTable:
    """offsets: (group, topic) -> queue id -> next offset. raw: the table by its own keys, as the broker holds it."""

    offsets: dict[tuple[str, str], dict[int, int]]
    raw: dict[str, dict[int, int]]
    file: str
    five: bool = False
    findings: tuple[Damage, ...] = ()


def _as_int(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else None
    if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < 20:
        return int(value)
    return None


def table_of(value: dict[str, Any], file: str) -> OffsetTable:
    """The table in a parsed file; entries that are no offsets are findings, not errors."""
    raw: dict[str, dict[int, int]] = {}
    findings = []
    tables = value.get("offsetTable"), value.get("lmqOffsetTable")
    for key, entry in (tables[0] if isinstance(tables[0], dict) else {}).items():
        queues: dict[int, int] = {}
        for queue_id, offset in (entry if isinstance(entry, dict) else {}).items():
            number, queue = _as_int(offset), _as_int(queue_id)
            if number is None or queue is None:
                findings.append(Damage(file, 0, 0, Kind.BAD_CONFIG, f"{key!r}: queue {queue_id!r}, offset {offset!r} are no numbers"))
            else:
                queues[queue] = number
        raw[key] = queues
    for key, offset in (tables[1] if isinstance(tables[1], dict) else {}).items():
        number = _as_int(offset)
        if number is not None:
            raw[key] = {0: number}
    if tables[0] is not None and not isinstance(tables[0], dict):
        findings.append(Damage(file, 0, 0, Kind.BAD_CONFIG, "offsetTable is no object"))
    offsets: dict[tuple[str, str], dict[int, int]] = {}
    for key, queues in raw.items():
        topic, _, group = key.partition("@")
        offsets[group, topic] = queues
    return OffsetTable(offsets, raw, file, "groupTopicMap" in value or "dataVersion" in value, tuple(findings))


def load(directory: ReadOnlyDirectory) -> OffsetTable:
    """The offsets of a store, with the broker's fallback to `.bak`; the light-queue file where only that is there."""
    file = FILE
    if not directory.exists(FILE) and not directory.exists(f"{FILE}.bak") and directory.exists(LMQ_FILE):
        file = LMQ_FILE
    config = configjson.load(directory, file)
    table = table_of(config.value, config.used or file)
    return OffsetTable(table.offsets, table.raw, table.file, table.five, (*config.findings, *table.findings))
