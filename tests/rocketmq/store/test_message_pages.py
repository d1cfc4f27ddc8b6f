"""Pages of a topic's messages: every message once, newest first, and times that agree with the records."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import golden as goldenkit
from support import stores as storekit
from support.golden import GoldenCase

import mqstore
from mqstore.errors import UsageError
from mqstore.rocketmq.store import message_pages
from mqstore.rocketmq.store.message_pages import Cursor, Range
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.store.view import View
from mqstore.table.columns import Selection


def opened(case: GoldenCase) -> RocketMQStore:
    store = mqstore.open(goldenkit.opened(case), config=case.config)
    assert isinstance(store, RocketMQStore)
    return store


def topics(view: View) -> dict[str, list[Range]]:
    found: dict[str, list[Range]] = {}
    for queue in view.queues():
        found.setdefault(queue.topic, []).append(Range(queue, queue.min_offset, queue.max_offset))
    return found


@pytest.mark.parametrize("case", goldenkit.CASES, ids=goldenkit.case_id)
def test_pages_hold_every_queue_entry_exactly_once(case: GoldenCase) -> None:
    view = opened(case).view("disk")
    for ranges in topics(view).values():
        seen: list[tuple[int, int]] = []
        page = message_pages.older(ranges, view, limit=37)
        total = page.total
        assert page.first == (1 if total else 0)
        while page.rows:
            assert page.first == len(seen) + 1
            seen += [(row.queue_id, row.queue_offset) for row in page.rows]
            page = message_pages.older(ranges, view, page.bottom, limit=37)
        expected = {(each.queue.queue_id, offset) for each in ranges for offset in range(each.low, each.high)}
        assert len(seen) == total == len(expected)
        assert set(seen) == expected


@pytest.mark.parametrize("case", goldenkit.PLAIN, ids=goldenkit.case_id)
def test_newer_leads_back_to_the_page_that_older_came_from(case: GoldenCase) -> None:
    view = opened(case).view("disk")
    for ranges in topics(view).values():
        first = message_pages.older(ranges, view, limit=10)
        second = message_pages.older(ranges, view, first.bottom, limit=10)
        if second.rows:
            assert message_pages.newer(ranges, view, second.top, limit=10) == first


@pytest.mark.parametrize("case", goldenkit.PLAIN, ids=goldenkit.case_id)
def test_pages_go_from_the_newest_place_in_the_log_to_the_oldest(case: GoldenCase) -> None:
    view = opened(case).view("disk")
    for ranges in topics(view).values():
        places = [row.physical_offset for row in message_pages.older(ranges, view, limit=100_000).rows]
        assert places == sorted(places, reverse=True)


@pytest.mark.parametrize("case", goldenkit.PLAIN, ids=goldenkit.case_id)
def test_the_first_record_at_a_time_is_the_one_that_a_scan_finds(case: GoldenCase) -> None:
    view = opened(case).view("disk")
    stored = [
        (row["physical_offset"], row["store_timestamp"])
        for batch in view.batches(("physical_offset", "store_timestamp"), milliseconds=True)
        for row in batch.to_pylist()
    ]
    times = [time for _, time in stored]
    if times != sorted(times):
        pytest.skip("the clock of this store was set back, and bisection requires ascending times")
    moments = sorted({*times[:: max(1, len(times) // 9)], times[0] - 1, times[-1] + 1} if times else ())
    for moment in moments:
        scanned = next((place for place, time in stored if time >= moment), None)
        found = message_pages.first_stored(view, moment)
        behind = next((place for place, _ in stored if place >= found), None)
        assert behind == scanned


def test_a_time_range_takes_what_was_stored_from_its_begin_to_before_its_end(tmp_path: Path) -> None:
    store = storekit.Store(tmp_path)
    for number in range(60):
        store.put(storekit.message("orders", str(number).encode(), queue_id=number % 3))
    store.write()
    view = mqstore.open(tmp_path).view("disk")  # type: ignore[union-attr]
    queues = [queue for queue in view.queues() if queue.topic == "orders"]
    times = sorted(put.time for put in store.puts)
    begin, end = times[20], times[40]
    page = message_pages.older(message_pages.ranges(queues, view, begin, end), view)
    assert [row.stored for row in page.rows] == sorted((time for time in times if begin <= time < end), reverse=True)
    assert page.total == len(page.rows) > 0
    assert message_pages.older(message_pages.ranges(queues, view, times[-1] + 1, None), view).total == 0


@pytest.mark.parametrize("case", goldenkit.CASES, ids=goldenkit.case_id)
def test_the_log_read_in_pages_gives_the_message_table(case: GoldenCase) -> None:
    view = opened(case).view("disk")
    seen: list[int] = []
    walked = message_pages.from_log(view, Selection(), limit=50)
    while True:
        seen += [row.physical_offset for row in walked.rows]
        if walked.over:
            break
        walked = message_pages.from_log(view, Selection(), walked.upto, limit=50)
    assert seen == [place.as_py() for batch in view.batches(("physical_offset",)) for place in batch.column(0)]


def test_a_page_of_the_log_ends_when_its_time_is_up_and_says_where() -> None:
    view = opened(goldenkit.case_named("4.9.3/b-kill9")).view("disk")
    walked = message_pages.from_log(view, Selection(topics=frozenset({"no such topic"})), budget=0)
    assert (walked.rows, walked.over, walked.upto) == ((), False, walked.begin)
    assert message_pages.from_log(view, Selection(topics=frozenset({"no such topic"}))).over


@pytest.mark.parametrize("text", ["x", "1", "1:2:3", "1:x", f"1:{2**70}", "٣:٤:"])
def test_an_invalid_cursor_is_reported(text: str) -> None:
    with pytest.raises(UsageError, match="newest page"):
        Cursor.of(text)


def test_a_cursor_past_the_end_of_the_queues_is_moved_back() -> None:
    view = opened(goldenkit.case_named("4.9.3/b-kill9")).view("disk")
    ranges = topics(view)["TopicTest"]
    everything = message_pages.older(ranges, view)
    assert message_pages.older(ranges, view, Cursor({each.queue.queue_id: 10**15 for each in ranges})) == everything
    assert message_pages.older(ranges, view, Cursor({each.queue.queue_id: -5 for each in ranges})).rows == ()
