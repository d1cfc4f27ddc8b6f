"""Salvage from parts of quorum queues and streams: every intact entry of a lone file, or of an image, comes out, proved or not."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import quorum, streams
from support.golden import run_cli

import mqstore
from mqstore.errors import NotAStoreError
from mqstore.files.image import Image
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.quorum.commands import UserCommand, read_entry
from mqstore.rabbitmq.quorum.segment import read_segment
from mqstore.rabbitmq.quorum.wal import read_wal
from mqstore.rabbitmq.streams.segment import chunk, entry
from mqstore.wreck.log_search import search_logs

Row = dict[str, Any]
PIECE = 4096
IDENTITY = ("payload_sha256", "exchange", "routing_keys")


def salvaged(path: Path, place: Path) -> list[Row]:
    target = place / "salvaged.jsonl"
    target.unlink(missing_ok=True)
    mqstore.salvage(path, target)
    return [json.loads(line) for line in target.read_text("utf-8").splitlines()]


def published(path: Path) -> set[tuple[str, int]]:
    """Return member and index of each entry of a lone log that holds a message that no later one replaces. `requeue` has a copy."""
    data = np.fromfile(path, np.uint8)
    if path.suffix == ".wal":
        found = read_wal(data, path.name)
        rows, uids = found.records, [found.uids[number].decode() for number in found.records["uid"].tolist()]
    else:
        rows = read_segment(data, path.name).entries
        uids = [path.parent.name] * len(rows)
    last: dict[tuple[str, int], bool] = {}
    for uid, row in zip(uids, rows, strict=True):
        if row["truncates"]:
            last = {key: kept for key, kept in last.items() if key[0] != uid or key[1] < row["index"]}
        try:
            command = read_entry(data[row["position"] : row["position"] + row["length"]].tobytes())
        except EtfError:
            command = None
        last[uid, int(row["index"])] = isinstance(command, UserCommand) and command.name in ("e", "enqueue", "requeue")
    return {key for key, is_message in last.items() if is_message}


def all_of(path: Path) -> set[tuple[str, int]]:
    """Return member and index of each record of a write-ahead log."""
    found = read_wal(np.fromfile(path, np.uint8), path.name)
    return {(found.uids[uid].decode(), index) for uid, index in found.records[["uid", "index"]].tolist()}


def logs(case: str, ending: str) -> list[Path]:
    return [
        path for path in sorted((quorum.node(case) / "quorum").rglob(f"*.{ending}")) if path.stat().st_size > 5 and not path.is_symlink()
    ]


@pytest.mark.parametrize("ending", ["wal", "segment"])
@pytest.mark.parametrize("case", quorum.CASES)
def test_every_message_of_a_lone_raft_log_comes_out_once_and_none_is_damaged(case: str, ending: str, tmp_path: Path) -> None:
    for number, path in enumerate(logs(case, ending)):
        want = published(path)
        if not want:
            continue
        rows = salvaged(path, tmp_path)
        assert {row["verdict"] for row in rows} <= {"unindexed", "consumed"}, path
        assert {row["recovered"] for row in rows} <= {None, False}
        assert Counter(row["raft_index"] for row in rows) == Counter(index for _, index in want), path
        if not number:  # a recovery program gave it another name
            shutil.copy(path, tmp_path / f"f0001.{ending}")
            again = salvaged(tmp_path / f"f0001.{ending}", tmp_path)
            assert sorted(row["payload_sha256"] for row in again) == sorted(row["payload_sha256"] for row in rows)


@pytest.mark.parametrize("case", streams.CASES)
def test_a_lone_stream_segment_has_the_rows_that_it_has_in_the_store(case: str, tmp_path: Path) -> None:
    whole: dict[str, list[tuple[int, str]]] = {}
    for row in salvaged(streams.node(case), tmp_path):
        if row["queue_type"] == "stream":
            whole.setdefault(row["store_file"], []).append((row["stream_offset"], row["payload_sha256"]))
    assert whole
    for name, want in whole.items():
        path = streams.node(case) / name
        for lone in (path, Path(shutil.copy(path, tmp_path / "piece.segment"))):
            rows = salvaged(lone, tmp_path)
            assert [(row["stream_offset"], row["payload_sha256"]) for row in rows] == want
            assert {row["store_file"] for row in rows} == {lone.name}


def test_the_directory_above_a_node_gives_what_the_node_gives(tmp_path: Path) -> None:
    above = tmp_path / "backup" / "of-yesterday"
    shutil.copytree(quorum.node("4.3.6/a-quorum-mix-kill9"), above / "node", symlinks=True)
    (tmp_path / "backup" / "NOTES.md").write_text("made by hand")
    rows = salvaged(tmp_path / "backup", tmp_path)
    assert Counter(row["verdict"] for row in rows) == {"intact": 216, "consumed": 59}
    assert rows == salvaged(above / "node", tmp_path)
    log = next(above.rglob("*.wal"))
    shutil.move(log, tmp_path / "backup" / log.name)
    assert len(salvaged(tmp_path / "backup", tmp_path)) >= 275  # a part lies outside of the node, and is not left out


def test_logs_under_other_names_in_one_place_do_not_void_each_other(tmp_path: Path) -> None:
    wreck = tmp_path / "lost+found"
    wreck.mkdir()
    want: Counter[int] = Counter()
    for number, path in enumerate(path for ending in ("wal", "segment") for path in logs("4.0.5/b-quorum-long-clean", ending)):
        shutil.copy(path, wreck / f"f{number:04}{path.suffix}")
        want.update(index for _, index in published(path))
    assert want
    assert Counter(row["raft_index"] for row in salvaged(wreck, tmp_path)) == want


# images


def image_of(raw: bytes, place: Path) -> Path:
    path = place / "disk.img"
    path.write_bytes(raw)
    return path


def carved(raw: bytes, place: Path) -> list[Row]:
    return salvaged(image_of(raw, place), place)


def shuffled(raw: bytes, seed: int) -> bytes:
    """Return bytes in pieces of 4 KiB in another order."""
    pieces = [raw[at : at + PIECE].ljust(PIECE, b"\0") for at in range(0, len(raw), PIECE)]
    random.Random(seed).shuffle(pieces)
    return b"".join(pieces)


def content(row: Row) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in IDENTITY)


@pytest.mark.parametrize("ending", ["wal", "segment"])
@pytest.mark.parametrize("case", quorum.CASES)
def test_every_message_of_a_nameless_raft_log_is_found_with_its_index(case: str, ending: str, tmp_path: Path) -> None:
    path = max((path for path in logs(case, ending) if published(path)), key=lambda path: path.stat().st_size, default=None)
    if path is None:
        pytest.skip("no message is in such a file")
    rows = carved(bytes(5000) + path.read_bytes() + b"noise" * 100, tmp_path)
    alone = salvaged(path, tmp_path)
    assert Counter(map(content, rows)) >= Counter(map(content, alone))
    assert {row["verdict"] for row in rows} <= {"unindexed", "duplicate"}
    assert {row["recovered"] for row in rows} == {None}
    want = published(path)
    found = {(row["queue"], row["raft_index"]) for row in rows}
    if ending == "segment":
        assert {index for _, index in found} >= {index for _, index in want}
    else:  # only a record whose head crosses a sector does not prove its member
        assert {index for _, index in found} >= {index for _, index in want}
        assert sum(queue is None for queue, _ in found) <= len(found) // 8
        assert {each for each in found if each[0]} - all_of(path) == set()


@pytest.mark.parametrize("case", streams.CASES)
def test_the_messages_of_a_nameless_stream_segment_are_those_of_the_segment(case: str, tmp_path: Path) -> None:
    path = max((streams.node(case) / "stream").rglob("*.segment"), key=lambda path: path.stat().st_size)
    want = salvaged(path, tmp_path)
    rows = carved(b"x" * 777 + path.read_bytes(), tmp_path)
    assert [(row["stream_offset"], row["payload_sha256"]) for row in rows] == [
        (row["stream_offset"], row["payload_sha256"]) for row in want
    ]
    assert {row["verdict"] for row in rows} == {"unindexed"}


@pytest.mark.parametrize("ending", ["wal", "segment"])
def test_shuffled_pieces_of_raft_logs_give_messages_of_the_log_only(ending: str, tmp_path: Path) -> None:
    case = {"wal": "4.3.6/a-quorum-mix-kill9", "segment": "4.0.5/b-quorum-long-clean"}[ending]
    path = max(logs(case, ending), key=lambda path: path.stat().st_size)
    alone = {content(row): row["raft_index"] for row in salvaged(path, tmp_path)}
    rows = carved(shuffled(path.read_bytes(), 3), tmp_path)
    proved = [row for row in rows if row["verdict"] in ("unindexed", "duplicate")]
    assert {content(row) for row in proved} <= alone.keys()
    members = {queue for queue, _ in published(path)}
    assert {row["queue"] for row in proved} <= {None, *members}
    if ending == "wal":
        assert len(proved) > len(alone) // 2
        assert {(row["queue"], row["raft_index"]) for row in proved if row["queue"]} <= published(path)


def test_a_changed_byte_makes_an_entry_unproved_or_not_found(tmp_path: Path) -> None:
    path = max(logs("4.0.5/b-quorum-long-clean", "segment"), key=lambda path: path.stat().st_size)
    raw = bytearray(path.read_bytes())
    before = {content(row) for row in carved(bytes(raw), tmp_path)}
    rng = random.Random(5)
    for _ in range(40):
        raw[rng.randrange(len(raw) // 2, len(raw))] ^= 1 << rng.randrange(8)
    rows = carved(bytes(raw), tmp_path)
    assert {content(row) for row in rows if row["verdict"] == "unindexed"} <= before
    assert "unproved" in {row["verdict"] for row in rows}


def hostile() -> dict[str, bytes]:
    """Return images that claim more than they have."""
    entry = b"\x83h\x04w\x04$usrt\xff\xff\xff\xff" + b"\x6c\xff\xff\xff\xff" * 20
    record = b"\x40\0\0" + struct.pack(">IIQQ", 1, 0xFFFFFF0, 5, 1) + entry
    place = struct.pack(">QQQII", 1, 1, 8 + 65535 * 32, 200 << 20, 7)
    chunk = b"\x50\0\xff\xff" + struct.pack(">IqQQIIIB3x", 0xFFFFFFFF, 1, 1, 1, 1, 200 << 20, 0xFFFFFFFF, 0) + bytes(40)
    return {
        "records": record * 2000,
        "segment": b"RASG\0\x02\xff\xff" + place * 65535,
        "marks": b"RAWA\1RASG\0\x02\xff\xffOSIL\0\0\0\1OSII\0\0\0\1" * 5_000,
        "chunks": chunk * 2000 + b"P" * 100_000,
        "lists": entry * 5000,
        "tuples": b"\x83h\x04w\x04$usr" + b"h\xff" * 500_000,
    }


@pytest.mark.parametrize("name", hostile())
def test_hostile_lengths_end_soon_and_find_nothing(name: str, tmp_path: Path) -> None:
    path = image_of(hostile()[name], tmp_path)
    with Image(path) as image, pytest.raises(NotAStoreError):
        [units] = search_logs([(str(path), ((0, 0, image.size),))])
        assert not units.units[8].any()
        salvaged(path, tmp_path)


def test_a_chunk_whose_header_lies_in_another_piece_is_unproved_unless_its_neighbour_agrees(tmp_path: Path) -> None:
    first, second = chunk(0, [entry(b"one")]), chunk(1, [entry(b"two")])
    lone = bytes(512 - 30) + second
    assert [(row["verdict"], row["stream_offset"]) for row in carved(lone, tmp_path)] == [("unproved", 1)]
    both = bytes(512 - 30 - len(first)) + first + second
    assert [row["verdict"] for row in carved(both, tmp_path)] == ["unindexed", "unindexed"]


def joined(quorum_case: str, stream_case: str) -> bytes:
    """Return an image of the logs of quorum queues and streams, each file with noise before it."""
    paths = [*logs(quorum_case, "wal"), *logs(quorum_case, "segment"), *sorted((streams.node(stream_case) / "stream").rglob("*.segment"))]
    return b"".join(b"noise" * 301 + path.read_bytes() for path in paths)


@pytest.mark.parametrize(
    ("quorum_case", "stream_case"), [("4.3.6/a-quorum-mix-kill9", "4.3.6-killed"), ("3.8.9/a-quorum-mix-kill9", "3.10.8-clean")]
)
def test_messages_of_carved_logs_become_a_classic_queue(quorum_case: str, stream_case: str, tmp_path: Path) -> None:
    image = image_of(joined(quorum_case, stream_case), tmp_path)
    rows = salvaged(image, tmp_path)
    report = mqstore.salvage(image, tmp_path / "fresh", as_kind="rabbitmq", into="saved", vhost="v").as_dict()
    expected = [row for row in rows if row["verdict"] == "unindexed" and row["persistent"]]
    assert len(expected) > 100
    assert {row["queue_type"] for row in expected} == {"quorum", "stream"}
    shown = run_cli("messages", tmp_path / "fresh", "-o", "jsonl", "--body", "sha256").rows
    assert {(row["vhost"], row["queue"], row["verdict"]) for row in shown} == {("v", "saved", "intact")}

    def whole(row: Row) -> tuple[str, ...]:
        properties = {name: value for name, value in (row["properties"] or {}).items() if value not in (None, [])}
        properties["headers"] = [header for header in properties.get("headers", ()) if header[0] != "x-stream-offset"]
        return (row["payload_sha256"], row["exchange"], str(row["routing_keys"]), str(sorted(properties.items())))

    assert Counter(map(whole, shown)) == Counter(map(whole, expected))
    assert report["messages"] == len(expected)
    assert report["verdicts"]["unindexed"] == sum(row["verdict"] == "unindexed" for row in rows)
