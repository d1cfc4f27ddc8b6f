"""The checkpoint of a store that is open for writing: it never promises more than the disk holds.

After an unclean exit a broker begins at the newest log file whose first record was stored before the checkpoint's times, and keeps
index files that end no later than its index time. So a written checkpoint must be earlier than

* the first record of every log file that begins after what log and queues have on disk (3 seconds are the broker's margin),
* the last key of the index file that is not full yet.

Clocks go backwards; a value that was safe may then be unsafe, and is lowered on disk before the record is written.

Format: docs/formats/rocketmq.md, sections 7.1 and 8.3.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from mqstore.files.durable import DurableDirectory
from mqstore.rocketmq.format.checkpoint import SAFETY_MS, SIZE, Checkpoint, encode

RELATIVE = "checkpoint"


class LiveCheckpoint:
    """physic, logics, index: store times up to which log, queues and index files are on disk, ms. written: contents of the file."""

    def __init__(self, directory: DurableDirectory, stored: Checkpoint, confirm: int, log_end: int = 0, fields: int = 5) -> None:
        """confirm: the physical offset for confirmPhyOffset, 0 for a 4.9.3 broker. log_end: where the log ends after its recovery.

        fields: of the broker's checkpoint; with six it says up to which record the queues are on disk.
        """
        self._directory = directory
        self._lock = threading.Lock()
        self._begun: list[tuple[int, int]] = []
        self._safe = 0
        self._master_flushed = stored.master_flushed_offset
        self._confirm = confirm
        # 5.5.0: an offset that was true stays true while the log grows
        self._listed = max(0, min(stored.logics_physical_offset, log_end))
        self._states_listed = fields > 5
        self._rest = stored.rest
        self.physic, self.logics, self.index = stored.physic, stored.logics, stored.index
        self.written = stored
        if not stored.exists:
            directory.create(RELATIVE, SIZE)
        if not any(encode(stored)):
            directory.pwrite(RELATIVE, 0, bytes(SIZE))  # reserves its blocks: it can then be written on a full disk
        if not stored.exists:
            directory.sync(RELATIVE)
            directory.sync_directory()

    def synced(self, physical_offset: int, *, physic: int = 0, logics: int = 0, listed: int = 0) -> None:
        """Note that log and queues are on disk up to a physical offset. physic, logics: last store times in them, 0 if unknown.

        listed: physical offset of the last record that the queues have, 0 if unknown.
        """
        with self._lock:
            self._safe = max(self._safe, physical_offset)
            self._begun = [(start, time) for start, time in self._begun if start > self._safe]
            self.physic = physic or self.physic
            self.logics = logics or self.logics
            if self._states_listed:
                self._listed = max(self._listed, min(listed, physical_offset))

    def before_file(self, start: int, stored_at: int) -> None:
        """Note that a log file is about to begin at a physical offset with a record of that store time."""
        with self._lock:
            self._begun.append((start, stored_at))
        if stored_at <= self.written.min_timestamp:
            self.write()

    def before_record(self, stored_at: int) -> None:
        """Lower the index time on disk: a record is about to be stored that is not newer."""
        with self._lock:
            self.index = min(self.index, stored_at - 1)
        self.write()

    def reach_back(self, files: Sequence[tuple[int, int]]) -> None:
        """Let the next process that recovers begin before these log files. files: start and first store time of each."""
        with self._lock:
            self._begun.extend(files)

    def write(self) -> None:
        """Write and sync the file, if its contents change."""
        with self._lock:
            limit = min((time for _, time in self._begun), default=None)
            cap = self.physic if limit is None else max(0, limit + SAFETY_MS - 1)
            new = Checkpoint(
                min(self.physic, cap),
                self.logics if limit is None else min(self.logics, cap),
                max(0, self.index),
                self._master_flushed,
                self._confirm,
                exists=True,
                logics_physical_offset=self._listed,
                rest=self._rest,
            )
            if encode(new) == encode(self.written) and self.written.exists:
                return
            self._directory.pwrite(RELATIVE, 0, encode(new))
            self._directory.sync(RELATIVE)
            self.written = new

    def close(self) -> None:
        """Close the directory."""
        self._directory.close()
