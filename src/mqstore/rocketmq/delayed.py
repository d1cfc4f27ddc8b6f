"""Delayed messages that were delivered: the copy of each in its topic, and what a start delivers a second time.

The entry of a delayed message stays in SCHEDULE_TOPIC_XXXX after delivery; only `config/delayOffset.json` says how far each level was
delivered. If that is lost or older than the log, a broker starts from what it says, and puts every message that is due once more.

    copy      a later record in REAL_TOPIC and REAL_QID with the unique key and the number of attempts of the entry; each copy is that
              of the first entry that has none yet, so that a message which was sent twice has two
    again     entries from the loaded offset on that have a copy: they are delivered again
    proved    the offset after the leading entries that have a copy: a level is delivered in order, and continues there at the earliest
    untold    entries that were due and have no unique key, or cannot be read: whether they were delivered is not known; not those that lead
              to a record of another topic without REAL_QID, which a broker cannot put anywhere

An entry whose time had not come when the newest message was stored has no copy, and is not looked at.

Format: docs/formats/rocketmq.md, sections 1.5, 3.2 and 3.7.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.findings import Damage
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.format.system_topics import SCHEDULE_TOPIC
from mqstore.rocketmq.lookup.pruning import grouped_records
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.rocketmq.store.view import QueueLookup, QueueView, View, first_entry

ENTRIES_AT_ONCE = 1 << 16
MOST_COMPARED = 1 << 20  # entries of all levels whose copies are looked for; further ones are untold


class Delayed(NamedTuple):
    """A record that waits, or waited, for its time. topic, queue_id: to which it is delivered."""

    physical_offset: int
    uniq_key: str
    topic: str
    queue_id: int
    reconsume_times: int


@dataclass(frozen=True, slots=True)
class DelayLevel:
    """One delay level. begin: where a broker continues; end: of its queue. again, proved, untold: as above."""

    level: int
    begin: int
    end: int
    again: int
    proved: int
    untold: int


def waiting_record(physical_offset: int, uniq_key: str | None, properties: Mapping[str, str], reconsume_times: int) -> Delayed | None:
    """Return what a record of the schedule or the timer wheel waits for; None if its properties do not say it."""
    queue_id = properties.get("REAL_QID", "")
    if not uniq_key or "REAL_TOPIC" not in properties or not (queue_id.isascii() and queue_id.isdecimal()):
        return None
    return Delayed(physical_offset, uniq_key, properties["REAL_TOPIC"], int(queue_id), reconsume_times)


def delivered(every: Sequence[Delayed], log: CommitLog, queue: QueueLookup, *, once: bool = False) -> NDArray[np.bool_]:
    """Return for each of these, in log order, whether its copy is in its topic.

    once: one copy is that of all entries before it with its unique key, as where a broker puts an entry into the timer wheel again.
    """
    result = np.zeros(len(every), np.bool_)
    by_queue: dict[tuple[str, int], dict[tuple[str, int], list[int]]] = defaultdict(dict)
    for k, item in enumerate(every):
        by_queue[item.topic, item.queue_id].setdefault((item.uniq_key, item.reconsume_times), []).append(k)
    for (topic, queue_id), pending in by_queue.items():
        target = queue(topic, queue_id)
        if target is None:
            continue
        for physical, key in _copies(target, log, min(every[first[0]].physical_offset for first in pending.values())):
            waiting = pending.get(key, [])
            while waiting and every[waiting[0]].physical_offset < physical:
                result[waiting.pop(0)] = True
                if not once:
                    break
    return result


def _copies(queue: QueueView, log: CommitLog, after: int) -> Iterator[tuple[int, tuple[str, int]]]:
    """Yield (physical offset, (unique key, attempts)) of the records of a queue from a position of the log on."""
    start = first_entry(queue, after)
    for begin in range(start, queue.max_offset, ENTRIES_AT_ONCE):
        for columns in _records(log, queue.entries(begin, min(queue.max_offset, begin + ENTRIES_AT_ONCE))):
            yield from zip(
                columns.row(frames.PHYSICAL_OFFSET).tolist(),
                zip(columns.uniq_key.to_pylist(), columns.row(frames.RECONSUME_TIMES).tolist(), strict=True),
                strict=True,
            )


def _records(log: CommitLog, entries: NDArray[np.void], report: Callable[[Damage], None] | None = None) -> Iterator[RecordColumns]:
    places = entries["physical_offset"][entries["size"] > 0].astype(np.int64)
    for records in grouped_records(log, places, report):
        yield RecordColumns(records)


def delay_levels(view: View, log: CommitLog, loaded: Mapping[int, int], last_timestamp: int) -> list[DelayLevel]:
    """Return how far each level was delivered. loaded: delay level -> next offset, as a broker loads it.

    last_timestamp: store time of the newest message.
    """
    levels: list[tuple[QueueView, int, NDArray[np.bool_], dict[int, int]]] = []
    every: list[Delayed] = []
    for queue in view.queues():
        if queue.topic != SCHEDULE_TOPIC or queue.batch:
            continue
        begin = min(max(loaded.get(queue.queue_id + 1, 0), view.min_offset(queue)), queue.max_offset)
        entries = queue.entries(begin, queue.max_offset)
        due = (entries["tags_code"].astype(np.int64) <= last_timestamp) & (entries["size"] > 0)
        chosen = np.flatnonzero(due)[: max(0, MOST_COMPARED - len(every))]
        offsets = dict(zip(entries["physical_offset"][chosen].tolist(), (begin + chosen).tolist(), strict=True))
        numbers: dict[int, int] = {}  # number in `every` by queue offset; -1 where the record is not of a delayed message
        for columns in _records(log, entries[chosen]):
            rows = zip(
                *(columns.row(field).tolist() for field in (frames.PHYSICAL_OFFSET, frames.QUEUE_OFFSET, frames.RECONSUME_TIMES)),
                columns.uniq_key.to_pylist(),
                columns.column("properties").to_pylist(),
                columns.topic.to_pylist(),
                strict=True,
            )
            for physical, offset, attempts, unique, pairs, topic in rows:
                properties = dict(pairs or ())
                item = waiting_record(physical, unique, properties, attempts)
                if item is not None and offsets.get(physical) == offset:
                    numbers[offset] = len(every)
                    every.append(item)
                elif topic != SCHEDULE_TOPIC and "REAL_QID" not in properties:
                    numbers[offsets[physical]] = -1
        levels.append((queue, begin, due, numbers))
    order = sorted(range(len(every)), key=lambda k: every[k].physical_offset)
    have = np.zeros(len(every), np.bool_)
    have[order] = delivered([every[k] for k in order], log, view.queue_or_none)
    return [_level(queue, begin, due, numbers, have) for queue, begin, due, numbers in levels]


def _level(queue: QueueView, begin: int, due: NDArray[np.bool_], numbers: Mapping[int, int], have: NDArray[np.bool_]) -> DelayLevel:
    places = range(begin, begin + len(due))
    known = np.array([offset in numbers for offset in places], np.bool_)
    copied = np.array([numbers.get(offset, -1) >= 0 and bool(have[numbers[offset]]) for offset in places], np.bool_)
    leading = len(copied) if copied.all() else int(np.argmin(copied))
    return DelayLevel(queue.queue_id + 1, begin, queue.max_offset, int(copied.sum()), begin + leading, int((due & ~known).sum()))
