"""Peak memory per core of Spark jobs, local[2], on 1 GB of log and on all of it: rebuild, verify, export, lookup by scan, DataFrame.

In local mode the executor is in the driver's JVM, so the figure is that JVM and all Python workers together, divided by two cores: the
peak resident memory of each (VmHWM), including mapped pages of log files, although those belong to the page cache. Beside it is the
peak of their anonymous memory at any one time, the minimum for a container. Every job has its own session.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from benchkit import Bench, Row, Target, below, count_messages, link_log, log_files, log_size
from lookup import COLUMNS, asked
from pyspark.sql import SparkSession

from mqstore import pipeline
from mqstore.jobs.export import export
from mqstore.jobs.lookup import lookup
from mqstore.jobs.rebuild import rebuild
from mqstore.jobs.verify import verify
from mqstore.pipeline.spark.session import session

CORES = 2
KEYS = 1_000_000
Job = Callable[[SparkSession, Path, Path], object]


def memory(pid: int) -> tuple[str, int, int]:
    """Return (program, anonymous bytes, peak resident bytes) of a process."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    anonymous, peak = (int(lines.get(name, "0 kB").split()[0]) * 1024 for name in ("RssAnon", "VmHWM"))
    return "java" if lines["Name"].strip() == "java" else "python", anonymous, peak


def watched(job: Callable[[], object]) -> dict[str, float]:
    """Run a job and return peaks in MB. Processes that end before it count with their last sample."""
    peaks: dict[int, tuple[str, int]] = {}
    anonymous = 0
    over = threading.Event()

    def watch() -> None:
        nonlocal anonymous
        while not over.wait(0.05):
            now = 0
            for pid in below(os.getpid()):
                try:
                    program, used, peak = memory(pid)
                except (FileNotFoundError, ProcessLookupError):
                    continue
                peaks[pid] = program, peak
                now += used
            anonymous = max(anonymous, now)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        job()
    finally:
        over.set()
        watcher.join()
    of = {name: [peak for program, peak in peaks.values() if program == name] for name in ("java", "python")}
    return {
        "per core": sum(map(sum, of.values())) / CORES / 1e6,
        "JVM": sum(of["java"]) / 1e6,
        "largest Python worker": max(of["python"], default=0) / 1e6,
        "per core, anonymous": anonymous / CORES / 1e6,
    }


def main() -> None:
    bench = Bench(__doc__ or "")
    whole = bench.store("s10")
    keys = asked(count_messages(whole), KEYS)
    jobs: dict[str, Job] = {
        "rebuild": lambda spark, store, out: rebuild(store, out, spark=spark),
        "verify": lambda spark, store, out: verify(store, spark=spark),
        "export": lambda spark, store, out: export(store, out, spark=spark),
        "lookup of 1,000,000 keys by scan": lambda spark, store, out: lookup(store, keys, out, by="scan", columns=COLUMNS, spark=spark),
        "DataFrame, all columns": lambda spark, store, out: pipeline.read(spark, store).write.format("noop").mode("overwrite").save(),
    }
    with bench.scratch("part") as part:
        link_log(whole, part)
        for path in log_files(part)[1:]:
            path.unlink()
        for store in (part, whole):
            name = f"{log_size(store) / 1e9:.1f} GB"
            for what, job in jobs.items():
                rounds = []
                for _ in range(bench.rounds):
                    with bench.scratch("out") as out, session(master=f"local[{CORES}]") as spark:
                        rounds.append(watched(lambda: job(spark, store, out)))  # noqa: B023
                peaks = {f"{key}, MB": [each[key] for each in rounds] for key in rounds[0]}
                target = Target("<=", 1074, "MB per core", peaks["per core, MB"])
                bench.emit(Row(f"memory of {what} on Spark, {name}", [target], peaks))


if __name__ == "__main__":
    main()
