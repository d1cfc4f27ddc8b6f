"""Queues with their bounds, entries with their state, consumer groups and timers, as tables, for both families."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mqstore.rabbitmq import listing as rabbitmq_listing
from mqstore.report.parts import Column, Field, Sentence, Table, Tone
from mqstore.rocketmq import listing as rocketmq_listing
from mqstore.table.columns import QUORUM, STREAM
from mqstore.table.formatting import count, moment, size

if TYPE_CHECKING:
    from mqstore.rabbitmq.quorum.queue import QueueState, QuorumQueue
    from mqstore.rabbitmq.store.queue import Queue
    from mqstore.rocketmq.store.view import ConsumerGroup, ConsumerOffset

Row = Mapping[str, Any]


def _dash(name: str) -> Callable[[Row], str]:
    return lambda row: "-" if row[name] is None else str(row[name])


def _lag(row: Row) -> str:
    """Return the messages that are left for a group; that is not known for an offset past the end of its queue."""
    return "-" if row["lag"] is None or row["lag"] < 0 else str(row["lag"])


# topics


def topics_table(family: str, rows: Iterable[Row]) -> Table:
    """Return a table of the queues of a store: topics, or vhosts, with their queues."""
    return Table.of(_TOPICS if family == "rocketmq" else _QUEUES, rows, title="Queues")


_TOPICS = (
    Field(Column("topic", flexible=True, once=True, leads_to="topic"), lambda row: row["topic"]),
    Field(Column("queue", right=True), lambda row: str(row["queue_id"])),
    Field(Column("min", right=True, drop=3), lambda row: str(row["min_offset"])),
    Field(Column("max", right=True, drop=2), lambda row: str(row["max_offset"])),
    Field(Column("messages", right=True), lambda row: f"{row['messages']:,}"),
    Field(Column("bytes", right=True), lambda row: size(row["bytes"])),
    Field(Column("newest message (UTC)", drop=1), lambda row: moment(row["last_store_timestamp"])),
)


def _counted(cell: Callable[[Row], str], name: str | None = None) -> Callable[[Row], str]:
    """Return a cell that a queue without counts leaves out. name: of what such a queue has there."""
    return lambda row: cell(row) if row["start"] != rabbitmq_listing.NOT_READ else "-" if name is None else row[name]


def _queue_name(row: Row) -> str:
    levels = row["priority_levels"]
    return str(row["queue"] if levels is None else f"{row['queue']} ({count(levels, 'priority level')})")


def held_back(row: Row) -> int:
    """Return how many messages of a quorum queue a restarted node has and does not deliver: dead letters held, and delayed ones."""
    return int(row["total"] - row["ready"]) if row["type"] == QUORUM else 0


def not_recovered(row: Row) -> list[str]:
    """Return how many messages of a queue a broker would not deliver after a start, and why."""
    if row["type"] == STREAM:
        return [f"{row['lost']:,} that the node does not keep, or that are damaged"] if row["lost"] else []
    reasons = [f"{row[name]:,} {title}" for name, title in rabbitmq_listing.NOT_RECOVERED.items() if row[name]]
    return reasons + [f"{count(number, 'dead letter')} held, or delayed" for number in (held_back(row),) if number]


def _not_recovered(row: Row) -> str:
    left = [f"{row[name]:,} {name}" for name in ("acknowledged", "expired") if row[name]]
    return ", ".join(not_recovered(row) + left) or "-"


def _seq_ids(row: Row) -> str:
    first, last = (row["min_seq_id"], row["max_seq_id"]) if row["type"] != STREAM else (row["first_offset"], row["last_offset"])
    return "-" if first is None else f"{first} to {last}"


_QUEUES = (
    Field(Column("vhost", flexible=True, once=True), lambda row: row["vhost"] or "?"),
    Field(Column("queue", flexible=True, leads_to="queue"), _counted(_queue_name, "queue")),
    Field(
        Column("version", right=True, drop=3),
        _counted(lambda row: str(row["queue_version"] or row["type"]), "type"),
    ),
    Field(Column("messages", right=True), _counted(lambda row: f"{row['messages']:,}")),
    Field(Column("bytes", right=True, drop=1), _counted(lambda row: size(row["bytes"]))),
    Field(Column("seq ids", drop=2), _counted(_seq_ids)),
    Field(Column("not recovered", flexible=True), _counted(_not_recovered)),
    Field(
        Column("start", tone=lambda text: Tone.BAD if text == "refused" else Tone.PLAIN),
        lambda row: "refused" if row["refused"] else row["start"],
    ),
)


# entries


def entries_table(names: Sequence[str], rows: Iterable[Row]) -> Table:
    """Return a table of the entries of a consume queue. names: of the values of a row."""
    titles = {"queue_offset": "offset", "physical_offset": "physical offset", "tags_code": "tags code"}
    columns = [
        Column(titles.get(name, name), right=name != "state", tone=_entry_tone if name == "state" else None, leads_to=name)
        for name in names
    ]
    return Table(columns, ([str(row[name]) for name in names] for row in rows), title="Entries")


def _entry_tone(state: str) -> Tone:
    return Tone.BAD if state in rocketmq_listing.BAD_STATES else Tone.PLAIN if state == "ok" else Tone.FAINT


def index_entries_title(directories: Sequence[Queue]) -> Sentence:
    """Return what a queue is whose entries follow. directories: one a priority level."""
    first = directories[0]
    start = {"clean": "as a clean shutdown left it", "terms": "cleanly shut down, in a store that was not", "dirty": "as a crash left it"}
    more = "" if first.priority_level is None else f", {count(len(directories), 'priority level')}"
    return Sentence(f"vhost {first.vhost}, queue {first.name}: version {first.version}{more}, {start[first.start.name]}")


def index_entries_table(rows: Iterable[Row], *, priorities: bool) -> Table:
    """Return a table of the index entries of a RabbitMQ queue. priorities: whether it has levels."""
    level = (Field(Column("priority", right=True), lambda row: str(row["priority_level"])),) if priorities else ()
    return Table.of((*level, *_INDEX_ENTRIES), rows, title="Index entries")


def _index_entry_tone(state: str) -> Tone:
    return Tone.FAINT if state == "acknowledged" else Tone.BAD if state in rabbitmq_listing.BAD_STATES else Tone.PLAIN


_INDEX_ENTRIES = (
    Field(Column("seq id", right=True), lambda row: str(row["seq_id"])),
    Field(Column("state", tone=_index_entry_tone), lambda row: row["state"]),
    Field(Column("pos", right=True, drop=4), _dash("pos")),
    Field(Column("size", right=True), lambda row: str(row["size"])),
    Field(Column("message id", drop=1), lambda row: row["msg_id"] or "-"),
    Field(
        Column("message is in", flexible=True, path=True, drop=2),
        lambda row: "-" if row["state"] == "missing" else row["store_file"].rpartition("queues/")[2],
    ),
    Field(Column("at", right=True, drop=3), lambda row: str(row["position"])),
)


# quorum queues


def member_sentences(queue: QuorumQueue, state: QueueState) -> Iterator[Sentence]:
    """Yield what a member of a quorum queue is, and how far it is."""
    vhost, name = queue.name
    term, last = queue.log.last
    base = "no snapshot" if queue.log.base is None else f"snapshot at {queue.log.base.snapshot.index}"
    applied = "" if queue.meta is None else f", applied at least up to {queue.meta.last_applied}"
    others = f" of {count(len(state.members), 'member')}" if len(state.members) > 1 else ""
    yield Sentence(f"vhost {vhost or '?'}, quorum queue {name}: {queue.log.uid}{others}, machine version {state.version}")
    yield Sentence(f"{count(len(queue.log), 'entry')}, the last is {last} of term {term}{applied}, {base}")
    listed = f"{state.ready:,} ready, {state.unacknowledged:,} unacknowledged, {state.total:,} in all"
    from mqstore.rabbitmq.quorum.facts import broken_recovery, damaged_logs

    stops = [fact for fact in damaged_logs(queue.log.system) if fact.stops] or list(broken_recovery(queue, state))
    yield Sentence(f"a node that could replay this log would list {listed}" if stops else f"a restarted node lists {listed}")
    yield from (Sentence(fact.sentence, Tone.BAD) for fact in stops[:1])


def log_rows_table(rows: Iterable[Row]) -> Table:
    """Return a table of the messages in the log of a quorum queue."""
    return Table.of(_LOGGED, rows, title="Messages in the log")


def _of_verdict(row: Row) -> str:
    return str(row["state"] if row["verdict"] in ("intact", "consumed") else f"{row['state']}, {row['verdict']}")


_LOGGED = (
    Field(Column("index", right=True), _dash("raft_index")),
    Field(Column("state", tone=lambda text: Tone.FAINT if " at index " in text else Tone.PLAIN), _of_verdict),
    Field(Column("pos", right=True, drop=4), _dash("pos")),
    Field(Column("size", right=True), _dash("size")),
    Field(Column("deliveries", right=True, drop=3), _dash("delivery_count")),
    Field(Column("entry is in", flexible=True, path=True, drop=2), lambda row: (row["store_file"] or "-").rpartition("quorum/")[2]),
    Field(Column("at", right=True, drop=1), _dash("position")),
)


# groups and timers


def groups_table(rows: Sequence[Row]) -> Table:
    """Return a table of committed offsets. Numbers that are 0 for every group have no column."""
    fields = [field for field in _GROUPS if field.column.title not in _RARE or any(field.cell(row) not in ("0", "-") for row in rows)]
    return Table.of(fields, rows, title="Consumer groups")


def progress_notes(progress: ConsumerGroup | ConsumerOffset) -> list[str]:
    """Return what else than the lag is known of the messages of a group, or of one of its queues."""
    numbers = (
        (progress.in_hand, "in hand"),
        (progress.waiting, "popped and waiting for redelivery"),
        (progress.expired_unread, "expired unread"),
    )
    return [f"{count(number, 'message')} {what}" for number, what in numbers if number]


_RARE = frozenset({"in hand", "waiting again", "expired unread"})


_GROUPS = (
    Field(Column("group", flexible=True), _dash("group")),
    Field(Column("topic", flexible=True, leads_to="topic"), _dash("topic")),
    Field(Column("queue", right=True), _dash("queue_id")),
    Field(Column("offset", right=True), _dash("offset")),
    Field(Column("min", right=True, drop=2), _dash("min_offset")),
    Field(Column("max", right=True, drop=1), _dash("max_offset")),
    Field(Column("lag", right=True), _lag),
    Field(Column("in hand", right=True, drop=3), _dash("in_hand")),
    Field(Column("waiting again", right=True, drop=3), _dash("waiting")),
    Field(Column("expired unread", right=True, drop=3), _dash("expired_unread")),
    Field(Column("state", tone=lambda state: Tone.PLAIN if state == "ok" else Tone.CAUTION), _dash("state")),
)


def reset_table(rows: Iterable[Row]) -> Table:
    """Return a table of the offsets of a group before and after it was moved."""
    return Table.of(_RESET, rows, title="Moved offsets")


_RESET = (
    *(
        Field(Column(title, right=True), _dash(name))
        for title, name in (
            ("queue", "queue_id"), ("before", "before"), ("after", "after"), ("min", "min_offset"), ("max", "max_offset"), ("lag", "lag"),
        )
    ),
    Field(Column("state", tone=lambda state: Tone.CAUTION if state == "kept" else Tone.PLAIN), _dash("state")),
)  # fmt: skip


def timers_table(rows: Iterable[Row]) -> Table:
    """Return a table of messages with an arbitrary delay."""
    return Table.of(_TIMERS, rows, title="Timers")


def delayed_table(rows: Iterable[Row]) -> Table:
    """Return a table of the messages that a plug-in of RabbitMQ delays."""
    return Table.of(_DELAYED, rows, title="Delayed messages")


def _timer_tone(state: str) -> Tone:
    return Tone.CAUTION if state == "unknown" else Tone.FAINT if state in ("delivered", "recalled") else Tone.PLAIN


_TIMERS = (
    Field(Column("due (UTC)"), lambda row: moment(row["due_time"])),
    Field(Column("topic", flexible=True), lambda row: row["topic"]),
    Field(Column("queue", right=True), _dash("queue_id")),
    Field(Column("physical offset", right=True), lambda row: str(row["physical_offset"])),
    Field(Column("size", right=True, drop=2), lambda row: size(row["size"])),
    Field(Column("unique key", flexible=True, drop=1), lambda row: row["uniq_key"] or "-"),
    Field(Column("state", tone=_timer_tone), lambda row: row["state"]),
)

_DELAYED = (
    Field(Column("due (UTC)"), lambda row: moment(row["due_time"])),
    Field(Column("vhost", once=True), lambda row: row["vhost"]),
    Field(Column("exchange", flexible=True), lambda row: row["exchange"]),
    Field(Column("routing keys", flexible=True), lambda row: ", ".join(row["routing_keys"] or ()) or "-"),
    Field(Column("size", right=True, drop=2), lambda row: "?" if row["payload_len"] is None else size(row["payload_len"])),
    Field(Column("node", flexible=True, drop=1, once=True), lambda row: row["node"]),
    Field(Column("state", tone=_timer_tone), lambda row: row["state"]),
)
