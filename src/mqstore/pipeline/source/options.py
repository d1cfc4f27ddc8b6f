"""Options of `spark.read.format("rocketmq")`, validated; `mqstore.pipeline.source.rocketmq` documents them.

The options of each format are listed. Any other is refused, with the one that may have been meant: an option that is ignored changes the
result.

Options that readers of Kafka know have the same names here where they mean the same; `subscribe` and `maxOffsetsPerTrigger` are other
names of `topic` and `maxRowsPerTrigger`.

    >>> checked({"subscribe": "orders"}, BATCH, "a batch of rocketmq")["topic"]
    'orders'
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mqstore.errors import UsageError
from mqstore.pipeline.source.pushdown import filters_from
from mqstore.pipeline.source.stores import STORE, boolean, canonical, fails_fast, parse_fs_options, reported, split_names, store_paths
from mqstore.pipeline.spark.source_api import CaseInsensitiveDict
from mqstore.table.columns import EXTRA_COLUMNS, ROCKETMQ_COLUMNS, QueueBounds, Selection, check_columns, rocketmq_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.pipeline.spark.source_api import Filter

# names

TABLE = ("columns", "config", "mode")
_MESSAGES = (
    *TABLE,
    "includeHeaders",
    "topic",
    "subscribe",
    "subscribePattern",
    "queueId",
    "keys",
    "startingOffsets",
    "startingQueueOffset",
    "endingQueueOffset",
    "startingTimestamp",
    "failOnDataLoss",
    "minPartitions",
    "view",
)
_BY_QUEUE = ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp")
_DELAYED = ("minOffsetsPerTrigger", "maxTriggerDelay")
BATCH = (*_MESSAGES, "endingOffsets", "endingTimestamp", *_BY_QUEUE, "useDerivedFiles")
STREAM = (*_MESSAGES, _BY_QUEUE[0], "maxRowsPerTrigger", "maxOffsetsPerTrigger", "maxBytesPerTrigger", *_DELAYED)
RABBITMQ = (
    "view",
    "columns",
    "vhost",
    "queue",
    "queueType",
    "fromSeq",
    "toSeq",
    "fromOffset",
    "toOffset",
    "filterValue",
    "recovered",
    "verdict",
    "all",
    "at",
    "now",
    "names",
    "splits",
    "mode",
)
RABBITMQ_STREAM_ONLY = ("startingOffsets", "failOnDataLoss", "maxRowsPerTrigger", "maxOffsetsPerTrigger")
RABBITMQ_STREAM = (
    "columns",
    "vhost",
    "queue",
    "queueType",
    "filterValue",
    "verdict",
    "at",
    "names",
    *RABBITMQ_STREAM_ONLY,
)
SINK = (
    "writable",
    "runId",
    "batchId",
    "staging",
    "create",
    "version",
    "config",
    "storeHost",
    "lockTimeout",
    "checkpointLocation",
)

# what Spark, or `pipeline.read`, adds to the options that a user gives
_ADDED = ("path", "paths", "filters", "reported")
_SAME = {"subscribe": "topic", "maxOffsetsPerTrigger": "maxRowsPerTrigger"}
# options of Kafka's reader that have no equal here
_HINTS = {
    "assign": "give topic and queueId",
    "startingoffsetsbytimestamp": "give startingTimestamp",
    "endingoffsetsbytimestamp": "give endingTimestamp",
    "minoffsetspertrigger": "it delays the batches of a stream",
    "maxtriggerdelay": "it delays the batches of a stream",
    "endingoffsets": "it follows the log; read it as a batch, or use trigger(availableNow=True)",
    "endingtimestamp": "it follows the log; read it as a batch, or use trigger(availableNow=True)",
    "maxrowspertrigger": "it limits the batches of a stream",
    "maxoffsetspertrigger": "it limits the batches of a stream",
    "maxbytespertrigger": "it limits the batches of a stream",
    "usederivedfiles": "a stream reads the log",
}


def checked(options: Mapping[str, str], known: Sequence[str], what: str) -> CaseInsensitiveDict:
    """Return the options, each under one name. what: who has them, such as `a stream`. Raises UsageError for an unknown option."""
    spelt = {name.lower(): name for name in (*known, *_ADDED)}
    named = CaseInsensitiveDict(dict(options))
    for name in options:
        if name.lower() not in spelt and not name.lower().startswith("fs."):
            raise UsageError(f"{what} has no option {name!r}{_advice(name.lower(), known)}")
    for other, name in _SAME.items():
        if other in named and name in named:
            raise UsageError(f"the options {name} and {other} mean the same: give one of them")
        if other in named:
            named[name] = named.pop(other.lower())
    if "topic" in named and "subscribePattern" in named:
        raise UsageError("the options topic (or subscribe) and subscribePattern exclude each other: give one of them")
    return named


def _advice(name: str, known: Sequence[str]) -> str:
    if name.startswith("kafka."):
        return ": a store is read from its directory, without a server"
    if name in _HINTS:
        return f": {_HINTS[name]}"
    spelt = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name, spelt, 1, 0.7)
    return f"; did you mean {spelt[near[0]]}?" if near else f"; its options are {', '.join(known)}"


# options of rocketmq

_KAFKA_NUMBERS = {"earliest": -2, "latest": -1}


def message_columns(names: Iterable[str]) -> tuple[str, ...]:
    """Return column names, among which `store` is allowed, as the table spells them. Raises UsageError."""
    chosen = canonical(names, (*ROCKETMQ_COLUMNS, *EXTRA_COLUMNS, STORE))
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
    """The options of a read. pieces: minimum number of its tasks. fs_options: how URLs are reached.

    reported: number of skipped stores that `read` has reported; None if it has not looked.
    """

    paths: tuple[str, ...]
    config: str | None
    selection: Selection
    fail_fast: bool
    fail_on_data_loss: bool
    use_derived_files: bool
    filters: tuple[Filter, ...]
    columns: tuple[str, ...]
    pieces: int = 0
    fs_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    reported: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str], known: Sequence[str] = BATCH, what: str = "a read of rocketmq") -> ReadOptions:
        """Parse the options, of which `known` are allowed. Raises UsageError with the name of the option."""
        options = checked(options, known, what)
        view = options.get("view", "disk")
        if view != "disk":
            raise UsageError(f"the view {view!r} is not available on Spark, which reads the disk view")
        paths = store_paths(options)
        return cls(
            paths,
            options.get("config"),
            _selection(options),
            fails_fast(options),
            boolean(options, "failOnDataLoss", True),
            boolean(options, "useDerivedFiles", True),
            filters_from(options.get("filters")),
            _columns(options, len(paths) > 1),
            count_option(options, "minPartitions", 1) or 0,
            parse_fs_options(options),
            reported(options),
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
        topic_pattern=_pattern(options.get("subscribePattern")),
        queue_ids=ids,
        keys=_split_names(options.get("keys"), " "),
        by_queue=_by_queue(options),
        from_offset=_bound_option(options, "startingOffsets", "earliest"),
        to_offset=_bound_option(options, "endingOffsets", "latest"),
        from_queue_offset=_bound_option(options, "startingQueueOffset", "earliest"),
        to_queue_offset=_bound_option(options, "endingQueueOffset", "latest"),
        since=_bound_option(options, "startingTimestamp", "earliest"),
        until=_bound_option(options, "endingTimestamp", "latest"),
    )


def _bound_option(options: Any, name: str, word: str) -> int | None:
    text = options.get(name)
    if text is None or text.lower() == word or _is_by_queue(name, text):
        return None
    try:
        bound = int(text)
    except ValueError:
        raise UsageError(f"option {name} is {text!r}: give a number or {word!r}") from None
    if bound < 0 and name in ("startingOffsets", "endingOffsets"):
        if bound == _KAFKA_NUMBERS[word]:
            return None
        raise UsageError(f"option {name} is {bound}: give a number of 0 or more, or {word!r}")
    return bound


def _is_by_queue(name: str, text: str) -> bool:
    """Return whether an option states offsets by topic and queue, as Kafka's does."""
    return name in _BY_QUEUE or (name in ("startingOffsets", "endingOffsets") and text.lstrip().startswith("{"))


def _by_queue(options: Any) -> tuple[QueueBounds, ...]:
    ranges: dict[tuple[str, int], dict[str, Any]] = {}
    for name, bound in zip(("startingOffsets", "endingOffsets", *_BY_QUEUE), ("from_offset", "to_offset", "since", "until"), strict=True):
        text = options.get(name)
        if text is None or not _is_by_queue(name, text):
            continue
        word = "earliest" if bound in ("from_offset", "since") else "latest"
        for queue, value in _of_queues(name, text, None if name in _BY_QUEUE else _KAFKA_NUMBERS[word]):
            ranges.setdefault(queue, {})[bound] = value
    return tuple(QueueBounds(*queue, **bounds) for queue, bounds in ranges.items())


def _of_queues(name: str, text: str, unbounded: int | None) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield the topic and id of each queue in an option, and its value, except for those that are unbounded. Raises UsageError."""
    try:
        for topic, queues in json.loads(text).items():
            for queue_id, value in queues.items():
                if type(value) is not int or (value < 0 and value != unbounded):
                    raise ValueError
                if value != unbounded:
                    yield (topic, int(queue_id)), value
    except (ValueError, AttributeError):
        also = "" if unbounded is None else f" ({unbounded} for {'earliest' if unbounded == -2 else 'latest'})"
        raise UsageError(
            f'option {name} is {text!r}: give numbers of 0 or more{also} by topic and queue, such as {{"orders": {{"0": 23}}}}'
        ) from None


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise UsageError(f"option subscribePattern is {text!r}, which is not a regular expression: {error}") from None


def count_option(options: Mapping[str, str], name: str, least: int) -> int | None:
    """Return an option that is a number, None if it is not given. Raises UsageError."""
    text = options.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise UsageError(f"option {name} is {text!r}: give a number of {least} or more")
    return int(text)


def _split_names(text: str | None, separator: str) -> frozenset[str] | None:
    names = None if text is None else frozenset(part for part in (part.strip() for part in text.split(separator)) if part)
    return names or None
