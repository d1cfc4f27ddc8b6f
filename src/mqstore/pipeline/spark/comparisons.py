"""Comparisons of a column with a value, for a pyspark that has none: with the names and fields that they have in pyspark 4.1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["EqualNullSafe", "EqualTo", "Filter", "GreaterThan", "GreaterThanOrEqual", "In", "LessThan", "LessThanOrEqual"]


class Filter:
    """A condition on rows."""


@dataclass(frozen=True)
class _Comparison(Filter):
    attribute: tuple[str, ...]
    value: Any


class EqualTo(_Comparison):
    """The column is equal to the value."""


class EqualNullSafe(_Comparison):
    """The column is equal to the value, or both are null."""


class GreaterThan(_Comparison):
    """The column is greater than the value."""


class GreaterThanOrEqual(_Comparison):
    """The column is greater than the value, or equal to it."""


class LessThan(_Comparison):
    """The column is less than the value."""


class LessThanOrEqual(_Comparison):
    """The column is less than the value, or equal to it."""


class In(_Comparison):
    """The column is equal to one of the values, a tuple."""
