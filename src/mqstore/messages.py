"""The message table: column names and Arrow types, the same in JSON rows, Arrow batches, DataFrames and exports.

Column names are fixed (docs/guide/message-table.md). Batches hold the columns that were asked for, in that order.
Times are milliseconds since the epoch in a store; in Arrow they are `timestamp[us, UTC]`, in JSON integers of milliseconds.
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

__all__ = ["EXTRA_COLUMNS", "ROCKETMQ_COLUMNS", "TIME_COLUMNS", "Selection", "check_columns", "rocketmq_schema"]

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

# given when named, not part of the default table: the body told by length and digest, and the length as stored
EXTRA_COLUMNS = ("body_len", "body_sha256", "stored_body_len")

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
    """The names as a tuple. Raises UsageError for a name that is no column."""
    wanted = tuple(names)
    unknown = [name for name in wanted if name not in ROCKETMQ_COLUMNS and name not in EXTRA_COLUMNS]
    if unknown:
        raise UsageError(f"there is no column {unknown[0]!r}; the columns are {', '.join(ROCKETMQ_COLUMNS + EXTRA_COLUMNS)}")
    return wanted


def rocketmq_schema(names: Sequence[str] = ROCKETMQ_COLUMNS) -> pa.Schema:
    """Arrow schema of the named columns, in that order; every column is nullable."""
    import pyarrow as pa

    types = _types()
    return pa.schema([pa.field(name, types[name]) for name in check_columns(names)])


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages: every condition that is not None must hold. Ranges are half open: from <= value < to.

    from_offset, to_offset: physical offsets. from_queue_offset, to_queue_offset: queue offsets.
    since, until: store time in milliseconds. keys: at least one of them is in KEYS or is the UNIQ_KEY.
    grep: searched in the decompressed body.
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

    def __post_init__(self) -> None:
        for low, high, what in (
            (self.from_offset, self.to_offset, "offset"),
            (self.from_queue_offset, self.to_queue_offset, "queue offset"),
            (self.since, self.until, "time"),
        ):
            if low is not None and high is not None and low > high:
                raise UsageError(f"the {what} range is empty: {low} lies behind {high}")
