"""The large proofs, in parts, over days: `scripts/prove --help`."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from proofs.kinds import KINDS, Kind, Part
from proofs.report import table
from proofs.state import Entry, State

ROOT = Path(__file__).parent.parent.parent

DESCRIPTION = """\
Run a large proof, or a part of it. With --state, what was proved is added to a file in that directory: the next run goes on after it,
and --report prints the sum of all runs. Without --state the given seeds are run, whatever was run before."""

EXAMPLES = """\
examples:
  scripts/prove --kind damaged-rocketmq --count 5000 --jobs 2 --state ~/proofs
  scripts/prove --kind crash-rabbitmq --count 100000 --jobs 2 --state ~/proofs --minutes 60
  scripts/prove --kind damaged-rocketmq --seed 4711 --count 1
  scripts/prove --report --state ~/proofs"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "scripts/prove", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--kind", choices=sorted(KINDS), help="what to prove (docs/reliability.md)")
    made.add_argument("--count", type=int, default=1000, help="how many images, crash states or scripts; default: 1000")
    made.add_argument("--seed", help="the first seed; default: the first after those in the state, or 0")
    made.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes; default: one per core")
    made.add_argument("--state", type=Path, metavar="DIR", help="the directory that keeps what was proved, and the images that failed")
    made.add_argument("--minutes", type=float, help="begin nothing new after this time")
    made.add_argument("--report", action="store_true", help="print the table of everything in the state")
    return made


def revision() -> str:
    """Return the commit of this clone, with a `+` if files of the package or its tests have been changed since."""
    try:
        commit, changed = (
            _git(*arguments) for arguments in (("rev-parse", "--short=10", "HEAD"), ("status", "--porcelain", "src", "tests"))
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}+" if changed else commit


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def machine() -> str:
    """Return what the machine is, without its name."""
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def tell(kind: Kind, part: Part) -> None:
    for failed in part.failures:
        say(f"FAILED: {kind.name} {failed.seed}: {failed.error}\nagain: {failed.again}\n")


def prove(kind: Kind, first: int, count: int, jobs: int, state: State | None, deadline: float) -> int:
    """Check seeds from `first` on until there are `count` units, part by part; return the number of failures."""
    done, failures, seed = 0, 0, first
    began = time.monotonic()
    while done < count and time.time() < deadline:
        seeds = range(seed, seed + min(kind.part, -(-(count - done) // kind.per_seed)))
        for part in [seeds] if state is None else state.left(kind.name, seeds):
            started, clock = now(), time.monotonic()
            found = kind.run(part, jobs, deadline, None if state is None else state.place)
            seconds = round(time.monotonic() - clock, 1)
            tell(kind, found)
            done += found.done
            failures += len(found.failures)
            if state is not None and found.stop > part.start:
                state.add(
                    Entry(kind.name, part.start, found.stop, found.done, found.failures, started, now(), seconds, machine(), revision())
                )
            passed = time.monotonic() - began
            say(f"{kind.name}: seeds {part.start} to {found.stop - 1}, {done:,} {kind.unit}, {failures} failures, {done / passed:.1f}/s")
            if found.stop < part.stop:
                return failures
        seed = seeds.stop
    return failures


def main(arguments: Sequence[str]) -> int:
    """Run a command line: 0: nothing failed; 1: something did; 2: it could not be run."""
    options = parser().parse_args(arguments)
    state = None if options.state is None else State(options.state)
    if options.report:
        if state is None:
            say("--report needs --state DIR")
            return 2
        print(table(state.entries()))
        return 0
    if options.kind is None:
        say("--kind or --report is needed; --help lists the kinds")
        return 2
    kind = KINDS[options.kind]
    reason = kind.missing()
    if reason is not None:
        say(reason)
        return 2
    if options.seed is not None and not options.seed.isdigit():
        part = kind.repeat(options.seed)
        tell(kind, part)
        say(f"{kind.name}: {part.done} {kind.unit}, {len(part.failures)} failures")
        return 1 if part.failures else 0
    deadline = time.time() + (options.minutes * 60 if options.minutes is not None else 1e9)
    with nullcontext(True) if state is None else state.reserved(kind.name) as mine:
        if not mine:
            say(f"another run of {kind.name} is adding to {options.state}; give it other seeds in a state of its own, or wait")
            return 2
        return 1 if prove(kind, _first_seed(options, state), options.count, options.jobs, state, deadline) else 0


def _first_seed(options: argparse.Namespace, state: State | None) -> int:
    if options.seed is not None:
        return int(options.seed)
    return 0 if state is None else state.next_seed(options.kind)


def _ended(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)


if __name__ == "__main__":
    # a process that is asked to end removes its directories, and ends the nodes that it has started
    signal.signal(signal.SIGTERM, _ended)
    sys.exit(main(sys.argv[1:]))
