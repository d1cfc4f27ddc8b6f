"""Splits: a commit log cut into ranges that are read independently, on any number of cores or hosts.

A split is a range of physical offsets; it owns the records that *start* in it. If it begins inside a file, its first
record is found by its magic and validated by its own physical offset. A body may hold a copy of a record that passes this
test, so a split records where it began and how far it reached, and `check_seams` compares these: the records of a file
form one chain, and a split is right if the chain of the previous split leads to its first record. A split that began
elsewhere is walked again from where the chain arrives.

    |-- split 0 ------------|-- split 1 ------------|        file of two splits
    [rec][rec][rec][rec][rec  ][rec][rec][rec][BLANK]
                           ^ reach of 0 = begin of 1

`SplitWalk(lead=...)` does not depend on the previous split: it starts reading some MiB before its own, more than the length
of any body, and is on the chain when it arrives.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol, TypeVar

from mqstore.errors import UsageError
from mqstore.files.read_ahead import ReadAhead
from mqstore.findings import Damage
from mqstore.rocketmq.format.commit_log import CHUNK, CommitLog, EndOfFile, LogEvent, Records
from mqstore.rocketmq.format.mapped_file_queue import QueueFile

MIN_SIZE = 64 << 20
MAX_SIZE = 256 << 20
MAX_TASKS = 10_000  # splits of a log, unless more are requested: what they cost the driver does not grow with the log any more
LEAD = 8 << 20  # twice the largest body a broker accepts by default


@dataclass(frozen=True, slots=True)
class Split:
    """Physical offsets start..stop-1 of a log; the split owns the records that start there. Several small files may be one split."""

    number: int
    start: int
    stop: int


def _extents(log: CommitLog, split: Split | None = None) -> list[tuple[QueueFile, int]]:
    """Return the files that hold records, each with its length; a file that is too long is cut where the next one starts.

    split: only the files that it reads.
    """
    files: Sequence[QueueFile] = log.files[: log.last_written() + 1]
    if split is not None and files:
        # one file more, where the last of them is cut
        beyond = files[-1].start + files[-1].size
        files = [file for file in log.files_between(split.start, split.stop + log.file_size) if file.start < beyond]
    return [
        *((file, min(file.size, after.start - file.start)) for file, after in pairwise(files)),
        *((file, file.size) for file in files[-1:]),
    ]


def written(log: CommitLog) -> list[tuple[QueueFile, int]]:
    """Return the files that hold records, each with its length; the last one without the zeros at its end."""
    extents = _extents(log)
    if extents:
        last = extents[-1][0]
        mapped = log.mapped(last)
        # the end of a remote file is not fetched for this; the walk finds it
        extents[-1] = (last, last.size if mapped.remote else mapped.last_nonzero(0, last.size) + 1)
    return extents


def log_bytes(log: CommitLog, splits: Sequence[Split]) -> int:
    """Return the bytes of log in a plan, without gaps between files."""
    end = splits[-1].stop if splits else 0
    return sum(max(0, min(size, end - file.start)) for file, size in _extents(log))


def bytes_to_read(log: CommitLog) -> int:
    """Return the bytes of log that a job over all of it reads."""
    return log_bytes(log, plan(log))


def check_count(count: int | None) -> None:
    """Refuse a number of splits below 1. Raises UsageError."""
    if count is not None and count < 1:
        raise UsageError(f"the number of splits must be at least 1 (got {count})")


def plan(log: CommitLog, *, count: int | None = None, tasks: int = 1, most: int = MAX_TASKS) -> tuple[Split, ...]:
    """Cut a log into splits, in log order.

    count: exact number of splits, of about equal size (fewer only if the log has fewer bytes).
    tasks: minimum number of splits, as long as they do not fall below 64 MiB. most: maximum number, about; up to it none is above 256 MiB.
    """
    files = [(file, size) for file, size in written(log) if size]
    total = sum(size for _, size in files)
    check_count(count)
    if not files:
        return ()
    end = files[-1][0].start + files[-1][1]
    if count is not None:
        cuts = _equal_cuts(files, total, count)
    else:
        size, least = min(MAX_SIZE, max(MIN_SIZE, total // max(1, tasks))), -(-total // max(1, most))
        cuts = _cuts(files, size if size >= least else _rounded(least, log.file_size))
    return tuple(Split(number, start, stop) for number, (start, stop) in enumerate(zip(cuts, [*cuts[1:], end], strict=True)))


def _equal_cuts(files: Sequence[tuple[QueueFile, int]], total: int, count: int) -> list[int]:
    """Return where the `count` equal parts of the concatenated files start, as physical offsets."""
    ends = list(accumulate(size for _, size in files))
    cuts = []
    for byte in sorted({total * k // count for k in range(count)}):
        number = bisect_right(ends, byte)
        file, size = files[number]
        cuts.append(file.start + byte - (ends[number] - size))
    return cuts


def _rounded(size: int, file_size: int) -> int:
    """Return a size of at least `size` of which files are a multiple, or a part: otherwise each file would leave a small rest."""
    return -(-size // file_size) * file_size if size > file_size else -(-file_size // (file_size // size))


def _cuts(files: Sequence[tuple[QueueFile, int]], size: int) -> list[int]:
    """Return where splits start: large files are cut into equal parts, small ones are combined."""
    cuts: list[int] = []
    room = 0
    for file, length in files:
        if length <= room:
            room -= length
            continue
        parts = -(-length // size)
        cuts.extend(file.start + length * k // parts for k in range(parts))
        room = size - length if parts == 1 else 0
    return cuts


class SplitWalk:
    """Walks the records that a split owns. `begin`, `reach` and `end` are valid after the walk.

    begin: physical offset at which the split joined the chain; None if no record was found in its first file.
    reach: physical offset at which the chain arrived in the split's last file; the file's end if no record follows in it.
    end: physical offset after the last record or end-of-file record; -1 if there was none.

    first: the physical offset to begin at, if known. lead: bytes to start before the split, in order to join the chain early.
    """

    def __init__(self, log: CommitLog, split: Split, *, first: int | None = None, lead: int = 0) -> None:
        self._log = log
        self._first = first
        self._lead = lead
        self.split = split
        self.begin: int | None = split.start if first is None else first
        self.reach = split.start if first is None else first
        self.end = -1

    def __iter__(self) -> Iterator[LogEvent]:
        split = self.split
        for file, size in _extents(self._log, split):
            start, stop = max(split.start - file.start, 0), min(split.stop - file.start, size)
            if start >= stop:
                continue
            mapped = self._log.mapped(file)
            with mapped.read_ahead(max(0, start - self._lead), stop) as ahead:
                if self._first is not None:
                    start = max(start, min(self._first - file.start, size))
                elif start:
                    seam = self._join(file, start, stop, ahead)
                    self.begin = None if seam is None else file.start + seam
                    if seam is None:
                        # no record starts in this file, as far as this split can see
                        self.reach = file.start + start
                        continue
                    start = seam
                at = start
                for event in self._log.scan_file(file, at, stop, chunk=CHUNK, ahead=ahead):
                    at = _end_of(event)
                    if not isinstance(event, Damage):
                        self.end = file.start + at
                    yield event
            self.reach = file.start + (at if at >= stop else file.size)
            mapped.drop(start, stop - start)

    def _join(self, file: QueueFile, start: int, stop: int, ahead: ReadAhead) -> int | None:
        """Return where the chain enters the split: at its first record, or where a walk from `lead` bytes before arrives."""
        if not self._lead:
            return self._log.first_record(file, start, stop)
        early = max(0, start - self._lead)
        first = early if early == 0 else self._log.first_record(file, early, stop)
        if first is None or first >= start:
            return first
        at = first
        for event in self._log.scan_file(file, first, start, ahead=ahead):
            at = _end_of(event)
        return at if at >= start else None


def _end_of(event: LogEvent) -> int:
    """Return the position in the file after an event."""
    if isinstance(event, Records):
        last = int(event.positions[-1])
        return last + int.from_bytes(event.data[last : last + 4].tobytes(), "big")
    if isinstance(event, EndOfFile):
        return event.position + event.length
    return event.offset + event.length


class SplitResult(Protocol):
    """The result of reading one split."""

    @property
    def split(self) -> Split: ...
    @property
    def begin(self) -> int | None: ...
    @property
    def reach(self) -> int: ...


S = TypeVar("S", bound=SplitResult)


def check_seams(log: CommitLog, outcomes: Iterable[S], again: Callable[[Split, int], S]) -> Iterator[tuple[S, S | None]]:
    """Check that each split began where the chain of the previous one arrived.

    outcomes: of all splits, in log order. again(split, first): reads a split again from a known first record.
    Yields each valid outcome with the one it replaces, if that began elsewhere, else None.
    """
    arrived = log.start
    for outcome in outcomes:
        split = outcome.split
        file = log.file_at(split.start)
        wrong: S | None = None
        if file is not None and split.start > file.start:
            expected = max(arrived, split.start)
            owns_nothing = outcome.begin is None and expected >= min(split.stop, file.start + file.size)
            if outcome.begin != expected and not owns_nothing:
                outcome, wrong = again(split, expected), outcome
        arrived = max(arrived, outcome.reach)
        yield outcome, wrong
