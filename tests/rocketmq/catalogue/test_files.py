"""Catalogue 13.2: files and file queues, checkpoint, group commit, shutdown."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.catalogue import START, VERSIONS, FailingPlace, SlowDisk, bodies, opened, put_some

from mqstore.errors import TargetError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.rocketmq.format import checkpoint
from mqstore.rocketmq.format.checkpoint import Checkpoint
from mqstore.rocketmq.format.mapped_file_queue import QueueFile
from mqstore.rocketmq.format.message import Message, PutStatus
from mqstore.rocketmq.live.checkpoint_writer import LiveCheckpoint
from mqstore.rocketmq.live.commit_log_writer import LiveLog
from mqstore.rocketmq.recovery.broker_recovery import LogFile

SIXTEEN = b"0123456789abcdef"


def log_in(root: Path, found: list[LogFile] | None = None) -> LiveLog:
    """A log of files of 1 KiB."""
    return LiveLog(ReadOnlyDirectory(root), DurableDirectory(root), DurableDirectory(root), 1024, found or [])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LiveLog]:
    (tmp_path / "commitlog").mkdir()
    made = log_in(tmp_path)
    yield made
    made.close()


def fill(log: LiveLog, count: int) -> list[int]:
    return [log.append(log.current(), SIXTEEN, START) for _ in range(count)]


def test_1024_appends_of_16_bytes_roll_files_of_1_kib(log: LiveLog) -> None:
    """MappedFileQueueTest.testGetLastMappedFile."""
    assert fill(log, 1024) == list(range(0, 1024 * 16, 16))
    assert [file.start for file in log.files] == list(range(0, 16 * 1024, 1024))
    assert sorted(int(path.name) for path in (log.reading.root / "commitlog").iterdir()) == list(range(0, 16 * 1024, 1024))


def test_the_next_file_is_made_once_before_it_is_needed(log: LiveLog) -> None:
    for filled in (1, 64):
        fill(log, filled)
        log.prepare_next()
        log.prepare_next()
        made = sorted(int(path.name) for path in (log.reading.root / "commitlog").iterdir())
        assert made == [file.start for file in log.files] + [log.files[-1].start + 1024]


@pytest.mark.parametrize(
    ("offset", "start"), [(0, 0), (100, 0), (1024, 1024), (1124, 1024), (2048, 2048), (2148, 2048), (4096, None), (4196, None)]
)
def test_an_offset_is_in_its_file_and_after_the_end_in_no_file(offset: int, start: int | None, log: LiveLog) -> None:
    """MappedFileQueueTest.testFindMappedFileByOffset: four files, 4096 bytes."""
    fill(log, 4 * 64)
    assert sum(file.size for file in log.files) == 4096
    found = log.file_at(offset)
    assert (None if found is None else found.start) == start


def test_a_log_that_does_not_begin_at_zero(log: LiveLog, tmp_path: Path) -> None:
    """MappedFileQueueTest.testFindMappedFileByOffset_StartOffsetIsNonZero: of all offsets before it, only 0 is answered by it."""
    relative = f"commitlog/{1024:020d}"
    (tmp_path / relative).write_bytes(SIXTEEN.ljust(1024, b"\0"))
    late = log_in(tmp_path, [LogFile(QueueFile(f"{1024:020d}", 1024, 1024, relative), 16)])
    first = late.files[0]
    assert (late.min_offset, late.file_at(1025), late.file_at(0), late.file_at(123)) == (1024, first, None, None)
    assert bytes(late.slice(0, 4) or b"") == b"0123"
    assert late.slice(123, 4) is None
    late.close()


def test_one_sync_brings_all_files_to_disk(log: LiveLog) -> None:
    """MappedFileQueueTest.testAppendMessage: the broker's flush takes one file at a time, ours all of them; it ends at the same offset."""
    for number in range(1, 5):
        fill(log, 64)
        assert log.flushed == 1024 * (number - 1)
        assert log.sync() == 1024 * number
    assert log.flushed == log.max_offset == 4096


def test_the_files_of_a_log_have_the_size_of_all_of_them(log: LiveLog) -> None:
    """MappedFileQueueTest.testGetMappedMemorySize."""
    fill(log, 1024)
    assert sum(path.stat().st_size for path in (log.reading.root / "commitlog").iterdir()) == 1024 * 16


@VERSIONS
def test_only_leading_expired_files_go(version: str, tmp_path: Path) -> None:
    """MappedFileQueueTest.testDeleteExpiredFileByTime: of 50 files 0 to 4 and 21 and later are expired; 45 stay."""
    with opened(tmp_path / "store", version, commit_log_file_size=128, file_reserved_hours=1, disk_ratio=lambda path: 0.5) as store:
        put_some(store, 50, "T", properties=b"a\x01" + b"v" * 20)
        assert len(store.log.files) == 50
        for number, path in enumerate(sorted((tmp_path / "store" / "commitlog").iterdir())):
            hours = 2 if number < 5 or number > 20 else 0
            os.utime(path, (START / 1000 - 3600 * hours,) * 2)
        store.delete_files_manually()
        assert store.run_retention(START).log_files == 5
        assert len(list((tmp_path / "store" / "commitlog").iterdir())) == len(store.log.files) == 45


@VERSIONS
def test_what_is_held_of_a_removed_file_stays_readable(version: str, tmp_path: Path) -> None:
    """MappedFileQueueTest.testDeleteExpiredFileByOffset and MappedFileTest.testSelectMappedBuffer.

    A broker keeps a file while it is read; here its name is removed and its bytes stay readable for those that hold them.
    """
    with opened(tmp_path / "store", version, commit_log_file_size=128, disk_ratio=lambda path: 0.99) as store:
        put_some(store, 5, "T", properties=b"a\x01" + b"v" * 20)
        held = store.get("g", "T", 0, 0, 1)
        assert store.run_retention(START).log_files == 4
        assert (store.log_min, store.slice(1, 10), store.record_at(128)) == (512, None, None)
        assert held.records()[0].body == b"0"
        assert not (tmp_path / "store" / "commitlog" / f"{0:020d}").exists()


def test_what_is_appended_is_read_at_once(log: LiveLog) -> None:
    """logfile/DefaultMappedFileTest.testWriteFile, MappedFileTest.testSelectMappedBuffer."""
    offset = log.append(log.current(), SIXTEEN, START)
    assert bytes(log.slice(offset, 16) or b"") == SIXTEEN
    assert log.slice(offset, 17) is None


@VERSIONS
def test_a_log_cut_at_its_beginning_keeps_one_file(version: str, tmp_path: Path) -> None:
    """MappedFileQueueTest.testReset: of two files the one after the cut is removed."""
    root = tmp_path / "store"
    with opened(root, version, commit_log_file_size=128) as store:
        put_some(store, 2, "T")
        assert len(store.log.files) == 2
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.write(bytes(8))
    (root / "abort").touch()
    with opened(root, version, commit_log_file_size=128) as store:
        assert (store.log_max, [file.start for file in store.log.files], store.max_offset("T", 0)) == (0, [0], 0)
        assert [path.name for path in (root / "commitlog").iterdir()] == [f"{0:020d}"]


# checkpoint


def test_the_safe_time_is_three_seconds_before_the_log_s(tmp_path: Path) -> None:
    """StoreCheckpointTest.testWriteAndRead: physic < logics; the values are there again after reopening."""
    with DurableDirectory(tmp_path) as directory:
        written = LiveCheckpoint(directory, Checkpoint(), 0)
        written.synced(1000, physic=START - 1000, logics=START)
        written.write()
        assert written.written.min_timestamp == START - 1000 - 3000
    found = checkpoint.load(ReadOnlyDirectory(tmp_path))
    assert (found.physic, found.logics, found.min_timestamp) == (START - 1000, START, START - 4000)


# group commit


@VERSIONS
def test_a_sync_that_comes_too_late_is_a_timeout_though_the_message_is_stored(version: str, tmp_path: Path) -> None:
    """FlushDiskWatcherTest.testTimeout: for the thread that syncs, and for one that waits for another's sync."""
    disk = SlowDisk()
    (tmp_path / "store").mkdir()
    with opened(tmp_path / "store", version, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=50, recorder=disk) as store:
        store.put(Message("FooBar", b"in time"))  # makes the file
        disk.close()
        results = []

        def put() -> None:
            results.append(store.put(Message("FooBar", b"late")))

        threads = [threading.Thread(target=put) for _ in range(11)]
        threads[0].start()
        assert disk.waiting.wait(10)
        for thread in threads[1:]:
            thread.start()
        for thread in threads[1:]:
            thread.join(10)
        assert len(results) == 10
        disk.open()
        threads[0].join(10)
        assert [result.status for result in results] == [PutStatus.FLUSH_DISK_TIMEOUT] * 11
        assert "syncFlushTimeout" in results[0].detail
        store.flush()
        store.dispatch_now()
        assert bodies(store) == [b"in time", *[b"late"] * 11]


@VERSIONS
def test_a_call_that_waits_in_an_event_loop_is_answered_in_time(version: str, tmp_path: Path) -> None:
    disk = SlowDisk()
    (tmp_path / "store").mkdir()
    with opened(tmp_path / "store", version, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=50, recorder=disk) as store:

        async def put() -> None:
            results = await asyncio.gather(*(store.put_async(Message("FooBar", b"late")) for _ in range(10)))
            assert [result.status for result in results] == [PutStatus.FLUSH_DISK_TIMEOUT] * 10
            assert disk.waiting.is_set()
            disk.open()

        store.put(Message("FooBar", b"in time"))  # makes the file
        disk.close()
        asyncio.run(put())
        assert asyncio.run(store.put_async(Message("FooBar", b"in time"))).status == PutStatus.PUT_OK


@VERSIONS
def test_a_sync_in_time_is_not_a_timeout(version: str, tmp_path: Path) -> None:
    """FlushDiskWatcherTest.testWatcher; DefaultMessageStoreTest.testGroupCommit: ten threads, all is synced and read."""
    with opened(tmp_path / "store", version, flush_disk_type="SYNC_FLUSH") as store:
        results = []
        threads = [threading.Thread(target=lambda: results.append(store.put(Message("FooBar", b"in time")))) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [result.status for result in results] == [PutStatus.PUT_OK] * 10
        assert store.log.flushed == store.log_max
        store.dispatch_now()
        assert bodies(store) == [b"in time"] * 10


# shutdown


@VERSIONS
def test_a_shutdown_while_dispatch_is_behind_leaves_abort(version: str, tmp_path: Path) -> None:
    """DefaultMessageStoreShutDownTest.testDispatchBehindWhenShutdown."""
    disk = FailingPlace("consumequeue/FooBar")
    root = tmp_path / "store"
    root.mkdir()
    store = opened(root, version, recorder=disk)
    disk.broken = True
    for number in range(10):
        store.put(Message("FooBar", b"%d" % number))
    with pytest.raises(TargetError):
        store.close()
    assert store.dispatch_lag == store.log_max > 0
    assert (root / "abort").exists()
    with opened(root, version) as again:
        assert bodies(again) == [b"%d" % number for number in range(10)]
    assert not (root / "abort").exists()
