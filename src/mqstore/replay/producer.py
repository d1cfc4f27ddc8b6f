"""A producer of a RocketMQ broker: routes from the name server, sends with retries, and a look at the end of a queue.

The address is that of a name server; a broker that is not one is asked for its topics directly. Several messages can be on their way at
once: `post` sends one, `take` returns the next response. A message that the broker may or may not have stored, because the connection
broke, is looked for by its mark after the last known end of its queue before it is sent again.

Protocol: docs/formats/rocketmq-remoting.md, sections 2.3, 3.2, 3.3.
"""

from __future__ import annotations

import ssl
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from mqstore.broker.protocol import bodies
from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame
from mqstore.errors import TargetError
from mqstore.replay.connection import LOST, TOO_LARGE, ClientError, RemotingConnection
from mqstore.replay.outgoing import FROM, ReplayMessage
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.format.system_topics import TEMPLATE_TOPIC

T = TypeVar("T")

TEMPLATE_QUEUES = 4
SUBSCRIPTION_IN_REQUEST = 4
NOT_FOUND = -3  # code of a search that was given up
GROUP = "mqstore-replay"
COMPRESS_FROM = 4096  # bytes, as the Java client
WRITABLE = 2
TRIES = 6
PAUSE = 0.1  # seconds before the second try; doubled for each further one
DISPATCHED = 0.5  # seconds in which a broker lists a stored message in its queue
LOOKED_AT = 20_000  # messages after the last known end of a queue in which a message in doubt is looked for
MAX_QUEUES = 1 << 16  # writable queues of a topic; more are taken for an error

_STORED = (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
_PASSING = (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)


@dataclass(frozen=True, slots=True)
class WriteQueue:
    """A queue that messages can be sent to."""

    topic: str
    broker: str
    address: str
    queue_id: int


class RefusedError(ClientError):
    """The broker will never take this message; it may take the others."""


class Producer:
    """Sends messages to the brokers of a name server. credentials: (access key, secret key). tls: the context of TLS connections."""

    def __init__(
        self, address: str, *, credentials: tuple[str, str] | None = None, tls: ssl.SSLContext | None = None, timeout: float = 10.0
    ) -> None:
        self.address = address
        self._options: dict[str, Any] = {"credentials": credentials, "tls": tls, "timeout": timeout}
        self._connections: dict[str, RemotingConnection] = {}
        self._routes: dict[str, tuple[WriteQueue, ...]] = {}
        self.when_dropped: Callable[[str], None] = lambda address: None  # what was posted over its connection gets no response

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

    def drop(self, address: str) -> None:
        """Close a connection that broke; the next request opens another one."""
        found = self._connections.pop(address, None)
        if found is not None:
            found.close()
            self.when_dropped(address)

    # routes

    def queues(self, topic: str) -> tuple[WriteQueue, ...]:
        """Return the writable queues of a topic; of a topic that does not exist those with which the broker will create it.

        Raises TargetError.
        """
        known = self._routes.get(topic)
        if known is None:
            known = self._route(topic, topic) or self._route(TEMPLATE_TOPIC, topic)
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
            self.drop(self.address)
            raise TargetError(f"{error}; give the address of a name server or a broker") from None
        if answered.code == ResponseCode.TOPIC_NOT_EXIST:
            return ()
        if answered.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return self._route_of_broker(asked, topic)
        if answered.code != ResponseCode.SUCCESS:
            raise TargetError(f"{self.address} refused to name the queues of {asked}: CODE {answered.code}, {answered.remark}")
        try:
            route: Any = bodies.parse(answered.body)
            number = sum(max(0, int(data["writeQueueNums"])) for data in route["queueDatas"])
            if number > MAX_QUEUES:
                raise ValueError
            masters = {each["brokerName"]: _master(each["brokerAddrs"]) for each in route["brokerDatas"]}
            return tuple(
                WriteQueue(topic, data["brokerName"], masters[data["brokerName"]], queue_id)
                for data in sorted(route["queueDatas"], key=lambda each: str(each["brokerName"]))
                if int(data["perm"]) & WRITABLE and masters.get(data["brokerName"])
                for queue_id in range(_count(topic, asked, int(data["writeQueueNums"])))
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            raise TargetError(f"{self.address} sent a route that is not one; give the address of a name server or a broker") from None

    def _route_of_broker(self, asked: str, topic: str) -> tuple[WriteQueue, ...]:
        """Return the queues of a topic of a broker that is not a name server."""
        try:
            answered = self._connection(self.address).request(RequestCode.GET_ALL_TOPIC_CONFIG, {})
        except ClientError as error:
            self.drop(self.address)
            raise TargetError(f"{error}; give the address of a name server or a broker") from None
        if answered.code != ResponseCode.SUCCESS:
            raise TargetError(f"{self.address} is not a name server, and does not list its topics: CODE {answered.code}, {answered.remark}")
        try:
            parsed: Any = bodies.parse(answered.body)
            config = parsed["topicConfigTable"].get(asked)
            number = 0 if config is None or not int(config["perm"]) & WRITABLE else int(config["writeQueueNums"])
            if number > MAX_QUEUES:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            raise TargetError(f"{self.address} sent topics that are not a list; give the address of a name server or a broker") from None
        return tuple(WriteQueue(topic, "broker", self.address, queue_id) for queue_id in range(_count(topic, asked, number)))

    def queue_for(self, message: ReplayMessage) -> WriteQueue:
        """Return the queue for a message: the one with its number, if there are as many; one source queue always maps to one queue."""
        queues = self.queues(message.topic)
        return queues[message.queue_id % len(queues)]

    # sends

    def post(self, message: ReplayMessage, queue: WriteQueue) -> int:
        """Send a message without waiting; return the number by which `take` names it. Raises ClientError, RefusedError."""
        header, body = _request(message, queue)
        try:
            return self._connection(queue.address).post(RequestCode.SEND_MESSAGE_V2, header, body)
        except ClientError as error:
            if error.code == TOO_LARGE:
                raise RefusedError(str(error), error.code) from None
            raise

    def take(self, address: str, number: int | None = None, *, timeout: float | None = None) -> tuple[int, Frame]:
        """Return the next response of a broker, with the number of its message. number: wait for this one. Raises ClientError."""
        return self._connection(address).take(number, timeout=timeout)

    @staticmethod
    def offset_after(answered: Frame, message: ReplayMessage, queue: WriteQueue) -> int | None:
        """Return the queue offset after a message that was stored; None if it may be sent again. Raises TargetError, RefusedError."""
        if answered.code in _STORED:
            try:
                return int((answered.ext or {})["queueOffset"]) + 1
            except (KeyError, ValueError):
                raise TargetError(f"the broker at {queue.address} confirmed a message without its queue offset; stopped") from None
        if answered.code == ResponseCode.MESSAGE_ILLEGAL:
            raise RefusedError(f"CODE {answered.code}, {answered.remark}", answered.code)
        if answered.code == ResponseCode.SYSTEM_ERROR and not message.body:  # 5.x: a NullPointerException
            raise RefusedError("its body is empty, and this broker does not take such messages", answered.code)
        if answered.code in _PASSING:
            return None
        raise _not_taken(queue, f"CODE {answered.code}, {answered.remark}")

    def send(
        self, message: ReplayMessage, queue: WriteQueue, end: int, *, in_doubt: float | None = None, why: str = ""
    ) -> tuple[int, bool]:
        """Send a message, again if necessary, and return the queue offset after it, and whether it may be there twice.

        end: an offset before which it cannot be. in_doubt: the time since which it is unknown whether it has arrived; why: an error so far.
        It may be there twice if a broker did not respond in time, did not have it then, and got it again. Raises TargetError, RefusedError.
        """
        pause = PAUSE
        late = False
        for attempt in range(TRIES):
            if attempt or why:
                time.sleep(pause)
                pause *= 2
            try:
                if in_doubt is not None:
                    time.sleep(max(0.0, DISPATCHED - (time.monotonic() - in_doubt)))
                    found = self.find(message.mark, queue, end)
                    if found is not None:
                        return found, False
                    in_doubt = None
                number = self.post(message, queue)
                _, answered = self.take(queue.address, number)
            except RefusedError:
                raise
            except ClientError as error:
                in_doubt, why = time.monotonic(), str(error)
                late = late or error.late
                self.drop(queue.address)
                continue
            after = self.offset_after(answered, message, queue)
            if after is not None:
                return after, late
            why = f"CODE {answered.code}, {answered.remark}"
        raise _not_taken(queue, why)

    def end_of(self, queue: WriteQueue) -> int:
        """Return the maximum offset of a queue. Raises TargetError."""
        place = {"topic": queue.topic, "queueId": queue.queue_id}
        try:
            answered = self._asked_again(queue, lambda: self._connection(queue.address).request(RequestCode.GET_MAX_OFFSET, place))
            return max(0, int((answered.ext or {}).get("offset", 0))) if answered.code == ResponseCode.SUCCESS else 0
        except ClientError as error:
            raise TargetError(f"{error}; run again with --resume") from None
        except ValueError:
            raise TargetError(f"the broker at {queue.address} sent an offset that is not a number; stopped") from None

    def _asked_again(self, queue: WriteQueue, ask: Callable[[], T]) -> T:
        """Ask a broker, again if the connection breaks. Raises ClientError."""
        pause = PAUSE
        for attempt in range(TRIES):
            try:
                return ask()
            except ClientError as error:
                if error.code != LOST or attempt == TRIES - 1:
                    raise
                self.drop(queue.address)
                time.sleep(pause)
                pause *= 2
        raise AssertionError("unreachable")

    def look(self, mark: str, queue: WriteQueue, start: int) -> int | None:
        """Do as `find`, again if the connection breaks. Raises ClientError."""
        return self._asked_again(queue, lambda: self.find(mark, queue, start))

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
                following = _following(answered, at)
                if following <= at:  # the queue is empty, or ends before
                    return None
                at = following
                continue
            if answered.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY):
                raise ClientError(f"CODE {answered.code}, {answered.remark}", answered.code)
            for stored in _records(answered.body):
                if stored.property_map().get(FROM) == mark:
                    return stored.queue_offset + 1
            following = _following(answered, at)
            if following <= at or following - start > LOOKED_AT:
                break
            at = following
        raise ClientError("the end of the queue was not reached", NOT_FOUND)


def _not_taken(queue: WriteQueue, why: str) -> TargetError:
    return TargetError(f"the broker at {queue.address} does not take messages of topic {queue.topic}: {why}; run again with --resume")


def _following(answered: Frame, at: int) -> int:
    """Return the offset at which the next pull begins. Raises ClientError."""
    try:
        return int((answered.ext or {}).get("nextBeginOffset", at))
    except ValueError:
        raise ClientError("the broker sent an offset that is not a number") from None


def _count(topic: str, asked: str, number: int) -> int:
    """Return the number of queues: of a template, those with which a topic is created."""
    return number if asked == topic else min(number, TEMPLATE_QUEUES)


def _master(addresses: dict[Any, str]) -> str:
    return {str(number): str(address) for number, address in addresses.items()}.get("0", "")


def _request(message: ReplayMessage, queue: WriteQueue) -> tuple[dict[str, object], bytes]:
    body, sys_flag = message.body, 0
    if message.compressed and len(body) >= COMPRESS_FROM:
        body, sys_flag = zlib.compress(body, 5), record.COMPRESSED
    text = Message(message.topic, b"", properties=message.rocketmq_properties()).encoded_properties("4.9.3").decode("utf-8", "replace")
    born = message.born_timestamp if message.born_timestamp is not None else time.time_ns() // 1_000_000
    header: dict[str, object] = {
        "a": GROUP,
        "b": message.topic,
        "c": TEMPLATE_TOPIC,
        "d": TEMPLATE_QUEUES,
        "e": queue.queue_id,
        "f": sys_flag,
    }
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
