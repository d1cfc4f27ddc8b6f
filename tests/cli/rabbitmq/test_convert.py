"""`convert` as users and programs see it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import golden as goldenkit
from support.golden import case_named, opened_node, run_cli

D = case_named("3.10.8/d-large-fanout")
E2 = case_named("3.10.8/e2-gc-interrupted")
NEW = case_named("4.3.6/a-v2-clean")


def test_text_output_reports_each_queue(tmp_path: Path) -> None:
    done = run_cli("convert", D.archive, "--to", tmp_path / "new", "--queue-version", 2)
    assert done.status == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"Converted to version 2: {tmp_path / 'new'}"
    assert lines[1] == "225 messages of 4 queues, 5.9 MiB of bodies; 11 message files, 2.8 MiB."
    assert next(line.split() for line in lines if line.startswith("/ ")) == ["/", "fan.1", "1", "->", "2", "60", "0", "60"]
    assert "more; -v" not in done.stdout
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


@pytest.mark.parametrize(("version", "written", "rewritten"), [("3.8", 1, 211), ("3.13.7", 1, 211), ("4.0", 2, 0), ("4.3", 2, 0)])
def test_a_version_of_rabbitmq_decides_queue_version_and_form_of_messages(
    version: str, written: int, rewritten: int, tmp_path: Path
) -> None:
    done = run_cli("convert", goldenkit.opened(NEW), "--to", tmp_path / "new", "--for", version, "-o", "json")
    assert done.status == 0, done.stderr
    report = done.document
    assert (report["queue_version"], report["messages"], report["rewritten"]) == (written, 211, rewritten)
    was = run_cli("messages", goldenkit.opened(NEW), "-o", "jsonl", "--body", "sha256").rows
    rows = run_cli("messages", tmp_path / "new", "-o", "jsonl", "--body", "sha256").rows
    if version == "4.0":  # which delivers the address of a queue unchanged
        (one,) = (row for row in was if row["properties"].get("reply_to") == "answers")
        one["properties"]["reply_to"] = "/queues/answers"
    names = (
        "vhost",
        "queue",
        "pos",
        "seq_id",
        "msg_id",
        "exchange",
        "routing_keys",
        "properties",
        "payload_sha256",
        "expiry_us",
        "verdict",
    )
    assert [[row[name] for name in names] for row in rows] == [[row[name] for name in names] for row in was if row["recovered"]]
    marked = [
        (row["redelivered"], before["redelivered"]) for row, before in zip(rows, (row for row in was if row["recovered"]), strict=True)
    ]
    # 4.3 marks single messages, older versions all up to one
    assert all(now == before if version == "4.3" else now >= before for now, before in marked)
    files = [path for path in (tmp_path / "new").rglob("*") if path.suffix in (".rdq", ".idx", ".qs")]
    assert any(b"mc_amqpl" in path.read_bytes() for path in files) == (not rewritten)


def test_a_message_that_an_older_version_cannot_store_is_a_refusal_that_names_its_queue(tmp_path: Path) -> None:
    store = goldenkit.unpack(NEW, tmp_path / "store")
    for path in [*store.rglob(".vhost"), *store.rglob(".queue_name")]:
        path.unlink()
    done = run_cli("convert", store, "--to", tmp_path / "new", "--for", "3.10")
    assert done.status == 2
    assert "messages cannot be written for that version: queue '" in done.stderr
    assert "the first with sequence id 0: the name of its vhost is not known" in done.stderr
    assert not (tmp_path / "new").exists()
    assert run_cli("convert", store, "--to", tmp_path / "new", "--for", "4.3").status == 0


def test_one_queue_of_a_vhost_is_converted(tmp_path: Path) -> None:
    done = run_cli("convert", goldenkit.opened(D), "--to", tmp_path / "new", "--queue-version", 2, "--queue", "fan.3", "-o", "json")
    assert {queue["queue"]: queue["version"] for queue in done.document["queues"]} == {"fan.1": 1, "fan.2": 1, "fan.3": 2, "solo.d": 1}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--queue-version", "3"], "give --queue-version 1 or 2"),
        (["--queue-version", "2", "--queue", "nothing"], "has no queue 'nothing'"),
        ([], "say which version of RabbitMQ will read the new directory"),
        (["--for", "3.7"], "'3.7' is not a version of RabbitMQ that can be converted for; they are 3.8, 3.9, 3.10,"),
        (["--for", "x"], "'x' is not a version of RabbitMQ"),
        (["--for", "4.3.6", "--queue-version", "1"], "RabbitMQ 4.3 does not read queues of version 1"),
        (["--queue-version", "2", "--vhost", "other", "--queue", "fan.1"], "the store has no vhost 'other'; it has '/'"),
        (["--queue-version", "2", "--vhost", "/"], "--vhost names the vhost of --queue; name the queues, or omit it"),
        (["--queue-version", "2", "--queue", "fan1"], "vhost '/' has no queue 'fan1'; did you mean 'fan.1'"),
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


def test_what_is_not_a_classic_queue_is_named(tmp_path: Path) -> None:
    done = run_cli("convert", opened_node(case_named("4.0.5/a-v2-kill9")), "--to", tmp_path / "out", "--queue-version", "1")
    said = " ".join(done.stdout.split())
    assert "1 quorum queue is not in the new directory" in said
    assert "1 stream is not in the new directory" in said
