"""Catalogue 13.6 (DefaultMessageStoreCleanFilesTest): 55 messages in 55 log files, 8 queue files and 8 index files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from support.catalogue import START, VERSIONS, Clock, bodies

from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.message import Message, PutStatus
from mqstore.rocketmq.live.retention import disk_ratio

LOG_FILE = 128
COUNT = 55
HOUR = 3_600_000
HOUR_NOW = time.localtime(START / 1000).tm_hour
OPTIONS = {
    "mappedFileSizeCommitLog": str(LOG_FILE),
    "mappedFileSizeConsumeQueue": "128",
    "maxHashSlotNum": "100",
    "maxIndexNum": "8",
    "fileReservedTime": "1",
    "deleteWhen": str((HOUR_NOW + 12) % 24),
}


class Disk:
    """How full the disk is."""

    def __init__(self, ratio: float = 0.5) -> None:
        self.ratio = ratio

    def __call__(self, path: str) -> float:
        return self.ratio


def cleaned(place: Path, version: str, disk: Disk, options: dict[str, str] | None = None, **fields: Any) -> MessageStore:
    """A store with 55 messages whose records are 8 bytes shorter than a log file."""
    config = StoreConfig(version=version, services=False, clock=Clock(), disk_ratio=disk, **fields).with_broker(OPTIONS | (options or {}))
    assert config.consume_queue_file_size == 140
    store = MessageStore.open(place, config)
    for number in range(COUNT):
        body = b"%d" % number
        fixed = 91 + len("T") + len(body) + len(b"KEYS\x01")
        text = b"KEYS\x01" + b"k" * (LOG_FILE - 8 - fixed)
        assert store.put(Message("T", body, properties=text)).size == LOG_FILE - 8
    store.dispatch_now()
    assert counts(store) == (COUNT, 8, 8)
    return store


def counts(store: MessageStore) -> tuple[int, int, int]:
    """Return the numbers of log, queue and index files on disk."""
    root = store.directory.root
    return (
        len(list((root / "commitlog").iterdir())),
        len(list((root / "consumequeue" / "T" / "0").iterdir())),
        len(list((root / "index").iterdir())),
    )


def expire(store: MessageStore, count: int) -> None:
    """The first log files were last changed two hours ago, the others just now."""
    for number, path in enumerate(sorted((store.directory.root / "commitlog").iterdir())):
        os.utime(path, ((START - (2 * HOUR if number < count else 0)) / 1000,) * 2)


def check_runs(store: MessageStore, runs: int, expired: int | None) -> None:
    """Each run removes at most ten log files; queues and index follow."""
    deleted = 0
    for _ in range(runs):
        step = 10 if expired is None else min(10, expired - deleted)
        retained = store.run_retention(START)
        deleted += step
        assert retained.log_files == step
        assert counts(store) == (COUNT - deleted, 8 - deleted // 7, 8 - deleted // 7)
        assert (store.log_min, store.min_offset("T", 0)) == (LOG_FILE * deleted, deleted)
    assert bodies(store, "T") == [b"%d" % number for number in range(deleted, COUNT)]


@VERSIONS
def test_files_go_when_their_hour_has_come(version: str, tmp_path: Path) -> None:
    """testDeleteExpiredFilesByTimeUp: 15 files are two hours old; the first run takes 10, the second 5, the third none."""
    with cleaned(tmp_path / "store", version, Disk(0.1), {"deleteWhen": f"{HOUR_NOW:02d}"}) as store:
        expire(store, 15)
        check_runs(store, 2, 15)
        assert store.run_retention(START).log_files == 0


@VERSIONS
def test_no_file_goes_at_another_hour(version: str, tmp_path: Path) -> None:
    with cleaned(tmp_path / "store", version, Disk(0.1)) as store:
        expire(store, 15)
        assert store.run_retention(START).log_files == 0
        assert counts(store) == (COUNT, 8, 8)


@VERSIONS
def test_files_go_when_the_disk_is_fuller_than_wanted(version: str, tmp_path: Path) -> None:
    """testDeleteExpiredFilesBySpaceFull: diskMaxUsedSpaceRatio 1."""
    with cleaned(tmp_path / "store", version, Disk(0.1), {"diskMaxUsedSpaceRatio": "1"}) as store:
        expire(store, 15)
        check_runs(store, 2, 15)


@VERSIONS
def test_files_go_at_once_when_the_disk_is_much_fuller(version: str, tmp_path: Path) -> None:
    """testDeleteFilesImmediatelyBySpaceFull: forcibly from 0.01 on; no file is old, each run takes ten, and the last file stays."""
    with cleaned(tmp_path / "store", version, Disk(0.1), disk_space_clean_forcibly_ratio=0.01) as store:
        expire(store, 0)
        check_runs(store, 5, None)
        assert store.run_retention(START).log_files == 4
        assert store.run_retention(START).log_files == 0
        assert (counts(store), bodies(store, "T")) == ((1, 1, 1), [b"54"])


@VERSIONS
def test_full_disks_do_not_force_what_must_not_be_forced(version: str, tmp_path: Path) -> None:
    """cleanFileForciblyEnable=false: what is not old stays, whatever the disk says."""
    options = {"cleanFileForciblyEnable": "false"}
    with cleaned(tmp_path / "store", version, Disk(0.95), options) as store:
        expire(store, 3)
        assert store.run_retention(START).log_files == 3
        assert store.run_retention(START).log_files == 0


@VERSIONS
def test_files_go_when_somebody_asks_for_it(version: str, tmp_path: Path) -> None:
    """testDeleteExpiredFilesManually: the request lasts for 20 runs."""
    with cleaned(tmp_path / "store", version, Disk(0.1)) as store:
        expire(store, 15)
        assert store.run_retention(START).log_files == 0
        store.delete_files_manually()
        check_runs(store, 2, 15)
        assert store.retention.manual_runs == 18


@VERSIONS
def test_a_full_disk_takes_no_message_until_it_is_empty_again(version: str, tmp_path: Path) -> None:
    """testIsSpaceFullFunctionEmpty2Full, testIsSpaceFullFunctionFull2Empty."""
    disk = Disk(0.5)
    with cleaned(tmp_path / "store", version, disk, disk_space_warning_level_ratio=0.6) as store:
        expire(store, 0)
        store.run_retention(START)
        assert not store.retention.full
        disk.ratio = 0.61
        store.run_retention(START)
        assert store.retention.full
        refused = store.put(Message("T", b"late"))
        assert (refused.status, "diskSpaceWarningLevelRatio" in refused.detail) == (PutStatus.SERVICE_NOT_AVAILABLE, True)
        disk.ratio = 0.6
        store.run_retention(START)
        assert not store.retention.full
        assert store.put(Message("T", b"late")).status == PutStatus.PUT_OK


def test_the_used_part_of_a_disk_is_in_whole_percents(tmp_path: Path) -> None:
    """UtilAllTest.testGetDiskPartitionSpaceUsedPercent: 0 to 1 for a directory, nothing for one that is not there."""
    ratio = disk_ratio(str(tmp_path))
    assert ratio is not None
    assert 0 < ratio <= 1
    assert 100 * ratio == pytest.approx(round(100 * ratio))
    assert disk_ratio(str(tmp_path / "missing")) is None


@pytest.mark.parametrize("ratio", [0.1, 0.99])
@VERSIONS
def test_a_cleaned_store_is_taken_over_as_it_is(version: str, ratio: float, tmp_path: Path) -> None:
    """Removed files stay removed after reopening, cleanly closed or not."""
    disk = Disk(ratio)
    store = cleaned(tmp_path / "store", version, disk, {"diskMaxUsedSpaceRatio": "1"})
    expire(store, 15)
    removed = sum(store.run_retention(START).log_files for _ in range(2))
    config = store.config
    before = (store.log_min, store.log_max, store.min_offset("T", 0), store.max_offset("T", 0))
    assert before == (LOG_FILE * removed, LOG_FILE * COUNT - 8, removed, COUNT)
    store.close() if ratio < 0.5 else store.abandon()
    disk.ratio = 0.0
    with MessageStore.open(tmp_path / "store", config) as again:
        assert (again.log_min, again.log_max, again.min_offset("T", 0), again.max_offset("T", 0)) == before
