"""`convert` as users and programs see it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import golden as goldenkit
from support.golden import case_named, run_cli

D = case_named("3.10.8/d-large-fanout")
E2 = case_named("3.10.8/e2-gc-interrupted")


def test_text_output_reports_each_queue(tmp_path: Path) -> None:
    done = run_cli("convert", D.archive, "--to", tmp_path / "new", "--queue-version", 2)
    assert done.status == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"Converted to version 2: {tmp_path / 'new'}"
    assert lines[1] == "225 messages of 4 queues, 5.9 MiB of bodies; 11 message files, 2.8 MiB."
    assert next(line.split() for line in lines if line.startswith("/ ")) == ["/", "fan.1", "1", "->", "2", "60", "0", "60"]
    assert done.stderr == ""
    # and back, from the directory just made
    assert run_cli("convert", tmp_path / "new", "--to", tmp_path / "old", "--queue-version", 1).status == 0


def test_json_output_is_one_document_and_damage_gives_status_1(tmp_path: Path) -> None:
    done = run_cli("convert", E2.archive, "--to", tmp_path / "new", "--queue-version", 2, "-o", "json")
    assert done.status == 1
    told = done.document
    assert (told["ok"], told["messages"], told["queue_version"]) == (False, 97, 2)
    assert told["left_out"] == {"no message file has the body": 3}
    assert [item["kind"] for item in told["damage"]] == ["missing-body"] * 3
    assert run_cli("convert", E2.archive, "--to", tmp_path / "csv", "--queue-version", 2, "-o", "csv").stdout.count("\n") > 5


def test_one_queue_of_a_vhost_is_converted(tmp_path: Path) -> None:
    done = run_cli("convert", goldenkit.opened(D), "--to", tmp_path / "new", "--queue-version", 2, "--queue", "fan.3", "-o", "json")
    assert {queue["queue"]: queue["version"] for queue in done.document["queues"]} == {"fan.1": 1, "fan.2": 1, "fan.3": 2, "solo.d": 1}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--queue-version", "3"], "give --queue-version 1 or 2"),
        (["--queue-version", "2", "--queue", "nothing"], "has no queue 'nothing'"),
        (["--queue-version", "2", "--vhost", "other", "--queue", "fan.1"], "vhost 'other' has no queue"),
    ],
)
def test_an_impossible_request_gives_a_one_sentence_error(words: list[str], said: str, tmp_path: Path) -> None:
    done = run_cli("convert", goldenkit.opened(D), "--to", tmp_path / "new", *words)
    assert done.status == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_rocketmq_store_has_no_queue_versions(tmp_path: Path) -> None:
    store = goldenkit.opened(case_named("4.9.3/b-kill9"))
    done = run_cli("convert", store, "--to", tmp_path / "new", "--queue-version", 2)
    assert done.status == 2
    assert "is a RocketMQ store" in done.stderr
