"""Conditions for a source, from Spark to the reader of the log.

Spark offers the filters of a query to a Python source. But up to 4.2 (and wherever `PythonDataSourceV2.setReadInfo` exists)
it keeps the source's response for the whole DataFrame: the next query of the same DataFrame or view reads the rows that
were left for the previous query, and two reads in one query share the filters of the last one. On such a Spark our readers
accept no filters from queries. `pipeline.read(..., where=...)` attaches a condition to one DataFrame permanently: Spark
translates the condition for a table without rows, and the result is passed as the option `filters`. So it is for `rabbitmq`.

    >>> filters_from(filters_as_text([EqualTo(("topic",), "orders"), In(("queue_id",), (1, 2))]))
    (EqualTo(attribute=('topic',), value='orders'), In(attribute=('queue_id',), value=(1, 2)))

`apply_filters` makes a selection of messages of them. Spark passes the conditions it can express as `column op value`; all of them must
hold. Those that a `Selection` can express are applied while the log is read, so that other messages never reach the JVM. All filters are
returned to Spark, which checks them again, so each translation below must be at least as wide as Spark's own meaning; a wider one only
costs speed.

    >>> apply_filters(Selection(), [EqualTo(("topic",), "orders"), GreaterThan(("queue_offset",), 5)])  # doctest: +ELLIPSIS
    Selection(topics=frozenset({'orders'}), ...from_queue_offset=6, ...)
"""

from __future__ import annotations

import json
import pickle
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from mqstore.errors import UsageError
from mqstore.pipeline.spark.failures import failures
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
from mqstore.table.columns import QUEUE_TYPES, QueueSelection, Selection
from mqstore.table.formatting import EPOCH

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_SCAN = "BatchScan rocketmq-filters"
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
    return {"us": (value - EPOCH) // timedelta(microseconds=1)} if isinstance(value, datetime) else value


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
    return EPOCH + timedelta(microseconds=value["us"]) if isinstance(value, dict) else value


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


@dataclass(slots=True)
class OtherPlans:
    """Why the plans of a session cannot be used; empty if they could."""

    why: str = ""

    def found(self, what: str) -> None:
        self.why = f"this version of Spark has other plans ({what})"


@contextmanager
def other_plans() -> Iterator[OtherPlans]:
    """End a look into plans at what this Spark does not have: they are private to Spark, and another version may have changed them."""
    from py4j.protocol import Py4JError

    other = OtherPlans()
    try:
        yield other
    except (Py4JError, TypeError) as error:
        # a class that is not there is a package to py4j, and cannot be called
        if isinstance(error, TypeError) and "JavaPackage" not in str(error):
            raise
        other.found(str(error).splitlines()[0])


def filters_of(spark: SparkSession, schema: str, condition: str) -> str:
    """Return the option `filters` for a condition on a table with this schema: its comparisons that all must hold.

    Raises PipelineError if Spark does not understand the condition.
    """
    spark.dataSource.register(FilterSource)
    with failures("planning the read"):
        # a DataFrame for this condition only, planned once
        frame_of_condition: Any = spark.read.format(FilterSource.name()).schema(schema).load().where(condition)
        if not FILTERS or getattr(frame_of_condition, "_jdf", None) is None:
            return "[]"
        with other_plans() as other:
            execution = frame_of_condition._jdf.queryExecution()
            leaves = execution.sparkPlan().collectLeaves()
            for k in range(leaves.size()):
                leaf = leaves.apply(k)
                if leaf.toString().startswith(_SCAN):
                    part = pickle.loads(bytes(leaf.inputPartitions().apply(0).pickedPartition()))
                    assert isinstance(part, FilterPart)
                    return part.filters
            rows = execution.optimizedPlan().maxRows()
            if rows.isDefined() and rows.get() == 0:
                return "[]"  # no scan is planned for a condition that is never true
            other.found("no scan of a condition")
        if other.why:
            warnings.warn(f"`where` does not narrow what is read, because {other.why}; Spark applies it", UserWarning, stacklevel=3)
    return "[]"


# filters as a selection


# columns whose values a selection holds as a set, and as a range
_SETS = {"topic": "topics", "queue_id": "queue_ids", "tags": "tags", "uniq_key": "keys"}
_RANGES = {
    "physical_offset": ("from_offset", "to_offset"),
    "queue_offset": ("from_queue_offset", "to_queue_offset"),
    "store_timestamp": ("since", "until"),
}
_QUEUE_RANGES = {"seq_id": ("from_seq", "to_seq"), "stream_offset": ("from_offset", "to_offset")}
S = TypeVar("S", Selection, QueueSelection)


def apply_filters(selection: Selection, filters: Iterable[Filter]) -> Selection:
    """Return the selection narrowed by the filters, as far as it can express them. Contradictory filters select nothing."""
    for condition in filters:
        column = _column(condition)
        if column in _SETS:
            selection = _with_values(selection, _SETS[column], condition)
        elif column in _RANGES:
            selection = _with_range(selection, *_RANGES[column], condition)
    return selection


def apply_queue_filters(selection: QueueSelection, filters: Sequence[Filter]) -> QueueSelection:
    """Return the selection of a RabbitMQ store narrowed by the filters, except for those on the vhost.

    A queue in the directory of another vhost has its own vhost in its rows, so those need the store.
    """
    queues = names_of("queue", filters)
    if queues is not None and None not in queues:
        selection = replace(selection, queues=queues if selection.queues is None else queues & selection.queues)
    types = values_of("queue_type", filters)
    if types is not None:
        known = frozenset(QUEUE_TYPES) & types
        selection = replace(selection, queue_types=known if selection.queue_types is None else known & selection.queue_types)
    recovered = (values_of("recovered", filters) or frozenset()) - {None}
    if len(recovered) == 1 and selection.recovered is None:
        selection = replace(selection, recovered=next(iter(recovered)))
    for condition in filters:
        if _column(condition) in _QUEUE_RANGES:
            selection = _with_range(selection, *_QUEUE_RANGES[_column(condition) or ""], condition)
    return selection


def names_of(column: str, filters: Iterable[Filter]) -> frozenset[Any] | None:
    """Return the names to which equality conditions restrict a column; None if there are none.

    A name with a backslash may be shown for one whose bytes are not UTF-8, so it restricts nothing.
    """
    names = values_of(column, filters)
    return None if names is None or any("\\" in name for name in names if name is not None) else names


def values_of(column: str, filters: Iterable[Filter]) -> frozenset[Any] | None:
    """Return the values to which equality conditions restrict a column; None if there are none."""
    allowed: frozenset[Any] | None = None
    for condition in filters:
        if _column(condition) != column:
            continue
        if isinstance(condition, EqualTo | EqualNullSafe):
            values = frozenset({condition.value})
        elif isinstance(condition, In):
            values = frozenset(condition.value)
        else:
            continue
        allowed = values if allowed is None else allowed & values
    return allowed


def _column(condition: Filter) -> str | None:
    path: tuple[str, ...] = getattr(condition, "attribute", ())
    return path[0].lower() if len(path) == 1 else None


def _with_values(selection: Selection, field: str, condition: Filter) -> Selection:
    if isinstance(condition, EqualTo | EqualNullSafe):
        values = {condition.value}
    elif isinstance(condition, In):
        values = set(condition.value)
    else:
        return selection
    values.discard(None)
    known = getattr(selection, field)
    if not values or (field == "keys" and known is not None):
        # given keys and a unique key are separate conditions: they cannot be combined into one set
        return selection
    change: dict[str, Any] = {field: frozenset(values) if known is None else known & values}
    return replace(selection, **change)


def _with_range(selection: S, low: str, high: str, condition: Filter) -> S:
    begin, end = _bounds(condition)
    known_begin, known_end = getattr(selection, low), getattr(selection, high)
    begin = known_begin if begin is None else begin if known_begin is None else max(begin, known_begin)
    end = known_end if end is None else end if known_end is None else min(end, known_end)
    if begin is not None and end is not None and end < begin:
        end = begin
    change: dict[str, Any] = {low: begin, high: end}
    return replace(selection, **change)


def _bounds(condition: Filter) -> tuple[int | None, int | None]:
    """Return half-open bounds of the values that fulfil a condition; bounds of times in whole milliseconds."""
    if isinstance(condition, In):
        values = [value for value in condition.value if value is not None]
        return (_floor(min(values)), _floor(max(values)) + 1) if values else (None, None)
    value = getattr(condition, "value", None)
    if value is None or not isinstance(value, int | datetime):
        return None, None
    if isinstance(condition, EqualTo | EqualNullSafe):
        return _floor(value), _floor(value) + 1
    if isinstance(condition, GreaterThan):
        return _floor(value) + 1, None
    if isinstance(condition, GreaterThanOrEqual):
        return _ceiling(value), None
    if isinstance(condition, LessThan):
        return None, _ceiling(value)
    if isinstance(condition, LessThanOrEqual):
        return None, _floor(value) + 1
    return None, None


def _floor(value: Any) -> int:
    return int((value - EPOCH) // timedelta(milliseconds=1)) if isinstance(value, datetime) else int(value)


def _ceiling(value: Any) -> int:
    return -int((EPOCH - value) // timedelta(milliseconds=1)) if isinstance(value, datetime) else int(value)
