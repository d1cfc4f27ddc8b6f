"""The store as a DataFrame, local[2]: count by topic, find a key by scanning, discard all columns; the peer decodes the log.

The real store has no table interface; its figure is one thread that decodes every message, the first step of any program based on
its classes. Each query requests only the columns that it needs. The floor of the first two queries is an empty job with as many Python
tasks. The floor of the last is a Python source that only returns prepared batches of this store, one per task, repeated until the
number of rows is the same: Spark's own cost of moving these columns into the JVM. The session is warm and meant for long jobs,
`session(throughput=True)`; the last query is also run in a default session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchkit import Bench, Row, Target, costs, cpu_time, divided, floor, peer_walks, timed
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import mqstore
from mqstore import pipeline
from mqstore.pipeline.source.stores import ddl_schema
from mqstore.pipeline.spark.session import session
from mqstore.table.columns import ROCKETMQ_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

MOVING = "floor: the same rows from a source that only repeats a batch, seconds"


def first_batch(store: str) -> pa.RecordBatch:
    return next(mqstore.open(store).view().batches(ROCKETMQ_COLUMNS))


class SameBatch(DataSource):
    """A data source that repeats one batch."""

    @classmethod
    def name(cls) -> str:
        return "same-batch"

    def schema(self) -> str:
        return ddl_schema(first_batch(self.options["path"]).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return SameBatchReader(self.options["path"], int(self.options["tasks"]), int(self.options["rows"]))


class SameBatchReader(DataSourceReader):
    def __init__(self, store: str, tasks: int, rows: int) -> None:
        self.store, self.tasks, self.rows = store, tasks, rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = first_batch(self.store)
        for _ in range(round(self.rows / self.tasks / batch.num_rows)):
            yield batch


def handing_over(spark: SparkSession, store: Path, tasks: int, rows: int, rounds: int) -> list[float]:
    """Return the seconds of each round to discard the rows of `SameBatch`."""
    spark.dataSource.register(SameBatch)
    table = spark.read.format("same-batch").options(tasks=tasks, rows=rows).load(str(store))

    def run() -> None:
        table.write.format("noop").mode("overwrite").save()

    run()
    return [timed(run).seconds for _ in range(rounds)]


def main() -> None:
    bench = Bench(__doc__ or "")
    store = bench.store("s2")
    walks = peer_walks(store, bench.rounds)
    size, messages = walks[0]["bytes"], walks[0]["records"]
    decoding = [walk["decode_seconds"] for walk in walks]
    with session(master="local[2]", throughput=True) as spark:
        pipeline.register(spark)

        def count_by_topic() -> None:
            table = pipeline.read(spark, str(store), columns=["topic"])
            counts = {row["topic"]: row["count"] for row in table.groupBy("topic").count().collect()}
            assert sum(counts.values()) == messages

        wanted = f"order-{messages // 2:09d}"

        def find_key() -> None:
            table = pipeline.read(spark, str(store), columns=["keys", "physical_offset"])
            assert table.filter(f"array_contains(keys, '{wanted}')").count() == 1

        def discard() -> None:
            pipeline.read(spark, str(store)).write.format("noop").mode("overwrite").save()

        def question(what: str, target: float | None, job: Callable[[], None], floor: dict[str, list[float]]) -> None:
            first = timed(job).seconds
            ours = costs([timed(job, clock=cpu_time) for _ in range(bench.rounds)])
            rates = [size / seconds / 1e9 for seconds in ours["seconds"]]
            bench.emit(
                Row(
                    f"DataFrame: {what}",
                    [] if target is None else [Target(">=", target, "GB/s of log", rates)],
                    {"GB/s": rates, **ours, "first": first},
                    {"GB/s, decoding, one thread": [size / seconds / 1e9 for seconds in decoding], "seconds": decoding} | floor,
                    divided(decoding, ours["seconds"]),
                    f"{size / 1e9:.2f} GB of log, {messages} messages, {tasks} tasks; paired, not alternated",
                )
            )

        tasks = pipeline.read(spark, str(store), columns=["topic"]).rdd.getNumPartitions()
        empty = {"floor: empty job, seconds": floor(spark, tasks, bench.rounds)}
        question("count by topic, column given", 0.9, count_by_topic, empty)
        question("key filter by scan, columns given", 0.7, find_key, empty)
        moving = {MOVING: handing_over(spark, store, tasks, messages, bench.rounds)}
        question("all columns, discarded (noop)", 0.5, discard, moving)
    with session(master="local[2]") as spark:
        pipeline.register(spark)
        moving = {MOVING: handing_over(spark, store, tasks, messages, bench.rounds)}
        question("all columns, discarded (noop), default session", None, discard, moving)


if __name__ == "__main__":
    main()
