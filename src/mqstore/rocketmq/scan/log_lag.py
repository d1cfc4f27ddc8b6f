"""The lag of a reader of a growing log: bytes, messages and seconds.

    LogLag(path, file_size).of(position)      # {"off": 9216, "behind_bytes": 4096, "behind_messages": 21, "behind_seconds": 1.5}

Bytes are exact. Messages are counted up to `COUNTED` bytes; beyond that, counting would read the log twice, so they are estimated from
the mean size of those counted, as `behind_messages_about`. Seconds are those between the last message read and the newest one; without
them, no message was read yet, or retention has removed it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mqstore.errors import MqstoreError
from mqstore.files import ReadOnlyDirectory
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.format.log_slices import store_timestamp_in
from mqstore.rocketmq.scan.log_tail import LogPosition, LogTail

COUNTED = 16 << 20  # bytes of log


class LogLag:
    """The lag of readers of one log. It remembers the end that it has seen, so that each record is passed once."""

    def __init__(self, path: str, file_size: int | None) -> None:
        self._path = path
        self._file_size = file_size
        self._tail = LogTail(path, file_size, tolerate_loss=True)
        self._end: LogPosition | None = None

    def of(self, position: LogPosition) -> dict[str, Any] | None:
        """Return the end of the log and the distance of a position from it; None if that cannot be determined."""
        try:
            return self._measured(position)
        except (MqstoreError, OSError):
            return None  # the reader itself reports what is wrong with the log

    def _measured(self, position: LogPosition) -> dict[str, Any]:
        known = position if self._end is None or self._end.offset < position.offset else self._end
        latest = self._tail.latest() if self._end is None else self._tail.advance(known).end
        end = self._end = latest if latest.offset > known.offset else known
        found: dict[str, Any] = {"off": end.offset, "behind_bytes": end.offset - position.offset}
        if end.offset == position.offset:
            return found | {"behind_messages": 0, "behind_seconds": 0.0, "lost": position.lost}
        step = self._tail.advance(position, size=COUNTED)
        if step.end.offset >= end.offset:
            found["behind_messages"] = step.records
        elif step.records:
            found["behind_messages_about"] = round(step.records * (end.offset - position.offset) / (step.end.offset - position.offset))
        last, newest = self._store_time(position), self._store_time(end)
        if last is not None and newest is not None:
            found["behind_seconds"] = max(0, newest - last) / 1000
        return found | {"lost": position.lost}

    def _store_time(self, position: LogPosition) -> int | None:
        """Return the store time of the record that a position has last read, ms."""
        where, _, _ = position.generation.partition(":")
        if not where or int(where) >= position.offset:
            return None
        log = CommitLog(ReadOnlyDirectory(Path(self._path)), file_size=self._file_size)
        file = log.file_at(int(where))
        if file is None:
            return None
        at = int(where) - file.start
        return store_timestamp_in(memoryview(log.mapped(file).bytes(at, at + 91)))
