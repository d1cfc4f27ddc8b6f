"""`usage` as users and scripts run it."""

from __future__ import annotations

import csv
import io

import pytest
from support.golden import DAMAGED, case_named, opened, run_cli

CLEAN = case_named("4.9.3/a-clean-small")


def test_text_output_shows_the_parts_the_topics_and_the_days() -> None:
    done = run_cli("usage", opened(CLEAN))
    assert done.status == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("511 messages in ")
    for title in ("bodies", "properties", "overhead of records", "fillers at file ends", "damaged", "unwritten"):
        assert any(line.startswith(title) for line in lines)
    assert any(line.startswith("2022-01-01") for line in lines)
    assert any(line.startswith("Besides the log: consumequeue") for line in lines)
    assert done.stderr == ""


def test_the_document_has_every_table_and_its_parts_sum_up() -> None:
    found = run_cli("usage", opened(CLEAN), "-o", "json").document
    parts = ("body_bytes", "properties_bytes", "overhead_bytes", "filler_bytes", "damaged_bytes", "unwritten_bytes")
    assert sum(found[part] for part in parts) == found["log_bytes"] == sum(file["bytes"] for file in found["files"])
    assert set(found["by"]) == {"topic", "queue", "day", "retained"}
    assert sum(row["messages"] for row in found["by"]["queue"]) == found["messages"] == 511


@pytest.mark.parametrize("by", ["topic", "queue", "day", "key-prefix:1", "retained"])
def test_rows_are_grouped_as_requested(by: str) -> None:
    rows = run_cli("usage", opened(CLEAN), "--by", by, "-o", "jsonl").rows
    assert sum(row["messages"] for row in rows) == 511
    sheet = list(csv.DictReader(io.StringIO(run_cli("usage", opened(CLEAN), "--by", by, "-o", "csv").stdout)))
    assert [row["bytes"] for row in sheet] == [str(row["bytes"]) for row in rows]
    text = run_cli("usage", opened(CLEAN), "--by", by, "-v").stdout
    assert all(f"{row['bytes']:,}" in text for row in rows)


def test_damage_is_reported_with_status_1() -> None:
    statuses = set()
    for case in DAMAGED:
        done = run_cli("usage", opened(case), "-o", "json")
        assert done.status == (1 if done.document["damage"] else 0)
        statuses.add(done.status)
    assert statuses == {0, 1}  # queues and index may be damaged while the log is intact


def test_an_archive_is_counted() -> None:
    packed = CLEAN.path / "store.tar.xz"
    assert run_cli("usage", packed, "-o", "json").document["messages"] == 511


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--by", "colour"), "usage cannot be counted by 'colour'; choose one of topic, queue, day, key-prefix:N, retained"),
        (("--master", "local[1]", "--threads", "2"), "give only one of them"),
    ],
)
def test_wrong_options_give_one_sentence_errors(options: tuple[str, ...], told: str) -> None:
    done = run_cli("usage", opened(CLEAN), *options)
    assert (done.status, done.stdout) == (2, "")
    assert told in done.stderr
