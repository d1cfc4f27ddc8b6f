"""Floors of a rebuild: its reading and dispatch without any writing, and the disk without any reading.

`walked` is walk and dispatch of the same splits by the same kernels, in the same threads or Spark tasks; entries and keys are thrown
away. `written` brings the bytes of a file to the disk past the page cache, as the last log file is copied; `bytes_written` writes through
the page cache and syncs, as queues and index are written.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from functools import partial
from pathlib import Path

from benchkit import timed
from pyspark import cloudpickle

from mqstore.files.durable import DurableDirectory
from mqstore.files.readonly import MappedFile
from mqstore.jobs.runner import Runner
from mqstore.rocketmq.dispatch.dispatcher import Dispatcher, DispatchRules
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.rebuild_steps import DISPATCHED_AT_ONCE, log_of
from mqstore.rocketmq.scan.splits import Split, SplitWalk, plan

AT_ONCE = 32 << 20  # bytes

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers do not find the benchmarks


def walked(store: Path, runner: Runner) -> float:
    """Return the seconds that reading and dispatching all records takes if nothing is written."""
    run = secrets.token_hex(6)
    splits = plan(log_of(str(store), None, run), tasks=4 * runner.width)
    return timed(lambda: sum(runner.each(splits, partial(_dispatched, str(store), run)))).seconds


def _dispatched(store: str, run: str, split: Split) -> int:
    """Dispatch a split, whose log is opened once in each process, as in a rebuild; return the number of records."""
    dispatcher: Dispatcher | None = None
    count = 0
    for event in SplitWalk(log_of(store, None, run), split):
        if isinstance(event, Records):
            if dispatcher is None or dispatcher.count + len(event) > DISPATCHED_AT_ONCE:
                dispatcher = Dispatcher(event.data, DispatchRules(), DISPATCHED_AT_ONCE)
            dispatcher.add(event.positions)
            count += len(event)
    return count


def written(path: Path, place: Path) -> float:
    """Return the seconds that the disk takes for the bytes of a file, up to the last one that is not zero. `place` must not exist."""
    source = MappedFile(path)
    end = source.last_nonzero(0, source.size) + 1
    place.mkdir()
    with DurableDirectory(place) as directory, directory.open_new("copy") as file:
        start = time.perf_counter()
        for at in range(0, end, AT_ONCE):
            file.pwrite_past_cache(at, source.data[at : min(at + AT_ONCE, end)])
        file.sync()
        return time.perf_counter() - start


def bytes_written(size: int, place: Path) -> float:
    """Return the seconds in which one thread writes this many bytes to a new file and syncs it."""
    block = os.urandom(1 << 20)
    place.mkdir()
    with (place / "file").open("wb", buffering=0) as file:
        start = time.perf_counter()
        for at in range(0, size, len(block)):
            file.write(block[: size - at])
        os.fsync(file.fileno())
        return time.perf_counter() - start
