"""Pulling: the messages of a queue from an offset on, as a broker hands them to a consumer.

    queue is not there                  NO_MATCHED_LOGIC_QUEUE    next 0
    maximum is 0                        NO_MESSAGE_IN_QUEUE       next 0
    offset below the minimum            OFFSET_TOO_SMALL          next minimum
    offset at the maximum               OFFSET_OVERFLOW_ONE       next offset
    offset behind the maximum           OFFSET_OVERFLOW_BADLY     next maximum (4.9.3 with minimum 0: 0)
    no queue file holds the offset      OFFSET_FOUND_NULL         next file of the queue
    otherwise a scan over the entries of one queue file:
        at least one message            FOUND
        no entry passes the filter      NO_MATCHED_MESSAGE        next behind the last entry looked at
        the records have left the log   MESSAGE_WAS_REMOVING

A scan ends at the end of the queue file, after 800 entries (more if more messages are asked for), or when the batch is
full: so many messages as asked for, 32 messages, or 256 KiB; 8 messages or 64 KiB where the records are so far behind the
end of the log that they are taken to be on disk only. The first message always fits. Of a record that has left the log
the scan learns that its whole log file has, and skips all entries that lead into it.

5.3.3 differs: it goes on to the next queue file while nothing is found (as often as it is told to, once by default), the
caller may limit the bytes, and what is skipped counts as looked at before the batch is.

`_scan_plainly` is these rules entry by entry; `_scan` is the same for ordinary stretches, and leaves all others to it.

Format: docs/formats/rocketmq.md, section 10.1.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.rocketmq import logslices
from mqstore.rocketmq.consumequeue import ENTRY_SIZE
from mqstore.rocketmq.consumequeueext import is_address
from mqstore.rocketmq.logslices import LogSlices
from mqstore.rocketmq.pulledbatch import batch_of_records
from mqstore.rocketmq.queuepage import PagedQueue, QueuePage, page_from, roll_next_file, unit_size
from mqstore.rocketmq.record import BadRecordError, Record, decode, decode_properties
from mqstore.rocketmq.tagfilter import TagFilter

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["GetResult", "GetStatus", "PullRules", "TagsCodeOf", "get_message"]

TagsCodeOf = Callable[[int], int | None]

_ENTRY: Final = struct.Struct(">qiq")
_LARGEST_TOTAL = 128 << 20
_FEW = 8  # hashes that are compared one by one


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
    """What limits a pull; the defaults are a broker's.

    in_memory_bytes: records farther behind the end of the log count as on disk (a broker takes 40 % of the machine's memory).
    max_total_bytes: of one answer, 5.3.3 only. max_filter_bytes: of queue entries that one scan looks at. travel_files: queue files
    that 5.3.3 looks through. corrects_offsets: False on a slave that leaves the offsets it was asked for as they are.
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
    def five(self) -> bool:
        return self.version != "4.9.3"

    @property
    def total_limit(self) -> int:
        """Bytes of one answer, within what the broker accepts."""
        return min(max(self.max_total_bytes, 100), _LARGEST_TOTAL)


@dataclass(slots=True)
class GetResult:
    """What a pull returned: one slice of the log per record, not copied; valid as long as the log file is mapped.

    min_offset, max_offset: of the queue. message_count: messages, of which a record in a batch queue holds several.
    log_file: start and bytes of the log file that holds all the slices, None where there are several.
    """

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    slices: list[memoryview] = field(default_factory=list)
    queue_offsets: list[int] = field(default_factory=list)
    physical_offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    total_bytes: int = 0
    message_count: int = 0
    suggest_pulling_from_slave: bool = False
    log_file: tuple[int, memoryview] | None = field(default=None, repr=False, compare=False)

    def records(self, tags: TagFilter | None = None) -> list[Record]:
        """The records, decoded; bytes that are none are left out. tags: as a client filters, by the tags themselves."""
        found = []
        for raw in self.slices:
            try:
                record = decode(raw)
            except BadRecordError:
                continue
            if tags is None or tags.everything or tags.matches_tags(decode_properties(record.properties).get("TAGS")):
                found.append(record)
        return found

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The records as a batch with the columns of the message table, by default those in `pulledbatch.PULL_COLUMNS`.

        Bytes that are no record are left out. Raises UsageError for a column that a record does not hold.
        """
        sizes = np.array(self.sizes, np.int64)
        if self.log_file is not None:
            start, view = self.log_file
            return batch_of_records(np.frombuffer(view, np.uint8), np.array(self.physical_offsets, np.int64) - start, sizes, columns)
        return batch_of_records(np.frombuffer(b"".join(self.slices), np.uint8), np.cumsum(sizes) - sizes, sizes, columns)


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

    tags_code_of: the tags code at an address of the extended queue, None where none can be read.
    """
    if queue is None:
        return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, _corrected(rules, offset, 0), 0, 0)
    low, high = queue.min_offset, queue.max_offset
    if low <= offset < high:
        if tags is not None and tags.everything:
            tags = None
        found = _scan(log, queue, offset, max_count, tags, rules, low, high)
        return found or _scan_plainly(log, queue, offset, max_count, tags, rules, tags_code_of)
    if high == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, _corrected(rules, offset, 0), low, high)
    if offset < low:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, _corrected(rules, offset, low), low, high)
    if offset == high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    following = low if low == 0 and not rules.five else high
    return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, _corrected(rules, offset, following), low, high)


def _corrected(rules: PullRules, asked: int, corrected: int) -> int:
    return corrected if rules.corrects_offsets else asked


def _scan_limit(rules: PullRules, max_count: int, unit: int) -> int:
    """Bytes of queue entries that a scan looks at; the product is one of 32 bits."""
    return max(rules.max_filter_bytes, (max_count * unit + (1 << 31)) % (1 << 32) - (1 << 31))


def _full(rules: PullRules, max_count: int, result: GetResult, messages: int, size: int, on_disk: bool) -> bool:
    """Whether there is no room for a record. The first one always has room."""
    if not result.total_bytes or not result.message_count:
        return False
    if result.message_count + (messages if rules.five else 1) > max_count:
        return True
    most_bytes = rules.max_bytes_on_disk if on_disk else rules.max_bytes_in_memory
    if rules.five:
        most_bytes = min(most_bytes, rules.total_limit)
    return result.total_bytes + size > most_bytes or result.message_count >= (
        rules.max_count_on_disk if on_disk else rules.max_count_in_memory
    )


def _scan_plainly(
    log: LogSlices,
    queue: PagedQueue,
    offset: int,
    max_count: int,
    tags: TagFilter | None,
    rules: PullRules,
    tags_code_of: TagsCodeOf | None,
) -> GetResult:
    """The scan, entry by entry: the readable truth, for both versions and both kinds of queue."""
    five = rules.five
    unit = unit_size(queue)
    limit = _scan_limit(rules, max_count, unit)
    result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, queue.min_offset, queue.max_offset)
    examined = 0
    for _ in range(rules.travel_files if five else 1):
        if result.total_bytes or result.next_begin_offset >= result.max_offset:
            break
        page = page_from(queue, result.next_begin_offset)
        if page is None:
            result.status = GetStatus.OFFSET_FOUND_NULL
            result.next_begin_offset = _corrected(rules, result.next_begin_offset, roll_next_file(queue, result.next_begin_offset))
            if not five:
                return result
            break
        rows = page.rows(None if queue.batch else limit // unit + 1)
        skip_below: int | None = None
        for number, row in enumerate(rows.tolist()):
            physical, size, code = row[:3]
            at, messages = row[4:6] if queue.batch else (page.file.start // unit + page.first + number, 1)
            on_disk = log.max_offset - physical > rules.in_memory_bytes
            if (at - offset) * unit >= limit or (five and result.next_begin_offset >= result.max_offset):
                break
            if five:
                if _full(rules, max_count, result, messages, size, on_disk):
                    break
                examined = physical
            else:
                examined = physical
                if (skip_below is None or physical >= skip_below) and _full(rules, max_count, result, messages, size, on_disk):
                    break
            result.next_begin_offset = at + messages
            if skip_below is not None and physical < skip_below:
                continue
            if tags is not None and not tags.matches_code(_resolved(code, tags_code_of)):
                if not result.total_bytes:
                    result.status = GetStatus.NO_MATCHED_MESSAGE
                continue
            raw = log.slice(physical, size)
            if raw is None:
                if not result.total_bytes:
                    result.status = GetStatus.MESSAGE_WAS_REMOVING
                skip_below = logslices.roll_next_file(log, physical)
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


def _resolved(code: int, tags_code_of: TagsCodeOf | None) -> int | None:
    if not is_address(code):
        return code
    return None if tags_code_of is None else tags_code_of(code)


class _Taken(NamedTuple):
    """What a scan takes of a page: queue offsets, physical offsets and sizes.

    stopped: rows that are consumed. examined: physical offset in the last row looked at. lowest, end: all records lie between them.
    """

    offsets: list[int]
    physicals: list[int]
    sizes: list[int]
    stopped: int
    examined: int
    lowest: int
    end: int


def _scan(
    log: LogSlices, queue: PagedQueue, offset: int, max_count: int, tags: TagFilter | None, rules: PullRules, low: int, high: int
) -> GetResult | None:
    """The scan of an ordinary stretch; None where it takes the rules one by one.

    Ordinary: entries of a plain queue without addresses, whose records are all there, all in memory or all on disk.
    """
    page = None if queue.batch else page_from(queue, offset)
    if page is None:
        return None
    log_max = log.max_offset
    room = -(-_scan_limit(rules, max_count, ENTRY_SIZE) // ENTRY_SIZE)
    if tags is None:
        taken = _take_all(page, offset, room, max_count, rules, log_max)
    else:
        taken = _take_matching(page, offset, room, max_count, tags, rules, log_max)
    if taken is None:
        return None
    following = offset + taken.stopped
    suggest = log_max - taken.examined > rules.in_memory_bytes
    if not taken.offsets:
        if rules.five and rules.travel_files != 1:
            return None
        return GetResult(GetStatus.NO_MATCHED_MESSAGE, following, low, high, suggest_pulling_from_slave=suggest)
    found = log.readable(taken.physicals[0])
    if found is None:
        return None
    start, view = found
    if log.min_offset <= start <= taken.lowest and taken.end <= start + len(view):
        slices = [view[at - start : at - start + size] for at, size in zip(taken.physicals, taken.sizes, strict=True)]
        log_file = found
    else:
        parts = [log.slice(at, size) for at, size in zip(taken.physicals, taken.sizes, strict=True)]
        slices = [part for part in parts if part is not None]
        log_file = None
        if len(slices) < len(parts):
            return None
    return GetResult(
        GetStatus.FOUND,
        following,
        low,
        high,
        slices,
        taken.offsets,
        taken.physicals,
        taken.sizes,
        sum(taken.sizes),
        len(slices),
        suggest,
        log_file,
    )


def _limits(rules: PullRules, max_count: int, lowest: int, highest: int, log_max: int) -> tuple[int, int] | None:
    """Most messages and most bytes of a batch whose records lie between two offsets; None where some count as on disk, others not."""
    if log_max - lowest <= rules.in_memory_bytes:
        most, most_bytes = rules.max_count_in_memory, rules.max_bytes_in_memory
    elif log_max - highest > rules.in_memory_bytes:
        most, most_bytes = rules.max_count_on_disk, rules.max_bytes_on_disk
    else:
        return None
    return max(1, min(most, max_count)), min(most_bytes, rules.total_limit) if rules.five else most_bytes


def _take_all(page: QueuePage, offset: int, room: int, max_count: int, rules: PullRules, log_max: int) -> _Taken | None:
    # one more than can be taken, because the entry that does not fit is looked at too
    rows = page.rows(min(room, max(1, min(max_count, max(rules.max_count_in_memory, rules.max_count_on_disk))) + 1))
    physicals, sizes, _ = zip(*_ENTRY.iter_unpack(rows.tobytes()), strict=True)
    lowest, highest, largest = min(physicals), max(physicals), max(sizes)
    limits = _limits(rules, max_count, lowest, highest, log_max)
    if limits is None or min(sizes) <= 0:
        return None
    most, most_bytes = limits
    stopped = min(len(sizes), most)
    if most * largest > most_bytes:
        stopped = min(stopped, max(1, bisect_right(list(accumulate(sizes)), most_bytes)))
    examined = physicals[stopped - 1 if rules.five or stopped == len(sizes) else stopped]
    offsets = list(range(offset, offset + stopped))
    return _Taken(offsets, list(physicals[:stopped]), list(sizes[:stopped]), stopped, examined, lowest, highest + largest)


def _take_matching(
    page: QueuePage, offset: int, room: int, max_count: int, tags: TagFilter, rules: PullRules, log_max: int
) -> _Taken | None:
    rows = page.rows(room)
    codes = rows["tags_code"].astype(np.int64)
    if is_address(int(codes.min())):
        return None
    physicals, sizes = rows["physical_offset"].astype(np.int64), rows["size"].astype(np.int64)
    lowest, highest, largest = int(physicals.min()), int(physicals.max()), int(sizes.max())
    limits = _limits(rules, max_count, lowest, highest, log_max)
    if limits is None or int(sizes.min()) <= 0:
        return None
    most, most_bytes = limits
    mask = _matching(codes.astype(np.int32), tags)
    hits = np.flatnonzero(mask)
    stopped = int(hits[most - 1]) + 1 if len(hits) >= most else len(rows)
    if most * largest > most_bytes:
        # an entry that does not pass the filter ends the batch too, where its record would not fit
        counted = np.where(mask, sizes, 0)
        before = np.cumsum(counted) - counted
        full = (before > 0) & (before + sizes > most_bytes)
        if full.any():
            stopped = min(stopped, int(np.argmax(full)))
    hits = hits[: int(np.searchsorted(hits, stopped))]
    examined = int(physicals[stopped - 1 if rules.five or stopped == len(rows) else stopped])
    taken, lengths = physicals[hits].tolist(), sizes[hits].tolist()
    if taken:
        lowest, highest = min(taken), max(taken)
    return _Taken((hits + offset).tolist(), taken, lengths, stopped, examined, lowest, highest + largest)


def _matching(codes: NDArray[np.int32], tags: TagFilter) -> NDArray[np.bool_]:
    """Which codes are hashes of wanted tags."""
    if len(tags.hashes) > _FEW:
        return np.isin(codes, np.array(sorted(tags.hashes), np.int32))
    mask = np.zeros(len(codes), np.bool_)
    for wanted in tags.hashes:
        mask |= codes == wanted
    return mask
