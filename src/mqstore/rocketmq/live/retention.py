"""Retention: old log files go, and queues and index files follow.

Looked at every 10 seconds:

    log file    when it is the hour of deleteWhen, or the disk is fuller than diskMaxUsedSpaceRatio, or somebody asked for it:
                oldest first, never the last one, at most 10 a run, if last changed fileReservedTime hours ago
                beyond diskSpaceCleanForciblyRatio: whatever its age; beyond diskSpaceWarningLevelRatio puts are refused as well
    queue file  whose last entry lists a record below the log's minimum, never the last one; then the queue's minimum is corrected
    index file  whose last key lies below the log's minimum, never the newest

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

__all__ = ["DiskState", "Retention", "RetentionResult", "disk_ratio"]

MANUAL_RUNS = 20
_HOUR = 3_600_000


def disk_ratio(path: str) -> float | None:
    """The used part of the disk that holds a path, in whole percents rounded up, as the broker counts it; None if the path is not there."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    used = (status.f_blocks - status.f_bfree) * status.f_frsize
    usable = status.f_bavail * status.f_frsize
    return math.ceil(100 * used / (used + usable)) / 100 if used + usable else None


@dataclass(frozen=True, slots=True)
class DiskState:
    """delete: files are to be looked at. at_once: whatever their age. full: puts are refused."""

    delete: bool
    at_once: bool
    full: bool


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """Files that one run removed."""

    log_files: int = 0
    queue_files: int = 0
    index_files: int = 0


class Retention:
    """Decides what goes, and removes it. full: whether the disk was too full for puts when last looked at."""

    def __init__(self, log: LiveLog, config: StoreConfig) -> None:
        self._log = log
        self._config = config
        self._ratio: Callable[[str], float | None] = config.disk_ratio or disk_ratio
        self._min_seen = log.min_offset
        self.manual_runs = 0
        self.full = False

    def delete_manually(self) -> None:
        """Look at the files in the next 20 runs, whatever the hour."""
        self.manual_runs = MANUAL_RUNS

    def disk(self) -> DiskState:
        """What the disks of log and queues say."""
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
        """Whether the local hour is one of deleteWhen."""
        hour = time.localtime(now / 1000).tm_hour
        return any(text.strip().isdigit() and int(text) == hour for text in self._config.delete_when.split(";"))

    def clean_log(self, now: int, dispatched: int) -> int:
        """Remove log files that may go; returns how many. now: ms, compared with the times of the files.

        dispatched: physical offset behind the records that are listed. What no queue lists yet stays: the entries behind it
        would move up to its queue offsets. A broker, whose dispatch cannot fail for days, does not look at that.
        """
        state = self.disk()
        self.full = state.full
        asked = self.manual_runs > 0
        self.manual_runs = max(0, self.manual_runs - 1)
        if not (state.delete or asked or self.due_hour(now)):
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
        """Let queues and index follow the log's minimum. Returns how many queue files and index files went."""
        lowest = self._log.min_offset
        if lowest <= self._min_seen:
            return 0, 0
        gone = 0
        for queue in queues:
            gone += queue.expire(lowest)
            queue.correct_min(lowest, version)
        indexes = 0 if index is None else index.expire(lowest)
        self._min_seen = lowest
        return gone, indexes
