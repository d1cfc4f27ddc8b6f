"""What `verify` says of stores as real nodes left them, and that all commands count the same messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.golden import OTHER_RABBITMQ, RABBITMQ, GoldenCase, case_id, expected, opened, run_cli

import mqstore

EVERY = (*RABBITMQ, *OTHER_RABBITMQ)
# messages that are lost: the node was killed in the middle of a merge
LOST = {"3.10.8/e2-gc-interrupted": 3, "3.10.8/e3-gc-interrupted-zero-extended": 6}
KILLED = {
    "3.10.8/b-dirty-journal",
    "3.10.8/b2-journal-replayed-twice",
    "3.10.8/e-gc-combined",
    "3.10.8/e2-gc-interrupted",
    "3.10.8/e3-gc-interrupted-zero-extended",
    "3.10.8/g2-v2-large-dirty",
    "4.0.5/a-v2-kill9",
    "4.3.6/b-small-files-kill9",
}


def document(*argv: object) -> tuple[int, Any]:
    done = run_cli(*argv, "-o", "json")
    return done.status, done.document


def assert_intact(store: Path) -> None:
    status, report = document("verify", store)
    assert report["damage"] == []
    assert (status, report["ok"], report["messages"]["affected"]) == (0, True, 0)


@pytest.mark.parametrize("case", [case for case in EVERY if case.id not in LOST], ids=case_id)
def test_a_store_as_its_node_left_it_is_intact_and_a_kill_is_a_note(case: GoldenCase) -> None:
    assert_intact(opened(case))
    notes = " ".join(document("verify", opened(case))[1]["notes"])
    assert ("the last stop was unclean" in notes) == (case.id in KILLED)
    assert run_cli("verify", opened(case)).stdout.startswith("Intact")


@pytest.mark.parametrize("case", [case for case in EVERY if case.id in LOST], ids=case_id)
def test_messages_that_a_kill_in_the_middle_of_a_merge_costs_are_damage_and_counted_once(case: GoldenCase) -> None:
    status, report = document("verify", opened(case))
    assert (status, report["ok"]) == (1, False)
    assert report["messages"]["affected"] == LOST[case.id] == sum(item["messages"] for item in report["damage"])


def test_transient_messages_that_a_killed_node_had_begun_to_write_are_a_note() -> None:
    (case,) = (case for case in EVERY if case.id == "4.0.5/a-v2-kill9")
    notes = document("verify", opened(case))[1]["notes"]
    assert "vhost '/', queue 'trans': 8 transient messages, 3 of them without their bytes; a broker drops them at every start" in notes
    for command in ("messages", "topics", "inspect"):
        assert run_cli(command, opened(case), "-o", "json").status == 0
    assert run_cli("queue", opened(case), "/", "trans", "-o", "jsonl").status == 0


@pytest.mark.parametrize("case", EVERY, ids=case_id)
def test_all_commands_count_the_same_messages(case: GoldenCase) -> None:
    store = opened(case)
    rows = run_cli("messages", store, "-o", "jsonl", "--body", "none").rows
    topics = run_cli("topics", store, "-o", "jsonl").rows
    inspected, report = document("inspect", store)[1], document("verify", store)[1]
    recovered = sum(row["recovered"] for row in rows)
    assert recovered == sum(row["recovered"] for row in expected(case))
    assert recovered == inspected["messages"] == sum(row["messages"] for row in topics)
    for name in ("not_recovered", "transient", "lost", "waiting", "acknowledged"):
        assert inspected[name] == sum(row[name] for row in topics), name
    assert len(rows) - recovered == inspected["not_recovered"]
    assert len(rows) == report["checked"]["messages"] == report["messages"]["total"]
    assert inspected["lost"] == report["messages"]["affected"] == LOST.get(case.id, 0)
    entries = mqstore.open(store)
    assert (
        inspected["acknowledged"] + len(rows)
        == report["checked"]["queue_entries"]
        == sum(len(table.entries) for queue in entries.queues for table in queue.entry_tables())
    )
    assert report["checked"]["bytes"] == inspected["bytes"]


@pytest.mark.parametrize("case", [case for case in EVERY if case.archive.stat().st_size < 60_000], ids=case_id)
def test_what_convert_writes_is_intact(case: GoldenCase, tmp_path: Path) -> None:
    for version in (1, 2):
        out = tmp_path / str(version)
        assert run_cli("convert", opened(case), "--to", out, "--queue-version", version).status in (0, 1)
        assert_intact(out)


@pytest.mark.parametrize("case", [case for case in EVERY if case.archive.stat().st_size < 60_000], ids=case_id)
def test_what_salvage_writes_is_intact(case: GoldenCase, tmp_path: Path) -> None:
    done = run_cli("salvage", opened(case), "--to", tmp_path / "out", "--as", "rabbitmq")
    assert done.status in (0, 1), done.stderr
    assert_intact(tmp_path / "out")
