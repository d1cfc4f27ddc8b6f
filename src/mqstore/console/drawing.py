"""What pages draw to scale: damage maps of files, strips of the parts of a store, maps of index segments, columns over time, bars.

>>> drawn = DamageMap(1000, 800, (Extent(100, 50, "zeroed"), Extent(900, 0, "torn-record")))
>>> [(bar.x, bar.width, bar.what) for bar in drawn.bars], drawn.written_width
([(100.0, 50.0, 'zeroed'), (900.0, 3.0, 'torn-record')], 800.0)
>>> part_of("commitlog/00000000000000000000"), part_of("config/topics.json"), part_of("abort")
('commitlog', 'config', 'other files')
>>> part_of("msg_stores/vhosts/6/queues/1/0.idx"), part_of("vhosts/6/msg_store_persistent/0.rdq")
('queues', 'msg_store_persistent')
>>> from mqstore.rocketmq.store.timeline import Period
>>> chart = columns_of(Timeline((Period(0, 10, {"a": 3, "b": 1}), Period(10, 20, {"a": 2})), (("a", 5), ("b", 1)), True, ""))
>>> [(column.x, column.y, column.width, column.height, column.series) for column in chart.columns]
[(0.0, 50.0, 480.0, 150.0, 0), (0.0, 0.0, 480.0, 50.0, 1), (500.0, 100.0, 480.0, 100.0, 0)]
>>> chart.series
(('a', 5), ('b', 1))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mqstore.findings import Damage
from mqstore.rabbitmq.queue_states import STATES, QueueDepth, state_numbers
from mqstore.rabbitmq.store.queue import Queue
from mqstore.rocketmq.store.timeline import Timeline
from mqstore.table.formatting import count

WIDTH, HEIGHT = 1000.0, 200.0
MIN_WIDTH = 3.0  # so that a single byte is visible
MAX_BARS = 400  # bars of a map; more could not be distinguished
MAX_WRITTEN = 500  # rectangles of written bytes; more could not be distinguished
CELLS = 250  # of the map of a segment
SERIES = 5  # topics that have a colour; the others share one
GAP = 0.04  # of a column's width
DEPTH = ("ready", "unacknowledged", "lost", "waiting", "transient")

_RABBITMQ_PARTS = ("msg_store_persistent", "msg_store_transient", "queues")
_OTHER = "other files"


# damage maps


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of damaged bytes. kind: of the finding."""

    at: int
    length: int
    kind: str


@dataclass(frozen=True, slots=True)
class DamageBar:
    """An extent drawn to scale. what: its kind, or that of the first of several."""

    x: float
    width: float
    what: str


@dataclass(frozen=True, slots=True)
class DamageMap:
    """Damage map of a file. size: bytes of the file; written: bytes before the trailing zeros; extents: ascending."""

    size: int
    written: int
    extents: tuple[Extent, ...]

    def scaled(self, amount: int) -> float:
        return round(WIDTH * min(max(amount, 0), self.size) / self.size, 2) if self.size else 0.0

    @property
    def written_width(self) -> float:
        return self.scaled(self.written)

    @property
    def bars(self) -> list[DamageBar]:
        """The bars to draw; extents that would touch are merged."""
        bars: list[tuple[float, float, list[str]]] = []
        for each in self.extents:
            start = self.scaled(each.at)
            end = min(WIDTH, max(self.scaled(each.at + each.length), start + MIN_WIDTH))
            start = min(start, WIDTH - MIN_WIDTH)
            if bars and (start <= bars[-1][1] or len(bars) >= MAX_BARS):
                bars[-1] = (bars[-1][0], max(end, bars[-1][1]), [*bars[-1][2][:1], f"{len(bars[-1][2])}"])
            else:
                bars.append((start, end, [each.kind]))
        return [
            DamageBar(start, round(end - start, 2), kinds[0] if len(kinds) == 1 else f"{kinds[0]} and more") for start, end, kinds in bars
        ]

    @property
    def damaged(self) -> int:
        """Number of bytes in extents, each counted once."""
        total, upto = 0, 0
        for each in self.extents:
            end = min(each.at + each.length, self.size)
            total += max(0, end - max(each.at, upto))
            upto = max(upto, end)
        return total

    @property
    def summary(self) -> str:
        """The map as a sentence."""
        if not self.extents:
            return f"{self.size:,} bytes, {self.written:,} of them written, no findings"
        return f"{self.size:,} bytes, {self.written:,} of them written, {count(len(self.extents), 'finding')} over {self.damaged:,} bytes"


def map_of(name: str, size: int, written: int, damage: Iterable[Damage]) -> DamageMap:
    """Return the damage map of a file from the findings of its store."""
    extents = (Extent(item.offset, item.length, str(item.kind)) for item in damage if item.file == name)
    return DamageMap(size, written, tuple(sorted(extents, key=lambda each: (each.at, each.length))))


# strips of files


@dataclass(frozen=True, slots=True)
class FileStrip:
    """The files of one part, side by side. missing: files that should be there; spans: (start, length) of what is written, to scale."""

    name: str
    files: int
    missing: int
    findings: int
    map: DamageMap
    spans: tuple[tuple[float, float], ...]

    @property
    def summary(self) -> str:
        """The strip as a sentence, without the size."""
        missing = f", {self.missing:,} missing" if self.missing else ""
        return f"{count(self.files, 'file')}{missing}, {count(self.findings, 'finding') if self.findings else 'no findings'}"


def part_of(name: str) -> str:
    """Return the part of a store that a file belongs to: its top directory, or the kind of RabbitMQ's directories."""
    parts = name.split("/")[:-1]
    for part in _RABBITMQ_PARTS:
        if part in parts:
            return part
    return _OTHER if not parts or "vhosts" in parts else parts[0]


def file_strips(files: Sequence[tuple[str, int]], damage: Iterable[Damage], written: Callable[[str, int], int]) -> tuple[FileStrip, ...]:
    """Return the strips, the largest part first. files: names and sizes; written: of a name and a size, the bytes before the end."""
    by_file: dict[str, list[Damage]] = {}
    for item in damage:
        by_file.setdefault(item.file, []).append(item)
    parts: dict[str, list[tuple[str, int]]] = {}
    for name, size in files:
        parts.setdefault(part_of(name), []).append((name, size))
    there = {name for name, _ in files}
    missing: dict[str, list[str]] = {}
    for name in by_file:
        if name not in there:
            missing.setdefault(part_of(name), []).append(name)
    names = dict.fromkeys((*parts, *missing))
    strips = [_strip(part, parts.get(part, []), missing.get(part, []), by_file, written) for part in names]
    return tuple(sorted(strips, key=lambda strip: (strip.name == _OTHER, -strip.map.size, strip.name)))


def _strip(
    part: str,
    files: Sequence[tuple[str, int]],
    missing: Sequence[str],
    by_file: Mapping[str, Sequence[Damage]],
    written: Callable[[str, int], int],
) -> FileStrip:
    extents: list[Extent] = []
    spans: list[tuple[int, int]] = []
    at = findings = full = 0
    for name, size in files:
        mine = by_file.get(name, ())
        findings += len(mine)
        extents += (Extent(at + min(item.offset, size), min(item.length, size), str(item.kind)) for item in mine)
        length = written(name, size)
        full += length
        if spans and spans[-1][0] + spans[-1][1] == at:
            spans[-1] = (spans[-1][0], spans[-1][1] + length)
        elif length:
            spans.append((at, length))
        at += size
    findings += sum(len(by_file[name]) for name in missing)
    drawn = DamageMap(at, full, tuple(sorted(extents, key=lambda each: (each.at, each.length))))
    scaled = tuple((drawn.scaled(start), drawn.scaled(length)) for start, length in spans[:MAX_WRITTEN])
    return FileStrip(part, len(files), len(missing), findings, drawn, scaled)


# maps of index segments


@dataclass(frozen=True, slots=True)
class SegmentMap:
    """The entries of one index file in one segment, drawn by sequence id. runs: (x, width, state); counts: in the order of `STATES`."""

    file: str
    low: int
    high: int
    counts: tuple[int, ...]
    runs: tuple[tuple[float, float, str], ...]

    @property
    def summary(self) -> str:
        parts = [f"{number:,} {STATES[state]}" for state, number in reversed(list(enumerate(self.counts))) if number]
        entries = count(sum(self.counts), "entry")
        return f"{entries}, sequence ids {self.low:,} to {self.high:,}: {', '.join(parts)}"


def segment_maps(directories: Sequence[Queue], *, refused: bool, limit: int) -> tuple[list[SegmentMap], int]:
    """Return the maps of the first segments and journals of a queue, and the number of segments that are left out."""
    places = [(queue, version, number) for queue in directories for version, number in queue.segments()]
    maps: list[SegmentMap] = []
    for queue, version, number in places[:limit]:
        table = queue.entry_table(version, number)
        if refused:
            table.refuse()
        names = [name for name, _ in table.sources]
        states = state_numbers(table)
        for file in np.unique(table.index_file).tolist():
            mine = np.flatnonzero(table.index_file == file)
            maps.append(_map_of(names[file], table.entries["seq"][mine].astype(np.int64), states[mine]))
    return maps, max(0, len(places) - limit)


def _map_of(file: str, seq: NDArray[np.int64], states: NDArray[np.uint8]) -> SegmentMap:
    low, high = int(seq.min()), int(seq.max())
    cells = min(CELLS, high - low + 1)
    worst = np.full(cells, -1, np.int16)
    np.maximum.at(worst, (seq - low) * cells // (high - low + 1), states.astype(np.int16))
    edges = np.flatnonzero(np.diff(worst)) + 1
    runs = []
    for start, stop in zip([0, *edges.tolist()], [*edges.tolist(), cells], strict=True):
        if worst[start] >= 0:
            runs.append((round(WIDTH * start / cells, 2), round(WIDTH * (stop - start) / cells, 2), STATES[int(worst[start])]))
    return SegmentMap(file, low, high, tuple(np.bincount(states, minlength=len(STATES)).tolist()), tuple(runs))


# messages over time


@dataclass(frozen=True, slots=True)
class Column:
    """One rectangle. series: number of its topic, `SERIES` for all others."""

    x: float
    y: float
    width: float
    height: float
    series: int
    topic: str
    messages: int
    start: int


@dataclass(frozen=True, slots=True)
class ColumnsChart:
    """The rectangles of a timeline. series: names with their messages, in the order of their colours; highest: messages of a column."""

    columns: tuple[Column, ...]
    series: tuple[tuple[str, int], ...]
    highest: int
    timeline: Timeline


def columns_of(timeline: Timeline) -> ColumnsChart:
    """Return the chart of a timeline; the largest topic is at the bottom."""
    named = [name for name, _ in timeline.topics[:SERIES]]
    others = sum(number for _, number in timeline.topics[SERIES:])
    series = (*timeline.topics[:SERIES], *(((f"{len(timeline.topics) - SERIES} other topics", others),) if others else ()))
    highest = max((period.messages for period in timeline.periods), default=0)
    columns: list[Column] = []
    step = WIDTH / max(1, len(timeline.periods))
    for number, period in enumerate(timeline.periods):
        amounts = [period.topics.get(name, 0) for name in named]
        amounts.append(period.messages - sum(amounts))
        base = HEIGHT
        for place, amount in enumerate(amounts):
            if amount:
                height = HEIGHT * amount / highest
                base -= height
                x, width = round(number * step, 2), round(step * (1 - GAP), 2)
                columns.append(Column(x, round(max(base, 0.0), 2), width, round(height, 2), place, series[place][0], amount, period.start))
    return ColumnsChart(tuple(columns), series, highest, timeline)


# bars


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar with its label. amount: None if it is not known; share: of the longest; note: what its label says besides, or nothing."""

    name: str
    amount: int | None
    share: float
    messages: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class DepthBar:
    """The bar of a queue. parts: (x, width, state) from 0 to 100."""

    depth: QueueDepth
    parts: tuple[tuple[float, float, str], ...]


def depth_bars(depths: Sequence[QueueDepth]) -> list[DepthBar]:
    """Return bars to the scale of the longest."""
    longest = max((depth.messages for depth in depths), default=0) or 1
    bars = []
    for depth in depths:
        x, parts = 0.0, []
        for state in DEPTH:
            width = 100 * depth.of(state) / longest
            if width:
                parts.append((round(x, 2), round(width, 2), state))
                x += width
        bars.append(DepthBar(depth, tuple(parts)))
    return bars
