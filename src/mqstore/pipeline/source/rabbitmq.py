"""`spark.read.format("rabbitmq")`: the message table, index entries and stored records of RabbitMQ stores as DataFrames.

    from mqstore import pipeline
    pipeline.register(spark)
    spark.read.format("rabbitmq").option("columns", "vhost,queue,size").load("/backup/msg_stores").groupBy("vhost", "queue").count()
    pipeline.read(spark, "/backup/msg_stores", format="rabbitmq", columns=["queue", "payload"], vhost="/")

    option            meaning
    view              messages (the default), index (entries of the indexes), store (records of the message files),
                      refusals (why a broker would not start a queue)
    columns           names, separated by commas; `store` is the path of the store
    vhost, queue      one or more, separated by commas
    queueType         one or more of classic, quorum and stream
    fromSeq, toSeq    sequence ids: from, and up to but not including
    fromOffset, toOffset    offsets of streams: from, and up to but not including
    filterValue       one or more: only messages of streams that may have such a filter value
    recovered         true: only messages that the broker would recover; false: only the others
    verdict           one or more, separated by commas
    all               true: also messages in no queue (view messages)
    at                milliseconds since the epoch or an ISO time, for the column `expired` (`now` is its older name)
    names             a file of queue names, for directories without a valid `.queue_name`
    splits            maximum number of tasks per store; by default 16 or more, of 16 to 64 MiB of indexes and message files
    mode              if one of several paths cannot be opened as a store, PERMISSIVE (the default) skips and reports it, FAILFAST fails the
                      read

A task reads whole queues, segments of streams, or whole message files. The rows are those of the command `messages`, in its order within
a task. Each Python worker that reads a queue with messages in message files scans these files once; `pipeline.joined` joins ids and places
on Spark instead. Comparisons of vhost, queue, queue_type, seq_id, stream_offset, recovered and store are applied before messages are read
if they are given as `pipeline.read(..., where=...)` or to `pipeline.sql`; those of other queries as for `rocketmq`. Streams can be read as
a stream of Spark, too (`mqstore.pipeline.source.rabbitmq_stream`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.errors import UnsupportedError, UsageError
from mqstore.files.archive import refuse_packed
from mqstore.findings import Verdict
from mqstore.pipeline.source.options import RABBITMQ, RABBITMQ_STREAM_ONLY, checked
from mqstore.pipeline.source.pushdown import apply_queue_filters, filters_from, names_of, values_of
from mqstore.pipeline.source.stores import (
    STORE,
    StoreReader,
    TableFormat,
    boolean,
    canonical,
    check_types,
    fails_fast,
    reported,
    split_names,
    store_paths,
    with_store,
)
from mqstore.pipeline.spark.source_api import Filter, InputPartition, require_streams
from mqstore.places import find_store
from mqstore.rabbitmq.definitions.document import read_queue_names
from mqstore.rabbitmq.store import task_groups
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.store.task_groups import FileGroup, QueueGroup
from mqstore.table.columns import RABBITMQ_COLUMNS, RABBITMQ_EXTRA_COLUMNS, QueueSelection, check_rabbitmq_columns, rabbitmq_schema
from mqstore.table.formatting import parse_time

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from mqstore.pipeline.spark.source_api import DataSourceStreamReader

FORMAT = "rabbitmq"
VIEWS = ("messages", "index", "store", "refusals")

# SQL: tables of a store and their views; columns of `messages`
RABBITMQ_VIEWS = {"messages": "messages", "index_entries": "index", "records": "store", "refusals": "refusals"}
RABBITMQ_MESSAGE_COLUMNS = (*(name for name in RABBITMQ_COLUMNS if name != "payload"), "payload_len")


@dataclass(frozen=True, slots=True)
class RabbitMQOptions:
    """The options of a read."""

    paths: tuple[str, ...]
    view: str
    columns: tuple[str, ...]
    selection: QueueSelection
    now: int | None
    splits: int | None
    names: tuple[tuple[str, str], ...] = ()
    fail_fast: bool = False
    reported: int = 0
    filters: tuple[Filter, ...] = ()

    @classmethod
    def of_stream(cls, options: Mapping[str, str]) -> RabbitMQOptions:
        """Parse the options that a stream and a batch share; a schema does not know which it is for. Raises UsageError."""
        own = {name.lower() for name in RABBITMQ_STREAM_ONLY}
        return cls.of({name: text for name, text in options.items() if name.lower() not in own})

    @classmethod
    def of(cls, options: Any) -> RabbitMQOptions:
        """Parse the options. Raises UsageError with the option's name."""
        options = checked(options, RABBITMQ, "a read of rabbitmq")
        view = options.get("view", "messages")
        if view not in VIEWS:
            raise UsageError(f"a RabbitMQ store has no view {view!r}; give {', '.join(VIEWS)}")
        paths = store_paths(options)
        named = options.get("columns")
        default = (*_columns(view), STORE) if len(paths) > 1 else _columns(view)
        columns = default if named is None else _spelt(view, split_names(named))
        if not columns:
            raise UsageError("option columns is empty; omit it to read all columns")
        at = options.get("at", options.get("now"))
        splits = _integer_option(options, "splits")
        if splits is not None and splits < 1:
            raise UsageError(f"the number of splits must be at least 1 (got {splits})")
        fields(view, columns)
        names = options.get("names")
        known = () if names is None else read_queue_names(Path(names))
        now = None if at is None else parse_time(at, "at") * 1000
        filters = filters_from(options.get("filters"))
        return cls(paths, view, columns, _selection(options), now, splits, known, fails_fast(options), reported(options), filters)


def _columns(view: str) -> tuple[str, ...]:
    known = {"index": task_groups.INDEX_COLUMNS, "store": task_groups.STORE_COLUMNS, "refusals": task_groups.REFUSAL_COLUMNS}
    return known.get(view, RABBITMQ_COLUMNS)


def _all_columns(view: str) -> tuple[str, ...]:
    return (*_columns(view), *(RABBITMQ_EXTRA_COLUMNS if view == "messages" else ()), STORE)


def _spelt(view: str, names: Iterable[str]) -> tuple[str, ...]:
    return canonical(names, _all_columns(view))


def fields(view: str, columns: Sequence[str]) -> list[pa.Field]:
    """Return the Arrow fields of these columns of a view, `store` among them. Raises UsageError."""
    import pyarrow as pa

    others = [name for name in columns if name != STORE]
    if view == "messages":
        schema = rabbitmq_schema(check_rabbitmq_columns(others))
    else:
        schema = {"index": task_groups.index_schema, "store": task_groups.store_schema, "refusals": task_groups.refusal_schema}[view]()
        unknown = [name for name in others if name not in schema.names]
        if unknown:
            raise UsageError(f"the view {view} has no column {unknown[0]!r}; its columns are {', '.join(schema.names)}")
    return [pa.field(STORE, pa.string()) if name == STORE else schema.field(name) for name in columns]


def _selection(options: Any) -> QueueSelection:
    verdicts = _names_option(options, "verdict")
    known = [str(verdict) for verdict in Verdict]
    for verdict in verdicts or ():
        if verdict not in known:
            raise UsageError(f"option verdict is {verdict!r}; give one of {', '.join(known)}")
    return QueueSelection(
        vhosts=_names_option(options, "vhost"),
        queues=_names_option(options, "queue"),
        from_seq=_integer_option(options, "fromSeq"),
        to_seq=_integer_option(options, "toSeq"),
        recovered=None if options.get("recovered") is None else boolean(options, "recovered", True),
        verdicts=verdicts,
        everything=boolean(options, "all", False),
        queue_types=_names_option(options, "queueType"),
        from_offset=_integer_option(options, "fromOffset"),
        to_offset=_integer_option(options, "toOffset"),
        filter_values=_names_option(options, "filterValue"),
    )


def _names_option(options: Any, name: str) -> frozenset[str] | None:
    text = options.get(name)
    return None if text is None else frozenset(split_names(text)) or None


def _integer_option(options: Any, name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"option {name} is {text!r}; give a number") from None


def open_rabbitmq(path: str, names: tuple[tuple[str, str], ...] = ()) -> RabbitMQStore:
    """Return the store at a path that every task can open again.

    Raises CannotOpenError for an archive, UnsupportedError for a RocketMQ store.
    """
    refuse_packed(path)
    located = find_store(Path(path))
    if located.family != "rabbitmq":
        raise UnsupportedError(f'{path} is a RocketMQ store; read it with format("rocketmq")')
    return RabbitMQStore.at(located, names=names)


@dataclass(frozen=True, slots=True)
class StorePartition(InputPartition):
    """The part of a store that one task reads. root: directory of the store; token: digest of its files at planning time."""

    path: str
    root: str
    token: str
    group: QueueGroup | FileGroup


class RabbitMQDataSource(TableFormat):
    """The data source. Its options are its only state."""

    reads_with: type[RabbitMQReader]

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @classmethod
    def all_fields(cls, options: Mapping[str, str]) -> list[pa.Field]:
        view = options.get("view", "messages")
        return fields(view, _all_columns(view))

    @classmethod
    def check_store(cls, path: str, options: Mapping[str, str]) -> None:
        task_groups.files_token(open_rabbitmq(path))

    def returned_fields(self) -> list[pa.Field]:
        options = RabbitMQOptions.of_stream(self.options)
        return fields(options.view, options.columns)

    def fields_of(self, names: Sequence[str]) -> list[pa.Field]:
        view = RabbitMQOptions.of_stream(self.options).view
        return fields(view, _spelt(view, names))

    def reader_of(self, names: Sequence[str]) -> RabbitMQReader:
        options = RabbitMQOptions.of(self.options)
        return self.reads_with(options, _spelt(options.view, names), tuple(names))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from mqstore.pipeline.source.rabbitmq_stream import RabbitMQStreamReader

        require_streams()
        check_types(schema, self.fields_of(schema.names))
        return RabbitMQStreamReader(self.options, _spelt("messages", schema.names), tuple(schema.names))


class RabbitMQReader(StoreReader):
    """Plans the parts of stores and reads them."""

    def __init__(self, options: RabbitMQOptions, columns: tuple[str, ...], names: tuple[str, ...] | None = None) -> None:
        super().__init__(options.paths, columns, names, fail_fast=options.fail_fast, reported=options.reported)
        self.options = options
        self.selection = options.selection
        self.vhosts: frozenset[Any] | None = None
        self.confine(options.filters)

    def confine(self, filters: Sequence[Filter]) -> None:
        """Narrow the selection by the filters, as far as it can express them."""
        self.selection = apply_queue_filters(self.selection, filters)
        vhosts, stores = names_of("vhost", filters), values_of(STORE, filters)
        if vhosts is not None:
            self.vhosts = vhosts if self.vhosts is None else vhosts & self.vhosts
        if stores is not None:
            self.paths = tuple(path for path in self.paths if path in stores)

    def partitions(self) -> Sequence[InputPartition]:
        # Spark needs a partition even if there is nothing to read
        return self.planned().partitions() or [StorePartition("", "", "", QueueGroup(0, (), (), 0))]

    def sized_parts(self, path: str) -> Iterator[tuple[InputPartition, int]]:
        store = open_rabbitmq(path, self.options.names)
        token = task_groups.files_token(store)
        planned: Sequence[QueueGroup | FileGroup]
        selection = self._selection_of(store)
        if self.options.view == "store":
            planned = task_groups.plan_files(store, self.options.splits, selection)
        else:
            planned = task_groups.plan_queues(store, self.options.splits, selection)
        for group in planned:
            yield StorePartition(path, str(store.directory.root), token, group), group.bytes

    def _selection_of(self, store: RabbitMQStore) -> QueueSelection:
        """Return the selection with the vhosts whose rows may have one of the names in the filters."""
        wanted, given = self.vhosts, self.selection.vhosts
        if wanted is None:
            return self.selection
        held = {vhost.name for vhost in store.vhosts if vhost.name in wanted or any(queue.vhost in wanted for queue in vhost.queues)}
        names: frozenset[Any] = wanted | held
        return replace(self.selection, vhosts=names if given is None else names & given)

    def read_part(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StorePartition)
        if not partition.path:
            return iter(())
        store = task_groups.open_cached(partition.root, partition.token, self.options.now, self.options.names)
        selection = replace(self.selection, limit=None)
        batches: Iterator[pa.RecordBatch]
        if isinstance(partition.group, FileGroup):
            batches = task_groups.record_batches(store, partition.group)
        elif self.options.view == "index":
            batches = task_groups.index_batches(store, partition.group)
        elif self.options.view == "refusals":
            batches = task_groups.refusal_batches(store, partition.group)
        else:
            batches = task_groups.read_group(store, partition.group, self.own_columns("seq_id"), selection)
        return with_store(batches, self.columns, partition.path, self.names)


class PushingRabbitMQReader(RabbitMQReader):
    """A reader that receives the filters of the query it belongs to."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Use what a selection can express; return all filters, so that Spark checks them again."""
        self.confine(filters)
        return filters


class PushingRabbitMQDataSource(RabbitMQDataSource):
    """The format on a Spark that keeps the filters of queries apart."""

    reads_with = PushingRabbitMQReader


RabbitMQDataSource.reads_with = RabbitMQReader
