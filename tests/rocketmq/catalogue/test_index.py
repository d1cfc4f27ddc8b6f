"""Catalogue 13.5: index files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.catalogue import START, VERSIONS, opened, put_some

from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.rocketmq.dispatch.dispatcher import KEY_ROW
from mqstore.rocketmq.format.index_file import load
from mqstore.rocketmq.format.java_text import index_hash, java_hash
from mqstore.rocketmq.live.index_writer import IndexFiles, StoredIndex
from mqstore.rocketmq.query.index_search import query_offsets, search

SLOTS, POSITIONS = 100, 400


def keys_of(numbers: range) -> np.ndarray:
    """The keys `0`, `1`, …, each of a record at the offset of its number."""
    found = np.zeros(len(numbers), KEY_ROW)
    found["hash"] = [abs(java_hash(str(number))) for number in numbers]
    found["physical_offset"] = numbers
    found["store_timestamp"] = START
    return found


@pytest.fixture
def index(tmp_path: Path) -> StoredIndex:
    reading, writing = ReadOnlyDirectory(tmp_path), DurableDirectory(tmp_path)
    place = IndexFiles(reading, writing, lambda: START, lambda file: None)
    return StoredIndex(place, (), slots=SLOTS, positions=POSITIONS)


def test_399_keys_fit_into_400_positions(index: StoredIndex, tmp_path: Path) -> None:
    """index/IndexFileTest.testPutKey: the 400th is refused by the file."""
    file = index._new_file(None)
    assert file.put(keys_of(range(399))) == 399
    assert file.full
    assert file.put(keys_of(range(399, 400))) == 0
    assert len(list((tmp_path / "index").iterdir())) == 1


def test_one_of_399_keys_is_found_once(index: StoredIndex, tmp_path: Path) -> None:
    """index/IndexFileTest.testSelectPhyOffset: in the file that is written, and in the bytes that it left."""
    file = index._new_file(None)
    file.put(keys_of(range(399)))
    (on_disk,) = load(ReadOnlyDirectory(tmp_path), slots=SLOTS, positions=POSITIONS).files
    for each in (file, on_disk):
        found: list[int] = []
        search(each, abs(java_hash("60")), 10, 0, (1 << 63) - 1, found)
        assert found == [60]


@VERSIONS
def test_the_400th_key_begins_the_next_file(version: str, tmp_path: Path) -> None:
    """index/IndexFileTest.testPutKey through the store: 400 messages with a key each, 399 of them in the first file."""
    with opened(tmp_path / "store", version, commit_log_file_size=1 << 20) as store:
        put_some(store, 400, keys="k")
        assert [file.index_count for file in store.index_files()] == [400, 2]
        assert len(list((tmp_path / "store" / "index").iterdir())) == 2


@VERSIONS
def test_a_query_for_all_there_is_does_not_fail(version: str, tmp_path: Path) -> None:
    """index/IndexServiceTest.testQueryOffsetThrow: 2147483647 are asked for; at most 64 come."""
    with opened(tmp_path / "store", version, commit_log_file_size=1 << 20) as store:
        assert query_offsets(store.index_files(), "FooBar", "k", 2147483647).offsets == ()
        put_some(store, 100, keys="k")
        assert len(store.query("FooBar", "k", 2147483647).records) == 64
        assert query_offsets(store.index_files(), "FooBar", "other", 2147483647).offsets == ()
        assert index_hash("FooBar", "k") == abs(java_hash("FooBar#k"))
