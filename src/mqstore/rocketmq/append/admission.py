"""Which messages a store accepts: topics, sizes, hosts and batches, checked in the broker's order and answered with its status.

What is known of a topic or a host is looked up once and kept in the fast path of puts (`kernels.rocketmq.put.PutPath`), which accepts
only messages whose topic and hosts it knows.

Format: docs/formats/rocketmq.md, section 3.
"""

from __future__ import annotations

import threading
from functools import lru_cache

from mqstore.kernels.rocketmq.put import PutPath, Topic
from mqstore.rocketmq.append.delay import delay_level
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.consume_queue import usable_topic
from mqstore.rocketmq.format.message import Inner, MessageBatch, PutResult, PutStatus
from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.format.record import TRANSACTION_MASK
from mqstore.rocketmq.format.system_topics import RETRY_PREFIX

PROPERTIES_LIMIT = 32767
MAX_TOPICS = 100_000
MAX_HOSTS = 4096
TOPIC_LIMIT = 127  # bytes of a topic in a version 1 record
WIRE_HEADER = 22  # bytes of each message of a batch on the wire, besides body and properties


class QueueOffsets:
    """(topic bytes, queue id) -> queue offset of the next message; 0 for a queue that has none yet. The append lock protects it.

    The offsets of one topic are a separate dictionary, which the compiled fast path of puts (`kernels.rocketmq.put`) shares.
    """

    def __init__(self) -> None:
        self._by_topic: dict[bytes, dict[int, int]] = {}

    def of_topic(self, topic: bytes) -> dict[int, int]:
        """Return the offsets of one topic: queue id -> next queue offset. Changes to the dictionary count."""
        return self._by_topic.setdefault(topic, {})

    def get(self, key: tuple[bytes, int]) -> int:
        """Return the next offset of a queue."""
        return self._by_topic.get(key[0], {}).get(key[1], 0)

    def forget(self, topic: bytes) -> None:
        """Start all queues of a topic at 0 again. A dictionary that `of_topic` returned before no longer counts."""
        self._by_topic.pop(topic, None)

    def __setitem__(self, key: tuple[bytes, int], offset: int) -> None:
        self.of_topic(key[0])[key[1]] = offset


@lru_cache(MAX_HOSTS)
def host_bytes(text: str) -> bytes:
    """Return a host as records store it. text: `ip:port` or `[ip]:port`. Raises ValueError."""
    return record.parse_host(text)


def illegal(sentence: str) -> PutResult:
    """Return the result for a message that no store of these settings accepts."""
    return PutResult(PutStatus.MESSAGE_ILLEGAL, detail=sentence)


class Admission:
    """Accepts or refuses messages by the rules of a version."""

    def __init__(self, config: StoreConfig, version: str, path: PutPath, next_offset: QueueOffsets) -> None:
        """path: keeps the topics and hosts that are known. next_offset: of all queues; each topic gets its part."""
        self._config = config
        self._version = version
        self._rules = version_rules(version)
        self._path = path
        self._next_offset = next_offset
        self._lock = threading.Lock()  # held while a topic becomes known or is forgotten

    # topics and hosts

    def topic(self, name: str) -> Topic:
        """Return what is known of a topic; its `refused` is the reason why no message of it is accepted, or empty."""
        topic: Topic | None = self._path.topics.get(name)
        if topic is None:
            with self._lock:
                topics: dict[str, Topic] = self._path.topics
                topic = topics.get(name)
                if topic is None:
                    if len(topics) >= MAX_TOPICS:
                        self._path.topics, topics = {}, self._path.topics
                        for dropped in topics.values():
                            dropped.following = None
                    topic = self._path.topics[name] = self._judge(name)
        return topic

    def forget(self, name: str) -> None:
        """Forget a topic and its queue offsets. The caller holds the append lock.

        A put that has looked the topic up and waits for the lock finds the offsets by name; the fast path stops at `following`.
        """
        with self._lock:
            known = self._path.topics.pop(name, None)
            if known is not None:
                known.following = None
            self._next_offset.forget(name.encode("utf-8", "surrogatepass"))

    def _judge(self, name: str) -> Topic:
        raw = name.encode("utf-8", "surrogatepass")
        batch = self._rules.has_batch_queues and name in self._config.batch_topics
        units = len(name.encode("utf-16-le", "surrogatepass")) // 2
        refused = ""
        if not usable_topic(name):
            refused = f"{name!r} cannot be a topic: its queues are stored in a directory of that name"
        elif not self._rules.has_version_2:
            if units > TOPIC_LIMIT or len(raw) > TOPIC_LIMIT:
                refused = f"a topic of {len(raw)} bytes is too long: at most 127 fit into a record of 4.9.3"
        elif len(raw) > TOPIC_LIMIT and not name.startswith(RETRY_PREFIX):
            refused = f"a topic of {len(raw)} bytes is too long: only retry topics may have more than 127"
        elif len(raw) > TOPIC_LIMIT and not (units > TOPIC_LIMIT and self._config.auto_message_version_on_topic_len):
            refused = f"a topic of {len(raw)} bytes is too long for a version 1 record"
        known = Topic(raw, 2 if self._rules.has_version_2 and units > TOPIC_LIMIT else 1, batch, refused)
        known.following = self._next_offset.of_topic(raw)
        return known

    def host(self, text: str) -> bytes:
        """Return the bytes of a host, which the fast path knows from now on. Raises ValueError."""
        packed = host_bytes(text)
        if len(self._path.hosts) < MAX_HOSTS:
            self._path.hosts[text] = packed
        return packed

    # messages

    def refusal(self, known: Topic, body_size: int, properties: bytes) -> PutResult | None:
        """Return the refusal of a message, or None if it is accepted. properties: its property text."""
        if known.refused:
            return illegal(known.refused)
        if len(properties) > PROPERTIES_LIMIT:
            status = PutStatus.PROPERTIES_SIZE_EXCEEDED
            if self._rules.limits_property_characters:  # 4.9.3 also limits the text's UTF-16 units, and checks that first
                units = len(properties.decode("utf-8", "replace").encode("utf-16-le", "surrogatepass")) // 2
                status = PutStatus.MESSAGE_ILLEGAL if units > PROPERTIES_LIMIT else status
            return PutResult(status, detail=f"properties of {len(properties)} bytes: at most {PROPERTIES_LIMIT} fit into a record")
        if body_size > self._config.max_message_size:
            return illegal(f"a body of {body_size} bytes: at most {self._config.max_message_size} are accepted (maxMessageSize)")
        return None

    def batch_refusal(self, known: Topic, batch: MessageBatch, shared: bytes) -> PutResult | None:
        """Return the refusal of a producer's batch, or None if it is accepted. shared: the property text of the batch."""
        if known.refused:
            return illegal(known.refused)
        if not batch.messages:
            return illegal("a batch without messages")
        try:
            level = delay_level(shared)
        except ValueError as error:
            return illegal(str(error))
        if batch.envelope.sys_flag & TRANSACTION_MASK or level > 0:
            return illegal("a batch can be neither part of a transaction nor delayed")
        wire = sum(WIRE_HEADER + len(inner.body) + len(inner.properties) for inner in batch.messages)
        if wire > self._config.max_message_size:
            return illegal(f"message body size exceeded: the batch has {wire} bytes, at most {self._config.max_message_size} are accepted")
        return None


def joined_properties(inner: Inner, shared: bytes) -> bytes:
    """Return the property text of a message in a batch: its own properties, then those of the batch."""
    own = inner.properties
    return own + (b"" if not own or not shared or own.endswith(b"\x02") else b"\x02") + shared
