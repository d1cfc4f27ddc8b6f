"""A table for a person, printed while it grows: the first rows determine the widths, so memory stays bounded.

    physical offset  topic   queue
    ───────────────  ──────  ─────
                  0  orders      2
                277  late        0

In a file or a pipe everything is printed in full. On a terminal the table is made to fit without cutting a word: titles take two lines,
paths are shortened in the middle of their directories, flexible text takes several lines, and columns that say the least are left out
where that saves lines. Where even that is not enough, each row is printed as lines of title and value.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count

from mqstore.report.parts import Column, Tone
from mqstore.table.formatting import display_width, printable

GAP = "  "
SAMPLE = 400
PLANNED = 100  # rows by which columns and widths are chosen where not all fits
NARROWEST = 6
WORD = 16  # text is not made narrower than its words, up to this
TEXT = 12  # text is not made narrower than this
SPARED = 0.9  # a column is left out if that saves a tenth of the lines
_BREAK = re.compile(r"[-_./:,;|%=@&+]")  # text without a blank is broken after these


_SGR = {Tone.GOOD: "32", Tone.CAUTION: "33", Tone.BAD: "31", Tone.FAINT: "2", Tone.STRONG: "1", Tone.PLAIN: ""}


def _start(text: str, width: int) -> str:
    """Return as much of the start of a text as fits."""
    for length, letter in enumerate(text):
        width -= display_width(letter)
        if width < 0:
            return text[:length]
    return text


def _fold(text: str, width: int) -> list[str]:
    """Return a text in lines that fit a width, broken at a blank, else after a separator, else anywhere."""
    lines = []
    while display_width(text) > width:
        piece = _start(text, width) or text[:1]
        end = len(piece)
        if text[end] != " ":
            blank = piece.rfind(" ")
            marks = [match.end() for match in _BREAK.finditer(piece)]
            mark = max((piece.rfind("/") + 1, *marks[-1:]), key=lambda place: (2 * place >= end, piece[:place].endswith("/")))
            end = blank if blank > 0 else mark if 2 * mark >= end else end
        lines.append(text[:end])
        text = text[end:].removeprefix(" ")
    return [*lines, text]


def _short_path(path: str, width: int, last: int) -> str:
    """Return a path without directories from its middle, so that it fits a width. last: how many names at its end stay."""
    names = path.split("/")
    if display_width(path) <= width or len(names) < last + 2:
        return path
    for number in range(len(names) - 1, last, -1):
        for start in range(min(number // 2, number - last), 0, -1):
            short = "/".join((*names[:start], "…", *names[len(names) - number + start :]))
            if display_width(short) <= width:
                return short
    return "/".join(("…", *names[-last:]))


def _last_names(paths: Iterable[str]) -> int:
    """Return how many names at their ends keep these paths apart; at least two."""
    different = {tuple(path.split("/")) for path in paths}
    most = max(map(len, different), default=2)
    return next((last for last in range(2, most) if len({names[-last:] for names in different}) == len(different)), max(2, most))


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
        chosen: Sequence[int] | None = None,
    ) -> None:
        self._chosen = chosen
        self._columns = columns if chosen is None else [replace(columns[k], drop=0) for k in chosen]
        self._write = write
        self._width = width
        self._colour = colour
        self._waiting: list[Sequence[str]] = []
        self._widths: list[int] | None = None
        self._shown: list[int] = []
        self._last_names: dict[int, int] = {}
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
            text = f"not shown at this width: {', '.join(self.left_out)} (--wide; --columns chooses)"
            for line in textwrap.wrap(text, max(NARROWEST, self._width or 0), break_on_hyphens=False):
                self._write(f"\x1b[2m{line}\x1b[0m\n" if self._colour else f"{line}\n")

    def _flush(self) -> None:
        lines: list[str] = []
        if self._widths is None:
            lines.extend(self._head())
        for row in self._waiting:
            lines += self._block(row) if self._upright else self._lines(row)
        self._waiting.clear()
        self._write("".join(lines))

    def _head(self) -> Iterator[str]:
        """Choose columns and widths by the first rows, and yield the lines above them."""
        titles = [("", column.title) for column in self._columns]
        self._shown = list(range(len(titles)))
        self._widths = self._natural_widths(titles)
        if self._width is not None and self._excess() > 0:
            titles = [
                _in_two_lines(column.title) if column.flexible or self._values_of(k) < self._widths[k] else ("", column.title)
                for k, column in enumerate(self._columns)
            ]
            if not self._narrow(titles):
                self._upright, self.left_out = len(self._columns) > 1, ()
                if self._upright:
                    return
            titles = self._titles_that_fit(titles)
        for line in (0, 1):
            if any(titles[k][line] for k in self._shown):
                yield from self._lines([title[line] for title in titles], "1")
        yield from self._lines(["─" * width for width in self._widths], "2")

    def _titles_that_fit(self, titles: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the titles in one line each if there is room for all of them, else where the column is wide enough."""
        widths = self._widths or []
        wider = {k: display_width(self._columns[k].title) for k in self._shown}
        if sum(max(0, width - widths[k]) for k, width in wider.items()) <= -self._excess():
            for k, width in wider.items():
                widths[k] = max(widths[k], width)
        return [
            title if display_width(column.title) > width else ("", column.title)
            for title, column, width in zip(titles, self._columns, widths, strict=True)
        ]

    def _natural_widths(self, titles: Sequence[tuple[str, str]]) -> list[int]:
        """Return the widths of the first rows and of the titles."""
        return [max(self._values_of(k), *map(display_width, title)) for k, title in enumerate(titles)]

    def _values_of(self, column: int) -> int:
        """Return the width of the widest value of a column in the first rows."""
        return max(display_width(row[column]) for row in self._waiting)

    def _excess(self) -> int:
        """Return by how much the shown columns exceed the terminal."""
        widths = self._widths or []
        return sum(widths[k] for k in self._shown) + len(GAP) * (len(self._shown) - 1) - (self._width or 0)

    def _narrow(self, titles: Sequence[tuple[str, str]]) -> bool:
        """Choose the shown columns and their widths. Returns whether they fit, in fewer lines than one for each value."""
        natural = self._natural_widths(titles)
        self._last_names = {k: _last_names(row[k] for row in self._waiting) for k, column in enumerate(self._columns) if column.path}
        ways = []
        self._shown = list(range(len(self._columns)))
        ranks = sorted((k for k in self._shown if self._columns[k].drop), key=lambda k: -self._columns[k].drop)
        for dropped in (None, *ranks):
            if dropped is not None:
                self._shown.remove(dropped)
            self._widths = list(natural)
            folding = _Folding(self._fold_cell, self._waiting[:PLANNED], self._flexible(titles), self._widths)
            while (excess := self._excess()) > 0 and folding.narrow(excess):
                pass
            if excess <= 0:
                ways.append((folding.lines, list(self._shown), self._widths))
                if folding.lines == len(self._waiting[:PLANNED]):
                    break
        if not ways:
            return False
        fewest = min(lines for lines, _, _ in ways)
        lines, self._shown, self._widths = next(way for way in ways if way[0] * SPARED <= fewest)
        self.left_out = tuple(column.title for k, column in enumerate(self._columns) if k not in self._shown)
        return lines <= len(self._waiting[:PLANNED]) * len(self._columns)

    def _block(self, row: Sequence[str]) -> Iterator[str]:
        """Yield a row as lines of title and value, for a terminal that is too narrow for the table."""
        margin = max(display_width(column.title) for column in self._columns) + len(GAP)
        room = max(NARROWEST, (self._width or 0) - margin)
        for column, text in zip(self._columns, row, strict=True):
            title = column.title + " " * (margin - display_width(column.title))
            code = _SGR[column.tone(text)] if self._colour and column.tone is not None and text else ""
            for number, piece in enumerate(_fold(text, room)):
                shown = f"\x1b[{code}m{piece}\x1b[0m" if code else piece
                yield f"{' ' * margin if number else title}{shown}".rstrip() + "\n"
        yield "\n"

    def _lines(self, row: Sequence[str], style: str = "") -> Iterator[str]:
        """Yield the lines of a row: as many as its longest cell takes."""
        widths = self._widths or []
        needed = sum(max(widths[k], display_width(row[k])) + len(GAP) for k in self._shown) - len(GAP)
        whole = self._width is not None and needed <= self._width  # wider than the first rows, and there is room
        folded = {k: [row[k]] if whole else self._fold_cell(k, row[k], widths[k]) for k in self._shown}
        for number in range(max(map(len, folded.values()))):
            cells = []
            for k, pieces in folded.items():
                column, text = self._columns[k], pieces[number] if number < len(pieces) else ""
                room = " " * max(0, widths[k] - display_width(text))
                code = ""
                if self._colour and text:
                    code = style or (_SGR[column.tone(row[k])] if column.tone is not None else "")
                coloured = f"\x1b[{code}m{text}\x1b[0m" if code else text
                cells.append(room + coloured if column.right else coloured + room)
            yield GAP.join(cells).rstrip() + "\n"

    def _fold_cell(self, column: int, text: str, width: int) -> list[str]:
        """Return the lines of a cell."""
        if self._width is None or not self._columns[column].flexible:
            return [text]
        last = self._last_names.get(column)
        return _fold(text if last is None else _short_path(text, width, last), width)

    def _flexible(self, titles: Sequence[tuple[str, str]]) -> dict[int, int]:
        """Return the least widths of the flexible columns that are shown."""
        least = {}
        for k in self._shown:
            if self._columns[k].flexible:
                words = max(display_width(word) for row in self._waiting for word in row[k].split(" "))
                narrow = min(words if words <= WORD else TEXT, self._values_of(k))
                least[k] = max(NARROWEST, narrow, *map(display_width, titles[k]))
        return least


class _Folding:
    """Makes flexible columns narrower, each time the one that costs the fewest lines for the room it gives. Changes the widths."""

    def __init__(
        self,
        fold: Callable[[int, str, int], list[str]],
        rows: Sequence[Sequence[str]],
        least: dict[int, int],
        widths: list[int],
    ) -> None:
        self._fold = fold
        self._rows = rows
        self._widths = widths
        self._least = least
        self._lines = {k: [1] * len(rows) for k in least}

    @property
    def lines(self) -> int:
        """The number of lines that the rows take."""
        return sum(max(each) for each in zip([1] * len(self._rows), *self._lines.values(), strict=True))

    def narrow(self, excess: int) -> bool:
        """Make one column narrower, by at most the excess. Returns whether that was possible."""
        best: tuple[float, int, int, list[int]] | None = None
        for k, least in self._least.items():
            if self._widths[k] <= least:
                continue
            width = max(
                least, self._widths[k] - excess, next(fitting for part in count(2) if (fitting := self._part(k, part)) < self._widths[k])
            )
            lines = [len(self._fold(k, row[k], width)) for row in self._rows]
            others = [1] * len(self._rows), *(each for other, each in self._lines.items() if other != k)
            cost = sum(max(each) for each in zip(lines, *others, strict=True)) - self.lines
            rank = cost / (self._widths[k] - width)
            if best is None or rank < best[0]:
                best = rank, k, width, lines
        if best is None:
            return False
        _, k, self._widths[k], self._lines[k] = best
        return True

    def _part(self, column: int, part: int) -> int:
        """Return a width in which the longest text takes about this many lines."""
        longest = max(display_width(row[column]) for row in self._rows)
        return -(-longest // part) + (1 if part < 4 else 0)
