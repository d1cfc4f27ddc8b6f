"""Checking the commit log split by split: frames, checksums, compression, text; and dispatching the valid records."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from types import TracebackType

import numpy as np

from mqstore.files.read_ahead import ReadAhead
from mqstore.findings import Damage, Kind
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.dispatch.dispatcher import Dispatcher, DispatchOutput, DispatchRules
from mqstore.rocketmq.format.commit_log import CommitLog, EndOfFile, Records
from mqstore.rocketmq.format.mapped_file_queue import QueueFile
from mqstore.rocketmq.scan.columns import RecordColumns

SPLIT = 16 << 20  # bytes of log a thread checks at once


@dataclass(frozen=True, slots=True)
class LogSplit:
    """Bytes start..stop-1 of one log file; the split owns the records that start in it."""

    file: QueueFile
    start: int
    stop: int


@dataclass(slots=True)
class SplitCheck:
    """The contents of one split. begin: position of the first record, None if none starts in the split; end: after the last thing read."""

    split: LogSplit
    begin: int | None
    end: int
    records: int = 0
    messages: int = 0
    damage: list[Damage] = field(default_factory=list)
    dispatched: DispatchOutput | None = None
    first_timestamp: int = 0


Place = tuple[int, int]  # start of a log file, and a position in it: a file that is too long reaches beyond the start of the next one


def plan(log: CommitLog, start: Place = (0, 0), stop: Place | None = None) -> Iterator[LogSplit]:
    """Yield the splits of all files that hold records, in log order, without the holes at the end of files.

    start, stop: only splits that begin there or after it, and before it.
    """
    for file in log.files[: log.last_written() + 1] if stop is None else log.files_between(start[0], sum(stop)):
        for position in range(0, max(1, log.mapped(file).data_end(0)), SPLIT):
            if start <= (file.start, position) and (stop is None or (file.start, position) < stop):
                yield LogSplit(file, position, min(position + SPLIT, file.size))


def cut(log: CommitLog, size: int, count: int | None = None) -> list[tuple[Place, Place]]:
    """Return the log in ranges of about `size` bytes: where their splits start and stop. count: in that many ranges of equal size."""
    files = log.files[: log.last_written() + 1]
    if not files:
        return []
    ends = [file.size for file in files[:-1]] + [max(1, log.mapped(files[-1]).data_end(0))]
    splits = list(accumulate(max(1, -(-end // SPLIT)) for end in ends))
    count = max(1, min(-(-sum(ends) // size) if count is None else count, splits[-1]))
    starts = []
    for number in sorted({splits[-1] * k // count for k in range(count)}):
        at = bisect_right(splits, number)
        starts.append((files[at].start, SPLIT * (number - (splits[at - 1] if at else 0))))
    return list(zip(starts, [*starts[1:], (files[-1].start, ends[-1])], strict=True))


class SplitsAhead:
    """Reads log files ahead of threads that check their splits in log order."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._windows: deque[tuple[QueueFile, ReadAhead]] = deque()

    def __enter__(self) -> SplitsAhead:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for _, window in self._windows:
            window.close()

    def of(self, split: LogSplit) -> ReadAhead:
        """Return the window for a split that is checked soon. The file before may still be read."""
        if not self._windows or self._windows[-1][0] != split.file:
            if len(self._windows) > 1:
                self._windows.popleft()[1].close()
            self._windows.append((split.file, self._log.mapped(split.file).read_ahead(split.start, split.file.size)))
        window = self._windows[-1][1]
        window.reach(split.start)
        return window


def check_split(
    log: CommitLog, split: LogSplit, rules: DispatchRules, begin: int | None = None, ahead: ReadAhead | None = None
) -> SplitCheck:
    """Check one split. begin: position of its first record, if known; otherwise it is searched for. ahead: as for `scan_file`."""
    file = split.file
    if begin is None:
        # at the start of a file whatever is there is checked; elsewhere the first valid record
        begin = 0 if split.start == 0 else log.first_record(file, split.start, split.stop)
    if begin is None or begin >= split.stop:
        return SplitCheck(split, None, split.start if begin is None else begin)
    check = SplitCheck(split, begin, begin)
    dispatcher: Dispatcher | None = None
    for event in log.scan_file(file, begin, split.stop, together=True, ahead=ahead):
        if isinstance(event, Records):
            if dispatcher is None:
                dispatcher = Dispatcher(event.data, rules, (split.stop - begin) // 91 + 1)
            columns = RecordColumns(event)
            last = int(event.positions[-1])
            check.end = last + int(columns.row(frames.SIZE)[-1])
            check.records += len(columns)
            check.messages += len(columns)
            check.damage.extend(record_damage(columns))
            if not check.first_timestamp:
                check.first_timestamp = int(columns.row(frames.STORE_TIMESTAMP)[0])
            dispatcher.add(event.positions)
        elif isinstance(event, EndOfFile):
            check.end = event.position + event.length
            check.records += 1
        else:
            check.end = event.offset + event.length
            check.damage.append(event)
    if dispatcher is not None:
        check.dispatched = dispatcher.finish()
    log.mapped(file).drop(begin, max(0, check.end - begin))
    return check


def record_damage(columns: RecordColumns) -> list[Damage]:
    """Return the contradictions within records whose frames are valid."""
    if columns.valid.all():
        return []
    damage = []
    file = columns.records.file.relative
    for mask, kind, sentence in (
        (columns.crc_ok, Kind.BAD_CHECKSUM, "the body does not match its CRC"),
        (columns.property_crc_ok, Kind.BAD_PROPERTY_CHECKSUM, "the record does not match its __CRC32# property"),
        (columns.decompressible | ~columns.crc_ok, Kind.BAD_COMPRESSION, "the body cannot be decompressed as SYSFLAG requires"),
        (columns.text_ok, Kind.BAD_TEXT, "topic or properties are not UTF-8"),
        (columns.pairs_ok, Kind.BAD_PROPERTIES, "a part of the property text is not a name/value pair"),
    ):
        for k in np.flatnonzero(~mask).tolist():
            position, size = int(columns.records.positions[k]), int(columns.row(frames.SIZE)[k])
            queue_id, queue_offset = int(columns.row(frames.QUEUE_ID)[k]), int(columns.row(frames.QUEUE_OFFSET)[k])
            who = f"topic {columns.topic[k].as_py()!r}, queue {queue_id}, queue offset {queue_offset}"
            damage.append(Damage(file, position, size, kind, f"{sentence} ({who})", 1))
    return damage
