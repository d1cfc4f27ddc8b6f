"""RocksDB databases are read without a change to their directory, and a damaged one as far as it goes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.golden import case_named, opened, unchanged
from support.rocksdb import copied, flip, new_database, rename_comparator, tables

from mqstore.files import ReadOnlyDirectory
from mqstore.files.rocksdb import Family, RocksDatabase, UnreadDatabaseError, is_database

pytestmark = pytest.mark.versions

STORE = opened(case_named("5.5.0/c-rocksdb-queues-clean"))


def keys(family: Family | None) -> list[bytes]:
    assert family is not None
    return [key for key, _ in family.items()]


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    return copied(STORE / "consumequeue", tmp_path / "consumequeue")


def read(place: Path) -> RocksDatabase:
    return RocksDatabase(ReadOnlyDirectory(place.parent), place.name)


def test_a_database_is_read_without_a_change_to_its_directory() -> None:
    with unchanged(STORE):
        database = RocksDatabase(ReadOnlyDirectory(STORE), "consumequeue")
        assert {name: len(keys(family)) for name, family in database.families.items()} == {"default": 236, "offset": 7}
        assert (database.faults, database.torn) == ((), None)


def test_the_private_directory_is_removed_with_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    database = RocksDatabase(ReadOnlyDirectory(STORE), "consumequeue")
    assert len(os.listdir(tmp_path)) == 1
    del database
    assert os.listdir(tmp_path) == []


def test_the_write_ahead_log_of_a_running_process_is_read(tmp_path: Path) -> None:
    live = new_database(tmp_path / "live")
    for number in range(1000):
        live[b"%04d" % number] = b"v"
    live.flush_wal(True)
    database = read(tmp_path / "live")
    assert (len(keys(database.family())), database.faults, database.torn) == (1000, (), None)


def test_a_log_that_was_cut_is_torn_and_a_changed_one_is_a_fault(tmp_path: Path) -> None:
    live = new_database(tmp_path / "live")
    for number in range(1000):
        live[b"%04d" % number] = b"v"
    live.flush_wal(True)
    place = copied(tmp_path / "live", tmp_path / "killed")
    log = next(path for path in place.glob("*.log") if path.stat().st_size)
    os.truncate(log, log.stat().st_size // 2 + 3)
    cut = read(place)
    assert 400 < len(keys(cut.family())) < 600
    assert (cut.torn, cut.faults) == ("truncated header", ())
    flip(log, log.stat().st_size // 2)
    changed = read(place)
    assert 200 < len(keys(changed.family())) < 300
    assert (changed.torn, changed.faults) == (None, ("checksum mismatch",))


def _without(number: int) -> Callable[[Path], None]:
    return lambda place: tables(place)[number].unlink()


DAMAGE: dict[str, tuple[Callable[[Path], object], dict[str, int], str]] = {
    "a table file of entries is missing": (_without(1), {"default": 0, "offset": 7}, "000011.sst: No such file or directory"),
    "a table file of bounds is missing": (_without(0), {"default": 236}, "000010.sst: No such file or directory"),
    "a table file is cut": (
        lambda place: os.truncate(tables(place)[1], 3000),
        {"default": 0, "offset": 7},
        "Expected 7466, actual size 3000",
    ),
    "the end of a table file is damaged": (lambda place: flip(tables(place)[1], -4), {"default": 0, "offset": 7}, "Bad table magic number"),
    "the manifest is damaged": (lambda place: flip(place / "MANIFEST-000005", 200), {"default": 236, "offset": 7}, "checksum mismatch"),
    "the manifest is missing": (lambda place: (place / "MANIFEST-000005").unlink(), {"default": 236, "offset": 7}, "MANIFEST-000005"),
    "CURRENT is damaged": (lambda place: (place / "CURRENT").write_bytes(b"x"), {"default": 236, "offset": 7}, "CURRENT"),
    "CURRENT is missing": (lambda place: (place / "CURRENT").unlink(), {"default": 236, "offset": 7}, "CURRENT"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_a_repair_can_save_is_read_and_the_fault_is_named(what: str, damaged: Path) -> None:
    change, left, sentence = DAMAGE[what]
    change(damaged)
    assert is_database(ReadOnlyDirectory(damaged.parent), "consumequeue")
    with unchanged(damaged):
        database = read(damaged)
        assert {name: len(keys(family)) for name, family in database.families.items()} == left
    assert len(database.faults) == 1
    assert sentence in database.faults[0]
    assert "mqstore-rocksdb" not in database.faults[0]


def test_a_damaged_block_is_a_fault_once_it_is_read(damaged: Path) -> None:
    flip(tables(damaged)[1], 100)
    database = read(damaged)
    assert database.faults == ()
    found: list[str] = []
    entries = database.family()
    assert entries is not None
    assert list(entries.items(on_fault=found.append)) == []
    assert database.faults == tuple(found)
    assert "block checksum mismatch" in found[0]


def test_a_database_with_another_order_of_keys_is_refused_in_a_sentence(damaged: Path) -> None:
    rename_comparator(damaged)
    with pytest.raises(UnreadDatabaseError, match=r"consumequeue cannot be opened: .*leveldb\.BackwiseComparator"):
        read(damaged)


def test_without_the_library_the_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqstore.files.rocksdb.is_installed", lambda: False)
    with pytest.raises(UnreadDatabaseError, match=r"pip install 'mqstore\[rocksdb\]'"):
        RocksDatabase(ReadOnlyDirectory(STORE), "consumequeue")


def test_a_directory_of_queue_files_is_not_a_database() -> None:
    plain = ReadOnlyDirectory(opened(case_named("5.5.0/a-clean")))
    assert not is_database(plain, "consumequeue")
    assert not is_database(plain, "nothing")
