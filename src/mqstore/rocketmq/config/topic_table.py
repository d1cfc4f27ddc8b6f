"""Topics and subscription groups of a writable store: the tables in memory, what a broker puts into them, and their files.

    >>> topics = Topics("4.9.3", clock=lambda: 1795230249317)
    >>> _ = topics.put(TopicConfig("orders", read_queues=4, write_queues=4))
    >>> print(topics.text().expandtabs(2))
    {
      "dataVersion":{
        "counter":1,
        "timestamp":1795230249317
      },
      "topicConfigTable":{
        "orders":{
          "order":false,
          "perm":6,
          "readQueueNums":4,
          "topicFilterType":"SINGLE_TAG",
          "topicName":"orders",
          "topicSysFlag":0,
          "writeQueueNums":4
        }
      }
    }

`config/topics.json` and `config/subscriptionGroup.json` are written at each change and at shutdown. Unknown fields of a loaded
file are kept. Fields that 5.x adds (`attributes`, `groupRetryPolicy`, …) are left out for 4.9.3 if they have their default.

Topics and subscription groups as configured in a broker.

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

    >>> topic_of("orders", {"perm": 6, "attributes": {"queue.type": "BatchCQ"}}).queue_type
    'BatchCQ'

Format: docs/formats/rocketmq.md, section 1.5.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.config_writer import ConfigWriter, DataVersion, bean, to_text
from mqstore.rocketmq.config.store_config import now_ms
from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.format.system_topics import (
    BENCHMARK_TOPIC,
    CHECK_GROUP,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TEMPLATE_TOPIC,
    TIMER_TOPIC,
    reply_topic,
)

if TYPE_CHECKING:
    from mqstore.files.durable import DurableDirectory

BUILT_IN_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)

_TOPIC_ADDED: dict[str, Any] = {"attributes": {}}
_GROUP_ADDED: dict[str, Any] = {
    "attributes": {},
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
}
TOPICS_FILE = "config/topics.json"
GROUPS_FILE = "config/subscriptionGroup.json"


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


def topic_of(name: str, value: dict[str, Any]) -> TopicConfig:
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


def load_topics_config(directory: ReadOnlyDirectory) -> TopicsConfig:
    """Read both files of a store; missing ones give empty tables."""
    topics_file = fastjson.load(directory, TOPICS_FILE)
    groups_file = fastjson.load(directory, GROUPS_FILE)
    findings = [*topics_file.findings, *groups_file.findings]
    topics = _objects_by_name(topics_file.value, "topicConfigTable", TOPICS_FILE, findings)
    groups = _objects_by_name(groups_file.value, "subscriptionGroupTable", GROUPS_FILE, findings)
    versions = (topics_file.value.get("dataVersion"), groups_file.value.get("dataVersion"))
    of_5 = any(isinstance(version, dict) and "stateVersion" in version for version in versions)
    return TopicsConfig(
        {name: topic_of(name, value) for name, value in topics.items()},
        tuple(sorted(groups)),
        of_5 or any("attributes" in value for value in topics.values()),
        tuple(findings),
    )


def system_topics(
    version: str, *, cluster: str = "DefaultCluster", broker: str = "broker-a", template_queues: int = 8
) -> tuple[TopicConfig, ...]:
    """Return the topics that a broker creates itself. In 4.9.3 the half topic appears some seconds later, with the first check-back.

    template_queues: of the topic that those created on first use take after, `defaultTopicQueueNums`.
    """

    def made(name: str, queues: int = 1, perm: int = 6) -> TopicConfig:
        return TopicConfig(name, perm=perm, read_queues=queues, write_queues=queues)

    common = (
        made(SELF_TEST_TOPIC),
        made(TEMPLATE_TOPIC, template_queues, 7),
        made(BENCHMARK_TOPIC, 1024),
        made(cluster, 16, 7),
        made(broker, 1, 7),
        made(OFFSET_MOVED_TOPIC),
        made(SCHEDULE_TOPIC, 18),
        made(reply_topic(cluster)),
        made(HALF_TOPIC),
    )
    if not version_rules(version).makes_further_topics:
        return common
    return (
        *common,
        made(f"rmq_sys_REVIVE_LOG_{cluster}", 8),
        made(f"rmq_sys_SYNC_BROKER_MEMBER_{broker}", 1, 1),
        made(OP_TOPIC),
        made(TIMER_TOPIC),
    )


def built_in_groups(version: str) -> tuple[str, ...]:
    """Return the groups that a broker creates itself."""
    return (*BUILT_IN_GROUPS, CHECK_GROUP) if version_rules(version).makes_further_topics else BUILT_IN_GROUPS


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig:
    """One subscription group. The fields after retry_max_times are rarely changed; those from consume_message_orderly on are 5.x only."""

    name: str
    consume_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: int = 15
    group_sys_flag: int = 0
    attributes: dict[str, str] = field(default_factory=dict)


_GROUP_FIELDS = {
    "consume_enable": "consumeEnable",
    "retry_queue_nums": "retryQueueNums",
    "retry_max_times": "retryMaxTimes",
    "consume_from_min_enable": "consumeFromMinEnable",
    "consume_broadcast_enable": "consumeBroadcastEnable",
    "broker_id": "brokerId",
    "which_broker_when_consume_slowly": "whichBrokerWhenConsumeSlowly",
    "notify_consumer_ids_changed_enable": "notifyConsumerIdsChangedEnable",
    "consume_message_orderly": "consumeMessageOrderly",
    "consume_timeout_minute": "consumeTimeoutMinute",
    "group_sys_flag": "groupSysFlag",
    "attributes": "attributes",
}


C = TypeVar("C", TopicConfig, SubscriptionGroupConfig)


class _ConfigTable(Generic[C]):
    """A file of beans by name with a data version. _added: the properties that 5.x adds to a bean, with their defaults."""

    _relative: str
    _name: str
    _added: Mapping[str, Any]

    def __init__(self, version: str, *, clock: Callable[[], int] = now_ms) -> None:
        self.version = version
        self.findings: tuple[Damage, ...] = ()
        self._rules = version_rules(version)
        self._clock = clock
        self._lock = threading.RLock()
        self._beans: dict[str, dict[str, Any]] = {}
        self._read: dict[str, C] = {}  # cache of the configurations that `get` parses from beans
        self._data_version = DataVersion(clock())
        self._others: dict[str, Any] = {}
        self._writer = ConfigWriter(self._relative, version)

    @classmethod
    def load(cls, reading: ReadOnlyDirectory, version: str, *, clock: Callable[[], int] = now_ms) -> Self:
        """Load the table of a store; a missing file gives an empty one. Items that are not objects are findings and left out."""
        made = cls(version, clock=clock)
        file = fastjson.load(reading, cls._relative)
        findings = list(file.findings)
        part = file.value.get(cls._name, {})
        beans = part if isinstance(part, dict) else {}
        made._beans = {name: value for name, value in beans.items() if isinstance(value, dict)}
        if len(made._beans) < len(beans) or beans is not part:
            findings.append(
                Damage(cls._relative, 0, 0, Kind.BAD_CONFIG, f"{cls._name} holds items that are not objects; they are left out")
            )
        made.findings = tuple(findings)
        made._data_version = DataVersion.of(file.value.get("dataVersion"), clock)
        made._others = {name: value for name, value in file.value.items() if name not in ("dataVersion", cls._name)}
        return made

    @property
    def counter(self) -> int:
        """Number of changes of the table, over all runs."""
        with self._lock:
            return self._data_version.counter

    def names(self) -> tuple[str, ...]:
        """Return all names, in the order of the file."""
        with self._lock:
            return tuple(self._beans)

    def __contains__(self, name: object) -> bool:
        with self._lock:
            return name in self._beans

    def get(self, name: str) -> C | None:
        """Return a configuration, or None."""
        config = self._read.get(name)
        if config is None:
            with self._lock:
                held = self._beans.get(name)
                if held is not None:
                    config = self._read[name] = self._parsed(name, held)
        return config

    def put(self, config: C) -> C | None:
        """Create or change an item. Returns its previous configuration."""
        with self._lock:
            before = self.get(config.name)
            self._merge(config)
            self._data_version.next(self._clock())
            return before

    def _add_missing(self, configs: Iterable[C]) -> None:
        """Add what a broker creates itself; this does not count as a change."""
        with self._lock:
            for config in configs:
                if config.name not in self._beans:
                    self._merge(config)

    def delete(self, name: str) -> bool:
        """Delete an item. Returns False if it does not exist."""
        with self._lock:
            if self._beans.pop(name, None) is None:
                return False
            self._read.pop(name, None)
            self._data_version.next(self._clock())
            return True

    def _merge(self, config: C) -> None:
        """Merge a configuration into its item, which is created if missing."""
        self._beans[config.name] = {**self._beans.get(config.name, {}), **self._bean(config)}
        self._read.pop(config.name, None)

    def _parsed(self, name: str, held: dict[str, Any]) -> C:
        raise NotImplementedError

    def _bean(self, config: C) -> dict[str, Any]:
        raise NotImplementedError

    def _as_written(self, held: Mapping[str, Any]) -> dict[str, Any]:
        if self._rules.writes_every_field:
            return bean({**self._added, **held})
        return bean({name: value for name, value in held.items() if name not in self._added or value != self._added[name]})

    def _document(self) -> dict[str, Any]:
        beans = {name: self._as_written(held) for name, held in self._beans.items()}
        return {**self._others, "dataVersion": self._data_version.value(self._rules.writes_every_field), self._name: beans}

    def text(self) -> str:
        """Return the text of the file in the dialect of the version."""
        with self._lock:
            return to_text(bean(self._document()))

    def persist(self, directory: DurableDirectory) -> bool:
        """Write the file unless it already has this content. Returns whether it was written."""
        return self._writer.write(directory, self.text)


class Topics(_ConfigTable[TopicConfig]):
    """The topics of a store, `config/topics.json`. Thread-safe. findings: invalid parts of the file."""

    _relative = TOPICS_FILE
    _name = "topicConfigTable"
    _added = _TOPIC_ADDED

    def _parsed(self, name: str, held: dict[str, Any]) -> TopicConfig:
        return topic_of(name, held)

    def _bean(self, config: TopicConfig) -> dict[str, Any]:
        return topic_bean(config)

    def add_system_topics(self, *, cluster: str = "DefaultCluster", broker: str = "broker-a", template_queues: int = 8) -> None:
        """Add the missing topics that a broker creates itself; this does not count as a change."""
        self._add_missing(system_topics(self.version, cluster=cluster, broker=broker, template_queues=template_queues))


def topic_bean(config: TopicConfig) -> dict[str, Any]:
    """Return a topic as `topics.json` and the broker's answers have it."""
    return {
        "attributes": dict(config.attributes),
        "order": config.order,
        "perm": config.perm,
        "readQueueNums": config.read_queues,
        "topicFilterType": config.filter_type,
        "topicName": config.name,
        "topicSysFlag": config.sys_flag,
        "writeQueueNums": config.write_queues,
    }


class SubscriptionGroups(_ConfigTable[SubscriptionGroupConfig]):
    """The subscription groups of a store, `config/subscriptionGroup.json`. Thread-safe. findings: as in `Topics`."""

    _relative = GROUPS_FILE
    _name = "subscriptionGroupTable"
    _added = _GROUP_ADDED

    def _parsed(self, name: str, held: dict[str, Any]) -> SubscriptionGroupConfig:
        """Return a group; a field of the wrong type counts as missing."""
        usual = SubscriptionGroupConfig(name)
        same = {own: held[theirs] for own, theirs in _GROUP_FIELDS.items() if type(held.get(theirs)) is type(getattr(usual, own))}
        return SubscriptionGroupConfig(name, **same)

    def _bean(self, config: SubscriptionGroupConfig) -> dict[str, Any]:
        return {"groupName": config.name, **{theirs: getattr(config, own) for own, theirs in _GROUP_FIELDS.items()}}

    def add_built_in(self) -> None:
        """Add the missing groups that a broker creates itself; this does not count as a change."""
        self._add_missing(SubscriptionGroupConfig(name) for name in built_in_groups(self.version))

    def _document(self) -> dict[str, Any]:
        document = super()._document()
        if self._rules.writes_every_field:
            document.setdefault("forbiddenTable", {})
        elif not document.get("forbiddenTable"):
            document.pop("forbiddenTable", None)
        return document
