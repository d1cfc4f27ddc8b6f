"""rebuild with growing logs, with more cores, and including session start: 0.1 to 10 GB, 1 and 2 cores, cold Spark at 10 GB.

A smaller log is a store with the first log files of a large one, hard-linked, and the beginning of the next: a rebuild copies the last
log file, and this keeps the copy small. 0.1 GB is the first part of the first file. Cost per message is that of the default, threads of
this process. The peer of the cold rebuild is the real store's total: load and dispatch. The floor of a cost per message, and of a second
core, is walk and dispatch of the same splits with nothing written; that of a second core is also an arithmetic loop in two processes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchkit import Bench, Row, Target, child, divided, link_log, log_files, log_size, peer_dispatch, provide_memory, warm
from unwritten import walked

from mqstore.jobs.rebuild import rebuild
from mqstore.jobs.report import RebuildReport
from mqstore.jobs.runner import Runner, ThreadRunner
from mqstore.pipeline.spark.runner import SparkRunner
from mqstore.pipeline.spark.session import session

PART = 100_000_000  # size of the smallest log in bytes
BEGINNING = 1_000_000  # bytes of the last log file
LOOP = 10_000_000
COLD = "import sys; from mqstore.jobs.rebuild import rebuild; print(rebuild(sys.argv[1], sys.argv[2], master='local[2]').messages)"


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


def loop(count: int) -> float:
    """Return the seconds of an arithmetic loop."""
    start, total = time.perf_counter(), 0
    for number in range(count):
        total += number * number
    return time.perf_counter() - start


def two_processes(rounds: int) -> list[float]:
    """Return how much more arithmetic two processes do at once than one alone: 2 if the cores do not disturb each other."""
    gains = []
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        list(processes.map(loop, [1000] * 4))
        for _ in range(rounds):
            alone = processes.submit(loop, LOOP).result()
            gains.append(2 * alone / max(processes.map(loop, [LOOP] * 2)))
    return gains


def two_cores(bench: Bench, store: Path, cost: Callable[..., list[float]], floor: Callable[[Path, int, Runner], list[float]]) -> None:
    """Compare one core with two on the first 4 GB, in threads and on Spark, beside their floors."""
    arithmetic = two_processes(bench.rounds)
    with bench.scratch("part") as place:
        part = part_of(store, place, min(4, len(log_files(store))))
        warm(part)
        with bench.scratch("rebuilt") as out:
            messages = rebuild(part, out, threads=2).messages
        found: dict[str, list[tuple[list[float], list[float]]]] = {"in this process": [], "on Spark, warm": []}
        for width in (1, 2):
            measured = cost(part, threads=width)
            found["in this process"].append((measured, floor(part, messages, ThreadRunner(width))))
            with session(master=f"local[{width}]") as spark:
                measured = cost(part, spark=spark)
                found["on Spark, warm"].append((measured, floor(part, messages, SparkRunner(spark))))
        size = log_size(part)
    for name, ((one, floor_one), (two, floor_two)) in found.items():
        figures = {"one core, us": one, "two cores, us": two}
        floors = {
            "floor: walk and dispatch, nothing written, one core, us": floor_one,
            "two cores, us": floor_two,
            "their ratio": divided(floor_one, floor_two),
            "arithmetic, two processes against one": arithmetic,
        }
        what = f"{size / 1e9:.1f} GB of log; paired, not alternated"
        bench.emit(Row(f"1 -> 2 cores, rebuild {name}, per message", [Target(">=", 1.7, "x")], figures, floors, divided(one, two), what))


def main() -> None:
    bench = Bench(__doc__ or "")
    store = bench.store("s10")

    def run(source: Path, **where: object) -> RebuildReport:
        provide_memory()
        with bench.scratch("rebuilt") as out:
            return rebuild(source, out, **where)  # type: ignore[arg-type]

    def cost(source: Path, **where: object) -> list[float]:
        """Return the microseconds per message of each round, after a run that does not count."""
        run(source, **where)
        reports = [run(source, **where) for _ in range(bench.rounds)]
        return [report.seconds / report.messages * 1e6 for report in reports]

    def floor(source: Path, messages: int, runner: Runner) -> list[float]:
        """Return the microseconds per message, of each round, of walk and dispatch alone."""
        return [walked(source, runner) / messages * 1e6 for _ in range(bench.rounds)]

    whole = len(log_files(store))
    growing: dict[str, list[float]] = {}
    reading: dict[str, list[float]] = {}
    for files in sorted({0, 1, min(4, whole), whole}):
        with bench.scratch("part") as place:
            part = part_of(store, place, files)
            warm(part)
            name = f"{log_size(part) / 1e9:.1f} GB"
            growing[name] = cost(part, threads=2)
            reading[f"floor at {name}"] = floor(part, run(part, threads=2).messages, ThreadRunner(2))
    # of each round the dearest size by the cheapest; the smallest store is there to be seen
    spreads, floors = ([max(each) / min(each) for each in zip(*list(found.values())[1:], strict=True)] for found in (growing, reading))
    reading["spread of the floor"] = floors
    what = "the ratio is the spread from 1 GB on; paired, not alternated"
    name = "cost per message of a rebuild as the log grows, us"
    bench.emit(Row(name, [Target("<=", 1.45, "x from the cheapest size to the dearest")], growing, reading, spreads, what))
    two_cores(bench, store, cost, floor)
    colds, theirs = [], []
    for _ in range(bench.rounds):
        with bench.scratch("rebuilt") as out:
            colds.append(child(sys.executable, "-c", COLD, store, out))
        assert colds[-1].status == 0
        theirs.append(peer_dispatch(store, bench.work / "peer", 1)["total_seconds"])
    cold = [run.seconds for run in colds]
    figures = {"load and dispatch, seconds": theirs}
    what = f"{log_size(store) / 1e9:.2f} GB of log, process and session start included"
    target = Target(">=", 1, "x the real total at 10 GB")
    bench.emit(Row("rebuild on Spark local[2], cold", [target], {"seconds": cold}, figures, divided(theirs, cold), what))


if __name__ == "__main__":
    main()
