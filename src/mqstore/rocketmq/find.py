"""The messages that hold a text in their keys, ids, properties or bodies: the task of `find`.

A task searches the records that start in one split, or records at given places. Spans of whole batches are searched by a kernel; only
messages that hold the text are decoded. Bytes of the log that are not records are searched too, because what was lost there may be what
is looked for. A body that cannot be decompressed is not searched; it is counted.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mqstore.files.location import Url
from mqstore.findings import Damage
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.config.broker_config import BrokerConfig
from mqstore.rocketmq.delayed import delivered, waiting_record
from mqstore.rocketmq.format import compression, record
from mqstore.rocketmq.format.commit_log import CommitLog, Records
from mqstore.rocketmq.format.record import split_keys
from mqstore.rocketmq.format.system_topics import HALF_TOPICS, SCHEDULED_TOPICS, TIMER_TOPIC
from mqstore.rocketmq.lookup.pruning import grouped_records
from mqstore.rocketmq.query.index_search import query_offsets
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.rocketmq.scan.planned_files import FilesSeen, require_seen
from mqstore.rocketmq.scan.splits import LEAD, Split, SplitWalk
from mqstore.rocketmq.store.disk_view import DiskView
from mqstore.rocketmq.store.message_table import batch_of
from mqstore.rocketmq.store.split_reader import opened_view
from mqstore.rocketmq.store.view import ConsumerOffset, View
from mqstore.table.formatting import count, pace
from mqstore.table.needle import COMPRESSED, Needle, expand, looks_compressed
from mqstore.table.text import columns_for, python_rows

# added to the columns of the message table
BURIED_NAMED = 20
FOUND_COLUMNS = ("matched_in", "matched_as", "state", "indexed", "consumed_by", "not_consumed_by")

MAX_KEPT = 10_000  # hits of a task that are decoded; further ones are counted
MAX_BURIED = 100
MAX_DAMAGE = 1000
PIECE = 4 << 20
INDEX_HITS = 1 << 20

_CORRELATION = "CORRELATION_ID"

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FindTask:
    """Search one split, or the records at physical offsets `points` (ascending). token, seen: see `planned_files`.

    whole_key: only messages with a key or unique key that equals the text. body: how rows show bodies. keep: rows to return at most.
    first: see SplitWalk.
    """

    store: str | Url
    config: BrokerConfig
    token: str
    needle: Needle
    split: Split
    seen: FilesSeen | None
    points: tuple[int, ...] | None = None
    whole_key: bool = False
    body: str = "sha256"
    keep: int = MAX_KEPT
    first: int | None = None

    def again(self, first: int) -> FindTask:
        """Return the task for a split whose first record is known."""
        return replace(self, first=first)


@dataclass(slots=True)
class FoundInSplit:
    """What one task found. hits: messages with the text, of which `rows` shows the first. bytes: of records searched.

    buried: places (file, offset) of the text in bytes that are not a record. unsearched: bodies that cannot be decompressed.
    """

    split: Split
    begin: int | None = None
    reach: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    hits: int = 0
    records: int = 0
    bytes: int = 0
    unsearched: int = 0
    buried: list[tuple[str, int]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    damaged_ranges: int = 0


def find_in_split(task: FindTask) -> FoundInSplit:
    """Search the records of a task."""
    view = opened_view(task.store, task.config, task.token)
    require_seen(view.log, task.seen)
    result = FoundInSplit(task.split)
    try:
        if task.points is not None:
            for records in grouped_records(view.log, np.array(task.points, np.int64), result.damage.append):
                _search(records, task, view, result)
            return result
        walk = SplitWalk(view.log, task.split, first=task.first, lead=LEAD)
        for event in walk:
            if isinstance(event, Records):
                _search(event, task, view, result)
            elif isinstance(event, Damage):
                _search_damage(event, view.log, task.needle, result)
        result.begin, result.reach = walk.begin, walk.reach
    finally:
        view.log.drop_queues()
    return result


def _search(records: Records, task: FindTask, view: DiskView, result: FoundInSplit) -> None:
    columns = RecordColumns(records)
    result.records += len(columns)
    result.bytes += int(columns.row(frames.SIZE).sum())
    mask = _has_key(columns, task.needle) if task.whole_key else _holding(columns, task.needle, result)
    if not mask.any():
        return
    columns = columns.take(mask)
    log = view.log
    for piece in columns.pieces(PIECE):
        matches = [_matches(piece, k, task.needle, whole=task.whole_key) for k in range(len(piece))]
        hits = np.array([bool(names) for names, _ in matches], np.bool_)
        result.hits += int(hits.sum())
        hits[np.flatnonzero(hits)[max(0, task.keep - len(result.rows)) :]] = False
        if not hits.any():
            continue
        batch = batch_of(piece.take(hits), columns_for(task.body), log, view.queue_lookup, milliseconds=True)
        for row, (names, forms) in zip(
            python_rows(batch, task.body), (match for match, keep in zip(matches, hits, strict=True) if keep), strict=True
        ):
            result.rows.append(row | {"matched_in": names, "matched_as": forms})


def _has_key(columns: RecordColumns, needle: Needle) -> Mask:
    likely = needle.marks_of(columns.stored_keys) | needle.marks_of(columns.uniq_key)
    for k in np.flatnonzero(likely).tolist():
        stored, unique = columns.stored_keys[k].as_py(), columns.uniq_key[k].as_py()
        likely[k] = unique == needle.text or (stored is not None and needle.text in split_keys(stored))
    return likely


def _holding(columns: RecordColumns, needle: Needle, result: FoundInSplit) -> Mask:
    """Return which records may hold the text in their properties or body."""
    data = columns.records.data
    mask = np.zeros(len(columns), np.bool_)
    for start, length in ((frames.PROPERTIES_START, frames.PROPERTIES_LENGTH), (frames.BODY_START, frames.BODY_LENGTH)):
        starts = columns.row(start)
        mask |= needle.marks(data, starts, starts + np.maximum(columns.row(length), 0))
    starts, lengths = columns.row(frames.BODY_START), columns.row(frames.BODY_LENGTH)
    compressed = columns.row(frames.SYS_FLAG) & record.COMPRESSED != 0
    streams = np.zeros(len(columns), np.bool_)
    long = lengths > 5
    streams[long] = np.isin(data[starts[long]], (0x1F, 0x78))
    for k in np.flatnonzero((compressed | streams) & ~mask).tolist():
        raw = data[int(starts[k]) : int(starts[k] + lengths[k])].tobytes()
        if compressed[k]:
            try:
                mask[k] = bool(needle.forms_in(compression.decompress(raw, int(columns.fields[frames.SYS_FLAG, k]))))
            except compression.BadCompressionError:
                result.unsearched += 1
        elif looks_compressed(raw):
            expanded = expand(raw)
            mask[k] = expanded is not None and bool(needle.forms_in(expanded))
    return mask


def _matches(columns: RecordColumns, k: int, needle: Needle, *, whole: bool) -> tuple[list[str], list[str]]:
    """Return (columns of the message that hold the text, forms in which they do); empty if none does."""
    data = columns.records.data
    names: dict[str, None] = {}
    forms: dict[str, None] = {}

    def text(name: str, value: str | None) -> bool:
        inside = () if value is None else needle.forms_in(value.encode("utf-8", "surrogatepass"))
        if inside:
            names[name] = None
            forms.update(dict.fromkeys(inside))
        return bool(inside)

    text("keys", columns.stored_keys[k].as_py())
    text("uniq_key", columns.uniq_key[k].as_py())
    if whole:
        return list(names), list(forms)
    pairs = columns.take(np.arange(len(columns)) == k).column("properties")[0].as_py() or ()
    for name, value in pairs:
        if name == _CORRELATION:
            text("correlation_id", value)
        elif name not in ("KEYS", "UNIQ_KEY"):
            text("properties", value)
            text("properties", name)
    if not names:
        start, length = (int(columns.fields[row, k]) for row in (frames.PROPERTIES_START, frames.PROPERTIES_LENGTH))
        if length > 0 and needle.raw in data[start : start + length].tobytes():
            names["properties"], forms["text"] = None, None  # damaged text, or across the end of a property
    body = columns.body(k)
    inside = () if body is None else needle.forms_in(body)
    if inside:
        names["body"] = None
        if columns.fields[frames.SYS_FLAG, k] & record.COMPRESSED:
            forms[COMPRESSED] = None
        forms.update(dict.fromkeys(inside))
    elif body is None:
        start, length = (int(columns.fields[row, k]) for row in (frames.BODY_START, frames.BODY_LENGTH))
        if needle.raw in data[start : start + length].tobytes():
            names["body"], forms["text"] = None, None
    return list(names), list(forms)


def _search_damage(damage: Damage, log: CommitLog, needle: Needle, result: FoundInSplit) -> None:
    result.damaged_ranges += 1
    if len(result.damage) < MAX_DAMAGE:
        result.damage.append(damage)
    file = next((each for each in log.files if each.relative == damage.file), None)
    if file is None:
        return
    mapped = log.mapped(file)
    stop = min(damage.offset + damage.length, mapped.size)
    for at in range(damage.offset, stop, PIECE):
        piece = bytes(mapped.bytes(at, min(at + PIECE + 2 * len(needle.raw), stop)))
        if len(result.buried) < MAX_BURIED and needle.forms_in(piece):
            result.buried.append((damage.file, at + max(0, piece.find(needle.raw))))


# the state of a hit


class HitStates:
    """What became of the messages found: whether the index leads to them, and which consumer groups have passed them.

    queues_known, index_known: False if those of the store are not read.
    """

    def __init__(self, view: View, *, queues_known: bool = True, index_known: bool = True) -> None:
        self._view = view
        self._queues_known = queues_known
        self._files = view.index_files() if index_known else ()
        self._hits: dict[tuple[str, str], frozenset[int]] = {}
        self._offsets: dict[str, dict[str, dict[int, ConsumerOffset]]] = {}
        for each in view.consumer_offsets():
            self._offsets.setdefault(each.topic, {}).setdefault(each.group, {})[each.queue_id] = each
        for group, topic, _ in (*view.pops.held, *view.pops.acknowledged):
            self._offsets.setdefault(topic, {}).setdefault(group, {})

    def delivered(self, rows: Sequence[Mapping[str, Any]], log: CommitLog) -> frozenset[int]:
        """Return the physical offsets of the delayed messages among rows whose copy is in their topic."""
        offsets: set[int] = set()
        for topic in SCHEDULED_TOPICS:
            waiting = [
                waiting_record(row["physical_offset"], row["uniq_key"], row["properties"], row["reconsume_times"])
                for row in rows
                if row["topic"] == topic
            ]
            every = [each for each in waiting if each is not None]
            have = delivered(every, log, self._view.queue_or_none, once=topic == TIMER_TOPIC).tolist() if every else ()
            offsets.update(each.physical_offset for each, copied in zip(every, have, strict=True) if copied)
        return frozenset(offsets)

    def add_to(self, row: dict[str, Any], delivered: Container[int] = ()) -> None:
        """Add `state`, `indexed`, `consumed_by` and `not_consumed_by` to a row. delivered: of all rows."""
        passed: list[dict[str, Any]] = []
        others: list[dict[str, Any]] = []
        for group, by_queue in sorted(self._offsets.get(row["topic"], {}).items()):
            known = by_queue.get(row["queue_id"])
            offset = None if known is None else known.offset
            state, until = self._view.pops.state(
                (group, row["topic"], row["queue_id"]), row["queue_offset"], offset, beyond=known is not None and known.state == "above-max"
            )
            if state == "consumed":
                passed.append({"group": group, "offset": offset})
            else:
                others.append({"group": group, "offset": offset, "state": state} | ({} if until is None else {"until": until}))
        row["state"] = _state(row, passed, others, queues_known=self._queues_known)
        if row["physical_offset"] in delivered:
            row["state"] = "delivered"
        row["indexed"] = self._is_indexed(row)
        row["consumed_by"] = passed
        row["not_consumed_by"] = others

    def _is_indexed(self, row: dict[str, Any]) -> bool | None:
        """Return whether each key of a message leads to it through the index; None if it has no keys or there is no index."""
        keys = {*(split_keys(row["keys"]) if row["keys"] else ()), *filter(None, (row["uniq_key"],))}
        if not keys or not self._files:
            return None
        return all(row["physical_offset"] in self._index_hits(row["topic"], key) for key in keys)

    def _index_hits(self, topic: str, key: str) -> frozenset[int]:
        hits = self._hits.get((topic, key))
        if hits is None:
            hits = frozenset(query_offsets(self._files, topic, key, INDEX_HITS, cap=INDEX_HITS).offsets)
            self._hits[topic, key] = hits
        return hits


_UNKNOWN = {"above-max", "unproved"}  # states of a group that say neither that it has consumed a message nor that it has not


def _state(row: dict[str, Any], passed: list[dict[str, Any]], others: list[dict[str, Any]], *, queues_known: bool) -> str:
    if row["topic"] in SCHEDULED_TOPICS:
        return "scheduled"
    if row["topic"] in HALF_TOPICS:
        return "half"
    if row["verdict"] in ("unindexed", "duplicate"):
        return "not-in-queue"
    if not queues_known:
        return "unknown"
    states = {each["state"] for each in others} - _UNKNOWN
    if states:
        return next((state for state in ("in-hand", "redelivery") if states == {state}), "waiting")
    return "consumed" if passed else "no-group" if not others else "unknown"


# the report


@dataclass(frozen=True, slots=True)
class FindReport:
    """Outcome of `find`. rows: message table rows with FOUND_COLUMNS; hits: how many there are, also beyond the limit.

    log_bytes: of the log to search; searched: bytes of the records read. how: a sentence on what was read. runs_on, why: where it was
    searched, and why there.
    buried: places (file, offset) of the text in damaged bytes. unsearched: bodies that cannot be decompressed.
    """

    family: ClassVar[str] = "rocketmq"

    store: str
    text: str
    rows: tuple[dict[str, Any], ...]
    hits: int
    records: int
    searched: int
    log_bytes: int
    seconds: float
    how: str
    runs_on: str
    buried: tuple[tuple[str, int], ...]
    unsearched: int
    damage: tuple[Damage, ...]
    damaged_ranges: int
    notes: tuple[str, ...] = ()
    why: str = ""

    @property
    def complete(self) -> bool:
        """Whether a message with the text cannot have been missed."""
        return not self.damaged_ranges and not self.unsearched and not self.damage

    @property
    def extent(self) -> str:
        """What was searched, and how fast."""
        return f"{count(self.records, 'record')} read: {self.how}; {pace(self.searched, self.seconds)}"

    @property
    def limits(self) -> tuple[str, ...]:
        """Sentences on what is not among the rows, and on what the search could not see."""
        limits = []
        if self.hits > len(self.rows):
            limits.append(f"{count(len(self.rows), 'row')} of {self.hits:,} shown; --limit N shows more")
        for file, offset in self.buried[:BURIED_NAMED]:
            limits.append(f"{file} at {offset}: the text is in bytes that are not a valid record; `mqstore verify` reports what is there")
        if self.unsearched:
            limits.append(f"{count(self.unsearched, 'compressed message')} could not be searched, because the body cannot be decompressed")
        if self.damaged_ranges:
            limits.append(
                f"bytes of the log that are not a valid record were searched ({count(self.damaged_ranges, 'range')}), "
                "but what was overwritten or compressed there is unknown"
            )
        return (*limits, *self.notes)

    def columns(self, body: str) -> tuple[str, ...]:
        """Return the names of the values of a row. body: as for `mqstore.jobs.find.find`."""
        return (*columns_for(body), *FOUND_COLUMNS)

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `find -o json` prints."""
        return {
            "store": self.store,
            "text": self.text,
            "hits": self.hits,
            "messages": list(self.rows),
            "complete": self.complete,
            "read": {
                "how": self.how,
                "records": self.records,
                "bytes": self.searched,
                "log_bytes": self.log_bytes,
                "seconds": round(self.seconds, 3),
                "runs_on": self.runs_on,
                "why": self.why,
            },
            "in_damaged_bytes": [{"file": file, "offset": offset} for file, offset in self.buried],
            "bodies_not_readable": self.unsearched,
            "damage": [item.as_dict() for item in self.damage],
            "notes": list(self.notes),
        }
