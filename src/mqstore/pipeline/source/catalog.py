"""The format that the catalog of stores in Spark SQL asks for tables: `select * from mq.store.messages`. Its class is StoreCatalog.java.

The format `mqstore` is not a table itself. Its schema has a column for each table of the store at `path`, a struct of the columns of that
table: the tables that `pipeline.views` registers. With the option `table` it reads that one. The catalog makes a source for each scan, so
no version of Spark mixes the filters of two queries (`mqstore.pipeline.source.pushdown`), and all of them reach the reader.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec

from mqstore.errors import MqstoreError, UsageError
from mqstore.files.archive import refuse_packed
from mqstore.files.location import as_location
from mqstore.pipeline.source.rocketmq import register as register_formats
from mqstore.pipeline.source.rocketmq import source_named
from mqstore.pipeline.source.stores import StoreReader, TableFormat, ddl_schema, parse_fs_options, store_paths
from mqstore.pipeline.source.views import tables_of
from mqstore.pipeline.spark.session import session as start_session
from mqstore.pipeline.spark.source_api import CaseInsensitiveDict, DataSource, DataSourceReader, Filter, InputPartition
from mqstore.places import find_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from mqstore.store import Family

P = ParamSpec("P")


def _registering(start: Callable[P, SparkSession]) -> Callable[P, SparkSession]:
    """Return the function, in whose sessions the formats are registered as well."""

    @wraps(start)
    def started(*arguments: P.args, **named: P.kwargs) -> SparkSession:
        spark = start(*arguments, **named)
        register(spark)
        return spark

    return started


session = _registering(start_session)


def register(spark: SparkSession) -> None:
    """Register the formats with a session, that of the catalog among them, and let it pass filters to Python sources."""
    register_formats(spark)
    spark.dataSource.register(CatalogSource)


class CatalogSource(DataSource):
    """The format `mqstore`."""

    @classmethod
    def name(cls) -> str:
        return "mqstore"

    def schema(self) -> str:
        """Return the tables of the store as columns. Raises MqstoreError for a path without a store."""
        import pyarrow as pa

        return ddl_schema([pa.field(name, pa.struct(table.returned_fields())) for name, table in self._tables().items()])

    def reader(self, schema: StructType) -> DataSourceReader:
        if "table" not in self.options:
            raise UsageError('mqstore is the format of the catalog mq; read a store with format("rocketmq") or format("rabbitmq")')
        reader = self._tables()[self.options["table"]].reader(schema)
        assert isinstance(reader, StoreReader)
        return CatalogReader(reader)

    def _tables(self) -> dict[str, TableFormat]:
        paths = store_paths(self.options)
        given = {name: value for name, value in self.options.items() if name != "table"}
        tables = {}
        for name, (kind, columns, own) in tables_of(self._family(paths), several=len(paths) > 1).items():
            options = {**given, **own, **({} if columns is None else {"columns": ",".join(columns)})}
            tables[name] = source_named(kind)(CaseInsensitiveDict(options))
        return tables

    def _family(self, paths: Sequence[str]) -> Family:
        """Return the kind of the first path that is a store: of several, a read skips the others."""
        fs_options = dict(parse_fs_options(self.options))
        for path in paths[:-1]:
            with contextlib.suppress(MqstoreError):
                return _family_at(path, fs_options)
        return _family_at(paths[-1], fs_options)


def _family_at(path: str, fs_options: dict[str, str]) -> Family:
    refuse_packed(path)
    return find_store(as_location(path, fs_options)).family


class CatalogReader(DataSourceReader):
    """Gives the filters of a query to the reader of a table."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Plan less; return all filters, so that Spark checks them again."""
        self._reader.confine(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)
