"""Commit log: the files that hold every message, in the order they were stored.

    commitlog/00000000000000000000   one run of bytes, cut into files of equal size
    commitlog/00000000001073741824   a file is named by the physical offset of its first byte

Records follow each other without a gap. A file ends with a BLANK record; after the last record of the last file
there are zeros. The end of the log is not recorded anywhere: it is found by walking.

`CommitLog.scan` walks the log and never raises for bad bytes: bytes that are not a valid record become `Damage`, and the
walk goes on at the next valid record. A record is valid if its magic, its own physical offset and all its inner lengths
fit. After damage the size field of the bad record is tried first, so that a record copied into a body cannot take the
place of the real one; only then are the bytes searched for the next magic.

Format: docs/formats/rocketmq.md, section 2.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.files import Bytes, MappedFile, ReadOnlyDirectory
from mqstore.files.read_ahead import ReadAhead
from mqstore.findings import Damage, Kind
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format import mapped_file_queue, record
from mqstore.rocketmq.format.mapped_file_queue import QueueFile
from mqstore.rocketmq.format.record import MAGIC_AT, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE, PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT, SYS_FLAG_AT

CHUNK = 4096  # records that a walk yields at once: few enough for the processor's cache
TOGETHER = 4 << 20  # largest range of a remote file fetched at once for single records
AT_ONCE = 16 << 20  # bytes after which a walk that is read ahead yields, so that it does not leave the window
SPARSE = 1 << 18  # mean size of records above which a walk that may not need their bodies does not read ahead
DROP = 32 << 20  # bytes that stay resident after being walked, so that a walk of any length uses bounded memory

MOST_MAPS = 16384  # files that stay mapped: a quarter of what Linux allows a process

_BLANK_MAGIC = bytes.fromhex("cbd43194")


@dataclass(frozen=True, slots=True)
class Records:
    """Valid records of one file. positions: of their first bytes in `data`, which is the whole file."""

    file: QueueFile
    data: Bytes
    positions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True, slots=True)
class EndOfFile:
    """The BLANK record of a file. position, length: bytes in the file."""

    file: QueueFile
    position: int
    length: int


LogEvent = Records | EndOfFile | Damage

_SENTENCES = {
    frames.UNWRITTEN: (Kind.ZEROED, "zeros where a record must start"),
    frames.BAD_MAGIC: (Kind.BAD_FRAME, "no record starts here: the magic code is unknown"),
    frames.BAD_SIZE: (Kind.BAD_FRAME, "the size field is impossible"),
    frames.BAD_LENGTHS: (Kind.BAD_LENGTHS, "the lengths inside the record do not add up to its size"),
    frames.BAD_OFFSET: (Kind.BAD_OFFSET, "the record's own physical offset does not match its position"),
    frames.BLANK: (Kind.BAD_FRAME, "an end-of-file record whose length does not reach the end of the file"),
}


_MOST_ASKED = 64  # records of a file that are asked where it starts
_MOST_TRIED = 1 << 16
_HEAD = 64 << 10  # bytes of a remote file fetched first for one record
_FARTHEST = 1 << 63  # no offset is there or beyond
_MAGIC_START = bytes.fromhex("daa320")  # how the magic of a record of either version starts


def size_at(data: Bytes, position: int) -> int:
    """Return the size field of the record at a position."""
    return int.from_bytes(data[position : position + 4].tobytes(), "big", signed=True)


def size_in(mapped: MappedFile, position: int) -> int:
    return int.from_bytes(mapped.bytes(position, position + 4), "big", signed=True)


def _extent(data: Bytes, at: int, end: int, base: int) -> int:
    """Return how many bytes from `at` on are needed to validate the record there, judging by the bytes before `end`."""
    if end - at < SYS_FLAG_AT:
        return SYS_FLAG_AT
    magic = int.from_bytes(data[at + MAGIC_AT : at + MAGIC_AT + 4].tobytes(), "big", signed=True)
    physical = int.from_bytes(data[at + PHYSICAL_OFFSET_AT : at + SYS_FLAG_AT].tobytes(), "big")
    if magic not in (MAGIC_V1, MAGIC_V2) or physical != base + at:
        return SYS_FLAG_AT
    return max(SYS_FLAG_AT, size_at(data, at)) if size_at(data, at) <= len(data) - at else SYS_FLAG_AT


def reach_record(mapped: MappedFile, at: int, base: int) -> Bytes:
    """Return an array over the whole file in which the record at a position can be read or validated. base: the file's start in the log."""
    if not mapped.remote:
        return mapped.data
    end = min(at + _HEAD, mapped.size)
    data = mapped.load(at, end)
    extent = _extent(data, at, end, base)
    return data if at + extent <= end else mapped.load(at, at + extent)


def status_at(mapped: MappedFile, at: int, base: int) -> int:
    """Return the status of a position in a file, one of `kernels.rocketmq.frames`: STOP for a valid record."""
    if not -_FARTHEST <= base < _FARTHEST:
        return int(frames.BAD_OFFSET)
    status: int = frames.status_at(reach_record(mapped, at, base), at, base, True)
    return status


def group_ranges(mapped: MappedFile, base: int, positions: NDArray[np.int64]) -> Iterator[tuple[Bytes, NDArray[np.int64]]]:
    """Group ascending record positions into ranges that are fetched together.

    Yields (array over the whole file, positions of the records that can be validated in it).
    """
    if not mapped.remote:
        if len(positions):
            yield mapped.data, positions
        return
    low = 0
    for high in range(1, len(positions) + 1):
        if high < len(positions) and positions[high] - positions[high - 1] <= _HEAD and positions[high] - positions[low] <= TOGETHER:
            continue
        start, last = int(positions[low]), int(positions[high - 1])
        end = min(last + _HEAD, mapped.size)
        data = mapped.load(start, end)
        upto = max(at + _extent(data, at, end, base) for at in positions[low:high].tolist())
        yield data if upto <= end else mapped.load(start, upto), positions[low:high]
        low = high


def start_in(mapped: MappedFile, named: int | None = None) -> int | None:
    """Return where a file starts in its log according to the physical offsets in most of its first records; None if it has none.

    named: where it starts according to its name. Any of these records is enough to confirm it: those after a surplus byte do not agree.
    """
    votes: Counter[int] = Counter()
    at = MAGIC_AT
    for _ in range(_MOST_TRIED):
        at = mapped.find(_MAGIC_START, at, mapped.size)
        if at < 0 or votes.total() == _MOST_ASKED:
            break
        position = at - MAGIC_AT
        offset = int.from_bytes(mapped.bytes(position + PHYSICAL_OFFSET_AT, position + PHYSICAL_OFFSET_AT + 8), "big")
        if status_at(mapped, position, offset - position) == frames.STOP:
            votes[offset - position] += 1
            at += max(1, size_in(mapped, position) - MAGIC_AT)
        else:
            at += 1
    if named in votes:
        return named
    return votes.most_common(1)[0][0] if votes else None


class CommitLog:
    """The commit log of a store, mapped file by file. Opening it reads only names and sizes.

    A walk goes from unit to unit: a unit is a record, in a DLedger log a record after its header.
    """

    header_size = 0  # bytes of a unit before its record
    _size_field = 0  # its position in a unit

    def __init__(self, directory: ReadOnlyDirectory, relative: str = "commitlog", *, file_size: int | None = None) -> None:
        self._directory = directory
        self._maps: dict[str, MappedFile] = {}
        self._lock = threading.Lock()
        self.queue = mapped_file_queue.load(directory, relative, size=file_size, start_in=self._start_in)
        self.files: tuple[QueueFile, ...] = self.queue.files
        self.findings: tuple[Damage, ...] = tuple(self.queue.findings)
        self._starts = [file.start for file in self.files]
        self._last_written: int | None = None
        self.drop_after = DROP

    @property
    def file_size(self) -> int:
        """Bytes of every file, as inferred from the directory."""
        return self.queue.file_size

    @property
    def start(self) -> int:
        """Physical offset of the first byte; 0 without files."""
        return self.files[0].start if self.files else 0

    @property
    def size_on_paper(self) -> int:
        """Bytes of all files, written or not."""
        return sum(file.size for file in self.files)

    def mapped(self, file: QueueFile) -> MappedFile:
        """Return the map of a file, kept for later. Raises CannotOpenError if the file has vanished."""
        with self._lock:
            mapped = self._maps.get(file.name)
            if mapped is None:
                if len(self._maps) >= MOST_MAPS:
                    del self._maps[next(iter(self._maps))]
                mapped = self._maps[file.name] = self._directory.map(file.relative)
            return mapped

    def _start_in(self, file: QueueFile) -> int | None:
        """Return where a file starts according to the physical offsets in most of its first records; None if it has none.

        A file with another name (its start is negative) is not searched when the log is opened: its first record says it.
        """
        try:
            mapped = self.mapped(file)
            if file.start < 0:
                at = self.header_size + PHYSICAL_OFFSET_AT
                start = int.from_bytes(mapped.bytes(at, at + 8), "big") - self.header_size
                return start if start >= 0 and status_at(mapped, self.header_size, start) == frames.STOP else None
            return start_in(mapped, file.start)
        except CannotOpenError:
            return None

    def drop_records(self, records: Records) -> None:
        """Release the resident pages from the first to the last of some records."""
        mapped = self.mapped(records.file)
        if len(records) and not mapped.remote:
            first, last = int(records.positions[0]), int(records.positions[-1])
            mapped.drop(first, last + size_at(records.data, last) - first)

    def drop_queues(self) -> None:
        """Release the resident pages of queue files that were read along with the log."""
        self._directory.drop_all()

    def files_between(self, start: int, stop: int) -> Sequence[QueueFile]:
        """Return the files that hold physical offsets start..stop-1, or some of them."""
        if start >= stop:
            return ()
        low = max(0, bisect_right(self._starts, start) - 1)
        files = self.files[low : bisect_left(self._starts, stop)]
        return files[1:] if files and files[0].start < start and files[0].start + files[0].size <= start else files

    def identities(self, files: Sequence[QueueFile]) -> list[str]:
        """Return what distinguishes each file from another of its name and size, without mapping it (`ReadOnlyDirectory.identities`)."""
        return self._directory.identities([file.relative for file in files])

    @property
    def remote(self) -> bool:
        """Whether the files are read by URL, so that their identities are the same on each host."""
        return self._directory.remote

    def shown_path(self, relative: str) -> str:
        """Return the path or URL of a file for a sentence."""
        return str(self._directory.path(relative))

    def forget_all(self) -> None:
        """Release all maps; each holds a file descriptor."""
        with self._lock:
            self._maps.clear()

    def file_at(self, physical_offset: int) -> QueueFile | None:
        """Return the file that holds a physical offset, or None."""
        number = bisect_right(self._starts, physical_offset) - 1
        if number < 0:
            return None
        file = self.files[number]
        return file if physical_offset < file.start + file.size else None

    def last_written(self) -> int:
        """Return the number of the last file that holds a record, or -1."""
        if self._last_written is None:
            number = len(self.files) - 1
            while number >= 0 and not self._holds_records(self.files[number]):
                number -= 1
            self._last_written = number
        return self._last_written

    def _holds_records(self, file: QueueFile) -> bool:
        mapped = self.mapped(file)
        return self._status_at(mapped, 0, file.start) != frames.UNWRITTEN or self._search(mapped, file, 0, mapped.data_end(0)) is not None

    def end(self) -> int:
        """Return the physical offset after the last valid record or end-of-file record."""
        number = self.last_written()
        if number < 0:
            return self.start
        file = self.files[number]
        end = file.start
        for event in self.scan_file(file):
            if isinstance(event, Records):
                last = int(event.positions[-1])
                end = file.start + last + size_at(event.data, last)
            elif isinstance(event, EndOfFile):
                end = file.start + event.position + event.length
        return end

    def scan(self, start: int | None = None, stop: int | None = None, *, chunk: int = CHUNK) -> Iterator[LogEvent]:
        """Walk all records that start in [start, stop), as physical offsets; both default to the ends of the log.

        start: must be the start of a record, or below the log. stop: may be inside a record.
        """
        low = self.start if start is None else start
        for file in self.files:
            if file.start + file.size <= low or (stop is not None and file.start >= stop):
                continue
            upto = None if stop is None else stop - file.start
            yield from self.scan_file(file, max(0, low - file.start), upto, chunk=chunk)

    def scan_file(
        self,
        file: QueueFile,
        start: int = 0,
        stop: int | None = None,
        *,
        chunk: int = CHUNK,
        together: bool = False,
        ahead: ReadAhead | None = None,
    ) -> Iterator[LogEvent]:
        """Walk the records of one file that start in [start, stop), as positions in the file. together: read it all into one array.

        ahead: what reads the file ahead of this walk and of others; by default one of this walk alone.

        The bytes of a file that is too long are walked up to the start of the next one.
        Pages already walked are released from this process, and so are the last ones at the end; they stay in the page cache.
        """
        if file not in self.files:
            raise CannotOpenError(f"{file.relative} was removed after the log was listed; open the store again to read the rest")
        number = self.files.index(file)
        if number > self.last_written():
            return
        mapped = self.mapped(file)
        last = number + 1 == len(self.files)
        room = mapped.size if last else min(mapped.size, self.files[number + 1].start - file.start)
        stop = room if stop is None else min(stop, room)
        stretch = mapped.read_window(start, stop, together=together)
        positions = np.empty(chunk, np.int64)
        at = dropped = start
        dense = not mapped.remote and start < stop and size_in(mapped, start + self._size_field) <= SPARSE
        window = mapped.read_ahead(start, stop) if ahead is None else ahead
        try:
            while at < stop:
                near = stop
                if dense or together:
                    window.reach(at, hop=not together)
                    near = at + AT_ONCE
                if at - dropped > self.drop_after:
                    mapped.drop(dropped, at - dropped)
                    dropped = at
                    if not mapped.still_whole():
                        yield Damage(file.relative, at, mapped.size - at, Kind.UNREADABLE, "the file became shorter while being read")
                        return
                if at > stretch.end:
                    stretch.advance(at, at)
                data, end = stretch.data, stretch.end
                before = at
                count, at, status = self._walk(data, at, min(stop, end, near), file.start, positions)
                dense = not mapped.remote and at - before <= SPARSE * count
                if at > end:  # the last record ends past the bytes fetched: it is visited again
                    count -= 1
                    at, status = int(positions[count]) - self.header_size, frames.STOP
                if count:
                    yield Records(file, data, positions[:count].copy())
                if status == frames.FULL:
                    continue
                if end < mapped.size and at < stop and at + (extent := self._extent(data, at, end, file.start)) > end:
                    stretch.advance(at, at + extent)
                    continue
                if status == frames.STOP:
                    if at < stop:
                        continue
                    return
                if status == frames.BLANK and size_at(data, at + self._size_field) == mapped.size - at:
                    yield EndOfFile(file, at, mapped.size - at)
                    return
                record_at = self._headless(mapped, file, at)
                if record_at is not None:
                    kind = _SENTENCES[status][0]
                    yield Damage(file.relative, at, record_at - at, kind, "the header of the entry is damaged, its record is not")
                    data = reach_record(mapped, record_at, file.start)
                    yield Records(file, data, np.array([record_at], np.int64))
                    at = record_at + size_at(data, record_at)
                    continue
                following = self._resume_at(mapped, file, at)
                if status == frames.UNWRITTEN and self._status_at(mapped, at, file.start) != frames.UNWRITTEN:  # pragma: no cover - a race
                    continue  # the store is being written: the record appeared after the walk had read its position
                if following is not None:
                    yield self._damage(mapped, file, at, following, status)
                    at = following
                    continue
                yield from self._tail_damage(mapped, file, at, status, last=number == self.last_written())
                return
        finally:
            if ahead is None:
                window.close()
            if not mapped.remote:  # fetched ranges of a remote file are bounded anyway
                mapped.drop(dropped, at - dropped)

    def first_record(self, file: QueueFile, start: int, stop: int) -> int | None:
        """Return the position of the first valid unit that starts in [start, stop) of a file: where a split begins."""
        mapped = self.mapped(file)
        stop = min(stop, mapped.size)
        if start < stop and self._status_at(mapped, start, file.start) == frames.STOP:
            return start
        return self._search(mapped, file, start, stop)

    def _resume_at(self, mapped: MappedFile, file: QueueFile, at: int) -> int | None:
        """Return where the walk goes on after the bad bytes at `at`: at a record, or at the file's BLANK record."""
        if mapped.size - at >= 8:
            size = size_in(mapped, at + self._size_field)
            if MIN_RECORD_SIZE <= size <= mapped.size - at - 8 and self._is_valid_at(mapped, file, at + size):
                return at + size
        end = mapped.data_end(at)
        hit = self._search(mapped, file, at + 1, end)
        return self._find_blank(mapped, at + 1, end) if hit is None else hit

    def _find_blank(self, mapped: MappedFile, start: int, end: int) -> int | None:
        """Return the first position >= start of the unit that fills the rest of the file."""
        at = mapped.find(_BLANK_MAGIC, start + MAGIC_AT, end)
        while at >= 0:
            if size_in(mapped, at - MAGIC_AT) == mapped.size - at + MAGIC_AT:
                return at - MAGIC_AT
            at = mapped.find(_BLANK_MAGIC, at + 1, end)
        return None

    def _is_valid_at(self, mapped: MappedFile, file: QueueFile, at: int) -> bool:
        status = self._status_at(mapped, at, file.start)
        return status == frames.STOP or (status == frames.BLANK and size_in(mapped, at + self._size_field) == mapped.size - at)

    def _walk(self, data: Bytes, start: int, stop: int, base: int, positions: NDArray[np.int64]) -> tuple[int, int, int]:
        return frames.walk(data, start, stop, base, True, positions)

    def _extent(self, data: Bytes, at: int, end: int, base: int) -> int:
        return _extent(data, at, end, base)

    def _headless(self, mapped: MappedFile, file: QueueFile, at: int) -> int | None:
        """Return the position of the valid record of a unit whose header is damaged."""
        return None

    def _status_at(self, mapped: MappedFile, at: int, base: int) -> int:
        """Return the status of the unit at a position of a file."""
        return status_at(mapped, at, base)

    def _search(self, mapped: MappedFile, file: QueueFile, start: int, stop: int) -> int | None:
        """Return the first position >= start of a valid record that starts before stop. Holes are not read."""
        stop = min(stop, mapped.data_end(start))
        if not mapped.remote:
            hit = frames.first_record(mapped.data, start, stop, file.start)
            return None if hit < 0 else hit
        at = start + 4
        while (at := mapped.find(_MAGIC_START, at, min(stop + 7, mapped.size))) >= 0:
            if at - 4 < stop and status_at(mapped, at - 4, file.start) == frames.STOP:
                return at - 4
            at += 1
        return None

    def _damage(self, mapped: MappedFile, file: QueueFile, at: int, following: int, status: int) -> Damage:
        kind, sentence = _SENTENCES[status]
        if status == frames.BAD_MAGIC and mapped.last_nonzero(at, following) < 0:
            kind, sentence = _SENTENCES[frames.UNWRITTEN]
        return Damage(file.relative, at, following - at, kind, f"{sentence}; the next valid record is at {file.start + following}", 1)

    def _tail_damage(self, mapped: MappedFile, file: QueueFile, at: int, status: int, *, last: bool) -> Iterator[Damage]:
        """Yield the damage in the rest of a file, after its last record."""
        final = mapped.last_nonzero(at, mapped.size)
        if final < 0:
            if not last:
                yield Damage(
                    file.relative,
                    at,
                    mapped.size - at,
                    Kind.ZEROED,
                    "zeros up to the end of the file, although the log continues in the next one",
                    1,
                )
            elif mapped.size < self.file_size:
                yield Damage(file.relative, at, mapped.size - at, Kind.TORN_RECORD, "the file was cut here", 0)
            return
        length = final + 1 - at
        if status in (frames.BAD_LENGTHS, frames.BAD_SIZE) and size_in(mapped, at + 4) == MAGIC_V1:
            length = min(max(length, size_in(mapped, at)), mapped.size - at)
        if last:
            yield Damage(
                file.relative,
                at,
                length,
                Kind.TORN_RECORD,
                "the last record is incomplete: the broker died while writing it, or the file was cut",
                1,
            )
        else:
            kind, sentence = _SENTENCES[status]
            yield Damage(file.relative, at, mapped.size - at, kind, f"{sentence}; no valid record follows in this file", 1)

    def raw(self, physical_offset: int, size: int | None = None) -> bytes | None:
        """Return the bytes of the record at a physical offset, by its own size field (or `size`); None if the log does not hold them."""
        file = self.file_at(physical_offset)
        if file is None:
            return None
        mapped = self.mapped(file)
        at = physical_offset - file.start
        if mapped.size - at < 8:
            return None
        length = size_in(mapped, at) if size is None else size
        if not 0 < length <= mapped.size - at:
            return None
        return mapped.bytes(at, at + length)

    def queue_offset_at(self, physical_offset: int) -> int | None:
        """Return the queue offset of the record at a physical offset, or any number if none starts there; None outside the files."""
        file = self.file_at(physical_offset)
        if file is None:
            return None
        at = physical_offset - file.start + QUEUE_OFFSET_AT
        return int.from_bytes(self.mapped(file).bytes(at, at + 8), "big", signed=True)

    def record(self, physical_offset: int) -> record.Record | None:
        """Return the record at a physical offset, or None if no valid record starts there."""
        file = self.file_at(physical_offset)
        if file is None:
            return None
        mapped = self._maps.get(file.name) or self.mapped(file)
        at = physical_offset - file.start
        data = reach_record(mapped, at, file.start) if mapped.remote else mapped.data
        if frames.status_at(data, at, file.start, True) != frames.STOP:
            return None
        return record.decode(mapped.length_prefixed(at))
