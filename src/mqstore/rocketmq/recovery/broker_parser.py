"""The broker's own reading of a record, which believes less and more than this package does elsewhere.

At load and while it dispatches, a broker parses record after record and stops at the first one it cannot take. It checks
the magic, the lengths and, at load, the CRC of the body; it never compares a record's physical offset with the place where
the record stands, and it trips over things that say nothing about the bytes, such as a delay level that is no number.

    what stands there                       4.9.3                        5.3.3
    version 2 record                        stops                        taken
    size field beyond the end of the file   memory for it is asked for   stops
                                            first, which may fail
    lengths that do not add up              stops; while dispatching it goes on where it has read to
    BLANK record                            the next file, whatever      stops if its size leads
                                            its size                     behind the file

    >>> import numpy as np
    >>> from mqstore.rocketmq.format.record import Record, encode
    >>> log = np.frombuffer(encode(Record("T", b"x")) + encode(Record("T", b"y")) + bytes(8), np.uint8)
    >>> [part.tolist() if isinstance(part, np.ndarray) else part for part in RecordParser("4.9.3").runs(log, 0)]
    [[0, 93], ParseStop(position=186, blank=False, size=-1, behind=194)]

Format: docs/formats/rocketmq.md, section 6.3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import RefusedError
from mqstore.files import Bytes
from mqstore.kernels.common.crc32 import crc32, crc_of_spans
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.dispatch.dispatcher import SCHEDULE_TOPIC
from mqstore.rocketmq.format.java_text import decode_utf8
from mqstore.rocketmq.format.record import BORN_HOST_IPV6, CRC_PROPERTY_SIZE, STORE_HOST_IPV6, decode_properties

__all__ = ["LARGEST_ARRAY", "ParseStop", "RecordParser", "java_integer"]

Longs = NDArray[np.int64]

LARGEST_ARRAY = 640 << 20  # what a heap of 1 GiB still has in one piece
SECTOR = 512  # bytes that a disk writes whole or not at all
ROOM = 32768  # records that a run holds at the most
FIRST = 256  # records of the first run, which tells how long they are
STRETCH = 32 << 20  # bytes that a run is to have

_SCHEDULE = np.frombuffer(SCHEDULE_TOPIC.encode(), np.uint8)
_INT = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class ParseStop:
    """Where a run of records ends. blank: an end-of-file record. size: what the broker takes the bad record's size to be, -1 for unknown.

    behind: the position up to which the broker has read.
    """

    position: int
    blank: bool
    size: int
    behind: int


def java_integer(text: str, bits: int) -> bool:
    """Whether Java would read the text as a signed integer of so many bits."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or not all(character.isdecimal() for character in digits):
        return False
    return -(1 << (bits - 1)) <= int(text) < 1 << (bits - 1)


class RecordParser:
    """Parses records as a broker of a version does.

    check_crc: body CRCs are checked, as at load unless checkCRCOnRecover is off. property_crc: the `__CRC32#` property instead
    (forceVerifyPropCRC). largest_array: bytes of memory that the broker can get in one piece. strict: a record of which some
    sectors never reached the disk is not taken either, though a broker takes the zeros in its topic or properties.
    """

    def __init__(
        self,
        version: str,
        *,
        check_crc: bool = True,
        property_crc: bool = False,
        largest_array: int = LARGEST_ARRAY,
        strict: bool = False,
    ) -> None:
        self._is_v5 = version != "4.9.3"
        self._check_crc = check_crc and not property_crc
        self._property_crc = check_crc and property_crc
        self._largest_array = largest_array
        self._strict = strict

    def runs(self, data: Bytes, start: int) -> Iterator[Longs | ParseStop]:
        """Positions of the records that the broker takes, from start on, and last why it stops. It can read up to the end of data."""
        positions = np.empty(ROOM, np.int64)
        room = FIRST
        status = frames.FULL
        at = start
        while status == frames.FULL:
            begun = at
            count, at, status = frames.walk(data, at, len(data), 0, False, positions[:room])
            room = min(ROOM, max(1, count * STRETCH // max(1, at - begun)))
            taken = self._taken(data, positions[:count])
            if taken:
                yield positions[:taken].copy()
            if taken < count:
                bad = int(positions[taken])
                yield ParseStop(bad, False, -1, bad)
                return
        yield self._stop(data, at)

    def _taken(self, data: Bytes, positions: Longs) -> int:
        """How many leading records with sound frames the broker takes."""
        if not len(positions):
            return 0
        fields = np.empty((frames.FIELD_COUNT, len(positions)), np.int64)
        frames.fields(data, positions, fields)
        good = np.ones(len(positions), np.bool_)
        if not self._is_v5:
            good &= data[positions + 7] == frames.MAGIC_V1 & 0xFF
        if self._check_crc:
            lengths = fields[frames.BODY_LENGTH]
            good &= (crc_of_spans(data, fields[frames.BODY_START], lengths) == fields[frames.BODY_CRC]) | (lengths == 0)
        for k in self._suspects(data, positions, fields).tolist():
            good[k] &= self._reads(data, fields[:, k], int(positions[k]))
        if self._strict:
            for k in self._across_sectors(data, positions, fields).tolist():
                good[k] &= not self._torn(data, fields[:, k], int(positions[k]))
        return len(positions) if good.all() else int(np.argmin(good))

    def _suspects(self, data: Bytes, positions: Longs, fields: Longs) -> Longs:
        """Records whose properties the broker may trip over."""
        if self._property_crc:
            return np.arange(len(positions))
        found = np.flatnonzero(fields[frames.TOPIC_LENGTH] == len(_SCHEDULE))
        if len(found):
            spans = fields[frames.TOPIC_START, found][:, None] + np.arange(len(_SCHEDULE))
            found = found[(data[spans] == _SCHEDULE).all(axis=1)]
        if self._is_v5:
            starts, lengths = fields[frames.PROPERTIES_START], np.maximum(fields[frames.PROPERTIES_LENGTH], 0)
            text = np.empty(int(lengths.sum()), np.uint8)
            frames.gather(data, starts, lengths, np.empty(len(starts) + 1, np.int32), text)
            if text.tobytes().find(b"INNER_") >= 0:
                return np.arange(len(positions))
        return found

    def _across_sectors(self, data: Bytes, positions: Longs, fields: Longs) -> Longs:
        """Records whose topic and properties lie in several sectors and may hold zeros as a torn one does."""
        starts, ends = fields[frames.TOPIC_START], positions + fields[frames.SIZE]
        across = starts // SECTOR != (ends - 1) // SECTOR
        return np.flatnonzero(across & ((data[ends - 1] == 0) | (ends - starts > SECTOR)))

    def _torn(self, data: Bytes, fields: Longs, position: int) -> bool:
        """Whether a whole sector's part of the topic or the properties is zeros."""
        parts = (
            (int(fields[frames.TOPIC_START]), int(fields[frames.TOPIC_LENGTH])),
            (int(fields[frames.PROPERTIES_START]), max(0, int(fields[frames.PROPERTIES_LENGTH]))),
        )
        first = parts[0][0] // SECTOR * SECTOR + SECTOR
        for start, length in parts:
            for low in range(first, start + length, SECTOR):
                begin, stop = max(low, start), min(low + SECTOR, start + length)
                if begin < stop and not data[begin:stop].any():
                    return True
        return False

    def _reads(self, data: Bytes, fields: Longs, position: int) -> bool:
        """Whether the numbers and the CRC in the properties of a record can be read."""
        start = int(fields[frames.PROPERTIES_START])
        properties = decode_properties(data[start : start + int(fields[frames.PROPERTIES_LENGTH])].tobytes())
        if self._property_crc:
            digits = properties.get("__CRC32#")
            expected = 0
            for digit in reversed(digits or ""):
                expected = expected * 10 + ord(digit) - ord("0")
            expected = (expected + (1 << 31)) % (1 << 32) - (1 << 31)
            end = position + int(fields[frames.SIZE]) - CRC_PROPERTY_SIZE
            if digits is None or expected < 0 or crc32(data[position:end]) & 0x7FFFFFFF != expected:
                return False
        base, count = properties.get("INNER_BASE"), properties.get("INNER_NUM")
        if self._is_v5 and base is not None and count is not None and not (java_integer(base, 64) and java_integer(count, 16)):
            return False
        start = int(fields[frames.TOPIC_START])
        topic = data[start : start + int(fields[frames.TOPIC_LENGTH])].tobytes()
        delay = properties.get("DELAY")
        return delay is None or decode_utf8(topic) != SCHEDULE_TOPIC or java_integer(delay, 32)

    def _stop(self, data: Bytes, at: int) -> ParseStop:
        """What the broker makes of the bytes at a position where no record with a sound frame stands."""
        left = len(data) - at
        if left < 8:
            return ParseStop(at, False, -1, len(data))
        size, magic = struct.unpack(">ii", data[at : at + 8].tobytes())
        if self._is_v5 and left < size:
            return ParseStop(at, False, -1, at + 4)
        if magic == frames.MAGIC_BLANK:
            return ParseStop(at, True, 0, at + 8)
        if magic != frames.MAGIC_V1 and not (self._is_v5 and magic == frames.MAGIC_V2):
            return ParseStop(at, False, -1, at + 8)
        if size > self._largest_array:
            raise RefusedError(
                f"a 4.9.3 broker does not come up on this store: the record at byte {at} of a log file claims {size} bytes, and the "
                f"broker asks for that much memory at once before it looks further (more than {self._largest_array} bytes are assumed "
                "not to be there); look at it with --view disk"
            )
        behind = self._read(data, at, size, 1 if magic == frames.MAGIC_V1 else 2)
        return ParseStop(at, False, -1, at + 8) if behind is None else ParseStop(at, False, size, behind)

    def _read(self, data: Bytes, at: int, size: int, topic_width: int) -> int | None:
        """The position behind a record whose lengths do not add up, read field by field; None where a field cannot be read at all.

        The broker reads into an array of TOTALSIZE bytes: a field that does not fit into it is an error as well.
        """
        view = data.data
        try:
            sys_flag = _INT.unpack_from(view, at + 36)[0]
            hosts = [20 if sys_flag & bit else 8 for bit in (BORN_HOST_IPV6, STORE_HOST_IPV6)]
            if size < max(hosts):
                return None
            place = at + 68 + sum(hosts)
            place += 4 + max(0, _INT.unpack_from(view, place)[0])
            length = int.from_bytes(view[place : place + topic_width], "big", signed=True)
            if place + topic_width > len(data) or not 0 <= length <= size:
                return None
            place += topic_width + length
            length = max(0, struct.unpack_from(">h", view, place)[0])
            place += 2 + length
        except struct.error:
            return None
        return place if length <= size and place <= len(data) else None
