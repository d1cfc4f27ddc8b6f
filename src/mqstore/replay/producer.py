"""A producer of a RocketMQ broker: routes from the name server, sends with retries, and a look at the end of a queue.

The address is that of a name server; a broker that is not one is asked for its topics directly. A message that the broker may or may not
have stored, because the connection broke, is looked for by its mark after the last known end of its queue before it is sent again.

Protocol: docs/formats/rocketmq-remoting.md, sections 2.3, 3.2, 3.3.
"""

from __future__ import annotations

import ssl
import time
import zlib
from dataclasses import dataclass
from typing import Any

from mqstore.broker.protocol import bodies
from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.errors import TargetError
from mqstore.replay.connection import LOST, ClientError, RemotingConnection
from mqstore.replay.outgoing import FROM, ReplayMessage
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.message import Message

__all__ = ["Producer", "WriteQueue"]

TEMPLATE, TEMPLATE_QUEUES = "TBW102", 4
SUBSCRIPTION_IN_REQUEST = 4
GROUP = "mqstore-replay"
COMPRESS_FROM = 4096  # bytes, as the Java client
WRITABLE = 2
TRIES = 6
PAUSE = 0.1  # seconds before the second try; doubled for each further one
DISPATCHED = 0.5  # seconds in which a broker lists a stored message in its queue
LOOKED_AT = 20_000  # messages after the last known end of a queue in which a message in doubt is looked for

_STORED = (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
_PASSING = (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)


@dataclass(frozen=True, slots=True)
class WriteQueue:
    """A queue that messages can be sent to."""

    topic: str
    broker: str
    address: str
    queue_id: int


class Producer:
    """Sends messages to the brokers of a name server. credentials: (access key, secret key). tls: the context of TLS connections."""

    def __init__(
        self, address: str, *, credentials: tuple[str, str] | None = None, tls: ssl.SSLContext | None = None, timeout: float = 10.0
    ) -> None:
        self.address = address
        self._options: dict[str, Any] = {"credentials": credentials, "tls": tls, "timeout": timeout}
        self._connections: dict[str, RemotingConnection] = {}
        self._routes: dict[str, tuple[WriteQueue, ...]] = {}
        self.retried = 0

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _connection(self, address: str) -> RemotingConnection:
        found = self._connections.get(address)
        if found is None:
            found = self._connections[address] = RemotingConnection(address, **self._options)
        return found

    def _drop(self, address: str) -> None:
        found = self._connections.pop(address, None)
        if found is not None:
            found.close()

    # routes

    def queues(self, topic: str) -> tuple[WriteQueue, ...]:
        """Return the writable queues of a topic; of a topic that does not exist those with which the broker will create it.

        Raises TargetError.
        """
        known = self._routes.get(topic)
        if known is None:
            known = self._route(topic, topic) or self._route(TEMPLATE, topic)
            if not known:
                raise TargetError(
                    f"{self.address} has no writable queue of topic {topic!r} and does not create topics; "
                    f"create it there (mqadmin updateTopic -t {topic} …), then run again"
                )
            self._routes[topic] = known
        return known

    def _route(self, asked: str, topic: str) -> tuple[WriteQueue, ...]:
        try:
            answered = self._connection(self.address).request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": asked})
        except ClientError as error:
            self._drop(self.address)
            raise TargetError(f"{error}; give the address of a name server or a broker") from None
        if answered.code == ResponseCode.TOPIC_NOT_EXIST:
            return ()
        if answered.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return self._route_of_broker(asked, topic)
        if answered.code != ResponseCode.SUCCESS:
            raise TargetError(f"{self.address} refused to name the queues of {asked}: CODE {answered.code}, {answered.remark}")
        try:
            route: Any = bodies.parse(answered.body)
            masters = {each["brokerName"]: _master(each["brokerAddrs"]) for each in route["brokerDatas"]}
            return tuple(
                WriteQueue(topic, data["brokerName"], masters[data["brokerName"]], queue_id)
                for data in sorted(route["queueDatas"], key=lambda each: str(each["brokerName"]))
                if int(data["perm"]) & WRITABLE and masters.get(data["brokerName"])
                for queue_id in range(_count(topic, asked, int(data["writeQueueNums"])))
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise TargetError(f"{self.address} sent a route that is not one; give the address of a name server or a broker") from None

    def _route_of_broker(self, asked: str, topic: str) -> tuple[WriteQueue, ...]:
        """Return the queues of a topic of a broker that is not a name server."""
        answered = self._connection(self.address).request(RequestCode.GET_ALL_TOPIC_CONFIG, {})
        if answered.code != ResponseCode.SUCCESS:
            raise TargetError(f"{self.address} is not a name server, and does not list its topics: CODE {answered.code}, {answered.remark}")
        try:
            parsed: Any = bodies.parse(answered.body)
            config = parsed["topicConfigTable"].get(asked)
            number = 0 if config is None or not int(config["perm"]) & WRITABLE else int(config["writeQueueNums"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise TargetError(f"{self.address} sent topics that are not a list; give the address of a name server or a broker") from None
        return tuple(WriteQueue(topic, "broker", self.address, queue_id) for queue_id in range(_count(topic, asked, number)))

    def queue_for(self, message: ReplayMessage) -> WriteQueue:
        """Return the queue for a message: the one with its number, if there are as many; one source queue always maps to one queue."""
        queues = self.queues(message.topic)
        return queues[message.queue_id % len(queues)]

    # sends

    def send(self, message: ReplayMessage, queue: WriteQueue, end: int) -> int:
        """Send a message and return the queue offset after it. end: an offset before which it cannot be.

        Raises TargetError; ClientError with code MESSAGE_ILLEGAL for a message that the broker will never take.
        """
        header, body = _request(message, queue)
        pause = PAUSE
        why = ""
        in_doubt = False
        for attempt in range(TRIES):
            if attempt:
                self.retried += 1
                time.sleep(pause)
                pause *= 2
            try:
                if in_doubt:
                    time.sleep(DISPATCHED)
                    found = self.find(message.mark, queue, end)
                    if found is not None:
                        return found
                    in_doubt = False
                answered = self._connection(queue.address).request(RequestCode.SEND_MESSAGE_V2, header, body)
            except ClientError as error:
                in_doubt, why = True, str(error)
                self._drop(queue.address)
                continue
            if answered.code in _STORED:
                try:
                    return int((answered.ext or {})["queueOffset"]) + 1
                except (KeyError, ValueError):
                    raise TargetError(f"the broker at {queue.address} confirmed a message without its queue offset; stopped") from None
            why = f"CODE {answered.code}, {answered.remark}"
            if answered.code == ResponseCode.MESSAGE_ILLEGAL:
                raise ClientError(why, answered.code)
            if answered.code not in _PASSING:
                break
        raise TargetError(f"the broker at {queue.address} does not take messages of topic {queue.topic}: {why}; run again with --resume")

    def end_of(self, queue: WriteQueue) -> int:
        """Return the maximum offset of a queue. Raises TargetError."""
        place = {"topic": queue.topic, "queueId": queue.queue_id}
        try:
            answered = self._connection(queue.address).request(RequestCode.GET_MAX_OFFSET, place)
            return int((answered.ext or {}).get("offset", 0)) if answered.code == ResponseCode.SUCCESS else 0
        except (ClientError, ValueError) as error:
            self._drop(queue.address)
            raise TargetError(f"{error}; run again with --resume") from None

    def find(self, mark: str, queue: WriteQueue, start: int) -> int | None:
        """Return the queue offset after the message with a mark at or after `start`, None if there is none. Raises ClientError."""
        connection = self._connection(queue.address)
        at = start
        for _ in range(LOOKED_AT):
            header = {"consumerGroup": GROUP, "topic": queue.topic, "queueId": queue.queue_id, "queueOffset": at, "maxMsgNums": 32}
            header |= {"sysFlag": SUBSCRIPTION_IN_REQUEST, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0}
            answered = connection.request(RequestCode.PULL_MESSAGE, {**header, "subscription": "*", "expressionType": "TAG"})
            if answered.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST):
                return None
            if answered.code == ResponseCode.PULL_OFFSET_MOVED:
                following = int((answered.ext or {}).get("nextBeginOffset", at))
                if following <= at:  # the queue is empty, or ends before
                    return None
                at = following
                continue
            if answered.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY):
                raise ClientError(f"CODE {answered.code}, {answered.remark}", answered.code)
            for stored in _records(answered.body):
                if stored.property_map().get(FROM) == mark:
                    return stored.queue_offset + 1
            following = int((answered.ext or {}).get("nextBeginOffset", at))
            if following <= at or following - start > LOOKED_AT:
                break
            at = following
        raise ClientError("the end of the queue was not reached", LOST)


def _count(topic: str, asked: str, number: int) -> int:
    """Return the number of queues: of a template, those with which a topic is created."""
    return number if asked == topic else min(number, TEMPLATE_QUEUES)


def _master(addresses: dict[Any, str]) -> str:
    return {str(number): address for number, address in addresses.items()}.get("0", "")


def _request(message: ReplayMessage, queue: WriteQueue) -> tuple[dict[str, object], bytes]:
    body, sys_flag = message.body, 0
    if message.compressed and len(body) >= COMPRESS_FROM:
        body, sys_flag = zlib.compress(body, 5), record.COMPRESSED
    text = Message(message.topic, b"", properties=message.rocketmq_properties()).encoded_properties("4.9.3").decode("utf-8", "replace")
    born = message.born_timestamp if message.born_timestamp is not None else time.time_ns() // 1_000_000
    header: dict[str, object] = {"a": GROUP, "b": message.topic, "c": TEMPLATE, "d": TEMPLATE_QUEUES, "e": queue.queue_id, "f": sys_flag}
    header |= {"g": born, "h": message.flag, "i": text, "j": message.reconsume_times, "k": False, "m": False}
    return header, body


def _records(body: bytes | memoryview) -> list[record.Record]:
    view, at, found = memoryview(body), 0, []
    try:
        while at < len(view):
            size = int.from_bytes(view[at : at + 4], "big")
            found.append(record.decode(bytes(view[at : at + size])))
            at += size
    except (ValueError, record.BadRecordError) as error:
        raise ClientError(f"the broker sent messages that are not records: {error}") from None
    return found
