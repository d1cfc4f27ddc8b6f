"""rebuild with growing logs, with more cores, and including session start: 0.1 to 10 GB, 1 and 2 cores, cold Spark at 10 GB.

A smaller log is a store with the first log files of a large one, hard-linked, and the beginning of the next: a rebuild copies the last
log file, and this keeps the copy small. 0.1 GB is the first part of the first file. Cost per message is that of the default, threads of
this process; the cost on warm Spark is shown beside it. The peer of the cold rebuild is the real store's total: load and dispatch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchkit import Bench, Row, link_log, log_files, log_size, median, peer_dispatch, provide_memory, warm

from mqstore.pipeline.jobs.rebuild import rebuild
from mqstore.pipeline.jobs.report import RebuildReport
from mqstore.pipeline.spark.session import session

PART = 100_000_000  # size of the smallest log in bytes
BEGINNING = 1_000_000  # bytes of the last log file
COLD = "import sys; from mqstore.pipeline.jobs.rebuild import rebuild; print(rebuild(sys.argv[1], sys.argv[2], master='local[2]').messages)"


def part_of(store: Path, target: Path, files: int) -> Path:
    """Create a store with the first log files of another and the beginning of the next; for 0 files, with the first 0.1 GB."""
    found = log_files(store)
    if files == len(found):
        return link_log(store, target)
    (target / "commitlog").mkdir(parents=True)
    for path in found[:files]:
        os.link(path, target / "commitlog" / path.name)
    last = found[files]
    with last.open("rb") as source, (target / "commitlog" / last.name).open("wb") as copy:
        copy.write(source.read(BEGINNING if files else PART))
        copy.truncate(last.stat().st_size)
    return target


def main() -> None:
    bench = Bench(__doc__ or "")
    store = bench.store("s10")

    def run(source: Path, **where: object) -> RebuildReport:
        provide_memory()
        with bench.scratch("rebuilt") as out:
            return rebuild(source, out, **where)  # type: ignore[arg-type]

    def best(source: Path, **where: object) -> float:
        """Return the median microseconds per message."""
        reports = [run(source, **where) for _ in range(bench.rounds)]
        return median([report.seconds / report.messages * 1e6 for report in reports])

    whole = len(log_files(store))
    sizes = sorted({0, 1, min(4, whole), whole})
    costs: dict[str, float] = {}
    cores: dict[str, float] = {}
    on_spark: dict[str, float] = {}
    for files in sizes:
        with bench.scratch("part") as place:
            part = part_of(store, place, files)
            warm(part)
            name = f"{log_size(part) / 1e9:.1f} GB"
            run(part, in_process_threads=2)
            costs[name] = best(part, in_process_threads=2)
    with bench.scratch("part") as place:
        part = part_of(store, place, min(4, whole))
        warm(part)
        for threads in (1, 2):
            cores[f"{threads} threads, us"] = best(part, in_process_threads=threads)
            with session(master=f"local[{threads}]") as spark:
                run(part, spark=spark)
                on_spark[f"local[{threads}], us"] = best(part, spark=spark)
    spread = max(costs.values()) / min(costs.values())
    what = f"medians of {bench.rounds}"
    bench.emit(Row("cost per message of a rebuild as the log grows, us", "flat within 15 %", dict(costs), {}, spread, spread <= 1.15, what))
    for name, found in (("in this process", cores), ("on Spark, warm", on_spark)):
        one, two = found.values()
        bench.emit(Row(f"1 -> 2 cores, rebuild {name}, per message", ">= 1.8 x", dict(found), {}, one / two, one / two >= 1.8, what))
    with bench.scratch("rebuilt") as out:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", COLD, str(store), str(out)], check=True, stdout=subprocess.DEVNULL)
        cold = time.perf_counter() - start
    theirs = median([row["total_seconds"] for row in peer_dispatch(store, 1, bench.work / "peer")])
    figures = {"seconds, including process and session start": cold}
    peer = {"load and dispatch, seconds": theirs}
    what = f"{log_size(store) / 1e9:.2f} GB of log, one run each"
    bench.emit(Row("rebuild on Spark local[2], cold", ">= 1 x the real total at 10 GB", figures, peer, theirs / cold, theirs >= cold, what))


if __name__ == "__main__":
    main()
