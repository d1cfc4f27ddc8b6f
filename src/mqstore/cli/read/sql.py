"""`sql`: a query over the tables of a store, in DuckDB in this process, or on Spark."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqstore.cli.common.arguments import Columns, Config, Store, column_names, option
from mqstore.cli.common.command import verb
from mqstore.cli.common.output import Output
from mqstore.errors import UsageError
from mqstore.report.parts import Column

if TYPE_CHECKING:
    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.rocketmq.store.store import RocketMQStore


def sql(
    out: Output,
    store: Store,
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="One SELECT over the tables: messages, index_entries, …", show_default=False)
    ],
    columns: Columns = None,
    master: Annotated[
        str | None, option("--master", metavar="URL", help="Run on Spark, on this master; by default in DuckDB, in this process.")
    ] = None,
    config: Config = None,
) -> int:
    """Run a SQL query over the tables of a store; only the columns and messages that it needs are read.

    RocketMQ: messages, queues, groups, damage, index_entries, timers, findings. RabbitMQ: messages, index_entries, records (of the message
    files), refusals. `messages` has the columns of the message table without the body; --columns topic,body,… chooses others. Times are
    UTC.
    """
    from mqstore.places import find_store
    from mqstore.rocketmq.store.log_site import notes_on_rows
    from mqstore.stores import open_at

    place = find_store(store)
    if place.family == "rabbitmq" and config is not None:
        raise UsageError("--config is for RocketMQ stores; a RabbitMQ store needs none")
    opened = open_at(place, config=config)
    if opened.family == "rocketmq" and master is None:  # a read with Spark warns of it
        out.notes(notes_on_rows(opened))
    _run(out, opened, query, column_names(columns, "--columns"), config, master)
    return 0


def _run(
    out: Output, opened: RocketMQStore | RabbitMQStore, query: str, names: Sequence[str] | None, config: Path | None, master: str | None
) -> None:
    if master is None:
        _in_duckdb(out, opened, query, names, config)
    else:
        _on_spark(out, opened, query, names, config, master)


def _place(opened: RocketMQStore | RabbitMQStore) -> Any:
    """Return the path or URL at which every reader can open the store again."""
    from mqstore.files.location import Url

    return opened.path if isinstance(opened.path, Url) else opened.directory.root


def _in_duckdb(out: Output, opened: RocketMQStore | RabbitMQStore, query: str, columns: Sequence[str] | None, config: Path | None) -> None:
    with out.progress("loading DuckDB"):
        from mqstore.pipeline.queries.duck import StoreTables

    with out.progress("running the query"), StoreTables(_place(opened), columns=columns, config=config, family=opened.family) as tables:
        result = tables.query(query)
        _print(out, result.names, result.numeric, result.rows)


def _on_spark(
    out: Output, opened: RocketMQStore | RabbitMQStore, query: str, columns: Sequence[str] | None, config: Path | None, master: str
) -> None:
    from mqstore import pipeline
    from mqstore.pipeline.queries.narrowing import rows_of

    with pipeline.running(master) as spark, out.progress("running the query"):
        settings: dict[str, Any] = {"format": opened.family} | ({} if config is None else {"config": config})
        names, numeric, rows = rows_of(spark, query, _place(opened), columns=columns, **settings)
        _print(out, names, numeric, rows)


def _print(out: Output, names: Sequence[str], numeric: Sequence[bool], rows: Iterable[Sequence[Any]]) -> None:
    """Print the rows in the format asked for, while they arrive."""
    if out.is_text:
        columns = [Column(name, right=number, flexible=not number) for name, number in zip(names, numeric, strict=True)]
        out.table(columns, ([_text(value) for value in row] for row in rows))
        return
    keys = _unique(names)
    out.records(keys, (dict(zip(keys, map(_plain, row), strict=True)) for row in rows))


def _unique(names: Sequence[str]) -> list[str]:
    """Return the names with a number after each repeated one."""
    unique: list[str] = []
    for name in names:
        candidates: Iterator[str] = (name if number == 1 else f"{name}_{number}" for number in range(1, len(names) + 1))
        unique.append(next(each for each in candidates if each not in unique))
    return unique


def _text(value: Any) -> str:
    """Return a value for a person."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        moved = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return moved.isoformat(" ", "microseconds" if moved.microsecond % 1000 else "milliseconds")
    plain = _plain(value)
    return plain if isinstance(plain, str) else str(plain).lower() if isinstance(plain, bool) else str(plain)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: an instant in milliseconds, bytes in base64, a whole decimal as a number."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return dict(value) if value and all(_is_pair(each) for each in value) else [_plain(each) for each in value]
    if isinstance(value, date | time):
        return value.isoformat()
    return value if value is None or isinstance(value, str | int | bool) else str(value)


def _is_pair(value: Any) -> bool:
    """Return whether a value is an entry of a map, as Arrow gives it."""
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(
        app,
        example='sql /backup/store "SELECT topic, count(*) AS messages FROM messages WHERE queue_id = 1 GROUP BY topic"',
    )(sql)
