"""Files `._…` that a Mac adds to a copy: named where they stop a node, taken out in one step that can be taken back."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop.rabbitmq.node import BootError, missing, new_node
from support.golden import run_cli, unpack_node_site
from support.repairs import image_of

HEAD = b"\0\5\x16\7\0\2\0\0Mac OS X        "


def add(place: Path, pattern: str = "*") -> int:
    files = [path for path in sorted(place.rglob(pattern)) if not path.name.startswith("._")]
    for path in files:
        path.with_name(f"._{path.name}").write_bytes(HEAD + bytes(60))
    return len(files)


def test_they_are_named_and_taken_out_in_one_step_that_can_be_taken_back(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    image = image_of(node)
    number = add(node)
    (damage,) = run_cli("verify", node, "-o", "json").document["damage"]
    assert (damage["kind"], f"{number} files ._… of a Mac" in damage["detail"]) == ("broker-crash", True)
    answer = run_cli("diagnose", node, "-o", "json").document
    assert (answer["starts"], answer["next"]) == (False, f"mqstore repair {node}")
    (step,) = run_cli("repair", node, "-o", "json").document
    assert step["step"] == "take-out"
    added = image_of(node)
    journal = tmp_path / "journal"
    assert run_cli("repair", node, "--apply", "--journal", journal).status == 0
    assert image_of(node) == image
    assert run_cli("diagnose", node, "-o", "json").document["starts"]
    assert run_cli("repair", node, "--undo", "--journal", journal).status == 0
    assert image_of(node) == added


def test_those_that_a_node_ignores_are_a_note(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    add(node, "*.DCD")
    report = run_cli("verify", node, "-o", "json").document
    assert (report["damage"], any("a node ignores them" in note for note in report["notes"])) == ([], True)
    assert run_cli("diagnose", node, "-o", "json").document["starts"]


def test_a_file_of_that_name_with_other_bytes_stays(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path)
    (node / "._notes").write_bytes(b"a file of the owner")
    assert run_cli("repair", node, "-o", "json").document == []


@pytest.mark.interop
@pytest.mark.xdist_group("rabbitmq")
@pytest.mark.parametrize(("pattern", "starts"), [("*.wal", False), ("*.DCD", True), (".vhost", True)])
def test_a_node_stumbles_where_diagnose_says_so(pattern: str, starts: bool) -> None:
    if why := missing():
        pytest.skip(why)
    with new_node() as node:
        node.start()
        with node.connect() as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            channel.queue_declare("qq", durable=True, arguments={"x-queue-type": "quorum"})
        node.stop()
        assert add(node.data, pattern)
        assert run_cli("diagnose", node.data, "-o", "json").document["starts"] is starts
        if starts:
            node.start()
        else:
            with pytest.raises(BootError):
                node.start()
