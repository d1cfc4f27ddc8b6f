"""Reports of pipeline jobs: counts from the tasks' own results, not from Spark's accumulators, which count retries twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mqstore.findings import Coverage, Damage
from mqstore.rocketmq.store.known_ranges import KnownRanges

Progress = Callable[[int, int], None]


def by_share(progress: Progress | None, total: int, tasks: int) -> Callable[[int], None] | None:
    """Return what reports a number of finished tasks as their share of the total; None if nothing is to be reported."""
    return None if progress is None else lambda finished: progress(total * finished // max(1, tasks), total)


class _LogJobReport:
    """What the reports of jobs that read a log have in common."""

    __slots__ = ()

    log_bytes: int
    seconds: float
    damage: tuple[Damage, ...]
    coverage: Coverage
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the requested part of the log is intact and was covered completely."""
        return not self.damage and self.coverage.complete

    @property
    def gigabytes_per_second(self) -> float:
        """Log read per second, in 10^9 bytes."""
        return self.log_bytes / self.seconds / 1e9 if self.seconds else 0.0

    def _speed(self) -> dict[str, Any]:
        return {"seconds": round(self.seconds, 3), "gb_per_s": round(self.gigabytes_per_second, 3)}

    def _findings(self) -> dict[str, Any]:
        return {
            "coverage": self.coverage.as_dict(),
            "damage": [item.as_dict() for item in self.damage],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class RebuildReport(_LogJobReport):
    """Outcome of `rebuild`. log_bytes: of the log that was read. queue_entries: written; units for batch queues.

    exact_queues: queues that were not plain and were built entry by entry. rewalked: splits that had begun at a record inside a body.
    runs_on, why: where it ran, and why there. stages: seconds of each step, in order.
    seconds: in total, without the start of a Spark session.
    intact: each record was checked and is intact, and is listed at its queue offset.
    known: what was read of the new log to mend it, for the diagnosis of the new store.
    """

    store: str
    to: str
    log_bytes: int
    messages: int
    queues: int
    queue_entries: int
    exact_queues: int
    index_files: int
    index_keys: int
    splits: int
    rewalked: int
    seconds: float
    runs_on: str
    why: str
    stages: tuple[tuple[str, float], ...] = ()
    linked: bool = True
    damage: tuple[Damage, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    notes: tuple[str, ...] = ()
    queues_in: str = "files"
    intact: bool = False
    known: KnownRanges | None = field(default=None, repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `rebuild -o json` prints."""
        return {
            "store": self.store,
            "to": self.to,
            "ok": self.ok,
            "log_bytes": self.log_bytes,
            "messages": self.messages,
            "queues": self.queues,
            "queues_in": self.queues_in,
            "queue_entries": self.queue_entries,
            "exact_queues": self.exact_queues,
            "index_files": self.index_files,
            "index_keys": self.index_keys,
            "splits": self.splits,
            "rewalked_splits": self.rewalked,
            "log_files": "linked" if self.linked else "copied",
            "runs_on": self.runs_on,
            "why": self.why,
            **self._speed(),
            "stages": {name: round(seconds, 3) for name, seconds in self.stages},
            **self._findings(),
        }


@dataclass(frozen=True, slots=True)
class ExportReport(_LogJobReport):
    """Outcome of `export`. bytes: of the files written; log_bytes: of the log that was read. runs_on, why: as for RebuildReport."""

    store: str
    to: str
    format: str
    run_id: str
    log_bytes: int
    messages: int
    files: tuple[str, ...]
    bytes: int
    seconds: float
    damage: tuple[Damage, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    notes: tuple[str, ...] = ()
    runs_on: str = ""
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `export -o json` prints."""
        return {
            "store": self.store,
            "to": self.to,
            "format": self.format,
            "run_id": self.run_id,
            "ok": self.ok,
            "log_bytes": self.log_bytes,
            "messages": self.messages,
            "files": list(self.files),
            "bytes": self.bytes,
            "runs_on": self.runs_on,
            "why": self.why,
            **self._speed(),
            **self._findings(),
        }
