"""Tails a growing commit log: from one position to the next, record by record, and never past the last complete record.

    position = {"off": physical offset after the last record read, "gen": identifies a record before it}

A torn tail is not data: the walk ends after the last complete record. A record with a valid frame may still lack pages of
its body, because a writer copies it in pieces; so the very last record of a log counts only if its body matches its CRC and
its properties are terminated. A BLANK record leads to the next file, and a file of zeros is the end of the log for now.
Damage in the middle is skipped, as by every other reader: a record follows it, so it is not being written any more.

`gen` identifies a record that was read, by its physical offset and the CRC of its first 88 bytes (which include store time and
body CRC). If it differs later, the directory was replaced, or a recovery has cut the log and it was rewritten. A copy of a
store, or a store that was moved, continues at the same position.

    >>> LogPosition.from_json({"off": 184, "gen": "0:9f3c11aa"})
    LogPosition(offset=184, generation='0:9f3c11aa', lost=0)

Format: docs/formats/rocketmq.md, sections 1.2 and 2.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from mqstore.errors import CannotOpenError, MqstoreError, PipelineError, UsageError
from mqstore.files import Bytes
from mqstore.files.state_file import fields_of, text, whole
from mqstore.findings import Damage, Kind
from mqstore.kernels.common.crc32 import crc32
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.commit_log import CommitLog, EndOfFile, Records
from mqstore.rocketmq.format.dledger_log import refuse_dledger
from mqstore.rocketmq.format.log_file import open_place
from mqstore.rocketmq.format.log_slices import store_timestamp_in
from mqstore.rocketmq.format.mapped_file_queue import QueueFile

GENERATION_BYTES = 88  # leading bytes that identify a record; every record is longer
MIN_PIECE = 8 << 20
MAX_PIECE = 64 << 20
PIECES = 16
CUT = 1 << 16  # minimum distance of the record starts that are remembered
COUNTED = 16 << 20  # bytes of log


@dataclass(frozen=True, slots=True)
class LogPosition:
    """How far a log was read. offset: physical offset. generation: the record to recognise, or "". lost: bytes skipped so far."""

    offset: int
    generation: str = ""
    lost: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the position as stored in a checkpoint."""
        document: dict[str, Any] = {"off": self.offset, "gen": self.generation}
        return document | {"lost": self.lost} if self.lost else document

    @classmethod
    def from_json(cls, document: object) -> LogPosition:
        """Return the position of a JSON document. Raises ValueError."""
        fields = fields_of(document, ("off", "gen", "lost"))
        lost = whole(fields, "lost") if "lost" in fields else 0
        return cls(whole(fields, "off"), text(fields, "gen") if "gen" in fields else "", lost)


@dataclass(frozen=True, slots=True)
class Advance:
    """A step of a tail: its end and number of records."""

    end: LogPosition
    records: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Physical offsets start..stop-1, starting at the end of a record. files: starts of the log files involved."""

    start: int
    stop: int
    files: tuple[int, ...]


def _size_at(data: Bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 4].tobytes(), "big")


def _is_complete(data: Bytes, position: int) -> bool:
    """Return whether all pages of a record with a valid frame have been written."""
    field = np.empty((frames.FIELD_COUNT, 1), np.int64)
    frames.fields(data, np.array([position], np.int64), field)
    start, length = int(field[frames.BODY_START, 0]), int(field[frames.BODY_LENGTH, 0])
    if length and crc32(data[start : start + length].data) & 0x7FFFFFFF != int(field[frames.BODY_CRC, 0]) & 0x7FFFFFFF:
        return False
    return int(field[frames.PROPERTIES_LENGTH, 0]) <= 0 or bool(data[position + _size_at(data, position) - 1])


def _generation(log: CommitLog, offset: int) -> str:
    """Return the generation of the record at an offset, or ""."""
    file = log.file_at(offset)
    if file is None:
        return ""
    mapped = log.mapped(file)
    at = offset - file.start
    if frames.status_at(mapped.data, at, file.start, True) != frames.STOP:
        return ""
    return f"{offset}:{crc32(mapped.bytes(at, at + GENERATION_BYTES)):08x}"


class LogTail:
    """Follows the log of one store. Nothing stays open between calls.

    path: the store. file_size: of a log file, if it cannot be inferred. tolerate_loss: skip and count what retention removed,
    instead of raising an error. fail_fast: damage is an error. advice, loss_advice: the next steps that errors give.
    Raises PipelineError and CannotOpenError.
    """

    def __init__(
        self,
        path: str,
        file_size: int | None = None,
        *,
        tolerate_loss: bool = False,
        fail_fast: bool = False,
        advice: str = "start a new query with a new checkpointLocation",
        loss_advice: str = "failOnDataLoss=false skips them",
    ) -> None:
        self._advice = advice
        self._loss_advice = loss_advice
        self.path = path
        self._file_size = file_size
        self._tolerate_loss = tolerate_loss
        self._fail_fast = fail_fast
        self._cuts: list[int] = []
        self._covered = (0, 0)

    def _open(self) -> CommitLog:
        directory = open_place(self.path)
        refuse_dledger(directory, "following a log")
        return CommitLog(directory, file_size=self._file_size)

    # start positions

    def earliest(self) -> LogPosition:
        """Return the position before the first record."""
        log = self._open()
        return LogPosition(log.start, _generation(log, log.start))

    def latest(self) -> LogPosition:
        """Return the position after the last complete record."""
        log = self._open()
        number = log.last_written()
        start = log.files[number].start if number >= 0 else log.start
        return self._advance(log, LogPosition(start, _generation(log, start))).end

    def at(self, offset: int) -> LogPosition:
        """Return the position before the first record at or after a physical offset. Raises UsageError for an offset past the log."""
        log = self._open()
        file = log.file_at(offset)
        if file is None and offset < log.start:
            return LogPosition(offset)
        if file is None:
            end = log.files[-1].start + log.files[-1].size if log.files else 0
            raise UsageError(
                f"startingOffsets is {offset}, but the log of {self.path} covers {log.start} to {end}; give an offset in that range"
            )
        return self._before_first(log, file, lambda records: np.flatnonzero(records.positions >= offset - file.start))

    def since(self, timestamp: int) -> LogPosition:
        """Return the position before the first record stored at or after a time, ms."""
        log = self._open()
        written = log.files[: log.last_written() + 1]
        chosen = None
        for file in written:
            data = log.mapped(file).data
            if frames.status_at(data, 0, file.start, True) == frames.STOP and store_timestamp_in(data[:91].data) >= timestamp:
                break
            chosen = file
        if chosen is None:
            return LogPosition(log.start, _generation(log, log.start))

        def late(records: Records) -> np.ndarray[Any, Any]:
            field = np.empty((frames.FIELD_COUNT, len(records)), np.int64)
            frames.fields(records.data, records.positions, field)
            return np.flatnonzero(field[frames.STORE_TIMESTAMP] >= timestamp)

        return self._before_first(log, chosen, late)

    def _before_first(self, log: CommitLog, file: QueueFile, select: Any) -> LogPosition:
        """Return the position before the first selected record of a file, or after that file."""
        end = LogPosition(file.start)
        for event in self._events(log, file.start, file.start + file.size):
            if isinstance(event, int):
                return LogPosition(event, _generation(log, event))
            rows = select(event)
            if len(rows):
                offset = file.start + int(event.positions[rows[0]])
                return LogPosition(offset, _generation(log, offset))
            last = file.start + int(event.positions[-1])
            end = LogPosition(last + _size_at(event.data, int(event.positions[-1])), _generation(log, last))
        return end

    # advancing

    def advance(self, start: LogPosition, *, rows: int | None = None, size: int | None = None, stop: int | None = None) -> Advance:
        """Advance from a position over complete records: at most `rows` or `size` bytes, but at least one record, and none from `stop` on.

        If there are no new records, the end is `start` itself.
        """
        return self._advance(self._open(), start, rows, size, stop)

    def _advance(
        self, log: CommitLog, start: LogPosition, rows: int | None = None, size: int | None = None, stop: int | None = None
    ) -> Advance:
        begin = self.checked(log, start)
        at, count = begin.offset, 0
        taken: Records | None = None  # the event that holds the last record read, as its number `index`
        index = 0
        before = begin.generation
        lost = begin.lost
        room = at + size if size is not None else None
        limited = ended = False
        cuts: list[int] = []
        for event in self._events(log, at, stop):
            if isinstance(event, int):
                if event > at and log.file_at(at) is None:
                    lost += event - at
                at, ended = event, True
                continue
            positions, base = event.positions, event.file.start
            last = int(positions[-1])
            ends = np.append(positions[1:], last + _size_at(event.data, last)) + base
            take = len(positions)
            if rows is not None:
                take = min(take, rows - count)
            if room is not None:
                take = min(take, max(int(np.searchsorted(ends, room, side="right")), 1 - count))
            if take > 0:
                if taken is not None:
                    before = self._name(taken, index)
                self._remember(cuts, positions[:take] + base)
                taken, index, ended = event, take - 1, False
                at = int(ends[index])
                count += take
            if take < len(positions):
                limited = True
                break
        if taken is not None and not limited and not ended and (stop is None or at < stop):
            # nothing follows it: it may be being written
            position = int(taken.positions[index])
            if not _is_complete(taken.data, position):
                at, count = taken.file.start + position, count - 1
                if index:
                    index -= 1
                else:
                    taken = None
        generation = before if taken is None else self._name(taken, index)
        if at == start.offset:
            return Advance(start, 0)
        self._cover(begin.offset, at, cuts)
        return Advance(LogPosition(at, generation, lost), count)

    @staticmethod
    def _name(records: Records, index: int) -> str:
        position = int(records.positions[index])
        return f"{records.file.start + position}:{crc32(records.data[position : position + GENERATION_BYTES].data):08x}"

    def _events(self, log: CommitLog, at: int, stop: int | None) -> Iterator[Records | int]:
        """Yield the records that start in [at, stop) and, at the end of each file, the offset at which the log continues."""
        last = log.last_written()
        for number, file in enumerate(log.files[: last + 1]):
            end = file.start + max(file.size, log.file_size)
            if number < last:
                end = min(end, log.files[number + 1].start)
                if end <= at:
                    continue
            if stop is not None and file.start >= stop:
                return
            if file.start > at:
                self._lose(at, file.start)
                at = file.start
                yield at
            upto = end if stop is None else min(end, stop)
            ended = yield from self._file_events(log, file, at - file.start, upto - file.start)
            if upto < end or (number == last and not ended):
                return
            at = end
            yield at

    def _file_events(self, log: CommitLog, file: QueueFile, at: int, upto: int) -> Generator[Records, None, bool]:
        """Yield the records of one file. Returns whether its end-of-file record was reached."""
        while True:
            for event in log.scan_file(file, at, upto):
                if isinstance(event, Records):
                    yield event
                elif isinstance(event, EndOfFile):
                    return True
                elif frames.status_at(log.mapped(file).data, event.offset, file.start, True) == frames.STOP:
                    at = event.offset  # the record appeared after the walk had read its position
                    break
                elif self._fail_fast and event.kind != Kind.TORN_RECORD:
                    self._refuse(event)
            else:
                return False

    def _refuse(self, damage: Damage) -> NoReturn:
        raise PipelineError(
            f"{self.path}/{damage.file}: {damage.length} bytes at {damage.offset} are damaged ({damage.detail}); mode=PERMISSIVE skips them"
        )

    # changes of the log

    def checked(self, log: CommitLog, position: LogPosition) -> LogPosition:
        """Return the position, or the start of the log if that is later. Raises PipelineError for a different log, or for a loss."""
        if not log.files:
            if position.offset == 0:
                return position
            raise CannotOpenError(
                f"{self.path} has no log files any more, but was read up to {position.offset}; restore them, or {self._advice}"
            )
        if position.offset < log.start:
            self._lose(position.offset, log.start)
            return LogPosition(log.start, "", position.lost + log.start - position.offset)
        end = log.files[-1].start + log.files[-1].size
        if position.offset > end:
            raise PipelineError(
                f"the log of {self.path} ends at {end}, but was read up to {position.offset}: the directory was "
                f"replaced, or files were removed; {self._advice}"
            )
        where, _, _ = position.generation.partition(":")
        if where and log.file_at(int(where)) is not None and _generation(log, int(where)) != position.generation:
            raise PipelineError(
                f"the log of {self.path} is not the one that was read up to {position.offset}: the record at physical offset {where} "
                "differs, because the directory was replaced, or a recovery has cut the log and it was rewritten; "
                f"{self._advice}"
            )
        return position

    def missing(self, start: int, stop: int) -> int:
        """Return how many bytes of the log from start up to stop are in no log file any more."""
        log = self._open()
        at, lost = start, 0
        for file in log.files:
            lost += max(0, min(file.start, stop) - at)
            at = max(at, file.start + max(file.size, log.file_size))
        return lost + max(0, stop - at)

    def _lose(self, start: int, stop: int) -> None:
        if not self._tolerate_loss:
            first = self._open().files[0].start
            why = "retention has removed the files" if start <= first else "files are missing between others, as retention leaves none"
            raise PipelineError(
                f"the log of {self.path} has lost physical offsets {start} to {stop - 1} before they were read: {why}; {self._loss_advice}"
            )

    # cutting a batch into pieces

    def _remember(self, cuts: list[int], offsets: np.ndarray[Any, Any]) -> None:
        at = 0
        while at < len(offsets):
            cuts.append(int(offsets[at]))
            at = max(at + 1, int(np.searchsorted(offsets, cuts[-1] + self.spacing)))

    spacing = CUT

    def _cover(self, start: int, stop: int, cuts: list[int]) -> None:
        if self._covered[1] != start:
            self._cuts, self._covered = [], (start, start)
        self._cuts += cuts
        self._covered = (self._covered[0], stop)

    def forget(self, offset: int) -> None:
        """Forget the record starts before an offset; they will not be needed again."""
        if self._covered[0] < offset <= self._covered[1]:
            del self._cuts[: bisect_left(self._cuts, offset)]
            self._covered = (offset, self._covered[1])

    def pieces(self, start: LogPosition, end: LogPosition, *, least: int = 0) -> list[Piece]:
        """Cut the log between two positions at starts of records. least: minimum number of pieces, if there are enough records."""
        log = self._open()
        begin = self.checked(log, start)
        self.checked(log, end)
        if begin.offset >= end.offset:
            return []
        if not self._covered[0] <= begin.offset <= end.offset <= self._covered[1]:
            # after a restart, or if the head was removed meanwhile
            self._cuts, self._covered = [], (begin.offset, begin.offset)
            self._advance(log, begin, stop=end.offset)
        total = end.offset - begin.offset
        length = max(1, total // least) if least else min(MAX_PIECE, max(MIN_PIECE, total // PIECES))
        low, high = bisect_left(self._cuts, begin.offset), bisect_left(self._cuts, end.offset)
        chosen = [begin.offset]
        for cut in self._cuts[low:high]:
            if cut - chosen[-1] >= length:
                chosen.append(cut)
        return [
            Piece(cut, stop, tuple(file.start for file in log.files if file.start < stop and file.start + file.size > cut))
            for cut, stop in zip(chosen, [*chosen[1:], end.offset], strict=True)
        ]


# The lag of a reader of a growing log: bytes, messages and seconds.
#
#     LogLag(path, file_size).of(position)      # {"off": 9216, "behind_bytes": 4096, "behind_messages": 21, "behind_seconds": 1.5}
#
# Bytes are exact. Messages are counted up to `COUNTED` bytes; beyond that, counting would read the log twice, so they are estimated from
# the mean size of those counted, as `behind_messages_about`. Seconds are those between the last message read and the newest one; without
# them, no message was read yet, or retention has removed it.


class LogLag:
    """The lag of readers of one log. It remembers the end that it has seen, so that each record is passed once."""

    def __init__(self, path: str, file_size: int | None) -> None:
        self._path = path
        self._file_size = file_size
        self._tail = LogTail(path, file_size, tolerate_loss=True)
        self._end: LogPosition | None = None

    def of(self, position: LogPosition) -> dict[str, Any] | None:
        """Return the end of the log and the distance of a position from it; None if that cannot be determined."""
        try:
            return self._measured(position)
        except (MqstoreError, OSError):
            return None  # the reader itself reports what is wrong with the log

    def _measured(self, position: LogPosition) -> dict[str, Any]:
        known = position if self._end is None or self._end.offset < position.offset else self._end
        latest = self._tail.latest() if self._end is None else self._tail.advance(known).end
        end = self._end = latest if latest.offset > known.offset else known
        lag: dict[str, Any] = {"off": end.offset, "behind_bytes": end.offset - position.offset}
        if end.offset == position.offset:
            return lag | {"behind_messages": 0, "behind_seconds": 0.0, "lost": position.lost}
        step = self._tail.advance(position, size=COUNTED)
        if step.end.offset >= end.offset:
            lag["behind_messages"] = step.records
        elif step.records:
            lag["behind_messages_about"] = round(step.records * (end.offset - position.offset) / (step.end.offset - position.offset))
        last, newest = self._store_time(position), self._store_time(end)
        if last is not None and newest is not None:
            lag["behind_seconds"] = max(0, newest - last) / 1000
        return lag | {"lost": position.lost}

    def _store_time(self, position: LogPosition) -> int | None:
        """Return the store time of the record that a position has last read, ms."""
        where, _, _ = position.generation.partition(":")
        if not where or int(where) >= position.offset:
            return None
        log = CommitLog(open_place(self._path), file_size=self._file_size)
        file = log.file_at(int(where))
        if file is None:
            return None
        at = int(where) - file.start
        return store_timestamp_in(memoryview(log.mapped(file).bytes(at, at + 91)))
