"""Routes: which brokers have a topic, and with how many queues. Values only; `nameserver` handles the requests.

    >>> own = BrokerEntry("DefaultCluster", "broker-a", {0: "127.0.0.1:10911"}, {"T": TopicConfig("T", read_queues=4, write_queues=4)})
    >>> route("T", [own])["queueDatas"]
    [{'brokerName': 'broker-a', 'perm': 6, 'readQueueNums': 4, 'topicSysFlag': 0, 'writeQueueNums': 4}]
    >>> route("U", [own]) is None
    True

Protocol: docs/formats/rocketmq-remoting.md, sections 2.1 and 2.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mqstore.rocketmq.config.topic_config import TopicConfig
from mqstore.rocketmq.config.topic_config import topic as topic_of

WRITE = 2
MASTER = 0


@dataclass(slots=True)
class BrokerEntry:
    """A broker as known to a name server. addresses: by broker id, 0 is the master. wiped: its write permission was removed.

    data_version: of the topics, as sent by the broker. heard_at: time of the last registration, ms.
    """

    cluster: str
    name: str
    addresses: dict[int, str]
    topics: Mapping[str, TopicConfig]
    wiped: bool = False
    data_version: dict[str, Any] = field(default_factory=dict)
    heard_at: int = 0

    @property
    def master(self) -> str:
        """The address of the master, or an empty string."""
        return self.addresses.get(MASTER, "")


def _broker_data(broker: BrokerEntry, acting_master: bool) -> dict[str, Any]:
    acting = {"enableActingMaster": False} if acting_master else {}
    return {"brokerAddrs": broker.addresses, "brokerName": broker.name, "cluster": broker.cluster, **acting}


def route(topic: str, brokers: Iterable[BrokerEntry], *, order: str | None = None, acting_master: bool = False) -> dict[str, Any] | None:
    """Return the body of a route response, or None if no broker has the topic. order: the topic's order configuration."""
    having = [(broker, broker.topics[topic]) for broker in brokers if topic in broker.topics]
    if not having:
        return None
    queues = [
        {
            "brokerName": broker.name,
            "perm": config.perm & ~WRITE if broker.wiped else config.perm,
            "readQueueNums": config.read_queues,
            "topicSysFlag": config.sys_flag,
            "writeQueueNums": config.write_queues,
        }
        for broker, config in having
    ]
    return {
        "brokerDatas": [_broker_data(broker, acting_master) for broker, _ in having],
        "filterServerTable": {},
        "orderTopicConf": order,
        "queueDatas": queues,
    }


def cluster_info(brokers: Sequence[BrokerEntry], *, acting_master: bool = False) -> dict[str, Any]:
    """Return the body that lists clusters and brokers."""
    clusters: dict[str, list[str]] = {}
    for broker in brokers:
        clusters.setdefault(broker.cluster, []).append(broker.name)
    return {"brokerAddrTable": {broker.name: _broker_data(broker, acting_master) for broker in brokers}, "clusterAddrTable": clusters}


def topics_of_body(body: Any) -> tuple[dict[str, TopicConfig], dict[str, Any]]:
    """Parse (topics, data version) of a broker's registration; values of a wrong type count as missing."""
    wrapper = body.get("topicConfigSerializeWrapper") if isinstance(body, dict) else None
    if not isinstance(wrapper, dict):
        return {}, {}
    listed, version = wrapper.get("topicConfigTable"), wrapper.get("dataVersion")
    found = {name: topic_of(name, bean) for name, bean in listed.items() if isinstance(bean, dict)} if isinstance(listed, dict) else {}
    return found, version if isinstance(version, dict) else {}


def properties_text(values: Mapping[str, str]) -> str:
    """Format settings as text, one `name=value` per line."""
    return "".join(f"{name}={value}\n" for name, value in values.items())


def properties_of(text: str) -> dict[str, str]:
    """Parse the `name=value` lines of a text; other lines are ignored.

    >>> properties_of("# note\\na = 1\\n\\nb")
    {'a': '1'}
    """
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if not line.startswith(("#", "!")))
    return {name.strip(): value.strip() for name, sign, value in pairs if sign and name.strip()}
