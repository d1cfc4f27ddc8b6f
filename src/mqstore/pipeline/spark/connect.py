"""Sessions of Spark Connect: a client of a server that runs elsewhere, without Spark's Java and its context in this process.

    spark = connected("sc://spark:15002")
    run_on_connect(spark, tasks, function)          # what `tasks.run_tasks` does on any other session

Such a session offers DataFrames only. So the tasks are the partitions of a data source (`task_source.py`), and their results its
rows: one job, nothing shuffled. The package must be installed where the server runs its Python, in the same version as here.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import os
import pickle
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from mqstore.errors import PipelineError, UsageError
from mqstore.pipeline.spark.failures import failures
from mqstore.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

SCHEME = "sc://"
PORT = 15002
ANSWER_SECONDS = 10.0
CANCEL_SECONDS = 15.0
TRIES = 7  # calls to a server that does not answer: some 70 seconds; by default pyspark tries for ten minutes
_MODULE = "pyspark.sql.connect.session"
_MODE = "SPARK_CONNECT_MODE_ENABLED"  # set by pyspark; with it, this process and its children have no other kind of session
_NEEDED = ("grpc", "grpc_status", "google.protobuf", "pandas")


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect."""
    return type(spark).__module__ == _MODULE


def active_client() -> SparkSession | None:
    """Return the active session of Spark Connect of this process, or None. Imports nothing."""
    module = sys.modules.get(_MODULE)
    if module is None:
        return None
    session: SparkSession | None = module.SparkSession.getActiveSession() or module.SparkSession._default_session
    return None if session is None or getattr(session, "is_stopped", False) else session


def connected(url: str) -> SparkSession:
    """Return a session on the Spark Connect server at a URL: sc://host:port, with parameters as pyspark takes them.

    Raises PipelineError if a package is missing or no server answers, and UsageError for an invalid URL.
    """
    missing = next((name for name in _NEEDED if not _is_installed(name)), None)
    if missing is not None:
        raise PipelineError(f"Spark Connect needs {missing}, which is not installed: pip install 'mqstore[connect]'")
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.core import DefaultChannelBuilder
    from pyspark.sql.connect.client.retries import DefaultPolicy

    try:
        channel = DefaultChannelBuilder(url)
        host, port = channel.host.strip("[]"), int(channel.endpoint.rpartition(":")[2])
    except (PySparkException, ValueError) as error:
        raise UsageError(f"{url!r} is not a URL of a Spark Connect server ({error}); give sc://host:{PORT}") from None
    try:
        # pyspark itself would try for ten minutes
        socket.create_connection((host, port), ANSWER_SECONDS).close()
    except OSError as error:
        raise PipelineError(f"no Spark Connect server answers at {host}:{port} ({error}); is it running?") from None
    try:
        with failures(f"connecting to {host}:{port}"):
            session: Any = SparkSession.builder.remote(url).create()
            session.client.set_retry_policies([DefaultPolicy(max_retries=TRIES)])
            session.conf.set("spark.sql.session.timeZone", "UTC")
    except BaseException:
        os.environ.pop(_MODE, None)
        raise
    return session  # type: ignore[no-any-return]


def disconnect(spark: SparkSession) -> None:
    """End a session of Spark Connect, so that this process can have one of another kind."""
    try:
        spark.stop()
    finally:
        os.environ.pop(_MODE, None)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def parallel_tasks(spark: SparkSession) -> int:
    """Return the number of tasks that the server runs at the same time: what it cuts a range without a given number of parts into."""
    from pyspark.sql import functions

    with failures("asking the Spark Connect server for its size"):
        numbers = spark.range(1 << 16).select(functions.spark_partition_id().alias("part"))
        return int(numbers.agg(functions.max("part")).collect()[0][0]) + 1


def run_on_connect(
    spark: SparkSession,
    tasks: Sequence[T],
    function: Callable[[T], R],
    *,
    progress: Callable[[int, int], None] | None = None,
    doing: str = "the Spark job",
) -> list[R]:
    """Do what `run_tasks` does, on a session of Spark Connect. An interrupt cancels the tasks; the server does not report their end."""
    from pyspark import cloudpickle

    from mqstore.pipeline.spark.task_source import FUNCTION, NAME, TASKS, VERSION, TaskSource

    if not tasks:
        return []
    pickled: Callable[[object], bytes] = cloudpickle.dumps
    options = {
        FUNCTION: _text(pickled(function)),
        TASKS: _text(pickle.dumps([pickled(task) for task in tasks])),
        VERSION: __version__,
    }

    def action() -> list[R]:
        spark.dataSource.register(TaskSource)
        rows = spark.read.format(NAME).options(**options).load().collect()
        # an attempt that was repeated counts once
        results = {row["number"]: row["result"] for row in rows}
        return [pickle.loads(results[number]) for number in range(len(tasks))]

    with failures(doing), _progress_reported(spark, len(tasks), progress):
        numbered = _in_thread(spark, action)
    if progress is not None:
        progress(len(tasks), len(tasks))
    return numbered


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _in_thread(spark: SparkSession, action: Callable[[], list[R]]) -> list[R]:
    """Run an action in another thread while the calling thread only waits, so that an interrupt can cancel it."""
    tag = f"mqstore-{uuid.uuid4().hex}"
    outcome: Future[list[R]] = Future()

    def run() -> None:
        try:
            spark.addTag(tag)  # of this thread
            outcome.set_result(action())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name=tag, daemon=True)
    thread.start()
    try:
        return outcome.result()
    except BaseException:
        if thread.is_alive():
            with contextlib.suppress(Exception):
                spark.interruptTag(tag)
            thread.join(CANCEL_SECONDS)
        raise


@contextlib.contextmanager
def _progress_reported(spark: SparkSession, total: int, progress: Callable[[int, int], None] | None) -> Iterator[None]:
    """Report progress from the client's own thread while the block runs."""
    if progress is None:
        yield
        return
    last = -1

    def report(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        nonlocal last
        known = list(stages or ())
        # the session may have other queries
        if sum(stage.num_tasks for stage in known) == total:
            finished = min(total, sum(stage.num_completed_tasks for stage in known))
            if finished > last:
                last = finished
                progress(finished, total)

    client: Any = spark
    client.registerProgressHandler(report)
    try:
        yield
    finally:
        client.removeProgressHandler(report)
