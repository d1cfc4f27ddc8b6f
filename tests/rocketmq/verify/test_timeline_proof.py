"""Timers and half messages in RocksDB: what a real 5.5.0 broker left in the families, read, listed, checked, and changed."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.golden import case_named, opened, run_cli, unchanged, unpack

import mqstore
from mqstore.findings import Kind
from mqstore.rocketmq.verify.verification import verify

CASE = case_named("5.5.0/k-rocksdb-timers")
FAMILIES = [json.loads(line) for line in (CASE.path / "families.jsonl").read_text().splitlines()]  # as the broker's own class reads them
SENDS = {row["uniq_key"]: row for row in map(json.loads, (CASE.path / "sends.jsonl").read_text().splitlines())}
PLACE = "rocksdbstore"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return unpack(CASE, tmp_path / "store")


def changed(store: Path, name: str, change: Callable[[Any, list[bytes]], object]) -> None:
    """Change a family of a store with the library. change: gets the family and its keys."""
    from rocksdict import Options, Rdict

    place = str(store / PLACE)
    names = Rdict.list_cf(place, Options(raw_mode=True))
    database = Rdict(place, Options(raw_mode=True), {each: Options(raw_mode=True) for each in names})
    family = database.get_column_family(name)
    change(family, list(family.keys()))
    database.close()


def findings(store: Path) -> list[tuple[Kind, str]]:
    return [(item.kind, item.detail) for item in verify(mqstore.open(store)).damage if item.file == PLACE]


def test_the_families_are_what_the_broker_reads() -> None:
    timers = [row for row in FAMILIES if "due_time" in row]
    halves = [row for row in FAMILIES if "check_times" in row]
    names: dict[str, dict[str, int]] = {row["family"]: row for row in FAMILIES if "family" in row}
    opening = mqstore.open(opened(CASE))
    timeline, half_messages = opening.timeline, opening.half_messages
    assert timeline is not None
    assert half_messages is not None
    assert [pair._asdict() for _, pair in timeline.items() if pair is not None] == timers
    assert (timeline.scanned, timeline.read_until) == (names["timer"]["scanned"], names["timer"]["read_until"])
    assert [half._asdict() for _, half in half_messages.items() if half is not None] == [
        {name if name != "check_times" else "checks": value for name, value in row.items()} for row in halves
    ]
    assert half_messages.last_offset == names["trans"]["last_offset"]
    undecided = {key for key, row in SENDS.items() if row.get("transaction") == "undecided"}
    assert {half.uniq_key for _, half in half_messages.items() if half is not None} == undecided


def test_every_message_is_listed_with_its_state() -> None:
    with unchanged(opened(CASE)):
        found = run_cli("timers", opened(CASE), "-o", "jsonl")
    assert (found.status, found.stderr) == (0, "")
    rows = {row["uniq_key"]: row for row in found.rows}
    assert len(rows) == len(found.rows) == 54
    assert set(rows) == {key for key, row in SENDS.items() if "delay" in row}
    assert {key for key, row in rows.items() if row["state"] == "recalled"} == {key for key, row in SENDS.items() if row.get("recalled")}
    delivered = {row["uniq_key"] for row in run_cli("messages", opened(CASE), "--topic", "s7_timed", "-o", "jsonl").rows}
    # due when the broker read it, after the newest pair: the real broker, started again, delivered it once more
    again = {"FD0000000000000000000000000000024A5D4E0E2F2A72F3B3880038"}
    assert {key for key in rows if key in delivered} == {key for key, row in rows.items() if row["state"] == "delivered"} | again
    assert Counter(row["state"] for row in rows.values()) == {"waiting": 34, "delivered": 17, "recalled": 3}


def test_after_a_kill_that_lost_the_families_everything_waits_again(store: Path) -> None:
    # what a real killed broker left: its write-ahead log had not reached the disk, and the wheel had the recalls alone
    (store / "abort").write_text("1")
    for name in ("timer", "trans"):
        changed(store, name, lambda family, keys: [family.delete(key) for key in keys])
    found = run_cli("timers", store, "-o", "jsonl")
    assert Counter(row["state"] for row in found.rows) == {"waiting": 51, "recalled": 3}
    assert findings(store) == []


def test_a_sound_store_has_no_finding() -> None:
    report = verify(mqstore.open(opened(CASE)))
    assert (report.damage, report.ok) == ((), True)


def test_timers_that_are_not_read_have_no_known_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqstore.rocketmq.store.databases.is_installed", lambda: False)
    found = run_cli("timers", opened(CASE), "-o", "jsonl")
    assert Counter(row["state"] for row in found.rows) == {"unknown": 51, "recalled": 3}
    assert "pip install 'mqstore[rocksdb]'" in " ".join(run_cli("timers", opened(CASE)).stderr.split())
    assert any("timers and half messages" in note for note in verify(mqstore.open(opened(CASE))).notes)


def value(physical_offset: int, size: int = 547) -> bytes:
    return struct.pack(">iq", size, physical_offset)


WAITING = 20  # number of a key of a message that waits
DAMAGE: dict[str, tuple[str, Callable[[Any, list[bytes]], object], Kind, str]] = {
    "no pair": ("timer", lambda db, keys: db.delete(keys[WAITING]), Kind.BAD_TIMER, "and the timeline lacks it"),
    "no record": ("timer", lambda db, keys: db.put(keys[WAITING], value(1)), Kind.BAD_TIMER, "offset 1 cannot be read"),
    "another record": ("timer", lambda db, keys: db.put(keys[WAITING], value(0)), Kind.BAD_TIMER, "another due time or unique key"),
    "no timer": ("timer", lambda db, keys: db.put(b"short", b"x"), Kind.BAD_TIMER, "is not that of a message in the timeline"),
    "no half record": ("trans", lambda db, keys: db.put(b"\0" * 8 + b"@t@u", b"\0\0\0\1" * 2), Kind.BAD_TRANSACTION, "of another message"),
    "half record gone": ("trans", lambda db, keys: db.put(b"\0" * 7 + b"\1@t@u", b"\0\0\0\1" * 2), Kind.BAD_TRANSACTION, "cannot be read"),
    "no half message": ("trans", lambda db, keys: db.put(keys[0], b"\0"), Kind.BAD_TRANSACTION, "is not that of a half message"),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_a_pair_that_contradicts_the_log_is_a_finding(what: str, store: Path) -> None:
    family, change, kind, sentence = DAMAGE[what]
    changed(store, family, change)
    found = findings(store)
    assert [each for each, _ in found] == [kind]
    assert sentence in found[0][1]
    assert run_cli("timers", store, "-o", "jsonl").status == (1 if what in ("no record", "no timer") else 0)


def test_many_bad_pairs_are_counted(store: Path) -> None:
    changed(store, "trans", lambda db, keys: [db.put(struct.pack(">q", at) + b"@t@u", b"\0\0\0\1" * 2) for at in range(1, 303)])
    found = findings(store)
    assert len(found) == 201
    assert "further half messages in RocksDB are not valid" in found[-1][1]
