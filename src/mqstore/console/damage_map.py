"""The damage map of a file: which of its bytes are written, and which cannot be believed, drawn to scale.

>>> drawn = Map(1000, 800, (Stretch(100, 50, "zeroed"), Stretch(900, 0, "torn-record")))
>>> [(bar.x, bar.width, bar.what) for bar in drawn.bars]
[(100.0, 50.0, 'zeroed'), (900.0, 3.0, 'torn-record')]
>>> drawn.written_width
800.0
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mqstore.findings import Damage

__all__ = ["WIDTH", "Map", "Stretch", "map_of"]

WIDTH = 1000.0
NARROWEST = 3.0  # so that a single byte is seen, too
MOST = 400  # bars; what is closer than that cannot be told apart


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes that cannot be believed. kind: as verify calls it."""

    at: int
    length: int
    kind: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch to scale. what: its kind, or how many stretches are drawn as one."""

    x: float
    width: float
    what: str


@dataclass(frozen=True, slots=True)
class Map:
    """size: bytes of the file; written: up to where there is anything but zeros; stretches: ascending."""

    size: int
    written: int
    stretches: tuple[Stretch, ...]

    def _scaled(self, amount: int) -> float:
        return round(WIDTH * min(max(amount, 0), self.size) / self.size, 2) if self.size else 0.0

    @property
    def written_width(self) -> float:
        return self._scaled(self.written)

    @property
    def bars(self) -> list[Bar]:
        """What is to be drawn: stretches that would touch are one bar."""
        found: list[tuple[float, float, list[str]]] = []
        for each in self.stretches:
            start = self._scaled(each.at)
            end = min(WIDTH, max(self._scaled(each.at + each.length), start + NARROWEST))
            start = min(start, WIDTH - NARROWEST)
            if found and (start <= found[-1][1] or len(found) >= MOST):
                found[-1] = (found[-1][0], max(end, found[-1][1]), [*found[-1][2][:1], f"{len(found[-1][2])}"])
            else:
                found.append((start, end, [each.kind]))
        return [Bar(start, round(end - start, 2), kinds[0] if len(kinds) == 1 else f"{kinds[0]} and more") for start, end, kinds in found]

    @property
    def damaged(self) -> int:
        """Bytes in stretches, each counted once."""
        total, upto = 0, 0
        for each in self.stretches:
            end = min(each.at + each.length, self.size)
            total += max(0, end - max(each.at, upto))
            upto = max(upto, end)
        return total

    @property
    def told(self) -> str:
        """The map in words."""
        if not self.stretches:
            return f"{self.size:,} bytes, {self.written:,} of them written, no finding"
        return f"{self.size:,} bytes, {self.written:,} of them written, {len(self.stretches):,} findings over {self.damaged:,} bytes"


def map_of(name: str, size: int, written: int, damage: Iterable[Damage]) -> Map:
    """The map of a file from what was found in the store."""
    stretches = (Stretch(item.offset, item.length, str(item.kind)) for item in damage if item.file == name)
    return Map(size, written, tuple(sorted(stretches, key=lambda each: (each.at, each.length))))
