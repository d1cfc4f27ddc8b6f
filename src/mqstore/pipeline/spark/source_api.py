"""Spark's interface to data sources in Python, as far as the installed pyspark has it. Other modules import its names from here.

    pyspark           3.5    4.0    4.1    4.2
    tables, sink      –      yes    yes    yes      without: importing this module raises UnsupportedError
    FILTERS           –      –      yes    yes      a source receives the conditions of a query
    STREAM_SINK       –      –      yes    yes      a sink receives the rows of a stream as Arrow batches
    STREAMS           –      –      –      yes      a source learns where a batch of a stream begins, and how long it may be

Without pyspark, tables can be read in this process (`mqstore.pipeline.spark.bare_api`). What can be imported decides, never a version
number.
"""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mqstore.errors import UnsupportedError
from mqstore.pipeline.spark.failures import require_pyspark

INSTALLED = find_spec("pyspark") is not None
FILTERS = STREAM_SINK = STREAMS = INSTALLED

if TYPE_CHECKING or INSTALLED:
    try:
        from pyspark.sql.datasource import (
            CaseInsensitiveDict,
            DataSource,
            DataSourceArrowWriter,
            DataSourceReader,
            DataSourceStreamReader,
            DataSourceStreamWriter,
            DataSourceWriter,
            InputPartition,
            WriterCommitMessage,
        )
    except ImportError:
        raise UnsupportedError(
            f"tables of a store in Spark, streams, sinks, follow and append need pyspark 4.0 or later, and this is {version('pyspark')}; "
            "rebuild, export, lookup, verify, usage and convert run on it"
        ) from None
else:
    from mqstore.pipeline.spark.bare_api import (
        CaseInsensitiveDict,
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
        InputPartition,
        WriterCommitMessage,
    )

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceStreamArrowWriter,
        EqualNullSafe,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        LessThan,
        LessThanOrEqual,
    )
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.datasource import (
            EqualNullSafe,
            EqualTo,
            Filter,
            GreaterThan,
            GreaterThanOrEqual,
            In,
            LessThan,
            LessThanOrEqual,
        )
    except ImportError:
        FILTERS = False
        from mqstore.pipeline.spark.bare_api import (
            EqualNullSafe,
            EqualTo,
            Filter,
            GreaterThan,
            GreaterThanOrEqual,
            In,
            LessThan,
            LessThanOrEqual,
        )
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:
        STREAM_SINK = False

        class DataSourceStreamArrowWriter:
            """In the place of a class that this pyspark does not have."""

    try:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
    except ImportError:
        STREAMS = False

        class SupportsTriggerAvailableNow:
            """In the place of a class that this pyspark does not have."""

        ReadLimit = ReadAllAvailable = ReadMaxBytes = ReadMaxRows = None


__all__ = [
    "FILTERS",
    "STREAMS",
    "STREAM_SINK",
    "CaseInsensitiveDict",
    "DataSource",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "DataSourceStreamWriter",
    "DataSourceWriter",
    "EqualNullSafe",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "InputPartition",
    "LessThan",
    "LessThanOrEqual",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "WriterCommitMessage",
    "require_stream_sink",
    "require_streams",
]


def require_streams() -> None:
    """Raise UnsupportedError if this pyspark has no streams that a store can be read as."""
    require_pyspark()
    if not STREAMS:
        raise UnsupportedError(
            f"a stream of a store, and follow, need pyspark 4.2 or later, in which Spark says where a batch begins; this is "
            f"{version('pyspark')}: read the store as a table, or append what it has gained with export --append"
        )


def require_stream_sink() -> None:
    """Raise UnsupportedError if this pyspark cannot pass the rows of a stream to a sink as Arrow batches."""
    if not STREAM_SINK:
        raise UnsupportedError(
            f"writing a stream to a store needs pyspark 4.1 or later, and this is {version('pyspark')}: write each batch in foreachBatch, "
            "with the options runId and batchId"
        )
