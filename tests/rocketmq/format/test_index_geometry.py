"""The geometry of index files: proved by the whole file, or called ambiguous."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from support.golden import case_named, opened
from support.s3 import endpoint

import mqstore
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Kind
from mqstore.rocketmq.format import index_geometry
from mqstore.rocketmq.format.index_file import IndexDirectory, load
from mqstore.rocketmq.format.index_geometry import file_size, geometry_of_length

BEGIN = 1_640_995_200_123
NAME = 20220101083015123
Key = tuple[int, int, int]  # hash, physical offset, store time


def index_file(slots: int, positions: int, keys: list[Key]) -> bytes:
    """An index file as a broker writes it, in plain Python."""
    newest: dict[int, int] = {}
    entries = bytearray(20)
    for number, (key_hash, physical, time) in enumerate(keys, 1):
        entries += struct.pack(">iqii", key_hash, physical, (time - keys[0][2]) // 1000, newest.get(key_hash % slots, 0))
        newest[key_hash % slots] = number
    ends = (keys[0][2], keys[-1][2], keys[0][1], keys[-1][1]) if keys else (0, 0, 0, 0)
    table = b"".join(struct.pack(">i", newest.get(slot, 0)) for slot in range(slots))
    return struct.pack(">qqqqii", *ends, len(newest), len(keys) + 1) + table + bytes(entries).ljust(20 * positions, b"\0")


def directory(root: Path, *files: bytes) -> ReadOnlyDirectory:
    (root / "index").mkdir()
    for number, raw in enumerate(files):
        (root / "index" / str(NAME + number)).write_bytes(raw)
    return ReadOnlyDirectory(root)


def shapes(found: IndexDirectory) -> list[tuple[int, int]]:
    return [(file.slot_count, file.positions) for file in found.files]


def keys(count: int, *, same_record: int = 1, start: int = 0) -> list[Key]:
    """Keys of records of 300 bytes; the last `same_record` of them are of one record."""
    made = [(77_777 * (k + 1) % (2**31 - 1), start + 300 * k, BEGIN + 137 * k) for k in range(count)]
    return [*made[: count - same_record], *((key_hash, *made[-1][1:]) for key_hash, *_ in made[count - same_record :])]


@pytest.mark.parametrize("same_record", [1, 2, 5, 20])
@pytest.mark.parametrize("shape", [(100, 400), (105, 399), (50, 410), (600, 300), (5, 419), (3, 40), (200, 30), (1, 31)])
def test_several_keys_of_the_last_record_do_not_hide_the_geometry(tmp_path: Path, shape: tuple[int, int], same_record: int) -> None:
    # the header's end offset is then found in as many entries; the first of them used to be taken for the last
    found = load(directory(tmp_path, index_file(*shape, keys(29, same_record=same_record))))
    assert (shapes(found), found.findings, found.unread) == ([shape], (), ())
    assert found.files[0].proved


@pytest.mark.parametrize("count", [1, 2, 3, 40, 399])
def test_any_number_of_entries_shows_it(tmp_path: Path, count: int) -> None:
    found = load(directory(tmp_path, index_file(50, 410, keys(count))))
    assert shapes(found) == [(50, 410)]
    assert geometry_of_length(file_size((50, 410))) == (100, 400)


def test_files_of_one_length_need_not_have_one_geometry(tmp_path: Path) -> None:
    files = [index_file(100, 400, keys(399)), index_file(50, 410, keys(120, start=10**6)), index_file(600, 300, keys(7, start=10**7))]
    found = load(directory(tmp_path, *files))
    assert shapes(found) == [(100, 400), (50, 410), (600, 300)]


def test_an_empty_file_has_the_geometry_of_the_others_of_its_length(tmp_path: Path) -> None:
    found = load(directory(tmp_path, index_file(50, 410, keys(409)), bytes(8440)))
    assert shapes(found) == [(50, 410), (50, 410)]
    assert [file.proved for file in found.files] == [True, True]


def test_a_single_empty_file_proves_nothing_unless_it_has_the_default_length(tmp_path: Path) -> None:
    (file,) = load(directory(tmp_path, bytes(8440))).files
    assert (file.index_count, file.proved) == (1, False)
    (tmp_path / "index" / str(NAME)).unlink()
    with (tmp_path / "index" / str(NAME)).open("wb") as large:
        large.truncate(420_000_040)
    (file,) = load(ReadOnlyDirectory(tmp_path)).files
    assert (file.slot_count, file.positions, file.proved) == (5_000_000, 20_000_000, True)


def test_one_key_of_hash_zero_in_the_first_record_is_ambiguous(tmp_path: Path) -> None:
    raw = index_file(100, 400, [(0, 0, BEGIN)])
    found = load(directory(tmp_path, raw))
    assert (found.files, found.findings) == ((), ())
    (unread,) = found.unread
    assert "ambiguous" in unread.sentence
    assert "maxHashSlotNum=100 with maxIndexNum=400" in unread.sentence
    assert "--config" in unread.sentence
    assert shapes(load(ReadOnlyDirectory(tmp_path), slots=100, positions=400)) == [(100, 400)]


def test_entries_that_no_geometry_fits_are_damage(tmp_path: Path) -> None:
    raw = bytearray(index_file(50, 410, keys(300)))
    raw[40:240] = bytes(200)  # the slots
    raw[240 + 20 * 5 : 240 + 20 * 250] = b"\x55" * (20 * 245)
    found = load(directory(tmp_path, bytes(raw)))
    assert found.files == ()
    assert [item.kind for item in found.findings] == [Kind.BAD_INDEX_HEADER]
    assert "its header counts 300 entries, but no geometry fits them" in found.findings[0].detail


@pytest.mark.parametrize("at", [0, 8, 16, 24, 32, 36])
def test_a_damaged_header_or_a_few_damaged_entries_do_not_hide_it(tmp_path: Path, at: int) -> None:
    raw = bytearray(index_file(100, 400, keys(300)))
    raw[at : at + 4] = b"\x00\x00\x13\x57"
    raw[440 + 20 * 7 : 440 + 20 * 8] = b"\xff" * 20
    found = load(directory(tmp_path, bytes(raw)))
    assert shapes(found) == [(100, 400)]


def test_a_configuration_that_the_entries_contradict_is_a_finding(tmp_path: Path) -> None:
    where = directory(tmp_path, index_file(50, 410, keys(300)))
    found = load(where, slots=100, positions=400)
    assert shapes(found) == [(50, 410)]
    assert [item.kind for item in found.findings] == [Kind.BAD_INDEX_HEADER]
    assert "laid out for 50 slots and 410 positions, --config has 100 and 400" in found.findings[0].detail
    assert not found.files[0].proved


@pytest.mark.parametrize("name", ["4.9.3/q-few-slots", "5.3.3/r-many-slots"])
def test_real_files_of_8440_bytes_need_not_have_100_slots(name: str) -> None:
    case = case_named(name)
    found = load(ReadOnlyDirectory(opened(case)))
    wanted = int(case.properties["maxHashSlotNum"]), int(case.properties["maxIndexNum"])
    assert set(shapes(found)) == {wanted} != {(100, 400)}
    assert {file.inferred for file in found.files} == {"from the length and the header; the entries agree"}


def test_of_large_and_of_many_files_the_end_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_geometry, "WHOLE", 50)
    monkeypatch.setattr(index_geometry, "LAST", 40)
    monkeypatch.setattr(index_geometry, "FEW", 20)
    monkeypatch.setattr(index_geometry, "IN_FULL", 2)
    files = [index_file(50, 410, keys(count, same_record=3)) for count in (409, 409, 409, 409, 200, 45)]
    found = load(directory(tmp_path, *files))
    assert set(shapes(found)) == {(50, 410)}
    assert all(file.inferred.endswith("the entries agree") for file in found.files)


# a file with many entries, of which the last ones are checked


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_geometry, "WHOLE", 10)
    monkeypatch.setattr(index_geometry, "LAST", 8)


def _changed(raw: bytes, number: int, at: int, content: bytes) -> bytes:
    place = 40 + 4 * 100 + 20 * number + at
    return raw[:place] + content + raw[place + len(content) :]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("at", "content"),
    [(0, b"\xff" * 4), (4, bytes(8)), (12, b"\xff" * 4), (16, b"\x00\x00\x00\x27"), (16, b"\xff\xff\xff\xfe")],
    ids=["hash", "offset", "seconds", "later-link", "negative-link"],
)
def test_one_wrong_entry_among_the_last_of_many_leaves_the_geometry_of_the_others(at: int, content: bytes, tmp_path: Path) -> None:
    raw = index_file(100, 400, keys(40))
    (tmp_path / "whole").mkdir()
    assert shapes(load(directory(tmp_path / "whole", raw))) == [(100, 400)]
    assert shapes(load(directory(tmp_path, _changed(raw, 37, at, content)))) == [(100, 400)]


def test_bytes_after_the_last_entry_leave_the_geometry_in_which_that_has_the_end_offset(tmp_path: Path) -> None:
    raw = index_file(600, 300, keys(29))
    found = load(directory(tmp_path, raw[:-1] + b"\1"))
    assert [(file.slot_count, file.positions, file.inferred) for file in found.files] == [(600, 300, "most of the entries agree")]


def test_the_end_offset_is_looked_for_in_some_places_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = index_file(100, 400, keys(29, same_record=20))
    monkeypatch.setattr(index_geometry, "PLACES", 1)
    assert shapes(load(directory(tmp_path, raw))) == [(100, 400)]


def test_the_geometry_of_a_large_file_behind_a_url_is_that_of_its_last_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_named("4.9.3/m-damaged/0-clean")
    monkeypatch.setattr(index_geometry, "REMOTE_SIZE", 1000)
    there = mqstore.open(endpoint().uploaded(opened(case), window=4096)).index_files()
    here = mqstore.open(opened(case)).index_files()
    assert [(file.slot_count, file.positions) for file in there] == [(file.slot_count, file.positions) for file in here]
    monkeypatch.setattr(index_geometry, "SEARCHED", 1000)
    unread = mqstore.open(endpoint().uploaded(opened(case_named("4.9.3/m-damaged/09-index")), window=4096))
    assert len(unread.index_files()) + len(unread.unread_index) == 3


@pytest.mark.usefixtures("few")
def test_entries_of_one_slot_that_do_not_follow_each_other_leave_the_geometry_of_the_others(tmp_path: Path) -> None:
    raw = bytearray(index_file(5, 400, keys(40)))
    place = 40 + 4 * 5 + 20 * 39 + 16
    raw[place : place + 4] = (35).to_bytes(4, "big")  # the entry is that of another slot
    assert shapes(load(directory(tmp_path, bytes(raw)))) == [(5, 400)]


def test_a_file_of_which_no_entry_can_be_one_has_no_geometry(tmp_path: Path) -> None:
    raw = index_file(100, 400, keys(40))
    for number in range(1, 41):
        raw = _changed(raw, number, 0, b"\xff" * 4)
    found = load(directory(tmp_path, raw))
    assert (shapes(found), len(found.unread)) == ([], 1)


@pytest.mark.parametrize("places", [1, 64])
def test_without_its_slots_a_file_is_searched_for_its_end_offset(places: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = index_file(100, 400, keys(29, same_record=20))
    monkeypatch.setattr(index_geometry, "PLACES", places)
    assert not any(file.proved for file in load(directory(tmp_path, raw[:40] + bytes(400) + raw[440:])).files)
