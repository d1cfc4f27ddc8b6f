"""Shared helpers of the broker tests: a broker in the test, and raw sockets connected to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mqstore.broker import Broker, Settings
from mqstore.broker.protocol.frames import Frame, decode, encode
from mqstore.testing.running_broker import SMALL

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def running(path: Path, *, settings: Settings | None = None, **options: Any) -> AsyncIterator[Broker]:
    """Run a broker over a small store."""
    options = {"auto_create_topics": True, "config": SMALL} | options
    async with Broker(path / "store", settings=settings, **options) as broker:
        yield broker


async def connected(broker: Broker) -> Pair:
    """Connect to a broker."""
    return await asyncio.open_connection(broker.host, broker.port)


async def received(reader: asyncio.StreamReader, timeout: float = 10.0) -> Frame:
    """Return the next frame."""
    async with asyncio.timeout(timeout):
        return decode(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))


async def asked(pair: Pair, frame: Frame) -> Frame:
    """Send a request and return the answer to it."""
    reader, writer = pair
    writer.write(encode(frame))
    while (answered := await received(reader)).opaque != frame.opaque or not answered.is_response:
        continue
    return answered


async def ended(reader: asyncio.StreamReader, timeout: float = 10.0) -> bytes:
    """Return everything received until the other side closes."""
    async with asyncio.timeout(timeout):
        try:
            return await reader.read(-1)
        except ConnectionResetError:
            return b""


async def alive(broker: Broker) -> None:
    """Check that other clients are still served."""
    pair = await connected(broker)
    assert (await asked(pair, Frame(106, opaque=77))).code == 0
    pair[1].close()
