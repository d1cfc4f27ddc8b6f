"""What the benchmarks claim of their figures: the interval of a median, whether a target is met, and how the tables say it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import product
from math import isclose
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchkit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import benchkit

    return benchkit


@pytest.fixture
def everything(benchkit: ModuleType) -> ModuleType:
    import _all

    return _all


@pytest.mark.parametrize("count", range(1, 13))
def test_the_interval_contains_the_median_in_the_stated_share_of_all_cases(benchkit: ModuleType, count: int) -> None:
    covered = 0
    for sides in product((-1, 1), repeat=count):  # of the true median, 0, on which each round is with probability 1/2
        _, low, high, confidence = benchkit.spread([side * (1 + place) for place, side in enumerate(sides)])
        covered += low <= 0 <= high
    assert isclose(confidence, covered / 2**count)
    assert confidence == 1 - 2 / 2**count or confidence >= 0.9


@pytest.mark.parametrize(
    ("count", "cut", "percent"), [(1, 0, 0), (2, 0, 50), (3, 0, 75), (5, 0, 93.75), (7, 0, 98.4375), (8, 1, 92.96875), (11, 2, 93.45703125)]
)
def test_the_interval_is_between_the_same_order_statistics_from_either_end(
    benchkit: ModuleType, count: int, cut: int, percent: float
) -> None:
    spread = benchkit.spread([10.0 * value for value in range(count, 0, -1)])
    assert spread == ((count + 1) * 5, 10 * (cut + 1), 10 * (count - cut), percent / 100)


@pytest.mark.parametrize(
    ("sign", "values", "met"),
    [
        (">=", [2.0, 2.1, 2.5, 3.0, 2.2], True),
        (">=", [1.9, 2.1, 2.5, 3.0, 2.2], None),
        (">=", [1.9, 1.1, 1.5, 1.0, 2.0], None),
        (">=", [1.9, 1.1, 1.5, 1.0, 1.2], False),
        ("<=", [1.9, 1.1, 1.5, 1.0, 2.0], True),
        ("<=", [2.0, 2.1, 2.5, 3.0, 2.2], None),
        ("<=", [2.1, 2.1, 2.5, 3.0, 2.2], False),
        (">=", [9.0, 9.1, 9.2, 9.3], None),
        (">=", [9.0], None),
        ("<=", [9.0], None),
    ],
)
def test_a_target_that_the_interval_crosses_is_neither_met_nor_missed(
    benchkit: ModuleType, sign: str, values: Sequence[float], met: bool | None
) -> None:
    assert benchkit.Target(sign, 2, "x").met(values) is met


def test_a_row_misses_with_one_of_its_targets_and_has_no_verdict_without_one(benchkit: ModuleType) -> None:
    fast, slow, unclear = ([value] * 4 + [last] for value, last in ((1.0, 1.1), (3.0, 3.1), (1.0, 3.0)))

    def met(*rounds: list[float]) -> bool | None:
        return benchkit.Row("row", [benchkit.Target("<=", 2, "s", values) for values in rounds], {"seconds": fast}).facts()["met"]

    assert [met(fast, fast), met(fast, unclear), met(unclear, slow), met()] == [True, None, False, None]


def test_the_tables_say_what_cannot_be_told(
    everything: ModuleType, benchkit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["bench", "--work", str(tmp_path), "--json", str(rows), "--only", "row"])
    bench = benchkit.Bench("A benchmark.")
    ratios = [0.9, 1.3, 1.2, 1.1, 1.4]
    targets = [benchkit.Target(">=", 1, "x the peer"), benchkit.Target("<=", 5, "s", [4.0, 3.0, 3.5, 4.1, 5.5])]
    bench.emit(benchkit.Row("row", targets, {"seconds": [4.0, 3.0, 3.5, 4.1, 5.5]}, {"seconds": 4.4}, ratios, "warm"))
    bench.emit(benchkit.Row("left out", (), {"seconds": 1.0}))
    shown = capsys.readouterr().out
    assert "target >= 1 x the peer and <= 5 s  cannot be told; s: 4 (3 to 5.5, 93.75 %)" in shown
    assert "ratio 1.2 (0.9 to 1.4, 93.75 %)" in shown
    assert "medians of 5; warm" in shown
    assert "left out" not in shown
    (row,) = everything.facts_in(rows)
    assert json.loads(json.dumps(row)) == row
    *_, line = everything.table([row])
    assert line.endswith("| seconds 4 | seconds 4.4 | 1.2 (0.9 to 1.4, 93.75 %) | cannot be told; s: 4 (3 to 5.5, 93.75 %) |")
    *_, line = everything.table([{**row, "scale": 0.25}])
    assert "| (cannot be told); s: 4" in line


def test_a_comparison_says_higher_or_lower_only_where_all_rounds_agree(everything: ModuleType) -> None:
    def rounds(**figures: Sequence[float]) -> list[dict[str, object]]:
        return [
            {what: {"ours": {"seconds": value}} for what, value in zip(figures, each, strict=True)}
            for each in zip(*figures.values(), strict=True)
        ]

    now = rounds(slower=[2, 2, 2, 2, 2], faster=[1, 1, 1, 1, 1], unclear=[1, 1, 1, 1, 3], new=[1, 1, 1, 1, 1])
    then = rounds(slower=[1, 1, 1, 1, 1.9], faster=[2, 2, 2, 2, 1.1], unclear=[2, 2, 2, 2, 2], gone=[1, 1, 1, 1, 1])
    lines = list(everything.compared(now, then, "then"))[2:]
    assert [line.split(" | ")[0].strip("| ") for line in lines] == ["slower", "faster", "unclear"]
    assert [line.split(" | ")[-1].strip("| ") for line in lines] == ["higher", "lower", "cannot be told"]
    assert "| 2 | 1 | 2 (1.053 to 2, 93.75 %) |" in lines[0]
    assert all(line.endswith("| cannot be told |") for line in list(everything.compared(now[:4], then[:4], "then"))[2:])


def test_the_quick_run_is_of_scripts_that_there_are(everything: ModuleType) -> None:
    assert [name for name in everything.QUICK if name not in everything.SCRIPTS or not (BENCHMARKS / f"{name}.py").exists()] == []
