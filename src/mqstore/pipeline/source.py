"""`spark.read.format("rocketmq")`: the message table of a store as a DataFrame.

    from mqstore import pipeline
    pipeline.register(spark)
    spark.read.format("rocketmq").option("columns", "topic,size").load("/backup/broker-a/store").groupBy("topic").count()
    pipeline.read(spark, "/backup/broker-a/store", columns=["topic", "size"], topic="orders")

Spark never says which columns a query needs, so name them: by `columns`, or by a schema (`.schema("topic string, size int")`).
Without either the table has all columns, and the bodies travel to the JVM.

    option                                     meaning
    columns                                    names, separated by commas
    topic                                      one or more, separated by commas
    keys                                       messages with one of these keys, separated by blanks (as KEYS holds them)
    startingOffsets, endingOffsets             physical offsets: from, and up to but not including; or earliest, latest
    startingTimestamp, endingTimestamp         store times in milliseconds: from, and up to but not including
    config                                     file with the broker's own name=value lines
    view                                       disk (the files as they lie); the recovered view is the command's

Filters on topic, queue_id, tags, uniq_key, queue_offset, physical_offset and store_timestamp are applied while reading.
A message that is damaged is a row like others; `verdict` says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

import mqstore
from mqstore.errors import CannotOpenError, UsageError
from mqstore.messages import ROCKETMQ_COLUMNS, Selection, check_columns, rocketmq_schema
from mqstore.pipeline.filters import narrowed
from mqstore.pipeline.plan import settle
from mqstore.rocketmq.reading import ReadTask, overlapping, read_split, token_of
from mqstore.rocketmq.splits import plan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["RocketMQDataSource", "read", "register"]

FORMAT = "rocketmq"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
TASKS = 16  # splits wanted at least, as far as they stay above 64 MiB: the planner cannot ask how many cores there are


def register(spark: SparkSession) -> None:
    """Make the format known to a session, and let it hand filters to Python sources."""
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(RocketMQDataSource)


def read(spark: SparkSession, path: str | os.PathLike[str], columns: Sequence[str] | None = None, **options: Any) -> DataFrame:
    """The message table of the store at path, registering the format if need be. options: see the module."""
    register(spark)
    chosen = {name: str(value) for name, value in options.items() if value is not None}
    if columns is not None:
        chosen["columns"] = ",".join(check_columns(columns))
    return spark.read.format(FORMAT).options(**chosen).load(os.fspath(path))


def ddl_type(kind: pa.DataType) -> str:
    """The name of an Arrow type in Spark's schema text."""
    import pyarrow as pa

    if pa.types.is_list(kind):
        return f"array<{ddl_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{ddl_type(kind.key_type)},{ddl_type(kind.item_type)}>"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    return {"string": "string", "binary": "binary", "int32": "int", "int64": "bigint", "bool": "boolean"}[str(kind)]


def schema_text(columns: Sequence[str]) -> str:
    """The schema of these columns as Spark reads it; every column may be null."""
    return ", ".join(f"{field.name} {ddl_type(field.type)}" for field in rocketmq_schema(columns))


def _number(options: Any, name: str, word: str) -> int | None:
    text = options.get(name)
    if text is None or text == word:
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"option {name} is {text!r}: give a number or {word!r}") from None


def _names(text: str | None, separator: str) -> frozenset[str] | None:
    names = None if text is None else frozenset(part for part in (part.strip() for part in text.split(separator)) if part)
    return names or None


@dataclass(frozen=True, slots=True)
class LogSplit(InputPartition):
    """One task's part of a log."""

    task: ReadTask


class RocketMQDataSource(DataSource):
    """The format. Lives in planning processes only; the paths and settings in its options are all it knows."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return schema_text(self._columns())

    def reader(self, schema: StructType) -> RocketMQReader:
        columns = check_columns(field.name for field in schema.fields)
        for field, kind in zip(schema.fields, rocketmq_schema(columns), strict=True):
            if field.dataType.simpleString() != ddl_type(kind.type):
                raise UsageError(f"column {field.name} is of type {ddl_type(kind.type)}, the schema says {field.dataType.simpleString()}")
        view = self.options.get("view", "disk")
        if view != "disk":
            raise UsageError(f"there is no view {view!r} on Spark: the disk view is read")
        return RocketMQReader(self._path(), self.options.get("config"), columns, self._selection())

    def _columns(self) -> tuple[str, ...]:
        named = self.options.get("columns")
        return ROCKETMQ_COLUMNS if named is None else check_columns(name for part in named.split(",") if (name := part.strip()))

    def _path(self) -> str:
        path = self.options.get("path")
        if not path:
            raise UsageError("no store is named: load a path, the directory that holds commitlog/")
        return path.removeprefix("file://")

    def _selection(self) -> Selection:
        options = self.options
        return Selection(
            topics=_names(options.get("topic"), ","),
            keys=_names(options.get("keys"), " "),
            from_offset=_number(options, "startingOffsets", "earliest"),
            to_offset=_number(options, "endingOffsets", "latest"),
            since=_number(options, "startingTimestamp", "earliest"),
            until=_number(options, "endingTimestamp", "latest"),
        )


class RocketMQReader(DataSourceReader):
    """Plans splits and reads them. Small and picklable: it travels to every task."""

    def __init__(self, path: str, config: str | None, columns: tuple[str, ...], selection: Selection) -> None:
        self.path = path
        self.config = config
        self.columns = columns
        self.selection = selection

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take in what a selection can say; hand all of it back, so that Spark checks again."""
        self.selection = narrowed(self.selection, filters)
        return filters

    def partitions(self) -> Sequence[LogSplit]:
        if os.path.isfile(self.path):
            raise CannotOpenError(f"{self.path} is a file: unpack the archive first, tasks cannot share an unpacked copy")
        store = mqstore.open(self.path, config=self.config)
        token = token_of(store.log)
        return [
            LogSplit(ReadTask(str(store.path), store.config, token, split, self.columns, self.selection))
            for split in overlapping(plan(store.log, tasks=TASKS), self.selection)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogSplit)
        settle()
        return read_split(partition.task)
