"""`verify` of an index in RocksDB: the store of a real 5.5.0, sound and changed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.golden import case_named, opened, unpack
from support.rocksdb import flip, tables

import mqstore
from mqstore.findings import Damage, Kind, Report
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.format.rocksdb_store import index_keys
from mqstore.rocketmq.verify.verification import verify

CASE = case_named("5.5.0/e-rocksdb-config-v1")
PLACE = "rocksdbstore"

Change = Callable[[Any, list[bytes]], None]


def changed(store: Path, change: Change) -> None:
    """Change the index of a store with the library. change: gets the database and the keys of the entries."""
    from rocksdict import Options, Rdict

    place = str(store / PLACE)
    names = Rdict.list_cf(place, Options(raw_mode=True))
    database = Rdict(place, Options(raw_mode=True), {name: Options(raw_mode=True) for name in names})
    change(database, [key for key, _ in database.items() if not key.startswith(b"last")])
    database.close()


def checked(store: Path) -> tuple[Report, list[Damage]]:
    report = verify(mqstore.open(store))
    return report, [item for item in report.damage if item.file == PLACE]


def after(key: bytes, physical_offset: int) -> bytes:
    return key[:-8] + physical_offset.to_bytes(8, "big")


def test_every_entry_is_compared_and_a_sound_index_has_no_finding() -> None:
    report, found = checked(opened(CASE))
    assert (found, report.damage) == ([], ())
    assert report.checked.index_entries == 698  # of the index files, and as many in the database
    assert not any("index in RocksDB" in note for note in report.notes)


@pytest.mark.parametrize(
    ("change", "kind", "sentence"),
    [
        (lambda db, keys: db.delete(keys[7]), Kind.MISSING_INDEX_ENTRY, "1 messages have a key without an entry"),
        (lambda db, keys: [db.delete(key) for key in keys[7:307]], Kind.MISSING_INDEX_ENTRY, "messages have a key without an entry"),
        (lambda db, keys: db.put(after(keys[7], 77), db[keys[7]]), Kind.BAD_INDEX_ENTRY, "offset 77, where no valid record starts"),
        (lambda db, keys: db.put(keys[7][:8] + b"@t@K@k@u@" + keys[7][-8:], db[keys[7]]), Kind.BAD_INDEX_ENTRY, "does not have that key"),
        (lambda db, keys: db.put(keys[7], struct.pack(">q", 5)), Kind.BAD_INDEX_ENTRY, "has store time 5, its record at"),
        (lambda db, keys: db.put(b"not an entry", b""), Kind.BAD_INDEX_ENTRY, "1 pairs of the index in RocksDB are not entries"),
    ],
    ids=["one missing", "many missing", "no record", "another key", "another time", "no entry"],
)
def test_a_changed_index_is_named(change: Change, kind: Kind, sentence: str, tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    changed(store, change)
    report, found = checked(store)
    assert [item.kind for item in found] == [kind]
    assert sentence in found[0].detail
    assert list(report.damage) == found


def test_many_wrong_entries_are_counted(tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    changed(store, lambda db, keys: [db.put(after(keys[0], 1000 + number), db[keys[0]]) for number in range(250)])
    _, found = checked(store)
    assert any("further entries of the index in RocksDB are wrong" in item.detail for item in found)


def test_what_the_index_does_not_cover_is_a_note(tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    log = mqstore.open(store).log
    offsets = [event.file.start + at for event in log.scan() if isinstance(event, Records) for at in event.positions.tolist()]
    keys = [index_keys(log.record(offset)) for offset in offsets]

    def shorten(database: Any, _: list[bytes]) -> None:
        for key in (key for group in (*keys[:10], *keys[-5:]) for key in group):
            database.delete(key)
        database.put(b"lastOffsetPy", struct.pack(">q", offsets[-6]))

    changed(store, shorten)
    report, found = checked(store)
    assert found == []
    assert any("begins after the log: 10 messages with unique keys are before its first entry" in note for note in report.notes)
    assert any("5 messages with unique keys are after the newest entry" in note for note in report.notes)


def test_a_block_that_cannot_be_read_is_one_finding_and_no_message_is_called_missing(tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    changed(store, lambda database, keys: database.flush())
    flip(tables(store / PLACE)[-1], 100)
    report, found = checked(store)
    assert {item.kind for item in found} == {Kind.BAD_DATABASE}
    assert any("is not known" in note for note in report.notes)


def test_a_missing_table_is_a_finding(tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    changed(store, lambda database, keys: database.flush())
    tables(store / PLACE)[-1].unlink()
    report, found = checked(store)
    assert Kind.BAD_DATABASE in {item.kind for item in found}
    assert {item.kind for item in found} <= {Kind.BAD_DATABASE, Kind.MISSING_INDEX_ENTRY}
    assert report.checked.messages == 120


@pytest.mark.parametrize("position", [0, 4000, 9000, -60])
def test_whichever_block_is_damaged_nothing_is_called_missing_or_wrong(position: int, tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    changed(store, lambda database, keys: database.flush())
    flip(tables(store / PLACE)[-1], position)
    report, found = checked(store)
    assert {item.kind for item in found} == {Kind.BAD_DATABASE}
    assert report.checked.messages == 120


def test_without_the_library_the_index_is_named_as_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqstore.rocketmq.store.databases.is_installed", lambda: False)
    report, found = checked(opened(CASE))
    assert found == []
    assert any("whether it has the keys of every message is not known" in note for note in report.notes)
