"""Follow a growing log batch by batch until stopped; every message once, even if a process dies in between.

    OUT as parquet                                  OUT as a store
      batch=0000000000/part-00000.parquet             commitlog/, consumequeue/, index/, …: what a broker would have
      batch=0000000000/_manifest.json                 the same physical offsets as in the followed store
      _mqstore_follow/follow.json, checkpoint/        _mqstore_follow/follow.json, checkpoint/

Structured Streaming records the log range of a batch before the batch runs, so a repeated batch has the same range. As Parquet, tasks
read the range and write files into a staged directory, which appears under the batch's number with one rename, its manifest inside: a
batch that exists is not written again. As a store, the range is appended to a log with the same physical offsets, whose end shows what
it already contains (`rocketmq/engine/log_copy.py`). As an Iceberg or Delta table, a batch of Parquet files is added by one commit that
records its number (`tables.py`). No body passes through the JVM.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.errors import MqstoreError, PipelineError, UnsupportedError, UsageError
from mqstore.files.location import as_location, local_store, local_target
from mqstore.findings import Damage
from mqstore.jobs.lakehouse import TABLE_FORMATS, check_table_format
from mqstore.pipeline.source.stores import open_for_tasks
from mqstore.pipeline.source.stream import LogRange, LogRanges
from mqstore.pipeline.spark.connect import SCHEME, is_connect
from mqstore.pipeline.spark.failures import error_sentence, failures, is_late_worker
from mqstore.pipeline.spark.java import find_java
from mqstore.pipeline.spark.session import running
from mqstore.pipeline.spark.source_api import require_streams
from mqstore.pipeline.tail.sinks import FollowOutput, FollowSink, ParquetSink, StoreSink, TableSink, open_table
from mqstore.rocketmq.engine.log_copy import LogCopy
from mqstore.rocketmq.scan.log_tail import Piece
from mqstore.rocketmq.store.split_reader import LINEAGE
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.table.columns import ROCKETMQ_COLUMNS, check_columns, rocketmq_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMS = ("parquet", "store", *TABLE_FORMATS)
BATCH_BYTES = 256 << 20
MAX_DAMAGE = 1000
POLL = 0.1
RESTARTS = 5  # of a query whose Python worker started too late, without a batch in between


@dataclass(frozen=True, slots=True)
class FollowedBatch:
    """One batch. start, stop: physical offsets. repeated: an earlier run had already written it. seconds: of the work."""

    number: int
    start: int
    stop: int
    messages: int
    seconds: float
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class FollowReport:
    """Outcome of `follow`. end: physical offset up to which OUT has the log, -1 if there was nothing. stopped: end, interrupt or asked.

    batches, messages, log_bytes: of this run. damage: skipped damage, the first 1,000 items.
    """

    store: str
    to: str
    form: str
    batches: int
    messages: int
    log_bytes: int
    end: int
    stopped: str
    seconds: float
    damage: tuple[Damage, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything that was followed is intact."""
        return not self.damage

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `follow -o json` prints."""
        return {
            "store": self.store,
            "to": self.to,
            "as": self.form,
            "ok": self.ok,
            "batches": self.batches,
            "messages": self.messages,
            "log_bytes": self.log_bytes,
            "end": self.end,
            "stopped": self.stopped,
            "seconds": round(self.seconds, 3),
            "damage": [item.as_dict() for item in self.damage],
            "notes": list(self.notes),
        }


def follow(
    store_path: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    form: str = "parquet",
    columns: Sequence[str] | None = None,
    once: bool = False,
    interval: float = 1.0,
    batch_bytes: int = BATCH_BYTES,
    compact_every: int = 0,
    fail_on_data_loss: bool = True,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    config: str | os.PathLike[str] | None = None,
    on_batch: Callable[[FollowedBatch], None] | None = None,
    stop: threading.Event | None = None,
) -> FollowReport:
    """Bring `to` up to date with the log of a store, and keep it so until `stop` is set or an interrupt arrives.

    to: new, empty, or the target of an earlier follow of the same kind, which is continued. form: parquet, store, iceberg or delta.
    columns: of the message table; not for a store. once: end when everything present at the start has been written. interval: seconds
    between batches. batch_bytes: maximum bytes of log in one batch. compact_every: of a Delta table: rewrite
    small files as large ones each time that this many batches have been added. on_batch: called for each batch, from another thread. Raises
    TargetError, UsageError, PipelineError; what was followed before stays.
    """
    if master.startswith(SCHEME) or (spark is not None and is_connect(spark)):
        raise UnsupportedError(
            "follow writes its batches in the process that runs it, which Spark Connect does not allow: give another master, "
            "or write the stream of spark.readStream"
        )
    require_streams()
    if form not in FORMS:
        raise UsageError(f"OUT cannot be kept as {form!r}; choose {' or '.join(FORMS)}")
    if columns is not None and form == "store":
        raise UsageError("a store always holds complete messages; columns apply to Parquet and tables only")
    if form in TABLE_FORMATS:
        check_table_format(form, Path(os.path.abspath(to)), option="--as")
    if compact_every < 0 or (compact_every and form != "delta"):
        raise UsageError("only a Delta table can be compacted here; Spark's rewrite_data_files compacts an Iceberg table")
    if interval < 0 or batch_bytes < 1:
        raise UsageError("the interval must be at least 0 seconds, and a batch at least 1 byte of log")
    chosen = check_columns(dict.fromkeys((*(ROCKETMQ_COLUMNS if columns is None else columns), *LINEAGE)))
    local_store(as_location(store_path), "follow")
    local_target(to)
    store = open_for_tasks(os.path.abspath(store_path), None if config is None else os.fspath(config))
    store.require_commit_log("following a log")
    if spark is None:
        find_java()  # before anything is written
    asked = threading.Event() if stop is None else stop
    with FollowOutput(store, Path(os.path.abspath(to)), form, chosen) as target, contextlib.ExitStack() as open_:
        copy = open_.enter_context(LogCopy(target.path, target.geometry, store)) if form == "store" else None
        started = open_.enter_context(running(master, spark=spark))
        sink: FollowSink = ParquetSink(started, target, store, chosen) if copy is None else StoreSink(copy, store)
        if isinstance(sink, ParquetSink) and form in TABLE_FORMATS:
            table = open_table(form, target, rocketmq_schema(chosen))
            open_.callback(table.close)
            sink = TableSink(form, target, sink, table, compact_every)
        run = _FollowRun(store, target, form, sink, on_batch)
        options = {"failOnDataLoss": str(fail_on_data_loss).lower(), "maxBytesPerTrigger": str(batch_bytes)}
        if config is not None:
            options["config"] = os.path.abspath(config)
        return run.until(started, options, asked, once=once, interval=interval)


class _FollowRun:
    """One run. Batches are handled in a thread of Spark's; the calling thread waits."""

    def __init__(
        self, store: RocketMQStore, target: FollowOutput, form: str, sink: FollowSink, on_batch: Callable[[FollowedBatch], None] | None
    ) -> None:
        self._store = store
        self._target = target
        self._form = form
        self._sink = sink
        self._on_batch = on_batch
        self._batch = threading.Lock()
        self._stopping = False
        self._error: Exception | None = None
        self._damage: list[Damage] = []
        self._batches = self._messages = self._bytes = 0
        self._end = -1

    def until(self, spark: SparkSession, options: dict[str, str], asked: threading.Event, *, once: bool, interval: float) -> FollowReport:
        begun = time.perf_counter()
        with failures("following"), _interrupts() as interrupted:
            spark.dataSource.register(LogRanges)
            frame = spark.readStream.format(LogRanges.name()).options(**options, startingOffsets="earliest").load(str(self._store.path))
            writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self._target.state / "checkpoint"))
            trigger = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{interval} seconds")
            late = 0
            while True:
                batches = self._batches
                try:
                    self._wait(trigger.start(), asked, interrupted)
                    break
                except Exception as error:
                    late = 1 if self._batches > batches else late + 1
                    if late > RESTARTS or not is_late_worker(error):
                        raise
                    self._error = None  # the checkpoint and the output are as after a kill: the query continues from there
        stopped = "interrupt" if interrupted.is_set() else "asked" if asked.is_set() else "end"
        seconds = time.perf_counter() - begun
        return FollowReport(
            str(self._store.path),
            str(self._target.path),
            self._form,
            self._batches,
            self._messages,
            self._bytes,
            self._end,
            stopped,
            seconds,
            tuple(self._damage[:MAX_DAMAGE]),
            self._sink.notes,
        )

    def _wait(self, query: StreamingQuery, asked: threading.Event, interrupted: threading.Event) -> None:
        """Wait until the query ends or is to be stopped; a batch in progress is completed."""
        over = threading.Event()
        failed: list[Exception] = []

        def watch() -> None:
            try:
                query.awaitTermination()
            except Exception as error:
                failed.append(error)
            finally:
                over.set()

        threading.Thread(target=watch, name="mqstore-follow", daemon=True).start()
        try:
            while not over.wait(POLL) and not asked.is_set() and not interrupted.is_set():
                continue
        finally:
            if not over.is_set():
                self._stopping = True
                with self._batch:  # a batch in progress ends first
                    pass
                with contextlib.suppress(Exception):
                    query.stop()
                over.wait()
                failed.clear()
        if self._error is not None:
            if isinstance(self._error, MqstoreError) or is_late_worker(self._error):
                raise self._error
            raise PipelineError(f"following failed: {error_sentence(self._error)}") from self._error
        if failed:
            raise failed[0]

    def _take(self, frame: DataFrame, number: int) -> None:
        with self._batch:
            if self._stopping:
                raise PipelineError("this follow was stopped")
            try:
                self._take_batch(frame, number)
            except Exception as error:
                self._error = error
                raise

    def _take_batch(self, frame: DataFrame, number: int) -> None:
        begun = time.perf_counter()
        config = self._store.config
        ranges = [
            LogRange(
                str(self._store.path), config, row["token"], Piece(row["start"], row["stop"], tuple(row["files"])), row["tolerate_loss"]
            )
            for row in frame.collect()
        ]
        if not ranges:
            return
        ranges.sort(key=lambda each: each.piece.start)
        taken = self._sink.take(number, ranges)
        start, stop = ranges[0].piece.start, ranges[-1].piece.stop
        self._end = max(self._end, stop)
        if not taken.repeated:
            self._batches += 1
            self._messages += taken.messages
            self._bytes += stop - start
            self._damage.extend(taken.damage)
        if self._on_batch is not None:
            self._on_batch(FollowedBatch(number, start, stop, taken.messages, time.perf_counter() - begun, taken.repeated))


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Set the event on an interrupt or SIGTERM; a second one raises KeyboardInterrupt. Signals reach the main thread only."""
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def on_signal(number: int, frame: Any) -> None:
        if came.is_set():
            raise KeyboardInterrupt
        came.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
