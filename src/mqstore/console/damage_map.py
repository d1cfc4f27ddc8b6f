"""Damage map of a file: which bytes are written and which are damaged, drawn to scale.

>>> drawn = DamageMap(1000, 800, (Extent(100, 50, "zeroed"), Extent(900, 0, "torn-record")))
>>> [(bar.x, bar.width, bar.what) for bar in drawn.bars]
[(100.0, 50.0, 'zeroed'), (900.0, 3.0, 'torn-record')]
>>> drawn.written_width
800.0
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mqstore.findings import Damage

WIDTH = 1000.0
MIN_WIDTH = 3.0  # so that a single byte is visible
MAX_BARS = 400  # bars; more could not be distinguished


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of damaged bytes. kind: of the finding."""

    at: int
    length: int
    kind: str


@dataclass(frozen=True, slots=True)
class Bar:
    """An extent drawn to scale. what: its kind, or that of the first of several."""

    x: float
    width: float
    what: str


@dataclass(frozen=True, slots=True)
class DamageMap:
    """Damage map of a file. size: bytes of the file; written: bytes before the trailing zeros; extents: ascending."""

    size: int
    written: int
    extents: tuple[Extent, ...]

    def scaled(self, amount: int) -> float:
        return round(WIDTH * min(max(amount, 0), self.size) / self.size, 2) if self.size else 0.0

    @property
    def written_width(self) -> float:
        return self.scaled(self.written)

    @property
    def bars(self) -> list[Bar]:
        """The bars to draw; extents that would touch are merged."""
        found: list[tuple[float, float, list[str]]] = []
        for each in self.extents:
            start = self.scaled(each.at)
            end = min(WIDTH, max(self.scaled(each.at + each.length), start + MIN_WIDTH))
            start = min(start, WIDTH - MIN_WIDTH)
            if found and (start <= found[-1][1] or len(found) >= MAX_BARS):
                found[-1] = (found[-1][0], max(end, found[-1][1]), [*found[-1][2][:1], f"{len(found[-1][2])}"])
            else:
                found.append((start, end, [each.kind]))
        return [Bar(start, round(end - start, 2), kinds[0] if len(kinds) == 1 else f"{kinds[0]} and more") for start, end, kinds in found]

    @property
    def damaged(self) -> int:
        """Number of bytes in extents, each counted once."""
        total, upto = 0, 0
        for each in self.extents:
            end = min(each.at + each.length, self.size)
            total += max(0, end - max(each.at, upto))
            upto = max(upto, end)
        return total

    @property
    def summary(self) -> str:
        """The map as a sentence."""
        if not self.extents:
            return f"{self.size:,} bytes, {self.written:,} of them written, no findings"
        return f"{self.size:,} bytes, {self.written:,} of them written, {len(self.extents):,} findings over {self.damaged:,} bytes"


def map_of(name: str, size: int, written: int, damage: Iterable[Damage]) -> DamageMap:
    """Return the damage map of a file from the findings of its store."""
    extents = (Extent(item.offset, item.length, str(item.kind)) for item in damage if item.file == name)
    return DamageMap(size, written, tuple(sorted(extents, key=lambda each: (each.at, each.length))))
