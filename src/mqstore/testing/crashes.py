"""Crash replay: lay out every state that a machine may leave if it dies during a recorded run, for a program to open.

A test records a run and marks each promise made meanwhile. Then each crash state is laid out in a directory, and the check opens it
there and raises if a promise is broken. Example: a log whose records are acknowledged before they are synced:

    >>> from tempfile import TemporaryDirectory
    >>> from mqstore.files.durable import DurableDirectory
    >>> from mqstore.files.recorder import RecordedWrites
    >>> recorded = RecordedWrites()
    >>> with TemporaryDirectory() as place, DurableDirectory(place, recorder=recorded) as directory:
    ...     directory.create("log")
    ...     directory.sync_directory()
    ...     for text in (b"one.", b"two."):
    ...         _ = directory.append("log", text)
    ...         recorded.mark("acknowledged", text)
    >>> def check(directory, state):
    ...     log = (directory / "log").read_bytes() if state.acknowledged else b""
    ...     assert set(state.acknowledged) <= set(log[n : n + 4] for n in range(0, len(log), 4)), f"the log holds {log}"
    >>> try:
    ...     run_states(CrashStates(recorded), check, workers=1)
    ... except AssertionError as error:
    ...     print(error)
    crash state 4.1: after operation 4 (Mark acknowledged b'one.'), nothing unsynced survives:
    AssertionError: the log holds b''
    The state again: CrashStates(recorded, seed=0).state('4.1').lay_out(directory)

`mqstore.testing.losses` describes the states; those with equal names, bytes and acknowledgements count once. A crash between an
operation and the acknowledgement right after it is left out: the bytes are the same, and less was promised.
"""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from mqstore.files.recorder import Mark, Operation, RecordedWrites
from mqstore.testing.disk_model import Disk, Tree
from mqstore.testing.losses import LossKind, describe_operation, losses

ACKNOWLEDGED = "acknowledged"
STATES_AT_ONCE = 32


class CrashCheckError(AssertionError):
    """A check failed on a crash state. The message has the state, the error, and how to lay out the state again."""


@dataclass(slots=True, eq=False)
class CrashState:
    """A crash state. name: number of operations done, and number of the state at that point.

    marks: those set before the crash. acknowledged: payloads of the marks labelled "acknowledged".
    """

    name: str
    operations_done: int
    kind: LossKind
    lost: str
    last: str
    marks: Sequence[Mark]
    tree: Tree

    @property
    def acknowledged(self) -> list[Any]:
        return self.marked(ACKNOWLEDGED)

    def marked(self, label: str) -> list[Any]:
        """Return the payloads of the marks with a label."""
        return [mark.payload for mark in self.marks if mark.label == label]

    def describe(self) -> str:
        point = f"after operation {self.operations_done} ({self.last})" if self.operations_done else "before the first operation"
        return f"{point}, {self.lost}"

    def files(self) -> dict[str, bytes]:
        """Return the bytes of each file, by path."""
        return {path: file.content() for path, file in self.tree.files.items()}

    def lay_out(self, directory: str | os.PathLike[str]) -> None:
        """Make an existing directory hold exactly this state. Files are recreated, so that maps of old ones stay valid."""
        root = os.fspath(directory)
        there = _clear(root, set(self.tree.directories))
        for path in self.tree.directories:
            if path not in there:
                os.mkdir(f"{root}/{path}")
        for path, file in self.tree.files.items():
            descriptor = os.open(f"{root}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                file.write(descriptor)
            finally:
                os.close(descriptor)


def _clear(root: str, spared: set[str]) -> set[str]:
    """Remove every file, and each directory that is not kept. Returns the kept directories that exist."""
    there: set[str] = set()
    left = [""]
    while left:
        above = left.pop()
        with os.scandir(f"{root}/{above}") as entries:
            names = list(entries)
        for entry in names:
            path = f"{above}/{entry.name}" if above else entry.name
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
            elif path in spared:
                left.append(path)
            else:
                shutil.rmtree(entry.path)
        there.add(above)
    return there


@dataclass(slots=True)
class CrashRun:
    """Result of a run of checks. total: states including equal ones; checked: by kind."""

    total: int
    distinct: int
    checked: dict[LossKind, int] = field(default_factory=dict)
    seconds: float = 0.0

    def __str__(self) -> str:
        checked = sum(self.checked.values())
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in self.checked.items() if count)
        speed = checked / self.seconds if self.seconds else 0.0
        return (
            f"crash states: {checked:,} checked of {self.distinct:,} distinct ones ({self.total:,} in total) "
            f"in {self.seconds:.1f} s, {speed:,.0f}/s: {kinds}"
        )


class CrashStates:
    """The distinct crash states of a recorded run, in the order of the run.

    base: the directory before the run, all of it durable; it must not change meanwhile (None: empty).
    limit: maximum number of states, shared evenly among the kinds and spread over the run; seed: selects them.
    whole_sectors: 512 bytes of a file are written atomically, as disks promise; otherwise a write may stop at any byte.
    """

    def __init__(
        self,
        recorded: RecordedWrites | Iterable[Operation],
        base: str | os.PathLike[str] | None = None,
        *,
        limit: int | None = None,
        seed: int = 0,
        whole_sectors: bool = False,
    ) -> None:
        self._whole_sectors = whole_sectors
        self.operations = list(recorded.operations if isinstance(recorded, RecordedWrites) else recorded)
        self.base = None if base is None else Path(base)
        self.limit = limit
        self.seed = seed
        self.total: Counter[LossKind] = Counter()
        self.distinct: Counter[LossKind] = Counter()
        self._marks = [operation for operation in self.operations if isinstance(operation, Mark)]
        self.chosen = self._choose(self._find())

    def __len__(self) -> int:
        return len(self.chosen)

    def __iter__(self) -> Iterator[CrashState]:
        return self.lay(iter(self.chosen))

    def state(self, name: str) -> CrashState:
        """Return the state with a name, even if the limit excludes it."""
        done, _, number = name.partition(".")
        return next(self.lay(iter([(int(done), int(number))])))

    def names(self) -> list[str]:
        return [f"{done}.{number}" for done, number in self.chosen]

    def _points(self) -> Iterator[tuple[int, Disk, int]]:
        """Yield (operations done, the disk then, marks so far)."""
        disk = Disk(self.base)
        marks = 0
        yield 0, disk, 0
        for number, operation in enumerate(self.operations):
            disk.apply(number, operation)
            marks += isinstance(operation, Mark)
            yield number + 1, disk, marks

    def _find(self) -> dict[LossKind, list[tuple[int, int]]]:
        """Find the distinct states: (operations done, number among the losses there), by kind."""
        seen: set[tuple[int, int]] = set()
        numbered: dict[LossKind, list[tuple[int, int]]] = {kind: [] for kind in LossKind}
        acknowledged = 0
        for done, disk, _ in self._points():
            if done and isinstance(last := self.operations[done - 1], Mark):
                if last.label != ACKNOWLEDGED:
                    continue
                acknowledged += 1
            if done < len(self.operations) and _acknowledges(self.operations[done]):
                continue
            for number, loss in enumerate(losses(disk, self._sample(done))):
                self.total[loss.kind] += 1
                key = loss.key(disk), acknowledged
                if key not in seen:
                    seen.add(key)
                    numbered[loss.kind].append((done, number))
        self.distinct.update({kind: len(numbers) for kind, numbers in numbered.items()})
        return numbered

    def _sample(self, done: int) -> int | None:
        return None if self._whole_sectors else random.Random(self.seed * 1_000_003 + done).getrandbits(32)

    def _choose(self, numbered: dict[LossKind, list[tuple[int, int]]]) -> list[tuple[int, int]]:
        shares = _shares({kind: len(numbers) for kind, numbers in numbered.items()}, self.limit)
        chance = random.Random(self.seed)
        chosen = []
        for kind, numbers in numbered.items():
            bounds = [len(numbers) * turn // shares[kind] for turn in range(shares[kind])] + [len(numbers)]
            chosen += [numbers[chance.randrange(low, high)] for low, high in pairwise(bounds)]
        return sorted(chosen)

    def lay(self, chosen: Iterator[tuple[int, int]]) -> Iterator[CrashState]:
        """Yield the states at ascending positions; the disk only moves forward."""
        selected = next(chosen, None)
        for done, disk, marks in self._points():
            if selected is None:
                return
            if selected[0] != done:
                continue
            last = describe_operation(self.operations[done - 1]) if done else ""
            for number, loss in enumerate(losses(disk, self._sample(done))):
                if selected != (done, number):
                    continue
                yield CrashState(f"{done}.{number}", done, loss.kind, str(loss), last, self._marks[:marks], loss.tree(disk))
                selected = next(chosen, None)
        if selected is not None:
            raise ValueError(f"there is no crash state {selected[0]}.{selected[1]} in this run")


def _acknowledges(operation: Operation) -> bool:
    return isinstance(operation, Mark) and operation.label == ACKNOWLEDGED


def _shares(counts: dict[LossKind, int], limit: int | None) -> dict[LossKind, int]:
    """Return how many states of each kind to check: all of a kind with few, the same number of each kind with many."""
    left = sum(counts.values()) if limit is None else limit
    shares: dict[LossKind, int] = {}
    for rank, kind in enumerate(sorted(counts, key=lambda kind: counts[kind])):
        shares[kind] = min(counts[kind], left // (len(counts) - rank))
        left -= shares[kind]
    return shares


Check = Callable[[Path, CrashState], object]


def run_states(states: CrashStates, check: Check, *, workers: int = 2, report: Callable[[str], object] | None = None) -> CrashRun:
    """Lay out each state in a separate directory per process and call check(directory, state), which raises if a promise is broken.

    workers: processes, forked from this one; 1 runs in this process. report: called with the line of counts (None: standard output).
    Raises CrashCheckError for the first state that fails, or whose process dies.
    """
    began = time.monotonic()
    run = CrashRun(states.total.total(), states.distinct.total())
    with scratch_directory() as scratch, _settled():
        if workers < 2:
            checked = _check_states(states, check, Path(scratch), range(len(states)), [0, 0], 0)
        else:
            checked = _in_processes(states, check, Path(scratch), workers)
    run.checked = dict(checked)
    run.seconds = time.monotonic() - began
    (report or _print_line)(str(run))
    return run


@contextmanager
def _settled() -> Iterator[None]:
    """Freeze the recorded data, so that the garbage collector does not traverse it for each state."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def scratch_directory() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary directory, in memory if the system has such a file system."""
    return tempfile.TemporaryDirectory(prefix="mqstore-crash-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")


def _check_states(states: CrashStates, check: Check, directory: Path, turns: Iterable[int], current: Any, number: int) -> Counter[LossKind]:
    """Check states. turns: indexes of the chosen states, ascending. current: set to the name of the state being checked."""
    checked: Counter[LossKind] = Counter()
    for state in states.lay(states.chosen[turn] for turn in turns):
        current[2 * number : 2 * number + 2] = [int(part) for part in state.name.split(".")]
        state.lay_out(directory)
        try:
            check(directory, state)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # test frameworks may fail with a BaseException
            reason = "".join(traceback.format_exception_only(error)).rstrip()
            raise CrashCheckError(_failure(states, state, reason)) from error
        checked[state.kind] += 1
    return checked


def _failure(states: CrashStates, state: CrashState, error: str) -> str:
    again = f"CrashStates({'recorded' if states.base is None else 'recorded, base'}, seed={states.seed}).state({state.name!r})"
    return f"crash state {state.name}: {state.describe()}:\n{error}\nThe state again: {again}.lay_out(directory)"


def _in_processes(states: CrashStates, check: Check, scratch: Path, workers: int) -> Counter[LossKind]:
    """Check in processes; each replays the whole run and lays out the blocks of states that it drew."""
    fork = multiprocessing.get_context("fork")
    drawn = fork.Value("q", 0)
    current = fork.RawArray("q", [0] * 2 * workers)
    running: dict[Any, tuple[int, Any]] = {}
    checked: Counter[LossKind] = Counter()
    processes = []
    try:
        for number in range(workers):
            receiving, sending = fork.Pipe(duplex=False)
            process = fork.Process(target=_work, args=(states, check, scratch / str(number), drawn, current, number, sending), daemon=True)
            process.start()
            sending.close()
            processes.append(process)
            running[receiving] = number, process
        while running:
            ready: list[Any] = multiprocessing.connection.wait(list(running))
            for receiving in ready:
                number, process = running.pop(receiving)
                try:
                    outcome = receiving.recv()
                except EOFError:
                    process.join()
                    state = states.state("{}.{}".format(*current[2 * number : 2 * number + 2]))
                    raise CrashCheckError(_failure(states, state, f"the process died, exit code {process.exitcode}")) from None
                if isinstance(outcome, str):
                    raise CrashCheckError(outcome)
                checked += outcome
    finally:
        for process in processes:
            process.terminate()
            process.join()
    return checked


def _work(states: CrashStates, check: Check, directory: Path, drawn: Any, current: Any, number: int, sending: Any) -> None:
    def turns() -> Iterator[int]:
        while True:
            with drawn.get_lock():
                start = drawn.value
                drawn.value = start + STATES_AT_ONCE
            if start >= len(states):
                return
            yield from range(start, min(start + STATES_AT_ONCE, len(states)))

    directory.mkdir()
    try:
        outcome: Counter[LossKind] | str = _check_states(states, check, directory, turns(), current, number)
    except CrashCheckError as error:
        trace = "".join(traceback.format_exception(error.__cause__)).rstrip() if error.__cause__ else ""
        outcome = f"{error}\n\n{trace}"
    sending.send(outcome)
