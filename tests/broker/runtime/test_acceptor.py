"""TLS of a running broker: who gets in under which mode, and that bad and slow handshakes are bounded."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import resource
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.certificates import Authority, Files, server_files
from support.wire import Pair, alive, asked, connected, ended, running

from mqstore.broker import Broker, Settings
from mqstore.broker.protocol.frames import Frame, encode
from mqstore.broker.runtime.acceptor import TlsAcceptor
from mqstore.broker.runtime.logs import LOGGER

SEND = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1795229727088", "h": "0"}
LOOPS = [
    pytest.param("uvloop", marks=pytest.mark.skipif(not importlib.util.find_spec("uvloop"), reason="uvloop is not installed")),
    "asyncio",
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return server_files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture
def closings() -> Iterator[list[str]]:
    """Why connections were closed."""
    found: list[str] = []

    class Collects(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == "connection-closed":
                found.append(getattr(record, "facts", {})["why"])

    handler, level = Collects(), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)
    yield found
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)


def settings(files: Files, mode: str, **more: Any) -> Settings:
    return replace(Settings(tls=mode, tls_cert=str(files.certificate), tls_key=str(files.key)), **more)


def run(work: Callable[[], Coroutine[Any, Any, None]], loop: str = "asyncio") -> None:
    if loop == "uvloop":
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.Loop) as runner:
            runner.run(work())
    else:
        asyncio.run(work())


async def secured(broker: Broker, context: ssl.SSLContext) -> Pair:
    """Connect to a broker with TLS."""
    return await asyncio.open_connection(broker.host, broker.port, ssl=context)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_with_tls_is_served(files: Files, version: ssl.TLSVersion, loop: str, tmp_path: Path) -> None:
    context = files.authority.client_context()
    context.minimum_version = context.maximum_version = version

    async def work() -> None:
        async with running(tmp_path, settings=settings(files, "enforcing")) as broker:
            pair = await secured(broker, context)
            body = bytes(range(256)) * 8000
            sent = await asked(pair, Frame(310, SEND, body, opaque=1))
            assert sent.code == 0, sent.remark
            assert sent.ext is not None
            [connection] = broker.context.connections
            assert connection.peer.startswith("127.0.0.1:")
            store = broker.store.writable
            assert store is not None
            assert store.wait_dispatched()
            back = await asked(pair, Frame(33, {"offset": "0"}, opaque=2))
            assert body in bytes(back.body)
            pair[1].close()

    run(work, loop)


@pytest.mark.versions
@pytest.mark.parametrize("loop", LOOPS)
def test_a_permissive_port_serves_both(files: Files, loop: str, tmp_path: Path, closings: list[str]) -> None:
    async def work() -> None:
        async with running(tmp_path, settings=settings(files, "permissive")) as broker:
            await alive(broker)
            pair = await secured(broker, files.authority.client_context())
            assert (await asked(pair, Frame(106, opaque=1))).code == 0
            await alive(broker)
            assert (await asked(pair, Frame(106, opaque=2))).code == 0
            pair[1].close()
            await until(lambda: not broker.context.connections)

    run(work, loop)
    assert closings == []


def test_an_enforcing_port_closes_a_connection_without_tls_and_says_why(files: Files, tmp_path: Path, closings: list[str]) -> None:
    async def work() -> None:
        async with running(tmp_path, settings=settings(files, "enforcing")) as broker:
            reader, writer = await connected(broker)
            writer.write(encode(Frame(106, opaque=1)))
            assert await ended(reader) == b""
            writer.close()
            pair = await secured(broker, files.authority.client_context())
            assert (await asked(pair, Frame(106, opaque=1))).code == 0
            pair[1].close()

    run(work)
    assert closings == ["the client does not use TLS, which this port requires; set tls.enable=true in the client"]


def test_a_grpc_client_is_named(tmp_path: Path, closings: list[str]) -> None:
    async def work() -> None:
        async with running(tmp_path) as broker:
            host, port = broker.address.rsplit(":", 1)
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            assert await reader.read() == b""
            writer.close()
            await alive(broker)

    run(work)
    [why] = closings
    assert why.startswith("this is a gRPC client (HTTP/2, the 5.x SDK), and this broker speaks the remoting protocol")


def test_a_port_without_tls_closes_a_connection_with_it_and_says_why(files: Files, tmp_path: Path, closings: list[str]) -> None:
    async def work() -> None:
        async with running(tmp_path) as broker:
            with pytest.raises((ssl.SSLError, OSError)):
                await secured(broker, files.authority.client_context())
            await alive(broker)

    run(work)
    [why] = closings
    assert why.startswith("the connection begins with a TLS handshake, but this port has no TLS")


@pytest.mark.parametrize("loop", LOOPS)
def test_with_a_client_ca_only_clients_with_its_certificate_are_served(
    files: Files, stranger: Authority, loop: str, tmp_path: Path, closings: list[str]
) -> None:
    own = files.authority.sign("client")
    foreign = stranger.sign("client")

    async def work() -> None:
        async with running(tmp_path, settings=settings(files, "enforcing", tls_client_ca=str(files.authority.certificate))) as broker:
            pair = await secured(broker, files.authority.client_context(*own))
            assert (await asked(pair, Frame(106, opaque=1))).code == 0
            pair[1].close()
            for refused in (files.authority.client_context(), files.authority.client_context(*foreign)):
                with pytest.raises((OSError, asyncio.IncompleteReadError)):  # with TLS 1.3 the client learns it when it reads
                    await asked(await secured(broker, refused), Frame(106, opaque=1))
            await until(lambda: len(closings) >= 2)

    run(work, loop)
    assert [each.startswith("the TLS handshake failed: ") for each in closings] == [True, True]
    assert "did not return a certificate" in closings[0]


def hello(context: ssl.SSLContext) -> bytes:
    """The first message of a client."""
    sent, nothing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(nothing, sent, server_hostname="localhost").do_handshake()
    return sent.read()


BROKEN = [b"\x16", b"\x16\x03\x01\xff\xff" + b"x" * 100, b"\x16" * 5000, b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", b"\x16\x00\x00\x00"]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_a_broken_handshake_ends_the_connection_and_no_other(
    files: Files, mode: str, loop: str, tmp_path: Path, closings: list[str]
) -> None:
    whole = hello(files.authority.client_context())

    async def work() -> None:
        async with running(tmp_path, settings=settings(files, mode)) as broker:
            for raw in (*BROKEN, whole[:-1], whole[:40], whole + b"\x17" * 50):
                reader, writer = await connected(broker)
                writer.write(raw)
                writer.write_eof()
                await ended(reader)
                writer.close()
            pair = await secured(broker, files.authority.client_context())
            assert (await asked(pair, Frame(106, opaque=1))).code == 0
            assert len(broker.context.connections) == 1
            pair[1].close()
            acceptor = broker._server
            assert isinstance(acceptor, TlsAcceptor)
            await until(lambda: acceptor.pending == 0)

    run(work, loop)
    assert len(closings) == len(BROKEN) + 3
    assert all(each.startswith("the TLS handshake failed: ") for each in closings)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_slow_handshake_and_a_silent_client_are_cut_off(files: Files, loop: str, tmp_path: Path, closings: list[str]) -> None:
    limits = settings(files, "enforcing", handshake_timeout=100)

    async def work() -> None:
        async with running(tmp_path, settings=limits) as broker:
            slow, writer = await connected(broker)
            writer.write(hello(files.authority.client_context())[:50])
            silent, other = await connected(broker)
            assert await ended(slow) == b""
            assert await ended(silent) == b""
            writer.close()
            other.close()

    run(work, loop)
    assert sorted(closings) == ["the TLS handshake failed: it took too long", "the client sent nothing"]


def test_handshakes_are_limited_and_served_clients_are_not_affected(files: Files, tmp_path: Path, closings: list[str]) -> None:
    async def work() -> None:
        async with running(tmp_path, settings=settings(files, "enforcing", max_handshakes=5, max_address_share=100)) as broker:
            pair = await secured(broker, files.authority.client_context())
            acceptor = broker._server
            assert isinstance(acceptor, TlsAcceptor)
            await until(lambda: acceptor.pending == 0)
            waiting = [await connected(broker) for _ in range(6)]  # one of them stays silent and holds up no handshake
            for _, each in waiting[1:]:
                each.write(hello(files.authority.client_context())[:50])
            await until(lambda: len(acceptor._tasks) == 5)
            reader, writer = await connected(broker)
            writer.write(hello(files.authority.client_context()))
            assert await ended(reader) == b""
            assert (await asked(pair, Frame(106, opaque=1))).code == 0
            for _, each in [*waiting, (reader, writer), pair]:
                each.close()
            await until(lambda: acceptor.pending == 0)
            again = await secured(broker, files.authority.client_context())
            assert (await asked(again, Frame(106, opaque=1))).code == 0
            again[1].close()

    run(work)
    assert closings[0] == "there are too many TLS handshakes: the limit of this broker is 5"


def test_half_open_handshakes_of_one_address_keep_no_other_out(files: Files, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4000:
        pytest.skip("1,500 connections need more file descriptors, in both processes at once")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def work() -> None:
        async with running(tmp_path, settings=settings(files, "enforcing")) as broker:
            start = hello(files.authority.client_context())[:50]
            greedy = []
            for number in range(1500):
                stream = socket.socket()
                stream.bind(("127.0.0.2", 0))
                stream.connect((broker.host, broker.port))
                stream.send(start)
                greedy.append(stream)
                if number % 50 == 0:
                    await asyncio.sleep(0)
            quotas = broker.context.shared.quotas
            await until(lambda: quotas.handshakes.refused == 1000)
            assert quotas.handshakes.of("127.0.0.2") == 500
            began = asyncio.get_running_loop().time()
            pair = await secured(broker, files.authority.client_context())
            assert (await asked(pair, Frame(106, opaque=1))).code == 0
            assert asyncio.get_running_loop().time() - began < 2
            await until(lambda: quotas.handshakes.held == 0)  # each has 5 seconds
            for stream in greedy:
                stream.close()
            pair[1].close()

    try:
        run(work)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_are_limited_whatever_their_state(files: Files, tmp_path: Path, closings: list[str]) -> None:
    async def work() -> None:
        async with running(tmp_path, settings=settings(files, "permissive", max_connections=2, max_address_share=100)) as broker:
            pair = await secured(broker, files.authority.client_context())
            await until(lambda: len(broker.context.connections) == 1)
            _, silent = await connected(broker)
            acceptor = broker._server
            assert isinstance(acceptor, TlsAcceptor)
            await until(lambda: acceptor.pending == 1)
            reader, writer = await connected(broker)
            assert await ended(reader) == b""
            assert (await asked(pair, Frame(106, opaque=1))).code == 0
            for each in (pair[1], silent, writer):
                each.close()

    run(work)
    assert closings == ["there are too many connections: the limit of this broker is 2"]


def test_a_bad_frame_within_tls_closes_the_connection(files: Files, tmp_path: Path, closings: list[str]) -> None:
    async def work() -> None:
        async with running(tmp_path, settings=settings(files, "enforcing")) as broker:
            reader, writer = await secured(broker, files.authority.client_context())
            writer.write(b"\x7f\xff\xff\xff")
            assert await ended(reader) == b""
            writer.close()

    run(work)
    assert closings == ["a frame of 2147483651 bytes is not valid; the maximum is 16777216"]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_broker_stops_while_clients_are_in_every_state(files: Files, loop: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, settings=settings(files, "permissive")) as broker:
            pairs = [await secured(broker, files.authority.client_context()), await connected(broker), await connected(broker)]
            pairs[1][1].write(hello(files.authority.client_context())[:50])
            acceptor = broker._server
            assert isinstance(acceptor, TlsAcceptor)
            await until(lambda: acceptor.pending == 2 and len(broker.context.connections) == 1)
        for reader, writer in pairs:
            await ended(reader)
            writer.close()

    run(work, loop)


def test_a_renewed_certificate_is_used_and_a_broken_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = server_files(tmp_path / "old"), server_files(tmp_path / "new")

    async def work() -> None:
        async with running(tmp_path, settings=settings(old, "enforcing")) as broker:
            acceptor = broker._server
            assert isinstance(acceptor, TlsAcceptor)
            before = await secured(broker, old.authority.client_context())
            assert not acceptor.renew()
            new.certificate.replace(old.certificate)
            assert not acceptor.renew()  # the key is still the old one
            between = await secured(broker, old.authority.client_context())
            new.key.replace(old.key)
            assert acceptor.renew()
            after = await secured(broker, new.authority.client_context())
            with pytest.raises(ssl.SSLError):
                await secured(broker, old.authority.client_context())
            for pair in (before, between, after):
                assert (await asked(pair, Frame(106, opaque=1))).code == 0
                pair[1].close()

    run(work)
