"""The options of a read of RabbitMQ stores, for a batch and for a stream; the views and their columns.

The options are listed in `mqstore.pipeline.source.rabbitmq` and `mqstore.pipeline.source.rabbitmq_stream`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.errors import UnsupportedError, UsageError
from mqstore.files.archive import refuse_packed
from mqstore.findings import Verdict
from mqstore.pipeline.source.options import RABBITMQ, RABBITMQ_STREAM_ONLY, checked
from mqstore.pipeline.source.pushdown import filters_from
from mqstore.pipeline.source.stores import STORE, boolean, canonical, fails_fast, reported, split_names, store_paths
from mqstore.pipeline.spark.source_api import Filter
from mqstore.places import find_store
from mqstore.rabbitmq.definitions.document import read_queue_names
from mqstore.rabbitmq.store import task_groups
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.table.columns import RABBITMQ_COLUMNS, RABBITMQ_EXTRA_COLUMNS, QueueSelection, check_rabbitmq_columns, rabbitmq_schema
from mqstore.table.formatting import parse_time

if TYPE_CHECKING:
    import pyarrow as pa

VIEWS = ("messages", "index", "store", "refusals")


@dataclass(frozen=True, slots=True)
class RabbitMQOptions:
    """The options of a read."""

    paths: tuple[str, ...]
    view: str
    columns: tuple[str, ...]
    selection: QueueSelection
    now: int | None
    splits: int | None
    names: tuple[tuple[str, str], ...] = ()
    fail_fast: bool = False
    reported: int | None = None
    filters: tuple[Filter, ...] = ()

    @classmethod
    def of_stream(cls, options: Mapping[str, str]) -> RabbitMQOptions:
        """Parse the options that a stream and a batch share; a schema does not know which it is for. Raises UsageError."""
        own = {name.lower() for name in RABBITMQ_STREAM_ONLY}
        return cls.of({name: text for name, text in options.items() if name.lower() not in own})

    @classmethod
    def of(cls, options: Any) -> RabbitMQOptions:
        """Parse the options. Raises UsageError with the option's name."""
        options = checked(options, RABBITMQ, "a read of rabbitmq")
        view = options.get("view", "messages")
        if view not in VIEWS:
            raise UsageError(f"a RabbitMQ store has no view {view!r}; give {', '.join(VIEWS)}")
        paths = store_paths(options)
        named = options.get("columns")
        default = (*columns_of(view), STORE) if len(paths) > 1 else columns_of(view)
        columns = default if named is None else spelt(view, split_names(named))
        if not columns:
            raise UsageError("option columns is empty; omit it to read all columns")
        at = options.get("at", options.get("now"))
        splits = _integer_option(options, "splits")
        if splits is not None and splits < 1:
            raise UsageError(f"the number of splits must be at least 1 (got {splits})")
        fields(view, columns)
        names = options.get("names")
        known = () if names is None else read_queue_names(Path(names))
        now = None if at is None else parse_time(at, "at") * 1000
        filters = filters_from(options.get("filters"))
        return cls(paths, view, columns, _selection(options), now, splits, known, fails_fast(options), reported(options), filters)


def columns_of(view: str) -> tuple[str, ...]:
    known = {"index": task_groups.INDEX_COLUMNS, "store": task_groups.STORE_COLUMNS, "refusals": task_groups.REFUSAL_COLUMNS}
    return known.get(view, RABBITMQ_COLUMNS)


def all_columns(view: str) -> tuple[str, ...]:
    return (*columns_of(view), *(RABBITMQ_EXTRA_COLUMNS if view == "messages" else ()), STORE)


def spelt(view: str, names: Iterable[str]) -> tuple[str, ...]:
    return canonical(names, all_columns(view))


def fields(view: str, columns: Sequence[str]) -> list[pa.Field]:
    """Return the Arrow fields of these columns of a view, `store` among them. Raises UsageError."""
    import pyarrow as pa

    others = [name for name in columns if name != STORE]
    if view == "messages":
        schema = rabbitmq_schema(check_rabbitmq_columns(others))
    else:
        schema = {"index": task_groups.index_schema, "store": task_groups.store_schema, "refusals": task_groups.refusal_schema}[view]()
        unknown = [name for name in others if name not in schema.names]
        if unknown:
            raise UsageError(f"the view {view} has no column {unknown[0]!r}; its columns are {', '.join(schema.names)}")
    return [pa.field(STORE, pa.string()) if name == STORE else schema.field(name) for name in columns]


def _selection(options: Any) -> QueueSelection:
    verdicts = _names_option(options, "verdict")
    known = [str(verdict) for verdict in Verdict]
    for verdict in verdicts or ():
        if verdict not in known:
            raise UsageError(f"option verdict is {verdict!r}; give one of {', '.join(known)}")
    return QueueSelection(
        vhosts=_names_option(options, "vhost"),
        queues=_names_option(options, "queue"),
        from_seq=_integer_option(options, "fromSeq"),
        to_seq=_integer_option(options, "toSeq"),
        recovered=None if options.get("recovered") is None else boolean(options, "recovered", True),
        verdicts=verdicts,
        everything=boolean(options, "all", False),
        queue_types=_names_option(options, "queueType"),
        from_offset=_integer_option(options, "fromOffset"),
        to_offset=_integer_option(options, "toOffset"),
        filter_values=_names_option(options, "filterValue"),
    )


def _names_option(options: Any, name: str) -> frozenset[str] | None:
    text = options.get(name)
    return None if text is None else frozenset(split_names(text)) or None


def _integer_option(options: Any, name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"option {name} is {text!r}; give a number") from None


def open_rabbitmq(path: str, names: tuple[tuple[str, str], ...] = ()) -> RabbitMQStore:
    """Return the store at a path that every task can open again.

    Raises CannotOpenError for an archive, UnsupportedError for a RocketMQ store.
    """
    refuse_packed(path)
    located = find_store(Path(path))
    if located.family != "rabbitmq":
        raise UnsupportedError(f'{path} is a RocketMQ store; read it with format("rocketmq")')
    return RabbitMQStore.at(located, names=names)
