"""Parts as HTML, with the class names of the console's style sheet. All text is escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import chain, islice

from mqstore.report.parts import Fact, Findings, Gap, Headline, NextStep, Others, Part, Sentence, Sentences, Table, Tone
from mqstore.table.formatting import count, printable

ROWS = 1_000  # of a table; its `shown` are those of its first page, where scripts run
SHARE = "share"  # the title of a column whose cells, such as `12.5 %`, are drawn as well
Address = Callable[[str, Mapping[str, str]], str | None]

_MARKS = {Tone.GOOD: "good", Tone.CAUTION: "warn", Tone.BAD: "bad"}
_CLASSES = {Tone.CAUTION: "warning", Tone.BAD: "warning", Tone.FAINT: "quiet"}


def _nowhere(_kind: str, _row: Mapping[str, str]) -> str | None:
    return None


def render(parts: Iterable[Part], address: Address = _nowhere) -> str:
    """Return parts as HTML. address: returns the address of what a column leads to, of a row by titles; None if there is no page for it."""
    pieces: list[str] = []
    facts: list[Fact] = []
    for part in chain(parts, (Gap(),)):
        if isinstance(part, Fact):
            facts.append(part)
            continue
        if facts:
            pieces.append(_facts(facts))
            facts.clear()
        pieces.append(_rendered(part, address))
    return "\n".join(filter(None, pieces))


def table(part: Table, address: Address = _nowhere) -> str:
    """Return a table in a region that scrolls, and how many rows are not shown."""
    if part.fold:
        return _folded(part, address)
    rows = iter(part.rows)
    shown = list(rows if part.shown is None else islice(rows, ROWS))
    others = sum(1 for _ in rows)
    numbers = [' class="n"' if column.right else ' class="code"' if column.path else "" for column in part.columns]
    titles = "".join(
        f'<th scope="col"{kind if column.right else ""}>{_text(column.title[:1].upper() + column.title[1:])}</th>'
        + ('<th scope="col"><span class="hidden">Bar</span></th>' if column.title == SHARE else "")
        for column, kind in zip(part.columns, numbers, strict=True)
    )
    lines = []
    for row in shown:
        named = {column.title: cell for column, cell in zip(part.columns, row, strict=True)}
        cells = []
        for column, kind, cell in zip(part.columns, numbers, row, strict=True):
            text = _text(cell)
            if column.leads_to and (target := address(column.leads_to, named)) is not None:
                text = f'<a href="{escape(target)}">{text}</a>'
            cells.append(f"<td{kind}>{text if column.tone is None or not cell else _marked(text, column.tone(cell))}</td>")
            if column.title == SHARE:
                cells.append(f"<td>{_bar(cell)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    title = _text(part.title)
    body = "\n".join(lines)
    more = f"\n{_others(others)}" if others else ""
    page = "" if part.shown is None else f' data-page="{part.shown}"'
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{title}"><table{page}><caption class="hidden">{title}</caption>'
        f"<thead><tr>{titles}</tr></thead><tbody>\n{body}\n</tbody></table></div>{more}"
    )


def _folded(part: Table, address: Address) -> str:
    """Return a table for each value of the column that it is folded by; the sums of its messages and bytes are seen before it is opened."""
    titles = [column.title for column in part.columns]
    rows = list(part.rows)
    groups: dict[str, list[Sequence[str]]] = {}
    for row in rows[:ROWS]:
        groups.setdefault(row[titles.index(part.fold)], []).append(row)
    pieces = []
    for name, folded in groups.items():
        sums = [f"{sum(int(row[titles.index(each)].replace(',', '')) for row in folded):,} {each}" for each in ("messages", "bytes")]
        inner = table(replace(part, rows=folded, fold="", title=f"{part.title}: {name}"), address)
        says = ", ".join((count(len(folded), "row"), *sums))
        pieces.append(f'<details class="kind"><summary>{_text(name)}: {says}</summary>\n{inner}\n</details>')
    return "\n".join((*pieces, *([_others(len(rows) - ROWS)] if len(rows) > ROWS else [])))


def _titled(part: Table, address: Address) -> str:
    title = f"<h2>{_text(part.title)}</h2>\n" if part.title else ""
    return title + table(part, address)


def prose(sentence: str) -> str:
    """Return a sentence with what is between backticks as code."""
    return "".join(f"<code>{_text(part)}</code>" if number % 2 else _text(part) for number, part in enumerate(sentence.split("`")))


def _bar(share: str) -> str:
    width = share.removesuffix(" %") if share.endswith(" %") else "0"
    return f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect width="{width}" height="10"/></svg>'


def _rendered(part: Part, address: Address) -> str:
    if isinstance(part, Headline):
        return f'<p class="sentence">{_marked(prose(part.text), part.tone, "mark long")}</p>'
    if isinstance(part, Sentence):
        kind = _CLASSES.get(part.tone)
        return f"<p>{prose(part.text)}</p>" if kind is None else f'<p class="{kind}">{prose(part.text)}</p>'
    if isinstance(part, Table):
        return _titled(part, address)
    if isinstance(part, Sentences):
        shown = part.texts[: part.shown]
        others = len(part.texts) - len(shown)
        items = "".join(f"<li>{prose(text)}</li>" for text in shown) + (f'<li class="quiet">… {others:,} more</li>' if others else "")
        return f"<ul>{items}</ul>" if items else ""
    if isinstance(part, Others):
        return _others(part.number) if part.number else ""
    if isinstance(part, Findings):
        return _titled(part.kinds, address)
    if isinstance(part, NextStep):
        commands = "".join(f'<pre tabindex="0" aria-label="Command" class="wrap">{_text(line)}</pre>' for line in part.command_lines)
        return f"<p>Next: {prose(part.sentence)}</p>{commands}"
    return ""


def _others(number: int) -> str:
    return f'<p class="quiet">… {number:,} more</p>'


def _facts(facts: Iterable[Fact]) -> str:
    pairs = []
    for fact in facts:
        value = _marked(prose(fact.value), fact.tone)
        pairs.append(f"<dt>{_text(fact.name[:1].upper() + fact.name[1:])}</dt><dd>{value}</dd>" if fact.name else f"<dd>{value}</dd>")
    return f'<dl class="facts">{"".join(pairs)}</dl>'


def _marked(html: str, tone: Tone, kind: str = "mark") -> str:
    mark = _MARKS.get(tone)
    return html if mark is None else f'<span class="{kind} {mark}">{html}</span>'


def _text(text: str) -> str:
    return escape(printable(text))
