"""The page of one message: record fields, body, properties, consumers, trace, and location on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from mqstore.console import bodies
from mqstore.console.basket import InLog, InQueue
from mqstore.console.page import PageRequest
from mqstore.console.pages.route import PageRoute
from mqstore.console.stores import OpenStore
from mqstore.console.trace import Step, steps
from mqstore.errors import NotFoundError, UsageError
from mqstore.rabbitmq.store import listing
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rocketmq.format.consume_queue import ConsumeQueueReader
from mqstore.rocketmq.format.system_topics import TRACE_TOPIC
from mqstore.rocketmq.lookup import explain
from mqstore.rocketmq.store.view import View
from mqstore.table.columns import RABBITMQ_COLUMNS, ROCKETMQ_COLUMNS, QueueSelection, Selection

_TIMES = ("born_timestamp", "store_timestamp")


@dataclass(frozen=True, slots=True)
class Consumer:
    """A group's position relative to a message. state: `consumed`, `waiting`, or `outside` (its offset is outside the queue)."""

    group: str
    offset: int
    state: str


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A range of a file that belongs to a message."""

    what: str
    file: str
    at: int
    length: int


def rocketmq_row(view: View, offset: int) -> dict[str, Any]:
    """Return the message at a physical offset as a row of the message table, times in ms. Raises NotFoundError."""
    for batch in view.batches(ROCKETMQ_COLUMNS, Selection(from_offset=offset, to_offset=offset + 1), milliseconds=True):
        for row in batch.to_pylist():
            return dict(row) | {"properties": None if row["properties"] is None else dict(row["properties"])}
    low, high = view.log_range()
    where = f"outside the log, which ranges from {low:,} to {high:,}" if not low <= offset < high else "where no valid record starts"
    raise NotFoundError(f"physical offset {offset:,} is {where} in the {view.name} view; see the damage map of the log")


def _rocketmq(request: PageRequest, opened: OpenStore) -> Response:
    store, view = opened.rocketmq, opened.view(request.view)
    offset = request.needed("offset")
    row = rocketmq_row(view, offset)
    file = store.log.file_at(offset)
    places = [ByteRange("record", row["store_file"], offset - (file.start if file else 0), row["size"])]
    queue = next((each for each in store.consume_queues() if (each.topic, each.queue_id) == (row["topic"], row["queue_id"])), None)
    if isinstance(queue, ConsumeQueueReader) and queue.min_offset <= row["queue_offset"] < queue.max_offset:
        name, at = queue.place(row["queue_offset"])
        places.append(ByteRange("queue entry", name, at, 20))
    raw = store.log.raw(offset) or b""
    return request.show(
        "message.html",
        store=opened,
        section="messages",
        row=row,
        consumers=_consumers(view, row),
        trace=_trace(opened, view, row["uniq_key"]),
        places=places,
        place=InLog(opened.number, offset),
        record=bodies.hex_lines(raw, request.number("record") or 0) if request.text("record") else None,
        record_size=len(raw),
        **_body_views(request, row["body"]),
    )


def _body_views(request: PageRequest, body: bytes | None) -> dict[str, Any]:
    """Return the template values of a body. body: None if it cannot be read."""
    unpacked = None if body is None else bodies.unpack(body)
    is_unpacked = bool(request.text("unpacked")) and unpacked is not None and unpacked.content is not None
    stored = 0 if body is None else len(body)
    if is_unpacked and unpacked is not None:
        body = unpacked.content
    found = None if body is None else bodies.views(body)
    start = request.number("from") or 0
    chosen = request.text("body") or (found.likely if found else "text")
    if chosen not in ("text", "json", "hex"):
        raise UsageError("a body can be shown as text, json or hex")
    return {
        "unpacked": unpacked,
        "is_unpacked": is_unpacked,
        "stored_size": stored,
        "body": found,
        "chosen": chosen,
        "hex": bodies.hex_lines(body or b"", start) if chosen == "hex" else [],
        "hex_start": start - start % 16,
        "hex_size": bodies.HEX_SHOWN,
        "shown": bodies.SHOWN,
        "basket": request.session.basket if request.session else (),
    }


def _consumers(view: View, row: dict[str, Any]) -> list[Consumer]:
    found = []
    for each in view.consumer_offsets():
        if (each.topic, each.queue_id) == (row["topic"], row["queue_id"]):
            state = "consumed" if each.offset > row["queue_offset"] else "waiting"
            found.append(Consumer(each.group, each.offset, state if each.state == "ok" else f"{state} ({each.state})"))
    return found


def _trace(opened: OpenStore, view: View, unique: str | None) -> list[Step]:
    """Return the trace in this store's trace topic; the trace may also be on another broker."""
    if not unique or not any(queue.topic == TRACE_TOPIC for queue in view.queues()):
        return []
    answer = explain.query(opened.rocketmq, view, TRACE_TOPIC, unique, scan=False)
    found: list[Step] = []
    for place in answer.messages:
        found += steps(rocketmq_row(view, place)["body"] or b"", unique)
    return sorted(found, key=lambda step: (step.time is None, step.time or 0))


# RabbitMQ


def rabbitmq_row(store: RabbitMQStore, place: InQueue) -> dict[str, Any]:
    """Return a message by its index entry, as a row of the message table. Raises NotFoundError."""
    for rows in store.rows(_selection(place)):
        if rows.priority_level == place.level:
            batch = store.batch(rows, RABBITMQ_COLUMNS)
            for row in [] if batch is None else batch.to_pylist():
                return dict(row)
    raise NotFoundError(f"queue {place.queue!r} of vhost {place.vhost!r} has no index entry with sequence id {place.seq_id}")


def _selection(place: InQueue) -> QueueSelection:
    return QueueSelection(
        vhosts=frozenset({place.vhost}),
        queues=frozenset({place.queue}),
        from_seq=place.seq_id,
        to_seq=place.seq_id + 1,
        everything=True,
    )


def entry_at(store: RabbitMQStore, place: InQueue) -> dict[str, Any]:
    """Return an index entry with its state. Raises NotFoundError."""
    for rows in store.rows(_selection(place)):
        if rows.priority_level == place.level:
            for row in listing.entry_rows(rows):
                return row
    raise NotFoundError(f"queue {place.queue!r} of vhost {place.vhost!r} has no index entry with sequence id {place.seq_id}")


def _rabbitmq(request: PageRequest, opened: OpenStore) -> Response:
    store = opened.rabbitmq
    place = InQueue(opened.number, request.text("vhost"), request.text("queue"), request.number("level"), request.needed("seq"))
    entry, row = entry_at(store, place), rabbitmq_row(store, place)
    places = [ByteRange("index entry", entry["index_file"], entry["index_position"], 0)]
    if row["store_file"] and entry["state"] != "missing":
        places.append(ByteRange("message", row["store_file"], row["position"], 0))
    headers = [(each["name"], each["type"], each["value"]) for each in (row["properties"] or {}).get("headers") or ()]
    plain = {name: value for name, value in (row["properties"] or {}).items() if value is not None and name != "headers"}
    return request.show(
        "queued.html",
        store=opened,
        section="queues",
        row=row,
        entry=entry,
        headers=headers,
        properties=plain,
        places=places,
        place=place,
        **_body_views(request, row["payload"]),
    )


def message(request: PageRequest) -> Response:
    opened = request.store
    return _rocketmq(request, opened) if opened.family == "rocketmq" else _rabbitmq(request, opened)


def download(request: PageRequest) -> Response:
    """Return the raw body as a download, which the browser never displays."""
    opened = request.store
    if opened.family == "rocketmq":
        offset = request.needed("offset")
        body, name = rocketmq_row(opened.view(request.view), offset)["body"], f"body-{offset}"
    else:
        place = InQueue(opened.number, request.text("vhost"), request.text("queue"), request.number("level"), request.needed("seq"))
        body, name = rabbitmq_row(opened.rabbitmq, place)["payload"], f"body-{place.seq_id}"
    if body is None:
        raise NotFoundError("the body cannot be read; see the message page for the reason")
    headers = {"Content-Disposition": f'attachment; filename="{name}.bin"'}
    return Response(body, media_type="application/octet-stream", headers=headers)


ROUTES = (
    PageRoute("/stores/{number:int}/message", message),
    PageRoute("/stores/{number:int}/body", download),
)
