"""Parts of reports for a person: the verdict of `verify`, damage by kind and one by one, shares of a total."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from mqstore.cli.common.grid import Column
from mqstore.cli.common.output import Format, Output
from mqstore.table.formatting import count, size

if TYPE_CHECKING:
    from mqstore.findings import Damage, Report

__all__ = ["print_damage", "print_shares", "show_verification"]

DAMAGE_COLUMNS = ("file", "offset", "length", "kind", "detail", "messages")
SHOWN = 20
PARTLY = "No damage was found; not everything could be checked."


def show_verification(out: Output, report: Report, print_report: Callable[[], None]) -> int:
    """Show the report of `verify` in the format asked for, and return the exit status. print_report: prints it for a person."""
    if out.format is Format.JSON:
        out.document(report.as_dict())
    elif not out.is_text:
        out.records(DAMAGE_COLUMNS, (item.as_dict() for item in report.damage))
    else:
        if report.ok:
            out.line("Intact: nothing is damaged." if report.coverage.complete else PARTLY, style="bold green")
        else:
            affected = sum(item.messages for item in report.damage)
            out.line(f"Damaged: {count(len(report.damage), 'finding')}, {count(affected, 'message')} affected.", style="bold red")
        print_report()
    return 0 if report.ok else 1


def print_damage(out: Output, damage: Iterable[Damage]) -> None:
    """Print damage by kind, then one by one."""
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
    shown = out.first(found, SHOWN)
    for item in shown:
        out.line(f"{item.file} at {item.offset}, {count(item.length, 'byte')}: {item.kind}", style="bold")
        out.line(f"    {item.detail}.")
    out.more_rows(len(found) - len(shown))


def print_shares(out: Output, parts: Iterable[tuple[str, int]], total: int) -> None:
    """Print names with bytes, and their share of a total."""
    out.table(
        (Column("what"), Column("bytes", right=True), Column("", right=True), Column("share", right=True)),
        ([name, f"{amount:,}", size(amount), f"{100 * amount / total:.1f} %" if total else "-"] for name, amount in parts),
    )
