"""`df.write.format("rocketmq")` and `writeStream`: rows of a DataFrame as messages at the end of a store, each once.

    rows.write.format("rocketmq").mode("append").option("runId", "orders-2024-05-01").save("/data/store")
    rows.write.format("rocketmq").mode("append").option("writable", "true").save("/data/store")
    rows.writeStream.format("rocketmq").option("checkpointLocation", place).start("/data/store")

A view over a read of a store can be the target of INSERT INTO: Spark then asks for a writer with the options of the read. A write is
accepted only with an option that no read has: one of those below, except `config`.

Columns have the names of the message table. `topic` is required; the others follow `put` (`rocketmq/append`). Columns that a
store fills in itself (offsets, store time, ids) are ignored. Tasks check their rows and stage them as files (`rocketmq/engine/staging.py`);
when all are staged, the driver appends them to the log, partition by partition (`rocketmq/engine/staged_commit.py`). Retried and
speculative tasks, a killed driver and a replayed micro-batch add nothing twice. The store's lock is taken before the first task begins,
and held until the commit (`rocketmq/engine/lock_keeper.py`).

    option         meaning
    writable       true: rows may be appended to the store. Needed if none of the other options but `config` is given
    runId          a name for the write: a batch already written under it is not written again. A stream takes one from its checkpoint
    batchId        number of the batch in the run, for foreachBatch; lower or equal numbers are not written again
    staging        where tasks stage their rows until the commit; every host must reach it. By default beside the store
    create         true: create the store if there is none
    version        4.9.3 or 5.3.3: whose rules apply; by default the version that the store's files suggest
    config         file with the broker's own name=value lines
    storeHost      ip:port for messages without a store host
    lockTimeout    seconds to wait while another process has the store open; 60, but 5 before the tasks of a batch begin
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from mqstore.errors import CannotOpenError, MqstoreError, TargetError, UsageError
from mqstore.files.location import check_parent, local_target, refuse_address
from mqstore.pipeline.source.options import BATCH, SINK, checked
from mqstore.pipeline.source.stores import boolean
from mqstore.pipeline.spark.runner import freeze_gc_once
from mqstore.pipeline.spark.source_api import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from mqstore.places import open_rocketmq
from mqstore.rocketmq.append.appender import RECORD_MARGIN
from mqstore.rocketmq.config import broker_config
from mqstore.rocketmq.engine.lock_keeper import hold, lent, release
from mqstore.rocketmq.engine.staged_commit import CommittedBatch, Sink, SinkSettings, intent_stage
from mqstore.rocketmq.engine.staging import RowRules, StagedPart, check_run, columns_of, open_stage, remove_stage, stage_of, write_part
from mqstore.rocketmq.format.profile import DEFAULT_VERSION, VERSIONS, version_rules
from mqstore.rocketmq.live.commit_log_writer import END_OF_FILE
from mqstore.rocketmq.live.loader import DEFAULT_LOG_FILE, check_loadable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

PATIENCE = 60  # seconds to wait for the lock at the commit, and before each batch of a stream
PATIENCE_BEFORE = 5  # before the tasks of a batch write: nothing is lost if it fails, and a broker does not stop by itself


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """Where rows go, and what they must satisfy. Small and picklable: it is sent to every task."""

    store: Path
    settings: SinkSettings
    staging: str | None
    stage: Path
    run: str
    batch: int
    named: bool
    rules: RowRules
    patience: float  # seconds to wait for the lock, at the commit
    patience_before: float  # and before tasks begin

    def sink(self) -> Sink:
        return Sink(self.store, self.settings, staging=self.staging, patience=self.patience)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartMessage:
        """Check and stage the rows of a task."""
        freeze_gc_once()
        context = TaskContext.get()
        assert context is not None
        return PartMessage(write_part(iterator, str(self.stage), context.partitionId(), context.taskAttemptId(), self.rules))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """Commit on the driver, when all tasks have ended."""
        parts = [message.part for message in messages if isinstance(message, PartMessage)]
        with lent(self.store, self.stage):
            self.sink().commit(self.run, batch, self.stage, parts, stored=self.rules.stored, named=self.named)

    def begin(self) -> None:
        """Take the lock of the store, if there is one, and create the stage, before tasks begin. Raises TargetError."""
        if self.store.is_dir():
            hold(self.store, self.stage, self.patience_before)
        try:
            open_stage(self.stage)
        except BaseException:
            release(self.store, self.stage)
            raise

    def abort(self) -> None:
        """Clean up on the driver after a task or the commit has failed. A commit that was decided is kept: it will be finished."""
        with contextlib.suppress(MqstoreError):
            if intent_stage(self.store) != self.stage:
                remove_stage(self.stage)
        release(self.store, self.stage)


@dataclass(frozen=True)
class PartMessage(WriterCommitMessage):
    """What a task reports to the driver."""

    part: StagedPart


class RocketMQWriter(DataSourceArrowWriter):
    """Writes a DataFrame once."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.plan.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.plan.commit(messages, self.plan.batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.plan.abort()


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.plan.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.plan.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.plan.abort()


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> RocketMQWriter:
    """Return the writer of a DataFrame. Raises MqstoreError before any task runs."""
    options = checked(options, SINK, "a write to rocketmq")
    run = options.get("runId")
    batch = _whole_number(options, "batchId", 0)
    if run is None and "batchId" in options:
        raise UsageError("option batchId numbers the batches of a run: set the option runId too")
    return RocketMQWriter(_plan(options, schema, overwrite, run or secrets.token_hex(8), batch, PATIENCE_BEFORE, named=run is not None))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> RocketMQStreamWriter:
    """Return the writer of a stream's micro-batches; its run is named by the checkpoint. Raises MqstoreError."""
    options = checked(options, SINK, "a write to rocketmq")
    run = options.get("runId") or _stream_id(options.get("checkpointLocation"))
    return RocketMQStreamWriter(_plan(options, schema, overwrite, run, 0, PATIENCE, named=True))


def finish(store: str | os.PathLike[str], *, patience: float = 60.0) -> CommittedBatch | None:
    """Finish the commit of a job whose driver died, by appending its remaining messages. Return None if nothing was left.

    The next write to the store does the same. Raises MqstoreError.
    """
    opened = open_rocketmq(store)
    return Sink(opened.directory.root, SinkSettings(), patience=patience).finish()


def _stream_id(checkpoint: str | None) -> str:
    """Return the id of a stream, which its checkpoint keeps as long as it continues its batch numbers."""
    if not checkpoint:
        raise UsageError("a stream's batches are identified by its checkpoint: set the option checkpointLocation, or runId")
    path = Path(checkpoint.removeprefix("file://") if checkpoint.startswith("file:///") else checkpoint.removeprefix("file:")) / "metadata"
    try:
        return check_run(str(json.loads(path.read_text(encoding="utf-8"))["id"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"the stream's id cannot be read from {path} ({error}): name the stream with the option runId, "
            "and choose another name whenever it starts with a new checkpoint"
        ) from None


def _plan(options: Mapping[str, str], schema: StructType, overwrite: bool, run: str, batch: int, before: float, *, named: bool) -> SinkPlan:
    if overwrite:
        raise UsageError('messages can only be appended to a store: write with mode("append")')
    path = options.get("path")
    if not path:
        raise UsageError("no store is given: save to a path, the directory that holds commitlog/")
    local_target(path)
    refuse_address(path, "save to the directory of a store; mqstore replay sends messages to a broker")
    _require_permission(options, path)
    root = Path(os.path.abspath(path.removeprefix("file://")))
    broker = broker_config.load_properties(Path(options["config"])) if "config" in options else {}
    settings = SinkSettings(options.get("version"), options.get("storeHost"), broker)
    root, version, file_size = _resolve_store(root, settings, options)
    config = settings.config()
    follows = version_rules(version)
    most = min(config.max_message_size + (0 if follows.limits_record else RECORD_MARGIN), file_size - END_OF_FILE)
    names = schema.names
    rules = RowRules(
        version,
        config.store_host,
        config.max_message_size,
        most,
        follows.has_property_crc and config.enabled_append_prop_crc,
        "physical_offset" in names,
    )
    if rules.stored and "body" not in names:
        raise UsageError("the rows come from a store (they have a physical_offset), but lack the column body: read it too")
    columns_of(_empty_batch(schema), rules)
    staging = options.get("staging")
    patience = _whole_number(options, "lockTimeout", -1)
    plan = SinkPlan(
        root,
        settings,
        staging,
        stage_of(root, run, staging),
        check_run(run),
        batch,
        named,
        rules,
        PATIENCE if patience < 0 else patience,
        before if patience < 0 else patience,
    )
    plan.begin()
    return plan


def _require_permission(options: Mapping[str, str], path: str) -> None:
    """Refuse a write whose options may be those of a read: INSERT INTO a view made by reading comes with them. Raises UsageError."""
    given = {name.lower() for name in options}
    others = {name.lower() for name in SINK} - {name.lower() for name in BATCH} - {"writable"}
    if not boolean(options, "writable", not given.isdisjoint(others)):
        raise UsageError(
            f"{path} is not written to: give the write the option writable=true, or a runId. INSERT INTO a view that was made by reading "
            "the store has only the options of the read; nothing was changed"
        )


def _resolve_store(root: Path, settings: SinkSettings, options: Mapping[str, str]) -> tuple[Path, str, int]:
    """Return (directory of the store, version whose rules apply, bytes of a log file). Raises MqstoreError if it is not writable."""
    config = settings.config()
    if config.version not in (None, *VERSIONS):
        raise UsageError(f"option version is {config.version!r}; the versions are {' and '.join(VERSIONS)}")
    create = options.get("create", "false").lower()
    if create not in ("true", "false"):
        raise UsageError(f"option create is {options['create']!r}; give true or false")
    unused = not os.path.lexists(root) or (root.is_dir() and {entry.name for entry in os.scandir(root)} <= {"lock"})
    if unused:
        if create != "true":
            raise CannotOpenError(f"{root} does not hold a store; the option create=true creates one there")
        check_parent(root)
        return root, config.version or DEFAULT_VERSION, config.commit_log_file_size or DEFAULT_LOG_FILE
    store = open_rocketmq(root, config=options.get("config"))
    if store.path != store.directory.root:
        raise TargetError(f"{root} is an archive, which cannot be changed; unpack it first")
    check_loadable(store.directory.root, config)
    fresh = not store.log.files and not store.consume_queues()
    version = config.version or (DEFAULT_VERSION if fresh else store.version_hint)
    return store.directory.root, version, config.commit_log_file_size or store.log.file_size or DEFAULT_LOG_FILE


def _empty_batch(schema: StructType) -> pa.RecordBatch:
    """Return an empty batch with the columns of a schema: names and types are checked by the code that checks the rows."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    # earlier versions have no such parameter, and UTC in any case
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    arrow: Any = to_arrow_schema(schema, **zone)
    return pa.RecordBatch.from_pylist([], arrow)


def _whole_number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.strip().isdecimal():
        raise UsageError(f"option {name} is {text!r}: give a whole number")
    return int(text)
