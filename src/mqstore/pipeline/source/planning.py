"""Planning a read of many stores: opened in threads, small parts read together by one task, stores that cannot be opened skipped.

    paths ── opened, planned ──> parts of stores ── grouped ──> partitions
                 └──────────────> skipped: the path and why

A task of Spark costs as much time as reading some dozen small stores, so parts are put together until they fill a task: bytes, and
`OPEN_COST` for each store, as Spark counts small files. The order of the parts is that of the paths, so rows come in the order in which
they would come from one task for each part.

If several paths are read, one that cannot be opened as a store is skipped and reported: by a warning, in the plan
(`mqstore.pipeline.source.rocketmq`), and as a finding. A read of which no path can be opened is an error, and so is any such path if
`mode` is FAILFAST.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from mqstore.errors import CannotOpenError, PipelineError, UnsupportedError
from mqstore.jobs.runner import ThreadRunner
from mqstore.pipeline.spark.session import show_warning
from mqstore.pipeline.spark.source_api import InputPartition
from mqstore.threads import least_tasks

if TYPE_CHECKING:
    import pyarrow as pa

THREADS = 8  # opening a store waits for the disk, or for a server, more than it computes
LEAST_BYTES = 16 << 20
MOST_BYTES = 64 << 20  # a part of this size, the least of a large store, is never read together with others
OPEN_COST = 512 << 10  # what opening a store costs a task, as bytes that it could have read meanwhile
NAMED = 3  # paths that a warning names
# batches of at most this size are put together to batches of at most that size
SMALL_ROWS, SMALL_BYTES = 1024, 1 << 20
MOST_ROWS, MOST_BATCH_BYTES = 4096, 4 << 20

P = TypeVar("P", bound=InputPartition)


@dataclass(frozen=True, slots=True)
class SkippedStore:
    """A path that could not be opened as a store. why: a sentence that names it."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class PartGroup(InputPartition):
    """Parts that one task reads, one after the other. skipped: all that the read skips, in its first partition only."""

    parts: tuple[InputPartition, ...]
    skipped: tuple[SkippedStore, ...] = ()


@dataclass(frozen=True, slots=True)
class Planned(Generic[P]):
    """The parts of all stores in the order of the paths; and the paths that were skipped.

    costs: of each part, in bytes; None if only one path is read, whose parts stay apart.
    """

    parts: tuple[P, ...]
    costs: tuple[int, ...] | None = None
    skipped: tuple[SkippedStore, ...] = ()

    def partitions(self, pieces: int = 0) -> list[InputPartition]:
        """Return the partitions. pieces: minimum number of them, as far as there are parts."""
        if self.costs is None:
            return list(self.parts)
        groups = grouped(self.parts, self.costs, pieces)
        if not self.skipped:
            return groups
        first = groups[0] if groups else PartGroup(())
        return [PartGroup(tuple(parts_in(first)), self.skipped), *groups[1:]]


def parts_in(partition: InputPartition) -> Sequence[InputPartition]:
    """Return the parts that a partition consists of."""
    return partition.parts if isinstance(partition, PartGroup) else (partition,)


# opening


def plan_stores(paths: Sequence[str], plan: Callable[[str], Iterable[tuple[P, int]]], *, fail_fast: bool = False) -> Planned[P]:
    """Plan the stores at the paths. plan: opens one and returns its parts, each with its bytes.

    Raises what `plan` raises if it is the only path; CannotOpenError if none of several can be opened; PipelineError for the first of them
    that cannot if fail_fast.
    """
    parts: list[P] = []
    costs: list[int] = []
    skipped: list[SkippedStore] = []
    if len(paths) <= 1:
        return Planned(tuple(part for path in paths for part, _ in plan(path)))
    for outcome in ThreadRunner(min(THREADS, len(paths))).each(paths, partial(_planned, plan)):
        if isinstance(outcome, SkippedStore):
            if fail_fast:
                raise PipelineError(
                    f"mode=FAILFAST: {outcome.path} cannot be read as a store: {outcome.why}; "
                    "mode=PERMISSIVE skips such paths and reports them"
                )
            skipped.append(outcome)
            continue
        for number, (part, size) in enumerate(outcome):
            parts.append(part)
            costs.append(size if number else size + OPEN_COST)
    if skipped and len(skipped) == len(paths):
        raise CannotOpenError(f"none of the {len(paths)} paths can be read as a store; of the first: {skipped[0].why}")
    return Planned(tuple(parts), tuple(costs), tuple(skipped))


def _planned(plan: Callable[[str], Iterable[tuple[P, int]]], path: str) -> list[tuple[P, int]] | SkippedStore:
    try:
        return list(plan(path))
    except (CannotOpenError, UnsupportedError) as error:
        return SkippedStore(path, str(error))
    except OSError as error:
        return SkippedStore(path, f"{error.filename or path}: {error.strerror or error}")


def report_skipped(skipped: Sequence[SkippedStore], total: int, reported: int = 0, *, stacklevel: int = 3) -> None:
    """Warn that stores are skipped, with their number and the first of them. reported: the number of those that were reported before."""
    if len(skipped) <= reported:
        return
    named = "; ".join(each.why for each in skipped[:NAMED])
    more = f"; and {len(skipped) - NAMED} more, which explain_read lists" if len(skipped) > NAMED else ""
    sentence = f"{len(skipped)} of {total} paths cannot be read as a store and are skipped: {named}{more}"
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # a Python worker plans many reads, and the default is to show each place once
        warnings.warn(sentence, UserWarning, stacklevel=stacklevel)
    show_warning(sentence)


# grouping


def grouped(parts: Sequence[P], costs: Sequence[int], pieces: int = 0) -> list[InputPartition]:
    """Return the parts in runs of about equal cost, without changing their order; a part that fills a task stays alone.

    pieces: minimum number of runs, as far as there are parts.
    """
    total = sum(costs)
    room = min(MOST_BYTES, max(LEAST_BYTES, total // least_tasks()))
    count = max(pieces, -(-total // room), 1)
    room = -(-total // count)
    runs: list[list[P]] = []
    held = 0
    for number, (part, cost) in enumerate(zip(parts, costs, strict=True)):
        left = len(parts) - number
        if not runs or held + cost > room or len(runs) + left <= pieces:
            runs.append([])
            held = 0
        runs[-1].append(part)
        held += cost
    return [PartGroup(tuple(run)) if len(run) > 1 else run[0] for run in runs]


# reading


def combined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of many small stores, small ones put together, because each batch has its price on the way to the JVM."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        few = batch.num_rows <= SMALL_ROWS and batch.nbytes <= SMALL_BYTES
        if held and (not few or rows + batch.num_rows > MOST_ROWS or size + batch.nbytes > MOST_BATCH_BYTES):
            yield _one_batch(held)
            held, rows, size = [], 0, 0
        if not few:
            yield batch
        elif batch.num_rows:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
    if held:
        yield _one_batch(held)


def _one_batch(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    import pyarrow as pa

    if len(held) == 1:
        return held[0]
    (batch,) = pa.Table.from_batches(held).combine_chunks().to_batches()
    return batch
