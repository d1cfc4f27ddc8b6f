"""Columns of the message table: names and Arrow types, the same in JSON rows, Arrow batches, DataFrames and exports.

Column names are fixed (docs/guide/message-table.md). Batches hold the requested columns, in the order of the request.
A store holds times in milliseconds since the epoch; they are `timestamp[us, UTC]` in Arrow and integers of milliseconds in JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from mqstore.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

ROCKETMQ_COLUMNS = (
    "topic",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "size",
    "tags",
    "keys",
    "uniq_key",
    "body",
    "body_crc",
    "body_crc_ok",
    "flag",
    "sys_flag",
    "reconsume_times",
    "prepared_transaction_offset",
    "born_timestamp",
    "born_host",
    "store_timestamp",
    "store_host",
    "msg_id",
    "properties",
    "store_file",
    "verdict",
)

# returned on request, not part of the default table: the body's length and digest, and its length as stored (compressed)
EXTRA_COLUMNS = ("body_len", "body_sha256", "stored_body_len")

RABBITMQ_COLUMNS = (
    "vhost",
    "queue",
    "priority_level",
    "queue_version",
    "pos",
    "seq_id",
    "persistent",
    "expiry_us",
    "size",
    "msg_id",
    "redelivered",
    "location",
    "exchange",
    "routing_keys",
    "properties",
    "payload",
    "recovered",
    "store_file",
    "position",
    "verdict",
    "queue_type",
    "raft_index",
    "delivery_count",
    "acquired_count",
    "state",
    "stream_offset",
    "chunk_timestamp",
)
CLASSIC, QUORUM, STREAM = QUEUE_TYPES = ("classic", "quorum", "stream")

# returned on request: the payload's length, digest and base64; the properties as one JSON text; whether the time to live has passed at
# `now`; whether the index marks the message as delivered (version 1); a record of a stream as it is stored, in base64
RABBITMQ_EXTRA_COLUMNS = ("payload_len", "payload_sha256", "payload_b64", "properties_json", "expired", "delivered_marker", "entry_b64")

# fields of the struct column `properties`, in AMQP's order; the value of a header is JSON text
RABBITMQ_PROPERTIES = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)

TIME_COLUMNS = frozenset({"born_timestamp", "store_timestamp"})


@cache
def _types() -> dict[str, pa.DataType]:
    import pyarrow as pa

    time = pa.timestamp("us", "UTC")
    return {
        "topic": pa.string(),
        "queue_id": pa.int32(),
        "queue_offset": pa.int64(),
        "physical_offset": pa.int64(),
        "size": pa.int32(),
        "tags": pa.string(),
        "keys": pa.list_(pa.string()),
        "uniq_key": pa.string(),
        "body": pa.binary(),
        "body_crc": pa.int32(),
        "body_crc_ok": pa.bool_(),
        "flag": pa.int32(),
        "sys_flag": pa.int32(),
        "reconsume_times": pa.int32(),
        "prepared_transaction_offset": pa.int64(),
        "born_timestamp": time,
        "born_host": pa.string(),
        "store_timestamp": time,
        "store_host": pa.string(),
        "msg_id": pa.string(),
        "properties": pa.map_(pa.string(), pa.string()),
        "store_file": pa.string(),
        "verdict": pa.string(),
        "body_len": pa.int32(),
        "body_sha256": pa.string(),
        "stored_body_len": pa.int32(),
    }


def check_columns(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names as a tuple. Raises UsageError for an unknown column."""
    return _known(names, ROCKETMQ_COLUMNS + EXTRA_COLUMNS)


def _known(names: Iterable[str], columns: tuple[str, ...]) -> tuple[str, ...]:
    selected = tuple(names)
    for name in selected:
        if name not in columns:
            raise UsageError(f"there is no column {name!r}; the columns are {', '.join(columns)}")
    return selected


def rocketmq_schema(names: Sequence[str] = ROCKETMQ_COLUMNS) -> pa.Schema:
    """Return the Arrow schema of the named columns, in that order; every column is nullable."""
    import pyarrow as pa

    types = _types()
    return pa.schema([pa.field(name, types[name]) for name in check_columns(names)])


@cache
def _rabbitmq_types() -> dict[str, pa.DataType]:
    import pyarrow as pa

    header = pa.struct([("name", pa.string()), ("type", pa.string()), ("value", pa.string())])
    numbers = {"delivery_mode": pa.int32(), "priority": pa.int32(), "timestamp": pa.int64(), "headers": pa.list_(header)}
    return {
        "vhost": pa.string(),
        "queue": pa.string(),
        "priority_level": pa.int32(),
        "queue_version": pa.int32(),
        "pos": pa.int64(),
        "seq_id": pa.int64(),
        "persistent": pa.bool_(),
        "expiry_us": pa.int64(),
        "size": pa.int64(),
        "msg_id": pa.string(),
        "redelivered": pa.bool_(),
        "location": pa.string(),
        "exchange": pa.string(),
        "routing_keys": pa.list_(pa.string()),
        "properties": pa.struct([(name, numbers.get(name, pa.string())) for name in RABBITMQ_PROPERTIES]),
        "payload": pa.binary(),
        "recovered": pa.bool_(),
        "store_file": pa.string(),
        "position": pa.int64(),
        "verdict": pa.string(),
        "queue_type": pa.string(),
        "raft_index": pa.int64(),
        "delivery_count": pa.int64(),
        "acquired_count": pa.int64(),
        "state": pa.string(),
        "stream_offset": pa.int64(),
        "chunk_timestamp": pa.int64(),
        "payload_len": pa.int64(),
        "payload_sha256": pa.string(),
        "payload_b64": pa.string(),
        "properties_json": pa.string(),
        "expired": pa.bool_(),
        "delivered_marker": pa.bool_(),
        "entry_b64": pa.string(),
    }


def check_rabbitmq_columns(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names as a tuple. Raises UsageError for an unknown column of the RabbitMQ message table."""
    return _known(names, RABBITMQ_COLUMNS + RABBITMQ_EXTRA_COLUMNS)


def rabbitmq_schema(names: Sequence[str] = RABBITMQ_COLUMNS) -> pa.Schema:
    """Return the Arrow schema of the named columns of the RabbitMQ message table, in that order; every column is nullable."""
    import pyarrow as pa

    types = _rabbitmq_types()
    return pa.schema([pa.field(name, types[name]) for name in check_rabbitmq_columns(names)])


@dataclass(frozen=True, slots=True)
class QueueSelection:
    """Messages of a RabbitMQ store: every condition that is not None must hold. Ranges are half open: from <= value < to.

    vhosts, queues: names; the plain name for a priority queue. from_seq, to_seq: sequence ids. recovered: whether the broker would
    recover the message. verdicts: values of `findings.Verdict`. grep: searched for in the payload. everything: include messages that no
    queue holds: acknowledged ones still in the files, stored ones without an index entry, and duplicates. queue_types: of QUEUE_TYPES.
    from_offset, to_offset: of streams. filter_values: of streams: messages that have one of these, or may have it, for clients of the
    stream protocol do not store it.
    """

    vhosts: frozenset[str] | None = None
    queues: frozenset[str] | None = None
    from_seq: int | None = None
    to_seq: int | None = None
    recovered: bool | None = None
    verdicts: frozenset[str] | None = None
    grep: re.Pattern[bytes] | None = None
    everything: bool = False
    limit: int | None = None
    queue_types: frozenset[str] | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    filter_values: frozenset[str] | None = None

    def has_type(self, name: str) -> bool:
        """Return whether queues of a type are chosen: sequence ids are those of classic queues, offsets and filters of streams."""
        if self.queue_types is not None and name not in self.queue_types:
            return False
        if (self.from_seq, self.to_seq) != (None, None) and name != CLASSIC:
            return False
        return (self.from_offset, self.to_offset, self.filter_values) == (None, None, None) or name == STREAM

    def has_queue(self, vhost: str | None, queue: str) -> bool:
        """Return whether a queue is among those chosen by name."""
        return (self.vhosts is None or vhost in self.vhosts) and (self.queues is None or queue in self.queues)

    def has_message(self, payload: bytes | None, verdict: str) -> bool:
        """Return whether a message meets the conditions on its contents. payload: None if it is not there."""
        searched = self.grep is None or (payload is not None and self.grep.search(payload) is not None)
        return searched and (self.verdicts is None or verdict in self.verdicts)

    def __post_init__(self) -> None:
        unknown = sorted((self.queue_types or frozenset()) - set(QUEUE_TYPES))
        if unknown:
            raise UsageError(f"{unknown[0]!r} is not a type of queue; the types are {', '.join(QUEUE_TYPES)}")
        if self.from_seq is not None and self.to_seq is not None and self.from_seq > self.to_seq:
            raise UsageError(f"the range of sequence ids is empty: {self.from_seq} is after {self.to_seq}")
        if self.from_offset is not None and self.to_offset is not None and self.from_offset > self.to_offset:
            raise UsageError(f"the range of offsets is empty: {self.from_offset} is after {self.to_offset}")


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Messages of one queue of a RocketMQ store: queue offsets and store times in milliseconds, from <= value < to."""

    topic: str
    queue_id: int
    from_offset: int | None = None
    to_offset: int | None = None
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """Messages of a RocketMQ store: every condition that is not None must hold. Ranges are half open: from <= value < to.

    from_offset, to_offset: physical offsets. from_queue_offset, to_queue_offset: queue offsets.
    since, until: store time in milliseconds. keys: at least one of them is in KEYS or is the UNIQ_KEY.
    grep: searched for in the decompressed body. topic_pattern: matches the whole topic. by_queue: holds for the messages of these queues.
    """

    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    from_queue_offset: int | None = None
    to_queue_offset: int | None = None
    since: int | None = None
    until: int | None = None
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    grep: re.Pattern[bytes] | None = None
    limit: int | None = None
    topic_pattern: re.Pattern[str] | None = None
    by_queue: tuple[QueueBounds, ...] = ()

    def __post_init__(self) -> None:
        for low, high, what in (
            (self.from_offset, self.to_offset, "offset"),
            (self.from_queue_offset, self.to_queue_offset, "queue offset"),
            (self.since, self.until, "time"),
        ):
            if low is not None and high is not None and low > high:
                raise UsageError(f"the {what} range is empty: {low} is after {high}")
