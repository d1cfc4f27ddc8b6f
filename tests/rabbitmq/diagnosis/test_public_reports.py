"""States that operators of RabbitMQ reported, made from the data directory of a real 3.10.8: what is said of each, and what must not be."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.golden import run_cli, unpack_node_site

VHOST = "msg_stores/vhosts/628WB79CIFDYO9LJI6DKMI09L"
FLAGS_313 = (
    "classic_mirrored_queue_version,classic_queue_type_delivery_support,direct_exchange_routing_v2,drop_unroutable_metric,"
    "empty_basic_get_metric,feature_flags_v2,implicit_default_bindings,listener_records_in_ets,maintenance_mode_status,quorum_queue,"
    "restart_streams,stream_filtering,stream_queue,stream_sac_coordinator_unblock_group,stream_single_active_consumer,"
    "stream_update_config_command,tracking_records_in_ets,user_limits,virtual_host_metadata"
)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """87 messages of classic queues in two vhosts, 7 of a quorum queue; stopped cleanly."""
    return unpack_node_site("plain", tmp_path)


def _said(node: Path, *options: object) -> dict[str, Any]:
    document: dict[str, Any] = run_cli("diagnose", node, "-o", "json", *options).document
    return document


def _details(said: dict[str, Any], finding: str) -> str:
    return " ".join(item["detail"] for item in said["evidence"] if item["finding"] == finding)


def test_3836_segments_of_a_queue_are_gone_and_only_its_name_is_left(node: Path) -> None:
    """rabbitmq-server #3836. The messages are still in the message store, and no index leads to them."""
    queue = f"{VHOST}/queues/1ILKYUZAF6PUW7W3VWY45FMMH"
    (node / queue / "0.idx").unlink()
    said = _said(node)
    assert (said["starts"], said["loses"]) == (True, 20)
    assert "the segment 0.idx of queue 'big.q' is missing, and recovery.dets counts 20 messages in it" in _details(said, "missing-part")
    assert f"get what is missing before anything else: {queue}/0.idx" in run_cli("diagnose", node).stdout
    assert run_cli("verify", node, "-o", "json").document["messages"]["affected"] == 20
    (row,) = (row for row in run_cli("topics", node, "-o", "jsonl").rows if row["queue"] == "big.q")
    assert "20 missing" in run_cli("topics", node).stdout
    assert row["messages"] == 0
    (part,) = (part for part in run_cli("inspect", node, "-o", "json").document["site"] if part["part"] == "queue big.q")
    assert (part["state"], part["path"]) == ("absent", f"{node}/{queue}/0.idx")


def test_2192_a_full_disk_cut_the_terms_of_the_queues(node: Path) -> None:
    """rabbitmq-server #2192, #2194."""
    terms = node / VHOST / "recovery.dets"
    terms.write_bytes(terms.read_bytes()[:700])
    said = _said(node)
    assert (said["starts"], said["loses"], said["redelivers"]) == (True, 0, 84)
    assert any("recovery.dets" in sentence for sentence in said["unknown"])


def test_2249_a_power_cut_left_an_empty_write_ahead_log(node: Path) -> None:
    """rabbitmq-server #2249."""
    (node / "quorum/rabbit@oldhost/00000001.wal").write_bytes(b"")
    said = _said(node)
    assert not said["starts"]
    assert "the file has 0 bytes" in _details(said, "wal-empty")


@pytest.mark.parametrize(
    ("flags", "version", "lacks"), [(None, "3.12", "direct_exchange_routing_v2"), (FLAGS_313, "4.2", "message_containers")]
)
def test_10199_and_12554_an_upgrade_without_the_flags_that_it_requires(node: Path, flags: str | None, version: str, lacks: str) -> None:
    """rabbitmq-server #10199, #12554, rabbitmq-website #2419."""
    if flags is not None:
        Path(f"{node}-feature_flags").write_text(f"[{flags}].\n")
    said = _said(node, "--for", version)
    assert not said["starts"]
    assert lacks in _details(said, "feature-flags")


def test_8582_a_container_that_gets_a_new_name_with_every_start(node: Path) -> None:
    """rabbitmq-server #8582: one directory for each name, the messages in an older one."""
    for number in range(2):
        new = node.with_name(f"rabbit@c{number}")
        shutil.copytree(node, new)
        shutil.copy(f"{node}-feature_flags", f"{new}-feature_flags")
        shutil.rmtree(new / "msg_stores" / "vhosts")
        (new / "msg_stores" / "vhosts").mkdir()
    rows = run_cli("inspect", node.parent, "-o", "json").document
    assert {Path(row["store"]).name for row in rows} == {"rabbit@c0", "rabbit@c1", "rabbit@oldhost"}
    assert "rabbit@oldhost" in run_cli("diagnose", node.parent).stderr


def test_6_a_node_name_without_a_host_names_the_directory(node: Path) -> None:
    """docker-library/rabbitmq #6: RABBITMQ_NODENAME=my-rabbit; the node is my-rabbit@HOST, and HOST was another one."""
    renamed = node.rename(node.with_name("my-rabbit"))
    only = "the metadata is of node rabbit@oldhost: only a node of this name starts on it (RABBITMQ_NODENAME), in whatever directory"
    assert only in _details(_said(renamed), "note")
    assert only not in _details(_said(renamed.rename(node)), "note")


def test_51_what_containers_leave_beside_their_directories_is_not_a_store(node: Path) -> None:
    """docker-library/rabbitmq #51."""
    for name in ("rabbit@3545369b0be7", "rabbit@oldhost"):
        node.with_name(f"{name}.pid").write_text("1")
        node.with_name(f"{name}-plugins-expand").mkdir()
    shutil.copytree(node, node.with_name("rabbit@3545369b0be7"))
    stores = run_cli("inspect", node.parent, "-o", "jsonl").rows
    assert [(row["store"], row["messages"]) for row in stores] == [(f"{node.parent}/rabbit@3545369b0be7", 94), (str(node), 94)]


def test_14071_a_message_file_that_ends_too_early(node: Path) -> None:
    """rabbitmq-server #14071."""
    file = node / VHOST / "msg_store_persistent" / "0.rdq"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    said = _said(node)
    assert (said["starts"], said["loses"]) == (True, 11)
    assert "0.rdq has 2,088,287 of 4,176,574 bytes" in _details(said, "missing-part")
    assert f"get what is missing before anything else: {VHOST}/msg_store_persistent/0.rdq" in said["why"]


def test_257_and_1568_marks_of_an_update_do_not_matter_to_the_version_that_wrote_them(node: Path) -> None:
    """rabbitmq-server #257, #1568: a real 3.10.8 starts with both on a directory that it has written."""
    (node / "schema_upgrade_lock").touch()
    (node / "nodes_running_at_shutdown").write_text("[rabbit@OLDHOST].")
    assert (_said(node)["starts"], _said(node)["loses"]) == (True, 0)
