"""Names of RabbitMQ queues whose directories do not record them: from the node's metadata, its Raft log, or a list given by the user."""

from __future__ import annotations

import json
import shlex
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support.archives import extract_all
from support.golden import GOLDEN, RABBITMQ, GoldenCase, case_id, case_named, expected, run_cli, unpack

from mqstore.rabbitmq import EngineConfig, QueueStore
from mqstore.rabbitmq.erlang import disk_log
from mqstore.rabbitmq.erlang.terms import Atom, encode

MIXED = case_named("3.10.8/f-mixed-features")
NONE = Atom("none")


def lines(*arguments: object) -> list[dict[str, Any]]:
    outcome = run_cli(*arguments, "-o", "jsonl")
    assert outcome.status in (0, 1), outcome.stderr
    return [json.loads(line) for line in outcome.stdout.splitlines()]


def places(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["vhost"], row["queue"], row["priority_level"] or 0, row["seq_id"], row["msg_id"]) for row in rows)


def named(case: GoldenCase) -> set[tuple[bytes, bytes]]:
    return {(row["vhost"].encode(), row["queue"].encode()) for row in expected(case)}


def node_of(case: GoldenCase, directory: Path) -> Path:
    """Create a node's data directory with the messages of a case in queues that do not record their names."""
    node = unpack(case, directory / "node")
    for file in node.rglob(".queue_name"):
        file.unlink()
    return node


def tables(names: set[tuple[bytes, bytes]]) -> bytes:
    """Return a Mnesia log that has just declared these queues."""
    changes = []
    for vhost, name in sorted(names):
        resource = (Atom("resource"), vhost, Atom("queue"), name)
        record = (Atom("amqqueue"), resource, Atom("true"), Atom("false"), NONE, [], NONE, [], [], [], Atom("undefined"), *[NONE] * 10)
        changes.append(((Atom("rabbit_durable_queue"), resource), record, Atom("write")))
    return disk_log.write_log([(Atom("log_header"), Atom("trans_log")), (Atom("commit"), Atom("n"), Atom("presume_commit"), [], changes)])


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_names_come_from_the_metadata_of_the_node_whichever_directory_is_given(case: GoldenCase, tmp_path: Path) -> None:
    node = node_of(case, tmp_path)
    wanted = places([dict(row) for row in expected(case)])
    assert places(lines("messages", node / "msg_stores")) != wanted
    (node / "LATEST.LOG").write_bytes(tables(named(case)))
    assert places(lines("messages", node)) == wanted
    assert places(lines("messages", node / "msg_stores")) == wanted
    found = [row for vhost in sorted((node / "msg_stores" / "vhosts").iterdir()) for row in lines("messages", vhost)]
    assert places(found) == wanted
    assert {(row["vhost"].encode(), row["queue"].encode()) for row in lines("topics", node)} >= named(case)


def test_every_command_calls_the_queues_by_their_names(tmp_path: Path) -> None:
    node = node_of(MIXED, tmp_path)
    (node / "LATEST.LOG").write_bytes(tables(named(MIXED)))
    assert {row["state"] for row in lines("queue", node, "/", "prio.q")} == {"acknowledged", "delivered"}
    row = json.loads(run_cli("get", node, "--vhost", "/", "--queue", "prio.q", "--at", 0, "-o", "json").stdout)
    assert row["queue"] == "prio.q"
    usage = json.loads(run_cli("usage", node, "-o", "json").stdout)
    assert {queue["queue"] for queue in usage["queues"]} >= {"prio.q", "ttl.q"}
    wanted = places([dict(row) for row in expected(MIXED)])
    outcome = run_cli("export", node / "msg_stores", "--to", tmp_path / "out", "--format", "jsonl", "--threads", 2, "--splits", 3)
    assert outcome.status == 0, outcome.stderr
    rows = [json.loads(line) for file in (tmp_path / "out").glob("part-*") for line in file.read_text().splitlines()]
    assert places(rows) == wanted
    assert run_cli("salvage", node / "msg_stores", "--to", tmp_path / "out.jsonl").status in (0, 1)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {row["queue"] for row in rows} >= {name.decode() for _, name in named(MIXED)}


def test_names_come_from_a_raft_log_too(tmp_path: Path) -> None:
    node = node_of(MIXED, tmp_path)
    log = node / "coordination" / "node" / "00000001.wal"
    log.parent.mkdir(parents=True)
    terms = [encode((Atom("put"), (Atom("resource"), vhost, Atom("queue"), name)), "utf8")[1:] for vhost, name in sorted(named(MIXED))]
    log.write_bytes(b"RAWA\x01" + b"\x00".join(terms))
    assert places(lines("messages", node / "msg_stores")) == places([dict(row) for row in expected(MIXED)])


@pytest.mark.parametrize("state", ["logged", "dumped", "stopped"])
def test_the_metadata_of_a_real_node_names_the_queues_of_its_messages(state: str, tmp_path: Path) -> None:
    with tarfile.open(GOLDEN / "rabbitmq-definitions" / f"{state}.tar.xz") as archive:
        extract_all(archive, tmp_path)
    with QueueStore.open(tmp_path / "msg_stores", "/", config=EngineConfig()) as store:
        store.declare("plain")
        store.publish("plain", b"body", confirm=True)
    for file in (tmp_path / "msg_stores").rglob(".queue_name"):
        file.unlink()
    assert [row["queue"] for row in lines("messages", tmp_path / "msg_stores")] == ["plain"]


@pytest.mark.parametrize("form", ["lines", "definitions"])
def test_names_are_accepted_as_lines_or_as_exported_definitions(form: str, tmp_path: Path) -> None:
    node = node_of(MIXED, tmp_path)
    pairs = [(vhost.decode(), name.decode()) for vhost, name in sorted(named(MIXED))]
    file = tmp_path / "names"
    if form == "lines":
        file.write_text("".join(f"{vhost}\t{name}\n" for vhost, name in [*pairs, ("/", "another")]), encoding="utf-8")
    else:
        queues = [{"name": name, "vhost": vhost, "durable": True, "arguments": {}} for vhost, name in pairs]
        file.write_text(json.dumps({"rabbit_version": "3.10.8", "users": [], "queues": queues}), encoding="utf-8")
    wanted = places([dict(row) for row in expected(MIXED)])
    assert places(lines("messages", node, "--names", file)) == wanted
    run = ("export", node, "--names", file, "--to", tmp_path / "out", "--format", "jsonl", "--threads", 1)
    assert run_cli(*run).status == 0
    rows = [json.loads(line) for part in (tmp_path / "out").glob("part-*") for line in part.read_text().splitlines()]
    assert places(rows) == wanted


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no tab\n", "a line 1 that is not"),
        (b"/\ta\n/\tb\tc\n", "a line 2 that is not"),
        (b"\xff\xfe", "not text in UTF-8"),
        (b"{", "begins like JSON but is not valid JSON"),
        (b"[" * 100_000, "a line 1 that is not"),
        (b'{"queues": ' + b"[" * 100_000, "begins like JSON but is not valid JSON"),
        (b'{"queues": [{"name": "q"}]}', "do not name it"),
        (None, "does not exist"),
    ],
)
def test_an_invalid_list_of_names_is_refused_in_one_sentence(content: bytes | None, words: str, tmp_path: Path) -> None:
    node = node_of(MIXED, tmp_path)
    file = tmp_path / "names"
    if content is not None:
        file.write_bytes(content)
    outcome = run_cli("topics", node, "--names", file)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert words in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_advised_commands_have_the_names_that_were_given(tmp_path: Path) -> None:
    node, file = node_of(MIXED, tmp_path), tmp_path / "names"
    file.write_text("".join(f"{vhost.decode()}\t{name.decode()}\n" for vhost, name in sorted(named(MIXED))), encoding="utf-8")
    journal = max(node.rglob("journal.jif"), key=lambda path: path.stat().st_size)
    journal.write_bytes(journal.read_bytes()[:100] + b"\xff" * 50 + journal.read_bytes()[150:])
    words = shlex.split(run_cli("diagnose", node, "--names", file, "-o", "json").document["next"])
    assert words == ["mqstore", "repair", str(node), "--names", str(file)]
    assert run_cli(*words[1:]).stdout.splitlines()[-1].strip().endswith(f" --apply --names {file}")


def test_with_damaged_metadata_queues_are_named_after_their_directories(tmp_path: Path) -> None:
    node = node_of(MIXED, tmp_path)
    (node / "LATEST.LOG").write_bytes(tables(named(MIXED)).replace(b"prio.q", b"prio.x"))
    (node / "rabbit_durable_queue.DCD").write_bytes(b"\x01\x02\x03\x04" + bytes(1000))
    (node / "coordination").write_bytes(b"no directory")
    rows = lines("topics", node)
    assert "ttl.q" in {row["queue"] for row in rows}
    assert "prio.q" not in {row["queue"] for row in rows}
    assert sum(row["messages"] or 0 for row in rows) == sum(row["recovered"] for row in expected(MIXED))
