"""Parts of reports for a person: the verdict of `verify`, damage by kind and one by one, shares of a total."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from mqstore.cli.common.diagnoses import show_advice
from mqstore.cli.common.grid import Column
from mqstore.cli.common.output import Format, Output
from mqstore.table.formatting import count, size

if TYPE_CHECKING:
    from mqstore.findings import Damage, Report


class _Ran(Protocol):
    """A report of a job."""

    @property
    def runs_on(self) -> str: ...

    @property
    def why(self) -> str: ...


DAMAGE_COLUMNS = ("file", "offset", "length", "kind", "detail", "messages")
SHOWN = 20
OF_GROUP = 3  # findings of one kind in one file that are printed one by one


def show_verification(out: Output, report: Report, print_report: Callable[[], None]) -> int:
    """Show the report of `verify` in the format asked for, and return the exit status. print_report: prints it for a person."""
    if out.format is Format.JSON:
        out.document(report.as_dict())
    elif not out.is_text:
        out.records(DAMAGE_COLUMNS, (item.as_dict() for item in report.damage))
    else:
        out.line(report.headline, style="bold red" if not report.ok else "bold yellow" if report.cautions else "bold green")
        print_report()
        if not report.damage:
            out.line()
        if report.advice is not None:
            show_advice(out, report.advice)
    return 0 if report.ok else 1


def print_damage(out: Output, damage: Iterable[Damage]) -> None:
    """Print damage by kind, then the first findings of each kind and file, with the number of the others; with -v all of them."""
    found = list(damage)
    kinds = Counter(str(item.kind) for item in found)
    affected: Counter[str] = Counter()
    lengths: Counter[str] = Counter()
    for item in found:
        affected[str(item.kind)] += item.messages
        lengths[str(item.kind)] += item.length
    out.table(
        (Column("kind"), Column("findings", right=True), Column("bytes", right=True), Column("messages", right=True)),
        ([kind, f"{number:,}", f"{lengths[kind]:,}", f"{affected[kind]:,}"] for kind, number in kinds.most_common()),
    )
    out.line()
    groups = [[item] for item in found] if out.settings.verbose else group_damage(found)
    shown = out.first(groups, SHOWN)
    for group in shown:
        listed = group if len(group) <= OF_GROUP + 1 else group[:OF_GROUP]
        for item in listed:
            out.line(f"{item.file} at {item.offset}, {count(item.length, 'byte')}: {item.kind}", style="bold")
            out.line(f"    {item.detail}.")
        if len(group) > len(listed):
            out.line(f"    {count(len(group) - len(listed), 'further finding')} of kind {group[0].kind} in this file.", style="dim")
    out.more_rows(len(groups) - len(shown))


def group_damage(found: Iterable[Damage]) -> list[list[Damage]]:
    """Return the findings by file and kind, in the order of the first of each."""
    groups: dict[tuple[str, str], list[Damage]] = {}
    for item in found:
        groups.setdefault((item.file, str(item.kind)), []).append(item)
    return list(groups.values())


def ran_on(report: _Ran) -> str:
    """Return where a job ran, and why there."""
    startup = ", not counting its start" if "Spark" in report.runs_on else ""
    return f"{report.runs_on}{startup}: {report.why}"


def print_shares(out: Output, parts: Iterable[tuple[str, int]], total: int) -> None:
    """Print names with bytes, and their share of a total."""
    out.table(
        (Column("what", flexible=True), Column("bytes", right=True, drop=1), Column("", right=True), Column("share", right=True)),
        ([name, f"{amount:,}", size(amount), f"{100 * amount / total:.1f} %" if total else "-"] for name, amount in parts),
    )
