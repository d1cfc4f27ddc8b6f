"""The message table of a commit log: records in physical order, filtered, each with a verdict.

Both views of a store use it; they differ in the range of the log and in the queues that verdicts are checked against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.findings import Damage, Verdict
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.commit_log import CommitLog, Records
from mqstore.rocketmq.format.record import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE, split_keys
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.rocketmq.store.view import QueueLookup, QueueView
from mqstore.table.columns import Selection

if TYPE_CHECKING:
    import pyarrow as pa

Mask = NDArray[np.bool_]

MAX_BATCH_BYTES = 16 << 20  # bytes of records in a batch, so that no column comes near the 2 GiB that Arrow allows

_VERDICTS = (Verdict.INTACT, Verdict.UNINDEXED, Verdict.DUPLICATE, Verdict.DAMAGED)
_INTACT, _UNINDEXED, _DUPLICATE, _DAMAGED = range(4)  # numbers of these verdicts


def select(columns: RecordColumns, selection: Selection) -> Mask:
    """Return which records fit the selection, not counting its limit. Bodies are read last, and only for grep."""
    mask = _is_within(
        columns,
        (frames.PHYSICAL_OFFSET, selection.from_offset, selection.to_offset),
        (frames.QUEUE_OFFSET, selection.from_queue_offset, selection.to_queue_offset),
        (frames.STORE_TIMESTAMP, selection.since, selection.until),
    )
    for bounds in selection.by_queue:
        own = mask & (columns.row(frames.QUEUE_ID) == bounds.queue_id)
        if own.any():
            own &= _is_in(columns.topic, frozenset((bounds.topic,)))
            offsets, times = (bounds.from_offset, bounds.to_offset), (bounds.since, bounds.until)
            mask &= ~own | _is_within(columns, (frames.QUEUE_OFFSET, *offsets), (frames.STORE_TIMESTAMP, *times))
    if selection.queue_ids is not None:
        mask &= np.isin(columns.row(frames.QUEUE_ID), list(selection.queue_ids))
    if selection.topics is not None and mask.any():
        mask &= _is_in(columns.topic, selection.topics)
    if selection.topic_pattern is not None and mask.any():
        topics = [topic for topic in columns.topic.unique().to_pylist() if topic is not None]
        mask &= _is_in(columns.topic, frozenset(topic for topic in topics if selection.topic_pattern.fullmatch(topic)))
    if selection.tags is not None and mask.any():
        mask &= _is_in(columns.tags, selection.tags)
    if selection.keys is not None and mask.any():
        mask &= _has_key(columns, selection.keys)
    if selection.grep is not None:
        for k in np.flatnonzero(mask).tolist():
            body = columns.body(k)
            mask[k] = body is not None and selection.grep.search(body) is not None
    return mask


def _is_within(columns: RecordColumns, *bounds: tuple[int, int | None, int | None]) -> Mask:
    """Return which records have each of these fields from its lower bound on, and below its upper one."""
    mask = np.ones(len(columns), np.bool_)
    for field, low, high in bounds:
        if low is not None:
            mask &= columns.row(field) >= low
        if high is not None:
            mask &= columns.row(field) < high
    return mask


def _is_in(values: pa.Array, selected: frozenset[str]) -> Mask:
    import pyarrow as pa
    import pyarrow.compute as pc

    mask: Mask = pc.is_in(values, value_set=pa.array(sorted(selected), pa.string())).to_numpy(zero_copy_only=False)
    return mask


def _has_key(columns: RecordColumns, selected: frozenset[str]) -> Mask:
    import pyarrow.compute as pc

    stored = columns.stored_keys
    mask = _is_in(columns.uniq_key, selected) | _is_in(stored, selected)
    several = pc.fill_null(pc.match_substring(stored, " "), False).to_numpy(zero_copy_only=False)
    for k in np.flatnonzero(several & ~mask).tolist():
        mask[k] = not selected.isdisjoint(split_keys(stored[k].as_py()))
    return mask


def judge(columns: RecordColumns, log: CommitLog, queue_of: QueueLookup | None) -> NDArray[np.int8]:
    """Return a verdict per record, as an index into `_VERDICTS`: its own checks, then whether its queue entry points at it.

    queue_of: None if the queues are not read, so that only a record's own checks count.
    """
    verdict = np.zeros(len(columns), np.int8)
    kind = columns.row(frames.SYS_FLAG) & TRANSACTION_MASK
    expected = (kind == TRANSACTION_NONE) | (kind == TRANSACTION_COMMIT)
    if queue_of is None:
        verdict[~columns.valid] = _DAMAGED
        return verdict
    encoded = columns.topic.dictionary_encode()
    topics = encoded.dictionary.to_pylist()
    groups = encoded.indices.to_numpy().astype(np.int64) * (1 << 32) + columns.row(frames.QUEUE_ID)
    # the records of each queue together, in log order
    order = np.flatnonzero(expected)
    order = order[np.argsort(groups[order], kind="stable")]
    ordered = groups[order]
    for members in np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1) if len(order) else ():
        group = int(groups[members[0]])
        number = (group + (1 << 31)) >> 32
        queue = queue_of(topics[number], group - (number << 32))
        verdict[members] = _UNINDEXED if queue is None else _against_queue(columns, members, queue, log)
    verdict[~columns.valid] = _DAMAGED
    return verdict


def _against_queue(columns: RecordColumns, members: NDArray[np.intp], queue: QueueView, log: CommitLog) -> NDArray[np.int8]:
    """Return INTACT where the queue's entry points at the record, DUPLICATE where it points at a twin, else UNINDEXED."""
    offsets = columns.row(frames.QUEUE_OFFSET)[members]
    physical = columns.row(frames.PHYSICAL_OFFSET)[members]
    low, high = max(queue.min_offset, int(offsets.min())), min(queue.max_offset, int(offsets.max()) + 1)
    verdict = np.full(len(members), _UNINDEXED, np.int8)
    if low >= high:
        return verdict
    entries = queue.entries(low, high)
    consecutive = len(entries) == len(members) == high - low and bool((offsets == np.arange(low, high)).all())
    if consecutive and (entries["physical_offset"] == physical).all():
        verdict[:] = _INTACT  # as in a queue without any damage
        return verdict
    if queue.batch:
        verdict[np.isin(physical, entries["physical_offset"])] = _INTACT
        return verdict
    inside = (offsets >= low) & (offsets < low + len(entries))
    listed = entries["physical_offset"].astype(np.int64)[offsets[inside] - low]
    verdict[inside] = np.where(listed == physical[inside], _INTACT, _UNINDEXED)
    for k in np.flatnonzero(inside)[listed != physical[inside]].tolist():
        twin = log.record(int(entries["physical_offset"][offsets[k] - low]))
        if twin is None or twin.sys_flag & TRANSACTION_MASK not in (TRANSACTION_NONE, TRANSACTION_COMMIT):
            continue  # a prepared or rolled back record has no entry, whatever points at it
        if (twin.topic, twin.queue_id, twin.queue_offset) == (queue.topic, queue.queue_id, int(offsets[k])):
            verdict[k] = _DUPLICATE
    return verdict


def batch_of(
    columns: RecordColumns, names: Sequence[str], log: CommitLog, queue_of: QueueLookup | None, *, milliseconds: bool = False
) -> pa.RecordBatch:
    """Return the named columns as a batch, with verdicts if requested."""
    import pyarrow as pa

    verdict = None
    if "verdict" in names:
        verdict = pa.array([str(each) for each in _VERDICTS]).take(pa.array(judge(columns, log, queue_of)))
    return columns.batch(names, verdict, milliseconds=milliseconds)


def table(
    log: CommitLog,
    low: int,
    high: int,
    names: Sequence[str],
    selection: Selection,
    queue_of: QueueLookup | None,
    *,
    milliseconds: bool = False,
    on_damage: Callable[[Damage], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield batches of the records in [low, high) that fit the selection, in physical order. Offsets may be inside records.

    A batch holds a few thousand rows, or 16 MiB of records. on_damage: called with ranges of log that are not records.
    """
    low = max(low, selection.from_offset or 0)
    if selection.to_offset is not None:
        high = min(high, selection.to_offset)
    # offsets are those of records: what comes before them in their units belongs to them
    low, high = low - log.header_size, high - log.header_size
    left = selection.limit
    for file in log.files:
        start, stop = max(0, low - file.start), min(file.size, high - file.start)
        if start >= stop or (left is not None and left <= 0):
            continue
        if start:
            first = log.first_record(file, start, stop)
            if first is None:
                continue
            start = first
        for event in log.scan_file(file, start, stop):
            if not isinstance(event, Records):
                if on_damage is not None and isinstance(event, Damage):
                    on_damage(event)
                continue
            columns = RecordColumns(event)
            mask = select(columns, selection)
            if left is not None and int(mask.sum()) > left:
                mask[np.flatnonzero(mask)[left:]] = False
            if not mask.any():
                continue
            columns = columns.take(mask)
            for piece in columns.pieces(MAX_BATCH_BYTES):
                yield batch_of(piece, names, log, queue_of, milliseconds=milliseconds)
            if left is not None:
                left -= len(columns)
                if left <= 0:
                    return
