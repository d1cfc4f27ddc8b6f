"""`find` as users and scripts run it."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from support.golden import case_named, opened, run_cli, unchanged

CLEAN = case_named("4.9.3/a-clean-small")
OFFSETS = case_named("4.9.3/f-broker-offsets")
QUEUES = case_named("3.10.8/f-mixed-features")


def test_every_format_has_the_same_hits() -> None:
    with unchanged(opened(OFFSETS)):
        rows = run_cli("find", opened(OFFSETS), "order12", "-o", "jsonl").rows
        document = run_cli("find", opened(OFFSETS), "order12", "-o", "json").document
        sheet = list(csv.DictReader(io.StringIO(run_cli("find", opened(OFFSETS), "order12", "-o", "csv").stdout)))
        text = run_cli("find", opened(OFFSETS), "order12", "-v")
    assert document["messages"] == rows
    assert document["hits"] == len(rows) > 0
    assert document["complete"] is True
    assert [row["physical_offset"] for row in sheet] == [str(row["physical_offset"]) for row in rows]
    assert text.status == 0
    assert all(str(row["physical_offset"]) in text.stdout for row in rows)
    assert {"matched_in", "consumed_by", "verdict", "topic"} <= set(rows[0])
    assert "consumed by s62_everything, whose offset is" in text.stdout


def test_nothing_found_is_status_1_and_says_what_was_read() -> None:
    for case in (CLEAN, QUEUES):
        done = run_cli("find", opened(case), "no such order")
        assert done.status == 1
        assert "no message with 'no such order'" in done.stdout
        assert "record" in done.stdout or "payloads searched" in done.stdout


def test_damage_makes_an_empty_answer_uncertain() -> None:
    done = run_cli("find", opened(case_named("4.9.3/m-damaged/16-everything")), "no such order")
    assert done.status == 1
    assert "is unknown" in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["x"], "must have 2 to 4096 bytes"),
        (["order", "--threads", "2", "--master", "local[1]"], "give only one of them"),
        (["order", "--limit", "0"], "limit"),
    ],
)
def test_a_usage_error_is_one_sentence(options: list[str], told: str) -> None:
    done = run_cli("find", opened(CLEAN), *options)
    assert done.status == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_options_of_the_other_broker_are_refused() -> None:
    done = run_cli("find", opened(QUEUES), "order", "--whole-key")
    assert done.status == 2
    assert "--whole-key does not apply to a RabbitMQ store" in done.stderr


def test_a_directory_that_is_not_a_store_is_refused(tmp_path: Path) -> None:
    done = run_cli("find", tmp_path, "order")
    assert done.status == 2
    assert "Traceback" not in done.stderr


def test_of_many_hits_the_first_are_shown_and_with_v_all() -> None:
    found = run_cli("find", opened(OFFSETS), "order", "-o", "json").document["messages"]
    shown = [run_cli("find", opened(OFFSETS), "order", *verbose).stdout for verbose in ((), ("-v",))]
    counts = [sum(f"physical offset {row['physical_offset']}" in text for row in found) for text in shown]
    assert counts[0] < counts[1] == len(found)
