"""What the metadata names and is not here, and what is here and the metadata does not name; small files that are empty."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from interop.rabbitmq.node import BootError, missing, new_node
from support.golden import run_cli, unpack_node_site

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
    assert run_cli("diagnose", node).status == 1
    (part,) = (part for part in run_cli("inspect", node, "-o", "json").document["site"] if part["part"] == title)
    assert (part["state"], part["known_from"]) == ("absent", "definitions")
    assert "absent-part" in {item["kind"] for item in run_cli("verify", node, "-o", "json").document["damage"]}


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
    (node / SMALL / "recovery.dets").unlink()
    shutil.rmtree(next((node / SMALL / "queues").iterdir()))
    (node / SMALL / "msg_store_persistent" / "0.rdq").unlink()
    details = [item["detail"] for item in diagnosis(node)["evidence"]]
    assert any("has no directory: it is empty, unless it was not copied" in detail for detail in details)


def without_schema(node: Path) -> None:
    (node / "schema.DAT").unlink()


def emptied(name: str) -> Callable[[Path], None]:
    def change(node: Path) -> None:
        (node / name).write_bytes(b"")

    return change


def without_schema_version(node: Path) -> None:
    (node / "schema_version").unlink()


CHANGES = {
    "no-schema": (without_schema, True),
    "no-schema-version": (without_schema_version, False),
    "empty-schema": (emptied("schema.DAT"), False),
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
    assert (answer["starts"], answer["loses"]) == (starts, 87 if starts else 0)
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
        assert not list(node.data.glob(f"{VHOSTS}/*/queues/*"))
