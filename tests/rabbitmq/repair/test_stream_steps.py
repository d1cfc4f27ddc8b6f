"""Indexes of streams, made again of their segments: what a node would have deleted stays, and the repair can be taken back."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from interop.rabbitmq.other_node import OtherNode, missing, other_node
from support import streams
from support.golden import run_cli
from support.repairs import image_of

CASE = "4.3.6-killed"
READING = 60  # seconds


def small(node: Path) -> Path:
    (directory,) = (node / "stream").glob("__s_small_*")
    return directory


def damage(node: Path) -> dict[Path, bytes]:
    """Take away the first index of `s.small`, cut its last one, and change the third; return what they were."""
    indexes = sorted(small(node).glob("*.index"))
    before = {path: path.read_bytes() for path in indexes}
    indexes[0].unlink()
    indexes[-1].write_bytes(before[indexes[-1]][:-65])
    indexes[2].write_bytes(before[indexes[2]][:8] + bytes([9]) * 29 + before[indexes[2]][37:])
    return before


def test_the_indexes_are_those_that_the_node_wrote_and_can_be_taken_back(tmp_path: Path) -> None:
    node = streams.unpack(CASE, tmp_path)
    assert run_cli("repair", node, "-o", "json").document == []
    whole = image_of(node)
    before = damage(node)
    damaged = image_of(node)
    lost = run_cli("diagnose", node, "-o", "json").document
    assert (lost["loses"], lost["next"]) == (70 + 33, f"mqstore repair {node}")
    steps = run_cli("repair", node, "-o", "json").document
    assert [(each["step"], each["loss"], each["possible"]) for each in steps] == [("stream-index", "", True)] * 3
    assert "it deletes the segment, with 70 messages from offset 0 on" in [each["otherwise"] for each in steps]
    journal = tmp_path / "journal"
    done = run_cli("repair", node, "--apply", "--journal", journal)
    assert done.status == 0, done.stderr
    assert {path: path.read_bytes() for path in before} == before
    assert image_of(node) == whole
    assert run_cli("diagnose", node, "-o", "json").document["loses"] == 0
    assert run_cli("repair", node, "--undo", "--journal", journal).status == 0
    assert image_of(node) == damaged


def read_stream(node: OtherNode, queue: str) -> list[int]:
    """Return the offsets that a consumer receives from the beginning on; until the stream has a leader, it is refused with 406 or 541."""
    from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

    end = time.monotonic() + READING
    while True:
        connection = node.connect("/")
        channel = connection.channel()
        channel.basic_qos(prefetch_count=100)
        offsets: list[int] = []
        try:
            for method, properties, _ in channel.consume(queue, arguments={"x-stream-offset": "first"}, inactivity_timeout=2):
                if method is None and (offsets or time.monotonic() > end):
                    break
                if method is not None:
                    offsets.append(properties.headers["x-stream-offset"])
                    channel.basic_ack(method.delivery_tag)
            connection.close()
            return offsets
        except (ChannelClosedByBroker, ConnectionClosedByBroker) as error:
            if error.reply_code not in (406, 541) or time.monotonic() > end:
                raise
            time.sleep(1)


@pytest.mark.interop
@pytest.mark.xdist_group("interop")
@pytest.mark.parametrize("repaired", [False, True])
def test_a_node_deletes_a_segment_without_its_index_and_keeps_it_after_a_repair(repaired: bool, tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    data = streams.unpack(CASE, tmp_path)
    damage(data)
    promised = 300 - run_cli("diagnose", data, "-o", "json").document["loses"]
    if repaired:
        assert run_cli("repair", data, "--apply", "--journal", tmp_path / "journal").status == 0
    with other_node() as node:
        shutil.copytree(data, node.data, symlinks=True)
        node.start()
        offsets = read_stream(node, "s.small")
        left = (node.data / "stream" / small(data).name / f"{0:020}.segment").exists()
    expected = [row["offset"] for row in streams.delivered(CASE, "stream")["s.small"]]
    assert (left, len(offsets)) == (repaired, 300 if repaired else promised)
    assert set(offsets) <= set(expected)
