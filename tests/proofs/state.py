"""The state of the proofs: what was proved, one JSON object per line, in a file that only grows, so that runs of many days add up.

>>> from tempfile import TemporaryDirectory
>>> with TemporaryDirectory() as place:
...     state = State(Path(place))
...     state.add(Entry("crash-rocketmq", 0, 10, 500, [], "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z", 60.0, "a machine", "abc"))
...     state.add(Entry("crash-rocketmq", 20, 30, 500, [], "2026-01-02T00:00:00Z", "2026-01-02T00:01:00Z", 60.0, "a machine", "abc"))
...     state.left("crash-rocketmq", range(5, 40)), state.next_seed("crash-rocketmq"), state.next_seed("scripts-rabbitmq")
([range(10, 20), range(30, 40)], 30, 0)
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

NAME = "proofs.jsonl"


@dataclass(frozen=True)
class Failed:
    """seed: what `--seed` takes. again: the command that repeats it."""

    seed: str
    error: str
    again: str


@dataclass(frozen=True)
class Entry:
    """A finished part of a proof: the seeds first to stop - 1. done: how many images, states or scripts that were.

    revision: the commit of the package; with a `+` if files of it had been changed.
    """

    kind: str
    first: int
    stop: int
    done: int
    failures: list[Failed]
    began: str
    ended: str
    seconds: float
    machine: str
    revision: str


class State:
    """The file `proofs.jsonl` in a directory. Several processes may add to it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.file = place / NAME

    @contextmanager
    def reserved(self, kind: str) -> Iterator[bool]:
        """Reserve a kind for this process, so that two runs do not check the same seeds; False: another process has it."""
        self.place.mkdir(parents=True, exist_ok=True)
        with open(self.place / f"{kind}.lock", "wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def add(self, entry: Entry) -> None:
        """Append a line, and return when it is on the disk. A line that a dying process has cut off is ended first."""
        self.place.mkdir(parents=True, exist_ok=True)
        with open(self.file, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(json.dumps(asdict(entry), ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def entries(self) -> Iterator[Entry]:
        """Yield what was proved. Lines that were cut off are left out: that part was not finished."""
        if not self.file.exists():
            return
        for line in self.file.read_text(encoding="utf-8").split("\n"):
            try:
                row = json.loads(line)
                yield Entry(**row | {"failures": [Failed(**each) for each in row["failures"]]})
            except (ValueError, TypeError, KeyError):
                continue

    def done(self, kind: str) -> list[range]:
        """Return the seeds of a kind that were checked, joined and in order."""
        joined: list[range] = []
        checked = [range(entry.first, entry.stop) for entry in self.entries() if entry.kind == kind]
        for each in sorted(checked, key=lambda seeds: seeds.start):
            if joined and each.start <= joined[-1].stop:
                joined[-1] = range(joined[-1].start, max(joined[-1].stop, each.stop))
            elif each:
                joined.append(each)
        return joined

    def left(self, kind: str, seeds: range) -> list[range]:
        """Return the parts of a range of seeds that were not checked yet."""
        parts, at = [], seeds.start
        for each in self.done(kind):
            if each.start >= seeds.stop:
                break
            if each.start > at:
                parts.append(range(at, each.start))
            at = max(at, each.stop)
        if at < seeds.stop:
            parts.append(range(at, seeds.stop))
        return parts

    def next_seed(self, kind: str) -> int:
        """Return the first seed after all that were checked."""
        return max((seeds.stop for seeds in self.done(kind)), default=0)
