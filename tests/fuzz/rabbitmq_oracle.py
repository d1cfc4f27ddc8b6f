"""What must hold of a damaged image of a RabbitMQ store, judged from the bytes of the golden store and of the image alone.

* A message whose record is in its file, at its place, byte for byte, is reported, in some queue or in none. In a journal or a segment,
  which has no marks where entries begin, that is asked of messages up to the first changed byte. In a `.qs` file, whose entries the `.qi`
  file points at, it is asked as long as the `.qi` file is untouched.
* What is reported as `intact` is a message of the golden store, with the same id, properties, routing and body. Only bodies in `.qs` files
  have checksums, so elsewhere a record with changed bytes of its own may be believed.
* A persistent message that is lost is not kept quiet: `verify` has findings if the index of its queue is untouched.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.damage import File, Link, Tree
from fuzz.rocketmq_oracle import WrongFamilyError

import mqstore
from mqstore.errors import MqstoreError
from mqstore.findings import Report
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.verify import verify
from mqstore.table.columns import QueueSelection

COLUMNS = (
    "vhost",
    "queue",
    "priority_level",
    "seq_id",
    "persistent",
    "msg_id",
    "payload_sha256",
    "properties_json",
    "exchange",
    "routing_keys",
    "verdict",
    "store_file",
    "position",
)
EVERYTHING = QueueSelection(everything=True)
INDEX_SUFFIXES = (".jif", ".idx", ".qi")

Content = tuple[str, str, str, str, tuple[str, ...]]
Row = dict[str, Any]


def read(root: Path) -> tuple[list[Row], Report, RabbitMQStore]:
    """Return all that the package says of a store: every message, and the findings."""
    store = mqstore.open(root)
    if not isinstance(store, RabbitMQStore):
        raise WrongFamilyError(f"{root} is taken for a store of RocketMQ")
    rows = [row for batch in store.to_batches(COLUMNS, EVERYTHING) for row in batch.to_pylist()]
    return rows, verify(store), store


def content(row: Row) -> Content:
    return (row["msg_id"], row["payload_sha256"], row["properties_json"], row["exchange"], tuple(row["routing_keys"] or ()))


def record_range(file: str, data: bytes, at: int) -> tuple[int, int]:
    """Return the range of a stored message's record in a file; of an embedded one also its entry."""
    match Path(file).suffix:
        case ".rdq" | ".rdt":
            return at, at + 9 + int.from_bytes(data[at : at + 8], "big")
        case ".qs":
            return at, at + 8 + int.from_bytes(data[at : at + 4], "big")
        case suffix:
            head = 40 if suffix == ".jif" else 34
            return at, at + head + int.from_bytes(data[at + head - 4 : at + head], "big")


@dataclass(frozen=True)
class Stored:
    """One stored message of the golden store. queues: the directories whose index holds it, each with whether it is persistent there."""

    content: Content
    file: str
    start: int
    stop: int
    queues: tuple[tuple[str, bool], ...]


@dataclass
class Golden:
    """The golden store before any damage."""

    tree: Tree
    stored: list[Stored]
    contents: set[Content]
    names: list[tuple[str, str]]
    blobs: list[bytes] = field(default_factory=list)

    @staticmethod
    def of(root: Path, tree: Tree) -> Golden:
        rows, _, store = read(root)
        directories = {(queue.vhost, queue.name, queue.priority_level): queue.place.place for queue in store.queues}
        held: dict[tuple[str, int], list[tuple[str, bool]]] = {}
        first: dict[tuple[str, int], Row] = {}
        for row in rows:
            if row["store_file"] is None or row["verdict"] == "damaged":
                continue
            place = row["store_file"], row["position"]
            first.setdefault(place, row)
            directory = directories.get((row["vhost"], row["queue"], row["priority_level"]))
            if directory is not None and row["verdict"] == "intact":
                held.setdefault(place, []).append((directory, bool(row["persistent"])))
        stored = []
        for place, row in first.items():
            node = tree[place[0]]
            assert isinstance(node, File)
            start, stop = record_range(place[0], node.data, place[1])
            stored.append(Stored(content(row), place[0], start, stop, tuple(held.get(place, ()))))
        names = sorted({(row["vhost"], row["queue"]) for row in rows if row["queue"] is not None})
        blobs = [node.data for node in tree.values() if isinstance(node, File)]
        return Golden(tree, stored, {each.content for each in stored}, names, blobs)


def judge(golden: Golden, image: Tree, root: Path) -> None:
    """Check everything that the module's docstring names. Raises AssertionError."""
    same = {path for path, node in golden.tree.items() if image.get(path) is node}
    asked = [each for each in golden.stored if (each.file in same and each.file[-3:] != ".qs") or _is_asked(golden, image, each)]
    try:
        rows, report, _ = read(root)
    except MqstoreError as error:
        if asked:
            raise AssertionError(f"{len(asked)} messages are untouched, and the store is refused: {error}") from error
        return
    told = {(row["msg_id"], row["payload_sha256"]) for row in rows}
    missing = [each for each in asked if each.content[:2] not in told]
    assert not missing, f"{len(missing)} messages are untouched and not reported, the first in {missing[0].file} at {missing[0].start}"
    for row in rows:
        if row["verdict"] == "intact" and content(row) not in golden.contents:
            _judge_stranger(golden, image, row)
    if not report.damage:
        believed = {row["msg_id"] for row in rows if row["verdict"] not in ("damaged", "unreachable")}
        for each in golden.stored:
            if each.content[0] not in believed:
                quiet = [queue for queue, persistent in each.queues if persistent and _index_is_there(golden, image, queue)]
                assert not quiet, f"the message in {each.file} at {each.start} is lost to {quiet[0]}, and verify finds nothing"


def _is_asked(golden: Golden, image: Tree, message: Stored) -> bool:
    """Return whether a message must be reported."""
    before, after = golden.tree[message.file], image.get(message.file)
    if not isinstance(before, File) or not isinstance(after, File):
        return False
    start = 0 if message.file.endswith((".jif", ".idx", ".qs")) else message.start
    if after.data[start : message.stop] != before.data[start : message.stop]:
        return False
    index = message.file[:-1] + "i"
    return not message.file.endswith(".qs") or image.get(index) is golden.tree.get(index)


def _judge_stranger(golden: Golden, image: Tree, row: Row) -> None:
    """Check a message that is reported as intact and is not one of the golden store: some of its own bytes must be damaged."""
    node = image.get(row["store_file"])
    what = f"the message in {row['store_file']} at {row['position']} of queue {row['queue']!r} is intact"
    if not isinstance(node, File):
        assert any(isinstance(each, Link) for each in image.values()), f"{what}, and there is no such file"
        return
    start, stop = record_range(row["store_file"], node.data, row["position"])
    raw = node.data[start:stop]
    assert not any(raw in blob for blob in golden.blobs), f"{what}, its bytes are untouched, and it is not as it was: {content(row)!r:.200}"
    if row["store_file"].endswith(".qs"):
        check = zlib.crc32(raw[8:]) & 0xFFFF
        assert check == int.from_bytes(raw[5:7], "big"), f"{what}, and its checksum is wrong"


def _index_is_there(golden: Golden, image: Tree, queue: str) -> bool:
    """Return whether the directory of a queue is as it was, and the names of its vhost."""
    vhost = queue.rpartition("/queues/")[0]
    names = (f"{vhost}/.vhost", f"{vhost}/.config")
    mine = [path for path in golden.tree.keys() | image.keys() if path.startswith(f"{queue}/") or path in names]
    return all(image.get(path) is golden.tree.get(path) for path in mine if not path.endswith(".qs"))
