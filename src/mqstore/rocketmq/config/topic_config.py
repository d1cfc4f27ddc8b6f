"""Topics and subscription groups as configured in a broker.

`config/topics.json` lists the topics, `config/subscriptionGroup.json` the groups; both in the dialect of `config.fastjson`:

    {
        "dataVersion":{"counter":7,"stateVersion":0,"timestamp":1795230249317},
        "topicConfigTable":{
            "orders":{
                "attributes":{"queue.type":"BatchCQ"},
                "order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",
                "topicName":"orders","topicSysFlag":0,"writeQueueNums":4
            }
        }
    }

`attributes` and `stateVersion` are written by 5.x only. An attribute that was set with a leading + is stored without it.

    >>> topic("orders", {"perm": 6, "attributes": {"queue.type": "BatchCQ"}}).queue_type
    'BatchCQ'

Format: docs/formats/rocketmq.md, section 1.5.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rocketmq.config import fastjson

TOPICS = "config/topics.json"
GROUPS = "config/subscriptionGroup.json"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic. perm: 4 read, 2 write, 1 inherit. attributes: 5.x only, empty otherwise."""

    name: str
    perm: int = 6
    read_queues: int = 0
    write_queues: int = 0
    order: bool = False
    sys_flag: int = 0
    filter_type: str = "SINGLE_TAG"
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def queue_type(self) -> str:
        """`SimpleCQ` or `BatchCQ`."""
        return self.attributes.get("queue.type", "SimpleCQ")

    @property
    def cleanup_policy(self) -> str:
        """`DELETE` or `COMPACTION`."""
        return self.attributes.get("cleanup.policy", "DELETE")


@dataclass(frozen=True, slots=True)
class TopicsConfig:
    """topics: by name. groups: names of the subscription groups. of_5: the files have properties that only 5.x writes."""

    topics: dict[str, TopicConfig] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    of_5: bool = False
    findings: tuple[Damage, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Names of the configured topics."""
        return frozenset(self.topics)

    @property
    def batch_topics(self) -> tuple[str, ...]:
        """Topics whose queues are batch queues."""
        return tuple(sorted(name for name, config in self.topics.items() if config.queue_type == "BatchCQ"))

    @property
    def compacted(self) -> tuple[str, ...]:
        """Topics of which the broker keeps the newest message per key only."""
        return tuple(sorted(name for name, config in self.topics.items() if config.cleanup_policy == "COMPACTION"))


def _int_or_default(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def topic(name: str, value: dict[str, Any]) -> TopicConfig:
    """Read one topic of the parsed file; fields of the wrong type count as missing."""
    attributes = value.get("attributes")
    named = {str(key).removeprefix("+"): item for key, item in attributes.items()} if isinstance(attributes, dict) else {}
    filter_type = value.get("topicFilterType")
    return TopicConfig(
        name,
        perm=_int_or_default(value.get("perm"), 6),
        read_queues=_int_or_default(value.get("readQueueNums"), 0),
        write_queues=_int_or_default(value.get("writeQueueNums"), 0),
        order=value.get("order") is True,
        sys_flag=_int_or_default(value.get("topicSysFlag"), 0),
        filter_type=filter_type if isinstance(filter_type, str) else "SINGLE_TAG",
        attributes={key: item for key, item in named.items() if isinstance(item, str)},
    )


def _objects_by_name(value: dict[str, Any], name: str, relative: str, findings: list[Damage]) -> dict[str, dict[str, Any]]:
    """Return the objects in the map `name` of a parsed file; anything else in it is a finding."""
    part = value.get(name, {})
    if not isinstance(part, dict):
        findings.append(Damage(relative, 0, 0, Kind.BAD_CONFIG, f"{name} is not a map"))
        return {}
    odd = [key for key, item in part.items() if not isinstance(item, dict)]
    if odd:
        findings.append(Damage(relative, 0, 0, Kind.BAD_CONFIG, f"{len(odd)} items of {name} are not objects, the first is {odd[0]!r}"))
    return {key: item for key, item in part.items() if isinstance(item, dict)}


def load(directory: ReadOnlyDirectory) -> TopicsConfig:
    """Read both files of a store; missing ones give empty tables."""
    topics_file = fastjson.load(directory, TOPICS)
    groups_file = fastjson.load(directory, GROUPS)
    findings = [*topics_file.findings, *groups_file.findings]
    topics = _objects_by_name(topics_file.value, "topicConfigTable", TOPICS, findings)
    groups = _objects_by_name(groups_file.value, "subscriptionGroupTable", GROUPS, findings)
    versions = (topics_file.value.get("dataVersion"), groups_file.value.get("dataVersion"))
    of_5 = any(isinstance(version, dict) and "stateVersion" in version for version in versions)
    return TopicsConfig(
        {name: topic(name, value) for name, value in topics.items()},
        tuple(sorted(groups)),
        of_5 or any("attributes" in value for value in topics.values()),
        tuple(findings),
    )
