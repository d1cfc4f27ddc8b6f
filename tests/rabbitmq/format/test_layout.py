"""What is where in a data directory: directories in the places of files, and what makes a directory that of a node."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.privilege import needs_permissions, without_privilege

from mqstore.files import ReadOnlyDirectory
from mqstore.files.directory_views import ConfinedDirectory
from mqstore.findings import Kind
from mqstore.rabbitmq.format.layout import MacFiles, bytes_of, files_of_mac, has_other_queues, node_beside, own_entries, unread_entries

VHOST = "msg_stores/vhosts/V"


def test_a_directory_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    own = ["queues/Q", "msg_store_persistent", "msg_store_transient", "other/x/y"]
    misplaced = [".config", "recovery.dets", "x.dcd", "queues/Q/0.idx", "msg_store_persistent/0.rdq"]
    for path in [*own, *misplaced, "queues/Q/0.idx/deeper"]:
        (tmp_path / VHOST / path).mkdir(parents=True, exist_ok=True)
    damage = list(unread_entries(ConfinedDirectory(tmp_path)))
    assert sorted(item.file for item in damage) == sorted(f"{VHOST}/{path}" for path in misplaced)
    assert {item.kind for item in damage} == {Kind.UNREADABLE}


@pytest.mark.parametrize(
    ("path", "is_node"),
    [
        ("quorum/rabbit@a/x", True),
        ("quorum/rabbit", False),
        ("stream/s/00000000000000000000.segment", True),
        ("stream/s/other.txt", False),
        ("stream/00000000000000000000.segment", False),
    ],
)
def test_quorum_queues_and_streams_are_known_by_the_names_of_their_directories_and_files(path: str, is_node: bool, tmp_path: Path) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_bytes(b"")
    assert has_other_queues(ReadOnlyDirectory(tmp_path)) == is_node


def test_message_stores_are_in_the_same_directory_as_their_node(tmp_path: Path) -> None:
    (tmp_path / "msg_stores").mkdir()
    (tmp_path / "logs").mkdir()
    (tmp_path / "rabbit@one").mkdir()
    assert node_beside(ReadOnlyDirectory(tmp_path)) is None
    (tmp_path / "rabbit@two-mnesia").mkdir()
    (tmp_path / "rabbit@two-mnesia" / "cluster_nodes.config").write_bytes(b"")
    assert node_beside(ReadOnlyDirectory(tmp_path)) == "rabbit@two-mnesia"


def test_a_link_that_leads_in_a_circle_leads_out_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "file").write_bytes(b"")
    assert [entry.name for entry in own_entries(ReadOnlyDirectory(tmp_path), "")] == ["file"]


@needs_permissions
def test_what_may_not_be_read_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "._file").write_bytes(b"\0\x05\x16\x07")
    for path in tmp_path.iterdir():
        path.chmod(0)
    directory = ReadOnlyDirectory(tmp_path)
    directory.tolerate_unlisted()
    with without_privilege():
        assert [(item.file, item.kind) for item in unread_entries(directory)] == [("closed", Kind.UNREADABLE)]
        data, (damage,) = bytes_of(directory, "._file")
        assert (len(data), damage.kind) == (0, Kind.UNREADABLE)
        assert files_of_mac(directory) is None
    assert files_of_mac(ReadOnlyDirectory(tmp_path)) is not None
    (tmp_path / "closed").chmod(0o755)


def test_of_the_files_of_a_mac_the_one_that_stops_the_most_is_named(tmp_path: Path) -> None:
    for name in ("._.config", "._0.wal", "._other"):
        (tmp_path / name).write_bytes(b"\0\x05\x16\x07")
    assert files_of_mac(ReadOnlyDirectory(tmp_path)) == MacFiles(("._.config", "._0.wal", "._other"), "._0.wal", "it does not start")
