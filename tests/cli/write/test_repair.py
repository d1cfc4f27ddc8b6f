"""The command `repair`: plan, apply, undo, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

from support.golden import case_named, opened, run_cli, tree_checksum, unpack
from support.rocketmq_states import made

CASE = case_named("4.9.3/f-broker-offsets")


def test_the_plan_is_the_default_and_changes_nothing(tmp_path: Path) -> None:
    store = made("stray_file", CASE, tmp_path / "store")
    before = tree_checksum(store)
    done = run_cli("repair", store)
    assert done.status == 1
    assert done.stdout == run_cli("repair", store, "--plan").stdout
    assert " ".join(done.stdout.split()).startswith(f"2 steps to repair {store}; nothing is changed yet:")
    assert "  1  take-out, commitlog/core.4711" in done.stdout
    assert f"mqstore repair {store} --apply" in done.stdout
    rows = [json.loads(line) for line in run_cli("repair", store, "-o", "jsonl").stdout.splitlines()]
    assert [(row["number"], row["step"], row["possible"]) for row in rows] == [(1, "take-out", True), (2, "offsets", True)]
    assert tree_checksum(store) == before
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_apply_makes_the_broker_start_and_undo_gives_everything_back(tmp_path: Path) -> None:
    store = made("stray_file", CASE, tmp_path / "store")
    names = sorted(path.name for path in (store / "commitlog").iterdir())
    assert run_cli("diagnose", store).status == 2
    done = run_cli("repair", store, "--apply")
    assert done.status == 0
    assert f"Repaired {store}: 2 steps." in " ".join(done.stdout.split())
    assert " ".join(run_cli("repair", store).stdout.split()) == f"There is nothing to repair in {store}."
    assert run_cli("repair", store, "--apply").status == 0
    assert run_cli("diagnose", store).status == 0
    assert run_cli("repair", store, "--undo").status == 0
    assert sorted(path.name for path in (store / "commitlog").iterdir()) == names
    again = run_cli("repair", store, "--undo")
    assert again.status == 2
    assert "taken back already" in again.stderr


def test_one_step_of_several_into_a_journal_of_choice(tmp_path: Path) -> None:
    store = made("stray_file", CASE, tmp_path / "store")
    done = run_cli("repair", store, "--apply", "--only", "1", "--journal", tmp_path / "kept", "-o", "json")
    assert json.loads(done.stdout) == {"repaired": 1, "journal": str(tmp_path / "kept"), "not_repaired": []}
    refused = run_cli("repair", store, "--apply", "--journal", tmp_path / "kept")
    assert refused.status == 2
    assert "earlier repair" in refused.stderr
    assert run_cli("repair", store, "--undo", "--journal", tmp_path / "kept").status == 0


def test_what_cannot_be_repaired_is_named_and_the_status_says_so(tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    (store / "commitlog" / "link").symlink_to("/nowhere")
    done = run_cli("repair", store, "--apply")
    assert done.status == 1
    assert "Not repaired: take-out, commitlog/link" in " ".join(done.stdout.split())
    assert (store / "commitlog" / "link").is_symlink()


def test_requests_that_contradict_each_other_are_usage_errors(tmp_path: Path) -> None:
    store = opened(CASE)
    for options in (
        ("--apply", "--undo"),
        ("--undo", "--only", "1"),
        ("--only", "one"),
        ("--apply", "--only", "9", "--journal", tmp_path / "j"),
    ):
        done = run_cli("repair", store, *options)
        assert (done.status, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1


def test_an_archive_and_a_rabbitmq_store_are_not_repaired(tmp_path: Path) -> None:
    for store in (CASE.archive, opened(case_named("3.10.8/a-small-clean"))):
        done = run_cli("repair", store, "--apply")
        assert done.status == 2
        assert done.stderr.startswith("mqstore: ")
