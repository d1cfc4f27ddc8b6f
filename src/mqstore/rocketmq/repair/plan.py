"""The plan of a repair: the steps after which a broker starts on the store and delivers everything that is intact.

A plan is made only of a store whose whole log is there. If files of the log only lack their names, the plan is to give these back, and the
rest follows from the log with them.

Whatever the steps are, none overwrites, cuts off or replaces bytes of the log that are a whole record: `RecordGuard` sees every change.

What a broker repairs by itself and without loss is not in the plan: a torn end after a kill is, because its bytes would stay.

A plan is made again of what its steps leave, until nothing is to be added: an entry of a record that one step restores, a queue that
another one gives its length. The later steps come after the earlier ones, and build on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import UnsupportedError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.directory_views import MountedDirectory
from mqstore.repair.change import Change, Step
from mqstore.repair.changed_directory import ChangedDirectory
from mqstore.repair.journal import StoreLocking
from mqstore.rocketmq.format.commit_log import CommitLog, Records
from mqstore.rocketmq.format.log_file import LOG
from mqstore.rocketmq.format.mapped_file_queue import QueueFile
from mqstore.rocketmq.format.record import body_crc
from mqstore.rocketmq.live.store_lock import LOCK, StoreLock
from mqstore.rocketmq.repair.config_steps import config_steps
from mqstore.rocketmq.repair.file_steps import file_steps
from mqstore.rocketmq.repair.index_steps import index_steps
from mqstore.rocketmq.repair.log_steps import log_steps, rename_steps, swapped_steps
from mqstore.rocketmq.repair.missing_index_steps import missing_index_steps
from mqstore.rocketmq.repair.queue_steps import RepairScan, queue_steps
from mqstore.rocketmq.store.log_site import renamed_log_files, require_whole_log, swapped_log_files
from mqstore.rocketmq.store.store import RocketMQStore

LOCKING = StoreLocking(partial(StoreLock, as_it_is=True), LOCK)


ROUNDS = 4  # in which a plan is made of what the steps before leave


def plan(store: RocketMQStore, *, threads: int = 2, progress: Callable[[int, int], None] | None = None) -> list[Step]:
    """Return the steps, in the order in which they are applied. Reads only. Raises UnsupportedError."""
    store = store.remembering()
    steps = _steps(store, threads, progress)
    for _ in range(ROUNDS - 1):
        made = [step for step in steps if step.possible]
        changes = [change for step in made for change in step.changes]
        if not changes:
            break
        moved = {name for change in changes for name in (change.file, change.to) if change.op in ("rename", "rmdir")}
        seen = _steps(store.seen_in(ChangedDirectory(store.directory, changes)), threads, None)
        # what has another name now, or another thing in its place, is changed by the next repair
        done = [step.changes for step in made]
        further = [
            step for step in seen if step.possible and step.changes not in done and not moved & {change.file for change in step.changes}
        ]
        steps = [*made, *(replace(step, after=len(made)) for step in further), *(step for step in seen if not step.possible)]
        if not further:
            break
    return steps


def _steps(store: RocketMQStore, threads: int, progress: Callable[[int, int], None] | None) -> list[Step]:
    """Return the steps that the files as they are show to be needed."""
    store.require_commit_log("repair")
    if store.queue_database is not None:
        raise UnsupportedError(f"the consume queues of {store.path} are in a RocksDB database, which repair does not write")
    store.require_directories()
    require_whole_log(store, f"what is to be repaired in {store.path}")
    renamed = renamed_log_files(store)
    if renamed:
        return list(rename_steps(renamed))
    if swapped := swapped_log_files(store):
        return list(swapped_steps(swapped))
    scan = RepairScan(store)
    report = scan.run(threads, progress)
    prefix = f"{store.log.queue.relative}/"
    damage = [item for item in report.damage if item.file.startswith(prefix)]
    guard = RecordGuard(store.log)
    in_log = [guard.spared(step) for step in log_steps(store.log, damage, scan.last_timestamp, scan.add_restored)]
    scan.settle()
    starts = {file.relative: file.start for file in store.log.files}
    log_end = min([scan.log_end, *(starts[step.file] + step.offset for step in in_log if step.kind == "torn-end" and step.possible)])
    steps = [
        *file_steps(store),
        *in_log,
        *queue_steps(store, scan, log_end),
        *index_steps(store, scan, list(report.damage)),
        # of the keys of records that a step restores, too: by what that leaves
        *(() if any(step.possible for step in in_log) else missing_index_steps(store, scan, report.damage)),
        *config_steps(store, store.version_hint, scan.last_timestamp, scan.ends(log_end)),
    ]
    if steps and isinstance(store.directory, MountedDirectory):
        places = " and ".join(map(str, store.directory.mounts[LOG]))
        raise UnsupportedError(
            f"the log of {store.path} is at {places}, and repair changes files of one directory only; nothing is changed: put the log into "
            f"commitlog/ of the store, or `mqstore rebuild {store.path} --to OUT` makes a whole store from it"
        )
    return [guard.spared(step) for step in steps if not _is_done(store.directory, step)]


def _is_done(directory: ReadOnlyDirectory, step: Step) -> bool:
    """Return whether all that a step writes is there already: entries of records that are made up are still a finding."""
    return step.possible and all(
        change.op == "write"
        and directory.exists(change.file)
        and directory.mapped(change.file).bytes(change.offset, change.offset + len(change.made)) == change.made
        for change in step.changes
    )


class RecordGuard:
    """The whole records of a log: valid in all lengths, with a body that matches its CRC. No change of a plan may touch one."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._files = {file.relative: file for file in log.files}
        self._ranges: dict[str, NDArray[np.int64]] = {}

    def spared(self, step: Step) -> Step:
        """Return the step, or one that is not possible if it would change bytes of a whole record."""
        for change in step.changes:
            at = self._touched(change)
            if at is not None:
                why = f"{step.why}; it is left alone, since a whole record is at {at} of {change.file}"
                return replace(step, why=why, loss="", changes=())
        return step

    def _touched(self, change: Change) -> int | None:
        """Return the position of the first whole record that a change would touch; None if there is none."""
        file = self._files.get(change.file)
        if file is None or change.op in ("mkdir", "rmdir"):
            return None
        start = {"write": change.offset, "resize": change.length}.get(change.op, 0)
        stop = start + len(change.made) if change.op == "write" else file.size
        records = self._records(file)
        touched = records[(records[:, 0] < stop) & (records[:, 1] > start)]
        for low, _ in touched.tolist():
            record = self._log.record(file.start + low)
            if record is None or body_crc(record.body) == record.body_crc:
                return int(low)
        return self._log.first_record(file, start, file.size) if change.op == "resize" and start < file.size else None

    def _records(self, file: QueueFile) -> NDArray[np.int64]:
        """Return (from, to) of each record of a file, in the order of the walk."""
        ranges = self._ranges.get(file.relative)
        if ranges is None:
            parts = [np.empty((0, 2), np.int64)]
            for event in self._log.scan_file(file):
                if isinstance(event, Records) and len(event):
                    at = event.positions.astype(np.int64)
                    sizes = event.data[at[:, None] + np.arange(4)].copy().view(">i4").reshape(-1).astype(np.int64)
                    parts.append(np.stack((at, at + sizes), axis=1))
            ranges = self._ranges[file.relative] = np.concatenate(parts)
        return ranges
