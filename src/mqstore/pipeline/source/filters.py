"""Filters of a DataFrame as a selection of messages.

Spark passes the conditions it can express as `column op value`; all of them must hold. Those that a `Selection` can express
are applied while the log is read, so that other messages never reach the JVM. All filters are returned to Spark, which checks
them again, so each translation below must be at least as wide as Spark's own meaning; a wider one only costs speed.

    >>> apply_filters(Selection(), [EqualTo(("topic",), "orders"), GreaterThan(("queue_offset",), 5)])  # doctest: +ELLIPSIS
    Selection(topics=frozenset({'orders'}), ...from_queue_offset=6, ...)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from mqstore.pipeline.spark.source_api import EqualNullSafe, EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual
from mqstore.table.columns import Selection

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# columns whose values a selection holds as a set, and as a range
_SETS = {"topic": "topics", "queue_id": "queue_ids", "tags": "tags", "uniq_key": "keys"}
_RANGES = {
    "physical_offset": ("from_offset", "to_offset"),
    "queue_offset": ("from_queue_offset", "to_queue_offset"),
    "store_timestamp": ("since", "until"),
}


def apply_filters(selection: Selection, filters: Iterable[Filter]) -> Selection:
    """Return the selection narrowed by the filters, as far as it can express them. Contradictory filters select nothing."""
    for condition in filters:
        column = _column(condition)
        if column in _SETS:
            selection = _with_values(selection, _SETS[column], condition)
        elif column in _RANGES:
            selection = _with_range(selection, *_RANGES[column], condition)
    return selection


def values_of(column: str, filters: Iterable[Filter]) -> frozenset[Any] | None:
    """Return the values to which equality conditions restrict a column; None if there are none."""
    found: frozenset[Any] | None = None
    for condition in filters:
        if _column(condition) != column:
            continue
        if isinstance(condition, EqualTo | EqualNullSafe):
            values = frozenset({condition.value})
        elif isinstance(condition, In):
            values = frozenset(condition.value)
        else:
            continue
        found = values if found is None else found & values
    return found


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


def _with_range(selection: Selection, low: str, high: str, condition: Filter) -> Selection:
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
    return int((value - _EPOCH) // timedelta(milliseconds=1)) if isinstance(value, datetime) else int(value)


def _ceiling(value: Any) -> int:
    return -int((_EPOCH - value) // timedelta(milliseconds=1)) if isinstance(value, datetime) else int(value)
