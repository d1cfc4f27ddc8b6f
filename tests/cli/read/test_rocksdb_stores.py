"""Stores of brokers that keep queues and configuration in RocksDB, through the commands."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from support import golden
from support.golden import GoldenCase, case_id, case_named, opened, run_cli, unchanged, unpack
from support.rocksdb import flip, rename_comparator, tables

import mqstore
from mqstore.findings import Kind
from mqstore.rocketmq.format.rocksdb_queue import RocksQueueReader, entry_key
from mqstore.rocketmq.verify.verification import verify

CASES = tuple(case_named(f"5.5.0/{name}") for name in ("c-rocksdb-queues-clean", "d-rocksdb-light-queues", "e-rocksdb-config-v1"))
QUEUES = CASES[0]


@pytest.mark.versions
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


@pytest.mark.versions
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


def changed(store: Path, pairs: dict[bytes, bytes | None], bounds: dict[bytes, bytes]) -> None:
    """Write pairs into the database of the queues, as a broker would. None: the entry is deleted."""
    from rocksdict import Options, Rdict

    database = Rdict(str(store / "consumequeue"), Options(raw_mode=True), {name: Options(raw_mode=True) for name in ("default", "offset")})
    for key, value in pairs.items():
        if value is None:
            del database[key]
        else:
            database[key] = value
    family = database.get_column_family("offset")
    for key, value in bounds.items():
        family[key] = value
    family.flush()
    database.flush()
    family.close()
    database.close()


def value_of(queue: RocksQueueReader, offset: int) -> bytes:
    row = queue.entries(offset, offset + 1)[0]
    return struct.pack(">qiqq", int(row["physical_offset"]), int(row["size"]), int(row["tags_code"]), 0)


def test_a_changed_entry_is_found(tmp_path: Path) -> None:
    store = unpack(QUEUES, tmp_path / "store")
    queue = mqstore.open(store).view().queue("orders", 1)
    assert isinstance(queue, RocksQueueReader)
    value = bytearray(value_of(queue, 5))
    value[11] ^= 1
    changed(store, {entry_key(b"orders", 1, 5): bytes(value)}, {})
    report = verify(mqstore.open(store))
    assert {item.kind for item in report.damage} == {Kind.QUEUE_ENTRY_MISMATCH}
    assert "topic 'orders', queue 1, queue offset 5" in report.damage[0].detail


@pytest.mark.parametrize("unclean", [False, True])
def test_a_queue_that_ends_before_the_log_is_damage_only_after_a_clean_exit(unclean: bool, tmp_path: Path) -> None:
    store = unpack(QUEUES, tmp_path / "store")
    queue = mqstore.open(store).view().queue("orders", 1)
    newest = struct.pack(">qq", int(queue.entries(19, 20)["physical_offset"][0]), 19)
    maximum = struct.pack(">i", 6) + b"\1orders\1max\1" + struct.pack(">i", 1)
    changed(store, {entry_key(b"orders", 1, offset): None for offset in range(20, 30)}, {maximum: newest})
    if unclean:
        (store / "abort").write_text("1")
    report = verify(mqstore.open(store))
    note = "10 messages are in the log but not yet in their queues: the broker died before it dispatched them"
    if unclean:
        assert (report.damage, note in report.notes) == ((), True)
    else:
        (item,) = report.damage
        assert (item.kind, item.messages) == (Kind.MISSING_QUEUE_ENTRY, 10)
        assert "no entry in queue 1 of topic 'orders', the first at queue offset 20" in item.detail
    assert run_cli("queue", store, "orders", 1, "-o", "jsonl").rows[-1]["queue_offset"] == 19


def test_the_tables_of_sql_have_the_queues_and_the_groups() -> None:
    rows = run_cli("sql", opened(CASES[1]), "select topic, count(*) n from queues group by topic order by topic", "-o", "jsonl").rows
    wanted: dict[str, int] = {}
    for row in golden.queues(CASES[1]):
        wanted[row["topic"]] = wanted.get(row["topic"], 0) + len(row["entries"])
    assert {row["topic"]: row["n"] for row in rows} == wanted
    rows = run_cli("sql", opened(CASES[2]), 'select "group", max("offset") o from groups group by 1 order by 1', "-o", "jsonl").rows
    assert [(row["group"], row["o"]) for row in rows] == [("s41_group", 40), ("s41_odd", 5_000_000_000)]


def test_a_store_at_a_url_is_read_from_private_copies() -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    root = opened(CASES[2])
    for path in root.rglob("*"):
        if path.is_file() and path.name != "timerwheel":
            memory.pipe(f"/rocksdb-store/{path.relative_to(root)}", path.read_bytes())
    try:
        store = mqstore.open("memory://rocksdb-store")
        assert {queue.max_offset for queue in store.view().queues()} == {40}
        assert len(store.offset_table.offsets) == 2
        assert verify(store).damage == ()
    finally:
        memory.rm("/rocksdb-store", recursive=True)


def test_files_and_a_database_side_by_side_are_both_compared(tmp_path: Path) -> None:
    store = unpack(QUEUES, tmp_path / "store")
    assert run_cli("rebuild", store, "--to", tmp_path / "files", "--assume-defaults").status == 0
    (store / "consumequeue").rename(tmp_path / "files" / "consumequeue_rocksdb")
    both = mqstore.open(tmp_path / "files")
    assert (len(both.consume_queues()), len(both.stored_queues.second)) == (6, 6)
    assert verify(both).damage == ()
    assert run_cli("inspect", tmp_path / "files", "-o", "json").document["queues_in"] == "files and RocksDB"
    last = tmp_path / "files" / "consumequeue" / "orders" / "1" / "00000000000000000000"
    last.write_bytes(last.read_bytes()[: 20 * 29])
    report = verify(mqstore.open(tmp_path / "files"))
    assert Kind.MISSING_QUEUE_ENTRY in {item.kind for item in report.damage}
