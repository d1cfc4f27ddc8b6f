"""Topics, groups and consumer offsets in RocksDB, both versions."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from support import golden
from support.golden import case_named, opened
from support.rocksdb import new_database

import mqstore
from mqstore.files import ReadOnlyDirectory
from mqstore.files.rocksdb import RocksDatabase
from mqstore.rocketmq.config import rocksdb_config
from mqstore.rocketmq.config.rocksdb_config import parse_key_v2

CASE = case_named("5.5.0/e-rocksdb-config-v1")


def name(text: str) -> bytes:
    return struct.pack(">H", len(text.encode())) + text.encode()


def data_key(table: int, *parts: bytes) -> bytes:
    return b"\1" + struct.pack(">H", table) + b"\2" + b"\1".join(parts)


def test_offsets_of_version_1_are_those_of_the_broker() -> None:
    found = rocksdb_config.offsets(RocksDatabase(ReadOnlyDirectory(opened(CASE)), rocksdb_config.OFFSETS))
    wanted = golden.groups(CASE)["offset_table"]
    assert {
        f"{topic}@{group}": {str(queue): at for queue, at in by_queue.items()} for (group, topic), by_queue in found.offsets.items()
    } == {key: {str(queue): at for queue, at in by_queue.items()} for key, by_queue in wanted.items()}
    assert (found.used, found.findings) == ("database", ())


def test_topics_and_groups_of_version_1() -> None:
    store = mqstore.open(opened(CASE))
    assert {"s41_plain", "BenchmarkTest", "%RETRY%s41_group"} <= store.topics.names
    assert store.topics.topics["s41_plain"].read_queues == 3
    assert {"s41_group", "CID_ONS-HTTP-PROXY"} <= set(store.topics.groups)
    assert store.topics.findings == ()
    database = RocksDatabase(ReadOnlyDirectory(opened(CASE)), rocksdb_config.TOPICS)
    assert rocksdb_config.topics(database).version == (0, 2, 1795315072804)


def test_version_2_of_a_real_broker() -> None:
    store = mqstore.open(opened(case_named("5.5.0/h-rocksdb-config-v2")))
    assert store.offset_table.offsets == {("s51_group", "s51_plain"): {0: 40, 1: 40, 2: 40}, ("s51_odd", "s51_plain"): {2: 5_000_000_000}}
    assert {name: config.read_queues for name, config in store.topics.topics.items()} == {"s51_plain": 3}
    assert (store.topics.findings, store.offset_table.findings) == ((), ())
    database = RocksDatabase(ReadOnlyDirectory(opened(case_named("5.5.0/h-rocksdb-config-v2"))), rocksdb_config.V2)
    version = rocksdb_config.topics(database).version
    assert version is not None
    assert version[:2] == (0, 2)


def v2(place: Path) -> RocksDatabase:
    place.parent.mkdir(exist_ok=True)
    database = new_database(place)
    topic = {"topicName": "orders", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "attributes": {"queue.type": "BatchCQ"}}
    database[b"\1\0\3\1data_version"] = struct.pack(">qqq", 0, 1795315072804, 7)
    database[data_key(3, name("orders"))] = b"\1" + json.dumps(topic).encode()
    database[data_key(4, name("billing"))] = b"\1" + b'{"groupName":"billing"}'
    for queue, at in ((0, 29), (1, 1 << 40)):
        database[data_key(1, name("billing"), name("orders"), struct.pack(">i", queue))] = struct.pack(">q", at)
    database[data_key(2, name("billing"), name("orders"), struct.pack(">i", 0))] = struct.pack(">q", 5)
    database[data_key(1, name("billing"), name("orders"), b"")] = struct.pack(">q", 5)
    database[data_key(3, name("broken"))] = b"\1{"
    database.close()
    return RocksDatabase(ReadOnlyDirectory(place.parent.parent), rocksdb_config.V2)


def test_version_2_has_all_tables_in_one_database(tmp_path: Path) -> None:
    database = v2(tmp_path / "config" / "rdb")
    topics = rocksdb_config.topics(database)
    assert {topic: config.queue_type for topic, config in topics.by_name.items()} == {"orders": "BatchCQ"}
    assert topics.version == (0, 7, 1795315072804)
    assert [item.detail for item in topics.findings] == ["1 pairs of the database are not what a broker writes; they are left out"]
    assert rocksdb_config.groups(database).names == ("billing",)
    offsets = rocksdb_config.offsets(database)
    assert offsets.offsets == {("billing", "orders"): {0: 29, 1: 1 << 40}}
    assert len(offsets.findings) == 1


@pytest.mark.parametrize(
    "key", [b"", b"\1\0\1\1data_version", data_key(3, name("orders")) + b"x", data_key(1, name("g")), b"\1\0\3\2\0\x09ab"]
)
def test_bytes_of_another_form_are_not_the_key_of_a_table(key: bytes) -> None:
    assert parse_key_v2(key) is None


@pytest.mark.parametrize(("counter", "used"), [(1, "of the database"), (9, "of the file")])
def test_of_a_file_and_a_database_the_later_data_version_counts(counter: int, used: str, tmp_path: Path) -> None:
    v2(tmp_path / "config" / "rdb")
    (tmp_path / "commitlog").mkdir()
    text = {"dataVersion": {"stateVersion": 0, "counter": counter, "timestamp": 1}, "topicConfigTable": {"older": {"perm": 6}}}
    (tmp_path / "config" / "topics.json").write_text(json.dumps(text))
    names = mqstore.open(tmp_path).topics.names
    assert names == ({"orders"} if used == "of the database" else {"older"})


def test_offsets_in_a_database_count_before_those_of_a_file_that_lies_beside_it(tmp_path: Path) -> None:
    v2(tmp_path / "config" / "rdb")
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "config" / "consumerOffset.json").write_text('{"offsetTable":{"orders@old":{"0":1}}}')
    assert set(mqstore.open(tmp_path).offset_table.offsets) == {("billing", "orders")}
