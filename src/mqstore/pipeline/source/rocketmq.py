"""`spark.read.format("rocketmq")`: the message table of stores as a DataFrame.

    from mqstore import pipeline
    pipeline.register(spark)
    spark.read.format("rocketmq").option("columns", "topic,size").load("/backup/broker-a/store").groupBy("topic").count()
    pipeline.read(spark, ["/backup/a/store", "/backup/b/store"], columns=["store", "topic", "size"], topic="orders")

`mqstore.pipeline.source.stores` describes the paths. Spark does not report to a source which columns a query needs, so name
them: with `columns`, or with a schema (`.schema("topic string, size int")`). Without either the table has all columns, and
the bodies pass through the JVM.

    option                                     meaning
    columns                                    names, separated by commas; `store` is the store's path
    includeHeaders                             true: adds `properties` to `columns`; false: omits it from the default table
    topic (subscribe), queueId                 one or more, separated by commas
    subscribePattern                           a regular expression that matches the whole topic
    keys                                       messages with one of these keys, separated by blanks (as in KEYS)
    startingOffsets, endingOffsets             physical offsets: from, and up to but not including; or earliest, latest
    startingQueueOffset, endingQueueOffset     queue offsets, likewise
    startingTimestamp, endingTimestamp         store times in milliseconds, likewise
    startingOffsets, endingOffsets             also as Kafka's: queue offsets by topic and queue, {"orders": {"0": 23, "1": -2}};
                                               a queue that is not named is read whole
    startingOffsetsByTimestamp, endingOffsetsByTimestamp    store times in milliseconds by topic and queue
    failOnDataLoss                             true: requested data missing from the log is an error. false: the rest is read
    minPartitions                              minimum number of tasks
    mode                                       PERMISSIVE: damage is skipped, or a row with that verdict. FAILFAST: it fails the job
    useDerivedFiles                            true: queues and index determine what to read, as far as they are proved. false: scan
    fs.NAME                                    how a URL is reached: fs.endpoint_url, fs.key, fs.secret, … (`mqstore.files.remote_fs`)
    config                                     file with the broker's own name=value lines
    view                                       disk (the files as they are); the recovered view is available in commands only

Comparisons of store, topic, queue_id, tags, uniq_key, queue_offset, physical_offset and store_timestamp are applied while
reading if they are given as `pipeline.read(..., where=...)`. Those of a later query are applied only on a Spark that keeps the
filters of queries apart (`mqstore.pipeline.source.pushdown`). A damaged message is a row like others, marked by its
`verdict`. Other options are refused.

`explain_read` returns how a DataFrame will be read: which stores, which partitions, and the reason; and which paths are skipped.

>>> print(pipeline.explain_read(messages.where("topic = 'orders' and queue_id = 1 and queue_offset < 100")))  # doctest: +SKIP
/backup/broker-a/store: queue, 1 partition: 0 bytes of log scanned, 100 records read one by one
    100 records by their entries in the consume queue; nothing is scanned
"""

from __future__ import annotations

import json
import os
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mqstore.errors import CannotOpenError, FileLostError, PipelineError, UnsupportedError, UsageError
from mqstore.files.location import Url, is_url
from mqstore.findings import Damage, Verdict
from mqstore.pipeline.source.options import ReadOptions, message_columns, message_fields, table_columns
from mqstore.pipeline.source.planning import PartGroup, SkippedStore, parts_in, plan_stores, report_skipped
from mqstore.pipeline.source.pushdown import apply_filters, columns_in, filters_of, keeps_filters_apart, values_of
from mqstore.pipeline.source.stores import (
    STORE,
    ReceivesFilters,
    StoreReader,
    TableFormat,
    check_types,
    ddl_schema,
    fails_fast,
    open_for_tasks,
    parse_fs_options,
    require_offsets,
    store_paths,
    warn_of_rows,
    with_store,
)
from mqstore.pipeline.spark.connect import is_connect
from mqstore.pipeline.spark.failures import failures
from mqstore.pipeline.spark.session import CATALOG_CLASS, active_session
from mqstore.pipeline.spark.source_api import (
    CaseInsensitiveDict,
    Filter,
    InputPartition,
    require_stream_sink,
    require_streams,
)
from mqstore.rocketmq.lookup.pruning import MAX_PLANNED_KEYS, FileTask, Offsets, PointTask, prune, read_files, read_points, seen_at
from mqstore.rocketmq.scan.planned_files import files_seen, missing_file, require_seen, token_of
from mqstore.rocketmq.scan.splits import MAX_TASKS, Split, plan
from mqstore.rocketmq.store.log_site import notes_on_rows
from mqstore.rocketmq.store.split_reader import ReadTask, opened_view, overlapping, read_split
from mqstore.table.columns import EXTRA_COLUMNS, ROCKETMQ_COLUMNS, Selection
from mqstore.table.formatting import count
from mqstore.threads import least_tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from mqstore.pipeline.spark.source_api import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter, InputPartition
    from mqstore.rocketmq.format.mapped_file_queue import QueueFile
    from mqstore.rocketmq.lookup.pruning import PrunedScan
    from mqstore.rocketmq.store.store import RocketMQStore

FORMAT = "rocketmq"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
POINTS = 65536  # records that one task reads individually
OFFSETS = 16384  # of them, those whose offsets travel with the task: 64 KiB
RECORD = 1024  # what reading one of them costs, as bytes of a scan


def register(spark: SparkSession) -> None:
    """Register the formats with a session, and let it pass filters to Python sources."""
    spark.conf.set(PUSHDOWN, "true")
    for each in _sources(pushing=keeps_filters_apart(spark)):
        spark.dataSource.register(each)


def _sources(*, pushing: bool = False) -> tuple[type[TableFormat], ...]:
    """Return the formats; pushing: those of messages receive the filters of queries."""
    from mqstore.pipeline.source.derived import SOURCES
    from mqstore.pipeline.source.rabbitmq import PushingRabbitMQDataSource, RabbitMQDataSource

    if pushing:
        return (PushingDataSource, *SOURCES, PushingRabbitMQDataSource)
    return (RocketMQDataSource, *SOURCES, RabbitMQDataSource)


def source_named(name: str) -> type[TableFormat]:
    """Return the format with this name. Raises StopIteration for a format of another package."""
    return next(each for each in _sources() if each.name() == name)


def read(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    columns: Sequence[str] | None = None,
    *,
    where: str | None = None,
    format: str = FORMAT,  # noqa: A002
    **options: Any,
) -> DataFrame:
    """Return a table of the stores at path, one or a list; the formats are registered if necessary. options: see the module.

    where: a condition in SQL on any column of the table, also on one that is not returned. Rows that do not match are excluded and,
    as far as possible, not even read.
    """
    register(spark)
    chosen = {name: _option_text(value) for name, value in options.items() if value is not None}
    for each in (path,) if isinstance(path, str | os.PathLike) else path:
        if isinstance(each, Url):
            chosen.update((f"fs.{name}", value) for name, value in each.options)
    if columns is not None:
        chosen["columns"] = ",".join(columns)
    paths = [os.fspath(path)] if isinstance(path, str | os.PathLike) else [os.fspath(each) for each in path]
    load_path = paths[0] if len(paths) == 1 else paths
    source = next((each for each in _sources() if each.name() == format.lower()), None)
    if source is not None and not is_connect(spark):
        _check_read(source, paths, chosen)
    frame = spark.read.format(format).options(**chosen).load(load_path)
    if where is None:
        return frame
    if source is None:
        return frame.where(where)
    table = {each.name: each for each in source.all_fields(chosen)}
    chosen["filters"] = filters_of(spark, ddl_schema(list(table.values())), where)
    needed = dict.fromkeys((*frame.columns, *columns_in(where, table)))
    schema = ddl_schema([table[name] for name in needed])
    return spark.read.format(format).schema(schema).options(**chosen).load(load_path).where(where).select(*frame.columns)


def _check_read(source: type[TableFormat], paths: Sequence[str], chosen: dict[str, str]) -> None:
    """Refuse what planning would refuse: an option, a column, or a path without a store. Raises MqstoreError.

    Spark plans in another process, and puts the sentence into a hundred lines. The output of that process is not shown in every
    session, so warn of stores that the read will skip, and of rows that are not all or not what a broker returns, and note in the
    options that this was done. Of a read that does not come through here, planning itself warns, in that process.
    """
    options = CaseInsensitiveDict({**chosen, **({"path": paths[0]} if len(paths) == 1 else {"paths": json.dumps(paths)})})
    requested = source(options)
    requested.reader_of([field.name for field in requested.returned_fields()])
    stores = store_paths(options)
    if "reported" in options or any(map(is_url, stores)):
        return
    known: list[str] = []

    def no_parts(path: str) -> Iterator[tuple[LogPart, int]]:
        known.extend(source.check_store(path, options))
        return iter(())

    skipped = plan_stores(stores, no_parts, fail_fast=fails_fast(options)).skipped
    for sentence in sorted(known):
        warnings.warn(sentence, UserWarning, stacklevel=4)
    if len(stores) > 1:
        report_skipped(skipped, len(stores), stacklevel=4)
    chosen["reported"] = str(len(skipped))


def _option_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# the source


@dataclass(frozen=True, slots=True)
class LogPart(InputPartition):
    """One task's part of a store. how: `scan`, `queue` or `index`; why: the reason for this store, in its first part only.

    task: without columns and selection, which the reader has: a list of keys travels once, not with every task.
    """

    path: str
    task: ReadTask | PointTask
    how: str
    why: str

    def as_dict(self) -> dict[str, Any]:
        """Return what `explain_read` sums up."""
        task = self.task
        size = {"bytes": task.split.stop - task.split.start} if isinstance(task, ReadTask) else {"records": _record_count(task)}
        partition = "scan" if type(task) is ReadTask else self.how
        return {"store": self.path, "how": self.how, "why": self.why, "partition": partition, **size}

    def __str__(self) -> str:
        return json.dumps(self.as_dict())


def _record_count(task: PointTask) -> int:
    return len(task.places) if isinstance(task.places, Offsets) else task.places.high - task.places.low


class RocketMQDataSource(TableFormat):
    """The format. Exists in planning processes only; it knows only the paths and settings in its options."""

    reads_with: type[RocketMQReader]

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @classmethod
    def all_fields(cls, options: Mapping[str, str]) -> list[pa.Field]:
        return message_fields((*ROCKETMQ_COLUMNS, *EXTRA_COLUMNS, STORE))

    @classmethod
    def check_store(cls, path: str, options: Mapping[str, str]) -> Sequence[str]:
        store = open_for_tasks(path, options.get("config"), parse_fs_options(options))
        token_of(store.log)
        return tuple(notes_on_rows(store, str(store.path)))

    def returned_fields(self) -> list[pa.Field]:
        return message_fields(table_columns(self.options))

    def fields_of(self, names: Sequence[str]) -> list[pa.Field]:
        return message_fields(message_columns(names))

    def reader_of(self, names: Sequence[str]) -> RocketMQReader:
        return self.reads_with(ReadOptions.of(self.options), message_columns(names), tuple(names))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from mqstore.pipeline.source.stream import RocketMQStreamReader

        require_streams()
        columns = message_columns(schema.names)
        check_types(schema, message_fields(columns))
        return RocketMQStreamReader(self.options, columns, tuple(schema.names))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from mqstore.pipeline.source import sink

        return sink.writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from mqstore.pipeline.source import sink

        require_stream_sink()
        return sink.stream_writer(self.options, schema, overwrite)


class RocketMQReader(StoreReader):
    """Plans the parts of stores and reads them."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...], names: tuple[str, ...] | None = None) -> None:
        super().__init__(options.paths, columns, names, fail_fast=options.fail_fast, reported=options.reported)
        self.options = options
        self.selection = options.selection
        self.read_keys: frozenset[str] | None = None
        self.confine(options.filters)

    def confine(self, filters: Sequence[Filter]) -> None:
        """Narrow the selection by the filters, as far as it can express them."""
        self.selection = apply_filters(self.selection, filters)
        stores = values_of(STORE, filters)
        if stores is not None:
            self.paths = tuple(path for path in self.paths if path in stores)

    def confine_to_keys(self, keys: frozenset[str]) -> None:
        """Read only messages that may have one of these keys. The index is not asked for them: the log alone decides."""
        self.read_keys = keys

    @property
    def _read_selection(self) -> Selection:
        """The selection that is applied to each record."""
        unset = self.read_keys is not None and self.selection.keys is None
        return replace(self.selection, keys=self.read_keys) if unset else self.selection

    def partitions(self) -> Sequence[InputPartition]:
        return self.planned().partitions(self.options.pieces)

    def sized_parts(self, path: str) -> Iterator[tuple[InputPartition, int]]:
        for part in self._parts(path):
            task = part.task
            yield part, task.split.stop - task.split.start if isinstance(task, ReadTask) else RECORD * _record_count(task)

    def _parts(self, path: str) -> Iterator[LogPart]:
        store = open_for_tasks(path, self.options.config, self.options.fs_options)
        self._check_loss(store)
        if self.options.reported is None:
            warn_of_rows(store)
        # a URL without its options: see _completed
        location, token = str(store.path) if isinstance(store.path, Url) else store.place, token_of(store.log)
        splits = overlapping(self._plan(store), self.selection)
        pruned = prune(store, self.selection, most_entries=MAX_PLANNED_KEYS) if self.options.use_derived_files else None
        how, why = ("scan", "the log is scanned: useDerivedFiles is false") if pruned is None else (pruned.how, pruned.why)
        task_of: type[ReadTask] = ReadTask
        if pruned is not None and pruned.unproved:
            task_of, splits = FileTask, overlapping(self._whole_files(pruned.unproved), self.selection)
        elif pruned is not None and pruned.how != "scan":
            splits = splits_in_files(splits, pruned.files)
        strict = self.options.fail_on_data_loss
        for split in splits:
            seen = files_seen(store.log, split.start, split.stop) if strict else None
            yield LogPart(path, task_of(location, store.config, token, split, (), Selection(), seen), how, why)
            why = ""
        for points in () if pruned is None else _point_chunks(pruned):
            seen = seen_at(store, points) if strict else None
            yield LogPart(path, PointTask(location, store.config, token, points, (), Selection(), seen), how, why)
            why = ""

    def _plan(self, store: RocketMQStore) -> Sequence[Split]:
        splits = plan(store.log, tasks=least_tasks(), most=MAX_TASKS // len(self.paths))
        least = -(-self.options.pieces // len(self.paths))
        return splits if len(splits) >= least else plan(store.log, count=least)

    def _whole_files(self, files: Sequence[QueueFile]) -> list[Split]:
        """Return splits of one log file, or of several that follow each other, so that there are not too many."""
        step = -(-len(files) * len(self.paths) // MAX_TASKS)
        parts = [files[k : k + step] for k in range(0, len(files), step)]
        return [Split(number, part[0].start, part[-1].start + part[-1].size) for number, part in enumerate(parts)]

    def _check_loss(self, store: RocketMQStore) -> None:
        asked = self.options.selection.from_offset
        if self.options.fail_on_data_loss and asked is not None and store.log.files and asked < store.log.start and asked >= 0:
            raise PipelineError(
                f"{store.path}: physical offsets {asked} to {store.log.start - 1} were requested, but are no longer in the log; "
                "failOnDataLoss=false reads the rest"
            )
        if self.options.fail_on_data_loss:
            require_offsets(store, self.options.selection.by_queue)

    def _check_files(self, part: LogPart) -> None:
        """Raise PipelineError for a missing log file, a gap that no scan would notice, and CannotOpenError for a missing store."""
        task = part.task
        log = opened_view(task.store, task.config, task.token).log
        try:
            require_seen(log, task.seen)
        except FileLostError as error:
            gone = None if task.seen is None else missing_file(log, task.seen)
            what = str(error) if gone is None else f"{part.path}/{gone} was removed after the read was planned"
            raise PipelineError(f"{what}; failOnDataLoss=false reads the rest") from None

    def _completed(self, task: ReadTask | PointTask) -> ReadTask | PointTask:
        """Return the task with what all tasks share, and the options that reach its store, which may be credentials."""
        columns = self.own_columns("physical_offset")
        if self.options.fail_fast:
            columns = tuple(dict.fromkeys((*columns, "verdict", "physical_offset")))
        task = replace(task, columns=columns, selection=self._read_selection)
        return replace(task, store=Url(task.store, self.options.fs_options)) if isinstance(task.store, str) and is_url(task.store) else task

    def read_part(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(part, LogPart):
            return iter(())  # the partition that Spark makes up when a plan has none
        try:
            return self._batches(replace(part, task=self._completed(part.task)))
        except CannotOpenError as error:
            if len(self.paths) == 1:
                raise
            if self.options.fail_on_data_loss:
                raise PipelineError(
                    f"{error}; it was there when the read was planned: failOnDataLoss=false reads the other stores"
                ) from None
            report_skipped((SkippedStore(part.path, str(error)),), len(self.paths))
            return iter(())

    def _batches(self, partition: LogPart) -> Iterator[pa.RecordBatch]:
        self._check_files(partition)
        task = partition.task
        report = _raise_on_damage(partition.path) if self.options.fail_fast else None
        batches: Iterator[pa.RecordBatch]
        if isinstance(task, FileTask):
            batches = read_files(task, report=report)
        else:
            batches = read_split(task, report=report) if isinstance(task, ReadTask) else read_points(task, report=report)
        if self.options.fail_fast:
            batches = _raise_on_damaged_rows(batches, partition.path)
        if not self.options.fail_on_data_loss:
            batches = _until_file_removed(batches)
        return with_store(batches, self.columns, partition.path, self.names)


class PushingReader(ReceivesFilters, RocketMQReader):
    """A reader that receives the filters of the query it belongs to."""


class PushingDataSource(RocketMQDataSource):
    """The format on a Spark that keeps the filters of queries apart."""

    reads_with = PushingReader


RocketMQDataSource.reads_with = RocketMQReader


def splits_in_files(splits: Sequence[Split], files: Sequence[QueueFile]) -> list[Split]:
    """Return the parts of the splits that are within these files."""
    pieces: list[Split] = []
    for split in splits:
        for file in files:
            start, stop = max(split.start, file.start), min(split.stop, file.start + file.size)
            if start < stop:
                pieces.append(Split(split.number, start, stop))
    return pieces


def _point_chunks(pruned: PrunedScan) -> Iterator[Any]:
    for each in pruned.ranges:
        yield from each.pieces(POINTS)
    points = np.array(pruned.points, np.int64)
    for start in range(0, len(points), OFFSETS):
        yield Offsets.of(points[start : start + OFFSETS])


def _raise_on_damage(path: str) -> Callable[[Damage], None]:
    def refuse(item: Damage) -> None:
        where = f"{path}/{item.file} at {item.offset}, {item.length} bytes"
        raise PipelineError(f"mode=FAILFAST: {where}: {item.kind}, {item.detail}; mode=PERMISSIVE skips such ranges")

    return refuse


def _raise_on_damaged_rows(batches: Iterator[pa.RecordBatch], path: str) -> Iterator[pa.RecordBatch]:
    import pyarrow.compute as pc

    for batch in batches:
        damaged = batch.filter(pc.equal(batch.column("verdict"), str(Verdict.DAMAGED)))
        if damaged.num_rows:
            raise PipelineError(
                f"mode=FAILFAST: the message at physical offset {damaged.column('physical_offset')[0]} of {path} is damaged; "
                "mode=PERMISSIVE returns it as a row with verdict 'damaged', `mqstore verify` shows its findings"
            )
        yield batch


def _until_file_removed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches until a file is missing, or another one, that existed when the read was planned."""
    try:
        yield from batches
    except FileLostError:
        return


# what a DataFrame will read


SHOWN = 20  # stores, and skipped paths, that the summary shows


@dataclass(frozen=True, slots=True)
class StoreRead:
    """The read of one store. how: `scan`, or `queue` or `index` if these determine what to read.

    partitions: those that read some of it, perhaps of other stores, too. log_bytes: scanned. records: read one by one.
    """

    store: str
    how: str
    why: str
    partitions: int
    log_bytes: int
    records: int

    def __str__(self) -> str:
        many = count(self.partitions, "partition")
        return (
            f"{self.store}: {self.how}, {many}: {self.log_bytes} bytes of log scanned, {self.records} records read one by one\n"
            f"    {self.why}"
        )


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The reads of a DataFrame, without stores of which nothing has to be read. str() is a readable summary.

    partitions: all of the read. skipped: paths that cannot be opened as a store, each with the reason.
    """

    stores: tuple[StoreRead, ...]
    partitions: int = 0
    skipped: tuple[SkippedStore, ...] = ()

    @property
    def log_bytes(self) -> int:
        return sum(each.log_bytes for each in self.stores)

    @property
    def records(self) -> int:
        return sum(each.records for each in self.stores)

    def __str__(self) -> str:
        return "\n".join(self._lines()) or "nothing has to be read"

    def _lines(self) -> Iterator[str]:
        if len(self.stores) > 1:
            yield f"{len(self.stores)} stores in {count(self.partitions, 'partition')}"
        yield from map(str, self.stores[:SHOWN])
        if len(self.stores) > SHOWN:
            yield f"… {count(len(self.stores) - SHOWN, 'more store')}"
        for each in self.skipped[:SHOWN]:
            yield f"{each.path}: skipped: {each.why}"
        if len(self.skipped) > SHOWN:
            yield f"… {count(len(self.skipped) - SHOWN, 'more skipped path')}"


def explain_read(query: DataFrame | str, spark: SparkSession | None = None) -> ReadPlan:
    """Return what Spark plans to read from the stores of a DataFrame, or of a query in SQL. Plans, but reads no message.

    spark: for SQL, by default the active session; the plan is that of `spark.sql`, which `pipeline.sql` may narrow further.
    Raises PipelineError if planning fails, and UnsupportedError for a DataFrame of Spark Connect, whose plan is on the server.
    """
    if isinstance(query, str):
        spark = active_session() if spark is None else spark
        if spark is None:
            raise UsageError("explain_read of SQL needs a session: pass spark=, or start one with pipeline.session()")
        with failures("planning the read"):
            query = spark.sql(query)
    plan: Any = getattr(query, "_jdf", None)
    if plan is None:
        raise UnsupportedError("the plan of a Spark Connect session is on its server; explain_read needs a classic session")
    with failures("planning the read"):
        leaves = plan.queryExecution().sparkPlan().collectLeaves()
        partitions = [partition for k in range(leaves.size()) for partition in _partitions(leaves.apply(k))]
    return read_plan(partitions)


def read_plan(partitions: Sequence[InputPartition]) -> ReadPlan:
    """Return the plan that consists of these partitions."""
    by_store: dict[str, list[tuple[int, LogPart]]] = {}
    skipped: list[SkippedStore] = []
    for number, partition in enumerate(partitions):
        if isinstance(partition, PartGroup):
            skipped.extend(partition.skipped)
        for part in parts_in(partition):
            if isinstance(part, LogPart):
                by_store.setdefault(part.path, []).append((number, part))
    reading = {number for parts in by_store.values() for number, _ in parts}
    return ReadPlan(tuple(_store_read(path, parts) for path, parts in by_store.items()), len(reading), tuple(skipped))


def _partitions(leaf: Any) -> Iterable[InputPartition]:
    """Return the partitions of a plan leaf if it reads this source: each holds what our reader pickled in a process of this session."""
    text = leaf.toString()
    if not text.startswith("BatchScan ") or not (text.startswith("BatchScan rocketmq[") or _is_of_catalog(leaf.table())):
        return []
    partitions = leaf.inputPartitions()
    return [pickle.loads(bytes(partitions.apply(k).pickedPartition())) for k in range(partitions.size())]


def _is_of_catalog(table: Any) -> bool:
    return str(table.getClass().getName()).startswith(CATALOG_CLASS)


def _store_read(path: str, parts: list[tuple[int, LogPart]]) -> StoreRead:
    sizes = [part.as_dict() for _, part in parts]
    return StoreRead(
        path,
        parts[0][1].how,
        next(part.why for _, part in parts if part.why),
        len({number for number, _ in parts}),
        sum(size.get("bytes", 0) for size in sizes),
        sum(size.get("records", 0) for size in sizes),
    )
