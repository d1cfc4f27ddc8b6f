"""The name server: routes for clients, and registration of other brokers.

    105           where a topic is              106 224 206 304   clusters, brokers, topics
    100 101 102 219   keys and values           103 104 322       registration of other brokers
    216           a topic is removed            205 327           a broker's write permission, removed and restored
    318 319       its settings                  311 312 313       lists of unit topics, which are empty

It runs in the broker's process and reads the broker's topics directly, without registration. A topic removed by 216 comes back when a
real broker would register again: after 30 s, or with the next change of its topics. Other brokers are dropped after two minutes
without a registration. Keys and values last as long as the process.

A route says which brokers have a topic, and with how many queues:

    >>> own = BrokerEntry("DefaultCluster", "broker-a", {0: "127.0.0.1:10911"}, {"T": TopicConfig("T", read_queues=4, write_queues=4)})
    >>> route("T", [own])["queueDatas"]
    [{'brokerName': 'broker-a', 'perm': 6, 'readQueueNums': 4, 'topicSysFlag': 0, 'writeQueueNums': 4}]
    >>> route("U", [own]) is None
    True

Protocol: docs/formats/rocketmq-remoting.md, section 2.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mqstore.broker.protocol import bodies, headers
from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError, make_response
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Component, Context, Handler
from mqstore.rocketmq.config.topic_table import TopicConfig, topic_of
from mqstore.rocketmq.format.system_topics import TEMPLATE_TOPIC

# routes


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
    topics = {name: topic_of(name, bean) for name, bean in listed.items() if isinstance(bean, dict)} if isinstance(listed, dict) else {}
    return topics, version if isinstance(version, dict) else {}


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


ORDER = "ORDER_TOPIC_CONFIG"
INHERIT, WRITE, READ = 1, 2, 4
REGISTRATION = 30_000  # ms between a broker's registrations
SILENCE = 120_000  # ms after which a broker is dropped

_NOT_HERE = "No topic route info in name server for the topic: {}\nSee https://rocketmq.apache.org for further details."


class NameServer(Component):
    """State of the name server."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.values: dict[str, dict[str, str]] = {}
        self.settings = {
            "listenPort": context.address.rpartition(":")[2],
            "orderMessageEnable": "false",
            "productEnvName": "center",
            "clusterTest": "false",
        }
        self._wiped = False
        self._others: dict[tuple[str, str], BrokerEntry] = {}
        self._forgotten: dict[str, tuple[int, int]] = {}  # topic -> (time of removal, change counter of the topics then)

    # topics and brokers

    def topics(self) -> dict[str, TopicConfig]:
        """The broker's own topics that clients can see."""
        topics = self.context.store.topics
        return {name: config for name in topics.names() if (config := self.topic(name)) is not None}

    def topic(self, name: str) -> TopicConfig | None:
        """Return one of the broker's own topics, or None if clients cannot see it."""
        config = self.context.store.topics.get(name)
        if config is None or (name == TEMPLATE_TOPIC and not (self.context.settings.auto_create_topics and self.context.writable)):
            return None
        forgotten = self._forgotten.get(name)
        if forgotten is not None:
            when, counter = forgotten
            if self.context.clock() - when < REGISTRATION and self.context.store.topics.counter == counter:
                return None
            del self._forgotten[name]
        return config

    def own(self, topics: Mapping[str, TopicConfig]) -> BrokerEntry:
        """Return the entry of the broker of this process."""
        settings = self.context.settings
        return BrokerEntry(settings.cluster, settings.broker_name, {settings.broker_id: self.context.address}, topics, self._wiped)

    def brokers(self) -> list[BrokerEntry]:
        """Return all brokers, this one first."""
        return [self.own(self.topics()), *self.others()]

    def others(self) -> list[BrokerEntry]:
        """Return the registered brokers that are not expired."""
        now = self.context.clock()
        for key, broker in list(self._others.items()):
            if now - broker.heard_at > SILENCE:
                del self._others[key]
        return list(self._others.values())

    def having(self, topic: str) -> list[BrokerEntry]:
        """Return the brokers that may have a topic; this broker's entry is reduced to that topic."""
        config = self.topic(topic)
        others = self.others()
        if not self.context.writable and not any(topic in broker.topics for broker in others):
            config = _sendable(topic, config)
        return [self.own({} if config is None else {topic: config}), *others]

    def forget(self, topic: str) -> None:
        """Remove a topic until its broker registers again."""
        if topic in self.context.store.topics:
            self._forgotten[topic] = (self.context.clock(), self.context.store.topics.counter)
        for broker in self._others.values():
            broker.topics = {name: config for name, config in broker.topics.items() if name != topic}

    def permit(self, name: str, wiped: bool) -> int:
        """Remove or restore a broker's write permission. Returns the number of topics affected."""
        count = 0
        if name == self.context.settings.broker_name:
            self._wiped = wiped
            count += len(self.topics())
        for broker in self._others.values():
            if broker.name == name:
                broker.wiped = wiped
                count += len(broker.topics)
        return count

    def check_room(self, entry: BrokerEntry, address: str) -> None:
        """Refuse another broker with more topics than there is room for. Raises ResponseError."""
        limits = self.context.limits
        for name in (entry.cluster, entry.name, address):
            limits.name(name, "broker")
        for name in entry.topics:
            limits.name(name, "topic")
        others = [broker for key, broker in self._others.items() if key != (entry.cluster, entry.name)]
        held = sum(1 + len(broker.topics) + len(broker.addresses) for broker in others)
        limits.check("topics of other brokers", held, 2 + len(entry.topics))

    def register(self, entry: BrokerEntry, broker_id: int, address: str) -> BrokerEntry:
        """Register another broker and return its entry."""
        key = (entry.cluster, entry.name)
        known = self._others.get(key)
        if known is not None:
            entry.addresses = {number: known_address for number, known_address in known.addresses.items() if known_address != address}
            entry.wiped = known.wiped and entry.data_version == known.data_version
            if broker_id != 0:
                entry.topics, entry.data_version = known.topics, known.data_version
        entry.addresses[broker_id] = address
        self._others[key] = entry
        return entry

    def unregister(self, cluster: str, name: str, broker_id: int) -> None:
        """Unregister another broker."""
        known = self._others.get((cluster, name))
        if known is not None:
            known.addresses.pop(broker_id, None)
            if not known.addresses:
                del self._others[cluster, name]

    def other(self, cluster: str, name: str) -> BrokerEntry | None:
        """Return a registered broker, or None."""
        return self._others.get((cluster, name))


# routes and lists


def _sendable(topic: str, config: TopicConfig | None) -> TopicConfig | None:
    """Return a topic of a read-only broker with write permission, so that a producer sends, and receives the reason why it may not.

    Without it a client reports that the topic has no route. The template is there for topics that do not exist.
    """
    if config is None and topic == TEMPLATE_TOPIC:
        return TopicConfig(TEMPLATE_TOPIC, READ | WRITE | INHERIT, read_queues=1, write_queues=1)
    return None if config is None else replace(config, perm=config.perm | WRITE)


def topic_route(context: Context, connection: Connection, request: Frame) -> Frame:
    topic = headers.text(request, "topic")
    server = context.component(NameServer)
    order = server.values.get(ORDER, {}).get(topic) if server.settings.get("orderMessageEnable") == "true" else None
    body = route(topic, server.having(topic), order=order, acting_master=context.profile.tells_acting_master)
    if body is None:
        return make_response(request, ResponseCode.TOPIC_NOT_EXIST, _NOT_HERE.format(topic))
    return make_response(request, body=bodies.encode(body, strict=bodies.takes_strict_json(request)))


def clusters(context: Context, connection: Connection, request: Frame) -> Frame:
    brokers = context.component(NameServer).brokers()
    return make_response(request, body=bodies.encode(cluster_info(brokers, acting_master=context.profile.tells_acting_master)))


def _topic_names(brokers: list[BrokerEntry]) -> list[str]:
    return list(dict.fromkeys(name for broker in brokers for name in broker.topics))


def all_topics(context: Context, connection: Connection, request: Frame) -> Frame:
    return make_response(request, body=bodies.encode({"topicList": _topic_names(context.component(NameServer).brokers())}))


def cluster_topics(context: Context, connection: Connection, request: Frame) -> Frame:
    cluster = headers.text(request, "cluster")
    brokers = [broker for broker in context.component(NameServer).brokers() if broker.cluster == cluster]
    return make_response(request, body=bodies.encode({"topicList": _topic_names(brokers)}))


def system_topics(context: Context, connection: Connection, request: Frame) -> Frame:
    brokers = context.component(NameServer).brokers()
    names = dict.fromkeys([*(broker.cluster for broker in brokers), *(broker.name for broker in brokers)])
    address = next((broker.master for broker in brokers if broker.master), None)
    return make_response(request, body=bodies.encode({"brokerAddr": address, "topicList": list(names)}))


def unit_topics(context: Context, connection: Connection, request: Frame) -> Frame:
    return make_response(request, body=bodies.encode({"topicList": []}))


def delete_topic(context: Context, connection: Connection, request: Frame) -> Frame:
    context.component(NameServer).forget(headers.text(request, "topic"))
    return make_response(request)


def wipe_write_permission(context: Context, connection: Connection, request: Frame) -> Frame:
    count = context.component(NameServer).permit(headers.text(request, "brokerName"), wiped=True)
    return make_response(request, ext={"wipeTopicCount": str(count)})


def add_write_permission(context: Context, connection: Connection, request: Frame) -> Frame:
    count = context.component(NameServer).permit(headers.text(request, "brokerName"), wiped=False)
    return make_response(request, ext={"addTopicCount": str(count)})


# keys and values


def _place(request: Frame) -> tuple[str, str]:
    namespace, key = headers.text_or(request, "namespace"), headers.text_or(request, "key")
    if namespace is None or key is None:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
    return namespace, key


def put_value(context: Context, connection: Connection, request: Frame) -> Frame:
    namespace, key = _place(request)
    values, value = context.component(NameServer).values, headers.text(request, "value")
    if key not in values.get(namespace, {}):
        for name in (namespace, key):
            context.limits.name(name, "key")
        context.limits.check("values", sum(len(held) + 1 for held in values.values()))
    context.limits.value(value)
    values.setdefault(namespace, {})[key] = value
    return make_response(request)


def get_value(context: Context, connection: Connection, request: Frame) -> Frame:
    namespace, key = _place(request)
    value = context.component(NameServer).values.get(namespace, {}).get(key)
    if value is None:
        return make_response(request, ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace} Key: {key}")
    return make_response(request, ext={"value": value})


def delete_value(context: Context, connection: Connection, request: Frame) -> Frame:
    namespace, key = _place(request)
    values = context.component(NameServer).values
    values.get(namespace, {}).pop(key, None)
    return make_response(request)


def list_values(context: Context, connection: Connection, request: Frame) -> Frame:
    namespace = headers.text(request, "namespace")
    values = context.component(NameServer).values.get(namespace)
    if values is None:
        return make_response(request, ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
    return make_response(request, body=bodies.encode({"table": values}))


# its settings


def get_settings(context: Context, connection: Connection, request: Frame) -> Frame:
    return make_response(request, body=properties_text(context.component(NameServer).settings).encode())


def update_settings(context: Context, connection: Connection, request: Frame) -> Frame:
    server = context.component(NameServer)
    given = properties_of(str(request.body, "utf-8", "replace"))
    server.settings |= {name: value for name, value in given.items() if name in server.settings and name != "listenPort"}
    return make_response(request)


# other brokers


def register_broker(context: Context, connection: Connection, request: Frame) -> Frame:
    cluster, name = headers.text(request, "clusterName"), headers.text(request, "brokerName")
    address, number = headers.text(request, "brokerAddr"), headers.int64(request, "brokerId")
    server = context.component(NameServer)
    if name == context.settings.broker_name and cluster == context.settings.cluster:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{name} is the broker of this process; give the other broker another brokerName")
    checksum = headers.int32_or(request, "bodyCrc32", 0)
    if checksum and checksum & 0xFFFFFFFF != zlib.crc32(request.body):
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    if headers.boolean_or(request, "compressed"):
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "compressed registrations are not supported; set compressedRegister=false")
    body: Any = bodies.parse_request(request) if request.body else {}
    topics, version = topics_of_body(body)
    entry = BrokerEntry(cluster, name, {}, topics, data_version=version, heard_at=context.clock())
    server.check_room(entry, address)
    known = server.register(entry, number, address)
    ext = {} if number == 0 else {"haServerAddr": headers.text_or(request, "haServerAddr", ""), "masterAddr": known.master}
    order = server.values.get(ORDER)
    return make_response(request, ext=ext, body=bodies.encode({"table": order}) if order else b"")


def unregister_broker(context: Context, connection: Connection, request: Frame) -> Frame:
    cluster, name = headers.text(request, "clusterName"), headers.text(request, "brokerName")
    context.component(NameServer).unregister(cluster, name, headers.int64(request, "brokerId"))
    return make_response(request)


def data_version(context: Context, connection: Connection, request: Frame) -> Frame:
    known = context.component(NameServer).other(headers.text(request, "clusterName"), headers.text(request, "brokerName"))
    asked = bodies.parse_request(request) if request.body else {}
    changed = known is None or known.data_version != asked
    if known is not None:
        known.heard_at = context.clock()
    body = bodies.encode(known.data_version) if known is not None and known.data_version else b""
    return make_response(request, ext={"changed": "true" if changed else "false"}, body=body)


HANDLERS: dict[int, Handler] = {
    RequestCode.PUT_KV_CONFIG: put_value,
    RequestCode.GET_KV_CONFIG: get_value,
    RequestCode.DELETE_KV_CONFIG: delete_value,
    RequestCode.REGISTER_BROKER: register_broker,
    RequestCode.UNREGISTER_BROKER: unregister_broker,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: topic_route,
    RequestCode.GET_BROKER_CLUSTER_INFO: clusters,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: wipe_write_permission,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: all_topics,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
    RequestCode.GET_KVLIST_BY_NAMESPACE: list_values,
    RequestCode.GET_TOPICS_BY_CLUSTER: cluster_topics,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: system_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: unit_topics,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: unit_topics,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: unit_topics,
    RequestCode.UPDATE_NAMESRV_CONFIG: update_settings,
    RequestCode.GET_NAMESRV_CONFIG: get_settings,
    RequestCode.QUERY_DATA_VERSION: data_version,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: add_write_permission,
}

COMPONENTS = (NameServer,)
