"""Putting and getting 1 KiB messages: our store beside the usual choices of a Python program, each with its own defaults.

persist-queue (its file queue and its SQLite queue), litequeue and diskcache.Deque put one message per call and get one per call, which
removes it. Ours puts one per call, gets 32 per call and commits the consumer's offset after each get; messages remain until retention
removes them. None of the peers indexes messages by key.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchkit import Bench, Row, Target, divided

from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.message import Message

MESSAGES = 100_000
PEER_MESSAGES = 5000
FACTOR = 10

Run = Callable[[Path, list[bytes]], tuple[float, float]]


def timed_loops(put: Callable[[bytes], object], get: Callable[[], object], bodies: list[bytes]) -> tuple[float, float]:
    """Return the seconds to put all bodies, and to get them back."""
    start = time.perf_counter()
    for body in bodies:
        put(body)
    middle = time.perf_counter()
    for body in bodies:
        found = get()
        assert found == body
    return middle - start, time.perf_counter() - middle


def ours(path: Path, bodies: list[bytes]) -> tuple[float, float]:
    with MessageStore.open(path) as store:
        start = time.perf_counter()
        for body in bodies:
            store.put(Message("work", body))
        assert store.wait_dispatched()
        middle = time.perf_counter()
        at = 0
        while at < len(bodies):
            got = store.get("worker", "work", 0, at)
            for record, body in zip(got.records(), bodies[at:], strict=False):
                assert record.body == body
            at = got.next_begin_offset
            store.offsets.commit("worker", "work", 0, at)
        return middle - start, time.perf_counter() - middle


def file_queue(module: Any) -> Run:
    def run(path: Path, bodies: list[bytes]) -> tuple[float, float]:
        queue = module.Queue(str(path))

        def get() -> object:
            found = queue.get()
            queue.task_done()
            return found

        return timed_loops(queue.put, get, bodies)

    return run


def sqlite_queue(module: Any) -> Run:
    def run(path: Path, bodies: list[bytes]) -> tuple[float, float]:
        queue = module.SQLiteQueue(str(path))
        try:
            return timed_loops(queue.put, queue.get, bodies)
        finally:
            queue.close()

    return run


def litequeue(module: Any) -> Run:
    def run(path: Path, bodies: list[bytes]) -> tuple[float, float]:
        path.mkdir()
        queue = module.LiteQueue(str(path / "queue.sqlite3"))

        def get() -> object:
            found = queue.pop()
            queue.done(found.message_id)
            return found.data

        try:
            return timed_loops(queue.put, get, bodies)
        finally:
            queue.close()

    return run


def deque(module: Any) -> Run:
    def run(path: Path, bodies: list[bytes]) -> tuple[float, float]:
        queue = module.Deque(directory=str(path))
        try:
            return timed_loops(queue.append, queue.popleft, bodies)
        finally:
            queue.cache.close()

    return run


PEERS = (
    ("persist-queue Queue", "persistqueue", "persist-queue", file_queue),
    ("persist-queue SQLiteQueue", "persistqueue", "persist-queue", sqlite_queue),
    ("litequeue LiteQueue", "litequeue", "litequeue", litequeue),
    ("diskcache Deque", "diskcache", "diskcache", deque),
)


def rates(bench: Bench, run: Run, count: int) -> tuple[float, float]:
    """Return the messages per second of one round, put and got."""
    bodies = [os.urandom(512).hex().encode() for _ in range(count)]
    with bench.scratch("python-queue") as path:
        put, get = run(path, bodies)
    return count / put, count / get


def main() -> int:
    bench = Bench(__doc__ or "")
    sides: dict[str, tuple[Run, int]] = {"ours": (ours, max(1000, int(MESSAGES * bench.options.scale)))}
    for name, module, package, make in PEERS:
        try:
            sides[name] = make(importlib.import_module(module)), max(200, int(PEER_MESSAGES * bench.options.scale))
        except ImportError:
            print(f"\n{package} is not installed, so {name} is left out; install it with `pip install mqstore[bench]`", file=sys.stderr)
    rounds = [{name: rates(bench, *side) for name, side in sides.items()} for _ in range(bench.rounds)]
    for name in sides:
        for number, what in enumerate(("put", "get")):
            if name != "ours":
                mine, theirs = ([each[side][number] for each in rounds] for side in ("ours", name))
                bench.emit(
                    Row(
                        f"{what} of 1 KiB beside {name}",
                        [Target(">=", FACTOR, "x")],
                        {"messages/s": mine},
                        {"messages/s": theirs},
                        divided(mine, theirs),
                        "each side with its own defaults",
                    )
                )
    return 1 if len(sides) == 1 else 0


if __name__ == "__main__":
    sys.exit(main())
