"""What the stores of both families share: rows of SQL, names and limits of selections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from mqstore.files.location import Url
from mqstore.table.rows import Rows

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.rocketmq.store.store import RocketMQStore

Names = str | Iterable[str] | None


def result(store: RocketMQStore | RabbitMQStore, query: str, columns: Sequence[str] | None) -> Rows:
    """Return the result of a query in DuckDB."""
    from mqstore.pipeline.queries.duck import StoreTables

    path = store.path if isinstance(store.path, Url) else store.directory.root
    config = getattr(store, "config_path", None)
    with StoreTables(path, columns=columns, config=config, family=store.family) as tables:
        table = tables.table(query)
    return Rows(f"result of {' '.join(query.split())!r}", table.schema, lambda _: iter(table.to_batches()), lambda: table.num_rows)


def counted(read: Callable[[int | None, Sequence[str]], Iterator[pa.RecordBatch]], name: str) -> Callable[[], int]:
    """Return what counts the rows, reading one column."""
    return lambda: sum(batch.num_rows for batch in read(None, (name,)))


def least(*limits: int | None) -> int | None:
    """Return the least of the limits that are given."""
    return min((limit for limit in limits if limit is not None), default=None)


def names_of(given: Names) -> frozenset[str] | None:
    """Return one name, or several, as a set."""
    return None if given is None else frozenset((given,) if isinstance(given, str) else given)
