"""`queue`, `topics` and `groups`: the entries of a queue, queues with their bounds, consumer groups with their lag.

`groups --reset` is in `groups_reset`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqstore.cli.common.arguments import AsVersion, Config, Store, ViewName, ViewOption, open_store, open_view, option, verb
from mqstore.cli.common.filters import queue_number
from mqstore.cli.common.grid import Column
from mqstore.cli.common.output import Output
from mqstore.cli.common.read_options import OnlyTopic, QueueOptions, TopicsOptions
from mqstore.cli.rabbitmq import queues as rabbitmq_queues
from mqstore.cli.write.groups_reset import reset_group
from mqstore.errors import RefusedError, UnsupportedError, UsageError
from mqstore.table.formatting import count, did_you_mean, moment, size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mqstore.rocketmq.format.mapped_file_queue import QueueFile
    from mqstore.rocketmq.store.store import RocketMQStore
    from mqstore.rocketmq.store.view import ConsumerOffset, QueueView, View

CHUNK = 4096
FINDINGS_SHOWN = 20

ENTRY_NAMES = ("queue_offset", "physical_offset", "size", "tags_code", "state")
TOPIC_NAMES = ("topic", "queue_id", "min_offset", "max_offset", "messages", "expired", "bytes", "last_store_timestamp")
GROUP_NAMES = ("group", "topic", "queue_id", "offset", "min_offset", "max_offset", "lag", "state")

BAD_STATES = frozenset({"unwritten", "beyond-log", "no-record", "mismatch"})

_NO_GROUPS = (
    "it has no consumer groups, and acknowledged messages are removed from the queue; `mqstore topics` lists what each queue still has"
)

# queue


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
        found: list[str] = states.tolist()
        return found

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


def queue_rows(store: RocketMQStore, view: View, queue: QueueView, start: int, stop: int) -> Iterator[dict[str, Any]]:
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


def _state_style(state: str) -> str:
    return {"ok": "", "expired": "2", "filling": "2"}.get(state, "31")


def queue(out: Output, store: Store, options: QueueOptions) -> int:
    """List the entries of a consume queue; RabbitMQ: the index entries of a queue.

    The state shows whether an entry points to its record: ok, expired (the log starts later), filling, unwritten, beyond-log,
    no-record, or mismatch (a record with another queue, offset or size). RabbitMQ: ready, delivered, acknowledged, missing, damaged,
    duplicate, or hidden (after damage that the broker does not read past).
    """
    number = queue_number(options.queue_id, "QUEUE_ID")
    opened = open_store(store, options.config)
    view = open_view(out, opened, options.view, options.as_version)
    found = view.queue(options.topic, number)
    low = found.min_offset if options.start is None else max(options.start, found.min_offset)
    high = found.max_offset if options.stop is None else min(options.stop, found.max_offset)
    if options.limit is not None:
        high = min(high, low + options.limit)
    bad: dict[str, int] = {}

    def watched() -> Iterator[dict[str, Any]]:
        for row in queue_rows(opened, view, found, low, high):
            if row["state"] in BAD_STATES:
                bad[row["state"]] = bad.get(row["state"], 0) + 1
            yield row

    names = (*ENTRY_NAMES, "messages") if found.batch else ENTRY_NAMES
    if not out.is_text:
        out.records(names, watched())
    else:
        messages = count(found.max_offset - found.min_offset, "message")
        out.line(f"topic {options.topic}, queue {number}: queue offsets {found.min_offset} to {found.max_offset} ({messages})")
        titles = {"queue_offset": "offset", "physical_offset": "physical offset", "tags_code": "tags code"}
        columns = [Column(titles.get(name, name), right=name != "state", style=_state_style if name == "state" else None) for name in names]
        out.table(columns, ([str(row[name]) for name in names] for row in watched()))
    if bad:
        by_state = ", ".join(f"{number:,} {state}" for state, number in sorted(bad.items()))
        out.note(
            f"entries that do not point to their record: {by_state}; `mqstore verify` reports details, `mqstore rebuild` rebuilds the queue"
        )
    return 1 if bad else 0


# topics


def topic_rows(view: View, topic: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield a row per consume queue. messages, bytes: of the entries whose record may be in the log; expired: entries of removed records.

    last_store_timestamp: of the newest entry's record.
    """
    from mqstore.rocketmq.store.queue_totals import totals

    log_range = view.log_range()
    for found in view.queues():
        if topic is not None and found.topic != topic:
            continue
        sums = totals(found, log_range)
        newest = None if sums.newest is None else view.record(sums.newest)
        yield {
            "topic": found.topic,
            "queue_id": found.queue_id,
            "min_offset": found.min_offset,
            "max_offset": found.max_offset,
            "messages": sums.messages,
            "expired": sums.expired,
            "bytes": sums.bytes,
            "last_store_timestamp": None if newest is None else newest.store_timestamp,
        }


def topics(out: Output, store: Store, options: TopicsOptions) -> int:
    """List topics and their queues: offsets, messages, bytes, and the time of the newest message; RabbitMQ: vhosts and queues.

    Exit status 1 if files of these queues or of the log are missing or cannot be read.
    """
    opened = open_store(store, options.config)
    view = open_view(out, opened, options.view, options.as_version)
    view.require_queues()
    rows = topic_rows(view, options.topic)
    if not out.is_text:
        out.records(TOPIC_NAMES, rows)
        return _note_unread_files(out, opened, options.topic)
    shown = list(rows)
    columns = (
        Column("topic", flexible=True),
        Column("queue", right=True),
        Column("min", right=True, drop=3),
        Column("max", right=True, drop=2),
        Column("messages", right=True),
        Column("bytes", right=True),
        Column("newest message (UTC)", drop=1),
    )
    out.table(columns, (_topic_cells(row, before) for row, before in zip(shown, [None, *shown], strict=False)))
    total = sum(row["messages"] for row in shown)
    names = {row["topic"] for row in shown}
    if shown:
        out.line(f"{count(len(names), 'topic')}, {count(len(shown), 'queue')}, {count(total, 'message')}", style="bold")
    _print_topics_without_queues(out, opened, view, names, options.topic)
    return _note_unread_files(out, opened, options.topic)


def _note_unread_files(out: Output, store: RocketMQStore, only: str | None) -> int:
    """Print a note for each file of the queues and of the log that is missing or not read. Returns the exit status."""
    found = [*store.log.findings, *store.unread_directories]
    for queue in store.all_queues():
        if only in (None, queue.topic):
            found += queue.file_findings
    found = [item for item in found if item.kind.unread]
    for item in found[:FINDINGS_SHOWN]:
        out.note(f"{item.file}: {item.detail}")
    if len(found) > FINDINGS_SHOWN:
        out.note(f"and {len(found) - FINDINGS_SHOWN} further findings; `mqstore verify` lists them all")
    return 1 if found else 0


def _topic_cells(row: dict[str, Any], before: dict[str, Any] | None) -> list[str]:
    name = row["topic"] if before is None or before["topic"] != row["topic"] else ""
    return [
        name,
        str(row["queue_id"]),
        str(row["min_offset"]),
        str(row["max_offset"]),
        f"{row['messages']:,}",
        size(row["bytes"]),
        moment(row["last_store_timestamp"]),
    ]


def _print_topics_without_queues(out: Output, store: RocketMQStore, view: View, shown: set[str], only: str | None) -> None:
    bare = sorted(name for name in store.topics.names if name not in shown and only in (None, name))
    if bare:
        named = out.first(bare, 8)
        more = f" and {len(bare) - len(named)} more (-v lists them)" if len(named) < len(bare) else ""
        out.line(f"configured, without a consume queue: {', '.join(named)}{more}")
    if not shown and not bare:
        if only is not None:
            meant = did_you_mean(only, {*store.topics.names, *(queue.topic for queue in view.queues())})
            out.line(
                f"topic {only!r} has neither a queue nor a configuration{meant or f'; `mqstore topics {store.path}` lists all topics'}"
            )
        else:
            out.line("no consume queues; `mqstore messages` lists what the log holds, `mqstore rebuild` builds the queues from it")


# groups


def groups(
    out: Output,
    store: Store,
    group: Annotated[str | None, option("--group", "-g", help="Only this consumer group.")] = None,
    topic: OnlyTopic = None,
    reset: Annotated[str | None, option("--reset", metavar="GROUP", help="Move this group in --topic; changes the store.")] = None,
    to: Annotated[
        str | None,
        option("--to", metavar="WHERE", help="With --reset: earliest, latest, a time (ms or ISO), or a queue offset (below 10^12)."),
    ] = None,
    queue_id: Annotated[int | None, option("--queue", "-q", min=0, help="With --reset: only this queue.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --reset: also forward, past unread messages, and where the group has no offset.")
    ] = False,
    view: ViewOption = ViewName.DISK,
    as_version: AsVersion = None,
    config: Config = None,
) -> int:
    """List consumer groups with the committed offset and lag of each queue; --reset moves one.

    State: ok, below-min (messages expired before they were consumed), above-max (the queue has lost messages), no-queue, no-topic.

    --reset writes config/consumerOffset.json of a store that no broker is using, and prints each queue's offset before and after.
    The queues are taken as a broker would have them after loading. State: moved, same, kept (only --force moves it).
    """
    if reset is not None:
        if group is not None and group != reset:
            raise UsageError("--reset already names the group; leave --group out")
        return reset_group(out, store, reset, topic, queue_id, to, force=force, as_version=as_version, config=config)
    if to is not None or queue_id is not None or force:
        raise UsageError("--to, --queue and --force need --reset GROUP")
    opened = open_store(store, config)
    refused: RefusedError | None = None
    try:
        looked_at = open_view(out, opened, view, as_version)
    except RefusedError as error:
        # the offsets are in a separate file, which the broker reads before it gives up on the log
        refused = error
        looked_at = opened.view()
        out.note(f"{error}; the offsets are compared with the queues as they are on disk")
    if opened.log_only and opened.unread_offsets is not None:
        raise UnsupportedError(f"{opened.unread_sentence('consumer offsets', opened.unread_offsets)}; give the directory of the store")
    looked_at.require_queues()
    every = looked_at.consumer_offsets()
    rows = [
        {name: getattr(item, name) for name in GROUP_NAMES} for item in every if group in (None, item.group) and topic in (None, item.topic)
    ]
    if opened.unread_offsets is not None:
        raise UnsupportedError(opened.unread_sentence("consumer offsets", opened.unread_offsets))
    findings = opened.offset_table.findings
    for finding in findings:
        out.note(f"{finding.file}: {finding.detail}")
    status = 1 if findings or refused else 0
    if not out.is_text:
        out.records(GROUP_NAMES, rows)
        return status
    columns = (
        Column("group", flexible=True),
        Column("topic", flexible=True),
        Column("queue", right=True),
        Column("offset", right=True),
        Column("min", right=True, drop=2),
        Column("max", right=True, drop=1),
        Column("lag", right=True),
        Column("state", style=lambda state: "" if state == "ok" else "33"),
    )
    out.table(columns, ([_cell(row[name]) for name in GROUP_NAMES] for row in rows))
    if not rows:
        out.line(_no_groups_sentence(group, topic, every, opened.offset_table.used))
    return status


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)


def _no_groups_sentence(group: str | None, topic: str | None, every: Sequence[ConsumerOffset], used: str | None) -> str:
    for what, name, known in (("group", group, {item.group for item in every}), ("topic", topic, {item.topic for item in every})):
        if name is not None and name not in known and (meant := did_you_mean(name, known)):
            return f"no committed offset of {what} {name!r}{meant}"
    if group is not None or topic is not None:
        return "no committed offset matches; without filters all groups are listed"
    if used == "database":
        return "no committed offsets: the database of the consumer offsets is empty"
    if used is None:
        return "no committed offsets: the store has no config/consumerOffset.json (a broker keeps it in the same root as the log)"
    return "no committed offsets: config/consumerOffset.json is empty"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    verb(app, example="queue /backup/store orders 0 --from 1000 -n 20", panel="Read", rabbitmq=rabbitmq_queues.queue)(queue)
    verb(app, example="topics /backup/store --view recovered", panel="Read", rabbitmq=rabbitmq_queues.topics)(topics)
    verb(app, example="groups /backup/store -g billing", panel="Read", short_quiet=False, rabbitmq=_NO_GROUPS)(groups)
