"""A table for a person, printed while it grows: the first rows determine the widths, so memory stays bounded.

    physical offset  topic   queue
    ───────────────  ──────  ─────
                  0  orders      2
                277  late        0

On a terminal, text is shortened to fit the width; in a file or a pipe it is printed in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from unicodedata import east_asian_width

from mqstore.table.formatting import printable

__all__ = ["Column", "Grid", "display_width"]

GAP = "  "
SAMPLE = 400
NARROWEST = 6


@dataclass(frozen=True, slots=True)
class Column:
    """A column of text. right: numbers. flexible: may be shortened to make the table fit, at its start if it is a path.

    style: returns a cell's SGR number.
    """

    title: str
    right: bool = False
    flexible: bool = False
    style: Callable[[str], str] | None = None
    path: bool = False


def display_width(text: str) -> int:
    """Return the number of terminal columns that the text takes."""
    return len(text) if text.isascii() else sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _fit(text: str, width: int, *, path: bool = False) -> str:
    if display_width(text) <= width:
        return text
    if path:
        return _fit(text[::-1], width)[::-1]
    kept = ""
    room = width - 1
    for letter in text:
        room -= display_width(letter)
        if room < 0:
            break
        kept += letter
    return kept + "…"


class Grid:
    """Writes rows of text under their titles. width: of the terminal, None for no limit. colour: whether styles are written."""

    def __init__(
        self, columns: Sequence[Column], write: Callable[[str], None], *, width: int | None, colour: bool, limit: int = 48
    ) -> None:
        self._columns = columns
        self._write = write
        self._width = width
        self._colour = colour
        self._limit = limit
        self._waiting: list[Sequence[str]] = []
        self._widths: list[int] | None = None
        self.rows = 0

    def add(self, rows: Iterable[Sequence[str]]) -> None:
        """Add rows, each with a text per column."""
        for row in rows:
            self.rows += 1
            self._waiting.append([printable(cell) for cell in row])
            if len(self._waiting) >= SAMPLE:
                self._flush()

    def close(self) -> None:
        """Print the remaining rows. A table without rows prints nothing."""
        if self._waiting:
            self._flush()

    def _flush(self) -> None:
        lines = []
        if self._widths is None:
            self._widths = self._initial_widths()
            titles = [column.title for column in self._columns]
            lines.append(self._line(titles, lambda _: "1"))
            lines.append(self._line(["─" * width for width in self._widths], lambda _: "2"))
        lines.extend(self._line(row) for row in self._waiting)
        self._waiting.clear()
        self._write("".join(lines))

    def _initial_widths(self) -> list[int]:
        """Return widths that fit the first rows; flexible columns are narrowed, the widest first, until the table fits."""
        widths = [
            max(display_width(column.title), *(display_width(row[k]) for row in self._waiting)) for k, column in enumerate(self._columns)
        ]
        flexible = [k for k, column in enumerate(self._columns) if column.flexible]
        for k in flexible:
            widths[k] = max(display_width(self._columns[k].title), min(widths[k], self._limit)) if self._width is not None else widths[k]
        if self._width is None:
            return widths
        excess = sum(widths) + len(GAP) * (len(widths) - 1) - self._width
        while excess > 0 and flexible:
            widest = max(flexible, key=lambda k: widths[k])
            if widths[widest] <= NARROWEST:
                break
            widths[widest] -= 1
            excess -= 1
        return widths

    def _line(self, row: Sequence[str], style: Callable[[str], str] | None = None) -> str:
        widths = self._widths or []
        shown = []
        last = len(row) - 1
        for k, (text, column, width) in enumerate(zip(row, self._columns, widths, strict=True)):
            if column.flexible and self._width is not None:
                text = _fit(text, width, path=column.path)
            room = " " * max(0, width - display_width(text))
            chosen = style or column.style
            code = chosen(text) if self._colour and chosen is not None else ""
            coloured = f"\x1b[{code}m{text}\x1b[0m" if code else text
            shown.append(room + coloured if column.right else coloured if k == last else coloured + room)
        return GAP.join(shown).rstrip() + "\n"
