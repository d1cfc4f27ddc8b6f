"""The driver process of `support.cluster.Driver`: jobs arrive as lines of JSON on standard input, their reports go to standard output.

    python tests/support/cluster_driver.py MASTER '{"spark.speculation": "true"}'
    {"job": "rebuild", "store": "/…", "to": "/…", "hold": {"place": "/…", "number": 5, "then": "wait", "done": true}}

A hold makes one task of the job wait, fail or die at its first attempt; see `support.cluster.Hold`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from support.queries import drained

import mqstore
import mqstore.jobs.export
import mqstore.jobs.rebuild
import mqstore.pipeline.tail.sinks
from mqstore.errors import MqstoreError
from mqstore.pipeline.spark.failures import failures
from mqstore.pipeline.spark.session import session, stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Hold = dict[str, Any]


def gate(hold: Hold, number: int) -> None:
    """Wait, fail or die in a task, as requested for the first attempt that arrives."""
    import json
    import os
    import time
    from pathlib import Path

    place = Path(hold["place"])
    (place / f"attempt-{number}-{os.getpid()}-{time.monotonic_ns()}").touch()
    if number < hold["number"]:
        return
    draft = place / f"draft-{os.getpid()}-{number}"
    executor, name = os.getpid(), ""
    while not name.endswith("(java"):
        name, _, fields = Path(f"/proc/{executor}/stat").read_text().rpartition(")")
        if not name.endswith("(java"):
            executor = int(fields.split()[1])
        if executor < 2:
            return  # not in a task: the driver itself reads a split again
    draft.write_text(json.dumps({"number": number, "worker": os.getpid(), "executor": executor}))
    try:
        os.link(draft, place / "held")
    except FileExistsError:
        return
    if hold["then"] == "fail":
        raise OSError("injected: the first attempt fails")
    if hold["then"] == "die":
        os._exit(1)
    while not (place / "go").exists():
        time.sleep(0.02)


def held(function: Callable[[Any], Any], hold: Hold, number_of: Callable[[Any], int]) -> Callable[[Any], Any]:
    """Wrap the function of a task with the gate before or after its work."""
    stop_here = gate  # pickled by value: executors have none of the test modules

    def task(of: Any) -> Any:
        if not hold["done"]:
            stop_here(hold, number_of(of))
        result = function(of)
        if hold["done"]:
            stop_here(hold, number_of(of))
        return result

    return task


@contextlib.contextmanager
def holding(module: Any, name: str, hold: Hold | None, number_of: Callable[[Any], int]) -> Iterator[None]:
    function = getattr(module, name)
    if hold is not None:
        setattr(module, name, held(function, hold, number_of))
    try:
        yield
    finally:
        setattr(module, name, function)


def rebuild(spark: SparkSession, *, store: str, to: str, hold: Hold | None = None, splits: int = 40) -> Any:
    with holding(mqstore.jobs.rebuild, "scan_split", hold, lambda task: task.split.number):
        return mqstore.jobs.rebuild.rebuild(store, to, spark=spark, splits=splits).as_dict()


def export(spark: SparkSession, *, store: str, to: str, hold: Hold | None = None, splits: int = 40, **more: Any) -> Any:
    with holding(mqstore.jobs.export, "export_split", hold, lambda task: task.read.split.number):
        return mqstore.jobs.export.export(store, to, spark=spark, splits=splits, **more).as_dict()


def copy(spark: SparkSession, *, store: str, to: str, columns: list[str]) -> Any:
    """Write columns of all messages as a Parquet table; return its rows in order."""
    from mqstore import pipeline

    pipeline.read(spark, store, columns=columns).write.parquet(to)
    return sorted(list(row) for row in spark.read.parquet(to).collect())


def scan(spark: SparkSession, *, store: str, **options: str) -> Any:
    """Return how many partitions a read with these options has, and the physical offsets of its rows."""
    from mqstore import pipeline

    frame = pipeline.read(spark, store, columns=["physical_offset"], **options)
    return frame.rdd.getNumPartitions(), sorted(row[0] for row in frame.collect())


def stream(spark: SparkSession, *, store: str, to: str, checkpoint: str) -> Any:
    """Append what is new in a store to a Parquet table; return the physical offsets of all its rows."""
    from mqstore.pipeline.source.rocketmq import register

    register(spark)
    frame = spark.readStream.format("rocketmq").option("startingOffsets", "earliest").load(store).select("physical_offset", "topic")
    writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    drained(writer, to)
    return sorted(row[0] for row in spark.read.parquet(to).select("physical_offset").collect())


def follow(spark: SparkSession, *, store: str, to: str, hold: Hold | None = None, batch_bytes: int = 100_000, **more: Any) -> Any:
    from mqstore.pipeline.tail.follow import follow as run

    with holding(mqstore.pipeline.tail.sinks, "export_range", hold, lambda task: task.part.piece.start):
        return run(store, to, spark=spark, once=True, batch_bytes=batch_bytes, **more).as_dict()


def sink(spark: SparkSession, *, to: str, rows: int, partitions: int, run: str, hold: Hold | None = None) -> Any:
    """Write rows `body 0` … in order, as messages of a new store."""
    from mqstore.pipeline.source.rocketmq import register

    register(spark)
    stop_here = gate

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        if hold is not None and not hold["done"]:
            stop_here(hold, number)
        yield from batches
        if hold is not None and hold["done"]:
            stop_here(hold, number)

    frame = spark.range(0, rows, 1, partitions).selectExpr(
        "if(id % 2 = 0, 'orders', 'bills') topic", "cast(id % 3 as int) queue_id", "cast(concat('body ', id) as binary) body"
    )
    frame.mapInArrow(pass_on, frame.schema).write.format("rocketmq").mode("append").options(create="true", runId=run).save(to)
    return {"rows": rows}


def read(spark: SparkSession, *, store: str, hold: Hold | None = None, **options: str) -> Any:
    """Return the physical offsets of all messages; each task that reads passes the gate with its partition's number."""
    from mqstore.pipeline.source.rocketmq import register

    register(spark)
    stop_here = gate

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if hold is not None:
            stop_here(hold, context.partitionId())
        yield from batches

    frame = spark.read.format("rocketmq").options(**options).schema("physical_offset long").load(store)
    return sorted(row[0] for row in frame.mapInArrow(pass_on, frame.schema).collect())


def where(spark: SparkSession) -> Any:
    """Return where executors import the package and its kernels from."""
    from mqstore.pipeline.spark.runner import run_tasks

    def look(_: int) -> dict[str, Any]:
        import mqstore
        from mqstore.kernels.rocketmq import frames

        return {"file": mqstore.__file__, "kernel": frames.__file__, "directory": os.getcwd()}

    return run_tasks(spark, range(4), look)


JOBS: dict[str, Callable[..., Any]] = {each.__name__: each for each in (rebuild, export, copy, scan, stream, follow, sink, read, where)}


def main() -> None:
    spark = session(sys.argv[1], config=json.loads(sys.argv[2]))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            with failures():
                answer = {"report": JOBS[asked.pop("job")](spark, **asked)}
        except MqstoreError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer, default=str), flush=True)
    stop()


if __name__ == "__main__":
    main()
