"""Peak memory of Spark jobs a core, local[2], in a log of 1 GB and in all of it: rebuild, export, lookup by scan, a DataFrame.

Local mode has the executor in the driver's JVM, so the figure is that JVM and all Python workers together, over two cores: anonymous
memory, which is what a container is charged for, with the pages of mapped log files beside it as RSS.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from benchkit import Bench, Row, count_messages, link_log, log_files, log_size
from lookup import COLUMNS, asked

from mqstore import pipeline
from mqstore.pipeline.export import export
from mqstore.pipeline.lookup import lookup
from mqstore.pipeline.rebuild import rebuild
from mqstore.pipeline.session import session

CORES = 2
KEYS = 1_000_000


def below(pid: int) -> list[int]:
    """Process numbers of all descendants."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *below(child)]
    return found


def memory(pid: int) -> tuple[str, int, int]:
    """(program, anonymous bytes, resident bytes) of a process."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    anonymous, resident = (int(lines.get(name, "0 kB").split()[0]) * 1024 for name in ("RssAnon", "VmRSS"))
    return "java" if lines["Name"].strip() == "java" else "python", anonymous, resident


def watched(job: Callable[[], object]) -> dict[str, float]:
    """Peaks while a job runs, MB."""
    peaks = {"a core": 0.0, "JVM": 0.0, "largest Python worker": 0.0, "a core, RSS": 0.0}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            rows = []
            for pid in below(os.getpid()):
                try:
                    rows.append(memory(pid))
                except (FileNotFoundError, ProcessLookupError):
                    continue
            found = {
                "a core": sum(row[1] for row in rows) / CORES,
                "JVM": sum(row[1] for row in rows if row[0] == "java"),
                "largest Python worker": max((row[1] for row in rows if row[0] == "python"), default=0),
                "a core, RSS": sum(row[2] for row in rows) / CORES,
            }
            for name, value in found.items():
                peaks[name] = max(peaks[name], value / 1e6)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        job()
    finally:
        over.set()
        watcher.join()
    return peaks


def main() -> None:
    bench = Bench(__doc__ or "")
    whole = bench.store("s10")
    keys = asked(count_messages(whole), KEYS)
    with bench.scratch("part") as part:
        link_log(whole, part)
        for path in log_files(part)[1:]:
            path.unlink()
        for store in (part, whole):
            name = f"{log_size(store) / 1e9:.1f} GB"
            with session(master=f"local[{CORES}]") as spark, bench.scratch("out") as out:
                jobs: dict[str, Callable[[], object]] = {
                    "rebuild": lambda: rebuild(store, out, spark=spark),  # noqa: B023
                    "export": lambda: export(store, out, spark=spark),  # noqa: B023
                    "lookup of 1,000,000 keys by scan": lambda: lookup(store, keys, out, by="scan", columns=COLUMNS, spark=spark),  # noqa: B023
                    "DataFrame, all columns": lambda: pipeline.read(spark, str(store)).write.format("noop").mode("overwrite").save(),  # noqa: B023
                }
                for what, job in jobs.items():
                    with bench.scratch("out"):
                        peaks = watched(job)
                    met = peaks["a core"] * 1e6 <= 1 << 30
                    bench.emit(
                        Row(f"memory of {what} on Spark, {name}", "<= 1 GiB a core", {f"{k}, MB": v for k, v in peaks.items()}, met=met)
                    )


if __name__ == "__main__":
    main()
