"""Retention: old log files are removed, and queues and index files follow.

Checked every 10 seconds:

    log file    when it is the hour of deleteWhen, or the disk is fuller than diskMaxUsedSpaceRatio, or on request:
                oldest first, never the last one, at most 10 a run, if last changed fileReservedTime hours ago
                above diskSpaceCleanForciblyRatio: at any age; above diskSpaceWarningLevelRatio puts are refused as well
    queue file  whose last entry points below the log's minimum, never the last one; then the queue's minimum is corrected
    index file  whose last key is below the log's minimum, never the newest

Format: docs/formats/rocketmq.md, section 9.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.dispatch.targets import AnyQueueImage
from mqstore.rocketmq.live.commit_log_writer import LiveLog
from mqstore.rocketmq.live.index_writer import StoredIndex

MANUAL_RUNS = 20
_HOUR = 3_600_000


def disk_ratio(path: str) -> float | None:
    """Return the used part of the disk of a path, in whole percents rounded up as the broker does; None if the path does not exist."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    used = (status.f_blocks - status.f_bfree) * status.f_frsize
    usable = status.f_bavail * status.f_frsize
    return math.ceil(100 * used / (used + usable)) / 100 if used + usable else None


@dataclass(frozen=True, slots=True)
class DiskState:
    """delete: log files are to be checked. at_once: at any age. full: puts are refused."""

    delete: bool
    at_once: bool
    full: bool


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """Number of files that one run removed."""

    log_files: int = 0
    queue_files: int = 0
    index_files: int = 0


class Retention:
    """Decides which files expire, and removes them. full: whether the disk was too full for puts when last checked."""

    def __init__(self, log: LiveLog, config: StoreConfig) -> None:
        self._log = log
        self._config = config
        self._ratio: Callable[[str], float | None] = config.disk_ratio or disk_ratio
        self._min_seen = log.min_offset
        self.manual_runs = 0
        self.full = False

    def delete_manually(self) -> None:
        """Check the files in the next 20 runs, at any hour."""
        self.manual_runs = MANUAL_RUNS

    def disk(self) -> DiskState:
        """Return the state of the disks of log and queues."""
        root = self._log.reading.root
        delete = at_once = full = False
        for path in (root / "commitlog", root / "consumequeue"):
            ratio = self._ratio(str(path))
            if ratio is None:
                delete |= path.name == "commitlog"
                continue
            full |= ratio > self._config.disk_space_warning_level_ratio
            at_once |= ratio > self._config.disk_space_clean_forcibly_ratio
            delete |= ratio > self._config.disk_max_used_space_ratio / 100
        return DiskState(delete or at_once or full, at_once or full, full)

    def due_hour(self, now: int) -> bool:
        """Return whether the local hour is one of deleteWhen."""
        hour = time.localtime(now / 1000).tm_hour
        return any(text.strip().isdigit() and int(text) == hour for text in self._config.delete_when.split(";"))

    def clean_log(self, now: int, dispatched: int) -> int:
        """Remove expired log files. Returns the number removed. now: ms, compared with the times of the files.

        dispatched: physical offset after the last dispatched record. A file that is not dispatched stays: the entries of later records
        would move up to its queue offsets. A broker, whose dispatch cannot fail for days, does not check that.
        """
        state = self.disk()
        self.full = state.full
        requested = self.manual_runs > 0
        self.manual_runs = max(0, self.manual_runs - 1)
        if not (state.delete or requested or self.due_hour(now)):
            return 0
        at_once = state.at_once and self._config.clean_file_forcibly_enable
        modified = {entry.name: entry.mtime_ms for entry in self._log.reading.entries("commitlog")}
        removed = 0
        while len(self._log.files) > 1 and removed < self._config.delete_file_batch_max:
            first = self._log.files[0]
            if first.start + first.size > dispatched:
                break
            name = first.relative.rpartition("/")[2]
            expires = modified.get(name, now) + self._config.file_reserved_hours * _HOUR
            if now < expires and not at_once:
                break
            self._log.remove_first()
            removed += 1
        return removed

    def clean_derived(self, queues: Iterable[AnyQueueImage], index: StoredIndex | None, version: str) -> tuple[int, int]:
        """Make queues and index follow the log's minimum. Returns the number of queue files and index files removed."""
        lowest = self._log.min_offset
        if lowest <= self._min_seen:
            return 0, 0
        queue_files = 0
        for queue in queues:
            queue_files += queue.expire(lowest)
            queue.correct_min(lowest, version)
        index_files = 0 if index is None else index.expire(lowest)
        self._min_seen = lowest
        return queue_files, index_files
