"""follow: delay from the store time of a message to its appearance in the Parquet output, at 5,000 messages/s, local[2].

A separate process appends messages of 1 KiB in small batches at that rate; follow writes them to a directory of Parquet files. The
latency of a message is the time at which its batch was renamed into place minus its store time; the first 10 seconds do not count. The
rounds are the batches of one run. The
floor is a stream of Spark's own `rate` source at the same interval that does no work: half an interval of waiting plus one empty batch.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pyarrow.dataset as ds
from benchkit import Bench, Row, Target, median

from mqstore.pipeline.spark.session import session
from mqstore.pipeline.tail.follow import FollowedBatch, follow

RATE = 5000
INTERVAL = 1.0
WARM_UP = 10.0
SECONDS = 40.0

WRITER = textwrap.dedent(
    """
    import os, sys, time
    import pyarrow as pa
    from mqstore.rocketmq.engine.message_store import MessageStore
    from mqstore.rocketmq.config.store_config import StoreConfig
    path, rate, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    step = rate // 100
    texts = [os.urandom(512).hex().encode() for _ in range(step)]
    with MessageStore.open(path, StoreConfig(version="4.9.3")) as store:
        print("open", flush=True)
        begin, number = time.perf_counter(), 0
        while number < rate * seconds:
            columns = {
                "topic": [f"bench-{i % 4}" for i in range(step)],
                "queue_id": pa.array([i // 4 % 8 for i in range(step)], pa.int32()),
                "keys": [[f"order-{number + i:09d}"] for i in range(step)],
                "body": pa.array(texts, pa.binary()),
            }
            assert store.put_batch(pa.RecordBatch.from_pydict(columns)).count == step
            number += step
            time.sleep(max(0.0, begin + number / rate - time.perf_counter()))
        print(number, time.perf_counter() - begin, flush=True)
    """
)


def main() -> None:
    bench = Bench(__doc__ or "")
    seconds = max(WARM_UP + 5, SECONDS * bench.options.scale)
    with session(master="local[2]") as spark, bench.scratch("followed") as out, bench.scratch("growing") as store:
        stream = spark.readStream.format("rate").option("rowsPerSecond", RATE).load()
        query = stream.writeStream.format("noop").trigger(processingTime=f"{INTERVAL} seconds").start()
        time.sleep(12)
        empty = median([progress["durationMs"]["triggerExecution"] / 1e3 for progress in query.recentProgress[3:]])
        query.stop()

        named: dict[int, float] = {}
        works: list[float] = []
        stop = threading.Event()

        def told(batch: FollowedBatch) -> None:
            named[batch.number] = time.time()
            works.append(batch.seconds)

        writer = subprocess.Popen([sys.executable, "-c", WRITER, store, str(RATE), str(seconds)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        writer.stdout.readline()
        begin = time.time()

        def end() -> None:
            writer.wait()
            time.sleep(3 * INTERVAL)
            stop.set()

        ending = threading.Thread(target=end)
        ending.start()
        report = follow(store, out, spark=spark, interval=INTERVAL, on_batch=told, stop=stop)
        ending.join()
        written, took = writer.stdout.read().split()
        assert report.messages == int(written)
        late = []
        for number, moment in named.items():
            times = ds.dataset(out / f"batch={number:010d}", format="parquet").to_table(columns=["store_timestamp"]).column(0)
            stored = times.to_numpy().astype("datetime64[us]").astype(np.int64) / 1e6
            late.append(moment - stored[stored >= begin + WARM_UP])
    batches = [each for each in late if len(each)]
    latency = np.concatenate(batches)
    p50, p95, p99 = np.percentile(latency, [50, 95, 99]).tolist()
    medians = [float(np.median(each)) for each in batches]
    bench.emit(
        Row(
            f"follow to Parquet at {RATE:,} messages/s: from store time to the output",
            [Target("<=", 2, "s, p50", medians)],
            {"p50 s": p50, "p95 s": p95, "p99 s": p99, "work of a batch, s": works},
            {"floor: an empty stream, s": INTERVAL / 2 + empty, "of that its batch": empty},
            [(INTERVAL / 2 + empty) / each for each in medians],
            f"{len(latency)} messages in {len(named)} batches, written at {int(written) / float(took):.0f}/s; interval {INTERVAL:.0f} s",
        )
    )


if __name__ == "__main__":
    main()
