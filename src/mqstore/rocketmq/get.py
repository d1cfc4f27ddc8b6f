"""Get: one message in full, by physical offset, message id, unique key, or its position in a queue.

get(store, store.view(), offset=184).row["topic"]
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mqstore.errors import NotFoundError, UsageError
from mqstore.rocketmq.format.record import parse_message_id
from mqstore.rocketmq.format.system_topics import TRACE_TOPIC
from mqstore.rocketmq.format.trace_message import Step, steps
from mqstore.rocketmq.lookup import explain
from mqstore.rocketmq.store.message_pages import batches_at
from mqstore.table.formatting import count, moment
from mqstore.table.text import body_text, columns_for, python_rows

if TYPE_CHECKING:
    from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.store.view import View

WAYS = "name the message with one of --offset PHYSICAL, --id MESSAGE_ID, --unique KEY -t TOPIC, or -t TOPIC --queue N --at QUEUE_OFFSET"


@dataclass(frozen=True, slots=True)
class Message:
    """One message. row: of the message table, with the body in base64. notes: sentences on how it was found."""

    family: ClassVar[str] = "rocketmq"
    body_name: ClassVar[str] = "body"

    row: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def body(self) -> bytes | None:
        """The decompressed body; None if it cannot be decompressed."""
        return None if self.row["body"] is None else base64.b64decode(self.row["body"])

    @property
    def bodiless(self) -> str:
        """What is said if there is no body."""
        return f"the body of the message at {self.row['physical_offset']} cannot be decompressed"

    @property
    def ok(self) -> bool:
        """Whether all its bytes are valid."""
        return str(self.row["verdict"]) != "damaged"

    def as_dict(self, body: str = "base64") -> dict[str, Any]:
        """Return the document that `get -o json` prints. body: none, sha256, base64 or text."""
        row = self.row | {"body": body_text(self.body)} if body == "text" else self.row
        return {name: row[name] for name in columns_for(body)}


def get(
    store: RocketMQStore,
    view: View,
    *,
    offset: int | None = None,
    id: str | None = None,  # noqa: A002
    unique: str | None = None,
    topic: str | None = None,
    queue: int | None = None,
    at: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Message:
    """Return one message of a view, given by exactly one of offset (physical), id, unique (with topic), or at (with topic and queue).

    progress: called with (bytes of log read, bytes of log), if the index does not answer for a unique key. Raises UsageError,
    NotFoundError.
    """
    if sum(way is not None for way in (offset, id, unique, at)) != 1:
        raise UsageError(WAYS)
    notes: list[str] = []
    if offset is not None:
        physical = _at_offset(view, store, offset)
    elif id is not None:
        physical = _by_id(notes, view, store, id)
    elif unique is not None:
        if topic is None:
            raise UsageError("--unique needs the topic: the index keeps keys by topic; add -t TOPIC")
        physical = _by_unique_key(notes, view, store, topic, unique, progress)
    else:
        if topic is None or queue is None or at is None:
            raise UsageError("--at needs the queue: add -t TOPIC and -q N")
        physical = _at_queue_offset(view, topic, queue, at)
    row = next(iter(message_rows(view, [physical], "base64")), None)
    if row is None:
        raise NotFoundError(f"no valid record starts at physical offset {physical}")
    return Message(row, tuple(notes))


def message_rows(view: View, physical_offsets: Iterable[int], body: str) -> list[dict[str, Any]]:
    """Return the rows of the records at these physical offsets, in order; offsets where no valid record starts are left out."""
    return [row for batch in batches_at(view, physical_offsets, columns_for(body)) for row in python_rows(batch, body)]


def place_of(store: RocketMQStore, view: View, id: str, topic: str = "") -> int:  # noqa: A002
    """Return the physical offset of a message by whatever names it: its physical offset, a broker's message id or a unique key.

    The ids of brokers and clients look alike, so both are tried; topic: narrows the search for a unique key. The log is not scanned.
    Raises NotFoundError, with what was tried.
    """
    tried: list[str] = []
    physical = _named_by_offset(view, id, tried)
    if physical is None:
        physical = _named_by_key(store, view, id, topic, tried)
    if physical is None:
        raise NotFoundError(f"no message with id {id} was found: {'; '.join(tried)}")
    return physical


def _named_by_offset(view: View, given: str, tried: list[str]) -> int | None:
    low, high = view.log_range()
    if given.isascii() and given.isdigit() and len(given) < 20:
        if view.record(int(given)) is not None:
            return int(given)
        tried.append(f"no valid record starts at physical offset {given} (the log ranges from {low:,} to {high:,})")
        return None
    try:
        host, offset = parse_message_id(given)
    except ValueError:
        tried.append("it is not an offset message id, which has 32 or 56 hexadecimal digits")
        return None
    message = view.record(offset) if low <= offset < high else None
    if message is not None and message.store_host == host:
        return offset
    where = "where the log has another broker's message"
    if message is None:
        where = f"which is outside the log ({low:,} to {high:,}) or between records"
    tried.append(f"as the id of broker {host} it points at physical offset {offset:,}, {where}")
    return None


def _named_by_key(store: RocketMQStore, view: View, given: str, topic: str, tried: list[str]) -> int | None:
    topics = [topic] if topic else sorted({queue.topic for queue in view.queues()})
    for each in topics:
        for physical in reversed(_unique(view, explain.query(store, view, each, given, scan=False).messages, given)):
            return physical
    where = f"topic {topic}" if topic else f"any of {len(topics):,} topics"
    tried.append(f"the index has no message of {where} with this unique key; explain the query by key to search the log")
    return None


def _unique(view: View, places: Iterable[int], key: str) -> list[int]:
    """Return those of the places whose message has the unique key."""
    return [at for at in places if (message := view.record(at)) is not None and message.property_map().get("UNIQ_KEY") == key]


@dataclass(frozen=True, slots=True)
class Consumer:
    """A group's position relative to a message. state: `consumed`, `waiting`, `unknown`, or that it is in hand, until when."""

    group: str
    offset: int
    state: str


def consumers_of(view: View, row: Mapping[str, Any]) -> list[Consumer]:
    """Return the groups that have committed an offset in the queue of a message. row: of the message table."""
    consumers = []
    for each in view.consumer_offsets():
        if (each.topic, each.queue_id) == (row["topic"], row["queue_id"]):
            beyond, popper = each.state == "above-max", (each.group, each.topic, each.queue_id)
            state, until = view.pops.state(popper, row["queue_offset"], each.offset, beyond=beyond)
            if until is not None:
                state = f"in hand until {moment(until)}" if state == "in-hand" else "waiting for redelivery"
            elif state in ("above-max", "unproved"):
                state = "unknown"
            consumers.append(Consumer(each.group, each.offset, state if each.state == "ok" else f"{state} ({each.state})"))
    return consumers


def trace_of(store: RocketMQStore, view: View, unique: str) -> list[Step]:
    """Return the trace of the message with a unique key in this store's trace topic, by time; another broker may have one, too."""
    if not any(queue.topic == TRACE_TOPIC for queue in view.queues()):
        return []
    traces = explain.query(store, view, TRACE_TOPIC, unique, scan=False).messages
    every = [
        step for batch in batches_at(view, traces, ("body",)) for body in batch.column(0).to_pylist() for step in steps(body or b"", unique)
    ]
    return sorted(every, key=lambda step: (step.time is None, step.time or 0))


def _at_offset(view: View, store: RocketMQStore, offset: int, found_by: str = "physical offset") -> int:
    if view.record(offset) is not None:
        return offset
    low, high = view.log_range()
    if not low <= offset < high:
        raise NotFoundError(f"{found_by} {offset} is outside the log, which goes from {low} to {high} in the {view.name} view")
    before = _record_around(store, offset)
    if before is not None:
        raise NotFoundError(f"no record starts at {found_by} {offset}, which is inside the record at {before}; use --offset {before}")
    raise NotFoundError(f"no valid record starts at {found_by} {offset}; `mqstore verify` reports what is there")


def _record_around(store: RocketMQStore, offset: int) -> int | None:
    """Return the start of the record that contains a byte of the log; searches back by the maximum size of a message."""
    import numpy as np

    from mqstore.rocketmq.format.commit_log import Records

    file = store.log.file_at(offset)
    if file is None:
        return None
    start = store.log.first_record(file, max(0, offset - file.start - (8 << 20)), offset - file.start)
    last: int | None = None
    for event in store.log.scan_file(file, start, offset - file.start) if start is not None else ():
        if isinstance(event, Records):
            last = int(event.positions[np.searchsorted(event.positions, offset - file.start) - 1])
    if last is None:
        return None
    raw = store.log.raw(file.start + last)
    return file.start + last if raw is not None and file.start + last + len(raw) > offset else None


def _by_id(notes: list[str], view: View, store: RocketMQStore, message_id: str) -> int:
    try:
        host, offset = parse_message_id(message_id.strip())
    except ValueError:
        raise UsageError(
            f"{message_id!r} is not an offset message id, which has 32 hexadecimal digits (56 with an IPv6 host); "
            "for an id made by a client use --unique KEY -t TOPIC"
        ) from None
    low, high = view.log_range()
    if not low <= offset < high:
        raise NotFoundError(
            f"the message id refers to physical offset {offset} of broker {host}, outside this log ({low} to {high}); "
            "if a client made the id, use --unique KEY -t TOPIC"
        )
    physical = _at_offset(view, store, offset, f"the message id's physical offset (broker {host})")
    message = view.record(physical)
    if message is not None and message.store_host != host:
        notes.append(f"the id names broker {host}, the message was stored by {message.store_host}: it may be the message of another broker")
    return physical


def _by_unique_key(
    notes: list[str], view: View, store: RocketMQStore, topic: str, key: str, progress: Callable[[int, int], None] | None
) -> int:
    answer = explain.query(store, view, topic, key, progress=progress)
    for places, how in ((answer.messages, ""), (answer.missing, "not found through the index, so the log was scanned")):
        unique = _unique(view, places, key)
        if unique:
            if how:
                notes.append(f"{how}: {answer.detail}")
            if len(unique) > 1:
                others = ", ".join(str(physical) for physical in unique[:-1][:8])
                notes.append(f"{count(len(unique), 'message')} have this unique key; the newest is shown, the others are at {others}")
            return unique[-1]
    raise NotFoundError(f"no message of topic {topic!r} has the unique key {key!r}: {answer.detail or 'its hits have it among KEYS only'}")


def _at_queue_offset(view: View, topic: str, queue_id: int, at: int) -> int:
    queue = view.queue(topic, queue_id)
    if not queue.min_offset <= at < queue.max_offset:
        raise NotFoundError(
            f"queue {queue_id} of topic {topic!r} holds queue offsets {queue.min_offset} to {queue.max_offset - 1}, not {at}"
        )
    entries = queue.entries(at, at + 1)
    if not len(entries) or int(entries["size"][0]) <= 0:
        raise NotFoundError(
            f"the entry at queue offset {at} of topic {topic!r}, queue {queue_id} is not written; `mqstore verify` reports what is lost"
        )
    physical = int(entries["physical_offset"][0])
    if view.record(physical) is None:
        raise NotFoundError(f"the entry at queue offset {at} points to physical offset {physical}, where no valid record starts")
    return physical
