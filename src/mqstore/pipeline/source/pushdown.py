"""Conditions for a source, from Spark to the reader of the log.

Spark offers the filters of a query to a Python source. But up to 4.2 (and wherever `PythonDataSourceV2.setReadInfo` exists)
it keeps the source's response for the whole DataFrame: the next query of the same DataFrame or view reads the rows that
were left for the previous query, and two reads in one query share the filters of the last one. On such a Spark our readers
accept no filters from queries. `pipeline.read(..., where=...)` attaches a condition to one DataFrame permanently: Spark
translates the condition for a table without rows, and the result is passed as the option `filters`.

    >>> filters_from(filters_as_text([EqualTo(("topic",), "orders"), In(("queue_id",), (1, 2))]))
    (EqualTo(attribute=('topic',), value='orders'), In(attribute=('queue_id',), value=(1, 2)))
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from mqstore.errors import UsageError
from mqstore.pipeline.spark.session import failures
from mqstore.pipeline.spark.source_api import (
    FILTERS,
    DataSource,
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS: dict[str, Any] = {
    kind.__name__: kind for kind in (EqualTo, EqualNullSafe, In, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
}


def keeps_filters_apart(spark: SparkSession) -> bool:
    """Return whether this Spark keeps the filters of queries apart; False if that cannot be determined (Spark Connect)."""
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        return False
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    source = jvm.java.lang.Class.forName("org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2", False, loader)
    return all(method.getName() != "setReadInfo" for method in source.getDeclaredMethods())


# filters as text


def filters_as_text(filters: Iterable[Filter]) -> str:
    """Return the comparisons among filters in the format of the option `filters`; others are left to Spark."""
    return json.dumps([_as_json(each) for each in filters if type(each).__name__ in _KINDS and _is_plain(each)])


def _is_plain(condition: Any) -> bool:
    values = condition.value if isinstance(condition, In) else (condition.value,)
    return all(value is None or isinstance(value, str | int | datetime) for value in values)


def _as_json(condition: Any) -> list[Any]:
    value = condition.value
    stored = [_value(each) for each in value] if isinstance(condition, In) else _value(value)
    return [type(condition).__name__, list(condition.attribute), stored]


def _value(value: Any) -> Any:
    return {"us": (value - _EPOCH) // timedelta(microseconds=1)} if isinstance(value, datetime) else value


def filters_from(text: str | None) -> tuple[Filter, ...]:
    """Parse the filters in the option. Raises UsageError."""
    if not text:
        return ()
    try:
        return tuple(_KINDS[kind](tuple(attribute), _restored(value)) for kind, attribute, value in json.loads(text))
    except (ValueError, KeyError, TypeError):
        raise UsageError("the option filters is set by pipeline.read(..., where=...): pass the condition there") from None


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_restored(each) for each in value)
    return _EPOCH + timedelta(microseconds=value["us"]) if isinstance(value, dict) else value


# filters of a condition


@dataclass(frozen=True, slots=True)
class FilterPart(InputPartition):
    """The filters that reached the reader."""

    filters: str


class FilterSource(DataSource):
    """A table without rows that reveals which filters Spark derives from a condition."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-filters"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _FilterReader()


class _FilterReader(DataSourceReader):
    def __init__(self) -> None:
        self.filters = "[]"

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self.filters = filters_as_text(filters)
        return filters

    def partitions(self) -> Sequence[FilterPart]:
        return [FilterPart(self.filters)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(())


def columns_in(condition: str, columns: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that occur in a condition in SQL: all that it uses, and perhaps more (a text may contain a name).

    >>> columns_in("upper(Topic) = 'SIZE' and queue_offset * 2 > 5", ["topic", "size", "queue", "queue_offset"])
    ('topic', 'size', 'queue_offset')
    """
    if re.search(r"[(,]\s*\*", condition):
        return tuple(columns)  # such as struct(*)
    return tuple(name for name in columns if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", condition, re.IGNORECASE))


def filters_of(spark: SparkSession, schema: str, condition: str) -> str:
    """Return the option `filters` for a condition on a table with this schema: its comparisons that all must hold.

    Raises PipelineError if Spark does not understand the condition.
    """
    if not FILTERS:
        return "[]"
    spark.dataSource.register(FilterSource)
    with failures("planning the read"):
        # a DataFrame for this condition only, planned once
        frame_of_condition: Any = spark.read.format(FilterSource.name()).schema(schema).load().where(condition)
        if getattr(frame_of_condition, "_jdf", None) is None:
            return "[]"
        leaves = frame_of_condition._jdf.queryExecution().sparkPlan().collectLeaves()
        for k in range(leaves.size()):
            leaf = leaves.apply(k)
            if leaf.toString().startswith("BatchScan rocketmq-filters"):
                part = pickle.loads(bytes(leaf.inputPartitions().apply(0).pickedPartition()))
                assert isinstance(part, FilterPart)
                return part.filters
    return "[]"  # Spark plans no scan for a condition that is never true
