"""Would the tests notice? `scripts/mutate --seeds 0-99 --below rocketmq/format --tests tests/rocketmq/format`.

Each seed is one small change of one file of `src/mqstore`, made in a copy. The tests that enter the changed block are run, the
fastest first, until one fails. `tests` are run once before that, unchanged, to note what each enters. A changed kernel is compiled, and
tried with all `tests`, since what enters it is not noted. The results are kept by revision, and a seed that is there is not run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import accumulate
from pathlib import Path

from mutation.mutants import KINDS, block_of, drawn

Touched = dict[str, tuple[float, list[str]]]
ROOT = Path(__file__).resolve().parents[2]
GENERATED = Path("build", "cython")
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="mutate", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0-19", help="the first and the last seed")
    parser.add_argument("--below", default="", help="a directory or file of src/mqstore, if not all are drawn from")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="what is run")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "mutation", help="where the results are kept")
    parser.add_argument("--seconds", type=float, default=3600, help="begin no further mutant after this time")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds of tests that a mutant is tried with; all if not given")
    parser.add_argument("--control", action="store_true", help="change nothing: every mutant has to survive")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    if not first.isdecimal() or not (last or first).isdecimal():
        parser.error(f"--seeds is {options.seeds!r}; give the first and the last one, such as 0-99")
    if not (ROOT / "src" / "mqstore" / options.below).exists():
        parser.error(f"--below is {options.below!r}, which is not in src/mqstore")
    revision = subprocess.check_output(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, text=True).strip()
    of_tests = hashlib.sha256(" ".join(options.tests).encode()).hexdigest()[:10]  # all their names would be too long for a file
    state: Path = options.state / "-".join([revision, *options.below.split("/"), of_tests])
    copy = copied(state)
    results_file = state / ("control.jsonl" if options.control else "results.jsonl")
    results = {}
    if results_file.exists():
        results = {each["seed"]: each for each in map(json.loads, results_file.read_text(encoding="utf-8").splitlines())}
    touched = what_tests_enter(state, options.tests)
    ends = time.monotonic() + options.seconds
    for seed, path, edit in drawn(ROOT / "src" / "mqstore", options.below, range(int(first), int(last or first) + 1)):
        if seed in results:
            continue
        if time.monotonic() > ends:
            break
        source = path.read_bytes()
        known = edit.named(path.relative_to(ROOT / "src" / "mqstore"), source)
        place = path.relative_to(ROOT / "src" / "mqstore").as_posix()
        tests = those_entering(touched, place, block_of(source, edit.line), options.budget)
        outcome = "equivalent" if known in equivalents() and not options.control else "" if tests else "untouched"
        outcome = outcome or tried(copy, place, source if options.control else edit.applied(source), tests)
        result = {"seed": seed, "kind": edit.kind, "line": edit.line, "mutant": known, "tests": len(tests), "outcome": outcome}
        results[seed] = result
        with results_file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(result) + "\n")
        print(f"{seed} {outcome}: {edit.kind}, line {edit.line}: {known}", flush=True)
    print(table(list(results.values()), revision))


def copied(state: Path) -> Path:
    """A new copy of the source, where a kernel can be compiled."""
    shutil.rmtree(state / "src", ignore_errors=True)  # a run that was ended may have left its change
    shutil.rmtree(state / "build", ignore_errors=True)
    shutil.copytree(ROOT / "src", state / "src")
    for name in ("setup.py", "build_backend.py", "pyproject.toml"):
        shutil.copy2(ROOT / name, state)
    if (ROOT / GENERATED).exists():
        shutil.copytree(ROOT / GENERATED, state / GENERATED)
    return state / "src"


def equivalents() -> dict[str, str]:
    """The mutants that no test can notice, each with its reason: two lines each in the file, the second indented."""
    lines = [line for line in EQUIVALENT.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return {mutant: reason.strip() for mutant, reason in zip(lines[::2], lines[1::2], strict=True)}


def table(results: list[dict[str, str | int]], revision: str) -> str:
    """Of each kind: how many were noticed, of those that compile and can be; of those that no test enters none is."""
    lines = ["| change | mutants | noticed | survived | untouched | equivalent | revision |", "|---|---|---|---|---|---|---|"]
    for kind in [*KINDS, "all"]:
        counts = Counter(str(each["outcome"]) for each in results if kind in (each["kind"], "all") and each["outcome"] != "refused")
        noticed = counts["failed"] + counts["timeout"]
        shares = noticed / ((counts.total() - counts["equivalent"]) or 1)
        others = " | ".join(str(counts[each]) for each in ("survived", "untouched", "equivalent"))
        lines.append(f"| {kind} | {counts.total()} | {noticed} ({shares:.1%}) | {others} | {revision} |")
    return "\n".join(lines)


def what_tests_enter(state: Path, tests: list[str]) -> Touched:
    """The seconds of each test, and the blocks that it enters."""
    out = state / "touched.json"
    if not out.exists():
        command = [*PYTEST, "-p", "mutation.touched", *tests]
        environment = os.environ | {"MQSTORE_TOUCHED": str(out), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
        if subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False).returncode > 1:
            raise SystemExit(f"what the tests enter cannot be noted; see: {' '.join(PYTEST)} {' '.join(tests)}")
    return dict(json.loads(out.read_text(encoding="utf-8")))


def those_entering(touched: Touched, place: str, block: int, budget: float = math.inf) -> dict[str, float]:
    """The tests that enter the block, the fastest first, then the others of their files: what a fixture did once is done for all.

    budget: seconds that they take together. A kernel may be entered by every test.
    """

    def enters(names: list[str]) -> bool:
        return f"{place}:{block}" in names if block else any(each.startswith(f"{place}:") for each in names)

    first = {test for test, (_, names) in touched.items() if place.startswith("kernels/") or enters(names)}
    files = {test.split("::")[0] for test in first}
    tests = [test for test in touched if test.split("::")[0] in files]
    tests.sort(key=lambda test: (test not in first, touched[test][0]))
    after = accumulate(touched[test][0] for test in tests)
    return {test: touched[test][0] for test, seconds in zip(tests, after, strict=True) if seconds <= budget}


def tried(copy: Path, place: str, changed: bytes, tests: dict[str, float]) -> str:
    """What becomes of the tests when a file is changed."""
    target = copy / "mqstore" / place
    kept = {target: target.read_bytes()}
    is_kernel = place.startswith("kernels/")
    if is_kernel:  # restored in this order, each is newer than what it is made of
        made = [copy.parent / GENERATED / "src" / "mqstore" / Path(place).with_suffix(".c"), *target.parent.glob(f"{target.stem}.*.so")]
        kept |= {path: path.read_bytes() for path in made if path.exists()}
    try:
        _write(target, changed)
        return _outcome(copy, tests) if not is_kernel or _compiles(copy.parent) else "refused"  # by the compiler
    finally:
        for path, content in kept.items():
            _write(path, content)


def _compiles(place: Path) -> bool:
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "src"]
    return not subprocess.run(command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode


def _outcome(copy: Path, tests: dict[str, float]) -> str:
    arguments = copy.parent / "tests"
    arguments.write_text("\n".join(tests), encoding="utf-8")
    hangs = ["-o", f"faulthandler_timeout={60 + 10 * max(tests.values())}", "-o", "faulthandler_exit_on_timeout=true"]
    environment = os.environ | {"PYTHONPATH": f"{copy}:{ROOT / 'tests'}"}
    log = (copy.parent / "log").open("wb")
    command = [*PYTEST, "-x", *hangs, f"@{arguments}"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        return "failed" if process.wait(60 + 10 * sum(tests.values())) else "survived"
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:
        log.close()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _write(target: Path, source: bytes) -> None:
    """Its compiled file goes by size and second, which may be those of the source before it."""
    target.write_bytes(source)
    for old in (target.parent / "__pycache__").glob(f"{target.stem}.*.pyc"):
        old.unlink()


if __name__ == "__main__":
    main()
