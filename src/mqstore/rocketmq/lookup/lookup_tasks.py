"""What a task of a lookup does: find hits in one stretch of log, and write their rows.

    scan_range    walks a stretch of log, dispatches its records, and compares those with an asked hash
    fetch_range   compares the records that index entries lead to

Either writes, into the stage, a part with a row per hit in log order, and a file of what else it met; names are of one
attempt, and what counts is what the driver hears of. The asked keys are mapped from the stage, by all tasks of a machine.

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
from mqstore.files import Bytes, MappedFile
from mqstore.files.durable import DurableDirectory
from mqstore.files.location import Url
from mqstore.findings import Damage
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.config.broker_config import BrokerConfig
from mqstore.rocketmq.dispatch.dispatcher import Dispatched, Dispatcher, Rules
from mqstore.rocketmq.format.commit_log import CommitLog, Records, gathered
from mqstore.rocketmq.lookup.answer_file import AnswerFile, answer_schema
from mqstore.rocketmq.lookup.key_set import Asked
from mqstore.rocketmq.lookup.lookup_plan import CANDIDATE, Matches, Plan, matches, newest, probe, sweep
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.rocketmq.scan.splits import LEAD, Split, SplitWalk
from mqstore.rocketmq.store.message_table import MAX_BATCH_BYTES, batch_of
from mqstore.rocketmq.store.store import DiskView, RocketMQStore
from mqstore.table.parts import Part

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "DAMAGED",
    "HIT",
    "NEAR",
    "TOLD",
    "FetchTask",
    "Look",
    "LookedUp",
    "ScanTask",
    "SearchResult",
    "SearchTask",
    "damage_sentence",
    "fetch_range",
    "scan_range",
    "search_index",
]

# what became of a candidate: a hit · a record of the same hash · no believable record
HIT, NEAR, DAMAGED = 0, 1, 2
TOLD = np.dtype([("place", "<i8"), ("physical_offset", "<i8"), ("outcome", "<i4")])

ROOM = 1 << 17  # records dispatched before they are compared
RECORDS = 1 << 13  # records compared, or written, at once
MAX_TOLD = 1000

Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Look:
    """What all tasks of a lookup share. asked: file of the keys. token: changes when the log's files do.

    max_per_key: the newest so many hits of a key; None for all. failfast: damage ends the task.
    """

    store: str | Url
    config: BrokerConfig
    token: str
    stage: str
    asked: str
    columns: tuple[str, ...]
    lines: bool
    max_per_key: int | None
    failfast: bool


@dataclass(frozen=True, slots=True)
class SearchTask:
    """Find candidates in one index file. number: its rank among the files of the store."""

    look: Look
    number: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What one index file yielded. staged: file of CANDIDATE rows. wrong: why it cannot be believed; entries: how many were visited."""

    staged: str | None
    wrong: str
    entries: int


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Find hits among the records that start in a split."""

    look: Look
    split: Split


@dataclass(frozen=True, slots=True)
class FetchTask:
    """Find hits among the records of candidates low..high-1 of a staged file, which ascend in the log.

    start: of their stretch of log.
    """

    look: Look
    candidates: str
    low: int
    high: int
    start: int


@dataclass(frozen=True, slots=True)
class LookedUp:
    """What one task found. start: of its stretch of log. told: staged file of TOLD rows, hits first, in the order of the part's rows.

    topics: asked topics of which a record was met. unsound: numbers of index files that led to a record without such a key.
    bytes: of log that were read.
    """

    start: int
    part: Part | None
    told: str | None
    topics: frozenset[str]
    unsound: frozenset[int]
    bytes: int
    damage: tuple[Damage, ...] = ()
    damage_untold: int = 0


_views: dict[tuple[str | Url, BrokerConfig, str], DiskView] = {}
_asked: dict[str, Asked] = {}


def _view_of(look: Look) -> DiskView:
    key = (look.store, look.config, look.token)
    found = _views.get(key)
    if found is None:
        if len(_views) > 3:
            _views.clear()
        found = _views[key] = DiskView(RocketMQStore(look.store, config=look.config, snapshot=look.token))
    return found


def _asked_of(look: Look) -> Asked:
    found = _asked.get(look.asked)
    if found is None:
        _asked.clear()
        found = _asked[look.asked] = Asked.mapped(look.asked)
    return found


# finding


def search_index(task: SearchTask) -> SearchResult:
    """Candidates of one index file, by probing or sweeping it."""
    file = _view_of(task.look).index_files()[task.number]
    try:
        found = (probe if task.plan is Plan.PROBE else sweep)(file, task.number, _asked_of(task.look))
    finally:
        if file.octets is not None:
            file.drop()
    if found.wrong or not len(found.candidates):
        return SearchResult(None, found.wrong, found.entries)
    staged = f"i{task.number:06d}.{secrets.token_hex(6)}.candidates"
    with DurableDirectory(task.look.stage) as stage:
        stage.create(staged)
        stage.pwrite(staged, 0, found.candidates.view(np.uint8))
    return SearchResult(staged, "", found.entries)


class _Found:
    """Hits of one stretch in log order, and what else candidates led to."""

    def __init__(self) -> None:
        self.offsets: list[Longs] = []
        self.places: list[Longs] = []
        self.near: list[Longs] = []
        self.damaged: list[Longs] = []
        self.topics: set[str] = set()
        self.unsound: set[int] = set()

    def take(self, records: Records, matched: Matches) -> None:
        self.offsets.append(records.positions[matched.rows] + records.file.start)
        self.places.append(matched.places)
        self.near.append(matched.near)

    def hits(self, limit: int | None) -> tuple[Longs, Longs]:
        """(physical offset, place of the asked key) of the hits, the newest `limit` of each key."""
        offsets, places = _joined(self.offsets), _joined(self.places)
        if limit is None:
            return offsets, places
        kept = newest(places, limit)
        return offsets[kept], places[kept]


def _joined(parts: Sequence[Longs]) -> Longs:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def scan_range(task: ScanTask) -> LookedUp:
    """Hits of one split. Raises PipelineError at damage, if that is to end the job."""
    look = task.look
    view, asked = _view_of(look), _asked_of(look)
    damage: list[Damage] = []
    found = _Found()
    for records, dispatched in _dispatched(SplitWalk(view.log, task.split, lead=LEAD), damage, look.failfast):
        found.topics.update(run.topic for run in dispatched.runs if run.topic in asked.topics)
        keys = dispatched.keys
        wanted = asked.has(keys["hash"].astype(np.int32))
        positions = np.unique(keys["physical_offset"][wanted].astype(np.int64)) - records.file.start
        for low in range(0, len(positions), RECORDS):
            some = Records(records.file, records.data, positions[low : low + RECORDS])
            found.take(some, matches(RecordColumns(some), asked))
            view.log.drop_records(some)
    read = task.split.stop - task.split.start
    return _told(look, view, asked, found, f"s{task.split.number:06d}", task.split.start, read, damage)


def _dispatched(walk: SplitWalk, damage: list[Damage], failfast: bool) -> Iterator[tuple[Records, Dispatched]]:
    """The records of a split dispatched, some hundred thousand at a time; with the first of them."""
    under: tuple[Records, Dispatcher] | None = None
    for event in walk:
        if isinstance(event, Damage):
            damage.append(event)
            if failfast:
                raise PipelineError(damage_sentence(event))
        if not isinstance(event, Records):
            continue
        if under is not None and (event.data is not under[0].data or under[1].count + len(event) > ROOM):
            yield under[0], under[1].finish()
            under = None
        if under is None:
            under = event, Dispatcher(event.data, Rules(delays=()), ROOM)
        under[1].add(event.positions)
    if under is not None:
        yield under[0], under[1].finish()


def damage_sentence(damage: Damage) -> str:
    """The one sentence with which damage ends a job."""
    return (
        f"{damage.file} is damaged at {damage.offset}, {damage.length} bytes: {damage.kind}; "
        "`mqstore verify` maps the damage, without FAILFAST it is skipped and told"
    )


def fetch_range(task: FetchTask) -> LookedUp:
    """Hits among the records that index entries lead to."""
    look = task.look
    view, asked = _view_of(look), _asked_of(look)
    rows = MappedFile(Path(task.candidates)).data.view(CANDIDATE)[task.low : task.high]
    found = _Found()
    read = 0
    for records, some in _believed(view.log, rows, asked, found):
        columns = RecordColumns(records)
        read += int(columns.row(frames.SIZE).sum())
        matched = matches(columns, asked)
        found.take(records, matched)
        # an entry whose record has no key of that hash is a wrong entry: the file cannot be believed
        owner = np.searchsorted(records.positions, some["physical_offset"] - records.file.start)
        had = np.isin((owner << 32) + some["hash"], (matched.owners << 32) + matched.hashes)
        found.unsound.update(np.unique(some["file"][~had]).tolist())
        view.log.drop_records(records)
    return _told(look, view, asked, found, f"c{task.low:010d}", task.start, read, [])


def _believed(log: CommitLog, rows: NDArray[np.void], asked: Asked, found: _Found) -> Iterator[tuple[Records, NDArray[np.void]]]:
    """Candidates that lead to believable records, some thousand at a time, with those records, each once."""
    starts = np.array([file.start for file in log.files], np.int64)
    for low in range(0, len(rows), RECORDS):
        some = rows[low : low + RECORDS]
        numbers = np.searchsorted(starts, some["physical_offset"], "right") - 1
        for number in np.unique(numbers).tolist():
            inside = some[numbers == number]
            if number >= 0:
                file = log.files[number]
                positions = np.unique(inside["physical_offset"]) - file.start
                for data, near in gathered(log.mapped(file), file.start, positions.astype(np.int64)):
                    sound = np.array([_starts(data, position, file.start) for position in near.tolist()], np.bool_)
                    offsets = inside["physical_offset"] - file.start
                    here = inside[(offsets >= near[0]) & (offsets <= near[-1])]
                    led = np.isin(here["physical_offset"] - file.start, near[sound])
                    _not_led(here[~led], asked, found)
                    if led.any():
                        yield Records(file, data, np.ascontiguousarray(near[sound])), here[led]
            else:
                _not_led(inside, asked, found)


def _not_led(some: NDArray[np.void], asked: Asked, found: _Found) -> None:
    """Take note of candidates that lead to no believable record."""
    if len(some):
        found.damaged.append(asked.places(some["hash"].astype(np.int32))[1])
        found.unsound.update(np.unique(some["file"]).tolist())


def _starts(data: Bytes, position: int, base: int) -> bool:
    return position + 8 <= len(data) and frames.status_at(data, position, base, True) == frames.STOP


# writing


def _told(look: Look, view: DiskView, asked: Asked, found: _Found, name: str, start: int, read: int, damage: Sequence[Damage]) -> LookedUp:
    """Write what was found into the stage."""
    offsets, places = found.hits(look.max_per_key)
    token = secrets.token_hex(6)
    part: Part | None = None
    told: str | None = None
    near, damaged = np.unique(_joined(found.near)), np.unique(_joined(found.damaged))
    with DurableDirectory(look.stage) as stage:
        if len(offsets):
            staged = f"{name}.{token}.rows"
            with stage.open_new(staged) as sink:
                file = AnswerFile(sink, answer_schema(look.columns, look.lines), look.lines)
                for batch in _answers(look, view, asked, offsets, places):
                    file.write(batch)
                view.log.drop_queues()
                file.finish()
                part = Part(staged, "", file.rows, sink.size)
        if len(offsets) or len(near) or len(damaged):
            rows = np.zeros(len(offsets) + len(near) + len(damaged), TOLD)
            rows["place"] = np.concatenate([places, near, damaged])
            rows["physical_offset"][: len(offsets)] = offsets
            rows["outcome"] = np.repeat([HIT, NEAR, DAMAGED], [len(offsets), len(near), len(damaged)])
            told = f"{name}.{token}.told"
            stage.create(told)
            stage.pwrite(told, 0, rows.view(np.uint8))
    return LookedUp(
        start,
        part,
        told,
        frozenset(found.topics),
        frozenset(found.unsound),
        read,
        tuple(damage[:MAX_TOLD]),
        max(0, len(damage) - MAX_TOLD),
    )


def _answers(look: Look, view: DiskView, asked: Asked, offsets: Longs, places: Longs) -> Iterable[pa.RecordBatch]:
    """A row per hit: the asked key and the message."""
    import pyarrow as pa

    schema = answer_schema(look.columns, look.lines)
    for columns, owner, of_some in _records(view.log, offsets, places):
        batch = batch_of(columns, look.columns, view.log, view.queue_or_none, milliseconds=look.lines)
        if len(owner) != len(columns):
            batch = batch.take(pa.array(owner))
        rows = pa.array(of_some)
        yield pa.RecordBatch.from_arrays(
            [
                asked.topic.take(rows).cast(pa.string()),
                asked.key.take(rows).cast(pa.string()),
                pa.array(np.ones(len(of_some), np.bool_)),
                *batch.columns,
                pa.nulls(len(of_some), pa.string()),
            ],
            schema=schema,
        )
        view.log.drop_records(columns.records)


def _records(log: CommitLog, offsets: Longs, places: Longs) -> Iterator[tuple[RecordColumns, Longs, Longs]]:
    """The records of the hits, 16 MiB at the most, with (record, asked key) of each hit among them."""
    starts = np.array([file.start for file in log.files], np.int64)
    numbers = np.searchsorted(starts, offsets, "right") - 1
    for number in np.unique(numbers).tolist():
        low, high = np.searchsorted(numbers, [number, number + 1]).tolist()
        file = log.files[number]
        positions, owner = np.unique(offsets[low:high] - file.start, return_inverse=True)
        at = 0
        for data, near in gathered(log.mapped(file), file.start, positions):
            for first in range(0, len(near), RECORDS):
                for piece in RecordColumns(Records(file, data, near[first : first + RECORDS])).pieces(MAX_BATCH_BYTES):
                    begin, end = np.searchsorted(owner, [at, at + len(piece)]).tolist()
                    yield piece, owner[begin:end] - at, places[low + begin : low + end]
                    at += len(piece)
