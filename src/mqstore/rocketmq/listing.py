"""Queues with their bounds, entries with their state, and consumer groups with their lag, as `topics`, `queue` and `groups` show them.

topic_rows(view)     a row per consume queue
entry_rows(…)        a row per entry: ok, expired, filling, unwritten, beyond-log, no-record or mismatch
list_groups(…)       a row per committed offset
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqstore.errors import UnsupportedError
from mqstore.rocketmq.store.unread_parts import static_topics
from mqstore.table.formatting import count, did_you_mean

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mqstore.findings import Damage
    from mqstore.rocketmq.config.consumer_offsets import OffsetTable
    from mqstore.rocketmq.format.mapped_file_queue import QueueFile
    from mqstore.rocketmq.store.store import RocketMQStore
    from mqstore.rocketmq.store.view import ConsumerOffset, QueueView, View

ENTRY_NAMES = ("queue_offset", "physical_offset", "size", "tags_code", "state")
TOPIC_NAMES = ("topic", "queue_id", "min_offset", "max_offset", "messages", "expired", "bytes", "last_store_timestamp")
GROUP_NAMES = ("group", "topic", "queue_id", "offset", "min_offset", "max_offset", "lag", "state", "expired_unread", "in_hand", "waiting")
BAD_STATES = frozenset({"unwritten", "beyond-log", "no-record", "mismatch"})
CHUNK = 4096

# topics


def topic_rows(view: View, topic: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield a row per consume queue. messages, bytes: of the entries whose record may be in the log; expired: entries of removed records.

    last_store_timestamp: of the newest entry's record.
    """
    from mqstore.rocketmq.store.view import totals

    log_range = view.log_range()
    for queue_view in view.queues():
        if topic is not None and queue_view.topic != topic:
            continue
        sums = totals(queue_view, log_range)
        newest = None if sums.newest is None else view.record(sums.newest)
        yield {
            "topic": queue_view.topic,
            "queue_id": queue_view.queue_id,
            "min_offset": view.min_offset(queue_view),
            "max_offset": queue_view.max_offset,
            "messages": sums.messages,
            "expired": sums.expired,
            "bytes": sums.bytes,
            "last_store_timestamp": None if newest is None else newest.store_timestamp,
        }


def bare_topics(store: RocketMQStore, shown: set[str], only: str | None) -> list[str]:
    """Return the names of configured topics that have no consume queue."""
    return sorted(name for name in store.topics.names if name not in shown and only in (None, name))


def no_topics_sentence(store: RocketMQStore, view: View, only: str | None) -> str:
    """Return why there is neither a queue nor a configured topic, and what to do."""
    if only is None and view.log_elsewhere is not None:
        return "no consume queues, and no log to build them from"
    if only is None:
        return "no consume queues; `mqstore messages` lists what the log holds, `mqstore rebuild` builds the queues from it"
    meant = did_you_mean(only, {*store.topics.names, *(queue.topic for queue in view.queues())})
    return f"topic {only!r} has neither a queue nor a configuration{meant or f'; `mqstore topics {store.path}` lists all topics'}"


def unread_files(store: RocketMQStore, only: str | None) -> list[Damage]:
    """Return the files of the log, and of the queues of one topic or of all, that are missing or cannot be read."""
    damage = [*store.log.findings, *store.unread_directories]
    for queue in store.all_queues():
        if only in (None, queue.topic):
            damage += queue.file_findings
    return [item for item in damage if item.kind.unread]


# entries


@dataclass(frozen=True, slots=True)
class _EntryChecker:
    """Checks whether each entry points to the right record."""

    store: RocketMQStore
    queue: QueueView
    low: int
    high: int

    def states(self, entries: NDArray[np.void], first: int) -> list[str]:
        """Return a state per entry; entry k has queue offset first + k (a unit of a batch queue has its own)."""
        import numpy as np

        from mqstore.rocketmq.format.consume_queue import BLANK_SIZE

        physical = entries["physical_offset"].astype(np.int64)
        length = entries["size"].astype(np.int64)
        states = np.full(len(entries), "no-record", dtype="U12")
        states[physical >= self.high] = "beyond-log"
        states[physical < self.low] = "expired"
        states[(length == 0) & (physical == 0)] = "unwritten"
        states[(length == BLANK_SIZE) & (physical == 0)] = "filling"
        offsets = entries["base_offset"].astype(np.int64) if self.queue.batch else first + np.arange(len(entries))
        self._check_in_log(states, physical, length, offsets)
        names: list[str] = states.tolist()
        return names

    def _check_in_log(
        self, states: NDArray[np.str_], physical: NDArray[np.int64], length: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> None:
        """Set the state of the entries that point into the log, file by file."""
        import numpy as np

        log = self.store.log
        open_ones = states == "no-record"
        for file in log.files:
            members = np.flatnonzero(open_ones & (physical >= file.start) & (physical < file.start + file.size))
            if not len(members):
                continue
            self._check_in_file(file, members[np.argsort(physical[members], kind="stable")], states, physical, length, offsets)
            # a queue is spread over the whole log: the pages read would add up to all of it
            log.mapped(file).drop(0, file.size)

    def _check_in_file(
        self,
        file: QueueFile,
        members: NDArray[np.int64],
        states: NDArray[np.str_],
        physical: NDArray[np.int64],
        length: NDArray[np.int64],
        offsets: NDArray[np.int64],
    ) -> None:
        """Set the state of entries that point into one log file, in the order of their records."""
        import numpy as np

        from mqstore.kernels.rocketmq import frames
        from mqstore.rocketmq.format.commit_log import Records, group_ranges
        from mqstore.rocketmq.scan.columns import RecordColumns

        at = 0
        for data, positions in group_ranges(self.store.log.mapped(file), file.start, physical[members] - file.start):
            near, at = members[at : at + len(positions)], at + len(positions)
            starts = [frames.status_at(data, position, file.start, True) == frames.STOP for position in positions.tolist()]
            near, positions = near[starts], np.ascontiguousarray(positions[starts])
            if not len(near):
                continue
            columns = RecordColumns(Records(file, data, positions))
            same = columns.row(frames.SIZE) == length[near]
            if not self.queue.batch:
                same &= columns.row(frames.QUEUE_OFFSET) == offsets[near]
            same &= columns.row(frames.QUEUE_ID) == self.queue.queue_id
            same &= np.array([topic == self.queue.topic for topic in columns.topic.to_pylist()], np.bool_)
            states[near] = np.where(same, "ok", "mismatch")
            for k in np.flatnonzero(~same).tolist():
                if self._is_multi_dispatched(int(physical[near[k]]), int(offsets[near[k]]), int(length[near[k]])):
                    states[near[k]] = "ok"

    def _is_multi_dispatched(self, physical_offset: int, queue_offset: int, length: int) -> bool:
        """Return whether multi-dispatch puts the record in this queue as well."""
        from mqstore.rocketmq.dispatch.dispatcher import dispatch_request
        from mqstore.rocketmq.format.record import encode

        rules = self.store.rules()
        message = self.store.log.record(physical_offset) if rules.multi_dispatch else None
        if message is None or len(encode(message)) != length:
            return False
        return (self.queue.topic, self.queue.queue_id, queue_offset) in dispatch_request(message, rules).further_queues


def entry_rows(store: RocketMQStore, view: View, queue: QueueView, start: int, stop: int) -> Iterator[dict[str, Any]]:
    """Yield the entries start..stop-1 with their states. A batch queue has a row per unit, with its number of messages."""
    low, high = view.log_range()
    checker = _EntryChecker(store, queue, low, high)
    if queue.batch:
        units = queue.entries(start, stop)
        for begin in range(0, len(units), CHUNK):
            part = units[begin : begin + CHUNK]
            for unit, state in zip(part, checker.states(part, 0), strict=True):
                yield _entry(int(unit["base_offset"]), unit, state) | {"messages": int(unit["count"])}
        return
    for begin in range(start, stop, CHUNK):
        entries = queue.entries(begin, min(stop, begin + CHUNK))
        states = checker.states(entries, begin)
        columns = zip(entries["physical_offset"].tolist(), entries["size"].tolist(), entries["tags_code"].tolist(), states, strict=True)
        for k, (physical_offset, length, tags_code, state) in enumerate(columns):
            yield {"queue_offset": begin + k, "physical_offset": physical_offset, "size": length, "tags_code": tags_code, "state": state}


def _entry(queue_offset: int, unit: Any, state: str) -> dict[str, Any]:
    return {
        "queue_offset": queue_offset,
        "physical_offset": int(unit["physical_offset"]),
        "size": int(unit["size"]),
        "tags_code": int(unit["tags_code"]),
        "state": state,
    }


# groups


@dataclass(frozen=True, slots=True)
class GroupList:
    """Committed offsets. rows: with GROUP_NAMES; notes: sentences about what they do not show; empty: why there are none, if so."""

    rows: list[dict[str, Any]]
    notes: tuple[str, ...]
    findings: tuple[Damage, ...]
    empty: str = ""


def list_groups(store: RocketMQStore, view: View, group: str | None = None, topic: str | None = None, now: int | None = None) -> GroupList:
    """Return the committed offsets of a group, of a topic, or of all. now: ms. Raises UnsupportedError if they are not what was opened."""
    unread = store.unread_offsets
    if store.log_only and unread is not None:
        raise UnsupportedError(f"{store.unread_sentence('consumer offsets', unread)}; give the directory of the store")
    view.require_queues()
    every = view.consumer_offsets(now)
    if unread is not None:
        raise UnsupportedError(store.unread_sentence("consumer offsets", unread))
    rows = [
        {name: getattr(item, name) for name in GROUP_NAMES} for item in every if group in (None, item.group) and topic in (None, item.topic)
    ]
    notes = []
    if rows and view.log_elsewhere is not None:
        notes.append(f"how many messages expired before their group read them {view.log_elsewhere.sentence}")
    for name, of, number in sorted(view.pops.held.keys() - {(item.group, item.topic, item.queue_id) for item in every}):
        if group in (None, name) and topic in (None, of):
            held = count(len(view.pops.held[name, of, number]), "message")
            notes.append(f"group {name!r} has {held} of topic {of!r}, queue {number}, in hand, and no committed offset there")
    table = store.offset_table
    notes += filter(None, (table.doubt,))
    if rows:
        notes += (note for note in static_topics(store.directory) if topic is None or note.startswith(f"static topic {topic}: "))
    notes += (f"{finding.file}: {finding.detail}" for finding in table.findings)
    return GroupList(rows, tuple(notes), tuple(table.findings), "" if rows else _no_groups_sentence(group, topic, every, table))


def _no_groups_sentence(group: str | None, topic: str | None, every: Sequence[ConsumerOffset], table: OffsetTable) -> str:
    """Return why no committed offset matches. every: the offsets of all groups; table: the one that they are in."""
    for what, name, known in (("group", group, {item.group for item in every}), ("topic", topic, {item.topic for item in every})):
        if name is not None and name not in known and (meant := did_you_mean(name, known)):
            return f"no committed offset of {what} {name!r}{meant}"
    if group is not None or topic is not None:
        return "no committed offset matches; without filters all groups are listed"
    if table.used == "database":
        return "no committed offsets: the database of the consumer offsets is empty"
    if table.used is None:
        return f"no committed offsets: the store has no {table.file} (a broker keeps it in the same root as the log)"
    return f"no committed offsets: {table.file} is empty"
