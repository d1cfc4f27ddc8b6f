"""What is where in a data directory: directories in the places of files, and what makes a directory that of a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqstore.files import ReadOnlyDirectory
from mqstore.files.directory_views import ConfinedDirectory
from mqstore.findings import Kind
from mqstore.rabbitmq.format.layout import has_other_queues, unread_entries

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
