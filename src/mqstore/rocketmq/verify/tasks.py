"""Verifying a store part by part: tasks check runs of splits, and their small results are combined into one report.

A part is checked as `mqstore.rocketmq.verify.verification` checks a split, against the queues and index files on the host that runs it;
the result names the entries that it proved, without their contents. Parts are combined in log order; a part that did not begin where
the part before it ended is checked again from there. So the report does not depend on how the log was cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mqstore.files.location import Url
from mqstore.findings import CheckCounts, Damage
from mqstore.rocketmq.config.broker_config import BrokerConfig
from mqstore.rocketmq.scan.planned_files import FilesSeen, files_seen, require_seen, token_of
from mqstore.rocketmq.scan.splits import MAX_TASKS
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.log_proof import Place, SplitsAhead, check_split, cut, plan
from mqstore.rocketmq.verify.queue_proof import MAX_FINDINGS
from mqstore.rocketmq.verify.verification import Verification, settle_index

Queue = tuple[str, int]
Ranges = list[tuple[int, int]]

PART = 256 << 20  # bytes of log in a part, by default

_stores: dict[tuple[str | Url, BrokerConfig, str], RocketMQStore] = {}


@dataclass(frozen=True, slots=True)
class PartTask:
    """The splits from start to stop, in log order. token, seen: see `planned_files`.

    met: (start of a file, position in it) at which the part before ended, if that is known.
    """

    store: str | Url
    config: BrokerConfig
    token: str
    start: Place
    stop: Place
    seen: FilesSeen | None
    met: Place = (-1, 0)


@dataclass(frozen=True, slots=True)
class IndexProofTask:
    """Index file `number` with the ranges of entries that the log has proved."""

    store: str | Url
    config: BrokerConfig
    token: str
    number: int
    proved: tuple[tuple[int, int], ...]
    log_end: int


@dataclass(frozen=True, slots=True)
class QueuePart:
    """What a part proves of a consume queue. missing: the first of its records without an entry."""

    proved: Ranges
    missing: list[tuple[int, int]]
    missing_count: int
    pending_count: int


@dataclass(slots=True)
class PartProof:
    """What a part holds and proves. first: (start of the file, position in it) of its first split, None without any.

    begin: position at which the walk of that split began; log_end: -1 if the part holds no record.
    """

    task: PartTask
    first: Place | None
    begin: int | None
    met: tuple[int, int]
    checked: CheckCounts
    damage: list[Damage]
    log_end: int
    last_timestamp: int
    forgotten: dict[int, tuple[int, int, int]]
    unindexed: int
    unindexed_inside: int
    first_unindexed: int | None
    affected: int
    unqueued: dict[Queue, int]
    queues: dict[Queue, QueuePart] = field(default_factory=dict)
    units: dict[Queue, tuple[list[int], list[int]]] = field(default_factory=dict)  # of batch queues: proved numbers, missing records
    indexes: dict[int, Ranges] = field(default_factory=dict)


def parts(store: RocketMQStore, count: int | None = None) -> list[PartTask]:
    """Cut the log into a number of parts of about equal size, by default of 256 MiB, or more for a log of more than 2.5 TB."""
    log = store.log
    token = token_of(log)
    ranges = cut(log, max(PART, -(-log.size_on_paper // MAX_TASKS)), count)
    return [PartTask(store.place, store.config, token, start, stop, files_seen(log, start[0], sum(stop))) for start, stop in ranges]


def _open_cached(path: str | Url, config: BrokerConfig, token: str) -> RocketMQStore:
    key = (path, config, token)
    store = _stores.get(key)
    if store is None:
        if len(_stores) > 3:
            _stores.clear()
        store = _stores[key] = RocketMQStore(path, config=config)
    return store


def check_part(task: PartTask) -> PartProof:
    """Check the splits of a part, and compare what they dispatch with queues and index."""
    work = Verification(_open_cached(task.store, task.config, task.token))
    require_seen(work.log, task.seen)
    work.log_end = -1
    findings_before = len(work.damage)
    met = task.met
    first: Place | None = None
    begin: int | None = None
    with SplitsAhead(work.log) as ahead:
        for split in plan(work.log, task.start, task.stop):
            check = check_split(work.log, split, work.rules_for(split), ahead=ahead.of(split))
            if met[0] == split.file.start and met[1] > split.start and check.begin != met[1]:
                check = check_split(work.log, split, work.rules_for(split), met[1])
            if first is None:
                first, begin = (split.file.start, split.start), check.begin
            met = _arrived(met, split.file.start, check.end)
            work.take(check)
    work.drop()
    return PartProof(
        task,
        first,
        begin,
        met,
        work.checked,
        work.damage[findings_before:],
        work.log_end,
        work.last_timestamp,
        work.forgotten,
        work.unindexed,
        work.unindexed_inside,
        work.first_unindexed,
        work.affected,
        work.unqueued,
        {
            queue: QueuePart(proof.proved, proof.missing, proof.missing_count, proof.pending_count)
            for queue, proof in work.queues.items()
            if proof.proved or proof.missing_count or proof.pending_count
        },
        {
            queue: (np.flatnonzero(proof.proved).tolist(), proof.missing)
            for queue, proof in work.batch_queues.items()
            if proof.missing or proof.proved.any()
        },
        {number: proof.proved for number, proof in enumerate(work.indexes) if proof.proved},
    )


def _arrived(met: tuple[int, int], start: int, end: int) -> tuple[int, int]:
    """Return how far the walk is: within a file it never goes back."""
    return (start, max(end, met[1] if met[0] == start else 0))


def joined(every: Iterable[PartProof]) -> Iterator[PartProof]:
    """Yield the parts in log order; one that did not begin where the part before it ended is checked again, here."""
    met = (-1, 0)
    for part in every:
        first = part.first
        if first is not None and met[0] == first[0] and met[1] > first[1] and part.begin != met[1]:
            part = check_part(replace(part.task, met=met))
        met = _arrived(met, *part.met) if part.met[0] == met[0] else part.met
        yield part


def absorb(work: Verification, part: PartProof) -> None:
    """Add the result of a part, as if its splits had been checked here. Parts come in log order."""
    for name in ("bytes", "records", "messages"):
        setattr(work.checked, name, getattr(work.checked, name) + getattr(part.checked, name))
    work.damage.extend(part.damage)
    if part.log_end >= 0:
        work.log_end, work.last_timestamp = part.log_end, part.last_timestamp
    for begin, forgotten in part.forgotten.items():
        work.note_forgotten(begin, *forgotten)
    work.unindexed += part.unindexed
    work.note_unindexed(part.unindexed_inside, part.first_unindexed)
    work.affected += part.affected
    for queue, count in part.unqueued.items():
        work.unqueued[queue] = work.unqueued.get(queue, 0) + count
    for queue, queue_part in part.queues.items():
        proof = work.queues[queue]
        _extend(proof.proved, queue_part.proved)
        proof.missing.extend(queue_part.missing[: MAX_FINDINGS - len(proof.missing)])
        proof.missing_count += queue_part.missing_count
        proof.pending_count += queue_part.pending_count
    for queue, (numbers, lost) in part.units.items():
        work.batch_queues[queue].proved[numbers] = True
        work.batch_queues[queue].missing.extend(lost)
    for number, ranges in part.indexes.items():
        _extend(work.indexes[number].proved, ranges)


def _extend(ranges: Ranges, more: Sequence[tuple[int, int]]) -> None:
    """Append ranges and merge those that touch, so that a valid queue is one range however the log was cut."""
    for low, high in more:
        if ranges and ranges[-1][1] == low:
            low = ranges.pop()[0]
        ranges.append((low, high))


def index_tasks(work: Verification, store: RocketMQStore) -> list[IndexProofTask]:
    """Return a task for each index file, once all parts are absorbed."""
    token = token_of(store.log)
    return [
        IndexProofTask(store.place, store.config, token, number, tuple(proof.proved), work.log_end)
        for number, proof in enumerate(work.indexes)
    ]


def check_index(task: IndexProofTask) -> list[Damage]:
    """Return what is wrong with one index file."""
    store = _open_cached(task.store, task.config, task.token)
    work = Verification(store)
    work.log_end = task.log_end
    work.indexes[task.number].proved.extend(task.proved)
    return settle_index(work, task.number)
