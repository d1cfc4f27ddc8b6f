"""The rows of a read do not depend on the settings of Spark, on the number of log files, or on when a query stops reading."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.stores import Store, message

import mqstore
from mqstore import pipeline
from mqstore.errors import UsageError
from mqstore.pipeline.source.options import ReadOptions, count_option
from mqstore.pipeline.source.rocketmq import RocketMQDataSource, RocketMQReader, read

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

pytestmark = pytest.mark.spark_in_all

ROWS = 400


@pytest.fixture(scope="module")
def mail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 25 log files."""
    store = Store(tmp_path_factory.mktemp("settings"), file_size=4096)
    for number in range(ROWS):
        store.put(message(("orders", "bills")[number % 2], b"x" * (number % 90), keys=f"k{number}", tags=f"T{number % 3}"))
    return store.write()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.adaptive.enabled", "false"),
        ("spark.sql.adaptive.enabled", "true"),
        ("spark.sql.execution.arrow.maxRecordsPerBatch", "1"),
        ("spark.sql.execution.arrow.maxRecordsPerBatch", "7"),
        ("spark.sql.codegen.wholeStage", "false"),
        ("spark.sql.ansi.enabled", "false"),
        ("spark.sql.shuffle.partitions", "1"),
    ],
)
def test_rows_do_not_depend_on_a_setting(name: str, value: str, mail: Path, tmp_path: Path, spark: SparkSession) -> None:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        frame = read(spark, mail, minPartitions=5)
        found = {row["physical_offset"]: bytes(row["body"]) for row in frame.collect()}
        query = """
            select a.topic, count(*) from messages a join messages b using (physical_offset) where a.tags = 'T1' group by 1 order by 1
        """
        counts = [tuple(row) for row in pipeline.sql(spark, query, mail).collect()]
        frame.coalesce(1).write.format("rocketmq").mode("append").option("create", "true").save(str(tmp_path / "copy"))
    finally:
        spark.conf.set(name, str(before))
    table = mqstore.open(mail).to_arrow(["physical_offset", "body"]).to_pylist()
    assert found == {row["physical_offset"]: row["body"] for row in table}
    assert counts == [("bills", 67), ("orders", 66)]
    assert sorted(mqstore.open(tmp_path / "copy").to_arrow(["body"])["body"].to_pylist()) == sorted(found.values())


def test_a_log_of_1000_files_is_read_whole_in_few_tasks(tmp_path: Path, spark: SparkSession) -> None:
    store = Store(tmp_path / "store", file_size=512)
    for number in range(1000):
        store.put(message("orders", b"x" * 200, keys=f"k{number}"))
    path = store.write()
    assert len([*(path / "commitlog").iterdir()]) == 1000
    frame = read(spark, path, ["physical_offset"])
    assert sorted(row[0] for row in frame.collect()) == [put.offset for put in store.puts]
    assert pipeline.explain_read(frame).stores[0].partitions <= 16
    assert read(spark, path, ["physical_offset"], where=f"physical_offset >= {512 * 990}").count() == 10


def test_a_limit_reads_only_the_beginning(mail: Path, tmp_path: Path, spark: SparkSession) -> None:
    marks = str(tmp_path)

    class Counted(RocketMQDataSource):
        @classmethod
        def name(cls) -> str:
            return "rocketmq-counted"

        def reader(self, schema: StructType) -> RocketMQReader:
            from pathlib import Path

            made = RocketMQReader(ReadOptions.of(self.options), tuple(schema.names))
            whole = made.read

            def counted(partition: Any) -> Iterator[pa.RecordBatch]:
                (Path(marks) / str(partition.task.split.start)).touch()
                yield from whole(partition)

            made.read = counted  # type: ignore[method-assign]
            return made

    spark.dataSource.register(Counted)
    frame = spark.read.format("rocketmq-counted").option("minPartitions", 20).schema("physical_offset bigint, body binary").load(str(mail))
    assert len(frame.limit(5).collect()) == len(frame.take(5)) == 5
    assert len([*tmp_path.iterdir()]) == 1
    assert frame.count() == ROWS
    assert len([*tmp_path.iterdir()]) >= 20


LIMITED = """
import resource, sys
from mqstore.errors import MqstoreError
from mqstore.pipeline.source.options import ReadOptions
from mqstore.pipeline.source.rocketmq import RocketMQReader
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    reader = RocketMQReader(ReadOptions.of({"path": sys.argv[1]}), ("physical_offset",))
    print(sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)))
except MqstoreError as error:
    print(error)
"""


def test_an_option_that_is_a_number_is_checked() -> None:
    assert [count_option(given, "minPartitions", 2) for given in ({}, {"minPartitions": "2"})] == [None, 2]
    for text in ("1", "-3", "x", "", "\u0663"):
        with pytest.raises(UsageError, match=f"option minPartitions is '{text}': give a number of 2 or more"):
            count_option({"minPartitions": text}, "minPartitions", 2)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_with_less_room_than_a_log_file_names_the_setting(tmp_path: Path) -> None:
    """As with spark.executor.pyspark.memory, which limits the addresses of a worker."""
    store = Store(tmp_path / "store", file_size=1 << 20)
    for number in range(30):
        store.put(message("orders", keys=f"k{number}"))
    path = store.write()
    log = path / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.truncate(1 << 30)
    for room, wanted in ((3 << 30, "30"), (600 << 20, f"{log} cannot be read: files are mapped as a whole")):
        done = subprocess.run([sys.executable, "-c", LIMITED, str(path), str(room)], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(wanted)
        assert len(done.stdout.splitlines()) == 1
    assert "spark.executor.pyspark.memory" in done.stdout
