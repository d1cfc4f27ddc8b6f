"""Rebuilds into consume queues in RocksDB, and back to files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.golden import GoldenCase, case_id, case_named, opened, run_cli, unchanged, unpack
from support.golden import queues as broker_queues
from support.stores import Store, message

import mqstore
from mqstore.errors import TargetError, UnsupportedError, UsageError
from mqstore.files import rocksdb
from mqstore.jobs import rebuild_database as module
from mqstore.jobs.rebuild import rebuild
from mqstore.rocketmq.format.rocksdb_queue import RocksQueueReader
from mqstore.rocketmq.verify.verification import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LISTED = tuple(
    case_named(f"5.5.0/{name}") for name in ("c-rocksdb-queues-clean", "d-rocksdb-light-queues", "e-rocksdb-config-v1", "j-rocksdb-rolled")
)
ROLLED = case_named("5.3.3/k-rolled")
FILES = case_named("5.5.0/a-clean")


def contents(store: Path) -> dict[tuple[str, int], tuple[int, int, bytes]]:
    """Return bounds and entries of the queues of a store."""
    return {
        (queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset, queue.entries(0, queue.max_offset).tobytes())
        for queue in mqstore.open(store).consume_queues()
    }


@pytest.mark.parametrize("case", LISTED, ids=case_id)
def test_a_rebuilt_database_lists_what_the_broker_read_from_its_own(case: GoldenCase, tmp_path: Path) -> None:
    with unchanged(opened(case)):
        report = rebuild(opened(case), tmp_path / "out", threads=2, queues="rocksdb", config=case.config)
    assert (report.ok, report.queues_in) == (True, "RocksDB")
    store = mqstore.open(tmp_path / "out")
    found = {(queue.topic, queue.queue_id): queue for queue in store.consume_queues()}
    assert {type(queue) for queue in found.values()} == {RocksQueueReader}
    wanted = {(row["topic"], row["queue_id"]): row for row in broker_queues(case) if row["entries"]}
    assert len(wanted) > 0
    for name, row in wanted.items():
        entries = found[name].entries(0, found[name].max_offset)
        assert [[int(entry[word]) for word in ("physical_offset", "size", "tags_code")] for entry in entries] == row["entries"]
        assert (found[name].min_offset, found[name].max_offset) == (row["min_offset"], row["max_offset"])
    checked = verify(store)
    assert (checked.damage, checked.coverage.complete) == ((), True)


@pytest.mark.parametrize("case", [FILES, ROLLED], ids=case_id)
def test_files_and_databases_can_be_made_of_each_other(case: GoldenCase, tmp_path: Path) -> None:
    rebuild(opened(case), tmp_path / "files", threads=2, config=case.config)
    rebuild(tmp_path / "files", tmp_path / "database", threads=2, queues="rocksdb", config=case.config)
    rebuild(tmp_path / "database", tmp_path / "back", threads=2, config=case.config)
    files, database, back = (contents(tmp_path / name) for name in ("files", "database", "back"))
    # of a queue whose messages are gone only the end is kept
    assert {name: queue for name, queue in database.items() if name[0] != "only-old"} == {
        name: queue for name, queue in back.items() if name[0] != "only-old"
    }
    assert {name: queue for name, queue in files.items() if name[0] != "only-old"} == {
        name: queue for name, queue in back.items() if name[0] != "only-old"
    }
    assert {queue[1] for found in (files, database, back) for name, queue in found.items() if name[0] == "only-old"} <= {15}
    assert files.keys() == database.keys() == back.keys()


def test_the_number_of_splits_does_not_matter(tmp_path: Path) -> None:
    found = []
    for splits in (1, 3, 7):
        rebuild(opened(ROLLED), tmp_path / str(splits), threads=2, splits=splits, queues="rocksdb", config=ROLLED.config)
        found.append(contents(tmp_path / str(splits)))
    assert found[0] == found[1] == found[2]


def test_a_queue_whose_messages_are_gone_keeps_its_end(tmp_path: Path) -> None:
    report = rebuild(opened(ROLLED), tmp_path / "out", threads=2, queues="rocksdb", config=ROLLED.config)
    assert mqstore.open(tmp_path / "out").view().queue("only-old", 0).max_offset == 15
    assert any("its end is kept, so that its offsets continue at 15" in note for note in report.notes)


def test_messages_that_share_a_queue_offset_are_counted(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for first, count in ((0, 30), (0, 10)):
        store.next_queue_offset["orders", 0] = first
        for number in range(count):
            store.put(message("orders", keys=f"{first}-{number}"))
    store.write()
    report = rebuild(store.root, tmp_path / "out", threads=2, splits=2, queues="rocksdb")
    assert (report.exact_queues, report.queue_entries) == (1, 30)
    assert any(note.startswith("10 messages of topic 'orders', queue 0 are not in their queue") for note in report.notes)
    physical = [put.offset for put in store.puts]
    entries = mqstore.open(tmp_path / "out").view().queue("orders", 0).entries(0, 100)
    assert entries["physical_offset"].tolist() == [*physical[30:], *physical[10:30]]


def test_a_log_without_a_message_gives_an_empty_database(tmp_path: Path) -> None:
    source = tmp_path / "store"
    (source / "commitlog").mkdir(parents=True)
    (source / "commitlog" / ("0" * 20)).write_bytes(bytes(65536))
    assert rebuild(source, tmp_path / "out", threads=2, queues="rocksdb").ok
    assert contents(tmp_path / "out") == {}


def test_the_new_database_has_only_what_a_broker_needs(tmp_path: Path) -> None:
    rebuild(opened(FILES), tmp_path / "out", threads=2, queues="rocksdb", config=FILES.config)
    kinds = {path.name.partition("-")[0].lstrip("0123456789") for path in (tmp_path / "out" / "consumequeue").iterdir()}
    assert kinds == {"CURRENT", "IDENTITY", "MANIFEST", ".sst"}
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


@pytest.mark.parametrize(
    ("identity", "queues", "version", "sentence"),
    [
        ("5.5.0/a-clean", "rocksdb", "5.3.3", "written for 5.4.0 and later, not for 5.3.3"),
        ("5.5.0/a-clean", "rocksdb", "9.9.9", "there are no rules of version '9.9.9'"),
        ("5.5.0/a-clean", "paper", None, "no consume queues of kind 'paper'"),
        ("5.5.0/b-batch-queue", "rocksdb", None, "has batch queues (queue.type=BatchCQ), which brokers keep in files only"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(identity: str, queues: str, version: str | None, sentence: str, tmp_path: Path) -> None:
    case = case_named(identity)
    with pytest.raises((UsageError, UnsupportedError)) as refused:
        rebuild(opened(case), tmp_path / "out", threads=2, queues=queues, version=version, config=case.config)
    assert sentence in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_installed", lambda: False)
    with pytest.raises(UsageError, match=r"pip install 'mqstore\[rocksdb\]'"):
        rebuild(opened(FILES), tmp_path / "out", threads=2, queues="rocksdb")
    assert rocksdb.is_installed()


def test_a_database_that_cannot_be_written_is_a_refusal_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = module.QueueDatabase.put_plain

    def broken(self: module.QueueDatabase, *arguments: object) -> int:
        shutil.rmtree(self._scratch / module.DATABASE, ignore_errors=True)
        return write(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module.QueueDatabase, "put_plain", broken)
    with pytest.raises(TargetError, match="cannot be written"):
        rebuild(opened(FILES), tmp_path / "out", threads=2, queues="rocksdb", config=FILES.config)
    assert list(tmp_path.iterdir()) == []


def test_an_older_store_is_rebuilt_for_the_newest_version(tmp_path: Path) -> None:
    done = run_cli(
        "rebuild",
        opened(ROLLED),
        "--to",
        tmp_path / "out",
        "--queues",
        "rocksdb",
        "--threads",
        "1",
        "--config",
        ROLLED.config,
        "-o",
        "json",
    )
    assert (done.status, done.document["queues_in"]) == (0, "RocksDB")
    assert any("storeType=defaultRocksDB" in note for note in done.document["notes"])
    assert mqstore.open(tmp_path / "out").indexes_tags


def test_a_configuration_in_a_database_is_named_where_a_broker_would_not_read_it(tmp_path: Path) -> None:
    case = LISTED[2]
    store = unpack(case, tmp_path / "store")
    report = rebuild(store, tmp_path / "out", threads=1, config=case.config)
    assert any(
        "the configuration in RocksDB (config/topics, config/subscriptionGroups, config/consumerOffsets)" in note for note in report.notes
    )


@pytest.mark.spark
def test_spark_and_threads_write_the_same_database(spark: SparkSession, tmp_path: Path) -> None:
    found = []
    for name, options in (("spark", {"spark": spark}), ("threads", {"threads": 2})):
        report = rebuild(opened(ROLLED), tmp_path / name, splits=5, queues="rocksdb", config=ROLLED.config, **options)  # type: ignore[arg-type]
        assert report.ok
        found.append(contents(tmp_path / name))
    assert found[0] == found[1]
