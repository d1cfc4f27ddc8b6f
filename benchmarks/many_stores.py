"""Many small stores in one read, local[2]: 300 and 10,000 of them, counted by store with their verdicts, and `mqstore inspect` of all.

Four stores of some 200 messages are written by the engine of this package; the others are copies of them whose files are hard links. The
floor is an empty job with as many Python tasks. The plan is also made in this process, to show its share, and the size of what is sent
to the tasks. The session is warm; a real store has no such interface, so there is no peer.
"""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from benchkit import Bench, Row, Target, child, costs, cpu_time, floor, mqstore, timed

from mqstore import pipeline
from mqstore.pipeline.source.options import ReadOptions
from mqstore.pipeline.source.rocketmq import RocketMQReader
from mqstore.pipeline.spark.session import session
from mqstore.rocketmq import Message, MessageStore, StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ("store", "topic", "size", "verdict")
SMALL = StoreConfig(commit_log_file_size=1 << 18, consume_queue_file_size=6000, max_hash_slot_num=500, max_index_num=2000)
KINDS = 4
TARGETS = {300: 3.0, 10_000: 60.0}


def write(path: Path, number: int) -> int:
    """Create a store and return the number of its messages."""
    with MessageStore.open(path, SMALL) as store:
        for k in range(200 + number):
            store.put(Message(f"bench-{k % 3}", b"x" * (k % 300), keys=f"order-{k:09d}", queue_id=k % 4))
        store.wait_dispatched()
    return 200 + number


def make(root: Path, stores: int) -> int:
    """Create the stores below root and return the number of their messages."""
    (root / "made").mkdir(parents=True)
    made = [write(root / "made" / str(number), number) for number in range(KINDS)]
    for number in range(stores):
        shutil.copytree(root / "made" / str(number % KINDS), root / "fleet" / f"{number:05d}" / "store", copy_function=os.link)
    return sum(made[number % KINDS] for number in range(stores))


def measure(bench: Bench, spark: SparkSession, pattern: str, stores: int, messages: int, target: float | None) -> None:
    """Emit the row of a read of the first stores."""
    reader = RocketMQReader(ReadOptions.of({"path": pattern}), COLUMNS)
    partitions = reader.partitions()
    planning = [timed(reader.partitions).seconds for _ in range(bench.rounds)]
    sent = sum(len(pickle.dumps(each)) for each in partitions)

    def count() -> None:
        found = pipeline.read(spark, pattern, columns=COLUMNS).groupBy("store", "verdict").count().collect()
        assert len({row["store"] for row in found}) == stores
        assert sum(row["count"] for row in found) == messages

    first = timed(count).seconds
    ours = costs([timed(count, clock=cpu_time) for _ in range(bench.rounds)])
    bench.emit(
        Row(
            f"DataFrame of {stores:,} small stores: count by store and verdict",
            [] if target is None else [Target("<=", target, "s", ours["seconds"])],
            {**ours, "first": first, "tasks": len(partitions), "planning": planning, "bytes sent to tasks": sent},
            {"floor: empty job, seconds": floor(spark, len(partitions), bench.rounds)},
            conditions=f"{messages} messages",
        )
    )


def main() -> None:
    bench = Bench(__doc__ or "")
    wanted = [max(10, int(number * bench.options.scale)) for number in TARGETS]
    with bench.scratch("many-stores") as root:
        sizes = [200 + number % KINDS for number in range(max(wanted))]
        assert make(root, max(wanted)) == sum(sizes)
        with session(master="local[2]") as spark:
            pipeline.register(spark)
            for stores, target in zip(wanted, TARGETS.values(), strict=True):
                few = root / f"fleet-{stores}"
                few.mkdir()
                for number in range(stores):
                    (few / f"{number:05d}").symlink_to(root / "fleet" / f"{number:05d}")
                measure(bench, spark, f"{few}/*/store", stores, sum(sizes[:stores]), target if bench.options.scale == 1 else None)
        runs = [child(*mqstore("inspect", f"{root}/fleet/*/store", "-o", "jsonl")) for _ in range(bench.rounds)]
        assert {run.status for run in runs} == {0}
        bench.emit(
            Row(
                f"inspect of {max(wanted):,} small stores, the whole command",
                (),
                {**costs(runs), "peak RSS MB": max(run.rss for run in runs) / 1e6},
            )
        )


if __name__ == "__main__":
    main()
