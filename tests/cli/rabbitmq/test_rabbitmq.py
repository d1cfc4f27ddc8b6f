"""The reading commands on RabbitMQ stores: they print what the real broker delivered, and report what is missing or damaged."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from support.golden import CASES, RABBITMQ, GoldenCase, case_id, case_named, expected, opened, run_cli, unpack

READING = ("inspect", "messages", "topics", "verify", "usage")
MIXED = case_named("3.10.8/f-mixed-features")
MERGED = case_named("3.10.8/e-gc-combined")
LOSSY = case_named("3.10.8/e3-gc-interrupted-zero-extended")


def lines(*arguments: object, status: int | None = 0) -> list[dict[str, Any]]:
    outcome = run_cli(*arguments, "-o", "jsonl")
    assert status is None or outcome.status == status, outcome.stderr
    return [json.loads(line) for line in outcome.stdout.splitlines()]


def document(*arguments: object, status: int = 0) -> dict[str, Any]:
    outcome = run_cli(*arguments, "-o", "json")
    assert outcome.status == status, outcome.stderr
    return dict(json.loads(outcome.stdout))


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["vhost"], row["queue"], row["priority_level"], row["seq_id"]


# messages


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_messages_prints_what_the_broker_delivered_and_what_it_would_not(case: GoldenCase) -> None:
    found = lines("messages", case.archive, status=None)
    wanted = {key(row): row for row in expected(case)}
    assert len(found) == len(wanted)
    for row in found:
        line = wanted[key(row)]
        assert {name: row[name] for name in line} == line


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_rows_come_by_vhost_queue_priority_and_position(case: GoldenCase) -> None:
    delivered = lines("messages", opened(case), "--view", "recovered", status=None)
    assert all(row["recovered"] for row in delivered)
    order = [(row["vhost"], row["queue"], row["pos"]) for row in delivered]
    assert order == sorted(order)
    levels = [(row["vhost"], row["queue"], -(row["priority_level"] or 0)) for row in delivered]
    assert levels == sorted(levels)


def test_a_payload_is_shown_in_the_requested_form() -> None:
    plain = lines("messages", opened(MIXED))
    for row in plain:
        payload = base64.b64decode(row["payload_b64"])
        assert (len(payload), hashlib.sha256(payload).hexdigest()) == (row["payload_len"], row["payload_sha256"])
    assert "payload_b64" not in lines("messages", opened(MIXED), "--body", "sha256")[0]
    assert "payload_sha256" not in lines("messages", opened(MIXED), "--body", "none")[0]
    text = lines("messages", opened(MIXED), "--body", "text")
    assert text[0]["payload"] == base64.b64decode(plain[0]["payload_b64"]).decode()


def test_filters_keep_the_matching_rows() -> None:
    root = opened(MIXED)
    everything = lines("messages", root)
    queue = "заказы/队列 🐇"
    assert [key(row) for row in lines("messages", root, "--queue", queue)] == [key(row) for row in everything if row["queue"] == queue]
    assert {row["vhost"] for row in lines("messages", root, "--vhost", "тест-β/%2F 2")} == {"тест-β/%2F 2"}
    assert len(lines("messages", root, "-n", 7)) == 7
    part = lines("messages", root, "--queue", "prio.q", "--vhost", "/", "--from-seq", 1, "--to-seq", 3)
    assert {row["seq_id"] for row in part} == {1, 2}
    positions = {key(row): row["pos"] for row in everything}
    assert all(positions[key(row)] == row["pos"] for row in part)
    hits = [key(row) for row in everything if re.search(rb"[0-9]$", base64.b64decode(row["payload_b64"]))]
    assert hits
    assert [key(row) for row in lines("messages", root, "--grep", "[0-9]$")] == hits


def test_since_and_until_select_by_the_timestamp_that_a_publisher_set() -> None:
    stamped = [row for row in lines("messages", opened(MIXED)) if row["properties"] and "timestamp" in row["properties"]]
    assert stamped
    second = stamped[0]["properties"]["timestamp"]
    found = lines("messages", opened(MIXED), "--since", second * 1000, "--until", second * 1000 + 1)
    assert [key(row) for row in found] == [key(row) for row in stamped if row["properties"]["timestamp"] == second]
    assert lines("messages", opened(MIXED), "--since", second * 1000, "--until", second * 1000 + 1, "-n", 0) == []


def test_all_includes_acknowledged_messages() -> None:
    verdicts = [row["verdict"] for row in lines("messages", opened(case_named("3.10.8/a-small-clean")), "--all")]
    assert (verdicts.count("intact"), verdicts.count("consumed")) == (71, 29)
    assert len(lines("messages", opened(case_named("3.10.8/a-small-clean")), "--verdict", "consumed")) == 29


def test_csv_holds_the_same_rows() -> None:
    found = list(csv.DictReader(io.StringIO(run_cli("messages", opened(MIXED), "-o", "csv").stdout)))
    for row, wanted in zip(found, lines("messages", opened(MIXED)), strict=True):
        assert row["queue"] == wanted["queue"]
        assert json.loads(row["routing_keys"] or "null") == wanted["routing_keys"]
        assert json.loads(row["properties"] or "null") == wanted["properties"]
        assert row["payload_b64"] == wanted["payload_b64"]


def test_missing_messages_are_rows_and_give_status_1() -> None:
    case = case_named("3.10.8/e2-gc-interrupted")
    outcome = run_cli("messages", opened(case), "-o", "jsonl")
    assert outcome.status == 1
    assert [json.loads(line)["verdict"] for line in outcome.stdout.splitlines()].count("unreachable") == 3
    assert "3 messages unreachable" in run_cli("messages", opened(case)).stderr


# topics, queue, get, inspect


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_topics_counts_what_the_broker_would_recover(case: GoldenCase) -> None:
    found = {(row["vhost"], row["queue"]): row for row in lines("topics", opened(case), status=None)}
    wanted = expected(case)
    for place, row in found.items():
        mine = [line for line in wanted if (line["vhost"], line["queue"]) == place]
        assert row["messages"] == sum(line["recovered"] for line in mine)
        assert row["bytes"] == sum(line["size"] for line in mine if line["recovered"])
        assert row["not_recovered"] == sum(not line["recovered"] for line in mine)
    assert set(found) >= {(line["vhost"], line["queue"]) for line in wanted}


def test_expiry_is_judged_at_the_given_time() -> None:
    store = opened(MIXED)
    for at, expired in (("2026-11-22T01:00:00Z", 0), ("2026-12-01", 4), ("2027-02-01 00:00+01:00", 12)):
        (told,) = [row for row in lines("topics", store, "--at", at) if row["queue"] == "ttl.q"]
        assert told["expired"] == expired
        rows = lines("messages", store, "--queue", "ttl.q", "--at", at)
        assert sum(row["expired"] for row in rows) == expired
    assert "expired" not in lines("messages", store, "--queue", "ttl.q")[0]
    assert "12 expired" in run_cli("topics", store, "--at", "1800000000000").stdout


def test_an_export_marks_what_has_expired_at_the_given_time(tmp_path: Path) -> None:
    store = opened(MIXED)
    given = ("export", store, "--format", "jsonl", "--threads", "1", "--columns", "queue,expired", "--queue", "ttl.q")
    assert run_cli(*given, "--to", tmp_path / "later", "--at", "2026-12-01").status == 0
    assert run_cli(*given, "--to", tmp_path / "unknown").status == 0
    found = {
        place: [json.loads(line)["expired"] for file in sorted((tmp_path / place).glob("part-*")) for line in file.read_text().splitlines()]
        for place in ("later", "unknown")
    }
    assert sum(found["later"]) == 4
    assert found["unknown"] == [None] * 12


def test_convert_leaves_out_what_has_expired_at_the_given_time(tmp_path: Path) -> None:
    store = opened(MIXED)
    for number, (at, left_out) in enumerate((("2026-06-01", 0), ("2027-02-01", 13))):
        done = run_cli("convert", store, "--to", tmp_path / str(number), "--queue-version", "2", "--drop-expired", "--at", at, "-o", "json")
        assert done.document["left_out"].get("expired at the head of its queue", 0) == left_out
    refused = run_cli("convert", store, "--to", tmp_path / "x", "--queue-version", "2", "--at", "2026-06-01")
    assert refused.status == 2
    assert "--drop-expired" in refused.stderr


def test_queue_lists_index_entries_with_their_state() -> None:
    found = lines("queue", opened(case_named("3.10.8/a-small-clean")), "/", "small.embedded")
    states = [row["state"] for row in found]
    assert (len(found), states.count("acknowledged")) == (100, 29)
    assert [row["seq_id"] for row in found] == list(range(100))
    assert [row["pos"] for row in found if row["recovered"]] == list(range(71))
    missing = lines("queue", opened(case_named("3.10.8/e2-gc-interrupted")), "/", "solo.d", "-n", 4, status=1)
    assert [row["state"] for row in missing] == ["missing", "delivered", "missing", "missing"]
    assert {row["priority_level"] for row in lines("queue", opened(MIXED), "/", "prio.q", "--priority", 3)} == {3}


def test_a_missing_queue_is_named() -> None:
    outcome = run_cli("queue", opened(MERGED), "/", "none")
    assert outcome.status == 1
    assert "has no queue 'none'; it has fan.1" in outcome.stderr


@pytest.mark.parametrize("name", ["3.10.8/f-mixed-features", "3.10.8/g1-v2-small-clean"])
def test_get_finds_a_message_by_id_by_position_and_by_sequence_id(name: str) -> None:
    root = opened(case_named(name))
    for row in random.Random(4).sample(lines("messages", root), 5):
        level = () if row["priority_level"] is None else ("--priority", row["priority_level"])
        assert document("get", root, "--vhost", row["vhost"], "--queue", row["queue"], "--seq", row["seq_id"], *level) == row
        assert document("get", root, "--id", row["msg_id"])["payload_sha256"] == row["payload_sha256"]
        if row["pos"] is not None:
            assert document("get", root, "--vhost", row["vhost"], "--queue", row["queue"], "--at", row["pos"]) == row


def test_get_writes_a_payload_into_a_file(tmp_path: Path) -> None:
    row = lines("messages", opened(MERGED), "-n", 1)[0]
    assert run_cli("get", opened(MERGED), "--id", row["msg_id"], "--raw", tmp_path / "payload").status == 0
    assert hashlib.sha256((tmp_path / "payload").read_bytes()).hexdigest() == row["payload_sha256"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name the message with one of"),
        (("--at", 1), "need a queue"),
        (("--id", "xyz"), "is not a message id"),
        (("--at", 0, "--queue", "prio.q"), "add --vhost"),
    ],
)
def test_get_names_the_options_that_it_needs(arguments: tuple[object, ...], words: str) -> None:
    outcome = run_cli("get", opened(MIXED), *arguments)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert words in outcome.stderr


def test_a_missing_message_gives_status_1() -> None:
    assert run_cli("get", opened(MIXED), "--id", "00" * 16).status == 1
    assert run_cli("get", opened(MIXED), "--queue", "lazy.mixed", "--at", 999).status == 1


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_inspect_shows_family_counts_settings_and_shutdown(case: GoldenCase) -> None:
    told = document("inspect", opened(case), status=int(case.name == "e2-gc-interrupted"))
    wanted = expected(case)
    dirty = case.name.startswith(("b", "e", "g2"))
    assert (told["family"], told["shutdown"]) == ("rabbitmq", "unclean" if dirty else "clean")
    assert told["queue_versions"] == [2 if case.name.startswith("g") else 1]
    assert told["messages"] == sum(row["recovered"] for row in wanted)
    assert told["not_recovered"] == sum(not row["recovered"] for row in wanted)
    assert told["settings"]["segment_entry_count"] == (16384 if case.name.startswith("c") else 2048)
    assert {vhost["vhost"] for vhost in told["vhosts"]} == {row["vhost"] for row in wanted}


# verify, usage


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_verify_accepts_a_store_that_a_broker_would_recover_completely(case: GoldenCase) -> None:
    lost = {"e2-gc-interrupted": "missing-body", "e3-gc-interrupted-zero-extended": "broker-loses"}.get(case.name)
    report = document("verify", opened(case), status=int(lost is not None))
    assert report["family"] == "rabbitmq"
    assert report["ok"] is (lost is None)
    assert {item["kind"] for item in report["damage"]} == ({lost} if lost else set())
    assert report["checked"]["messages"] > 0


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_usage_counts_every_byte_of_a_message_file_once(case: GoldenCase) -> None:
    told = document("usage", opened(case))
    for file in told["files"]:
        assert file["bytes"] == (opened(case) / file["file"]).stat().st_size
        assert file["live_bytes"] + file["garbage_bytes"] + file["unreadable_bytes"] == file["bytes"]
    wanted = {row["msg_id"] for row in expected(case) if row["location"].startswith("msg_store") and row["recovered"]}
    assert told["message_files"]["live_records"] >= len(wanted)
    for queue in told["queues"]:
        assert queue["messages"] == sum((row["vhost"], row["queue"]) == (queue["vhost"], queue["queue"]) for row in expected(case))


def test_usage_finds_the_garbage_that_merging_left() -> None:
    told = document("usage", opened(MERGED))["message_files"]
    assert told["garbage_bytes"] > 0
    assert document("usage", opened(case_named("3.10.8/d-large-fanout")))["message_files"]["garbage_bytes"] == 0


# two families, one command


@pytest.mark.parametrize(
    "arguments",
    [
        ("query", "-t", "a", "-k", "b"),
        ("groups",),
        ("lookup", "--keys", "keys.txt", "--to", "out"),
        ("rebuild", "--to", "out"),
    ],
)
def test_a_command_without_meaning_for_rabbitmq_gives_a_one_sentence_error(arguments: tuple[str, ...]) -> None:
    outcome = run_cli(arguments[0], opened(MERGED), *arguments[1:])
    assert (outcome.status, outcome.stdout) == (2, "")
    assert "is a RabbitMQ store: " in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_an_option_of_the_other_family_is_refused_and_the_valid_ones_are_listed() -> None:
    outcome = run_cli("messages", opened(MERGED), "--tags", "a")
    assert outcome.status == 2
    assert "--tags does not apply to a RabbitMQ store" in outcome.stderr
    assert "--vhost" in outcome.stderr
    assert "--vhost does not apply to a RocketMQ store" in run_cli("messages", opened(CASES[0]), "--vhost", "/").stderr
    assert "is not a queue id" in run_cli("messages", opened(CASES[0]), "--queue", "orders").stderr


def test_queue_names_can_be_given_if_directories_do_not_record_them(tmp_path: Path) -> None:
    root = unpack(MERGED, tmp_path / "store")
    for name in root.rglob(".queue_name"):
        name.unlink()
    unnamed = {row["queue"] for row in lines("topics", root)}
    assert unnamed.isdisjoint({"fan.1", "solo.d"})
    (tmp_path / "names").write_text("/\tfan.1\n/\tfan.2\n/\tfan.3\n/\tsolo.d\n/\tother\n")
    named = {row["queue"]: row["messages"] for row in lines("topics", root, "--names", tmp_path / "names")}
    assert named == {"fan.1": 19, "fan.2": 27, "fan.3": 27, "solo.d": 16}
    (tmp_path / "names").write_text("no tab\n")
    assert "vhost<TAB>queue" in run_cli("topics", root, "--names", tmp_path / "names").stderr


# damage


@pytest.mark.parametrize("seed", range(12))
def test_no_damage_ends_a_command_with_a_traceback(seed: int, tmp_path: Path) -> None:
    """Bytes changed, files truncated, zero-filled or removed: rows or findings, never a traceback."""
    choice = random.Random(seed)
    case = choice.choice([case for case in RABBITMQ if case.name[0] in "adefg"])
    root = unpack(case, tmp_path / "store")
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size]
    for path in choice.sample(files, 4):
        path.chmod(0o644)
        raw = bytearray(path.read_bytes())
        at = choice.randrange(len(raw))
        match choice.randrange(4):
            case 0:
                raw[at] ^= 1 << choice.randrange(8)
            case 1:
                del raw[at:]
            case 2:
                raw[at : at + 64] = bytes(min(64, len(raw) - at))
            case 3:
                raw[at : at + 8] = choice.randbytes(min(8, len(raw) - at))
        path.write_bytes(raw)
    for verb in READING:
        for output in ("text", "jsonl"):
            outcome = run_cli(verb, root, "-o", output)
            assert outcome.status in (0, 1, 2), outcome
            assert "Traceback" not in outcome.stderr
            assert "a bug in mqstore" not in outcome.stderr, (seed, verb, outcome.stderr)
    shutil.rmtree(root)


# export


def exported(to: Path, kind: str) -> list[dict[str, Any]]:
    """Return the rows of an export, in the order of its files."""
    found: list[dict[str, Any]] = []
    for file in sorted(to.glob(f"part-*.{kind}")):
        if kind == "jsonl":
            found += [json.loads(line) for line in file.read_text().splitlines()]
        elif kind == "csv":
            found += list(csv.DictReader(io.StringIO(file.read_text())))
        else:
            found += parquet.read_table(file).to_pylist()
    return found


@pytest.mark.parametrize("splits", [1, 3, 7])
def test_an_export_holds_the_rows_of_messages(splits: int, tmp_path: Path) -> None:
    wanted = lines("messages", opened(MIXED))
    for kind in ("jsonl", "csv", "parquet"):
        outcome = run_cli("export", opened(MIXED), "--to", tmp_path / kind, "--format", kind, "--threads", 2, "--splits", splits)
        assert outcome.status == 0, outcome.stderr
        found = exported(tmp_path / kind, kind)
        if kind == "jsonl":
            assert found == wanted
        elif kind == "csv":
            assert [(row["queue"], row["seq_id"], row["payload_sha256"]) for row in found] == [
                (row["queue"], str(row["seq_id"]), row["payload_sha256"] or "") for row in wanted
            ]
        else:
            assert [(row["queue"], row["seq_id"], row["payload"]) for row in found] == [
                (row["queue"], row["seq_id"], base64.b64decode(row["payload_b64"])) for row in wanted
            ]
        manifest = json.loads((tmp_path / kind / "_mqstore_export.json").read_text())
        assert (manifest["family"], manifest["messages"]) == ("rabbitmq", 118)


def test_an_export_takes_filters_a_limit_and_partitions(tmp_path: Path) -> None:
    run = ("export", opened(MIXED), "--threads", 1, "--to")
    assert run_cli(*run, tmp_path / "limited", "--format", "jsonl", "-n", 20).status == 0
    assert exported(tmp_path / "limited", "jsonl") == lines("messages", opened(MIXED), "-n", 20)
    assert run_cli(*run, tmp_path / "one", "--format", "jsonl", "--queue", "ttl.q").status == 0
    assert exported(tmp_path / "one", "jsonl") == lines("messages", opened(MIXED), "--queue", "ttl.q")
    assert run_cli(*run, tmp_path / "stamped", "--format", "jsonl", "--since", 0).status == 0
    assert exported(tmp_path / "stamped", "jsonl") == lines("messages", opened(MIXED), "--since", 0)
    assert run_cli(*run, tmp_path / "none", "--queue", "no such queue").status == 0
    assert exported(tmp_path / "none", "parquet") == []
    assert run_cli(*run, tmp_path / "parts", "--partition-by", "location,recovered").status == 0
    assert {path.name for path in (tmp_path / "parts").iterdir() if path.is_dir()} >= {"location=index", "location=msg_store_transient"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--partition-by", "payload"), "cannot name directories"),
        (("--columns", "topic"), "there is no column 'topic'"),
        (("--columns", ","), "does not name a column"),
        (("--topic", "a"), "--topic does not apply"),
    ],
)
def test_an_impossible_export_is_refused(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    outcome = run_cli("export", opened(MIXED), "--to", tmp_path / "out", "--threads", 1, *arguments)
    assert outcome.status == 2
    assert words in outcome.stderr
    assert not (tmp_path / "out").exists()
