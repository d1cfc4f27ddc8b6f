"""Definitions as real nodes left them in Khepri and in Mnesia, against what the nodes themselves exported; and damaged logs."""

from __future__ import annotations

import json
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import golden as goldenkit
from support.archives import extract_all
from support.golden import OTHER_RABBITMQ, case_id, opened_node

from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.definitions.document import definitions_document
from mqstore.rabbitmq.definitions.khepri import Tree, read_khepri
from mqstore.rabbitmq.definitions.metadata import Definitions, read_definitions
from mqstore.rabbitmq.erlang.terms import Atom, Term, encode
from mqstore.rabbitmq.quorum.wal import read_wal

DEFINITIONS = goldenkit.GOLDEN / "rabbitmq-definitions"
STATES = ("khepri-logged", "khepri-segments", "khepri-snapshot")
LOG = "coordination/rabbit@localhost/0000000000000001.wal"
KINDS = (
    "vhosts",
    "queues",
    "exchanges",
    "bindings",
    "policies",
    "parameters",
    "global_parameters",
    "users",
    "permissions",
    "topic_permissions",
)
# what the node exports and we do not: the exchange of its own log, an exchange that is not durable; and the other way an internal one
OWN = {"amq.rabbitmq.log", "tmp.x", "x2"}


def unpacked(state: str, target: Path) -> Path:
    with tarfile.open(DEFINITIONS / f"{state}.tar.xz") as archive:
        extract_all(archive, target, "tar")
    return target


def rows(document: dict[str, Any], kind: str) -> list[str]:
    found = []
    for row in document.get(kind, []):
        if kind == "exchanges" and row["name"] in OWN:
            continue
        kept = {name: value for name, value in row.items() if name != "internal" and (name != "type" or kind == "exchanges")}
        if kind == "vhosts":
            kept = {"name": row["name"], "metadata": row.get("metadata") or {}}
        found.append(json.dumps(kept, sort_keys=True))
    return sorted(found)


@pytest.mark.parametrize("state", STATES)
def test_definitions_in_khepri_are_what_the_node_exported(state: str, tmp_path: Path) -> None:
    found = read_definitions(ReadOnlyDirectory(unpacked(state, tmp_path)))
    exported = json.loads((DEFINITIONS / f"{state}.json").read_text())
    assert found.damage == ()
    document = definitions_document(found)
    for kind in KINDS:
        assert rows(document, kind) == rows(exported, kind), kind
    assert {queue["name"]: queue["type"] for queue in document["queues"]} == {queue["name"]: queue["type"] for queue in exported["queues"]}
    assert {each.name for each in found.exchanges if each.internal and each.name[:4] != b"amq."} == {b"x2"}


@pytest.mark.parametrize("case", [case for case in OTHER_RABBITMQ if (case.path / "definitions.json").exists()], ids=case_id)
def test_definitions_of_each_version_are_what_its_node_exported(case: goldenkit.GoldenCase) -> None:
    found = read_definitions(ReadOnlyDirectory(opened_node(case)))
    exported = json.loads((case.path / "definitions.json").read_text())  # without users
    assert found.damage == ()
    document = definitions_document(found)
    for kind in KINDS[:7]:
        assert rows(document, kind) == rows(exported, kind), kind
    (user,) = document["users"]
    assert (user["name"], user["tags"], user["hashing_algorithm"]) == ("guest", ["administrator"], "rabbit_password_hashing_sha256")
    assert {(each["user"], each["vhost"]) for each in document["permissions"]} == {("guest", vhost["name"]) for vhost in exported["vhosts"]}
    assert "users" not in definitions_document(found, users=False)


def assert_partial(found: Definitions, whole: Definitions) -> None:
    """Whatever was read of a damaged log is, by name, something that a state of the log had."""
    assert {each.name for each in found.queues} <= {each.name for each in whole.queues} | {b"gone.q", b"excl"}
    assert set(found.vhosts) <= {*whole.vhosts, b"gone"}
    assert {each.name for each in found.users} <= {each.name for each in whole.users} | {b"eve"}


def test_a_log_of_khepri_that_is_cut_in_the_middle_is_a_finding_and_the_rest_is_read(tmp_path: Path) -> None:
    log = unpacked("khepri-logged", tmp_path) / LOG
    whole, data = read_definitions(ReadOnlyDirectory(tmp_path)), log.read_bytes()
    borders = set(read_wal(np.frombuffer(data, np.uint8), LOG).records["start"].tolist())
    seen = set()
    for end in range(5, len(data), 9973):
        log.write_bytes(data[:end])
        found = read_definitions(ReadOnlyDirectory(tmp_path))
        assert_partial(found, whole)
        seen.add(len(found.queues))
        assert [item.file for item in found.damage] == [LOG] * (end not in borders and end > 5)
    assert len(seen) > 1
    last = max(borders)
    log.write_bytes(data[: last + 9])
    found = read_definitions(ReadOnlyDirectory(tmp_path))
    assert [(item.offset, item.length) for item in found.damage] == [(last, 9)]
    assert [each.name for each in found.queues] == [each.name for each in whole.queues] or b"excl" in {each.name for each in found.queues}


@pytest.mark.parametrize(
    ("state", "file"), [("khepri-logged", "*.wal"), ("khepri-segments", "RABBITPC*/*.segment"), ("khepri-snapshot", "**/*.dat")]
)
def test_a_changed_byte_of_a_log_or_snapshot_is_a_finding_and_never_an_error(state: str, file: str, tmp_path: Path) -> None:
    (path,) = (unpacked(state, tmp_path) / "coordination/rabbit@localhost").glob(file)
    whole, data = read_definitions(ReadOnlyDirectory(tmp_path)), path.read_bytes()
    noticed = 0
    places = range(1, len(data), max(1, len(data) // 12))
    for place in places:
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
        found = read_definitions(ReadOnlyDirectory(tmp_path))
        assert_partial(found, whole)
        noticed += bool(found.damage)
        if not found.damage:
            assert [each.name for each in found.queues] == [each.name for each in whole.queues]
    # bytes between the places of a segment belong to nothing
    assert noticed >= len(places) // 2 or state == "khepri-segments"


def test_a_transaction_that_is_not_known_is_reported() -> None:
    tree = Tree()
    function = (Atom("horus_fun"), Atom("horus__rabbit_db_new__-change/1-fun-0-__1"), b"", 0, [], {}, [b"x"], Atom("undefined"))
    tree.apply((Atom("dedup"), 1, 2, (Atom("tx"), function, [])))
    assert tree.unknown == {"rabbit_db_new__-change"}


def test_before_a_quorum_queue_is_deleted_4_3_6_deletes_the_bindings_that_lead_to_it_and_no_others() -> None:
    tree = Tree()
    ends = [(Atom("resource"), b"/", Atom(kind), name) for kind, name in (("exchange", b"x"), ("exchange", b"y"), ("queue", b"q"))]
    for end in ends:
        kind = Atom("queues" if end[2] == "queue" else "exchanges")
        tree.apply((Atom("put"), [Atom("rabbitmq"), Atom("vhosts"), b"/", kind, end[3]], (Atom("p_data"), end)))

    def run(name: str, value: Term) -> None:
        tree.apply((Atom("tx"), (Atom("horus_fun"), Atom(f"horus__rabbit_db_{name}__1"), b"", 0, [], {}, [value], Atom("undefined")), []))

    x, y, queue = ends
    for source, destination in ((x, queue), (y, queue), (x, y)):
        run("binding__-create/2-fun-0-", (Atom("binding"), source, b"key", destination, []))
    run("binding__-delete_for_destination/1-fun-0-", queue)
    assert (tree.unknown, [binding[1::2] for binding in tree.bindings.values()]) == (set(), [(x, y)])
    run("binding__-delete_for_destination/1-fun-0-", x)
    assert len(tree.bindings) == 1


def appended(log: Path, command: Term) -> None:
    """Add an entry of Khepri's member to a write-ahead log."""
    wal = read_wal(np.fromfile(log, np.uint8), LOG)
    newest = max(wal.records, key=lambda record: int(record["index"]))
    uid = wal.uids[newest["uid"]]
    entry = encode((Atom("$usr"), {}, command, Atom("await_consensus")))
    body = struct.pack(">QQ", newest["index"] + 1, newest["term"]) + entry
    head = (4_000_000).to_bytes(3, "big") + len(uid).to_bytes(2, "big") + uid  # a number that no other id has
    with log.open("ab") as file:
        file.write(head + struct.pack(">II", zlib.adler32(body), len(entry)) + body)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (
            (Atom("graft"), [Atom("rabbitmq"), Atom("vhosts")], {}),
            "has a command graft, which is not known; it may have changed definitions",
        ),
        ((Atom("dedup"), b"ref", 5, (Atom("prune"), [])), "has a command prune, which is not known"),
        ((b"put", []), "is not a command"),
        (Atom("put"), "is not a command"),
        ((Atom("dedup_ack"), b"ref"), ""),
    ],
)
def test_a_command_of_an_unknown_kind_is_a_finding_and_the_rest_is_read(command: Term, sentence: str, tmp_path: Path) -> None:
    log = unpacked("khepri-logged", tmp_path) / LOG
    whole = read_definitions(ReadOnlyDirectory(tmp_path))
    appended(log, command)
    appended(log, (Atom("put"), [Atom("rabbitmq"), Atom("vhosts"), b"late"], (Atom("p_data"), (Atom("vhost"), b"late", [], {})), {}))
    found = read_definitions(ReadOnlyDirectory(tmp_path))
    assert [item.detail.count(sentence) for item in found.damage] == [1] * bool(sentence)
    assert set(found.vhosts) == {*whole.vhosts, b"late"}
    assert [each.name for each in found.queues] == [each.name for each in whole.queues]
    assert document_but_vhosts(found) == document_but_vhosts(whole)


def document_but_vhosts(found: Definitions) -> dict[str, Any]:
    return {kind: value for kind, value in definitions_document(found).items() if kind != "vhosts"}


def test_a_directory_without_khepri_has_no_records(tmp_path: Path) -> None:
    assert not read_khepri(ReadOnlyDirectory(tmp_path)).there
