"""Progress on standard error: a bar on a terminal; elsewhere, with `--progress`, a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Report", "progress_bar"]

Report = Callable[[int, int], None]

PATIENCE = 0.4  # seconds before a bar appears; quicker work needs none
LINE_EVERY = 2.0


class _Bar:
    """Appears with the first report after PATIENCE, so that a quick command shows no bar."""

    def __init__(self, title: str, console: Any) -> None:
        self._title = title
        self._console = console
        self._begun = time.monotonic()
        self._progress: Progress | None = None
        self._task: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._progress is None:
            if time.monotonic() - self._begun < PATIENCE:
                return
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(binary_units=True),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task(self._title, total=total or None)
        self._progress.update(self._task, completed=done, total=total or None)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


class _Lines:
    """Prints a line every LINE_EVERY seconds, for logs."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._printed_at = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._printed_at >= LINE_EVERY or 0 < total <= done:
            self._printed_at = now
            amount = f"{100 * done // total}% ({done:,} of {total:,} bytes)" if total else f"{done:,} bytes"
            print(f"{self._title}: {amount}", file=sys.stderr, flush=True)

    def close(self) -> None:
        return


@contextmanager
def progress_bar(title: str, *, wanted: bool, console: Any) -> Iterator[Report | None]:
    """Yield a function that takes (bytes done, bytes in total or 0 if unknown), or None if progress is not shown."""
    if console is not None and console.is_terminal:
        bar: _Bar | _Lines = _Bar(title, console)
    elif wanted:
        bar = _Lines(title)
    else:
        yield None
        return
    try:
        yield bar
    finally:
        bar.close()
