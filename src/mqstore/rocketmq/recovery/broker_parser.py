"""The broker's own parsing of records, which is both stricter and laxer than the rest of this package.

At load and during dispatch, a broker parses record after record and stops at the first one it cannot accept. It checks
the magic, the lengths and, at load, the CRC of the body. It never compares a record's physical offset with the record's
position, and it fails on values unrelated to the integrity of the bytes, such as a delay level that is not a number.

    bytes found                             4.9.3                        5.3.3
    version 2 record                        stops                        accepted
    size field beyond the end of the file   allocates that much memory   stops
                                            first, which may fail
    lengths that do not add up              stops; dispatch goes on from where it has read to
    BLANK record                            goes on with the next        stops if its size leads
                                            file, whatever its size      past the file

    >>> import numpy as np
    >>> from mqstore.rocketmq.format.record import Record, encode
    >>> log = np.frombuffer(encode(Record("T", b"x")) + encode(Record("T", b"y")) + bytes(8), np.uint8)
    >>> [part.tolist() if isinstance(part, np.ndarray) else part for part in RecordParser("4.9.3").runs(log, 0)]
    [[0, 93], ParseStop(position=186, blank=False, size=0, read_to=0)]

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
from mqstore.kernels.common.spans import copy_spans
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.java_text import decode_utf8
from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.format.record import (
    BORN_HOST_IPV6,
    CRC_PROPERTY_SIZE,
    HOST_SIZE,
    IPV6_HOST_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    STORE_HOST_IPV6,
    SYS_FLAG_AT,
    decode_properties,
)
from mqstore.rocketmq.format.system_topics import SCHEDULE_TOPIC

Longs = NDArray[np.int64]

LARGEST_ARRAY = 640 << 20  # what a heap of 1 GiB can still allocate in one piece
SECTOR = 512  # bytes that a disk writes all or not at all
ROOM = 32768  # maximum number of records in a run
FIRST = 256  # records of the first run, which shows how long they are
STRETCH = 32 << 20  # target bytes of a run

_SCHEDULE = np.frombuffer(SCHEDULE_TOPIC.encode(), np.uint8)
_INT = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class ParseStop:
    """Where and why parsing stops. blank: at an end-of-file record.

    size, read_to: of a record whose lengths do not add up, the claimed size, and the position up to which the broker has read it.
    """

    position: int
    blank: bool = False
    size: int = 0
    read_to: int = 0


def java_integer(text: str, bits: int) -> bool:
    """Return whether Java would parse the text as a signed integer of that many bits."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or not all(character.isdecimal() for character in digits):
        return False
    return -(1 << (bits - 1)) <= int(text) < 1 << (bits - 1)


class RecordParser:
    """Parses records as a broker of a version does.

    check_crc: check body CRCs, as at load unless checkCRCOnRecover is off. property_crc: check the `__CRC32#` property instead
    (forceVerifyPropCRC). strict: also reject a record some of
    whose sectors never reached the disk, although a broker accepts the zeros in its topic or properties.
    """

    def __init__(
        self,
        version: str,
        *,
        check_crc: bool = True,
        property_crc: bool = False,
        strict: bool = False,
    ) -> None:
        self._rules = version_rules(version)
        self._check_crc = check_crc and not property_crc
        self._property_crc = check_crc and property_crc
        self._strict = strict

    def runs(self, data: Bytes, start: int) -> Iterator[Longs | ParseStop]:
        """Yield positions of the records that the broker accepts, from start on, and finally the reason it stops."""
        positions = np.empty(ROOM, np.int64)
        room = FIRST
        status = frames.FULL
        at = start
        while status == frames.FULL:
            begun = at
            count, at, status = frames.walk(data, at, len(data), 0, False, positions[:room])
            room = min(ROOM, max(1, count * STRETCH // max(1, at - begun)))
            accepted = self._count_accepted(data, positions[:count])
            if accepted:
                yield positions[:accepted].copy()
            if accepted < count:
                bad = int(positions[accepted])
                yield ParseStop(bad)
                return
        yield self._stop_at(data, at)

    def _count_accepted(self, data: Bytes, positions: Longs) -> int:
        """Return how many leading records, whose frames are valid, the broker accepts."""
        fields = np.empty((frames.FIELD_COUNT, len(positions)), np.int64)
        frames.fields(data, positions, fields)
        good = np.ones(len(positions), np.bool_)
        if not self._rules.has_version_2:
            good &= data[positions + 7] == MAGIC_V1 & 0xFF
        if self._check_crc:
            lengths = fields[frames.BODY_LENGTH]
            good &= (crc_of_spans(data, fields[frames.BODY_START], lengths) == fields[frames.BODY_CRC]) | (lengths == 0)
        for k in self._to_check_singly(data, positions, fields).tolist():
            good[k] &= self._properties_accepted(data, fields[:, k], int(positions[k]))
        if self._strict:
            for k in self._across_sectors(data, positions, fields).tolist():
                good[k] &= not self._has_lost_sector(data, fields[:, k])
        return len(positions) if good.all() else int(np.argmin(good))

    def _to_check_singly(self, data: Bytes, positions: Longs, fields: Longs) -> Longs:
        """Return the records whose properties the broker may reject."""
        if self._property_crc:
            return np.arange(len(positions))
        delayed = np.flatnonzero(fields[frames.TOPIC_LENGTH] == len(_SCHEDULE))
        if len(delayed):
            spans = fields[frames.TOPIC_START, delayed][:, None] + np.arange(len(_SCHEDULE))
            delayed = delayed[(data[spans] == _SCHEDULE).all(axis=1)]
        if self._rules.parses_inner_batches:
            starts, lengths = fields[frames.PROPERTIES_START], np.maximum(fields[frames.PROPERTIES_LENGTH], 0)
            text = np.empty(int(lengths.sum()), np.uint8)
            copy_spans(data, starts, lengths, np.empty(len(starts) + 1, np.int32), text)
            if text.tobytes().find(b"INNER_") >= 0:
                return np.arange(len(positions))
        return delayed

    def _across_sectors(self, data: Bytes, positions: Longs, fields: Longs) -> Longs:
        """Return the records with topic or properties after the beginning of a sector, which may hold zeros, as in a torn record."""
        starts, ends = fields[frames.TOPIC_START], positions + fields[frames.SIZE]
        across = (starts - 1) // SECTOR != (ends - 1) // SECTOR
        return np.flatnonzero(across & ((data[ends - 1] == 0) | (ends - starts > SECTOR)))

    def _has_lost_sector(self, data: Bytes, fields: Longs) -> bool:
        """Return whether the topic or the properties are all zeros within one sector."""
        parts = (
            (int(fields[frames.TOPIC_START]), int(fields[frames.TOPIC_LENGTH])),
            (int(fields[frames.PROPERTIES_START]), max(0, int(fields[frames.PROPERTIES_LENGTH]))),
        )
        first = -(-parts[0][0] // SECTOR) * SECTOR
        for start, length in parts:
            for low in range(first, start + length, SECTOR):
                begin, stop = max(low, start), min(low + SECTOR, start + length)
                if begin < stop and not data[begin:stop].any():
                    return True
        return False

    def _properties_accepted(self, data: Bytes, fields: Longs, position: int) -> bool:
        """Return whether the broker accepts the numbers and the CRC in the properties of a record."""
        start = int(fields[frames.PROPERTIES_START])
        properties = decode_properties(data[start : start + int(fields[frames.PROPERTIES_LENGTH])].tobytes())
        if self._property_crc:
            digits = properties.get("__CRC32#")
            expected = 0
            for digit in reversed(digits or ""):
                expected = expected * 10 + ord(digit) - ord("0")
            expected = (expected + (1 << 31)) % (1 << 32) - (1 << 31)
            end = position + int(fields[frames.SIZE]) - CRC_PROPERTY_SIZE
            if digits is None or crc32(data[position:end]) & 0x7FFFFFFF != expected:
                return False
        base, count = properties.get("INNER_BASE"), properties.get("INNER_NUM")
        inner = self._rules.parses_inner_batches
        if inner and base is not None and count is not None and not (java_integer(base, 64) and java_integer(count, 16)):
            return False
        start = int(fields[frames.TOPIC_START])
        topic = data[start : start + int(fields[frames.TOPIC_LENGTH])].tobytes()
        delay = properties.get("DELAY")
        return delay is None or decode_utf8(topic) != SCHEDULE_TOPIC or java_integer(delay, 32)

    def _stop_at(self, data: Bytes, at: int) -> ParseStop:
        """Return how the broker stops at a position without a valid frame."""
        left = len(data) - at
        if left < 8:
            return ParseStop(at)
        size, magic = struct.unpack(">ii", data[at : at + 8].tobytes())
        if self._rules.compares_size_first and left < size:
            return ParseStop(at)
        if magic == MAGIC_BLANK:
            return ParseStop(at, blank=True)
        if magic != MAGIC_V1 and not (self._rules.has_version_2 and magic == MAGIC_V2):
            return ParseStop(at)
        if size > LARGEST_ARRAY:
            raise RefusedError(
                f"a 4.9.3 broker does not start on this store: the record at byte {at} of a log file claims {size} bytes, and the "
                f"broker allocates that much memory at once before it checks further (at most {LARGEST_ARRAY} bytes are assumed "
                "to be available); inspect it with --view disk"
            )
        read_to = self._end_of_misfit(data, at, size, 1 if magic == MAGIC_V1 else 2)
        return ParseStop(at) if read_to is None else ParseStop(at, False, size, read_to)

    def _end_of_misfit(self, data: Bytes, at: int, size: int, topic_width: int) -> int | None:
        """Return the position after a record whose lengths do not add up, read field by field; None if a field cannot be read.

        The broker reads into an array of TOTALSIZE bytes, so a field that does not fit into it cannot be read either.
        """
        view = data.data
        try:
            sys_flag = _INT.unpack_from(view, at + SYS_FLAG_AT)[0]
            hosts = [IPV6_HOST_SIZE if sys_flag & bit else HOST_SIZE for bit in (BORN_HOST_IPV6, STORE_HOST_IPV6)]
            if size < max(hosts):
                return None
            offset = at + 68 + sum(hosts)
            offset += 4 + max(0, _INT.unpack_from(view, offset)[0])
            length = int.from_bytes(view[offset : offset + topic_width], "big", signed=True)
            if not 0 <= length <= size:
                return None
            offset += topic_width + length
            length = max(0, struct.unpack_from(">h", view, offset)[0])
            offset += 2 + length
        except struct.error:
            return None
        return offset if length <= size and offset <= len(data) else None
