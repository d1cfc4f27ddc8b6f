"""The parts of a node's store that `inspect` lists, of states from public reports."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.golden import case_named, run_cli, unpack, unpack_node_site

from mqstore.rabbitmq.format.names import queue_directory

VHOST = "msg_stores/vhosts/628WB79CIFDYO9LJI6DKMI09L"


def parts_of(node: Path) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = run_cli("inspect", node, "-o", "json").document["site"]
    assert {tuple(part) for part in parts} == {("part", "path", "state", "known_from")}
    return parts


@pytest.mark.parametrize(
    ("case", "missing"),
    [
        ("plain", {}),
        ("windows-name", {}),
        ("missing-rdq", {f"{VHOST}/msg_store_persistent/0.rdq": "file_summary.ets"}),
        ("missing-queue-dir", {f"{VHOST}/queues/COIWU2452WZO5YSQZU0J666GX": "recovery.dets: 5 messages"}),
    ],
)
def test_what_is_absent_is_named_with_who_says_that_it_should_be_there(case: str, missing: dict[str, str], tmp_path: Path) -> None:
    node = unpack_node_site(case, tmp_path)
    parts = parts_of(node)
    assert {part["path"]: part["known_from"] for part in parts if part["state"] == "absent"} == {
        str(node / path): why for path, why in missing.items()
    }
    assert any(part["state"] == "partly" for part in parts) == bool(missing)
    (flags,) = (part for part in parts if part["part"] == "feature flags")
    assert (flags["path"], flags["state"]) == (f"{node}-feature_flags", "here")
    text = run_cli("inspect", node).stdout
    assert all(path in text for path in missing)


def test_messages_of_the_plug_in_for_delayed_messages_are_counted(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    (part,) = (part for part in parts_of(node) if part["part"] == "delayed messages")
    assert (part["state"], part["known_from"]) == ("here", "found: 3 messages that wait")
    evidence = run_cli("diagnose", node, "-o", "json").document["evidence"]
    assert any("3 delayed messages outside the message stores" in item["detail"] for item in evidence)


def test_message_stores_alone_have_no_definitions(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    for path in node.iterdir():
        if path.name != "msg_stores" and path.is_file():
            path.unlink()
    (definitions,) = (part for part in parts_of(node) if part["part"] == "definitions")
    assert definitions["state"] == "absent"


def test_verify_promises_a_start_only_where_every_queue_is_one_that_the_node_knows(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path / "a")
    assert run_cli("verify", node, "-o", "json").document["next"] == "rabbitmq-server"
    queues = node / VHOST / "queues"
    other = queues / queue_directory("/", "other")  # as of another node
    shutil.copytree(queues / "COIWU2452WZO5YSQZU0J666GX", other)
    (other / ".queue_name").write_text("VHOST: /\nQUEUE: other\n")
    found = run_cli("verify", node, "-o", "json").document
    assert (found["damage"], found["next"]) == ([], f"mqstore diagnose {node}")
    assert run_cli("diagnose", node, "-o", "json").document["loses"] > 0
    node = unpack_node_site("plain", tmp_path / "b")
    shutil.rmtree(node / "msg_stores")
    assert run_cli("verify", node, "-o", "json").document["next"] != "rabbitmq-server"


def test_what_is_delivered_again_is_evidence_by_queue(tmp_path: Path) -> None:
    found = run_cli("diagnose", unpack_node_site("plain", tmp_path), "-o", "json").document
    again = [item for item in found["evidence"] if item["finding"] == "redelivered"]
    assert [(item["messages"], "'unacked.q'" in item["detail"]) for item in again] == [(2, True)]
    assert found["redelivers"] == 2


def test_message_stores_beside_a_node_are_named_with_where_they_belong(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    shutil.move(node / "msg_stores", tmp_path / "msg_stores")
    for command in ("inspect", "diagnose", "rescue"):
        refused = run_cli(command, tmp_path, *(["--to", tmp_path / "out", "--for", "4.0"] if command == "rescue" else []))
        assert refused.status in (2, 3)
        assert f"move {tmp_path}/msg_stores to {node}/" in refused.stderr
    unknown = run_cli("diagnose", node, "-o", "json").document["unknown"]
    assert sum("; ../msg_stores/vhosts/" in each for each in unknown) == 2
    assert run_cli("topics", tmp_path / "msg_stores").status == 0
    shutil.move(tmp_path / "msg_stores", node / "msg_stores")
    assert run_cli("diagnose", node).status == 0


def test_flags_beside_a_directory_of_windows_may_have_the_name_of_its_node(tmp_path: Path) -> None:
    node = unpack_node_site("windows-name", tmp_path)
    node = node.rename(node.with_name("rabbit@DESKTOP-mnesia"))
    (tmp_path / "rabbit@oldhost-mnesia-feature_flags").rename(tmp_path / "rabbit@DESKTOP-feature_flags")
    assert "../rabbit@DESKTOP-feature_flags names" in run_cli("inspect", node).stdout


def test_a_node_without_the_log_of_its_tables_may_have_had_further_queues(tmp_path: Path) -> None:
    """Seed 871 of sites-rabbitmq: of a killed node all definitions are in LATEST.LOG."""
    node = unpack_node_site("delayed-messages-killed", tmp_path)
    (node / "LATEST.LOG").unlink()
    found = run_cli("diagnose", node, "-o", "json").document
    assert any("without LATEST.LOG" in each for each in found["unknown"])
    assert run_cli("diagnose", node).status == 1


def test_messages_of_queues_that_a_link_leads_to_are_not_lost(tmp_path: Path) -> None:
    """The queues of a vhost on another disk: a node follows the link; this reader does not, and says so."""
    store = unpack(case_named("3.10.8/a-small-clean"), tmp_path / "store")
    (queues,) = store.glob("**/queues")
    queues.rename(tmp_path / "disk")
    queues.symlink_to(tmp_path / "disk")
    (said,) = run_cli("diagnose", store, "-o", "jsonl").rows
    assert (said["starts"], said["loses"]) == (True, 0)
    assert any("queues: a link that points out of the store" in each for each in said["unknown"])
    assert said["next"].startswith("mkdir ")
    assert [(part["part"], part["state"]) for part in parts_of(store) if part["part"].startswith("queue")] == [("queues", "not-read")]
