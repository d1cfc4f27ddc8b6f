"""Hostile, broken and slow clients: they cannot affect other clients."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.wire import alive, asked, connected, ended, received, running

from mqstore.broker import Settings
from mqstore.broker.protocol.codes import Language, RequestCode
from mqstore.broker.protocol.frames import MAX_FRAME, Frame, Serialization, decode, encode, make_response
from mqstore.broker.runtime.logs import LOGGER
from mqstore.testing.running_broker import RunningBroker

FIELDS = (
    *("topic", "queueId", "consumerGroup", "group", "producerGroup", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "offset"),
    *("subscription", "subVersion", "expressionType", "suspendTimeoutMillis", "key", "maxNum", "beginTimestamp", "endTimestamp"),
    *("timestamp", "clientID", "clientId", "delayLevel", "originMsgId", "msgId", "isForce", "namespace", "value", "cluster", "brokerName"),
    *("brokerAddr", "clusterName", "brokerId", "readQueueNums", "writeQueueNums", "perm", "topicFilterType", "order", "defaultTopic"),
    *("tranStateTableOffset", "commitLogOffset", "commitOrRollback", "fromTransactionCheck", "srcGroup", "destGroup", "compareGroup"),
    *("statsName", "statsKey", "isOrder", "index", "count", "groupName", "removeOffset", "attributes", "_UNIQUE_KEY_QUERY", "jstackEnable"),
    *"abcdefghijklmn",
)
WORDS = (
    "T",
    "orders",
    "%RETRY%g",
    "%DLQ%g",
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "g",
    "",
    "*",
    "a || b",
    "a > 3",
    "TAG",
    "SQL92",
    "true",
    "broker-a",
)
NUMBERS = ("0", "1", "-1", "8", "12", "2147483647", "-2147483648", "9223372036854775807", "99999999999999999999", "0x10", "1.5")
PROPERTIES = ("KEYS\x01k\x02TAGS\x01t", "TRAN_MSG\x01true\x02PGROUP\x01g", "DELAY\x0199", "\x01\x02\x01", "MSG_TYPE\x01reply")
VALUE = st.sampled_from(WORDS) | st.sampled_from(NUMBERS) | st.sampled_from(PROPERTIES) | st.text(max_size=12)
BEANS = ("clientID", "clientId", "consumerGroup", "consumerDataSet", "producerDataSet", "groupName", "subscriptionDataSet", "subString")
BEANS += ("topic", "mqSet", "queueId", "brokerName", "messageModel", "consumeType", "consumeFromWhere", "offsetTable", "retryMaxTimes")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.sampled_from(WORDS) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(BEANS), inner, max_size=5),
    max_leaves=12,
)
BODY = st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode())
KNOWN = {"topic": "orders", "b": "orders", "consumerGroup": "g", "group": "g", "a": "g", "producerGroup": "g", "perm": "6"}
SOME = st.dictionaries(st.sampled_from(FIELDS), VALUE, max_size=16)
REQUEST = st.builds(
    Frame,
    st.sampled_from([code.value for code in RequestCode]),
    st.none() | SOME | st.builds(lambda number, some: dict.fromkeys(FIELDS, number) | KNOWN | some, st.sampled_from(NUMBERS), SOME),
    BODY,
    flag=st.sampled_from((0, 0, 0, 2)),
    opaque=st.integers(1, 2**30),
    version=st.sampled_from((0, 63, 399, 479)),
    language=st.sampled_from(Language),
    serialization=st.sampled_from(Serialization),
)


class Failures(logging.Handler):
    """Every event that reports a bug."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(f"{record.getMessage()} {getattr(record, 'facts', {})} {record.exc_info}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBroker, Failures]]:
    failures = Failures()
    LOGGER.addHandler(failures)
    with RunningBroker(tmp_path_factory.mktemp("fuzzed") / "store") as broker:
        broker.produce("orders", b"one", keys="k", tags="t", queue_id=0)
        yield broker, failures
    LOGGER.removeHandler(failures)


def exactly(stream: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = stream.recv(count - len(parts))
        assert part, "the broker closed the connection"
        parts += part
    return parts


@given(frames=st.lists(REQUEST, min_size=1, max_size=4))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_whatever_its_fields_and_body_ends_in_a_bug(served: tuple[RunningBroker, Failures], frames: list[Frame]) -> None:
    broker, failures = served
    with socket.create_connection((broker.host, broker.port), 20) as stream:
        last = Frame(RequestCode.GET_BROKER_CLUSTER_INFO, opaque=2**31 - 1)
        stream.sendall(b"".join(encode(frame) for frame in [*frames, last]))
        while decode(exactly(stream, int.from_bytes(exactly(stream, 4), "big"))).opaque != last.opaque:
            continue
    assert not failures.found


@given(
    raw=st.binary(max_size=64) | REQUEST.map(encode),
    at=st.integers(0),
    changed=st.binary(max_size=6),
    cut=st.integers(0, 300),
)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_bytes_close_their_own_connection_at_most(
    served: tuple[RunningBroker, Failures], raw: bytes, at: int, changed: bytes, cut: int
) -> None:
    broker, failures = served
    sent = bytearray(raw)
    if sent:
        place = at % len(sent)
        sent[place : place + len(changed)] = changed
    # the broker may have closed the connection before everything was sent
    with suppress(ConnectionError), socket.create_connection((broker.host, broker.port), 20) as stream:
        stream.sendall(sent[: len(sent) - cut] if cut < len(sent) else sent)
        stream.shutdown(socket.SHUT_WR)
        while stream.recv(65536):
            continue
    with socket.create_connection((broker.host, broker.port), 20) as other:
        other.sendall(encode(Frame(RequestCode.GET_BROKER_CLUSTER_INFO, opaque=9)))
        assert decode(exactly(other, int.from_bytes(exactly(other, 4), "big"))).opaque == 9
    assert not failures.found


@pytest.mark.parametrize(
    "raw",
    [
        (MAX_FRAME - 3).to_bytes(4, "big"),
        (0x7FFFFFFF).to_bytes(4, "big"),
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
        b"\x16",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        bytes.fromhex("00000008 000000ff 00000000"),
        bytes.fromhex("00000008 00000004 7b7b7b7b"),
        bytes.fromhex("00000008 05000004 7b7d7b7d"),
    ],
    ids=["too-long", "largest", "negative", "zero", "tls-byte", "tls-hello", "header-too-long", "garbage-json", "serialization"],
)
def test_a_malformed_frame_closes_the_connection_without_a_response(tmp_path: Path, raw: bytes) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            bystander = await connected(broker)
            reader, writer = await connected(broker)
            writer.write(raw)
            assert await ended(reader) == b""
            assert (await asked(bystander, Frame(106, opaque=3))).code == 0

    asyncio.run(scenario())


def test_a_client_that_does_not_read_is_paused_and_gets_every_response_in_the_end(tmp_path: Path) -> None:
    pulls = 150

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            pair = await connected(broker)
            header = {"a": "p", "b": "big", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
            for number in range(32):
                assert (await asked(pair, Frame(310, header, bytes(8000), opaque=number + 1))).code == 0
            fields = {"consumerGroup": "g", "topic": "big", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4"}
            fields |= {"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
            while len((await asked(pair, Frame(11, fields, opaque=99))).body) < 32 * 8000:
                await asyncio.sleep(0.01)
            slow = socket.socket()
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            slow.setblocking(False)
            await asyncio.get_running_loop().sock_connect(slow, (broker.host, broker.port))
            reader, writer = await asyncio.open_connection(sock=slow, limit=65536)
            for number in range(pulls):
                writer.write(encode(Frame(11, fields, opaque=number)))
            most = 0
            for _ in range(50):
                await asyncio.sleep(0.01)
                most = max(most, *(connection.unsent for connection in broker.context.connections))
                await alive(broker)
            limit = broker.context.settings.write_high
            assert limit < most < limit + (300 << 10)
            seen = {(await received(reader, 30)).opaque for _ in range(pulls)}
            assert seen == set(range(pulls))
            writer.close()

    asyncio.run(scenario())


def test_a_client_that_never_reads_notifications_is_disconnected(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = Settings(write_high=1 << 14, write_limit=1 << 18)
        async with running(tmp_path, settings=limits) as broker:
            _, writer = await connected(broker)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            while not broker.context.connections:
                await asyncio.sleep(0.001)
            (connection,) = broker.context.connections
            for _ in range(10_000):
                connection.notify(Frame(40, {"consumerGroup": "g" * 1000}))
                if connection.closed:
                    break
            assert connection.closed
            while broker.context.connections:
                await asyncio.sleep(0.001)
            await alive(broker)
            writer.transport.abort()

    asyncio.run(scenario())


def test_unfinished_frames_of_many_clients_take_no_more_than_the_limit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, settings=Settings(incoming_limit=2 << 20, max_address_share=100)) as broker:
            pairs = [await connected(broker) for _ in range(20)]
            for _, writer in pairs:
                writer.write((15 << 20).to_bytes(4, "big") + bytes(400_000))
            most = 0
            for _ in range(30):
                await asyncio.sleep(0.01)
                most = max(most, broker.context.shared.quotas.incoming.held)
            assert 1 << 20 < most <= (2 << 20) + (1 << 18)
            assert 0 < len(broker.context.connections) < 20
            await alive(broker)
            for _, writer in pairs:
                writer.transport.abort()
            while broker.context.connections:
                await asyncio.sleep(0.001)
            assert broker.context.shared.quotas.incoming.held == 0

    asyncio.run(scenario())


def test_clients_beyond_the_limit_are_turned_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, settings=Settings(max_connections=3, max_address_share=100)) as broker:
            pairs = [await connected(broker) for _ in range(3)]
            assert (await asked(pairs[2], Frame(106, opaque=1))).code == 0
            reader, _ = await connected(broker)
            assert await ended(reader) == b""
            pairs[0][1].close()
            while len(broker.context.connections) > 2:
                await asyncio.sleep(0.001)
            await alive(broker)

    asyncio.run(scenario())


def test_the_clients_of_one_address_leave_room_for_those_of_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = Settings(max_connections=10, incoming_limit=2 << 20)
        async with running(tmp_path, settings=limits) as broker:
            greedy = [await asyncio.open_connection(broker.host, broker.port, local_addr=("127.0.0.2", 0)) for _ in range(12)]
            assert await ended(greedy[5][0]) == b""
            for _, writer in greedy[:5]:
                writer.write((15 << 20).to_bytes(4, "big") + bytes(800_000))
            quotas = broker.context.shared.quotas
            while not quotas.incoming.refused:
                await asyncio.sleep(0.001)
            assert quotas.incoming.of("127.0.0.2") <= 1 << 20
            assert quotas.connections.refused == 7
            pair = await connected(broker)
            fields = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
            assert (await asked(pair, Frame(310, fields, bytes(900_000), opaque=1))).code == 0
            for _, writer in greedy:
                writer.transport.abort()
            while len(broker.context.connections) > 1:
                await asyncio.sleep(0.001)
            assert (quotas.incoming.held, quotas.connections.of("127.0.0.2")) == (0, 0)

    asyncio.run(scenario())


def test_what_all_clients_have_not_read_is_bounded_also_of_connections_that_are_being_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = Settings(write_high=1 << 14, unsent_limit=4 << 20, idle_timeout=2000)
        async with running(tmp_path, settings=limits) as broker:
            pairs = [await connected(broker) for _ in range(8)]
            for _, writer in pairs:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
            while len(broker.context.connections) < 8:
                await asyncio.sleep(0.001)
            connections, most = list(broker.context.connections), 0
            while all(not connection.closed for connection in connections):
                for connection in connections:
                    connection.notify(Frame(40, {"consumerGroup": "g"}, bytes(100_000)))
                    most = max(most, sum(each.unsent for each in connections))
                await asyncio.sleep(0)
            assert 1 << 20 < most < 3 << 20  # one address may have half of 4 MiB; below write_high nothing is counted
            left = max(connections, key=lambda connection: connection.unsent)
            left.close("a frame is not valid")  # its unsent bytes wait for the client
            assert not left.writable
            assert broker.context.shared.quotas.unsent.held > 0
            while broker.context.connections:
                await asyncio.sleep(0.01)
            assert broker.context.shared.quotas.unsent.held == 0
            await alive(broker)
            for _, writer in pairs:
                writer.transport.abort()

    asyncio.run(scenario())


def test_a_silent_client_is_disconnected_and_an_active_one_is_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, settings=Settings(idle_timeout=300)) as broker:
            silent, half = await connected(broker), await connected(broker)
            speaking = await connected(broker)
            half[1].write(encode(Frame(106))[:20])
            for number in range(10):
                await asyncio.sleep(0.06)
                assert (await asked(speaking, Frame(106, opaque=number))).code == 0
            assert await ended(silent[0]) == b""
            assert await ended(half[0]) == b""
            assert (await asked(speaking, Frame(106, opaque=100))).code == 0

    asyncio.run(scenario())


def test_many_idle_connections_cost_little_and_others_are_served(tmp_path: Path, whole: bool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(10_000 if whole else 1000, (hard - 200) // 2)

    async def scenario() -> int:
        async with running(tmp_path, settings=Settings(max_address_share=100)) as broker:
            await alive(broker)
            before = resident()
            sockets = []
            for number in range(count):
                stream = socket.socket()
                stream.connect((broker.host, broker.port))  # the kernel completes it, whatever the broker is doing
                sockets.append(stream)
                if number % 200 == 0:
                    await asyncio.sleep(0)
            while len(broker.context.connections) < count:
                await asyncio.sleep(0.01)
            await alive(broker)
            cost = resident() - before
            for stream in sockets:
                stream.close()
            while broker.context.connections:
                await asyncio.sleep(0.01)
            await alive(broker)
            return cost

    try:
        cost = asyncio.run(scenario())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert cost < count * 16_384  # bytes; protocol, transport and socket object of one connection


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_requests_in_flight_are_bounded_in_bytes_and_more_are_told_that_the_broker_is_busy(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = Settings(working_limit=2 << 20, max_in_flight_bytes=700_000)
        async with running(tmp_path, settings=limits) as broker:
            released = asyncio.Event()

            async def slow(context: Any, connection: Any, request: Frame) -> Frame:
                await released.wait()
                return make_response(request)

            broker.handlers[9998] = slow
            first, second = await connected(broker), await connected(broker)
            for number in range(4):
                first[1].write(encode(Frame(9998, None, bytes(400_000), opaque=number)))
            while broker.context.shared.quotas.working.held < 800_000:
                await asyncio.sleep(0.001)
            second[1].write(encode(Frame(9998, None, bytes(400_000), opaque=0)))
            busy = await received(second[0])
            assert (busy.code, busy.opaque) == (2, 0)
            assert "there are too many bytes of requests in flight from 127.0.0.1: the limit of one address is 1,048,576" in str(
                busy.remark
            )
            assert {connection.in_flight for connection in broker.context.connections} == {2, 0}
            assert broker.context.shared.quotas.working.held < 1 << 20
            released.set()
            assert [(await received(first[0])).code for _ in range(4)] == [0] * 4
            assert broker.context.shared.quotas.working.held == 0

    asyncio.run(scenario())


def test_more_requests_than_may_be_in_flight_wait_their_turn(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, settings=Settings(max_in_flight=5)) as broker:
            running_now, most = 0, 0

            async def slow(context: Any, connection: Any, request: Frame) -> Frame:
                nonlocal running_now, most
                running_now += 1
                most = max(most, running_now)
                await asyncio.sleep(0.002)
                running_now -= 1
                return Frame(0, opaque=request.opaque, flag=1)

            broker.handlers[20_000] = slow
            reader, writer = await connected(broker)
            for number in range(100):
                writer.write(encode(Frame(20_000, opaque=number)))
            assert {(await received(reader)).opaque for _ in range(100)} == set(range(100))
            assert most == 5

    asyncio.run(scenario())


def test_two_hundred_requests_at_once_are_all_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            reader, writer = await connected(broker)
            base = Frame(105, {"topic": "TBW102"}, version=399)
            writer.write(b"".join(encode(replace(base, opaque=number)) for number in range(200)))
            answered = [await received(reader) for _ in range(200)]
            assert {frame.opaque for frame in answered} == set(range(200))
            assert {frame.code for frame in answered} == {0}

    asyncio.run(scenario())
