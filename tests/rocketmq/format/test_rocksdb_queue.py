"""Consume queues in RocksDB: what the real 5.5.0 read from them, and damaged databases."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from support import golden
from support.golden import case_named, opened
from support.rocksdb import copied, flip, new_database, tables

import mqstore
from mqstore.files import ReadOnlyDirectory
from mqstore.files.rocksdb import RocksDatabase
from mqstore.rocketmq.format import rocksdb_queue
from mqstore.rocketmq.format.rocksdb_queue import RocksQueueReader, entry_key, parse_key, readers

CASES = ("c-rocksdb-queues-clean", "d-rocksdb-light-queues", "e-rocksdb-config-v1")
Queues = dict[tuple[str, int], RocksQueueReader]


def queues_of(root: Path, place: str = "consumequeue") -> Queues:
    directory = ReadOnlyDirectory(root)
    found, findings = readers(directory, RocksDatabase(directory, place))
    assert findings == []
    return {(queue.topic, queue.queue_id): queue for queue in found}


@pytest.mark.parametrize("name", CASES)
def test_every_entry_is_the_one_that_the_broker_read(name: str) -> None:
    case = case_named(f"5.5.0/{name}")
    found = queues_of(opened(case))
    wanted = {(row["topic"], row["queue_id"]): row for row in golden.queues(case)}
    assert set(found) == set(wanted)
    for key, queue in found.items():
        assert (queue.min_offset, queue.max_offset) == (wanted[key]["min_offset"], wanted[key]["max_offset"])
        assert [list(row) for row in queue.entries(0, queue.max_offset).tolist()] == wanted[key]["entries"]
        assert queue.findings == ()


def test_entries_of_removed_log_files_are_not_part_of_a_queue() -> None:
    case = case_named("5.5.0/j-rocksdb-rolled")
    found = {(queue.topic, queue.queue_id): queue for queue in mqstore.open(opened(case)).consume_queues()}
    wanted = {(row["topic"], row["queue_id"]): row for row in golden.queues(case)}
    assert set(found) - set(wanted) == {("only-old", 0)}
    assert (found["only-old", 0].min_offset, found["only-old", 0].max_offset) == (15, 15)
    for key, row in wanted.items():
        assert (found[key].min_offset, found[key].max_offset) == (row["min_offset"], row["max_offset"])
        assert [list(entry) for entry in found[key].entries(0, row["max_offset"]).tolist()] == row["entries"]


def test_a_broker_that_was_killed_before_a_flush_leaves_no_queue_and_recovers_all() -> None:
    case = case_named("5.5.0/i-rocksdb-kill9")
    store = mqstore.open(opened(case), config=case.config)
    assert store.consume_queues() == ()
    assert {(queue.topic, queue.queue_id): queue.max_offset for queue in store.view("recovered").queues()} == {
        (row["topic"], row["queue_id"]): row["max_offset"] for row in golden.queues(case)
    }


def test_a_part_of_a_queue_is_read_by_queue_offset() -> None:
    queue = queues_of(opened(case_named("5.5.0/c-rocksdb-queues-clean")))["orders", 1]
    every = queue.entries(queue.min_offset, queue.max_offset)
    assert queue.entries(7, 12).tobytes() == every[7:12].tobytes()
    assert len(queue.entries(30, 40)) == 0
    assert len(queue.entries(-5, 3)) == 3


def put(place: Path, pairs: dict[int, tuple[int, int]], stated: int | None = None, topic: bytes = b"t") -> None:
    """Write a database with one queue: (physical offset, size) by queue offset; stated: the newest queue offset, as the broker keeps it."""
    from rocksdict import Options

    database = new_database(place)
    for offset, (physical, size) in pairs.items():
        database[entry_key(topic, 0, offset)] = struct.pack(">qiqq", physical, size, 0, 0)
    bounds = database.create_column_family("offset", Options(raw_mode=True))
    if stated is not None:
        bounds[struct.pack(">i", len(topic)) + b"\1" + topic + b"\1max\1" + bytes(4)] = struct.pack(">qq", 0, stated)
    database.flush()
    bounds.close()
    database.close()


def the_queue(tmp_path: Path) -> RocksQueueReader:
    return queues_of(tmp_path, "db")["t", 0]


def test_entries_after_the_stated_end_do_not_count(tmp_path: Path) -> None:
    put(tmp_path / "db", {n: (100 * n, 100) for n in range(10)}, stated=6)
    queue = the_queue(tmp_path)
    assert (queue.min_offset, queue.max_offset, queue.findings) == (0, 7, ())


def test_a_queue_whose_entries_have_all_expired_keeps_its_end(tmp_path: Path) -> None:
    put(tmp_path / "db", {}, stated=41)
    queue = the_queue(tmp_path)
    assert (queue.min_offset, queue.max_offset, len(queue.entries(0, 42))) == (42, 42, 0)


def test_entries_that_the_database_lacks_are_not_written_ones(tmp_path: Path) -> None:
    put(tmp_path / "db", {n: (100 * n, 100) for n in (3, 4, 7)}, stated=9)
    queue = the_queue(tmp_path)
    assert (queue.min_offset, queue.max_offset) == (3, 8)
    assert queue.entries(0, 10)["size"].tolist() == [100, 100, 0, 0, 100]
    assert "ends at 10, but its newest entry is at 7" in queue.findings[0].detail


def test_a_queue_offset_that_no_broker_reaches_is_left_out(tmp_path: Path) -> None:
    put(tmp_path / "db", {**{n: (100 * n, 100) for n in range(5)}, 1 << 60: (0, 1)})
    queue = the_queue(tmp_path)
    assert (queue.min_offset, queue.max_offset) == (0, 5)
    assert "entries after the gap are left out" in queue.findings[0].detail


def test_keys_and_values_of_another_form_are_findings_and_the_rest_is_read(tmp_path: Path) -> None:
    put(tmp_path / "db", {n: (100 * n, 100) for n in range(3)})
    database = new_database(tmp_path / "db")
    database[b"\0\0\0\1"] = b"?"
    database[struct.pack(">i", -7) + bytes(30)] = b""
    database[entry_key(b"t", 0, 1)] = b"short"
    database.close()
    directory = ReadOnlyDirectory(tmp_path)
    (queue,), findings = readers(directory, RocksDatabase(directory, "db"))
    assert [item.detail for item in findings] == ["2 keys of the database are not those of queue entries"]
    assert queue.entries(0, 3)["size"].tolist() == [100, 0, 100]


def test_entries_on_both_sides_of_a_damaged_block_are_read(tmp_path: Path) -> None:
    put(tmp_path / "db", {n: (100 * n, 100) for n in range(20_000)}, stated=19_999)
    flip(tables(tmp_path / "db")[-1], tables(tmp_path / "db")[-1].stat().st_size // 2)
    queue = the_queue(tmp_path)
    sizes = queue.entries(0, 20_000)["size"]
    lost = (sizes == 0).nonzero()[0].tolist()
    assert 0 < len(lost) < 1000
    assert lost == list(range(lost[0], lost[-1] + 1))
    assert 100 < lost[0] < lost[-1] < 19_900


def test_a_queue_of_a_database_without_its_table_of_entries_is_known_by_its_bounds(tmp_path: Path) -> None:
    place = copied(opened(case_named("5.5.0/c-rocksdb-queues-clean")) / "consumequeue", tmp_path / "consumequeue")
    tables(place)[-1].unlink()
    found = queues_of(tmp_path)
    assert {key: queue.max_offset for key, queue in found.items()} == {
        (row["topic"], row["queue_id"]): row["max_offset"] for row in golden.queues(case_named("5.5.0/c-rocksdb-queues-clean"))
    }


@pytest.mark.parametrize("key", [b"", bytes(18), entry_key(b"t", 0, 1)[:-1], entry_key(b"t", 0, -1), entry_key(b"t", -1, 1)])
def test_bytes_of_another_form_are_not_the_key_of_an_entry(key: bytes) -> None:
    assert parse_key(key) is None


def test_a_database_without_the_family_of_bounds_lists_its_entries(tmp_path: Path) -> None:
    database = new_database(tmp_path / "db")
    for number in range(3):
        database[entry_key(b"t", 0, number)] = struct.pack(">qiqq", 100 * number, 100, 0, 0)
    database.flush()
    database.close()
    queue = the_queue(tmp_path)
    assert (queue.min_offset, queue.max_offset, queue.listed) == (0, 3, 3)


def test_a_maximum_of_a_queue_with_a_negative_number_is_left_out(tmp_path: Path) -> None:
    put(tmp_path / "db", {0: (0, 100)})
    from rocksdict import Options, Rdict

    database = Rdict(str(tmp_path / "db"), Options(raw_mode=True), column_families={"offset": Options(raw_mode=True)})
    bounds = database.get_column_family("offset")
    bounds[struct.pack(">i", 1) + b"\1u\1max\1" + struct.pack(">i", -1)] = struct.pack(">qq", 0, 5)
    database.flush()
    bounds.close()
    database.close()
    assert list(queues_of(tmp_path, "db")) == [("t", 0)]


def test_as_many_entries_as_a_gap_may_have_are_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "db", {n: (100 * n, 100) for n in range(10)})
    monkeypatch.setattr(rocksdb_queue, "MAX_GAP", 3)
    queue = the_queue(tmp_path)
    assert (queue.min_offset, queue.max_offset, queue.findings) == (0, 10, ())


def test_no_entry_is_read_after_a_block_if_none_can_be(tmp_path: Path) -> None:
    put(tmp_path / "db", {n: (100 * n, 100) for n in range(1000)})
    queue = the_queue(tmp_path)
    assert len(queue.entries(0, 1000)) == 1000
    raw = bytearray(tables(tmp_path / "db")[-1].read_bytes())
    for at in range(2000, len(raw) * 3 // 4, 500):  # in every block after the first ones but the last ones
        raw[at] ^= 0x55
    tables(tmp_path / "db")[-1].write_bytes(raw)
    damaged = the_queue(tmp_path)
    assert 0 < sum(entry["size"] > 0 for entry in damaged.entries(0, 1000)) < 1000
    unread = np.flatnonzero(damaged.entries(0, 1000)["size"] == 0)
    assert not damaged.entries(int(unread[0]) + 1, int(unread[0]) + 50)["size"].any()
