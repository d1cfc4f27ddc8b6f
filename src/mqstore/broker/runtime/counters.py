"""Counters: messages and bytes in and out, by topic and group, with rates.

A series is a sum with recent samples: of the last minute (every 10 s), hour (every 10 min) and day (every hour). They give `sum`, `tps`
and `avgpt` (per call) of those spans, including what was counted since the last sample.

    >>> counters = Counters(now=0)
    >>> counters.stored("orders", messages=10, size=2000, elapsed=1, now=0)
    >>> counters.series("TOPIC_PUT_NUMS", "orders").span("minute", 2000)
    Span(sum=10, tps=5.0, avgpt=10.0)
    >>> counters.rates(["put"], 2000)
    (5.0, 5.0, 5.0)

Names are those of a broker: TOPIC_PUT_NUMS and TOPIC_PUT_SIZE by topic, GROUP_GET_NUMS, GROUP_GET_SIZE and SNDBCK_PUT_NUMS by
`topic@group`, BROKER_PUT_NUMS and BROKER_GET_NUMS by cluster. Times are ms.

Source: Apache RocketMQ 4.9.3, StatsItem, BrokerStatsManager, StoreStatsService.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

SpanName = Literal["minute", "hour", "day"]
SPANS: dict[SpanName, tuple[int, int]] = {"minute": (10_000, 7), "hour": (600_000, 7), "day": (3_600_000, 25)}  # ms, samples

RATE_WINDOWS = (10_000, 60_000, 600_000)
RATE_SAMPLE = 1_000
DAY = 86_400_000
MOST_SERIES = 100_000
BUCKETS = (
    0,
    10,
    50,
    100,
    200,
    500,
    1000,
    2000,
    3000,
    4000,
    5000,
    10_000,
)  # upper bounds in ms of a put's duration; one more bucket follows


class Span(NamedTuple):
    """Counts over a span of time. sum: total. tps: per second. avgpt: per call."""

    sum: int
    tps: float
    avgpt: float


class Series:
    """A sum over time. total, calls: since the start."""

    __slots__ = ("_samples", "calls", "total")

    def __init__(self, now: int) -> None:
        self.total = 0
        self.calls = 0
        self._samples: dict[SpanName, deque[tuple[int, int, int]]] = {
            name: deque([(now, 0, 0)], maxlen=count) for name, (_, count) in SPANS.items()
        }

    def add(self, amount: int, calls: int = 1) -> None:
        """Add an amount."""
        self.total += amount
        self.calls += calls

    def sample(self, now: int) -> None:
        """Take a sample for each span that is due."""
        for name, (every, _) in SPANS.items():
            samples = self._samples[name]
            if now - samples[-1][0] >= every:
                samples.append((now, self.calls, self.total))

    def span(self, name: SpanName, now: int) -> Span:
        """Return the counts of the last minute, hour or day."""
        every, count = SPANS[name]
        reach = now - every * (count - 1)
        samples = list(self._samples[name])  # called from other threads too
        first = next((sample for sample in samples if sample[0] >= reach), samples[-1])
        at, calls, total = first
        amount, times = self.total - total, self.calls - calls
        elapsed = max(now - at, RATE_SAMPLE)  # a message in the first millisecond is not a rate of a thousand per second
        return Span(amount, amount * 1000 / elapsed, amount / times if times else 0.0)

    def silent_for_a_day(self, now: int) -> bool:
        """Return whether nothing was counted for a day."""
        at, _, total = self._samples["day"][0]
        return total == self.total and now - at >= DAY


class Counters:
    """All series and the broker's totals. now: ms."""

    def __init__(self, now: int, cluster: str = "DefaultCluster") -> None:
        self.cluster = cluster
        self.totals = dict.fromkeys(("put", "put_size", "put_failed", "found", "miss", "transferred", "get_size"), 0)
        self.put_times = [0] * (len(BUCKETS) + 1)
        self.put_longest = 0
        self.get_longest = 0
        self._series: dict[tuple[str, str], Series] = {}
        self._rates: deque[tuple[int, dict[str, int]]] = deque([(now, dict(self.totals))], maxlen=RATE_WINDOWS[-1] // RATE_SAMPLE + 1)

    # counting

    def stored(self, topic: str, *, messages: int, size: int, elapsed: int, now: int) -> None:
        """Count stored messages of a topic. size: bytes of their records. elapsed: duration, ms."""
        self._count("TOPIC_PUT_NUMS", topic, messages, now)
        self._count("TOPIC_PUT_SIZE", topic, size, now)
        self._count("BROKER_PUT_NUMS", self.cluster, messages, now)
        self.totals["put"] += messages
        self.totals["put_size"] += size
        self.put_longest = max(self.put_longest, elapsed)
        self.put_times[bisect_left(BUCKETS, elapsed)] += 1

    def refused(self) -> None:
        """Count a rejected put."""
        self.totals["put_failed"] += 1

    def pulled(self, group: str, topic: str, *, messages: int, size: int, elapsed: int, now: int) -> None:
        """Count a pull that returned messages."""
        key = f"{topic}@{group}"
        self._count("GROUP_GET_NUMS", key, messages, now)
        self._count("GROUP_GET_SIZE", key, size, now)
        self._count("GROUP_GET_LATENCY", key, elapsed, now)
        self._count("BROKER_GET_NUMS", self.cluster, messages, now)
        self.totals["found"] += 1
        self.totals["transferred"] += messages
        self.totals["get_size"] += size
        self.get_longest = max(self.get_longest, elapsed)

    def missed(self) -> None:
        """Count a pull that found nothing."""
        self.totals["miss"] += 1

    def sent_back(self, group: str, topic: str, *, now: int) -> None:
        """Count a message that a consumer sent back."""
        self._count("SNDBCK_PUT_NUMS", f"{topic}@{group}", 1, now)

    def _count(self, name: str, key: str, amount: int, now: int) -> None:
        series = self._series.get((name, key))
        if series is None:
            if len(self._series) >= MOST_SERIES:
                return  # the rates of very many topics and groups would fill the memory
            series = self._series[name, key] = Series(now)
        series.add(amount)

    def forget_topic(self, topic: str) -> None:
        """Drop the series of a deleted topic."""
        for pair in [pair for pair in self._series if pair[1] == topic or pair[1].startswith(f"{topic}@")]:
            del self._series[pair]

    def forget_group(self, group: str) -> None:
        """Drop the series of a deleted group."""
        for pair in [pair for pair in self._series if pair[1].endswith(f"@{group}")]:
            del self._series[pair]

    # sampling and reading

    def sample(self, now: int) -> None:
        """Take samples; call this every second."""
        if now - self._rates[-1][0] >= RATE_SAMPLE:
            self._rates.append((now, dict(self.totals)))
        for pair, series in list(self._series.items()):
            series.sample(now)
            if series.silent_for_a_day(now):
                del self._series[pair]

    def series(self, name: str, key: str) -> Series | None:
        """Return a series, or None if nothing was counted."""
        return self._series.get((name, key))

    def all_series(self, name: str) -> Iterator[tuple[str, Series]]:
        """Return the (key, series) pairs of a name."""
        return ((key, series) for (of, key), series in sorted(self._series.items()) if of == name)

    def rates(self, names: Sequence[str], now: int) -> tuple[float, ...]:
        """Return rates per second of a sum of totals over the last 10 s, minute and 10 min."""
        return tuple(self._rate(names, now, window) for window in RATE_WINDOWS)

    def _rate(self, names: Sequence[str], now: int, window: int) -> float:
        rates = list(self._rates)
        at, sums = next((sample for sample in rates if sample[0] >= now - window), rates[-1])
        if now <= at:
            return 0.0
        return sum(self.totals[name] - sums[name] for name in names) * 1000 / max(now - at, RATE_SAMPLE)
