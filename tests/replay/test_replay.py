"""Replay from stores and files of rows into our broker and into stores, killed and resumed, compared message by message."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from support.certificates import server_files
from support.golden import case_named, opened, run_cli, unchanged

from mqstore.places import open_rocketmq
from mqstore.replay.running import MAX_REFUSED, Journal, ReplayCounts
from mqstore.rocketmq import Message, MessageStore
from mqstore.table.text import columns_for, python_rows
from mqstore.testing import RunningBroker

LOG = case_named("4.9.3/f-broker-offsets")
CLEAN = case_named("4.9.3/a-clean-small")
QUEUES = case_named("3.10.8/f-mixed-features")
INTERNAL = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_", "rmq_sys_")
KEPT = ("topic", "body_sha256", "keys", "tags", "uniq_key", "flag", "born_timestamp", "reconsume_times")
CHANGED = {"CLUSTER", "MQSTORE_FROM", "WAIT", "DELAY", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "MSG_REGION", "TRACE_ON"}


def rows_of(store: Path) -> list[dict[str, Any]]:
    batches = open_rocketmq(store).to_batches(columns_for("sha256"), milliseconds=True)
    return [row for batch in batches for row in python_rows(batch, "sha256")]


def comparable(row: dict[str, Any]) -> str:
    own = {name: value for name, value in row["properties"].items() if name not in CHANGED}
    return json.dumps([*(row[name] for name in KEPT), own], sort_keys=True)


def in_order(rows: list[dict[str, Any]], *, internal: bool = False) -> dict[str, list[str]]:
    """Return the messages by the queue that they came from, in its order."""
    found: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if internal or not row["topic"].startswith(INTERNAL):
            found[f"{row['topic']}/{row['queue_id']}"].append(comparable(row))
    return found


def by_origin(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        found[row["properties"]["MQSTORE_FROM"].partition("#")[2].rpartition("/")[0]].append(comparable(row))
    return found


def test_every_message_arrives_once_in_order_with_its_ids_and_times(tmp_path: Path) -> None:
    with unchanged(opened(LOG)), RunningBroker(tmp_path / "broker") as broker:
        done = run_cli("replay", opened(LOG), "--to", f"rocketmq://{broker.address}", "-o", "json")
    assert done.status == 0, done.stderr
    wanted = in_order(rows_of(opened(LOG)))
    assert by_origin(rows_of(tmp_path / "broker")) == wanted
    assert done.document["sent"] == sum(map(len, wanted.values()))
    assert sum(done.document["left_out"].values()) == len(rows_of(opened(LOG))) - done.document["sent"]


def test_only_topics_of_users_are_sent_unless_others_are_named(tmp_path: Path) -> None:
    internal = ("DefaultCluster_REPLY_TOPIC", "SELF_TEST_TOPIC", "RMQ_SYS_TRACE_TOPIC", "BenchmarkTest")
    with MessageStore.open(tmp_path / "store") as store:
        for topic in ("orders", *internal):
            assert store.put(Message(topic, b"body")).stored
    done = run_cli("replay", tmp_path / "store", "--to", tmp_path / "all", "--create", "-o", "json")
    assert done.document["left_out"] == {f"of the internal topic {topic}": 1 for topic in internal}
    assert {row["topic"] for row in rows_of(tmp_path / "all")} == {"orders"}
    named = run_cli("replay", tmp_path / "store", "--topic", internal[0], "--to", tmp_path / "named", "--create", "-o", "json")
    assert (named.document["sent"], named.document["left_out"]) == (1, {})


def test_a_store_takes_the_same_messages(tmp_path: Path) -> None:
    assert run_cli("replay", opened(LOG), "--create", "--to", tmp_path / "store").status == 0
    assert by_origin(rows_of(tmp_path / "store")) == in_order(rows_of(opened(LOG)))
    assert run_cli("verify", tmp_path / "store").status == 0


@pytest.mark.long
@pytest.mark.parametrize("kind", ["broker", "store"])
def test_a_replay_that_is_killed_again_and_again_sends_each_message_once(kind: str, tmp_path: Path) -> None:
    kills = 3  # those of a process that began from nothing; the many are in tests/interop
    journal = tmp_path / "sent.journal"
    wanted = in_order(rows_of(opened(LOG)))
    total = sum(map(len, wanted.values()))
    with RunningBroker(tmp_path / "broker") as broker:
        target = f"rocketmq://{broker.address}" if kind == "broker" else str(tmp_path / "store")
        command = [
            sys.executable,
            "-m",
            "mqstore",
            "replay",
            str(opened(LOG)),
            "--create",
            "--to",
            target,
            "--resume",
            str(journal),
            "-o",
            "json",
        ]
        killed = 0
        for round_ in range(1, kills + 1):
            running = subprocess.Popen([*command, "--rate", "400"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            goal = total * round_ // (kills + 1)
            while running.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < goal):
                time.sleep(0.001)
            running.send_signal(signal.SIGKILL)
            _, errors = running.communicate()
            killed += running.returncode == -signal.SIGKILL
            assert running.returncode in (0, -signal.SIGKILL), errors
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert killed > 0
    assert by_origin(rows_of(tmp_path / kind)) == wanted
    last = json.loads(done.stdout)
    assert last["sent"] + last["skipped"] == total
    assert (
        run_cli("replay", opened(LOG), "--create", "--to", target, "--resume", journal, "--topic", "s62_bills").status == 2
    )  # another run


def test_a_message_whose_confirmation_was_lost_is_not_sent_again(tmp_path: Path) -> None:
    """Cut the journal after each line of a run: whatever was confirmed after it is found at the target."""
    journal = tmp_path / "sent.journal"
    with MessageStore.open(tmp_path / "source") as store:
        for number in range(6):
            store.put(Message("orders", b"%d" % number, queue_id=number % 2, keys=f"o-{number}"))
    with RunningBroker(tmp_path / "broker") as broker:
        to = ("--to", f"rocketmq://{broker.address}", "--resume", journal)
        assert run_cli("replay", tmp_path / "source", *to).status == 0
        *whole, settled = journal.read_bytes().splitlines(keepends=True)
        assert b"settled" in settled
        # the last confirmation of one queue, or of both, was not written; a line was half written
        last = {json.loads(line)["queue"]: number for number, line in enumerate(whole) if number}
        without = [line for number, line in enumerate(whole) if number not in last.values()]
        for kept in (whole[:-1], without, [*whole[:-1], whole[-1][:10]]):
            journal.write_bytes(b"".join(kept))
            found = run_cli("replay", tmp_path / "source", *to, "-o", "json").document
            assert found["sent"] == 0
            assert found["arrived_before"] >= 1
    assert len(rows_of(tmp_path / "broker")) == 6


def test_messages_are_chosen_and_edited(tmp_path: Path) -> None:
    offsets = {
        (each.topic, each.queue_id): each.offset
        for each in open_rocketmq(opened(LOG)).view().consumer_offsets()
        if each.group == "s62_slow"
    }
    edits = ("--set", "topic=again", "--set", "keys=k-1", "--set", "property.reason=outage", "--set", "tags=")
    done = run_cli(
        "replay", opened(LOG), "--topic", "s62_audit-log", "--not-consumed-by", "s62_slow", "--create", "--to", tmp_path / "store", *edits
    )
    assert done.status == 0
    wanted = [
        row["body_sha256"]
        for row in rows_of(opened(LOG))
        if row["topic"] == "s62_audit-log" and row["queue_offset"] >= offsets.get((row["topic"], row["queue_id"]), 0)
    ]
    found = rows_of(tmp_path / "store")
    assert [row["body_sha256"] for row in found] == wanted
    assert {(row["topic"], row["keys"], row["tags"], row["properties"]["reason"]) for row in found} == {("again", "k-1", None, "outage")}


def test_an_edited_file_of_rows_is_replayed(tmp_path: Path) -> None:
    printed = run_cli("messages", opened(LOG), "--topic", "s62_bills", "--body", "base64", "-o", "jsonl").rows[:5]
    file = tmp_path / "edited.jsonl"
    printed[0] |= {"topic": "corrected"}
    file.write_text("".join(json.dumps(row) + "\n" for row in printed) + '{"topic": "new", "body": "typed by hand"}\n')
    assert run_cli("replay", file, "--create", "--to", tmp_path / "store").status == 0
    found = rows_of(tmp_path / "store")
    assert [row["topic"] for row in found] == ["corrected", *["s62_bills"] * 4, "new"]
    assert [row["body_sha256"] for row in found[:5]] == [row["body_sha256"] for row in printed]
    assert [row["uniq_key"] for row in found[:5]] == [row["uniq_key"] for row in printed]
    file.write_text('{"topic": "new"}\nnot a row\n')
    bad = run_cli("replay", file, "--create", "--to", tmp_path / "other")
    assert bad.status == 2
    assert "line 2" in bad.stderr


def test_messages_of_rabbitmq_go_to_topics_named_as_their_queues(tmp_path: Path) -> None:
    queued = [row for row in run_cli("messages", opened(QUEUES), "-o", "jsonl").rows if row["verdict"] == "intact" and row["vhost"] == "/"]
    assert run_cli("replay", opened(QUEUES), "--vhost", "/", "--create", "--to", tmp_path / "store").status == 0
    found = rows_of(tmp_path / "store")
    assert Counter((row["topic"], row["body_sha256"]) for row in found) == Counter(
        (re.sub("[^a-zA-Z0-9_-]", "_", row["queue"]), row["payload_sha256"]) for row in queued
    )


def test_a_dry_run_counts_shows_three_and_connects_to_nothing() -> None:
    done = run_cli("replay", opened(LOG), "--to", "rocketmq://127.0.0.1:1", "--dry-run", "-o", "json").document
    assert done["messages"] == sum(map(len, in_order(rows_of(opened(LOG))).values())) == sum(done["by_destination"].values())
    assert len(done["first"]) == 3
    text = run_cli("replay", opened(QUEUES), "--to", "amqp://u:secret@127.0.0.1:1/", "--dry-run")
    assert text.status == 0
    assert "would be sent to amqp://u:***@127.0.0.1:1/" in text.stdout
    assert "secret" not in text.stdout + text.stderr


def test_the_rate_is_kept(tmp_path: Path) -> None:
    begun = time.monotonic()
    assert (
        run_cli(
            "replay", opened(LOG), "--topic", "s62_bills", "--limit", "11", "--rate", "20", "--create", "--to", tmp_path / "store"
        ).status
        == 0
    )
    assert time.monotonic() - begun >= 0.5


def test_requests_are_signed_and_encrypted(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("accounts:\n- accessKey: publisher\n  secretKey: 'k12345678'\n  admin: true\n")
    (tmp_path / "certificates").mkdir()
    files = server_files(tmp_path / "certificates")
    command = [sys.executable, "-m", "mqstore", "serve", str(tmp_path / "store"), "--listen", "127.0.0.1:0", "--acl", str(accounts)]
    command += ["--auto-create-topics"] if "--auto-create-topics" in run_cli("serve", "--help").stdout else []
    command += ["--tls", "enforcing", "--tls-cert", str(files.certificate), "--tls-key", str(files.key)]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        address = broker.stdout.readline().split("127.0.0.1:")[1].split()[0].rstrip(".,;")
        secret = tmp_path / "secret"
        secret.write_text("k12345678\n")
        to = ("--to", f"rocketmq://127.0.0.1:{address}/TopicTest", "--topic", "s62_bills", "--limit", "3")
        keys = ("--access-key", "publisher", "--secret-key-file", secret)
        assert run_cli("replay", opened(LOG), *to, *keys, "--tls-ca", files.authority.certificate).status == 0
        plain = run_cli("replay", opened(LOG), *to, *keys)
        assert plain.status == 2
        secret.write_text("wrong")
        wrong = run_cli("replay", opened(LOG), *to, *keys, "--tls-ca", files.authority.certificate)
        assert wrong.status == 2
        refused = (
            f"mqstore: 127.0.0.1:{address} refused to name the queues of TopicTest: CODE 1, Check signature failed for accessKey=publisher"
        )
        assert wrong.stderr == f"{refused}\n"
    finally:
        broker.terminate()
        broker.wait(30)
        broker.stdout.close()
    assert len(rows_of(tmp_path / "store")) == 3


def answering(reply: bytes) -> int:
    """Listen on a port, answer everything with the same bytes, and close. Returns the port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer:
                peer.recv(4096)
                peer.sendall(reply)

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


@pytest.mark.parametrize(
    "reply",
    [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x08\x00\x00\x00\x04nope", b"\x00\x00\x00\x06\x00\x00\x00\x02{}", b"\0" * 64],
)
def test_a_node_that_answers_wrongly_ends_the_run_in_one_sentence(reply: bytes) -> None:
    done = run_cli("replay", opened(LOG), "--topic", "s62_bills", "--to", f"rocketmq://127.0.0.1:{answering(reply)}")
    assert done.status == 2
    assert "Traceback" not in done.stderr
    assert "give the address of a name server or a broker" in done.stderr


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store") as store:
        store.put(Message("orders", b"1"))
        command = [sys.executable, "-m", "mqstore", "replay", str(opened(LOG)), "--create", "--to", str(tmp_path / "store")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "lock" in done.stderr or "in use" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--to", "http://x"], "is not a target"),
        (["--to", "rocketmq://"], "is not the address of a broker"),
        (["--to", "rocketmq://127.0.0.1:1"], "cannot connect"),
        (["--to", "rocketmq://127.0.0.1:99999"], "is not the address of a broker"),
        (["--create", "--to", "x", "--set", "colour=red"], "is not NAME=VALUE"),
        (["--create", "--to", "x", "--rate", "0"], "--rate must be above 0"),
        (["--create", "--to", "x", "--not-consumed-by", "nobody"], "no offset of group 'nobody'"),
        (["--create", "--to", "x", "--vhost", "/"], "--vhost does not apply"),
        (["--create", "--to", "x", "--access-key", "a"], "belong together"),
        (["--create", "--to", "x", "--verdict", "fine"], "is not a verdict"),
    ],
)
def test_a_usage_error_is_one_sentence(options: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_cli("replay", opened(LOG), *options)
    assert done.status in (1, 2)
    assert told in done.stderr
    assert "Traceback" not in done.stderr


ADDRESSES = (
    "localhost:5672",
    "broker.example:9876",
    "127.0.0.1:10911",
    "[::1]:5672",
    "::1:5672",
    "user:secret@rabbit:5672/vhost",
    "10.0.0.1:9876;10.0.0.2:9876",
    "rocketmq:localhost:9876",
    "amqp:localhost",
    "AMQP://localhost",
    "tcp://localhost:5672",
)
COMMANDS = {
    "replay": ("replay", "SOURCE", "--to"),
    "replay --create": ("replay", "SOURCE", "--create", "--to"),
    "replay --dry-run": ("replay", "SOURCE", "--create", "--dry-run", "--to"),
    "replay --resume": ("replay", "SOURCE", "--create", "--resume", "sent.journal", "--to"),
    "salvage": ("salvage", "SOURCE", "--to"),
    "salvage --as": ("salvage", "SOURCE", "--as", "rocketmq", "--to"),
    "rebuild": ("rebuild", "SOURCE", "--to"),
    "export": ("export", "SOURCE", "--format", "parquet", "--to"),
    "follow": ("follow", "SOURCE", "--once", "--to"),
    "convert": ("convert", "QUEUES", "--queue-version", "2", "--to"),
    "rescue": ("rescue", "QUEUES", "--for", "4.3", "--to"),
    "put": ("put", "--create", "-t", "orders", "--body", "x"),
    "load": ("load", "--create", "--from", "rows.jsonl"),
}


@pytest.mark.parametrize("what", COMMANDS)
@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_without_its_scheme_is_refused_and_no_directory_is_made(
    address: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`replay --to localhost:5672` created a directory of that name and said that each message was confirmed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"topic": "a", "body_b64": ""}\n')
    sources = {"SOURCE": LOG, "QUEUES": case_named("3.10.8/g1-v2-small-clean")}
    done = run_cli(*(str(opened(sources[word])) if word in sources else word for word in COMMANDS[what]), address)
    assert (done.status, done.stdout) == (2, "")
    assert ("rocketmq://" in done.stderr and "amqp://" in done.stderr) or "mqstore replay" in done.stderr
    assert "secret" not in done.stderr
    assert os.listdir(tmp_path) == ["rows.jsonl"]


def test_a_directory_with_the_name_of_an_address_is_given_with_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_cli("replay", opened(LOG), "--create", "--to", "./localhost:5672", "--limit", "3").status == 0
    assert len(rows_of(tmp_path / "localhost:5672")) == 3


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_store_that_does_not_exist_is_made_only_with_create(dry: tuple[str, ...], tmp_path: Path) -> None:
    to = ("--to", tmp_path / "store", "--limit", "3", "--resume", tmp_path / "sent.journal", *dry)
    done = run_cli("replay", opened(LOG), *to)
    assert (done.status, "does not exist; --create creates a store there" in done.stderr) == (2, True)
    assert os.listdir(tmp_path) == []
    (tmp_path / "store").mkdir()
    done = run_cli("replay", opened(LOG), *to)
    assert (done.status, "is empty; --create creates a store in it" in done.stderr) == (2, True)
    assert os.listdir(tmp_path / "store") == []
    if not dry:
        assert run_cli("replay", opened(LOG), *to, "--create").status == 0
        assert run_cli("replay", opened(LOG), *to).status == 0  # an existing store needs no --create


def test_a_journal_keeps_its_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    with Journal(file, "run") as journal:
        journal.note("a/0", -1, "x/0/5")
        journal.note("a/0", 7, "x/0/6")
    raw = file.read_bytes()
    for end in range(len(raw)):
        file.write_bytes(raw[:end])
        with Journal(file, "run") as again:
            assert {queue: state.position for queue, state in again.states.items()} in ({}, {"a/0": -1}, {"a/0": 7})
        assert file.read_bytes().endswith(b"\n")


def test_of_many_refusals_the_first_are_named_and_all_counted() -> None:
    counts = ReplayCounts()
    for number in range(MAX_REFUSED + 2):
        counts.refuse(f"m{number}", "too large")
    assert (counts.refused, len(counts.refusals), counts.refusals[-1][0]) == (MAX_REFUSED + 2, MAX_REFUSED, f"m{MAX_REFUSED - 1}")
