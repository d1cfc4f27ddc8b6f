"""Commit log: the files that hold every message, in the order in which they were stored.

    commitlog/00000000000000000000   one run of bytes, cut into files of equal size
    commitlog/00000000001073741824   a file is named by the physical offset of its first byte

Records follow each other without a gap. A file ends with a BLANK record; behind the last record of the last file
there are zeros. Nothing says where the log ends: it is found by walking.

`CommitLog.scan` walks and never raises for what it meets: bytes that are no believable record become `Damage`, and the
walk goes on at the next record that can be believed. A record is believed when its magic, its own physical offset and
all its inner lengths fit. After damage the size field of the bad record is tried first, so that a record copied into a
body cannot take the place of the real one; only then the bytes are searched for the next magic.

Format: docs/formats/rocketmq.md, section 2.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.files import Bytes, MappedFile, ReadOnlyDirectory
from mqstore.files.remote import RemoteDirectory
from mqstore.findings import Damage, Kind
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format import mapped_file_queue, record
from mqstore.rocketmq.format.mapped_file_queue import QueueFile

__all__ = ["CommitLog", "EndOfFile", "LogEvent", "Records", "group_ranges", "status_at"]

CHUNK = 4096  # records a walk returns at once: small enough for the processor's cache
TOGETHER = 4 << 20  # bytes behind a URL that single records are read from at once
DROP = 32 << 20  # bytes that stay resident behind a walk: a walk over any size stays within bounded memory

_BLANK_MAGIC = bytes.fromhex("cbd43194")


@dataclass(frozen=True, slots=True)
class Records:
    """Believable records of one file. positions: of their first bytes in `data`, which is the whole file."""

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
    frames.BAD_OFFSET: (Kind.BAD_OFFSET, "the record's own physical offset is not where it stands"),
    frames.BLANK: (Kind.BAD_FRAME, "an end-of-file record whose length does not lead to the end of the file"),
}


_HEAD = 64 << 10  # bytes of a first look at a record that lies behind a URL
_MAGIC_START = bytes.fromhex("daa320")  # how the magic of a record of either version starts


def _size_at(data: Bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 4].tobytes(), "big", signed=True)


def _size_in(mapped: MappedFile, position: int) -> int:
    return int.from_bytes(mapped.bytes(position, position + 4), "big", signed=True)


def _extent(data: Bytes, at: int, end: int, base: int) -> int:
    """How many bytes from `at` on must be there to judge what stands there, as far as those before `end` tell."""
    if end - at < 36:
        return 36
    magic = int.from_bytes(data[at + 4 : at + 8].tobytes(), "big", signed=True)
    if magic not in (frames.MAGIC_V1, frames.MAGIC_V2) or int.from_bytes(data[at + 28 : at + 36].tobytes(), "big") != base + at:
        return 36
    return max(36, _size_at(data, at)) if _size_at(data, at) <= len(data) - at else 36


def reach_record(mapped: MappedFile, at: int, base: int) -> Bytes:
    """An array over the whole file in which the record at a position can be read, or judged. base: the file's start in the log."""
    if not mapped.remote:
        return mapped.data
    end = min(at + _HEAD, mapped.size)
    data = mapped.load(at, end)
    extent = _extent(data, at, end, base)
    return data if at + extent <= end else mapped.load(at, at + extent)


def status_at(mapped: MappedFile, at: int, base: int) -> int:
    """What stands at a position of a file: a status of `kernels.frames`, STOP for a believable record."""
    status: int = frames.status_at(reach_record(mapped, at, base), at, base, True)
    return status


def group_ranges(mapped: MappedFile, base: int, positions: NDArray[np.int64]) -> Iterator[tuple[Bytes, NDArray[np.int64]]]:
    """(array over the whole file, positions of records that can be judged in it): ascending positions, those near each other together."""
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


class CommitLog:
    """The commit log of a store, mapped file by file. Opening reads names and sizes only."""

    def __init__(self, directory: ReadOnlyDirectory, relative: str = "commitlog", *, file_size: int | None = None) -> None:
        self._directory = directory
        self.queue = mapped_file_queue.load(directory, relative, size=file_size)
        self.files: tuple[QueueFile, ...] = self.queue.files
        self.findings: tuple[Damage, ...] = tuple(self.queue.findings)
        self._starts = [file.start for file in self.files]
        self._maps: dict[str, MappedFile] = {}
        self._lock = threading.Lock()
        self._last_written: int | None = None
        self.drop_behind = DROP

    @property
    def file_size(self) -> int:
        """Bytes of every file, as the directory shows it."""
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
        """The map of a file, made once. Raises CannotOpenError when it has vanished."""
        with self._lock:
            found = self._maps.get(file.name)
            if found is None:
                found = self._maps[file.name] = self._directory.map(file.relative)
            return found

    def drop_records(self, records: Records) -> None:
        """Let go of the resident pages from the first to the last of some records."""
        mapped = self.mapped(records.file)
        if len(records) and not mapped.remote:
            first, last = int(records.positions[0]), int(records.positions[-1])
            mapped.drop(first, last + _size_at(records.data, last) - first)

    def drop_queues(self) -> None:
        """Let go of the resident pages of the queue files that were read beside the log."""
        self._directory.drop_all()

    def snapshot(self) -> str | None:
        """What a plan has seen of the files, for those who carry it out; None where a file that is mapped stays what it is."""
        directory = self._directory
        return directory.snapshot([file.relative for file in self.files]) if isinstance(directory, RemoteDirectory) else None

    def forget_all(self) -> None:
        """Let go of all maps; each holds a descriptor."""
        with self._lock:
            self._maps.clear()

    def file_at(self, physical_offset: int) -> QueueFile | None:
        """The file that holds a physical offset."""
        number = bisect_right(self._starts, physical_offset) - 1
        if number < 0:
            return None
        file = self.files[number]
        return file if physical_offset < file.start + file.size else None

    def last_written(self) -> int:
        """Number of the last file that holds a record; -1 if none does."""
        if self._last_written is None:
            number = len(self.files) - 1
            while number >= 0 and not self._holds_records(self.files[number]):
                number -= 1
            self._last_written = number
        return self._last_written

    def _holds_records(self, file: QueueFile) -> bool:
        mapped = self.mapped(file)
        return status_at(mapped, 0, file.start) != frames.UNWRITTEN or self._search(mapped, file, 0, mapped.data_end(0)) is not None

    def end(self) -> int:
        """Physical offset behind the last believable record or end-of-file record."""
        number = self.last_written()
        if number < 0:
            return self.start
        file = self.files[number]
        end = file.start
        for event in self.scan_file(file):
            if isinstance(event, Records):
                last = int(event.positions[-1])
                end = file.start + last + _size_at(event.data, last)
            elif isinstance(event, EndOfFile):
                end = file.start + event.position + event.length
        return end

    def scan(self, start: int | None = None, stop: int | None = None, *, chunk: int = CHUNK) -> Iterator[LogEvent]:
        """Walk all records that start in [start, stop), physical offsets; both default to the ends of the log.

        start must be the start of a record (or lie below the log); a stop inside a record is fine.
        """
        low = self.start if start is None else start
        for file in self.files:
            if file.start + file.size <= low or (stop is not None and file.start >= stop):
                continue
            upto = None if stop is None else stop - file.start
            yield from self.scan_file(file, max(0, low - file.start), upto, chunk=chunk)

    def scan_file(
        self, file: QueueFile, start: int = 0, stop: int | None = None, *, chunk: int = CHUNK, together: bool = False
    ) -> Iterator[LogEvent]:
        """Walk the records of one file that start in [start, stop), positions in the file. together: all of it in one array.

        Pages behind the walk leave this process's memory, and so do the last ones when it ends; they stay in the page cache.
        """
        if file not in self.files:
            raise CannotOpenError(f"{file.relative} has gone since the log was listed; open the store again to read what is there")
        number = self.files.index(file)
        if number > self.last_written():
            return
        mapped = self.mapped(file)
        stop = mapped.size if stop is None else min(stop, mapped.size)
        stretch = mapped.read_window(start, stop, together=together)
        positions = np.empty(chunk, np.int64)
        at = dropped = start
        try:
            while at < stop:
                if at - dropped > self.drop_behind:
                    mapped.drop(dropped, at - dropped)
                    dropped = at
                    if not mapped.still_whole():
                        yield Damage(file.relative, at, mapped.size - at, Kind.UNREADABLE, "the file became shorter while it was read")
                        return
                if at > stretch.end:
                    stretch.advance(at, at)
                data, end = stretch.data, stretch.end
                count, at, status = frames.walk(data, at, min(stop, end), file.start, True, positions)
                if at > end:  # the last record goes on behind what is there: it is met again
                    count -= 1
                    at, status = int(positions[count]), frames.STOP
                if count:
                    yield Records(file, data, positions[:count].copy())
                if status == frames.FULL:
                    continue
                if end < mapped.size and at < stop and at + (extent := _extent(data, at, end, file.start)) > end:
                    stretch.advance(at, at + extent)
                    continue
                if status == frames.STOP:
                    return
                if status == frames.BLANK and _size_at(data, at) == mapped.size - at:
                    yield EndOfFile(file, at, mapped.size - at)
                    return
                behind = self._behind(mapped, file, at)
                if status == frames.UNWRITTEN and status_at(mapped, at, file.start) != frames.UNWRITTEN:
                    continue  # the store is being written: what was not there when the walk came by is there now
                if behind is not None:
                    yield self._damage(mapped, file, at, behind, status)
                    at = behind
                    continue
                yield from self._tail(mapped, file, at, status, last=number == self.last_written())
                return
        finally:
            if not mapped.remote:  # what was fetched is bounded as it is
                mapped.drop(dropped, at - dropped)

    def first_record(self, file: QueueFile, start: int, stop: int) -> int | None:
        """Position of the first believable record that starts in [start, stop) of a file: where a split begins."""
        mapped = self.mapped(file)
        stop = min(stop, mapped.size)
        if start < stop and status_at(mapped, start, file.start) == frames.STOP:
            return start
        return self._search(mapped, file, start, stop)

    def _behind(self, mapped: MappedFile, file: QueueFile, at: int) -> int | None:
        """Where the walk goes on after the bad bytes at `at`: a record, or the file's BLANK record."""
        if mapped.size - at >= 8:
            size = _size_in(mapped, at)
            if 91 <= size <= mapped.size - at - 8 and self._believable(mapped, file, at + size):
                return at + size
        end = mapped.data_end(at)
        found = self._search(mapped, file, at + 1, end)
        if found is not None:
            return found
        place = mapped.find(_BLANK_MAGIC, at + 5, end)
        while place >= 0:
            if _size_in(mapped, place - 4) == mapped.size - place + 4:
                return place - 4
            place = mapped.find(_BLANK_MAGIC, place + 1, end)
        return None

    def _believable(self, mapped: MappedFile, file: QueueFile, at: int) -> bool:
        status = status_at(mapped, at, file.start)
        return status == frames.STOP or (status == frames.BLANK and _size_in(mapped, at) == mapped.size - at)

    def _search(self, mapped: MappedFile, file: QueueFile, start: int, stop: int) -> int | None:
        """First position >= start with a believable record that starts before stop. Holes are not read."""
        stop = min(stop, mapped.data_end(start))
        if not mapped.remote:
            found = frames.first_record(mapped.data, start, stop, file.start)
            return None if found < 0 else found
        at = start + 4
        while (at := mapped.find(_MAGIC_START, at, min(stop + 7, mapped.size))) >= 0:
            if at - 4 < stop and status_at(mapped, at - 4, file.start) == frames.STOP:
                return at - 4
            at += 1
        return None

    def _damage(self, mapped: MappedFile, file: QueueFile, at: int, behind: int, status: int) -> Damage:
        kind, sentence = _SENTENCES[status]
        if status == frames.BAD_MAGIC and mapped.last_nonzero(at, behind) < 0:
            kind, sentence = _SENTENCES[frames.UNWRITTEN]
        return Damage(file.relative, at, behind - at, kind, f"{sentence}; the next believable record is at {file.start + behind}", 1)

    def _tail(self, mapped: MappedFile, file: QueueFile, at: int, status: int, *, last: bool) -> Iterator[Damage]:
        """What to say of the rest of a file in which no further record is found."""
        final = mapped.last_nonzero(at, mapped.size)
        if final < 0:
            if not last:
                yield Damage(
                    file.relative,
                    at,
                    mapped.size - at,
                    Kind.ZEROED,
                    "zeros up to the end of the file, though the log goes on in the next one",
                    1,
                )
            elif mapped.size < self.file_size:
                yield Damage(file.relative, at, mapped.size - at, Kind.TORN_RECORD, "the file was cut here", 0)
            return
        length = final + 1 - at
        if status in (frames.BAD_LENGTHS, frames.BAD_SIZE) and _size_in(mapped, at + 4) == frames.MAGIC_V1:
            length = min(max(length, _size_in(mapped, at)), mapped.size - at)
        if last:
            yield Damage(
                file.relative,
                at,
                length,
                Kind.TORN_RECORD,
                "the last record is incomplete: the broker died while it wrote, or the file was cut",
                1,
            )
        else:
            kind, sentence = _SENTENCES[status]
            yield Damage(file.relative, at, mapped.size - at, kind, f"{sentence}; no believable record follows in this file", 1)

    def raw(self, physical_offset: int, size: int | None = None) -> bytes | None:
        """The bytes of the record at a physical offset, by its own size field (or `size`); None if no such bytes are there."""
        file = self.file_at(physical_offset)
        if file is None:
            return None
        mapped = self.mapped(file)
        at = physical_offset - file.start
        if mapped.size - at < 8:
            return None
        length = _size_in(mapped, at) if size is None else size
        if not 0 < length <= mapped.size - at:
            return None
        return mapped.bytes(at, at + length)

    def record(self, physical_offset: int) -> record.Record | None:
        """The record at a physical offset, if a believable one starts there."""
        file = self.file_at(physical_offset)
        if file is None:
            return None
        mapped = self._maps.get(file.name) or self.mapped(file)
        at = physical_offset - file.start
        data = reach_record(mapped, at, file.start) if mapped.remote else mapped.data
        if frames.status_at(data, at, file.start, True) != frames.STOP:
            return None
        return record.decode(mapped.length_prefixed(at))
