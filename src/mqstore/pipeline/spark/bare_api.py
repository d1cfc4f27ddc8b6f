"""What a data source needs of Spark's interface where no Spark runs: without pyspark, and with one that lacks a part.

SQL in DuckDB reads the same sources (`mqstore.pipeline.queries.duck`). Names and fields are those of pyspark 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class CaseInsensitiveDict(dict[str, str]):
    """Options, whose names have no case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__({name.lower(): value for name, value in options.items()})

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


class DataSource:
    """A source of tables. options: as given by the caller."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options


class DataSourceReader:
    """Reads the partitions of a table."""


class DataSourceStreamReader:
    """Reads the batches of a stream."""


class DataSourceWriter:
    """Writes the rows of a table."""


class DataSourceArrowWriter(DataSourceWriter):
    """Writes the rows of a table, which come as Arrow batches."""


class DataSourceStreamWriter:
    """Writes the rows of a stream."""


class WriterCommitMessage:
    """What a task of a writer hands back."""


class InputPartition:
    """A part of a table, read by one task."""


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
