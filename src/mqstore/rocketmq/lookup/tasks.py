"""The tasks of a lookup: find hits in one range of the log, and write their rows.

    search_index    finds candidates in one index file
    fetch_range     compares the records that candidates point at
    scan_range      walks a range of log, dispatches its records, and compares those with a wanted hash

The last two write into the stage a part with a row per hit, in log order, and a file with the outcome of each candidate. File names
belong to one attempt; only the files that a task returns to the driver count. All tasks of a machine map the same file of keys.

    topic, key, found, other message columns, reason
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import PipelineError
from mqstore.files import MappedFile
from mqstore.files.durable import DurableDirectory
from mqstore.files.location import Url
from mqstore.findings import Damage
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.config.broker_config import BrokerConfig
from mqstore.rocketmq.dispatch.dispatcher import Dispatcher, DispatchOutput, DispatchRules
from mqstore.rocketmq.format.commit_log import SPARSE, CommitLog, Records, group_ranges
from mqstore.rocketmq.lookup.answer import AnswerFile, answer_schema
from mqstore.rocketmq.lookup.index_probe import CANDIDATE, probe, sweep
from mqstore.rocketmq.lookup.key_set import KeySet, Matches, last_per_key_mask
from mqstore.rocketmq.lookup.plan import Plan
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.rocketmq.scan.planned_files import FilesSeen, require_seen
from mqstore.rocketmq.scan.splits import LEAD, Split, SplitWalk
from mqstore.rocketmq.store.disk_view import DiskView
from mqstore.rocketmq.store.message_table import MAX_BATCH_BYTES, batch_of
from mqstore.rocketmq.store.split_reader import opened_view
from mqstore.table.arrow_spans import distinct, whole_runs
from mqstore.table.row_files import PartFile

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.rocketmq.format.mapped_file_queue import QueueFile

# the outcome of a candidate: a hit · a record with another key of the same hash · no valid record
HIT, COLLISION, DAMAGED = 0, 1, 2
OUTCOME = np.dtype([("place", "<i8"), ("physical_offset", "<i8"), ("outcome", "<i4")])

DISPATCHED_AT_ONCE = 1 << 17  # records dispatched before they are compared
RECORDS_AT_ONCE = 1 << 13  # records compared or written at once
MAX_FINDINGS = 1000

Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LookupContext:
    """What all tasks of a lookup share. keys: file of the key set. token: changes when the log's files do.

    max_per_key: keep only that many newest hits of a key; None for all. failfast: damage ends the task.
    """

    store: str | Url
    config: BrokerConfig
    token: str
    stage: str
    keys: str
    columns: tuple[str, ...]
    lines: bool
    max_per_key: int | None
    failfast: bool


@dataclass(frozen=True, slots=True)
class SearchTask:
    """Find candidates in one index file. number: its rank among the index files of the store."""

    context: LookupContext
    number: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class IndexSearch:
    """The outcome for one index file. staged: file of CANDIDATE rows. fault: why the file is not valid; entries: number visited."""

    staged: str | None
    fault: str
    entries: int


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Find hits among the records that start in a split. seen: see `planned_files`."""

    context: LookupContext
    split: Split
    seen: FilesSeen | None


@dataclass(frozen=True, slots=True)
class FetchTask:
    """Find hits among the records of candidates low..high-1 of a staged file, which ascend in the log. start: of their range of log.

    seen: see `planned_files`.
    """

    context: LookupContext
    candidates: str
    low: int
    high: int
    start: int
    seen: FilesSeen | None


@dataclass(frozen=True, slots=True)
class LookupResult:
    """The outcome of one task. start: of its range of log. outcomes: staged file of OUTCOME rows, hits first, in the order of the part.

    topics: wanted topics of which a record was read. invalid: numbers of index files with an entry whose record has no such key.
    bytes: bytes of log read. damage_omitted: number of findings that `damage` leaves out.
    """

    start: int
    part: PartFile | None
    outcomes: str | None
    topics: frozenset[str]
    invalid: frozenset[int]
    bytes: int
    damage: tuple[Damage, ...] = ()
    damage_omitted: int = 0


_key_sets: dict[str, KeySet] = {}


def _view_of(context: LookupContext) -> DiskView:
    return opened_view(context.store, context.config, context.token)


def keys_of(context: LookupContext) -> KeySet:
    """Return the keys of a lookup, mapped once per process."""
    keys = _key_sets.get(context.keys)
    if keys is None:
        _key_sets.clear()
        keys = _key_sets[context.keys] = KeySet.mapped(context.keys)
    return keys


# finding


def search_index(task: SearchTask) -> IndexSearch:
    """Find the candidates of one index file by probing or sweeping it."""
    file = _view_of(task.context).store.index_files()[task.number]
    try:
        result = (probe if task.plan is Plan.PROBE else sweep)(file, task.number, keys_of(task.context))
    finally:
        if file.octets is not None:
            file.drop()
    if result.fault or not len(result.candidates):
        return IndexSearch(None, result.fault, result.entries)
    staged = f"i{task.number:06d}.{secrets.token_hex(6)}.candidates"
    with DurableDirectory(task.context.stage) as stage:
        stage.create(staged)
        stage.pwrite(staged, 0, result.candidates.view(np.uint8))
    return IndexSearch(staged, "", result.entries)


class _Hits:
    """The hits of one range in log order, and the other outcomes of its candidates. collisions, damaged: places of pairs."""

    def __init__(self) -> None:
        self.offsets: list[Longs] = []
        self.places: list[Longs] = []
        self.collisions: list[Longs] = []
        self.damaged: list[Longs] = []
        self.topics: set[str] = set()
        self.invalid: set[int] = set()

    def add(self, records: Records, matched: Matches) -> None:
        """Add the matches of some records of one log file."""
        self.offsets.append(records.positions[matched.rows] + records.file.start)
        self.places.append(matched.places)
        self.collisions.append(matched.collisions)

    def newest(self, limit: int | None) -> tuple[Longs, Longs]:
        """Return (physical offset, place of the pair) of the newest `limit` hits of each pair."""
        offsets, places = _concatenated(self.offsets), _concatenated(self.places)
        if limit is None:
            return offsets, places
        newest = last_per_key_mask(places, limit)
        return offsets[newest], places[newest]


def _concatenated(parts: Sequence[Longs]) -> Longs:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def scan_range(task: ScanTask) -> LookupResult:
    """Find the hits of one split. Raises PipelineError at damage if the lookup is `failfast`."""
    context = task.context
    view, keys = _view_of(context), keys_of(context)
    require_seen(view.log, task.seen)
    damage: list[Damage] = []
    hits = _Hits()
    for records, dispatched in _dispatches(SplitWalk(view.log, task.split, lead=LEAD), damage, context.failfast):
        hits.topics.update(run.topic for run in dispatched.runs if run.topic in keys.topics)
        selected = keys.has(dispatched.keys["hash"].astype(np.int32))
        positions = distinct(dispatched.keys["physical_offset"][selected].astype(np.int64)) - records.file.start
        for low in range(0, len(positions), RECORDS_AT_ONCE):
            part = Records(records.file, records.data, positions[low : low + RECORDS_AT_ONCE])
            hits.add(part, keys.match(RecordColumns(part)))
            view.log.drop_records(part)
    read = task.split.stop - task.split.start
    return _stage_hits(context, view, keys, hits, f"s{task.split.number:06d}", task.split.start, read, damage)


def _dispatches(walk: SplitWalk, damage: list[Damage], failfast: bool) -> Iterator[tuple[Records, DispatchOutput]]:
    """Dispatch the records of a split, up to DISPATCHED_AT_ONCE at a time; yields the first records of each batch with the outcome."""
    pending: tuple[Records, Dispatcher] | None = None
    for event in walk:
        if isinstance(event, Damage):
            damage.append(event)
            if failfast:
                raise PipelineError(damage_sentence(event))
        if not isinstance(event, Records):
            continue
        if pending is not None and (event.data is not pending[0].data or pending[1].count + len(event) > DISPATCHED_AT_ONCE):
            yield pending[0], pending[1].finish()
            pending = None
        if pending is None:
            pending = event, Dispatcher(event.data, DispatchRules(delays=()), max(DISPATCHED_AT_ONCE, len(event)))
        pending[1].add(event.positions)
    if pending is not None:
        yield pending[0], pending[1].finish()


def damage_sentence(damage: Damage) -> str:
    """Return the sentence with which damage ends a job."""
    return (
        f"{damage.file} is damaged at {damage.offset}, {damage.length} bytes: {damage.kind}; "
        "`mqstore verify` maps the damage, without FAILFAST it is skipped and reported"
    )


def fetch_range(task: FetchTask) -> LookupResult:
    """Find the hits among the records that candidates point at."""
    context = task.context
    view, keys = _view_of(context), keys_of(context)
    require_seen(view.log, task.seen)
    rows = MappedFile(Path(task.candidates)).data.view(CANDIDATE)[task.low : task.high]
    hits = _Hits()
    read = 0
    for records, candidates in _valid_records(view.log, rows, keys, hits):
        columns = RecordColumns(records)
        read += int(columns.row(frames.SIZE).sum())
        matched = keys.match(columns)
        hits.add(records, matched)
        # an entry whose record has no key of that hash is wrong, so the file is not valid
        owner = np.searchsorted(records.positions, candidates["physical_offset"] - records.file.start)
        had = _are_in((owner << 32) + candidates["hash"], np.sort((matched.owners << 32) + matched.hashes))
        hits.invalid.update(np.unique(candidates["file"][~had]).tolist())
        view.log.drop_records(records)
    return _stage_hits(context, view, keys, hits, f"c{task.low:010d}", task.start, read, [])


def _valid_records(log: CommitLog, rows: NDArray[np.void], keys: KeySet, hits: _Hits) -> Iterator[tuple[Records, NDArray[np.void]]]:
    """Yield valid records, each once, up to RECORDS_AT_ONCE at a time, with the candidates that point at them."""
    starts = np.array([file.start for file in log.files], np.int64)
    numbers = np.searchsorted(starts, rows["physical_offset"], "right") - 1
    edges = np.flatnonzero(np.diff(numbers)) + 1
    for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(rows)], strict=True):
        number = int(numbers[low]) if low < high else -1
        if number < 0:
            _note_damaged(rows[low:high], keys, hits)
            continue
        file = log.files[number]
        first, last = (int(rows["physical_offset"][k]) - file.start for k in (low, high - 1))
        sparse = last - first > SPARSE * (high - low)
        with log.mapped(file).read_ahead(first, first if sparse else last + 1) as ahead:
            in_file = rows[low:high]
            # the candidates of one record stay together: each part of them would find all its keys again
            for begin, end in whole_runs(in_file["physical_offset"], RECORDS_AT_ONCE):
                part = in_file[begin:end]
                ahead.reach(int(part["physical_offset"][0]) - file.start)
                yield from _valid_in(log, file, part, keys, hits)


def _valid_in(
    log: CommitLog, file: QueueFile, rows: NDArray[np.void], keys: KeySet, hits: _Hits
) -> Iterator[tuple[Records, NDArray[np.void]]]:
    """Yield the valid records of one file at which candidates point, as `_valid_records` does."""
    offsets = rows["physical_offset"] - file.start
    for data, near in group_ranges(log.mapped(file), file.start, distinct(offsets)):
        valid = np.empty(len(near), np.uint8)
        frames.are_valid(data, near, file.start, valid)
        near_rows = rows[slice(*np.searchsorted(offsets, [near[0], near[-1] + 1]).tolist())]
        sound = near[valid.view(np.bool_)]
        if len(sound) < len(near):
            points = _are_in(near_rows["physical_offset"] - file.start, sound)
            _note_damaged(near_rows[~points], keys, hits)
            near_rows = near_rows[points]
        if len(sound):
            yield Records(file, data, np.ascontiguousarray(sound)), near_rows


def _are_in(values: Longs, ascending: Longs) -> NDArray[np.bool_]:
    """Return which values are among others."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    places = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    mask: NDArray[np.bool_] = ascending[places] == values
    return mask


def _note_damaged(rows: NDArray[np.void], keys: KeySet, hits: _Hits) -> None:
    """Note candidates that do not point at a valid record."""
    if len(rows):
        hits.damaged.append(keys.places(rows["hash"].astype(np.int32))[1])
        hits.invalid.update(np.unique(rows["file"]).tolist())


# writing


def _stage_hits(
    context: LookupContext, view: DiskView, keys: KeySet, hits: _Hits, name: str, start: int, read: int, damage: Sequence[Damage]
) -> LookupResult:
    """Write what was found into the stage. name: how the staged files begin."""
    offsets, places = hits.newest(context.max_per_key)
    token = secrets.token_hex(6)
    part: PartFile | None = None
    outcomes: str | None = None
    collisions, damaged = distinct(_concatenated(hits.collisions)), distinct(_concatenated(hits.damaged))
    with DurableDirectory(context.stage) as stage:
        if len(offsets):
            staged = f"{name}.{token}.rows"
            with stage.open_new(staged) as sink:
                file = AnswerFile(sink, answer_schema(context.columns, context.lines), context.lines)
                for batch in _answer_batches(context, view, keys, offsets, places):
                    file.write(batch)
                view.log.drop_queues()
                file.finish()
                part = PartFile(staged, "", file.rows, sink.size)
        if len(offsets) or len(collisions) or len(damaged):
            rows = np.zeros(len(offsets) + len(collisions) + len(damaged), OUTCOME)
            rows["place"] = np.concatenate([places, collisions, damaged])
            rows["physical_offset"][: len(offsets)] = offsets
            rows["outcome"] = np.repeat([HIT, COLLISION, DAMAGED], [len(offsets), len(collisions), len(damaged)])
            outcomes = f"{name}.{token}.outcomes"
            stage.create(outcomes)
            stage.pwrite(outcomes, 0, rows.view(np.uint8))
    return LookupResult(
        start,
        part,
        outcomes,
        frozenset(hits.topics),
        frozenset(hits.invalid),
        read,
        tuple(damage[:MAX_FINDINGS]),
        max(0, len(damage) - MAX_FINDINGS),
    )


def _answer_batches(context: LookupContext, view: DiskView, keys: KeySet, offsets: Longs, places: Longs) -> Iterable[pa.RecordBatch]:
    """Yield a row per hit: the pair and the message."""
    import pyarrow as pa

    schema = answer_schema(context.columns, context.lines)
    for columns, owner, of_some in _matching_columns(view.log, offsets, places):
        batch = batch_of(columns, context.columns, view.log, view.queue_lookup, milliseconds=context.lines)
        if len(owner) != len(columns):
            batch = batch.take(pa.array(owner))
        rows = pa.array(of_some)
        yield pa.RecordBatch.from_arrays(
            [
                keys.topic.take(rows).dictionary_decode(),
                keys.key.take(rows).cast(pa.string()),
                pa.array(np.ones(len(of_some), np.bool_)),
                *batch.columns,
                pa.nulls(len(of_some), pa.string()),
            ],
            schema=schema,
        )
        view.log.drop_records(columns.records)


def _matching_columns(log: CommitLog, offsets: Longs, places: Longs) -> Iterator[tuple[RecordColumns, Longs, Longs]]:
    """Yield the records of the hits, at most MAX_BATCH_BYTES at a time, with (record, place of the pair) of each hit among them."""
    starts = np.array([file.start for file in log.files], np.int64)
    numbers = np.searchsorted(starts, offsets, "right") - 1
    for number in np.unique(numbers).tolist():
        low, high = np.searchsorted(numbers, [number, number + 1]).tolist()
        file = log.files[number]
        positions, owner = np.unique(offsets[low:high] - file.start, return_inverse=True)
        at = 0
        for data, near in group_ranges(log.mapped(file), file.start, positions):
            for first in range(0, len(near), RECORDS_AT_ONCE):
                for piece in RecordColumns(Records(file, data, near[first : first + RECORDS_AT_ONCE])).pieces(MAX_BATCH_BYTES):
                    begin, end = np.searchsorted(owner, [at, at + len(piece)]).tolist()
                    yield piece, owner[begin:end] - at, places[low + begin : low + end]
                    at += len(piece)
