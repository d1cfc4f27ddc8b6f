"""`mqstore verify` on stores of real brokers: no finding in what brokers leave, and one for every changed byte."""

from __future__ import annotations

from typing import Any

import pytest
from support.golden import CASES, DAMAGED, PLAIN, GoldenCase, case_id, case_named, damage, expected, opened, run_cli, unchanged

# half of its last record was zeroed after the broker died
TORN = "4.9.3/b3-kill9-torn"


def verify(case: GoldenCase) -> tuple[int, dict[str, Any]]:
    store = opened(case)
    with unchanged(store):
        outcome = run_cli("verify", store, "-o", "json")
    assert outcome.status in (0, 1), outcome.stderr
    document = outcome.document
    for finding in document["damage"]:
        assert finding["detail"].strip()
        assert finding["offset"] >= 0
        assert finding["length"] >= 0
    return outcome.status, document


@pytest.mark.parametrize("case", [case for case in PLAIN if case.id != TORN], ids=case_id)
def test_a_store_as_a_real_broker_left_it_is_not_damaged(case: GoldenCase) -> None:
    status, report = verify(case)
    assert report["damage"] == []
    assert report["ok"] is True
    assert status == 0
    assert report["family"] == "rocketmq"
    assert report["coverage"]["complete"] is True
    assert report["checked"]["messages"] >= len(expected(case))


def test_a_torn_last_record_is_the_only_finding_of_a_torn_store() -> None:
    status, report = verify(case_named(TORN))
    assert (status, report["ok"]) == (1, False)
    assert {finding["kind"] for finding in report["damage"]} == {"torn-record"}


def _covered(report: dict[str, Any], file: str, start: int, stop: int) -> bool:
    """Return whether the findings of a file together cover its bytes start..stop-1."""
    ranges = sorted((f["offset"], f["offset"] + f["length"]) for f in report["damage"] if f["file"] == file)
    for low, high in ranges:
        if low <= start < high:
            start = high
    return start >= stop


@pytest.mark.parametrize("case", DAMAGED, ids=case_id)
def test_every_changed_byte_is_covered_by_a_finding(case: GoldenCase) -> None:
    status, report = verify(case)
    assert (status, report["ok"]) == (1, False)
    for change in damage(case):
        if change.get("deleted"):
            lost = [f for f in report["damage"] if f["file"].startswith(change["file"]) or f["kind"] == "missing-queue-entry"]
            assert lost, change
        elif "truncated_to" in change:
            assert [f for f in report["damage"] if f["file"] == change["file"]], change
        else:
            assert _covered(report, change["file"], change["offset"], change["offset"] + change["length"]), change


@pytest.mark.parametrize("case", DAMAGED, ids=case_id)
def test_intact_bytes_of_the_log_are_not_reported_as_damaged(case: GoldenCase) -> None:
    _, report = verify(case)
    intact = [(message["physical_offset"], message["physical_offset"] + message["size"]) for message in expected(case) if message["intact"]]
    for finding in report["damage"]:
        folder, _, name = finding["file"].partition("/")
        if folder == "commitlog" and finding["length"]:
            start = int(name) + finding["offset"]
            stop = start + finding["length"]
            assert [span for span in intact if span[0] < stop and start < span[1]] == [], finding


@pytest.mark.parametrize("case", CASES, ids=case_id)
@pytest.mark.parametrize("output", ["text", "json"])
def test_inspect_answers_on_every_store(case: GoldenCase, output: str) -> None:
    store = opened(case)
    with unchanged(store):
        outcome = run_cli("inspect", store, "-o", output)
    assert outcome.status in (0, 1), outcome.stderr
    assert outcome.stdout.strip()
