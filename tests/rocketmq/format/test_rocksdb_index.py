"""The index in RocksDB: what a real 5.5.0 wrote, against its log."""

from __future__ import annotations

import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from support.golden import case_named, keys_of, opened, run_cli, unpack

import mqstore
from mqstore.rocketmq.format.record import TRANSACTION_ROLLBACK, Record, encode_properties
from mqstore.rocketmq.format.rocksdb_store import entry, index_keys, parse_half, parse_timer

CASE = case_named("5.5.0/e-rocksdb-config-v1")
ALWAYS = (1 << 63) - 1


def test_every_key_and_unique_key_of_the_log_is_found() -> None:
    store = mqstore.open(opened(CASE))
    index = store.database_index
    assert index is not None
    rows = run_cli("messages", opened(CASE), "-o", "jsonl").rows
    assert index.last_offset == rows[-1]["physical_offset"]
    assert index.last_store_timestamp == rows[-1]["store_timestamp"]
    by_key: dict[tuple[str, str], set[int]] = {}
    for row in rows:
        for key in keys_of(row):
            by_key.setdefault((row["topic"], key), set()).add(row["physical_offset"])
    assert len(by_key) > 150
    for (topic, key), wanted in by_key.items():
        assert {hit.physical_offset for hit in index.hits(topic, key, 64, 0, ALWAYS)} == wanted
    assert index.hits("s41_plain", "k1 never", 64, 0, ALWAYS) == []


def test_the_time_range_and_the_limit_hold() -> None:
    index = mqstore.open(opened(CASE)).database_index
    assert index is not None
    (hit,) = index.hits("s41_plain", "k101", 64, 0, ALWAYS)
    assert index.hits("s41_plain", "k101", 64, hit.stored, hit.stored) == [hit]
    assert index.hits("s41_plain", "k101", 64, hit.stored + 1, ALWAYS) == []
    assert index.hits("s41_plain", "k101", 64, 0, hit.stored - 1) == []
    assert index.hits("s41_plain", "k101", 0, 0, ALWAYS) == []


def test_a_query_uses_the_database_where_there_is_no_index_file(tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    with_files = run_cli("query", store, "-t", "s41_plain", "-k", "k101", "-o", "json").document
    shutil.rmtree(store / "index")
    found = run_cli("query", store, "-t", "s41_plain", "-k", "k101", "--explain", "-o", "json")
    assert found.status == 0
    for name in ("index_hits", "messages", "complete", "reason", "index_last_update_phyoffset"):
        assert found.document[name] == (True if name == "complete" else with_files[name])
    (step,) = found.document["steps"]
    assert (step["file"], step["physical_offset"], step["outcome"]) == ("rocksdbstore", with_files["index_hits"][0], "taken")
    assert (
        "the index in RocksDB: up to physical offset 65897" in run_cli("query", store, "-t", "s41_plain", "-k", "k101", "--explain").stdout
    )
    verified = run_cli("verify", store, "-o", "json").document
    assert verified["ok"] is True
    assert verified["checked"]["index_entries"] == 349


def test_without_the_library_a_query_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqstore.rocketmq.store.databases.is_installed", lambda: False)
    store = unpack(CASE, tmp_path / "store")
    shutil.rmtree(store / "index")
    found = run_cli("query", store, "-t", "s41_plain", "-k", "k101")
    assert found.status == 1
    assert "pip install 'mqstore[rocksdb]'" in " ".join(found.stderr.split())
    plain = mqstore.open(opened(case_named("5.5.0/a-clean")))
    assert plain.unread_index_sentence is None  # the database is there, and empty


@pytest.mark.parametrize("key", [b"", b"lastOffsetPy", bytes(8) + b"@t@K@k@", bytes(8) + b"@t@K@k@" + b"\xff" * 8])
def test_bytes_of_another_form_are_not_an_entry(key: bytes) -> None:
    assert entry(key, b"@t@K@k@") is None


def test_records_without_a_unique_key_and_rolled_back_ones_have_no_entries() -> None:
    whole = Record("t", b"x", properties=encode_properties({"UNIQ_KEY": "u", "KEYS": "k"}))
    assert len(index_keys(whole)) == 2
    assert index_keys(replace(whole, properties=b"")) == ()
    assert index_keys(replace(whole, sys_flag=TRANSACTION_ROLLBACK)) == ()


@pytest.mark.parametrize("key", [b"", bytes(8) + b"@t", bytes(8) + b"x@t@u", bytes(8) + b"@t@", b"\xff" * 8 + b"@t@u"])
def test_a_pair_of_another_form_is_not_a_half_message(key: bytes) -> None:
    value = struct.pack(">ii", 0, 100)
    assert parse_half(bytes(8) + b"@t@u", value) is not None
    assert parse_half(key, value) is None


@pytest.mark.parametrize(("due", "size", "offset"), [(0, 100, 5), (9, 0, 5), (9, 100, -1)])
def test_a_pair_of_another_form_is_not_a_timer(due: int, size: int, offset: int) -> None:
    key = struct.pack(">q", due) + b"u"
    assert parse_timer(struct.pack(">q", 9) + b"u", struct.pack(">iq", 100, 5)) is not None
    assert parse_timer(key, struct.pack(">iq", size, offset)) is None


def test_hours_after_the_range_are_not_looked_at() -> None:
    index = mqstore.open(opened(CASE)).database_index
    assert index is not None
    assert index.hits("s41_plain", "k101", 64, 0, 1) == []
