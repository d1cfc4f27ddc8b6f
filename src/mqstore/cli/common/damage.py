"""Damage for a person: counted by kind, then one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mqstore.cli.common.grid import Column
from mqstore.cli.common.output import Output
from mqstore.table.formatting import count

if TYPE_CHECKING:
    from mqstore.findings import Damage

__all__ = ["DAMAGE_NAMES", "print_damage"]

DAMAGE_NAMES = ("file", "offset", "length", "kind", "detail", "messages")
SHOWN = 20


def print_damage(out: Output, damage: Iterable[Damage]) -> None:
    """Damage by kind, then one by one."""
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
    shown = found if out.settings.verbose else found[:SHOWN]
    for item in shown:
        out.line(f"{item.file} at {item.offset}, {count(item.length, 'byte')}: {item.kind}", style="bold")
        out.line(f"    {item.detail}.")
    if len(shown) < len(found):
        out.line(f"… {len(found) - len(shown):,} more; -v lists all, -o jsonl prints one a line", style="dim")
