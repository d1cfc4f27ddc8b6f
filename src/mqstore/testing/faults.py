"""Faults: the n-th change of the disk fails, for n = 1, 2, ... until a run meets no more faults.

A `FailingDisk` takes the place of a recorder and raises the error right before the system call, so that it takes the path of a real
one. `every_fault` repeats a run, each time in a new directory, and passes the result to a check:

    >>> from mqstore.files.durable import DurableDirectory
    >>> def run(directory, disk):
    ...     with DurableDirectory(directory, recorder=disk) as opened:
    ...         opened.append("log", b"record")
    ...         opened.sync("log")
    ...     return "acknowledged"
    >>> def check(directory, fault):
    ...     if not fault.lasting and fault.code == errno.EIO:
    ...         print(f"{fault.describe()}: {fault.error}".replace(f"{directory}/", ""))
    >>> _ = every_fault(run, check)
    EIO at change 1 (create log): log cannot be written: Input/output error
    EIO at change 2 (write log): log cannot be written: Input/output error
    EIO at change 3 (sync log): log cannot be written: Input/output error
    faults: 12 (ENOSPC 3, ENOSPC from then on 3, EIO 3, EIO from then on 3)

A full disk does not refuse removals.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from mqstore.errors import MqstoreError
from mqstore.files.recorder import Operation, Recorder
from mqstore.testing.crashes import scratch_directory

NEEDS_NO_ROOM = frozenset({"remove"})

Outcome = TypeVar("Outcome")


class FaultCheckError(AssertionError):
    """A run or a check raised an unexpected error after a fault. The message has the fault and the error."""


class FailingDisk:
    """A recorder whose n-th change of the disk (from 1; 0: none) raises OSError(code).

    lasting: so does each later change. observer: a recorder that gets the successful changes.
    fired: whether the fault was met; attempts: changes counted so far; met: operation and path that met it first.
    """

    def __init__(self, n: int, code: int = errno.EIO, *, lasting: bool = False, observer: Recorder | None = None) -> None:
        self.n = n
        self.code = code
        self.lasting = lasting
        self.attempts = 0
        self.met: tuple[str, str] | None = None
        self._observer = observer
        self._lock = threading.Lock()

    @property
    def fired(self) -> bool:
        return self.met is not None

    def attempt(self, operation: str, relative: str) -> None:
        if self.code != errno.ENOSPC or operation not in NEEDS_NO_ROOM:
            with self._lock:
                self.attempts += 1
                fails = self.attempts == self.n or (self.lasting and 0 < self.n < self.attempts)
                if fails and self.met is None:
                    self.met = operation, relative
            if fails:
                raise OSError(self.code, os.strerror(self.code), relative)
        if self._observer is not None:
            self._observer.attempt(operation, relative)

    def record(self, operation: Operation) -> None:
        if self._observer is not None:
            self._observer.record(operation)

    def heal(self) -> None:
        """Stop failing: the disk has room again."""
        with self._lock:
            self.n = 0


@dataclass(frozen=True, slots=True)
class Fault(Generic[Outcome]):
    """Result of one run: the error it raised, or its return value if it continued despite the fault."""

    n: int
    code: int
    lasting: bool
    operation: str
    path: str
    error: MqstoreError | None
    result: Outcome | None

    def describe(self) -> str:
        then = " and from then on" if self.lasting else ""
        return f"{errno.errorcode[self.code]} at change {self.n}{then} ({self.operation} {self.path})"


@dataclass(slots=True)
class FaultRun:
    """Number of faults, by error and whether they lasted."""

    counts: dict[tuple[int, bool], int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def __str__(self) -> str:
        each = (f"{errno.errorcode[code]}{' from then on' if lasting else ''} {count:,}" for (code, lasting), count in self.counts.items())
        return f"faults: {self.total:,} ({', '.join(each)})"


def every_fault(
    run: Callable[[Path, FailingDisk], Outcome],
    check: Callable[[Path, Fault[Outcome]], object],
    *,
    codes: Sequence[int] = (errno.ENOSPC, errno.EIO),
    lasting: Sequence[bool] = (False, True),
    report: Callable[[str], object] | None = None,
) -> FaultRun:
    """Call run(directory, disk) with a fault at each change in turn, then check(directory, fault), until a run meets no fault.

    run: makes its changes below the empty directory, with the disk as recorder. It may return despite a fault, or raise an
    error of this package; anything else is a failure. check: raises if a promise is broken. report: called with the line of
    counts (None: standard output). Raises FaultCheckError for the first fault that fails.
    """
    counted = FaultRun()
    for code in codes:
        for lasts in lasting:
            n = 1
            while _one_fault(run, check, FailingDisk(n, code, lasting=lasts)):
                counted.counts[code, lasts] = n
                n += 1
    (report or _print_line)(str(counted))
    return counted


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")


def _one_fault(run: Callable[[Path, FailingDisk], Outcome], check: Callable[[Path, Fault[Outcome]], object], disk: FailingDisk) -> bool:
    """Run with one fault and check. Returns whether the run met the fault."""
    error: MqstoreError | None = None
    result: Outcome | None = None
    n = disk.n
    with scratch_directory() as directory:
        try:
            try:
                result = run(Path(directory), disk)
            except MqstoreError as raised:
                if disk.met is None:
                    raise
                error = raised
            if disk.met is None:
                return False
            fault = Fault(n, disk.code, disk.lasting, *disk.met, error, result)
            check(Path(directory), fault)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # test frameworks may fail with a BaseException
            met = Fault(n, disk.code, disk.lasting, *(disk.met or ("not", "met")), error, result)
            trace = "".join(traceback.format_exception_only(raised)).rstrip()
            raise FaultCheckError(f"{met.describe()}: {trace}") from raised
    return True
