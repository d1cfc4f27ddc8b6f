"""Choosing how a lookup finds its messages, and which parts of the log the index answers for.

    probe    follow the chains of the wanted hashes in every usable index file    few keys
    sweep    read all entries of the usable index files                           many keys
    scan     derive the keys of the log itself, as dispatch does                  no usable index, or nearly all of the log is wanted

Whatever no index file covers is scanned in every plan, and so is the range of a file that turns out to be invalid while it is read.
Only `scan` does not depend on the index at all.

    covered by files     (begin … end)   (begin … end)
    scanned          [----]          [---]           [-------)      the records at begin and end included

Format: docs/formats/rocketmq.md, section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mqstore.errors import UsageError
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.format.index_file import IndexFile
from mqstore.rocketmq.lookup.index_probe import EMPTY, why_unusable
from mqstore.rocketmq.scan.splits import log_bytes, plan
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.table.formatting import count

# seconds for a key, an entry and a byte, measured on one core: they choose the plan, nothing else depends on them
PROBE_SECONDS = 2e-6
SWEEP_SECONDS = 3e-8
SCAN_SECONDS = 1.2e-9


class Plan(StrEnum):
    """How candidates are found."""

    PROBE = "probe"
    SWEEP = "sweep"
    SCAN = "scan"


# what the index covers


@dataclass(frozen=True, slots=True)
class Interval:
    """Physical offsets start..stop-1."""

    start: int
    stop: int


def covered_intervals(files: Sequence[IndexFile], log: CommitLog, end: int) -> list[Interval]:
    """Return the ranges of log that usable files answer for, ascending: between their first and last record, both excluded.

    Keys of those two records may be in the file before or after, which may be lost.
    """
    merged: list[Interval] = []
    for file in sorted(files, key=lambda file: file.begin_physical_offset):
        start = max(file.begin_physical_offset + 1, log.start)
        stop = min(file.end_physical_offset, end)
        if start >= stop:
            continue
        if merged and start < merged[-1].stop:
            merged[-1] = Interval(merged[-1].start, max(merged[-1].stop, stop))
        else:
            merged.append(Interval(start, stop))
    return merged


def uncovered_intervals(covered: Sequence[Interval], start: int, end: int) -> list[Interval]:
    """Return the rest of start..end-1."""
    edges = [start, *(edge for each in covered for edge in (each.start, each.stop)), end]
    return [Interval(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low < high]


# the choice


@dataclass(frozen=True, slots=True)
class Costs:
    """What the choice depends on: number of keys, usable index files and their entries, bytes of log and of log that no file covers."""

    keys: int
    files: int
    entries: int
    log_bytes: int
    uncovered_bytes: int

    def seconds(self, plan: Plan) -> float:
        """Return the estimated duration of a plan on one core."""
        rest = self.uncovered_bytes * SCAN_SECONDS
        if plan is Plan.PROBE:
            return self.keys * self.files * PROBE_SECONDS + rest
        if plan is Plan.SWEEP:
            return self.entries * SWEEP_SECONDS + rest
        return self.log_bytes * SCAN_SECONDS


def check_plan(by: str) -> str:
    """Return the name of a plan, or `auto`. Raises UsageError for any other."""
    if by != "auto" and by not in tuple(Plan):
        raise UsageError(f"there is no plan {by!r}; the plans are auto, {', '.join(Plan)}")
    return by


def choose(by: str, costs: Costs, unusable: Sequence[str]) -> tuple[Plan, str]:
    """Return the plan and a sentence with the reason. by: a plan or auto. unusable: index files with their faults. Raises UsageError."""
    check_plan(by)
    if not costs.files and by != Plan.SCAN:
        why = "there is none"
        if unusable:
            why = f"{unusable[0]}{f' ({len(unusable) - 1} more)' if len(unusable) > 1 else ''}"
        return Plan.SCAN, f"no index file can be used: {why}; {costs.log_bytes:,} bytes of log are read"
    if by == Plan.SCAN:
        return Plan.SCAN, f"requested; {costs.log_bytes:,} bytes of log are read for {count(costs.keys, 'key')}"
    figures = (
        f"{count(costs.keys, 'key')}, {count(costs.files, 'index file')} of {count(costs.entries, 'entry')}, "
        f"{costs.log_bytes:,} bytes of log, {costs.uncovered_bytes:,} of them not covered by the index"
    )
    if by != "auto":
        return Plan(by), f"requested; {figures}"
    chosen = min(Plan, key=costs.seconds)
    estimates = ", ".join(f"{plan} {_clock(costs.seconds(plan))}" for plan in Plan)
    return chosen, f"the least work; {figures}; estimated on one core: {estimates}"


def _clock(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


@dataclass(frozen=True, slots=True)
class Survey:
    """A plan for one store, with what led to it. why: a sentence. files: usable index files by number; none for a scan.

    end: physical offset after the last record. notes: index files that are not used, a sentence each.
    """

    plan: Plan
    why: str
    costs: Costs
    files: Mapping[int, IndexFile]
    end: int
    notes: tuple[str, ...]


def survey(store: RocketMQStore, keys: int, by: str, splits: int | None) -> Survey:
    """Choose the plan for a number of keys from the headers of the index files. splits: into how many the log would be cut."""
    log = store.log
    whole = plan(log, count=splits)
    end = whole[-1].stop if whole else log.start
    files: dict[int, IndexFile] = {}
    faults: dict[str, str] = {}
    if by != Plan.SCAN:
        faults = {item.file: str(item.kind) for item in store.findings if item.file.startswith("index/") and item.kind.unread}
        faults |= {file.relative: file.sentence for file in store.unread_index}
        for number, file in enumerate(store.index_files()):
            fault = faults.get(file.relative) or why_unusable(file)
            if fault:
                faults[file.relative] = fault
            else:
                files[number] = file
    unusable = [f"{relative}: {fault}" for relative, fault in faults.items()]
    rest = uncovered_intervals(covered_intervals(list(files.values()), log, end), log.start, end)
    costs = Costs(
        keys=keys,
        files=len(files),
        entries=sum(file.index_count - 1 for file in files.values()),
        log_bytes=log_bytes(log, whole),
        uncovered_bytes=sum(each.stop - each.start for each in rest),
    )
    chosen, why = choose(by, costs, unusable)
    notes = tuple(f"{each}; the log is read instead" for each in unusable if not each.endswith(EMPTY)) if files else ()
    return Survey(chosen, why, costs, {} if chosen is Plan.SCAN else files, end, notes)
