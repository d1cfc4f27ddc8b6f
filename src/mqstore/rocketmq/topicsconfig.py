"""Topics and subscription groups as configured: `config/topics.json`, `config/subscriptionGroup.json`, `config/delayOffset.json`.

Only what readers need is taken: names, whether 5.x wrote the file, and the attributes that change where messages are
listed (`queue.type`) or which of them count (`cleanup.policy`).

Format: docs/formats/rocketmq.md, sections 1.5.3 to 1.5.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage
from mqstore.rocketmq import configjson

__all__ = ["TopicsConfig", "load"]


@dataclass(frozen=True, slots=True)
class TopicsConfig:
    """names: configured topics. batch_topics: those with batch queues. compacted: those with compaction. groups: subscription groups."""

    names: tuple[str, ...] = ()
    batch_topics: tuple[str, ...] = ()
    compacted: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    delay_offsets: tuple[tuple[int, int], ...] = ()
    five: bool = False
    findings: tuple[Damage, ...] = ()


def _table(value: dict[str, Any], name: str) -> dict[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _with_attribute(topics: dict[str, Any], name: str, wanted: str) -> tuple[str, ...]:
    found = []
    for topic, config in topics.items():
        attributes = config.get("attributes") if isinstance(config, dict) else None
        if isinstance(attributes, dict) and str(attributes.get(name, "")).upper() == wanted:
            found.append(topic)
    return tuple(found)


def load(directory: ReadOnlyDirectory) -> TopicsConfig:
    """What the configuration files say of topics and groups; empty where they are missing."""
    topics_file = configjson.load(directory, "config/topics.json")
    groups_file = configjson.load(directory, "config/subscriptionGroup.json")
    delays_file = configjson.load(directory, "config/delayOffset.json")
    topics = _table(topics_file.value, "topicConfigTable")
    delays = [
        (int(level), offset)
        for level, offset in _table(delays_file.value, "offsetTable").items()
        if str(level).isdecimal() and isinstance(offset, int)
    ]
    version = _table(topics_file.value, "dataVersion")
    return TopicsConfig(
        names=tuple(topics),
        batch_topics=_with_attribute(topics, "queue.type", "BATCHCQ"),
        compacted=_with_attribute(topics, "cleanup.policy", "COMPACTION"),
        groups=tuple(_table(groups_file.value, "subscriptionGroupTable")),
        delay_offsets=tuple(sorted(delays)),
        five="stateVersion" in version,
        findings=(*topics_file.findings, *groups_file.findings, *delays_file.findings),
    )
