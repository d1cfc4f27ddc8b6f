"""The messages of a topic in a time range, page by page, newest first.

The queues list a topic's messages; the log holds their store times. Since messages are appended, a time corresponds to a position in
the log, found by bisection. After that, times are not needed:

    time        first record stored at or after it    its physical offset p
    queue       entries that point at or after p      the queue offsets from some i onwards

A page is the next entries of the queues, merged by physical offset, at a *cursor*: one queue offset per queue. Every entry is on exactly
one page, even if a damaged queue is not ascending. Messages without a queue entry are not listed; `from_log` reads the log itself.

    >>> Cursor.of("0:12,3:7").at, str(Cursor({0: 12, 3: 7}))
    ({0: 12, 3: 7}, '0:12,3:7')
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from mqstore.errors import UsageError
from mqstore.rocketmq.format.record import body_crc
from mqstore.rocketmq.store.view import first_entry
from mqstore.table.columns import ROCKETMQ_COLUMNS, Selection

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.rocketmq.store.view import QueueView, View

PAGE = 200
WINDOW = 32 << 20  # bytes of log read between two checks of the clock
BUDGET = 2.0  # seconds of reading for one page

_HIGHEST = 2**63 - 1
_COLUMNS = ("physical_offset", "topic", "queue_id", "queue_offset", "store_timestamp", "size", "tags", "keys", "uniq_key", "verdict")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a list. verdict: `intact` or `damaged`, judged by the record alone; note: an anomaly."""

    physical_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    stored: int | None
    size: int
    tags: str
    keys: str
    uniq_key: str
    verdict: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Range:
    """The queue offsets low..high-1 of one queue."""

    queue: QueueView
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in a merged list: queue offsets by queue id."""

    at: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Cursor:
        """Parse a cursor. Raises UsageError."""
        try:
            pairs = [part.split(":") for part in text.split(",") if part]
            offsets = {int(queue): int(offset) for queue, offset in pairs}
        except ValueError:
            raise UsageError("the position in the list is not valid; start at the newest page") from None
        if any(not -_HIGHEST <= value <= _HIGHEST for pair in offsets.items() for value in pair):
            raise UsageError("the position in the list is not valid; start at the newest page")
        return cls(offsets)

    def __str__(self) -> str:
        return ",".join(f"{queue}:{offset}" for queue, offset in sorted(self.at.items()))


@dataclass(frozen=True, slots=True)
class RowPage:
    """One page of rows. first: number of its first row, from 1; total: number of all rows. top, bottom: cursors above and below it."""

    rows: tuple[Row, ...]
    first: int
    total: int
    top: Cursor
    bottom: Cursor

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1


def first_stored(view: View, moment: int, low: int | None = None, high: int | None = None) -> int:
    """Return the physical offset of the first record stored at or after a time in ms, or the log's end. low, high: where it must be."""
    begin, end = view.log_range()
    low, high = begin if low is None else low, end if high is None else high
    while low < high:
        middle = (low + high) // 2
        record = _first_record_after(view, middle, high)
        if record is None or record[1] >= moment:
            high = middle
        else:
            low = record[0] + 1
    return low


def _first_record_after(view: View, at: int, end: int) -> tuple[int, int] | None:
    """Return (physical offset, store time) of the first record that starts at or after a position, or None."""
    for batch in view.batches(("physical_offset", "store_timestamp"), Selection(from_offset=at, to_offset=end, limit=1), milliseconds=True):
        return batch.column(0)[0].as_py(), batch.column(1)[0].as_py()
    return None


def ranges(queues: Sequence[QueueView], view: View, since: int | None, until: int | None) -> list[Range]:
    """Return the range of entries of each queue whose messages were stored in [since, until)."""
    low = None if since is None else first_stored(view, since)
    high = None if until is None else first_stored(view, until)
    result = []
    for queue in queues:
        start = queue.min_offset if low is None else first_entry(queue, low)
        stop = queue.max_offset if high is None else first_entry(queue, high)
        result.append(Range(queue, start, max(start, stop)))
    return result


# pages


Entry = tuple[int, int, int, int]  # physical offset, queue id, queue offset, size


def _entries(queue: QueueView, low: int, high: int) -> list[Entry]:
    entries = queue.entries(low, high)
    if not queue.batch:
        pairs = zip(entries["physical_offset"].tolist(), entries["size"].tolist(), strict=True)
        return [(physical, queue.queue_id, low + k, size) for k, (physical, size) in enumerate(pairs)]
    # one record holds several messages: each of its queue offsets points at it
    return [
        (unit["physical_offset"].item(), queue.queue_id, offset, unit["size"].item())
        for unit in entries
        for offset in range(max(low, int(unit["base_offset"])), min(high, int(unit["base_offset"]) + int(unit["count"])))
    ]


def older(ranges: Sequence[Range], view: View, cursor: Cursor | None = None, limit: int = PAGE) -> RowPage:
    """Return the page below a cursor, or the newest page."""
    tops = {each.queue.queue_id: _within(each, cursor, each.high) for each in ranges}
    parts = [_entries(each.queue, max(each.low, tops[each.queue.queue_id] - limit), tops[each.queue.queue_id])[::-1] for each in ranges]
    taken = _first(heapq.merge(*parts, key=lambda entry: entry[0], reverse=True), limit)
    # the last entry taken of a queue is its lowest
    bottoms = tops | {queue_id: offset for _, queue_id, offset, _ in taken}
    return _page(ranges, view, taken, tops, bottoms)


def _downwards(each: Range) -> Iterator[tuple[Range, Entry]]:
    """Yield the entries of a queue, the last first, and read few of a queue that has none of the newest."""
    stop, step = each.high, 1
    while stop > each.low:
        start = max(each.low, stop - step)
        yield from ((each, entry) for entry in reversed(_entries(each.queue, start, stop)))
        stop, step = start, PAGE


def newest(ranges: Sequence[Range], view: View, limit: int = PAGE) -> RowPage:
    """Return the newest messages of queues of any topics. The page has no cursor: its queues are not of one topic."""
    merged = heapq.merge(*map(_downwards, ranges), key=lambda row: row[1][0], reverse=True)
    rows = tuple(_row(view, each.queue, physical, offset, size) for each, (physical, _, offset, size) in islice(merged, limit))
    return RowPage(rows, min(1, len(rows)), sum(each.high - each.low for each in ranges), Cursor(), Cursor())


def newer(ranges: Sequence[Range], view: View, cursor: Cursor, limit: int = PAGE) -> RowPage:
    """Return the page above a cursor."""
    bottoms = {each.queue.queue_id: _within(each, cursor, each.low) for each in ranges}
    parts = [_entries(each.queue, bottoms[each.queue.queue_id], min(each.high, bottoms[each.queue.queue_id] + limit)) for each in ranges]
    taken = _first(heapq.merge(*parts, key=lambda entry: entry[0]), limit)
    tops = bottoms | {queue_id: offset + 1 for _, queue_id, offset, _ in taken}
    return _page(ranges, view, taken[::-1], tops, bottoms)


def _within(each: Range, cursor: Cursor | None, default: int) -> int:
    at = default if cursor is None else cursor.at.get(each.queue.queue_id, default)
    return min(max(at, each.low), each.high)


def _first(entries: Iterator[Entry], limit: int) -> list[Entry]:
    return [entry for _, entry in zip(range(limit), entries, strict=False)]


def _page(ranges: Sequence[Range], view: View, taken: list[Entry], tops: dict[int, int], bottoms: dict[int, int]) -> RowPage:
    topics = {each.queue.queue_id: each.queue for each in ranges}
    above = sum(each.high - tops[each.queue.queue_id] for each in ranges)
    total = sum(each.high - each.low for each in ranges)
    rows = tuple(_row(view, topics[queue_id], physical, offset, size) for physical, queue_id, offset, size in taken)
    return RowPage(rows, above + 1 if rows else 0, total, Cursor(tops), Cursor(bottoms))


def _row(view: View, queue: QueueView, physical: int, offset: int, size: int) -> Row:
    message = view.record(physical) if size > 0 else None
    if message is None:
        note = "the entry does not point at a valid record" if size > 0 else "the entry is not written"
        return Row(physical, queue.topic, queue.queue_id, offset, None, size, "", "", "", "damaged", note)
    properties = message.property_map()
    note = ""
    if (message.topic, message.queue_id) != (queue.topic, queue.queue_id):
        note = f"the entry points at a record of topic {message.topic}, queue {message.queue_id}"
    elif message.queue_offset != offset and not queue.batch:
        note = f"the record's own queue offset is {message.queue_offset}"
    fits = message.body_crc is None or message.body_crc == body_crc(message.body)
    return Row(
        physical,
        message.topic,
        queue.queue_id,
        offset,
        message.store_timestamp,
        size,
        properties.get("TAGS", ""),
        properties.get("KEYS", ""),
        properties.get("UNIQ_KEY", ""),
        "intact" if fits else "damaged",
        note if fits else "the body does not match its checksum",
    )


# the log itself


@dataclass(frozen=True, slots=True)
class LogPage:
    """Rows of the log in physical order. upto: where reading stopped, the start of the next page; over: the log ends there."""

    rows: tuple[Row, ...]
    begin: int
    upto: int
    over: bool
    skipped: int


def from_log(view: View, selection: Selection, begin: int | None = None, limit: int = PAGE, budget: float = BUDGET) -> LogPage:
    """Read records from the log, oldest first, with or without queue entries. skipped: number of ranges that are not valid records."""
    low, high = view.log_range()
    if selection.since is not None:
        low = max(low, first_stored(view, selection.since))
    at = begin = max(low, begin or 0)
    rows: list[Row] = []
    lost: set[tuple[str, int]] = set()
    ends = time.monotonic() + budget
    while at < high and len(rows) < limit and time.monotonic() < ends:
        stop = min(high, at + WINDOW)
        part = Selection(
            topics=selection.topics,
            queue_ids=selection.queue_ids,
            since=selection.since,
            until=selection.until,
            from_offset=at,
            to_offset=stop,
            limit=limit - len(rows),
        )
        for batch in view.batches(_COLUMNS, part, milliseconds=True, on_damage=lambda item: lost.add((item.file, item.offset))):
            rows += [_row_of_columns(row) for row in batch.to_pylist()]
        at = rows[-1].physical_offset + 1 if len(rows) >= limit else stop
    return LogPage(tuple(rows), begin, at, at >= high, len(lost))


def _row_of_columns(row: dict[str, Any]) -> Row:
    note = {"unindexed": "no queue leads to it", "duplicate": "its queue entry points at a duplicate"}.get(row["verdict"], "")
    return Row(
        row["physical_offset"],
        row["topic"],
        row["queue_id"],
        row["queue_offset"],
        row["store_timestamp"],
        row["size"],
        row["tags"] or "",
        row["keys"] or "",
        row["uniq_key"] or "",
        row["verdict"],
        note,
    )


# at given places


def batches_at(
    view: View, physical_offsets: Iterable[int], columns: Sequence[str] = ROCKETMQ_COLUMNS, *, milliseconds: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield the message table of the records at these physical offsets, in this order; offsets without a valid record are left out."""
    for offset in physical_offsets:
        yield from view.batches(columns, Selection(from_offset=offset, to_offset=offset + 1), milliseconds=milliseconds)


def rows_at(view: View, physical_offsets: Iterable[int]) -> list[Row]:
    """Return the records at these physical offsets as lines of a list; offsets without a valid record are left out."""
    return [_row_of_columns(row) for batch in batches_at(view, physical_offsets, _COLUMNS) for row in batch.to_pylist()]
