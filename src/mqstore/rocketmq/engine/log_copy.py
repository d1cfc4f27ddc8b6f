"""A second store with the same log: what the log of one store gains is written to the other at the same physical offsets.

    store      commitlog  [rec][rec][rec][BLANK] [rec][rec]            grows under its broker
    standby    commitlog  [rec][rec][rec][BLANK] [rec]                 and its queues and index, by the broker's own dispatch

The copy is a store that is open for writing, so it gets everything that a broker does at load, after a crash and at shutdown. The
end of the copied log is the record of its progress, so nothing is appended twice. A log with damage in the middle cannot be followed: a
broker would give up everything after the damage.

Format: docs/formats/rocketmq.md, sections 2.8, 3 and 8.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from mqstore.errors import TargetError, UnsupportedError
from mqstore.files.durable import DurableDirectory, make_root
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.commit_log import CommitLog, EndOfFile, Records
from mqstore.rocketmq.format.log_slices import store_timestamp_in
from mqstore.rocketmq.rebuild_steps import settings_of
from mqstore.rocketmq.store.store import RocketMQStore

CARRIED = "config"


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the files of a copy must have in common with those of its original. start: physical offset of the first log file."""

    version: str
    start: int
    log_file_size: int
    queue_file_size: int
    batch_file_size: int
    index: bool
    index_slots: int
    index_positions: int
    multi_dispatch: bool
    lmq: bool
    batch_topics: tuple[str, ...]

    @classmethod
    def of(cls, store: RocketMQStore) -> Geometry:
        """Return the geometry of a store, from its configuration or its files. Raises UnsupportedError for an empty log."""
        settings = settings_of(store)
        if not store.log.file_size:
            raise UnsupportedError(f"{store.path} has no log file yet, so the file size is unknown; start again once there is one")
        return cls(
            version=store.version_hint,
            start=store.log.start,
            log_file_size=store.log.file_size,
            queue_file_size=settings.queue_file_size,
            batch_file_size=settings.batch_file_size,
            index=settings.index,
            index_slots=settings.index_slots,
            index_positions=settings.index_positions,
            multi_dispatch=settings.rules.multi_dispatch,
            lmq=settings.rules.lmq,
            batch_topics=tuple(sorted(settings.rules.batch_topics)),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the geometry as a JSON document."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Geometry:
        """Return the geometry of a JSON document."""
        return cls(**{**document, "batch_topics": tuple(document["batch_topics"])})

    def settings(self) -> StoreConfig:
        """Return the settings to open a store of this geometry with; its log files do not expire."""
        return StoreConfig(
            version=self.version,
            commit_log_file_size=self.log_file_size,
            consume_queue_file_size=self.queue_file_size,
            batch_queue_file_size=self.batch_file_size,
            message_index_enable=self.index,
            max_hash_slot_num=self.index_slots,
            max_index_num=self.index_positions,
            enable_multi_dispatch=self.multi_dispatch,
            enable_lmq=self.lmq,
            batch_topics=frozenset(self.batch_topics),
            services=False,
        )


def _size_at(records: Records, position: int) -> int:
    return int.from_bytes(records.data[position : position + 4].tobytes(), "big")


class LogCopy:
    """An open copy. end: physical offset up to which it has the log. Not thread-safe."""

    def __init__(self, path: str | os.PathLike[str], geometry: Geometry, original: RocketMQStore) -> None:
        """Create the copy, or continue one. Raises TargetError, RefusedError."""
        self.path = Path(path)
        make_root(self.path)
        with DurableDirectory(self.path) as directory:
            first = f"commitlog/{geometry.start:020d}"
            if not directory.exists("commitlog") or not any(directory.path("commitlog").iterdir()):
                for relative, entry in original.directory.walk(CARRIED):
                    if entry.is_file and not directory.exists(relative):
                        directory.link_or_copy(original.directory.path(relative), relative, copy=True)
                original.directory.require_listed(CARRIED)
                directory.create(first, geometry.log_file_size)
                directory.sync(first)
                directory.sync_directory("commitlog")
        self._store = MessageStore.open(self.path, replace(geometry.settings(), **_delays(original)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def end(self) -> int:
        """Physical offset up to which the copy has the log."""
        return self._store.log.max_offset

    @property
    def notes(self) -> tuple[str, ...]:
        """What loading gave up, a sentence each."""
        return self._store.notes

    def append(self, log: CommitLog, stop: int) -> int:
        """Append what the original's log holds from `end` to `stop`, dispatch it, and bring it to disk. Returns the number of records.

        Raises TargetError if that log does not continue at `end`.
        """
        taken = 0
        for file in log.files:
            while file.start <= self.end < min(stop, file.start + log.file_size):
                before = self.end
                for event in log.scan_file(file, before - file.start, min(stop, file.start + file.size) - file.start):
                    if isinstance(event, Records):
                        self._records(log, event)
                        taken += len(event)
                    elif isinstance(event, EndOfFile):
                        if file.start + event.position == self.end:
                            self._store.log.end_file(self._store.log.current())
                    else:
                        self._refuse(log, file.start + event.offset)
                if self.end == before:
                    self._refuse(log, before)
        if self.end < stop:
            self._refuse(log, self.end)
        self._store.dispatch_now()
        self._store.flush()
        return taken

    def _refuse(self, log: CommitLog, offset: int) -> None:
        raise TargetError(
            f"{self.path} ends at {self.end}, and the log it follows has no valid record at {offset} (it begins at {log.start}): the "
            "record is damaged or was removed; `mqstore verify` shows which, `mqstore rebuild` makes a new store from what is left"
        )

    def _records(self, log: CommitLog, records: Records) -> None:
        first, last = int(records.positions[0]), int(records.positions[-1])
        if records.file.start + first != self.end:
            self._refuse(log, self.end)
        times = np.empty((frames.FIELD_COUNT, len(records)), np.int64)
        frames.fields(records.data, records.positions, times)
        stored = times[frames.STORE_TIMESTAMP]
        live, checkpoint = self._store.log, self._store._loaded.checkpoint
        if live.files and live.files[-1].written >= live.files[-1].size:
            checkpoint.before_file(self.end, store_timestamp_in(records.data[first : first + 91].data))
        if int(stored.min()) <= checkpoint.written.index:
            checkpoint.before_record(int(stored.min()))
        live.append(live.current(), records.data[first : last + _size_at(records, last)].data, int(stored[-1]))

    def close(self) -> None:
        """Close the copy as a broker does at a clean shutdown."""
        self._store.close()


def _delays(original: RocketMQStore) -> dict[str, Any]:
    levels = original.config.message_delay_level
    return {"message_delay_level": levels} if levels else {}
