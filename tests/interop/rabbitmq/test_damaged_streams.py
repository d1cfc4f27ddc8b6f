"""Streams whose first or last files are cut or wrong, on real nodes: what the node delivers is what we say of the directory before.

All streams of a node have the same messages in four segments or in one; each is damaged in one way, and the node is started once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from interop.rabbitmq import node as own
from interop.rabbitmq import other_node
from interop.rabbitmq.node import Node
from interop.rabbitmq.other_node import OtherNode

from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.streams.examination import Examination, NodeStart
from mqstore.rabbitmq.streams.stream import Stream

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

MESSAGES = 18
PATIENCE = 10  # seconds with a stream that delivers nothing
RECORD = 29  # bytes of a record of an index
HEADER = 8  # bytes of the header of a file
CHUNK = 48  # bytes of the header of a chunk


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one stream; each of both lists in order."""

    segments: list[Path]
    indexes: list[Path]

    def last_position(self, number: int = -1) -> int:
        return int.from_bytes(self.indexes[number].read_bytes()[-5:-1], "big")

    def position(self, record: int) -> int:
        """Return the position that a record of the last index has."""
        at = HEADER + record * RECORD
        return int.from_bytes(self.indexes[-1].read_bytes()[at + 24 : at + 28], "big")


Damage = Callable[[Files], None]


def cut(path: Path, size: int) -> None:
    with open(path, "r+b") as file:
        file.truncate(size)


def put(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def both(*damages: Damage) -> Damage:
    def do(files: Files) -> None:
        for damage in damages:
            damage(files)

    return do


def segment(number: int, size: int) -> Damage:
    return lambda files: cut(files.segments[number], size)


def index(number: int, size: int) -> Damage:
    return lambda files: cut(files.indexes[number], size)


def short_index(number: int, left: int) -> Damage:
    return lambda files: cut(files.indexes[number], files.indexes[number].stat().st_size - left)


def in_last_chunk(left: int, number: int = -1) -> Damage:
    return lambda files: cut(files.segments[number], files.last_position(number) + left)


def zeros(size: int) -> Damage:
    return lambda files: put(files.indexes[-1], files.indexes[-1].stat().st_size, bytes(size))


def every(size: int, ending: str) -> Damage:
    def do(files: Files) -> None:
        for path in files.segments if ending == "segment" else files.indexes:
            cut(path, size)

    return do


DAMAGES: dict[str, Damage] = {
    "none": lambda files: None,
    **{f"last segment of {size}": segment(-1, size) for size in (0, 1, 4, 7, 8, 9, 48, 49, 55, 56, 57)},
    **{f"last index of {size}": index(-1, size) for size in (0, 1, 7, 8, 9, 36, 37)},
    **{f"first segment of {size}": segment(0, size) for size in (0, 7, 8, 48, 49, 56, 60)},
    **{f"first index of {size}": index(0, size) for size in (0, 1, 7, 8, 9, 36, 37)},
    **{f"{left} bytes left of the last chunk": in_last_chunk(left) for left in (0, 1, 24, 47, 48, 60)},
    **{f"last index short by {left}": short_index(-1, left) for left in (1, 28, 29, 30, 57)},
    "zeros after the last index": zeros(2 * RECORD),
    "zeros after the last index, and 7": zeros(RECORD + 7),
    "mark of the last segment": lambda files: put(files.segments[-1], 0, b"X"),
    "mark of the last index": lambda files: put(files.indexes[-1], 0, b"X"),
    "mark of the first segment": lambda files: put(files.segments[0], 0, b"X"),
    "mark of the first index": lambda files: put(files.indexes[0], 0, b"X"),
    "mark of the last chunk": lambda files: put(files.segments[-1], files.last_position(), b"\0"),
    "mark of the first chunk of the last segment": lambda files: put(files.segments[-1], HEADER, b"\0"),
    "mark of the first chunk of the first segment": lambda files: put(files.segments[0], HEADER, b"\0"),
    "last segment gone": lambda files: files.segments[-1].unlink(),
    "last index gone": lambda files: files.indexes[-1].unlink(),
    "first segment gone": lambda files: files.segments[0].unlink(),
    "first index gone": lambda files: files.indexes[0].unlink(),
    **{f"segment in the middle of {size}": segment(2, size) for size in (0, 7, 8, 48, 56, 60)},
    **{f"index in the middle of {size}": index(2, size) for size in (0, 8, 36, 37)},
    "segment in the middle gone": lambda files: files.segments[len(files.segments) // 2].unlink(),
    "index in the middle gone": lambda files: files.indexes[len(files.indexes) // 2].unlink(),
    "mark of the first chunk of a segment in the middle": lambda files: put(files.segments[2], HEADER, b"\0"),
    "mark of the second chunk of the last segment": lambda files: put(files.segments[-1], files.position(1), b"\0"),
    "mark of the last chunk of a segment in the middle": lambda files: put(files.segments[2], files.last_position(2), b"\0"),
    "mark of the last chunk of the first segment": lambda files: put(files.segments[0], files.last_position(0), b"\0"),
    "48 bytes left of the last chunk in the middle": in_last_chunk(48, 2),
    "48 bytes left of the last chunk of the first segment": in_last_chunk(48, 0),
    "60 bytes left of the last chunk of the first segment": in_last_chunk(60, 0),
    "data of the first chunk": lambda files: put(files.segments[0], HEADER + CHUNK + 20, b"\0\1\2\3"),
    "data of the first chunk of the last segment": lambda files: put(files.segments[-1], HEADER + CHUNK + 20, b"\0\1\2\3"),
    "last segment of 8, and the index too": both(segment(-1, 8), index(-1, 8)),
    "first index gone, and the next of 8": both(lambda files: files.indexes[0].unlink(), index(1, 8)),
    **{
        f"last index of {size}, {left} bytes left of the last chunk": both(in_last_chunk(left), index(-1, size))
        for size in (0, 7, 8)
        for left in (0, 24, 48, 60)
    },
    "last two files of 7": both(segment(-1, 7), index(-1, 7)),
    "last two files of 0": both(segment(-1, 0), index(-1, 0)),
    "first two files of 0": both(segment(0, 0), index(0, 0)),
    "first two files of 7": both(segment(0, 7), index(0, 7)),
    "first two files of 8": both(segment(0, 8), index(0, 8)),
    "all segments of 8": every(8, "segment"),
    "all segments of 7": every(7, "segment"),
    "all segments of 56": every(56, "segment"),
    "all indexes of 8": every(8, "index"),
}
KINDS: dict[str, dict[str, Any]] = {"many": {"x-stream-max-segment-size-bytes": 1000}, "one": {}}


def fill(node: Node | OtherNode, queues: dict[str, tuple[str, str]]) -> None:
    connection = node.connect("/")
    channel = connection.channel()
    channel.confirm_delivery()
    for queue, (kind, _) in queues.items():
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "stream", **KINDS[kind]})
    for number in range(MESSAGES):
        for queue in queues:
            channel.basic_publish("", queue, b"%d " % number + b"x" * 100)
    connection.close()


def delivered(node: Node | OtherNode, queue: str, expected: int) -> int | None:
    """Return how many messages a consumer gets from the beginning on; None if the node does not have the stream running."""
    from pika.exceptions import AMQPError

    connection = node.connect("/")
    channel = connection.channel()
    channel.basic_qos(prefetch_count=100)
    found, end = 0, time.monotonic() + PATIENCE
    try:
        for method, _, _ in channel.consume(queue, inactivity_timeout=1, arguments={"x-stream-offset": "first"}):
            found += method is not None
            if method is None and (found >= expected > 0 or time.monotonic() > end):
                break
        connection.close()
    except AMQPError:
        return None
    return found


@pytest.mark.parametrize("release", ["3.10", "trixie"])
def test_a_node_starts_delivers_and_keeps_what_is_said_of_a_damaged_stream(release: str) -> None:
    if reason := own.missing() if release == "3.10" else other_node.missing(release):
        pytest.skip(reason)
    names = [(kind, damage) for kind in KINDS for damage in DAMAGES if kind == "many" or ("middle" not in damage and "next" not in damage)]
    queues = {f"{kind}.{number}": (kind, damage) for number, (kind, damage) in enumerate(names)}
    with own.new_node() if release == "3.10" else other_node.other_node(release) as node:
        node.start()
        fill(node, queues)
        node.stop()
        places = {path.name[2:].rpartition("_")[0].replace("_", "."): path for path in (node.data / "stream").iterdir()}
        said: dict[str, NodeStart] = {}
        for queue, (_, damage) in queues.items():
            place = places[queue]
            DAMAGES[damage](Files(sorted(place.glob("*.segment")), sorted(place.glob("*.index"))))
            said[queue] = Examination(Stream(ReadOnlyDirectory(place), "", mends_first=release != "3.10")).node_start()
        node.start()
        time.sleep(3)
        with ThreadPoolExecutor(8) as pool:
            got = dict(zip(queues, pool.map(lambda queue: delivered(node, queue, said[queue].delivered), queues), strict=True))
    wrong = []
    for queue, start in said.items():
        if (start.stops_at is None and (got[queue] or 0) != start.delivered) or (bool(got[queue]) and bool(start.refused)):
            wrong.append((queues[queue], got[queue], start))
    assert wrong == []
    assert sum(got[queue] == MESSAGES for queue in queues) > 10
