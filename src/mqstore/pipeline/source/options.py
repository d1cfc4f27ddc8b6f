"""Options of `spark.read.format("rocketmq")`, validated; `mqstore.pipeline.source.rocketmq` documents them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mqstore.errors import UsageError
from mqstore.pipeline.source.pushdown import filters_from
from mqstore.pipeline.source.stores import STORE, boolean, parse_fs_options, split_names, store_paths
from mqstore.table.columns import ROCKETMQ_COLUMNS, Selection, check_columns, rocketmq_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

__all__ = ["ReadOptions", "message_columns", "message_fields", "table_columns"]

MODES = ("PERMISSIVE", "FAILFAST")


def message_columns(names: Iterable[str]) -> tuple[str, ...]:
    """Check column names, among which `store` is allowed. Raises UsageError."""
    chosen = tuple(names)
    check_columns(name for name in chosen if name != STORE)
    if not chosen:
        raise UsageError("no column is given; omit the option to get all of them")
    return chosen


def message_fields(columns: Sequence[str]) -> list[pa.Field]:
    """Return the Arrow fields of message columns, `store` among them."""
    import pyarrow as pa

    return [pa.field(STORE, pa.string()) if name == STORE else rocketmq_schema((name,)).field(0) for name in columns]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read. columns: None if a schema or the default decides. fs_options: how URLs are reached."""

    paths: tuple[str, ...]
    config: str | None
    selection: Selection
    fail_fast: bool
    fail_on_data_loss: bool
    use_derived_files: bool
    filters: tuple[Filter, ...]
    columns: tuple[str, ...]
    fs_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, options: Any) -> ReadOptions:
        """Parse the options. Raises UsageError with the name of the option."""
        view = options.get("view", "disk")
        if view != "disk":
            raise UsageError(f"the view {view!r} is not available on Spark, which reads the disk view")
        mode = options.get("mode", "PERMISSIVE").upper()
        if mode not in MODES:
            raise UsageError(f"option mode is {options['mode']!r}: give {' or '.join(MODES)}")
        paths = store_paths(options)
        return cls(
            paths,
            options.get("config"),
            _selection(options),
            mode == "FAILFAST",
            boolean(options, "failOnDataLoss", True),
            boolean(options, "useDerivedFiles", True),
            filters_from(options.get("filters")),
            _columns(options, len(paths) > 1),
            parse_fs_options(options),
        )


def table_columns(options: Any) -> tuple[str, ...]:
    """Return the columns that the options request, or the default ones. Raises UsageError."""
    return _columns(options, len(store_paths(options)) > 1)


def _columns(options: Any, several: bool) -> tuple[str, ...]:
    named = options.get("columns")
    headers = None if options.get("includeHeaders") is None else boolean(options, "includeHeaders", False)
    if named is not None:
        chosen = message_columns(split_names(named))
        return (*chosen, "properties") if headers and "properties" not in chosen else chosen
    default = tuple(name for name in ROCKETMQ_COLUMNS if headers is not False or name != "properties")
    return (*default, STORE) if several else default


def _selection(options: Any) -> Selection:
    queue_ids = _split_names(options.get("queueId"), ",")
    try:
        ids = None if queue_ids is None else frozenset(int(text) for text in queue_ids)
    except ValueError:
        raise UsageError(f"option queueId is {options['queueId']!r}: give numbers, separated by commas") from None
    return Selection(
        topics=_split_names(options.get("topic"), ","),
        queue_ids=ids,
        keys=_split_names(options.get("keys"), " "),
        from_offset=_bound_option(options, "startingOffsets", "earliest"),
        to_offset=_bound_option(options, "endingOffsets", "latest"),
        from_queue_offset=_bound_option(options, "startingQueueOffset", "earliest"),
        to_queue_offset=_bound_option(options, "endingQueueOffset", "latest"),
        since=_bound_option(options, "startingTimestamp", "earliest"),
        until=_bound_option(options, "endingTimestamp", "latest"),
    )


def _bound_option(options: Any, name: str, word: str) -> int | None:
    text = options.get(name)
    if text is None or text == word:
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"option {name} is {text!r}: give a number or {word!r}") from None


def _split_names(text: str | None, separator: str) -> frozenset[str] | None:
    names = None if text is None else frozenset(part for part in (part.strip() for part in text.split(separator)) if part)
    return names or None
