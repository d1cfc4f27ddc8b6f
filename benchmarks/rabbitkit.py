"""Shared code of the RabbitMQ benchmarks: stores written by the engine, the real 3.10.8 node as peer, pika with confirms.

A store has one vhost, `/`, and one durable queue, `orders`, whose version 1 directory a node can adopt. It is made once, in --work.
The node is that of tests/interop/rabbitmq; it requires Debian's package `rabbitmq-server`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchkit import ROOT, Bench, remove

from mqstore.rabbitmq.engine.engine_config import EngineConfig
from mqstore.rabbitmq.engine.queue_store import QueueStore

sys.path.insert(0, str(ROOT / "tests"))
from interop.rabbitmq.adopting import Declared, declare
from interop.rabbitmq.node import Node, missing, new_node

QUEUE = "orders"
EVERY = 1000
WINDOW = 1000
_RECOVERED = re.compile(r"Recovering \d+ queues of type rabbit_classic_queue took (\d+)ms")


def bodies(size: int) -> list[bytes]:
    return [(b'{"order":"order-%09d","note":"' % number + os.urandom(size).hex().encode())[:size] for number in range(256)]


def scaled(bench: Bench, count: int) -> int:
    return max(EVERY, int(count * bench.options.scale) // EVERY * EVERY)


def publish(store: QueueStore, texts: list[bytes], count: int) -> float:
    """Publish `count` persistent messages with a sync every 1,000, and return the seconds."""
    start = time.perf_counter()
    for first in range(0, count, EVERY):
        for number in range(first, min(count, first + EVERY)):
            store.publish(QUEUE, texts[number & 255])
        store.sync()
    return time.perf_counter() - start


def store(bench: Bench, count: int, size: int, config: EngineConfig = EngineConfig(), name: str = "") -> Path:  # noqa: B008
    """Return a `msg_stores` as a kill leaves it, with `count` messages in a version 1 queue, in the page cache."""
    path = bench.work / f"rabbit-{count}-{size}{name}"
    if not path.exists():
        making = path.with_name(path.name + ".part")
        remove(making)
        making.mkdir()
        engine = QueueStore.open(making / "msg_stores", config=config)
        engine.declare(QUEUE)
        publish(engine, bodies(size), count)
        engine.abandon()
        making.rename(path)
    warm(path)
    return path / "msg_stores"


def warm(path: Path) -> int:
    """Read every file once and return the number of bytes."""
    total = 0
    for file in sorted(path.rglob("*")):
        if file.is_file():
            with file.open("rb", buffering=0) as opened:
                while part := opened.read(1 << 24):
                    total += len(part)
    return total


@contextmanager
def node() -> Iterator[Node]:
    """Yield a stopped node that knows the queue."""
    reason = missing()
    if reason:
        sys.exit(f"This benchmark needs a real node as its peer: {reason}.")
    with new_node({"queue_index_embed_msgs_below": 4096}) as made:
        made.start()
        declare(made, [Declared("/", QUEUE)])
        made.stop()
        yield made


def adopt(running: Node, path: Path) -> float:
    """Start a stopped node on a copy of a store; return the seconds of queue recovery that it logs."""
    shutil.rmtree(running.stores)
    shutil.copytree(path, running.stores)
    before = len(running.log())
    running.start()
    end = time.monotonic() + 30
    while time.monotonic() < end:  # the log is written asynchronously
        told = _RECOVERED.search(running.log()[before:])
        if told is not None:
            return int(told[1]) / 1000
        time.sleep(0.1)
    raise SystemExit(f"The node did not log the duration of its recovery; its log ends:\n{running.log()[-2000:]}")


def messages(running: Node) -> int:
    """Return the number of messages in the node's queue."""
    connection = running.connect()
    try:
        return int(connection.channel().queue_declare(QUEUE, passive=True).method.message_count)
    finally:
        connection.close()


def switch(running: Node, version: int) -> float:
    """Convert the queue to a version by policy; return the seconds until the queue reports that version."""
    start = time.perf_counter()
    running.eval(f'rabbit_policy:set(<<"/">>, <<"v">>, <<".*">>, [{{<<"queue-version">>, {version}}}], 0, <<"queues">>, <<"t">>).')
    while f"{{version,{version}}}" not in running.eval(f'oracle:info(<<"/">>, <<"{QUEUE}">>).'):
        time.sleep(0.01)
    return time.perf_counter() - start


def forget(running: Node) -> None:
    """Empty the queue, remove the policy, and stop the node."""
    empty(running)
    running.eval('rabbit_policy:delete(<<"/">>, <<"v">>, <<"t">>).')
    running.stop()


def empty(running: Node) -> None:
    connection = running.connect()
    connection.channel().queue_purge(QUEUE)
    connection.close()


def pika_windows(port: int, texts: list[bytes], count: int, queue: str = QUEUE) -> float:
    """Publish with up to 1,000 unconfirmed messages; return the seconds from the first publish to the last confirm."""
    import pika

    times: list[float] = []
    state = {"sent": 0, "confirmed": 0}
    kept = pika.BasicProperties(delivery_mode=2)

    def confirmed(frame: Any) -> None:
        method = frame.method
        state["confirmed"] = method.delivery_tag if method.multiple else state["confirmed"] + 1
        if method.multiple or not state["confirmed"] % 100:
            pump()
        if state["confirmed"] >= count:
            times.append(time.perf_counter())
            connection.close()

    def pump() -> None:
        while state["sent"] < count and state["sent"] - state["confirmed"] < WINDOW:
            channels[0].basic_publish("", queue, texts[state["sent"] & 255], kept)
            state["sent"] += 1

    def ready(_frame: Any) -> None:
        times.append(time.perf_counter())
        pump()

    def opened(channel: Any) -> None:
        channels.append(channel)
        channel.confirm_delivery(confirmed, callback=ready)

    channels: list[Any] = []
    connection = pika.SelectConnection(
        pika.ConnectionParameters("127.0.0.1", port, heartbeat=0),
        on_open_callback=lambda made: made.channel(on_open_callback=opened),
        on_close_callback=lambda made, _reason: made.ioloop.stop(),
    )
    connection.ioloop.start()
    return times[1] - times[0]


def pika_singly(running: Node, texts: list[bytes], count: int) -> float:
    """Publish and wait for each confirm; return the seconds."""
    import pika

    connection = running.connect()
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        kept = pika.BasicProperties(delivery_mode=2)
        start = time.perf_counter()
        for number in range(count):
            channel.basic_publish("", QUEUE, texts[number & 255], kept, mandatory=True)
        return time.perf_counter() - start
    finally:
        connection.close()
