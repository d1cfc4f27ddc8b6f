"""Pages of the log are provided ahead, while many messages come; pages of the index are released again."""

from __future__ import annotations

import errno
import os
import resource
import sys
import threading
import time
from pathlib import Path

import pytest

from mqstore.errors import TargetError
from mqstore.files.durable import DurableDirectory
from mqstore.files.writable_map import WritableMap
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.message import Message

PAGE = 4096
HALF = 1 << 21
THREAD = "mqstore-pages"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are provided ahead on Linux only")


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def faults_of_writing(log: WritableMap, start: int, stop: int) -> int:
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    log.data[start:stop:PAGE] = 1
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_writing_populated_pages_causes_no_page_faults(tmp_path: Path) -> None:
    with DurableDirectory(tmp_path) as directory:
        directory.create("log", size=2 * HALF)
        with WritableMap(directory, "log") as log:
            log.reserve(2 * HALF)
            log.write(5, b"record")
            if not log.populate(100, HALF):
                pytest.skip("this kernel cannot provide pages (Linux before 5.14)")
            assert bytes(log.data[:HALF]) == bytes(5) + b"record" + bytes(HALF - 11)
            assert faults_of_writing(log, 0, HALF) < 10
            assert faults_of_writing(log, HALF, 2 * HALF) >= 16  # a large page at a time, at most


def test_pages_without_reserved_disk_space_are_left_alone(tmp_path: Path) -> None:
    with DurableDirectory(tmp_path) as directory:
        directory.create("log", size=2 * HALF)
        with WritableMap(directory, "log") as log:
            log.reserve(PAGE)
            assert log.populate(log.reserved, 2 * HALF)
            assert (tmp_path / "log").stat().st_blocks * 512 <= log.reserved


@pytest.mark.parametrize("full", [False, True])
def test_disk_space_of_pages_is_reserved_before_a_put_needs_it_unless_the_disk_is_full(
    full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with MessageStore.open(tmp_path / "store", StoreConfig(commit_log_file_size=16 << 20, services=False)) as store:
        for _ in range(100):
            assert store.put(Message("orders", bytes(1000))).stored
        log = store.log.files[-1].map
        assert log is not None
        before = log.reserved
        with monkeypatch.context() as patched:
            if full:
                patched.setattr(os, "posix_fallocate", refuse)
            assert store.log.populate()
        assert store.log.populated > before
        assert log.reserved == before if full else log.reserved >= store.log.populated
        assert store.put(Message("orders", bytes(1000))).stored


def test_no_other_file_gets_the_space_that_is_reserved_for_a_closed_one(tmp_path: Path) -> None:
    with DurableDirectory(tmp_path) as directory:
        directory.create("log", size=HALF)
        log = WritableMap(directory, "log")
        log.close()
        with (tmp_path / "other").open("wb"), pytest.raises(TargetError):  # it has the number of the closed descriptor
            log.reserve(PAGE)
        assert (tmp_path / "other").stat().st_size == 0


def test_pages_are_provided_while_many_messages_come(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", StoreConfig(commit_log_file_size=256 << 20)) as store:
        assert THREAD in threads()
        store.put(Message("orders", b"one"))
        time.sleep(0.1)
        assert store.log.populated == 0  # one message needs none
        ahead = 0
        end = time.monotonic() + 20
        while ahead < 1 << 18 and time.monotonic() < end:
            for _ in range(200):
                assert store.put(Message("orders", bytes(2000))).stored
            ahead = store.log.populated - store.log_max
        assert 1 << 18 <= ahead <= 16 << 20


def test_a_store_that_syncs_every_message_has_no_pages_written_ahead(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", StoreConfig(flush_disk_type="SYNC_FLUSH")):
        assert THREAD not in threads()


def resident_of(path: Path) -> int:
    """Return the bytes of a file that are in this process's memory through maps that can be written."""
    found, counted = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        head = line.split()
        if "-" in head[0] and not head[0].endswith(":"):
            counted = head[-1] == str(path) and "w" in head[1]
        elif counted and head[0] == "Rss:":
            found += int(head[1]) * 1024
    return found


def test_pages_of_the_index_leave_the_memory_of_the_process_again(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", StoreConfig(services=False)) as store:
        for number in range(60_000):
            store.put(Message("orders", b"", keys=f"k{number}"))
        store.dispatch_now()
        (path,) = (tmp_path / "store" / "index").iterdir()
        assert resident_of(path) > 4 << 20
        store.release_pages()
        assert resident_of(path) < 1 << 20
        store.put(Message("orders", b"last", keys="last"))
        store.dispatch_now()
        assert [each.body for key in ("k0", "last") for each in store.query("orders", key).records] == [b"", b"last"]
        again = resident_of(path)
        store.release_pages()  # too little has come since
        assert resident_of(path) == again
