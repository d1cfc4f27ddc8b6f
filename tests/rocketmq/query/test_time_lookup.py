"""Lookup by time, against the answers of the original brokers and the examples in the format pages."""

from __future__ import annotations

import pytest
from support.golden import PLAIN, VERSIONS, GoldenCase, bytime, case_id
from support.reading import Made, batch_queue, made, started, tagged

from mqstore.rocketmq.dispatch.consume_queue_image import BatchQueueImage, QueueImage
from mqstore.rocketmq.format.log_slices import LogFiles
from mqstore.rocketmq.query.time_lookup import Boundary, offset_by_time

START = 1640995200123
NO_LOG = LogFiles([], 4096)

both_versions = pytest.mark.parametrize("version", VERSIONS)


def stored_at(times: list[int], queue_file: int = 10) -> Made:
    return made([tagged("TagA", store_timestamp=START + time) for time in times], queue_file=queue_file)


def bounds(store: Made, time: int, log: LogFiles | None = None) -> tuple[int, int]:
    """Lower and upper bound of 5.3.3."""
    log = store.log if log is None else log
    found = [offset_by_time(store.queue, log, START + time, "5.3.3", boundary) for boundary in ("lower", "upper")]
    return found[0], found[1]


def nearest(store: Made, time: int, log: LogFiles | None = None, modified: list[int] | None = None) -> int:
    """The answer of 4.9.3."""
    return offset_by_time(store.queue, store.log if log is None else log, START + time, "4.9.3", modified=modified)


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_every_lookup_of_the_brokers_is_answered_alike(case: GoldenCase) -> None:
    broker = started(case)
    for row in bytime(case):
        queue = broker.queue(row["topic"], row["queue_id"])
        answers: list[tuple[str, Boundary]] = [("offset", "lower")] if case.version == "4.9.3" else [("lower", "lower"), ("upper", "upper")]
        for name, boundary in answers:
            assert offset_by_time(queue, broker.log, row["timestamp"], case.version, boundary) == row[name], row


# 4.9.3


@pytest.mark.parametrize(("time", "offset"), [(-10, 0), (0, 0), (60, 3), (90, 4), (91, 5), (180, 9), (500, 9)])
def test_4_9_finds_the_nearest_message_the_earlier_of_two(time: int, offset: int) -> None:
    assert nearest(stored_at([20 * number for number in range(10)]), time) == offset


def test_4_9_answers_a_time_that_is_off_by_a_little_or_a_lot_with_an_existing_message() -> None:
    store = stored_at([10 * number for number in range(10)])
    assert [nearest(store, 10 * number + skew) for skew in (-2, 2) for number in range(10)] == list(range(10)) * 2
    assert [nearest(store, skew) for skew in (-20_000, 20_000)] == [0, 9]


def test_4_9_goes_by_the_times_of_the_files_when_it_is_told_them() -> None:
    store = stored_at([20 * number for number in range(30)])
    exact = 20 * 13
    assert nearest(store, exact) == 13
    now = [START + 10_000 * number for number in (1, 2, 3)]
    assert nearest(store, exact, modified=now) == 9  # the first file was modified later than the time, so no other is looked at
    assert nearest(store, exact, modified=[START, START, START + 10_000]) == 20
    assert nearest(store, exact, modified=[START - 1] * 3) == 20  # none: the last file


def test_4_9_starts_at_the_minimum_of_the_queue() -> None:
    store = stored_at([20 * number for number in range(10)])
    store.queue.correct_min(store.physicals[4], "4.9.3")
    assert [nearest(store, time) for time in (0, 80, 100)] == [4, 4, 5]


def test_records_that_have_left_the_log_count_as_earlier_than_any_time() -> None:
    store = stored_at([20 * number for number in range(60)], queue_file=100)
    first = next(number for number, physical in enumerate(store.physicals) if physical >= 4096)
    log = store.without_log_before(4096)
    assert nearest(store, 0, log) == first
    assert nearest(store, 20 * first + 20, log) == first + 1
    assert bounds(store, 20 * first + 20, log) == (first + 1, first + 1)
    gone = LogFiles([(1 << 20, memoryview(b""))], 4096)
    assert nearest(store, 0, gone) == 0
    assert bounds(store, 0, gone) == (60, 59)


@both_versions
def test_an_entry_that_leads_nowhere_ends_the_search_with_0(version: str) -> None:
    store = stored_at([20 * number for number in range(9)])
    store.queue.files[0].part(4, 5)["size"] = 1 << 20
    assert offset_by_time(store.queue, store.log, START + 60, version) == 0


# 5.3.3


@pytest.mark.parametrize(
    ("time", "lower", "upper"),
    [
        ((0, -100), 0, 0),
        ((0, 0), 0, 0),
        ((0, 1), 1, 0),
        ((9, 0), 9, 9),
        ((9, 5), 10, 9),
        ((10, 0), 10, 10),
        ((13, 0), 13, 13),
        ((13, 1), 14, 13),
        ((19, 0), 19, 19),
        ((19, 3), 20, 19),
        ((20, 0), 20, 20),
        ((24, 0), 24, 24),
        ((24, 100), 25, 24),
    ],
)
def test_5_3_finds_the_bounds_across_files(time: tuple[int, int], lower: int, upper: int) -> None:
    store = stored_at([20 * number for number in range(25)])
    assert bounds(store, 20 * time[0] + time[1]) == (lower, upper)


def test_5_3_finds_the_first_and_the_last_of_messages_stored_at_the_same_time() -> None:
    store = stored_at([0, 5, 5, 5, 5, 5, 9, 9])
    assert [bounds(store, time) for time in (4, 5, 6, 9)] == [(1, 0), (1, 5), (6, 5), (6, 7)]


def test_5_3_looks_for_equal_times_in_one_file_only() -> None:
    store = stored_at([0] * 8 + [5] * 6)
    assert bounds(store, 5) == (8, 13)
    assert bounds(store, 0) == (0, 7)


def test_5_3_stays_within_the_queue() -> None:
    store = stored_at([20 * number for number in range(10)])
    store.queue.correct_min(store.physicals[4], "5.3.3")
    assert [bounds(store, time) for time in (0, 70, 80, 500)] == [(4, 4), (4, 4), (4, 4), (10, 9)]


@both_versions
def test_an_unknown_queue_answers_0(version: str) -> None:
    for boundary in ("lower", "upper"):
        assert offset_by_time(QueueImage("T", 7, 200), NO_LOG, START, version, boundary) == 0


# batch queues


def batch_bounds(queue: BatchQueueImage, time: int) -> tuple[int, int]:
    lower, upper = (offset_by_time(queue, NO_LOG, time, "5.3.3", boundary) for boundary in ("lower", "upper"))
    return lower, upper


def test_batches_are_found_by_the_times_in_their_units() -> None:
    queue = batch_queue([10] * 20_000, times=[10 * number for number in range(20_000)], first=1)
    assert len(queue.files) == 1000
    assert batch_bounds(queue, -1)[0] == 1
    assert all(batch_bounds(queue, 10 * number) == (10 * number + 1,) * 2 for number in (0, 1, 19, 20, 21, 10_000, 19_999))
    assert batch_bounds(queue, 10**9) == (199_991, 199_991)


def test_a_time_between_two_batches_leads_to_the_later_one() -> None:
    assert batch_bounds(batch_queue([10] * 10, times=[10 * number for number in range(10)]), 75)[0] == 80


def test_a_time_between_two_files_leads_to_the_end_of_the_earlier_one() -> None:
    queue = batch_queue([10] * 40, times=[10 * number for number in range(40)])
    assert batch_bounds(queue, 195) == (190, 190)


def test_the_upper_bound_of_a_time_between_two_batches_is_mostly_the_minimum() -> None:
    times = [10 * number for number in range(10)]
    found = [batch_bounds(batch_queue([10] * 10, times=times), time + 5)[1] for time in times[:-1]]
    assert found == [0, 0, 30, 0, 50, 0, 0, 0, 90]


def test_a_batch_queue_without_batches_answers_0() -> None:
    empty = BatchQueueImage("T", 0, 460)
    assert (empty.min_offset, empty.max_offset) == (-1, 0)
    assert batch_bounds(empty, START) == (-1, -1)


def test_times_that_go_backwards_still_give_an_offset_of_the_queue() -> None:
    store = stored_at([0, 50, 20, 70, 10, 90, 30])
    for time in range(-5, 100, 5):
        for version in VERSIONS:
            for boundary in ("lower", "upper"):
                found = offset_by_time(store.queue, store.log, START + time, version, boundary)
                assert 0 <= found <= 7
