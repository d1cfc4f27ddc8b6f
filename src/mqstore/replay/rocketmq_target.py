"""The brokers of a RocketMQ name server as a target. A message whose connection broke is looked for before it is sent again."""

from __future__ import annotations

import itertools
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import unquote, urlsplit

from mqstore.broker.protocol import bodies
from mqstore.broker.protocol.codes import V4_9_3, RequestCode, ResponseCode
from mqstore.broker.protocol.frames import MAX_FRAME, Frame, FrameError, decode, encode
from mqstore.broker.protocol.headers import ACCESS_KEY, SIGNATURE, sign
from mqstore.errors import MqstoreError, TargetError, UsageError
from mqstore.files.location import without_password
from mqstore.replay.outgoing import FROM, Outcome, ReplayMessage, Target
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.format.system_topics import TEMPLATE_TOPIC

# ---- a client's connection to a name server or a broker: requests, several of them in flight, and their responses
#
# Requests are signed if there are credentials. Whatever the other side sends, and however slowly, a request ends with a response or a
# `ClientError`: a frame that is too long, is not a frame, or answers another request, is an error in one sentence.
#
# Protocol: docs/formats/rocketmq-remoting.md, sections 1.1 to 1.7 and 10.

LOST = -1  # code of an error without a response
TOO_LARGE = -2  # code of a request that no receiver accepts
FOREIGN = 100  # frames that are not the response, before the connection is given up
CHUNK = 1 << 16


class ClientError(MqstoreError):
    """The broker rejected a request, or there was no response in time. code: of the response, -1 without one, -2 if it cannot be sent.

    late: the connection exists, and no response came in time, so that the request may still be carried out.
    """

    def __init__(self, sentence: str, code: int = LOST, *, late: bool = False) -> None:
        super().__init__(sentence)
        self.code = code
        self.late = late


class RemotingConnection:
    """A connection to one address. Not thread-safe. address: `ip:port`. timeout: seconds to wait for a response.

    credentials: (access key, secret key) to sign requests with. tls: the context of a connection with TLS.
    """

    def __init__(
        self, address: str, *, timeout: float = 10.0, credentials: tuple[str, str] | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        self._credentials = credentials
        self._timeout = timeout
        self._opaques = itertools.count(1)
        self._asked: dict[int, int] = {}  # opaque -> code of the requests without a response yet
        self._answered: dict[int, Frame] = {}  # responses that came while another one was waited for
        self._buffer = bytearray()
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host.strip("[]"))
        except (OSError, ValueError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise ClientError(f"cannot connect to a broker at {address}: {why}; start one first") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def post(self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"") -> int:
        """Send a request and return the number by which `take` knows its response. Raises ClientError."""
        fields = None if ext is None else {name: _field_text(value) for name, value in ext.items() if value is not None}
        asked = Frame(code, fields, body, opaque=next(self._opaques), version=V4_9_3)
        if self._credentials is not None:
            asked.ext = {**(fields or {}), ACCESS_KEY: self._credentials[0]}
            asked.ext[SIGNATURE] = sign(asked, self._credentials[1])
        try:
            raw = encode(asked)
        except FrameError as error:
            raise ClientError(str(error), TOO_LARGE) from None
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(raw)
        except OSError as error:
            raise self._lost(code, error) from None
        self._asked[asked.opaque] = code
        return asked.opaque

    def take(self, opaque: int | None = None, *, timeout: float | None = None) -> tuple[int, Frame]:
        """Return the response to a request that was posted, to any if opaque is None, with its number. Raises ClientError."""
        for known in self._answered if opaque is None else (opaque,):
            if known in self._answered:
                return known, self._answered.pop(known)
        code = self._asked[opaque] if opaque is not None else next(iter(self._asked.values()), 0)
        until = time.monotonic() + (self._timeout if timeout is None else timeout)
        try:
            for _ in range(FOREIGN + len(self._asked)):
                response = decode(self._frame(until))
                if not response.is_response or self._asked.pop(response.opaque, None) is None:
                    continue
                if opaque is None or response.opaque == opaque:
                    return response.opaque, response
                self._answered[response.opaque] = response
            raise FrameError(f"it sent {FOREIGN} frames that are not the response")
        except (OSError, FrameError) as error:
            raise self._lost(code, error) from None

    def request(self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"") -> Frame:
        """Send a request and return the response, whatever its code. Raises ClientError without a response."""
        return self.take(self.post(code, ext, body))[1]

    def call(self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"") -> Frame:
        """Send a request and return the response. Raises ClientError if it reports an error."""
        return successful(self.request(code, ext, body))

    def _lost(self, code: int, error: Exception) -> ClientError:
        return ClientError(f"the broker at {self.address} did not respond to request {code}: {error}", late=isinstance(error, TimeoutError))

    def _frame(self, until: float) -> bytes:
        """Return the next frame without its length."""
        self._fill(4, until)
        length = int.from_bytes(self._buffer[:4], "big")
        if length + 4 > MAX_FRAME:
            raise FrameError(f"it sent {length} as the length of a frame, so it does not speak RocketMQ's remoting protocol")
        self._fill(4 + length, until)
        frame = bytes(self._buffer[4 : 4 + length])
        del self._buffer[: 4 + length]
        return frame

    def _fill(self, count: int, until: float) -> None:
        while len(self._buffer) < count:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(left)
            part = self._socket.recv(CHUNK)
            if not part:
                raise ConnectionResetError("it closed the connection")
            self._buffer += part


def successful(answered: Frame) -> Frame:
    """Return a response, or raise ClientError if it reports an error."""
    if answered.code != ResponseCode.SUCCESS:
        raise ClientError(f"CODE: {answered.code}  DESC: {answered.remark}", answered.code)
    return answered


def _field_text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


# ---- a producer of a RocketMQ broker: routes from the name server, sends with retries, and a look at the end of a queue
#
# The address is that of a name server; a broker that is not one is asked for its topics directly. Several messages can be on their way at
# once: `post` sends one, `take` returns the next response. A message that the broker may or may not have stored, because the connection
# broke, is looked for by its mark after the last known end of its queue before it is sent again.
#
# Protocol: docs/formats/rocketmq-remoting.md, sections 2.3, 3.2, 3.3.

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
_UNEXPECTED = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)  # of JSON of another form
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

    def __init__(self, address: str, *, credentials: tuple[str, str] | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._options: dict[str, Any] = {"credentials": credentials, "tls": tls}
        self._connections: dict[str, RemotingConnection] = {}
        self._routes: dict[str, tuple[WriteQueue, ...]] = {}
        self.when_dropped: Callable[[str], None] = lambda address: None  # what was posted over its connection gets no response

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _connection(self, address: str) -> RemotingConnection:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = RemotingConnection(address, **self._options)
        return connection

    def drop(self, address: str) -> None:
        """Close a connection that broke; the next request opens another one."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()
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
        answered = self._asked_once(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": asked})
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
        except _UNEXPECTED:
            raise TargetError(f"{self.address} sent a route that is not one; give the address of a name server or a broker") from None

    def _asked_once(self, code: RequestCode, fields: dict[str, object]) -> Frame:
        """Return the response of the address that the user gave. Raises TargetError."""
        try:
            return self._connection(self.address).request(code, fields)
        except ClientError as error:
            self.drop(self.address)
            raise TargetError(f"{error}; give the address of a name server or a broker") from None

    def _route_of_broker(self, asked: str, topic: str) -> tuple[WriteQueue, ...]:
        """Return the queues of a topic of a broker that is not a name server."""
        answered = self._asked_once(RequestCode.GET_ALL_TOPIC_CONFIG, {})
        if answered.code != ResponseCode.SUCCESS:
            raise TargetError(f"{self.address} is not a name server, and does not list its topics: CODE {answered.code}, {answered.remark}")
        try:
            parsed: Any = bodies.parse(answered.body)
            config = parsed["topicConfigTable"].get(asked)
            number = 0 if config is None or not int(config["perm"]) & WRITABLE else int(config["writeQueueNums"])
            if number > MAX_QUEUES:
                raise ValueError
        except _UNEXPECTED:
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
                    offset = self.find(message.mark, queue, end)
                    if offset is not None:
                        return offset, False
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
        queue_fields = {"topic": queue.topic, "queueId": queue.queue_id}
        try:
            answered = self.asked_again(queue, lambda: self._connection(queue.address).request(RequestCode.GET_MAX_OFFSET, queue_fields))
            return max(0, int((answered.ext or {}).get("offset", 0))) if answered.code == ResponseCode.SUCCESS else 0
        except ClientError as error:
            raise TargetError(f"{error}; run again with --resume") from None
        except ValueError:
            raise TargetError(f"the broker at {queue.address} sent an offset that is not a number; stopped") from None

    def asked_again(self, queue: WriteQueue, ask: Callable[[], T]) -> T:
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
    text = (
        Message(message.topic, b"", properties=message.rocketmq_properties())
        .encoded_properties(trailing_separator=False)
        .decode("utf-8", "replace")
    )
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
    view, at, records = memoryview(body), 0, []
    try:
        while at < len(view):
            size = int.from_bytes(view[at : at + 4], "big")
            records.append(record.decode(bytes(view[at : at + size])))
            at += size
    except (ValueError, record.BadRecordError) as error:
        raise ClientError(f"the broker sent messages that are not records: {error}") from None
    return records


# ---- the target

LAST = 2.0  # seconds to wait for the last responses of a run that has failed


@dataclass(frozen=True, slots=True)
class _Posted:
    """A message on its way. message: as the caller gave it; named: with the topic that it is sent to; end: the offset before it."""

    message: ReplayMessage
    named: ReplayMessage
    queue: WriteQueue
    end: int

    def outcome(self, after: int, *, doubtful: bool = False) -> Outcome:
        return Outcome(self.message, f"{self.queue.broker}/{self.queue.queue_id}/{after}", doubtful=doubtful)

    def refused(self, why: str) -> Outcome:
        return Outcome(self.message, f"{self.queue.broker}/{self.queue.queue_id}/{self.end}", why)


class RocketMQTarget(Target):
    """The brokers of a RocketMQ name server."""

    def __init__(self, address: str, *, credentials: tuple[str, str] | None, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        parts = urlsplit(address)
        try:
            host, port = parts.hostname, parts.port or 9876
        except ValueError:
            host, port = None, 0
        if not host or parts.query or parts.fragment or "/" in parts.path.strip("/"):
            raise UsageError(
                f"{without_password(address)} is not the address of a broker; give rocketmq://host:port or rocketmq://host:port/topic"
            )
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._topic = unquote(parts.path.strip("/")) or None
        self._producer = Producer(name, credentials=credentials, tls=tls)
        self._producer.when_dropped = self._dropped
        self._opened = time.monotonic()
        self._posted: dict[tuple[str, int], _Posted] = {}  # by address and number, in the order in which they were sent
        self._lost: list[tuple[_Posted, float, str]] = []  # whose connection broke, when, and why

    def _named(self, message: ReplayMessage) -> ReplayMessage:
        return message.edited({"topic": self._topic or message.rocketmq_topic})

    def _queue(self, message: ReplayMessage, where: str) -> tuple[WriteQueue, int]:
        """Return the queue of a place, and the offset in it."""
        broker, _, rest = where.rpartition("/")[0].rpartition("/")
        end = where.rpartition("/")[2]
        if not end.isascii() or not end.isdigit():
            raise UsageError(f"the resume file names {where!r} as a place in the target, which it is not; give another name")
        for queue in self._producer.queues(message.topic):
            if (queue.broker, str(queue.queue_id)) == (broker, rest):
                return queue, int(end)
        raise TargetError(f"queue {rest} of broker {broker} has gone since the replay began; start again with another resume file")

    def begin(self, message: ReplayMessage) -> str:
        queue = self._producer.queue_for(self._named(message))
        return f"{queue.broker}/{queue.queue_id}/{self._producer.end_of(queue)}"

    def post(self, message: ReplayMessage, where: str) -> None:
        named = self._named(message)
        posted = _Posted(message, named, *self._queue(named, where))
        address = posted.queue.address
        try:
            self._posted[address, self._producer.post(named, posted.queue)] = posted
        except RefusedError as error:
            self._done.append(posted.refused(str(error)))
        except ClientError as error:
            self._lost.append((posted, time.monotonic(), str(error)))
            self._producer.drop(address)

    def _dropped(self, address: str) -> None:
        """A connection is closed: what was on its way through it is in doubt."""
        why = f"the connection to the broker at {address} broke"
        for key in [key for key in self._posted if key[0] == address]:
            self._lost.append((self._posted.pop(key), time.monotonic(), why))

    def finished(self) -> list[Outcome]:
        while self._posted and not self._done and not self._lost:
            address = next(iter(self._posted))[0]
            try:
                number, answered = self._producer.take(address)
            except ClientError:
                self._producer.drop(address)
                break
            posted = self._posted.pop((address, number), None)
            if posted is None:
                continue
            try:
                after = self._producer.offset_after(answered, posted.message, posted.queue)
            except RefusedError as error:
                self._done.append(posted.refused(str(error)))
                break
            if after is None:
                self._send(posted, None, f"CODE {answered.code}, {answered.remark}")
            else:
                self._done.append(posted.outcome(after))
        if not self._done and self._lost:
            self._send(*self._lost.pop(0))
        return self._taken()

    def _send(self, posted: _Posted, since: float | None, why: str) -> None:
        """Send a message again, after a look whether it has arrived if it is in doubt."""
        try:
            after, late = self._producer.send(posted.named, posted.queue, posted.end, in_doubt=since, why=why)
        except RefusedError as refusal:
            self._done.append(posted.refused(str(refusal)))
        else:
            self._done.append(posted.outcome(after, doubtful=late))

    def last(self) -> list[Outcome]:
        until = time.monotonic() + LAST
        while self._posted and time.monotonic() < until:
            address = next(iter(self._posted))[0]
            try:
                number, answered = self._producer.take(address, timeout=max(0.01, until - time.monotonic()))
                posted = self._posted.pop((address, number), None)
                after = None if posted is None else self._producer.offset_after(answered, posted.message, posted.queue)
            except RefusedError:
                continue
            except ClientError:
                self._producer.drop(address)
                continue
            except TargetError:
                continue
            if posted is not None and after is not None:
                self._done.append(posted.outcome(after))
        return self._taken()

    def arrived(self, message: ReplayMessage, where: str) -> str | None:
        message = self._named(message)
        queue, end = self._queue(message, where)
        # the run before may have ended a moment ago: let the broker store what it got
        time.sleep(max(0.0, DISPATCHED - (time.monotonic() - self._opened)))
        try:
            after = self._producer.asked_again(queue, lambda: self._producer.find(message.mark, queue, end))
        except ClientError as error:
            raise TargetError(f"{error}; whether the message from {message.mark} has arrived is unknown: run again") from None
        return None if after is None else f"{queue.broker}/{queue.queue_id}/{after}"

    def close(self) -> None:
        self._producer.close()
