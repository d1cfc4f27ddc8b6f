"""One large store (50 GB of log, or --gb): every command of the data pipeline on files that are not in the page cache, beside `cat`.

The store is made by our engine from Arrow batches and stays in the work directory. Before each command all its files are evicted from the
page cache; `cat` of the first 8 GB of the log is timed in the same way, before each command. The real 4.9.3 store opens what was rebuilt
and finds messages by their keys. An export is also killed halfway and resumed. Where a command reports its progress, the row says by how
many percentage points that was ahead of or behind the share of the time that had passed, at worst. The DataFrame rows are whole processes
on `local[2]`, the seconds without the start of the session; those of the commands on Spark include it. With --warm each command is run once
more with its files in the page cache, beside `cat` of them: for a store that fits into memory with room to spare, such as --gb 8.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from benchkit import TOPICS, Bench, Child, Row, Target, apart, child, mqstore, oracle, remove

from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore

BODY = 1024
RECORD = 1160  # bytes of a record, about
ROWS = 8192
QUEUES = 8
KEYS = 10_000_000
GB = 50.0
KEY = "order-000000007"
DATAFRAME = """
import sys, time
from mqstore import pipeline
from mqstore.pipeline.spark.session import session
with session(master="local[2]") as spark:
    begun = time.perf_counter()
    table = pipeline.read(spark, sys.argv[1], columns=sys.argv[2].split(","))
    rows = table.filter(sys.argv[3]).count() if sys.argv[3] else table.groupBy("topic").count().count()
    print(rows, time.perf_counter() - begun)
"""


def make(path: Path, size: float) -> float:
    """Make a store of so many bytes of log; return the messages put in a second, dispatch and the last sync included."""
    texts = pa.array([(b'{"order":"order-%09d","note":"' % number + os.urandom(BODY).hex().encode())[:BODY] for number in range(1024)])
    count = int(size / RECORD) // ROWS * ROWS
    start = time.perf_counter()
    with MessageStore.open(path, StoreConfig(version="4.9.3", disk_space_warning_level_ratio=0.99)) as store:
        for first in range(0, count, ROWS):
            numbers = range(first, first + ROWS)
            columns = {
                "topic": pa.array([f"bench-{i % TOPICS}" for i in numbers]),
                "queue_id": pa.array([i // TOPICS % QUEUES for i in numbers], pa.int32()),
                "keys": pa.array([[f"order-{i:09d}"] for i in numbers]),
                "body": texts.take(pa.array([i & 1023 for i in numbers])).cast(pa.binary()),
            }
            result = store.put_batch(pa.RecordBatch.from_pydict(columns))
            assert result.count == ROWS, result.detail
        assert store.wait_dispatched(3600)
    return count / (time.perf_counter() - start)


def evict(path: Path) -> None:
    """Bring all files below a path to disk and out of the page cache."""
    for place, _, names in os.walk(path):
        for name in names:
            descriptor = os.open(Path(place, name), os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def reading_rate(path: Path, *, warm: bool = False) -> float:
    """Return the bytes that `cat` reads of the first 8 GB of the log in a second; of the evicted log, unless warm."""
    if not warm:
        evict(path)
    files = sorted((path / "commitlog").iterdir())[:8]
    start = time.perf_counter()
    with open(os.devnull, "wb") as sink:
        subprocess.run(["cat", *map(str, files)], stdout=sink, check=True)
    return sum(file.stat().st_size for file in files) / (time.perf_counter() - start)


def killed(command: list[str], after: float) -> bool:
    """Run a command for some seconds, then kill it and its children. Returns False if it ended before."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True
    return False


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--gb", type=float, default=GB, help=f"size of the log, 10^9 bytes (default: {GB:g})")
    parser.add_argument("--warm", action="store_true", help="run each command also with its files in the page cache")


def main() -> None:
    bench = Bench(__doc__ or "", add_arguments)
    options = bench.options
    path = bench.work / f"store-size-{options.gb:g}"
    if not path.exists():
        being_made = path.with_name(path.name + ".part")
        remove(being_made)
        rate = apart(make, being_made, options.gb * 1e9)
        being_made.rename(path)
        bench.emit(
            Row(f"{options.gb:g} GB made by put_batch, dispatched and synced", (), {"messages/s": rate, "MB/s": rate * RECORD / 1e6})
        )
    size = sum(file.stat().st_blocks * 512 for file in (path / "commitlog").iterdir())
    messages = int(options.gb * 1e9 / RECORD) // ROWS * ROWS
    keys = bench.work / "size-keys.tsv"
    wanted = min(KEYS, messages)
    step = messages // wanted
    with keys.open("w", encoding="utf-8") as file:
        file.writelines(f"bench-{i * step % TOPICS}\torder-{i * step:09d}\n" for i in range(wanted))
    out = bench.work / "size-out"
    export = mqstore("export", path, "--to", out, "--columns", "topic,queue_id,queue_offset,store_timestamp,keys,size")
    commands = {
        "usage --by topic": mqstore("usage", path, "--by", "topic", "--output", "json"),
        "verify": mqstore("verify", path, "--output", "json"),
        "sql: count by topic": mqstore("sql", path, "select topic, count(*) n from messages group by topic", "--output", "json"),
        "sql: one key": mqstore("sql", path, f"select * from messages where array_contains(keys, '{KEY}')", "--output", "json"),
        f"lookup of {wanted:,} keys": mqstore("lookup", path, "--keys", keys, "--to", out, "--columns", "topic,physical_offset"),
        "rebuild": mqstore("rebuild", path, "--to", out, "--output", "json"),
        "verify on Spark": mqstore("verify", path, "--output", "json", "--master", "local[2]"),
        "rebuild on Spark": mqstore("rebuild", path, "--to", out, "--output", "json", "--master", "local[2]"),
        "DataFrame: count by topic": [sys.executable, "-c", DATAFRAME, str(path), "topic", ""],
        "DataFrame: filter by key": [sys.executable, "-c", DATAFRAME, str(path), "keys,topic", f"array_contains(keys, '{KEY}')"],
        "export of six columns": export,
    }
    for name, command in commands.items():
        if not bench.wants(name):
            continue
        remove(out)
        disk = reading_rate(path)
        evict(path)
        errors: list[tuple[float, str]] = []
        run = child(*command, *reporting(name), sample=0.2, errors=errors)
        seconds = seconds_of(name, run, errors)
        rate = size / seconds
        figures = {
            "seconds": seconds,
            "CPU": run.cpu,
            "MB/s of log": rate / 1e6,
            "MB resident": run.rss / 1e6,
            "anonymous": run.anonymous / 1e6,
        }
        figures |= progress_of(errors, run.seconds) | stages_of(name, run)
        bench.emit(
            Row(name, [Target(">=", 0.85, "x cat")], figures, {"cat MB/s": disk / 1e6}, [rate / disk], f"{messages:,} messages, cold")
        )
        if options.warm:
            remove(out)
            cached = max(reading_rate(path, warm=True) for _ in range(2))
            again = child(*command, sample=0.2)
            rate = size / seconds_of(name, again)
            figures = {"seconds": size / rate, "CPU": again.cpu, "MB/s of log": rate / 1e6, "MB resident": again.rss / 1e6}
            figures |= stages_of(name, again)
            bench.emit(Row(f"{name}, warm", (), figures, {"cat MB/s": cached / 1e6}, [rate / cached], "the log in the page cache"))
        if name == "rebuild":
            (found,) = oracle("query", out, "--messages", messages, "--count", 1000, "--rounds", 1)
            bench.emit(Row("the real store opens what was rebuilt and queries 1,000 keys", (), {}, found))
        whole = run.seconds
    remove(out)
    evict(path)
    if bench.wants("export of six columns") and killed([*export, "--resume"], whole / 2):
        run = child(*export, "--resume", sample=0.2)
        assert run.status == 0, run.stdout[-500:]
        rows = rows_of(out)
        assert rows == messages, rows
        bench.emit(
            Row("export killed halfway and resumed", (), {"seconds of the second run": run.seconds, "rows": rows, "uninterrupted": whole})
        )
    for made in (out, keys):
        remove(made)


def seconds_of(name: str, run: Child, errors: Sequence[object] = ()) -> float:
    """Return how long a command took, of a DataFrame without the start of the session. It must have succeeded."""
    assert run.status == 0, (name, run.stdout[-500:], errors[-3:])
    return float(run.stdout.split()[-1]) if name.startswith("DataFrame") else run.seconds


def reporting(name: str) -> list[str]:
    """Return the option with which a command reports its progress; `sql` and DataFrames have none."""
    return [] if name.startswith(("DataFrame", "sql")) else ["--progress"]


def progress_of(errors: Sequence[tuple[float, str]], seconds: float) -> dict[str, float]:
    """Return how far the progress that a command reported was from the share of its time, at worst, in percentage points."""
    shares = [(at, int(found[1])) for at, line in errors if (found := re.search(r": (\d+)% \(", line))]
    gaps = [share - 100 * at / seconds for at, share in shares]
    return {"progress, lines": len(gaps), "points ahead": max(0, *gaps), "points behind": max(0, *(-gap for gap in gaps))} if gaps else {}


def stages_of(name: str, run: Child) -> dict[str, float]:
    """Return the seconds of each step of a rebuild."""
    return dict(json.loads(run.stdout)["stages"]) if name.startswith("rebuild") else {}


def rows_of(place: Path) -> int:
    """Return the rows of all Parquet files below a path."""
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in place.rglob("*.parquet"))


if __name__ == "__main__":
    main()
