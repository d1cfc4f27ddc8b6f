"""What the index covers, and which plan is chosen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.stores import store_with_random_keys

import mqstore
from mqstore.rocketmq.lookup.plan import Costs, Interval, Plan, choose, covered_intervals, uncovered_intervals
from mqstore.rocketmq.lookup.pruning import prune
from mqstore.table.columns import Selection


def test_what_files_cover_ends_before_their_first_and_last_record(tmp_path: Path) -> None:
    store = store_with_random_keys(tmp_path / "store", 300, 100, 100)
    opened = mqstore.open(store.root)
    files, log = opened.index_files(), opened.log
    end = store.puts[-1].offset + len(store.puts[-1].raw)
    covered = covered_intervals(files, log, end)
    rest = uncovered_intervals(covered, log.start, end)
    assert len(covered) == len(files) > 3
    marks = np.zeros(end, np.int8)
    for each in (*covered, *rest):
        marks[each.start : each.stop] += 1
    assert (marks == 1).all()
    inside = [put.offset for put in store.puts if any(each.start <= put.offset < each.stop for each in covered)]
    assert not {edge for file in files for edge in (file.begin_physical_offset, file.end_physical_offset)} & set(inside)
    assert uncovered_intervals((), 5, 9) == [Interval(5, 9)]
    assert uncovered_intervals((), 5, 5) == []


def test_a_selection_by_key_says_how_many_records_and_files_it_takes(tmp_path: Path) -> None:
    opened = mqstore.open(store_with_random_keys(tmp_path / "store", 300, 100, 100).root)
    key = next(keys[0] for keys in opened.to_arrow(["keys"]).column(0).to_pylist() if keys)
    scan = prune(opened, Selection(keys=frozenset({key})))
    files = len(opened.index_files())
    assert scan.why == f"{len(scan.points)} records by {files} of {files} index files; nothing is scanned"


# the choice


def test_a_plan_that_is_asked_for_is_taken_if_there_is_an_index() -> None:
    costs = Costs(keys=10, files=1, entries=10**7, log_bytes=10**10, uncovered_bytes=0)
    assert [choose(str(plan), costs, ())[0] for plan in Plan] == list(Plan)
    none = Costs(keys=10, files=0, entries=0, log_bytes=10**10, uncovered_bytes=10**10)
    plan, why = choose("probe", none, ["index/1: its geometry is not proved", "index/2: x"])
    assert (plan, why) == (
        Plan.SCAN,
        "no index file can be used: index/1: its geometry is not proved (1 more); 10,000,000,000 bytes of log are read",
    )


@pytest.mark.parametrize(
    ("keys", "uncovered_bytes", "plan"), [(1000, 0, "probe"), (10**6, 0, "sweep"), (10**6, 10**10, "scan"), (1, 10**6, "probe")]
)
def test_the_least_work_is_chosen(keys: int, uncovered_bytes: int, plan: str) -> None:
    assert choose("auto", Costs(keys, 2, 2 * 10**7, 10**10, uncovered_bytes), ())[0] == plan
