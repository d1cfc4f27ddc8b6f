"""Rows of a store as a table: counted, iterated, or in the form that a library works on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mqstore.errors import UnsupportedError
from mqstore.shown import Facts, Shown
from mqstore.table.formatting import count

if TYPE_CHECKING:
    import pyarrow as pa

Names = str | Iterable[str] | None

_SHOWN = 10  # rows in a notebook


class Rows(Shown):
    """The rows of a table, which are read each time that they are asked for.

    title: what they are, for people. schema: of the table. read: returns its batches, the first `limit` rows or all.
    counted: returns the number of rows, if there is a cheaper way than to read them.
    """

    def __init__(
        self,
        title: str,
        schema: pa.Schema,
        read: Callable[[int | None], Iterator[pa.RecordBatch]],
        counted: Callable[[], int] | None = None,
    ) -> None:
        self.schema = schema
        self._text = title
        self._read = read
        self._counted = counted

    def _title(self) -> str:
        return self._text

    def _facts(self) -> Facts:
        yield "columns", ", ".join(self.schema.names)

    def _repr_html_(self) -> str:
        try:
            first = self.head(_SHOWN).to_pylist()
        except Exception:  # the files may have been removed meanwhile, and a notebook shows objects at any time
            first = []
        return super()._repr_html_() + _as_html(self.schema.names, first)

    @cached_property
    def _number(self) -> int:
        return sum(batch.num_rows for batch in self.to_batches()) if self._counted is None else self._counted()

    def __len__(self) -> int:
        """Return the number of rows; the first call reads them, or the columns that suffice to count them."""
        return self._number

    def __bool__(self) -> bool:
        return any(batch.num_rows for batch in self._read(1))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.to_batches():
            yield from batch.to_pylist()

    def head(self, limit: int = 10) -> pa.Table:
        """Return the first rows; no more than needed is read."""
        import pyarrow as pa

        return pa.Table.from_batches(self._read(limit), self.schema).slice(0, limit)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows batch by batch, in little memory."""
        return self._read(None)

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table in memory."""
        import pyarrow as pa

        return pa.Table.from_batches(self.to_batches(), self.schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows as an Arrow stream, batch by batch, for libraries that read one, as Polars and DuckDB do."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches()).__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame`. Raises UnsupportedError if pandas is not installed."""
        _require("pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return a `polars.DataFrame`. Raises UnsupportedError if polars is not installed."""
        return _require("polars").from_arrow(self.to_arrow())

    def to_duckdb(self, connection: Any = None) -> Any:
        """Return a relation of DuckDB, in its default connection or the given one. Raises UnsupportedError if it is not installed."""
        duckdb = _require("duckdb")
        return duckdb.from_arrow(self.to_arrow(), connection=connection or duckdb.default_connection())


def first_rows(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the first `limit` rows, all if it is None. No batch is empty, and no more batches are read than are needed."""
    left = limit
    while left is None or left > 0:
        batch = next(batches, None)
        if batch is None:
            return
        if left is not None:
            batch = batch.slice(0, left)
            left -= batch.num_rows
        if batch.num_rows:
            yield batch


def _require(library: str) -> Any:
    if find_spec(library) is None:
        raise UnsupportedError(f"{library} is not installed: `pip install {library}`, or use to_arrow, which needs nothing more")
    return import_module(library)


def _as_html(names: list[str], rows: list[dict[str, Any]]) -> str:
    import html

    def cell(value: object) -> str:
        text = "" if value is None else str(value)
        return html.escape(text if len(text) <= 60 else f"{text[:57]}...")

    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{cell(row[name])}</td>" for name in names) + "</tr>" for row in rows)
    more = f"<caption>the first {count(len(rows), 'row')}</caption>" if rows else ""
    return f"<table>{more}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def counted(read: Callable[[int | None, Sequence[str]], Iterator[pa.RecordBatch]], name: str) -> Callable[[], int]:
    """Return what counts the rows, reading one column."""
    return lambda: sum(batch.num_rows for batch in read(None, (name,)))


def least(*limits: int | None) -> int | None:
    """Return the least of the limits that are given."""
    return min((limit for limit in limits if limit is not None), default=None)


def names_of(given: Names) -> frozenset[str] | None:
    """Return one name, or several, as a set."""
    return None if given is None else frozenset((given,) if isinstance(given, str) else given)
