"""Carving of files and images: splits searched in threads or Spark tasks, joined, and put in order.

    wreck = carve("/images/disk.img")
    wreck.records, wreck.messages, wreck.gap_bytes

A split is SPLIT bytes of one file, or several small files. A message that crosses the end of a split belongs to the split in which it
begins. With a work directory the findings of each split are kept there as soon as it is searched, so that a run that was killed goes on.
The findings, and what is written from them, are the same in any number of threads, on Spark, and after any number of restarts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mqstore.errors import CannotOpenError, NotAStoreError
from mqstore.files.archive import is_archive
from mqstore.files.durable import DurableDirectory
from mqstore.files.image import Image
from mqstore.files.readonly import walk_tree
from mqstore.files.state_file import read_state
from mqstore.jobs.report import by_share
from mqstore.jobs.runner import Runner
from mqstore.rabbitmq.carved_logs import END, START, FoundLogs
from mqstore.rabbitmq.salvage import FROM, FoundMessages
from mqstore.rocketmq.format.log_file import DERIVED_KINDS, segment_kind
from mqstore.rocketmq.salvage import Piece, PlacedStretch, Stretch, assemble
from mqstore.store import Progress
from mqstore.table.formatting import count
from mqstore.wreck.carving import Content, Joined, carve_range
from mqstore.wreck.log_search import Ranges, Units, joined_units, search_logs, settle, without

LARGEST_FOUND = 1 << 30  # bytes of the findings of one task
SPLIT = 128 << 20
MAX_FILES = 10_000  # small files searched by one task
MAX_GAPS = 1000
DERIVED = ("consumequeue", "batchconsumequeue", "consumequeue_ext", "index", "config", "timerwheel", "timerlog")


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """A range of a file that belonged to nothing, without the zeros around it; or one that cannot be read."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to search. name: its path relative to the source; changed: its time of change in nanoseconds.

    readable: it can be opened.
    """

    path: str
    name: str
    size: int
    changed: int
    readable: bool = True


@dataclass(slots=True)
class Wreck:
    """What was found. placed: stretches of RocketMQ records, in order; found: RabbitMQ messages, by file; logs_found: those of its quorum
    queues and streams.

    gaps, unreadable: the first MAX_GAPS ranges; gap_count, gap_bytes, unreadable_count, unreadable_bytes: all of them.
    """

    pieces: int = 0
    bytes: int = 0
    stretches: int = 0
    records: int = 0
    messages: int = 0
    placed: list[PlacedStretch] = field(default_factory=list)
    found: list[FoundMessages] = field(default_factory=list)
    logs_found: list[FoundLogs] = field(default_factory=list)
    gaps: list[Unclaimed] = field(default_factory=list)
    gap_count: int = 0
    gap_bytes: int = 0
    unreadable: list[Unclaimed] = field(default_factory=list)
    unreadable_count: int = 0
    unreadable_bytes: int = 0
    untried: list[str] = field(default_factory=list)
    resumed: int = 0
    runs_on: str = ""
    seconds: float = 0.0

    @property
    def logs(self) -> int:
        """Number of RocketMQ logs that the records are of."""
        return len({each.log for each in self.placed})

    @property
    def ok(self) -> bool:
        """Whether every byte belongs to a message or is zero, and everything could be read and tried."""
        return not self.gap_count and not self.unreadable_count and not self.untried

    def add_unreadable(self, name: str, low: int, high: int) -> None:
        """Count a range of a file that cannot be read."""
        self.unreadable_count += 1
        self.unreadable_bytes += high - low
        if len(self.unreadable) < MAX_GAPS:
            self.unreadable.append(Unclaimed(name, low, high - low))

    def as_dict(self) -> dict[str, Any]:
        """Return the part of the report that describes the source."""
        return {
            "pieces": self.pieces,
            "bytes_searched": self.bytes,
            "stretches": self.stretches,
            "logs": self.logs,
            "records": self.records,
            "rabbitmq_messages": self.messages,
            "unclaimed": [_range(each) for each in self.gaps],
            "unclaimed_ranges": self.gap_count,
            "unclaimed_bytes": self.gap_bytes,
            "unreadable": [_range(each) for each in self.unreadable],
            "unreadable_ranges": self.unreadable_count,
            "unreadable_bytes": self.unreadable_bytes,
            "not_fully_tried": list(self.untried),
            "splits_resumed": self.resumed,
            "runs_on": self.runs_on,
            "carving_seconds": round(self.seconds, 3),
        }


def _range(each: Unclaimed) -> dict[str, Any]:
    return {"file": each.file, "offset": each.offset, "length": each.length}


@dataclass(frozen=True, slots=True)
class CarveTask:
    """Ranges to search: (path, start, stop). stage: the directory that keeps the findings, None: they are returned only."""

    number: int
    ranges: tuple[tuple[str, int, int], ...]
    stage: str | None


def carve_task(task: CarveTask) -> tuple[bool, list[bytes]]:
    """Search the ranges of a task, unless its findings are kept already; return whether they were, and the findings."""
    name = f"found-{task.number:06d}"
    if task.stage is not None:
        stored = read_state(Path(task.stage) / name, LARGEST_FOUND)
        with contextlib.suppress(ValueError, KeyError, OSError):
            if stored is not None:
                parts = _unpack(stored)
                if len(parts) == len(task.ranges):
                    return True, parts
    parts = []
    for path, start, stop in task.ranges:
        with Image(path) as image:
            parts.append(carve_range(image, start, stop).to_bytes())
    if task.stage is not None:
        with DurableDirectory(task.stage) as stage:
            stage.write_small(name, b"".join(len(each).to_bytes(8, "big") + each for each in parts))
    return False, parts


def _unpack(raw: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 8], "big")
        if size > len(raw) - at - 8:
            raise ValueError("it ends within a record")
        each = raw[at + 8 : at + 8 + size]
        Content.from_bytes(each)
        parts.append(each)
        at += 8 + size
    return parts


def source_files(source: Path, *, is_store: bool = False) -> list[SourceFile]:
    """Return the files to search at or below a path, without the derived files of stores and of tiered storage. Raises CannotOpenError.

    is_store: it is one, even without `commitlog`.
    """
    if not source.is_dir():
        with Image(source) as image:
            return [SourceFile(str(source.absolute()), source.name, image.size, os.stat(source).st_mtime_ns)]
    files = []
    is_store = is_store or (source / "commitlog").is_dir()
    for parent, below, names in walk_tree(source):
        directory = Path(parent)
        below[:] = sorted(each for each in below if not (is_store and directory == source and each in DERIVED))
        for name in sorted(names):
            path = directory / name
            if path.is_symlink() or not path.is_file() or segment_kind(path) in DERIVED_KINDS:
                continue
            status = path.stat()
            shown = path.relative_to(source).as_posix().encode("utf-8", "backslashreplace").decode()
            files.append(SourceFile(str(path.absolute()), shown, status.st_size, status.st_mtime_ns, _can_open(path)))
    return files


def _can_open(path: Path) -> bool:
    try:
        Image(path).close()
    except CannotOpenError:
        return False
    return True


def fingerprint(files: Sequence[SourceFile]) -> str:
    """Return a digest of names, sizes and times of change: work on other files is not resumed."""
    return hashlib.sha256(repr([(each.name, each.size, each.changed) for each in files]).encode()).hexdigest()


def carve(
    files: Sequence[SourceFile], runner: Runner, *, stage: Path | None = None, split: int = SPLIT, progress: Progress | None = None
) -> Wreck:
    """Find every whole message in files. stage: directory that keeps findings; those in it are not searched for again.

    split: bytes of a file that one task searches. progress: called with (bytes searched, bytes to search).
    Raises CannotOpenError, NotAStoreError if there is no message.
    """
    started = time.monotonic()
    total = sum(each.size for each in files)
    tasks = list(_tasks(files, split, stage))

    wreck = Wreck(pieces=len(files), bytes=total, runs_on=runner.name)
    stretches: list[Stretch] = []
    by_path = {each.path: each for each in files}
    for each in files:
        if not each.readable:
            wreck.add_unreadable(each.name, 0, each.size)
    finished: list[tuple[SourceFile, Content, Image]] = []
    joined: Joined | None = None

    def finish(joined: Joined) -> None:
        finished.append((by_path[joined.image.path], joined.finish(), joined.image))
        joined.image.close()

    for task, (resumed, outcome) in zip(tasks, runner.each(tasks, carve_task, by_share(progress, total, len(tasks))), strict=True):
        wreck.resumed += resumed
        for (path, _, _), raw in zip(task.ranges, outcome, strict=True):
            if joined is None or joined.image.path != path:
                if joined is not None:
                    finish(joined)
                joined = Joined(Image(path))
            joined.add(Content.from_bytes(raw))
    if joined is not None:
        finish(joined)
    _search_logs(wreck, finished, runner, split)
    for file, content, image in finished:
        _take(wreck, file, content, image, stretches)
    if not stretches and not wreck.messages:
        raise _nothing(files, total, wreck)
    wreck.stretches = len(stretches)
    wreck.placed = list(assemble(stretches))
    wreck.seconds = time.monotonic() - started
    return wreck


def _tasks(files: Sequence[SourceFile], split: int, stage: Path | None) -> Iterator[CarveTask]:
    together: list[tuple[str, int, int]] = []
    size = number = 0
    path = None if stage is None else str(stage)
    for file in files:
        for start in range(0, file.size if file.readable else 0, split):
            stop = min(start + split, file.size)
            if together and (size + stop - start > split or len(together) >= MAX_FILES):
                yield CarveTask(number, tuple(together), path)
                together, size, number = [], 0, number + 1
            together.append((file.path, start, stop))
            size += stop - start
    if together:
        yield CarveTask(number, tuple(together), path)


def _search_logs(wreck: Wreck, finished: Sequence[tuple[SourceFile, Content, Image]], runner: Runner, split: int) -> None:
    """Find logs of quorum queues and streams in what is left of the files; what is in the bytes of an entry or a chunk is its own."""
    tasks: list[list[Ranges]] = [[]]
    size = 0
    for file, content, _ in finished:
        for gap in content.gaps:
            for low in range(gap.low, gap.high, split) if gap.low >= 0 else ():
                if size >= split or len(tasks[-1]) >= MAX_FILES:
                    tasks.append([])
                    size = 0
                part = (gap.start, low, min(low + split, gap.high))
                size += part[2] - low
                if tasks[-1] and tasks[-1][-1][0] == file.path:
                    tasks[-1][-1] = (file.path, (*tasks[-1][-1][1], part))
                else:
                    tasks[-1].append((file.path, (part,)))
    by_path: dict[str, list[Units]] = {}
    for task, outcome in zip(tasks, runner.each(tasks, search_logs), strict=True):
        for (path, _), units in zip(task, outcome, strict=True):
            by_path.setdefault(path, []).append(units)
    every = []
    for file, content, image in finished:
        parts = by_path.get(file.path, ())
        joined, uids = joined_units(parts, content.gaps)
        if joined.shape[1]:
            every.append((file.name, image, joined, uids))
            content.gaps = without(image, content.gaps, joined)
            starts = joined[START]
            inside = [content.messages[FROM], np.array([run.start for run in content.runs], np.int64)]
            messages, runs = (each < np.append(-1, joined[END])[np.searchsorted(starts, each, "right")] for each in inside)
            content.messages = content.messages[:, ~messages]
            content.runs = [run for run, within in zip(content.runs, runs.tolist(), strict=True) if not within]
            image.close()
        content.untried |= any(part.untried for part in parts)
    places = [part.places for parts in by_path.values() for part in parts]
    wreck.logs_found = [logs for logs in settle(every, places) if logs.messages]
    wreck.messages += sum(logs.messages for logs in wreck.logs_found)


def _take(wreck: Wreck, file: SourceFile, content: Content, image: Image, stretches: list[Stretch]) -> None:
    """Add the findings of a file."""
    piece = Piece(file.name, image)
    for run in content.runs:
        stretches.append(Stretch(piece, run.base, run.positions, run.end, run.unproved))
        wreck.records += len(run.positions)
    if content.messages.shape[1]:
        wreck.found.append(FoundMessages(file.name, image, content.messages))
        wreck.messages += content.messages.shape[1]
    for gap in content.gaps:
        if gap.low < 0:
            continue
        wreck.gap_count += 1
        wreck.gap_bytes += gap.high - gap.low
        if len(wreck.gaps) < MAX_GAPS:
            wreck.gaps.append(Unclaimed(file.name, gap.low, gap.high - gap.low))
    for low, high in content.unreadable:
        wreck.add_unreadable(file.name, low, high)
    if content.untried:
        wreck.untried.append(file.name)


def _nothing(files: Sequence[SourceFile], total: int, wreck: Wreck) -> CannotOpenError:
    where = os.path.commonpath([each.path for each in files]) if files else "it"
    unread = f"; {wreck.unreadable_bytes} bytes cannot be read" if wreck.unreadable_bytes else ""
    searched = f"{count(len(files), 'file')}, {total} bytes were searched{unread}"
    packed = next((each.name for each in files if is_archive(Path(each.path))), None)
    if packed is not None:
        return NotAStoreError(
            f"no message was found, but {packed} is an archive, which is not unpacked: unpack it, or give its path ({searched})"
        )
    return NotAStoreError(f"{where} holds no whole record of a RocketMQ log and no message of RabbitMQ ({searched})")
