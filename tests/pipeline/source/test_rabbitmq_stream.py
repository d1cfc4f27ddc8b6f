"""Streams as a stream of Spark: every message once and in order, whatever the node does to its files, and what is lost is counted."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support import streams
from support.queries import drained
from support.spark_api import needs_streams

from mqstore import pipeline
from mqstore.errors import PipelineError, UsageError
from mqstore.pipeline.source.rabbitmq_stream import RabbitMQStreamReader
from mqstore.rabbitmq.store.task_groups import open_cached

pytestmark = needs_streams

CASE = "4.3.6-killed"
WHOLE = streams.directories(CASE)["s.small"]
EXPECTED = [row["offset"] for row in streams.delivered(CASE, "stream")["s.small"]]
COLUMNS = ("stream_offset", "verdict")


class Node:
    """A node's directory with the stream `s.small`, of which the segments come one by one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / "stream" / WHOLE.name
        self.directory.mkdir(parents=True)
        self.segments = [path for _, path in streams.segments(WHOLE)]

    def grow(self, segments: int = 1) -> None:
        for path in self.segments[:segments]:
            shutil.copy(path, self.directory)
            shutil.copy(path.with_suffix(".index"), self.directory)
        del self.segments[:segments]

    def retire(self, segments: int = 1) -> int:
        """Remove the oldest segments; return the offset at which the stream begins then."""
        for path in sorted(self.directory.glob("*.segment"))[:segments]:
            path.unlink()
            path.with_suffix(".index").unlink()
        return min(int(path.stem) for path in self.directory.glob("*.segment"))

    def reader(self, **options: str) -> RabbitMQStreamReader:
        return RabbitMQStreamReader({"path": str(self.root), "startingOffsets": "earliest", **options}, COLUMNS)


def next_batch(reader: RabbitMQStreamReader, start: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Return the offsets of the next batch, and its end."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return read(reader, start, end), end


def read(reader: RabbitMQStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    found = [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]
    assert {row["verdict"] for row in found} <= {"intact"}
    return [row["stream_offset"] for row in found]


def position(offset: dict[str, Any]) -> dict[str, int]:
    ((streams_of_path),) = offset.values()
    found: dict[str, int] = streams_of_path[WHOLE.name]
    return found


def test_every_message_comes_once_while_segments_come_and_go(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.grow()
    reader = node.reader(maxRowsPerTrigger="50")
    at, found = reader.initialOffset(), list[int]()
    for _ in range(30):
        batch, at = next_batch(reader, at)
        found += batch
        if not batch and node.segments:
            node.grow()
            node.retire()
            reader = node.reader(maxRowsPerTrigger="50")  # a query that is started again goes on with the offset
    assert found == EXPECTED
    assert next_batch(reader, at) == ([], at)


def test_a_chunk_that_is_being_written_waits_until_it_is_whole(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.grow()
    (path,) = node.directory.glob("*.segment")
    raw = path.read_bytes()
    reader = node.reader()
    for kept in (raw[:-1000], raw[:-900] + bytes(900)):
        path.write_bytes(kept)
        batch, end = next_batch(reader, reader.initialOffset())
        assert batch == EXPECTED[: len(batch)]
        assert 40 < len(batch) < 70
    path.write_bytes(raw)
    rest, _ = next_batch(reader, end)
    assert batch + rest == [offset for offset in EXPECTED if offset < 70]


def test_what_retention_removes_unread_is_an_error_or_is_counted(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.grow(2)
    start = node.reader().initialOffset()
    assert position(start) == {"off": 0}
    end = node.reader().latestOffset(start, node.reader().getDefaultReadLimit())
    first = node.retire()
    for refused in (lambda: next_batch(node.reader(), start), lambda: node.reader().partitions(start, end)):
        with pytest.raises(PipelineError, match=f"retention has removed offsets 0 to {first - 1} of .* unread; failOnDataLoss=false"):
            refused()
    tolerant = node.reader(failOnDataLoss="false")
    batch, after = next_batch(tolerant, start)
    assert batch == [offset for offset in EXPECTED if first <= offset < 139]
    assert position(after) == {"off": 139, "lost": first}
    # a batch that was planned before the loss: the next offset counts it
    assert read(tolerant, start, end) == batch
    assert next_batch(tolerant, end) == ([], after)
    (part,) = tolerant.partitions(start, after)
    node.grow()
    node.retire()
    open_cached.cache_clear()  # another process: this one has read the segment, and keeps a small one
    with pytest.raises(PipelineError, match="was removed before it was read"):
        list(tolerant.read(part))


def test_an_older_directory_and_bad_options_are_one_sentence(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.grow()
    ahead = {str(tmp_path): {WHOLE.name: {"off": 200}}}
    with pytest.raises(PipelineError, match="ends at offset 70, and this query has read up to 200"):
        next_batch(node.reader(), ahead)
    with pytest.raises(UsageError, match=r"startingOffsets is 900, and .* ends at offset 70"):
        node.reader(startingOffsets="900").initialOffset()
    for options in ({"queueType": "quorum"}, {"startingOffsets": "first"}, {"toOffset": "3"}):
        with pytest.raises(UsageError):
            node.reader(**options)


@pytest.mark.spark
def test_a_query_reads_the_streams_of_a_node_and_goes_on_after_a_restart(spark: Any, tmp_path: Path) -> None:
    pipeline.register(spark)
    node = Node(tmp_path / "node")
    for segments in (2, 3):
        node.grow(segments)
        live = spark.readStream.format("rabbitmq").option("startingOffsets", "earliest").option("columns", "queue,stream_offset")
        written = live.load(str(node.root)).writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        drained(written, str(tmp_path / "out"))
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.stream_offset for row in rows) == EXPECTED
    assert {row.queue for row in rows} == {WHOLE.name}
