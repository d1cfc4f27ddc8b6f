"""`format("rabbitmq")` reads streams: segments are shared by tasks, and offsets narrow what is opened."""

from __future__ import annotations

from typing import Any

import pytest
from support import streams

from mqstore import pipeline

CASE = "4.3.6-killed"
pytestmark = pytest.mark.spark


def test_spark_reads_streams_by_segments_and_offsets(spark: Any) -> None:
    pipeline.register(spark)
    reader = spark.read.format("rabbitmq").option("queueType", "stream").option("queue", "s.small").option("splits", "4")
    whole = reader.option("columns", "queue,pos,stream_offset,verdict").load(str(streams.node(CASE)))
    assert whole.rdd.getNumPartitions() > 1
    expected = [row["offset"] for row in streams.delivered(CASE, "stream")["s.small"]]
    rows = sorted(whole.collect(), key=lambda row: row.stream_offset)
    assert [(row.pos, row.stream_offset) for row in rows] == list(enumerate(expected))
    some = reader.option("fromOffset", "139").option("toOffset", "200").load(str(streams.node(CASE)))
    assert sorted(row.stream_offset for row in some.collect()) == [offset for offset in expected if 139 <= offset < 200]
