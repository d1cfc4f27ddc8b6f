"""Carving of an image: every whole message of either broker that begins in a range of it, what lies between them, and ranges joined.

The range is read in windows of WINDOW bytes; nothing depends on where a window begins. A message is whatever begins first: a record of
RocketMQ by its magic and lengths, a message of RabbitMQ by its term. What is found is passed over as a whole, so a message in the body of
another one, such as a store file that was sent as a message, is not found a second time.

    at                                       window end
    |......rec rec rec rec ..... term ....rec|
           run               gap      gap  goes on after the window: its head and its end are read, not what is between them

A run is a series of records whose difference between position in the log and position in the file is the same, one right after the other.
A RabbitMQ message is found by its term; the frame around it, if there is one, is that of a record or of an entry of a queue's own store.
The properties of a record have no checksum. So where pieces of files are side by side, a frame may be the head of one record and bytes of
others that happen to fit its lengths. The last record of a run is one only if the next one of its log, or the end of a file, comes after
it, or if no valid record begins in the part that its checksum does not cover (its topic and properties; all of it, if its body is damaged).
If one does, that one is found, and the bytes before it belong to nothing.

All positions are those in the image. Findings of a split are stored and sent as one array file (`to_bytes`, `from_bytes`).

Joined, the findings of splits equal those of one pass from the start of the image to its end. A message that begins in one split may end
in the next, whose carver did not know it and may have found messages in its body. What the next split found before that end is dropped; if
something it found is across that end, the range up to there is carved again. So is the range around the seam if a message begins right
after it, whose frame may be before it.
"""

from __future__ import annotations

import io
import struct
import zipfile
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.files.image import Image
from mqstore.kernels.rabbitmq import message_store
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.record import MAGIC_V1, MAGIC_V2, body_crc, frame_size, property_crc_fits

Longs = NDArray[np.int64]

# rows of the array of RabbitMQ messages
FROM = 0  # first byte, with the frame
TO = 1  # after the last byte, with the frame
TERM = 2
TERM_END = 3
KIND = 4  # of the kernel: BARE, RECORD, ENTRY, DAMAGED_ENTRY
MESSAGE_ROWS = 5


@dataclass(slots=True)
class Run:
    """Records that follow each other. base: position in the log of the first byte of the image; end: after the last record.

    filled: the same, or after the head of the record that fills a log file. unproved: nothing shows that the properties of the last record
    are its own.
    """

    base: int
    positions: Longs
    end: int
    filled: int
    unproved: bool = False

    @property
    def start(self) -> int:
        return int(self.positions[0])


@dataclass(slots=True)
class Gap:
    """Bytes that belong to no message. low, high: bounds of those that are not zeros; low = -1 if all of them are."""

    start: int
    low: int
    high: int
    stop: int


@dataclass(slots=True)
class Content:
    """Findings in [start, end). end: after the last message that begins in the range, so possibly after the range.

    untried: positions were passed over because attempts to read a message there took too long, as in a hostile image.
    """

    start: int
    end: int
    runs: list[Run] = field(default_factory=list)
    messages: Longs = field(default_factory=lambda: np.empty((MESSAGE_ROWS, 0), np.int64))
    gaps: list[Gap] = field(default_factory=list)
    unreadable: list[tuple[int, int]] = field(default_factory=list)
    untried: bool = False

    @property
    def records(self) -> int:
        """Number of RocketMQ records."""
        return sum(len(run.positions) for run in self.runs)

    def to_bytes(self) -> bytes:
        """Return the findings as one file."""
        sink = io.BytesIO()
        table = [[run.base, run.end, run.filled, run.unproved, len(run.positions)] for run in self.runs]
        np.savez(
            sink,
            head=np.array([self.start, self.end, self.untried], np.int64),
            runs=np.array(table, np.int64).reshape(-1, 5),
            positions=np.concatenate([run.positions for run in self.runs]) if self.runs else np.empty(0, np.int64),
            messages=self.messages,
            gaps=np.array([[gap.start, gap.low, gap.high, gap.stop] for gap in self.gaps], np.int64).reshape(-1, 4),
            unreadable=np.array(self.unreadable, np.int64).reshape(-1, 2),
        )
        return sink.getvalue()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Content:
        """Return findings that `to_bytes` stored. Raises ValueError if they are incomplete, or not what it stores."""
        stored = _arrays(raw)
        start, end, untried = stored["head"].tolist()
        table = stored["runs"].tolist()
        counts = [row[4] for row in table]
        if min(counts, default=0) < 0 or sum(counts) != len(stored["positions"]) or not 0 <= start <= end or untried not in (0, 1):
            raise ValueError("its findings do not fit together")
        parts = np.split(stored["positions"], np.cumsum(counts)[:-1]) if table else []
        runs = [Run(row[0], part, row[1], row[2], bool(row[3])) for row, part in zip(table, parts, strict=True)]
        gaps = [Gap(*row) for row in stored["gaps"].tolist()]
        unreadable = [(low, high) for low, high in stored["unreadable"].tolist()]
        return cls(start, end, runs, stored["messages"], gaps, unreadable, bool(untried))


_UNREADABLE = (zipfile.BadZipFile, KeyError, OSError, EOFError, NotImplementedError, RuntimeError, SyntaxError, OverflowError, MemoryError)
_SHAPES = {"head": (3,), "runs": (-1, 5), "positions": (-1,), "messages": (MESSAGE_ROWS, -1), "gaps": (-1, 4), "unreadable": (-1, 2)}


def _arrays(raw: bytes) -> dict[str, Longs]:
    """Return the arrays of a file by name, each checked. Raises ValueError."""
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as packed:
            members = packed.infolist()
        # they are stored as they are: one that claims more than the file has is not ours
        if any(each.compress_type != zipfile.ZIP_STORED or each.file_size > len(raw) for each in members):
            raise ValueError("it is compressed")
        if sorted(each.filename for each in members) != sorted(f"{name}.npy" for name in _SHAPES):
            raise ValueError("it has other arrays")
        with np.load(io.BytesIO(raw), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in _SHAPES}
    except _UNREADABLE as error:
        raise ValueError(str(error)) from None
    for name, shape in _SHAPES.items():
        made = arrays[name].shape
        fits = len(made) == len(shape) and all(want in (-1, have) for want, have in zip(shape, made, strict=True))
        if arrays[name].dtype != np.int64 or not fits:
            raise ValueError(f"its array {name} has another form")
    return arrays


WINDOW = 8 << 20
POSITIONS = 1 << 16  # records walked at once
MESSAGES = 1 << 12  # messages of RabbitMQ found at once
MARGIN = 64  # bytes before a position that may belong to a frame that begins there
HEAD = 128  # the fixed part of a record, and more
BLANK_HEAD = 8  # size and magic of the record that fills the end of a log file
BLANK_MAGIC = b"\xcb\xd4\x31\x94"
RECORD_MAGICS = tuple(magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_V1, MAGIC_V2))
TIMED_BLANK = 16  # size of the one at the end of a segment of tiered storage, which has a time as well
EFFORT = 16  # bytes that failed attempts may take, for each byte of the range
LEAST_EFFORT = 1 << 20
LARGEST_MESSAGE = 1 << 30
AFTER = (1 << 20) + (1 << 16)  # bytes after the range that are read for messages that begin in it
SECTOR = 512
FRAME = 24  # bytes before the term of a RabbitMQ record
ZEROS = bytes(1 << 20)
ENTRY_MAGIC = 1
_ENTRY = struct.Struct(">ii16xq12xi")  # the header of an entry of DLedger: magic, size, position, size of its body


def carve_range(image: Image, start: int, stop: int) -> Content:
    """Find what begins in [start, stop). A message that begins before start is not known here: `Joined` corrects what that changes."""
    return _Carver(image, start, stop).run()


def nonzero_bounds(data: Bytes) -> tuple[int, int]:
    """Return the position of the first byte that is not zero, and the position after the last one; (-1, -1) if all are zeros."""
    low = at = 0
    size = len(data)
    while at < size:
        part = data[at : at + (4096 if at == 0 else len(ZEROS))]
        if part.tobytes() != ZEROS[: len(part)]:
            low = at + int((part != 0).argmax())
            break
        at += len(part)
    else:
        return -1, -1
    end = size
    while True:
        part = data[max(low, end - (4096 if end == size else len(ZEROS))) : end]
        if part.tobytes() != ZEROS[: len(part)]:
            return low, end - int((part[::-1] != 0).argmax())
        end -= len(part)


class _Carver:
    def __init__(self, image: Image, start: int, stop: int) -> None:
        self.image = image
        self.stop = min(stop, image.size)
        self.content = Content(start, start)
        self.mark = start  # bytes before are accounted for: claimed, or passed over
        self.effort = EFFORT * (stop - start) + LEAST_EFFORT
        self.large = EFFORT * max(stop - start, min(image.size, LARGEST_MESSAGE))
        self.buffer = np.empty(max(1, min(WINDOW, stop + AFTER - start, image.size - start)), np.uint8)
        self.positions = np.empty(POSITIONS, np.int64)
        self.out = np.empty((MESSAGE_ROWS, MESSAGES), np.int64)
        self.messages: list[Longs] = []
        self.origin = 0  # position of the window
        self.data: Bytes = self.buffer[:0]
        self.more = False  # the image goes on after the window
        self.base: int | None = None  # of the run that goes on at `mark`
        self.disproved = -1  # position of the last frame that a record inside it disproved
        self.parts: list[Longs] = []

    def run(self) -> Content:
        at = self.content.start
        while at < self.stop:
            at = self._load(at)
            if len(self.data):
                at = self._window(at)
        self._end_run()
        self.content.end = max(self.mark, self.content.start)
        if self.messages:
            self.content.messages = np.concatenate(self.messages, axis=1)
        return self.content

    # windows

    def _load(self, at: int) -> int:
        """Read the window at a position, or at the next one that is not in a hole and can be read; return its position."""
        image = self.image
        self.data = self.buffer[:0]
        data_at = image.next_data(at)
        if data_at >= self.stop:
            self._end_run()
            self._pass_zeros(self.stop)
            return self.stop
        if data_at - MARGIN > at:
            self._end_run()
            at = data_at - MARGIN
            self._pass_zeros(at)
        end = min(at + len(self.buffer), self.stop + AFTER, image.size)
        self.data = image.read(at, end, self.buffer)
        self.origin = at
        self.more = end < image.size and len(self.data) == end - at
        if not len(self.data):
            self._end_run()
            after = image.after_unreadable(at, self.stop)
            self.content.unreadable.append((at, after))
            self.mark = after
            return after
        return at

    def _window(self, at: int) -> int:
        """Carve the window; return where the next one begins."""
        origin, data, more = self.origin, self.data, self.more
        limit = len(data)
        stop = min(self.stop - origin, limit)
        offset = at - origin
        record_from = message_from = offset
        record = -1  # where the next record starts; stop if there is none
        cut = False  # the record may go on after the window
        if self.base is not None:
            after = self._walk(offset, stop)
            if after is None:
                return self.mark
            if after < 0:
                return origin + after  # the frame that began before the window is not a record
            offset = record_from = message_from = after
        while offset < stop:
            record_from = max(record_from, self.disproved + 1 - origin)
            if record < record_from:
                record = frames.carve(data, record_from, stop, more)
                cut = record <= -2
                record = -2 - record if cut else stop if record == -1 else record
            message_from = max(message_from, offset)
            if message_from < record:
                offset, message_from, slide = self._messages(message_from, record)
                if slide:
                    return self._leave(offset)
                record_from = max(record_from, offset)
                continue
            if record >= stop:
                break
            if cut:
                size = frame_size(self._read, origin + record)
                if not size or not self._readable(origin + record + size):
                    record_from = record + 1
                    continue
                self._begin_run(record)
                self._add(np.array([origin + record], np.int64), origin + record + size)
                return self.mark
            self._begin_run(record)
            after = self._walk(record, stop)
            if after is None:
                return self.mark
            offset = record_from = after
        return self._leave(max(offset, min(stop, limit - MARGIN) if more else stop))

    def _leave(self, offset: int) -> int:
        """Pass over what is left before the next window, which begins at a position of this one."""
        at = self.origin + offset
        if at > self.mark:
            self._pass(at)
        return max(at, self.mark)

    def _read(self, start: int, stop: int) -> bytes:
        """Return bytes of the image, from the window if it has them."""
        if self.origin <= start and stop <= self.origin + len(self.data):
            return self.data[start - self.origin : stop - self.origin].tobytes()
        return self.image.read(start, stop).tobytes()

    def _readable(self, to: int) -> bool:
        """Return whether the disk can read the bytes from the end of the window to a position."""
        at = self.origin + len(self.data)
        scratch = np.empty(min(len(ZEROS), max(0, to - at)), np.uint8)
        while at < to:
            got = len(self.image.read(at, min(to, at + len(scratch)), scratch))
            if not got:
                return False
            at += got
        return True

    # what belongs to nothing

    def _pass(self, to: int) -> None:
        """Account for bytes of the window that belong to nothing."""
        low, high = nonzero_bounds(self.data[self.mark - self.origin : to - self.origin])
        self._extend(to, low + self.mark if low >= 0 else -1, high + self.mark if low >= 0 else -1)

    def _pass_zeros(self, to: int) -> None:
        if to > self.mark:
            self._extend(to, -1, -1)

    def _extend(self, to: int, low: int, high: int) -> None:
        gaps = self.content.gaps
        if gaps and gaps[-1].stop == self.mark:
            last = gaps[-1]
            last.stop = to
            if low >= 0:
                last.low = low if last.low < 0 else last.low
                last.high = high
        else:
            gaps.append(Gap(self.mark, low, high, to))
        self.mark = to

    # records of RocketMQ

    def _begin_run(self, offset: int) -> None:
        at = self.origin + offset
        if at > self.mark:
            self._pass(at)
        self.base = int.from_bytes(self._read(at + 28, at + 36), "big") - at

    def _add(self, positions: Longs, end: int) -> None:
        self.parts.append(positions)
        self.mark = end

    def _walk(self, offset: int, stop: int) -> int | None:
        """Add the records from here on to the run; return where it ends in the window, None if it goes on after the window."""
        assert self.base is not None
        origin, data = self.origin, self.data
        base = self.base + origin
        at = offset
        while True:
            count, after, status = frames.walk(data, at, stop, base, True, self.positions)
            if count:
                self._add(self.positions[:count] + origin, origin + after)
            if status == frames.FULL:
                at = after
                continue
            count, further, status = frames.walk_entries(data, after, stop, base, self.positions)
            if count:
                self._add(self.positions[:count] + origin, origin + further)
            at = further
            if not count:
                break
        if at >= stop and origin + stop < self.stop:
            return None  # exactly at the end of the window
        if at < stop and self.more:
            for header in (0, frames.ENTRY_HEADER_SIZE):  # a record, and one in an entry of DLedger
                start = origin + at + header
                end = start + self._size_across(at, header)
                if start < end and self._readable(end):
                    self._add(np.array([start], np.int64), end)
                    return None
        self._end_run()
        return self.mark - origin

    def _size_across(self, at: int, header: int) -> int:
        """Return the size of the record that goes on after the window, and goes on with the run; 0 if there is none.

        at: where in the window it begins, with the header of its entry if it has one.
        """
        assert self.base is not None
        offset, position = at + header, self.origin + at
        left = len(self.data) - offset
        if left >= HEAD and int.from_bytes(self.data[offset : offset + 4].tobytes(), "big") <= left:
            return 0
        size = frame_size(self._read, position + header, self.base + position + header)
        if size and header:
            raw = self._read(position, position + header)
            stated = (ENTRY_MAGIC, header + size, self.base + position, size)
            return size if len(raw) == header and _ENTRY.unpack(raw) == stated else 0
        return size

    def _end_run(self) -> None:
        unproved = False
        if self.base is not None and self.parts and not self._is_followed(self.mark):
            last = int(self.parts[-1][-1])
            disproved, unproved = self._judge(last, self.mark)
            if disproved:
                self.disproved = self.mark = last
                self.parts[-1] = self.parts[-1][:-1]
                if not len(self.parts[-1]):
                    self.parts.pop()
        if self.base is not None and self.parts:
            end = self.mark
            head = self._read(end, end + TIMED_BLANK)
            if head[4:BLANK_HEAD] == BLANK_MAGIC:
                timed = len(head) == TIMED_BLANK and int.from_bytes(head[:4], "big") == TIMED_BLANK
                self.mark += TIMED_BLANK if timed else BLANK_HEAD
            self.content.runs.append(Run(self.base, np.concatenate(self.parts), end, self.mark, unproved))
        self.base = None
        self.parts = []

    def _is_followed(self, end: int) -> bool:
        """Return whether the next record of the log, an entry of DLedger or the end of a file comes at a position."""
        assert self.base is not None
        head = self._read(end, end + 36)
        there = (self.base + end).to_bytes(8, "big", signed=True)
        if head[4:8] in RECORD_MAGICS:
            return head[28:36] == there
        return head[4:8] == BLANK_MAGIC or (head[:4] == ENTRY_MAGIC.to_bytes(4, "big") and head[24:32] == there)

    def _judge(self, start: int, end: int) -> tuple[bool, bool]:
        """Return whether a record that nothing follows is disproved, by one that begins where its checksum covers nothing, and unproved.

        Its properties are proved by their checksum, if they have one, and by the zeros after a log's last record; or if they begin in
        the sector in which they end, since pieces of files are whole sectors.
        """
        if self.effort <= 0 or end - start > WINDOW:
            self.content.untried |= self.effort <= 0
            return False, True
        self.effort -= end - start
        data = np.frombuffer(self._read(start, end + HEAD), np.uint8)
        at = body_end = self._unproved_from(data[: end - start])
        while (hit := frames.carve(data, at, end - start, True)) != -1:
            at = hit if hit >= 0 else -2 - hit
            size = frame_size(self._read, start + at)
            if size and size <= WINDOW:
                self.effort -= size
                if self._unproved_from(np.frombuffer(self._read(start + at, start + at + size), np.uint8)) > 1:
                    return True, False
            at += 1
        cut = (start + body_end) // SECTOR < (end - 1) // SECTOR
        unwritten = not data[end - start :].any() and bool(data[end - start - 1])
        return False, cut and not unwritten

    def _unproved_from(self, record: Bytes) -> int:
        """Return where in a record the part begins that no checksum proves: after its body, at 1 if that is damaged, else at its end."""
        fields = np.empty((frames.FIELD_COUNT, 1), np.int64)
        frames.fields(record, np.zeros(1, np.int64), fields)
        begin = int(fields[frames.BODY_START, 0])
        after = begin + int(fields[frames.BODY_LENGTH, 0])
        if body_crc(record[begin:after].tobytes()) != int(fields[frames.BODY_CRC, 0]):
            return 1
        return len(record) if property_crc_fits(record.tobytes()) else after

    # messages of RabbitMQ

    def _messages(self, offset: int, stop: int) -> tuple[int, int, bool]:
        """Find messages before stop; return where to go on with records, where with messages, and whether in a new window."""
        if self.effort <= 0:
            self.content.untried = True
            return offset, stop, False
        count, after, cut, self.effort = message_store.carve(self.data, offset, stop, self.more, self.out, self.effort)
        if count:
            self._claim(self.out[:, :count].copy() + np.array([[self.origin]] * 4 + [[0]]))
        low = max(self.mark - self.origin, offset)
        if cut:
            frame = max(low, after - FRAME)
            if after > len(self.buffer) // 2:  # what is left of the window is read once more, not more than twice as much in all
                return frame, frame, True
            end = self._large(low, after)
            return (end, end, True) if end else (low, after + 1, False)
        if self.effort <= 0:
            self.content.untried = True
        return low, (low if count == MESSAGES else max(stop, low)), False

    def _claim(self, messages: Longs) -> None:
        before = self.mark
        for start, stop in zip(messages[FROM].tolist(), messages[TO].tolist(), strict=True):
            if start > self.mark:
                self._pass(start)
            self.mark = max(stop, before)
        self.messages.append(messages)

    def _large(self, low: int, term: int) -> int:
        """Read a message that goes on after the window as its frame says; return where it ends, relative to the window, or 0."""
        origin, size = self.origin, self.image.size
        at = origin + term
        ends = []
        # a frame that begins before the range is only known by what it says; the message is joined with it afterwards
        before = at if origin + low == self.content.start else term - low
        if before >= FRAME:
            end = at - FRAME + 9 + int.from_bytes(self._read(at - FRAME, at - FRAME + 8), "big")
            if at < end <= min(size, at + LARGEST_MESSAGE) and self._read(end - 1, end) == b"\xff":
                ends.append(end)
        if before >= 8:
            end = at + int.from_bytes(self._read(at - 8, at - 4), "big")
            if at < end <= min(size, at + LARGEST_MESSAGE):
                ends.append(end)
        for end in ends:
            start = at - min(FRAME, term - low)
            self.large -= end - start
            if self.large <= 0:
                self.content.untried = True
                return 0
            data = self.image.read(start, end)
            count, _, _, _ = message_store.carve(data, 0, min(len(data), at - start + 1), False, self.out, LARGEST_MESSAGE)
            if count:
                self._claim(self.out[:, :1].copy() + np.array([[start]] * 4 + [[0]]))
                return self.mark - origin
        return 0


BLOCK = 1 << 20


class Joined:
    """The findings of an image, split after split. content: those so far."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.content = Content(0, 0)
        self._messages = [self.content.messages]

    def add(self, following: Content) -> None:
        """Add the findings of the next split."""
        self._frame_before(following)
        while following.start < self.content.end:
            end = self.content.end
            across = _across(following, end)
            if across and across < following.end:
                self._append(carve_range(self.image, end, across))
                end = across
            following = self._cut(following, end) if end < following.end else Content(self.content.end, self.content.end)
        self._append(following)

    def finish(self) -> Content:
        """Return the findings of the image."""
        self.content.messages = np.concatenate(self._messages, axis=1)
        return self.content

    def _frame_before(self, following: Content) -> None:
        """Carve the seam again if the first message after it has no frame, and may have one that begins before it."""
        gaps, seam = self.content.gaps, following.start
        if not following.messages.shape[1] or not gaps or not gaps[-1].stop == seam == self.content.end:
            return
        start, term = int(following.messages[FROM, 0]), int(following.messages[TERM, 0])
        if start - seam >= MARGIN or following.messages[KIND, 0] == message_store.RECORD:
            return
        last = gaps.pop()
        back = max(last.start, seam - MARGIN)
        if back > last.start:
            gaps.append(self._without_end(last, back))
        self.content.end = back
        self._append(carve_range(self.image, back, term + 1))

    def _without_end(self, gap: Gap, stop: int) -> Gap:
        """Return the part of a gap before a position."""
        if gap.low < 0 or gap.low >= stop:
            return Gap(gap.start, -1, -1, stop)
        at = stop
        while gap.high > stop and at > gap.low:
            start = max(gap.low, at - BLOCK)
            low, high = nonzero_bounds(self.image.read(start, at))
            if low >= 0:
                return Gap(gap.start, gap.low, start + high, stop)
            at = start
        return Gap(gap.start, gap.low, gap.high, stop)

    def _append(self, following: Content) -> None:
        content = self.content
        runs, gaps, unreadable = following.runs, following.gaps, following.unreadable
        if content.runs and runs:
            last, first = content.runs[-1], runs[0]
            entry = self._is_entry(last, first)
            if entry:  # its header is not a gap, on either side of the seam
                gaps = [gap for gap in gaps if gap.stop > first.start]
                while content.gaps and content.gaps[-1].start >= last.end:
                    content.gaps.pop()
            if entry or (last.filled == last.end == first.start and last.base == first.base):
                positions = np.concatenate([last.positions, first.positions])
                content.runs[-1] = Run(last.base, positions, first.end, first.filled, first.unproved)
                runs = runs[1:]
        if content.gaps and gaps and content.gaps[-1].stop == gaps[0].start:
            one, two = content.gaps[-1], gaps[0]
            content.gaps[-1] = Gap(one.start, two.low if one.low < 0 else one.low, one.high if two.low < 0 else two.high, two.stop)
            gaps = gaps[1:]
        if content.unreadable and unreadable and content.unreadable[-1][1] == unreadable[0][0]:
            content.unreadable[-1] = (content.unreadable[-1][0], unreadable[0][1])
            unreadable = unreadable[1:]
        content.runs.extend(runs)
        content.gaps.extend(gaps)
        content.unreadable.extend(unreadable)
        content.untried |= following.untried
        self._messages.append(following.messages)
        content.end = max(content.end, following.end)

    def _is_entry(self, last: Run, first: Run) -> bool:
        """Return whether a run goes on after the seam with an entry of DLedger, whose header was not known as such."""
        if last.base != first.base or last.filled != last.end or first.start - last.end != frames.ENTRY_HEADER_SIZE:
            return False
        stop = int(first.positions[1]) if len(first.positions) > 1 else first.end
        return frames.entry_status_at(self.image.read(last.end, stop), 0, last.base + last.end) == frames.VALID

    def _cut(self, content: Content, at: int) -> Content:
        """Return the findings at and after a position, which nothing in it spans."""
        runs = []
        for run in content.runs:
            if run.start >= at:
                runs.append(run)
            elif run.end > at:
                runs.append(replace(run, positions=run.positions[np.searchsorted(run.positions, at) :]))
        gaps = [self._shorten(gap, at) for gap in content.gaps if gap.stop > at]
        unreadable = [(max(low, at), high) for low, high in content.unreadable if high > at]
        messages = content.messages[:, content.messages[FROM] >= at]
        return Content(at, content.end, runs, messages, gaps, unreadable, content.untried)

    def _shorten(self, gap: Gap, at: int) -> Gap:
        if gap.start >= at:
            return gap
        low = gap.low
        position = at
        while 0 <= low < at:
            if position >= gap.high:
                return Gap(at, -1, -1, gap.stop)
            part = self.image.read(position, min(position + BLOCK, gap.high))
            first, _ = nonzero_bounds(part)
            low = position + first if first >= 0 else low
            position += max(1, len(part))
        return Gap(at, low, gap.high if low >= 0 else -1, gap.stop)


def _across(content: Content, at: int) -> int:
    """Return the end of a record or message that spans a position, 0 if there is none."""
    for run in content.runs:
        if run.start < at < run.filled:
            row = int(np.searchsorted(run.positions, at))
            if at < run.end and row < len(run.positions) and run.positions[row] == at:
                return 0
            following = run.positions[row:]
            return int(following[0]) if len(following) else run.filled
    spanning = (content.messages[FROM] < at) & (content.messages[TO] > at)
    return int(content.messages[TO][spanning].max()) if spanning.any() else 0
