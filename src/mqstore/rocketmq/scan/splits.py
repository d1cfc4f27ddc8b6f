"""Splits: a commit log cut into ranges that are read independently, on as many cores or hosts as there are.

A split is a range of physical offsets; it owns the records that *start* in it. Where it begins inside a file, its first
record is found by its magic and believed because its own physical offset is where it stands. A body may hold copies of
records that look just like that, so a split says where it began and how far it reached, and `check_seams` compares: the
records of a file form one chain, and a split is right if the chain of the split before it leads to its first record.
A split that began elsewhere is walked again, from where the chain arrives.

    |-- split 0 ------------|-- split 1 ------------|        file of two splits
    [rec][rec][rec][rec][rec  ][rec][rec][rec][BLANK]
                           ^ reach of 0 = begin of 1

`SplitWalk(lead=...)` needs no neighbour: it starts reading some MiB before its split, further than a body can reach,
and has joined the chain when it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

from mqstore.errors import UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage
from mqstore.rocketmq.format.commit_log import CHUNK, CommitLog, EndOfFile, LogEvent, Records
from mqstore.rocketmq.format.mapped_file_queue import QueueFile

__all__ = ["LEAD", "Split", "SplitResult", "SplitWalk", "check_seams", "log_bytes", "open_log", "plan"]

MIN_SIZE = 64 << 20
MAX_SIZE = 256 << 20
LEAD = 8 << 20  # twice the largest body a broker accepts by default


@dataclass(frozen=True, slots=True)
class Split:
    """Physical offsets start..stop-1 of a log; the split owns the records that start there. Several small files may be one split."""

    number: int
    start: int
    stop: int


def open_log(directory: ReadOnlyDirectory, file_size: int | None) -> CommitLog:
    """A log to be walked in splits."""
    return CommitLog(directory, file_size=file_size)


def _extents(log: CommitLog) -> list[tuple[QueueFile, int]]:
    """The files that hold records, each with its length; a file that is too long reaches into the next one, where the next one counts."""
    files = log.files[: log.last_written() + 1]
    return [
        *((file, min(file.size, after.start - file.start)) for file, after in pairwise(files)),
        *((file, file.size) for file in files[-1:]),
    ]


def written(log: CommitLog) -> list[tuple[QueueFile, int]]:
    """The files that hold records, each with how many of its leading bytes can hold any: the last one without the zeros at its end."""
    found = _extents(log)
    if found:
        last = found[-1][0]
        mapped = log.mapped(last)
        # where its end must be fetched to be looked at, whoever walks it finds it
        found[-1] = (last, last.size if mapped.remote else mapped.last_nonzero(0, last.size) + 1)
    return found


def log_bytes(log: CommitLog, splits: Sequence[Split]) -> int:
    """Bytes of log in a plan; what is missing between files is not counted."""
    end = splits[-1].stop if splits else 0
    return sum(max(0, min(size, end - file.start)) for file, size in _extents(log))


def plan(log: CommitLog, *, count: int | None = None, tasks: int = 1) -> tuple[Split, ...]:
    """Cut a log into splits, in log order.

    count: exactly so many splits of about equal size (fewer only in a log of fewer bytes); for tests and for callers that know.
    tasks: how many splits are wanted at least, as far as they do not fall below 64 MiB; none is above 256 MiB.
    """
    files = [(file, size) for file, size in written(log) if size]
    total = sum(size for _, size in files)
    if count is not None and count < 1:
        raise UsageError(f"a log cannot be read in {count} splits; ask for one or more")
    if not files:
        return ()
    end = files[-1][0].start + files[-1][1]
    if count is not None:
        cuts = sorted({_physical(files, total * k // count) for k in range(count)})
    else:
        cuts = _cuts(files, min(MAX_SIZE, max(MIN_SIZE, total // max(1, tasks))))
    return tuple(Split(number, start, stop) for number, (start, stop) in enumerate(zip(cuts, [*cuts[1:], end], strict=True)))


def _physical(files: Sequence[tuple[QueueFile, int]], byte: int) -> int:
    """The physical offset of the byte-th byte of the files laid end to end."""
    for file, size in files:
        if byte < size:
            return file.start + byte
        byte -= size
    raise ValueError("the byte lies behind the last file")


def _cuts(files: Sequence[tuple[QueueFile, int]], size: int) -> list[int]:
    """Where splits start: large files are cut into equal parts, small ones are put together."""
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
    """Walks the records that a split owns. `begin`, `reach` and `end` are valid once it is through.

    begin: physical offset at which the split's chain was joined; None where no record was found in its first file.
    reach: physical offset that the chain arrived at in the split's last file; the file's end once nothing follows in it.
    end: physical offset behind the last record, or the record that ends a file; -1 where there was none.

    first: the physical offset to begin at, if it is known. lead: bytes to start before the split, so as to join the chain before it.
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
        for file, size in _extents(self._log):
            start, stop = max(split.start - file.start, 0), min(split.stop - file.start, size)
            if start >= stop:
                continue
            mapped = self._log.mapped(file)
            if self._first is not None:
                start = max(start, min(self._first - file.start, size))
            elif start:
                found = self._join(file, start, stop)
                self.begin = None if found is None else file.start + found
                if found is None:
                    # nothing starts here any more, as far as this split can see
                    self.reach = file.start + start
                    continue
                start = found
            at = start
            if at < stop:
                mapped.will_need(at, stop - at)
            for event in self._log.scan_file(file, at, stop, chunk=CHUNK):
                at = _behind(event)
                if not isinstance(event, Damage):
                    self.end = file.start + at
                yield event
            self.reach = file.start + (at if at >= stop else file.size)
            mapped.drop(start, stop - start)

    def _join(self, file: QueueFile, start: int, stop: int) -> int | None:
        """Where the chain enters the split: by its first record, or by walking towards it from some way before."""
        if not self._lead:
            return self._log.first_record(file, start, stop)
        early = max(0, start - self._lead)
        found = early if early == 0 else self._log.first_record(file, early, stop)
        if found is None or found >= start:
            return found
        at = found
        for event in self._log.scan_file(file, found, start):
            at = _behind(event)
        return at if at >= start else None


def _behind(event: LogEvent) -> int:
    """Position in the file behind what an event tells of."""
    if isinstance(event, Records):
        last = int(event.positions[-1])
        return last + int.from_bytes(event.data[last : last + 4].tobytes(), "big")
    if isinstance(event, EndOfFile):
        return event.position + event.length
    return event.offset + event.length


class SplitResult(Protocol):
    """The outcome of reading one split."""

    @property
    def split(self) -> Split: ...
    @property
    def begin(self) -> int | None: ...
    @property
    def reach(self) -> int: ...


S = TypeVar("S", bound=SplitResult)


def check_seams(log: CommitLog, outcomes: Iterable[S], again: Callable[[Split, int], S]) -> Iterator[tuple[S, S | None]]:
    """Check that each split began where the chain of the one before it arrived.

    outcomes: of all splits, in log order. again(split, first) reads a split anew from a known first record.
    Yields each outcome that holds, and the one it replaces if that began elsewhere.
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
