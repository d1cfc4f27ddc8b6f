"""Which version wrote a store: what the files of real brokers show, and `--as`."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.golden import case_named, opened, run_cli, unpack

import mqstore
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.checkpoint import Checkpoint, decode, encode
from mqstore.rocketmq.format.message import Inner, Message, MessageBatch
from mqstore.rocketmq.format.profile import profile
from mqstore.rocketmq.recovery.broker_recovery import Recovery

SUGGESTED = {
    "4.3.0/a-clean": ("4.9.3", "nothing in the store is written by 5.x only"),
    "4.7.1/b-rich": ("4.9.3", "nothing in the store is written by 5.x only"),
    "4.9.3/a-clean-small": ("4.9.3", "nothing in the store is written by 5.x only"),
    "5.1.4/a-clean": ("5.3.3", "5.x"),
    "5.3.3/g-clean-small": ("5.3.3", "5.x"),
    "5.5.0/a-clean": ("5.5.0", "sixth field"),
    "5.5.0/c-rocksdb-queues-clean": ("5.4.0", "rocksdbstore"),
}


@pytest.mark.parametrize("name", SUGGESTED)
def test_the_files_suggest_a_version_and_inspect_says_how_it_knows(name: str) -> None:
    version, why = SUGGESTED[name]
    document = run_cli("inspect", opened(case_named(name)), "-o", "json").document
    assert document["suggested_version"] == version
    assert why in document["version_known_from"]
    assert f"Known from: {document['version_known_from']}." in run_cli("inspect", opened(case_named(name))).stdout


FITS = {
    "4.3.0/a-clean": "4.0 to 4.8, or of 5.2 and later",  # a store without config/
    "4.7.1/b-rich": "4.0 to 4.8, or of 5.2 and later",
    "4.9.3/a-clean-small": "4.9 and later 4.x",
}


@pytest.mark.parametrize("name", FITS)
def test_properties_show_which_releases_of_4_wrote_a_store(name: str, tmp_path: Path) -> None:
    store = unpack(case_named(name), tmp_path / "store")
    assert run_cli("inspect", store, "-o", "json").document["fits"] == FITS[name]
    (store / "config").mkdir(exist_ok=True)
    whole = "4.9 and later 4.x" if name.startswith("4.9.3") else "4.0 to 4.8"
    assert run_cli("inspect", store, "-o", "json").document["fits"] == whole
    shutil.rmtree(store / "commitlog")
    assert run_cli("inspect", store, "-o", "json").document["fits"] == "4.x"


def test_the_tags_in_an_index_show_5_4_where_nothing_else_does(tmp_path: Path) -> None:
    store = unpack(case_named("5.5.0/a-clean"), tmp_path / "store")
    for path in store.iterdir():
        if path.name not in ("commitlog", "consumequeue", "index", "checkpoint"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    point = decode((store / "checkpoint").read_bytes())
    (store / "checkpoint").write_bytes(encode(Checkpoint(point.physic, point.logics, point.index)))
    document = run_cli("inspect", store, "-o", "json").document
    assert (document["suggested_version"], document["version_known_from"]) == (
        "5.4.0",
        "the index has entries of tags, which 5.4.0 and later write",
    )
    shutil.rmtree(store / "index")
    document = run_cli("inspect", store, "-o", "json").document
    assert document["version_known_from"] == "nothing in the store is written by 5.x only"


@pytest.mark.parametrize("version", ["4.3.0", "4.7.1", "5.1.4", "5.4.0", "5.5.0"])
def test_the_recovered_view_follows_any_version(version: str) -> None:
    case = case_named("5.3.3/h-kill9")
    nearer = "4.9.3" if version[0] == "4" else "5.3.3"
    rows = [run_cli("topics", opened(case), "--view", "recovered", "--as", each, "-o", "jsonl").rows for each in (version, nearer)]
    assert rows[0] == rows[1] != []


@pytest.mark.parametrize("command", [("topics",), ("messages",), ("query", "-t", "T", "-k", "K"), ("groups", "--view", "recovered")])
def test_a_version_that_does_not_exist_is_refused_with_the_list(command: tuple[str, ...]) -> None:
    found = run_cli(command[0], opened(case_named("4.9.3/a-clean-small")), *command[1:], "--as", "5.9.9")
    assert (found.status, found.stdout) == (2, "")
    assert "known are 4.3.0 to 5.5.0: 4.3.0, 4.3.1" in found.stderr.replace("\n", " ")


def test_a_recovery_as_5_4_indexes_the_tags_of_what_it_dispatches_and_5_3_does_not() -> None:
    store = mqstore.open(opened(case_named("5.3.3/h-kill9")))
    assert store.rules("5.4.0").index_tags
    assert not store.rules("5.3.3").index_tags
    assert not store.rules().index_tags
    counts = {version: sum(file.index_count for file in store.view("recovered", version).index_files()) for version in ("5.3.3", "5.4.0")}
    assert counts["5.4.0"] > counts["5.3.3"]


@pytest.mark.parametrize(("limit", "first"), [(None, 0), (13, 0), (10, 3), (1, 12)])
def test_a_recovery_looks_at_the_newest_files_only(limit: int | None, first: int) -> None:
    store = mqstore.open(opened(case_named("4.9.3/b2-kill9-live")))
    recovery = Recovery(
        store.directory, store.log, store.index_files(), store.checkpoint, store.config, store.rules(), "5.3.3",
        unclean=True, of=replace(profile("5.4.0"), recovered_files=limit),
    )  # fmt: skip
    assert len(recovery.log_files) == 13  # no file is older than the checkpoint, which was never written
    recovery.load()
    assert recovery.recovered_from == store.log.files[first].start


def test_checkpoint_fields_of_a_later_version_are_carried() -> None:
    raw = bytearray((opened(case_named("5.5.0/a-clean")) / "checkpoint").read_bytes())
    raw[48:56] = (123).to_bytes(8, "big")
    assert encode(decode(bytes(raw))) == bytes(raw)


def test_a_put_keeps_the_checkpoint_fields_of_a_later_version(tmp_path: Path) -> None:
    store = unpack(case_named("5.5.0/a-clean"), tmp_path / "store")
    with (store / "checkpoint").open("r+b") as file:
        file.seek(48)
        file.write((123).to_bytes(8, "big"))
    assert run_cli("put", store, "-t", "TopicTest", "--body", "later").status == 0
    assert (store / "checkpoint").read_bytes()[48:56] == (123).to_bytes(8, "big")


def test_a_new_store_of_5_5_0_indexes_tags(tmp_path: Path) -> None:
    for version, number in (("5.3.3", 1), ("5.5.0", 2)):
        store = tmp_path / version
        done = run_cli("put", store, "--create", "--as", version, "-t", "TopicTest", "--body", "b", "-k", "K1", "--tags", "eu")
        assert done.status == 0, done.stderr
        assert sum(file.index_count - 1 for file in mqstore.open(store).index_files()) == number


@pytest.mark.parametrize(("version", "listed"), [("5.5.0", True), ("5.4.0", False), ("5.3.3", False)])
def test_the_checkpoint_of_5_5_0_alone_says_which_record_the_queues_have_last(version: str, listed: bool, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for number in range(2):
        done = run_cli("put", store, *(("--create",) * (number == 0)), "--as", version, "-t", "TopicTest", "--body", "b")
        assert done.status == 0, done.stderr
    rows = run_cli("messages", store, "-o", "jsonl").rows
    assert mqstore.open(store).checkpoint.logics_physical_offset == (rows[-1]["physical_offset"] if listed else 0)


@pytest.mark.parametrize(("version", "ends"), [("4.7.1", True), ("4.9.3", False), ("5.1.4", False), ("5.3.3", True), ("5.5.0", True)])
def test_properties_that_the_store_writes_itself_end_as_in_that_version(version: str, ends: bool, tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", StoreConfig(version=version, services=False)) as store:
        put = store.put(Message("orders", b"later", properties={"DELAY": "3"}))
        record = store.record_at(put.physical_offset)
    assert record is not None
    assert record.topic == "SCHEDULE_TOPIC_XXXX"
    assert record.properties.endswith(b"\x02") is ends


@pytest.mark.parametrize(
    ("version", "stored"),
    [
        ("4.7.1", b"KEYS\x01k"),
        ("4.9.3", b"KEYS\x01k\x02CLUSTER\x01c"),
        ("5.1.4", b"KEYS\x01k\x02CLUSTER\x01c"),
        ("5.3.3", b"KEYS\x01k\x02CLUSTER\x01c\x02"),
        ("5.5.0", b"KEYS\x01k"),
    ],
)
def test_messages_of_a_batch_get_its_properties_where_that_version_stores_them(version: str, stored: bytes, tmp_path: Path) -> None:
    batch = MessageBatch(Message("orders", b"", properties=b"CLUSTER\x01c\x02"), (Inner(b"one", b"KEYS\x01k"),))
    with MessageStore.open(tmp_path / "store", StoreConfig(version=version, services=False)) as store:
        put = store.put_messages(batch)
        assert put.stored, put.detail
        record = store.record_at(put.physical_offset)
    assert record is not None
    assert record.properties == stored
