"""What the machine, the interpreter and the libraries alone need for rows of docs/performance.md that miss their target.

No floor uses a store: a loop that only makes messages, first touches of a mapped file, syncs of a file that is already allocated,
handovers of the interpreter's lock between threads, pyarrow reading a batch, records copied out of a mapped file, the imports and data
classes of a server, an empty Spark session; and how much the speed of the machine itself changes while nothing else is measured.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from benchkit import TOPICS, Bench, Row, child, median

from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.query.pull import PULL_COLUMNS
from mqstore.table.columns import rocketmq_schema

MESSAGES = 300_000
TOUCHED = 512 << 20
SYNCS = 1500
THREADS = 16
HANDOVERS = 20_000
BATCHES = 20_000
ROWS = 32
RECORD = 1152  # bytes of a message of 1 KiB with a key and a tag
APART = 32  # records between two of a queue, where 32 queues are written in turn
COPIES = 4000
WINDOWS = 20_000
CLASSES = 200
SERVER = "import time; t = time.perf_counter(); import asyncio, numpy; print(time.perf_counter() - t)"
SPARK = """
import time; t = time.perf_counter()
from mqstore.pipeline.spark.session import session
with session(master="local[2]") as spark:
    spark.range(4, numPartitions=4).mapInArrow(lambda batches: batches, "id long").count()
    print(time.perf_counter() - t)
"""


def main() -> None:
    bench = Bench(__doc__ or "")

    def best(measure: Callable[[], float]) -> float:
        """Return the highest of the rates of a few rounds: a floor is what is possible."""
        return max(measure() for _ in range(max(3, bench.rounds)))

    rate = best(messages_made)
    bench.emit(Row("floor of put, one thread: a loop that makes messages and stores none", (), {"messages/s": rate}))
    with tempfile.TemporaryDirectory(dir=bench.work) as place:
        first, again = touches(Path(place) / "touched")
        bench.emit(Row("floor of writing a log: a mapped file filled for the first time", (), {"MB/s": first, "filled again": again}))
        path = Path(place) / "synced"
        allocated, written = best(lambda: syncs(path, zeros=False)), best(lambda: syncs(path, zeros=True))
        figures = {"syncs/s": allocated, "where zeros were written before": written}
        bench.emit(Row("floor of a synced put, one thread: fdatasync after every 1 KiB", (), figures))
    handovers = best(lock_handovers)
    bench.emit(
        Row(f"floor of {THREADS} Python threads that wait: each wakes the next", (), {"per s": handovers, "us each": 1e6 / handovers})
    )
    bench.emit(
        Row(
            f"floor of an Arrow batch of {ROWS} messages: pyarrow reading and freeing it",
            (),
            {"us, p50": batches_read(), "columns": len(PULL_COLUMNS)},
        )
    )
    with tempfile.TemporaryDirectory(dir=bench.work) as place:
        cold, again = copies(Path(place) / "copied")
    what = f"floor of decoding {ROWS} messages: copying {ROWS} x {RECORD} bytes out of a mapped file of 220 MB"
    bench.emit(Row(what, (), {"us at random places, p50": cold, "us again": again}))
    bench.emit(Row("spread of the machine: CPU time of one arithmetic loop, in windows of a fraction of a millisecond", (), speeds()))
    bench.emit(Row("floor of a server's start: creating a frozen data class of five fields", (), {"us": 1e6 / best(classes_created)}))
    for what, code in (("a server's start: importing asyncio and numpy", SERVER), ("a cold run on Spark: session and an empty job", SPARK)):
        runs = [child(sys.executable, "-c", code) for _ in range(max(3, bench.rounds))]
        assert all(run.status == 0 for run in runs)
        bench.emit(Row(f"floor of {what}", (), {"seconds": [float(run.stdout) for run in runs]}))


def messages_made(body: int = 100) -> float:
    """Return the messages, with bodies of this many bytes, that a loop makes in a second, as in `putting`."""
    names = tuple(f"bench-{number}" for number in range(TOPICS))
    texts = [b"x" * body] * 1024
    start = time.perf_counter()
    for i in range(MESSAGES):
        Message(names[i % TOPICS], texts[i & 1023], queue_id=i // TOPICS % 8, keys=f"order-{i:09d}")
    return MESSAGES / (time.perf_counter() - start)


def touches(path: Path) -> tuple[float, float]:
    """Return the MB/s at which one thread fills a new, allocated, mapped file, and fills it again."""
    rates = []
    block = os.urandom(1 << 20)
    with path.open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, TOUCHED)
        with mmap.mmap(file.fileno(), TOUCHED) as mapped:
            for _ in range(2):
                start = time.perf_counter()
                for at in range(0, TOUCHED, len(block)):
                    mapped[at : at + len(block)] = block
                rates.append(TOUCHED / (time.perf_counter() - start) / 1e6)
    path.unlink()
    return rates[0], rates[1]


def syncs(path: Path, *, zeros: bool) -> float:
    """Return how often a second 1 KiB can be written through a map and synced. zeros: the blocks have been written before."""
    size, record = 4 << 20, b"r" * 1100
    with path.open("w+b") as file:
        if zeros:
            file.write(bytes(size))
            file.flush()
        else:
            os.posix_fallocate(file.fileno(), 0, size)
        os.fsync(file.fileno())
        with mmap.mmap(file.fileno(), size) as mapped:
            start = time.perf_counter()
            for at in range(0, SYNCS * len(record), len(record)):
                mapped[at : at + len(record)] = record
                os.fdatasync(file.fileno())
            seconds = time.perf_counter() - start
    path.unlink()
    return SYNCS / seconds


def lock_handovers() -> float:
    """Return how often a second one waiting thread wakes the next, in a ring."""
    turns = [threading.Lock() for _ in range(THREADS)]
    for turn in turns:
        turn.acquire()

    def run(number: int) -> None:
        mine, following = turns[number], turns[(number + 1) % THREADS]
        for _ in range(HANDOVERS // THREADS):
            mine.acquire()
            following.release()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    start = time.perf_counter()
    turns[0].release()
    for thread in threads:
        thread.join()
    return HANDOVERS // THREADS * THREADS / (time.perf_counter() - start)


def batches_read() -> float:
    """Return the microseconds in which pyarrow reads a batch of a pull's columns, none of them null, from memory and frees it."""
    schema = rocketmq_schema(PULL_COLUMNS)
    columns = [pa.array([_some_value(field.type)] * ROWS, field.type) for field in schema]
    raw = pa.RecordBatch.from_arrays(columns, schema=schema).serialize()
    read = pa.ipc.read_record_batch
    times = []
    for _ in range(BATCHES):
        start = time.perf_counter_ns()
        read(raw, schema)
        times.append(time.perf_counter_ns() - start)
    return median(times) / 1e3


def _some_value(kind: pa.DataType) -> object:
    if pa.types.is_map(kind):
        return [("KEYS", "order-1"), ("TAGS", "Tag0")]
    if pa.types.is_list(kind):
        return ["order-1"]
    return b"body" if pa.types.is_binary(kind) else "text" if pa.types.is_string(kind) else 1


def copies(path: Path) -> tuple[float, float]:
    """Return the microseconds that the records of a pull take to be copied out of a mapped file, at random places and again."""
    size = 220 << 20
    with path.open("wb") as file:
        block = os.urandom(1 << 20)
        for _ in range(size >> 20):
            file.write(block)
    out = np.empty((ROWS, RECORD), np.uint8)
    dice = random.Random(7)
    starts = [dice.randrange(size - ROWS * APART * RECORD) for _ in range(COPIES)]
    medians = []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        data = np.frombuffer(mapped, np.uint8)
        np.add.reduce(data[::4096])  # each page is touched once
        for places in (starts, starts[:1] * COPIES):
            times = []
            for place in places:
                records = np.lib.stride_tricks.as_strided(data[place:], (ROWS, RECORD), (APART * RECORD, 1), writeable=False)
                start = time.perf_counter_ns()
                np.copyto(out, records)
                times.append(time.perf_counter_ns() - start)
            medians.append(median(times) / 1e3)
            del records
        del data
    return medians[0], medians[1]


def speeds() -> dict[str, float]:
    """Return the microseconds of CPU time that the same arithmetic takes, from the fastest to the slowest windows."""
    times = []
    for _ in range(WINDOWS):
        start, total = time.thread_time_ns(), 0
        for number in range(2000):
            total += number * number
        times.append((time.thread_time_ns() - start) / 1e3)
    times.sort()
    return {name: times[int(len(times) * part)] for name, part in (("fastest us", 0), ("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}


def classes_created() -> float:
    """Return the frozen data classes with slots and five fields that are created in a second of CPU time."""
    start = time.thread_time()
    for _ in range(CLASSES):

        @dataclass(frozen=True, slots=True)
        class _Facts:
            """A class like those that a server creates by the dozen when it is imported."""

            topic: str
            queue_id: int = 0
            offset: int = 0
            body: bytes = b""
            stored: bool = True

    return CLASSES / (time.thread_time() - start)


if __name__ == "__main__":
    main()
