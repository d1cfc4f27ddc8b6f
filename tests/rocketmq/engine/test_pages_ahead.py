"""Memory for the records to come is provided ahead, while many come."""

from __future__ import annotations

import resource
import sys
import threading
import time
from pathlib import Path

import pytest

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
