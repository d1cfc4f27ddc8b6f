"""A table for a person, printed while it grows: the first rows determine the widths, so memory stays bounded.

    physical offset  topic   queue
    ───────────────  ──────  ─────
                  0  orders      2
                277  late        0

In a file or a pipe everything is printed in full. On a terminal the table is made to fit, in this order: text is shortened, titles take
two lines, columns that say the least are left out, names are shortened in their middle, each row is printed as lines of title and value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from unicodedata import east_asian_width

from mqstore.table.formatting import printable

__all__ = ["Column", "Grid", "display_width"]

GAP = "  "
SAMPLE = 400
NARROWEST = 6
TEXT = 14  # text is not shortened below this before columns are left out


@dataclass(frozen=True, slots=True)
class Column:
    """A column of text. right: numbers. flexible: may be shortened to make the table fit.

    path: is shortened at its start. name: is shortened in its middle, and after columns were left out. drop: the first columns to be left
    out have the highest number, and 0 is for those that never are. style: returns a cell's SGR number.
    """

    title: str
    right: bool = False
    flexible: bool = False
    style: Callable[[str], str] | None = None
    path: bool = False
    name: bool = False
    drop: int = 0


def display_width(text: str) -> int:
    """Return the number of terminal columns that the text takes."""
    return len(text) if text.isascii() else sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _fit(text: str, width: int, column: Column) -> str:
    if display_width(text) <= width:
        return text
    if column.path:
        return "…" + _start(text[::-1], width - 1)[::-1]
    if column.name:
        end = _start(text[::-1], (width - 1) // 2)[::-1]
        return _start(text, width - 1 - display_width(end)) + "…" + end
    return _start(text, width - 1) + "…"


def _start(text: str, width: int) -> str:
    """Return as much of the start of a text as fits."""
    for length, letter in enumerate(text):
        width -= display_width(letter)
        if width < 0:
            return text[:length]
    return text


def _pieces(text: str, width: int) -> Iterator[str]:
    """Yield a text in pieces that fit a width; an empty text is one piece."""
    while True:
        piece = _start(text, width) or text[:1]
        yield piece
        text = text[len(piece) :]
        if not text:
            return


def _in_two_lines(title: str) -> tuple[str, str]:
    """Return a title of several words in two lines, the longer one as short as possible; ("", title) for one word."""
    words = title.split()
    ways = [(" ".join(words[:k]), " ".join(words[k:])) for k in range(1, len(words))]
    return min(ways, key=lambda way: max(map(display_width, way)), default=("", title))


class Grid:
    """Writes rows of text under their titles. width: of the terminal, None for no limit. colour: whether styles are written.

    chosen: the positions of the columns that are printed, in their order; None for all. Of those that are chosen none is left out.

    left_out: the titles of the columns for which there was no room.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        write: Callable[[str], None],
        *,
        width: int | None,
        colour: bool,
        limit: int = 48,
        chosen: Sequence[int] | None = None,
    ) -> None:
        self._chosen = chosen
        self._columns = columns if chosen is None else [replace(columns[k], drop=0) for k in chosen]
        self._write = write
        self._width = width
        self._colour = colour
        self._limit = limit
        self._waiting: list[Sequence[str]] = []
        self._widths: list[int] | None = None
        self._shown: list[int] = []
        self._upright = False
        self.rows = 0
        self.left_out: tuple[str, ...] = ()

    def add(self, rows: Iterable[Sequence[str]]) -> None:
        """Add rows, each with a text per column."""
        for row in rows:
            self.rows += 1
            if self._chosen is not None:
                row = [row[k] for k in self._chosen]
            self._waiting.append([printable(cell) for cell in row])
            if len(self._waiting) >= SAMPLE and self._columns:
                self._flush()
            elif not self._columns:
                self._waiting.clear()

    def close(self) -> None:
        """Print the remaining rows, and what there was no room for. A table without rows prints nothing."""
        if self._waiting and self._columns:
            self._flush()
        if self.left_out:
            text = f"not shown at this width: {', '.join(self.left_out)} (--wide)"
            self._write(f"\x1b[2m{text}\x1b[0m\n" if self._colour else f"{text}\n")

    def _flush(self) -> None:
        lines: list[str] = []
        if self._widths is None:
            lines.extend(self._head())
        for row in self._waiting:
            lines += self._block(row) if self._upright else [self._line(row)]
        self._waiting.clear()
        self._write("".join(lines))

    def _head(self) -> Iterator[str]:
        """Choose columns and widths by the first rows, and yield the lines above them."""
        titles = [("", column.title) for column in self._columns]
        self._shown = list(range(len(titles)))
        self._widths = self._natural_widths(titles)
        if self._width is not None:
            self._shorten(self._texts(), [max(TEXT, display_width(title)) for _, title in titles])
        if self._width is not None and self._excess() > 0:
            titles = [
                _in_two_lines(column.title) if self._values_of(k) < self._widths[k] else ("", column.title)
                for k, column in enumerate(self._columns)
            ]
            self._widths = self._natural_widths(titles)
            self._narrow(titles)
        if self._width is not None and self._excess() > 0 and len(self._columns) > 1:
            self._upright, self.left_out = True, ()
            return
        for line in (0, 1):
            if any(titles[k][line] for k in self._shown):
                yield self._line([title[line] for title in titles], lambda _: "1")
        yield self._line(["─" * width for width in self._widths], lambda _: "2")

    def _natural_widths(self, titles: Sequence[tuple[str, str]]) -> list[int]:
        """Return the widths of the first rows and of the titles; on a terminal, flexible columns have a limit."""
        widths = []
        for k, (column, title) in enumerate(zip(self._columns, titles, strict=True)):
            least = max(map(display_width, title))
            widest = self._values_of(k)
            limited = column.flexible and self._width is not None
            widths.append(max(least, min(widest, self._limit) if limited else widest))
        return widths

    def _values_of(self, column: int) -> int:
        """Return the width of the widest value of a column in the first rows."""
        return max(display_width(row[column]) for row in self._waiting)

    def _excess(self) -> int:
        """Return by how much the shown columns exceed the terminal."""
        widths = self._widths or []
        return sum(widths[k] for k in self._shown) + len(GAP) * (len(self._shown) - 1) - (self._width or 0)

    def _texts(self) -> list[int]:
        return [k for k, column in enumerate(self._columns) if column.flexible and not column.name]

    def _narrow(self, titles: Sequence[tuple[str, str]]) -> None:
        least = [max(NARROWEST, *map(display_width, title)) for title in titles]
        self._shorten(self._texts(), [max(TEXT, width) for width in least])
        for k in sorted(self._shown, key=lambda k: -self._columns[k].drop):
            if self._excess() <= 0 or not self._columns[k].drop:
                break
            self._shown.remove(k)
        self.left_out = tuple(column.title for k, column in enumerate(self._columns) if k not in self._shown)
        self._widths = self._natural_widths(titles)
        self._shorten(self._texts(), least)
        self._shorten([k for k, column in enumerate(self._columns) if column.flexible], [NARROWEST] * len(titles))

    def _shorten(self, columns: Sequence[int], least: Sequence[int]) -> None:
        """Narrow the widest of these columns until the table fits, none below its least width."""
        widths = self._widths or []
        while self._excess() > 0:
            wide = [k for k in columns if k in self._shown and widths[k] > least[k]]
            if not wide:
                break
            widths[max(wide, key=lambda k: widths[k])] -= 1

    def _block(self, row: Sequence[str]) -> Iterator[str]:
        """Yield a row as lines of title and value, for a terminal that is too narrow for the table."""
        margin = max(display_width(column.title) for column in self._columns) + len(GAP)
        room = max(NARROWEST, (self._width or 0) - margin)
        for column, text in zip(self._columns, row, strict=True):
            title = column.title + " " * (margin - display_width(column.title))
            code = column.style(text) if self._colour and column.style is not None and text else ""
            for number, piece in enumerate(_pieces(text, room)):
                shown = f"\x1b[{code}m{piece}\x1b[0m" if code else piece
                yield f"{' ' * margin if number else title}{shown}".rstrip() + "\n"
        yield "\n"

    def _line(self, row: Sequence[str], style: Callable[[str], str] | None = None) -> str:
        widths = self._widths or []
        cells = []
        for k in self._shown:
            column, width, text = self._columns[k], widths[k], row[k]
            if column.flexible and self._width is not None:
                text = _fit(text, width, column)
            room = " " * max(0, width - display_width(text))
            chosen = style or column.style
            code = chosen(text) if self._colour and chosen is not None and text else ""
            coloured = f"\x1b[{code}m{text}\x1b[0m" if code else text
            cells.append(room + coloured if column.right else coloured if k == self._shown[-1] else coloured + room)
        return GAP.join(cells).rstrip() + "\n"
