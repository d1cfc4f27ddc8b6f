"""A small blocking client of the remoting protocol, for tests to send and receive messages.

    with Client("127.0.0.1:9876") as client:
        client.produce("orders", b"paid", keys="o-17")
        [message] = client.consume("orders")

It uses one address as name server and broker. It is not meant for production: it supports a single broker and does not reconnect.

Protocol: docs/formats/rocketmq-remoting.md, sections 3.2, 3.3 and 3.5.
"""

from __future__ import annotations

import itertools
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mqstore.broker.protocol import bodies
from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.replay.rocketmq_target import ClientError, RemotingConnection, successful
from mqstore.rocketmq.append.send_path import UniqueIds
from mqstore.rocketmq.format import compression
from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.format.record import Record, decode_properties, offset_message_id, parse_host
from mqstore.rocketmq.format.record import decode as decode_record
from mqstore.rocketmq.format.system_topics import TEMPLATE_TOPIC

TEMPLATE_QUEUES = 4
SUBSCRIPTION_IN_REQUEST = 4
BATCH = 32
PAUSE = 0.005  # seconds between pulls of a topic without new messages


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Result of a send. offset_msg_id: encodes the message's position; unique_id: assigned by the client."""

    topic: str
    queue_id: int
    queue_offset: int
    offset_msg_id: str
    unique_id: str


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A received message. topic: for a retry, the original topic. body: decompressed."""

    topic: str
    body: bytes
    keys: str | None
    tags: str | None
    properties: Mapping[str, str]
    queue_id: int
    queue_offset: int
    offset_msg_id: str
    reconsume_times: int
    born_timestamp: int
    store_timestamp: int

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode()


class Client(RemotingConnection):
    """A connection to a broker. Not thread-safe. address: `ip:port`. timeout: seconds to wait for a response.

    credentials: (access key, secret key) to sign requests with. tls: the context of a connection with TLS.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float = 10.0,
        group: str = "mqstore-test",
        credentials: tuple[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(address, timeout=timeout, credentials=credentials, tls=tls)
        self.group = group
        self._turn = itertools.count()
        self._unique = UniqueIds()
        self._next: dict[tuple[str, str, int], int] = {}

    # topics

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Create a topic, or change its number of queues."""
        fields = {"topic": topic, "defaultTopic": TEMPLATE_TOPIC, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
        self.call(RequestCode.UPDATE_AND_CREATE_TOPIC, {**fields, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False})

    def queues(self, topic: str) -> int:
        """Return the number of readable queues of a topic; 0 if it is unknown."""
        answered = self.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if answered.code == ResponseCode.TOPIC_NOT_EXIST:
            return 0
        route: Any = bodies.parse(successful(answered).body)
        return sum(queue["readQueueNums"] for queue in route["queueDatas"])

    # messages

    def produce(
        self,
        topic: str,
        body: bytes | str,
        *,
        keys: str | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue_id: int | None = None,
        delay: int = 0,
    ) -> SendReceipt:
        """Send a message, to the queues in turn unless one is given. A new topic is created if the broker allows it.

        delay: delay level. Raises ClientError if it is not stored.
        """
        unique = self._unique.next()
        added = {"UNIQ_KEY": unique, "WAIT": "true"} | ({"DELAY": str(delay)} if delay else {})
        message = Message(topic, b"", keys=keys, tags=tags, properties={**(properties or {}), **added})
        queue = next(self._turn) % (self.queues(topic) or TEMPLATE_QUEUES) if queue_id is None else queue_id
        header = {
            "a": self.group,
            "b": topic,
            "c": TEMPLATE_TOPIC,
            "d": TEMPLATE_QUEUES,
            "e": queue,
            "f": 0,
            "g": time.time_ns() // 1_000_000,
        }
        header |= {"h": 0, "i": message.encoded_properties(trailing_separator=False).decode(), "j": 0, "k": False, "m": False}
        answered = self.call(RequestCode.SEND_MESSAGE_V2, header, body.encode() if isinstance(body, str) else body)
        fields = answered.ext or {}
        return SendReceipt(topic, int(fields["queueId"]), int(fields["queueOffset"]), fields["msgId"], unique)

    def consume(
        self, topic: str, count: int = 1, *, group: str | None = None, tags: str = "*", timeout: float = 10.0, commit: bool = True
    ) -> list[ReceivedMessage]:
        """Return the next count messages of a topic for a group. commit: also commit the group's offsets at the broker.

        A new group starts at the first message. Raises ClientError, leaving the group's position unchanged, if fewer arrive in time.
        """
        who = group or self.group
        messages: list[ReceivedMessage] = []
        ahead: dict[tuple[str, str, int], int] = {}
        end = time.monotonic() + timeout
        while True:
            for queue_id in range(self.queues(topic)):
                if len(messages) == count:
                    break
                messages += self._pull(who, topic, queue_id, count - len(messages), tags, ahead)
            if len(messages) == count:
                break
            if time.monotonic() > end:
                raise ClientError(f"{len(messages)} of {count} messages of {topic} arrived within {timeout:g} s")
            time.sleep(PAUSE)
        self._next |= ahead
        if commit:
            for (_, _, queue_id), offset in ahead.items():
                fields = {"consumerGroup": who, "topic": topic, "queueId": queue_id}
                self.call(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": offset})
        return messages

    def _pull(
        self, group: str, topic: str, queue_id: int, limit: int, tags: str, ahead: dict[tuple[str, str, int], int]
    ) -> list[ReceivedMessage]:
        key = (group, topic, queue_id)
        offset = ahead.get(key, self._next.get(key, -1))
        if offset < 0:
            offset = self._start_offset(group, topic, queue_id)
        header = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "queueOffset": offset, "maxMsgNums": min(limit, BATCH)}
        header |= {"sysFlag": SUBSCRIPTION_IN_REQUEST, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0}
        answered = self.request(RequestCode.PULL_MESSAGE, {**header, "subscription": tags, "expressionType": "TAG"})
        if answered.code not in (0, 19, 20, 21):
            raise ClientError(f"CODE: {answered.code}  DESC: {answered.remark}", answered.code)
        ahead[key] = int((answered.ext or {})["nextBeginOffset"])
        asked_tags = None if tags.strip() in ("", "*") else {tag.strip() for tag in tags.split("||")}
        messages = [_received_message(record) for record in _parse_records(answered.body)]
        return [message for message in messages if asked_tags is None or message.tags in asked_tags]

    def _start_offset(self, group: str, topic: str, queue_id: int) -> int:
        fields = {"topic": topic, "queueId": queue_id}
        known = self.request(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": group, **fields})
        if known.code == ResponseCode.SUCCESS:
            return int((known.ext or {})["offset"])
        return int((self.call(RequestCode.GET_MIN_OFFSET, fields).ext or {})["offset"])


def _parse_records(body: bytes | memoryview) -> list[Record]:
    view, at, messages = memoryview(body), 0, []
    while at < len(view):
        size = int.from_bytes(view[at : at + 4], "big")
        messages.append(decode_record(bytes(view[at : at + size])))
        at += size
    return messages


def _received_message(record: Record) -> ReceivedMessage:
    properties = decode_properties(record.properties)
    return ReceivedMessage(
        properties.get("RETRY_TOPIC", record.topic),
        compression.decompress(record.body, record.sys_flag),
        properties.get("KEYS"),
        properties.get("TAGS"),
        properties,
        record.queue_id,
        record.queue_offset,
        offset_message_id(parse_host(record.store_host), record.physical_offset),
        record.reconsume_times,
        record.born_timestamp,
        record.store_timestamp,
    )
