"""Reading ahead of a walk: a window of the page cache in front of it, filled by a thread that begins where the cache ends."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from files.test_holes import cached_pages

from mqstore.files import read_ahead
from mqstore.files.read_ahead import LEAST, PIECE, WINDOW, ReadAhead
from mqstore.files.readonly import MappedFile

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="sendfile to a file, and the page cache of Linux"),
    pytest.mark.real_sizes,
]
SIZE = 3 * WINDOW
MOST_READAHEAD = 32 << 20  # bytes that a device of usual settings reads beyond a request


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """A file on disk, none of it in the page cache."""
    path = tmp_path / "log"
    path.write_bytes(os.urandom(1 << 20) * (SIZE >> 20))
    evict(path)
    if cached_pages(path):
        pytest.skip("this file system keeps files in memory")
    return path


def evict(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    limit = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.01)


def readers() -> int:
    return sum(thread.name == "mqstore-read-ahead" for thread in threading.enumerate())


def open_on(path: Path) -> int:
    """How many descriptors of this process are open on a file; what other tests left to the garbage collector does not count."""
    wanted, found = os.stat(path), 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself, and any that closed meanwhile
            found += os.path.samestat(wanted, os.stat(f"/proc/self/fd/{name}"))
    return found


def cached(path: Path, length: int = 0) -> int:
    return cached_pages(path, length) * os.sysconf("SC_PAGESIZE")


def test_a_window_in_front_of_the_walk_is_read_and_no_more(cold: Path) -> None:
    mapped = MappedFile(cold)
    with mapped.read_ahead(0, SIZE) as ahead:
        assert cached(cold) == 0
        ahead.reach(0)
        until(lambda: cached(cold, WINDOW) == WINDOW)
        until(lambda: ahead._next == ahead._limit == WINDOW)
        assert cached(cold) <= WINDOW + MOST_READAHEAD
        ahead.reach(PIECE // 2)  # less than a piece: the thread is not woken for it
        ahead.reach(2 * WINDOW)
        until(lambda: cached(cold) >= SIZE)
    until(lambda: readers() == 0)


def test_a_walk_over_a_warm_file_starts_no_thread(cold: Path) -> None:
    cold.read_bytes()
    with MappedFile(cold).read_ahead(0, SIZE) as ahead:
        for at in range(0, SIZE, PIECE):
            ahead.reach(at)
            assert readers() == 0
        assert ahead._next >= SIZE


@pytest.mark.parametrize("there", [WINDOW // 2, 1])
def test_reading_begins_where_the_page_cache_ends(cold: Path, there: int) -> None:
    with cold.open("rb", buffering=0) as file:
        if there == 1:  # a page in the place of a sample: what is around it is not there
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.read(there)
    with MappedFile(cold).read_ahead(0, SIZE) as ahead:
        ahead.reach(0)
        until(lambda: cached(cold, WINDOW) == WINDOW)
    until(lambda: readers() == 0)


def test_a_walk_that_hops_is_followed_and_others_are_not(cold: Path) -> None:
    with MappedFile(cold).read_ahead(0, SIZE) as ahead:
        ahead.reach(2 * WINDOW, hop=True)
        assert ahead._next >= 2 * WINDOW
    with MappedFile(cold).read_ahead(0, SIZE) as ahead:
        ahead.reach(2 * WINDOW)
        until(lambda: cached(cold) >= SIZE)
    until(lambda: readers() == 0)


def test_a_hole_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(os.urandom(LEAST))
    os.truncate(path, SIZE)
    if path.stat().st_blocks * 512 >= SIZE:
        pytest.skip("this file system has no holes")
    evict(path)
    with MappedFile(path).read_ahead(0, SIZE) as ahead:
        ahead.reach(0)
        ahead.reach(2 * WINDOW)
        until(lambda: readers() == 0)
        assert ahead._next >= SIZE
    assert cached(path) <= LEAST + MOST_READAHEAD


def test_descriptors_and_threads_end_with_the_walk(cold: Path) -> None:
    mapped = MappedFile(cold)
    before = open_on(cold)
    for at in (0, WINDOW, 2 * WINDOW):
        with mapped.read_ahead(at, SIZE) as ahead:
            ahead.reach(at)
        ahead.reach(at)  # after the end: nothing
        ahead.close()
    until(lambda: readers() == 0)
    assert open_on(cold) == before


def test_what_cannot_be_read_ahead_is_left_to_the_walk(cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = MappedFile(cold)
    with mapped.read_ahead(0, LEAST - 1) as ahead:
        ahead.reach(0)
    cold.rename(cold.with_name("moved"))
    with mapped.read_ahead(0, SIZE) as ahead:
        ahead.reach(0)
    cold.write_bytes(b"another file")
    with mapped.read_ahead(0, SIZE) as ahead:
        ahead.reach(0)
    assert cached(cold.with_name("moved")) == readers() == 0

    def failing(*_: object) -> int:
        raise OSError(5, "input/output error")

    monkeypatch.setattr(os, "sendfile", failing)
    cold.with_name("moved").rename(cold)
    with mapped.read_ahead(0, SIZE) as ahead:
        ahead.reach(0)
        until(lambda: ahead._closed)
    until(lambda: readers() == 0)


def test_without_these_calls_a_range_is_advised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_SUPPORTED", False)
    advised: list[tuple[int, int]] = []
    with ReadAhead(lambda: None, 0, SIZE, lambda at, length: advised.append((at, length))) as ahead:
        for at in range(0, SIZE, PIECE):
            ahead.reach(at)
    assert [at for at, _ in advised] == [0, *(at + length for at, length in advised[:-1])]
    assert sum(length for _, length in advised) == SIZE


def test_a_hint_brings_a_range_into_the_page_cache_and_one_outside_the_file_does_nothing(cold: Path) -> None:
    mapped = MappedFile(cold)
    for start in (SIZE, 10 * SIZE):
        mapped.will_need(start, 100)
    assert cached(cold) == 0
    mapped.will_need(WINDOW + 5, 1 << 20)
    until(lambda: cached(cold) >= 1 << 20)
