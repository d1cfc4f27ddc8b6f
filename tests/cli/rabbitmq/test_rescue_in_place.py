"""`rescue --in-place`, and what keeps any rescue from being made: nothing in the data directory changes, nothing half-made is left.

That a 4.3.6 node starts by these steps, and 3.10.8 by those back, is in tests/interop/rabbitmq/test_rescue_into_new_node.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import limits
from support.golden import Outcome, case_named, opened_node, run_cli, unchanged, unpack_node
from support.rabbitmq_nodes import unpacked

CLEAN, KILLED = "3.10.8-clean", "3.10.8-killed"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(KILLED, tmp_path_factory.mktemp("node") / "rabbit@localhost")


@pytest.fixture
def node(killed: Path, tmp_path: Path) -> Path:
    """The data directory of a 3.10.8 node, to change."""
    (tmp_path / "dirs").mkdir()
    return Path(shutil.copytree(killed, tmp_path / "dirs" / "rabbit@localhost"))


def prepare(node: Path, out: Path, *words: str) -> Outcome:
    return run_cli("rescue", node, "--to", out, "--for", "4.3", "--in-place", *words)


def test_stores_and_steps_are_prepared_and_the_data_directory_is_not_touched(node: Path, tmp_path: Path) -> None:
    (node.parent / f"{node.name}-feature_flags").write_text("[classic_mirrored_queue_version,quorum_queue].\n")
    with unchanged(node.parent):
        done = prepare(node, tmp_path / "out \u00fc")
    assert done.status == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert f"Prepared for RabbitMQ 4.3 on the data directory of rabbit@localhost: {tmp_path}/out \u00fc 246 messages;" in said
    assert sorted(path.name for path in (tmp_path / "out \u00fc").iterdir()) == ["STEPS.md", "msg_stores"]
    steps = (tmp_path / "out \u00fc" / "STEPS.md").read_text()
    assert f"DATA={node}\n" in steps
    assert f"cp -a '{tmp_path}/out \u00fc'/msg_stores " in steps
    assert "| \u0442\u0435\u0441\u0442 \u03b2 | h3/prio | 8 |" in steps
    # the old directory is out of reach before anything new is installed, and comes back at the end
    words = ("stop rabbitmq-server", 'mv "$DATA" "$DATA.before"', "Install RabbitMQ 4.3", "msg_stores", "start rabbitmq-server")
    order = [steps.index(word) for word in (*words, "To go back", 'mv "$DATA.before" "$DATA"')]
    assert order == sorted(order)
    for line in (line for line in steps.split("\n") if line.startswith("       ")):
        assert subprocess.run(["bash", "-n", "-c", line], check=False).returncode == 0, line


def test_a_queue_that_the_metadata_lacks_is_counted_as_deleted(node: Path, tmp_path: Path) -> None:
    (vhost,) = (path.parent for path in node.glob("msg_stores/vhosts/*/.vhost") if path.read_bytes() == b"/")
    (small,) = (path.parent for path in vhost.glob("queues/*/.queue_name") if path.read_bytes().endswith(b"QUEUE: h3/small\n"))
    stray = small.with_name("0123456789ABCDEFGHIJKLMN")
    small.rename(stray)
    done = prepare(node, tmp_path / "out", "-o", "json")
    assert (done.status, done.document["unknown_directories"], done.document["deleted"]) == (1, [stray.name], 48), done.stderr
    assert f"48 messages of the directory {stray.name}" in (tmp_path / "out" / "STEPS.md").read_text()


def overwrite(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda node: (node / name).write_bytes(content)


def remove(name: str) -> Callable[[Path], object]:
    return lambda node: (node / name).unlink()


def middle(name: str) -> Callable[[Path], object]:
    """Damage the middle of a file."""

    def damage(node: Path) -> None:
        raw = bytearray((node / name).read_bytes())
        raw[len(raw) // 3 : len(raw) // 3 + 200] = b"\x00" * 200
        (node / name).write_bytes(raw)

    return damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (remove("schema.DAT"), "this one has no schema.DAT"),
        (overwrite("schema.DAT", b""), "its schema.DAT is damaged"),
        (overwrite("schema.DAT", b"\x83h" * 20_000), "its schema.DAT is damaged"),
        (remove("rabbit_durable_queue.DCD"), "this one has no rabbit_durable_queue.DCD"),
        (middle("LATEST.LOG"), "the metadata is damaged (LATEST.LOG: "),
        (remove("cluster_nodes.config"), "cluster_nodes.config does not name a node"),
        (overwrite("cluster_nodes.config", b"{[rabbit@a,rabbit@b],[rabbit@a]}.\n"), "this one is of a cluster of 2 nodes"),
        (overwrite("feature_flags", b"[message_containers,\n 'rabbitmq_4.0.0']."), "has flags of 3.13 or newer"),
        (overwrite("feature_flags", b"[implicit_default_bindings,quorum_queue,stream_queue,user_limits]."), "has no flag of 3.10 or newer"),
    ],
)
def test_a_directory_on_which_a_new_node_would_not_start_is_refused(
    damage: Callable[[Path], object], said: str, node: Path, tmp_path: Path
) -> None:
    damage(node)
    done = prepare(node, tmp_path / "out")
    assert (done.status, said in done.stderr, "leave out --in-place" in done.stderr) == (2, True, True), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dirs"]


def test_a_cleanly_stopped_node_is_prepared_and_damaged_feature_flags_are_taken_away(tmp_path: Path) -> None:
    node = unpacked(CLEAN, tmp_path / "node")
    (node / "feature_flags").write_bytes(b"\xff\x00[[[")
    done = prepare(node, tmp_path / "out", "-o", "json")
    assert (done.status, done.document["feature_flags"]) == (0, [f"{node}/feature_flags"]), done.stderr
    assert (done.document["messages"], done.document["node"]) == (230, "rabbit@localhost")
    assert "--exclude=./feature_flags" in (tmp_path / "out" / "STEPS.md").read_text()


def test_directories_of_3_8_and_of_4_x_are_refused(tmp_path: Path) -> None:
    old = unpacked("3.8.9-killed", tmp_path / "old")
    assert "so it is one of 3.8" in prepare(old, tmp_path / "out").stderr
    (old / "coordination").mkdir()  # as in an upgraded node that never enabled its feature flags
    assert "the users in this one are written as 3.8 writes them" in prepare(old, tmp_path / "out").stderr
    stopped = unpacked_clean_3_8(tmp_path / "stopped")
    assert "recovery.dets is as 3.8 and 3.9 write it" in prepare(stopped, tmp_path / "out").stderr
    new = opened_node(case_named("4.3.6/a-v2-clean"))
    assert "has its metadata in Khepri" in prepare(new, tmp_path / "out").stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", "stopped"]


def unpacked_clean_3_8(target: Path) -> Path:
    """A node that 3.8 stopped cleanly, with the directory that 3.9 adds."""
    node = unpack_node(case_named("3.8.9/a-v1-clean"), target)
    (node / "coordination").mkdir()
    return node


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--in-place", "--for", "4.0"], "known for RabbitMQ 4.3 only, not for 4.0"),
        (["--in-place", "--for", "4.3", "--users"], "leave out --users"),
        (["--in-place", "--for", "4.3", "--check", "http://localhost:15672"], "leave one of them out"),
        (["--in-place", "--for", "9.9"], "'9.9' is not a version of RabbitMQ"),
        (["--in-place"], "--for VERSION is missing"),
    ],
)
def test_options_that_contradict_each_other_are_a_sentence(words: list[str], said: str, killed: Path, tmp_path: Path) -> None:
    done = run_cli("rescue", killed, "--to", tmp_path / "out", *words)
    assert (done.status, said in done.stderr) == (2, True), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_target_is_needed(killed: Path) -> None:
    done = run_cli("rescue", killed, "--for", "4.3")
    assert (done.status, "--to OUT is missing" in done.stderr) == (2, True)


HOLD = "import sys; file = open(sys.argv[1], 'r+b'); print(flush=True); sys.stdin.read()"


@pytest.mark.parametrize("words", [[], ["--in-place"]], ids=["definitions", "in place"])
def test_a_directory_in_use_is_refused_with_the_process(words: list[str], killed: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(killed / "LATEST.LOG")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        done = run_cli("rescue", killed, "--to", tmp_path / "out", "--for", "4.3", *words)
        holder.communicate("")
    assert (done.status, f"process {holder.pid} (python" in done.stderr, "LATEST.LOG open for writing" in done.stderr) == (2, True, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [[], ["--in-place"]], ids=["definitions", "in place"])
def test_a_directory_that_changes_meanwhile_is_refused(
    words: list[str], node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mqstore.rabbitmq.convert import convert_vhost

    def write(*given: object) -> None:
        os.utime(node / "rabbit_serial", (1, 1))

    monkeypatch.setattr(convert_vhost, "_check_refused", write)
    done = run_cli("rescue", node, "--to", tmp_path / "out", "--for", "4.3", *words)
    assert (done.status, "changed while it was read" in done.stderr) == (2, True), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dirs"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 200 KiB."""
    with limits.small_disk(tmp_path / "small", 200) as place:
        yield place


@pytest.mark.parametrize("words", [[], ["--in-place"]], ids=["definitions", "in place"])
def test_nothing_half_made_is_left_where_there_is_no_room(words: list[str], killed: Path, small_disk: Path) -> None:
    with unchanged(killed):
        done = run_cli("rescue", killed, "--to", small_disk / "out", "--for", "4.3", *words)
    assert (done.status, "the disk is full" in done.stderr) == (2, True), done.stderr
    assert list(small_disk.iterdir()) == []


def test_damaged_metadata_is_reported_and_the_queues_are_named_by_their_directories(node: Path, tmp_path: Path) -> None:
    (node / "LATEST.LOG").write_bytes(b"\xff" * 100)
    (node / "schema.DAT").write_bytes(b"")
    done = run_cli("rescue", node, "--to", tmp_path / "out", "--for", "4.3", "-o", "json")
    assert (done.status, done.document["messages"], done.document["deleted"]) == (1, 246, 0), done.stderr
    assert [item["file"] for item in done.document["damage"]] == ["LATEST.LOG"]
    assert len(done.document["added"]) == 13


def test_names_that_are_not_utf_8_are_counted_as_what_a_node_would_delete(node: Path, tmp_path: Path) -> None:
    """No definition can have such a name."""
    from mqstore.rabbitmq.format.names import queue_directory, queue_name_file

    (vhost,) = (path.parent for path in node.glob("msg_stores/vhosts/*/.vhost") if path.read_bytes() == b"/")
    (small,) = (path.parent for path in vhost.glob("queues/*/.queue_name") if path.read_bytes().endswith(b"QUEUE: h3/small\n"))
    odd = small.with_name(queue_directory(b"/", b"\xe9t\xe9"))
    small.rename(odd)
    (odd / ".queue_name").write_bytes(queue_name_file(b"/", b"\xe9t\xe9"))
    done = run_cli("rescue", node, "--to", tmp_path / "out", "--for", "4.3", "-o", "json")
    assert (done.status, done.document["deleted"], done.document["unknown_directories"]) == (1, 48, [odd.name]), done.stderr


def test_levels_that_the_definition_does_not_have_are_counted_as_what_a_node_would_delete(node: Path, tmp_path: Path) -> None:
    """A node with `x-max-priority` 2 looks for levels 0 to 2, and deletes the directories of the others."""
    changed, times = re.subn(
        rb"(x-max-priority.{1,20}?a)\x04", lambda hit: hit[1] + b"\x02", (node / "LATEST.LOG").read_bytes(), flags=re.S
    )
    assert times
    (node / "LATEST.LOG").write_bytes(changed)
    done = run_cli("rescue", node, "--to", tmp_path / "out", "--for", "4.3", "-o", "json")
    assert (done.status, len(done.document["unknown_directories"])) == (1, 2), done.stderr
    assert 0 < done.document["deleted"] < 29


def test_fifos_in_the_place_of_feature_flags_and_tables_do_not_block(node: Path, tmp_path: Path) -> None:
    os.mkfifo(node / "feature_flags")
    (node / "rabbit_serial").unlink()
    os.mkfifo(node / "rabbit_serial")
    assert prepare(node, tmp_path / "out").status == 1  # they are findings
    (node / "schema.DAT").unlink()
    os.mkfifo(node / "schema.DAT")
    assert "this one has no schema.DAT" in prepare(node, tmp_path / "other").stderr
