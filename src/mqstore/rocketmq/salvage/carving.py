"""Carving: the whole records in a file of any name and content, such as a log file, a piece of one, or the image of a disk.

A record states its own position in the log. So a run of records that follow each other is a *stretch*: the difference between its position
in the log and its position in the file is the same for all of them.

    image    |....|rec|rec|rec|.......|rec|rec|....|rec|..
    log           4096              0               812        where each stretch belongs

Outside of stretches, records are found by their magic, and accepted if their lengths fit and the position they state is possible. A copy
of a record in the body of another one is skipped with it, unless that one is damaged.

Bytes that are neither records nor zeros belonged to something else, or to a record that is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes, MappedFile
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.commit_log import Records, size_at
from mqstore.rocketmq.format.mapped_file_queue import QueueFile

__all__ = ["Gap", "Piece", "Stretch", "carve"]

CHUNK = 1 << 16  # records walked at once
BLOCK = 16 << 20  # bytes examined at once for zeros
BLANK_HEAD = 8  # size and magic of the record that fills the end of a log file

Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """A file to carve. name: its path relative to the source."""

    name: str
    mapped: MappedFile


@dataclass(frozen=True, slots=True)
class Stretch:
    """Records that follow each other in a piece, from `start` to `end`. base: position in the log of the first byte of the piece."""

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

    def records(self, chosen: Longs) -> Records:
        """Return records of the stretch by their positions."""
        file = QueueFile(self.piece.name, self.base, self.piece.mapped.size, self.piece.name)
        return Records(file, self.piece.mapped.data, chosen)


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes that are not records, without the zeros around them."""

    piece: str
    offset: int
    length: int


def carve(piece: Piece) -> Iterator[Stretch | Gap]:
    """Yield the stretches of a piece and what lies between them, in the order of its bytes."""
    data, size = piece.mapped.data, piece.mapped.size
    at = 0
    while at < size:
        found = frames.carve(data, at, size)
        yield from _gap(piece, at, size if found < 0 else found)
        if found < 0:
            return
        stretch = _stretch(piece, data, found)
        yield stretch
        at = _after_filler(data, stretch.end)


def _stretch(piece: Piece, data: Bytes, start: int) -> Stretch:
    base = int.from_bytes(data[start + 28 : start + 36].tobytes(), "big") - start
    runs: list[Longs] = []
    at = start
    while True:
        positions = np.empty(CHUNK, np.int64)
        count, at, status = frames.walk(data, at, len(data), base, True, positions)
        runs.append(positions[:count].copy())
        if status != frames.FULL:
            break
    joined = np.concatenate(runs)
    last = int(joined[-1])
    return Stretch(piece, base, joined, last + size_at(data, last))


def _after_filler(data: Bytes, at: int) -> int:
    """Return the position after the head of the record that fills a log file, if one begins here."""
    return at + BLANK_HEAD if data[at + 4 : at + 8].tobytes() == b"\xcb\xd4\x31\x94" else at


def _gap(piece: Piece, start: int, stop: int) -> Iterator[Gap]:
    """Yield the range between two positions without the zeros at its ends, unless there are only zeros."""
    low = high = -1
    for at in range(start, stop, BLOCK):
        block = piece.mapped.data[at : min(at + BLOCK, stop)]
        if not block.any():
            continue
        used = block != 0
        if low < 0:
            low = at + int(used.argmax())
        high = at + len(block) - int(used[::-1].argmax())
    if low >= 0:
        yield Gap(piece.name, low, high - low)
