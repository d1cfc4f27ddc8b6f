"""`scripts/prove`: parts add up, a run goes on where the last one ended, and a failure can be repeated by its seed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proofs import __main__ as command
from proofs.advice import GOLDEN
from proofs.kinds import KINDS, Kind, Part
from proofs.report import table
from proofs.state import Entry, Failed, State


class Counted(Kind):
    """A kind that notes which seeds it was given. Seeds that are multiples of 7 fail. late: seeds from this one on are too late."""

    name = "counted"
    unit = "states"
    per_seed = 10
    part = 4

    def __init__(self, late: int = 1 << 30) -> None:
        self.late = late
        self.seen: list[int] = []

    def run(self, seeds: range, jobs: int, deadline: float, place: Path | None) -> Part:
        part = Part(seeds.start)
        for seed in seeds:
            if seed >= self.late:
                break
            self.seen.append(seed)
            part.stop = seed + 1
            part.done += self.per_seed
            if seed % 7 == 0:
                part.failures.append(self.failed(seed, f"seven goes into {seed}"))
        return part


def run(kind: Kind, first: int, count: int, state: State | None) -> int:
    return command.prove(kind, first, count, 1, state, time.time() + 1e6)


def test_a_run_goes_on_after_what_is_in_the_state(tmp_path: Path) -> None:
    kind, state = Counted(), State(tmp_path)
    assert run(kind, 0, 60, state) == 1
    assert kind.seen == list(range(6))
    run(kind, state.next_seed("counted"), 60, state)
    assert kind.seen == list(range(12))
    run(kind, 0, 20, state)
    assert kind.seen == list(range(14)), "seeds in the state were checked again"
    run(kind, 3, 10, None)
    assert kind.seen[-1] == 3


def test_what_the_deadline_cuts_off_is_done_by_the_next_run(tmp_path: Path) -> None:
    kind, state = Counted(late=6), State(tmp_path)
    run(kind, 0, 120, state)
    assert state.done("counted") == [range(6)]
    kind.late = 1 << 30
    run(kind, 0, 60, state)
    assert state.done("counted") == [range(12)]
    assert kind.seen == list(range(12))


def test_a_line_that_was_cut_off_is_left_out_and_the_next_one_is_whole(tmp_path: Path) -> None:
    state = State(tmp_path)
    run(Counted(), 0, 40, state)
    with open(state.file, "ab") as file:
        file.write(b'{"kind": "counted", "first": 4, "st')
    again = State(tmp_path)
    assert again.next_seed("counted") == 4
    run(Counted(), 4, 40, again)
    assert [(entry.first, entry.stop) for entry in State(tmp_path).entries()] == [(0, 4), (4, 8)]


def entry(first: int, stop: int, day: str, *failures: Failed) -> Entry:
    began, ended = f"{day}T23:00:00Z", f"{day}T23:10:00Z"
    return Entry("crash-rabbitmq", first, stop, 500 * (stop - first), list(failures), began, ended, 600.0, "a machine", "abc")


def test_the_table_adds_up_the_runs_of_a_kind() -> None:
    failed = Failed("12:4.1", "AssertionError: it is lost\nmore", "scripts/prove --kind crash-rabbitmq --seed 12:4.1 --count 1")
    told = table([entry(0, 10, "2026-01-30"), entry(10, 20, "2026-02-01", failed), entry(40, 41, "2026-02-02", failed)])
    assert told.splitlines()[2] == "| crash-rabbitmq | 10,500 | 0-19, 40-40 | 2026-01-30 to 2026-02-02 | a machine | abc | 1,800 | 1 |"
    assert told.splitlines()[-1] == "- `scripts/prove --kind crash-rabbitmq --seed 12:4.1 --count 1`: AssertionError: it is lost"


def test_failures_are_printed_with_the_command_that_repeats_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(Counted(), 7, 10, State(tmp_path))
    assert "again: scripts/prove --kind counted --seed 7 --count 1" in capsys.readouterr().err
    (found,) = State(tmp_path).entries()
    assert found.failures == [Failed("7", "seven goes into 7", "scripts/prove --kind counted --seed 7 --count 1")]


def test_a_failure_may_name_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    state, failed = State(tmp_path), Counted().failed(7, "rename a to \udce9t")
    state.add(Entry("counted", 0, 10, 100, [failed], "2026-11-21T00:00:00Z", "2026-11-21T00:01:00Z", 60.0, "2 cores", "abc"))
    assert "rename a to \\udce9t" in table(state.entries())
    assert [each.failures for each in state.entries()] == [[failed]]


def test_a_proof_is_run_from_the_command_line_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--kind", "damaged-rabbitmq", "--jobs", "1", "--state", str(tmp_path)]
    assert command.main([*arguments, "--count", "5"]) == 0
    assert command.main([*arguments, "--count", "3"]) == 0
    capsys.readouterr()
    assert command.main(["--report", "--state", str(tmp_path)]) == 0
    line = capsys.readouterr().out.splitlines()[2]
    assert line.startswith("| damaged-rabbitmq | 8 | 0-7 |")


def test_a_kind_that_another_run_is_adding_to_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with State(tmp_path).reserved("damaged-rabbitmq") as mine:
        assert mine
        assert command.main(["--kind", "damaged-rabbitmq", "--count", "1", "--state", str(tmp_path)]) == 2
    assert "another run of damaged-rabbitmq is adding to" in capsys.readouterr().err
    assert not State(tmp_path).file.exists()


def test_one_crash_state_is_checked_again_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--kind", "crash-rabbitmq", "--seed", "1:40.0", "--count", "1"]) == 0
    assert "crash-rabbitmq: 1 states, 0 failures" in capsys.readouterr().err


def test_a_command_that_says_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 2
    assert command.main(["--report"]) == 2
    assert "--help lists the kinds" in capsys.readouterr().err


@pytest.mark.long
def test_nothing_false_is_said_of_a_hundred_sites() -> None:
    assert KINDS["sites-rocketmq"].run(range(100), 1, time.time() + 1e6, None) == Part(100, 100)


@pytest.mark.long
def test_nothing_false_is_said_of_fifty_data_directories() -> None:
    assert KINDS["sites-rabbitmq"].run(range(50), 1, time.time() + 1e6, None) == Part(50, 50)


AT_ONCE = 30


def _of_advice() -> Iterator[Any]:
    """Yield all golden stores and the first 300 damaged images of each family, in runs, and five images that were once wrong."""
    for family, golden in GOLDEN.items():
        stop = len(golden) + 300
        yield from ((family, range(first, min(first + AT_ONCE, stop))) for first in range(0, stop, AT_ONCE))
    once_wrong = (("rocketmq", 602), ("rocketmq", 1331), ("rocketmq", 1514), ("rabbitmq", 442), ("rabbitmq", 484))
    yield from ((family, range(seed, seed + 1)) for family, seed in once_wrong)


@pytest.mark.long
@pytest.mark.parametrize(("family", "seeds"), list(_of_advice()), ids=str)
def test_the_advice_for_a_store_ends_with_a_broker_that_keeps_all_of_it(family: str, seeds: range) -> None:
    assert KINDS[f"advice-{family}"].run(seeds, 1, time.time() + 1e6, None) == Part(seeds.stop, len(seeds))


def test_every_kind_is_in_the_help_and_in_the_documentation() -> None:
    documented = (command.ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    for name in KINDS:
        assert name in command.parser().format_help()
        assert f"`{name}`" in documented
