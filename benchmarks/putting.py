"""Putting messages into our store and into the real 4.9.3 store, with the same bodies and keys: single puts, Arrow batches, synced puts.

A put counts only when its message is also in queue and index: time is measured until dispatch has caught up. Both sides create each
message object inside the timed loop, from prepared bodies, and first put a quarter as many messages to warm up. The rounds of both
sides alternate; each figure is a median. Before each run memory is used and freed (`benchkit.provide_memory`). Arrow batches of 8192 rows
are prepared beforehand. The floors of the same run: the loop that makes the message objects and puts none (single puts only), and a new
mapped file that is filled with as many bytes as the log gets. CPU time is that of both threads, the put's and dispatch's.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from benchkit import TOPICS, Bench, Row, Target, divided, oracle, provide_memory
from floors import messages_made, touches

from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.message import Message

MESSAGES = {1024: 400_000, 100: 1_200_000}
TARGETS = {1024: {"put": 0.75, "put_batch": 2.7}, 100: {"put": 1.2, "put_batch": 3.0}}
SYNCED = 4000
QUEUES = 8
ROWS = 8192
NAMES = tuple(f"bench-{number}" for number in range(TOPICS))

Put = Callable[[MessageStore, int, int], None]


def bodies(size: int) -> list[bytes]:
    return [(b'{"order":"order-%09d","note":"' % number + os.urandom(size).hex().encode())[:size] for number in range(1024)]


def one_by_one(texts: Sequence[bytes]) -> Put:
    """Return a function that puts single messages, numbers first to last - 1."""

    def run(store: MessageStore, first: int, last: int) -> None:
        put = store.put
        for i in range(first, last):
            put(Message(NAMES[i % TOPICS], texts[i & 1023], queue_id=i // TOPICS % QUEUES, keys=f"order-{i:09d}"))

    return run


def in_batches(texts: Sequence[bytes], count: int) -> Put:
    """Return a function that puts prepared Arrow batches."""
    made = []
    for first in range(0, count, ROWS):
        numbers = range(first, min(count, first + ROWS))
        columns = {
            "topic": pa.array([NAMES[i % TOPICS] for i in numbers]),
            "queue_id": pa.array([i // TOPICS % QUEUES for i in numbers], pa.int32()),
            "keys": pa.array([[f"order-{i:09d}"] for i in numbers]),
            "body": pa.array([texts[i & 1023] for i in numbers], pa.binary()),
        }
        made.append(pa.RecordBatch.from_pydict(columns))

    def run(store: MessageStore, first: int, last: int) -> None:
        for batch in made[first // ROWS : -(-last // ROWS)]:
            result = store.put_batch(batch)
            assert result.count == batch.num_rows, result.detail

    return run


@dataclass(frozen=True)
class Puts:
    """One round. put: messages a second, of the puts alone. dispatched: until all are dispatched. record: bytes of log a message."""

    put: float
    dispatched: float
    seconds: float
    cpu: float
    record: float


def ours(path: Path, put: Put, count: int, warm: int, threads: int = 1, flush: str = "ASYNC_FLUSH") -> Puts:
    """Put messages warm to warm + count into a new store, after those before."""
    with MessageStore.open(path, StoreConfig(version="4.9.3", flush_disk_type=flush)) as store:
        put(store, 0, warm)
        assert store.wait_dispatched()
        share = count // threads
        workers = [threading.Thread(target=put, args=(store, warm + n * share, warm + (n + 1) * share)) for n in range(threads)]
        start, before = time.perf_counter(), time.process_time()
        if threads == 1:
            put(store, warm, warm + count)
        else:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        seconds = time.perf_counter() - start
        assert store.wait_dispatched()
        listed, cpu = time.perf_counter() - start, time.process_time() - before
        assert sum(queue.max_offset for queue in store.queues()) == warm + share * threads
        return Puts(count / seconds, count / listed, listed, cpu, store.log_max / (warm + share * threads))


def peer(bench: Bench, count: int, warm: int, body: int, threads: int = 1, flush: str = "async", batch: int = 1) -> dict[str, float]:
    with bench.scratch("peer-puts") as path:
        options = ("--messages", count, "--warm-up", warm, "--body", body, "--threads", threads, "--flush", flush, "--batch", batch)
        (row,) = oracle("put", path, *options)
    return row


def asynchronous(bench: Bench, body: int) -> None:
    names = {name: f"{name}, {body} B and a key, async flush, one thread, until in queue and index" for name in TARGETS[body]}
    if not bench.wants(*names.values()):
        return
    count = max(ROWS, int(MESSAGES[body] * bench.options.scale)) // ROWS * ROWS
    warm = max(1, count // 4 // ROWS) * ROWS
    texts = bodies(body)
    ways = {"put": one_by_one(texts), "put_batch": in_batches(texts, warm + count)}
    found: dict[str, list[Puts]] = {name: [] for name in ways}
    filled: list[float] = []
    theirs: list[dict[str, float]] = []
    producers: list[dict[str, float]] = []
    for _ in range(bench.rounds):
        provide_memory()
        theirs.append(peer(bench, count, warm, body))
        provide_memory()
        producers.append(peer(bench, count, warm, body, batch=32))
        for name, put in ways.items():
            provide_memory()
            with bench.scratch("our-puts") as path:
                found[name].append(ours(path, put, count, warm))
        provide_memory()
        with bench.scratch("touched") as path:
            filled.append(touches(path)[0])
    made = [messages_made(body) for _ in range(bench.rounds)]
    base = [row["dispatched_per_second"] for row in theirs]
    real = {
        "messages/s": base,
        "puts only": [row["messages_per_second"] for row in theirs],
        "in producers' batches of 32": [row["dispatched_per_second"] for row in producers],
    }
    for name, least in TARGETS[body].items():
        rounds = found[name]
        rates = [each.dispatched for each in rounds]
        figures = {
            "messages/s": rates,
            "puts only": [each.put for each in rounds],
            "MB/s of bodies": [rate * body / 1e6 for rate in rates],
            "seconds": [each.seconds for each in rounds],
            "CPU s": [each.cpu for each in rounds],
        }
        floors = {"floor: making the messages, messages/s": made} if name == "put" else {}
        floors |= {"floor: filling a new mapped file, messages/s": [rate * 1e6 / rounds[0].record for rate in filled]}
        target = Target(">=", least, "x the real store's single puts")
        bench.emit(Row(names[name], [target], figures, real | floors, divided(rates, base), f"{count} messages after {warm} to warm up"))


def synced(bench: Bench, threads: int) -> None:
    what = f"put, 1 KiB and a key, sync flush, {threads} thread{'s' if threads > 1 else ''}"
    if not bench.wants(what):
        return
    count = max(160, int(SYNCED * bench.options.scale)) // threads * threads
    warm = count // 4
    put = one_by_one(bodies(1024))
    base: list[float] = []
    found: list[Puts] = []
    for _ in range(bench.rounds):
        base.append(peer(bench, count, warm, 1024, threads, "sync")["messages_per_second"])
        with bench.scratch("our-puts") as path:
            found.append(ours(path, put, count, warm, threads, "SYNC_FLUSH"))
    rates = [each.put for each in found]
    figures = {"messages/s": rates, "CPU us a message": [each.cpu / count * 1e6 for each in found]}
    target = Target(">=", 1.1, "x the real store")
    bench.emit(Row(what, [target], figures, {"messages/s": base}, divided(rates, base), f"{count} messages"))


def main() -> None:
    bench = Bench(__doc__ or "")
    for body in (1024, 100):
        asynchronous(bench, body)
    for threads in (1, 16):
        synced(bench, threads)


if __name__ == "__main__":
    sys.exit(main())
