"""`salvage` as users and programs see it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support import golden as goldenkit
from support.golden import case_named, run_cli

A = case_named("3.10.8/a-small-clean")
D = case_named("3.10.8/d-large-fanout")
E2 = case_named("3.10.8/e2-gc-interrupted")
ROCKET = case_named("4.9.3/b-kill9")
DAMAGED = case_named("4.9.3/m-damaged/01-body-flip")


def test_text_output_counts_the_messages_of_each_verdict(tmp_path: Path) -> None:
    done = run_cli("salvage", A.archive, "--to", tmp_path / "a.jsonl")
    assert done.status == 0, done.stderr
    words = [line.split() for line in done.stdout.splitlines()]
    assert ["intact", "71"] in [line[:2] for line in words]
    assert ["consumed", "29"] in [line[:2] for line in words]
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(rows) == 100


def test_what_to_do_with_the_file_is_said(tmp_path: Path) -> None:
    store = goldenkit.opened(E2)
    done = run_cli("salvage", store, "--to", tmp_path / "e2.jsonl")
    assert done.stdout.splitlines()[-1].strip() == f"mqstore diagnose {store}"
    assert "`mqstore replay` sends rows of the file" in " ".join(done.stdout.split())


def test_missing_messages_give_status_1(tmp_path: Path) -> None:
    done = run_cli("salvage", E2.archive, "--to", tmp_path / "e2.parquet", "-o", "json")
    assert done.status == 1
    assert done.document["verdicts"] == {
        "intact": 97,
        "consumed": 125,
        "unindexed": 0,
        "unreachable": 3,
        "damaged": 0,
        "duplicate": 0,
        "unproved": 0,
    }
    assert done.document["messages"] == pq.read_table(tmp_path / "e2.parquet").num_rows == 222


def test_queues_and_verdicts_are_chosen(tmp_path: Path) -> None:
    done = run_cli("salvage", D.archive, "--to", tmp_path / "d.jsonl", "--queue", "fan.1", "--queue", "fan.3", "--verdict", "intact", "-q")
    assert done.status == 0
    rows = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    assert {row["queue"] for row in rows} == {"fan.1", "fan.3"}
    assert len(rows) == 120


def test_a_new_store_can_be_read(tmp_path: Path) -> None:
    done = run_cli("salvage", D.archive, "--to", tmp_path / "fresh", "--as", "rabbitmq", "--queue-version", 1, "-o", "json")
    assert (done.status, done.document["messages"]) == (0, 225)
    assert run_cli("messages", tmp_path / "fresh", "-o", "jsonl").stdout.count("\n") == 225


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "out"], "is not known from its name"),
        (["--to", "out.jsonl", "--into", "q"], "--into names a queue"),
        (["--to", "out", "--as", "rabbitmq", "--verdict", "intact"], "a new store takes the ready messages of every queue"),
        (["--to", "out", "--as", "rabbitmq", "--queue-version", "3"], "queue version must be 1 or 2"),
        (["--to", "amqp://localhost/", "--rate", "0"], "--rate must be above 0"),
    ],
)
def test_an_impossible_request_gives_a_one_sentence_error(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_cli("salvage", goldenkit.opened(D), *words)
    assert done.status == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_not_a_store_gives_a_one_sentence_error(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("nothing")
    for path in (tmp_path, tmp_path / "readme.txt", tmp_path / "nowhere"):
        done = run_cli("salvage", path, "--to", tmp_path / "out.jsonl")
        assert done.status == 2
        assert done.stderr.count("\n") == 1


def test_rocketmq_records_come_out_with_their_verdict(tmp_path: Path) -> None:
    done = run_cli("salvage", ROCKET.archive, "--to", tmp_path / "all.jsonl", "-o", "json")
    assert done.status == 0
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    want = [json.loads(line) for line in run_cli("messages", ROCKET.archive, "-o", "jsonl", "--body", "base64").stdout.splitlines()]
    assert rows == want
    damaged = run_cli("salvage", DAMAGED.archive, "--to", tmp_path / "damaged.parquet", "-o", "json")
    assert damaged.status == 1
    seen = [json.loads(line)["verdict"] for line in run_cli("messages", DAMAGED.archive, "-o", "jsonl").stdout.splitlines()]
    assert damaged.document["verdicts"]["damaged"] == seen.count("damaged") > 0
    assert pq.read_table(tmp_path / "damaged.parquet").num_rows == damaged.document["messages"]
