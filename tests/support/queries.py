"""Streams of Spark that end by themselves.

Spark starts a Python process for each stream that a source in Python plans, and gives it 10 seconds to connect (`PythonWorkerFactory`;
there is no setting). That process imports pyspark, numpy and pyarrow before it connects, and nothing of this package: 0.35 s of CPU, which
a busy machine does not always give it in that time.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from mqstore.pipeline.spark.failures import error_sentence, is_late_worker
from mqstore.pipeline.tail.follow import RESTARTS

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def drained(writing: DataStreamWriter, path: str | None = None) -> StreamingQuery:
    """Run a stream until it has written all there is, and return its query. It is started again if Spark did not wait, as in follow."""
    writing = writing.trigger(availableNow=True)
    for left in reversed(range(RESTARTS + 1)):
        query = writing.start(path)
        try:
            query.awaitTermination()
            break
        except Exception as error:
            if not left or not is_late_worker(error):
                raise
            warnings.warn(f"the stream is started again: {error_sentence(error)}", stacklevel=2)
    return query
