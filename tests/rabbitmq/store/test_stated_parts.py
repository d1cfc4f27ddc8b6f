"""Message files and queue directories that the lists of a clean stop name, and that a partial copy does not have."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.golden import run_cli, unpack_node_site

import mqstore
from mqstore.findings import Kind
from mqstore.rabbitmq.diagnosis import diagnose
from mqstore.rabbitmq.listing import queue_rows
from mqstore.rabbitmq.store.store import RabbitMQStore

ROOT = "msg_stores/vhosts/628WB79CIFDYO9LJI6DKMI09L"
RDQ = f"{ROOT}/msg_store_persistent/0.rdq"


def _parts(node: Path) -> list[tuple[str, str, int]]:
    report = mqstore.open(node).verify()
    return [(item.file, item.detail, item.messages) for item in report.damage if item.kind is Kind.MISSING_PART]


def test_nothing_is_missing_from_a_whole_directory(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    assert not _parts(node)
    assert mqstore.open(node).verify().ok
    assert diagnose(RabbitMQStore(node)).loses == 0


@pytest.mark.parametrize("others", [True, False], ids=["with-coordination", "name-alone"])
def test_without_metadata_it_cannot_be_told_which_queues_the_node_knows(others: bool, tmp_path: Path) -> None:
    """A node deletes the directories of queues that it does not know; `coordination` of 3.10 is no metadata."""
    node = unpack_node_site("plain", tmp_path)
    for entry in node.iterdir():
        if entry.is_file():
            entry.unlink()
        elif entry.name != "msg_stores" and not others:
            shutil.rmtree(entry)
    answer = diagnose(RabbitMQStore(node))
    assert any("cannot be told without its metadata" in sentence for sentence in answer.unknown)
    assert (answer.status, answer.next) == (1, f"mqstore salvage {node} --to {node}.jsonl")
    alone = diagnose(RabbitMQStore(node / "msg_stores"))
    assert not alone.unknown
    assert any("for a node that has the definitions of these queues" in item.detail for item in alone.evidence)


def test_a_message_file_that_file_summary_names_is_to_be_got_before_anything_else(tmp_path: Path) -> None:
    node = unpack_node_site("missing-rdq", tmp_path)
    (part,) = _parts(node)
    assert part[:2] == (
        RDQ,
        "msg_store_persistent/0.rdq (4,176,574 bytes) is missing: get it before anything else; file_summary.ets names it",
    )
    answer = diagnose(RabbitMQStore(node))
    assert answer.loses == 42
    assert answer.next == f"mqstore repair {node}"  # other messages are kept by it if the file is gone for good
    assert answer.why.startswith("get what is missing before anything else")
    assert [way.next for way in answer.ways[:2]] == [answer.next, f"mqstore inspect {node}"]
    assert answer.ways[1].keeps is None
    assert RDQ in answer.why
    shown = run_cli("inspect", node)
    assert shown.status == 1
    assert "0.rdq (4,176,574 bytes) is missing" in " ".join(shown.stdout.split())


def test_without_file_summary_the_index_of_the_messages_names_the_file(tmp_path: Path) -> None:
    node = unpack_node_site("missing-rdq", tmp_path)
    summary = node / ROOT / "msg_store_persistent" / "file_summary.ets"
    summary.write_bytes(summary.read_bytes().replace(b"file_summary", b"file_Summary"))
    ((_, detail, _),) = _parts(node)
    assert detail.endswith("msg_store_index.ets names it")
    assert "0.rdq (at least 4,176,574 bytes)" in detail


def test_a_message_file_that_is_shorter_than_stated_is_named(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    with open(node / RDQ, "r+b") as file:
        file.truncate(1_000_000)
    ((path, detail, _),) = _parts(node)
    assert path == RDQ
    assert detail.startswith("msg_store_persistent/0.rdq has 1,000,000 of 4,176,574 bytes")


def test_a_missing_file_that_has_another_name_is_pointed_at(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    (node / RDQ).rename(node / f"{RDQ}.bak")
    ((_, detail, _),) = _parts(node)
    assert detail.endswith("; 0.rdq.bak beside it has that size: is it this file, under another name?")
    packed = shutil.make_archive(str(tmp_path / "backup"), "tar", tmp_path, node.name)
    (part,) = (part for part in run_cli("inspect", packed, "-o", "json").document["site"] if part["part"] == "message file")
    assert part["path"] == f"{packed}/{RDQ}"


def test_after_an_unclean_stop_old_lists_say_nothing(tmp_path: Path) -> None:
    node = unpack_node_site("missing-rdq", tmp_path)
    (node / ROOT / "msg_store_persistent" / "clean.dot").unlink()
    (node / ROOT / "msg_store_persistent" / "1.rdq").touch()
    assert not _parts(node)


@pytest.mark.parametrize("metadata", [True, False])
def test_the_messages_of_a_queue_directory_that_is_not_there_are_counted(metadata: bool, tmp_path: Path) -> None:
    node = unpack_node_site("missing-queue-dir", tmp_path)
    assert "not all that was there then is here" in run_cli("inspect", node).stdout
    for number, words in enumerate((["rescue", node, "--for", "4.0"], ["convert", node, "--queue-version", 2])):
        done = run_cli(*words, "--to", tmp_path / f"out-{number}")
        assert done.status == 1
        assert "and recovery.dets counts 5 messages in it: get it before anything else" in " ".join(done.stdout.split())
    assert "recovery.dets counts 5 messages" in (tmp_path / "out-0" / "STEPS.md").read_text()
    if not metadata:
        for file in (*node.glob("*.D*"), *node.glob("*.LOG"), node / "cluster_nodes.config"):
            file.unlink()
    name = "ha.orders" if metadata else "COIWU2452WZO5YSQZU0J666GX"
    ((path, detail, messages),) = _parts(node)
    assert (path, messages) == (f"{ROOT}/queues/COIWU2452WZO5YSQZU0J666GX", 5)
    assert detail.startswith(f"the directory of queue {name!r} is missing, and recovery.dets counts 5 messages in it")
    store = RabbitMQStore(node)
    (row,) = [row for row in queue_rows(store) if row["queue"] == name]
    assert (row["queue_version"], row["messages"], row["lost"], row["not_recovered"]) == (1, 0, 5, 5)
    assert diagnose(store).loses == 5
    assert run_cli("topics", node).stdout.count("5 missing") == 1


def test_a_missing_level_of_a_priority_queue_counts_with_its_queue(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    before = {row["queue"]: row["messages"] for row in queue_rows(RabbitMQStore(node))}
    shutil.rmtree(node / ROOT / "queues" / "9RM3NAEZR79H60JIC5FVNT14B")
    store = RabbitMQStore(node)
    (row,) = [row for row in queue_rows(store) if row["lost"]]
    assert (row["queue"], row["lost"], row["messages"]) == ("prio.big", 6, before["prio.big"] - 6)
    assert len(_parts(node)) == 1


def test_the_default_name_of_a_directory_on_windows_is_that_of_its_node(tmp_path: Path) -> None:
    answer = diagnose(RabbitMQStore(unpack_node_site("windows-name", tmp_path)))
    assert (answer.starts, answer.loses, answer.version) == (True, 0, "3.10")
    assert not any(item.finding == "other-node" for item in answer.evidence)
