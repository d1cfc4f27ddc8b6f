"""The lifecycle of a broker: start, requests and their errors, requests to clients, and a stop that loses nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.wire import asked, connected, ended, received, running

from mqstore.broker import Broker, Settings
from mqstore.broker.protocol.codes import RequestCode
from mqstore.broker.protocol.frames import Frame, ResponseError, Serialization, encode, make_request, make_response
from mqstore.broker.runtime.address import advertised_address
from mqstore.broker.server import handler_table
from mqstore.errors import NotAStoreError, TargetError, UsageError
from mqstore.rocketmq import MessageStore
from mqstore.testing.running_broker import SMALL


def test_every_request_that_clients_make_has_a_handler() -> None:
    from_broker = {RequestCode.CHECK_TRANSACTION_STATE, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT}
    from_broker |= {RequestCode.RESET_CONSUMER_CLIENT_OFFSET, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT}
    assert set(RequestCode) - set(handler_table()) == from_broker


def test_the_parser_and_the_metrics_library_are_imported_when_they_are_needed() -> None:
    check = "import sys, mqstore.broker.server; print({'lark', 'prometheus_client'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=300)
    assert found.stdout == "set()\n"


def test_an_exception_in_a_handler_is_the_response_except_to_a_oneway_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:

            def refuses(context: Any, connection: Any, asked: Frame) -> Frame:
                raise ResponseError(22, "not here", {"value": "0"})

            async def breaks(context: Any, connection: Any, asked: Frame) -> Frame:
                raise ValueError("seven")

            def cannot(context: Any, connection: Any, asked: Frame) -> Frame:
                raise UsageError("say it otherwise")

            broker.handlers |= {20_001: refuses, 20_002: breaks, 20_003: cannot}
            pair = await connected(broker)
            for code in (20_001, 20_002, 20_003, 9999):
                pair[1].write(encode(Frame(code, opaque=5, flag=2)))
            found = [await asked(pair, Frame(code, opaque=code)) for code in (20_001, 20_002, 20_003)]
            assert [(frame.code, frame.remark, frame.ext) for frame in found] == [
                (22, "not here", {"value": "0"}),
                (1, "ValueError: seven", None),
                (1, "say it otherwise", None),
            ]

    asyncio.run(scenario())


def test_a_stop_answers_requests_in_flight_and_closes_the_store_cleanly(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = Broker(tmp_path / "store", config=SMALL)
        await broker.start()
        assert (tmp_path / "store" / "abort").exists()
        begun = asyncio.Event()

        async def slow(context: Any, connection: Any, asked: Frame) -> Frame:
            begun.set()
            await asyncio.sleep(0.1)
            return make_response(asked, 0, "done")

        broker.handlers[20_000] = slow
        reader, writer = await connected(broker)
        writer.write(encode(Frame(20_000, opaque=7)))
        await begun.wait()
        await broker.stop()
        answered = await received(reader)
        assert (answered.opaque, answered.remark) == (7, "done")
        assert await ended(reader) == b""
        assert not (tmp_path / "store" / "abort").exists()
        with pytest.raises(OSError):
            await connected(broker)
        await broker.stop()

    asyncio.run(scenario())


def test_a_request_that_never_ends_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, settings=Settings(stop_timeout=50)) as broker:
            begun = asyncio.Event()

            async def endless(context: Any, connection: Any, asked: Frame) -> Frame:
                begun.set()
                await asyncio.Event().wait()
                return make_response(asked)

            broker.handlers[20_000] = endless
            _, writer = await connected(broker)
            writer.write(encode(Frame(20_000, opaque=7)))
            await begun.wait()
        assert not (tmp_path / "store" / "abort").exists()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_the_broker_sends_a_request_to_a_client_and_accepts_only_its_response(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            reader, writer = await connected(broker)
            while not broker.context.connections:
                await asyncio.sleep(0.001)
            (connection,) = broker.context.connections
            call = asyncio.create_task(connection.call(make_request(307, {"consumerGroup": "g"}), 10))
            question = await received(reader)
            assert (question.code, question.flag, question.ext) == (307, 0, {"consumerGroup": "g"})
            writer.write(encode(Frame(0, body=b"stray", flag=1, opaque=question.opaque + 1)))
            writer.write(encode(Frame(0, body=b"mine", flag=1, opaque=question.opaque)))
            assert (await call).body == b"mine"
            with pytest.raises(TimeoutError):
                await connection.call(make_request(307), 0.05)
            broken = asyncio.create_task(connection.call(make_request(307), 10))
            await received(reader)
            await received(reader)
            writer.close()
            with pytest.raises(ConnectionError):
                await broken

    asyncio.run(scenario())


def test_a_response_that_is_too_large_becomes_an_error_message(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            broker.handlers[20_000] = lambda context, connection, asked: make_response(asked, body=bytes(17 << 20))
            pair = await connected(broker)
            answered = await asked(pair, Frame(20_000, opaque=7, serialization=Serialization.ROCKETMQ))
            assert answered.code == 1
            assert "larger than any receiver accepts" in (answered.remark or "")

    asyncio.run(scenario())


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1", "127.0.0.1:99999", ":9876", "127.0.0.1:-1", "256.0.0.1:0"])
def test_an_invalid_address_is_refused_before_the_store_is_touched(tmp_path: Path, listen: str) -> None:
    with pytest.raises(UsageError, match="cannot listen on"):
        asyncio.run(Broker(tmp_path / "store", listen=listen).start())
    assert not (tmp_path / "store").exists()


def test_an_address_in_use_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            with pytest.raises(UsageError, match="choose another address"):
                await Broker(tmp_path / "other", listen=broker.address).start()

    asyncio.run(scenario())


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        with MessageStore.open(tmp_path / "store", SMALL), pytest.raises(TargetError, match="in use"):
            await Broker(tmp_path / "store").start()

    asyncio.run(scenario())


def test_a_directory_that_is_not_a_store_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(NotAStoreError):
        asyncio.run(Broker(tmp_path).start())
    assert os.listdir(tmp_path) == ["letter.txt"]


def test_a_new_store_is_of_4_9_3_and_an_existing_one_keeps_its_version(tmp_path: Path) -> None:
    async def version(name: str) -> str:
        async with Broker(tmp_path / name, config=SMALL) as broker:
            return broker.context.profile.version

    with MessageStore.open(tmp_path / "five", SMALL):
        pass
    assert asyncio.run(version("new")) == "4.9.3"
    assert asyncio.run(version("five")) == "5.3.3"


def test_clients_can_connect_to_the_advertised_address() -> None:
    assert advertised_address("127.0.0.1", 5) == "127.0.0.1:5"
    assert advertised_address("::1", 5) == "[::1]:5"
    assert not advertised_address("0.0.0.0", 5).startswith("0.")
