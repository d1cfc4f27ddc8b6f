"""Get: one message in full, by physical offset, message id, unique key, or its position in a queue.

get(store, store.view(), offset=184).row["topic"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqstore.errors import NotFoundError, UsageError
from mqstore.rocketmq.format.record import parse_message_id
from mqstore.rocketmq.lookup import explain
from mqstore.table.columns import Selection
from mqstore.table.formatting import count
from mqstore.table.text import columns_for, python_rows

if TYPE_CHECKING:
    from mqstore.rocketmq.store.store import RocketMQStore
    from mqstore.rocketmq.store.view import View

WAYS = "name the message with one of --offset PHYSICAL, --id MESSAGE_ID, --unique KEY -t TOPIC, or -t TOPIC -q N --at QUEUE_OFFSET"


@dataclass(frozen=True, slots=True)
class Message:
    """One message. row: of the message table, with the body in base64. notes: sentences on how it was found."""

    row: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all its bytes are valid."""
        return str(self.row["verdict"]) != "damaged"

    def as_dict(self, body: str = "base64") -> dict[str, Any]:
        """Return the document that `get -o json` prints. body: none, sha256 or base64."""
        return {name: self.row[name] for name in columns_for(body)}


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
        place = _at_offset(view, store, offset)
    elif id is not None:
        place = _by_id(notes, view, store, id)
    elif unique is not None:
        if topic is None:
            raise UsageError("--unique needs the topic: the index keeps keys by topic; add -t TOPIC")
        place = _by_unique_key(notes, view, store, topic, unique, progress)
    else:
        if topic is None or queue is None or at is None:
            raise UsageError("--at needs the queue: add -t TOPIC and -q N")
        place = _at_queue_offset(view, topic, queue, at)
    row = next(iter(message_rows(view, [place], "base64")), None)
    if row is None:
        raise NotFoundError(f"no valid record starts at physical offset {place}")
    return Message(row, tuple(notes))


def message_rows(view: View, physical_offsets: Iterable[int], body: str) -> list[dict[str, Any]]:
    """Return the rows of the records at these physical offsets, in order; offsets where no valid record starts are left out."""
    names = columns_for(body)
    found: list[dict[str, Any]] = []
    for offset in physical_offsets:
        for batch in view.batches(names, Selection(from_offset=offset, to_offset=offset + 1), milliseconds=True):
            found.extend(python_rows(batch, body))
    return found


def _at_offset(view: View, store: RocketMQStore, offset: int, found_by: str = "physical offset") -> int:
    if view.record(offset) is not None:
        return offset
    low, high = view.log_range()
    if not low <= offset < high:
        raise NotFoundError(f"{found_by} {offset} is outside the log, which goes from {low} to {high} in the {view.name} view")
    before = _record_around(view, store, offset)
    if before is not None:
        raise NotFoundError(f"no record starts at {found_by} {offset}, which is inside the record at {before}; use --offset {before}")
    raise NotFoundError(f"no valid record starts at {found_by} {offset}; `mqstore verify` reports what is there")


def _record_around(view: View, store: RocketMQStore, offset: int) -> int | None:
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
    place = _at_offset(view, store, offset, f"the message id's physical offset (broker {host})")
    message = view.record(place)
    if message is not None and message.store_host != host:
        notes.append(f"the id names broker {host}, the message was stored by {message.store_host}: it may be the message of another broker")
    return place


def _by_unique_key(
    notes: list[str], view: View, store: RocketMQStore, topic: str, key: str, progress: Callable[[int, int], None] | None
) -> int:
    answer = explain.query(store, view, topic, key, progress=progress)
    for places, how in ((answer.messages, ""), (answer.missing, "not found through the index, so the log was scanned")):
        unique = [
            place for place in places if (message := view.record(place)) is not None and message.property_map().get("UNIQ_KEY") == key
        ]
        if unique:
            if how:
                notes.append(f"{how}: {answer.detail}")
            if len(unique) > 1:
                others = ", ".join(str(place) for place in unique[:-1][:8])
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
    place = int(entries["physical_offset"][0])
    if view.record(place) is None:
        raise NotFoundError(f"the entry at queue offset {at} points to physical offset {place}, where no valid record starts")
    return place
