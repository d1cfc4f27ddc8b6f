"""Index files: the bytes of the worked examples, and the geometry, which is not stored."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.golden import PLAIN, GoldenCase, boot, case_id, opened

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Kind
from mqstore.rocketmq.format.index_file import IndexEntry, IndexFile, load
from mqstore.rocketmq.format.index_geometry import geometry_of_length
from mqstore.rocketmq.query.index_search import query_offsets

FIRST = bytes.fromhex(
    "0000017e12ef9c7b0000017e12f0866000000000000003e80000000000000bb80000000100000004"
    "00000003000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000"
    "4963b6f600000000000003e80000000000000000"
    "0029e2d000000000000007d00000000100000001"
    "051276680000000000000bb80000003b00000002"
).ljust(480, b"\0")
NAME = "20220101083015123"


def write(root: Path, *files: bytes) -> ReadOnlyDirectory:
    (root / "index").mkdir()
    for number, raw in enumerate(files):
        (root / "index" / f"{int(NAME) + number}").write_bytes(raw)
    return ReadOnlyDirectory(root)


def made(slots: int, positions: int, keys: int, seed: int = 1) -> bytes:
    """An index file with `keys` random keys."""
    chance = random.Random(seed)
    newest: dict[int, int] = {}
    entries = bytearray(20)
    physical = 1000
    for number in range(1, keys + 1):
        key_hash = chance.getrandbits(31)
        entries += struct.pack(">iqii", key_hash, physical, number // 10, newest.get(key_hash % slots, 0))
        newest[key_hash % slots] = number
        physical += chance.randrange(100, 900)
    last = physical if not keys else struct.unpack_from(">q", entries, 20 * keys + 4)[0]
    header = struct.pack(">qqqqii", 1640995200123, 1640995200123 + 1000 * (keys // 10), 1000, last, len(newest), keys + 1)
    table = b"".join(struct.pack(">i", newest.get(slot, 0)) for slot in range(slots))
    return header + table + bytes(entries).ljust(20 * positions, b"\0")


def only(directory: ReadOnlyDirectory, **options: int) -> IndexFile:
    (file,) = load(directory, **options).files
    return file


def test_the_worked_example_is_read_field_by_field(tmp_path: Path) -> None:
    file = only(write(tmp_path, FIRST), slots=10, positions=20)
    assert tuple(file.header) == (1640995200123, 1640995260000, 1000, 3000, 1, 4)
    assert [file.slot(number) for number in range(10)] == [3, *[0] * 9]
    assert [file.entry(number) for number in range(1, 5)] == [
        IndexEntry(1231271670, 1000, 0, 0),
        IndexEntry(2745040, 2000, 1, 1),
        IndexEntry(85096040, 3000, 59, 2),
        IndexEntry(0, 0, 0, 0),
    ]
    assert file.entries(1, 4)["physical_offset"].tolist() == [1000, 2000, 3000]
    assert file.slots().tolist() == [3, *[0] * 9]
    assert (file.slot_position(2), file.entry_position(1)) == (48, 100)


def test_half_a_configuration_is_completed_by_the_length(tmp_path: Path) -> None:
    directory = write(tmp_path, FIRST)
    assert (only(directory, slots=10).slot_count, only(directory, slots=10).positions) == (10, 20)
    assert (only(directory, positions=20).slot_count, only(directory, positions=20).positions) == (10, 20)


@pytest.mark.parametrize(
    ("length", "geometry"), [(420_000_040, (5_000_000, 20_000_000)), (8440, (100, 400)), (8441, None), (40, None), (0, None)]
)
def test_the_broker_s_ratio_gives_the_geometry_of_a_length(length: int, geometry: tuple[int, int] | None) -> None:
    assert geometry_of_length(length) == geometry


@pytest.mark.parametrize(
    ("slots", "positions", "keys"),
    [
        (100, 400, 399),
        (100, 400, 3),
        (10, 20, 7),
        (7, 100, 99),
        (1000, 50, 30),
        (1, 500, 200),
        (105, 399, 200),
        (500, 500, 1),
        (1000, 4000, 0),
    ],
)
def test_the_geometry_is_inferred_from_length_and_content(tmp_path: Path, slots: int, positions: int, keys: int) -> None:
    found = load(write(tmp_path, made(slots, positions, keys)))
    assert [(file.slot_count, file.positions) for file in found.files] == [(slots, positions)]
    assert found.findings == ()


def test_a_file_of_one_length_lends_its_proof_to_an_empty_one(tmp_path: Path) -> None:
    # a file of 7 slots and 100 positions fits no ratio of four positions per slot; an empty file alone would not show its geometry
    found = load(write(tmp_path, made(7, 100, 60), bytes(40 + 28 + 2000)))
    assert [(file.slot_count, file.positions) for file in found.files] == [(7, 100), (7, 100)]


def test_damaged_entries_and_headers_do_not_change_the_geometry(tmp_path: Path) -> None:
    raw = bytearray(made(100, 400, 300))
    for number in (3, 20, 41):
        at = 40 + 400 + 20 * number
        raw[at : at + 20] = b"\xff" * 20
    count = bytearray(made(100, 400, 300))
    count[36:40] = b"\x7f\xff\xff\xff"
    found = load(write(tmp_path, bytes(raw), bytes(count)))
    assert [(file.slot_count, file.positions) for file in found.files] == [(100, 400), (100, 400)]


def test_a_cut_file_is_read_as_far_as_it_goes_and_told(tmp_path: Path) -> None:
    whole = made(100, 400, 300)
    found = load(write(tmp_path, whole, whole, whole[:3000]))
    assert len(found.files) == 3
    assert [(item.file, item.kind) for item in found.findings] == [(f"index/{int(NAME) + 2}", Kind.WRONG_SIZE)]
    assert found.files[2].entry(300) == IndexEntry(0, 0, 0, 0)


def test_what_is_no_index_file_is_skipped_and_told(tmp_path: Path) -> None:
    directory = write(tmp_path, made(100, 400, 10))
    (tmp_path / "index" / "notes").write_bytes(b"x")
    (tmp_path / "index" / "20990101000000000").mkdir()
    found = load(directory)
    assert len(found.files) == 1
    assert sorted(item.file for item in found.findings) == ["index/20990101000000000", "index/notes"]


def test_no_directory_is_no_files(tmp_path: Path) -> None:
    found = load(ReadOnlyDirectory(tmp_path))
    assert (found.files, found.findings) == ((), ())


@given(st.lists(st.binary(max_size=600) | st.binary(max_size=460).map(lambda raw: raw.ljust(1720, b"\0")), max_size=3))
def test_any_bytes_are_read_and_searched(tmp_path_factory: pytest.TempPathFactory, files: list[bytes]) -> None:
    found = load(write(tmp_path_factory.mktemp("i"), *files))
    assert len(found.files) + len(found.findings) >= len(files)
    for file in found.files:
        file.entry(-1), file.entry(2**31), file.slots()
    query_offsets(found.files, "T", "k")


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_the_geometry_and_headers_of_real_stores(case: GoldenCase) -> None:
    found = load(ReadOnlyDirectory(opened(case)))
    wanted = (int(case.properties.get("maxHashSlotNum", 5_000_000)), int(case.properties.get("maxIndexNum", 20_000_000)))
    assert {(file.slot_count, file.positions) for file in found.files} == {wanted}
    assert [file.name for file in found.files] == boot(case)["before"]["index"]
    assert found.findings == ()
    headers = {row["name"]: row for row in boot(case)["index_files"]}
    for file in found.files:
        if file.name in headers and headers[file.name]["index_count"] == file.index_count:
            row = headers[file.name]
            names = ("begin_timestamp", "end_timestamp", "begin_phy_offset", "end_phy_offset", "hash_slot_count", "index_count")
            assert list(file.header) == [row[name] for name in names]
            assert np.count_nonzero(file.slots()) == file.header.hash_slot_count
