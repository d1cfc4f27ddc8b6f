"""Run every benchmark in its own process, on stores that are made once.

Rows are written to rows.jsonl in the work directory; a table is printed at the end.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchkit import Bench

SCRIPTS = (
    "startup",
    "opening",
    "query",
    "verify",
    "carving",
    "in_process",
    "rebuild",
    "dataframe",
    "many_stores",
    "queries",
    "export",
    "lookup",
    "follow",
    "scaling",
    "sparkmemory",
    "memory",
    "putting",
    "brokering",
    "reading",
    "reopening",
    "python_queues",
    "floors",
    "shapes",
    "rabbitconvert",
    "rabbitrecovery",
    "rabbitpublish",
    "rabbitscan",
    "rabbitmemory",
)


def main() -> int:
    bench = Bench(__doc__ or "")
    rows = bench.options.json or bench.work / "rows.jsonl"
    rows.unlink(missing_ok=True)
    stores = {kind: bench.store(kind) for kind in ("s1", "s2")}
    failed = []
    for script in SCRIPTS:
        command = [sys.executable, str(Path(__file__).with_name(f"{script}.py")), "--work", str(bench.work), "--json", str(rows)]
        for kind, path in stores.items():
            command += [f"--{kind}", str(path)]
        if subprocess.run([*command, "--rounds", str(bench.rounds)], check=False).returncode:
            failed.append(script)
    print("\n| what | target | measured | peer, same run | ratio | |\n|---|---|---|---|---|---|")
    for line in rows.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        ours, peer = (", ".join(f"{name} {_short(value)}" for name, value in row[side].items()) for side in ("ours", "peer"))
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        print(f"| {row['what']} | {row['target']} | {ours} | {peer} | {ratio} | {'' if row['met'] in (True, None) else 'missed'} |")
    for script in failed:
        print(f"{script}.py failed; its rows are missing", file=sys.stderr)
    return 1 if failed else 0


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
