"""export to Parquet with bodies and lineage, zstd level 1, warm session local[2].

The peer decodes the log with one thread and writes nothing. The floor is pyarrow's writer alone: two processes that have batches of this
store in memory pass them to it repeatedly until the number of rows is the same, with the same settings, writing to the null device.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

from benchkit import Bench, Row, Target, Timed, costs, cpu_time, divided, peer_walks, timed

import mqstore
from mqstore.jobs.export import export
from mqstore.pipeline.spark.session import session
from mqstore.table.columns import ROCKETMQ_COLUMNS
from mqstore.table.row_files import REPETITIVE, SEARCHED

BATCHES = 8


def write(store: Path, rows: int) -> float:
    """Return the seconds that pyarrow takes to write this many rows of a store from batches in memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_batches(islice(mqstore.open(store).view().batches(ROCKETMQ_COLUMNS), BATCHES))
    names = table.schema.names
    with open(os.devnull, "wb") as sink:
        start = time.perf_counter()
        with pq.ParquetWriter(
            sink,
            table.schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in names if name in REPETITIVE],
            write_statistics=[name for name in names if name in SEARCHED],
        ) as writer:
            for _ in range(round(rows / table.num_rows)):
                writer.write_table(table, row_group_size=table.num_rows)
        return time.perf_counter() - start


def writing_alone(store: Path, rows: int) -> float:
    """Return the seconds of two concurrent processes, each writing half of the rows."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        return max(processes.map(write, [store] * 2, [rows // 2] * 2))


def main() -> None:
    bench = Bench(__doc__ or "")
    store = bench.store("s2")
    walks = peer_walks(store, bench.rounds)
    size, messages = walks[0]["bytes"], walks[0]["records"]
    decoding = [walk["decode_seconds"] for walk in walks]
    runs: list[Timed] = []
    floors: list[float] = []
    written = 0
    with session(master="local[2]") as spark:
        for _ in range(bench.rounds + 1):
            with bench.scratch("exported") as out:
                runs.append(timed(export, store, out, clock=cpu_time, spark=spark, format="parquet"))
                assert runs[-1].result.messages == messages
                written = sum(path.stat().st_size for path in out.rglob("*.parquet"))
            floors.append(writing_alone(store, messages))
    first, ours, floors = runs[0].seconds, costs(runs[1:]), floors[1:]
    rates = [size / seconds / 1e6 for seconds in ours["seconds"]]
    shares = divided(floors, ours["seconds"])
    bench.emit(
        Row(
            "export to Parquet with bodies, zstd level 1",
            [Target(">=", 600, "MB/s of log", rates), Target(">=", 0.85, "of the floor", shares)],
            {"MB/s": rates, **ours, "first": first, "written MB": written / 1e6},
            {
                "MB/s, decoding only, one thread": [size / seconds / 1e6 for seconds in decoding],
                "seconds": decoding,
                "floor: pyarrow's writer alone, two processes, seconds": floors,
                "share of the floor": shares,
            },
            divided(decoding, ours["seconds"]),
            f"{size / 1e9:.2f} GB of log, {messages} messages; the floor alternated, decoding paired",
        )
    )


if __name__ == "__main__":
    main()
