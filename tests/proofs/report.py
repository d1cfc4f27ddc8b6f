"""The table of what was proved, for docs/reliability.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from proofs.state import Entry

HEADER = ("kind", "checked", "seeds", "dates", "machine", "revisions", "seconds", "failures")


def rows(entries: Iterable[Entry]) -> list[tuple[str, ...]]:
    """Return a row for each kind and machine, in the order in which they first came up."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.kind, entry.machine), []).append(entry)
    return [_row(kind, machine, found) for (kind, machine), found in groups.items()]


def _row(kind: str, machine: str, entries: Sequence[Entry]) -> tuple[str, ...]:
    days = sorted({entry.began[:10] for entry in entries} | {entry.ended[:10] for entry in entries})
    dates = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    revisions = list(dict.fromkeys(entry.revision for entry in entries))
    shown = revisions[0] if len(revisions) == 1 else f"{revisions[0]} to {revisions[-1]}"
    failures = {failed.seed: failed for entry in entries for failed in entry.failures}
    seconds = sum(entry.seconds for entry in entries)
    count = sum(entry.done for entry in entries)
    return (kind, f"{count:,}", _seeds(entries), dates, machine, shown, f"{seconds:,.0f}", str(len(failures)))


def _seeds(entries: Sequence[Entry]) -> str:
    joined: list[list[int]] = []
    for first, stop in sorted((entry.first, entry.stop) for entry in entries):
        if joined and first <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], stop)
        else:
            joined.append([first, stop])
    return ", ".join(f"{first}-{stop - 1}" for first, stop in joined if stop > first) or "-"


def table(entries: Iterable[Entry]) -> str:
    """Return the rows as a table in Markdown, and the failures below it."""
    entries = list(entries)
    lines = [f"| {' | '.join(cells)} |" for cells in (HEADER, ["---"] * len(HEADER), *rows(entries))]
    failures = {(entry.kind, failed.seed): failed for entry in entries for failed in entry.failures}
    if failures:
        lines.append("")
        lines += [f"- `{failed.again}`: {failed.error.splitlines()[0][:300]}" for failed in failures.values()]
    return "\n".join(lines)
