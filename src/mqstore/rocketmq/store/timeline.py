"""Messages over time by topic, from the consume queues, without reading the log.

Messages are appended, so a time corresponds to a position in the log: the store times of a few dozen records, found by bisection, divide
the log into periods, and the queue entries that point into a period are its messages. A store of any size is drawn at once:

    up to `COUNTED` queue entries     every entry is counted
    more                              the edges of each period are found in each queue by bisection: exact only if the queues are valid
    no queues that can be read        records of the log: all of them if it is small, otherwise a sample of places, scaled up

>>> width_of(3_540_000), width_of(90), width_of(40 * 86_400_000)
(60000, 2, 86400000)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.rocketmq.format.consume_queue import BLANK_SIZE
from mqstore.rocketmq.store.message_pages import first_stored
from mqstore.rocketmq.store.view import first_entry
from mqstore.table.columns import Selection
from mqstore.table.formatting import count

if TYPE_CHECKING:
    from mqstore.rocketmq.store.view import QueueView, View

PERIODS = 60
COUNTED = 1 << 22  # queue entries that are read
LANDMARKS = 1 << 16  # positions among which a time is bisected
QUEUES = 100  # queues that are bisected, the longest first
READ_LOG = 64 << 20  # bytes of log that are read for want of queues
SAMPLES, SAMPLE = 200, 64 << 10
TRIES = 8  # landmarks that are tried where one is not a valid record

_DAY = 86_400_000
_WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000, 3_600_000,
           7_200_000, 21_600_000, 43_200_000, _DAY, 7 * _DAY, 30 * _DAY)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Period:
    """A period of time, start <= time < stop in ms, and its messages by topic."""

    start: int
    stop: int
    topics: dict[str, int]

    @property
    def messages(self) -> int:
        return sum(self.topics.values())


@dataclass(frozen=True, slots=True)
class Timeline:
    """Messages over time. topics: most messages first; exact: whether every message was counted; source: what was read, a sentence."""

    periods: tuple[Period, ...]
    topics: tuple[tuple[str, int], ...]
    exact: bool
    source: str

    @property
    def messages(self) -> int:
        return sum(number for _, number in self.topics)


def width_of(span: int) -> int:
    """Return the length of a period, in ms, that divides a span into at most `PERIODS`."""
    width = next((each for each in _WIDTHS if span // each < PERIODS), None)
    return width if width is not None else (span // (PERIODS - 1) // (30 * _DAY) + 1) * 30 * _DAY


def timeline(view: View) -> Timeline:
    """Return the messages of a view over time."""
    log_range = view.log_range()
    queues = [queue for queue in view.queues() if queue.max_offset > queue.min_offset]
    if not queues:
        return _from_log(view, log_range)
    if sum(queue.max_offset - queue.min_offset for queue in queues) > COUNTED:
        return _from_long_queues(view, queues)
    places = [_entries(queue, log_range) for queue in queues]
    offsets = np.sort(np.concatenate([physical for physical, _ in places]))
    if not len(offsets):
        return _from_log(view, log_range)
    step = -(-len(offsets) // LANDMARKS)
    landmarks = offsets[::step]
    starts, bounds = _bounds(view, landmarks, exact=step == 1)
    counts: Counter[tuple[int, str]] = Counter()
    for queue, (physical, weights) in zip(queues, places, strict=True):
        periods = np.clip(np.searchsorted(bounds, physical, side="right") - 1, 0, len(starts) - 2)
        for period, number in enumerate(np.bincount(periods, weights, len(starts) - 1).astype(np.int64).tolist()):
            counts[period, queue.topic] += number
    return _result(starts, counts, exact=True, source="counted from the entries of the consume queues; the log was not read")


def _entries(queue: QueueView, log_range: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return position and number of messages of each entry whose record may be in the log, as `queue_totals` counts them."""
    entries = queue.entries(queue.min_offset, queue.max_offset)
    physical, size = entries["physical_offset"].astype(np.int64), entries["size"]
    held = (size > 0) & (size != BLANK_SIZE) & (physical >= log_range[0]) & (physical < log_range[1])
    weights = entries["count"].astype(np.float64) if queue.batch else np.ones(len(entries))
    return physical[held], weights[held]


def _from_long_queues(view: View, queues: Sequence[QueueView]) -> Timeline:
    longest = sorted(queues, key=lambda queue: queue.min_offset - queue.max_offset)[:QUEUES]
    each = max(2, LANDMARKS // 16 // len(longest))
    samples = [_sample(queue, each) for queue in longest]
    low, high = view.log_range()
    offsets = np.unique(np.concatenate([physical for _, physical in samples]))
    landmarks = offsets[(offsets >= low) & (offsets < high)]
    if not len(landmarks):
        return _from_log(view, (low, high))
    starts, bounds = _bounds(view, landmarks, exact=False)
    counts: Counter[tuple[int, str]] = Counter()
    for queue, sample in zip(longest, samples, strict=True):
        edges = [_edge(queue, sample, int(bound)) for bound in (low, *bounds[1:-1], high)]
        for period, (start, stop) in enumerate(pairwise(edges)):
            counts[period, queue.topic] += max(0, stop - start)
    source = "sampled: of the consume queues, only the entries at the edges of each period were looked up, by bisection"
    left = len(queues) - len(longest)
    return _result(starts, counts, exact=False, source=f"{source}; {count(left, 'shorter queue')} left out" if left else source)


def _sample(queue: QueueView, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return evenly spaced queue offsets of a queue, and the physical offset of each."""
    offsets = np.unique(np.linspace(queue.min_offset, queue.max_offset - 1, number).astype(np.int64))
    units = [queue.entries(at, at + 1) for at in offsets.tolist()]
    held = np.array([len(unit) > 0 for unit in units])
    return offsets[held], np.array([int(unit["physical_offset"][0]) for unit in units if len(unit)], np.int64)


def _edge(queue: QueueView, sample: tuple[NDArray[np.int64], NDArray[np.int64]], physical_offset: int) -> int:
    """Return the queue offset of the first entry that points at or after a position, from what a sample says of where it is."""
    offsets, physical = sample
    at = int(np.searchsorted(physical, physical_offset))
    low = int(offsets[at - 1]) if at else None
    return first_entry(queue, physical_offset, low, int(offsets[at]) if at < len(offsets) else None)


def _time_at(view: View, landmarks: NDArray[np.int64], at: int, step: int = 1) -> int | None:
    """Return the store time of the first valid record at a landmark or one of the next few, or None."""
    for number in range(at, min(at + TRIES, len(landmarks)) if step > 0 else max(at - TRIES, -1), step):
        record = view.record(int(landmarks[number]))
        if record is not None:
            return record.store_timestamp
    return None


def _bounds(view: View, landmarks: NDArray[np.int64], *, exact: bool) -> tuple[list[int], NDArray[np.int64]]:
    """Return the edges of the periods, as times and as positions in the log. exact: the landmarks are all records with an entry."""
    first = _time_at(view, landmarks, 0)
    last = _time_at(view, landmarks, len(landmarks) - 1, -1)
    first, last = (last or 0 if first is None else first), (first or 0 if last is None else last)
    first, last = min(first, last), max(first, last)
    width = width_of(last - first)
    starts = list(range(first - first % width, last + width + 1, width))
    if starts[-1] <= last:
        starts.append(starts[-1] + width)
    bounds = [view.log_range()[0]]
    for start in starts[1:-1]:
        low, high = 0, len(landmarks)
        while low < high:
            middle = (low + high) // 2
            stored = _time_at(view, landmarks, middle)
            if stored is None or stored >= start:
                high = middle
            else:
                low = middle + 1
        offset = int(landmarks[low]) if low < len(landmarks) else view.log_range()[1]
        bounds.append(offset if exact else first_stored(view, start, int(landmarks[low - 1]) if low else None, offset))
    bounds.append(view.log_range()[1])
    return starts, np.maximum.accumulate(np.array(bounds, np.int64))


def _from_log(view: View, log_range: tuple[int, int]) -> Timeline:
    low, high = log_range
    if high - low <= READ_LOG:
        parts, scale = [Selection(from_offset=low, to_offset=high)], 1.0
    else:
        places = np.linspace(low, high - SAMPLE, SAMPLES).astype(np.int64).tolist()
        parts, scale = [Selection(from_offset=at, to_offset=at + SAMPLE) for at in places], (high - low) / (SAMPLES * SAMPLE)
    rows: list[tuple[int, str]] = []
    for part in parts:
        for batch in view.batches(("store_timestamp", "topic"), part, milliseconds=True):
            rows += zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    if not rows:
        return Timeline((), (), True, "the store has no messages")
    first, last = min(time for time, _ in rows), max(time for time, _ in rows)
    width = width_of(last - first)
    starts = list(range(first - first % width, last + width + 1, width))
    seen = Counter(((time - starts[0]) // width, topic) for time, topic in rows)
    counts = Counter({each: round(number * scale) for each, number in seen.items()})
    whole = len(parts) == 1
    source = "the records of the log, as no consume queue can be read"
    if not whole:
        source = f"an estimate from {count(len(rows), 'record')} at {SAMPLES} places of the log, as no consume queue can be read"
    return _result(starts, counts, exact=whole, source=source)


def _result(starts: Sequence[int], counts: Counter[tuple[int, str]], *, exact: bool, source: str) -> Timeline:
    totals: Counter[str] = Counter()
    periods = [Period(start, stop, {}) for start, stop in pairwise(starts)]
    for (period, topic), number in counts.items():
        if number:
            totals[topic] += number
            periods[period].topics[topic] = periods[period].topics.get(topic, 0) + number
    while periods and not periods[-1].messages:
        periods.pop()
    return Timeline(tuple(periods), tuple(sorted(totals.items(), key=lambda each: (-each[1], each[0]))), exact, source)
