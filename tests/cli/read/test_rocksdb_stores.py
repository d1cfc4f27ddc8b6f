"""Stores of brokers that keep queues and configuration in RocksDB, through the commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import golden
from support.golden import GoldenCase, case_id, case_named, opened, run_cli, unchanged, unpack
from support.rocksdb import flip, rename_comparator, tables

import mqstore
from mqstore.findings import Kind
from mqstore.rocketmq.verify.verification import verify

CASES = tuple(case_named(f"5.5.0/{name}") for name in ("c-rocksdb-queues-clean", "d-rocksdb-light-queues", "e-rocksdb-config-v1"))
QUEUES = CASES[0]


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_queue_lists_the_entries_that_the_broker_read(case: GoldenCase) -> None:
    wanted = golden.queues(case)[0]
    with unchanged(opened(case)):
        found = run_cli("queue", opened(case), wanted["topic"], wanted["queue_id"], "-o", "jsonl")
    assert found.status == 0, found.stderr
    assert [[row["physical_offset"], row["size"], row["tags_code"]] for row in found.rows] == wanted["entries"]
    assert {row["state"] for row in found.rows} == {"ok"}


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_topics_are_those_of_the_recovered_view(case: GoldenCase) -> None:
    disk, recovered = (
        run_cli("topics", opened(case), "--view", view, "-o", "jsonl", "--config", case.config) for view in ("disk", "recovered")
    )
    assert disk.rows == recovered.rows
    assert {(row["topic"], row["queue_id"]): row["max_offset"] for row in disk.rows} == {
        (row["topic"], row["queue_id"]): row["max_offset"] for row in golden.queues(case)
    }


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_verify_compares_every_entry_with_the_log(case: GoldenCase) -> None:
    report = verify(mqstore.open(opened(case)))
    assert (report.damage, report.coverage.complete) == ((), True)
    assert report.checked.queue_entries == sum(len(row["entries"]) for row in golden.queues(case))


def test_groups_have_the_offsets_that_the_broker_committed() -> None:
    found = run_cli("groups", opened(CASES[2]), "-o", "jsonl")
    assert {(row["topic"], row["group"], row["queue_id"], row["offset"], row["state"]) for row in found.rows} == {
        *(("s41_plain", "s41_group", queue, 40, "ok") for queue in range(3)),
        ("s41_plain", "s41_odd", 2, 5_000_000_000, "above-max"),
    }


def test_groups_in_a_database_are_not_reset() -> None:
    found = run_cli("groups", opened(CASES[2]), "--reset", "s41_group", "-t", "s41_plain", "--to", "earliest")
    assert found.status == 2
    assert "(config/consumerOffsets), which mqstore reads and does not write" in found.stderr


def test_inspect_says_where_the_queues_are() -> None:
    found = run_cli("inspect", opened(CASES[2]), "-o", "json").document
    assert (found["queues_in"], found["queues"], found["messages"]) == ("RocksDB", 3, 120)
    assert not any("RocksDB" in part for part in found["unsupported"])
    assert "in RocksDB" in run_cli("inspect", opened(CASES[2])).stdout


def test_a_message_that_the_database_does_not_list_is_unindexed(tmp_path: Path) -> None:
    place = unpack(QUEUES, tmp_path / "store") / "consumequeue"
    flip(tables(place)[-1], 100)
    found = run_cli("messages", place.parent, "-o", "jsonl")
    assert sum(row["verdict"] == "unindexed" for row in found.rows) == 236


@pytest.mark.parametrize("change", ["missing", "damaged", "comparator"])
def test_a_damaged_database_is_a_finding_and_the_log_is_read(change: str, tmp_path: Path) -> None:
    store = unpack(QUEUES, tmp_path / "store")
    if change == "missing":
        tables(store / "consumequeue")[-1].unlink()
    elif change == "damaged":
        flip(tables(store / "consumequeue")[-1], 100)
    else:
        rename_comparator(store / "consumequeue")
    with unchanged(store):
        found = run_cli("verify", store, "-o", "json")
        assert run_cli("inspect", store).status == 1 or change == "damaged"
    assert found.status == 1
    kinds = {item["kind"] for item in found.document["damage"]}
    assert kinds == ({"bad-database"} if change == "comparator" else {"bad-database", "missing-queue-entry"})
    lost = sum(item["messages"] for item in found.document["damage"])
    assert lost == (0 if change == "comparator" else 236)
    assert found.document["checked"]["messages"] == 249


def test_a_changed_entry_is_found(tmp_path: Path) -> None:
    from rocksdict import Options, Rdict

    store = unpack(QUEUES, tmp_path / "store")
    place = str(store / "consumequeue")
    options = {name: Options(raw_mode=True) for name in ("default", "offset")}
    database = Rdict(place, Options(raw_mode=True), options)
    key = bytes.fromhex("00000006016f7264657273010000000101") + (5).to_bytes(8, "big")
    value = bytearray(database[key])
    value[11] ^= 1
    database[key] = bytes(value)
    database.flush()
    database.close()
    del database
    report = verify(mqstore.open(store))
    assert {item.kind for item in report.damage} == {Kind.QUEUE_ENTRY_MISMATCH}
    assert "topic 'orders', queue 1, queue offset 5" in report.damage[0].detail


def test_files_and_a_database_side_by_side_are_both_compared(tmp_path: Path) -> None:
    store = unpack(QUEUES, tmp_path / "store")
    assert run_cli("rebuild", store, "--to", tmp_path / "files").status == 0
    (store / "consumequeue").rename(tmp_path / "files" / "consumequeue_rocksdb")
    both = mqstore.open(tmp_path / "files")
    assert (len(both.consume_queues()), len(both.stored_queues.second)) == (6, 6)
    assert verify(both).damage == ()
    assert run_cli("inspect", tmp_path / "files", "-o", "json").document["queues_in"] == "files and RocksDB"
    last = tmp_path / "files" / "consumequeue" / "orders" / "1" / "00000000000000000000"
    last.write_bytes(last.read_bytes()[: 20 * 29])
    report = verify(mqstore.open(tmp_path / "files"))
    assert Kind.MISSING_QUEUE_ENTRY in {item.kind for item in report.damage}
