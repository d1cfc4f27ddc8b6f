"""A broker in this process, and a client on bare sockets that builds frames itself, so that both ends cannot share a mistake."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mqstore.broker import Broker, Settings
from mqstore.broker.handlers.long_polling import LongPolling
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.format import record

SMALL = StoreConfig(commit_log_file_size=8 << 20, consume_queue_file_size=20_000, max_hash_slot_num=1000, max_index_num=4000)
OPEN = Settings(auto_create_topics=True, property_filter=True)
VERSIONS = {"4.9.3": 399, "5.3.3": 479}


class BrokerThread:
    """A broker that serves in a separate thread. address: where it listens."""

    def __init__(self, store: Path, *, settings: Settings = OPEN, config: StoreConfig = SMALL, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._made: Callable[[], Broker] = lambda: Broker(store, settings=settings, config=config, **options)
        self.broker: Broker
        self.address = ""

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def __enter__(self) -> Self:
        self._thread.start()
        self.broker = self._made()
        self.run(self.broker.start())
        self.address = self.broker.address
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.run(self.broker.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@dataclass
class Answer:
    """A received frame. ser: 0 JSON, 1 ROCKETMQ. raw: all its bytes."""

    code: int
    flag: int
    opaque: int
    version: int
    remark: str | None
    ext: dict[str, Any] | None
    body: bytes
    ser: int
    raw: bytes

    def field(self, name: str) -> str:
        assert self.ext is not None, self
        value = self.ext[name]
        assert isinstance(value, str)
        return value

    def json(self) -> Any:
        return lenient(self.body)


def lenient(body: bytes) -> Any:
    """Parse a body in the brokers' dialect: unquoted numbers and objects as keys become strings."""
    text = re.sub(r"([{,])(-?\d+):", r'\1"\2":', body.decode())
    text = re.sub(r"([{,])(\{[^{}]*\}):", lambda found: found[1] + json.dumps(found[2]) + ":", text)
    return json.loads(text)


def binary_header(code: int, opaque: int, version: int, flag: int, ext: dict[str, str]) -> bytes:
    fields = b""
    for name, value in ext.items():
        key, text = name.encode(), value.encode()
        fields += struct.pack(">h", len(key)) + key + struct.pack(">i", len(text)) + text
    return struct.pack(">hbhiii", code, 3, version, opaque, flag, 0) + struct.pack(">i", len(fields)) + fields


def read_binary_header(raw: bytes) -> dict[str, Any]:
    """Return the fields of a ROCKETMQ header, whose lengths must add up to its size."""
    code, _, version, opaque, flag, size = struct.unpack_from(">hbhiii", raw)
    at = 17 + size
    remark = raw[17:at].decode() or None
    (length,) = struct.unpack_from(">i", raw, at)
    at += 4
    end, ext = at + length, {}
    while at < end:
        (size,) = struct.unpack_from(">h", raw, at)
        name = raw[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (size,) = struct.unpack_from(">i", raw, at)
        ext[name] = raw[at + 4 : at + 4 + size].decode()
        at += 4 + size
    assert at == end == len(raw)
    return {"code": code, "version": version, "opaque": opaque, "flag": flag, "remark": remark, "extFields": ext}


@dataclass
class Wire:
    """One connection. pushed: requests of the broker that arrived while waiting for something else."""

    address: str
    version: int = 399
    pushed: list[Answer] = field(default_factory=list)
    _opaques: Any = field(default_factory=lambda: itertools.count(1000))

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 10)
        self.socket.settimeout(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def frame(
        self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", *, flag: int = 0, ser: int = 0, version: int | None = None
    ) -> tuple[bytes, int]:
        """Return (a request, its opaque)."""
        opaque, number = next(self._opaques), self.version if version is None else version
        if ser:
            header = binary_header(code, opaque, number, flag, ext or {})
        else:
            told = {"code": code, "flag": flag, "language": "PYTHON", "opaque": opaque, "version": number}
            header = json.dumps(told if ext is None else told | {"extFields": ext}).encode()
        return framed(header, body, ser), opaque

    def post(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", **how: Any) -> int:
        """Send a request and return its opaque."""
        raw, opaque = self.frame(code, ext, body, **how)
        self.socket.sendall(raw)
        return opaque

    def call(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", **how: Any) -> Answer:
        return self.answer(self.post(code, ext, body, **how))

    def _exactly(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            more = self.socket.recv(size - len(got))
            if not more:
                raise EOFError("the broker closed the connection")
            got += more
        return got

    def read(self) -> Answer:
        head = self._exactly(4)
        rest = self._exactly(int.from_bytes(head, "big"))
        word = int.from_bytes(rest[:4], "big")
        size = word & 0xFFFFFF
        header, body = rest[4 : 4 + size], rest[4 + size :]
        told = read_binary_header(header) if word >> 24 else json.loads(header)
        return Answer(
            told["code"],
            told["flag"],
            told["opaque"],
            told["version"],
            told.get("remark"),
            told.get("extFields"),
            body,
            word >> 24,
            head + rest,
        )

    def answer(self, opaque: int) -> Answer:
        while True:
            found = self.read()
            if found.flag & 1 and found.opaque == opaque:
                return found
            self.pushed.append(found)

    def respond(self, asked: Answer, code: int = 0, body: bytes = b"") -> None:
        """Answer a request of the broker."""
        header = json.dumps({"code": code, "flag": 1, "language": "PYTHON", "opaque": asked.opaque, "version": self.version}).encode()
        self.socket.sendall(framed(header, body))

    def wait_pushed(self, code: int, seconds: float = 10.0) -> Answer:
        """Return the next request of the broker with this code."""
        found = next((one for one in self.pushed if one.code == code), None)
        if found is not None:
            self.pushed.remove(found)
            return found
        self.socket.settimeout(seconds)
        try:
            while True:
                found = self.read()
                if found.code == code and not found.flag & 1:
                    return found
                self.pushed.append(found)
        finally:
            self.socket.settimeout(30)

    def silent(self, seconds: float) -> bool:
        """Return whether nothing arrives and the connection stays open."""
        self.socket.settimeout(seconds)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(30)
        return False

    def closed(self, seconds: float = 10.0) -> bool:
        """Return whether the broker closes the connection without sending a byte."""
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    # client requests

    def make_topic(self, topic: str, queues: int = 2, perm: int = 6) -> str:
        ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": str(perm)}
        made = self.call(17, {**ext, "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"})
        assert made.code == 0, made
        return topic

    def make_group(self, group: str) -> None:
        assert self.call(200, None, json.dumps({"groupName": group}).encode()).code == 0

    def send(self, topic: str, body: bytes = b"x", queue: int = 0, properties: str = "", *, code: int = 310, **other: str | None) -> Answer:
        return self.answer(self.post_send(topic, body, queue, properties, code=code, **other))

    def post_send(
        self, topic: str, body: bytes = b"x", queue: int = 0, properties: str = "", *, code: int = 310, flag: int = 0, **other: str | None
    ) -> int:
        ext = {"a": "producers", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": str(int(time.time() * 1000))}
        ext |= {"h": "0", "i": properties, "j": "0", "k": "false", "m": "false"}
        told = {name: value for name, value in {**ext, **other}.items() if value is not None}
        if code == 10:
            told = {LONG[name]: value for name, value in told.items()}
        return self.post(code, told, body, flag=flag)

    def post_pull(
        self,
        topic: str,
        offset: int,
        queue: int = 0,
        *,
        flag: int = 4,
        group: str = "TOOLS_CONSUMER",
        subscription: str | None = "*",
        sub_version: int = 0,
        count: int = 32,
        suspend: int = 20_000,
        commit: int = 0,
        code: int = 11,
        kind: str = "TAG",
    ) -> int:
        numbers = {"queueId": queue, "queueOffset": offset, "maxMsgNums": count, "sysFlag": flag, "commitOffset": commit}
        ext = {"consumerGroup": group, "topic": topic} | {name: str(value) for name, value in numbers.items()}
        ext |= {"suspendTimeoutMillis": str(suspend), "subVersion": str(sub_version), "expressionType": kind}
        if subscription is not None:
            ext["subscription"] = subscription
        return self.post(code, ext)

    def pull(self, topic: str, offset: int, queue: int = 0, **how: Any) -> Answer:
        return self.answer(self.post_pull(topic, offset, queue, **how))

    def heartbeat(
        self, client_id: str, group: str = "", topics: dict[str, str] | None = None, sub_version: int = 5, producers: tuple[str, ...] = ()
    ) -> Answer:
        return self.call(34, {}, heartbeat_body(client_id, group, topics or {}, sub_version, producers))

    def route(self, topic: str) -> Any:
        """Return the route's single entry of queueDatas, or None without a route."""
        found = self.call(105, {"topic": topic})
        return found.json()["queueDatas"][0] if found.code == 0 else None

    def lock(self, group: str, client_id: str, queue: int, *, code: int = 41) -> list[Any]:
        queues = [{"brokerName": "broker-a", "queueId": queue, "topic": "T"}]
        found = self.call(code, None, json.dumps({"clientId": client_id, "consumerGroup": group, "mqSet": queues}).encode())
        assert found.code == 0
        return found.json()["lockOKMQSet"] if code == 41 else []


LONG = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}


def framed(header: bytes, body: bytes = b"", ser: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), ser << 24 | len(header)) + header + body


def heartbeat_body(client_id: str, group: str, topics: dict[str, str], sub_version: int = 5, producers: tuple[str, ...] = ()) -> bytes:
    subscriptions = [
        {
            "classFilterMode": False,
            "codeSet": [],
            "expressionType": "TAG",
            "subString": expression,
            "subVersion": sub_version,
            "tagsSet": [tag for tag in expression.split("||") if tag != "*"],
            "topic": topic,
        }
        for topic, expression in topics.items()
    ]
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": subscriptions,
        "unitMode": False,
    }
    told = {"clientID": client_id, "consumerDataSet": [consumer] if group else [], "producerDataSet": [{"groupName": p} for p in producers]}
    return json.dumps(told).encode()


def properties(**named: str) -> str:
    return "\x02".join(f"{name}\x01{value}" for name, value in named.items())


def records(body: bytes) -> list[record.Record]:
    """Split a body into its records."""
    found, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        found.append(record.decode(body[at : at + size]))
        at += size
    assert at == len(body)
    return found


def batch_body(messages: list[tuple[bytes, str]]) -> bytes:
    """Return a producer's batch of (body, properties)."""
    parts = []
    for body, text in messages:
        raw = text.encode()
        parts.append(struct.pack(">iiiii", 22 + len(body) + len(raw), 0, 0, 0, len(body)) + body + struct.pack(">h", len(raw)) + raw)
    return b"".join(parts)


def held_by(served: BrokerThread) -> int:
    """Return how many pulls a broker holds. One that is only sent may come after a message that is sent later, on another connection."""
    return served.broker.context.component(LongPolling).count


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def held_through(served: BrokerThread, wire: Wire, topic: str, subscription: str, kind: str, send: Callable[[], object]) -> int:
    """Return a pull that stays held while a message is sent that it does not match.

    The check of every five seconds wakes it in vain, as that of a real broker does: then it is posted again, after the message.
    """
    for offset in range(2):
        opaque = wire.post_pull(topic, offset, flag=6, subscription=subscription, kind=kind)
        until(lambda: held_by(served) == 1)
        send()
        if wire.silent(0.5):
            return opaque
        assert wire.answer(opaque).code == 20
    raise AssertionError("it was woken twice within a second")
