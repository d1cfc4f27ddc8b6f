"""One message whole: what its record says, its body, its properties, who has consumed it, its trace, and where its bytes are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from mqstore.console import bodies
from mqstore.console.basket import InLog, InQueue
from mqstore.console.page import Asked
from mqstore.console.pages.rule import Rule
from mqstore.console.stores import Opened
from mqstore.console.trace import TRACE_TOPIC, Step, steps
from mqstore.errors import NotFoundError, UsageError
from mqstore.rabbitmq.store import listing
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rocketmq.format.consume_queue import ConsumeQueueReader
from mqstore.rocketmq.lookup import explain
from mqstore.rocketmq.store.view import View
from mqstore.table.columns import RABBITMQ_COLUMNS, ROCKETMQ_COLUMNS, QueueSelection, Selection

__all__ = ["RULES", "entry_at", "rabbitmq_row", "rocketmq_row"]

_TIMES = ("born_timestamp", "store_timestamp")


@dataclass(frozen=True, slots=True)
class Consumer:
    """Where a group is beside a message. state: `consumed`, `waiting`, `outside` (its offset lies outside the queue)."""

    group: str
    offset: int
    state: str


@dataclass(frozen=True, slots=True)
class Bytes:
    """A stretch of a file that has to do with a message."""

    what: str
    file: str
    at: int
    length: int


def rocketmq_row(view: View, offset: int) -> dict[str, Any]:
    """The message at a physical offset as a row of the message table, times in ms. Raises NotFoundError."""
    for batch in view.batches(ROCKETMQ_COLUMNS, Selection(from_offset=offset, to_offset=offset + 1), milliseconds=True):
        for row in batch.to_pylist():
            return dict(row) | {"properties": dict(row["properties"] or ())}
    low, high = view.log_range()
    where = f"outside the log, which goes from {low:,} to {high:,}" if not low <= offset < high else "where no believable record starts"
    raise NotFoundError(f"physical offset {offset:,} lies {where} in the {view.name} view; the damage map of the log tells more")


def _rocketmq(asked: Asked, opened: Opened) -> Response:
    store, view = opened.rocketmq, opened.view(asked.view)
    offset = asked.needed("offset")
    row = rocketmq_row(view, offset)
    file = store.log.file_at(offset)
    places = [Bytes("record", row["store_file"], offset - (file.start if file else 0), row["size"])]
    queue = next((each for each in store.consume_queues() if (each.topic, each.queue_id) == (row["topic"], row["queue_id"])), None)
    if isinstance(queue, ConsumeQueueReader) and queue.min_offset <= row["queue_offset"] < queue.max_offset:
        name, at = queue.place(row["queue_offset"])
        places.append(Bytes("queue entry", name, at, 20))
    raw = store.log.raw(offset) or b""
    return asked.show(
        "message.html",
        store=opened,
        section="messages",
        row=row,
        consumers=_consumers(view, row),
        trace=_trace(opened, view, row["uniq_key"]),
        places=places,
        place=InLog(opened.number, offset),
        record=bodies.hex_lines(raw, asked.number("record") or 0) if asked.text("record") else None,
        record_size=len(raw),
        **_body(asked, row["body"]),
    )


def _body(asked: Asked, body: bytes | None) -> dict[str, Any]:
    """What the template needs of a body; None is one that cannot be read."""
    found = None if body is None else bodies.views(body)
    start = asked.number("from") or 0
    chosen = asked.text("body") or (found.likely if found else "text")
    if chosen not in ("text", "json", "hex"):
        raise UsageError("a body is shown as text, json or hex")
    return {
        "body": found,
        "chosen": chosen,
        "hex": bodies.hex_lines(body or b"", start) if chosen == "hex" else [],
        "hex_start": start - start % 16,
        "hex_size": bodies.HEX_SHOWN,
        "shown": bodies.SHOWN,
        "basket": asked.session.basket if asked.session else (),
    }


def _consumers(view: View, row: dict[str, Any]) -> list[Consumer]:
    found = []
    for each in view.consumer_offsets():
        if (each.topic, each.queue_id) == (row["topic"], row["queue_id"]):
            state = "consumed" if each.offset > row["queue_offset"] else "waiting"
            found.append(Consumer(each.group, each.offset, state if each.state == "ok" else f"{state} ({each.state})"))
    return found


def _trace(opened: Opened, view: View, unique: str | None) -> list[Step]:
    """What the trace topic of this very store tells; traces may as well be on another broker."""
    if not unique or not any(queue.topic == TRACE_TOPIC for queue in view.queues()):
        return []
    answer = explain.query(opened.rocketmq, view, TRACE_TOPIC, unique, scan=False)
    found: list[Step] = []
    for place in answer.messages:
        found += steps(rocketmq_row(view, place)["body"] or b"", unique)
    return sorted(found, key=lambda step: (step.time is None, step.time or 0))


# RabbitMQ


def rabbitmq_row(store: RabbitMQStore, place: InQueue) -> dict[str, Any]:
    """A message by its index entry, as a row of the message table. Raises NotFoundError."""
    for rows in store.rows(_selection(place)):
        if rows.priority_level == place.level:
            batch = store.batch(rows, RABBITMQ_COLUMNS)
            for row in [] if batch is None else batch.to_pylist():
                return dict(row)
    raise NotFoundError(f"queue {place.queue!r} of vhost {place.vhost!r} has no index entry of sequence id {place.seq_id}")


def _selection(place: InQueue) -> QueueSelection:
    return QueueSelection(
        vhosts=frozenset({place.vhost}),
        queues=frozenset({place.queue}),
        from_seq=place.seq_id,
        to_seq=place.seq_id + 1,
        everything=True,
    )


def entry_at(store: RabbitMQStore, place: InQueue) -> dict[str, Any]:
    """An index entry with its state. Raises NotFoundError."""
    for rows in store.rows(_selection(place)):
        if rows.priority_level == place.level:
            for row in listing.entry_rows(rows):
                return row
    raise NotFoundError(f"queue {place.queue!r} of vhost {place.vhost!r} has no index entry of sequence id {place.seq_id}")


def _rabbitmq(asked: Asked, opened: Opened) -> Response:
    store = opened.rabbitmq
    place = InQueue(opened.number, asked.text("vhost"), asked.text("queue"), asked.number("level"), asked.needed("seq"))
    entry, row = entry_at(store, place), rabbitmq_row(store, place)
    places = [Bytes("index entry", entry["index_file"], entry["index_position"], 0)]
    if row["store_file"] and entry["state"] != "missing":
        places.append(Bytes("message", row["store_file"], row["position"], 0))
    headers = [(each["name"], each["type"], each["value"]) for each in (row["properties"] or {}).get("headers") or ()]
    plain = {name: value for name, value in (row["properties"] or {}).items() if value is not None and name != "headers"}
    return asked.show(
        "queued.html",
        store=opened,
        section="queues",
        row=row,
        entry=entry,
        headers=headers,
        properties=plain,
        places=places,
        place=place,
        **_body(asked, row["payload"]),
    )


def message(asked: Asked) -> Response:
    opened = asked.store
    return _rocketmq(asked, opened) if opened.family == "rocketmq" else _rabbitmq(asked, opened)


def download(asked: Asked) -> Response:
    """The body as it is, as a file: never shown by the browser."""
    opened = asked.store
    if opened.family == "rocketmq":
        offset = asked.needed("offset")
        body, name = rocketmq_row(opened.view(asked.view), offset)["body"], f"body-{offset}"
    else:
        place = InQueue(opened.number, asked.text("vhost"), asked.text("queue"), asked.number("level"), asked.needed("seq"))
        body, name = rabbitmq_row(opened.rabbitmq, place)["payload"], f"body-{place.seq_id}"
    if body is None:
        raise NotFoundError("the body cannot be read; the message page tells why")
    headers = {"Content-Disposition": f'attachment; filename="{name}.bin"'}
    return Response(body, media_type="application/octet-stream", headers=headers)


RULES = (
    Rule("/stores/{number:int}/message", message),
    Rule("/stores/{number:int}/body", download),
)
