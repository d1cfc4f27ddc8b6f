"""Consume queues as stored on disk."""

from __future__ import annotations

import gc
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.golden import PLAIN, GoldenCase, case_id, opened, queues

import mqstore
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Kind
from mqstore.rocketmq.format import consume_queue
from mqstore.rocketmq.format.consume_queue import ENTRY, ConsumeQueueReader, unpack, usable_topic

BLANK = bytes.fromhex("00000000000000007fffffff0000000000000000")
UNWRITTEN = bytes(20)


def entry(physical: int, size: int = 100, tags: int = 0) -> bytes:
    return struct.pack(">qiq", physical, size, tags)


def write(root: Path, start: int, *entries: bytes, topic: str = "T", queue_id: int = 0, file_size: int = 200) -> None:
    path = root / "consumequeue" / topic / str(queue_id) / f"{start:020d}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(entries).ljust(file_size, b"\0"))


def reader(root: Path, topic: str = "T", queue_id: int = 0) -> ConsumeQueueReader:
    return ConsumeQueueReader(ReadOnlyDirectory(root), topic, queue_id)


def offsets(found: ConsumeQueueReader, start: int = 0, stop: int = 1000) -> list[int]:
    return [int(row["physical_offset"]) for row in found.entries(start, stop)]


@pytest.mark.parametrize(
    ("raw", "fields"),
    [
        ("00000000000043e8000000b8000000000027a807", (17384, 184, 2598919)),
        ("00000000000043e8000000b8ffffffff80000000", (17384, 184, -2147483648)),
        ("00000000000043e8000000b80000017e12efa063", (17384, 184, 1640995201123)),
        ("00000000000043e8000000b80000000000000000", (17384, 184, 0)),
        ("00000000000000007fffffff0000000000000000", (0, 0x7FFFFFFF, 0)),
    ],
)
def test_an_entry_is_three_numbers(raw: str, fields: tuple[int, int, int]) -> None:
    assert unpack(bytes.fromhex(raw)) == fields


def test_a_queue_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    found = reader(tmp_path)
    assert (found.min_offset, found.max_offset, found.max_physical_offset, offsets(found)) == (0, 0, -1, [])


def test_a_queue_file_that_was_never_written_is_empty(tmp_path: Path) -> None:
    write(tmp_path, 0)
    found = reader(tmp_path)
    assert (found.min_offset, found.max_offset) == (0, 0)


def test_entries_run_across_files(tmp_path: Path) -> None:
    write(tmp_path, 0, *(entry(100 * n) for n in range(10)))
    write(tmp_path, 200, entry(1000), entry(1100, 77))
    found = reader(tmp_path)
    assert (found.min_offset, found.max_offset, found.max_physical_offset) == (0, 12, 1177)
    assert offsets(found) == [100 * n for n in range(12)]
    assert offsets(found, 9, 11) == [900, 1000]
    assert found.entries(8, 12).dtype == ENTRY


def test_blank_entries_are_no_messages(tmp_path: Path) -> None:
    write(tmp_path, 200, BLANK, BLANK, BLANK, entry(123456, 200, 2598919), entry(123656, 201, -5))
    found = reader(tmp_path)
    assert (found.min_offset, found.max_offset, found.max_physical_offset) == (13, 15, 123857)


def test_a_queue_of_blanks_holds_nothing(tmp_path: Path) -> None:
    write(tmp_path, 200, BLANK, BLANK, BLANK)
    found = reader(tmp_path)
    assert found.min_offset == found.max_offset == 13


def test_an_unwritten_entry_in_the_middle_keeps_the_places_of_the_others(tmp_path: Path) -> None:
    write(tmp_path, 0, entry(0), UNWRITTEN, entry(200))
    found = reader(tmp_path)
    assert (found.min_offset, found.max_offset) == (0, 3)
    assert [int(row["size"]) for row in found.entries(0, 3)] == [100, 0, 100]


def test_a_missing_file_reads_as_unwritten_and_is_a_finding(tmp_path: Path) -> None:
    write(tmp_path, 0, *(entry(100 * n + 1) for n in range(10)))
    write(tmp_path, 400, entry(2001))
    found = reader(tmp_path)
    assert found.max_offset == 21
    assert offsets(found, 8, 21) == [801, 901, *[0] * 10, 2001]
    assert [item.kind for item in found.findings] == [Kind.MISSING_FILE]


def test_an_empty_file_ahead_does_not_move_the_end(tmp_path: Path) -> None:
    write(tmp_path, 0, *(entry(100 * n) for n in range(10)))
    write(tmp_path, 200)
    assert reader(tmp_path).max_offset == 10


def test_a_name_far_astray_takes_no_memory(tmp_path: Path) -> None:
    write(tmp_path, 0, entry(0))
    write(tmp_path, 200, entry(1000))
    write(tmp_path, 20 * 10**17, entry(7))
    found = reader(tmp_path)
    assert found.max_offset == 11
    assert Kind.STRAY_FILE in [item.kind for item in found.findings]


def test_the_place_of_an_entry_is_its_file_and_byte(tmp_path: Path) -> None:
    write(tmp_path, 0, *(entry(100 * n) for n in range(10)))
    write(tmp_path, 200, entry(1000))
    found = reader(tmp_path)
    assert found.place(7) == ("consumequeue/T/0/00000000000000000000", 140)
    assert found.place(10) == ("consumequeue/T/0/00000000000000000200", 0)
    assert found.place(30) == ("consumequeue/T/0", 600)


def test_queues_are_listed_without_what_is_none(tmp_path: Path) -> None:
    for topic, queue_id in (
        ("%RETRY%g", "0"),
        ("a|b", "11"),
        ("a|b", "2"),
        ("a|b", "x"),
        ("a|b", "007"),
        ("a|b", "99999999999"),
        ("a|b", "٣"),
    ):
        (tmp_path / "consumequeue" / topic / queue_id).mkdir(parents=True)
    (tmp_path / "consumequeue" / "stray").write_bytes(b"")
    (tmp_path / "consumequeue" / "a|b" / "5").write_bytes(b"")
    assert consume_queue.queues(ReadOnlyDirectory(tmp_path)) == [("%RETRY%g", 0), ("a|b", 2), ("a|b", 11)]


def test_a_directory_name_that_is_not_utf_8_is_shown_with_replacement(tmp_path: Path) -> None:
    write(tmp_path, 0, entry(0), topic="x\udcff")
    (listed,) = consume_queue.queues(ReadOnlyDirectory(tmp_path))
    found = reader(tmp_path, *listed)
    assert (found.topic, found.max_offset) == ("x�", 1)


def test_the_neighbours_of_a_cut_file_tell_its_length(tmp_path: Path) -> None:
    for queue_id in range(3):
        write(tmp_path, 0, entry(0), queue_id=queue_id)
    write(tmp_path, 0, entry(0), queue_id=3, file_size=60)
    directory = ReadOnlyDirectory(tmp_path)
    size = consume_queue.common_file_size(directory)
    assert size == 200
    found = ConsumeQueueReader(directory, "T", 3, file_size=size)
    assert (found.max_offset, [item.kind for item in found.findings]) == (1, [Kind.WRONG_SIZE])


def test_one_file_alone_tells_no_common_length(tmp_path: Path) -> None:
    write(tmp_path, 0, entry(0))
    assert consume_queue.common_file_size(ReadOnlyDirectory(tmp_path)) is None


def test_thousands_of_queues_stay_below_the_limit_of_open_files(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    for queue_id in range(600):
        write(tmp_path, 0, entry(0), queue_id=queue_id)
    directory = ReadOnlyDirectory(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # what other tests of this process have let go of
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 400, hard))
    try:
        found = [ConsumeQueueReader(directory, *listed) for listed in consume_queue.queues(directory)]
        assert [queue.max_offset for queue in found] == [1] * 600
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@given(
    st.lists(st.sampled_from([UNWRITTEN, BLANK, entry(5), entry(-1, -1, -1), b"\xff" * 20]), max_size=24),
    st.integers(-5, 40),
    st.integers(-5, 40),
)
def test_any_bytes_give_entries_within_the_bounds(
    tmp_path_factory: pytest.TempPathFactory, entries: list[bytes], start: int, stop: int
) -> None:
    root = tmp_path_factory.mktemp("q")
    write(root, 0, *entries[:10])
    write(root, 200, *entries[10:20])
    found = reader(root)
    assert 0 <= found.min_offset <= found.max_offset <= 20
    assert len(found.entries(start, stop)) == max(0, min(stop, found.max_offset) - max(start, found.min_offset))


CLEAN = [case for case in PLAIN if not any(mark in case.name for mark in ("kill9", "rolled", "batch-queue"))]


@pytest.mark.parametrize("case", CLEAN, ids=case_id)
def test_queues_of_a_clean_store_are_what_the_broker_reads(case: GoldenCase) -> None:
    directory = ReadOnlyDirectory(opened(case))
    for row in queues(case):
        found = ConsumeQueueReader(directory, row["topic"], row["queue_id"])
        assert (found.min_offset, found.max_offset) == (row["min_offset"], row["max_offset"])
        assert [list(map(int, entry)) for entry in found.entries(found.min_offset, found.max_offset).tolist()] == row["entries"]
        assert found.max_physical_offset == row["max_physic_offset"] or row["entries"] == []


def test_a_queue_without_an_entry_lists_nothing(tmp_path: Path) -> None:
    place = tmp_path / "consumequeue" / "t" / "0"
    place.mkdir(parents=True)
    (place / f"{0:020d}").write_bytes(bytes(200))
    (reader,) = mqstore.open(_with_log(tmp_path)).consume_queues()
    assert (reader.min_offset, reader.max_offset, reader.listed) == (0, 0, 0)


def test_a_queue_ends_in_a_file_before_one_that_was_made_ahead(tmp_path: Path) -> None:
    place = tmp_path / "consumequeue" / "t" / "0"
    place.mkdir(parents=True)
    (place / f"{0:020d}").write_bytes((struct.pack(">qiq", 0, 100, 0) * 3).ljust(200, b"\0"))
    (place / f"{200:020d}").write_bytes(bytes(200))
    (reader,) = mqstore.open(_with_log(tmp_path)).consume_queues()
    assert (reader.min_offset, reader.max_offset) == (0, 3)


def _with_log(root: Path) -> Path:
    (root / "commitlog").mkdir()
    (root / "commitlog" / f"{0:020d}").write_bytes(bytes(1024))
    return root


def test_a_topic_is_the_name_of_a_directory() -> None:
    assert all(map(usable_topic, ("a" * 255, "é" * 127, "...", "x y")))
    assert not any(map(usable_topic, ("", "a" * 256, "é" * 128, ".", "..", "a/b", "a\0", "\ud800")))
