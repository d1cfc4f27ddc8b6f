"""Stores that vanish, do not answer or are other ones than before: a source says so in a sentence, in bounded time."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType
from support.golden import case_named, opened
from support.privilege import needs_permissions, without_privilege
from support.spark_api import needs_streams
from support.stores import Store, message

from mqstore.errors import CannotOpenError, MqstoreError, PipelineError, UsageError
from mqstore.pipeline.source.derived import SOURCES, TableSource
from mqstore.pipeline.source.rabbitmq import RabbitMQDataSource
from mqstore.pipeline.source.rocketmq import RocketMQDataSource
from mqstore.pipeline.source.stores import TableFormat
from mqstore.pipeline.source.stream import RocketMQStreamReader


def mail(root: Path, body: bytes = b"x" * 300) -> Path:
    store = Store(root, file_size=4096)
    for number in range(40):
        store.put(message("orders", body, keys=f"k{number}"))
    return store.write()


def reader_of(source: type[TableFormat], path: object, schema: StructType, **options: str) -> Any:
    return source({"path": str(path), **options}).reader(schema)


TOPICS = StructType().add("topic", "string")
FORMATS: list[tuple[type[TableSource], StructType]] = [
    (source, TOPICS if "topic" in source.table else StructType().add("file", "string")) for source in SOURCES
]


@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}, {"keys": "k3"}], ids=["scan", "tolerant", "keys"])
def test_a_store_deleted_after_planning_is_an_error_that_names_it(options: dict[str, str], tmp_path: Path) -> None:
    reader = reader_of(RocketMQDataSource, mail(tmp_path / "store"), TOPICS, **options)
    parts = reader.partitions()
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(CannotOpenError, match=f"{tmp_path}/store does not exist"):
        [batch for part in parts for batch in reader.read(part)]


@pytest.mark.parametrize(("source", "schema"), FORMATS, ids=[source.format for source in SOURCES])
def test_a_store_whose_derived_files_are_read_may_vanish_too(source: type[TableSource], schema: StructType, tmp_path: Path) -> None:
    reader = reader_of(source, mail(tmp_path / "store"), schema)
    parts = reader.partitions()
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(CannotOpenError, match=f"{tmp_path}/store does not exist"):
        [batch for part in parts for batch in reader.read(part)]


@needs_permissions
@pytest.mark.parametrize("what", ["commitlog", f"commitlog/{0:020d}"], ids=["directory", "file"])
@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}], ids=["scan", "tolerant"])
def test_a_task_that_may_not_read_the_log_says_so(what: str, options: dict[str, str], tmp_path: Path) -> None:
    path = mail(tmp_path / "store")
    reader = reader_of(RocketMQDataSource, path, TOPICS, **options)
    parts = reader.partitions()
    (path / what).chmod(0)
    try:
        with without_privilege(), pytest.raises(MqstoreError, match=f"{path}/commitlog.*ermission denied") as caught:
            [batch for part in parts for batch in reader.read(part)]
    finally:
        (path / what).chmod(0o755)
    assert "\n" not in str(caught.value)


@needs_streams
@needs_permissions
@pytest.mark.parametrize("tolerate", ["true", "false"])
def test_a_stream_that_may_not_read_the_log_does_not_call_it_lost(tolerate: str, tmp_path: Path) -> None:
    from mqstore.pipeline.spark.source_api import ReadAllAvailable

    path = mail(tmp_path / "store")
    live = RocketMQStreamReader({"path": str(path), "startingOffsets": "earliest", "failOnDataLoss": tolerate}, ("topic",))
    start = live.initialOffset()
    parts = live.partitions(start, live.latestOffset(start, ReadAllAvailable()))
    first = path / "commitlog" / f"{0:020d}"
    first.chmod(0)
    try:
        with without_privilege(), pytest.raises(MqstoreError, match=f"{first}.*ermission denied"):
            [batch for part in parts for batch in live.read(part)]
    finally:
        first.chmod(0o644)


def test_a_rabbitmq_store_deleted_after_planning_is_an_error(tmp_path: Path) -> None:
    shutil.copytree(opened(case_named("3.10.8/f-mixed-features")), tmp_path / "store")
    reader = reader_of(RabbitMQDataSource, tmp_path / "store", StructType().add("queue", "string"))
    parts = reader.partitions()
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(MqstoreError, match=f"{tmp_path}/store"):
        [batch for part in parts for batch in reader.read(part)]


@pytest.mark.long
def test_a_server_that_never_answers_is_an_error_within_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {
            "path": "s3://backups/store",
            "fs.endpoint_url": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "fs.key": "a-key",
            "fs.secret": "a-secret",
            "fs.timeout": "1",
        }
        with pytest.raises(MqstoreError, match="s3://backups/store") as caught:
            RocketMQDataSource(options).reader(TOPICS).partitions()
    assert "a-secret" not in str(caught.value)


@needs_streams
def test_a_checkpoint_of_another_store_is_refused(tmp_path: Path) -> None:
    from mqstore.pipeline.spark.source_api import ReadAllAvailable

    def follow(path: Path) -> RocketMQStreamReader:
        return RocketMQStreamReader({"path": str(path), "startingOffsets": "earliest"}, ("topic",))

    one, other = mail(tmp_path / "one"), mail(tmp_path / "other", b"y" * 300)
    first = follow(one)
    checkpoint = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    with pytest.raises(PipelineError, match=f"the log of {other} is not the one that was read .* new checkpointLocation"):
        follow(other).latestOffset(checkpoint, ReadAllAvailable())


@pytest.mark.parametrize("source", [RocketMQDataSource, RabbitMQDataSource, *SOURCES], ids=lambda source: source.name())
def test_a_schema_with_an_unknown_column_is_refused_with_the_columns_there_are(source: type[TableFormat], tmp_path: Path) -> None:
    path = opened(case_named("3.10.8/f-mixed-features")) if source is RabbitMQDataSource else mail(tmp_path / "store")
    with pytest.raises(UsageError, match=r"there is no column 'colour'.*columns"):
        reader_of(source, path, StructType().add("colour", "string"))
