"""Progress on standard error: a bar on a terminal; elsewhere, with `--progress`, a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

Report = Callable[[int, int], None]

PATIENCE = 0.4  # seconds before a bar appears; quicker work needs none
LINE_EVERY = 2.0
BYTES = "bytes"


class _Bar:
    """Appears with the first report after PATIENCE, so that a quick command shows no bar."""

    def __init__(self, title: str, unit: str, console: Any) -> None:
        self._title = title
        self._unit = unit
        self._console = console
        self._begun = time.monotonic()
        self._progress: Progress | None = None
        self._task: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._progress is None:
            if time.monotonic() - self._begun < PATIENCE:
                return
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

            amounts = (
                (DownloadColumn(binary_units=True), TransferSpeedColumn()) if self._unit == BYTES else (TextColumn("{task.fields[done]}"),)
            )
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                *amounts,
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task(self._title, total=total or None, done="")
        rate = done / max(time.monotonic() - self._begun, 0.001)
        self._progress.update(self._task, completed=done, total=total or None, done=f"{_amount(done, total, self._unit)}, {rate:,.0f}/s")

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


class _Lines:
    """Prints a line every LINE_EVERY seconds, for logs."""

    def __init__(self, title: str, unit: str) -> None:
        self._title = title
        self._unit = unit
        self._printed_at = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._printed_at >= LINE_EVERY or 0 < total <= done:
            self._printed_at = now
            amount = _amount(done, total, self._unit)
            amount = f"{100 * done // total}% ({amount})" if total else amount
            print(f"{self._title}: {amount}", file=sys.stderr, flush=True)

    def close(self) -> None:
        return


def _amount(done: int, total: int, unit: str) -> str:
    return f"{done:,} of {total:,} {unit}" if total else f"{done:,} {unit}"


@dataclass(slots=True)
class _Work:
    """The work in progress, for the sentence after an interruption."""

    title: str
    unit: str
    done: int = 0
    total: int = 0


_interrupted: list[_Work] = []


def interrupted_work() -> str:
    """Return what an interrupted command was doing and how far it was, such as `verifying, 43% done`; empty if that is not known."""
    if not _interrupted:
        return ""
    work = _interrupted.pop()
    if work.total:
        return f"{work.title}, {min(100, 100 * work.done // work.total)}% done"
    return f"{work.title}, {_amount(work.done, 0, work.unit)} done" if work.done else work.title


@contextmanager
def progress_bar(title: str, *, unit: str = BYTES, lines: bool, console: Any) -> Iterator[Report]:
    """Yield a function that takes (done, total or 0 if unknown), in units. Nothing is shown without a terminal unless it is wanted."""
    work = _Work(title, unit)
    bar: _Bar | _Lines | None = None
    if console is not None and console.is_terminal:
        bar = _Bar(title, unit, console)
    elif lines:
        bar = _Lines(title, unit)

    def report(done: int, total: int) -> None:
        work.done, work.total = done, total
        if bar is not None:
            bar(done, total)

    try:
        yield report
    except KeyboardInterrupt:
        _interrupted[:] = [work]
        raise
    finally:
        if bar is not None:
            bar.close()
