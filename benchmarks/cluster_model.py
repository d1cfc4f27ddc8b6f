"""A rebuild of a large log on many hosts, calculated: a simulation of its tasks, with constants from real runs.

`scripts/bench size --warm --only "on Spark" --json FILE`, run at two or more sizes, gives the constants. The two smaller sizes with the log
in the page cache: what the command takes whatever the size, and the core seconds of a gigabyte of log. The cold run of the second size: the
rate of the disk, read by two processes. With these the simulation has to come within 20 % of the cold runs of all sizes before it is
believed where nothing was run: `scripts/bench cluster_model --measured FILE...` prints that comparison, then 100 TB on 100 hosts of two
cores, with and without the loss of one in the middle.

The simulation: hosts with cores and one disk each. A task is taken by the core that is free first; its reading occupies the disk of that
host ahead of its work, so that it ends when both are done, and what it writes occupies the disk too. A host that is lost takes its running
tasks with it: after the time in which Spark notices they are run elsewhere from the beginning; what ended before is on the common file
system. The index begins when the log has been read everywhere.
"""

from __future__ import annotations

import heapq
import json
from argparse import ArgumentParser, ArgumentTypeError
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchkit import Bench, Row
from size import RECORD

from mqstore.rocketmq.scan.splits import MAX_SIZE, MAX_TASKS, MIN_SIZE

CORES = 2  # of the machine of the runs, and of each host
NOTICED = 120.0  # seconds, Spark's default of `spark.network.timeout`
KEYS_A_FILE = 20_000_000
QUEUE_ENTRY, STAGED_KEY, INDEX_ENTRY = 20, 20, 21  # bytes; an index entry with its share of the slots
TARGET, HOSTS = 100e12, 100
ALLOWED = 0.2


@dataclass(frozen=True, slots=True)
class Task:
    """disk: seconds of a host's disk, work: of a core."""

    disk: float
    work: float


@dataclass(frozen=True, slots=True)
class Constants:
    """start: seconds of the command whatever the size; work: of a core for each byte of log; read, write: bytes a second of a disk."""

    start: float
    work: float
    read: float
    write: float


def simulated(tasks: Sequence[Task], hosts: int, lost_at: float | None = None) -> float:
    """Return the seconds until all tasks are done. lost_at: when the first host is lost, with the tasks that it runs then."""
    free = [(0.0, host) for host in range(hosts) for _ in range(CORES)]
    disks = [0.0] * hosts
    waiting = deque((0.0, task) for task in tasks)
    end = 0.0
    while waiting:
        now, host = heapq.heappop(free)
        if lost_at is not None and host == 0 and now >= lost_at:
            continue
        ready, task = waiting.popleft()
        now = max(now, ready)
        disks[host] = max(disks[host], now) + task.disk
        done = max(disks[host], now + task.work)
        if lost_at is not None and host == 0 and done > lost_at:
            waiting.append((lost_at + NOTICED, task))
            continue
        heapq.heappush(free, (done, host))
        end = max(end, done)
    return end


def log_tasks(size: float, hosts: int, known: Constants, written: float = 0.0) -> list[Task]:
    """Return the tasks that read a log, as `mqstore.rocketmq.scan.splits.plan` cuts it. written: bytes that each writes a byte of log."""
    least = min(MAX_SIZE, max(MIN_SIZE, size / (4 * hosts * CORES)))
    count = max(1, round(size / max(least, size / MAX_TASKS)))
    each = size / count
    return [Task(each / known.read + each * written / known.write, each * known.work)] * count


def index_tasks(keys: float, seconds_a_key: float, known: Constants) -> list[Task]:
    """Return the tasks that make index files, one each."""
    disk = KEYS_A_FILE * (STAGED_KEY / known.read + INDEX_ENTRY / known.write)
    return [Task(disk, KEYS_A_FILE * seconds_a_key)] * max(1, round(keys / KEYS_A_FILE))


@dataclass(frozen=True, slots=True)
class Run:
    """One row of a measured command. size: bytes of log."""

    size: float
    seconds: float
    index: float


def runs(files: Sequence[Path], name: str) -> list[Run]:
    """Return the runs of a command in the rows of `size`, by size."""
    found = []
    for file in files:
        for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            if row["what"] == name:
                ours = row["ours"]
                found.append(Run(ours["seconds"] * ours["MB/s of log"] * 1e6, ours["seconds"], ours.get("index", 0.0)))
    return sorted(found, key=lambda run: run.size)


def fitted(cold: Sequence[Run], warm: Sequence[Run], write: float) -> Constants:
    (small, large), (_, middle) = warm[:2], cold[:2]
    work = max(0.0, large.seconds - small.seconds) / (large.size - small.size)
    start = small.seconds - small.size * work
    return Constants(start, work * CORES, middle.size / (middle.seconds - start), write)


def rows_file(text: str) -> Path:
    if not Path(text).is_file():
        raise ArgumentTypeError(f"{text} is not a file")
    return Path(text)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--measured", type=rows_file, nargs="+", required=True, help="files that `size --json` wrote, of two or more sizes")
    parser.add_argument(
        "--write", type=float, default=334, help="MB/s that a host writes (default: 334, of `size --gb 50` making its store)"
    )


def main() -> None:
    bench = Bench(__doc__ or "", add_arguments)
    files, write = bench.options.measured, bench.options.write * 1e6
    for name in ("verify on Spark", "rebuild on Spark"):
        cold = runs(files, name)
        warm = runs(files, f"{name}, warm")
        if min(len(cold), len(warm)) < 2:
            raise SystemExit(f"the files do not have `{name}` at two sizes, cold and with --warm")
        known = fitted(cold, warm, write)
        worst = 0.0
        for run in cold:
            told = known.start + simulated(log_tasks(run.size, 1, known), 1)
            worst = max(worst, abs(told / run.seconds - 1))
            what = f"{name}, {run.size / 1e9:.1f} GB, cold"
            bench.emit(Row(what, (), {"simulated, seconds": told}, {"measured, seconds": run.seconds}, [told / run.seconds]))
        constants = {"start, s": known.start, "core s a GB": known.work * 1e9, "read, MB/s": known.read / 1e6}
        what = f"{name}: the simulation is {'within' if worst <= ALLOWED else 'NOT WITHIN'} {ALLOWED:.0%} of all sizes"
        bench.emit(Row(what, (), constants, {}, [1 + worst]))
    largest = cold[-1]
    keys = TARGET / RECORD
    index = index_tasks(keys, largest.index * CORES / (largest.size / RECORD), known)
    written = (QUEUE_ENTRY + STAGED_KEY) / RECORD
    log = log_tasks(TARGET, HOSTS, known, written)
    alone = simulated(log, HOSTS)
    figures = {"tasks of the log": len(log), "GB each": TARGET / len(log) / 1e9, "reading, s": alone, "index files": len(index)}
    figures["index, s"] = simulated(index, HOSTS)
    figures["with a host lost in the middle of the reading, s"] = simulated(log, HOSTS, alone / 2)
    bench.emit(Row("rebuild of 100 TB on 100 hosts of two cores", (), figures, conditions=f"{keys / 1e9:.1f} G messages of one key each"))


if __name__ == "__main__":
    main()
