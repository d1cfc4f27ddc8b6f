"""Lookups: queries to a broker for single records and single numbers.

    record_at(log, p)                      the record at a physical offset; not checked for being the start of one
    record_by_id(log, id)                  the same by the message id that a put returned: store host and physical offset
    query_message(files, log, topic, key)  the records with a key, by the index
    earliest_time, earliest_time_of_log    store time of the oldest message
    …

The broker's answers for "not found" are kept: -1 for times, 0 for offsets, None for records.

    >>> from mqstore.rocketmq.format.log_slices import LogFiles
    >>> from mqstore.rocketmq.format.record import Record, encode, offset_message_id, parse_host
    >>> log = LogFiles([(0, memoryview(encode(Record("T", b"body", store_timestamp=7))))], 1024)
    >>> record_at(log, 0).body, record_at(log, 1), earliest_time_of_log(log, "5.3.3"), earliest_time_of_log(log, "4.9.3")
    (b'body', None, 7, -1)
    >>> record_by_id(log, offset_message_id(parse_host("127.0.0.1:10911"), 0)).topic
    'T'

Format: docs/formats/rocketmq.md, sections 2.12, 10.4 and 10.5.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from mqstore.errors import UsageError
from mqstore.rocketmq.format.log_slices import LogSlices, store_timestamp_at, store_timestamp_in
from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.format.queue_page import PagedQueue, entry_at
from mqstore.rocketmq.format.record import (
    BORN_HOST_IPV6,
    PHYSICAL_OFFSET_AT,
    STORE_TIMESTAMP_AT,
    STORE_TIMESTAMP_AT_IPV6,
    SYS_FLAG_AT,
    Record,
    parse_message_id,
    record_or_none,
    records_of,
)
from mqstore.rocketmq.query.index_search import END_OF_TIME, MAX_RESULTS, IndexFileLike, query_messages

MAX_MESSAGE_SIZE = 4 << 20

_SIZE = struct.Struct(">i")


# in the log


def raw_record_at(log: LogSlices, physical: int) -> memoryview | None:
    """Return the bytes of the record at a physical offset, by the size field there; None if they are not readable."""
    readable = log.readable(physical)
    if readable is None:
        return None
    start, view = readable
    at = physical - start
    if at + 4 > len(view):
        return None
    (size,) = _SIZE.unpack_from(view, at)
    return view[at : at + size] if 0 <= size <= len(view) - at else None


def record_at(log: LogSlices, physical: int) -> Record | None:
    """Return the record at a physical offset, its body as stored; None if it cannot be decoded."""
    raw = raw_record_at(log, physical)
    return None if raw is None else record_or_none(raw)


def record_by_id(log: LogSlices, message_id: str) -> Record | None:
    """Return the record of a broker's message id. The store host is not compared. Raises UsageError."""
    try:
        _, physical = parse_message_id(message_id)
    except ValueError:
        raise UsageError(f"{message_id!r} is not a message id of a broker: these have 32 or 56 hexadecimal digits") from None
    return record_at(log, physical)


def earliest_time_of_log(log: LogSlices, version: str, max_message_size: int = MAX_MESSAGE_SIZE) -> int:
    """Return the store time of the record at the log's minimum, or -1. 4.9.3 requires room for two maximum messages in that file."""
    start = log.min_offset
    if not version_rules(version).reads_head_for_earliest:
        return store_timestamp_at(log, start, 2 * max_message_size, version)
    head = log.slice(start, STORE_TIMESTAMP_AT + 8)
    if head is not None and int.from_bytes(head[SYS_FLAG_AT : SYS_FLAG_AT + 4], "big") & BORN_HOST_IPV6:
        head = log.slice(start, STORE_TIMESTAMP_AT_IPV6 + 8)
    return -1 if head is None else store_timestamp_in(head)


# in a queue


def store_timestamp_of(queue: PagedQueue, log: LogSlices, offset: int, version: str) -> int:
    """Return the store time of the message at a queue offset, or -1."""
    entry = entry_at(queue, offset)
    return -1 if entry is None else store_timestamp_at(log, int(entry["physical_offset"]), int(entry["size"]), version)


def earliest_time(queue: PagedQueue, log: LogSlices, version: str) -> int:
    """Return the store time of the message at the queue's minimum, or -1."""
    return store_timestamp_of(queue, log, queue.min_offset, version)


# by the index


class QueryResult(NamedTuple):
    """The result of a key query: records in the order of the log.

    The last update is that of the newest index file; zeros if nothing was found.
    """

    slices: tuple[memoryview, ...]
    physical_offsets: tuple[int, ...]
    index_last_update_timestamp: int
    index_last_update_physical_offset: int

    @property
    def records(self) -> list[Record]:
        """The records, decoded; bytes that are not a record are left out. Neither topic nor key has been compared."""
        return records_of(self.slices)


def query_message(
    index_files: Sequence[IndexFileLike],
    log: LogSlices,
    topic: str,
    key: str,
    max_num: int = MAX_RESULTS,
    begin: int = 0,
    end: int = END_OF_TIME,
    *,
    cap: int = MAX_RESULTS,
) -> QueryResult:
    """Find the newest max_num (at most cap) records with the hash of `topic#key`, stored in [begin, end] by the index's times."""
    raws: dict[int, memoryview] = {}

    def stored(physical: int) -> int | None:
        raw = raw_record_at(log, physical)
        if raw is None or len(raw) < STORE_TIMESTAMP_AT + 8:
            return None
        if physical == 0 and raw[PHYSICAL_OFFSET_AT:SYS_FLAG_AT] != bytes(8):
            return None  # the log starts later; unlike a pull, a key query does not fall back to the first file
        raws[physical] = raw
        return store_timestamp_in(raw)

    answer = query_messages(index_files, stored, topic, key, max_num, begin, end, cap=cap)
    return QueryResult(
        tuple(raws[physical] for physical in answer.offsets),
        answer.offsets,
        answer.last_update_timestamp,
        answer.last_update_physical_offset,
    )
