"""Time of `mqstore --help` and `import mqstore` in a new process each, beside the startup of the interpreter alone."""

from __future__ import annotations

import sys

from benchkit import Bench, Row, child, median, mqstore

IMPORT = "import time; start = time.perf_counter(); import mqstore; print(time.perf_counter() - start)"


def main() -> None:
    bench = Bench(__doc__ or "")
    runs = max(7, bench.rounds)
    bare = median([child(sys.executable, "-c", "pass").seconds for _ in range(runs)]) * 1e3
    helps = [child(*mqstore("--help")) for _ in range(runs)]
    assert helps[0].status == 0
    shown = median([run.seconds for run in helps]) * 1e3
    bench.emit(
        Row("mqstore --help", "<= 300 ms", {"ms": shown, "interpreter alone": bare}, met=shown <= 300, conditions=f"median of {runs}")
    )
    imported = median([float(child(sys.executable, "-c", IMPORT).stdout) for _ in range(runs)]) * 1e3
    bench.emit(Row("import mqstore", "<= 100 ms", {"ms": imported}, met=imported <= 100, conditions=f"median of {runs}"))


if __name__ == "__main__":
    main()
