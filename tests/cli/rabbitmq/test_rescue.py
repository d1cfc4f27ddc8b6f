"""`rescue`: stores, definitions and steps for a node of another version; what would be deleted is named, and nothing half-made is left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support import quorum
from support.golden import GOLDEN, case_named, opened, opened_node, run_cli, unpack, unpack_node, unpack_node_site

from mqstore.rabbitmq.convert.rescue import replay_steps

OLD = case_named("3.8.9/a-v1-clean")
NEW = case_named("4.0.5/a-v2-kill9")


def test_a_node_becomes_stores_definitions_and_steps(tmp_path: Path) -> None:
    done = run_cli("rescue", opened_node(OLD), "--to", tmp_path / "out", "--for", "4.3")
    assert done.status == 0, done.stderr
    counted = "198 messages; definitions: 2 vhosts, 15 queues, 2 exchanges, 4 bindings, 0 policies."
    assert counted in " ".join(done.stdout.split())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["STEPS.md", "definitions.json", "msg_stores"]
    document = json.loads((tmp_path / "out" / "definitions.json").read_text())
    exported = json.loads((OLD.path / "definitions.json").read_text())
    assert {(each["vhost"], each["name"]) for each in document["queues"]} == {(each["vhost"], each["name"]) for each in exported["queues"]}
    # what 4.x refuses or ignores is left out, and said
    assert all("x-queue-mode" not in each["arguments"] for each in document["queues"])
    steps = (tmp_path / "out" / "STEPS.md").read_text()
    argument = "argument x-queue-mode of queue 'trans' of vhost '/'"
    assert f"{argument}: RabbitMQ 4.3 ignores or refuses it." in steps
    order = [steps.index(words) for words in ("import_definitions", "list_queues", "stop rabbitmq-server", "cp -a", "name messages")]
    assert order == sorted(order)
    assert "| / | small | 33 |" in steps
    assert "users" not in document
    assert run_cli("verify", tmp_path / "out").status == 0


def test_what_is_left_out_for_a_version_that_knows_it_is_to_be_set_again(tmp_path: Path) -> None:
    assert run_cli("rescue", opened_node(OLD), "--to", tmp_path / "out", "--for", "3.10").status == 0
    assert "newer releases ignore or refuse it; set it again if RabbitMQ 3.10 is to have it." in (tmp_path / "out" / "STEPS.md").read_text()


def test_users_come_as_hashes_and_only_when_asked_for(tmp_path: Path) -> None:
    assert run_cli("rescue", opened_node(OLD), "--to", tmp_path / "out", "--for", "4.3", "--users").status == 0
    document = json.loads((tmp_path / "out" / "definitions.json").read_text())
    (user,) = document["users"]
    assert (user["name"], user["tags"], len(user["password_hash"])) == ("guest", ["administrator"], 48)
    assert {each["vhost"] for each in document["permissions"]} == {vhost["name"] for vhost in document["vhosts"]}


def test_quorum_queues_and_streams_are_replayed_by_the_steps(tmp_path: Path) -> None:
    done = run_cli("rescue", opened_node(NEW), "--to", tmp_path / "out", "--for", "4.3", "-o", "json")
    assert done.status == 0, done.stderr
    assert done.document["not_carried_over"] == []
    assert done.document["to_replay"] == [{"vhost": "/", "queue": f"the.{kind}", "messages": 10} for kind in ("quorum", "stream")]
    assert (done.document["messages"], done.document["deleted"]) == (211, 0)
    steps = (tmp_path / "out" / "STEPS.md").read_text()
    assert "--vhost / --queue-type quorum --queue-type stream --to amqp://" in steps
    (stream,) = (queue for queue in json.loads((tmp_path / "out" / "definitions.json").read_text())["queues"] if queue["type"] == "stream")
    assert (stream["name"], stream["durable"]) == ("the.stream", True)


def test_quorum_queues_are_classic_ones_where_that_is_asked_for_and_only_the_rest_is_replayed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run_cli("rescue", opened_node(NEW), "--to", out, "--for", "4.3", "--quorum-as-classic", "-o", "json")
    assert done.status == 0, done.stderr
    assert done.document["to_replay"] == [{"vhost": "/", "queue": "the.stream", "messages": 10}]
    assert done.document["messages"] == 221
    types = {each["name"]: each["type"] for each in json.loads((out / "definitions.json").read_text())["queues"]}
    assert (types["the.quorum"], types["the.stream"]) == ("classic", "stream")
    of_node, of_out = (
        run_cli("messages", store, "--queue", "the.quorum", "-o", "jsonl", "--body", "base64").rows for store in (opened_node(NEW), out)
    )
    compared = ("payload_b64", "exchange", "routing_keys", "properties", "redelivered")
    assert [[row[name] for name in compared] for row in of_out] == [[row[name] for name in compared] for row in of_node]
    (line,) = (line for line in (out / "STEPS.md").read_text().splitlines() if "mqstore replay" in line)
    assert "--vhost / --queue the.stream --queue-type" in line
    refused = run_cli("rescue", opened_node(NEW), "--to", tmp_path / "no", "--for", "4.3", "--in-place", "--quorum-as-classic")
    assert (refused.status, refused.stderr.count("\n")) == (2, 1)


def test_a_vhost_of_which_all_is_carried_over_gets_no_line_that_would_send_it_again() -> None:
    lines = replay_steps(Path("node"), Path("out"), {("all", "a.stream"): 0, ("some", "a.queue"): 1}, 3, by_name=True)
    assert [line.split(" --to ")[0].split("--vhost ")[1] for line in lines if "mqstore replay" in line] == [
        "some --queue a.queue --queue-type quorum --queue-type stream"
    ]


@pytest.mark.parametrize("options", [(), ("--quorum-as-classic",)])
def test_damage_in_the_logs_of_quorum_queues_is_said(options: tuple[str, ...], tmp_path: Path) -> None:
    node = quorum.unpack("3.10.8/a-quorum-mix-kill9", tmp_path)
    (log,) = (path for path in (node / "quorum").glob("*/*.wal") if path.stat().st_size > 30_000)
    octets = bytearray(log.read_bytes())
    octets[20_000] ^= 1
    log.write_bytes(octets)
    done = run_cli("rescue", node, "--to", tmp_path / "out", "--for", "4.3", *options, "-o", "json")
    assert (done.status, done.document["ok"]) == (1, False)
    assert {"bad-wal"} <= {each["kind"] for each in done.document["damage"]}


def test_a_queue_that_the_metadata_lacks_is_defined_by_the_name_in_its_directory(tmp_path: Path) -> None:
    node = unpack(OLD, tmp_path / "node")  # message stores alone
    done = run_cli("rescue", node, "--to", tmp_path / "out", "--for", "4.3", "-o", "json")
    assert done.status == 0, done.stderr
    assert "'prio' of vhost '/'" in done.document["added"]
    document = json.loads((tmp_path / "out" / "definitions.json").read_text())
    assert {vhost["name"] for vhost in document["vhosts"]} == {"/", "\u0442\u0435\u0441\u0442 \u03b2"}
    (prio,) = (queue for queue in document["queues"] if (queue["vhost"], queue["name"]) == ("/", "prio"))
    assert prio["arguments"] == {"x-max-priority": 4}
    # without its name, a directory is what a node would delete: named, counted, status 1
    (name,) = (path for path in node.rglob(".queue_name") if path.read_bytes().endswith(b"QUEUE: small\n"))
    name.unlink()
    done = run_cli("rescue", node, "--to", tmp_path / "again", "--for", "4.3", "-o", "json")
    assert done.status == 1
    assert (done.document["unknown_directories"], done.document["deleted"]) == ([name.parent.name], 33)
    assert f"33 messages of the directory {name.parent.name}" in (tmp_path / "again" / "STEPS.md").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--for", "5.0"], "'5.0' is not a version of RabbitMQ"),
        (["--for", "4.3"], "has no msg_stores/, quorum/ or stream/, and no metadata; give the data directory"),
    ],
)
def test_what_cannot_be_rescued_is_refused_in_a_sentence(words: list[str], said: str, tmp_path: Path) -> None:
    done = run_cli("rescue", opened(OLD) / "msg_stores", "--to", tmp_path / "out", *words)
    assert (done.status, said in done.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_nothing_half_made_is_left_when_messages_cannot_be_written_for_the_version(tmp_path: Path) -> None:
    node = unpack_node(case_named("4.3.6/a-v2-clean"), tmp_path / "node")
    shutil.rmtree(node / "coordination")
    for path in [*node.rglob(".vhost"), *node.rglob(".queue_name")]:
        path.unlink()
    done = run_cli("rescue", node, "--to", tmp_path / "out", "--for", "3.10")
    assert (done.status, "messages cannot be written for that version" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["node"]


def test_a_directory_above_a_node_and_the_archive_of_one_are_rescued_as_diagnose_says(tmp_path: Path) -> None:
    above = unpack_node_site("plain", tmp_path / "above").parent
    packed = tmp_path / "volume.tar.gz"
    shutil.copy(GOLDEN / "rabbitmq-sites" / "archive-of-volume.tar.gz", packed)
    advised = run_cli("diagnose", packed, "--for", "4.0", "-o", "json").document["next"]
    assert advised == f"mqstore rescue {packed} --to {packed}.new --for 4.0"
    for number, given in enumerate((above, packed)):
        out = tmp_path / str(number)
        done = run_cli("rescue", given, "--to", out, "--for", "4.0", "-o", "json")
        assert (done.status, done.document["messages"], done.document["to_replay"][0]["messages"]) == (0, 87, 7), done.stderr
        assert (
            f"mqstore replay {tmp_path / ('above/rabbit@oldhost' if given == above else 'volume.tar.gz')} "
            in (out / "STEPS.md").read_text()
        )
