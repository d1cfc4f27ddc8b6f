"""Stores of unusual shapes: many queues, one queue, one hash slot for all keys, short and long records; cost and memory beside a usual one.

Each store is made by our engine from Arrow batches and read by the whole commands, each in a new process. The cost is the time less that of
the same command on a store of one message; memory is the peak resident size, pages of mapped files included.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from benchkit import Bench, Child, Row, apart, child, mqstore, remove

from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore

ROWS = 8192
LONG = 4 << 20


@dataclass(frozen=True)
class Shape:
    """How many messages a store has, the bytes of their bodies, and the topic, queue and key of message i."""

    name: str
    messages: int
    body: int
    place: Callable[[int], tuple[str, int]]
    key: Callable[[int], str]


def usual_place(i: int) -> tuple[str, int]:
    return f"bench-{i % 4}", i // 4 % 8


def usual_key(i: int) -> str:
    return f"order-{i:09d}"


def colliding_key(i: int) -> str:
    """Return a key whose Java hash is that of all others: `Aa` and `BB` have the same."""
    return "".join("BB" if i >> bit & 1 else "Aa" for bit in range(23))


SHAPES = (
    Shape("usual: 4 topics of 8 queues, 1 KiB", 1_000_000, 1024, usual_place, usual_key),
    Shape("records of 100 B", 5_000_000, 100, usual_place, usual_key),
    Shape("records of 4 MB", 500, LONG - 4096, usual_place, usual_key),
    Shape("one queue of one topic", 1_000_000, 1024, lambda i: ("bench", 0), usual_key),
    Shape("10,000 topics of 8 queues", 1_000_000, 1024, lambda i: (f"bench-{i % 10_000}", i // 10_000 % 8), usual_key),
    Shape("100,000 queues of one topic", 1_000_000, 1024, lambda i: ("bench", i % 100_000), usual_key),
    Shape("5,000,000 keys of one hash slot", 5_000_000, 100, usual_place, colliding_key),
)


def make(path: Path, number: int, count: int) -> float:
    """Make a store of the first messages of a shape; return the seconds of the puts, dispatch included."""
    shape = SHAPES[number]
    text = os.urandom(shape.body // 2 + 1).hex().encode()[: shape.body]
    seconds = 0.0
    with MessageStore.open(path, StoreConfig(version="4.9.3", max_message_size=LONG)) as store:
        rows = max(1, min(ROWS, (16 << 20) // shape.body))
        for first in range(0, count, rows):
            numbers = range(first, min(count, first + rows))
            places = [shape.place(i) for i in numbers]
            columns = {
                "topic": pa.array([topic for topic, _ in places]),
                "queue_id": pa.array([queue for _, queue in places], pa.int32()),
                "keys": pa.array([[shape.key(i)] for i in numbers]),
                "body": pa.array([text] * len(numbers), pa.binary()),
            }
            batch = pa.RecordBatch.from_pydict(columns)
            start = time.perf_counter()
            result = store.put_batch(batch)
            seconds += time.perf_counter() - start
            assert result.count == len(numbers), result.detail
        start = time.perf_counter()
        assert store.wait_dispatched(600)
    return seconds + time.perf_counter() - start


def measured(bench: Bench, path: Path, keys: Path) -> dict[str, Child]:
    """Run the commands on a store, several times each; return the run of median duration."""
    found = {}
    with bench.scratch("shape-rebuilt") as rebuilt, bench.scratch("shape-found.jsonl") as answers:
        commands = {
            "verify": mqstore("verify", path, "--output", "json"),
            "rebuild": mqstore("rebuild", path, "--to", rebuilt, "--threads", 2),
            "lookup": mqstore("lookup", path, "--keys", keys, "--to", answers),
            "usage": mqstore("usage", path, "--by", "queue", "--output", "json"),
        }
        for name, command in commands.items():
            runs = []
            for _ in range(bench.rounds):
                for made in (rebuilt, answers):
                    remove(made)
                runs.append(child(*command))
                assert runs[-1].status == 0, (name, runs[-1].stdout[:500])
            found[name] = sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]
    return found


def main() -> None:
    bench = Bench(__doc__ or "")
    keys = bench.work / "shape-keys.tsv"
    usual: dict[str, float] = {}
    with bench.scratch("shape-empty") as path:
        apart(make, path, 0, 1)
        keys.write_text(f"bench-0\t{usual_key(0)}\n")
        fixed = {name: run.seconds for name, run in measured(bench, path, keys).items()}
    for index, shape in enumerate(SHAPES):
        if not bench.wants(shape.name):
            continue
        count = max(100, int(shape.messages * bench.options.scale))
        with bench.scratch("shape") as path:
            put = apart(make, path, index, count)
            chosen = [count * number // 10 for number in range(10)]
            keys.write_text("".join(f"{shape.place(i)[0]}\t{shape.key(i)}\n" for i in chosen))
            runs = measured(bench, path, keys)
        ours: dict[str, float] = {"put and dispatch us": put / count * 1e6}
        for name, run in runs.items():
            ours[f"{name} us"] = max(0.0, run.seconds - fixed[name]) / count * 1e6
            ours[f"{name} MB"] = run.rss / 1e6
        usual = usual or ours
        bench.emit(Row(shape.name, (), ours, conditions=f"{count} messages; a message, medians of {bench.rounds}; {times(ours, usual)}"))
    keys.unlink()


def times(ours: dict[str, float], usual: dict[str, float]) -> str:
    """Return how many times the usual store's cost each operation takes."""
    named = [f"{name.removesuffix(' us')} {ours[name] / usual[name]:.2f}" for name in ours if name.endswith("us") and usual[name]]
    return "times the usual: " + ", ".join(named)


if __name__ == "__main__":
    main()
