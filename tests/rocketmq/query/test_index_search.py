"""Key queries: the broker's answers, edge by edge. The examples are those that were run on real brokers."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.golden import CASES, GoldenCase, case_id, case_named, expected, has, opened, queries, queries_clean

from mqstore.files import ReadOnlyDirectory
from mqstore.rocketmq.format.index_file import IndexEntry, SearchStep, load
from mqstore.rocketmq.format.java_text import index_hash
from mqstore.rocketmq.query.index_search import END_OF_TIME, MAX_RESULTS, query_messages, query_offsets, search, time_matches

T = 1640995200000


@dataclass
class Rows:
    """An index file of given entries (hash, physical offset, seconds, previous), number 1 first, and given slots."""

    entries: list[tuple[int, int, int, int]]
    slots: dict[int, int]
    begin_timestamp: int = T
    end_timestamp: int = T + 10**9
    slot_count: int = 10
    positions: int = 20
    count: int | None = None
    name: str = "20220101000000000"
    octets: None = None
    begin_physical_offset: int = 0
    end_physical_offset: int = 0
    reads: list[int] = field(default_factory=list)

    @property
    def index_count(self) -> int:
        return len(self.entries) + 1 if self.count is None else self.count

    def slot(self, number: int) -> int:
        return self.slots.get(number, 0)

    def entry(self, number: int) -> IndexEntry:
        self.reads.append(number)
        return IndexEntry(*self.entries[number - 1]) if 0 < number <= len(self.entries) else IndexEntry(0, 0, 0, 0)


def chain(*entries: tuple[int, int, int]) -> Rows:
    """A file of one chain in slot 5, entries as (hash, physical offset, seconds)."""
    return Rows([(h, p, d, number) for number, (h, p, d) in enumerate(entries)], {5: len(entries)})


def run(file: Rows, key_hash: int = 15, max_num: int = 64, begin: int = 0, end: int = END_OF_TIME) -> tuple[list[int], bool]:
    found: list[int] = []
    return found, search(file, key_hash, max_num, begin, end, found) if time_matches(file, begin, end) else (found, True)[1]


def test_the_newest_comes_first() -> None:
    assert run(chain((15, 100, 0), (25, 200, 1), (15, 300, 2)))[0] == [300, 100]


def test_only_hashes_are_compared() -> None:
    assert index_hash("Aa", "x") == index_hash("BB", "x")
    h = index_hash("Aa", "x")
    file = Rows([(h, 100, 0, 0), (h, 200, 0, 1)], {h % 10: 2})
    assert query_offsets([file], "BB", "x").offsets == (200, 100)


def test_the_answer_is_cut_at_the_maximum_before_the_next_entry_is_read() -> None:
    file = chain((15, 100, 0), (15, 200, 0), (15, 300, 0))
    assert run(file, max_num=2)[0] == [300, 200]
    assert file.reads == [3, 2]
    assert run(chain((15, 100, 0)), max_num=0)[0] == []


def test_a_maximum_beyond_the_cap_is_cut_to_it() -> None:
    h = index_hash("T", "k")
    full = Rows([(h, 100 * number, 0, number) for number in range(100)], {h % 10: 100}, positions=200)
    assert len(query_offsets([full], "T", "k", 10**6).offsets) == MAX_RESULTS
    assert len(query_offsets([full], "T", "k", 10**6, cap=10).offsets) == 10


def test_an_older_entry_of_any_key_ends_the_chain() -> None:
    assert run(chain((15, 100, 50), (25, 200, 1), (15, 300, 60)), begin=T + 10_000)[0] == [300]


def test_whole_seconds_let_entries_in_and_keep_them_out() -> None:
    # stored at 10.9 s, kept as 10 s
    assert run(chain((15, 100, 10)), begin=T + 10_500)[0] == []
    assert run(chain((15, 100, 10)), end=T + 10_500)[0] == [100]


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([(15, 100, 0, 0), (15, 200, -1, 1), (15, 300, 0, 2)], [300]),  # a negative time
        ([(15, 100, 0, 0), (15, 200, 0, 2), (15, 300, 0, 2)], [300, 200]),  # a link to itself
        ([(15, 100, 0, 0), (15, 200, 0, 9), (15, 300, 0, 2)], [300, 200]),  # a link beyond the entries
        ([(15, 100, 0, 0), (15, 200, 0, -7), (15, 300, 0, 2)], [300, 200]),  # a negative link
        ([(15, 100, 0, 0), (15, 200, 0, 4), (15, 300, 0, 2)], [300, 200]),  # a link to the next entry to be written reads zeros
    ],
)
def test_broken_chains_end_where_a_broker_ends_them(entries: list[tuple[int, int, int, int]], found: list[int]) -> None:
    assert run(Rows(entries, {5: 3})) == (found, True)


@pytest.mark.parametrize("value", [0, -1, 5, 2**31 - 1])
def test_a_slot_without_a_sound_number_finds_nothing(value: int) -> None:
    assert run(Rows([(15, 100, 0, 0)] * 3, {5: value}))[0] == []


def test_a_slot_that_holds_the_count_reads_an_entry_that_was_never_written() -> None:
    file = Rows([(15, 100, 0, 0)] * 3, {5: 4, 0: 4})
    assert run(file)[0] == []
    assert run(file, key_hash=0)[0] == [0]


def test_behind_the_last_position_a_search_ends() -> None:
    file = Rows([(15, 100, 0, 0)] * 3, {0: 4}, positions=4)
    assert run(file, key_hash=0) == ([], True)


def test_a_loop_without_a_match_is_cut() -> None:
    assert run(Rows([(25, 100, 0, 3), (25, 200, 0, 1), (25, 300, 0, 2)], {5: 3})) == ([], False)


def test_a_loop_with_a_match_fills_the_answer_as_on_a_broker() -> None:
    file = Rows([(15, 100, 0, 2), (25, 200, 0, 1), (15, 300, 0, 2)], {5: 3})
    assert run(file, max_num=5)[0] == [300, 100, 100, 100, 100]
    assert run(file, max_num=64) == ([300] + [100] * 63, False)


def test_a_loop_over_millions_of_entries_is_found_at_once() -> None:
    file = Rows([(25, 100, 0, 2), (25, 200, 0, 1)], {5: 2}, positions=20_000_000, count=20_000_000)
    assert run(file) == ([], False)
    assert len(file.reads) < 20


def test_the_time_of_an_entry_overflows_as_in_java() -> None:
    file = Rows([(15, 100, 0, 0), (15, 200, 5, 1)], {5: 2}, begin_timestamp=END_OF_TIME, end_timestamp=END_OF_TIME)
    assert run(file)[0] == []


@pytest.mark.parametrize(
    ("begin", "end", "matched"),
    [
        (0, 5, False),
        (0, 10, True),
        (0, 15, True),
        (10, 10, True),
        (12, 13, True),
        (20, 30, True),
        (21, 30, False),
        (0, 30, True),
        (0, 20, True),
        (13, 12, True),
    ],
)
def test_a_file_is_searched_when_the_ranges_meet(begin: int, end: int, matched: bool) -> None:
    assert time_matches(Rows([], {}, begin_timestamp=10, end_timestamp=20), begin, end) is matched


def files_of(*ranges: tuple[int, int], h: int) -> list[Rows]:
    made = []
    for number, (begin, end) in enumerate(ranges):
        made.append(Rows([(h, 1000 * (number + 1), 0, 0)], {h % 10: 1}, begin_timestamp=begin, end_timestamp=end, name=str(number)))
        made[-1].end_physical_offset = 1000 * (number + 1)
    return made


def test_files_are_searched_from_the_newest_until_one_begins_before_the_range() -> None:
    files = files_of((100, 200), (200, 300), (300, 400), h=index_hash("T", "k"))
    assert query_offsets(files, "T", "k").offsets == (3000, 2000, 1000)
    assert query_offsets(files, "T", "k", begin=250).offsets == (3000,)
    assert files[0].reads == [1]
    answer = query_offsets(files, "T", "k", 1)
    assert (answer.offsets, answer.last_update_timestamp, answer.last_update_physical_offset) == ((3000,), 400, 3000)


def test_no_files_give_zeros() -> None:
    answer = query_offsets([], "T", "k")
    assert (answer.offsets, answer.last_update_timestamp, answer.last_update_physical_offset) == ((), 0, 0)


def test_messages_come_ascending_and_unreadable_ones_are_left_out() -> None:
    files = files_of((100, 200), (200, 300), (300, 400), h=index_hash("T", "k"))
    answer = query_messages(files, lambda offset: None if offset == 2000 else 150, "T", "k")
    assert (answer.offsets, answer.last_update_timestamp) == ((1000, 3000), 400)


def test_three_rounds_without_a_readable_record_give_no_record_but_the_last_update() -> None:
    files = files_of((100, 200), h=index_hash("T", "k"))
    asked: list[int] = []

    def unreadable(offset: int) -> None:
        asked.append(offset)

    answer = query_messages(files, unreadable, "T", "k")
    assert (answer.offsets, answer.last_update_timestamp, answer.last_update_physical_offset) == ((), 200, 1000)
    assert asked == [1000, 1000, 1000]


def test_every_step_is_told() -> None:
    files = files_of((100, 200), (200, 300), h=index_hash("T", "k"))
    files[1].entries.append((7, 2500, 0, 1))
    files[1].slots[index_hash("T", "k") % 10] = 2
    steps: list[SearchStep] = []
    query_offsets(files, "T", "k", steps=steps)
    assert [(step.file, step.number, step.outcome) for step in steps] == [("1", 2, "another hash"), ("1", 1, "taken"), ("0", 1, "taken")]
    steps.clear()
    query_offsets(files, "T", "k", begin=1000, end=2000, steps=steps)
    assert [step.outcome for step in steps] == ["not searched: its times do not meet the range"]


def _by_the_book(file: Rows, key_hash: int, max_num: int, begin: int, end: int, limit: int) -> list[int] | None:
    """Specification 5.5 word for word; None if it goes on for more than `limit` entries."""
    found: list[int] = []
    s = file.slot(key_hash % file.slot_count)
    if s <= 0 or s > file.index_count or file.index_count <= 1:
        return found
    n = s
    for _ in range(limit):
        if len(found) >= max_num:
            return found
        if n >= file.positions:
            return found
        hr, p, d, prev = file.entry(n)
        if d < 0:
            return found
        at = file.begin_timestamp + d * 1000
        if hr == key_hash and begin <= at <= end:
            found.append(p)
        if prev <= 0 or prev > file.index_count or prev == n or at < begin:
            return found
        n = prev
    return None


ENTRY = st.tuples(st.sampled_from([15, 25, 15]), st.integers(0, 9), st.integers(-1, 12), st.integers(-1, 12))


@given(st.lists(ENTRY, min_size=1, max_size=11), st.integers(0, 12), st.integers(0, 12), st.integers(0, 12), st.integers(0, 70))
@example([(15, 1, 0, 3), (25, 2, 0, 1), (25, 3, 0, 2)], 3, 0, 12, 50)
def test_a_search_is_what_the_book_says(entries: list[tuple[int, int, int, int]], slot: int, begin: int, end: int, max_num: int) -> None:
    file = Rows(entries, {5: slot})
    wanted = _by_the_book(file, 15, max_num, T + begin * 1000, T + end * 1000, 12 * 80)
    found: list[int] = []
    ends = search(file, 15, max_num, T + begin * 1000, T + end * 1000, found)
    if wanted is None:
        assert not ends
    else:
        assert found == wanted


GOLDEN = [case for case in CASES if has(case, "queries.jsonl") and "kill9" not in case.name]


@pytest.mark.parametrize("case", GOLDEN, ids=case_id)
def test_the_index_answers_as_on_the_real_broker(case: GoldenCase) -> None:
    files = load(ReadOnlyDirectory(opened(case))).files
    stored = {row["physical_offset"]: row["store_timestamp"] for row in expected(case)}
    for row in queries(case):
        question = (row["topic"], row["key"], row["max_num"], row["begin"], row["end"])
        answer = query_offsets(files, *question)
        wanted = (row["index_offsets"], row["index_last_update_timestamp"], row["index_last_update_phyoffset"])
        assert (list(answer.offsets), answer.last_update_timestamp, answer.last_update_physical_offset) == wanted
        if case.kind == "plain" and "rolled" not in case.name:
            messages = query_messages(files, stored.get, *question)
            wanted = (row["expected"], row["result_last_update_timestamp"], row["result_last_update_phyoffset"])
            assert (list(messages.offsets), messages.last_update_timestamp, messages.last_update_physical_offset) == wanted


def test_a_damaged_index_answers_otherwise_than_a_sound_one() -> None:
    case = case_named("4.9.3/m-damaged/09-index")
    files = load(ReadOnlyDirectory(opened(case))).files
    different = [
        row
        for row in queries_clean(case)
        if list(query_offsets(files, row["topic"], row["key"], row["max_num"], row["begin"], row["end"]).offsets) != row["index_offsets"]
    ]
    assert different


def test_the_worked_example_of_two_files() -> None:
    first = Rows(
        [(1231271670, 1000, 0, 0), (2745040, 2000, 1, 1), (85096040, 3000, 59, 2)],
        {0: 3},
        begin_timestamp=1640995200123,
        end_timestamp=1640995260000,
    )
    second = Rows([(1231271670, 5000, 10, 0), (1231271670, 6000, 1, 1)], {0: 2}, begin_timestamp=1640995270000, end_timestamp=1640995271000)
    assert query_offsets([first], "TopicTest", "OrderID188", 10).offsets == (1000,)
    assert query_offsets([first], "TopicTest", "OrderID188", 10, 1640995202000).offsets == ()
    assert query_offsets([first, second], "TopicTest", "OrderID188", 64, 1640995270000, 1640995271000).offsets == (6000,)


def test_a_probe_reads_one_slot_and_its_chain() -> None:
    file = chain(*((15, n, 0) for n in range(10)))
    run(file, max_num=3)
    assert file.reads == [10, 9, 8]
