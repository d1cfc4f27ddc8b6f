"""Timer wheel and timer log of 5.x: when messages with an arbitrary delay are due.

A waiting message is an ordinary record of topic `rmq_sys_wheel_timer`. The log has a unit for each of them, in the order of arrival;
the wheel has a slot for each second, which leads to the newest unit of that second. All integers are big-endian.

    timerwheel    32 bytes a slot; the number of a slot is the second modulo the number of slots

         0  i64  second
         8  i64  position of the first unit in the timer log
        16  i64  position of the last unit
        24  i32  units less twice those that recall a message
        28  i32  0

    timerlog/<20 digits>    52 bytes a unit; the end of a file that holds no whole unit is not used

         0  i32  52
         4  i64  position of the unit before in the same slot, -1 for none
        12  i32  bits: 1 always, 2 rolled (due after the wheel's range: put again at the end of it), 4 recalls a message
        16  i64  time at which it was put, ms
        24  i32  delay until its slot is reached, ms
        28  i64  physical offset of the record
        36  i32  size of the record
        40  i32  Java hash of the real topic
        44  i64  0

    config/timercheck

         0  i64  time up to which slots were read, ms: what was due until then has been delivered
         8  i64  position up to which the timer log was flushed
        16  i64  queue offset in rmq_sys_wheel_timer up to which records are in the wheel

    >>> raw = bytes.fromhex("00000034 ffffffffffffffff 00000001 000001a2011a0fc8 000003e8 0000000000000000 0000019a 155b6a15") + bytes(8)
    >>> unit = np.frombuffer(raw, UNIT)[0]
    >>> int(unit["previous"]), int(unit["delay"]), int(unit["size"])
    (-1, 1000, 410)

Format: docs/formats/rocketmq.md, section 12.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.rocketmq.format import mapped_file_queue
from mqstore.rocketmq.format.mapped_file_queue import FileQueue

WHEEL, LOG, CHECK = "timerwheel", "timerlog", "config/timercheck"
SLOT = np.dtype([("second", ">i8"), ("first", ">i8"), ("last", ">i8"), ("count", ">i4"), ("magic", ">i4")])
UNIT = np.dtype(
    [
        ("unit_size", ">i4"),
        ("previous", ">i8"),
        ("bits", ">i4"),
        ("written", ">i8"),
        ("delay", ">i4"),
        ("physical_offset", ">i8"),
        ("size", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
SLOT_SIZE, UNIT_SIZE = 32, 52
ROLLED, RECALLS = 2, 4
_CHUNK = 1 << 20
_CHECK = struct.Struct(">qqq")


class TimerCheck(NamedTuple):
    """read_until: ms. queue_offset: of rmq_sys_wheel_timer."""

    read_until: int
    flushed: int
    queue_offset: int


class Slot(NamedTuple):
    """A slot that has been used. number: its place in the wheel. first, last: positions in the timer log. units: as counted."""

    number: int
    second: int
    first: int
    last: int
    units: int


def read_check(directory: ReadOnlyDirectory) -> TimerCheck | None:
    """Read how far a broker has come; None without the file, or if it is too short."""
    try:
        raw = directory.read(CHECK, 4096)
    except CannotOpenError:
        return None
    return TimerCheck(*_CHECK.unpack(raw[: _CHECK.size])) if raw is not None and len(raw) >= _CHECK.size else None


def slots(directory: ReadOnlyDirectory) -> Iterator[Slot]:
    """Yield the slots that have been used, in the order of the wheel. Holes of the file are not read."""
    if not directory.exists(WHEEL) or directory.is_directory(WHEEL):
        return
    mapped = directory.map(WHEEL)
    for low, high in mapped.data_extents():
        low, high = low + -low % SLOT_SIZE, min(high + -high % SLOT_SIZE, mapped.size // SLOT_SIZE * SLOT_SIZE)
        for start in range(low, high, _CHUNK):
            stop = min(start + _CHUNK, high)
            rows = mapped.load(start, stop)[start:stop].view(SLOT)
            for k in np.flatnonzero(rows["second"] != 0).tolist():
                row = rows[k]
                number = start // SLOT_SIZE + k
                yield Slot(number, int(row["second"]), int(row["first"]), int(row["last"]), int(row["count"]))
        mapped.drop(low, high - low)


class TimerLog:
    """The units of the timer log, by position. Never raises for damaged bytes."""

    def __init__(self, directory: ReadOnlyDirectory) -> None:
        self._directory = directory

    @cached_property
    def queue(self) -> FileQueue:
        """The files."""
        return mapped_file_queue.load(self._directory, LOG)

    @property
    def start(self) -> int:
        """Position of the first byte."""
        return self.queue.files[0].start if self.queue.files else 0

    @cached_property
    def end(self) -> int:
        """Position after the last unit."""
        for file in reversed(self.queue.files):
            mapped = self._directory.map(file.relative)
            whole = file.size // UNIT_SIZE * UNIT_SIZE
            last = mapped.last_nonzero(0, whole)
            if last >= 0:
                return file.start + last // UNIT_SIZE * UNIT_SIZE + UNIT_SIZE
        return self.start

    def blocks(self) -> Iterator[tuple[int, NDArray[np.void]]]:
        """Yield (position of the first unit, units) in the order of the log; units of another size are left out by the caller."""
        for file in self.queue.files:
            mapped = self._directory.map(file.relative)
            stop = min(file.size // UNIT_SIZE * UNIT_SIZE, self.end - file.start)
            step = _CHUNK // UNIT_SIZE * UNIT_SIZE
            for low in range(0, max(0, stop), step):
                high = min(stop, low + step)
                yield file.start + low, mapped.load(low, high)[low:high].view(UNIT)
                mapped.drop(low, high - low)

    def unit(self, position: int) -> np.void | None:
        """Return the unit at a position; None if there is none."""
        file = self.queue.file_at(position)
        if file is None or position >= self.end:
            return None
        at = position - file.start
        if at % UNIT_SIZE or at + UNIT_SIZE > file.size:
            return None
        unit: np.void = self._directory.mapped(file.relative).load(at, at + UNIT_SIZE)[at : at + UNIT_SIZE].view(UNIT)[0]
        return unit if int(unit["unit_size"]) == UNIT_SIZE else None
