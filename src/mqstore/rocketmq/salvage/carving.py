"""Stretches: records of a log that follow each other in a file of any name and content, such as a piece of a log or the image of a disk.

A record states its own position in the log. So a run of records that follow each other is a *stretch*: the difference between its position
in the log and its position in the file is the same for all of them.

    image    |....|rec|rec|rec|.......|rec|rec|....|rec|..
    log           4096              0               812        where each stretch belongs

`mqstore.carving` finds them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.files import Bytes
from mqstore.files.image import Image
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.format.mapped_file_queue import QueueFile

Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """A file to carve. name: its path relative to the source."""

    name: str
    image: Image


@dataclass(frozen=True, slots=True)
class Stretch:
    """Records that follow each other in a piece. base: position in the log of the first byte of the piece; end: after the last record."""

    piece: Piece
    base: int
    positions: Longs
    end: int

    @property
    def start(self) -> int:
        return int(self.positions[0])

    @property
    def low(self) -> int:
        """Physical offset of the first record."""
        return self.base + self.start

    @property
    def high(self) -> int:
        """Physical offset after the last record."""
        return self.base + self.end

    def end_of(self, number: int) -> int:
        """Return the position after a record, or after what else may follow it before the next one."""
        return int(self.positions[number + 1]) if number + 1 < len(self.positions) else self.end

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes of the piece. Raises CannotOpenError if they could be read while carving and cannot be read any more."""
        data = self.piece.image.read(start, stop)
        if len(data) < stop - start:
            raise self._changed(start + len(data))
        return data

    def records(self, first: int, last: int) -> Records:
        """Return the records from number first up to last, read into memory. Raises CannotOpenError if they changed meanwhile."""
        start = int(self.positions[first])
        data = self.read(start, self.end_of(last - 1))
        positions = np.ascontiguousarray(self.positions[first:last]) - start
        base = self.base + start
        walked = np.empty(last - first, np.int64)
        count, _, _ = frames.walk(data, 0, len(data), base, True, walked)
        if count < len(positions):  # entries of DLedger, or not the bytes that were there
            for position in positions[count:].tolist():
                if frames.status_at(data, position, base, True) != frames.VALID:
                    raise self._changed(start + position)
        file = QueueFile(self.piece.name, base, len(data), self.piece.name)
        return Records(file, data, positions)

    def _changed(self, at: int) -> CannotOpenError:
        return CannotOpenError(
            f"{self.piece.image.path} has changed since it was searched, or cannot be read any more at byte {at}; salvage a copy of it"
        )
