"""Assembly: stretches put in order by their own positions in the log, copies marked, and logs that do not belong together kept apart.

Two stretches that claim the same positions hold the same records, or they are of different logs: of two brokers, or of a log that was
deleted and began again. The first stretch that claims a position belongs to log 0; a stretch that contradicts log 0 belongs to log 1,
and so on. A record that is at the same position in the same log, byte for byte, is a duplicate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mqstore.rocketmq.format.commit_log import size_at
from mqstore.rocketmq.salvage.carving import Stretch

Mask = NDArray[np.bool_]

MOST_COMPARED = 64  # stretches that one is compared with, in each log, and logs that it is compared with
IDENTITY = 48  # size, magic, checksum, queue, offsets, flags and time of birth: equal in two copies of one record


@dataclass(frozen=True, slots=True)
class PlacedStretch:
    """A stretch in its place. log: number of the log; duplicate: which of its records are further copies."""

    stretch: Stretch
    log: int
    duplicate: Mask


@dataclass(slots=True)
class _Log:
    """The stretches of one log so far, in order. reach: the highest physical offset that they claim; longest: bytes of the longest."""

    placed: list[PlacedStretch] = field(default_factory=list)
    reach: int = 0
    longest: int = 0

    def add(self, placed: PlacedStretch) -> None:
        self.placed.append(placed)
        self.reach = max(self.reach, placed.stretch.high)
        self.longest = max(self.longest, placed.stretch.high - placed.stretch.low)


def assemble(stretches: Sequence[Stretch]) -> Iterator[PlacedStretch]:
    """Yield the stretches log by log, each in the order of the log."""
    logs: list[_Log] = []
    for stretch in sorted(stretches, key=lambda each: (each.low, -len(each.positions))):
        _place(stretch, logs)
    for log in logs:
        yield from log.placed


def _place(stretch: Stretch, logs: list[_Log]) -> None:
    for number, log in enumerate(logs[:MOST_COMPARED]):
        copies = _copies(stretch, log)
        stretch.piece.image.close()
        if copies is not None:
            log.add(PlacedStretch(stretch, number, copies))
            return
    logs.append(_Log())
    logs[-1].add(PlacedStretch(stretch, len(logs) - 1, np.zeros(len(stretch.positions), np.bool_)))


def _copies(stretch: Stretch, log: _Log) -> Mask | None:
    """Return which records the log has already, byte for byte; None if the stretch contradicts it."""
    copies = np.zeros(len(stretch.positions), np.bool_)
    if stretch.low >= log.reach:
        return copies
    physical = stretch.positions + stretch.base
    compared = 0
    for placed in reversed(log.placed):
        other = placed.stretch
        if other.low + log.longest <= stretch.low:
            break
        if other.high <= stretch.low:
            continue
        compared += 1
        if compared > MOST_COMPARED:
            break
        theirs = other.positions + other.base
        inside = np.flatnonzero(physical < other.high)
        where = np.searchsorted(theirs, physical[inside])
        for k, at in zip(inside.tolist(), where.tolist(), strict=True):
            if at >= len(theirs) or theirs[at] != physical[k]:
                return None
            same = _compare(stretch, int(stretch.positions[k]), other, int(other.positions[at]))
            if same is None:
                return None
            copies[k] |= same
        other.piece.image.close()
        if copies.all():  # equal to what agrees with the log: it agrees, too
            break
    return copies


def _compare(one: Stretch, at: int, other: Stretch, place: int) -> bool | None:
    """Return whether two records are equal; False if only one of them is damaged; None if they are different messages."""
    first, second = one.read(at, at + IDENTITY), other.read(place, place + IDENTITY)
    if not np.array_equal(first, second):
        return None
    size = size_at(first, 0)
    return bool(np.array_equal(one.read(at, at + size), other.read(place, place + size)))
