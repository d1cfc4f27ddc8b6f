"""What must hold of a damaged image of quorum queues and streams, judged from the bytes of the golden store and of the image alone.

* A message is reported, in some state or in none, if its bytes are untouched at their place: the record of a write-ahead log, and the
  one that gives the id of its member; the place and the entry of a segment; the head and the data of a chunk of a stream.
* What is reported as `intact` or `consumed` is a message that the golden store has, with the same properties, routing and body, unless
  its checksum is one that was not computed. If it stands elsewhere, or the queue has other messages than before, `verify` says something,
  unless all that happened to the files is what a file that was never written, or the end of a log, looks like.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.damage import File, Tree, folders
from fuzz.rocketmq_oracle import WrongFamilyError

import mqstore
from mqstore.errors import MqstoreError
from mqstore.findings import Report
from mqstore.rabbitmq.erlang.etf import EtfError, decode
from mqstore.rabbitmq.message.message_term import message_from
from mqstore.rabbitmq.message.properties import PropertiesError, json_properties
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.verify import verify
from mqstore.table.columns import QueueSelection

COLUMNS = (
    "vhost", "queue", "queue_type", "raft_index", "stream_offset", "recovered", "payload_sha256", "properties_json", "exchange",
    "routing_keys", "verdict", "store_file", "position",
)  # fmt: skip
EVERYTHING = QueueSelection(everything=True)
BELIEVED = ("intact", "consumed", "unindexed")
_ADDED = ("x-delivery-count", "x-acquired-count", "x-stream-offset")  # headers of the state, not of the message
_MODIFIED = "x-opt-"  # and those that a consumer has added with `modify`
_WORDS = struct.Struct(">IIQQ")
_PLACE = struct.Struct(">QQQII")
_CHUNK = struct.Struct(">BBHIqQQIIIB3s")
_WITHOUT_CHECKSUM = ("config", "names.dets", "meta.dets", "indexes", "writers.snapshot", "segment_name_upgrade_marker")

Content = tuple[str, str, str, tuple[str, ...]]
Span = tuple[int, int]
Row = dict[str, Any]


def read(root: Path) -> tuple[list[Row], Report, RabbitMQStore]:
    """Return all that the package says of a store: every message, and the findings."""
    store = mqstore.open(root)
    if not isinstance(store, RabbitMQStore):
        raise WrongFamilyError(f"{root} is taken for a store of RocketMQ")
    rows = [row for batch in store.to_batches(COLUMNS, EVERYTHING) for row in batch.to_pylist()]
    return rows, verify(store), store


def content(row: Row) -> Content:
    keys = row["routing_keys"]
    if row["queue_type"] == "stream" and keys == [row["queue"]]:
        keys = ()  # a message of a client of streams has none, and the name of the stream is that of its directory
    return _content(row["payload_sha256"], json.loads(row["properties_json"] or "{}"), row["exchange"], keys)


def _content(digest: str, properties: dict[str, Any], exchange: str, keys: Any) -> Content:
    kept = {name: value for name, value in properties.items() if value is not None and name not in ("headers", "reply_to")}
    headers = [header for header in properties.get("headers") or () if header[0] not in _ADDED and not header[0].startswith(_MODIFIED)]
    headers.sort(key=json.dumps)  # a node sorts them when it adds the number of deliveries, which damage may change
    return digest, json.dumps([kept, headers], sort_keys=True), exchange, tuple(keys or ())


@dataclass(frozen=True)
class Written:
    """One entry of a log or one chunk. member: directory of its queue. spans: the bytes that it needs in its file."""

    file: str
    member: str
    number: int  # index of the entry, or offset of the first record
    start: int  # what `position` of a row is, of a chunk its data
    spans: tuple[Span, ...]
    entry: Span


def written(path: str, data: bytes) -> Iterator[Written]:
    """Yield what is written in a file of the golden store."""
    match path.rpartition(".")[2], path.partition("/")[0]:
        case "wal", _:
            yield from _wal(path, data)
        case "segment", "quorum":
            yield from _segment(path, data)
        case "segment", "stream":
            yield from _stream(path, data)


def _wal(path: str, data: bytes) -> Iterator[Written]:
    at, ids = 5, dict[int, tuple[str, Span]]()
    while at + 27 <= len(data):
        start, head = at, int.from_bytes(data[at : at + 3], "big")
        at += 3
        if not head & 1 << 22:
            length = int.from_bytes(data[at : at + 2], "big")
            if not length:
                return
            ids[head & (1 << 22) - 1] = data[at + 2 : at + 2 + length].decode(), (start, at + 2 + length)
            at += 2 + length
        uid, given = ids[head & (1 << 22) - 1]
        _, size, index, _ = _WORDS.unpack_from(data, at)
        at += 24 + size
        if at > len(data):
            return
        yield Written(path, f"{path.rpartition('/')[0]}/{uid}", index, start, ((0, 5), given, (start, at)), (at - size, at))


def _segment(path: str, data: bytes) -> Iterator[Written]:
    for number in range(min(int.from_bytes(data[6:8], "big"), (len(data) - 8) // _PLACE.size)):
        start = 8 + _PLACE.size * number
        index, term, offset, length, _ = _PLACE.unpack_from(data, start)
        if not (index or term or offset):
            return
        entry = offset, offset + length
        yield Written(path, path.rpartition("/")[0], index, start, ((0, 8), (start, start + _PLACE.size), entry), entry)


def _stream(path: str, data: bytes) -> Iterator[Written]:
    at = 8
    while at + _CHUNK.size <= len(data):
        fields = _CHUNK.unpack_from(data, at)
        first, start = fields[6], at + _CHUNK.size + fields[10]
        stop = start + fields[8]
        yield Written(path, path.rpartition("/")[0], first, start, ((at, at + _CHUNK.size), (start, stop)), (start, stop))
        at = stop + fields[9]


@dataclass(frozen=True)
class Stored:
    """One message of the golden store, and the entry or the chunk that it is in."""

    content: Content
    written: Written


@dataclass
class Golden:
    """The golden store before any damage. contents: of every message; placed: with the index or the offset of each.

    held: those in their queues, with the number. notes: what `verify` says of the store as it is.
    """

    tree: Tree
    stored: list[Stored]
    written: list[Written]
    contents: set[Content]
    placed: set[tuple[int, Content]]
    held: set[tuple[str, str, int]]
    notes: tuple[str, ...]
    names: list[tuple[str, str]]

    @staticmethod
    def of(root: Path, tree: Tree) -> Golden:
        rows, report, _ = read(root)
        assert not report.damage, report.damage
        everything = [each for path, node in tree.items() if isinstance(node, File) for each in written(path, node.data)]
        by_place = {(each.file, each.start): each for each in everything if each.file.startswith("quorum/")}
        chunks: dict[str, list[Written]] = {}
        for each in everything:
            if each.file.startswith("stream/"):
                chunks.setdefault(each.file, []).append(each)
        stored = []
        for row in rows:
            if row["verdict"] in BELIEVED and row["store_file"] is not None:
                if row["queue_type"] == "quorum":
                    found = by_place[row["store_file"], row["position"]]
                    assert found.number == row["raft_index"]
                else:
                    inside = [each for each in chunks[row["store_file"]] if each.entry[0] <= row["position"] < each.entry[1]]
                    (found,) = inside
                stored.append(Stored(content(row), found))
        placed = {(number(row), content(row)) for row in rows if row["verdict"] in BELIEVED}
        for each in by_place.values():
            node = tree[each.file]
            assert isinstance(node, File)
            message = _message(node.data[slice(*each.entry)])
            if message is not None:
                placed.add((each.number, message))
        names = sorted({(row["vhost"] or "/", row["queue"]) for row in rows}) or [("/", "empty")]
        return Golden(tree, stored, everything, {each for _, each in placed}, placed, held(rows), report.notes, names)


def number(row: Row) -> int:
    found: int = row["raft_index"] if row["queue_type"] == "quorum" else row["stream_offset"]
    return found


def held(rows: list[Row]) -> set[tuple[str, str, int]]:
    """Return the messages that are intact in their queues."""
    return {(row["vhost"] or "/", row["queue"], number(row)) for row in rows if row["verdict"] == "intact" and number(row) is not None}


def _message(entry: bytes) -> Content | None:
    """Return the message that an entry of a log publishes; None if it is another command."""
    try:
        term, _ = decode(entry)
        command = term[2] if type(term) is tuple and len(term) > 2 and term[0] == "$usr" else ()
        place = {"enqueue": 3, "e": 2, "requeue": 5}.get(str(command[0])) if type(command) is tuple and command else None
        if place is None:
            return None
        message = message_from(command[place], with_id=False)
        body = b"".join(message.fragments)
        keys = tuple(key.decode("utf-8", "replace") for key in message.routing_keys)
        exchange = message.exchange.decode("utf-8", "replace")
        return _content(hashlib.sha256(body).hexdigest(), json_properties(message.delivered()), exchange, keys)
    except (EtfError, PropertiesError):
        return None


def judge(golden: Golden, image: Tree, root: Path) -> None:
    """Check everything that the module's docstring names. Raises AssertionError."""
    there = folders(image)
    asked = [each for each in golden.stored if each.written.member in there and _is_untouched(golden, image, each.written)]
    try:
        rows, report, _ = read(root)
    except MqstoreError as error:
        if asked:
            raise AssertionError(f"{len(asked)} messages are untouched, and the store is refused: {error}") from error
        return
    says = bool(report.damage) or report.notes != golden.notes
    told = {content(row) for row in rows if row["verdict"] != "damaged"}
    missing = [each for each in asked if each.content not in told]
    assert not missing, (
        f"{len(missing)} messages are untouched and not reported, the first in {missing[0].written.file}, {missing[0].written.number}"
    )
    for row in rows:
        if row["verdict"] in BELIEVED and (number(row), content(row)) not in golden.placed:
            what = f"the message in {row['store_file']} at {row['position']} of queue {row['queue']!r} is {row['verdict']}"
            if content(row) not in golden.contents:
                assert _is_without_checksum(image, row), f"{what}, and it is not as it was: {content(row)!r:.200}"
            assert says, f"{what}, it is not at its place, and verify finds nothing"
    if not says and not _is_quiet(golden, image):
        now = held(rows)
        assert now == golden.held, (
            f"the queues have lost {sorted(golden.held - now)[:3]} and won {sorted(now - golden.held)[:3]}, and verify finds nothing"
        )


def _is_untouched(golden: Golden, image: Tree, each: Written) -> bool:
    before, after = golden.tree[each.file], image.get(each.file)
    if before is after:
        return True
    if not isinstance(before, File) or not isinstance(after, File):
        return False
    return all(after.data[start:stop] == before.data[start:stop] for start, stop in each.spans)


def _is_without_checksum(image: Tree, row: Row) -> bool:
    """Return whether the entry of a row states that no checksum was computed."""
    node = image.get(row["store_file"] or "")
    if row["queue_type"] != "quorum" or not isinstance(node, File):
        return False
    if row["store_file"].endswith(".wal"):
        at: int = row["position"] + 3
        if not node.data[row["position"]] & 0x40:
            at += 2 + int.from_bytes(node.data[at : at + 2], "big")
        return not any(node.data[at : at + 4])
    return not any(node.data[row["position"] + 28 : row["position"] + 32])


def _is_quiet(golden: Golden, image: Tree) -> bool:
    """Return whether the changes may be such that no file shows them."""
    for path in golden.tree.keys() | image.keys():
        before, after = golden.tree.get(path), image.get(path)
        if before is after:
            continue
        if not isinstance(before, File) or not isinstance(after, File) or after.source != path:
            return True
        if path.rpartition("/")[2] in _WITHOUT_CHECKSUM:
            return True
        if path.endswith((".wal", ".index")) or path.startswith("stream/"):
            data = after.data.rstrip(b"\0")
            ends = {each.spans[-1][1] for each in golden.written if each.file == path}
            kept = max((end for end in ends if after.data[:end] == before.data[:end]), default=5)
            if len(data) <= kept:
                return True
    return False
