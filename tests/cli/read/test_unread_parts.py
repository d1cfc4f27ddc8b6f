"""Parts of a store that are not read: the commands say what they cannot answer and why, and call nothing missing or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import case_named, opened, run_cli, unpack

ROCKSDB = case_named("5.5.0/c-rocksdb-queues-clean")
CONFIG = case_named("5.5.0/e-rocksdb-config-v1")
SENTENCE = "in a RocksDB database (consumequeue), which is not read: `pip install 'mqstore[rocksdb]'` installs what reads it"


@pytest.fixture(autouse=True)
def _without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqstore.rocketmq.store.databases.is_installed", lambda: False)


@pytest.mark.parametrize("command", [("topics",), ("groups",), ("queue", "TopicTest", 0)])
def test_queues_in_a_database_are_not_said_to_be_missing(command: tuple[object, ...]) -> None:
    name, *rest = command
    asked = run_cli(name, opened(ROCKSDB), *rest, "-o", "json")
    assert (asked.status, asked.stdout) == (2, "")
    assert SENTENCE in asked.stderr
    assert "--view recovered" in asked.stderr


def test_the_recovered_view_has_the_queues_that_the_database_holds() -> None:
    found = run_cli("topics", opened(ROCKSDB), "--view", "recovered", "--config", ROCKSDB.config, "-o", "jsonl")
    assert found.status == 0
    assert sum(row["messages"] for row in found.rows) > 100


def test_a_message_is_judged_by_its_own_checks_where_its_queue_is_not_read() -> None:
    found = run_cli("messages", opened(ROCKSDB), "-o", "jsonl")
    assert (found.status, {row["verdict"] for row in found.rows}) == (0, {"intact"})


def test_verify_calls_such_a_store_sound_and_says_what_it_did_not_compare() -> None:
    found = run_cli("verify", opened(ROCKSDB), "-o", "json")
    assert found.status == 0
    assert any(SENTENCE in note and "whether they list every message is not known" in note for note in found.document["notes"])
    assert found.document["coverage"]["complete"] is False
    assert "which is not read" in run_cli("verify", opened(ROCKSDB)).stdout


def test_inspect_names_what_is_not_read() -> None:
    found = run_cli("inspect", opened(CONFIG))
    for what in (
        "consume queues in RocksDB",
        "topics kept in RocksDB",
        "subscription groups kept in RocksDB",
        "consumer offsets kept in RocksDB",
    ):
        assert what in found.stdout
    assert "mqstore[rocksdb]" in found.stdout


def test_consumer_offsets_in_a_database_are_not_said_to_be_missing() -> None:
    found = run_cli("groups", opened(CONFIG), "--view", "recovered", "-o", "json")
    assert (found.status, found.stdout) == (2, "")
    assert "(config/consumerOffsets), which is not read: `pip install 'mqstore[rocksdb]'`" in found.stderr


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, False),
        (b'{"empty":true,"queueOffsetMap":{}}', False),
        (b'{"queueOffsetMap":{"TopicTest_0":10}}', True),
        (b'{"queueOffsetMap', True),
        (b"[]", True),
    ],
)
def test_compaction_topics_are_named_where_there_are_any(content: bytes | None, named: bool, tmp_path: Path) -> None:
    store = unpack(case_named("5.5.0/f-timer-wheel"), tmp_path / "store")
    checkpoint = store / "compaction" / "position-checkpoint"
    assert b'"queueOffsetMap":{}' in checkpoint.read_bytes()  # as every broker of 5.5.0 leaves it
    checkpoint.unlink() if content is None else checkpoint.write_bytes(content)
    document = run_cli("inspect", store, "-o", "json").document
    assert any(part.startswith("compaction topics: ") for part in document["unsupported"]) is named


def test_a_topic_that_consumers_get_from_its_compaction_log_is_named_with_its_queues(tmp_path: Path) -> None:
    store = unpack(case_named("5.5.0/f-timer-wheel"), tmp_path / "store")
    for name in ("kv/0", "kv/1", "compacting/kv"):
        (store / "compaction" / "compactionLog" / name).mkdir(parents=True)
    said = "what consumers get of topic 'kv', the newest message of each key; 2 queues are in compaction/compactionLog, which is not read"
    named = [part for part in run_cli("inspect", store, "-o", "json").document["unsupported"] if "compaction" in part]
    assert named == [f"compaction topics: {said}"]
    assert f"compaction topics: {said}" in run_cli("diagnose", store, "-o", "json").document["unknown"]


def test_a_query_says_that_the_queues_are_not_read() -> None:
    asked = run_cli("query", opened(ROCKSDB), "-t", "TopicTest", "-k", "no such key")
    assert asked.status == 1
    assert "--view recovered derives them from the log" in asked.stderr
