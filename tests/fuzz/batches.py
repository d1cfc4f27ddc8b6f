"""Images checked in processes of their own, which are replaced when an image ends one.

A process has a limit on its memory and a time limit for each image. What hangs, grows or crashes is a failure of the image that was
being checked, and is kept with the others.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.images import Images, keep

TESTS = Path(__file__).parent.parent
SECONDS = 120.0  # for one image: a thousand times what it takes, because the machine may be busy
SLACK = 60.0
BLOCK = 100  # images that a process is given at a time
MOST_FAILURES = 60


@dataclass(frozen=True)
class Failure:
    """number: of the image. error: what went wrong. image: its store and changes."""

    number: int
    error: str
    image: str
    trace: str = ""


@dataclass
class Batch:
    """done: how many images were checked: those below `stop`."""

    done: int = 0
    stop: int = 0
    failures: list[Failure] = field(default_factory=list)


class _Worker:
    """One process, and what it has said."""

    def __init__(self, family: str, place: Path, seconds: float) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (until `end`)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._seconds = seconds
        command = [sys.executable, "-m", "fuzz.worker", family, str(place / "images"), str(seconds)]
        variables = environment() | {"TMPDIR": str(place)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=variables, cwd=TESTS
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def check(self, numbers: range) -> Iterator[str]:
        """Yield what the process says about these images, until it is done, ends, or says nothing for too long."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{numbers.start} {numbers.stop}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return
        while True:
            try:
                line = self._lines.get(timeout=self._seconds + SLACK)
            except queue.Empty:
                return
            if line is None:
                return
            yield line
            if line == "done":
                return

    def end(self) -> str:
        """End the process if it still runs; return how it ended."""
        if self._errors.closed:
            return ""
        if self._process.poll() is None:
            self._process.kill()
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read()
        self._errors.close()
        how = f"it takes more than {self._seconds:.0f} s" if said.startswith("Timeout") else f"the process ended with {code}"
        return f"{how}\n{said[-4000:]}".rstrip()


@contextmanager
def _worker(family: str, seconds: float) -> Iterator[_Worker]:
    with tempfile.TemporaryDirectory(prefix="mqstore-fuzz-", dir=in_memory()) as place:
        worker = _Worker(family, Path(place), seconds)
        try:
            yield worker
        finally:
            worker.end()


def check_images(
    family: str,
    numbers: range,
    *,
    jobs: int = 1,
    deadline: float | None = None,
    kept: Path | None = None,
    report: Callable[[Failure], object] | None = None,
    seconds: float = SECONDS,
) -> Batch:
    """Check the images with these numbers in `jobs` processes.

    deadline: seconds since the epoch after which no further block of images is begun. kept: the directory that failing images are
    written to. report: called with each failure. seconds: the time that an image may take. It ends early after `MOST_FAILURES`.
    """
    return _Run(family, numbers, deadline, kept, report, seconds).run(jobs)


class _Run:
    def __init__(
        self,
        family: str,
        numbers: range,
        deadline: float | None,
        kept: Path | None,
        report: Callable[[Failure], object] | None,
        seconds: float,
    ) -> None:
        self.family = family
        self.blocks = iter([range(first, min(first + BLOCK, numbers.stop)) for first in range(numbers.start, numbers.stop, BLOCK)])
        self.deadline = deadline
        self.kept = kept
        self.report = report
        self.seconds = seconds
        self.batch = Batch(stop=numbers.start)
        self.lock = threading.Lock()
        self.broken: list[BaseException] = []

    def run(self, jobs: int) -> Batch:
        threads = [threading.Thread(target=self._guarded) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:  # interrupted: no further block is begun
            self.broken.append(error)
            raise
        if self.broken:
            raise self.broken[0]
        self.batch.failures.sort(key=lambda failure: failure.number)
        return self.batch

    def _guarded(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.broken.append(error)

    def _next(self) -> range | None:
        with self.lock:
            late = self.deadline is not None and time.time() >= self.deadline
            if late or self.broken or len(self.batch.failures) >= MOST_FAILURES:
                return None
            block = next(self.blocks, None)
            if block is not None:
                self.batch.stop = block.stop
            return block

    def _work(self) -> None:
        block = self._next()
        while block is not None:
            with _worker(self.family, self.seconds) as worker:
                left = None
                while block is not None and left is None:
                    left = self._check(worker, block)
                    block = left or self._next()

    def _check(self, worker: _Worker, block: range) -> range | None:
        """Check a block; return None, or the images that are left of it if the process has ended before it was done."""
        current = None
        for line in worker.check(block):
            if line == "done":
                with self.lock:
                    self.batch.done += len(block)
                return None
            if line.startswith("{"):
                self._tell(Failure(**json.loads(line)))
            else:
                current = int(line)
        how = worker.end()
        if current is None:
            raise RuntimeError(f"the process that checks the images from {block.start} on ends by itself: {how}")
        self._tell(Failure(current, how.partition("\n")[0], "", how.partition("\n")[2]))
        with self.lock:
            self.batch.done += current + 1 - block.start
        return range(current + 1, block.stop)

    def _tell(self, failure: Failure) -> None:
        with tempfile.TemporaryDirectory(prefix="mqstore-fuzz-", dir=in_memory()) as place:
            images = Images(self.family, Path(place, "images"))
            image = images.image(failure.number)
            if self.kept is not None:
                keep(image, self.kept)
        with self.lock:
            failure = Failure(failure.number, failure.error, str(image), failure.trace)
            self.batch.failures.append(failure)
            if self.report is not None:
                self.report(failure)


def environment() -> dict[str, str]:
    """Return the environment of a process that imports what this one does."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *(each for each in sys.path if each)])}


def in_memory() -> str | None:
    """Return a directory in memory, if the system has one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
