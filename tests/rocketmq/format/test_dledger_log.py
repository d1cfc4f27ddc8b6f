"""The log that a broker in a DLedger group keeps: the same messages, each after a header of the group's log."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.golden import GOLDEN, case_named, opened, run_cli, unpack
from support.s3 import endpoint

import mqstore
from mqstore import pipeline
from mqstore.errors import UnsupportedError
from mqstore.findings import Kind
from mqstore.rocketmq.format.commit_log import CommitLog, EndOfFile, Records
from mqstore.rocketmq.format.record import encode
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.verification import verify
from mqstore.table.columns import Selection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CASE = case_named("5.5.0/g-dledger")
PUTS = [json.loads(line) for line in (GOLDEN / "rocketmq-5.5.0" / "g-dledger" / "puts.jsonl").read_text().splitlines()]
HELD = {row["physical_offset"]: row["size"] for row in PUTS}
LOG = "dledger-n0/data/00000000000000000000"
HEADER = 48


@pytest.fixture(scope="module")
def store() -> RocketMQStore:
    return mqstore.open(opened(CASE))


def rows(place: Path | RocketMQStore, **selection: int) -> list[int]:
    """Return the physical offsets of all messages."""
    found = mqstore.open(place) if isinstance(place, Path) else place
    return found.to_arrow(("physical_offset",), Selection(**selection)).column(0).to_pylist()


def positions(log: CommitLog) -> list[int]:
    return [int(at) + event.file.start for event in log.scan() if isinstance(event, Records) for at in event.positions]


def changed(tmp_path: Path, at: int, new: bytes) -> Path:
    """Return a copy of the store with other bytes at a position of its log."""
    root = unpack(CASE, tmp_path / "store")
    path = root / LOG
    path.chmod(0o644)
    raw = bytearray(path.read_bytes())
    raw[at : at + len(new)] = new
    path.write_bytes(raw)
    return root


def test_the_messages_are_those_that_the_broker_stored(store: RocketMQStore) -> None:
    table = store.to_arrow(("physical_offset", "size", "verdict"))
    assert dict(zip(table["physical_offset"].to_pylist(), table["size"].to_pylist(), strict=True)) == HELD
    assert set(table["verdict"].to_pylist()) == {"intact"}
    assert positions(store.log) == list(HELD)
    for row in PUTS:
        record = store.log.record(row["physical_offset"])
        assert record is not None
        assert record.queue_offset == row["queue_offset"]


def test_queues_and_index_are_compared_with_it(store: RocketMQStore) -> None:
    report = verify(store)
    assert (report.damage, report.checked.messages, report.checked.index_entries) == ((), 40, 140)
    assert report.coverage.complete


@pytest.mark.parametrize("size", [100, 333, 4096, 21_000])
def test_ranges_hold_each_record_once_however_the_log_is_cut(store: RocketMQStore, size: int) -> None:
    end = store.log.end()
    assert [at for low in range(0, end, size) for at in rows(store, from_offset=low, to_offset=min(low + size, end))] == list(HELD)
    assert rows(store, from_offset=260, to_offset=604) == [260]


def test_jobs_on_splits_find_every_record(store: RocketMQStore, tmp_path: Path) -> None:
    usage = pipeline.usage(opened(CASE), threads=2, splits=5)
    assert usage.total.messages == 40
    assert usage.total.bytes == sum(HELD.values()) + HEADER * 40
    pipeline.export(opened(CASE), tmp_path / "out", threads=2, splits=5)
    import pyarrow.parquet as pq

    found = sorted(at for path in (tmp_path / "out").rglob("*.parquet") for at in pq.read_table(path)["physical_offset"].to_pylist())
    assert found == list(HELD)
    assert pipeline.verify(opened(CASE), threads=2).as_dict()["damage"] == []


@pytest.mark.parametrize(("field", "size"), [("magic", 4), ("size", 4), ("position", 8), ("body size", 4)])
def test_a_damaged_header_costs_no_message(field: str, size: int, tmp_path: Path) -> None:
    entry = list(HELD)[7] - HEADER
    at = entry + {"magic": 0, "size": 4, "position": 24, "body size": 44}[field]
    root = changed(tmp_path, at, b"\x5a" * size)
    assert rows(root) == list(HELD)
    (damage,) = verify(mqstore.open(root)).damage
    assert (damage.file, damage.offset, damage.length, damage.messages) == (LOG, entry, HEADER, 0)
    assert "its record is not" in damage.detail


def test_a_destroyed_entry_costs_its_own_message(tmp_path: Path) -> None:
    lost = list(HELD)[9]
    root = changed(tmp_path, lost - HEADER, bytes(HEADER + HELD[lost]))
    assert rows(root) == [at for at in HELD if at != lost]
    report = verify(mqstore.open(root))
    assert any(item.file == LOG and item.offset == lost - HEADER and item.length == HEADER + HELD[lost] for item in report.damage)


@pytest.mark.parametrize("step", [pytest.param(7, marks=pytest.mark.long), 97])
def test_no_changed_byte_ends_a_walk_or_costs_another_message(step: int, tmp_path: Path) -> None:
    root = unpack(CASE, tmp_path / "store")
    path = root / LOG
    path.chmod(0o644)
    whole = path.read_bytes()
    ends = {at: at + size for at, size in HELD.items()}
    for at in range(0, 21_391, step):
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes([whole[at] ^ 0xFF]))
        found = set(positions(mqstore.open(root).log))
        assert {start for start, end in ends.items() if not start <= at < end} <= found <= set(HELD), at
        with path.open("r+b") as file:
            file.seek(at)
            file.write(whole[at : at + 1])


def made(root: Path, bodies: list[int], file_size: int) -> list[int]:
    """Write a DLedger log of several files with records of these body sizes; return their physical offsets."""
    template = mqstore.open(opened(CASE)).log.record(48)
    assert template is not None
    files, at, offsets = [bytearray()], 0, []
    for number, size in enumerate(bodies):
        raw = encode(replace(template, body=bytes(size), queue_offset=number, physical_offset=0))
        room = file_size - len(files[-1])
        if HEADER + len(raw) + 8 > room:
            files[-1] += struct.pack(">ii", -1, room) + bytes(room - 8)
            files.append(bytearray())
            at = file_size * (len(files) - 1)
        raw = encode(replace(template, body=bytes(size), queue_offset=number, physical_offset=at + HEADER))
        files[-1] += struct.pack(">iiqqqiiii", 1, HEADER + len(raw), number, 0, at, 0, 0, 0, len(raw)) + raw
        offsets.append(at + HEADER)
        at += HEADER + len(raw)
    place = root / "dledger-n0" / "data"
    place.mkdir(parents=True)
    for number, file in enumerate(files):
        (place / f"{number * file_size:020d}").write_bytes(file.ljust(file_size, b"\0"))
    (root / "consumequeue").mkdir(exist_ok=True)
    if not (root / "checkpoint").exists():
        (root / "checkpoint").write_bytes(bytes(4096))
    return offsets


def test_files_end_where_an_entry_says_that_the_rest_is_not_used(tmp_path: Path) -> None:
    offsets = made(tmp_path, [number * 37 % 300 for number in range(60)], 2048)
    log = mqstore.open(tmp_path).log
    assert len(log.files) > 5
    events = list(log.scan())
    assert {type(event) for event in events} == {Records, EndOfFile}
    assert positions(log) == offsets
    assert log.end() == max(event.file.start + int(event.positions[-1]) for event in events if isinstance(event, Records)) + len(
        log.raw(offsets[-1]) or b""
    )
    for size in (50, 500, 3000):
        assert [at for low in range(0, log.end(), size) for at in rows(tmp_path, from_offset=low, to_offset=low + size)] == offsets


def test_a_torn_last_entry_is_the_end_of_the_log(tmp_path: Path) -> None:
    root = changed(tmp_path, list(HELD)[-1] + 60, bytes(HELD[list(HELD)[-1]] - 60))
    assert rows(root) == list(HELD)[:-1]
    (torn,) = [item for item in verify(mqstore.open(root)).damage if item.file == LOG]
    assert torn.kind is Kind.TORN_RECORD


@pytest.mark.parametrize(
    "command",
    [
        ("rebuild", "--to", "OUT"),
        ("follow", "--to", "OUT", "--once", "--as", "store"),
        ("topics", "--view", "recovered"),
        ("put", "-t", "orders", "--body", "x"),
        ("serve", "--read-only", "--listen", "127.0.0.1:0"),
    ],
    ids=" ".join,
)
def test_what_needs_a_commit_log_says_so(command: tuple[str, ...], tmp_path: Path) -> None:
    verb, *rest = command
    root = unpack(CASE, tmp_path / "store")
    done = run_cli(verb, root, *(str(tmp_path / "out") if word == "OUT" else word for word in rest))
    assert (done.status, done.stdout) == (2, ""), done
    assert "needs a commit log, but DLedger keeps the log" in done.stderr
    assert not (tmp_path / "out").exists()
    assert not (root / "commitlog").exists()


def test_an_engine_does_not_open_it(tmp_path: Path) -> None:
    from mqstore.rocketmq import MessageStore, StoreConfig

    root = unpack(CASE, tmp_path / "store")
    with pytest.raises(UnsupportedError, match=r"^writing needs a commit log"):
        MessageStore.open(root, StoreConfig(version="5.3.3"))
    assert not (root / "commitlog").exists()


def test_a_ledger_beside_a_commit_log_is_named_and_not_called_checked(tmp_path: Path) -> None:
    root = unpack(case_named("4.9.3/a-clean-small"), tmp_path / "store")
    made(root, [10, 20], 4096)
    assert "the log of a DLedger group beside the commit log (dledger-n0/data)" in run_cli("inspect", root).stdout
    report = verify(mqstore.open(root))
    assert [skip.file for skip in report.coverage.skipped] == ["dledger-n0/data"]
    assert report.cautions == ("messages in the DLedger log dledger-n0/data were not checked, only those of the commit log",)


def test_commands_name_it() -> None:
    found = run_cli("inspect", opened(CASE))
    assert "kept by DLedger in dledger-n0/data" in found.stdout
    assert run_cli("inspect", opened(CASE), "-o", "json").document["log"]["dledger"] == "dledger-n0/data"
    key = next(row["keys"] for row in run_cli("messages", opened(CASE), "-o", "jsonl").rows if row["keys"])
    assert run_cli("query", opened(CASE), "-t", "TopicTest", "-k", key.split()[0], "-o", "json").document["messages"]


def test_spark_reads_it(spark: SparkSession) -> None:
    frame = pipeline.read(spark, opened(CASE))
    assert sorted(row[0] for row in frame.select("physical_offset").collect()) == list(HELD)
    assert frame.where("physical_offset > 300").count() == 38


def test_the_log_is_the_same_from_a_url(store: RocketMQStore) -> None:
    there = mqstore.open(endpoint().uploaded(opened(CASE), window=4096))
    assert there.to_arrow().equals(store.to_arrow())


def test_the_end_of_a_file_is_found_after_damage(tmp_path: Path) -> None:
    last = max(HELD)
    size = (opened(CASE) / LOG).stat().st_size
    entry = last - HEADER
    blank = b"\xff\xff\xff\xff" + bytes(4) + b"\xff\xff\xff\xff" + (size - entry - 20).to_bytes(4, "big")
    root = changed(tmp_path, entry, b"\x01" * 12 + blank + b"\x01" * 40)
    log = mqstore.open(root).log
    assert positions(log) == sorted(HELD)[:-1]
    assert log._find_blank(log.mapped(log.files[0]), entry, size) == entry + 20


def test_a_file_of_the_log_alone_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="is a file of a DLedger log; give the store"):
        mqstore.open(opened(CASE) / LOG)
