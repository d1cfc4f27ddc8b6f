"""Opening a store of 100 GB (sparse files with one record at the start of each log file): time and memory of the process.

Opening covers names, sizes, settings and the log range of both views. No broker is involved.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchkit import Bench, Row, Target, child, log_files

FILE = 1 << 30
FILES = 100

PROBE = """
import json, sys, time
import mqstore
start = time.perf_counter()
store = mqstore.open(sys.argv[1])
opened = time.perf_counter() - start
low, high = store.view("disk").log_range()
print(json.dumps({"open": opened, "range": time.perf_counter() - start, "low": low, "high": high}))
"""


def make(target: Path, template: Path) -> None:
    """Create 100 log files of 1 GiB that each hold only the template's first record, adjusted to its physical offset."""
    with log_files(template)[0].open("rb") as file:
        size = int.from_bytes(file.read(4), "big")
        file.seek(0)
        record = bytearray(file.read(size))
    (target / "commitlog").mkdir(parents=True)
    for number in range(FILES):
        path = target / "commitlog" / f"{number * FILE:020d}"
        record[28:36] = (number * FILE).to_bytes(8, "big")
        with path.open("wb") as file:
            file.write(record)
            file.truncate(FILE)


def main() -> None:
    bench = Bench(__doc__ or "")
    template = bench.store("s1")
    with bench.scratch("sparse") as target:
        make(target, template)
        runs = [child(sys.executable, "-c", PROBE, target) for _ in range(bench.rounds)]
    answers = [json.loads(run.stdout) for run in runs]
    opened, ranged = ([answer[name] * 1e3 for answer in answers] for name in ("open", "range"))
    rss = [run.rss / 1e6 for run in runs]
    bench.emit(
        Row(
            "opening a 100 GB store",
            [Target("<=", 200, "ms", ranged), Target("<=", 150, "MB", rss)],
            {
                "open ms": opened,
                "to the log range ms": ranged,
                "process ms": [run.seconds * 1e3 for run in runs],
                "process CPU ms": [run.cpu * 1e3 for run in runs],
                "peak RSS MB": rss,
            },
            conditions=f"{FILES} files of 1 GiB, log {answers[0]['low']} to {answers[0]['high']}",
        )
    )


if __name__ == "__main__":
    main()
