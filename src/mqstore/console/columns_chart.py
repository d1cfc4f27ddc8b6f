"""A chart of stacked columns: where each rectangle of a timeline is drawn.

>>> from mqstore.console.timeline import Period, Timeline
>>> chart = columns_of(Timeline((Period(0, 10, {"a": 3, "b": 1}), Period(10, 20, {"a": 2})), (("a", 5), ("b", 1)), True, ""))
>>> [(bar.x, bar.y, bar.width, bar.height, bar.series) for bar in chart.bars]
[(0.0, 50.0, 480.0, 150.0, 0), (0.0, 0.0, 480.0, 50.0, 1), (500.0, 100.0, 480.0, 100.0, 0)]
>>> chart.series
(('a', 5), ('b', 1))
"""

from __future__ import annotations

from dataclasses import dataclass

from mqstore.console.timeline import Timeline

WIDTH, HEIGHT = 1000.0, 200.0
SERIES = 5  # topics that have a colour; the others share one
GAP = 0.04  # of a column's width


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

    bars: tuple[Column, ...]
    series: tuple[tuple[str, int], ...]
    highest: int
    timeline: Timeline


def columns_of(timeline: Timeline) -> ColumnsChart:
    """Return the chart of a timeline; the largest topic is at the bottom."""
    named = [name for name, _ in timeline.topics[:SERIES]]
    others = sum(number for _, number in timeline.topics[SERIES:])
    series = (*timeline.topics[:SERIES], *(((f"{len(timeline.topics) - SERIES} other topics", others),) if others else ()))
    highest = max((period.messages for period in timeline.periods), default=0)
    bars: list[Column] = []
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
                bars.append(Column(x, round(max(base, 0.0), 2), width, round(height, 2), place, series[place][0], amount, period.start))
    return ColumnsChart(tuple(bars), series, highest, timeline)
