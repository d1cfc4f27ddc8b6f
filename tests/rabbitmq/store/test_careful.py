"""Careful reading: a message whose record has a damaged head comes out with its queue, from any message file of any golden store."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support import golden as goldenkit
from support.golden import RABBITMQ_VERSION, case_id, run_cli
from support.rabbitmq_index import message_id
from support.rabbitmq_wrecks import STORE, Q, body, in_segment, in_store, vhost

from mqstore.findings import Kind
from mqstore.rabbitmq.format import message_file
from mqstore.rabbitmq.salvage import open_wreck, salvage, salvage_store
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.verify import verify

# every golden store that has message files
CASES = [
    goldenkit.case_named(f"{RABBITMQ_VERSION}/{name}")
    for name in ("d-large-fanout", "e-gc-combined", "e2-gc-interrupted", "f-mixed-features", "g2-v2-large-dirty")
]
COLUMNS = ("vhost", "queue", "priority_level", "seq_id", "payload_sha256", "exchange", "verdict")
LIVE = {"intact"}


def queued(store: RabbitMQStore) -> Counter[tuple[object, ...]]:
    """Return the whole messages of all queues, each with its queue and place in it."""
    return Counter(tuple(row.values()) for row in store.to_arrow(COLUMNS).to_pylist() if row["verdict"] in LIVE)


def unreachable(store: RabbitMQStore) -> int:
    """Return how many messages have lost their bytes: an interrupted merge of a golden store did that."""
    return store.to_arrow(("verdict",)).column(0).to_pylist().count("unreachable")


def message_files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*.rd[qt]") if path.stat().st_size)


def records(file: Path) -> list[tuple[int, int]]:
    scan = message_file.careful_scan(np.fromfile(file, np.uint8))
    return list(zip(scan.at.tolist(), scan.total.tolist(), strict=True))


QUICK = ("f-mixed-features", "g2-v2-large-dirty")
SWEEP = [case if case.name in QUICK else pytest.param(case, marks=pytest.mark.long) for case in CASES]


@pytest.fixture(params=CASES, ids=case_id)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a golden store that may be changed."""
    return goldenkit.unpack(request.param, tmp_path / "store")


SIZES = [
    lambda size, left: size ^ 1,
    lambda size, left: size + 256,
    lambda size, left: size ^ 1 << 63,
    lambda size, left: 0,
    lambda size, left: (1 << 64) - 1,
    lambda size, left: max(left, 0),  # up to the end of the file: every later record is inside
]


@pytest.mark.parametrize("store", SWEEP, ids=case_id, indirect=True)
def test_the_size_field_of_every_record_is_damaged_in_turn_and_no_message_is_lost(store: Path) -> None:
    before = queued(RabbitMQStore(store))
    assert before
    for file in message_files(store):
        raw = file.read_bytes()
        found = records(file)
        for number, (at, total) in enumerate(found):
            size = SIZES[number % len(SIZES)](total - 9, len(raw) - at - 9)
            file.write_bytes(raw[:at] + size.to_bytes(8, "big") + raw[at + 8 :])
            assert queued(RabbitMQStore(store)) == before, (file.name, at, size)
        file.write_bytes(raw)


@pytest.mark.parametrize("change", range(len(SIZES)))
def test_all_size_fields_of_a_store_are_damaged_and_no_message_is_lost(store: Path, change: int) -> None:
    before, lost = queued(RabbitMQStore(store)), unreachable(RabbitMQStore(store))
    for file in message_files(store):
        raw = bytearray(file.read_bytes())
        for at, total in records(file):
            raw[at : at + 8] = SIZES[change](total - 9, len(raw) - at - 9).to_bytes(8, "big")
        file.write_bytes(raw)
    assert queued(RabbitMQStore(store)) == before
    told = run_cli("messages", str(store), "-o", "jsonl", "--careful", "--body", "sha256")
    found = [json.loads(line) for line in told.stdout.splitlines()]
    assert sum(row["verdict"] in LIVE for row in found) == before.total()
    assert sum(row["verdict"] == "unreachable" for row in found) == lost


def test_the_head_of_every_record_is_destroyed_and_careful_reading_finds_its_message(store: Path, tmp_path: Path) -> None:
    before, lost = queued(RabbitMQStore(store)), unreachable(RabbitMQStore(store))
    for file in message_files(store):
        raw = bytearray(file.read_bytes())
        for at, _ in records(file):
            raw[at : at + 24] = b"\xee" * 24
        file.write_bytes(raw)
    assert queued(RabbitMQStore(store, careful=True)) == before
    report = salvage(open_wreck(store), tmp_path / "rows.jsonl")
    assert (report.verdicts["intact"], report.verdicts.get("unreachable", 0)) == (before.total(), lost)
    # a new store has sound records again, which a broker finds
    salvage_store(open_wreck(store), tmp_path / "new", 2)
    after = RabbitMQStore(tmp_path / "new")
    kept = Counter(tuple(row.values()) for row in after.to_arrow(COLUMNS).to_pylist() if row["verdict"] in LIVE)
    assert set(kept) <= set(before)
    assert verify(after).ok


def wreck(place: Path, *parts: bytes) -> Path:
    """Return a vhost whose queue has the messages 3, 5 and 7, all of them in the message store."""
    index = b"".join(in_segment(number, embedded=False) for number in (3, 5, 7))
    return vhost(place, {f"{Q}/0.idx": index, f"{STORE}/0.rdq": b"".join(parts)})


def payloads(path: Path, *, careful: bool) -> dict[int, str]:
    rows = RabbitMQStore(path, careful=careful).to_arrow(("seq_id", "payload", "verdict")).to_pylist()
    return {row["seq_id"]: row["verdict"] if row["payload"] is None else row["payload"].decode() for row in rows}


def whole(*numbers: int) -> dict[int, str]:
    return {number: body(number).decode() for number in numbers}


def test_a_message_without_a_head_is_unreachable_unless_it_is_read_carefully(tmp_path: Path) -> None:
    store = wreck(tmp_path / "old", in_store(3), b"\xee" * 24 + in_store(5)[24:], in_store(7))
    assert payloads(store, careful=False) == whole(3, 7) | {5: "unreachable"}
    assert payloads(store, careful=True) == whole(3, 5, 7)
    plain = run_cli("messages", store)
    assert (plain.status, "--careful searches for its bytes" in plain.stderr) == (1, True)
    careful = run_cli("messages", store, "-o", "jsonl", "--careful")
    rows = [json.loads(line) for line in careful.stdout.splitlines()]
    assert [(row["seq_id"], row["verdict"], row["recovered"]) for row in rows] == [
        (3, "intact", True),
        (5, "intact", False),
        (7, "intact", False),
    ]
    # verify says that the broker loses it, not that it is in no file
    report = json.loads(run_cli("verify", store, "-o", "json").stdout)
    kinds = {item["kind"] for item in report["damage"]}
    assert "broker-loses" in kinds
    assert "missing-body" not in kinds
    findings = [item for item in RabbitMQStore(store, careful=True).findings if item.kind is Kind.BAD_STORE_RECORD]
    assert any("found by an id that an index names" in item.detail for item in findings)


def test_a_damaged_id_in_the_head_does_not_hide_a_message(tmp_path: Path) -> None:
    changed = bytearray(in_store(5))
    changed[12] ^= 0xFF
    store = wreck(tmp_path / "old", in_store(3), bytes(changed), in_store(7))
    assert payloads(store, careful=False) == whole(3, 7) | {5: "unreachable"}
    assert payloads(store, careful=True) == whole(3, 5, 7)
    report = salvage(open_wreck(store), tmp_path / "rows.jsonl")
    assert report.verdicts == {"intact": 3}


def test_a_message_whose_own_id_is_damaged_is_found_by_the_head_and_said_to_be_damaged(tmp_path: Path) -> None:
    raw = bytearray(in_store(5))
    second = raw.index(message_id(5), 24)
    raw[second] ^= 0xFF
    raw[:8] = bytes(8)
    store = wreck(tmp_path / "old", in_store(3), bytes(raw), in_store(7))
    rows = RabbitMQStore(store, careful=True).to_arrow(("seq_id", "payload", "verdict")).to_pylist()
    assert [(row["seq_id"], row["verdict"], row["payload"]) for row in rows] == [
        (3, "intact", body(3)),
        (5, "damaged", body(5)),
        (7, "intact", body(7)),
    ]


def test_a_message_that_no_index_names_is_not_searched_for(tmp_path: Path) -> None:
    store = wreck(tmp_path / "old", in_store(3), in_store(5), b"\xee" * 24 + in_store(9)[24:], in_store(7))
    report = salvage(open_wreck(store), tmp_path / "rows.jsonl")
    assert report.verdicts == {"intact": 3}


def test_a_torn_message_is_not_made_up(tmp_path: Path) -> None:
    torn = b"\xee" * 24 + in_store(5)[24:-30]
    assert payloads(wreck(tmp_path / "old", in_store(3), torn, in_store(7)), careful=True) == whole(3, 7) | {5: "unreachable"}


@pytest.mark.parametrize("version", [1, 2])
def test_a_converted_store_has_sound_heads(tmp_path: Path, version: int) -> None:
    resized = bytearray(in_store(3))
    resized[6] ^= 1
    store = wreck(tmp_path / "old", bytes(resized), b"\xee" * 24 + in_store(5)[24:], in_store(7)[:-1] + b"\0")
    report = salvage_store(open_wreck(store), tmp_path / "new", version)
    assert (report.messages, report.left_out) == (3, {})
    assert payloads(tmp_path / "new", careful=False) == whole(3, 5, 7)
    new = RabbitMQStore(tmp_path / "new")
    assert verify(new).ok
    assert all(new.to_arrow(("recovered",)).column(0).to_pylist())


def test_a_careful_search_of_a_store_made_to_waste_time_ends(tmp_path: Path) -> None:
    start = b"\x83h\x06d\x00\x0dbasic_message" + b"l\x00\x00\x40\x00"
    waste = (b"m\x00\x00\x00\x33" + bytes(8) + message_id(5) + start + b"j" * 3) * 100_000
    store = wreck(tmp_path / "old", in_store(3), waste, in_store(7))
    assert payloads(store, careful=True)[3] == body(3).decode()
    assert any("false beginnings" in item.detail for item in RabbitMQStore(store).findings)
