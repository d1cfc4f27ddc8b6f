"""Parts: what a person is shown, one after the other, in a terminal or on a page.

A report holds facts. A function of this package makes parts of them; a face renders parts and knows no report:

    verify_parts(report, seconds)   Headline, Sentence, Table, …   `Output.show` on a terminal, `html.render` on a page

A table, a list and a group of findings hold all that there is, and say how much of it is shown unless all is wanted. Rows may be an
iterator: a part is made when the part before it has been printed, so a sentence after a table can hold the sums of its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mqstore.findings import Damage
from mqstore.table.formatting import count

SHOWN = 20
OF_FINDING = 5  # files in which one finding is shown
OF_GROUP = 3  # findings of one kind in one file that are shown one by one


class Tone(StrEnum):
    """How good or bad a part is, or how much it matters."""

    PLAIN = ""
    GOOD = "good"
    CAUTION = "caution"
    BAD = "bad"
    FAINT = "faint"
    STRONG = "strong"


@dataclass(frozen=True, slots=True)
class Headline:
    """The answer in one sentence, or the title of what follows. whole: not to be wrapped, as what is meant to be copied."""

    text: str
    tone: Tone = Tone.PLAIN
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and its value; facts that follow one another belong together. name: empty for more of the same."""

    name: str
    value: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Column:
    """A column of text. right: numbers. flexible: may take several lines to make the table fit.

    path: is shortened in the middle of its directories first. drop: the first columns to be left out have the highest number, and 0 is for
    those that never are. tone: that of a cell. once: a value that equals the one above it is not repeated.
    leads_to: what a cell names, such as `topic` or `file`, where a page can link to it.
    """

    title: str
    right: bool = False
    flexible: bool = False
    tone: Callable[[str], Tone] | None = None
    path: bool = False
    drop: int = 0
    once: bool = False
    leads_to: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """A column, and the cell that a row of named values has in it."""

    column: Column
    cell: Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells. shown: how many of them, unless all are wanted; None: all, and rows may be an iterator. title: says what it lists.

    fold: the title of a column; a page shows the rows of each of its values below a line with the sums of `messages` and `bytes`.
    """

    columns: Sequence[Column]
    rows: Iterable[Sequence[str]]
    shown: int | None = None
    title: str = ""
    indent: int = 0
    fold: str = ""

    @classmethod
    def of(
        cls, fields: Sequence[Field], rows: Iterable[Mapping[str, Any]], shown: int | None = None, title: str = "", indent: int = 0
    ) -> Table:
        """Return a table of rows of named values."""
        cells: Iterable[Sequence[str]] = ([field.cell(row) for field in fields] for row in rows)
        return cls([field.column for field in fields], cells if shown is None else list(cells), shown, title, indent)


@dataclass(frozen=True, slots=True)
class Sentences:
    """A list of sentences. shown: how many of them, unless all are wanted."""

    texts: Sequence[str]
    shown: int | None = None


@dataclass(frozen=True, slots=True)
class Others:
    """How many more there are than are shown."""

    number: int


@dataclass(frozen=True, slots=True)
class Findings:
    """Damage: by kind, and one by one in groups of a file and a kind."""

    damage: Sequence[Damage]

    @property
    def kinds(self) -> Table:
        """The number of findings, bytes and messages of each kind."""
        kinds = Counter(str(item.kind) for item in self.damage)
        messages: Counter[str] = Counter()
        lengths: Counter[str] = Counter()
        for item in self.damage:
            messages[str(item.kind)] += item.messages
            lengths[str(item.kind)] += item.length
        columns = (Column("kind"), *(Column(title, right=True) for title in ("findings", "bytes", "messages")))
        rows = [[kind, f"{number:,}", f"{lengths[kind]:,}", f"{messages[kind]:,}"] for kind, number in kinds.most_common()]
        return Table(columns, rows, title="Findings by kind")

    @property
    def groups(self) -> list[list[Damage]]:
        """The findings by file and kind, in the order of the first of each; of a kind in many files, all in its further files together."""
        groups: dict[tuple[str, str], list[Damage]] = {}
        for item in self.damage:
            groups.setdefault((item.file, str(item.kind)), []).append(item)
        files = Counter(kind for _, kind in groups)
        seen: Counter[str] = Counter()
        shown: dict[tuple[str, str], list[Damage]] = {}
        for (file, kind), group in groups.items():
            seen[kind] += 1
            further = files[kind] > OF_FINDING + 1 and seen[kind] > OF_FINDING
            shown.setdefault(("" if further else file, kind), []).extend(group)
        return list(shown.values())

    @staticmethod
    def of_group(group: Sequence[Damage]) -> tuple[Sequence[Damage], str]:
        """Return the findings of a group that are shown, and a sentence on the others, empty if there are none."""
        if (files := len({item.file for item in group})) > 1:
            return (), f"{count(len(group), 'further finding')} of kind {group[0].kind} in {count(files, 'other file')}."
        listed = group if len(group) <= OF_GROUP + 1 else group[:OF_GROUP]
        others = len(group) - len(listed)
        return listed, f"{count(others, 'further finding')} of kind {group[0].kind} in this file." if others else ""


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do next, with command lines that can be copied."""

    sentence: str
    command_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gap:
    """What follows is about something else."""


Part = Headline | Sentence | Fact | Table | Sentences | Others | Findings | NextStep | Gap
Parts = Iterator[Part]


def distinct(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
    """Yield rows without the values that are not to be repeated."""
    once = [k for k, column in enumerate(columns) if column.once]
    before: Sequence[str] | None = None
    for row in rows:
        shown = list(row)
        for k in once:
            if before is not None and before[k] == row[k]:
                shown[k] = ""
        yield shown
        before = row


def verdict_tone(verdict: str) -> Tone:
    """Return the tone of a verdict of a message."""
    return _VERDICTS.get(verdict, Tone.BAD)


_VERDICTS = {
    "intact": Tone.PLAIN, "consumed": Tone.FAINT, "unindexed": Tone.CAUTION, "duplicate": Tone.CAUTION,
    "unproved": Tone.CAUTION,
}  # fmt: skip
