"""Sums over time."""

from __future__ import annotations

from mqstore.broker.handlers.statistics import BUCKETS, SPANS, Counters

SECOND = 1000


def test_a_minute_ago_is_out_of_the_minute_but_in_the_hour() -> None:
    counters = Counters(0)
    for second in range(181):
        now = second * SECOND
        counters.sample(now)
        if second < 60:
            counters.stored("T", messages=2, size=100, elapsed=0, now=now)
    series = counters.series("TOPIC_PUT_NUMS", "T")
    assert series is not None
    assert series.span("minute", 180 * SECOND).sum == 0
    assert series.span("hour", 180 * SECOND).sum == 120
    assert series.span("day", 180 * SECOND).avgpt == 2.0


def test_rates_are_those_of_the_last_10_seconds_minute_and_10_minutes() -> None:
    counters = Counters(0)
    for second in range(601):
        counters.sample(second * SECOND)
        counters.stored("T", messages=10 if second >= 540 else 0, size=0, elapsed=0, now=second * SECOND)
    ten, minute, ten_minutes = counters.rates(["put"], 600 * SECOND)
    assert (round(ten), round(minute), round(ten_minutes)) == (11, 10, 1)  # counts since the last sample are included


def test_every_duration_of_a_put_has_its_bucket() -> None:
    counters = Counters(0)
    for elapsed in (-1, 0, 1, 10, 11, 10_000, 10_001):
        counters.stored("T", messages=1, size=1, elapsed=elapsed, now=0)
    assert (counters.put_times[0], counters.put_times[1], counters.put_times[2]) == (2, 2, 1)
    assert counters.put_times[-2:] == [1, 1]
    assert len(counters.put_times) == len(BUCKETS) + 1


def test_what_is_deleted_or_silent_for_a_day_is_forgotten() -> None:
    counters = Counters(0)
    counters.stored("T", messages=1, size=1, elapsed=0, now=0)
    counters.pulled("g", "T", messages=1, size=1, elapsed=0, now=0)
    counters.pulled("g", "U", messages=1, size=1, elapsed=0, now=0)
    counters.forget_topic("T")
    assert [key for key, _ in counters.all_series("GROUP_GET_NUMS")] == ["U@g"]
    counters.forget_group("g")
    assert not list(counters.all_series("GROUP_GET_NUMS"))
    counters.stored("T", messages=1, size=1, elapsed=0, now=0)
    for hour in range(49):
        counters.sample(hour * 3_600_000)
    assert counters.series("TOPIC_PUT_NUMS", "T") is None


def test_a_message_in_the_first_millisecond_is_one_per_second_not_a_thousand() -> None:
    counters = Counters(now=0)
    counters.stored("orders", messages=1, size=100, elapsed=0, now=0)
    series = counters.series("TOPIC_PUT_NUMS", "orders")
    assert series is not None
    assert [series.span(name, 1).tps for name in SPANS] == [1.0, 1.0, 1.0]
    assert counters.rates(["put"], 1) == (1.0, 1.0, 1.0)
