"""File queues: which files there are, what is odd about them, and what a broker would object to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.golden import case_named, opened

import mqstore
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Kind
from mqstore.rocketmq.format.mapped_file_queue import FileQueue, infer_size, load


def make(root: Path, files: dict[str, int], directories: tuple[str, ...] = ()) -> Path:
    place = root / "q"
    place.mkdir()
    for name, size in files.items():
        with (place / name).open("wb") as file:
            file.truncate(size)
    for name in directories:
        (place / name).mkdir()
    return root


def queue(root: Path, files: dict[str, int], directories: tuple[str, ...] = (), **options: int) -> FileQueue:
    return load(ReadOnlyDirectory(make(root, files, directories)), "q", **options)


def name(start: int) -> str:
    return f"{start:020d}"


def kinds(found: FileQueue) -> list[tuple[str, Kind]]:
    return [(item.file, item.kind) for item in found.findings]


def test_a_missing_directory_is_an_empty_queue(tmp_path: Path) -> None:
    found = load(ReadOnlyDirectory(tmp_path), "commitlog")
    assert (found.files, found.file_size, found.findings) == ((), 0, ())


def test_files_come_in_order_with_their_positions(tmp_path: Path) -> None:
    found = queue(tmp_path, {name(2000): 1000, name(1000): 1000, name(3000): 1000})
    assert [(file.start, file.relative) for file in found.files] == [
        (1000, f"q/{name(1000)}"),
        (2000, f"q/{name(2000)}"),
        (3000, f"q/{name(3000)}"),
    ]
    assert found.file_size == 1000
    assert found.findings == ()
    assert found.refusals("4.9.3") == found.refusals("5.3.3") == ()


def test_a_position_is_found_in_its_file_and_nowhere_else(tmp_path: Path) -> None:
    found = queue(tmp_path, {name(1000): 1000, name(2000): 1000, name(4000): 1000})
    assert found.file_at(999) is None
    assert [file.start if file else None for file in map(found.file_at, (1000, 1999, 2000, 2999, 3000, 3999, 4000, 4999, 5000))] == [
        *(1000, 1000, 2000, 2000, None, None, 4000, 4000, None)
    ]


@pytest.mark.parametrize(
    ("files", "size"),
    [
        ([], 0),
        ([(0, 0)], 0),
        ([(0, 700)], 700),
        ([(0, 1000), (1000, 400)], 1000),
        ([(0, 400), (1000, 1000)], 1000),
        ([(0, 1000), (1000, 0)], 1000),
        ([(0, 400), (1000, 700)], 1000),
        ([(0, 1000), (1000, 1000), (5000, 1000)], 1000),
        ([(0, 1000), (5000, 1000)], 1000),
    ],
)
def test_the_size_of_all_files_is_inferred(files: list[tuple[int, int]], size: int) -> None:
    assert infer_size(files) == size


def test_a_configured_size_overrides_what_the_files_suggest(tmp_path: Path) -> None:
    found = queue(tmp_path, {name(0): 700}, size=1000)
    assert found.file_size == 1000
    assert kinds(found) == [(f"q/{name(0)}", Kind.WRONG_SIZE)]


def test_a_file_of_another_size_is_read_and_no_broker_starts_on_it(tmp_path: Path) -> None:
    found = queue(tmp_path, {name(0): 1000, name(1000): 1000, name(2000): 400})
    assert len(found.files) == 3
    assert kinds(found) == [(f"q/{name(2000)}", Kind.WRONG_SIZE)]
    for version in ("4.9.3", "5.3.3"):
        (sentence,) = found.refusals(version)
        assert "400 bytes" in sentence


def test_an_empty_last_file_stops_4_9_only(tmp_path: Path) -> None:
    found = queue(tmp_path, {name(0): 1000, name(1000): 1000, name(2000): 0})
    assert kinds(found) == [(f"q/{name(2000)}", Kind.WRONG_SIZE)]
    assert len(found.refusals("4.9.3")) == 1
    assert found.refusals("5.3.3") == ()


def test_an_empty_file_in_the_middle_stops_both(tmp_path: Path) -> None:
    found = queue(tmp_path, {name(0): 1000, name(1000): 0, name(2000): 1000})
    assert len(found.refusals("4.9.3")) == len(found.refusals("5.3.3")) == 1


def test_a_directory_among_the_files_stops_4_9_only(tmp_path: Path) -> None:
    found = queue(tmp_path, {name(0): 1000}, ("lost",))
    assert kinds(found) == [("q/lost", Kind.STRAY_FILE)]
    assert "directory" in found.refusals("4.9.3")[0]
    assert found.refusals("5.3.3") == ()


def test_a_stray_file_is_left_out_and_stops_both(tmp_path: Path) -> None:
    found = queue(tmp_path, {name(0): 1000, "notes.txt": 12, "copy": 1000})
    assert [file.start for file in found.files] == [0]
    assert sorted(kinds(found)) == [("q/copy", Kind.STRAY_FILE), ("q/notes.txt", Kind.STRAY_FILE)]
    for version in ("4.9.3", "5.3.3"):
        assert len(found.refusals(version)) == 2


def test_a_missing_middle_is_found_with_its_place_and_length(tmp_path: Path) -> None:
    found = queue(tmp_path, {name(0): 1000, name(3000): 1000})
    (item,) = found.findings
    assert (item.file, item.kind, item.length) == (f"q/{name(1000)}", Kind.MISSING_FILE, 2000)
    assert found.refusals("4.9.3") == ()


def test_deleted_heads_are_no_damage(tmp_path: Path) -> None:
    assert queue(tmp_path, {name(7000): 1000, name(8000): 1000}).findings == ()


def test_a_file_that_begins_inside_another_is_left_out(tmp_path: Path) -> None:
    found = queue(tmp_path, {name(0): 1000, name(500): 1000, name(1000): 1000})
    assert [file.start for file in found.files] == [0, 1000]
    assert kinds(found) == [(f"q/{name(500)}", Kind.STRAY_FILE)]


def test_a_file_far_astray_does_not_stretch_a_queue(tmp_path: Path) -> None:
    found = queue(tmp_path, {name(0): 1000, name(1000): 1000, name(10**18): 1000}, max_gap=100)
    assert [file.start for file in found.files] == [0, 1000]
    assert kinds(found) == [(f"q/{name(10**18)}", Kind.STRAY_FILE)]


@pytest.mark.parametrize("odd", ["9" * 20, "٣" * 20, "-0000000000000000001", "1", "0" * 21])
def test_a_name_that_is_no_position_is_a_stray(tmp_path: Path, odd: str) -> None:
    found = queue(tmp_path, {name(0): 1000, odd: 1000})
    assert [file.start for file in found.files] == [0]
    assert kinds(found) == [(f"q/{odd}", Kind.STRAY_FILE)]


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**40)), max_size=8).map(sorted))
def test_inference_takes_any_files(files: list[tuple[int, int]]) -> None:
    assert infer_size(files) >= 0


@pytest.mark.parametrize(
    ("files", "silent"),
    [
        ({0: 8704, 200: 200, 8192: 8192}, {200}),  # a file of something else
        ({0: 8704, 8192: 8192}, {8192}),  # the next file, without a record yet
        ({0: 8704, 8192: 8704, 16384: 8192}, {16384}),
    ],
)
def test_files_whose_records_confirm_their_names_show_the_size(files: dict[int, int], silent: set[int], tmp_path: Path) -> None:
    directory = ReadOnlyDirectory(make(tmp_path, {name(start): size for start, size in files.items()}))
    found = load(directory, "q", start_in=lambda file: None if file.start in silent else file.start)
    assert found.file_size == 8192
    assert [file.start for file in found.files] == [start for start in files if start % 8192 == 0]


def test_a_queue_is_named_by_its_topic_and_number_and_shows_its_offsets() -> None:
    case = case_named("4.9.3/a-clean-small")
    queue = mqstore.open(opened(case), config=case.config).consume_queues()[0]
    assert queue._title() == f"queue {queue.queue_id} of topic {queue.topic!r}"
    assert dict(queue._facts())["offsets"] == f"{queue.min_offset} to {queue.max_offset}"


def test_a_name_that_a_broker_sorts_elsewhere_is_out_of_place(tmp_path: Path) -> None:
    found = queue(tmp_path, {name(0): 1000, name(1000): 1000, "2000": 1000, "-5": 1000, "x": 1000})
    assert sorted(found.out_of_place()) == [("q/-5", -5), ("q/2000", 2000)]


def test_a_pipe_in_the_place_of_a_file_is_not_read(tmp_path: Path) -> None:
    make(tmp_path, {name(0): 1000})
    os.mkfifo(tmp_path / "q" / name(1000))
    os.mkfifo(tmp_path / "q" / "pipe")
    found = load(ReadOnlyDirectory(tmp_path), "q")
    assert sorted(kinds(found)) == sorted([(f"q/{name(1000)}", Kind.UNREADABLE), ("q/pipe", Kind.STRAY_FILE)])
