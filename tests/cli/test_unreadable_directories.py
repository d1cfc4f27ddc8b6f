"""One directory that cannot be listed costs what is in it, is named, and hides nothing else: only an unlistable log is a refusal."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.golden import Outcome, case_named, run_cli, unpack
from support.privilege import needs_permissions, without_privilege

# a link to itself and a link to nothing are refused to anyone, a directory without permission to anyone but root
KINDS = ("loop", "nowhere", pytest.param("permission", marks=needs_permissions))


@contextlib.contextmanager
def unlistable(path: Path, kind: str, kept: Path) -> Iterator[None]:
    """Make a directory unlistable for a while."""
    if kind == "permission":
        mode = path.stat().st_mode
        path.chmod(0)
        try:
            yield
        finally:
            path.chmod(mode)
        return
    path.rename(kept)
    path.symlink_to(path.name if kind == "loop" else "no-such-directory")
    try:
        yield
    finally:
        path.unlink()
        kept.rename(path)


def run(kind: str, *arguments: object) -> Outcome:
    """Run a command, without root's privilege to read everything if that is what is tried."""
    with without_privilege() if kind == "permission" else contextlib.nullcontext():
        return run_cli(*arguments)


def document(outcome: Outcome) -> dict[str, Any]:
    assert "a bug in mqstore" not in outcome.stderr, outcome
    found: dict[str, Any] = json.loads(outcome.stdout)
    return found


def rows(outcome: Outcome) -> list[dict[str, Any]]:
    assert "a bug in mqstore" not in outcome.stderr, outcome
    return [json.loads(line) for line in outcome.stdout.splitlines()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rocketmq_store_is_read_without_the_directory_that_cannot_be_listed(kind: str, tmp_path: Path) -> None:
    root = unpack(case_named("4.9.3/f-broker-offsets"), tmp_path / "store")
    before = {(row["topic"], row["queue_id"]): row for row in rows(run_cli("topics", root, "-o", "jsonl"))}
    messages = rows(run_cli("messages", root, "-o", "jsonl"))
    topic, queue_id = max(before, key=lambda queue: before[queue]["messages"])
    assert len({of for of, _ in before}) > 1
    places = ("consumequeue", f"consumequeue/{topic}", f"consumequeue/{topic}/{queue_id}", "index", "config")
    for place in places if kind == "loop" else places[1:4:2]:
        with unlistable(root / place, kind, tmp_path / "kept"):
            report = document(run(kind, "verify", root, "-o", "json"))
            unread = [item for item in report["damage"] if item["kind"] == "unreadable" and item["file"] == place]
            assert len(unread) == 1, (place, report["damage"])
            assert not report["coverage"]["complete"]
            assert any(item["file"] == place for item in report["coverage"]["skipped"])
            # nothing is said to be missing from what was not listed
            assert {item["kind"] for item in report["damage"] if item["file"].startswith(f"{place}/")} <= {"unreadable"}
            assert len(rows(run(kind, "messages", root, "-o", "jsonl"))) == len(messages)
            told = run(kind, "topics", root, "-o", "jsonl")
            assert told.status == 1
            assert place in run(kind, "topics", root).stderr
            left = {(row["topic"], row["queue_id"]): row for row in rows(told)}
            inside = [queue for queue in before if f"consumequeue/{queue[0]}/{queue[1]}/".startswith(f"{place}/")]
            assert {queue: row for queue, row in left.items() if queue not in inside} == {
                queue: row for queue, row in before.items() if queue not in inside
            }
            assert run(kind, "inspect", root).status == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_that_cannot_be_listed_is_refused_in_one_sentence(kind: str, tmp_path: Path) -> None:
    root = unpack(case_named("4.9.3/a-clean-small"), tmp_path / "store")
    with unlistable(root / "commitlog", kind, tmp_path / "kept"):
        for command in ("verify", "messages", "topics", "inspect") if kind == "loop" else ("verify", "topics"):
            outcome = run(kind, command, root)
            assert (outcome.status, outcome.stderr.count("\n"), "commitlog" in outcome.stderr) == (2, 1, True), (command, outcome)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rabbitmq_store_is_read_without_the_directory_that_cannot_be_listed(kind: str, tmp_path: Path) -> None:
    root = unpack(case_named("3.10.8/f-mixed-features"), tmp_path / "store")
    before = rows(run_cli("messages", root, "-o", "jsonl"))
    queues = sorted(root.glob("msg_stores/vhosts/*/queues/*"))
    names = {
        path.name: row["queue"]
        for row in rows(run_cli("topics", root, "-o", "jsonl"))
        for path in queues
        if path.name in row["directories"]
    }
    directories = (queues[0], queues[-1], queues[0].parent, queues[0].parent.parent / "msg_store_persistent")
    for directory in directories if kind == "loop" else directories[1:4:2]:
        place = str(directory.relative_to(root))
        with unlistable(directory, kind, tmp_path / "kept"):
            report = document(run(kind, "verify", root, "-o", "json"))
            assert any(item["kind"] == "unreadable" and item["file"] == place for item in report["damage"]), (place, report["damage"])
            assert not report["coverage"]["complete"]
            told = run(kind, "messages", root, "-o", "jsonl")
            assert (told.status, "a bug in mqstore" in told.stderr) == (1, False)
            if directory.parent.name == "queues":
                found = {(row["queue"], row["seq_id"]) for row in rows(told)}
                others = {(row["queue"], row["seq_id"]) for row in before if row["queue"] != names[directory.name]}
                assert others <= found
            target = tmp_path / "salvaged"
            salvaged = run(kind, "salvage", root, "--to", target, "--as", "rabbitmq", "-o", "json")
            assert salvaged.status == 1, salvaged
            assert (
                any(item["file"] == place or item["kind"] == "missing-body" for item in document(salvaged)["damage"])
                or kind != "permission"
            )
            shutil.rmtree(target)


def test_a_store_with_a_directory_that_cannot_be_listed_is_not_opened_for_writing(tmp_path: Path) -> None:
    """A writer that took a queue for empty would begin it anew."""
    root = unpack(case_named("4.9.3/a-clean-small"), tmp_path / "store")
    topic = next(path for path in (root / "consumequeue").iterdir() if path.is_dir())
    with unlistable(topic, "loop", tmp_path / "kept"):
        outcome = run_cli("put", root, "-t", topic.name, "--body", "x")
        assert outcome.status == 2
        assert f"consumequeue/{topic.name}" in outcome.stderr
