"""Pulling: the messages of a queue from an offset on, as a broker hands them to a consumer.

    queue is not there                  NO_MATCHED_LOGIC_QUEUE    next 0
    maximum is 0                        NO_MESSAGE_IN_QUEUE       next 0
    offset below the minimum            OFFSET_TOO_SMALL          next minimum
    offset at the maximum               OFFSET_OVERFLOW_ONE       next offset
    offset past the maximum             OFFSET_OVERFLOW_BADLY     next maximum (4.9.3 with minimum 0: 0)
    no queue file holds the offset      OFFSET_FOUND_NULL         next file of the queue
    otherwise a scan over the entries of one queue file:
        at least one message            FOUND
        no entry passes the filter      NO_MATCHED_MESSAGE        next after the last entry examined
        the records have left the log   MESSAGE_WAS_REMOVING

A scan ends at the end of the queue file, after 800 entries (more if more messages are requested), or when the batch is
full: the requested number of messages, 32 messages, or 256 KiB; 8 messages or 64 KiB if the records are so far before the
end of the log that they count as on disk. The first message always fits. If a record has left the log, so has its whole
log file, and the scan skips all entries that point into it.

5.3.3 differs: it continues with the next queue file while nothing is found (up to a configured number of files, 1 by
default), the caller may limit the bytes, and skipped entries count as examined.

`_scan_slow` applies these rules entry by entry. `_scan_fast` does the same for ordinary stretches and leaves all others to it.
A store that is open asks the pull kernel first, which handles the same stretches without a Python call in between.

Format: docs/formats/rocketmq.md, section 10.1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import UsageError
from mqstore.files import Bytes
from mqstore.kernels.rocketmq import batch_body, frames, pull_batch
from mqstore.kernels.rocketmq.pull import SCAN_HEADER, Limits, PullResult, scan
from mqstore.rocketmq.format import log_slices
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.format.consume_queue import ENTRY_SIZE
from mqstore.rocketmq.format.consume_queue_ext import is_address
from mqstore.rocketmq.format.log_slices import LogSlices
from mqstore.rocketmq.format.mapped_file_queue import QueueFile
from mqstore.rocketmq.format.profile import VersionRules, version_rules
from mqstore.rocketmq.format.queue_page import PagedQueue, page_from, roll_next_file, unit_size
from mqstore.rocketmq.format.record import Record, decode_properties, records_in, records_of
from mqstore.rocketmq.format.tag_filter import TagFilter
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.table.columns import EXTRA_COLUMNS, ROCKETMQ_COLUMNS, check_columns, rocketmq_schema

if TYPE_CHECKING:
    import pyarrow as pa

TagsCodeOf = Callable[[int], int | None]

_LARGEST_TOTAL = 128 << 20
NOT_IN_RECORD = ("store_file", "verdict")  # columns that cannot be computed from a record alone
PULL_COLUMNS = tuple(name for name in ROCKETMQ_COLUMNS if name not in (*NOT_IN_RECORD, "body_crc_ok"))


Longs = NDArray[np.int64]


class GetStatus(StrEnum):
    """How a pull ended."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRules:
    """The limits of a pull; the defaults are a broker's.

    in_memory_bytes: records farther from the end of the log count as on disk (a broker uses 40 % of the machine's memory).
    max_total_bytes: of one answer, 5.3.3 only. max_filter_bytes: of queue entries that one scan examines. travel_files: queue
    files that 5.3.3 searches. corrects_offsets: False on a slave, which returns the requested offsets unchanged.
    """

    version: str
    in_memory_bytes: int
    travel_files: int = 1
    max_total_bytes: int = _LARGEST_TOTAL
    max_filter_bytes: int = 16_000
    max_bytes_in_memory: int = 256 << 10
    max_count_in_memory: int = 32
    max_bytes_on_disk: int = 64 << 10
    max_count_on_disk: int = 8
    corrects_offsets: bool = True

    @property
    def follows(self) -> VersionRules:
        return version_rules(self.version)

    @property
    def total_limit(self) -> int:
        """Bytes of one answer, within the range the broker accepts."""
        return min(max(self.max_total_bytes, 100), _LARGEST_TOTAL)


class GetResult(PullResult):
    """The result of a pull: one slice of the log per record, not copied; valid as long as it is referenced.

    status, next_begin_offset. min_offset, max_offset: of the queue. slices, queue_offsets, physical_offsets, sizes: lists, one item per
    record. total_bytes: of the records. message_count: messages, of which a record in a batch queue holds several.
    suggest_pulling_from_slave: the examined records are far before the end of the log.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return _facts(self) == _facts(other) if isinstance(other, GetResult) else NotImplemented

    def __repr__(self) -> str:
        return f"GetResult({', '.join(f'{name}={fact!r}' for name, fact in zip(_FACTS, _facts(self), strict=True))})"

    def records(self, tags: TagFilter | None = None) -> list[Record]:
        """Decode the records; bytes that are not a record are left out. tags: filter by the tags themselves, as a client does."""
        if self.view is not None and self.rows is not None:
            records = records_in(self.view, self.start, self.rows)
        else:
            records = records_of(self.slices)
        if tags is None or tags.everything:
            return records
        return [record for record in records if tags.matches_tags(decode_properties(record.properties).get("TAGS"))]

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return the records as a batch with columns of the message table, by default `PULL_COLUMNS`.

        Bytes that are not a record are left out. Raises UsageError for a column that a record does not hold.
        """
        if columns is None and self.view is not None and self.rows is not None:
            batch = batch_fast(self.view, self.start, self.rows)
            if batch is not None:
                return batch
        sizes = np.array(self.sizes, np.int64)
        if self.view is not None:
            return batch_of_records(
                np.frombuffer(self.view, np.uint8), np.array(self.physical_offsets, np.int64) - self.start, sizes, columns
            )
        return batch_of_records(np.frombuffer(b"".join(self.slices), np.uint8), np.cumsum(sizes) - sizes, sizes, columns)


_FACTS: Final = (
    "status",
    "next_begin_offset",
    "min_offset",
    "max_offset",
    "queue_offsets",
    "physical_offsets",
    "sizes",
    "slices",
    "total_bytes",
    "message_count",
    "suggest_pulling_from_slave",
)
_facts: Final = attrgetter(*_FACTS)


def get_message(
    log: LogSlices,
    queue: PagedQueue | None,
    offset: int,
    max_count: int,
    tags: TagFilter | None,
    rules: PullRules,
    tags_code_of: TagsCodeOf | None = None,
) -> GetResult:
    """Pull at most max_count messages from a queue offset on.

    tags_code_of: returns the tags code at an address of the extended queue, None if it cannot be read.
    """
    if queue is None:
        return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, _next_offset(rules, offset, 0), 0, 0)
    low, high = queue.min_offset, queue.max_offset
    if low <= offset < high:
        if tags is not None and tags.everything:
            tags = None
        result = _scan_fast(log, queue, offset, max_count, tags, rules, low, high)
        return result or _scan_slow(log, queue, offset, max_count, tags, rules, tags_code_of)
    if high == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, _next_offset(rules, offset, 0), low, high)
    if offset < low:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, _next_offset(rules, offset, low), low, high)
    if offset == high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    following = low if low == 0 and rules.follows.far_offsets_start_over else high
    return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, _next_offset(rules, offset, following), low, high)


def _next_offset(rules: PullRules, asked: int, corrected: int) -> int:
    return corrected if rules.corrects_offsets else asked


def _scan_limit(rules: PullRules, max_count: int, unit: int) -> int:
    """Return the bytes of queue entries that a scan examines; the product wraps at 32 bits."""
    return max(rules.max_filter_bytes, (max_count * unit + (1 << 31)) % (1 << 32) - (1 << 31))


def _is_full(rules: PullRules, max_count: int, result: GetResult, messages: int, size: int, on_disk: bool) -> bool:
    """Return whether the batch has no room for another record. The first one always fits."""
    if not result.total_bytes or not result.message_count:
        return False
    if result.message_count + (messages if rules.follows.goes_on_to_next_file else 1) > max_count:
        return True
    max_bytes = rules.max_bytes_on_disk if on_disk else rules.max_bytes_in_memory
    if rules.follows.goes_on_to_next_file:
        max_bytes = min(max_bytes, rules.total_limit)
    return result.total_bytes + size > max_bytes or result.message_count >= (
        rules.max_count_on_disk if on_disk else rules.max_count_in_memory
    )


def _scan_slow(
    log: LogSlices,
    queue: PagedQueue,
    offset: int,
    max_count: int,
    tags: TagFilter | None,
    rules: PullRules,
    tags_code_of: TagsCodeOf | None,
) -> GetResult:
    """Scan entry by entry: the reference implementation, for both versions and both kinds of queue."""
    goes_on = rules.follows.goes_on_to_next_file
    unit = unit_size(queue)
    limit = _scan_limit(rules, max_count, unit)
    result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, queue.min_offset, queue.max_offset, [], [], [], [])
    examined = 0
    for _ in range(rules.travel_files if goes_on else 1):
        if result.total_bytes or result.next_begin_offset >= result.max_offset:
            break
        page = page_from(queue, result.next_begin_offset)
        if page is None:
            result.status = GetStatus.OFFSET_FOUND_NULL
            result.next_begin_offset = _next_offset(rules, result.next_begin_offset, roll_next_file(queue, result.next_begin_offset))
            if not goes_on:
                return result
            break
        rows = page.rows(None if queue.batch else limit // unit + 1)
        skip_below: int | None = None
        for number, row in enumerate(rows.tolist()):
            physical, size, code = row[:3]
            at, messages = row[4:6] if queue.batch else (page.file.start // unit + page.first + number, 1)
            on_disk = log.max_offset - physical > rules.in_memory_bytes
            if (at - offset) * unit >= limit or (goes_on and result.next_begin_offset >= result.max_offset):
                break
            if goes_on:
                if _is_full(rules, max_count, result, messages, size, on_disk):
                    break
                examined = physical
            else:
                examined = physical
                if (skip_below is None or physical >= skip_below) and _is_full(rules, max_count, result, messages, size, on_disk):
                    break
            result.next_begin_offset = at + messages
            if skip_below is not None and physical < skip_below:
                continue
            if tags is not None and not tags.matches_code(_resolve_tags_code(code, tags_code_of)):
                if not result.total_bytes:
                    result.status = GetStatus.NO_MATCHED_MESSAGE
                continue
            raw = log.slice(physical, size)
            if raw is None:
                if not result.total_bytes:
                    result.status = GetStatus.MESSAGE_WAS_REMOVING
                skip_below = log_slices.roll_next_file(log, physical)
                continue
            result.slices.append(raw)
            result.queue_offsets.append(at)
            result.physical_offsets.append(physical)
            result.sizes.append(size)
            result.total_bytes += size
            result.message_count += messages
            result.status = GetStatus.FOUND
            skip_below = None
    result.suggest_pulling_from_slave = log.max_offset - examined > rules.in_memory_bytes
    return result


def _resolve_tags_code(code: int, tags_code_of: TagsCodeOf | None) -> int | None:
    if not is_address(code):
        return code
    return None if tags_code_of is None else tags_code_of(code)


def _scan_fast(
    log: LogSlices, queue: PagedQueue, offset: int, max_count: int, tags: TagFilter | None, rules: PullRules, low: int, high: int
) -> GetResult | None:
    """Scan an ordinary stretch; None if it needs `_scan_slow`.

    Ordinary: entries of a plain queue without addresses, whose records are all in one file of the log.
    """
    page = None if queue.batch else page_from(queue, offset)
    if page is None or rules.travel_files < 1:
        return None
    limits = kernel_limits(rules)
    log_max = log.max_offset
    out = np.empty(limits.room, np.int64)
    raw = np.ascontiguousarray(page.rows(max(0, _scan_limit(rules, max_count, ENTRY_SIZE)) // ENTRY_SIZE + 1)).view(np.uint8)
    hashes = None if tags is None else filter_hashes(tags)
    count = min(max(max_count, -(1 << 31)), (1 << 31) - 1)
    taken = scan(raw, 0, len(raw) // ENTRY_SIZE, offset, count, log_max, limits, out, hashes)
    if taken < 0:
        return None
    consumed, examined, total, lowest, end = out[:SCAN_HEADER].tolist()
    result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset + consumed, low, high)
    result.suggest_pulling_from_slave = log_max - examined > rules.in_memory_bytes
    if not taken:
        return None if rules.follows.goes_on_to_next_file and rules.travel_files != 1 else result
    readable = log.readable(lowest)
    if readable is None or not log.min_offset <= readable[0] <= lowest or end > readable[0] + len(readable[1]):
        return None
    result.status = GetStatus.FOUND
    result.total_bytes, result.message_count = total, taken
    result.set_rows(out[SCAN_HEADER : SCAN_HEADER + 3 * taken].tobytes(), *readable)
    return result


@lru_cache(64)
def kernel_limits(rules: PullRules) -> Limits:
    """Convert the rules for the kernel."""
    max_total = rules.total_limit if rules.follows.goes_on_to_next_file else 1 << 62
    return Limits(
        goes_on_to_next_file=rules.follows.goes_on_to_next_file,
        in_memory_bytes=rules.in_memory_bytes,
        travel_files=rules.travel_files,
        max_filter_bytes=rules.max_filter_bytes,
        count_in_memory=rules.max_count_in_memory,
        bytes_in_memory=min(rules.max_bytes_in_memory, max_total),
        count_on_disk=rules.max_count_on_disk,
        bytes_on_disk=min(rules.max_bytes_on_disk, max_total),
    )


@lru_cache(256)
def filter_hashes(tags: TagFilter) -> NDArray[np.int32]:
    """Return the hashes of a filter, sorted, for the kernel."""
    return np.array(sorted(tags.hashes), np.int32)


# Pulled messages as an Arrow record batch.
#
# A pull returns a few dozen records. Creating some twenty Arrow columns from Python costs more than reading those records, so
# the batch of ordinary records is written by one kernel as the body of an Arrow IPC message, and read back without a copy. Its
# header is the same for every batch except for a few numbers, whose positions are looked up once in a batch that Arrow wrote:
#
#     ffffffff, size of the head | Message: length of the body | RecordBatch: rows, nodes (rows, nulls), buffers (begin, length) | body
#
# Records that are not ordinary (`kernels.rocketmq.pull_batch`), and columns other than the default ones, go through
# `scan.columns.RecordColumns`, the reference implementation of every column.


def batch_of_records(data: Bytes, positions: Longs, sizes: Longs, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """Return the records at some positions of a buffer as a batch; bytes that are not a record of at most that size are left out.

    columns: by default those that cost no more than reading the record; `body_crc_ok` and columns about bodies can be requested.
    Raises UsageError for a column that a record does not hold.
    """
    if columns is None or tuple(columns) == PULL_COLUMNS:
        batch = batch_fast(data, 0, np.stack([positions, positions, sizes], 1).tobytes())
        if batch is not None:
            return batch
        columns = PULL_COLUMNS
    for name in check_columns(columns):
        if name in NOT_IN_RECORD:
            known = ", ".join(each for each in ROCKETMQ_COLUMNS + EXTRA_COLUMNS if each not in NOT_IN_RECORD)
            raise UsageError(f"a pulled message has no column {name!r}; its columns are {known}")
    valid = np.empty(len(positions), np.int64)
    valid = valid[: pull_batch.valid_positions(data, positions, sizes, valid)]
    fields = np.empty((frames.FIELD_COUNT, len(valid)), np.int64)
    frames.fields(data, valid, fields)
    return RecordColumns(Records(QueueFile("", 0, len(data), ""), data, valid), fields).batch(columns)


def batch_fast(data: Bytes | memoryview, start: int, rows: bytes) -> pa.RecordBatch | None:
    """Return the default columns of records by one kernel call; None if a record is not ordinary. start, rows: as the kernel takes them."""
    head, schema, read = _ipc_template()
    written = pull_batch.write_batch(data, start, rows, head)
    batch: pa.RecordBatch | None = None if written is None else read(written, schema)
    return batch


@cache
def _ipc_template() -> tuple[pull_batch.BatchHead, pa.Schema, Callable[..., pa.RecordBatch]]:
    """Return the header of a message, its schema, and the function that reads a message."""
    import pyarrow as pa

    schema = rocketmq_schema(PULL_COLUMNS)
    written = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema).serialize().to_pybytes()
    (size,) = struct.unpack_from("<i", written, 4)
    raw = written[: 8 + size]

    def at(offset: int, code: str) -> int:
        value: int = struct.unpack_from("<" + code, raw, offset)[0]
        return value

    def field(table: int, number: int) -> int:
        """Return the position of a field of a flatbuffer table."""
        return table + at(table - at(table, "i") + 4 + 2 * number, "H")

    def target(offset: int) -> int:
        return offset + at(offset, "I")

    message = target(8)
    batch = target(field(message, 2))
    nodes, buffers = target(field(batch, 1)), target(field(batch, 2))
    assert (at(nodes, "I"), at(buffers, "I")) == (batch_body.NODES, batch_body.BUFFERS)
    head = pull_batch.BatchHead(np.frombuffer(raw, np.uint8), field(batch, 0), field(message, 3), nodes + 4, buffers + 4)
    return head, schema, pa.ipc.read_record_batch
