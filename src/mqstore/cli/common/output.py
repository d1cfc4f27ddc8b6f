"""The output of a command: text for a person, or JSON, JSON lines or CSV for a program.

Machine formats go to standard output, as UTF-8, with nothing else in between. What cannot be encoded (lone surrogates from file names
that are not UTF-8) is escaped, which in JSON is equivalent. Notes and progress go to standard error.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from mqstore.cli.common.arguments import CommonOptions, Format
from mqstore.cli.common.grid import Grid
from mqstore.cli.common.progress import BYTES, Report, progress_bar
from mqstore.errors import UsageError
from mqstore.report.parts import (
    SHOWN,
    Column,
    Fact,
    Findings,
    Headline,
    NextStep,
    Others,
    Part,
    Sentence,
    Sentences,
    Table,
    Tone,
    distinct,
)
from mqstore.table.formatting import count, display_width, no_formula, printable, printable_csv, printable_json

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

WIDE = 200  # columns of text that is not for a terminal
BUFFER = 1 << 18
FACT = 12  # columns for a name before its value
STYLES = {
    Tone.PLAIN: None, Tone.GOOD: "green", Tone.CAUTION: "yellow", Tone.BAD: "red", Tone.FAINT: "dim", Tone.STRONG: "bold",
}  # fmt: skip

T = TypeVar("T")


def _plain(title: str) -> str:
    return " ".join(title.lower().replace("(utc)", "").replace("_", " ").split())


class ChosenColumns:
    """The columns of `--columns`, by the titles of a table or the names of its fields, in any case. A table without any is left out.

    >>> chosen = ChosenColumns(("topic", "stored", "queue_id"))
    >>> chosen.of(["topic", "queue id", "size", "stored (UTC)"])
    [0, 3, 1]
    """

    def __init__(self, selected: Sequence[str]) -> None:
        self.selected = tuple(selected)
        self._found: set[str] = set()
        self._offered: dict[str, None] = {}

    def of(self, titles: Sequence[str]) -> list[int]:
        """Return the positions of the wanted columns in a table with these titles, in the order in which they are wanted."""
        self._offered |= dict.fromkeys(title for title in titles if title)
        places = {_plain(title): k for k, title in enumerate(titles)}
        names = [name for name in self.selected if _plain(name) in places]
        self._found |= set(names)
        return list(dict.fromkeys(places[_plain(name)] for name in names))

    def check(self) -> None:
        """Raise UsageError if a wanted column was in none of the tables so far."""
        unknown = [name for name in self.selected if name not in self._found]
        if unknown and self._offered:
            names = ", ".join(printable(name) for name in unknown)
            raise UsageError(f"--columns: there is no column {names}; the columns are {', '.join(self._offered)}")


class Output:
    """Prints a command's results, notes and progress."""

    def __init__(self, settings: CommonOptions) -> None:
        self.settings = settings
        self.format = settings.format
        self._columns = ChosenColumns(settings.columns)

    @property
    def is_text(self) -> bool:
        """Whether the output is for a person."""
        return self.format is Format.TEXT

    # where it goes

    @cached_property
    def console(self) -> Console:
        """Standard output for a person."""
        return self._console(sys.stdout)

    @cached_property
    def errors(self) -> Console:
        """Standard error for a person."""
        return self._console(sys.stderr)

    def _console(self, stream: Any) -> Console:
        from rich.console import Console

        bounded = _bounded(stream)
        return Console(
            file=stream,
            color_system="auto" if self.settings.colour and not os.environ.get("NO_COLOR") else None,
            highlight=False,
            emoji=False,
            width=None if bounded else WIDE,
            soft_wrap=not bounded,
        )

    @property
    def bounded(self) -> bool:
        """Whether lines must fit a width: that of the terminal, or COLUMNS."""
        return _bounded(sys.stdout)

    @property
    def coloured(self) -> bool:
        """Whether escape codes may be written to standard output."""
        return self.console.is_terminal and self.console.color_system is not None

    def write(self, text: str) -> None:
        """Write text to standard output as UTF-8, whatever the locale. Only on a terminal is what is for a program made safe for it."""
        if not self.is_text and sys.stdout.isatty():
            text = printable_csv(text) if self.format is Format.CSV else printable_json(text)
        raw = text.encode("utf-8", "backslashreplace")
        stream = getattr(sys.stdout, "buffer", None)
        if stream is None:
            sys.stdout.write(raw.decode("utf-8"))
            return
        sys.stdout.flush()
        stream.write(raw)

    # documents

    def document(self, value: Mapping[str, Any]) -> None:
        """Print one JSON object: indented for json, on one line for jsonl."""
        self.write(json.dumps(value, ensure_ascii=False, indent=2 if self.format is Format.JSON else None) + "\n")

    def pairs(self, value: Mapping[str, Any]) -> None:
        """Print a document as CSV: a name and a value per line, names of nested values joined by dots."""
        self.records(("name", "value"), ({"name": name, "value": part} for name, part in _flat(value)))

    def report(self, value: Mapping[str, Any]) -> None:
        """Print a report in the machine format asked for: one JSON object, or `pairs` for CSV."""
        if self.format is Format.CSV:
            self.pairs(value)
        else:
            self.document(value)

    def show(self, parts: Iterable[Part]) -> None:
        """Print the parts of a report for a person, each as it is made."""
        for part in parts:
            if isinstance(part, Headline):
                self.line(part.text, f"bold {STYLES[part.tone] or ''}".rstrip(), whole=part.whole)
            elif isinstance(part, Sentence):
                self.line(part.text, STYLES[part.tone])
            elif isinstance(part, Fact):
                self.fact(part.name, part.value, STYLES[part.tone])
            elif isinstance(part, Table):
                self.show_table(part)
            elif isinstance(part, Sentences):
                self._show_sentences(part)
            elif isinstance(part, Findings):
                self._show_findings(part)
            elif isinstance(part, Others):
                self.more_rows(part.number)
            elif isinstance(part, NextStep):
                self.next_step(part.sentence, *part.command_lines)
            else:
                self.line()

    def show_table(self, part: Table) -> int:
        """Print a table for a person, and how many rows are left out. Returns the number of those that are printed."""
        limit = None if self.settings.verbose else part.shown
        rows = iter(part.rows)
        grid = self.grid(part.columns, indent=part.indent)
        grid.add(distinct(part.columns, islice(rows, limit)))
        grid.close()
        self.more_rows(sum(1 for _ in rows))
        return grid.rows

    def _show_sentences(self, part: Sentences) -> None:
        shown = part.texts if part.shown is None else self.first(part.texts, part.shown)
        for text in shown:
            self.line(f"  {text}")
        if others := len(part.texts) - len(shown):
            self.line(f"  … {others:,} more; -v lists all", "dim")

    def _show_findings(self, part: Findings) -> None:
        """Print damage by kind, then the first findings of each kind and file, and the first files of each kind; with -v all."""
        self.show_table(part.kinds)
        self.line()
        groups = [[item] for item in part.damage] if self.settings.verbose else part.groups
        hidden = len(part.damage)
        for group in self.first(groups, SHOWN):
            listed, others = part.of_group(group)
            hidden -= len(listed)
            for item in listed:
                self.line(f"{item.file} at {item.offset}, {count(item.length, 'byte')}: {item.kind}", "bold")
                self.line(f"    {item.detail.removesuffix('.')}.")
            if others:
                self.line(f"{'    ' if listed else ''}{others}", "dim")
        if hidden:
            self.line(f"-v lists all {count(len(part.damage), 'finding')}.", "dim")

    def next_step(self, sentence: str, *command_lines: str) -> None:
        """Print what to do next, with command lines that can be copied."""
        self.line(f"Next: {sentence}")
        for command_line in command_lines:
            self.line(f"      {command_line}", whole=True)

    def line(self, text: str = "", style: str | None = None, *, whole: bool = False) -> None:
        """Print a line of plain text for a person, without markup and with control characters escaped.

        whole: do not wrap it, because it is meant to be copied.
        """
        width = None if whole or not self.bounded else self.console.width
        shown = "\n".join(printable(part) if width is None else _wrapped(printable(part), width) for part in text.split("\n"))
        self.console.print(shown, markup=False, style=style, soft_wrap=True)

    def fact(self, name: str, value: str, style: str | None = None) -> None:
        """Print a name and its value; a long value is wrapped beside the name."""
        room = self.console.width - FACT
        lines = textwrap.wrap(printable(value), room, break_on_hyphens=False) if self.bounded and room > FACT else [printable(value)]
        for number, line in enumerate(lines or [""]):
            self.console.print(f"{'' if number else name:<{FACT}}{line}", markup=False, style=style, soft_wrap=True)

    # rows

    def check_columns(self) -> None:
        """Raise UsageError if --columns names a column that no table of the command had."""
        self._columns.check()

    def records(self, names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> int:
        """Print rows of named values in a machine format. Returns their number."""
        if self._columns.selected:
            names = [names[k] for k in self._columns.of(names)]
            self._columns.check()
            rows = ({name: row[name] for name in names} for row in rows)
        if self.format is Format.CSV:
            return self._stream_csv(names, ([[_cell(row[name]) for name in names] for row in rows],))
        return self._stream_json([json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in (one,)] for one in rows)

    def batches(self, names: Sequence[str], batches: Iterable[pa.RecordBatch], body: str) -> int:
        """Print rows of the message table in a machine format, batch by batch. Returns their number."""
        from mqstore.table.text import csv_rows, json_rows

        if self._columns.selected:
            names = [names[k] for k in self._columns.of(names)]
            self._columns.check()
            batches = (batch.select(names) for batch in batches)
        if self.format is Format.CSV:
            return self._stream_csv(names, (csv_rows(batch, body) for batch in batches))
        return self._stream_json(json_rows(batch, body) for batch in batches)

    def _stream_json(self, groups: Iterable[Sequence[str]]) -> int:
        array = self.format is Format.JSON
        between = ",\n" if array else "\n"
        total = 0
        waiting: list[str] = []
        held = 0
        self.write("[\n" if array else "")
        for group in groups:
            for row in group:
                waiting.append(row)
                held += len(row)
                if held >= BUFFER:
                    self._put(waiting, between, first=total == 0, array=array)
                    total += len(waiting)
                    waiting.clear()
                    held = 0
        self._put(waiting, between, first=total == 0, array=array)
        total += len(waiting)
        if array:
            self.write("\n]\n" if total else "]\n")
        return total

    def _put(self, rows: Sequence[str], between: str, *, first: bool, array: bool) -> None:
        if not rows:
            return
        text = between.join(rows)
        self.write(text + "\n" if not array else text if first else between + text)

    def _stream_csv(self, names: Sequence[str], groups: Iterable[Iterable[Sequence[Any]]]) -> int:
        sheet = io.StringIO(newline="")
        writer = csv.writer(sheet, lineterminator="\n")
        writer.writerow(names)
        total = 0
        for group in groups:
            for row in group:
                writer.writerow([no_formula(cell) for cell in row] if self.settings.escape_formulas else row)
                total += 1
                if sheet.tell() >= BUFFER:
                    self._drain(sheet)
        self._drain(sheet)
        return total

    def _drain(self, sheet: io.StringIO) -> None:
        self.write(sheet.getvalue())
        sheet.seek(0)
        sheet.truncate()

    def grid(self, columns: Sequence[Column], *, indent: int = 0) -> Grid:
        """Begin a table for a person; add rows to it, then close it."""
        margin = " " * indent

        def put(text: str) -> None:
            self.write("".join(margin + line for line in text.splitlines(keepends=True)) if margin else text)

        chosen = self._columns.of([column.title for column in columns]) if self._columns.selected else None
        width = self.console.width - indent if self.bounded and not self.settings.wide else None
        return Grid(columns, put, chosen=chosen, width=width, colour=self.coloured)

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[str]], *, indent: int = 0) -> int:
        """Print a whole table for a person. Returns the number of rows."""
        return self.show_table(Table(columns, rows, indent=indent))

    def first(self, rows: Sequence[T], limit: int) -> Sequence[T]:
        """Return the first rows for a person; all of them with -v."""
        return rows if self.settings.verbose else rows[:limit]

    def more_rows(self, number: int) -> None:
        """Print how many rows were left out, and how to get them, if any."""
        if number:
            self.line(f"… {number:,} more; -v lists all, -o jsonl prints one a line", style="dim")

    # standard error

    def note(self, sentence: str, *, hint: bool = False) -> None:
        """Print a note about the results. hint: not worth a line in a program's log."""
        if self.settings.quiet:
            return
        if sys.stderr.isatty() or self.settings.verbose or (self.is_text and not hint):
            self.errors.print(printable(sentence), markup=False, style="yellow")

    def notes(self, sentences: Iterable[str]) -> None:
        """Print findings as notes: the first of them, and the number of the others."""
        rest = iter(sentences)
        for sentence in islice(rest, SHOWN):
            self.note(sentence)
        if others := sum(1 for _ in rest):
            self.note(f"and {others} further findings; `mqstore verify` lists them all")

    def log(self, sentence: str) -> None:
        """Print a detail that only `-v` shows."""
        if self.settings.verbose and not self.settings.quiet:
            self.errors.print(printable(sentence), markup=False, style="dim")

    @contextmanager
    def progress(self, title: str, unit: str = BYTES) -> Iterator[Report]:
        """Show a progress bar while the block runs. unit: of what is counted, in the plural."""
        quiet = self.settings.quiet
        visible = sys.stderr.isatty() and not quiet
        with progress_bar(title, unit=unit, lines=self.settings.progress and not quiet, console=self.errors if visible else None) as report:
            yield report


def _wrapped(text: str, width: int) -> str:
    """Break text between its words, a path that is longer than a line after a `/`, and a name only if it is itself longer than a line.

    >>> _wrapped("take-out, store/commitlog/00000000000000000000 at 0", 24).split("\\n")
    ['take-out, store/', 'commitlog/', '00000000000000000000 at', '0']
    """
    lines = [""]
    for word in re.findall(r"\s*\S+", text):
        for part in [word] if display_width(word.lstrip()) <= width else re.findall(r"\s*[^\s/]*/?", word):
            shown = part
            while shown:
                if display_width(lines[-1]) + display_width(shown) <= width:
                    lines[-1] += shown
                    break
                if lines[-1]:
                    lines.append("")
                    shown = shown.lstrip()
                    continue
                lines[-1], shown = shown[:width], shown[width:]
                while display_width(lines[-1]) > width:
                    lines[-1], shown = lines[-1][:-1], lines[-1][-1] + shown
    return "\n".join(lines)


def _bounded(stream: Any) -> bool:
    return bool(stream.isatty()) or os.environ.get("COLUMNS", "").isdecimal()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | tuple) else value


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, part in value.items():
        if isinstance(part, Mapping):
            yield from _flat(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", part
