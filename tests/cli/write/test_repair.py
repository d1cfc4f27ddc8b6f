"""The command `repair`: plan, apply, undo, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import rabbitmq_states
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


def test_the_directory_that_one_is_in_has_a_name_for_what_is_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made("stray_file", CASE, tmp_path / "store")
    monkeypatch.chdir(store)
    assert run_cli("diagnose", ".", "-o", "json").document["next"] == f"mqstore repair {store}"
    assert run_cli("repair", ".", "--apply", "-o", "json").document["journal"] == f"{store}.undo"
    assert run_cli("repair", "commitlog/..", "--undo").status == 0


@pytest.mark.parametrize("place", ["s3://bucket/store", "-"])
def test_what_is_not_a_directory_is_refused_before_it_is_read(place: str) -> None:
    done = run_cli("repair", place)
    assert (done.status, done.stderr) == (2, f"mqstore: {place} is not a directory: unpack or copy the store first, and repair that\n")


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


def test_an_archive_is_not_repaired() -> None:
    for case in (CASE, case_named("3.10.8/a-small-clean")):
        done = run_cli("repair", case.archive, "--apply")
        assert done.status == 2
        assert done.stderr.startswith("mqstore: ")


def _files(store: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}


def test_a_rabbitmq_store_is_planned_repaired_and_given_back(tmp_path: Path) -> None:
    store = rabbitmq_states.made("journal_hole_after_a_clean_stop", tmp_path / "node")
    before, files = tree_checksum(store), _files(store)
    found = run_cli("diagnose", store, "-o", "json")
    assert found.status == 1
    assert json.loads(found.stdout)["next"] == f"mqstore repair {store}"
    done = run_cli("repair", store)
    assert done.status == 1
    assert " ".join(done.stdout.split()).startswith(f"1 step to repair {store}; nothing is changed yet: 1 index, ")
    assert "Without this step: 49 messages are lost, 29 consumed messages are delivered again." in " ".join(done.stdout.split())
    (row,) = [json.loads(line) for line in run_cli("repair", store, "-o", "jsonl").stdout.splitlines()]
    assert (row["number"], row["step"], row["possible"], row["length"]) == (1, "index", True, 299)
    assert tree_checksum(store) == before
    done = run_cli("repair", store, "--apply")
    assert done.status == 0
    assert f"Repaired {store}: 1 step." in " ".join(done.stdout.split())
    assert run_cli("repair", store).status == 0
    assert json.loads(run_cli("diagnose", store, "-o", "json").stdout)["loses"] == 0
    assert run_cli("repair", store, "--undo", "-o", "json").status == 0
    assert _files(store) == files
    assert [path.name for path in tmp_path.iterdir()] == ["node"]


def test_options_of_the_other_broker_are_refused(tmp_path: Path) -> None:
    done = run_cli("repair", opened(case_named("3.10.8/a-small-clean")), "--threads", "2")
    assert (done.status, done.stdout) == (2, "")
