"""What the metadata names and is not here, and what is here and the metadata does not name; small files that are empty."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from interop.rabbitmq.node import BootError, missing, new_node
from pika.exceptions import AMQPError
from support.golden import run_cli, unpack_node_site

from mqstore.rabbitmq.erlang import disk_log
from mqstore.rabbitmq.erlang.terms import Atom

VHOSTS = "msg_stores/vhosts"
SMALL = f"{VHOSTS}/AH3X9L7H14A7HOAMPG9MB569Z"


def diagnosis(node: Path, *more: str) -> dict[str, Any]:
    document: dict[str, Any] = run_cli("diagnose", node, *more, "-o", "json").document
    return document


@pytest.mark.parametrize(
    ("left_behind", "title"),
    [
        (SMALL, "vhost 'склад' (1 classic queue)"),
        ("quorum", "quorum queue 'qq' of vhost '/'"),
        ("msg_stores", "vhost '/' (11 classic queues)"),
    ],
)
def test_what_the_definitions_name_and_is_not_here_cannot_be_told(left_behind: str, title: str, tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    shutil.rmtree(node / left_behind)
    answer = diagnosis(node)
    assert any(f"what is in {title}: that cannot be told without its directory" in sentence for sentence in answer["unknown"])
    told = run_cli("diagnose", node)
    assert (told.status, "it keeps cannot be told without " in " ".join(told.stdout.split())) == (1, True)
    (part,) = (part for part in run_cli("inspect", node, "-o", "json").document["site"] if part["part"] == title)
    assert (part["state"], part["known_from"]) == ("absent", "definitions")
    assert "absent-part" in {item["kind"] for item in run_cli("verify", node, "-o", "json").document["damage"]}


def test_a_node_without_message_stores_is_opened_and_its_definitions_are_rescued(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    for place in ("msg_stores", "quorum"):
        shutil.rmtree(node / place)
    summary = run_cli("inspect", node, "-o", "json").document
    assert summary["shutdown"] == "unknown"
    assert sum(part["state"] == "absent" and part["known_from"] == "definitions" for part in summary["site"]) == 3
    assert [row["start"] for row in run_cli("topics", node, "-o", "jsonl").rows] == ["not read"] * 13
    listed = run_cli("messages", node)
    assert listed.status == 1
    assert "cannot be told without its directory quorum/rabbit@oldhost" in listed.stderr
    assert "3 delayed messages outside the message stores" in listed.stderr
    found = run_cli("find", node, "big", "-o", "json")
    assert (found.status, found.document["complete"]) == (1, False)
    assert diagnosis(node)["next"] == f"mqstore inspect {node}"

    out = tmp_path / "out"
    done = run_cli("rescue", node, "--to", out, "--for", "4.0", "-o", "json")
    assert (done.status, len(done.document["unknown"]), done.document["defined"]["queues"]) == (1, 3, 13)
    assert sorted(path.name for path in out.iterdir()) == ["STEPS.md", "definitions.json"]
    steps = (out / "STEPS.md").read_text()
    assert "Not here: what is in vhost '/' (11 classic queues)" in steps
    assert "Put the stores in place" not in steps


def test_of_a_schema_alone_it_is_said_that_neither_queues_nor_definitions_are_known(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    for path in node.iterdir():
        if path.name != "schema.DAT":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    bare = node.rename(tmp_path / "copy")
    states = {part["part"]: part["state"] for part in run_cli("inspect", bare, "-o", "json").document["site"]}
    assert states | {"definitions": "partly", "the classic queues": "absent", "the quorum queues": "absent"} == states
    done = run_cli("rescue", bare, "--to", tmp_path / "out", "--for", "4.0", "-o", "json").document
    assert any("which exchanges, bindings, policies, users and empty queues there were" in sentence for sentence in done["unknown"])
    (bare / "schema.DAT").write_bytes(b"of another program")
    assert run_cli("inspect", bare).status == 2


def test_an_encrypted_value_is_named_and_all_else_is_rescued(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    shutil.rmtree(node / "msg_stores")
    key = (b"/", b"shovel", b"to-the-other")
    value = [(b"src-uri", (Atom("encrypted"), b"wfhsBvbK"))]
    change = ((Atom("rabbit_runtime_parameters"), key), (Atom("runtime_parameters"), key, value), Atom("write"))
    (node / "rabbit_runtime_parameters.DCL").write_bytes(disk_log.write_log([(Atom("log_header"), Atom("dcl_log")), change]))
    sentence = (
        "the value of parameter 'to-the-other' of vhost '/': it is encrypted, and cannot be told without the passphrase of the old node"
    )
    assert sentence in run_cli("inspect", node, "-o", "json").document["unsupported"]
    done = run_cli("rescue", node, "--to", tmp_path / "out", "--for", "4.0", "-o", "json").document
    assert sentence in done["unknown"]
    assert done["defined"]["queues"] == 13
    assert "to-the-other" not in (tmp_path / "out" / "definitions.json").read_text()


def test_a_message_store_that_was_moved_away_is_asked_for_before_anything_else(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    store = next((node / VHOSTS).glob("628*/msg_store_persistent"))
    store.rename(tmp_path / "elsewhere")
    parts = run_cli("inspect", node, "-o", "json").document["site"]
    assert [part["state"] for part in parts if part["path"] == str(store)] == ["absent"]
    answer = diagnosis(node)
    assert answer["ways"][0]["why"].startswith("get what is missing before anything else: ")
    assert any("every file of the message store is missing: get it before" in item["detail"] for item in answer["evidence"])


def test_a_queue_whose_node_is_another_member_is_elsewhere(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    members = (node / "cluster_nodes.config").read_text()
    (node / "cluster_nodes.config").write_text(members.replace("rabbit@oldhost", "rabbit@oldhost,rabbit@newhost"))
    for system in ("quorum", "coordination"):
        shutil.rmtree(node / system)
    (node / SMALL / "recovery.dets").unlink()
    shutil.rmtree(next((node / SMALL / "queues").iterdir()))
    moved = node.rename(node.with_name("rabbit@newhost"))
    parts = {part["part"]: part["state"] for part in run_cli("inspect", moved, "-o", "json").document["site"]}
    assert parts["node rabbit@oldhost"] == "elsewhere"
    assert parts["quorum queue 'qq' of vhost '/'"] == "elsewhere"
    (queue,) = (part for part in parts if part.endswith("of vhost 'склад'"))
    assert parts[queue] == "elsewhere"
    assert any(sentence.endswith("cannot be told without rabbit@oldhost") for sentence in diagnosis(moved)["unknown"])


def test_an_empty_queue_of_version_1_without_a_directory_is_no_finding(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    assert (diagnosis(node)["unknown"], run_cli("verify", node, "-o", "json").document["damage"]) == ([], [])


def test_what_was_in_a_queue_of_version_1_without_a_directory_cannot_be_told_after_a_kill(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    (node / SMALL / "recovery.dets").unlink()
    gone = next((node / SMALL / "queues").iterdir())
    shutil.rmtree(gone)
    (node / SMALL / "msg_store_persistent" / "0.rdq").unlink()
    found = run_cli("diagnose", node, "-o", "json")
    said = f"that cannot be told without its directory {gone.relative_to(node)}; a queue that was always empty has none"
    assert (found.status, found.document["loses"]) == (1, 0)
    assert any(sentence.endswith(said) for sentence in found.document["unknown"])
    assert found.document["why"].startswith("if the queues without a directory were always empty: start the node")
    assert ", as far as is known" in run_cli("diagnose", node).stdout
    assert said in " ".join(run_cli("verify", node).stdout.split())


def test_flags_that_no_known_release_has_are_named_and_queues_of_version_2_narrow_the_rest(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    (tmp_path / "rabbit@oldhost-feature_flags").write_text("[quorum_queue,stream_queue,of_the_future,or_later].\n")
    known = run_cli("inspect", node).stdout.splitlines()[2]
    assert known.startswith("Node: 3.10: ")
    assert "it names of_the_future and 1 more, which no release up to 4.3 has" in known
    answer = diagnosis(node)
    assert (answer["version"], answer["loses"]) == ("3.10", 0)
    assert any("it names of_the_future" in sentence for sentence in answer["unknown"])


@pytest.mark.parametrize("name", ["coordination", "quorum", "cluster_nodes.config", "schema_version", "LATEST.LOG"])
def test_a_file_in_the_place_of_a_directory_or_the_other_way_round_is_no_promise_of_a_start(name: str, tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    place = node / name
    if place.is_dir():
        shutil.rmtree(place)
        place.write_text("a file")
        said = f"a file has the place of the directory {name}"
    else:
        place.unlink()
        place.mkdir()
        said = f"a directory has the place of the file {name}"
    assert f"whether a node starts: {said}" in diagnosis(node)["unknown"]
    assert "start the node" not in run_cli("verify", node).stdout


def without(pattern: str) -> Callable[[Path], None]:
    def change(node: Path) -> None:
        for path in list(node.glob(pattern)):
            path.unlink()

    return change


def cut(name: str) -> Callable[[Path], None]:
    def change(node: Path) -> None:
        os.truncate(node / name, (node / name).stat().st_size * 9 // 10)

    return change


def zeroed(name: str) -> Callable[[Path], None]:
    def change(node: Path) -> None:
        (node / name).write_bytes(bytes((node / name).stat().st_size))

    return change


def emptied(name: str) -> Callable[[Path], None]:
    def change(node: Path) -> None:
        (node / name).write_bytes(b"")

    return change


CHANGES = {
    "no-schema": (without("schema.DAT"), True),
    "no-queues": (without("rabbit_durable_queue.DCD"), True),
    "no-queues-and-changes": (without("rabbit_durable_queue.DC?"), True),
    "no-vhosts": (without("rabbit_vhost.DCD"), True),
    "no-schema-version": (without("schema_version"), False),
    "empty-schema": (emptied("schema.DAT"), False),
    "zero-schema": (zeroed("schema.DAT"), False),
    "cut-cluster-nodes": (cut("cluster_nodes.config"), False),
    "empty-cluster-nodes": (emptied("cluster_nodes.config"), False),
    "empty-running": (emptied("nodes_running_at_shutdown"), False),
    "empty-schema-version": (emptied("schema_version"), False),
}


@pytest.mark.parametrize("case", CHANGES)
def test_files_without_which_a_node_does_not_start_or_knows_no_queue(case: str, tmp_path: Path) -> None:
    change, starts = CHANGES[case]
    node = unpack_node_site("plain", tmp_path)
    change(node)
    answer = diagnosis(node)
    assert (answer["starts"], answer["loses"], answer["redelivers"], answer["unknown"]) == (starts, 94 if starts else 0, 0, [])
    assert answer["next"].startswith("mqstore rescue ")
    if starts:
        assert [item["kind"] for item in run_cli("verify", node, "-o", "json").document["damage"]] == ["missing-part"]
    assert run_cli("messages", node, "-o", "jsonl").stdout.count("\n") == 94  # all is read


@pytest.mark.parametrize("name", ["LATEST.LOG", "rabbit_durable_queue.DCD"])
@pytest.mark.parametrize("content", [b"", bytes(300)])
def test_an_empty_or_half_synced_file_of_mnesia_is_a_finding_and_the_rest_is_read(name: str, content: bytes, tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    (node / name).write_bytes(content)
    findings = run_cli("inspect", node, "-o", "json").document["findings"]
    assert {item["file"] for item in findings} == {name}
    assert any(f"{name} cannot be read whole" in sentence for sentence in diagnosis(node)["unknown"])
    assert run_cli("messages", node, "-o", "jsonl").stdout.count("\n") == 94


def test_whether_a_node_starts_on_a_list_of_tables_that_it_has_to_repair_is_not_known(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)  # cut at 30 and 90 percent, two 3.10.8 nodes did not start, and one did
    cut("schema.DAT")(node)
    answer = diagnosis(node)
    assert answer["unknown"] == ["whether a node starts, and with which tables: schema.DAT is damaged"]
    assert answer["next"].startswith("mqstore rescue ")
    assert run_cli("verify", node).status == 1


@pytest.mark.parametrize("content", [b"", bytes(300)])
def test_what_only_a_damaged_log_of_mnesia_had_counts_as_lost(content: bytes, tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    (node / "rabbit_durable_queue.DCD").write_bytes(disk_log.write_log([(Atom("log_header"), Atom("dcd_log"))]))
    assert diagnosis(node)["loses"] == 0  # LATEST.LOG has all queues
    (node / "LATEST.LOG").write_bytes(content)
    answer = diagnosis(node)
    assert (answer["starts"], answer["loses"], len(answer["unknown"])) == (True, 87, 1)


def test_a_flags_file_of_a_newer_release_than_known_is_a_range_without_an_end(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    flags = node.with_name(f"{node.name}-feature_flags")
    flags.write_bytes(flags.read_bytes().replace(b"[", b"['rabbitmq_4.9.0',from_the_future,", 1))
    assert run_cli("inspect", node, "-o", "json").document["suggested_version"] == "4.9 or later"
    assert any("has flags of 4.9, which 3.10 does not know" in sentence for sentence in diagnosis(node, "--for", "3.10")["unknown"])
    flags.unlink()
    flags.mkdir()
    assert run_cli("diagnose", node, "--for", "3.10").status == 2  # a directory in the place of the file is no list


@pytest.mark.interop
@pytest.mark.xdist_group("rabbitmq")
@pytest.mark.parametrize("case", CHANGES)
def test_a_node_does_what_diagnose_says(case: str) -> None:
    if why := missing():
        pytest.skip(why)
    change, starts = CHANGES[case]
    with new_node() as node:
        node.start()
        with node.connect() as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True, arguments={"x-queue-version": 2})
            channel.basic_publish("", "q", b"x")
        node.stop()
        change(node.data)
        (node.base / "node-feature_flags").write_bytes((node.base / "feature_flags").read_bytes())
        assert diagnosis(node.data, "--for", "3.10")["starts"] is starts
        if not starts:
            with pytest.raises(BootError):
                node.start()
            return
        node.start()
        assert bool(list(node.data.glob(f"{VHOSTS}/*/queues/*"))) == (case == "no-vhosts")  # where the node leaves alone what it has not
        with pytest.raises(AMQPError), node.connect() as connection:
            connection.channel().queue_declare("q", passive=True)
