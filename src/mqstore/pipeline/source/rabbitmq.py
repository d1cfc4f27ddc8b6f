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

A task reads whole queues, segments of large queues and of streams, or whole message files. The rows are those of the command `messages`,
in its order within a task. Each Python worker that reads a queue with messages in message files scans these files once; `pipeline.joined`
joins ids and places on Spark instead. Comparisons of vhost, queue, queue_type, seq_id, stream_offset, recovered and store are applied
before messages are read if they are given as `pipeline.read(..., where=...)` or to `pipeline.sql`; those of other queries as for
`rocketmq`. Streams can be read as a stream of Spark, too (`mqstore.pipeline.source.rabbitmq_stream`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mqstore.pipeline.source.pushdown import apply_queue_filters, names_of, values_of
from mqstore.pipeline.source.rabbitmq_options import RabbitMQOptions, all_columns, fields, open_rabbitmq, spelt
from mqstore.pipeline.source.stores import (
    STORE,
    ReceivesFilters,
    StoreReader,
    TableFormat,
    check_types,
    with_store,
)
from mqstore.pipeline.spark.source_api import Filter, InputPartition, require_streams
from mqstore.rabbitmq.store import task_groups
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.store.task_groups import FileGroup, QueueGroup
from mqstore.table.columns import RABBITMQ_COLUMNS, QueueSelection

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from mqstore.pipeline.spark.source_api import DataSourceStreamReader

FORMAT = "rabbitmq"

# SQL: tables of a store and their views; columns of `messages`
RABBITMQ_VIEWS = {"messages": "messages", "index_entries": "index", "records": "store", "refusals": "refusals"}
RABBITMQ_MESSAGE_COLUMNS = (*(name for name in RABBITMQ_COLUMNS if name != "payload"), "payload_len")


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
        return fields(view, all_columns(view))

    @classmethod
    def check_store(cls, path: str, options: Mapping[str, str]) -> Sequence[str]:
        task_groups.files_token(open_rabbitmq(path))
        return ()

    def returned_fields(self) -> list[pa.Field]:
        options = RabbitMQOptions.of_stream(self.options)
        return fields(options.view, options.columns)

    def fields_of(self, names: Sequence[str]) -> list[pa.Field]:
        view = RabbitMQOptions.of_stream(self.options).view
        return fields(view, spelt(view, names))

    def reader_of(self, names: Sequence[str]) -> RabbitMQReader:
        options = RabbitMQOptions.of(self.options)
        return self.reads_with(options, spelt(options.view, names), tuple(names))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from mqstore.pipeline.source.rabbitmq_stream import RabbitMQStreamReader

        require_streams()
        check_types(schema, self.fields_of(schema.names))
        return RabbitMQStreamReader(self.options, spelt("messages", schema.names), tuple(schema.names))


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
            planned = task_groups.plan_queues(store, self.options.splits, selection, whole=self.options.view == "refusals")
        for group in planned:
            yield StorePartition(path, str(store.directory.root), token, group), group.bytes

    def _selection_of(self, store: RabbitMQStore) -> QueueSelection:
        """Return the selection with the vhosts whose rows may have one of the names in the filters."""
        selected, given = self.vhosts, self.selection.vhosts
        if selected is None:
            return self.selection
        held = {vhost.name for vhost in store.vhosts if vhost.name in selected or any(queue.vhost in selected for queue in vhost.queues)}
        names: frozenset[Any] = selected | held
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


class PushingRabbitMQReader(ReceivesFilters, RabbitMQReader):
    """A reader that receives the filters of the query it belongs to."""


class PushingRabbitMQDataSource(RabbitMQDataSource):
    """The format on a Spark that keeps the filters of queries apart."""

    reads_with = PushingRabbitMQReader


RabbitMQDataSource.reads_with = RabbitMQReader
