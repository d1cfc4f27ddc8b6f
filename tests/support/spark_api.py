"""Marks of tests that need more of Spark's interface to data sources than every pyspark has."""

from __future__ import annotations

import pyspark
import pytest

from mqstore.errors import UnsupportedError

try:
    from mqstore.pipeline.spark.source_api import FILTERS, STREAM_SINK, STREAMS

    TABLES = True
except UnsupportedError:
    TABLES = FILTERS = STREAM_SINK = STREAMS = False

_THIS = f"pyspark {pyspark.__version__}"
needs_tables = pytest.mark.skipif(not TABLES, reason=f"{_THIS} has no data sources in Python")
needs_filters = pytest.mark.skipif(not FILTERS, reason=f"{_THIS} does not pass the conditions of a query to a source in Python")
needs_stream_sink = pytest.mark.skipif(not STREAM_SINK, reason=f"{_THIS} does not pass a stream to a sink as Arrow batches")
needs_streams = pytest.mark.skipif(not STREAMS, reason=f"{_THIS} does not tell a source where a batch of a stream begins")
