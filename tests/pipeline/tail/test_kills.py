"""Twenty kills inside the writes of `follow` and of `append`, each at an observed step on the disk: every message is in OUT once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from support.golden import run_cli
from support.spark_api import needs_streams
from support.tables import delta, iceberg

import mqstore
from mqstore.pipeline.tail.sinks import STATE
from mqstore.rocketmq import MessageStore
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.format.message import Message

pytestmark = [needs_streams, pytest.mark.spark_in_all]

KILLS = 20
CONFIG = StoreConfig(version="4.9.3", commit_log_file_size=1 << 15, max_hash_slot_num=100, max_index_num=5000, services=False)

# counts the changes of the disk below OUT while a batch or a range is written, and the commits to the table; dies at one of them
KILLED = """
import os, signal, sys
from mqstore.files.durable import DurableDirectory
from mqstore.pipeline.tail import append, delta, iceberg, sinks
from mqstore.pipeline.tail.follow import follow

store, out, form, left = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
depth = 0

def event():
    global left
    if depth:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

def inside(function):
    def watched(*arguments, **more):
        global depth
        depth += 1
        try:
            return function(*arguments, **more)
        finally:
            depth -= 1
    return watched

def around(function):
    def watched(*arguments, **more):
        event()
        result = function(*arguments, **more)
        event()
        return result
    return watched

attempt = DurableDirectory.attempt
def attempted(self, operation, relative):
    if str(self.root).startswith(out):
        event()
    return attempt(self, operation, relative)
DurableDirectory.attempt = attempted
for kind in (delta.DeltaBatches, iceberg.IcebergBatches, append._DeltaTable, append._IcebergTable):
    kind.add = around(kind.add)
for kind in (sinks.StoreSink, sinks.ParquetSink, sinks.TableSink):
    kind.take = inside(kind.take)
if form.startswith("append-"):
    inside(append.append)(store, out, format=form.removeprefix("append-"), threads=1)
else:
    follow(store, out, form=form, once=True, batch_bytes=6000, master="local[1]")
"""


def put(store: Path, count: int) -> None:
    with MessageStore.open(store, CONFIG) as opened:
        for number in range(count):
            result = opened.put(Message(f"t{number % 3}", b"x" * (number % 700), queue_id=number % 2, keys=f"k{number}", tags="T"))
            assert result.stored, result.detail
        opened.dispatch_now()


def offsets_in(out: Path, form: str) -> list[int]:
    if form == "store":
        found = mqstore.open(out).to_arrow(["physical_offset"])
    elif form == "parquet":
        files = [str(path) for path in sorted(out.glob("batch=*/*.parquet"))]
        found = ds.dataset(files, format="parquet").to_table(columns=["physical_offset"])
    else:
        found = (iceberg if form.endswith("iceberg") else delta)(out)
    return sorted(found.column("physical_offset").to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("form", ["append-iceberg", "append-delta", "parquet", "store", "iceberg", "delta"])
def test_20_kills_inside_the_write_neither_lose_nor_repeat_a_message(form: str, tmp_path: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    rng = random.Random(form)
    kills = 0
    for _ in range(3 * KILLS):
        put(store, 25)
        arguments = [store, out, form, rng.randrange(1, 25)]
        done = subprocess.run([sys.executable, "-c", KILLED, *map(str, arguments)], capture_output=True, check=False, timeout=300)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
        kills += done.returncode != 0
        if kills == KILLS:
            break
    assert kills == KILLS
    put(store, 5)
    done = subprocess.run([sys.executable, "-c", KILLED, str(store), str(out), form, "0"], capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    assert offsets_in(out, form) == mqstore.open(store).to_arrow(["physical_offset"]).column(0).to_pylist()
    if form == "store":
        assert run_cli("verify", out).status == 0
    assert not list((out / STATE).glob("stage-*"))
