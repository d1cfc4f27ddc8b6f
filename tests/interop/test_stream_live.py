"""A stream over a store while a real RocketMQ writes to it, with kills on both sides.

A killed broker process loses nothing that was in its log: the pages belong to the operating system, and recovery keeps every complete
record. So a stream, which reads complete records only, has nothing that the recovered log does not contain. After a power cut, unflushed
records are lost and the broker writes other messages there. A stream that had read them stops with an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from interop.realbroker import VERSIONS, Job, oracle, run, why_not
from support.spark_api import needs_streams

import mqstore
from mqstore.errors import PipelineError
from mqstore.pipeline.tail.follow import follow
from mqstore.pipeline.tail.sinks import STATE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.interop,
    pytest.mark.spark,
    needs_streams,
    pytest.mark.xdist_group("interop-stores"),
    pytest.mark.parametrize("version", VERSIONS),
]

OPTIONS = {"mappedFileSizeCommitLog": "262144", "mappedFileSizeConsumeQueue": "20000", "maxHashSlotNum": "500", "maxIndexNum": "100000"}
COLUMNS = ("topic", "queue_id", "queue_offset", "physical_offset")
PATIENCE = 600.0  # seconds on a busy machine

Rows = list[tuple[str, int, int, int]]


def until(come: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not come():
        assert time.monotonic() < end, f"timed out waiting for {what}"
        time.sleep(0.02)


class Process:
    """A child process whose output lines are kept as they arrive; it is ended by kill -9, like a crash."""

    def __init__(self, command: list[str], stream: str) -> None:
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | {stream: subprocess.PIPE}
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True, **pipes)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, args=(getattr(self.child, stream),), daemon=True)
        self._reader.start()

    def _read(self, pipe: Any) -> None:
        self.lines.extend(line for line in pipe if line.endswith("\n"))

    def alive(self) -> bool:
        return self.child.poll() is None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        self._reader.join()
        assert self.child.stdin is not None
        self.child.stdin.close()

    def end(self) -> None:
        """End a writer cleanly."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        assert self.child.wait(PATIENCE) == 0
        self._reader.join()


class Broker(Process):
    """The real store, continuously putting messages."""

    def __init__(self, version: str, store: Path) -> None:
        options = (f"-C{name}={value}" for name, value in OPTIONS.items())
        super().__init__(oracle(version, "write", str(store), "--rate", "800", *options), "stdout")
        until(lambda: bool(self.lines) or not self.alive(), "the start of the store")
        assert self.alive()

    def put_more(self, count: int) -> None:
        wanted = len(self.lines) + count
        until(lambda: len(self.lines) >= wanted or not self.alive(), "a put")
        assert self.alive()

    def acknowledged(self) -> Rows:
        return [tuple(json.loads(line)[name] for name in COLUMNS) for line in self.lines[1:]]


class Following(Process):
    """`mqstore follow` of a store into Parquet files."""

    def __init__(self, store: Path, out: Path) -> None:
        columns = ",".join(COLUMNS)
        command = ("follow", store, "--to", out, "--columns", columns, "--interval", "0.2", "--master", "local[1]", "--progress")
        super().__init__([sys.executable, "-m", "mqstore", *map(str, command)], "stderr")

    def batches(self) -> int:
        return sum(line.startswith("batch ") for line in self.lines)

    def take(self, more: int) -> None:
        wanted = self.batches() + more
        until(lambda: self.batches() >= wanted or not self.alive(), "a batch")
        assert self.alive(), "".join(self.lines)


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """Yield a list for child processes, which are killed after the test."""
    children: list[Process] = []
    yield children
    for child in children:
        if child.alive():
            child.kill()


@pytest.fixture(autouse=True)
def _built(version: str) -> None:
    reason = why_not(version)
    if reason is not None:
        pytest.skip(reason)


def followed(out: Path) -> Rows:
    """Return the rows of all batches, in order: batch by batch, file by file."""
    found: Rows = []
    for path in sorted(out.glob("batch=*/*.parquet")):
        table = pq.ParquetFile(path).read(columns=list(COLUMNS))
        found.extend(zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True))
    return found


def recovered(version: str, store: Path, work: Path) -> Rows:
    """Return all messages of the store, as the real one reads them after its recovery."""
    done = run(version, [Job("dump", ("dump", str(store)), OPTIONS)], work)["dump"]
    assert done.code == 0, done.error
    return [tuple(row[name] for name in COLUMNS) for row in done.rows]


def test_every_recovered_message_comes_once_and_in_order_while_both_sides_are_killed(
    version: str, started: list[Process], spark: SparkSession, tmp_path: Path, whole: bool
) -> None:
    chance = random.Random(version)
    store, out = tmp_path / "store", tmp_path / "out"
    acknowledged: Rows = []
    broker = Broker(version, store)
    started.append(broker)

    def kill_broker() -> Broker:
        """Kill the broker at any moment, usually during a put; a new one recovers the directory and continues."""
        broker.put_more(chance.randrange(100, 500))
        broker.kill()
        acknowledged.extend(broker.acknowledged())
        again = Broker(version, store)
        started.append(again)
        return again

    broker.put_more(200)
    for _ in range(4 if whole else 1):
        following = Following(store, out)
        started.append(following)
        following.take(2)
        broker = kill_broker()
        following.take(2)
        broker = kill_broker()
        following.take(1)
        time.sleep(chance.random() * 0.4)  # anywhere in a batch
        following.kill()
        broker.put_more(100)
    broker.end()
    acknowledged.extend(broker.acknowledged())
    follow(store, out, columns=COLUMNS, once=True, spark=spark)

    rows = followed(out)
    assert rows == recovered(version, store, tmp_path / "work")
    assert set(acknowledged) <= set(rows)
    queues: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for topic, queue_id, queue_offset, _ in rows:
        queues[topic, queue_id].append(queue_offset)
    assert len(queues) == 6
    assert all(offsets == list(range(len(offsets))) for offsets in queues.values())
    assert len(list((store / "commitlog").iterdir())) > 5
    assert not list((out / STATE).glob("stage-*"))


def test_a_tail_that_a_power_cut_removed_ends_the_stream_and_changes_nothing(
    version: str, started: list[Process], spark: SparkSession, tmp_path: Path
) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    broker = Broker(version, store)
    started.append(broker)
    broker.put_more(300)
    broker.kill()
    follow(store, out, columns=COLUMNS, once=True, spark=spark)
    before = followed(out)
    # the pages of the last messages had not reached the disk
    cut = before[-50][3]
    with mqstore.open(store).log.mapped(mqstore.open(store).log.file_at(cut)).path.open("r+b") as file:
        start = cut % int(OPTIONS["mappedFileSizeCommitLog"])
        file.seek(start)
        file.write(bytes(int(OPTIONS["mappedFileSizeCommitLog"]) - start))
    for kept in ("consumequeue", "index"):
        shutil.rmtree(store / kept)
    with pytest.raises(PipelineError, match=r"is not the one that was read up to"):
        follow(store, out, columns=COLUMNS, once=True, spark=spark)
    broker = Broker(version, store)
    started.append(broker)
    assert json.loads(broker.lines[0])["started"] == cut
    broker.put_more(200)
    with pytest.raises(PipelineError, match=r"a recovery has cut the log and it was rewritten; start a new query"):
        follow(store, out, columns=COLUMNS, once=True, spark=spark)
    assert followed(out) == before
    broker.end()
    follow(store, tmp_path / "again", columns=COLUMNS, once=True, spark=spark)
    assert followed(tmp_path / "again") == recovered(version, store, tmp_path / "work")
