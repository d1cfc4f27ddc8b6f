"""Carving of a range of an image: every whole message of either broker that begins in the range, and what lies between them.

The range is read in windows of WINDOW bytes; nothing depends on where a window begins. A message is whatever begins first: a record of
RocketMQ by its magic and lengths, a message of RabbitMQ by its term. What is found is passed over as a whole, so a message in the body of
another one, such as a store file that was sent as a message, is not found a second time.

    at                                       window end
    |......rec rec rec rec ..... term ....rec|
           run               gap      gap  goes on after the window: its head and its end are read, not what is between them
"""

from __future__ import annotations

import struct

import numpy as np

from mqstore.carving.findings import FROM, MESSAGE_ROWS, TO, Found, Gap, Longs, Run
from mqstore.files import Bytes
from mqstore.files.image import Image
from mqstore.kernels.rabbitmq import message_store
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.record import frame_size

WINDOW = 8 << 20
POSITIONS = 1 << 16  # records walked at once
MESSAGES = 1 << 12  # messages of RabbitMQ found at once
MARGIN = 64  # bytes before a position that may belong to a frame that begins there
HEAD = 128  # the fixed part of a record, and more
BLANK_HEAD = 8  # size and magic of the record that fills the end of a log file
BLANK_MAGIC = b"\xcb\xd4\x31\x94"
TIMED_BLANK = 16  # size of the one at the end of a segment of tiered storage, which has a time as well
EFFORT = 16  # bytes that failed attempts may take, for each byte of the range
LEAST_EFFORT = 1 << 20
LARGEST_MESSAGE = 1 << 30
AFTER = (1 << 20) + (1 << 16)  # bytes after the range that are read for messages that begin in it
FRAME = 24  # bytes before the term of a RabbitMQ record
ZEROS = bytes(1 << 20)
ENTRY_MAGIC = 1
_ENTRY = struct.Struct(">ii16xq12xi")  # the header of an entry of DLedger: magic, size, position, size of its body


def carve_range(image: Image, start: int, stop: int) -> Found:
    """Find what begins in [start, stop). A message that begins before start is not known here: `joining` corrects what that changes."""
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
        self.found = Found(start, start)
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
        self.parts: list[Longs] = []

    def run(self) -> Found:
        at = self.found.start
        while at < self.stop:
            at = self._load(at)
            if len(self.data):
                at = self._window(at)
        self._end_run()
        self.found.end = max(self.mark, self.found.start)
        if self.messages:
            self.found.messages = np.concatenate(self.messages, axis=1)
        return self.found

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
            self.found.unreadable.append((at, after))
            self.mark = after
            return after
        return at

    def _window(self, at: int) -> int:
        """Carve the window; return where the next one begins."""
        origin, data, more = self.origin, self.data, self.more
        limit = len(data)
        stop = min(self.stop - origin, limit)
        here = at - origin
        record_from = message_from = here
        record = -1  # where the next record starts; stop if there is none
        cut = False  # the record may go on after the window
        if self.base is not None:
            after = self._walk(here, stop)
            if after is None:
                return self.mark
            here = record_from = message_from = after
        while here < stop:
            if record < record_from:
                record = frames.carve(data, record_from, stop, more)
                cut = record <= -2
                record = -2 - record if cut else stop if record == -1 else record
            message_from = max(message_from, here)
            if message_from < record:
                here, message_from, slide = self._messages(message_from, record)
                if slide:
                    return self._leave(here)
                record_from = max(record_from, here)
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
            here = record_from = after
        return self._leave(max(here, min(stop, limit - MARGIN) if more else stop))

    def _leave(self, here: int) -> int:
        """Pass over what is left before the next window, which begins at a position of this one."""
        at = self.origin + here
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
        gaps = self.found.gaps
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

    def _begin_run(self, here: int) -> None:
        at = self.origin + here
        if at > self.mark:
            self._pass(at)
        self.base = int.from_bytes(self._read(at + 28, at + 36), "big") - at

    def _add(self, positions: Longs, end: int) -> None:
        self.parts.append(positions)
        self.mark = end

    def _walk(self, here: int, stop: int) -> int | None:
        """Add the records from here on to the run; return where it ends in the window, None if it goes on after the window."""
        assert self.base is not None
        origin, data = self.origin, self.data
        base = self.base + origin
        at = here
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
        here, position = at + header, self.origin + at
        left = len(self.data) - here
        if position + header >= self.stop or (left >= HEAD and int.from_bytes(self.data[here : here + 4].tobytes(), "big") <= left):
            return 0
        size = frame_size(self._read, position + header, self.base + position + header)
        if size and header:
            raw = self._read(position, position + header)
            stated = (ENTRY_MAGIC, header + size, self.base + position, size)
            return size if len(raw) == header and _ENTRY.unpack(raw) == stated else 0
        return size

    def _end_run(self) -> None:
        if self.base is not None and self.parts:
            end = self.mark
            head = self._read(end, end + TIMED_BLANK)
            if head[4:BLANK_HEAD] == BLANK_MAGIC:
                timed = len(head) == TIMED_BLANK and int.from_bytes(head[:4], "big") == TIMED_BLANK
                self.mark += TIMED_BLANK if timed else BLANK_HEAD
            self.found.runs.append(Run(self.base, np.concatenate(self.parts), end, self.mark))
        self.base = None
        self.parts = []

    # messages of RabbitMQ

    def _messages(self, here: int, stop: int) -> tuple[int, int, bool]:
        """Find messages before stop; return where to go on with records, where with messages, and whether in a new window."""
        if self.effort <= 0:
            self.found.untried = True
            return here, stop, False
        count, after, cut, self.effort = message_store.carve(self.data, here, stop, self.more, self.out, self.effort)
        if count:
            self._claim(self.out[:, :count].copy() + np.array([[self.origin]] * 4 + [[0]]))
        low = max(self.mark - self.origin, here)
        if cut:
            frame = max(low, after - FRAME)
            if after > len(self.buffer) // 2:  # what is left of the window is read once more, not more than twice as much in all
                return frame, frame, True
            end = self._large(low, after)
            return (end, end, True) if end else (low, after + 1, False)
        if self.effort <= 0:
            self.found.untried = True
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
        before = at if origin + low == self.found.start else term - low
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
                self.found.untried = True
                return 0
            data = self.image.read(start, end)
            count, _, _, _ = message_store.carve(data, 0, min(len(data), at - start + 1), False, self.out, LARGEST_MESSAGE)
            if count:
                self._claim(self.out[:, :1].copy() + np.array([[start]] * 4 + [[0]]))
                return self.mark - origin
        return 0
