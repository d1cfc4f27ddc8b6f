"""Run the benchmarks, each in its own process, on stores that are made once.

Rows are written to rows.jsonl in the work directory; a table is printed at the end. With --quick twelve rows on small stores, in some
five minutes. With --compare an older revision of the scripts named (by default those of --quick) and of the package is built, and the
scripts of both are run in turn, one round at a time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from benchkit import CONFIDENCE, ROOT, Bench, Spread, divided, listed, median, ratio_of, remove, short, spread, verdict

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
# the scripts of --quick, with the rows of each
QUICK: dict[str, Sequence[str]] = {
    "startup": ["mqstore --help"],
    "opening": [],
    "query": ["decoded messages"],
    "verify": [],
    "in_process": ["1 thread, s1", "dispatch in process, 2 threads, s1"],
    "putting": ["100 B", "flush, 1 thread"],
    "reading": ["Arrow batch"],
    "brokering": ["start to first"],
    "rabbitpublish": [],
}
QUICK_SCALE = 0.25


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="with --compare: scripts to run")
    parser.add_argument("--quick", action="store_true", help="twelve rows on small stores, in some five minutes")
    parser.add_argument("--compare", metavar="REV", help="compare this tree with that revision")


def main() -> int:
    bench = Bench(__doc__ or "", add_arguments)
    if bench.options.compare:
        return compare(bench)
    rows = bench.options.json or bench.work / "rows.jsonl"
    rows.unlink(missing_ok=True)
    scale = QUICK_SCALE if bench.options.quick else bench.options.scale
    chosen = QUICK if bench.options.quick else dict.fromkeys(SCRIPTS, bench.options.only)
    failed = []
    for script, only in chosen.items():
        options = ["--rounds", str(bench.rounds), "--scale", str(scale), *(f"--only={text}" for text in only)]
        if not run(ROOT, script, bench, rows, options):
            failed.append(script)
    if scale < 1:
        print(f"\nSmall stores, {scale:g} of the full size: what a run costs whatever its size weighs more, and the peer is less warm.")
        print("The targets are for full stores; (in parentheses): the verdict for these.")
    print("\n".join(["", *table(facts_in(rows))]))
    return complain(failed)


def run(tree: Path, script: str, bench: Bench, rows: Path, options: Sequence[str], *, quiet: bool = False) -> bool:
    """Run a script of a tree with the package of that tree; return whether it succeeded."""
    command = [sys.executable, str(tree / "benchmarks" / f"{script}.py"), "--work", str(bench.work), "--json", str(rows), *options]
    for kind in ("s1", "s2", "s10"):
        if getattr(bench.options, kind) is not None:
            command += [f"--{kind}", str(getattr(bench.options, kind))]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    return not subprocess.run(command, env=environment, stdout=subprocess.DEVNULL if quiet else None, check=False).returncode


def complain(failed: Iterable[str]) -> int:
    """Name the scripts that failed; return the exit code."""
    for script in (names := sorted(set(failed))):
        print(f"{script}.py failed; its rows are missing", file=sys.stderr)
    return 1 if names else 0


def facts_in(rows: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()] if rows.exists() else []


def table(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table of some rows."""
    yield "| what | target | measured | peer, same run | ratio | |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        yield f"| {row['what']} | {row['target']} | {listed(row['ours'])} | {listed(row['peer'])} | {ratio_of(row)} | {verdict(row)} |"


def compare(bench: Bench) -> int:
    """Run scripts of this tree and of an older revision in turn and print what the rows of both have in common."""
    names = bench.options.names or list(QUICK)
    found: dict[str, list[dict[str, dict[str, Any]]]] = {"now": [], "then": []}
    failed: list[str] = []
    with older(bench.options.compare, bench.work) as tree:
        trees = {"now": ROOT, "then": tree}
        options = ["--rounds", "1", "--scale", str(bench.options.scale)]
        files = {side: bench.work / f"compared-{side}.jsonl" for side in trees}
        for number in range(bench.rounds):
            print(f"# round {number + 1} of {bench.rounds}", flush=True)
            for rows in files.values():
                rows.unlink(missing_ok=True)
            turns = product(names, sorted(trees, reverse=bool(number % 2)))
            failed += [script for script, side in turns if not run(trees[side], script, bench, files[side], options, quiet=True)]
            for side, rows in files.items():
                found[side].append({row["what"]: row for row in facts_in(rows)})
    print("\n".join(["", *compared(found["now"], found["then"], bench.options.compare)]))
    return complain(failed)


def compared(now: Sequence[dict[str, Any]], then: Sequence[dict[str, Any]], revision: str) -> Iterator[str]:
    """Yield the lines of the table of our first figure in each row that every round of both has."""
    yield f"| what | figure | now | {revision} | now / {revision}, in turn | |"
    yield "|---|---|---|---|---|---|"
    for what in now[0]:
        if not all(what in rows for rows in (*now, *then)):
            continue
        name = next((name for name, value in now[0][what]["ours"].items() if name in then[0][what]["ours"]), None)
        if name is None:
            continue
        ours, theirs = ([rows[what]["ours"][name] for rows in side] for side in (now, then))
        ratios = spread(divided(ours, theirs))
        yield f"| {what} | {name} | {short(median(ours))} | {short(median(theirs))} | {ratios} | {changed(ratios)} |"


def changed(ratios: Spread) -> str:
    """Return whether the figure is higher or lower now."""
    if ratios.confidence < CONFIDENCE or ratios.low <= 1 <= ratios.high:
        return "cannot be told"
    return "higher" if ratios.low > 1 else "lower"


@contextmanager
def older(revision: str, work: Path) -> Iterator[Path]:
    """Yield a worktree of a revision with its kernels built, which is removed afterwards. Peers that are built here are used there."""
    tree = work / "older"
    git = ["git", "-C", str(ROOT), "worktree"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        remove(tree)
        subprocess.run([*git, "prune"], check=True)
        if subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=False).returncode:
            raise SystemExit(f"{revision} cannot be checked out; see the message of git above.")
        print(f"# building the kernels of {revision}", flush=True)
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        done = subprocess.run(build, cwd=tree, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the kernels of {revision} cannot be built:\n{done.stderr[-4000:]}")
        for built in ROOT.glob("tests/interop/*/target"):
            if (place := tree / built.relative_to(ROOT)).parent.exists():
                place.symlink_to(built)
        yield tree
    finally:
        remove(tree)
        subprocess.run([*git, "prune"], check=True)


if __name__ == "__main__":
    sys.exit(main())
